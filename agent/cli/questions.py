"""Questions in a file, to compare embedding models on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agent.cli.exit_codes import CliError

if TYPE_CHECKING:
    from registry.types import Question

__all__ = ["parse_questions", "read_questions"]


def read_questions(path: Path) -> list[Question]:
    """Return the questions of a file of JSON lines, `{"query": ..., "relevant": [names]}`.

    Raises:
        CliError: The file cannot be read, holds no question, or a line is none.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise CliError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise CliError(f"{path} is not UTF-8 text.") from error
    return parse_questions(text.split("\n"), name=str(path))


def parse_questions(lines: Iterable[str], *, name: str) -> list[Question]:
    """Return the questions of JSON lines; blank lines are passed over.

    Raises:
        CliError: There is no question, or a line is none; the line's number is given.
    """
    from registry.types import Question

    questions: list[Question] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            text, relevant = _fields(json.loads(line))
        except (ValueError, RecursionError) as error:
            reason = "not JSON" if isinstance(error, json.JSONDecodeError) else error
            raise CliError(
                f"Line {number} of {name} is no question: {reason}. Expected "
                '{"query": "...", "relevant": ["tool_name"]}, where relevant may be left out.'
            ) from error
        questions.append(Question(text=text, relevant=relevant))
    if not questions:
        raise CliError(f"{name} holds no questions.")
    return questions


def _fields(document: Any) -> tuple[str, tuple[str, ...]]:
    if not isinstance(document, dict):
        raise ValueError("it is not an object")
    fields = cast("dict[str, Any]", document)
    query, relevant = fields.get("query"), fields.get("relevant") or []
    if not isinstance(query, str) or not query.strip():
        raise ValueError("query is not a text, or empty")
    if not isinstance(relevant, list):
        raise ValueError("relevant is not a list")
    names = cast("list[Any]", relevant)
    if not all(isinstance(name, str) for name in names):
        raise ValueError("relevant holds something else than names")
    return query, tuple(dict.fromkeys(names))
