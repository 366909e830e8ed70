"""What a run did, read from its messages: answer, steps, offered tools, stop reason, tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
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

from agent.selection import Offer
from registry.errors import ConfigurationError, InvalidQueryError
from registry.text import is_unicode

__all__ = [
    "OfferedTool",
    "RunResult",
    "Step",
    "StopReason",
    "TokenUsage",
    "ToolCallResult",
    "aask",
    "ask",
    "read_run",
]

Agent = CompiledStateGraph[Any, Any, Any, Any]


class StopReason(StrEnum):
    """Why a run ended."""

    ANSWERED = "answered"
    STEP_LIMIT = "step_limit"
    EMPTY_ANSWER = "empty_answer"
    INTERRUPTED = "interrupted"


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
    """Tokens of all model calls of a run, as reported; 0 when the model reports none."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Everything a run did.

    Attributes:
        answer: The last reply's text; at the step limit, the sentence that says so.
        steps: Model calls that asked for tools, in order.
        offered_tools: What the thread was offered at the end, in the order bound.
        stop_reason: Why the run ended.
        usage: Tokens of this run alone.
        messages: Of this run alone, from the question on.
        structured_response: With a `response_format`, the parsed answer.
    """

    answer: str
    steps: tuple[Step, ...]
    offered_tools: tuple[OfferedTool, ...]
    stop_reason: StopReason
    usage: TokenUsage
    messages: tuple[AnyMessage, ...]
    structured_response: Any = None

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
            "usage": {
                "input_tokens": self.usage.input_tokens,
                "output_tokens": self.usage.output_tokens,
                "total_tokens": self.usage.total_tokens,
            },
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


def read_run(output: Mapping[str, Any], *, question_id: str | None = None) -> RunResult:
    """Return what a run did, from the output of `invoke`, or from a thread's state values.

    Args:
        output: State values with `messages`.
        question_id: Id of the message that began the run; None for the newest human message.
    """
    messages = _messages_of_run(output["messages"], question_id)
    structured = output.get("structured_response")
    answer = _answer(messages)
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
        usage=_usage(messages),
        messages=tuple(messages),
        structured_response=structured,
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


def _usage(messages: Sequence[AnyMessage]) -> TokenUsage:
    reported = [
        message.usage_metadata
        for message in messages
        if isinstance(message, AIMessage) and message.usage_metadata
    ]
    return TokenUsage(
        input_tokens=sum(usage["input_tokens"] for usage in reported),
        output_tokens=sum(usage["output_tokens"] for usage in reported),
        total_tokens=sum(usage["total_tokens"] for usage in reported),
    )


def _json_value(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else str(value)
