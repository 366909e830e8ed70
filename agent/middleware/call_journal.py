"""A call that may have happened is not run a second time when its step is resumed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from langchain.agents.middleware import AgentMiddleware, AgentState, ToolCallRequest
from langchain_core.messages import ToolMessage
from langgraph.types import Command

from agent.durable.holds import Hold
from agent.durable.store import ThreadStore
from agent.guarding.answers import cut_short
from agent.guarding.policy import ToolPolicy
from agent.middleware._binding import offers_of
from agent.middleware._guarded_call import is_control_signal, read_only

__all__ = ["CallJournalMiddleware"]

_logger = logging.getLogger(__name__)


class CallJournalMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """Notes in the database that a call begins, before it does, and runs no noted call again.

    LangGraph runs the calls of a step again that have no stored result when a thread is resumed.
    Of a read-only or idempotent tool that is right, and nothing is noted. Any other call gets
    the answer that its outcome is unknown. A note is of one call in one saved step; it goes when
    the results of the run are stored.

    Put it behind `ToolRAGMiddleware`, which finds the tool, and before `ApprovalMiddleware`.

    Args:
        threads: Where notes are kept.
        default: Policy of tools without one of their own.
        policies: Policies by model-facing name.
    """

    def __init__(
        self,
        threads: ThreadStore,
        *,
        default: ToolPolicy = ToolPolicy(),  # noqa: B008 (frozen)
        policies: Mapping[str, ToolPolicy] | None = None,
    ) -> None:
        super().__init__()
        self._threads = threads
        self._default = default
        self._policies = dict(policies or {})

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """Run a call that did not begin before; say of any other that its outcome is unknown."""
        if (note := self._note(request)) is None:
            return handler(request)
        if not self._threads.begin_call(note.hold, **note.call):
            return _unknown(request)
        try:
            return handler(request)
        except BaseException as error:
            if is_control_signal(error):  # the tool asks for something, and runs anew with it
                self._threads.forget_call(note.hold, task_id=note.task_id)
            raise

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Run a call that did not begin before; say of any other that its outcome is unknown."""
        if (note := self._note(request)) is None:
            return await handler(request)
        if not await self._threads.abegin_call(note.hold, **note.call):
            return _unknown(request)
        try:
            return await handler(request)
        except BaseException as error:
            if is_control_signal(error):  # the tool asks for something, and runs anew with it
                await self._threads.aforget_call(note.hold, task_id=note.task_id)
            raise

    def _note(self, request: ToolCallRequest) -> _Note | None:
        """Return what to note of a call; None where another run of it does no harm."""
        info = request.runtime.execution_info
        hold = self._threads.hold_of(request.runtime.config)
        if hold is None or info is None or self._is_idempotent(request):
            return None
        call = request.tool_call
        return _Note(hold, info.task_id, {"tool_name": call["name"], "call_id": call["id"] or ""})

    def _is_idempotent(self, request: ToolCallRequest) -> bool:
        name = request.tool_call["name"]
        policy = self._policies.get(name, self._default)
        if policy.idempotent is not None:
            return policy.idempotent
        offers = offers_of(request.state)
        return read_only(request.tool, next((o for o in offers if o["name"] == name), None))


@dataclass(frozen=True, slots=True)
class _Note:
    hold: Hold
    task_id: str
    names: Mapping[str, str]

    @property
    def call(self) -> dict[str, str]:
        return {"task_id": self.task_id, **self.names}


def _unknown(request: ToolCallRequest) -> ToolMessage:
    call = request.tool_call
    extra = {"tool_name": call["name"], "call_id": call["id"]}
    _logger.warning("call_of_unknown_outcome_not_run_again", extra=extra)
    return cut_short(call)
