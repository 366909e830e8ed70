"""A run stops at its limits with its work kept (LOOP-1, LOOP-2, LOOP-3, LOOP-7)."""

from __future__ import annotations

import logging
from itertools import product

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, RemoveMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from agent import (
    LimitMet,
    ModelPrice,
    RunLimits,
    RunLimitsMiddleware,
    StopReason,
    ThreadLimits,
    create_tool_rag_agent,
)
from agent.middleware._summary import MAX_SUMMARY_CHARS
from agent.result import read_run
from registry.errors import RunLimitError
from tests.support.scripted_model import ScriptedModel, asks, call, says

ALL = {"threshold": 0, "k": 8}
PRICE = ModelPrice(input_per_million=1.0, output_per_million=2.0, cached_input_per_million=0.5)


class NamedModel(ScriptedModel):
    """As a provider's: it has a name, and takes a limit of tokens."""

    model_name: str = "priced"
    max_tokens: int | None = None


def fact(number: int) -> AIMessage:
    message = asks(call("search_notes", f"c{number}", words=str(number)))
    usage = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
    return message.model_copy(update={"usage_metadata": usage})


async def test_loop_1_a_stuck_loop_stops_at_ten_by_default(driver, make_registry, world, caplog):
    """LOOP-1: no settings given; ten model calls, logged."""
    toolset = world.toolset()
    model = ScriptedModel(script=lambda messages: fact(len(messages)))
    agent = create_tool_rag_agent(model, registry=make_registry(toolset), toolset=toolset)

    with caplog.at_level(logging.WARNING, logger="agent"):
        result = await driver.ask(agent, "Search the notes in the notebook")

    assert result.stop_reason is StopReason.STEP_LIMIT
    assert len(model.requests) == 10
    assert world.runs == ["search_notes"] * 10
    assert [record.msg for record in caplog.records] == ["step_limit_reached"]


async def test_loop_2_the_limit_keeps_the_work_and_the_thread(driver, make_registry, world):
    """LOOP-2: a typed result with steps and usage, and a thread that goes on."""
    toolset = world.toolset()
    model = ScriptedModel(
        script=[fact(1), fact(2), fact(3), says("Here are the facts."), says("Bye.")],
        require_definitions=True,
    )
    agent = create_tool_rag_agent(
        model,
        registry=make_registry(toolset),
        toolset=toolset,
        limits=RunLimits(max_steps=3),
        checkpointer=InMemorySaver(),
        **ALL,
    )
    stopped = await driver.ask(agent, "Gather three facts", thread_id="t")

    assert stopped.stop_reason is StopReason.STEP_LIMIT
    assert "limit of 3 steps" in stopped.answer
    assert [step.tool_calls[0].status for step in stopped.steps] == ["success"] * 3
    assert (stopped.usage.input_tokens, stopped.usage.total_tokens) == (30, 36)
    marked = stopped.messages[-1].response_metadata["toolrag"]
    assert marked == {"stop_reason": "step_limit", "max_steps": 3}

    went_on = await driver.ask(agent, "Go on", thread_id="t")
    assert went_on.stop_reason is StopReason.ANSWERED
    assert went_on.answer == "Here are the facts."
    assert went_on.steps == ()
    assert (await driver.ask(agent, "Thanks", thread_id="t")).answer == "Bye."


@pytest.mark.parametrize(("needed", "spare"), [(1, 0), *product([2, 3, 12, 40], [-1, 0, 1])])
async def test_loop_2_a_task_of_n_steps(needed, spare, driver, make_registry, world):
    """LOOP-2: n - 1 steps are too few, n and n + 1 are enough; LangGraph's own limit never cuts."""
    toolset = world.toolset()
    model = ScriptedModel(script=[*(fact(n) for n in range(needed - 1)), says("Done.")])
    agent = create_tool_rag_agent(
        model,
        registry=make_registry(toolset),
        toolset=toolset,
        limits=RunLimits(max_steps=needed + spare),
        middleware=[ManyNodes()],
        **ALL,
    )
    result = await driver.ask(agent, "Search the notes")

    if spare < 0:
        assert result.stop_reason is StopReason.STEP_LIMIT
        assert len(result.steps) == needed - 1
    else:
        assert result.answer == "Done."


