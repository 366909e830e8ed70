"""What `ToolRAGMiddleware` records of a run: its selection, and how each call ended.

Nothing here waits or asks the database; a run is as it would be without the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast
from uuid import UUID, uuid4

from langchain.agents.middleware import ToolCallRequest
from langchain.tools import ToolRuntime
from langchain_core.messages import ToolMessage
from langgraph.config import get_config
from langgraph.runtime import Runtime
from langgraph.types import Command

from agent._registry_access import RegistryAccess
from agent.approving.answers import REJECTED
from agent.guarding.answers import REFUSED, REPEATED
from agent.middleware._messages import METADATA_KEY
from agent.middleware._searching import Found
from agent.selection import Offer
from registry.errors import ConfigurationError
from registry.types import ToolHit
from registry.usage import CallRecord, CallStatus, SelectionRecord, UsageHit
from registry.usage_log import UsageLog

__all__ = ["SEARCHED", "UsageRecorder", "WatchedCall"]

SEARCHED = "search_tools"  # the strategy of a selection that the model asked for

_logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer", bound="ToolMessage | Command[Any]")


class UsageRecorder:
    """Turns what a run does into records.

    Args:
        registry: What is searched.
        usage_log: A log, True for the registry's own, False for none.

    Raises:
        ConfigurationError: `usage_log` is something else.
    """

    def __init__(self, registry: RegistryAccess, usage_log: UsageLog | bool) -> None:
        if not isinstance(usage_log, (UsageLog, bool)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"usage_log is {usage_log!r}; give a UsageLog, True for the registry's, or False"
            )
        self._registry = registry
        self._given = usage_log

    @property
    def _log(self) -> UsageLog | None:
        # Asked each time: the registry's log may have been closed, and is then made anew.
        log = self._given
        if isinstance(log, bool):
            log = self._registry.usage_log if log else None
        return log if log is not None and log.settings.enabled else None

    def record_selection(
        self, found: Found, selected: dict[str, Any], runtime: Runtime[Any]
    ) -> None:
        """Record a selection, and put its id into the thread's record of it, for the calls.

        Args:
            found: What was searched, and what the registry answered.
            selected: Update of the thread's state.
            runtime: Of the run.
        """
        with _never_into_the_run():
            newest: dict[str, Any] = selected["last_selection"]
            selection_id = self._record(
                found,
                usage_hits(found.selection.hits, selected["offered_tools"]),
                run_ids(cast("Mapping[str, Any]", get_config()), runtime),
                strategy=found.selection.strategy,
            )
            if selection_id is not None:
                newest["id"] = str(selection_id)

    def record_search(
        self, found: Found, *, offered: Collection[str], runtime: ToolRuntime[Any, Any]
    ) -> None:
        """Record what the model itself searched, as a selection of the strategy `search_tools`.

        Calls of the run stay with the selection of its question: what the question needed is what
        is to be learnt, not what the model made of it.

        Args:
            found: What was searched, and what the registry answered.
            offered: Names of the hits that the model has from now on.
            runtime: Of the call.
        """
        hits = tuple(
            UsageHit(
                tool_name=hit.tool_name,
                rank=hit.rank,
                relevance=float(hit.relevance),
                was_offered=hit.tool_name in offered,
            )
            for hit in found.selection.hits
        )
        with _never_into_the_run():
            ids = run_ids(runtime.config, runtime)
            self._record(found, hits, ids, strategy=SEARCHED)

    def _record(
        self, found: Found, hits: tuple[UsageHit, ...], ids: Mapping[str, Any], *, strategy: str
    ) -> UUID | None:
        if (log := self._log) is None:
            return None
        selection_id = uuid4()
        vector = self._registry.question_vector(found.query) if found.query else None
        log.record_selection(
            SelectionRecord(
                id=selection_id,
                namespace=self._registry.namespace,
                strategy=strategy,
                threshold=found.selection.threshold,
                latency_ms=found.latency_ms,
                hits=hits,
                query_text=found.query or None,
                query_vector=vector,
                embedding_model_id=None if vector is None else self._registry.embedding_model_id,
                **ids,
            )
        )
        return selection_id

    @contextmanager
    def watch(self, request: ToolCallRequest) -> Generator[WatchedCall]:
        """Give a watch on one call, and record how it ended.

        LangGraph's own signals are no end: an interrupted call runs again when the run goes on.
        """
        watched = WatchedCall(request)
        try:
            yield watched
        except Exception:
            raise
        except BaseException:  # cancelled, or the process is told to stop
            self._record_call(request, watched, "cancelled")
            raise
        self._record_call(request, watched, watched.status)

    def _record_call(
        self, request: ToolCallRequest, watched: WatchedCall, status: CallStatus
    ) -> None:
        call_ms = watched.elapsed_ms
        with _never_into_the_run():
            selection_id, log = _selection_id(request.state), self._log
            if log is None or selection_id is None or watched.was_offered is None:
                return
            log.record_call(
                CallRecord(
                    selection_id=selection_id,
                    tool_name=request.tool_call["name"],
                    status=status,
                    call_ms=call_ms,
                    was_offered=watched.was_offered,
                )
            )


class WatchedCall:
    """How one call goes; `refused` until its tool began to run.

    Attributes:
        was_offered: None until it is known that the call concerns the registry.
    """

    def __init__(self, request: ToolCallRequest) -> None:
        self.status: CallStatus = "refused"
        self.was_offered: bool | None = None
        self._call_id = request.tool_call["id"]
        self._began_at: float | None = None

    @property
    def elapsed_ms(self) -> float | None:
        """Time since the tool began to run, milliseconds; None where it did not."""
        if self._began_at is None:
            return None
        return 1_000 * (time.perf_counter() - self._began_at)

    def names_tool(self, *, was_offered: bool) -> None:
        """Note that the call names an offered tool, or one that nobody offered."""
        self.was_offered = was_offered

    def begin(self) -> None:
        """Note that the tool runs from now on."""
        self._began_at = time.perf_counter()

    def ended(self, answer: _Answer) -> _Answer:
        """Note how the tool ended by its answer, and return that."""
        mine = [m for m in _messages_of(answer) if m.tool_call_id == self._call_id]
        errors = [message for message in mine if message.status == "error"]
        self.status = _status_of(errors[0]) if errors else "success"
        return answer

    def failed(self, answer: ToolMessage, error: Exception) -> ToolMessage:
        """Note that the tool raised, and return the answer."""
        self.status = "timeout" if isinstance(error, TimeoutError) else "error"
        return answer


def usage_hits(hits: Sequence[ToolHit], offers: Sequence[Offer]) -> tuple[UsageHit, ...]:
    """Return the found tools, then those offered without being found: bound all the same."""
    bound = {offer["name"] for offer in offers if offer["active"]}
    found = [
        UsageHit(
            tool_name=hit.tool_name,
            rank=hit.rank,
            relevance=float(hit.relevance),
            was_offered=hit.tool_name in bound,
        )
        for hit in hits
    ]
    bound.difference_update(hit.tool_name for hit in hits)
    others = [
        UsageHit(tool_name=offer["name"], rank=None, relevance=None, was_offered=True)
        for offer in offers
        if offer["name"] in bound
    ]
    return (*found, *others)


def run_ids(
    config: Mapping[str, Any], runtime: Runtime[Any] | ToolRuntime[Any, Any]
) -> dict[str, Any]:
    """Return the ids of a run, each from the first place that has it.

    Places: what LangGraph says of the run, the config's `configurable`, its `metadata`, the run's
    context (a mapping, or an object with attributes).
    """
    places = [
        runtime.execution_info,  # a node's config has lost the run's id
        config.get("configurable"),
        config.get("metadata"),
        runtime.context,
    ]
    return {
        name: next((str(value) for place in places if (value := _value(place, name))), None)
        for name in ("run_id", "thread_id", "session_id", "conversation_id")
    }


@contextmanager
def _never_into_the_run() -> Generator[None]:
    """Turn what fails here into a line of the log: ids, for one, come from the user's objects."""
    try:
        yield
    except Exception:
        _logger.exception("usage_not_recorded")


def _value(place: Any, name: str) -> Any:
    if isinstance(place, Mapping):
        return cast("Mapping[str, Any]", place).get(name)
    return getattr(place, name, None)


def _selection_id(state: Any) -> UUID | None:
    newest = cast("Mapping[str, Any]", state).get("last_selection") or {}
    try:
        return UUID(newest["id"])
    except (KeyError, TypeError, ValueError):  # recorded by nobody, or by another version
        return None


def _status_of(error: ToolMessage) -> CallStatus:
    mark = error.response_metadata.get(METADATA_KEY, {})
    if mark.get("timed_out"):
        return "timeout"
    return "refused" if mark.get("outcome") in (REFUSED, REJECTED, REPEATED) else "error"


def _messages_of(answer: ToolMessage | Command[Any]) -> list[ToolMessage]:
    if isinstance(answer, ToolMessage):
        return [answer]
    update = getattr(answer, "update", None)
    messages = cast("dict[str, Any]", update).get("messages") if isinstance(update, dict) else None
    return [message for message in messages or () if isinstance(message, ToolMessage)]
