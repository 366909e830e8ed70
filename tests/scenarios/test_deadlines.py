"""The time limit of a run holds inside its calls (LOOP-1, LOOP-2)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from agent import RunLimits, RunLimitsMiddleware, StopReason, ThreadLimits, create_tool_rag_agent
from agent.result import read_run
from registry.toolset import Toolset
from tests.support.scripted_model import ScriptedModel, asks, call, says

ALL = {"threshold": 0, "k": 8}
SHORT_S = 0.3
NEVER_S = 60.0  # longer than any test waits


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("agent.middleware._limited_calls.time", clock)
    return clock


@pytest.fixture
async def stuck() -> AsyncIterator[SimpleNamespace]:
    """Something to hang on until the test is over, and its event loop still open."""
    release = threading.Event()
    yield SimpleNamespace(release=release, late=threading.Event())
    release.set()


def hanging_tool(stuck: SimpleNamespace) -> BaseTool:
    def hang(number: int) -> str:
        stuck.release.wait(NEVER_S)
        stuck.late.set()
        return "too late"

    async def ahang(number: int) -> str:
        while not stuck.release.is_set():
            await asyncio.sleep(NEVER_S)
        return "too late"

    return StructuredTool.from_function(
        func=hang, coroutine=ahang, name="hang", description="Hangs on the line."
    )


def blocking_tool(stuck: SimpleNamespace) -> BaseTool:
    @tool
    def hang(number: int) -> str:
        """Hangs on the line, in a thread under the async agent too."""
        stuck.release.wait(NEVER_S)
        return "too late"

    return hang


@tool
def quick() -> str:
    """Answers at once."""
    return "quick"


@pytest.mark.parametrize("make", [hanging_tool, blocking_tool])
async def test_loop_2_a_hanging_tool_is_given_up_at_the_deadline(
    make, driver, make_registry, stuck
):
    """LOOP-2: its neighbours' results are kept, it has an answer, and the thread goes on."""
    toolset = Toolset([make(stuck), quick])
    model = ScriptedModel(
        script=[
            asks(call("quick", "a"), call("hang", "b", number=1), call("hang", "c", number=2)),
            says("Bye."),
        ],
        require_definitions=True,
    )
    agent = create_tool_rag_agent(
        model,
        registry=make_registry(toolset),
        toolset=toolset,
        limits=RunLimits(timeout_s=SHORT_S),
        checkpointer=InMemorySaver(),
        **ALL,
    )
    result = await driver.ask(agent, "Hang", thread_id="t")

    assert (result.stop_reason, result.limit.name) == (StopReason.TIME_LIMIT, "timeout_s")
    assert [one.tool for one in result.findings] == ["quick"]
    for given_up in result.steps[0].tool_calls[1:]:
        assert given_up.status == "error"
        assert "this turn's limit of 0.3 s was reached" in given_up.observation
        assert "unknown" in given_up.observation
    went_on = await driver.ask(agent, "Go on", thread_id="t")
    assert (went_on.answer, went_on.stop_reason) == ("Bye.", StopReason.ANSWERED)


async def test_loop_2_what_an_abandoned_tool_brings_is_dropped(driver, make_registry, stuck):
    """LOOP-2: a thread cannot be stopped, but its late result reaches nobody."""
    toolset = Toolset([hanging_tool(stuck)])
    agent = create_tool_rag_agent(
        ScriptedModel(script=[asks(call("hang", "a", number=1)), says("Bye.")]),
        registry=make_registry(toolset),
        toolset=toolset,
        limits=RunLimits(timeout_s=SHORT_S),
        checkpointer=InMemorySaver(),
        **ALL,
    )
    first = await driver.ask(agent, "Hang", thread_id="t")
    stuck.release.set()
    if not driver.is_async:
        assert await asyncio.to_thread(stuck.late.wait, NEVER_S)
    await driver.ask(agent, "Go on", thread_id="t")
    state = agent.get_state({"configurable": {"thread_id": "t"}}).values
    answers = [message for message in state["messages"] if isinstance(message, ToolMessage)]
    assert [message.tool_call_id for message in answers] == ["a"]
    assert answers[0].content == first.steps[0].tool_calls[0].observation


