"""A chat model that plays back a script, records every request, and is as strict as a provider."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import PrivateAttr

from tests.support.openai_rules import check_chat

Reply = AIMessage | Exception
Script = Sequence[Reply] | Callable[[list[BaseMessage]], Reply]


@dataclass(frozen=True)
class Request:
    """What one model call was sent."""

    messages: tuple[BaseMessage, ...]
    tools: tuple[dict[str, Any], ...]

    @property
    def tool_names(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.tools]

    def description(self, name: str) -> str:
        return next(
            tool["function"]["description"]
            for tool in self.tools
            if tool["function"]["name"] == name
        )


class ScriptedModel(BaseChatModel):
    """Plays back messages in order, or asks a function for each; a script too short fails.

    Every request is held against the rules of the OpenAI API; with `require_definitions` also
    against the rule that each tool the history calls is defined (RET-7).
    """

    script: Any
    require_definitions: bool = False
    _requests: list[Request] = PrivateAttr(default_factory=list)

    @property
    def requests(self) -> list[Request]:
        return self._requests

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], *, tool_choice: Any = None, **kwargs: Any) -> Any:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        *,
        tools: Sequence[dict[str, Any]] = (),
        **kwargs: Any,
    ) -> ChatResult:
        body: dict[str, Any] = {
            "model": "scripted",
            "messages": convert_to_openai_messages(messages),
        }
        if tools:
            body["tools"] = list(tools)
        check_chat(body, require_definitions=self.require_definitions)
        self._requests.append(Request(tuple(messages), tuple(tools)))
        place = len(self._requests) - 1
        if callable(self.script):
            reply = self.script(messages)
        else:
            assert place < len(self.script), f"the script has no reply number {place + 1}"
            reply = self.script[place]
        if isinstance(reply, Exception):
            raise reply
        return ChatResult(generations=[ChatGeneration(message=reply.model_copy(deep=True))])


def call(name: str, call_id: str = "c1", /, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "args": arguments, "id": call_id, "type": "tool_call"}


def asks(*calls: dict[str, Any], thought: str = "") -> AIMessage:
    return AIMessage(content=thought, tool_calls=list(calls))


def says(text: str, **fields: Any) -> AIMessage:
    return AIMessage(content=text, **fields)
