"""A run as typed events: what comes in which order, and what becomes of a run nobody reads on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver

from agent import (
    ApprovalNeeded,
    LimitReached,
    RunEnded,
    RunEvent,
    RunLimits,
    StopReason,
    TextDelta,
    ToolEnded,
    ToolsOffered,
    ToolStarted,
    approve,
    astream,
    astream_resume,
    create_tool_rag_agent,
    event_to_dict,
    reject,
    stream,
    stream_resume,
)
from registry.errors import ApprovalError, ConfigurationError, InvalidQueryError
from registry.toolset import Toolset
from tests.scenarios.conftest import AgentOf, Driver, MakeRegistry
from tests.support.fake_registry import AsyncFakeRegistry, FakeRegistry
from tests.support.scripted_model import ScriptedModel, asks, call, says


class WordByWord(ScriptedModel):
    """Streams what the script says a word at a time."""

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        reply = self._generate(messages, stop, **kwargs).generations[0].message
        assert isinstance(reply, AIMessage)
        for word in str(reply.text).split(" "):
            yield ChatGenerationChunk(message=AIMessageChunk(word + " "))
        calls = [
            {"name": c["name"], "args": json.dumps(c["args"]), "id": c["id"], "index": place}
            for place, c in enumerate(reply.tool_calls)
        ]
        yield ChatGenerationChunk(message=AIMessageChunk("", tool_call_chunks=calls))


def double(n: int) -> int:
    """Double a number."""
    return 2 * n


def fail(n: int) -> int:
    """Fail with a number."""
    raise ValueError(f"{n} is too large")


def spend(amount: int) -> str:
    """Spend an amount of money."""
    return f"spent {amount}"


TOOLS = [tool(double), tool(fail), tool(spend)]


@pytest.fixture
def agent_of(make_registry: MakeRegistry) -> AgentOf:
    def make(model: Any, tools: Sequence[BaseTool], **options: Any) -> Any:
        toolset = Toolset(tools)
        registry = make_registry(toolset)
        return create_tool_rag_agent(
            model, registry=registry, toolset=toolset, threshold=0, **options
        )

    return make


async def read(driver: Driver, events: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """Return all events of a run; the async twin of the function is used for async drivers."""
    if driver.is_async:
        twin: Any = {stream: astream, stream_resume: astream_resume}[events]
        return [event async for event in twin(*args, **options)]
    return list(events(*args, **options))


def kinds(events: list[RunEvent]) -> list[str]:
    """Return the types of events in order, equal neighbours once."""
    names = [event.type for event in events]
    return [name for place, name in enumerate(names) if names[place - 1 : place] != [name]]


async def test_a_run_is_told_in_the_order_it_happens(driver, agent_of):
    first = AIMessage("Let me see.", tool_calls=[call("double", "a", n=4), call("fail", "b", n=9)])
    model = WordByWord(script=[first, says("It is 8 and a fault.")])
    agent = agent_of(model, TOOLS, checkpointer=InMemorySaver())
    events = await read(driver, stream, agent, "Double 4 and fail with 9", thread_id="t")

    offered, *told, ended = events
    assert isinstance(offered, ToolsOffered)
    assert {"double", "fail"} <= {each.name for each in offered.tools}
    assert set(offered.passed) <= {each.name for each in offered.tools}
    assert [kind for kind in kinds(told) if kind == "text"] == ["text", "text"]
    texts: dict[str, str] = {}
    for event in told:
        if isinstance(event, TextDelta):
            texts[event.message_id] = texts.get(event.message_id, "") + event.text
    assert [" ".join(text.split()) for text in texts.values()] == [
        "Let me see.",
        "It is 8 and a fault.",
    ]
    started = {event.call_id: event for event in told if isinstance(event, ToolStarted)}
    done = {event.call.call_id: event.call for event in told if isinstance(event, ToolEnded)}
    assert {call_id: dict(each.arguments) for call_id, each in started.items()} == {
        "a": {"n": 4},
        "b": {"n": 9},
    }
    assert (done["a"].observation, done["a"].status, done["a"].tool) == ("8", "success", "double")
    assert (done["b"].status, dict(done["b"].arguments)) == ("error", {"n": 9})
    for call_id in "ab":
        begin = told.index(started[call_id])
        assert any(
            isinstance(event, ToolEnded) and event.call.call_id == call_id for event in told[begin:]
        )
    assert isinstance(ended, RunEnded)
    assert " ".join(ended.result.answer.split()) == "It is 8 and a fault."
    assert ended.result.steps[0].tool_calls == (done["a"], done["b"])
    assert ended.result.stop_reason is StopReason.ANSWERED
    for event in events:
        values = json.loads(json.dumps(event_to_dict(event)))
        assert values["type"] == event.type


async def test_a_model_that_does_not_stream_writes_all_at_once(driver, agent_of):
    agent = agent_of(ScriptedModel(script=[says("Hello there.")]), TOOLS)
    events = await read(driver, stream, agent, "Hello")
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["Hello there."]
    assert isinstance(events[-1], RunEnded)


async def test_a_call_of_a_tool_that_was_not_offered_ends_in_an_error(driver, agent_of):
    model = ScriptedModel(script=[asks(call("no_such_tool", "x")), says("There is none.")])
    events = await read(driver, stream, agent_of(model, TOOLS), "Do it")
    [ended] = [event for event in events if isinstance(event, ToolEnded)]
    assert (ended.call.tool, ended.call.status, ended.call.call_id) == (
        "no_such_tool",
        "error",
        "x",
    )


async def test_a_limit_is_told_once_before_the_end(driver, agent_of):
    model = ScriptedModel(
        script=[*(asks(call("double", f"c{n}", n=n)) for n in range(2)), says("Summed up.")]
    )
    agent = agent_of(model, TOOLS, limits=RunLimits(max_steps=2, on_limit="summarise"))
    events = await read(driver, stream, agent, "Double much")
    [limit] = [event for event in events if isinstance(event, LimitReached)]
    assert (limit.limit.name, limit.limit.allowed) == ("max_steps", 2)
    assert isinstance(events[-1], RunEnded)
    assert events[-1].result.stop_reason is limit.limit.reason
    assert events[-1].result.answer == "Summed up."
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["Summed up."]


@pytest.mark.parametrize("decide", [approve, reject])
async def test_a_run_that_waits_is_streamed_on_from_there(decide, driver, agent_of):
    model = ScriptedModel(
        script=[asks(call("double", "a", n=1), call("spend", "b", amount=5)), says("Done.")]
    )
    agent = agent_of(model, TOOLS, checkpointer=InMemorySaver(), approval={"spend": True})
    before = await read(driver, stream, agent, "Double and spend", thread_id="t")
    *_, needed, ended = before
    assert isinstance(needed, ApprovalNeeded)
    assert isinstance(ended, RunEnded)
    assert [(each.tool, each.call_id) for each in needed.pending] == [("spend", "b")]
    assert ended.result.stop_reason is StopReason.INTERRUPTED
    assert ended.result.pending == needed.pending

    after = await read(driver, stream_resume, agent, [decide("b")], thread_id="t")
    done = {e.call.call_id: e.call for e in (*before, *after) if isinstance(e, ToolEnded)}
    assert (done["a"].tool, done["a"].observation, done["a"].status) == ("double", "2", "success")
    expected = "success" if decide is approve else "error"
    assert (done["b"].tool, done["b"].status) == ("spend", expected)
    assert sum(isinstance(e, ToolEnded) for e in (*before, *after)) == 2
    assert isinstance(after[-1], RunEnded)
    assert after[-1].result.answer == "Done."
    assert [s.tool_calls for s in after[-1].result.steps] == [(done["a"], done["b"])]
    with pytest.raises(ApprovalError):
        await read(driver, stream_resume, agent, [decide("b")], thread_id="t")


async def test_no_step_begins_before_the_one_before_was_read(driver, agent_of):
    """Back-pressure: a reader that stops reading stops the run, which then can go on."""
    model = ScriptedModel(script=[asks(call("double", "a", n=1)), says("Still here.")])
    agent = agent_of(model, TOOLS, checkpointer=InMemorySaver())
    if driver.is_async:
        async for event in (events := astream(agent, "Double 1", thread_id="t")):
            if isinstance(event, ToolEnded):
                await asyncio.sleep(0.05)
                assert len(model.requests) == 1
                break
        await events.aclose()
    else:
        for event in (reading := stream(agent, "Double 1", thread_id="t")):
            if isinstance(event, ToolEnded):
                assert len(model.requests) == 1
                break
        reading.close()
    assert len(model.requests) == 1
    result = await driver.ask(agent, "Are you there?", thread_id="t")
    assert result.answer == "Still here."
    told = [m for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    assert [message.tool_call_id for message in told] == ["a"]


@pytest.mark.parametrize("make", [AsyncFakeRegistry, FakeRegistry])
async def test_cancelling_the_reader_cancels_the_tool_and_keeps_the_thread(make):
    """ERR-4: a browser that goes away."""
    began, ended = asyncio.Event(), asyncio.Event()

    async def hang(n: int) -> int:
        """Hang with a number."""
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return n

    slow: BaseTool = StructuredTool.from_function(coroutine=hang, name="hang", description="Hang.")
    model = ScriptedModel(script=[asks(call("hang", "a", n=1)), says("I am.")])
    toolset = Toolset([slow])
    agent = create_tool_rag_agent(
        model,
        registry=make(toolset),
        toolset=toolset,
        threshold=0,
        checkpointer=InMemorySaver(),
    )
    driver = Driver(is_async=True)
    reading = asyncio.create_task(read(driver, stream, agent, "Hang with 1", thread_id="t"))
    await asyncio.wait_for(began.wait(), timeout=20)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await asyncio.wait_for(ended.wait(), timeout=20)
    result = await driver.ask(agent, "Are you there?", thread_id="t")
    assert result.answer == "I am."


async def test_what_cannot_be_streamed_says_so(driver, agent_of):
    agent = agent_of(ScriptedModel(script=[]), TOOLS, checkpointer=InMemorySaver())
    for arguments, options, error in (
        ((" ",), {"thread_id": "t"}, InvalidQueryError),
        (("Hello",), {}, ConfigurationError),
    ):
        with pytest.raises(error):
            await read(driver, stream, agent, *arguments, **options)
    with pytest.raises(ApprovalError, match="waits for approval"):
        await read(driver, stream_resume, agent, [approve("a")], thread_id="t")