class ManyNodes(AgentMiddleware):
    """Adds a graph node wherever a middleware can, which is what LangGraph's limit counts."""

    def before_agent(self, state, runtime):
        return None

    async def abefore_agent(self, state, runtime):
        return None

    before_model = after_model = after_agent = before_agent
    abefore_model = aafter_model = aafter_agent = abefore_agent


async def test_loop_2_parallel_calls_of_the_last_step_are_all_answered(
    driver, make_registry, world
):
    """LOOP-2: a step is a model call and all its tool calls; none is left without an answer."""
    toolset = world.toolset()
    model = ScriptedModel(
        script=[asks(call("refund_policy", "a"), call("search_notes", "b", words="x"))]
    )
    agent = create_tool_rag_agent(
        model,
        registry=make_registry(toolset),
        toolset=toolset,
        limits=RunLimits(max_steps=1),
        **ALL,
    )
    result = await driver.ask(agent, "Search")
    assert [m.tool_call_id for m in result.messages if isinstance(m, ToolMessage)] == ["a", "b"]
    assert result.answer.startswith("I stopped at the limit of 1 step ")


@pytest.mark.parametrize("max_steps", [0, -1])
def test_loop_1_a_limit_below_one_is_refused(max_steps):
    with pytest.raises(RunLimitError, match="max_steps"):
        RunLimits(max_steps=max_steps)


async def test_loop_1_the_limit_drops_into_any_agent(driver, world):
    model = ScriptedModel(script=lambda messages: fact(len(messages)))
    agent = create_agent(
        model, world.tools(), middleware=[RunLimitsMiddleware(RunLimits(max_steps=2))]
    )
    output = await driver.run(agent, "Search")
    assert output["stop_reason"] == "step_limit"
    assert world.runs == ["search_notes"] * 2
    assert "run_steps" not in output


def agent_of(model, make_registry, toolset, **options):
    return create_tool_rag_agent(
        model, registry=make_registry(toolset), toolset=toolset, **{**ALL, **options}
    )


def for_ever(messages):
    return fact(len(messages))


LIMITS = {
    "max_tool_calls": (RunLimits(max_tool_calls=3), StopReason.TOOL_CALL_LIMIT, 3),
    "max_total_tokens": (RunLimits(max_total_tokens=30), StopReason.TOKEN_LIMIT, 2),
    "max_input_tokens": (RunLimits(max_input_tokens=31), StopReason.TOKEN_LIMIT, 3),
    "max_output_tokens": (RunLimits(max_output_tokens=3), StopReason.TOKEN_LIMIT, 1),
    # 14 millionths a step
    "max_cost": (RunLimits(max_cost=20e-6, prices={"priced": PRICE}), StopReason.COST_LIMIT, 1),
}


@pytest.mark.parametrize("name", LIMITS)
async def test_loop_1_each_limit_stops_a_stuck_loop(name, driver, make_registry, world, caplog):
    """LOOP-1: a model that calls a tool for ever meets each kind of limit, and it is logged."""
    limits, reason, runs = LIMITS[name]
    model = NamedModel(script=for_ever, require_definitions=True)
    agent = agent_of(
        model, make_registry, world.toolset(), limits=limits, checkpointer=InMemorySaver()
    )
    with caplog.at_level(logging.WARNING, logger="agent"):
        result = await driver.ask(agent, "Search", thread_id="t")

    assert result.stop_reason is reason
    assert (result.limit.name, result.limit.scope) == (name, "run")
    assert result.limit.amount in result.answer
    assert world.runs == ["search_notes"] * runs
    assert len(result.findings) == runs
    assert [record.msg for record in caplog.records] == [f"{reason.value}_reached"]

    model.script = lambda _: says("Done.")
    went_on = await driver.ask(agent, "Go on", thread_id="t")
    assert (went_on.answer, went_on.stop_reason) == ("Done.", StopReason.ANSWERED)
    assert (went_on.limit, went_on.is_summary) == (None, False)


