"""`toolrag enrich` over HTTP: the estimate, consent, what is printed, how it ends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.integration.test_cli import command, environment
from tests.integration.test_store import rows
from tests.support.command_line import Run, started
from tests.support.openai_client import see_only_localhost
from tests.support.openai_server import ChatReply, OpenAIServer, ServerFault

ANSWERS = {  # in the order in which the tools are asked about
    "add_numbers": ["what is 7 plus 12?", "sum up 3 and 4.5"],
    "get_stock_price": ["what does one Apple share cost?", "price of Siemens shares"],
    "get_weather": ["do I need an umbrella in Rome?", "how warm is it in Oslo?"],
}


def answer(questions: list[Any]) -> str:
    return json.dumps({"questions": questions})


REPLIES = [answer(questions) for questions in ANSWERS.values()]


@pytest.fixture(autouse=True)
def only_localhost(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    asked = see_only_localhost(monkeypatch)
    yield
    assert asked == []


@pytest.fixture
def synced(toolrag: Run) -> Run:
    assert toolrag("sync", "shop_tools:TOOLS").code == 0
    return toolrag


@contextmanager
def served(monkeypatch: pytest.MonkeyPatch, replies: list[Any]) -> Generator[OpenAIServer]:
    with OpenAIServer(chat=replies) as server:
        monkeypatch.setenv("OPENAI_API_KEY", server.api_key)
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        yield server


def authors(url: str) -> dict[str, str]:
    """Tool to who made its newest version."""
    found = rows(
        url,
        "SELECT DISTINCT ON (tool_name) tool_name, changed_by FROM tool_history "
        "ORDER BY tool_name, version DESC",
    )
    return {name: who for name, who in found}


def test_it_estimates_asks_stores_and_is_done(
    synced: Run, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    with served(monkeypatch, REPLIES) as server:
        done = synced("enrich", "--yes", "--concurrency", "1", "--questions", "2")
        requests = list(server.requests)
        again = synced("enrich", "--yes")
        assert len(server.requests) == len(requests) == 3
    assert done.code == 0, done.err
    assert "3 tools, 2 questions each: 3 calls of openai:gpt-4o-mini, about" in done.err
    lines = done.out.splitlines()
    assert lines[0] == "[1/3] add_numbers: 2 questions added"
    assert lines[1] == "  + what is 7 plus 12?"
    assert lines[-1] == "6 questions added to 3 tools, 0 dropped."
    assert all(request.error is None for request in requests)
    assert "no instructions" in requests[0].messages[0]["content"]
    assert authors(database_url) == dict.fromkeys(ANSWERS, "enrich:openai:gpt-4o-mini")
    shown = synced("tools", "show", "get_weather")
    assert "do I need an umbrella in Rome?" in shown.out
    assert synced("search", "umbrella Rome", "--k", "1", "--json").out.count("get_weather") >= 1

    assert again.code == 0
    assert "3 tools skipped" in again.err
    assert again.out == ""
    assert synced("sync", "shop_tools:TOOLS").code == 0
    assert "do I need an umbrella in Rome?" in synced("tools", "show", "get_weather").out


def test_a_dry_run_asks_nobody_and_needs_neither_key_nor_consent(
    synced: Run, database_url: str
) -> None:
    unpriced = synced("enrich", "--dry-run")
    assert "at a price that is not known here" in unpriced.out
    priced = synced(
        *("enrich", "--dry-run", "--model", "openai:gpt-4o-mini"),
        *("--input-price", "0.15", "--output-price", "0.6"),
    )
    assert priced.code == 0, priced.err
    found = re.search(
        r"3 calls of openai:gpt-4o-mini, about ([\d,]+) input and ([\d,]+) output tokens, which "
        r"costs about ([\d.]+) ",
        priced.out,
    )
    assert found, priced.out
    given, taken = (int(found[place].replace(",", "")) for place in (1, 2))
    assert float(found[3]) == pytest.approx((0.15 * given + 0.6 * taken) / 1e6, abs=1e-4)
    document = json.loads(synced("enrich", "--dry-run", "--json", "get_weather").out)
    assert (document["calls"], document["tools_to_ask"]) == (1, 1)
    assert document["input_tokens"] < given
    assert "cost" not in document
    assert "enrich" not in "".join(authors(database_url).values())


def test_the_estimate_is_near_what_is_sent(synced: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = json.loads(synced("enrich", "--dry-run", "--json").out)
    with served(monkeypatch, REPLIES) as server:
        assert synced("enrich", "--yes", "--concurrency", "1").code == 0
        sent = [
            json.dumps({name: request.body.get(name) for name in ("messages", "response_format")})
            for request in server.requests
        ]
    assert estimate["input_tokens"] == pytest.approx(sum(map(len, sent)) / 4, rel=0.25)


def test_what_another_tool_fits_better_and_what_fails_is_told(
    synced: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    stray = "What is the weather in Tokyo: temperature and sky?"
    replies = [
        answer([stray, "what is 7 plus 12?", "What is 7 plus 12"]),
        "a poem",
        "another poem",
        answer(ANSWERS["get_weather"]),
    ]
    with served(monkeypatch, replies):
        done = synced("enrich", "--yes", "--concurrency", "1")
    assert done.code == 1
    assert f"  - {stray} (fits another tool better: get_weather)\n" in done.out
    assert "  - What is 7 plus 12 (a duplicate)\n" in done.out
    assert "[2/3] get_stock_price: FAILED, its answer was malformed twice" in done.out
    assert done.out.endswith("3 questions added to 2 tools, 2 dropped; 1 tool failed.\n")

    with served(monkeypatch, [answer(ANSWERS["get_stock_price"])]):
        mended = synced("enrich", "--yes", "--json")
    document = json.loads(mended.out)
    assert mended.code == 0
    assert document["skipped"] == ["add_numbers", "get_weather"]
    assert document["tools"][0]["added"] == ANSWERS["get_stock_price"]
    assert document["failed"] == {}


def test_a_wrong_key_ends_with_4_and_without_the_key(
    synced: Run, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    with served(monkeypatch, []):
        monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong-key-123456")
        ended = synced("enrich", "--yes", "--json")
    document = json.loads(ended.out)
    assert ended.code == 1, "three tools are too few to give the model up"
    assert all("AuthenticationError" in said for said in document["failed"].values())
    assert "sk-wrong-key-123456" not in ended.out + ended.err

    many = "\n".join(
        f'def tool_{n}(a: str) -> str:\n    """Handle case {n} of {n * n}."""\n    return a'
        for n in range(6)
    )
    with open("many_tools.py", "w", encoding="utf-8") as file:
        file.write(f"{many}\nTOOLS = [{', '.join(f'tool_{n}' for n in range(6))}]\n")
    assert synced("sync", "many_tools:TOOLS").code == 0
    with served(monkeypatch, []):
        monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong-key-123456")
        ended = synced("enrich", "--yes")
    assert ended.code == 4
    assert ended.error.startswith("Given up: the chat model failed (")
    assert "AuthenticationError): " in ended.error
    assert "not asked" in ended.out
    assert "sk-wrong-key-123456" not in ended.out + ended.err


def test_usage_is_checked_before_anything_is_asked(
    synced: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_model = synced("enrich", "--yes")
    assert no_model.code == 4
    assert "none is set up" in no_model.error
    with served(monkeypatch, []) as server:
        assert "no terminal" in synced("enrich").error
        assert synced("enrich", "--dry-run", "--input-price", "1").code == 2
        assert synced("enrich", "--yes", "--questions", "0").code == 2
        unknown = synced("enrich", "--yes", "get_wether")
        assert (unknown.code, "get_weather" in unknown.error) == (1, True)
        assert synced("tools", "deactivate", "get_weather").code == 0
        assert "switched off" in synced("enrich", "--yes", "get_weather").error
        monkeypatch.setattr("agent.cli.enrich.check_can_ask", lambda *_, **__: None)
        monkeypatch.setattr("agent.cli.enrich.agreed", lambda *_, **__: False)
        refused = synced("enrich")
        assert (refused.code, "Nothing was asked." in refused.err) == (1, True)
        assert not server.requests


def test_ctrl_c_keeps_what_is_done_and_the_next_run_goes_on(
    synced: Run, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    held = threading.Event()
    replies = [REPLIES[0], ChatReply(text=REPLIES[1], hold=held)]
    run = command("enrich", "--yes", "--concurrency", "1")
    with served(monkeypatch, replies) as server:
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with started(run, **streams, text=True, env=environment(database_url)) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "[1/3] add_numbers: 2 questions added\n"
            assert server.holding.acquire(timeout=30)
            process.send_signal(signal.SIGINT)
            held.set()  # a thread that waits for an answer cannot be broken off
            _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "1 of 3 tools done, and stored." in said
    assert "Traceback" not in said
    assert [name for name, who in authors(database_url).items() if "enrich" in who] == [
        "add_numbers"
    ]
    with served(monkeypatch, REPLIES[1:]) as server:
        done = synced("enrich", "--yes", "--concurrency", "1")
        asked = [json.loads(request.messages[-1]["content"])["name"] for request in server.requests]
    assert done.code == 0
    assert asked == ["get stock price", "get weather"]


def test_a_server_that_fails_once_is_tried_again_by_the_client(
    synced: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = [ServerFault(status=500), *REPLIES]
    with served(monkeypatch, replies):
        done = synced("enrich", "--yes", "--concurrency", "1")
    assert done.code == 0, done.out
