"""A run stops at its limit with its work kept (LOOP-1, LOOP-2)."""

from __future__ import annotations

import logging
from itertools import product

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from agent import RunLimitsMiddleware, StopReason, create_tool_rag_agent
from registry.errors import RunLimitError
from tests.support.scripted_model import ScriptedModel, asks, call, says

ALL = {"threshold": 0, "k": 8}


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
        max_steps=3,
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
        max_steps=needed + spare,
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
        model, registry=make_registry(toolset), toolset=toolset, max_steps=1, **ALL
    )
    result = await driver.ask(agent, "Search")
    assert [m.tool_call_id for m in result.messages if isinstance(m, ToolMessage)] == ["a", "b"]
    assert result.answer.startswith("I stopped at the limit of 1 step ")


@pytest.mark.parametrize("max_steps", [0, -1])
def test_loop_1_a_limit_below_one_is_refused(max_steps):
    with pytest.raises(RunLimitError, match="max_steps"):
        RunLimitsMiddleware(max_steps=max_steps)


async def test_loop_1_the_limit_drops_into_any_agent(driver, world):
    model = ScriptedModel(script=lambda messages: fact(len(messages)))
    agent = create_agent(model, world.tools(), middleware=[RunLimitsMiddleware(max_steps=2)])
    output = await driver.run(agent, "Search")
    assert output["stop_reason"] == "step_limit"
    assert world.runs == ["search_notes"] * 2
    assert "run_steps" not in output