@pytest.mark.parametrize("name", LIMITS)
async def test_loop_7_the_limit_shows_in_a_stream(name, driver, make_registry, world):
    """LOOP-7: whoever streams a run sees the same status as who waits for it."""
    limits, reason, _ = LIMITS[name]
    agent = agent_of(NamedModel(script=for_ever), make_registry, world.toolset(), limits=limits)
    updates = await driver.stream(agent, "Search", "updates")
    last = updates[-1]["model"]
    assert last["stop_reason"] == reason.value
    assert last["limit_met"]["name"] == name
    assert last["messages"][-1].response_metadata["toolrag"]["stop_reason"] == reason.value
    assert list(updates[-1]) == ["model"]  # no node of our own


@pytest.mark.parametrize("spare", [-1, 0, 1])
async def test_loop_7_at_the_limit_the_answer_is_the_real_one(spare, driver, make_registry, world):
    """LOOP-7: streamed with n - 1, n and n + 1 steps; the status never hides in the text."""
    script = [fact(1), fact(2), says("I stopped at the limit of 3 steps before I had an answer.")]
    agent = agent_of(
        ScriptedModel(script=script),
        make_registry,
        world.toolset(),
        limits=RunLimits(max_steps=3 + spare),
    )
    states = await driver.stream(agent, "Search", "values")
    result = read_run(states[-1])
    if spare < 0:
        assert result.stop_reason is StopReason.STEP_LIMIT
        assert result.limit == LimitMet(
            reason=StopReason.STEP_LIMIT, name="max_steps", allowed=2, scope="run"
        )
    else:
        assert (result.stop_reason, result.limit) == (StopReason.ANSWERED, None)


# --- LOOP-3: a parallel batch


@pytest.mark.parametrize("limit", [1, 2, 4, 5, 6])
async def test_loop_3_a_parallel_batch_never_overshoots(limit, driver, make_registry, world):
    """LOOP-3: the first calls of a batch run, each other one is told why, the thread goes on."""
    batch = asks(*(call("write_note", f"n{place}", text=str(place)) for place in range(5)))
    model = ScriptedModel(script=[batch, says("Hm."), says("Bye.")], require_definitions=True)
    agent = agent_of(
        model,
        make_registry,
        world.toolset(),
        limits=RunLimits(max_tool_calls=limit),
        checkpointer=InMemorySaver(),
    )
    result = await driver.ask(agent, "Write", thread_id="t")

    ran = min(limit, 5)
    assert sorted(world.notes) == [str(place) for place in range(ran)]
    calls = result.steps[0].tool_calls
    assert [one.status for one in calls] == ["success"] * ran + ["error"] * (5 - ran)
    plural = "" if limit == 1 else "s"
    for refused in calls[ran:]:
        assert f"limit of {limit} tool call{plural} was reached" in refused.observation
    if limit < 5:
        assert result.stop_reason is StopReason.TOOL_CALL_LIMIT
        assert len(model.requests) == 1
    else:
        assert (result.answer, result.stop_reason) == ("Hm.", StopReason.ANSWERED)
    went_on = await driver.ask(agent, "Go on", thread_id="t")
    assert went_on.stop_reason is StopReason.ANSWERED