async def test_loop_2_a_tool_that_ignores_its_cancellation_is_given_up(make_registry_async):
    """LOOP-2: an async tool that catches everything cannot hold the run."""
    release = asyncio.Event()

    @tool
    async def stubborn() -> str:
        """Never gives up."""
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    toolset = Toolset([stubborn])
    agent = create_tool_rag_agent(
        ScriptedModel(script=[asks(call("stubborn", "a"))]),
        registry=make_registry_async(toolset),
        toolset=toolset,
        limits=RunLimits(timeout_s=SHORT_S),
        **ALL,
    )
    output = await agent.ainvoke({"messages": [HumanMessage("Hold")]})
    assert read_run(output).stop_reason is StopReason.TIME_LIMIT
    release.set()


@pytest.fixture
def make_registry_async() -> Any:
    from tests.support.fake_registry import AsyncFakeRegistry

    return AsyncFakeRegistry


class HangingModel(ScriptedModel):
    """Streams a few words, then hangs; says whether anybody stopped it."""

    stuck: Any
    words: int = 3

    def _chunks(self) -> Iterator[ChatGenerationChunk]:
        for place in range(self.words):
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"word{place} "))

    def _stream(self, messages, stop=None, run_manager=None, **kwargs) -> Iterator[Any]:
        # LangChain reports a chunk once the next is asked for.
        yield from self._chunks()
        self.stuck.release.wait(NEVER_S)
        try:
            for place in range(1_000):
                yield ChatGenerationChunk(message=AIMessageChunk(content=f"late{place} "))
                self.stuck.yielded = place
        finally:
            self.stuck.late.set()

    async def _astream(self, messages, stop=None, run_manager=None, **kwargs) -> AsyncIterator[Any]:
        for chunk in self._chunks():
            yield chunk
        try:
            while not self.stuck.release.is_set():
                await asyncio.sleep(NEVER_S)
        finally:
            self.stuck.late.set()


@pytest.mark.parametrize("on_limit", ["stop", "summarise"])
async def test_loop_2_a_model_that_hangs_while_streaming_is_given_up(
    on_limit, driver, make_registry, stuck, world
):
    """LOOP-2, streamed: tokens until the deadline, then the end, and no token after it."""
    toolset = world.toolset()
    agent = create_tool_rag_agent(
        HangingModel(script=[], stuck=stuck),
        registry=make_registry(toolset),
        toolset=toolset,
        limits=RunLimits(timeout_s=SHORT_S, on_limit=on_limit, summary_timeout_s=SHORT_S),
        **ALL,
    )
    parts = await driver.stream(agent, "Stream", ["messages", "values"])
    tokens = [part[1][0] for part in parts if part[0] == "messages"]
    assert [chunk.text for chunk in tokens if isinstance(chunk, AIMessageChunk)] == [
        "word0 ",
        "word1 ",
        "word2 ",
    ]
    result = read_run(parts[-1][1])
    assert result.stop_reason is StopReason.TIME_LIMIT
    assert result.answer.startswith("I stopped at the limit of 0.3 s before I had an answer.")
    assert result.usage.is_estimated
    assert result.usage.input_tokens > 0  # what was sent is paid for
    stuck.release.set()
    assert await asyncio.to_thread(stuck.late.wait, NEVER_S)


async def test_an_abandoned_stream_is_stopped_at_its_next_token(make_registry, stuck, world):
    """In a sync run the model's thread goes on until it has a token to hand over; then it fails."""
    toolset = world.toolset()
    from tests.support.fake_registry import FakeRegistry

    agent = create_tool_rag_agent(
        HangingModel(script=[], stuck=stuck),
        registry=FakeRegistry(toolset),
        toolset=toolset,
        limits=RunLimits(timeout_s=SHORT_S),
        **ALL,
    )
    list(agent.stream({"messages": [HumanMessage("Stream")]}, stream_mode="messages"))
    stuck.release.set()
    assert await asyncio.to_thread(stuck.late.wait, NEVER_S)
    assert getattr(stuck, "yielded", 0) < 3


