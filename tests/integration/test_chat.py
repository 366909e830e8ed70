"""`toolrag chat` at a real terminal and in a pipe: text, tools, approvals, Ctrl-C, errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.command_line import Run
from tests.support.databases import psycopg_url
from tests.support.openai_server import ChatReply, OpenAIServer, ServerFault
from tests.support.terminal import CTRL_C, CTRL_D, at_terminal

ROOT = Path(__file__).parents[2]
TOOLS = '''
import asyncio, sys, threading
from langchain_core.tools import tool

@tool
def get_weather(city: str) -> str:
    """Get the weather in a city: temperature and sky."""
    print("noise from a tool")
    return f"{city}: 18 degrees"

@tool
def wait_for_ever(what: str) -> str:
    """Wait for something that never comes."""
    print("the wait began")
    threading.Event().wait()
    return what

@tool
async def never_give_up(what: str) -> str:
    """Wait for something, whatever anybody says."""
    print("the stubborn wait began")
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

@tool
def refund(order_id: str, amount: int) -> str:
    """Refund an order: give the money back."""
    return f"refunded {amount} for {order_id}"

refund.metadata = {"requires_approval": True}
TOOLS = [get_weather, wait_for_ever, never_give_up, refund]
'''


def calls(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "args": arguments}]}


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
def env(toolrag: Run, database_url: str, server: OpenAIServer) -> dict[str, str]:
    """The tools are registered; the chat model is the test's server."""
    Path("chat_tools.py").write_text(TOOLS, encoding="utf-8")
    assert toolrag("sync", "chat_tools:TOOLS").code == 0
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TOOLRAG_DATABASE_URL": database_url,
        "TOOLRAG_MODEL": "openai:scripted",
        "OPENAI_BASE_URL": server.base_url,
        "OPENAI_API_KEY": server.api_key,
    }


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "agent.cli", "chat", "--toolset", "chat_tools:TOOLS", *options]


def tool_answers(server: OpenAIServer) -> list[str]:
    """Return what the newest request says that tools answered."""
    return [m["content"] for m in server.chat_requests[-1].messages if m["role"] == "tool"]


def test_a_conversation_at_a_terminal(
    env: dict[str, str], server: OpenAIServer, database_url: str
) -> None:
    with at_terminal(command(), env) as terminal:
        begin = terminal.until("> ")
        assert "`toolrag chat --thread " in begin

        server.script(calls("get_weather", city="Oslo"), "It is 18 degrees in Oslo.")
        terminal.type("How warm is it in Oslo?")
        told = terminal.until("\n> ")
        for line in (
            "\noffered 4 tools: ",
            '\n  call get_weather(city="Oslo")\n',
            "\nnoise from a tool\n",
            "\n  done get_weather: Oslo: 18 degrees\n",
            "\nIt is 18 degrees in Oslo.\n",
        ):
            assert line in told
        terminal.type("/tools")
        assert "  refund\n" in terminal.until("\n> ")
        terminal.type("/nope")
        assert "There is no command /nope; /help names those there are." in terminal.until("\n> ")

        # Edited, after a try that is no JSON and one that the tool's schema refuses.
        server.script(calls("refund", order_id="A\u202e1", amount=500), "Five it is.")
        terminal.type("Refund A1")
        asked = terminal.until("[a/e/r] ")
        assert "Approval needed: refund, because this tool is marked" in asked
        assert '"order_id": "A\\u{202e}1"' in asked
        for typed, problem in (
            ("{amount}", "This is not JSON"),
            ("[5]", "Arguments are a JSON object"),
            ('{"order_id": "A1"}', "amount"),
        ):
            terminal.type("e")
            terminal.until("no change after all): ")
            terminal.type(typed)
            assert problem in terminal.until("[a/e/r] ")
        terminal.type("yes")  # is none of the answers, so it decides nothing
        terminal.until("[a/e/r] ")
        terminal.type("edit")
        terminal.until("no change after all): ")
        terminal.type('{"order_id": "A1", "amount": 5}')
        assert "\nFive it is.\n" in terminal.until("\n> ")
        assert "refunded 5 for A1" in tool_answers(server)[-1]

        # Not decided, taken up again, rejected with a message.
        server.script(calls("refund", order_id="A2", amount=7), "As you wish.")
        terminal.type("Refund A2")
        terminal.until("[a/e/r] ")
        terminal.press(CTRL_C)
        assert "/decide asks again" in terminal.until("\n> ")
        terminal.type("/decide")
        terminal.until("[a/e/r] ")
        terminal.type("r")
        terminal.until("may be empty): ")
        terminal.type("Ask the customer first")
        assert "As you wish." in terminal.until("\n> ")
        assert "Ask the customer first" in tool_answers(server)[-1]
        assert "refunded 7" not in tool_answers(server)[-1]

        # Model away, database broken: one line, and the chat goes on.
        server.script(ServerFault(status=400, message="No such luck."), "Here again.")
        terminal.type("Hello?")
        assert "toolrag: The chat model openai:scripted failed" in terminal.until("\n> ")
        with psycopg.connect(psycopg_url(database_url), autocommit=True) as connection:
            connection.execute("ALTER TABLE tool_lease RENAME TO gone")
            terminal.type("Hello??")
            assert "\ntoolrag: " in terminal.until("\n> ")
            connection.execute("ALTER TABLE gone RENAME TO tool_lease")
        terminal.type("Hello???")
        assert "\nHere again.\n" in terminal.until("\n> ")
        terminal.press(CTRL_D)
        assert terminal.ended() == 0
    assert "Traceback" not in terminal.shown
    assert server.refusals == ["No such luck."]


