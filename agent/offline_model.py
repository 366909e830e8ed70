"""A rule-based stand-in for a chat model, so that demo and docs run without key or network.

It is no language model: it compares words, fills arguments with regular expressions and puts
observations into fixed sentences. Its answers say so.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field

from agent.offline_rules.answers import LABEL, answer
from agent.offline_rules.clauses import read_question
from agent.offline_rules.matching import Call, bound_tool, call_key
from agent.offline_rules.planning import Observation, Plan, next_step

__all__ = ["OfflineChatModel"]

_WORDS = re.compile(r"\S+\s*|\s+")


class OfflineChatModel(BaseChatModel):
    """A stand-in that is no language model: it picks tools by rules and chains their results.

    Given the bound tools, the newest human question and the observations since, it asks for one
    tool call at a time: the tool whose words overlap most with the next part of the question and
    whose required arguments the question (or an earlier result) fills. A failed call is changed
    once where the error message says how. It never repeats a call, and answers without tools
    when none fits. English best; German and Japanese for weather, orders and arithmetic.

    The token counts in `usage_metadata` are approximate: about four characters a token, bound
    tool schemas included.

    Attributes:
        max_calls: Tool calls asked for at most for one question.
    """

    max_calls: int = Field(default=6, ge=0)

    @property
    def _llm_type(self) -> str:
        return "offline-stand-in-no-language-model"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model_name": self._llm_type, "max_calls": self.max_calls}

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return the model with these tools; `tool_choice` may be `none` or one tool's name.

        Any other choice is as good as `auto`: a call whose arguments nothing fills is not made.
        """
        schemas = [convert_to_openai_tool(tool) for tool in tools]
        return self.bind(tools=schemas, tool_choice=tool_choice, **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        message = self._reply(messages, **kwargs)
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        message = self._reply(messages, **kwargs)
        for word in _WORDS.findall(message.text):
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=word))
            if run_manager:
                run_manager.on_llm_new_token(word, chunk=chunk)
            yield chunk
        calls = [
            tool_call_chunk(
                name=call["name"],
                args=json.dumps(call["args"], ensure_ascii=False),
                id=call["id"],
                index=index,
            )
            for index, call in enumerate(message.tool_calls)
        ]
        last = AIMessageChunk(
            content="",
            tool_call_chunks=calls,
            usage_metadata=message.usage_metadata,
            response_metadata=message.response_metadata,
            chunk_position="last",
        )
        yield ChatGenerationChunk(message=last)

    def _reply(
        self,
        messages: Sequence[BaseMessage],
        tools: Sequence[dict[str, Any]] = (),
        tool_choice: str | None = None,
        **_: Any,
    ) -> AIMessage:
        question_text, observations = _this_turn(messages)
        question = read_question(question_text)
        # A provider's built-in tool has no function schema; nothing here could run it.
        functions = [schema for schema in tools if "function" in schema]
        names = {schema["function"]["name"] for schema in functions}
        usable = [
            bound_tool(schema)
            for schema in functions
            if tool_choice not in names or schema["function"]["name"] == tool_choice
        ]
        plan = Plan()
        if tool_choice != "none" and len(observations) < self.max_calls:
            plan = next_step(question, usable, observations)
        call = plan.call
        if call is not None and _was_made(call, observations):
            call = None
        if call is None:
            content = answer(question, observations, left_out=plan.left_out)
        else:
            content = call.thought
        message = AIMessage(
            content=content,
            tool_calls=[] if call is None else [_tool_call(call)],
            response_metadata={
                "model_name": self._llm_type,
                "model_provider": "offline",
                "finish_reason": "stop" if call is None else "tool_calls",
                "note": LABEL,
            },
        )
        message.usage_metadata = _approximate_usage(messages, message, list(tools))
        return message


def _this_turn(messages: Sequence[BaseMessage]) -> tuple[str, list[Observation]]:
    """Return the newest human text and the calls with their results since, in order."""
    start = max((i for i, m in enumerate(messages) if isinstance(m, HumanMessage)), default=None)
    if start is None:
        return "", []
    calls: dict[str, ToolCall] = {}
    observations: list[Observation] = []
    for message in messages[start + 1 :]:
        if isinstance(message, AIMessage):
            calls |= {call["id"]: call for call in message.tool_calls if call["id"]}
        elif isinstance(message, ToolMessage) and message.tool_call_id in calls:
            call = calls[message.tool_call_id]
            is_error = message.status == "error"
            observations.append(Observation(call["name"], call["args"], message.text, is_error))
    return messages[start].text, observations


def _was_made(call: Call, observations: Sequence[Observation]) -> bool:
    made = {call_key(o.tool_name, o.arguments) for o in observations}
    return call_key(call.tool_name, call.arguments) in made


def _tool_call(call: Call) -> ToolCall:
    return ToolCall(
        name=call.tool_name, args=call.arguments, id=f"call_{uuid.uuid4().hex}", type="tool_call"
    )


def _approximate_usage(
    messages: Sequence[BaseMessage], reply: AIMessage, tools: list[BaseTool | dict[str, Any]]
) -> UsageMetadata:
    asked = count_tokens_approximately(messages, tools=tools or None)
    replied = count_tokens_approximately([reply])
    return UsageMetadata(input_tokens=asked, output_tokens=replied, total_tokens=asked + replied)