async def test_loop_2_a_summary_that_hangs_is_given_up(driver, make_registry, stuck, world):
    """LOOP-2: the last call has a deadline of its own; the sentence stands in for it."""

    class HangsOnSummary(HangingModel):
        words: int = 0

        def _stream(self, messages, stop=None, run_manager=None, **kwargs):
            if "<work_so_far>" in messages[-1].text:
                yield from super()._stream(messages)
            result = self._generate(messages, **kwargs)
            message = result.generations[0].message
            yield ChatGenerationChunk(
                message=AIMessageChunk(content="", tool_calls=message.tool_calls)
            )

        async def _astream(self, messages, stop=None, run_manager=None, **kwargs):
            if "<work_so_far>" in messages[-1].text:
                async for chunk in super()._astream(messages):
                    yield chunk
            result = self._generate(messages, **kwargs)
            message = result.generations[0].message
            yield ChatGenerationChunk(
                message=AIMessageChunk(content="", tool_calls=message.tool_calls)
            )

    toolset = world.toolset()
    agent = create_tool_rag_agent(
        HangsOnSummary(script=[asks(call("refund_policy", "a"))], stuck=stuck),
        registry=make_registry(toolset),
        toolset=toolset,
        limits=RunLimits(max_steps=1, on_limit="summarise", summary_timeout_s=SHORT_S),
        **ALL,
    )
    states = await driver.stream(agent, "Refund?", ["messages", "values"])
    result = read_run(states[-1][1])
    assert (result.stop_reason, result.is_summary) == (StopReason.STEP_LIMIT, False)
    assert len(result.findings) == 1


@pytest.mark.parametrize("raised", [TimeoutError("its own"), TimeoutError()])
async def test_a_tools_own_timeout_is_not_the_runs(raised, driver, make_registry):
    @tool
    def dial(number: int) -> str:
        """Dial a number."""
        raise raised

    toolset = Toolset([dial])
    agent = create_tool_rag_agent(
        ScriptedModel(script=[asks(call("dial", "a", number=1)), says("No line.")]),
        registry=make_registry(toolset),
        toolset=toolset,
        **ALL,
    )
    result = await driver.ask(agent, "Dial")
    assert (result.answer, result.stop_reason) == ("No line.", StopReason.ANSWERED)
    assert result.steps[0].tool_calls[0].status == "error"
    assert "this turn's limit" not in result.steps[0].tool_calls[0].observation


async def test_a_models_own_timeout_is_not_the_runs(driver, make_registry, world):
    toolset = world.toolset()
    agent = create_tool_rag_agent(
        ScriptedModel(script=[TimeoutError("the provider's")]),
        registry=make_registry(toolset),
        toolset=toolset,
    )
    with pytest.raises(TimeoutError, match="the provider's"):
        await driver.ask(agent, "Well?")


# --- time over interrupts


def approval(clock: Clock, *, takes_s: float) -> BaseTool:
    @tool
    def pay(amount: int) -> str:
        """Pay an amount, once a person agrees."""
        agreed = interrupt({"amount": amount})
        clock.now += takes_s
        return f"paid {amount}: {agreed}"

    return pay


async def resumed(driver, agent, answer: str) -> Any:
    config = {"configurable": {"thread_id": "t"}}
    given = Command(resume=answer)
    return await (agent.ainvoke(given, config) if driver.is_async else _sync(agent, given, config))


async def _sync(agent: Any, given: Any, config: Any) -> Any:
    return agent.invoke(given, config)


async def test_waiting_for_a_person_takes_no_time(driver, make_registry, clock):
    """An interrupt passes through the limits, and a day's wait is no time at work."""
    toolset = Toolset([approval(clock, takes_s=1)])
    agent = create_tool_rag_agent(
        ScriptedModel(script=[asks(call("pay", "a", amount=5)), says("Paid.")]),
        registry=make_registry(toolset),
        toolset=toolset,
        limits=RunLimits(timeout_s=60, thread=ThreadLimits(timeout_s=60)),
        checkpointer=InMemorySaver(),
        **ALL,
    )
    first = await driver.ask(agent, "Pay", thread_id="t")
    assert first.stop_reason is StopReason.INTERRUPTED
    clock.now += 86_400
    result = read_run(await resumed(driver, agent, "yes"))
    assert (result.answer, result.stop_reason) == ("Paid.", StopReason.ANSWERED)
    assert result.steps[0].tool_calls[0].observation == "paid 5: yes"


async def test_the_time_of_a_resumed_step_counts(driver, make_registry, clock):
    """Resuming goes on counting, from the moment of going on."""
    toolset = Toolset([approval(clock, takes_s=61)])
    agent = create_tool_rag_agent(
        ScriptedModel(script=[asks(call("pay", "a", amount=5)), says("Never said.")]),
        registry=make_registry(toolset),
        toolset=toolset,
        limits=RunLimits(timeout_s=60),
        checkpointer=InMemorySaver(),
        **ALL,
    )
    await driver.ask(agent, "Pay", thread_id="t")
    output = await resumed(driver, agent, "yes")
    result = read_run(output)
    assert result.stop_reason is StopReason.TIME_LIMIT
    assert [one.observation for one in result.findings] == ["paid 5: yes"]
    assert output["run_spent"]["active_s"] == pytest.approx(61)


