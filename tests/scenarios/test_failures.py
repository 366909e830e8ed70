"""Whatever a tool does, each call gets its one answer (ERR-1, ERR-4, ERR-5, ERR-8)."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from agent import StopReason, create_tool_rag_agent
from registry.toolset import Toolset
from tests.scenarios.scenario_tools import World
from tests.support.scripted_model import ScriptedModel, asks, call, says

ALL = {"threshold": 0, "k": 8}


def tool_messages(messages):
    return [message for message in messages if isinstance(message, ToolMessage)]


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("divide", {"numerator": 1, "denominator": 0}, "ZeroDivisionError: float division by zero"),
        ("print_page", {"page": 3}, "OutOfPaper: tray empty at page 3"),
        ("check_invariant", {}, "failed without detail (AssertionError)"),
    ],
)
async def test_err_1_an_exception_becomes_an_observation(
    name, arguments, expected, driver, make_registry, world, caplog
):
    """ERR-1, ERR-5: error status, the call's id and name, never empty; logged with its trace."""
    toolset = world.toolset()
    model = ScriptedModel(script=[asks(call(name, "id-7", **arguments)), says("It failed.")])
    agent = create_tool_rag_agent(model, registry=make_registry(toolset), toolset=toolset, **ALL)

    with caplog.at_level(logging.WARNING, logger="agent"):
        output = await driver.run(agent, "Do it")

    [observation] = tool_messages(output["messages"])
    assert (observation.status, observation.name, observation.tool_call_id) == (
        "error",
        name,
        "id-7",
    )
    assert expected in observation.content
    assert name in observation.content
    assert output["messages"][-1].text == "It failed."
    [record] = [record for record in caplog.records if record.msg == "tool_call_failed"]
    assert record.exc_info is not None
    assert record.tool_name == name


async def test_err_1_control_signals_pass(driver, make_registry):
    """ERR-1: an interrupt inside a tool pauses the run, and resuming runs the tool to its end."""

    @tool
    def ask_person(question: str) -> str:
        """Ask a person a question."""
        return f"they said {interrupt(question)}"

    toolset = Toolset([ask_person])
    model = ScriptedModel(script=[asks(call("ask_person", question="Ok?")), says("fine")])
    agent = create_tool_rag_agent(
        model,
        registry=make_registry(toolset),
        toolset=toolset,
        checkpointer=InMemorySaver(),
        **ALL,
    )
    paused = await driver.ask(agent, "Ask a person", thread_id="t")
    assert paused.stop_reason is StopReason.INTERRUPTED
    assert paused.steps[0].tool_calls[0].status == "pending"

    config = {"configurable": {"thread_id": "t"}}
    if driver.is_async:
        output = await agent.ainvoke(Command(resume="yes"), config)
    else:
        output = agent.invoke(Command(resume="yes"), config)
    assert tool_messages(output["messages"])[0].content == "they said yes"
    assert len(model.requests) == 2


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
async def test_err_1_what_is_no_exception_is_not_swallowed(signal, world):
    """ERR-1: Ctrl-C in a tool ends the process' run; it is no observation."""
    from tests.support.fake_registry import FakeRegistry

    @tool
    def stop_now() -> str:
        """Stop now."""
        raise signal

    toolset = Toolset([stop_now])
    agent = create_tool_rag_agent(
        ScriptedModel(script=[asks(call("stop_now")), says("no")]),
        registry=FakeRegistry(toolset),
        toolset=toolset,
        **ALL,
    )
    with pytest.raises(signal):
        agent.invoke({"messages": "Stop"})


