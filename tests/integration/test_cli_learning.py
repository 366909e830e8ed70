"""`toolrag learn`: learning, its refusal, undoing and explaining."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from registry import Embedder
from registry.embedding import LocalEmbeddings
from tests.integration.test_store import rows
from tests.support.command_line import TOOLS, Run
from tests.support.usage_records import Called, record

Record = Callable[[list[Called]], None]
QUESTIONS = ["umbrella in Rome tomorrow?", "shall I take a coat?", "is it warm outside?"]


@pytest.fixture
def used(toolrag: Run, database_url: str) -> Record:
    """Recorder of calls in a registry with three tools."""
    Path("learnt_tools.py").write_text(TOOLS, encoding="utf-8")
    assert toolrag("sync", "learnt_tools:TOOLS").code == 0
    model = Embedder.resolve("builtin").embeddings
    assert isinstance(model, LocalEmbeddings)

    def write(calls: list[Called]) -> None:
        record(database_url, calls, model)

    return write


def asked(count: int, tool: str = "get_weather") -> list[Called]:
    return [
        Called(question=QUESTIONS[n % 3], tool=tool, session=f"session {n}") for n in range(count)
    ]


def test_it_learns_explains_and_goes_back(used: Record, toolrag: Run) -> None:
    used(asked(10))
    tried = toolrag("learn", "--dry-run")
    assert tried.code == 0
    assert tried.out.startswith("Would move 1 tool; nothing was changed (--dry-run).\n")
    assert "From 10 calls of 10 sessions; 1 of 3 active tools were called." in tried.err

    done = toolrag("learn", "--json")
    report = json.loads(done.out)
    assert (done.code, report["promoted"], report["version"], report["calls"]) == (0, True, 1, 10)
    assert [move["tool_name"] for move in report["moves"]] == ["get_weather"]
    assert report["gate"][0]["against"] == "descriptions"

    again = toolrag("learn")
    assert again.code == 0
    assert again.out == (
        "Nothing was changed: no call was recorded since the registry last learnt.\n"
    )

    told = toolrag("learn", "explain", "get_weather")
    assert "get_weather was moved by 10 sessions" in told.out
    assert all(question in told.out for question in QUESTIONS)
    shown = json.loads(toolrag("learn", "explain", "get_weather", "--json", "--limit", "1").out)
    assert (shown["calls"], len(shown["questions"])) == (10, 1)
    nearer = shown["questions"][0]
    assert nearer["cosine_after"] > nearer["cosine_before"] + 0.2

    assert toolrag("learn", "undo").code == 2  # nobody to ask
    undone = toolrag("learn", "undo", "get_weather", "--yes")
    assert (undone.code, undone.out) == (0, "1 tool went back: get_weather.\n")
    assert (
        "get_weather is where its text puts it." in toolrag("learn", "explain", "get_weather").out
    )
    assert toolrag("learn", "undo", "--yes").out == (
        "Nothing was learnt of every tool of namespace default.\n"
    )


def test_what_the_replay_refuses_ends_with_1_and_says_why(
    used: Record, toolrag: Run, database_url: str
) -> None:
    held = [
        f"session {n}"
        for n in range(300)
        if rows(database_url, "SELECT hashtextextended(%s, 0) %% 5 = 0", f"session {n}")[0][0]
    ]
    rest = [each.session for each in asked(200) if each.session not in held]
    weather = "What is the weather, temperature and sky?"
    honest = [Called(question=weather, tool="get_weather", session=s) for s in held[:10]]
    wrong = [Called(question=weather, tool="get_stock_price", session=s) for s in rest[:60]]
    sums = [
        Called(question=f"Add {n} and 7.", tool="add_numbers", session=s)
        for n, s in enumerate(rest[60:])
    ]
    used([*honest, *wrong, *sums])
    refused = toolrag("learn")
    assert refused.code == 1
    assert refused.out.startswith("Nothing was changed: 10 held-back questions of 10 sessions")
    assert "Most lost: get_weather" in refused.out
    assert "REFUSED" in refused.out
    assert toolrag("learn", "--force").out.startswith("Learnt: ")


def test_without_records_it_says_what_is_missing(used: Record, toolrag: Run) -> None:
    used([Called(question="q", tool="get_weather", status="error")])
    ended = toolrag("learn")
    assert ended.code == 0
    assert "no call that ended with success was recorded" in ended.out
    assert "No call that ended with success" in toolrag("learn", "explain", "get_weather").err


def test_calls_of_too_few_sessions_teach_nothing_and_that_is_said(
    used: Record, toolrag: Run
) -> None:
    used(asked(1))
    for options in (["--dry-run"], []):
        ended = toolrag("learn", *options)
        assert ended.code == 0
        assert ended.out.startswith(
            "Nothing was changed: no tool was called with success in 2 sessions or more, so there "
            "is nothing to learn yet.\n"
        )


def test_wrong_usage_is_told(used: Record, toolrag: Run) -> None:
    assert toolrag("learn", "--neutral", "2").code == 2
    assert toolrag("learn", "--dry-run", "undo", "--yes").code == 2
    assert "Nearest: get_weather" in toolrag("learn", "explain", "get_wether").error
    assert toolrag("learn", "undo", "get_wether", "--yes").code == 1
