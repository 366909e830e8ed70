"""What the model is shown of results: never empty, never too long (HIS-4 and the result cap)."""

from __future__ import annotations

import re
from typing import Annotated, Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from agent import ToolPolicy
from tests.support.scripted_model import ScriptedModel, asks, call, says


def returning(value: Any, name: str = "act") -> StructuredTool:
    return StructuredTool.from_function(
        lambda: value, name=name, description="Act on a thing.", metadata={"read_only": True}
    )


async def result_of(agent_of, driver, value: Any, **policy: Any) -> ToolMessage:
    model = ScriptedModel(script=[asks(call("act", "c")), says("ok")])
    agent = agent_of(model, [returning(value)], default_policy=ToolPolicy(**policy))
    output = await driver.run(agent, "Act on a thing")
    [answer] = [m for m in output["messages"] if isinstance(m, ToolMessage)]
    assert (answer.status, answer.tool_call_id) == ("success", "c")
    return answer


@pytest.mark.parametrize(
    "value", ["", "   \n", None, [], "\x00", [{"type": "text", "text": " "}]], ids=repr
)
async def test_his_4_nothing_is_said_in_words(value, agent_of, driver):
    """HIS-4: an empty text, None, an empty list, spaces, blank blocks."""
    answer = await result_of(agent_of, driver, value)
    assert answer.content == "Tool 'act' finished without output."


@pytest.mark.parametrize("value", [0, False, {}, "[]", 0.0], ids=repr)
async def test_his_4_a_small_result_is_no_empty_one(value, agent_of, driver):
    """HIS-4: zero, false and an empty object are results."""
    answer = await result_of(agent_of, driver, value)
    assert "without output" not in answer.content
    assert answer.content.strip()


async def test_nuls_and_half_surrogates_do_not_stay(agent_of, driver):
    answer = await result_of(agent_of, driver, "a\x00b\ud800c")
    assert answer.content == "ab?c"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"\x89PNG\r\n\x1a\n\xff\xfe" * 50, "(binary data, 500 bytes, not shown)"),
        (bytearray(b"\xff\xfe\xfd" * 4), "(binary data, 12 bytes, not shown)"),
        ("text of bytes: Ä".encode(), "text of bytes: Ä"),
        ("\x01\x02\x03\x04" * 100, "(binary data, 400 characters, not shown)"),
    ],
    ids=["png", "bytearray", "utf-8", "control characters"],
)
async def test_binary_is_described(value, expected, agent_of, driver):
    assert (await result_of(agent_of, driver, value)).content == expected


IMAGE = {"type": "image", "base64": "A" * 4_000, "mime_type": "image/png"}
IMAGE_URL = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4_000}}


@pytest.mark.parametrize("image", [IMAGE, IMAGE_URL], ids=["image", "image_url"])
async def test_images_are_described_as_every_provider_takes_it(image, agent_of, driver):
    """The scripted model refuses what the OpenAI API refuses: images in tool messages."""
    value = [{"type": "text", "text": "the chart"}, image]
    answer = await result_of(agent_of, driver, value)
    assert answer.content[0] == {"type": "text", "text": "the chart"}
    assert re.match(
        r"\[image: image/png, [\d,]+ characters of data; not shown\]", answer.content[1]["text"]
    )
    assert "AAAA" not in str(answer.content)


LONG = "".join(f"line {number}\n" for number in range(10_000))


async def test_a_long_result_is_cut_and_read_on(agent_of, driver):
    """The note says what was cut; `read_more` is bound from then on, and brings all the rest."""
    seen: list[str] = []

    def script(messages):
        answers = [m for m in messages if isinstance(m, ToolMessage)]
        if not answers:
            return asks(call("act", "c0"))
        seen.append(answers[-1].content)
        found = re.search(r'handle "(r-\w+)" and offset (\d+)', answers[-1].content)
        if found is None:
            return says("all read")
        handle, offset = found.groups()
        return asks(call("read_more", f"c{len(answers)}", handle=handle, offset=int(offset)))

    model = ScriptedModel(script=script, require_definitions=True)
    agent = agent_of(model, [returning(LONG)], default_policy=ToolPolicy(max_result_chars=20_000))
    output = await driver.run(agent, "Act on a thing")
    assert output["messages"][-1].text == "all read"
    assert all(len(text) <= 20_000 for text in seen)
    assert f"of {len(LONG):,} characters" in seen[0]
    assert "".join(text.partition("\n[… ")[0] for text in seen) == LONG
    assert model.requests[0].tool_names == ["act"]
    assert model.requests[1].tool_names == ["act", "read_more"]
    assert "cut_results" not in output


async def test_read_more_says_what_it_cannot_read(agent_of, driver):
    """A wrong offset and a wrong handle are told; what was kept serves later questions too."""
    model = ScriptedModel(
        script=[
            asks(call("act", "a")),
            says("cut"),
            asks(call("read_more", "b", handle="r-nonsense", offset=0)),
            says("ok"),
        ]
    )
    agent = agent_of(model, [returning(LONG)], checkpointer=InMemorySaver())
    first = await driver.run(agent, "Act on a thing", thread_id="t")
    [cut] = [m for m in first["messages"] if isinstance(m, ToolMessage)]
    handle = re.search(r"r-\w+", cut.content).group()
    output = await driver.run(agent, "Read on", thread_id="t")
    answer = output["messages"][-2]
    assert "No result is kept under the handle 'r-nonsense'" in answer.content

    model.script = [
        *[None] * 4,
        asks(call("read_more", "d", handle=handle, offset=10**9)),
        says("ok"),
    ]
    output = await driver.run(agent, "And further", thread_id="t")
    assert f"has {len(LONG)} characters" in output["messages"][-2].content
    assert model.requests[-1].tool_names[-1] == "read_more"


async def test_two_results_of_one_step_are_both_kept(agent_of, driver):
    """Parallel calls write their cut texts side by side."""
    tools = [returning("x" * 30_000, "act"), returning("y" * 30_000, "other")]
    model = ScriptedModel(script=[asks(call("act", "a"), call("other", "b")), says("ok")])
    agent = agent_of(model, tools, checkpointer=InMemorySaver())
    await driver.run(agent, "Act on a thing", thread_id="t")
    config = {"configurable": {"thread_id": "t"}}
    state = await agent.aget_state(config) if driver.is_async else agent.get_state(config)
    assert sorted(text[0] for text in state.values["cut_results"].values()) == ["x", "y"]


async def test_a_command_of_a_tool_is_bounded_too(agent_of, driver):
    """A tool that returns a command keeps its other updates."""

    @tool
    def act(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Act on a thing."""
        return Command(update={"messages": [ToolMessage("z" * 30_000, tool_call_id=call_id)]})

    model = ScriptedModel(script=[asks(call("act", "c")), says("ok")])
    output = await driver.run(agent_of(model, [act]), "Act on a thing")
    [answer] = [m for m in output["messages"] if isinstance(m, ToolMessage)]
    assert len(answer.content) <= 20_000
    assert "read_more" in answer.content
    assert model.requests[1].tool_names == ["act", "read_more"]
