"""Think, act, observe: whole runs, and the same transcript as the hand-written loop."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from agent import StopReason, create_tool_rag_agent
from tests.support.reference_loop import reference_loop
from tests.support.scripted_model import ScriptedModel, asks, call, says

ALL = {"threshold": 0, "k": 8}  # every tool of the small world is offered


async def test_tool_result_enters_the_next_step(driver, make_registry, world):
    toolset = world.toolset()
    model = ScriptedModel(
        script=[
            asks(call("lookup_order", "c1", order_id="A100"), thought="First the order."),
            asks(call("refund_policy", "c2"), thought="Then the policy."),
            says("Yes: delivered 12 days ago."),
        ]
    )
    agent = create_tool_rag_agent(model, registry=make_registry(toolset), toolset=toolset, **ALL)

    result = await driver.ask(agent, "Will my order A100 be refunded?")

    assert result.answer == "Yes: delivered 12 days ago."
    assert result.stop_reason is StopReason.ANSWERED
    observed = [
        message for message in model.requests[1].messages if isinstance(message, ToolMessage)
    ]
    assert [message.content for message in observed] == [
        "Order A100: delivered 2026-10-01, price 250000"
    ]
    assert [(step.thought, step.tool_calls[0].observation) for step in result.steps] == [
        ("First the order.", "Order A100: delivered 2026-10-01, price 250000"),
        ("Then the policy.", "Refunds within 30 days after delivery"),
    ]
    assert result.steps[0].tool_calls[0].arguments == {"order_id": "A100"}


async def test_exception_is_mended_by_a_second_call_with_other_arguments(
    driver, make_registry, world
):
    toolset = world.toolset()

    def script(messages: list[BaseMessage]) -> AIMessage:
        last = messages[-1]
        if not isinstance(last, ToolMessage):
            return asks(call("divide", "c1", numerator=10, denominator=0))
        if "ZeroDivisionError" in str(last.content):
            return asks(call("divide", "c2", numerator=10, denominator=4))
        return says(f"It is {last.content}.")

    agent = create_tool_rag_agent(
        ScriptedModel(script=script), registry=make_registry(toolset), toolset=toolset, **ALL
    )

    result = await driver.ask(agent, "Divide one number by another number")

    assert result.answer == "It is 2.5."
    assert [step.tool_calls[0].status for step in result.steps] == ["error", "success"]


async def test_wrong_arguments_are_told_and_mended(driver, make_registry, world):
    toolset = world.toolset()
    model = ScriptedModel(
        script=[
            asks(call("divide", "c1", numerator="ten " * 2_000)),
            asks(call("divide", "c2", numerator=1, denominator=2)),
            says("0.5"),
        ]
    )
    agent = create_tool_rag_agent(model, registry=make_registry(toolset), toolset=toolset, **ALL)

    result = await driver.ask(agent, "Divide one number")

    refused, done = (step.tool_calls[0] for step in result.steps)
    assert (refused.status, refused.call_id) == ("error", "c1")
    assert len(refused.observation) <= 1_000
    assert "denominator: Field required" in refused.observation
    assert done.observation == "0.5"
    assert world.runs == ["divide"]


async def test_process_with_a_running_event_loop_may_use_the_sync_face(world):
    from tests.support.fake_registry import FakeRegistry

    toolset = world.toolset()
    model = ScriptedModel(script=[asks(call("refund_policy")), says("30 days")])
    agent = create_tool_rag_agent(model, registry=FakeRegistry(toolset), toolset=toolset, **ALL)
    assert (
        agent.invoke({"messages": "What is the refund policy?"})["messages"][-1].text == "30 days"
    )


SCRIPTS: dict[str, list[AIMessage]] = {
    "answer at once": [says("Hello.")],
    "one call": [asks(call("refund_policy")), says("30 days.")],
    "a chain": [
        asks(call("lookup_order", order_id="A1"), thought="Look."),
        asks(call("divide", "c2", numerator=9, denominator=2)),
        says("4.5"),
    ],
    "parallel calls": [
        asks(
            call("write_note", "a", text="x"),
            call("refund_policy", "b"),
            call("lookup_order", "c", order_id="A1"),
        ),
        says("done"),
    ],
    "a failure on the way": [
        asks(call("divide", "a", numerator=1, denominator=0), call("refund_policy", "b")),
        asks(call("divide", "c", numerator=1, denominator=1)),
        says("1"),
    ],
    "unknown tool": [asks(call("refund_polic", "a")), says("sorry")],
    "list content": [
        asks(call("refund_policy")),
        AIMessage(content=[{"type": "text", "text": "30 "}, {"type": "text", "text": "days"}]),
    ],
}


@pytest.mark.parametrize("name", SCRIPTS)
async def test_transcript_equals_the_reference_loops(name, driver, make_registry, world):
    toolset = world.toolset()
    agent = create_tool_rag_agent(
        ScriptedModel(script=SCRIPTS[name]),
        registry=make_registry(toolset),
        toolset=toolset,
        system_prompt=None,
        **ALL,
    )
    ours = (await driver.run(agent, "What is the refund policy?"))["messages"]
    oracle = reference_loop(
        ScriptedModel(script=SCRIPTS[name]),
        list(type(world)().tools()),
        "What is the refund policy?",
        max_steps=10,
    )
    assert [comparable(message) for message in ours] == [comparable(message) for message in oracle]


def comparable(message: BaseMessage) -> tuple[Any, ...]:
    if isinstance(message, ToolMessage):
        # The loops word their errors differently; what happened must be the same.
        text = message.content if message.status == "success" else ""
        return ("tool", message.name, message.tool_call_id, message.status, text)
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    return (message.type, message.content, calls)


async def test_streaming_shows_every_step_once(driver, make_registry, world):
    toolset = world.toolset()
    model = ScriptedModel(script=[asks(call("refund_policy")), says("30 days")])
    agent = create_tool_rag_agent(model, registry=make_registry(toolset), toolset=toolset, **ALL)

    updates = await driver.stream(agent, "What is the refund policy?", "updates")

    nodes = [node for update in updates for node in update]
    assert nodes[-3:] == ["model", "tools", "model"]
    assert nodes.count("ToolRAGMiddleware.before_agent") == 1