async def test_loop_3_skipped_calls_use_no_quota_of_the_thread(driver, make_registry, world):
    """LOOP-3: what was refused in one turn may run in the next, up to the thread's own limit."""
    batches = [
        asks(*(call("write_note", f"{turn}{place}", text="x") for place in range(5)))
        for turn in range(4)
    ]
    agent = agent_of(
        ScriptedModel(script=[*batches[:3], says("Nothing to do.")]),
        make_registry,
        world.toolset(),
        limits=RunLimits(max_tool_calls=2, thread=ThreadLimits(max_tool_calls=5)),
        checkpointer=InMemorySaver(),
    )
    results = [await driver.ask(agent, "Write", thread_id="t") for _ in range(4)]

    assert len(world.notes) == 5
    assert [len(result.findings) for result in results] == [2, 2, 1, 0]
    assert [result.limit and result.limit.scope for result in results[:3]] == [
        "run",
        "run",
        "thread",
    ]
    assert "for this conversation" in results[2].answer
    assert results[3].stop_reason is StopReason.ANSWERED  # it needed no tool


async def test_loop_3_duplicate_ids_do_not_overshoot(driver, world):
    """LOOP-3: an agent without Tool RAG keeps ids as they come; two of one id may not both run."""
    twice = asks(*(call("write_note", "same", text="x") for _ in range(2)))
    agent = create_agent(
        ScriptedModel(script=[twice, says("ok")]),
        world.tools(),
        middleware=[RunLimitsMiddleware(RunLimits(max_tool_calls=1))],
    )
    await driver.run(agent, "Write")
    assert len(world.notes) <= 1


async def test_loop_3_calls_after_a_limit_of_tokens_do_not_run(driver, make_registry, world):
    """LOOP-3: the reply that meets a limit may ask for calls, but nothing more is done."""
    model = ScriptedModel(script=[fact(1), fact(2), says("Later.")], require_definitions=True)
    agent = agent_of(
        model,
        make_registry,
        world.toolset(),
        limits=RunLimits(max_total_tokens=24),
        checkpointer=InMemorySaver(),
    )
    result = await driver.ask(agent, "Search", thread_id="t")
    assert world.runs == ["search_notes"]
    assert [step.tool_calls[0].status for step in result.steps] == ["success", "error"]
    assert "limit of 24 tokens was reached" in result.steps[1].tool_calls[0].observation
    assert (await driver.ask(agent, "Go on", thread_id="t")).answer == "Later."
    state = agent.get_state({"configurable": {"thread_id": "t"}}).values
    assert state["thread_spent"]["tool_calls"] == 1  # the other one was not run


# --- LOOP-2: the summary


SUMMARISE = RunLimits(max_steps=3, on_limit="summarise", summary_max_tokens=200)


async def test_loop_2_the_model_sums_up_without_tools(driver, make_registry, world):
    """LOOP-2, LOOP-7: one call more, no tools, marked as a summary and not as an answer."""
    used = {"input_tokens": 5, "output_tokens": 1, "total_tokens": 6}
    model = NamedModel(
        script=[
            says("Hello."),
            *(fact(1), fact(2), fact(3)),
            says("Three facts, no answer.", usage_metadata=used),
            says("Bye."),
        ],
        require_definitions=True,
    )
    agent = agent_of(
        model, make_registry, world.toolset(), limits=SUMMARISE, checkpointer=InMemorySaver()
    )
    await driver.ask(agent, "Greet me", thread_id="t")
    result = await driver.ask(agent, "Gather facts", thread_id="t")

    assert (result.answer, result.is_summary) == ("Three facts, no answer.", True)
    assert result.stop_reason is StopReason.STEP_LIMIT
    assert result.to_dict()["is_summary"] is True
    assert len(result.findings) == 3
    assert result.usage.total_tokens == 3 * 12 + 6
    marked = result.messages[-1].response_metadata["toolrag"]
    assert marked == {"stop_reason": "step_limit", "max_steps": 3, "is_summary": True}

    last = model.requests[4]
    assert last.tools == ()
    asked = last.messages[-1].text
    assert [message.type for message in last.messages] == ["system", "human"]
    for told in ("Greet me", "Hello.", "Gather facts", "search_notes", "0 notes", "3 steps"):
        assert told in asked
    assert "at most 100 words" in asked
    # The thread holds what was asked and answered, not the request for a summary.
    went_on = await driver.ask(agent, "Thanks", thread_id="t")
    assert went_on.answer == "Bye."
    assert [message.type for message in model.requests[5].messages] == [
        *("system", "human", "ai", "human"),
        *("ai", "tool") * 3,
        *("ai", "human"),
    ]


