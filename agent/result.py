"""What a run did, read from its messages: answer, steps, offered tools, stop reason, tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    HumanMessage,
    ToolMessage,
    messages_to_dict,
)
from langgraph.graph.state import CompiledStateGraph

from agent.approval import PendingApproval, pending_approvals
from agent.history import HistoryCut
from agent.limits import StopReason
from agent.selection import Offer
from agent.spending import LimitMet, Spent, reported_tokens

__all__ = [
    "Agent",
    "OfferedTool",
    "RunResult",
    "Step",
    "StopReason",
    "TokenUsage",
    "ToolCallResult",
    "call_result",
    "limit_of",
    "offered_tools",
    "read_run",
]

Agent = CompiledStateGraph[Any, Any, Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallResult:
    """One tool call and what came of it.

    Attributes:
        tool: Model-facing name.
        arguments: As the model gave them.
        observation: Text of the answer; empty while a call has none.
        status: `error` when the tool failed or the call was refused; `pending` without answer.
        call_id: Pairs call and answer.
    """

    tool: str
    arguments: Mapping[str, Any]
    observation: str
    status: Literal["success", "error", "pending"]
    call_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One model call that asked for tools: its text, and its calls in the order asked."""

    thought: str
    tool_calls: tuple[ToolCallResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """A tool the model could call. Relevance is 0 to 1, None for a pinned tool never found."""

    name: str
    relevance: float | None
    pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """Tokens of all model calls of a run, and what they cost.

    Attributes:
        input_tokens: Of the prompts.
        output_tokens: Of the replies.
        total_tokens: Of both.
        cached_input_tokens: Those of the prompts that the provider's cache held.
        cost: In the currency of `RunLimits.prices`; None without prices.
        is_estimated: The model did not report all of it. Without `RunLimitsMiddleware` nothing is
            estimated, and unreported tokens count 0.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_input_tokens: int = 0
    cost: float | None = None
    is_estimated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Everything a run did.

    Attributes:
        answer: The last reply's text. It answers the question only if `stop_reason` says so: at
            a limit it is the summary (`is_summary`), or the sentence that tells of the limit.
        steps: Model calls that asked for tools, in order.
        offered_tools: What the thread was offered at the end, in the order bound.
        stop_reason: Why the run ended.
        limit: The limit that ended the run, if one did.
        is_summary: The answer is what the model summed up at a limit.
        usage: Tokens of this run alone.
        messages: Of this run alone, from the question on.
        structured_response: With a `response_format`, the parsed answer.
        history_cut: What of the thread the last model call was not sent; None where it had all.
        pending: Calls that wait for a person's decision; the stop reason is then `interrupted`.
    """

    answer: str
    steps: tuple[Step, ...]
    offered_tools: tuple[OfferedTool, ...]
    stop_reason: StopReason
    usage: TokenUsage
    messages: tuple[AnyMessage, ...]
    structured_response: Any = None
    limit: LimitMet | None = None
    is_summary: bool = False
    history_cut: HistoryCut | None = None
    pending: tuple[PendingApproval, ...] = ()

    @property
    def findings(self) -> tuple[ToolCallResult, ...]:
        """The tool calls that succeeded, in order: what a run that was stopped had found."""
        return tuple(
            call for step in self.steps for call in step.tool_calls if call.status == "success"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values; what is no JSON becomes its text."""
        values = {
            "answer": self.answer,
            "steps": [
                {
                    "thought": step.thought,
                    "tool_calls": [
                        {
                            "tool": call.tool,
                            "arguments": dict(call.arguments),
                            "observation": call.observation,
                            "status": call.status,
                            "call_id": call.call_id,
                        }
                        for call in step.tool_calls
                    ],
                }
                for step in self.steps
            ],
            "offered_tools": [
                {"name": tool.name, "relevance": tool.relevance, "pinned": tool.pinned}
                for tool in self.offered_tools
            ],
            "stop_reason": self.stop_reason.value,
            "limit": None if self.limit is None else asdict(self.limit),
            "is_summary": self.is_summary,
            "usage": asdict(self.usage),
            "history_cut": None if self.history_cut is None else asdict(self.history_cut),
            "pending": [asdict(approval) for approval in self.pending],
            "messages": messages_to_dict(self.messages),
            "structured_response": self.structured_response,
        }
        return cast("dict[str, Any]", json.loads(json.dumps(values, default=_json_value)))


def read_run(output: Mapping[str, Any], *, question_id: str | None = None) -> RunResult:
    """Return what a run did, from the output of `invoke`, or from a thread's state values.

    Args:
        output: State values with `messages`.
        question_id: Id of the message that began the run; None for the newest human message.
    """
    messages = _messages_of_run(output["messages"], question_id)
    structured = output.get("structured_response")
    answer = _answer(messages)
    limit_met = cast("Mapping[str, Any]", output.get("limit_met") or {})
    if output.get("__interrupt__"):
        reason = StopReason.INTERRUPTED
    elif output.get("stop_reason"):
        reason = StopReason(output["stop_reason"])
    elif answer or structured is not None:
        reason = StopReason.ANSWERED
    else:
        reason = StopReason.EMPTY_ANSWER
    return RunResult(
        answer=answer,
        steps=_steps(messages),
        offered_tools=offered_tools(cast("list[Offer]", output.get("offered_tools") or [])),
        stop_reason=reason,
        usage=_usage(output, messages),
        messages=tuple(messages),
        structured_response=structured,
        limit=limit_of(reason, limit_met),
        is_summary=bool(limit_met.get("is_summarised")),
        history_cut=HistoryCut.from_state(output.get("history_cut")),
        pending=_pending(output.get("__interrupt__") or ()),
    )


def _pending(interrupts: Sequence[Any]) -> tuple[PendingApproval, ...]:
    return tuple(
        approval for approvals in pending_approvals(interrupts).values() for approval in approvals
    )


def _messages_of_run(messages: Sequence[AnyMessage], question_id: str | None) -> list[AnyMessage]:
    starts = [place for place, message in enumerate(messages) if message.id == question_id]
    if question_id is None or not starts:  # middleware may have rewritten the history
        starts = [
            place for place, message in enumerate(messages) if isinstance(message, HumanMessage)
        ]
    return list(messages[starts[-1] :] if starts else messages)


def _answer(messages: Sequence[AnyMessage]) -> str:
    last = messages[-1] if messages else None
    return str(last.text).strip() if isinstance(last, AIMessage) and not last.tool_calls else ""


def _steps(messages: Sequence[AnyMessage]) -> tuple[Step, ...]:
    answers = {
        message.tool_call_id: message for message in messages if isinstance(message, ToolMessage)
    }
    return tuple(
        Step(
            thought=str(message.text).strip(),
            tool_calls=tuple(
                call_result(dict(call), answers.get(call["id"] or ""))
                for call in message.tool_calls
            ),
        )
        for message in messages
        if isinstance(message, AIMessage) and message.tool_calls
    )


def call_result(call: Mapping[str, Any], answer: ToolMessage | None) -> ToolCallResult:
    """Return a call with its answer, if it has one."""
    return ToolCallResult(
        tool=call["name"],
        arguments=call["args"],
        observation="" if answer is None else _observation(answer),
        status="pending" if answer is None else answer.status,
        call_id=call["id"] or "",
    )


def _observation(answer: ToolMessage) -> str:
    if isinstance(answer.content, str) or str(answer.text):
        return str(answer.text)
    return json.dumps(answer.content, ensure_ascii=False, default=str)  # blocks without any text


def offered_tools(offers: Sequence[Offer]) -> tuple[OfferedTool, ...]:
    """Return what a thread is offered, from its state."""
    return tuple(
        OfferedTool(name=offer["name"], relevance=offer["relevance"], pinned=offer["pinned"])
        for offer in offers
    )


def limit_of(reason: StopReason, met: Mapping[str, Any]) -> LimitMet | None:
    """Return the limit that was met, from a thread's state; None where none was."""
    if not met:
        return None
    return LimitMet(reason=reason, name=met["name"], allowed=met["allowed"], scope=met["scope"])


def _usage(output: Mapping[str, Any], messages: Sequence[AnyMessage]) -> TokenUsage:
    if "run_spent" in output:
        spent = Spent.from_state(output["run_spent"])
        return TokenUsage(
            input_tokens=spent.input_tokens,
            output_tokens=spent.output_tokens,
            total_tokens=spent.total_tokens,
            cached_input_tokens=spent.cached_input_tokens,
            cost=spent.cost,
            is_estimated=spent.is_estimated,
        )
    reported = [
        tokens
        for message in messages
        if isinstance(message, AIMessage) and (tokens := reported_tokens(message.usage_metadata))
    ]
    return TokenUsage(
        input_tokens=sum(tokens.input_tokens for tokens in reported),
        output_tokens=sum(tokens.output_tokens for tokens in reported),
        total_tokens=sum(tokens.total_tokens for tokens in reported),
        cached_input_tokens=sum(tokens.cached_input_tokens for tokens in reported),
    )


def _json_value(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else str(value)
