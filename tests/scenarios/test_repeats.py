"""The same call again and again (LOOP-4), and a tool called before it is offered (RET-6)."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver

from agent import StopReason, ToolPolicy, create_tool_rag_agent
from registry.toolset import Toolset
from tests.support.scripted_model import ScriptedModel, asks, call, says


def counted(name: str, run: Any, runs: list[Any]) -> BaseTool:
    def act(**arguments: Any) -> Any:
        runs.append((name, arguments))
        return run(**arguments)

    return StructuredTool.from_function(
        act,
        name=name,
        description="Look up a thing.",
        args_schema={
            "type": "object",
            "properties": {"id": {"type": "integer"}, "kind": {"type": "string"}},
        },
    )


def answers_of(output: dict[str, Any]) -> list[ToolMessage]:
    return [message for message in output["messages"] if isinstance(message, ToolMessage)]


@pytest.fixture
def runs() -> list[Any]:
    return []


async def test_loop_4_a_repeat_is_not_run_and_then_ends_the_run(agent_of, driver, runs, caplog):
    """LOOP-4: three equal results, two notices, and the run ends; the thread goes on."""
    model = ScriptedModel(
        script=[
            *(asks(call("lookup", f"c{number}", id=4)) for number in range(5)),
            says("Here is something."),
        ],
        require_definitions=True,
    )
    agent = agent_of(
        model, [counted("lookup", lambda id: "same", runs)], checkpointer=InMemorySaver()
    )
    with caplog.at_level(logging.WARNING, logger="agent"):
        stopped = await driver.run(agent, "Look up a thing", thread_id="t")

    assert len(runs) == 3
    answers = answers_of(stopped)
    assert [answer.status for answer in answers] == ["success"] * 3 + ["error"] * 2
    assert "This is a repeat" in answers[3].content
    assert "3 times" in answers[3].content
    assert stopped["stop_reason"] == StopReason.NO_PROGRESS == "no_progress"
    assert "again and again" in stopped["messages"][-1].text
    assert len(model.requests) == 5
    assert [r.msg for r in caplog.records] == ["tool_call_repeated"] * 2 + ["no_progress"]

    went_on = await driver.run(agent, "Go on", thread_id="t")
    assert went_on["messages"][-1].text == "Here is something."
    assert went_on.get("stop_reason") is None


async def test_loop_4_a_pair_in_turns(agent_of, driver, runs):
    """LOOP-4: A, B, A, B leads nowhere either."""
    numbers = itertools.count()

    def script(messages: list[BaseMessage]) -> AIMessage:
        number = next(numbers)
        return asks(call("lookup", f"c{number}", id=number % 2))

    tool = counted("lookup", lambda id: f"thing {id}", runs)
    output = await driver.run(agent_of(ScriptedModel(script=script), [tool]), "Look up a thing")
    assert len(runs) == 6
    assert output["stop_reason"] == "no_progress"


async def test_loop_4_keys_in_another_order_are_the_same_call(agent_of, driver, runs):
    """LOOP-4: {id, kind} and {kind, id}."""
    orders = [{"id": 4, "kind": "x"}, {"kind": "x", "id": 4}]
    model = ScriptedModel(
        script=[
            *(asks(call("lookup", f"c{number}", **orders[number % 2])) for number in range(4)),
            says("ok"),
        ]
    )
    tool = counted("lookup", lambda id, kind: "same", runs)
    output = await driver.run(agent_of(model, [tool]), "Look up a thing")
    assert len(runs) == 3
    assert "This is a repeat" in answers_of(output)[3].content
    assert output["messages"][-1].text == "ok"


async def test_loop_4_polling_with_changing_results_goes_on(agent_of, driver, runs):
    """LOOP-4: each poll brings something new."""
    progress = itertools.count()
    model = ScriptedModel(
        script=[*(asks(call("lookup", f"c{number}", id=4)) for number in range(8)), says("done")]
    )
    tool = counted("lookup", lambda id: f"{10 * next(progress)} %", runs)
    output = await driver.run(agent_of(model, [tool]), "Look up a thing")
    assert len(runs) == 8
    assert output["messages"][-1].text == "done"


async def test_loop_4_a_tool_that_is_polled_may_be_let_off(agent_of, driver, runs):
    """LOOP-4: `repeat_limit=None`, for a state that changes seldom."""
    model = ScriptedModel(
        script=[*(asks(call("lookup", f"c{number}", id=4)) for number in range(8)), says("done")]
    )
    policies = {"lookup": ToolPolicy(repeat_limit=None)}
    agent = agent_of(model, [counted("lookup", lambda id: "pending", runs)], policies=policies)
    output = await driver.run(agent, "Look up a thing")
    assert len(runs) == 8
    assert output["messages"][-1].text == "done"


async def test_loop_4_work_in_between_is_progress(agent_of, driver, runs):
    """LOOP-4: looking again after each of several writes is no idle repeat."""
    steps = [
        step
        for number in range(4)
        for step in (
            asks(call("lookup", f"l{number}", id=4)),
            asks(call("write", f"w{number}", id=number)),
        )
    ]
    tools = [
        counted("lookup", lambda id: "unchanged", runs),
        counted("write", lambda id: f"written {id}", runs),
    ]
    model = ScriptedModel(script=[*steps, says("done")])
    output = await driver.run(agent_of(model, tools), "Look up a thing")
    assert len(runs) == 8
    assert output["messages"][-1].text == "done"


async def test_loop_4_a_new_question_starts_anew(agent_of, driver, runs):
    """LOOP-4: repeats count within a run."""
    one_run = [*(asks(call("lookup", f"c{number}", id=4)) for number in range(2)), says("ok")]
    model = ScriptedModel(script=one_run * 3)
    agent = agent_of(
        model, [counted("lookup", lambda id: "same", runs)], checkpointer=InMemorySaver()
    )
    for _ in range(3):
        output = await driver.run(agent, "Look up a thing", thread_id="t")
        assert output["messages"][-1].text == "ok"
    assert len(runs) == 6


async def test_loop_4_an_unknown_name_again_and_again_ends_the_run(agent_of, driver):
    """LOOP-4, ERR-8: a call that never runs is a repeat as well."""
    numbers = itertools.count()
    model = ScriptedModel(script=lambda messages: asks(call("invented", f"c{next(numbers)}", id=4)))
    tool = counted("lookup", lambda id: "same", [])
    output = await driver.run(agent_of(model, [tool]), "Look up a thing")
    assert output["stop_reason"] == "no_progress"
    assert len(model.requests) <= 5


def hidden_and_found(runs: list[Any]) -> Toolset:
    hidden = StructuredTool.from_function(
        lambda city: runs.append(city) or f"sunny in {city}",
        name="forecast",
        description="Zzz qqq.",
        args_schema={
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    )
    found = StructuredTool.from_function(
        lambda: "found", name="search_notes", description="Search the notes in the notebook."
    )
    return Toolset([hidden, found])


def with_forecast(make_registry, runs, script, **options: Any) -> tuple[Any, Any, ScriptedModel]:
    toolset = hidden_and_found(runs)
    registry = make_registry(toolset)
    model = ScriptedModel(script=script)
    agent = create_tool_rag_agent(
        model, registry=registry, toolset=toolset, threshold=0.5, **options
    )
    return agent, registry, model


QUESTION = "Search the notes in the notebook"


async def test_ret_6_the_first_miss_gives_the_schema_and_the_tool(driver, make_registry, runs):
    """RET-6: told, offered from the next step on, and called right."""
    agent, _, model = with_forecast(
        make_registry,
        runs,
        [
            asks(call("forecast", "a", town="Oslo"), call("forecast", "b", place="Rome")),
            asks(call("forecast", "c", city="Oslo")),
            says("Sunny."),
        ],
    )
    output = await driver.run(agent, QUESTION)
    first, also, right = answers_of(output)
    for answer in (first, also):
        assert answer.status == "error"
        assert '"city"' in answer.content
        assert "You have it from now on" in answer.content
    assert right.content == "sunny in Oslo"
    assert runs == ["Oslo"]
    assert [request.tool_names for request in model.requests] == [
        ["search_notes"],
        ["search_notes", "forecast"],
        ["search_notes", "forecast"],
    ]
    assert [entry["name"] for entry in output["offered_tools"]] == ["search_notes", "forecast"]


async def test_ret_6_the_third_identical_miss_meets_the_repeat_guard(driver, make_registry, runs):
    """RET-6: schema, wrong arguments, repeat; nothing ran."""
    agent, _, _ = with_forecast(
        make_registry,
        runs,
        [*(asks(call("forecast", f"c{number}", town="Oslo")) for number in range(4))],
    )
    output = await driver.run(agent, QUESTION)
    contents = [answer.content for answer in answers_of(output)]
    assert "You have it from now on" in contents[0]
    assert "unknown argument 'town'" in contents[1]
    assert "This is a repeat" in contents[2]
    assert output["stop_reason"] == "no_progress"
    assert runs == []


async def test_ret_6_only_what_may_be_offered_is(driver, make_registry, set_active, runs):
    """RET-6: a tool that is switched off stays unknown, and its schema unsaid."""
    agent, registry, model = with_forecast(
        make_registry, runs, [asks(call("forecast", "a", town="Oslo")), says("No.")]
    )
    await set_active(registry, "forecast", False)
    output = await driver.run(agent, QUESTION)
    [answer] = answers_of(output)
    assert "There is no tool 'forecast'" in answer.content
    assert "city" not in answer.content
    assert model.requests[1].description("forecast").startswith("No longer available")


async def test_ret_6_the_cap_holds_for_a_late_tool_too(driver, make_registry, runs):
    """RET-6: with room for one, the tool the model asked for by name takes its place."""
    agent, _, model = with_forecast(
        make_registry,
        runs,
        [asks(call("forecast", "a", town="x")), asks(call("forecast", "b", city="x")), says("ok")],
        max_offered=1,
    )
    await driver.run(agent, QUESTION)
    assert all(len(request.tool_names) <= 1 for request in model.requests)