async def test_loop_2_the_summary_binds_no_tools_of_the_agents_own(driver, world):
    """LOOP-2: without Tool RAG too, where the agent's tools are bound in every call."""
    model = ScriptedModel(script=[fact(1), fact(2), fact(3), says("Summed up.")])
    agent = create_agent(model, world.tools(), middleware=[RunLimitsMiddleware(SUMMARISE)])
    result = read_run(await driver.run(agent, "Gather"))
    assert (result.answer, result.is_summary) == ("Summed up.", True)
    assert [len(request.tools) for request in model.requests] == [8, 8, 8, 0]


async def test_loop_6_a_summary_in_blocks_is_read_as_text(driver, make_registry, world):
    """LOOP-6: reasoning and text blocks, and a call that nobody would run."""
    blocks = AIMessage(
        content=[{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "All of it."}],
        tool_calls=[call("search_notes", "late", words="x")],
    )
    model = ScriptedModel(
        script=[fact(1), fact(2), fact(3), blocks, says("Bye.")], require_definitions=True
    )
    agent = agent_of(
        model, make_registry, world.toolset(), limits=SUMMARISE, checkpointer=InMemorySaver()
    )
    result = await driver.ask(agent, "Gather", thread_id="t")
    assert (result.answer, result.is_summary) == ("All of it.", True)
    assert len(world.runs) == 3
    assert (await driver.ask(agent, "Thanks", thread_id="t")).answer == "Bye."


@pytest.mark.parametrize(
    "reply",
    [
        ConnectionError("429"),
        TimeoutError("the provider's own"),
        says(""),
        asks(call("search_notes", "late", words="x")),
        AIMessage(content=[]),
    ],
    ids=["raises", "times out", "empty", "calls a tool", "no blocks"],
)
async def test_loop_2_without_a_summary_the_sentence_stands(reply, driver, make_registry, world):
    """LOOP-2: a summary that fails loses nothing of the run."""
    model = ScriptedModel(
        script=[fact(1), fact(2), fact(3), reply, says("Bye.")], require_definitions=True
    )
    agent = agent_of(
        model, make_registry, world.toolset(), limits=SUMMARISE, checkpointer=InMemorySaver()
    )
    result = await driver.ask(agent, "Gather", thread_id="t")
    assert (result.stop_reason, result.is_summary) == (StopReason.STEP_LIMIT, False)
    assert result.answer.startswith("I stopped at the limit of 3 steps ")
    assert len(result.findings) == len(world.runs) == 3
    assert (await driver.ask(agent, "Thanks", thread_id="t")).answer == "Bye."


@pytest.mark.parametrize("name", LIMITS)
async def test_loop_2_every_limit_can_be_summed_up(name, driver, make_registry, world):
    limits, reason, _ = LIMITS[name]
    soft = RunLimits(**{name: getattr(limits, name)}, prices=limits.prices, on_limit="summarise")
    script = lambda messages: (  # noqa: E731
        says("So far.") if "<work_so_far>" in messages[-1].text else fact(len(messages))
    )
    agent = agent_of(NamedModel(script=script), make_registry, world.toolset(), limits=soft)
    result = await driver.ask(agent, "Search")
    assert (result.answer, result.is_summary, result.stop_reason) == ("So far.", True, reason)


