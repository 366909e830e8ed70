"""Tool calls whose arguments cannot be read (ARG-7, LOOP-5, HIS-5)."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import generate_from_stream
from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from tests.support.scripted_model import ScriptedModel, asks, call, says


def unreadable(text: str, call_id: str | None = "u1", name: str = "act") -> dict[str, Any]:
    return {"name": name, "args": text, "id": call_id, "error": "no", "type": "invalid_tool_call"}


@pytest.fixture
def runs() -> list[Any]:
    return []


@pytest.fixture
def tools(runs):
    @tool
    def act(city: str = "Paris") -> str:
        """Act on a thing."""
        runs.append(city)
        return f"acted in {city}"

    @tool
    def ping() -> str:
        """Ping the thing."""
        runs.append("ping")
        return "pong"

    return [act, ping]


def answers_of(output: dict[str, Any]) -> dict[str, ToolMessage]:
    return {m.tool_call_id: m for m in output["messages"] if isinstance(m, ToolMessage)}


BROKEN = ['{"city": "Par', "[]", "null", '"x"', "{city = Paris}", "5", "[" * 100_000]


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: text[:16])
async def test_arg_7_nothing_runs_for_what_cannot_be_read(
    text, agent_of, driver, tools, runs, caplog
):
    """ARG-7, LOOP-5: no empty call in its place; the model sees why, with a bounded excerpt."""
    broken = AIMessage("", invalid_tool_calls=[unreadable(text)])
    model = ScriptedModel(script=[broken, asks(call("act", "r1", city="Oslo")), says("Done.")])
    with caplog.at_level(logging.DEBUG, logger="agent"):
        output = await driver.run(agent_of(model, tools), "Act on a thing")
    answer = answers_of(output)["u1"]
    assert answer.status == "error"
    assert "cannot be read" in answer.content
    assert text[:16] in answer.content
    assert len(answer.content) < 700
    assert runs == ["Oslo"]
    assert output["messages"][-1].text == "Done."
    [record] = [record for record in caplog.records if record.msg == "unreadable_tool_call"]
    assert record.argument_chars == len(text)
    if len(text) > 4:
        assert text not in str(record.__dict__)


async def test_arg_7_no_text_at_all_is_no_arguments(agent_of, driver, tools, runs):
    """ARG-7: an empty string for a tool without arguments is {}."""
    empty = AIMessage("", invalid_tool_calls=[{**unreadable("", name="ping"), "error": None}])
    model = ScriptedModel(script=[empty, says("Done.")])
    output = await driver.run(agent_of(model, tools), "Act on a thing")
    assert answers_of(output)["u1"].content == "pong"
    assert runs == ["ping"]


@pytest.mark.parametrize("text", ['{"city": "Par', "[]", "null"])
async def test_arg_7_what_a_parser_let_pass_is_found_in_the_raw_text(
    text, agent_of, driver, tools, runs
):
    """ARG-7: a lenient parser made a call of it; the provider's own field tells the truth."""
    lenient = AIMessage(
        "",
        tool_calls=[call("act", "u1", city="Par")],
        additional_kwargs={
            "tool_calls": [
                {"id": "u1", "type": "function", "function": {"name": "act", "arguments": text}}
            ]
        },
    )
    model = ScriptedModel(script=[lenient, says("Done.")])
    output = await driver.run(agent_of(model, tools), "Act on a thing")
    assert answers_of(output)["u1"].status == "error"
    assert runs == []
    [kept] = [m for m in output["messages"] if isinstance(m, AIMessage) and m.tool_calls]
    [raw] = kept.additional_kwargs["tool_calls"]
    assert json.loads(raw["function"]["arguments"]) == kept.tool_calls[0]["args"] == {}


@pytest.mark.parametrize(
    "metadata",
    [
        {"finish_reason": "length"},
        {"stop_reason": "max_tokens"},
        {"finish_reason": "MAX_TOKENS"},
        {"incomplete_details": {"reason": "max_output_tokens"}},
    ],
)
async def test_arg_7_the_last_call_of_a_reply_that_was_cut_off(
    metadata, agent_of, driver, tools, runs
):
    """ARG-7: half of its arguments may be missing though they parse; those before it are whole."""
    cut = AIMessage(
        "",
        tool_calls=[call("ping", "a"), call("act", "b", city="Par")],
        response_metadata=metadata,
    )
    model = ScriptedModel(script=[cut, says("Done.")])
    output = await driver.run(agent_of(model, tools), "Act on a thing")
    assert answers_of(output)["a"].content == "pong"
    assert "cut off" in answers_of(output)["b"].content
    assert runs == ["ping"]


class StreamingModel(BaseChatModel):
    """Streams its replies piece by piece, as providers do; then says that it is done."""

    texts: list[str]

    @property
    def _llm_type(self) -> str:
        return "streaming"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return generate_from_stream(self._stream(messages, run_manager=run_manager))

    def _stream(self, messages: Any, *args: Any, run_manager: Any = None, **kwargs: Any) -> Any:
        answered = any(isinstance(message, ToolMessage) for message in messages)
        pieces = [AIMessageChunk("Done.")] if answered else list(self._pieces())
        for piece in pieces:
            chunk = ChatGenerationChunk(message=piece)
            if run_manager:
                run_manager.on_llm_new_token(str(piece.content), chunk=chunk)
            yield chunk

    def _pieces(self) -> Any:
        for index, text in enumerate(self.texts):
            yield piece(index, name="act", id=f"u{index}", args="")
            for start in range(0, len(text), 3):
                yield piece(index, name=None, id=None, args=text[start : start + 3])