def test_ctrl_c_cancels_what_hangs_and_keeps_the_thread(
    env: dict[str, str], server: OpenAIServer
) -> None:
    """ERR-4: a run that is broken off leaves a thread that can go on."""
    server.script(
        calls("wait_for_ever", what="rain"),
        "Still here.",
        ChatReply(text="Too late.", hold=threading.Event()),
        "Here too.",
        calls("never_give_up", what="snow"),
    )
    with at_terminal(command(), env) as terminal:
        terminal.until("> ")
        terminal.type("Wait for rain")
        terminal.until("the wait began\n")
        terminal.press(CTRL_C)
        told = terminal.until("\n> ")
        assert "Cancelled; the thread is kept. A tool does not stop" in told
        terminal.type("Are you there?")
        assert "\nStill here.\n" in terminal.until("\n> ")
        assert len(tool_answers(server)) == 1

        terminal.type("And now?")
        assert server.holding.acquire(timeout=30)
        terminal.press(CTRL_C)
        assert "Cancelled; the thread is kept." in terminal.until("\n> ")
        terminal.type("Now?")
        assert "\nHere too.\n" in terminal.until("\n> ")

        terminal.type("Wait for snow")
        terminal.until("the stubborn wait began\n")
        terminal.press(CTRL_C)
        assert "A tool does not stop" in terminal.until("\n> ")
        terminal.press(CTRL_C)
        assert terminal.ended() == 130
    assert terminal.shown.endswith("toolrag: interrupted\n")
    assert "Traceback" not in terminal.shown
    assert server.refusals == []


def test_a_pipe_is_answered_line_by_line_and_another_process_goes_on(
    env: dict[str, str], server: OpenAIServer
) -> None:
    server.script(
        calls("get_weather", city="Oslo"),
        "18 degrees.",
        calls("refund", order_id="A1", amount=5),
        "It was not allowed.",
    )
    piped = run(command(), env, "How warm is it in Oslo?\n\nRefund A1\n/quit\nnever asked\n")
    assert piped.stdout == "18 degrees.\nIt was not allowed.\n"
    assert "noise from a tool\n" in piped.stderr
    assert "rejected refund: nobody can be asked, the input is no terminal\n" in piped.stderr
    assert "the input is not a terminal" in tool_answers(server)[-1]
    assert "> " not in piped.stderr.replace("`toolrag chat --thread", "")
    assert piped.returncode == 0

    thread_id = piped.stderr.partition("Thread ")[2].partition(";")[0]
    before = len(server.chat_requests[-1].messages)
    server.script("As JSON.", ServerFault(status=400, message="No such luck."))
    again = run(command("--thread", thread_id, "--json"), env, "And now?\nAnd \ud800 then?\nWell?")
    events = [json.loads(line) for line in again.stdout.splitlines()]
    assert events[0] == {"type": "thread", "thread_id": thread_id}
    kinds = [event["type"] for event in events]
    assert [kind for kind in kinds if kind != "text"] == [
        "thread",
        "tools_offered",
        "ended",
        "error",
        "tools_offered",
        "error",
    ]
    assert "".join(event["text"] for event in events if event["type"] == "text") == "As JSON."
    [ended] = [event["result"] for event in events if event["type"] == "ended"]
    assert (ended["answer"], ended["stop_reason"]) == ("As JSON.", "answered")
    assert [e["error"] for e in events if e["type"] == "error"] == ["InvalidQueryError", "CliError"]
    assert len(server.chat_requests[-2].messages) == before + 2
    assert again.returncode == 1


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--thread", " "), 2, "thread_id ' ' is empty"),
        (("--max-steps", "0"), 2, "max_steps is 0"),
        (("--threshold", "2"), 2, "threshold is 2"),
        (("--toolset", "chat_tools:NOTHING"), 2, "NOTHING"),
    ],
)
def test_bad_options_are_one_line(
    toolrag: Run, options: tuple[str, ...], code: int, message: str
) -> None:
    Path("chat_tools.py").write_text(TOOLS, encoding="utf-8")
    ended = toolrag("chat", "--model", "offline", "--toolset", "chat_tools:TOOLS", *options)
    assert message in ended.error
    assert (ended.code, ended.out) == (code, "")


def run(command: list[str], env: dict[str, str], text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        input=text,
        capture_output=True,
        encoding="utf-8",
        errors="surrogatepass",
        env=env,
        timeout=60,
    )
