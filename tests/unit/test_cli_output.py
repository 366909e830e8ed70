from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType

import pytest

import registry.errors as errors
from agent.cli.exit_codes import DATABASE, FAILURE, MODEL, USAGE, CliError, exit_code_of
from agent.cli.output import (
    Output,
    aligned,
    counted,
    jsonable,
    one_line,
    without_controls,
    without_secrets,
)
from agent.cli.sync import plan_summary, summary
from agent.cli.tools import argument_rows
from registry.sync import Change, SyncPlan
from registry.types import SyncReport, ToolSpec


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@dataclass(frozen=True)
class Point:
    x: int
    seen: datetime


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("postgresql://u:secret@h/db", "postgresql://u:***@h/db"),
        (
            "at postgresql+psycopg://u:p@ss:w@h:5432/db now",
            "at postgresql+psycopg://u:***@h:5432/db now",
        ),
        ("postgresql://u:a/b@h/db", "postgresql://u:***@h/db"),
        ("postgresql:///db?host=/run/pg", "postgresql:///db?host=/run/pg"),
        ("https://h/path", "https://h/path"),
        ("key sk-12345678 refused", "key *** refused"),
    ],
)
def test_without_secrets(text: str, hidden: str) -> None:
    assert without_secrets(text, secrets=["sk-12345678", "", "short"]) == hidden


def test_escape_sequences_of_a_tool_do_not_reach_the_terminal() -> None:
    assert without_controls("a\x1b[31mred\x07\u202e\n\tb\r\n") == "a\\x1b[31mred\\x07\\x202e\n\tb\n"
    assert one_line(" a\n\n b\t c ") == "a b c"


def test_aligned_counts_wide_characters_as_two() -> None:
    lines = aligned([["name", "n"], ["東京", "1"], ["a", "200"]], right=[False, True])
    assert lines == ["name    n", "東京    1", "a     200"]
    assert aligned([]) == []


def test_jsonable() -> None:
    value = {
        "point": Point(1, datetime(2026, 10, 13, tzinfo=UTC)),
        "map": MappingProxyType({1: ("a", None, True, 0.5)}),
        "other": ValueError("x"),
    }
    assert jsonable(value) == {
        "point": {"x": 1, "seen": "2026-10-13T00:00:00+00:00"},
        "map": {"1": ["a", None, True, 0.5]},
        "other": "x",
    }


def test_in_a_pipe_nothing_is_styled_wrapped_or_cut(capsys: pytest.CaptureFixture[str]) -> None:
    long = "word " * 100 + "end"
    output = Output()
    output.table(["name", "text"], [["[b]x[/b]", long], ["y", "line\nbreak"]], wide="text")
    output.text(long, style="bold", indent=2)
    output.parts(("label ", "dim"), (long, "bold"))
    output.rule("heading")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "NAME      TEXT",
        f"[b]x[/b]  {long}",
        "y         line break",
        f"  {long}",
        f"label {long}",
        "== heading",
    ]