async def test_loop_7_resuming_goes_on_counting_steps_and_calls(driver, make_registry, clock):
    """LOOP-7: an interrupt is no way around a limit."""
    toolset = Toolset([approval(clock, takes_s=0)])
    batch = asks(call("pay", "a", amount=1), call("pay", "b", amount=2))
    agent = create_tool_rag_agent(
        ScriptedModel(script=[asks(call("pay", "z", amount=0)), batch]),
        registry=make_registry(toolset),
        toolset=toolset,
        limits=RunLimits(max_steps=2, max_tool_calls=2),
        checkpointer=InMemorySaver(),
        **ALL,
    )
    await driver.ask(agent, "Pay", thread_id="t")
    await resumed(driver, agent, "yes")
    result = read_run(await resumed(driver, agent, "yes"))
    assert [one.observation for one in result.findings] == ["paid 0: yes", "paid 1: yes"]
    refused = result.steps[1].tool_calls[1]
    assert "limit of 2 tool calls was reached" in refused.observation
    assert result.stop_reason is StopReason.STEP_LIMIT


async def test_a_threads_time_is_the_sum_of_its_runs(driver, make_registry, clock):
    @tool
    def work() -> str:
        """Work for a while."""
        clock.now += 20
        return "done"

    toolset = Toolset([work])
    script = [
        reply
        for turn in range(3)
        for reply in (asks(call("work", f"c{turn}")), says(f"Turn {turn}."))
    ]
    agent = create_tool_rag_agent(
        ScriptedModel(script=script),
        registry=make_registry(toolset),
        toolset=toolset,
        limits=RunLimits(timeout_s=30, thread=ThreadLimits(timeout_s=50)),
        checkpointer=InMemorySaver(),
        **ALL,
    )
    for turn in range(2):
        assert (await driver.ask(agent, "Work", thread_id="t")).answer == f"Turn {turn}."
        clock.now += 1_000  # between the turns nobody works
    stopped = await driver.ask(agent, "Work", thread_id="t")
    assert (stopped.stop_reason, stopped.limit.scope) == (StopReason.TIME_LIMIT, "thread")
    assert len(stopped.findings) == 1


# --- cancellation, and what the graph looks like


async def test_a_cancelled_run_is_cancelled(make_registry_async):
    """Cancellation is no timeout: it goes to the tool and out to the caller."""
    running, ended = asyncio.Event(), []

    @tool
    async def wait() -> str:
        """Wait for ever."""
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("tool")
        return "never"

    toolset = Toolset([wait])
    agent = create_tool_rag_agent(
        ScriptedModel(script=[asks(call("wait", "a"))]),
        registry=make_registry_async(toolset),
        toolset=toolset,
        **ALL,
    )
    run = asyncio.create_task(agent.ainvoke({"messages": [HumanMessage("Wait")]}))
    await running.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert ended == ["tool"]


def test_the_limits_add_one_node_a_run_and_none_a_step(world):
    agent = create_agent(
        ScriptedModel(script=[]), world.tools(), middleware=[RunLimitsMiddleware()]
    )
    nodes = set(agent.get_graph().nodes)
    assert nodes == {
        *("__start__", "RunLimitsMiddleware.before_agent", "model", "tools", "__end__"),
    }


async def test_the_time_at_work_grows_and_is_told(driver, make_registry, world, clock):
    """What a run tells of its time never shrinks, and is all of it."""

    class Slow(AgentMiddleware):
        def before_model(self, state, runtime):
            clock.now += 5

        async def abefore_model(self, state, runtime):
            clock.now += 5

    toolset = world.toolset()
    agent = create_tool_rag_agent(
        ScriptedModel(script=[asks(call("refund_policy", f"c{n}")) for n in range(2)]),
        registry=make_registry(toolset),
        toolset=toolset,
        limits=RunLimits(max_steps=2, timeout_s=None),
        middleware=[Slow()],
        **ALL,
    )
    states = await driver.stream(agent, "Refund", "values")
    times = [state["run_spent"]["active_s"] for state in states if state.get("run_spent")]
    assert all(earlier <= later for earlier, later in pairwise(times))
    assert times[-1] == pytest.approx(15)