async def test_loop_2_the_summary_is_bounded_in_what_it_is_sent(driver, make_registry, world):
    """LOOP-2: a run of huge results and thoughts is cut, and says so; the question is kept."""
    thought = "thinking " * 2_000
    steps = [
        asks(call("search_notes", f"c{place}", words=f"{place} " + "w" * 5_000), thought=thought)
        for place in range(20)
    ]
    model = ScriptedModel(script=[*steps, says("Short.")])
    agent = agent_of(
        model,
        make_registry,
        world.toolset(),
        limits=RunLimits(max_steps=20, max_total_tokens=None, on_limit="summarise"),
    )
    result = await driver.ask(agent, "What about the harbour?")
    assert result.is_summary
    asked = model.requests[-1].messages[-1].text
    assert len(asked) < MAX_SUMMARY_CHARS + 2_000
    assert "What about the harbour?" in asked
    assert "earlier entries are left out" in asked


async def test_loop_2_a_limit_met_before_anything_was_done_is_not_summed_up(
    driver, make_registry, world
):
    """A thread past its limit must not cost a call more with each question."""
    model = ScriptedModel(script=[fact(1), says("Found.")])
    agent = agent_of(
        model,
        make_registry,
        world.toolset(),
        limits=RunLimits(on_limit="summarise", thread=ThreadLimits(max_steps=2)),
        checkpointer=InMemorySaver(),
    )
    assert (await driver.ask(agent, "Search", thread_id="t")).answer == "Found."
    for _ in range(2):
        refused = await driver.ask(agent, "Again", thread_id="t")
        assert (refused.stop_reason, refused.limit.scope) == (StopReason.STEP_LIMIT, "thread")
        assert refused.answer.startswith("I stopped at the limit of 2 steps for this conversation")
    assert len(model.requests) == 2
    model.script = [None, None, says("New thread.")]
    assert (await driver.ask(agent, "Again", thread_id="u")).answer == "New thread."


# --- tokens and cost


async def test_loop_1_the_sums_of_a_thread_survive_its_process(driver, make_registry, world):
    """LOOP-1: another agent over the same checkpoints goes on counting."""
    saver, toolset = InMemorySaver(), world.toolset()
    limits = RunLimits(thread=ThreadLimits(max_total_tokens=36))
    used = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
    for _ in range(3):
        model = ScriptedModel(script=[says("Yes.", usage_metadata=used)])
        agent = agent_of(model, make_registry, toolset, limits=limits, checkpointer=saver)
        result = await driver.ask(agent, "Well?", thread_id="t")
        assert (result.answer, result.usage.total_tokens) == ("Yes.", 12)
    agent = agent_of(
        ScriptedModel(script=[]), make_registry, toolset, limits=limits, checkpointer=saver
    )
    stopped = await driver.ask(agent, "Well?", thread_id="t")
    assert (stopped.stop_reason, stopped.limit.scope) == (StopReason.TOKEN_LIMIT, "thread")
    assert stopped.usage.total_tokens == 0


async def test_cost_follows_the_prices_with_cached_tokens_once(driver, make_registry, world):
    used = {
        "input_tokens": 1_000,
        "output_tokens": 100,
        "total_tokens": 1_100,
        "input_token_details": {"cache_read": 400},
    }
    reply = says("Yes.", usage_metadata=used, response_metadata={"model_name": "priced-2026-01-31"})
    agent = agent_of(
        NamedModel(script=[reply]),
        make_registry,
        world.toolset(),
        limits=RunLimits(prices={"priced": PRICE}),
    )
    usage = (await driver.ask(agent, "Well?")).usage
    assert usage.cost == pytest.approx((600 * 1.0 + 400 * 0.5 + 100 * 2.0) / 1e6)
    assert (usage.input_tokens, usage.cached_input_tokens) == (1_000, 400)
    assert not usage.is_estimated


async def test_a_reply_of_an_unpriced_model_is_priced_as_the_configured_and_marked(
    driver, make_registry, world
):
    """A fallback further in may have answered: its price is a guess, but never nothing."""
    used = {"input_tokens": 1_000, "output_tokens": 0, "total_tokens": 1_000}
    reply = says("Yes.", usage_metadata=used, response_metadata={"model_name": "spare"})
    agent = agent_of(
        NamedModel(script=[reply]),
        make_registry,
        world.toolset(),
        limits=RunLimits(prices={"priced": PRICE}),
    )
    usage = (await driver.ask(agent, "Well?")).usage
    assert (usage.cost, usage.is_estimated) == (pytest.approx(1_000 / 1e6), True)


