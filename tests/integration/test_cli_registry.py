"""The command line over the life of a registry: edits, history, embedding models, validation."""

from __future__ import annotations

import importlib
import io
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from registry.tables import SCHEMA_REVISION
from tests.support.command_line import Run, started
from tests.support.databases import psycopg_url
from tests.support.openai_client import see_only_localhost
from tests.support.openai_server import EmbeddingFault, OpenAIServer

ROOT = Path(__file__).parents[2]
NEW_MODEL = "openai:text-embedding-3-small"
WEATHER = "Get the weather in a city: temperature and sky."
ALL = ["add_numbers", "get_stock_price", "get_weather"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    """A second embedding model, of 64 dimensions, at the address in the environment."""
    see_only_localhost(monkeypatch)
    with OpenAIServer(chat=[]) as server:
        monkeypatch.setenv("OPENAI_API_KEY", server.api_key)
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        yield server


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Sit at a terminal and answer the next question."""
    monkeypatch.setattr(sys, "stdin", Terminal(text))


def change_code(old: str, new: str) -> None:
    """Edit the module of tools; the next command reads it anew, as a new process would."""
    file = Path("shop_tools.py")
    source = file.read_text(encoding="utf-8")
    assert old in source
    file.write_text(source.replace(old, new), encoding="utf-8")
    sys.modules.pop("shop_tools", None)
    importlib.invalidate_caches()


def document(toolrag: Run, *arguments: str) -> Any:
    ended = toolrag(*arguments, "--json")
    assert ended.out, ended.err
    return json.loads(ended.out)


def advised(error: str) -> list[str]:
    """Return the arguments of the command that an error names."""
    (command,) = re.findall(r"`toolrag ([^`]*)`", error)
    return shlex.split(command)


def sets(toolrag: Run) -> list[tuple[int, str, int, int]]:
    """(id, state, dimensions, vectors) of every set, newest first."""
    return [
        (each["id"], each["state"], each["dimensions"], each["vectors"])
        for each in document(toolrag, "embeddings", "status")["sets"]
    ]


def stored(url: str) -> list[Any]:
    """Return everything a command could have changed."""
    queries = (
        "SELECT tool_name, version, description, is_active FROM tool_registry ORDER BY 1",
        "SELECT tool_name, version, change FROM tool_history ORDER BY 1, 2",
        "SELECT id, name, state FROM embedding_model ORDER BY 1",
        "SELECT embedding_model_id, source_hash FROM tool_embedding ORDER BY 1, 2",
        "SELECT embedding_model_id, source_hash FROM tool_vector_archive ORDER BY 1, 2",
    )
    with psycopg.connect(psycopg_url(url)) as connection:
        return [connection.execute(query).fetchall() for query in queries]


def test_the_life_of_a_registry(
    toolrag: Run, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert toolrag("sync", "shop_tools:TOOLS", "--changed-by", "release 1").code == 0
    change_code(WEATHER, "Tell whether it rains in a city. For today only.")
    changed = toolrag("sync", "shop_tools:TOOLS", "--changed-by", "release 2")
    assert changed.out == "0 added, 1 updated, 2 unchanged (1 embedded)\n"

    shown = toolrag("tools", "diff", "get_weather", "1")
    lines = shown.out.splitlines()
    assert lines[0].startswith("--- get_weather version 1 (added by release 1, 20")
    assert lines[1].startswith("+++ get_weather version 2 (synced by release 2, 20")
    assert lines[2:] == [
        "description",
        "@@ -1 +1,2 @@",
        f"-{WEATHER}",
        "+Tell whether it rains in a city.",
        "+For today only.",
    ]
    (change,) = document(toolrag, "tools", "diff", "get_weather", "1", "2")["changes"]
    assert (change["field"], change["before"]) == ("description", WEATHER)

    back = toolrag("tools", "rollback", "get_weather", "1", "--changed-by", "ann")
    assert back.out == "get_weather is at version 3 now, as it was at version 1.\n"
    assert toolrag("tools", "diff", "get_weather", "1", "3").out == (
        "Versions 1 and 3 of get_weather are the same.\n"
    )
    # Code did not change since, so the next sync leaves what was rolled back.
    again = toolrag("sync", "shop_tools:TOOLS")
    assert again.out.startswith("0 added, 0 updated, 2 unchanged, 1 edited (0 embedded)\n")
    assert "Edited in the registry, left so: get_weather" in again.out

    assert toolrag("tools", "deactivate", "get_stock_price", "--changed-by", "bob").code == 0
    (newest, _) = document(toolrag, "tools", "history", "get_stock_price")
    assert (newest["change"], newest["changed_by"]) == ("deactivated", "bob")
    assert (newest["is_active"], newest["description"][:15]) == (False, "Get the current")

    questions = tmp_path / "questions.jsonl"
    questions.write_text(
        '{"query": "weather in a city", "relevant": ["get_weather"]}\n'
        '{"query": "the sum of two numbers", "relevant": ["add_numbers"]}\n'
    )
    moved = toolrag(
        *("embeddings", "migrate", "--to", NEW_MODEL, "--yes"),
        *("--questions", str(questions), "--k", "2"),
    )
    assert moved.code == 0, moved.err
    assert moved.out == (
        f"3 texts embedded with {NEW_MODEL} (64 dimensions).\n"
        "Compared on 2 questions: of the first 2 tools, 100% are the same. "
        "Recall@2: 100.0% before, 100.0% after.\n"
    )
    assert f"Set TOOLRAG_EMBEDDING_MODEL={NEW_MODEL} for every process" in moved.err
    assert "Restart running processes" in moved.err
    assert sets(toolrag) == [(2, "active", 64, 3), (1, "retired", 512, 3)]

    monkeypatch.setenv("TOOLRAG_EMBEDDING_MODEL", NEW_MODEL)
    found = toolrag("search", "weather in a city", "--threshold", "0")
    assert found.out.splitlines()[1].split()[2] == "get_weather"
    assert "get_stock_price" not in found.out

    reverted = toolrag("embeddings", "revert", "--yes")
    assert reverted.out.endswith("(512 dimensions) serves searches again.\n")
    stored_name = "builtin:use-multilingual-v3"
    assert f"Set TOOLRAG_EMBEDDING_MODEL={stored_name} for every process" in reverted.err
    assert toolrag("search", "weather in a city").code == 4
    monkeypatch.setenv("TOOLRAG_EMBEDDING_MODEL", stored_name)
    assert "get_weather" in toolrag("search", "weather in a city").out

    pruned = toolrag("embeddings", "prune", "--yes")
    assert pruned.out.splitlines()[1].split()[:3] == ["2", "retired", "3"]
    assert pruned.out.endswith("Removed 1 set of vectors.\n")
    assert sets(toolrag) == [(1, "active", 512, 3)]
    assert toolrag("embeddings", "prune", "--yes").out.startswith("Nothing to remove")
    assert toolrag("embeddings", "revert", "--yes").code == 2

    history = toolrag("tools", "history", "get_weather").out.splitlines()
    assert [line.split()[0] for line in history] == ["VERSION", "3", "2", "1"]
    assert history[1].split()[2:] == ["ann", "rolled", "back", "to", "1", "active", "description"]


def test_update_and_validate(toolrag: Run, database_url: str) -> None:
    missing = toolrag("validate", "shop_tools:TOOLS")
    assert missing.code == 1
    assert missing.out.startswith("3 tools checked, 3 findings:\n\nFINDING")
    toolrag("sync", "shop_tools:TOOLS")
    valid = toolrag("validate", "shop_tools:TOOLS")
    assert (valid.code, valid.out) == (0, "3 tools checked: registry and code agree.\n")

    updated = toolrag(
        *("tools", "update", "get_weather", "--description", "Forecast for a city."),
        *("--display-name", "Weather", "--category", "weather", "--example", "Will it rain?"),
        *("--example", "Is it cold?", "--requires-approval", "--read-only", "--fallback"),
        *("--expect-version", "1", "--changed-by", "ann"),
    )
    assert (updated.code, updated.out) == (0, "get_weather is at version 2 now.\n"), updated.err
    shown = document(toolrag, "tools", "show", "get_weather")
    assert (shown["description"], shown["display_name"]) == ("Forecast for a city.", "Weather")
    assert (shown["category"], shown["examples"]) == ("weather", ["Will it rain?", "Is it cold?"])
    assert (shown["requires_approval"], shown["read_only"], shown["is_edited"]) == (True,) * 3
    assert shown["fallback"] is True
    for_people = toolrag("tools", "show", "get_weather").out
    assert "2 (edited in the registry)" in for_people
    assert "\nfallback        yes\n" in for_people
    assert "get_weather" in toolrag("search", "Is it cold?", "-k", "1").out
    same = toolrag("tools", "update", "get_weather", "--category", "weather")
    assert same.out == "get_weather is like that already (version 2).\n"
    # Short fields on one line, each in its own.
    diff = toolrag("tools", "diff", "get_weather", "1", "2").out
    assert '\ncategory: "general" -> "weather"\n' in diff
    assert "\nrequires_approval: no -> yes\n" in diff
    assert "\nfallback: no -> yes\n" in diff
    assert "\nexamples\n@@ -0,0 +1,2 @@\n+Will it rain?\n+Is it cold?\n" in diff
    flags = ("--no-examples", "--no-read-only", "--no-requires-approval", "--no-fallback")
    assert toolrag("tools", "update", "get_weather", *flags).code == 0
    shown = document(toolrag, "tools", "show", "get_weather")
    assert (shown["examples"], shown["read_only"], shown["version"]) == ([], False, 3)
    assert shown["fallback"] is False

    found = document(toolrag, "validate", "shop_tools:TOOLS")
    assert (found["is_valid"], found["checked"]) == (False, 3)
    assert [(f["kind"], f["tool_name"]) for f in found["findings"]] == [
        ("text_differs", "get_weather")
    ]
    brought = toolrag("sync", "shop_tools:TOOLS", "--overwrite-edits")
    assert brought.out == "0 added, 1 updated, 2 unchanged (0 embedded, 1 reused)\n"
    fewer = toolrag("sync", "shop_tools:get_weather", "--missing", "deactivate")
    assert "0 added, 0 updated, 1 unchanged, 2 deactivated (0 embedded)\n" in fewer.out
    assert "Switched off, since not in this sync: add_numbers, get_stock_price" in fewer.out
    assert [t["tool_name"] for t in document(toolrag, "tools", "list")] == ["get_weather"]


def test_validate_tells_what_is_grave_by_its_exit_code(
    toolrag: Run, empty_database_url: str, server: OpenAIServer
) -> None:
    toolrag("sync", "shop_tools:TOOLS")
    other = toolrag("--embedding-model", NEW_MODEL, "validate", "shop_tools:TOOLS")
    assert (other.code, "embedding model" in other.out) == (3, True)
    behind = toolrag("--database-url", empty_database_url, "validate", "shop_tools:TOOLS")
    assert behind.code == 3
    assert f"found none, expected {SCHEMA_REVISION}" in behind.out
    assert "toolrag db upgrade" in behind.out
    assert server.requests == []


def test_validate_knows_the_tools_of_the_demo_and_of_an_origin(toolrag: Run) -> None:
    demo = toolrag("--namespace", "demo", "validate", "--json")
    assert (demo.code, {f["kind"] for f in json.loads(demo.out)["findings"]}) == (
        1,
        {"not_registered"},
    )
    toolrag("--namespace", "demo", "sync", "agent.demo:demo_toolset")
    assert toolrag("--namespace", "demo", "validate").code == 0
    toolrag("sync", "shop_tools:TOOLS", "--origin", "mcp:shop")
    assert toolrag("validate", "shop_tools:TOOLS").code == 1
    assert toolrag("validate", "shop_tools:TOOLS", "--origin", "mcp:shop").code == 0


def test_purge_removes_every_text_and_says_so(
    toolrag: Run, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolrag("sync", "shop_tools:TOOLS")
    toolrag("tools", "update", "get_weather", "--description", "The secret forecast.")
    before = stored(database_url)
    refused = toolrag("tools", "purge", "get_weather")
    assert (refused.code, "Add --yes" in refused.error) == (2, True)
    answer(monkeypatch, "n\n")
    declined = toolrag("tools", "purge", "get_weather")
    assert (declined.code, declined.out) == (1, "")
    assert "texts of its 2 versions" in declined.err
    assert stored(database_url) == before

    answer(monkeypatch, "y\n")
    purged = toolrag("tools", "purge", "get_weather", "--changed-by", "privacy officer")
    assert purged.code == 0
    assert purged.out.startswith("Removed get_weather (namespace default), the texts of its 2 ver")
    assert "secret" not in repr(stored(database_url))
    for command in (["diff", "get_weather", "1"], ["history", "get_weather"]):
        told = toolrag("tools", *command)
        assert told.code == 1
        assert "It was purged on 20" in told.error
        assert "by privacy officer" in told.error
    assert toolrag("tools", "rollback", "get_weather", "1").code == 1


@pytest.mark.parametrize("count", [0, 1])
def test_bad_input_is_one_line_and_changes_nothing(
    toolrag: Run, database_url: str, count: int, tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_text("{}\n")
    if count:
        toolrag("sync", "shop_tools:TOOLS")
    before = stored(database_url)
    migrate = ("embeddings", "migrate", "--yes", "--to")
    always = [
        (["tools", "update", "get_weather"], 2, "Nothing to change. Give at least one of"),
        (["tools", "update", "x", "--example", "a", "--no-examples"], 2, "exclude each other"),
        (["tools", "purge", "nothing", "--yes"], 1, "No tool 'nothing'"),
        (["tools", "purge", "nothing"], 2, "no terminal to ask on. Add --yes."),
        (["tools", "history", "nothing"], 1, "No tool 'nothing' in namespace 'default'."),
        (["tools", "diff", "nothing", "1"], 1, "No tool 'nothing'"),
        (["tools", "diff", "nothing", "one"], 2, "Invalid value for 'A'"),
        (["tools", "rollback", "nothing", "1"], 1, "No tool 'nothing'"),
        (["tools", "update", "nothing", "--category", "x"], 1, "No tool 'nothing'"),
        (["sync", "shop_tools:TOOLS", "--missing", "delete"], 2, "Invalid value for '--missing'"),
        (["validate"], 2, "Name the tools to compare with"),
        (["validate", "agent.demo:demo_toolset", "--origin", "x"], 2, "Leave --origin out"),
        (["embeddings", "migrate"], 2, "Missing option '--to'"),
        (["embeddings", "migrate", "--to", "builtin"], 2, "Add --yes. Nothing was changed."),
        (["embeddings", "rebuild"], 2, "Add --yes. Nothing was changed."),
        (["embeddings", "revert"], 2, "Add --yes. Nothing was changed."),
        (["embeddings", "prune"], 2, "Add --yes. Nothing was changed."),
        ([*migrate, "nosuch"], 4, "Unknown embedding model 'nosuch'"),
        ([*migrate, "nosuch:m"], 4, "'nosuch:m' cannot be used"),
        ([*migrate, "builtin", "--k", "0"], 2, "Invalid value for '--k'"),
        ([*migrate, "builtin", "--questions", "nowhere"], 2, "nowhere cannot be read"),
        ([*migrate, "builtin", "--questions", str(tmp_path / "bad.jsonl")], 2, "Line 1 of"),
        (["embeddings", "revert", "--yes"], 2, "no earlier set of vectors to go back to"),
        (["embeddings", "prune", "9", "--yes"], 2, "There is no set of vectors 9"),
    ]
    registered = [
        (["tools", "rollback", "get_weather", "7"], 1, "has no version 7; it has 1."),
        (["tools", "rollback", "get_weather", "0"], 1, "has no version 0; it has 1."),
        (["tools", "diff", "get_weather", "1", "7"], 1, "has no version 7; it has 1."),
        (["tools", "history", "get_wether"], 1, "Nearest: get_weather"),
        (["tools", "update", "get_weather", "--description", " "], 2, "it has no description"),
        (["tools", "update", "get_weather", "--category", ""], 2, "its category is empty"),
        (
            ["tools", "update", "get_weather", "--category", "x", "--expect-version", "2"],
            1,
            "is at version 1, not at version 2: somebody else changed it",
        ),
        (
            ["tools", "rollback", "get_weather", "1", "--expect-version", "2"],
            1,
            "is at version 1, not at version 2: somebody else changed it",
        ),
        ([*migrate, "builtin"], 2, "is the embedding model in use; nothing to build"),
        ([*migrate, "builtin:use-multilingual-v3"], 2, "is the embedding model in use"),
        (["embeddings", "prune", "1", "--yes"], 2, "serves searches and cannot be removed"),
    ]
    for arguments, code, message in [*always, *(registered if count else ())]:
        ended = toolrag(*arguments)
        assert message in ended.error, arguments
        assert (ended.code, ended.out) == (code, ""), arguments
        assert stored(database_url) == before, arguments


def test_the_advice_of_a_mismatch_leads_out_of_it(
    toolrag: Run, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolrag("sync", "shop_tools:TOOLS")
    monkeypatch.setenv("TOOLRAG_EMBEDDING_MODEL", NEW_MODEL)
    stale = toolrag("search", "weather", "--threshold", "0")
    assert stale.code == 4
    assert server.requests == []
    advice = advised(stale.error)
    assert advice == ["embeddings", "migrate", "--to", "MODEL"]
    answer(monkeypatch, "y\n")
    followed = toolrag(*advice[:-1], NEW_MODEL)
    assert followed.code == 0, followed.err
    assert f"Let {NEW_MODEL} (64 dimensions) serve searches instead of set 1" in followed.err
    assert "get_weather" in toolrag("search", "weather", "--threshold", "0").out

    # A tool registered since has no vector of the old model: the way back names the way out.
    change_code(
        "def add_numbers",
        "def subtract(a: float, b: float) -> float:\n"
        '    """Subtract a number."""\n    return a - b\n\ndef add_numbers',
    )
    change_code("TOOLS = [", "TOOLS = [subtract, ")
    assert toolrag("sync", "shop_tools:TOOLS").code == 0
    assert toolrag("tools", "update", "get_weather", "--description", "Rain?").code == 0
    reverted = toolrag("embeddings", "revert", "--yes")
    assert reverted.code == 0
    assert reverted.out.splitlines()[1:] == [
        "Changed since, found by their earlier text: default/get_weather",
        "Added since, not found by vectors: default/subtract",
    ]
    assert sets(toolrag) == [(2, "retired", 64, 4), (1, "active", 512, 3)]
    (advice,) = re.findall(r"toolrag (embeddings migrate --to \S+)", reverted.err)
    back = toolrag(*advice.split(), "--yes")
    assert back.code == 0, back.err
    assert back.out.startswith("2 texts embedded with builtin:use-multilingual-v3")
    assert "In use as before: set 1" in back.err
    assert sets(toolrag) == [(2, "retired", 64, 4), (1, "active", 512, 4)]
    monkeypatch.setenv("TOOLRAG_EMBEDDING_MODEL", "builtin")
    assert toolrag("validate", "shop_tools:TOOLS").out.count("without vector") == 0


def test_status_tells_whether_the_configured_model_fits(
    toolrag: Run, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = toolrag("embeddings", "status")
    assert (empty.code, empty.out.startswith("No vectors yet.")) == (0, True)
    toolrag("sync", "shop_tools:TOOLS")
    fits = toolrag("embeddings", "status")
    assert fits.code == 0
    heading, line = fits.out.splitlines()
    assert heading.split()[:5] == ["ID", "STATE", "VECTORS", "DIMENSIONS", "GENERATION"]
    assert line.split()[:5] == ["1", "active", "3", "512", "1"]
    assert document(toolrag, "embeddings", "status")["fits"] is True
    for configured in (NEW_MODEL, "nosuch:model"):
        monkeypatch.setenv("TOOLRAG_EMBEDDING_MODEL", configured)
        other = toolrag("embeddings", "status")
        assert other.code == 4
        assert f"{configured} is configured, but builtin:use-multilingual-v3@" in other.err
        assert f"`toolrag embeddings migrate --to {configured}`" in other.err
        assert document(toolrag, "embeddings", "status")["fits"] is False


def test_going_back_needs_neither_the_new_model_nor_its_key(
    toolrag: Run, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolrag("sync", "shop_tools:TOOLS")
    assert toolrag("embeddings", "migrate", "--to", NEW_MODEL, "--yes").code == 0
    monkeypatch.setenv("TOOLRAG_EMBEDDING_MODEL", NEW_MODEL)
    monkeypatch.delenv("OPENAI_API_KEY")
    assert toolrag("search", "weather").code == 4
    declined_at = sets(toolrag)
    answer(monkeypatch, "\n")
    assert toolrag("embeddings", "revert").code == 1
    answer(monkeypatch, "")
    assert toolrag("embeddings", "prune").code == 1
    assert sets(toolrag) == declined_at
    answer(monkeypatch, "yes\n")
    assert toolrag("embeddings", "revert").code == 0
    pruned = document(toolrag, "embeddings", "prune", "--yes")
    assert [(s["id"], s["name"]) for s in pruned["removed"]] == [(2, NEW_MODEL)]
    monkeypatch.setenv("TOOLRAG_EMBEDDING_MODEL", "builtin")
    assert "get_weather" in toolrag("search", "weather in a city").out


def test_rebuild_makes_a_new_generation(toolrag: Run, server: OpenAIServer) -> None:
    toolrag("sync", "shop_tools:TOOLS")
    rebuilt = toolrag("embeddings", "rebuild", "--yes")
    assert rebuilt.code == 0, rebuilt.err
    assert rebuilt.out.startswith("3 texts embedded with builtin:use-multilingual-v3")
    assert "TOOLRAG_EMBEDDING_MODEL" not in rebuilt.err
    assert "Running processes follow by themselves." in rebuilt.err
    assert sets(toolrag) == [(2, "active", 512, 3), (1, "retired", 512, 3)]
    assert "get_weather" in toolrag("search", "weather in a city").out
    assert "TOOLRAG_EMBEDDING_MODEL" not in toolrag("embeddings", "revert", "--yes").err
    assert sets(toolrag) == [(2, "retired", 512, 3), (1, "active", 512, 3)]
    other = toolrag("--embedding-model", NEW_MODEL, "embeddings", "rebuild", "--yes")
    assert other.code == 4
    assert advised(other.error) == ["embeddings", "migrate", "--to", NEW_MODEL]
    assert server.requests == []


def test_a_refused_switch_keeps_what_was_built(
    toolrag: Run, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolrag("sync", "shop_tools:TOOLS")
    answer(monkeypatch, "no\n")
    declined = toolrag("embeddings", "migrate", "--to", NEW_MODEL)
    assert declined.code == 1
    assert sets(toolrag) == [(2, "building", 64, 3), (1, "active", 512, 3)]
    asked = len(server.embedding_requests)
    moved = document(toolrag, "embeddings", "migrate", "--to", NEW_MODEL, "--yes")
    assert (moved["build"]["embedded"], moved["comparison"]) == (0, None)
    assert (moved["serving"]["id"], moved["serving"]["state"]) == (2, "active")
    texts = [text for request in server.embedding_requests[asked:] for text in request.texts]
    assert texts == ["How many dimensions does this model have?"]


def test_failures_are_named_by_tool_and_tried_again_alone(
    toolrag: Run, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolrag("sync", "shop_tools:TOOLS")
    monkeypatch.setenv("TOOLRAG_EMBEDDING_BATCH_SIZE", "1")
    server.fail_embeddings(None, None, EmbeddingFault(kind="zeros"))
    failed = toolrag("embeddings", "migrate", "--to", NEW_MODEL, "--yes")
    assert failed.code == 1
    assert failed.out.startswith(f"2 texts embedded with {NEW_MODEL} (64 dimensions).\n\nFAILED")
    assert "\ndefault/get_stock_price  openai:text-embedding-3-small answered with" in failed.out
    assert "Nothing was switched" in failed.err
    assert sets(toolrag) == [(2, "building", 64, 2), (1, "active", 512, 3)]
    mended = document(toolrag, "embeddings", "migrate", "--to", NEW_MODEL, "--yes")
    assert mended["build"]["embedded"] == 1
    assert sets(toolrag) == [(2, "active", 64, 3), (1, "retired", 512, 3)]


def test_questions_need_the_model_in_use(
    toolrag: Run, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("asked.jsonl").write_text('{"query": "weather in a city"}\n')
    toolrag("sync", "shop_tools:TOOLS")
    migrate = ("embeddings", "migrate", "--to", NEW_MODEL, "--questions", "asked.jsonl", "--yes")
    monkeypatch.setenv("TOOLRAG_EMBEDDING_MODEL", NEW_MODEL)
    refused = toolrag(*migrate)
    assert refused.code == 2
    stored_name = "builtin:use-multilingual-v3"
    assert f"`toolrag --embedding-model {stored_name} embeddings migrate ...`" in refused.error
    assert server.requests == []  # said before hours of embedding
    compared = document(toolrag, "--embedding-model", "builtin", *migrate)["comparison"]
    assert (compared["questions"], compared["k"], compared["recall_after"]) == (1, 5, None)
    assert 0 < compared["overlap"] <= 1


def test_labels_that_are_no_tool_are_told(
    toolrag: Run, server: OpenAIServer, tmp_path: Path
) -> None:
    Path("asked.jsonl").write_text('{"query": "weather", "relevant": ["get_wether"]}\n')
    toolrag("sync", "shop_tools:TOOLS")
    moved = toolrag(
        *("embeddings", "migrate", "--to", NEW_MODEL, "--questions", "asked.jsonl", "--yes")
    )
    assert moved.out.endswith(" Labels that are no active tool: get_wether.\n")


def test_a_tool_that_code_brings_back_stays_off_but_not_in_silence(toolrag: Run) -> None:
    toolrag("sync", "shop_tools:TOOLS")
    change_code("TOOLS = [", "TOOLS = [add_numbers]\nALL = [")
    off = toolrag("sync", "shop_tools:TOOLS", "--missing", "deactivate", "--changed-by", "ci")
    assert off.code == 0, off.err
    change_code("TOOLS = [add_numbers]\nALL = [", "TOOLS = [")
    told = "In code, but off since a sync did not bring them: "
    for options in (["--dry-run"], []):
        synced = toolrag("sync", "shop_tools:TOOLS", *options)
        (line,) = [line for line in synced.out.splitlines() if line.startswith(told)]
        assert sorted(line.removeprefix(told).split(", ")) == ALL[1:]
        assert "toolrag tools activate NAME" in synced.err
    found = document(toolrag, "validate", "shop_tools:TOOLS")["findings"]
    assert {(f["kind"], f["tool_name"]) for f in found} == {
        ("switched_off", "get_weather"),
        ("switched_off", "get_stock_price"),
    }
    assert "by ci" in found[0]["detail"]
    for tool in ("get_weather", "get_stock_price"):
        toolrag("tools", "activate", tool)
    assert toolrag("validate", "shop_tools:TOOLS").code == 0


def test_specs_are_validated_as_they_are_synced(toolrag: Run) -> None:
    Path("mere_specs.py").write_text(
        "from registry import ToolSpec\n"
        "TOOLS = [ToolSpec(tool_name='add', description='Add two numbers.')]\n"
    )
    assert toolrag("sync", "mere_specs:TOOLS").code == 0
    assert toolrag("validate", "mere_specs:TOOLS").code == 0


def test_one_migration_at_a_time(toolrag: Run, server: OpenAIServer, database_url: str) -> None:
    toolrag("sync", "shop_tools:TOOLS")
    with psycopg.connect(psycopg_url(database_url), autocommit=True) as connection:
        connection.execute(
            "INSERT INTO tool_lease VALUES ('embeddings', 'elsewhere', now() + interval '1 hour')"
        )
    before = stored(database_url)
    for command in (["migrate", "--to", NEW_MODEL], ["rebuild"]):
        busy = toolrag("embeddings", *command, "--yes")
        assert busy.code == 1
        assert re.search(r"Another process holds 'embeddings': elsewhere until \d{4}-", busy.error)
    assert stored(database_url) == before


def process(
    url: str, *arguments: str, **options: Any
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Run a command in a process of its own."""
    return started(
        [sys.executable, "-m", "agent.cli", *arguments],
        env={**os.environ, "TOOLRAG_DATABASE_URL": url, "PYTHONPATH": str(ROOT)},
        **options,
    )


@pytest.mark.parametrize(
    ("sent", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_a_migration_that_was_ended_goes_on_where_it_stopped(
    toolrag: Run,
    server: OpenAIServer,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    sent: signal.Signals,
    code: int,
    said: str,
) -> None:
    toolrag("sync", "shop_tools:TOOLS")
    monkeypatch.setenv("TOOLRAG_EMBEDDING_BATCH_SIZE", "1")
    hold = threading.Event()
    server.fail_embeddings(None, None, None, EmbeddingFault(kind="hold", hold=hold))
    migrate = ("embeddings", "migrate", "--to", NEW_MODEL, "--yes")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with process(database_url, *migrate, **pipes) as running:
        assert server.holding.acquire(timeout=60)
        running.send_signal(sent)
        out, err = running.communicate(timeout=60)
    hold.set()
    assert (running.returncode, out) == (code, b"")
    assert err.decode().splitlines() == [
        "What was embedded is kept: the same command goes on from there.",
        f"toolrag: {said}",
    ]
    with psycopg.connect(psycopg_url(database_url)) as connection:
        assert connection.execute("SELECT name FROM tool_lease").fetchall() == []
    assert sets(toolrag) == [(2, "building", 64, 2), (1, "active", 512, 3)]
    asked = len(server.embedding_requests)
    resumed = toolrag(*migrate)
    assert resumed.code == 0, resumed.err
    assert resumed.out.startswith("1 text embedded")
    texts = [text for request in server.embedding_requests[asked:] for text in request.texts]
    assert [text.split("\n")[0] for text in texts] == ["get weather"]


def test_at_a_terminal_progress_is_drawn_and_the_switch_is_asked_for(
    toolrag: Run, server: OpenAIServer, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolrag("sync", "shop_tools:TOOLS")
    monkeypatch.setenv("TERM", "xterm-256color")
    keyboard, terminal = pty.openpty()
    try:
        with process(
            database_url,
            *("embeddings", "migrate", "--to", NEW_MODEL),
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=terminal,
        ) as running:
            os.close(terminal)
            seen = b""
            while b"[y/N]" not in seen:
                seen += os.read(keyboard, 4096)
            os.write(keyboard, b"y\n")
            out, _ = running.communicate(timeout=60)
            assert running.returncode == 0
    finally:
        os.close(keyboard)
    assert b"Embedding" in seen
    assert b"3/3" in seen
    assert out == f"3 texts embedded with {NEW_MODEL} (64 dimensions).\n".encode()
    assert sets(toolrag)[0] == (2, "active", 64, 3)


NAMED = '''
from langchain_core.tools import tool

@tool("münze")
def toss(times: int) -> str:
    """Toss a coin some times."""
    return "heads"

@tool("x" * 65)
def long_one(times: int) -> str:
    """Roll a die some times."""
    return "six"

TOOLS = [toss, long_one]
'''
COIN = "m_nze_c64abdbb"


def test_a_tool_is_shown_and_found_under_both_its_names(toolrag: Run) -> None:
    Path("named_tools.py").write_text(NAMED, encoding="utf-8")
    synced = toolrag("sync", "named_tools:TOOLS")
    assert f"under names that models take: münze as {COIN}, {'x' * 65} as {'x' * 55}_" in synced.out
    assert "under names" not in toolrag("sync", "named_tools:TOOLS").out, "said once"
    heading, line = toolrag("tools", "list").out.splitlines()[:2]
    assert heading.split()[:3] == ["NAME", "DISPLAY", "NAME"]
    assert line.split()[:2] == [COIN, "münze"]

    # However the ü was typed.
    for typed in (COIN, "münze", unicodedata.normalize("NFD", "münze")):
        shown = toolrag("tools", "show", typed)
        assert shown.out.splitlines()[0].split() == ["name", COIN]
        assert (f"is registered as {COIN}" in shown.err) == (typed != COIN)
    assert toolrag("tools", "update", "münze", "--category", "games").code == 0
    assert toolrag("tools", "history", "münze").out.splitlines()[1].startswith("      2")
    assert "games" in toolrag("tools", "diff", "münze", "1").out
    assert toolrag("tools", "rollback", "münze", "1").out.startswith(f"{COIN} is at version 3")
    assert toolrag("tools", "deactivate", "münze").out == f"{COIN} is inactive now.\n"
    assert toolrag("tools", "activate", "münze").out == f"{COIN} is active now.\n"

    # A registered name comes before a display name, and two of one kind are not guessed between.
    toolrag("tools", "update", long_name(toolrag), "--display-name", "münze")
    both = toolrag("tools", "purge", "münze", "--yes")
    assert (both.code, "2 tools are displayed as 'münze'" in both.error) == (1, True)
    toolrag("tools", "update", long_name(toolrag), "--display-name", COIN)
    assert document(toolrag, "tools", "show", COIN)["description"] == "Toss a coin some times."
    assert toolrag("tools", "purge", "münze", "--yes").out.startswith(f"Removed {COIN} ")


def long_name(toolrag: Run) -> str:
    names = [tool["tool_name"] for tool in document(toolrag, "tools", "list")]
    return next(name for name in names if name.startswith("xxx"))


def test_names_with_a_mere_prefix_are_not_worth_a_line(toolrag: Run) -> None:
    synced = toolrag("sync", "shop_tools:TOOLS", "--origin", "mcp:shop")
    assert synced.out == "3 added, 0 updated, 0 unchanged (3 embedded)\n"
    assert document(toolrag, "sync", "shop_tools:TOOLS")["display_names"] == {}
    assert "DISPLAY NAME" in toolrag("tools", "list").out


def test_a_dry_run_says_all_and_writes_nothing(
    toolrag: Run, server: OpenAIServer, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLRAG_EMBEDDING_MODEL", NEW_MODEL)
    Path("named_tools.py").write_text(NAMED, encoding="utf-8")
    first = toolrag("sync", "named_tools:TOOLS", "--dry-run")
    assert first.code == 0, first.err
    assert first.out.startswith("2 to add, 0 to update, 0 unchanged (at most 2 texts to embed)\n")
    assert f"Would be registered under names that models take: münze as {COIN}, " in first.out
    assert "Nothing was embedded or written." in first.err
    assert (stored(database_url), server.embedding_requests) == ([[], [], [], [], []], [])

    toolrag("sync", "shop_tools:TOOLS")
    toolrag("tools", "update", "get_stock_price", "--category", "money")
    change_code(WEATHER, "Tell whether it rains in a city.")
    before, asked = stored(database_url), len(server.embedding_requests)
    for more in ([], ["--missing", "deactivate"], ["--overwrite-edits"]):
        plan = document(toolrag, "sync", "shop_tools:BARE", "--dry-run", *more)
        edits = ["get_stock_price"]
        assert (plan["added"], plan["updated"], plan["to_embed"]) == ([], ["get_weather"], 1)
        assert list(plan["failed"]) == ["undescribed"]
        assert plan["missing"] == ["add_numbers", *edits]
        assert plan["deactivated"] == (plan["missing"] if "deactivate" in more else [])
    shown = toolrag("sync", "shop_tools:TOOLS", "--dry-run", "--missing", "deactivate")
    assert shown.code == 0
    assert "0 to add, 1 to update, 1 unchanged, 1 edited, 0 to" not in shown.out
    assert "Would update: get_weather\n" in shown.out
    assert "Edited in the registry, would be left so: get_stock_price" in shown.out
    failing = toolrag("sync", "shop_tools:BARE", "--dry-run", "--missing", "deactivate")
    assert failing.code == 1
    assert "would be switched off: add_numbers, get_stock_price" in failing.out
    assert (stored(database_url), len(server.embedding_requests)) == (before, asked)


def test_a_sync_that_waits_says_so_once(
    toolrag: Run, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLRAG_LEASE_WAIT_S", "1")
    lease = "INSERT INTO tool_lease VALUES ('sync:default', 'elsewhere', now() + interval '1 hour')"
    with psycopg.connect(psycopg_url(database_url), autocommit=True) as connection:
        connection.execute(lease)
    waited = toolrag("sync", "shop_tools:TOOLS")
    assert waited.code == 1
    line = "Waiting for the sync of namespace 'default' by another process ..."
    assert waited.err.splitlines()[0] == line
    assert waited.err.count("Waiting for") == 1
    again = toolrag("sync", "shop_tools:TOOLS")
    assert again.err.count("Waiting for") == 1
    with psycopg.connect(psycopg_url(database_url), autocommit=True) as connection:
        connection.execute("DELETE FROM tool_lease")
    assert "Waiting" not in toolrag("sync", "shop_tools:TOOLS").err
