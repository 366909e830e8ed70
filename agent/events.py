"""What happens in a run, as typed events in the order it happens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, cast

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from agent.approval import PendingApproval
from agent.limits import StopReason
from agent.result import (
    OfferedTool,
    RunResult,
    ToolCallResult,
    call_result,
    limit_of,
    offered_tools,
    read_run,
)
from agent.spending import LimitMet

__all__ = [
    "ApprovalNeeded",
    "EventReader",
    "LimitReached",
    "RunEnded",
    "RunEvent",
    "TextDelta",
    "ToolEnded",
    "ToolStarted",
    "ToolsOffered",
    "event_to_dict",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsOffered:
    """The tools of this run were selected, or more were added on the way.

    Attributes:
        tools: All that the thread is offered now, in the order bound.
        passed: Names that the newest search added or found again, best first.
        strategy: How they were chosen.
        threshold: Relevance a hit needed.
    """

    type: ClassVar = "tools_offered"
    tools: tuple[OfferedTool, ...]
    passed: tuple[str, ...] = ()
    strategy: str = ""
    threshold: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """The model wrote something; a model that does not stream writes all of it at once.

    Attributes:
        text: To be appended to what came before of the same message.
        message_id: Another one is another message: a thought before tool calls, or the answer.
    """

    type: ClassVar = "text"
    text: str
    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted:
    """A call of the model is taken up; it may still be refused."""

    type: ClassVar = "tool_started"
    tool: str
    arguments: Mapping[str, Any]
    call_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEnded:
    """A call has its answer: what the tool returned, or why it failed or was refused."""

    type: ClassVar = "tool_ended"
    call: ToolCallResult


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitReached:
    """A limit ends the run; the model may still sum up."""

    type: ClassVar = "limit"
    limit: LimitMet


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalNeeded:
    """The run waits: each of these calls needs a person's decision."""

    type: ClassVar = "approval_needed"
    pending: tuple[PendingApproval, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The last event of every run that ended or waits."""

    type: ClassVar = "ended"
    result: RunResult


RunEvent = (
    ToolsOffered | TextDelta | ToolStarted | ToolEnded | LimitReached | ApprovalNeeded | RunEnded
)


def event_to_dict(event: RunEvent) -> dict[str, Any]:
    """Return an event as JSON values, with its `type`; what is no JSON becomes its text."""
    given = {"result": event.result.to_dict()} if isinstance(event, RunEnded) else asdict(event)
    # Models write NaN and Infinity, Python reads them, and a browser's JSON.parse fails at them.
    values = json.loads(json.dumps(given, default=str), parse_constant=str)
    return {"type": event.type, **values}


class EventReader:
    """Makes events of what LangGraph streams in the modes `MODES`.

    Args:
        question_id: Id of the message that begins the run; None when one goes on.
    """

    MODES: ClassVar = ("values", "updates", "messages", "tasks")

    def __init__(self, question_id: str | None) -> None:
        self._question_id = question_id
        self._values: Mapping[str, Any] = {}
        self._interrupts: list[Any] = []
        self._calls: dict[str, Mapping[str, Any]] = {}
        self._answered: set[str] = set()
        self._limit: LimitMet | None = None

    def read(self, mode: str, data: Any) -> Iterator[RunEvent]:
        """Yield the events of one item of the stream."""
        if mode == "values":
            self._values = data
        elif mode == "messages":
            yield from _text(*data)
        elif mode == "tasks":
            yield from self._started(data)
        else:
            for node, update in data.items():
                if node == "__interrupt__":
                    self._interrupts += update
                else:
                    yield from self._updated(update)

    def ended(self) -> Iterator[RunEvent]:
        """Yield the last events, once the stream has ended."""
        output = dict(self._values)
        if self._interrupts:
            output["__interrupt__"] = self._interrupts
        result = read_run(output, question_id=self._question_id)
        if result.pending:
            yield ApprovalNeeded(pending=result.pending)
        yield RunEnded(result=result)

    def _started(self, task: Mapping[str, Any]) -> Iterator[RunEvent]:
        if task["name"] != "tools" or "input" not in task:
            return
        for call in _calls_of(task["input"]):
            self._calls[call["id"] or ""] = call
            yield ToolStarted(tool=call["name"], arguments=call["args"], call_id=call["id"] or "")

    def _updated(self, update: Any) -> Iterator[RunEvent]:
        if isinstance(update, list):  # commands of several calls
            for each in cast("list[Any]", update):
                yield from self._updated(each)
            return
        if not isinstance(update, Mapping):
            return
        values = cast("Mapping[str, Any]", update)
        if values.get("offered_tools") is not None:
            yield _offered(values)
        for message in cast("Sequence[BaseMessage]", values.get("messages") or ()):
            yield from self._message(message)
        if met := values.get("limit_met"):
            limit = limit_of(StopReason(values["stop_reason"]), met)
            if limit is not None and limit != self._limit:
                self._limit = limit
                yield LimitReached(limit=limit)

    def _message(self, message: BaseMessage) -> Iterator[RunEvent]:
        if isinstance(message, AIMessage):
            self._calls |= {call["id"] or "": dict(call) for call in message.tool_calls}
        elif isinstance(message, ToolMessage) and message.tool_call_id not in self._answered:
            self._answered.add(message.tool_call_id)
            unseen = {"name": message.name or "", "args": {}, "id": message.tool_call_id}
            call = self._calls.get(message.tool_call_id, unseen)
            yield ToolEnded(call=call_result(call, message))


def _calls_of(given: Any) -> list[Mapping[str, Any]]:
    """Return the calls that a task of the tool node is given, whatever they are wrapped in."""
    if isinstance(given, Mapping):
        given = [cast("Mapping[str, Any]", given).get("tool_call")]
    return [call for call in given if isinstance(call, Mapping)] if isinstance(given, list) else []


def _text(message: BaseMessage, metadata: Mapping[str, Any]) -> Iterator[RunEvent]:
    is_the_models = metadata.get("langgraph_node") == "model"
    if not is_the_models or metadata.get("lc_source") or not isinstance(message, AIMessage):
        return
    if text := str(message.text):
        yield TextDelta(text=text, message_id=message.id or "")


def _offered(values: Mapping[str, Any]) -> ToolsOffered:
    record = cast("Mapping[str, Any]", values.get("last_selection") or {})
    return ToolsOffered(
        tools=offered_tools(values["offered_tools"]),
        passed=tuple(record.get("passed", ())),
        strategy=record.get("strategy", ""),
        threshold=record.get("threshold"),
    )
