"""Names and ids that a model invents never poison a thread (NAM-3)."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from agent import create_tool_rag_agent
from agent.middleware._messages import legal_message
from registry.text import is_legal_name
from tests.support.scripted_model import ScriptedModel, asks, call, says


@pytest.mark.parametrize("written", ["functions/look up", "", "  ", "x" * 65, "調べる", "a.b\x00c"])
async def test_nam_3_an_illegal_name_is_answered_and_does_not_stay(
    written, driver, make_registry, world
):
    """NAM-3: unknown-tool answer under the same id; the strict model takes the second turn."""
    toolset = world.toolset()
    model = ScriptedModel(
        script=[asks(call(written, "same-id")), says("Sorry."), says("Still here.")]
    )
    agent = create_tool_rag_agent(
        model, registry=make_registry(toolset), toolset=toolset, checkpointer=InMemorySaver()
    )
    first = await driver.run(agent, "refund policy", thread_id="t")
    second = await driver.run(agent, "Are you there?", thread_id="t")

    [answer] = [message for message in first["messages"] if isinstance(message, ToolMessage)]
    assert (answer.tool_call_id, answer.status) == ("same-id", "error")
    assert repr(written.replace("\x00", ""))[:50].rstrip("'") in answer.content
    assert second["messages"][-1].text == "Still here."
    [asked] = [message for message in second["messages"] if getattr(message, "tool_calls", None)]
    assert is_legal_name(asked.tool_calls[0]["name"])
    assert asked.tool_calls[0]["name"].startswith("invalid__")
    assert answer.name == asked.tool_calls[0]["name"]
    assert world.runs == []


async def test_nam_3_illegal_call_beside_a_good_one(driver, make_registry, world):
    """NAM-3: the good call runs, and the near name is suggested, not guessed into a run."""
    toolset = world.toolset()
    model = ScriptedModel(
        script=[asks(call("functions.refund_policy", "a"), call("refund_policy", "b")), says("ok")]
    )
    agent = create_tool_rag_agent(model, registry=make_registry(toolset), toolset=toolset)

    bad, good = (await driver.ask(agent, "refund policy")).steps[0].tool_calls

    assert "Did you mean: refund_policy?" in bad.observation
    assert good.status == "success"
    assert world.runs == ["refund_policy"]


async def test_nam_3_missing_and_repeated_ids_are_made_unique(driver, make_registry, world):
    """NAM-3: ids the same way, so that each call gets its own answer."""
    toolset = world.toolset()
    model = ScriptedModel(
        script=[
            asks(
                call("refund_policy", "x"),
                call("refund_policy", "x"),
                call("refund_policy", ""),
            ),
            says("ok"),
        ]
    )
    agent = create_tool_rag_agent(model, registry=make_registry(toolset), toolset=toolset)

    [step] = (await driver.ask(agent, "refund policy")).steps

    ids = [result.call_id for result in step.tool_calls]
    assert ids[0] == "x"
    assert len(set(ids)) == 3
    assert all(ids)
    assert [result.status for result in step.tool_calls] == ["success"] * 3
    assert world.runs == ["refund_policy"] * 3


async def test_nam_3_unreadable_calls_with_illegal_names_are_mended_too(
    driver, make_registry, world
):
    """NAM-3, LOOP-5: a reply whose only call is unreadable and unnamed is answered under an id."""
    toolset = world.toolset()
    broken = AIMessage(
        content="",
        invalid_tool_calls=[
            {"name": "bad name", "args": "{", "id": None, "error": "x", "type": "invalid_tool_call"}
        ],
    )
    model = ScriptedModel(script=[broken, says("Hello again."), says("And again.")])
    agent = create_tool_rag_agent(
        model, registry=make_registry(toolset), toolset=toolset, checkpointer=InMemorySaver()
    )
    result = await driver.ask(agent, "refund policy", thread_id="t")
    assert result.answer == "Hello again."
    [kept] = result.messages[1].tool_calls
    assert result.messages[1].invalid_tool_calls == []
    assert is_legal_name(kept["name"])
    assert kept["id"]
    assert result.steps[0].tool_calls[0].status == "error"
    assert (await driver.ask(agent, "Still there?", thread_id="t")).answer == "And again."


def test_nam_3_all_places_of_a_message_agree():
    """NAM-3: content blocks and raw provider fields carry the same names and ids."""
    message = AIMessage(
        content=[
            {"type": "text", "text": "hm"},
            {"type": "tool_use", "id": "a", "name": "look up", "input": {}},
            {
                "type": "function_call",
                "call_id": "a",
                "id": "fc_1",
                "name": "fine",
                "arguments": "{}",
            },
        ],
        additional_kwargs={
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "look up", "arguments": "{}"}},
                {"id": "a", "type": "function", "function": {"name": "fine", "arguments": "{}"}},
            ],
            "function_call": {"name": "look up", "arguments": "{}"},
            "other": 1,
        },
        tool_calls=[call("look up", "a"), call("fine", "a")],
        response_metadata={"model_name": "m"},
    )
    original = message.model_copy(deep=True)

    legal = legal_message(message, taken=set())

    first, second = legal.tool_calls
    assert (first["id"], second["name"]) == ("a", "fine")
    assert second["id"] != "a"
    _, block, response_block = legal.content
    assert (block["name"], block["id"]) == (first["name"], "a")
    assert (response_block["call_id"], response_block["id"]) == (second["id"], "fc_1")
    raw = legal.additional_kwargs["tool_calls"]
    assert [(r["id"], r["function"]["name"]) for r in raw] == [
        ("a", first["name"]),
        (second["id"], "fine"),
    ]
    assert legal.additional_kwargs["function_call"] == {"name": first["name"], "arguments": "{}"}
    assert legal.additional_kwargs["other"] == 1
    assert legal.response_metadata["model_name"] == "m"
    assert legal.response_metadata["toolrag"]["original_names"] == {"a": "look up"}
    assert message == original


def test_nam_3_a_replacement_is_never_a_real_tool():
    """NAM-3: even when a tool has the very name the replacement would get."""
    message = asks(call("look up", "a"))
    taken = {legal_message(message, taken=set()).tool_calls[0]["name"]}
    assert legal_message(message, taken=taken).tool_calls[0]["name"] not in taken


def test_nam_3_a_streamed_message_becomes_a_whole_one():
    chunk = AIMessageChunk(
        content="",
        tool_call_chunks=[
            {"name": "look up", "args": "{}", "id": "a", "index": 0, "type": "tool_call_chunk"}
        ],
    )
    legal = legal_message(chunk, taken=set())
    assert type(legal) is AIMessage
    assert is_legal_name(legal.tool_calls[0]["name"])


def test_nam_3_a_legal_message_is_left_alone():
    message = asks(call("fine", "a"), call("fine", "b"))
    assert legal_message(message, taken={"fine"}) is message


async def test_nam_3_only_legal_names_are_streamed_into_the_state(driver, make_registry, world):
    toolset = world.toolset()
    model = ScriptedModel(script=[asks(call("look up", "a")), says("ok")])
    agent = create_tool_rag_agent(model, registry=make_registry(toolset), toolset=toolset)

    states = await driver.stream(agent, "refund policy", "values")

    called = {
        tool_call["name"]
        for state in states
        for message in state["messages"]
        for tool_call in getattr(message, "tool_calls", [])
    }
    assert called
    assert all(is_legal_name(name) for name in called)
