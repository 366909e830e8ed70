"""What a run did, read from its messages: answer, steps, offered tools, stop reason, tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast
from uuid import uuid4

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    HumanMessage,
    ToolMessage,
    messages_to_dict,
)
from langchain_core.runnables import RunnableConfig
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, StateSnapshot

from agent.approval import PendingApproval, pending_approvals
from agent.history import HistoryCut
from agent.limits import StopReason
from agent.selection import Offer
from agent.spending import LimitMet, Spent, reported_tokens
from registry.errors import ApprovalError, ConfigurationError, InvalidQueryError
from registry.text import is_unicode

__all__ = [
    "OfferedTool",
    "RunResult",
    "Step",
    "StopReason",
    "TokenUsage",
    "ToolCallResult",
    "aask",
    "aresume",
    "ask",
    "read_run",
    "resume",
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


def ask(
    agent: Agent,
    question: str,
    *,
    thread_id: str | None = None,
    config: RunnableConfig | None = None,
) -> RunResult:
    """Ask an agent one question and return what the run did.

    Args:
        agent: From `create_tool_rag_agent`, or any `create_agent` with `ToolRAGMiddleware`.
        question: In the user's words.
        thread_id: Conversation to go on with; needed when the agent has a checkpointer.
        config: More LangGraph settings of this run.

    Raises:
        InvalidQueryError: The question is blank.
        ConfigurationError: The agent keeps threads and no `thread_id` is given.
        HistoryBudgetError: The question alone is larger than the history's budget.
        RegistryError: The tool search failed.
    """
    message, run_config = _prepared(agent, question, thread_id=thread_id, config=config)
    output = agent.invoke({"messages": [message]}, run_config)
    return read_run(output, question_id=message.id)


async def aask(
    agent: Agent,
    question: str,
    *,
    thread_id: str | None = None,
    config: RunnableConfig | None = None,
) -> RunResult:
    """Ask an agent one question and return what the run did; like `ask`, for async code."""
    message, run_config = _prepared(agent, question, thread_id=thread_id, config=config)
    output = await agent.ainvoke({"messages": [message]}, run_config)
    return read_run(output, question_id=message.id)


def resume(
    agent: Agent,
    decisions: Sequence[Mapping[str, Any]],
    *,
    thread_id: str,
    config: RunnableConfig | None = None,
) -> RunResult:
    """Go on with a run that waits for approval, and return what it did in all.

    What the decisions leave undecided is asked again: see `RunResult.pending`.

    Args:
        agent: With a checkpointer; it need not be the object, or the process, that asked.
        decisions: From `approve`, `edit` and `reject`, in any order.
        thread_id: Conversation that waits.
        config: More LangGraph settings of this run.

    Raises:
        ApprovalError: Nothing waits for approval in this thread, or it was decided on meanwhile.
        ConfigurationError: The agent keeps no threads.
    """
    run_config = _resuming(agent, thread_id, config)
    answer = _answer_to(agent.get_state(run_config), decisions, thread_id)
    return read_run(agent.invoke(answer, run_config))


async def aresume(
    agent: Agent,
    decisions: Sequence[Mapping[str, Any]],
    *,
    thread_id: str,
    config: RunnableConfig | None = None,
) -> RunResult:
    """Go on with a run that waits for approval; like `resume`, for async code."""
    run_config = _resuming(agent, thread_id, config)
    answer = _answer_to(await agent.aget_state(run_config), decisions, thread_id)
    return read_run(await agent.ainvoke(answer, run_config))


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
        offered_tools=_offered(cast("list[Offer]", output.get("offered_tools") or [])),
        stop_reason=reason,
        usage=_usage(output, messages),
        messages=tuple(messages),
        structured_response=structured,
        limit=_limit(reason, limit_met),
        is_summary=bool(limit_met.get("is_summarised")),
        history_cut=HistoryCut.from_state(output.get("history_cut")),
        pending=_pending(output.get("__interrupt__") or ()),
    )


def _prepared(
    agent: Agent, question: str, *, thread_id: str | None, config: RunnableConfig | None
) -> tuple[HumanMessage, RunnableConfig]:
    if not question.strip():
        raise InvalidQueryError("The question is empty; ask something")
    if not is_unicode(question):
        raise InvalidQueryError("The question is not valid Unicode: it holds half a surrogate")
    run_config: RunnableConfig = {**config} if config else {}
    configurable = dict(run_config.get("configurable", {}))
    if thread_id is not None:
        configurable["thread_id"] = thread_id
    if agent.checkpointer and "thread_id" not in configurable:
        raise ConfigurationError("This agent keeps threads; say which one with thread_id=…")
    if configurable:
        run_config["configurable"] = configurable
    return HumanMessage(question, id=str(uuid4())), run_config


def _resuming(agent: Agent, thread_id: str, config: RunnableConfig | None) -> RunnableConfig:
    if not agent.checkpointer:
        raise ConfigurationError(
            "This agent keeps no threads, so no run of it waits; give it a checkpointer"
        )
    configurable = dict((config or {}).get("configurable", {}))
    if "checkpoint_id" in configurable:
        raise ApprovalError("A decision is on what a thread waits for now; leave out checkpoint_id")
    return {**(config or {}), "configurable": {**configurable, "thread_id": thread_id}}


def _answer_to(
    state: StateSnapshot, decisions: Sequence[Mapping[str, Any]], thread_id: str
) -> Command[Any]:
    waiting = pending_approvals(state.interrupts)
    if not waiting:
        other = (
            " What it waits for is asked by a tool: answer that with Command(resume=…)."
            if state.interrupts
            else ""
        )
        raise ApprovalError(f"Nothing in thread {thread_id!r} waits for approval.{other}")
    answer = {"decisions": list(decisions)}
    return Command(resume=dict.fromkeys(waiting, answer))


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
                _call_result(dict(call), answers.get(call["id"] or ""))
                for call in message.tool_calls
            ),
        )
        for message in messages
        if isinstance(message, AIMessage) and message.tool_calls
    )


def _call_result(call: Mapping[str, Any], answer: ToolMessage | None) -> ToolCallResult:
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


def _offered(offers: Sequence[Offer]) -> tuple[OfferedTool, ...]:
    return tuple(
        OfferedTool(name=offer["name"], relevance=offer["relevance"], pinned=offer["pinned"])
        for offer in offers
    )


def _limit(reason: StopReason, met: Mapping[str, Any]) -> LimitMet | None:
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