def test_a_terminal_gets_styles_its_width_and_a_visible_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    for name, value in {"COLUMNS": "40", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    output = Output()
    output.table(["name", "text"], [["x", "word " * 30]], wide="text")
    output.text("bold", style="bold")
    written = terminal.getvalue()
    assert "\x1b[1m" in written
    assert "…" in written
    assert "\x1b[1mbold\x1b[0m" in written


def test_json_is_one_document_in_utf8_even_when_a_tool_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Output().json({"question": "東京 \x1b[0m \u202e"})
    out = capsys.readouterr().out
    assert json.loads(out) == {"question": "東京 \x1b[0m \u202e"}
    assert "東京" in out
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_notes_and_progress_stay_off_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    output.note("n " * 100)
    with output.embedding_progress() as on_progress:
        assert on_progress is None
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == ["n " * 100]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigurationError("x"), USAGE),
        (errors.InvalidToolError("t", "r"), USAGE),
        (errors.DuplicateToolError("t", ["a", "b"]), USAGE),
        (errors.InvalidQueryError("x"), USAGE),
        (errors.RunLimitError("x"), USAGE),
        (errors.HistoryBudgetError("x"), USAGE),
        (errors.ApprovalError("x"), FAILURE),
        (errors.CategoryNotFoundError("c", namespace="n", known=[]), FAILURE),
        (errors.ToolNotFoundError("t", namespace="n"), FAILURE),
        (errors.EmbeddingError("x"), MODEL),
        (errors.EmbeddingUnavailableError("x"), MODEL),
        (errors.EmbeddingModelMismatchError(stored="a", configured="b"), MODEL),
        (errors.RegistryUnavailableError("x"), DATABASE),
        (errors.SchemaVersionError(found=None, expected="1", advice="x"), DATABASE),
        (errors.RegistryError("x"), DATABASE),
        (errors.RegistryBusyError("x"), FAILURE),
        (errors.IncompleteEmbeddingsError("m", "m", tool_names=["t"]), FAILURE),
        (errors.VersionConflictError("t", expected=1, found=2), FAILURE),
        (errors.VersionNotFoundError("t", 9, known=[1]), FAILURE),
        (errors.LocalPostgresError("x"), DATABASE),
        (errors.AgentError("x"), FAILURE),
        (errors.ThreadBusyError("x", thread_id="t"), FAILURE),
        (errors.ThreadNotFoundError("t"), FAILURE),
        (errors.ToolRAGError("x"), FAILURE),
        (CliError("x", exit_code=77), 77),
    ],
)
def test_exit_codes(error: errors.ToolRAGError, code: int) -> None:
    assert exit_code_of(error) == code


def test_every_error_class_has_an_exit_code_test() -> None:
    marks = test_exit_codes.pytestmark  # type: ignore[attr-defined]
    tested = {type(case[0]).__name__ for case in marks[0].args[1]}
    assert set(errors.__all__) <= tested


def test_sync_summary() -> None:
    report = SyncReport(added=["a"], failed={"b": "x"}, embedded=1)
    assert summary(report) == "1 added, 0 updated, 0 unchanged, 1 failed (1 embedded)"
    report = SyncReport(edited=["a"], missing=["b"], deactivated=["b"], reused=2)
    expected = "0 added, 0 updated, 0 unchanged, 1 edited, 1 deactivated (0 embedded, 2 reused)"
    assert summary(report) == expected


@pytest.mark.parametrize(
    "write",
    [
        lambda output: output.text("one\ntwo"),
        lambda output: output.parts(("one", "dim"), ("two", "")),
        lambda output: output.rule("one"),
        lambda output: output.table(["one"], [["two"]]),
        lambda output: output.json(["one"]),
    ],
)
def test_each_piece_reaches_a_pipe_at_once(
    monkeypatch: pytest.MonkeyPatch, write: Callable[[Output], None]
) -> None:
    pipe = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe, "utf-8"))
    write(Output())
    assert pipe.getvalue().lower().startswith((b"one", b"== one", b"[\n"))


def test_plan_summary() -> None:
    plan = SyncPlan(specs=[], failed={})
    assert plan_summary(plan, deactivate=False) == (
        "0 to add, 0 to update, 0 unchanged (0 texts to embed)"
    )
    plan.added, plan.missing, plan.failed["b"] = ["a"], ["c", "d"], "no description"
    plan.embed = [Change(spec=ToolSpec(tool_name="a", description="x"))]
    assert plan_summary(plan, deactivate=True) == (
        "1 to add, 0 to update, 0 unchanged, 1 cannot be registered, 2 to deactivate "
        "(at most 1 text to embed)"
    )
    assert "2 missing" in plan_summary(plan, deactivate=False)


def test_counted() -> None:
    assert [counted(n, "tool") for n in (0, 1, 1200)] == ["0 tools", "1 tool", "1,200 tools"]


def test_argument_rows_read_json_schema() -> None:
    schema = {
        "properties": {
            "city": {"type": "string", "description": "Name"},
            "unit": {"enum": ["c", "f"]},
            "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "free": {},
            "odd": True,
        },
        "required": ["city"],
    }
    assert argument_rows(schema) == [
        ["city", "string", "yes", "Name"],
        ["unit", '"c" | "f"', "no", ""],
        ["days", "integer | null", "no", ""],
        ["tags", "array of string", "no", ""],
        ["free", "any", "no", ""],
        ["odd", "any", "no", ""],
    ]
