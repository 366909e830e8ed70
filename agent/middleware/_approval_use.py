"""That an approval is used once: what this process and the checkpointer know of it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.constants import CONFIG_KEY_CHECKPOINTER
from langgraph.runtime import ExecutionInfo

__all__ = ["UsedApprovals", "checkpointer_of", "graph_of", "has_moved_on", "is_replay"]

_MAX_KEPT = 10_000


class UsedApprovals:
    """Requests for approval whose call has begun to run in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._ids

    def add(self, request_id: str) -> bool:
        """Note one, and return whether it is the first time."""
        with self._lock:
            if request_id in self._ids:
                return False
            self._ids[request_id] = None
            if len(self._ids) > _MAX_KEPT:
                self._ids.popitem(last=False)
            return True

    def discard(self, request_id: str) -> None:
        """Forget one."""
        with self._lock:
            self._ids.pop(request_id, None)


def checkpointer_of(config: Mapping[str, Any]) -> BaseCheckpointSaver[Any] | None:
    """Return what keeps the thread of a run; None where it cannot be resumed."""
    saver = (config.get("configurable") or {}).get(CONFIG_KEY_CHECKPOINTER)
    return saver if isinstance(saver, BaseCheckpointSaver) else None


def graph_of(info: ExecutionInfo) -> RunnableConfig:
    """Return where a checkpointer finds the newest state of the graph that a node belongs to."""
    graph_ns, _, _ = info.checkpoint_ns.rpartition("|")
    return {"configurable": {"thread_id": info.thread_id, "checkpoint_ns": graph_ns}}


def has_moved_on(newest: CheckpointTuple | None, info: ExecutionInfo) -> bool:
    """Return whether a thread is further than the state that a node runs on."""
    return newest is not None and newest.checkpoint["id"] != info.checkpoint_id


def is_replay(newest: CheckpointTuple | None, info: ExecutionInfo) -> bool:
    """Return whether a node runs on a copy of an earlier state of its thread."""
    if newest is None or newest.checkpoint["id"] != info.checkpoint_id:
        return False
    return newest.metadata.get("source") == "fork"