async def test_a_price_table_without_the_model_is_refused(driver, make_registry, world):
    limits = RunLimits(prices={"another": PRICE})
    with pytest.raises(RunLimitError, match="no entry for the model 'priced', only for 'another'"):
        agent_of(NamedModel(script=[]), make_registry, world.toolset(), limits=limits)
    with pytest.raises(RunLimitError, match="does not tell its name"):
        agent_of(ScriptedModel(script=[]), make_registry, world.toolset(), limits=limits)
    agent = create_agent(
        NamedModel(script=[]), world.tools(), middleware=[RunLimitsMiddleware(limits)]
    )
    with pytest.raises(RunLimitError, match="no entry for the model 'priced'"):
        await driver.run(agent, "Search")


async def test_loop_1_a_model_that_reports_no_tokens_is_estimated(driver, make_registry, world):
    """LOOP-1: such a model cannot slip through a limit of tokens; tool schemas count too."""
    silent = lambda messages: asks(call("search_notes", f"c{len(messages)}", words="x" * 400))  # noqa: E731
    agent = agent_of(
        ScriptedModel(script=silent),
        make_registry,
        world.toolset(),
        limits=RunLimits(max_total_tokens=3_000, max_steps=100, max_tool_calls=None),
    )
    result = await driver.ask(agent, "Search")
    assert result.stop_reason is StopReason.TOKEN_LIMIT
    assert result.usage.is_estimated
    assert 3_000 <= result.usage.total_tokens < 6_000

    without_tools = create_agent(
        ScriptedModel(script=[says("Hello.")]), middleware=[RunLimitsMiddleware()]
    )
    with_tools = create_agent(
        ScriptedModel(script=[says("Hello.")]), world.tools(), middleware=[RunLimitsMiddleware()]
    )
    few, many = [
        (await driver.run(one, "Hello"))["run_spent"]["input_tokens"]
        for one in (without_tools, with_tools)
    ]
    assert many > few + 100


async def test_a_history_cut_by_other_middleware_is_counted_all_the_same(
    driver, make_registry, world
):
    """The sums live in the state: they do not shrink with the messages."""

    class Forgets(AgentMiddleware):
        def before_model(self, state, runtime):
            kept = [message for message in state["messages"] if message.type == "human"]
            return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *kept]}

        async def abefore_model(self, state, runtime):
            return self.before_model(state, runtime)

    used = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
    agent = agent_of(
        ScriptedModel(script=[fact(1), fact(2), says("Done.", usage_metadata=used)]),
        make_registry,
        world.toolset(),
        middleware=[Forgets()],
    )
    result = await driver.ask(agent, "Search")
    assert [message.type for message in result.messages] == ["human", "ai"]
    assert result.usage.total_tokens == 36


async def test_loop_2_a_run_that_is_stuck_at_its_limit_ends_once(driver, make_registry, world):
    """LOOP-2: the same call again and again meets the limit of steps in the same moment."""
    script = lambda messages: (  # noqa: E731
        says("So far.")
        if "<work_so_far>" in messages[-1].text
        else fact(0).model_copy(update={"id": None})
    )
    for steps in range(1, 9):
        agent = agent_of(
            ScriptedModel(script=script),
            make_registry,
            world.toolset(),
            limits=RunLimits(max_steps=steps, on_limit="summarise"),
        )
        result = await driver.ask(agent, "Search")
        if result.stop_reason is StopReason.STEP_LIMIT:
            assert (result.answer, result.is_summary) == ("So far.", True)
        else:
            assert result.stop_reason is StopReason.NO_PROGRESS
            assert (result.limit, result.is_summary) == (None, False)
            assert not result.usage.is_estimated  # the model was not asked for those words