def piece(index: int, **fields: Any) -> AIMessageChunk:
    chunk = {"index": index, "type": "tool_call_chunk", **fields}
    return AIMessageChunk("", tool_call_chunks=[chunk])


@pytest.mark.parametrize("modes", [["values"], ["messages", "values"]], ids=str)
async def test_arg_7_half_arguments_of_a_stream_are_not_whole_ones(
    modes, agent_of, driver, tools, runs
):
    """ARG-7: LangChain completes a stream's `{"city": "Par`; nothing runs all the same."""
    model = StreamingModel(texts=['{"city": "Par', '{"city": "Oslo"}'])
    parts = await driver.stream(agent_of(model, tools), "Act on a thing", modes)
    parts = [part for mode, part in parts if mode == "values"]
    answers = answers_of(parts[-1])
    assert answers["u0"].status == "error"
    assert '{"city": "Par' in answers["u0"].content
    assert answers["u1"].content == "acted in Oslo"
    assert runs == ["Oslo"]


async def test_loop_5_a_broken_call_beside_a_good_one(agent_of, driver, tools, runs):
    """LOOP-5: the good one runs once, the broken one is told, both are answered."""
    mixed = AIMessage(
        "Let me see.",
        tool_calls=[call("ping", "g1")],
        invalid_tool_calls=[unreadable("{", "u1"), unreadable("{", "u2")],
    )
    model = ScriptedModel(script=[mixed, says("Done.")], require_definitions=True)
    output = await driver.run(agent_of(model, tools), "Act on a thing")
    answers = answers_of(output)
    assert (answers["g1"].content, runs) == ("pong", ["ping"])
    assert answers["u1"].status == answers["u2"].status == "error"
    assert output["messages"][1].text == "Let me see."
    assert output["messages"][-1].text == "Done."


async def test_loop_5_with_text_beside_it(agent_of, driver, tools, runs):
    """LOOP-5: text beside the broken call is not taken for the answer."""
    broken = AIMessage("I will look that up.", invalid_tool_calls=[unreadable("{")])
    model = ScriptedModel(script=[broken, says("Done.")])
    output = await driver.run(agent_of(model, tools), "Act on a thing")
    assert len(model.requests) == 2
    assert output["messages"][-1].text == "Done."


async def test_loop_5_within_the_limit(driver, make_registry, tools):
    """LOOP-5: a model that only ever sends broken calls stops at the limit of steps."""
    from agent import RunLimits, StopReason, create_tool_rag_agent
    from registry.toolset import Toolset

    toolset = Toolset(tools)
    numbers = iter(range(100))
    agent = create_tool_rag_agent(
        ScriptedModel(
            script=lambda _: AIMessage(
                "", invalid_tool_calls=[unreadable("{", f"u{next(numbers)}")]
            )
        ),
        registry=make_registry(toolset),
        toolset=toolset,
        threshold=0,
        limits=RunLimits(max_steps=3, on_limit="stop"),
    )
    result = await driver.ask(agent, "Act on a thing")
    assert result.stop_reason is StopReason.STEP_LIMIT
    assert [step.tool_calls[0].status for step in result.steps] == ["error"] * 3


async def test_his_5_the_history_holds_no_broken_arguments(agent_of, driver, tools):
    """HIS-5: the model is as strict as a server that parses every earlier call."""
    broken = AIMessage(
        [
            {"type": "text", "text": "hm"},
            {"type": "tool_use", "id": "u1", "name": "act", "input": '{"city": "Par'},
        ],
        invalid_tool_calls=[unreadable('{"city": "Par'), unreadable("{", "u2")],
        additional_kwargs={
            "tool_calls": [
                {"id": "u1", "type": "function", "function": {"name": "act", "arguments": "{"}}
            ],
            "function_call": {"name": "act", "arguments": "{"},
        },
    )
    model = ScriptedModel(script=[broken, says("One."), says("Two.")], require_definitions=True)
    agent = agent_of(model, tools, checkpointer=InMemorySaver())
    await driver.run(agent, "Act on a thing", thread_id="t")
    output = await driver.run(agent, "And now?", thread_id="t")
    assert output["messages"][-1].text == "Two."
    kept = output["messages"][1]
    assert kept.invalid_tool_calls == []
    assert [made["args"] for made in kept.tool_calls] == [{}, {}]
    assert kept.content[1]["input"] == {}
    assert kept.additional_kwargs["tool_calls"][0]["function"]["arguments"] == "{}"
    assert kept.additional_kwargs["function_call"]["arguments"] == "{}"
    assert answers_of(output)["u1"].content.count('{"city": "Par') == 1


async def test_loop_5_missing_and_repeated_ids(agent_of, driver, tools):
    """LOOP-5, NAM-3: each broken call gets an id and an answer of its own."""
    broken = AIMessage(
        "", invalid_tool_calls=[unreadable("{", None), unreadable("[", "x"), unreadable("5", "x")]
    )
    model = ScriptedModel(script=[broken, says("Done.")])
    output = await driver.run(agent_of(model, tools), "Act on a thing")
    ids = [made["id"] for made in output["messages"][1].tool_calls]
    assert len(set(ids)) == 3
    assert all(ids)
    assert list(answers_of(output)) == ids
