from __future__ import annotations

from pathlib import Path

import pytest

from agent.cli.exit_codes import USAGE, CliError
from agent.cli.questions import parse_questions, read_questions
from registry.types import Question


def test_questions_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    # A byte order mark, Windows line ends, a blank line, a character that is no line end in JSON.
    file.write_bytes(
        b'\xef\xbb\xbf{"query": "Rain?", "relevant": ["a", "b", "a"], "id": 7}\r\n\r\n'
        + '{"query": "東京\u2028の天気", "relevant": null}'.encode()
    )
    assert read_questions(file) == [
        Question(text="Rain?", relevant=("a", "b")),
        Question(text="東京\u2028の天気"),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("Rain?", "not JSON"),
        ('"Rain?"', "it is not an object"),
        ('{"question": "Rain?"}', "query is not a text, or empty"),
        ('{"query": " "}', "query is not a text, or empty"),
        ('{"query": 5}', "query is not a text, or empty"),
        ('{"query": "Rain?", "relevant": "a"}', "relevant is not a list"),
        ('{"query": "Rain?", "relevant": ["a", 1]}', "something else than names"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_a_line_that_is_no_question_is_named(line: str, reason: str) -> None:
    with pytest.raises(CliError, match=f"Line 2 of asked.jsonl is no question: .*{reason}") as told:
        parse_questions(['{"query": "Rain?"}', line], name="asked.jsonl")
    assert told.value.exit_code == USAGE


def test_a_file_without_questions_or_unreadable(tmp_path: Path) -> None:
    with pytest.raises(CliError, match=r"x\.jsonl holds no questions"):
        parse_questions(["", "  "], name="x.jsonl")
    with pytest.raises(CliError, match="cannot be read: No such file"):
        read_questions(tmp_path / "nowhere")
    with pytest.raises(CliError, match="cannot be read: Is a directory"):
        read_questions(tmp_path)
    (tmp_path / "latin").write_bytes(b'{"query": "Gr\xfc\xdfe"}')
    with pytest.raises(CliError, match="is not UTF-8 text"):
        read_questions(tmp_path / "latin")
