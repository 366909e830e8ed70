"""Whole runs with a scripted model, each under `invoke` and under `ainvoke`.

The scenarios reach the registry through `make_registry` and `set_active` only, so that another
registry can be put under all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage

from agent import (
    RunResult,
    ToolGuardMiddleware,
    ToolPolicy,
    aask,
    ask,
    create_tool_rag_agent,
)
from registry.toolset import Toolset
from tests.scenarios.scenario_tools import World
from tests.support.fake_registry import AsyncFakeRegistry, FakeRegistry

MakeRegistry = Callable[[Toolset], Any]
AgentOf = Callable[..., Any]
SetActive = Callable[[Any, str, bool], Awaitable[None]]


@dataclass(frozen=True)
class Driver:
    """Runs an agent the sync or the async way; both inside a running event loop."""

    is_async: bool

    async def run(self, agent: Any, question: Any, thread_id: str | None = None) -> dict[str, Any]:
        given = {"messages": [HumanMessage(question)]}
        config = {"configurable": {"thread_id": thread_id}} if thread_id else None
        if self.is_async:
            return await agent.ainvoke(given, config)
        return agent.invoke(given, config)

    async def ask(self, agent: Any, question: str, **options: Any) -> RunResult:
        if self.is_async:
            return await aask(agent, question, **options)
        return ask(agent, question, **options)

    async def stream(self, agent: Any, question: str, mode: str) -> list[Any]:
        given = {"messages": [HumanMessage(question)]}
        if self.is_async:
            return [part async for part in agent.astream(given, stream_mode=mode)]
        return list(agent.stream(given, stream_mode=mode))


@pytest.fixture(params=["invoke", "ainvoke", "ainvoke with a sync registry"])
def way(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def driver(way: str) -> Driver:
    return Driver(is_async=way != "invoke")


@pytest.fixture
def make_registry(way: str) -> MakeRegistry:
    return AsyncFakeRegistry if way == "ainvoke" else FakeRegistry


@pytest.fixture
def set_active() -> SetActive:
    async def change(registry: Any, tool_name: str, active: bool) -> None:
        done = (registry.activate if active else registry.deactivate)(tool_name)
        if isawaitable(done):
            await done

    return change


@pytest.fixture(params=["tool rag agent", "guard alone"])
def agent_of(request: pytest.FixtureRequest, make_registry: MakeRegistry) -> AgentOf:
    """Both ways to have the guard: in this project's agent, and as one item of `create_agent`."""

    def of_project(model: Any, tools: Sequence[Any], **options: Any) -> Any:
        toolset = Toolset(tools)
        return create_tool_rag_agent(
            model,
            registry=make_registry(toolset),
            toolset=toolset,
            k=max(len(tools), 1),
            threshold=0,
            **options,
        )

    def alone(
        model: Any,
        tools: Sequence[Any],
        *,
        default_policy: ToolPolicy = ToolPolicy(),  # noqa: B008 (frozen)
        policies: Mapping[str, ToolPolicy] | None = None,
        **options: Any,
    ) -> Any:
        guard = ToolGuardMiddleware(default=default_policy, policies=policies)
        return create_agent(model, list(tools), middleware=[guard], **options)

    return of_project if request.param == "tool rag agent" else alone


@pytest.fixture
def world() -> World:
    return World()