async def test_err_4_one_failing_call_keeps_its_siblings(driver, make_registry):
    """ERR-4: a write, a failure and a slow read: three answers in call order, one write."""
    written: list[str] = []
    failed = threading.Event()

    @tool
    def write(text: str) -> str:
        """Write text."""
        written.append(text)
        return "written"

    @tool
    def broken() -> str:
        """Broken."""
        failed.set()
        raise RuntimeError("no")

    @tool
    def slow_read() -> str:
        """Read after the failure."""
        assert failed.wait(timeout=10)
        return "read"

    toolset = Toolset([write, broken, slow_read])
    model = ScriptedModel(
        script=[
            asks(call("write", "a", text="x"), call("broken", "b"), call("slow_read", "c")),
            says("ok"),
        ]
    )
    agent = create_tool_rag_agent(model, registry=make_registry(toolset), toolset=toolset, **ALL)

    result = await driver.ask(agent, "Write and read")

    [step] = result.steps
    assert [(c.call_id, c.status) for c in step.tool_calls] == [
        ("a", "success"),
        ("b", "error"),
        ("c", "success"),
    ]
    assert [m.tool_call_id for m in tool_messages(result.messages)] == ["a", "b", "c"]
    assert written == ["x"]
    assert result.answer == "ok"


async def test_err_5_silent_failure_beside_a_good_call(driver, make_registry, world):
    """ERR-5: an exception without message, beside a good call."""
    toolset = world.toolset()
    model = ScriptedModel(
        script=[asks(call("check_invariant", "a"), call("refund_policy", "b")), says("ok")]
    )
    agent = create_tool_rag_agent(model, registry=make_registry(toolset), toolset=toolset, **ALL)

    bad, good = (await driver.ask(agent, "Check")).steps[0].tool_calls

    assert bad.call_id == "a"
    assert "failed without detail (AssertionError)" in bad.observation
    assert (good.call_id, good.status) == ("b", "success")


async def test_err_5_error_text_is_bounded_and_clean(driver, make_registry, monkeypatch):
    """ERR-5: 50,000 characters, NUL and half a surrogate become a short legal text."""
    # The trace in the captured log holds the surrogate, which test workers cannot send home.
    monkeypatch.setattr(logging.getLogger("agent"), "propagate", False)

    class Awkward(Exception):
        def __str__(self) -> str:
            return "start\x00\ud800" + "x" * 50_000 + "the end"

    @tool
    def awkward() -> str:
        """Fail awkwardly."""
        raise Awkward

    toolset = Toolset([awkward])
    model = ScriptedModel(script=[asks(call("awkward")), says("ok")])
    agent = create_tool_rag_agent(model, registry=make_registry(toolset), toolset=toolset, **ALL)

    [step] = (await driver.ask(agent, "Fail awkwardly")).steps

    text = step.tool_calls[0].observation
    assert len(text) < 1_300
    assert "\x00" not in text
    text.encode("utf-8")
    assert "start" in text
    assert "the end" in text


async def test_err_5_a_tool_that_answers_under_a_wrong_id_is_put_right(driver, make_registry):
    """ERR-5: a tool that builds its own message cannot break the pairing."""

    @tool
    def own_message() -> ToolMessage:
        """Answer with a message of its own."""
        return ToolMessage("", name="other", tool_call_id="wrong", status="error")

    toolset = Toolset([own_message])
    model = ScriptedModel(script=[asks(call("own_message", "right")), says("ok")])
    agent = create_tool_rag_agent(model, registry=make_registry(toolset), toolset=toolset, **ALL)

    [message] = tool_messages((await driver.run(agent, "own message"))["messages"])

    assert (message.tool_call_id, message.name) == ("right", "own_message")
    assert "failed without detail" in message.content


async def test_async_only_tools_run_in_async_runs(driver, make_registry):
    async def fetch(page: int) -> str:
        await asyncio.sleep(0)
        return f"page {page}"

    toolset = Toolset(
        [StructuredTool.from_function(coroutine=fetch, name="fetch", description="Fetch a page.")]
    )
    model = ScriptedModel(script=[asks(call("fetch", page=2)), says("ok")])
    agent = create_tool_rag_agent(model, registry=make_registry(toolset), toolset=toolset, **ALL)

    [step] = (await driver.ask(agent, "Fetch a page")).steps

    if driver.is_async:
        assert step.tool_calls[0].observation == "page 2"
    else:
        assert step.tool_calls[0].status == "error"
        assert "NotImplementedError" in step.tool_calls[0].observation


