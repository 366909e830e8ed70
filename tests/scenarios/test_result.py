"""What `ask` and `aask` hand back."""

from __future__ import annotations

import json

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from agent import StopReason, TokenUsage, create_tool_rag_agent
from registry.errors import ConfigurationError, InvalidQueryError
from tests.support.scripted_model import ScriptedModel, asks, call, says


def agent_of(script, registry, toolset, **options):
    return create_tool_rag_agent(
        ScriptedModel(script=script), registry=registry, toolset=toolset, **options
    )


async def test_only_this_runs_messages_are_read(driver, make_registry, world):
    toolset = world.toolset()
    asking = {"input_tokens": 3, "output_tokens": 1, "total_tokens": 4}
    saying = {"input_tokens": 4, "output_tokens": 2, "total_tokens": 6}
    agent = agent_of(
        [
            asks(call("refund_policy", "a")).model_copy(update={"usage_metadata": asking}),
            says("30 days", usage_metadata=saying),
            asks(call("refund_policy", "b")).model_copy(update={"usage_metadata": asking}),
            says("30 days, as I said", usage_metadata=saying),
        ],
        make_registry(toolset),
        toolset,
        checkpointer=InMemorySaver(),
    )
    await driver.ask(agent, "refund policy?", thread_id="t")
    second = await driver.ask(agent, "refund policy, again?", thread_id="t")

    assert [step.tool_calls[0].call_id for step in second.steps] == ["b"]
    assert second.usage == TokenUsage(input_tokens=7, output_tokens=3, total_tokens=10)
    assert second.messages[0].text == "refund policy, again?"
    assert len(second.messages) == 4


async def test_list_content_answers_are_joined_text(driver, make_registry, world):
    toolset = world.toolset()
    blocks = [
        {"type": "reasoning", "reasoning": "hm"},
        {"type": "text", "text": "30 "},
        {"type": "text", "text": "days"},
    ]
    agent = agent_of([AIMessage(content=blocks)], make_registry(toolset), toolset)
    result = await driver.ask(agent, "refund policy")
    assert (result.answer, result.stop_reason) == ("30 days", StopReason.ANSWERED)


async def test_empty_reply_is_no_success(driver, make_registry, world):
    toolset = world.toolset()
    agent = agent_of([says("")], make_registry(toolset), toolset)
    result = await driver.ask(agent, "refund policy")
    assert (result.answer, result.stop_reason) == ("", StopReason.EMPTY_ANSWER)


async def test_to_dict_is_json(driver, make_registry, world):
    toolset = world.toolset()
    agent = agent_of(
        [asks(call("refund_policy", "a"), thought="look"), says("30 days")],
        make_registry(toolset),
        toolset,
    )
    values = (await driver.ask(agent, "refund policy")).to_dict()
    assert json.loads(json.dumps(values)) == values
    assert values["steps"] == [
        {
            "thought": "look",
            "tool_calls": [
                {
                    "tool": "refund_policy",
                    "arguments": {},
                    "observation": "Refunds within 30 days after delivery",
                    "status": "success",
                    "call_id": "a",
                }
            ],
        }
    ]
    assert values["stop_reason"] == "answered"
    assert values["offered_tools"][0]["name"] == "refund_policy"
    assert [message["type"] for message in values["messages"]] == ["human", "ai", "tool", "ai"]


@pytest.mark.parametrize("question", ["", "  \n "])
async def test_blank_question_is_refused_before_anything_runs(
    question, driver, make_registry, world
):
    toolset = world.toolset()
    registry = make_registry(toolset)
    agent = agent_of([], registry, toolset)
    with pytest.raises(InvalidQueryError, match="empty"):
        await driver.ask(agent, question)
    assert getattr(registry, "sync_twin", registry).searched == []


async def test_agent_with_threads_needs_to_know_which(driver, make_registry, world):
    toolset = world.toolset()
    agent = agent_of(
        [says("a"), says("b")], make_registry(toolset), toolset, checkpointer=InMemorySaver()
    )
    with pytest.raises(ConfigurationError, match="thread_id"):
        await driver.ask(agent, "hello")
    config = {"configurable": {"thread_id": "t"}}
    assert (await driver.ask(agent, "hello", config=config)).answer == "a"
    assert (await driver.ask(agent, "hello", config=config, thread_id="u")).answer == "b"
    assert config == {"configurable": {"thread_id": "t"}}
