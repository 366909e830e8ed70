"""`search_tools`: the model looks for more tools, and they are offered under the same rules."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver

from agent import RunLimits, ToolRAGMiddleware, create_tool_rag_agent
from registry.errors import ConfigurationError
from registry.toolset import Toolset
from registry.types import ToolSelection
from tests.support.fake_registry import AsyncFakeRegistry, FakeRegistry
from tests.support.scripted_model import ScriptedModel, asks, call, says

QUESTION = "Read the notes in the notebook"


def tool_named(name: str, description: str, runs: list[str] | None = None) -> StructuredTool:
    def run(city: str = "") -> str:
        if runs is not None:
            runs.append(name)
        return f"{name} in {city}"

    return StructuredTool.from_function(run, name=name, description=description)


@pytest.fixture
def runs() -> list[str]:
    return []


@pytest.fixture
def toolset(runs: list[str]) -> Toolset:
    return Toolset(
        [
            tool_named("read_notes", "Read the notes in the notebook.", runs),
            tool_named("forecast", "Weather forecast.", runs),
            tool_named("tides", "Tides of the harbour.", runs),
            tool_named("ledger", "Close the ledger.", runs),
        ]
    )


def answers_of(output: dict[str, Any]) -> list[ToolMessage]:
    return [message for message in output["messages"] if isinstance(message, ToolMessage)]


def build(make_registry: Any, toolset: Toolset, *script: Any, **options: Any) -> tuple[Any, ...]:
    model = ScriptedModel(script=list(script))
    registry = make_registry(toolset)
    agent = create_tool_rag_agent(
        model,
        registry=registry,
        toolset=toolset,
        **{"threshold": 0.5, "search_tools": True, **options},
    )
    return agent, registry, model


def searched(registry: Any) -> list[str]:
    return getattr(registry, "sync_twin", registry).searched


async def test_what_is_found_is_bound_behind_the_rest_and_runs(
    driver, make_registry, toolset, runs
):
    agent, _, model = build(
        make_registry,
        toolset,
        asks(call("search_tools", "a", query="weather forecast")),
        asks(call("forecast", "b", city="Oslo")),
        says("Sunny."),
    )
    result = await driver.ask(agent, QUESTION)
    assert [request.tool_names for request in model.requests] == [
        ["search_tools", "read_notes"],
        ["search_tools", "read_notes", "forecast"],
        ["search_tools", "read_notes", "forecast"],
    ]
    (search,), (used,) = (step.tool_calls for step in result.steps)
    assert (search.status, search.observation) == (
        "success",
        "New tools for 'weather forecast', yours from your next step on:\n"
        "- forecast: Weather forecast.",
    )
    assert (used.observation, runs) == ("forecast in Oslo", ["forecast"])
    offered = {tool.name: tool.relevance for tool in result.offered_tools}
    assert list(offered) == ["read_notes", "forecast"]
    assert offered["forecast"] == 1.0


async def test_searches_beside_each_other_and_beside_other_calls(
    driver, make_registry, toolset, runs
):
    """RET-6 too: a tool called by its name before it was offered."""
    agent, _, model = build(
        make_registry,
        toolset,
        asks(
            call("search_tools", "a", query="weather forecast"),
            call("read_notes", "b"),
            call("search_tools", "c", query="tides of the harbour"),
            call("ledger", "d", city="Bergen"),
            call("forecast", "e", city="Oslo"),
        ),
        asks(call("tides", "f")),
        says("Done."),
    )
    output = await driver.run(agent, QUESTION)
    by_id = {answer.tool_call_id: answer for answer in answers_of(output)}
    assert [by_id[call_id].status for call_id in "abcdef"] == [
        *("success", "success", "success", "error", "error", "success"),
    ]
    assert "You have it from now on" in by_id["d"].text
    assert runs == ["read_notes", "tides"]
    bound = [set(request.tool_names) for request in model.requests]
    everything = {"search_tools", "read_notes", "forecast", "tides", "ledger"}
    assert bound == [{"search_tools", "read_notes"}, everything, everything]
    assert model.requests[1].tool_names == model.requests[2].tool_names


@pytest.mark.parametrize(
    ("query", "says_what"),
    [
        ("", "has no words"),
        (" \n ", "has no words"),
        ("¿?!… –", "has no words"),
        ("x" * 501, "has 501 characters"),
        ({"words": "weather"}, "query"),
        (None, "query"),
    ],
)
async def test_a_query_that_says_nothing_is_an_error_and_searches_nothing(
    query, says_what, driver, make_registry, toolset
):
    agent, registry, model = build(
        make_registry, toolset, asks(call("search_tools", "a", query=query)), says("No.")
    )
    [answer] = answers_of(await driver.run(agent, QUESTION))
    assert answer.status == "error"
    assert says_what in answer.text
    assert len(answer.text) < 400
    assert searched(registry) == [QUESTION]
    assert model.requests[0].tool_names == model.requests[1].tool_names


async def test_nothing_found_and_nothing_new_are_told_and_repeats_are_stopped(
    driver, make_registry, toolset
):
    agent, registry, _ = build(
        make_registry,
        toolset,
        *(asks(call("search_tools", f"a{n}", query="quantum entanglement")) for n in range(4)),
        asks(call("search_tools", "b", query="notes in the notebook read")),
        says("No."),
    )
    *misses, known = answers_of(await driver.run(agent, QUESTION))
    assert "No tool was found for 'quantum entanglement'" in misses[0].text
    assert [answer.status for answer in misses] == ["success"] * 3 + ["error"]
    assert "This is a repeat" in misses[3].text
    assert len(searched(registry)) == 1 + 3 + 1
    assert known.text == (
        "Nothing new was found for 'notes in the notebook read'.\n"
        "You have already:\n- read_notes: Read the notes in the notebook."
    )


async def test_many_hits_with_long_texts_make_a_short_answer(driver, make_registry):
    many = Toolset(
        tool_named(f"gauge_{number}", "Read the gauge. " + "\n".join(["Long."] * 200))
        for number in range(60)
    )
    agent, _, model = build(
        make_registry,
        many,
        asks(call("search_tools", "a", query="gauge")),
        says("ok"),
        k=60,
        threshold=0.1,
        max_offered=40,
    )
    [answer] = answers_of(await driver.run(agent, "Nothing of this"))
    assert answer.text.endswith("- and 20 more")
    assert len(answer.text) < 20 * 200 + 100
    assert len(model.requests[1].tool_names) == 1 + 40


async def test_the_registry_away_is_no_fault_of_the_model(driver, make_registry, toolset):
    registry = make_registry(toolset)

    def script(messages: list[Any]) -> Any:
        getattr(registry, "sync_twin", registry).is_away = True
        if isinstance(messages[-1], ToolMessage):
            return says("I could not look.")
        return asks(call("search_tools", "a", query="weather forecast"))

    agent = create_tool_rag_agent(
        ScriptedModel(script=script), registry=registry, toolset=toolset, search_tools=True
    )
    [answer] = answers_of(await driver.run(agent, QUESTION))
    assert answer.status == "error"
    assert "'search_tools' is temporarily unavailable" in answer.text
    assert "database" not in answer.text


@pytest.mark.parametrize("setting", [False, "auto"])
async def test_where_it_is_off_it_is_a_name_like_any_other(setting, driver, make_registry, toolset):
    """`auto` cannot count the tools of a registry that only searches."""
    agent, registry, model = build(
        make_registry,
        toolset,
        asks(call("search_tools", "a", query="weather forecast")),
        says("No."),
        search_tools=setting,
    )
    [answer] = answers_of(await driver.run(agent, QUESTION))
    assert "There is no tool 'search_tools'" in answer.text
    assert model.requests[0].tool_names == ["read_notes"]
    assert searched(registry) == [QUESTION]


class Counted(FakeRegistry):
    """Says how many tools are active."""

    active_tools = 51

    def select(self, query: str, *, k: int, **options: Any) -> ToolSelection:
        hits = self.search(query, k=k, threshold=0)
        return ToolSelection(
            hits=tuple(hits),
            exempt=frozenset(),
            strategy="retrieval",
            categories=(),
            threshold=options["threshold"],
            active_tools=self.active_tools,
        )


class AsyncCounted(AsyncFakeRegistry):
    def __init__(self, toolset: Toolset) -> None:
        self.sync_twin: Counted = Counted(toolset)

    async def select(self, query: str, **options: Any) -> ToolSelection:
        return self.sync_twin.select(query, **options)


async def test_auto_begins_above_50_tools_and_stays_for_the_thread(driver, way, toolset):
    registry: Any = AsyncCounted(toolset) if way == "ainvoke" else Counted(toolset)
    counted = getattr(registry, "sync_twin", registry)
    agent, _, model = build(
        lambda _: registry,
        toolset,
        *[says("ok")] * 4,
        search_tools="auto",
        checkpointer=InMemorySaver(),
    )
    for active_tools, thread_id in ((50, "t"), (51, "t"), (9, "t"), (50, "other")):
        counted.active_tools = active_tools
        await driver.run(agent, QUESTION, thread_id=thread_id)
    assert [request.tool_names[0] for request in model.requests] == [
        *("read_notes", "search_tools", "search_tools", "read_notes"),
    ]


@pytest.mark.parametrize("place", ["in the toolset", "of the agent"])
async def test_a_tool_of_the_users_with_that_name_goes_before_it(
    place, driver, way, toolset, caplog
):
    mine = StructuredTool.from_function(
        lambda query: f"mine: {query}", name="search_tools", description="Read the notebook."
    )
    in_toolset = place == "in the toolset"
    whole = Toolset([*toolset.values(), mine]) if in_toolset else toolset
    options: dict[str, Any] = {} if in_toolset else {"tools": [mine]}
    make = AsyncCounted if way == "ainvoke" else Counted
    with caplog.at_level(logging.WARNING, logger="agent"):
        agent, _, model = build(
            make,
            whole,
            asks(call("search_tools", "a", query="weather forecast")),
            says("ok"),
            search_tools="auto",
            **options,
        )
        [answer] = answers_of(await driver.run(agent, QUESTION))
    assert answer.text == "mine: weather forecast"
    assert model.requests[0].tool_names.count("search_tools") == 1
    assert [r.msg for r in caplog.records].count("search_tools_name_taken") == 1
    with pytest.raises(ConfigurationError, match="A tool of yours is called 'search_tools'"):
        build(make, whole, search_tools=True, **options)


async def test_the_cap_holds_pinned_stay_and_the_oldest_goes(driver, make_registry, toolset):
    agent, _, model = build(
        make_registry,
        toolset,
        says("ok"),
        asks(call("search_tools", "a", query="weather forecast")),
        says("ok"),
        pinned=["ledger"],
        max_offered=2,
        checkpointer=InMemorySaver(),
    )
    await driver.run(agent, QUESTION, thread_id="t")
    output = await driver.run(agent, "And now?", thread_id="t")
    assert [request.tool_names for request in model.requests] == [
        ["search_tools", "ledger", "read_notes"],
        ["search_tools", "ledger", "read_notes"],
        ["search_tools", "ledger", "forecast"],
    ]
    assert [offer["pinned"] for offer in output["offered_tools"]] == [True, False]


async def test_a_found_tool_is_refused_when_it_is_switched_off_since(
    driver, make_registry, toolset, runs
):
    """Also where it was found a moment ago; and what is off is not found."""
    registry = make_registry(toolset)
    twin = getattr(registry, "sync_twin", registry)
    twin.deactivate("tides")
    replies = iter(
        [
            asks(call("search_tools", "a", query="weather forecast, tides of the harbour")),
            asks(call("forecast", "b")),
            says("No."),
        ]
    )

    def script(messages: list[Any]) -> Any:
        if isinstance(messages[-1], ToolMessage):
            twin.deactivate("forecast")
        return next(replies)

    model = ScriptedModel(script=script)
    agent = create_tool_rag_agent(
        model, registry=registry, toolset=toolset, threshold=0.3, search_tools=True
    )
    found, refused = answers_of(await driver.run(agent, QUESTION))
    assert "forecast" in found.text
    assert "- tides" not in found.text
    assert "no longer available, so nothing was run" in refused.text
    assert runs == []


async def test_it_counts_in_the_limits(driver, make_registry, toolset):
    agent, registry, _ = build(
        make_registry,
        toolset,
        asks(
            call("search_tools", "a", query="weather forecast"),
            call("search_tools", "b", query="tides harbour"),
        ),
        says("ok"),
        limits=RunLimits(max_tool_calls=1),
    )
    output = await driver.run(agent, QUESTION)
    assert [answer.status for answer in answers_of(output)] == ["success", "error"]
    assert searched(registry) == [QUESTION, "weather forecast"]


async def test_in_an_agent_of_another_make(driver, make_registry, toolset, runs):
    """`ToolRAGMiddleware` alone: no guard, no limits."""
    model = ScriptedModel(
        script=[
            asks(call("search_tools", "a", query=" "), call("search_tools", "b", query="forecast")),
            asks(call("forecast", "c", city="Oslo")),
            says("Sunny."),
        ]
    )
    middleware = ToolRAGMiddleware(
        make_registry(toolset), toolset, threshold=0.5, search_tools=True
    )
    output = await driver.run(create_agent(model, [], middleware=[middleware]), QUESTION)
    wrong, found, used = answers_of(output)
    assert (wrong.status, found.status, used.text) == ("error", "success", "forecast in Oslo")
    assert "has no words" in wrong.text


async def test_a_full_request_has_no_place_for_it(driver, make_registry, toolset):
    """128 tools of the agent's own worked before there was this one."""
    own = [tool_named(f"own_{number}", "Own.") for number in range(128)]
    agent, _, model = build(make_registry, toolset, says("ok"), tools=own)
    await driver.run(agent, QUESTION)
    assert len(model.requests[0].tool_names) == 128


@pytest.mark.parametrize("setting", ["yes", None, 1, 0])
def test_settings_that_are_none(setting: Any, toolset: Toolset):
    build_it: Callable[[], Any] = lambda: build(FakeRegistry, toolset, search_tools=setting)  # noqa: E731
    with pytest.raises(ConfigurationError, match="must be True, False or 'auto'"):
        build_it()