@pytest.mark.parametrize(
    ("written", "suggested"),
    [
        ("serch_notes", "search_notes"),
        ("SEARCH_NOTES", "search_notes"),
        ("functions.search_notes", "search_notes"),
        ("brew_coffee", None),
    ],
)
async def test_err_8_unknown_name_is_repeated_with_the_nearest_offered_ones(
    written, suggested, driver, make_registry, world
):
    """ERR-8: 400 tools; the wrong name comes back, hidden tools do not, and nothing is run."""
    tools = [*world.tools(), *(hidden_tool(number) for number in range(392))]
    toolset = Toolset(tools)
    model = ScriptedModel(script=[asks(call(written, "u1", words="x")), says("ok")])
    agent = create_tool_rag_agent(model, registry=make_registry(toolset), toolset=toolset, k=3)

    output = await driver.run(agent, "Search the notes in the notebook")

    offered = {entry["name"] for entry in output["offered_tools"]}
    assert "search_notes" in offered
    [answer] = tool_messages(output["messages"])
    assert (answer.status, answer.tool_call_id) == ("error", "u1")
    assert repr(written) in answer.content
    suggestions = answer.content.partition("Did you mean: ")[2].partition("?")[0].split(", ")
    assert suggestions[0] == (suggested or "")
    named = {spec.tool_name for spec in toolset.specs if spec.tool_name in answer.content}
    assert named <= offered
    assert len(named) <= 3
    assert "without a tool" in answer.content
    assert world.runs == []


def hidden_tool(number: int):
    return StructuredTool.from_function(
        func=lambda **_: "hidden",
        name=f"searchnotes{number}",  # nearer to the wrong name than any other
        description=f"Hidden thing {number}.",
        args_schema={"type": "object", "properties": {}},
    )


async def test_registry_away_at_call_time_fails_closed(driver, make_registry, world, caplog):
    toolset = world.toolset()
    registry = make_registry(toolset)
    twin = getattr(registry, "sync_twin", registry)

    def script(messages) -> AIMessage:
        if isinstance(messages[-1], ToolMessage):
            return says("Cannot look now.")
        twin.is_away = True
        return asks(call("write_note", text="x"))

    agent = create_tool_rag_agent(
        ScriptedModel(script=script), registry=registry, toolset=toolset, **ALL
    )
    with caplog.at_level(logging.ERROR, logger="agent"):
        result = await driver.ask(agent, "Write a note")

    [step] = result.steps
    assert "temporarily unavailable" in step.tool_calls[0].observation
    assert world.notes == []
    assert [record.msg for record in caplog.records] == ["tool_check_failed"]
    assert caplog.records[0].levelno == logging.ERROR


async def test_tool_that_needs_approval_is_not_run(driver, make_registry, world):
    toolset = world.toolset()
    model = ScriptedModel(script=[asks(call("wire_money", amount=5)), says("It needs approval.")])
    agent = create_tool_rag_agent(model, registry=make_registry(toolset), toolset=toolset, **ALL)

    output = await driver.run(agent, "Wire money to a bank account")

    [answer] = tool_messages(output["messages"])
    assert answer.status == "error"
    assert "approval" in answer.content
    assert "wire_money" not in world.runs
    [entry] = [entry for entry in output["offered_tools"] if entry["name"] == "wire_money"]
    assert entry["requires_approval"] is True


async def test_logs_hold_no_question_and_no_arguments(driver, make_registry, caplog):
    world = World()
    toolset = world.toolset()
    model = ScriptedModel(script=[asks(call("write_note", text="ARGUMENT-SECRET")), says("ok")])
    agent = create_tool_rag_agent(model, registry=make_registry(toolset), toolset=toolset, **ALL)

    with caplog.at_level(logging.DEBUG, logger="agent"):
        await driver.run(agent, "Write a note QUESTION-SECRET")

    ours = [record for record in caplog.records if record.name.startswith("agent")]
    assert "tools_selected" in {record.msg for record in ours}
    assert "SECRET" not in "".join(str(record.__dict__) for record in ours)
