"""What a chat reads and prints, without a terminal and without an agent."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from agent.cli.chat_input import command_of, edited_arguments, visible
from agent.cli.chat_output import ChatOutput, ended_line, offered_line
from agent.events import (
    LimitReached,
    RunEnded,
    RunEvent,
    TextDelta,
    ToolEnded,
    ToolStarted,
)
from agent.limits import StopReason
from agent.result import OfferedTool, RunResult, TokenUsage, ToolCallResult
from agent.spending import LimitMet


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("/tools", "/tools"),
        ("/", "/"),
        ("/nope", "/nope"),
        ("/help me", None),
        ("/etc/hosts", None),
        ("/Tools", None),
        ("what is /tools", None),
        ("", None),
    ],
)
def test_a_command_is_one_word_behind_a_slash(line: str, command: str | None) -> None:
    assert command_of(line) == command


def test_nothing_hides_in_what_a_person_approves() -> None:
    assert visible("pay 1\u202e\u200b\x1b[2K\u2028 ü 口\n") == (
        "pay 1\\u{202e}\\u{200b}\\u{1b}[2K\\u{2028} ü 口\n"
    )


@pytest.mark.parametrize("text", ["", "{", "[1]", "5", "null", '"a"'])
def test_edited_arguments_are_an_object(text: str) -> None:
    with pytest.raises(ValueError, match="JSON"):
        edited_arguments(text)
    assert edited_arguments('{"a": 1}') == {"a": 1}


def result(answer: str, reason: StopReason = StopReason.ANSWERED) -> RunEnded:
    return RunEnded(
        result=RunResult(
            answer=answer,
            steps=(),
            offered_tools=(),
            stop_reason=reason,
            usage=TokenUsage(),
            messages=(),
        )
    )


def call(**fields: Any) -> ToolCallResult:
    return ToolCallResult(
        **{
            "tool": "t",
            "arguments": {},
            "observation": "",
            "status": "success",
            "call_id": "c",
            **fields,
        }
    )


def test_an_answer_is_printed_once_whether_it_was_streamed_or_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    limit = LimitMet(reason=StopReason.STEP_LIMIT, name="max_steps", allowed=2, scope="run")
    sentence = "Stopped at 2 steps."
    told: list[RunEvent] = [
        TextDelta(text="Let me ", message_id="a"),
        TextDelta(text="see.\x1b[31m", message_id="a"),
        ToolStarted(tool="t", arguments={"n": 1, "s": "x" * 300}, call_id="c"),
        ToolEnded(call=call(observation="two\nlines", status="error")),
        TextDelta(text="Done.", message_id="b"),
        result("Done."),
        LimitReached(limit=limit),
        result(sentence, StopReason.STEP_LIMIT),
        result(sentence, StopReason.STEP_LIMIT),
    ]
    output = ChatOutput()
    for event in told:
        output.show(event)
    out, err = capsys.readouterr()
    assert out == f"Let me see.\\x1b[31m\nDone.\n{sentence}\n{sentence}\n"
    started, ended, reached, *stopped = err.splitlines()
    assert started.startswith('  call t(n=1, s="xxx')
    assert len(started) < 220
    assert ended == "  failed t: two lines"
    assert reached == "limit reached: 2 steps a run"
    assert stopped == ["stopped: step limit"] * 2


def test_json_is_one_object_a_line_whatever_a_model_wrote(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = ChatOutput(as_json=True)
    output.show(ToolStarted(tool="t", arguments={"n": math.nan, "m": -math.inf}, call_id="c"))
    output.show(TextDelta(text="a\u2028b\ud800\n", message_id="m"))
    output.show(result("x"))

    def fail(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    lines = capsys.readouterr().out.splitlines()
    first, second, last = (json.loads(line, parse_constant=fail) for line in lines)
    assert first["arguments"] == {"n": "NaN", "m": "-Infinity"}
    assert second["text"] == "a\u2028b\ud800\n"
    assert "messages" not in last["result"]


def test_lines_about_tools_are_short() -> None:
    tools = [OfferedTool(name=f"t{n}", relevance=n / 10, pinned=False) for n in range(7)]
    pinned = OfferedTool(name="p", relevance=None, pinned=True)
    assert offered_line([*tools, pinned]) == (
        "offered 8 tools: t6 0.60, t5 0.50, t4 0.40, t3 0.30, t2 0.20, …"
    )
    assert offered_line([pinned]) == "offered 1 tool: p pinned"
    assert offered_line([]) == "offered 0 tools"
    assert len(ended_line(call(observation="word " * 100))) < 220
