"""`toolrag eval` on a real server: figures, floors, comparison, and nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from registry.embedding import Embedder
from tests.support.command_line import Run
from tests.support.databases import psycopg_url
from tests.support.embeddings import HashEmbeddings

TOOLS = [
    {"name": "get_weather", "description": "weather rain sun in a city"},
    {"name": "stock/price", "description": "current price of a share"},
    {"name": "add_numbers", "description": "sum of two numbers"},
    {"name": "send_mail", "description": "write a letter to someone"},
    {"name": "mail_send", "description": "post a letter to someone"},
    {"name": "play_music", "description": None},
]
QUESTIONS = [
    {"id": "w", "query": "rain in a city", "relevant": ["get_weather"], "lang": "en"},
    {"id": "p", "query": "price of a share", "relevant": ["stock/price"], "lang": "en"},
    {"id": "m", "query": "letter to someone", "groups": [["send_mail", "mail_send"]], "lang": "de"},
    {
        "id": "two",
        "query": "sum of numbers, play music",
        "relevant": ["add_numbers", "play_music"],
        "lang": "de",
    },
    {"id": "none", "query": "zebra", "relevant": []},
]


@pytest.fixture(autouse=True)
def fast_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    def hashed(*_: object, **__: object) -> Embedder:
        return Embedder(HashEmbeddings(1_024), name="hash", threshold=0.2)

    monkeypatch.setattr("agent.cli.context.embedder_of", hashed)


def lines(path: str, rows: list[dict[str, Any]]) -> str:
    Path(path).write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def files(clean_environment: None) -> list[str]:
    return ["--tools", lines("t.jsonl", TOOLS), "--queries", lines("q.jsonl", QUESTIONS)]


def databases(url: str) -> list[str]:
    with psycopg.connect(psycopg_url(url)) as connection:
        query = "SELECT datname FROM pg_database WHERE datname LIKE 'toolrag_eval_%'"
        return [name for (name,) in connection.execute(query)]


def tool_count(url: str) -> int:
    with psycopg.connect(psycopg_url(url)) as connection:
        row = connection.execute("SELECT count(*) FROM tool_registry").fetchone()
        assert row is not None
        return int(row[0])


def test_figures_in_a_scratch_database(toolrag: Run, files: list[str], database_url: str) -> None:
    before = databases(database_url)
    ended = toolrag("eval", *files, "--json")
    assert ended.code == 0, ended.err
    figures = json.loads(ended.out)
    assert figures["recall@5"] == 1
    assert figures["recall@1"] == (1 + 1 + 1 + 0.5) / 4
    assert figures["completeness@5"] == 1
    assert figures["mrr"] == 1
    assert figures["rejected_share"] == 1
    assert figures["threshold"] == 0.2
    assert figures["recall@1[lang=de]"] == 0.75
    assert (figures["questions"], figures["questions_no_tool"], figures["tools"]) == (5, 1, 6)
    assert 0 < figures["latency_ms_p50"] <= figures["latency_ms_p95"]
    assert 0 < figures["tokens_offered"] < figures["tokens_all"]
    assert 0 <= figures["recall@1_low"] <= figures["recall@1"] <= figures["recall@1_high"] <= 1
    assert all(not isinstance(value, dict) for value in figures.values())
    # Nothing of the evaluation is left on the user's server.
    assert databases(database_url) == before
    assert tool_count(database_url) == 0


def test_a_table_for_people(toolrag: Run, files: list[str]) -> None:
    ended = toolrag("eval", *files)
    assert ended.code == 0
    out = ended.out.splitlines()
    assert out[0] == "5 questions, of which no tool fits 1; 6 tools; top 5, threshold 0.20"
    assert any(line.split() == ["METRIC", "%", "95", "%", "INTERVAL"] for line in out)
    assert any(line.startswith("recall@5 ") and " 100.0 " in line for line in out)
    assert any(line.startswith("LANGUAGE") for line in out)
    assert not any(line.startswith("SPLIT") for line in out)
    assert "ms at the median" in ended.out
    assert "Asking 5 questions of 6 tools" in ended.err


def test_floors_decide_the_exit_code(toolrag: Run, files: list[str]) -> None:
    Path("floors.json").write_text('{"recall@5": 1, "latency_ms_p95": 60000}')
    kept = toolrag("eval", *files, "--floors", "floors.json")
    assert (kept.code, kept.out.splitlines()[-1]) == (0, "2 limits kept.")
    Path("floors.json").write_text(
        '{"recall@1": 0.9, "recall@5": 1, "tokens_offered": 1, "recall@1[lang=en]": 1}'
    )
    missed = toolrag("eval", *files, "--floors", "floors.json")
    assert missed.code == 1
    said = [line for line in missed.out.splitlines() if line.startswith("missed: ")]
    assert said[0] == "missed: recall@1 is 0.875, must be at least 0.9"
    assert said[1].startswith("missed: tokens_offered is ")
    assert said[1].endswith("must be at most 1")
    assert len(said) == 2
    document = toolrag("eval", *files, "--floors", "floors.json", "--json")
    assert document.code == 1
    assert json.loads(document.out)["floors_missed"] == ["recall@1", "tokens_offered"]


def test_an_unknown_floor_is_refused_before_anything_is_started(
    toolrag: Run, files: list[str]
) -> None:
    Path("floors.json").write_text('{"recal@5": 0.9}')
    ended = toolrag("eval", *files, "--floors", "floors.json")
    assert ended.code == 2
    assert "floors.json: these questions have no metric 'recal@5'. Nearest: recall@5" in ended.error
    assert "Asking" not in ended.err


def test_a_worse_catalogue_is_told_by_a_comparison(toolrag: Run, files: list[str]) -> None:
    assert toolrag("eval", *files, "--save", "before.jsonl.gz").code == 0
    worse = [{**TOOLS[0], "description": "zebra elephant giraffe"}, *TOOLS[1:]]
    lines("t.jsonl", worse)
    ended = toolrag("eval", *files, "--k", "1", "--compare", "before.jsonl.gz", "--json")
    assert ended.code == 0, ended.err
    figures = json.loads(ended.out)
    assert figures["compared_questions"] == 4
    assert figures["recall@1_before"] == 0.875
    assert figures["recall@1_after"] == figures["recall@1"] == 0.625
    assert figures["recall@1_difference"] == -0.25
    assert [change["id"] for change in figures["worse"]] == ["w"]
    assert figures["worse"][0]["names_before"] == ["get_weather"]
    assert figures["better"] == []
    shown = toolrag("eval", *files, "--k", "1", "--compare", "before.jsonl.gz").out
    assert "recall@1: 87.5 before, 62.5 now, difference -25.0 (95 % interval" in shown
    assert "1 question got worse:" in shown

    lines("q.jsonl", [{**question, "id": f"other {n}"} for n, question in enumerate(QUESTIONS)])
    refused = toolrag("eval", *files, "--compare", "before.jsonl.gz")
    assert refused.code == 2
    assert "cannot be compared with: the two runs share no question" in refused.error
    assert "Asking" not in refused.err


def test_the_registry_as_it_is(toolrag: Run, files: list[str], database_url: str) -> None:
    empty = toolrag("eval", "--registry", "--queries", "q.jsonl")
    assert empty.code == 1
    assert "No active tools in namespace 'default'" in empty.error
    assert toolrag("sync", "shop_tools:TOOLS").code == 0
    ended = toolrag("eval", "--registry", "--queries", "q.jsonl", "--json")
    figures = json.loads(ended.out)
    assert (figures["tools"], figures["labels_unknown"]) == (3, 3)
    assert "3 right answers can never be found" in ended.err
    assert figures["recall@5[lang=en]"] == 0.5
    assert tool_count(database_url) == 3


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "Name the questions with --queries FILE, or take --bfcl"),
        (["--queries", "q.jsonl"], "Give either --tools FILE or --registry"),
        (
            ["--queries", "q.jsonl", "--tools", "t.jsonl", "--registry"],
            "Give either --tools FILE or --registry",
        ),
        (["--bfcl", "--registry"], "--bfcl brings tools and questions"),
        (["--queries", "nowhere", "--registry"], "nowhere cannot be read: No such file"),
        (["--queries", "q.jsonl", "--tools", "t.jsonl", "--k", "0"], "--k"),
        (
            ["--queries", "q.jsonl", "--tools", "t.jsonl", "--save", "nowhere/run"],
            "nowhere/run cannot be written",
        ),
        (
            ["--queries", "t.jsonl", "--tools", "t.jsonl"],
            "Line 1 of t.jsonl is no question: it has no 'query'",
        ),
    ],
)
def test_usage_errors_start_nothing(
    toolrag: Run, files: list[str], arguments: list[str], reason: str
) -> None:
    ended = toolrag("eval", *arguments)
    assert ended.code == 2
    assert reason in ended.error
    assert not ended.out
    assert "scratch" not in ended.err


def test_a_failed_run_leaves_no_database_behind(
    toolrag: Run, files: list[str], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = databases(database_url)

    def broken(*_: object) -> list[float]:
        raise ConnectionError("the model is away")

    monkeypatch.setattr(HashEmbeddings, "embed_query", broken)
    ended = toolrag("eval", *files, "--save", "run.jsonl")
    assert ended.code == 4
    assert "the model is away" in ended.error
    assert databases(database_url) == before
    assert not Path("run.jsonl").exists()


def test_no_database_of_the_users_is_needed(cli: Run, files: list[str], tmp_path: Path) -> None:
    ended = cli("eval", *files, "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["recall@5"] == 1
    # The user's own embedded server was neither made nor started.
    assert not (tmp_path / "home").exists()
