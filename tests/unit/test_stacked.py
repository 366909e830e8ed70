"""Middleware stacked behind one shell do what they do one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    ExtendedModelResponse,
    ModelResponse,
    hook_config,
)
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.types import Command

from agent.middleware._stacked import stacked
from tests.support.scripted_model import ScriptedModel, asks, call, says


class Noted(AgentState[Any]):
    outer: NotRequired[int]
    inner: NotRequired[int]
    last: NotRequired[str]


class Outer(AgentMiddleware[Any, Any, Any]):
    """Notes what passes, and asks a model again that fails."""

    state_schema = Noted

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen
        self.count = 0

    def before_agent(self, state: Any, runtime: Any) -> None:
        self.seen.append("before")

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        self.count += 1
        self.seen.append("outer>")
        handler(request)  # what this attempt wrote must not count
        response = handler(request)
        assert isinstance(response, ModelResponse)
        self.seen.append("<outer")
        return ExtendedModelResponse(response, Command(update={"outer": self.count}))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        self.count += 1
        self.seen.append("outer>")
        await handler(request)
        response = await handler(request)
        assert isinstance(response, ModelResponse)
        self.seen.append("<outer")
        return ExtendedModelResponse(response, Command(update={"outer": self.count}))

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        self.seen.append("outer tool")
        return handler(request)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        self.seen.append("outer tool")
        return await handler(request)


class Between(AgentMiddleware[Any, Any, Any]):
    """Has no wrap hooks, but ends a run."""

    @hook_config(can_jump_to=["end"])
    def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        is_enough = len(state["messages"]) > 4
        return {"jump_to": "end", "last": "stopped"} if is_enough else None


class Inner(AgentMiddleware[Any, Any, Any]):
    """Answers with a plain message or an extended response, and changes tool results."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen
        self.calls = 0

    def _answer(self, response: ModelResponse[Any]) -> Any:
        self.calls += 1
        self.seen.append("inner")
        if self.calls % 4 == 3:
            (message,) = response.result
            assert isinstance(message, AIMessage)
            return message
        # Of two attempts only the second one's command stands, or none.
        command = Command(update={"inner": self.calls}) if self.calls % 2 == 0 else None
        return ExtendedModelResponse(response, command)

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return self._answer(handler(request))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return self._answer(await handler(request))

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        self.seen.append("inner tool")
        return _louder(handler(request))

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        self.seen.append("inner tool")
        return _louder(await handler(request))


def _louder(message: ToolMessage) -> ToolMessage:
    return message.model_copy(update={"content": f"{message.text}!"})


@tool
def echo(word: str) -> str:
    """Say a word."""
    return word


def middleware(seen: list[str]) -> Sequence[AgentMiddleware[Any, Any, Any]]:
    return [Outer(seen), Between(), Inner(seen)]


@pytest.mark.parametrize("is_async", [False, True])
async def test_they_do_what_they_do_one_by_one(is_async: bool) -> None:
    done: list[Any] = []
    for arrange in (list, stacked):
        seen: list[str] = []
        # Each call of the model is made twice; the third answer would go on without an end.
        steps = [asks(call("echo", f"c{step}", word=f"w{step}")) for step in range(4)]
        model = ScriptedModel(script=[reply for step in steps for reply in (step, step)])
        agent = create_agent(model, [echo], middleware=arrange(middleware(seen)))
        given = {"messages": [HumanMessage("Go.")]}
        output = await agent.ainvoke(given) if is_async else agent.invoke(given)
        texts = [(message.type, message.text) for message in output["messages"]]
        kept = {key: output.get(key) for key in ("outer", "inner", "last")}
        done.append((seen, texts, kept, len(model.requests)))
    one_by_one, together = done
    assert together == one_by_one
    seen, texts, kept, _ = together
    assert seen[:5] == ["before", "outer>", "inner", "inner", "<outer"]
    assert seen[5:7] == ["outer tool", "inner tool"]
    assert ("tool", "w0!") in texts
    assert kept == {"outer": 3, "inner": 6, "last": "stopped"}


def test_a_failed_attempt_writes_nothing() -> None:
    class Again(AgentMiddleware[Any, Any, Any]):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            handler(request)
            try:
                return handler(request)
            except RuntimeError:
                return AIMessage("It broke.")

    model = ScriptedModel(script=[says("one"), RuntimeError("away")])
    inner = Inner([])
    inner.calls = 1  # its next answer carries a command
    agent = create_agent(model, middleware=stacked([Outerless(), Again(), inner]))
    output = agent.invoke({"messages": [HumanMessage("Go.")]})
    assert output["messages"][-1].text == "It broke."
    assert "inner" not in output


class Outerless(AgentMiddleware[Any, Any, Any]):
    state_schema = Noted
