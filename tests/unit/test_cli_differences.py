from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from agent.cli.differences import difference_lines
from registry.types import FieldChange

LONG = "Get the weather in a city. It tells temperature and sky. Only for today."


@pytest.mark.parametrize(
    ("field", "before", "after", "lines"),
    [
        ("category", "a", "b", ['category: "a" -> "b"']),
        ("read_only", False, True, ["read_only: no -> yes"]),
        ("examples", (), ("Rain?",), ['examples: [] -> ["Rain?"]']),
        ("description", "Old.", "New.", ['description: "Old." -> "New."']),
        (
            "description",
            LONG,
            LONG.replace("today", "today\nand tomorrow"),
            [
                "description",
                "@@ -1,3 +1,4 @@",
                " Get the weather in a city.",
                " It tells temperature and sky.",
                "-Only for today.",
                "+Only for today",
                "+and tomorrow.",
            ],
        ),
        (
            "description",
            "一つ目の文。二つ目の文。",
            "一つ目の文。別の文。",
            ["description", "@@ -1,2 +1,2 @@", " 一つ目の文。", "-二つ目の文。", "+別の文。"],
        ),
        (
            "examples",
            ("Rain?", "Snow?"),
            ("Rain?", "Hail\nor snow?"),
            ["examples", "@@ -1,2 +1,2 @@", " Rain?", "-Snow?", '+"Hail\\nor snow?"'],
        ),
        (
            "args_schema",
            MappingProxyType({"b": 1, "a": ["x"]}),
            {"a": ["x"], "b": 2},
            ["args_schema", "@@ -3,4 +3,4 @@", '     "x"', "   ],", '-  "b": 1', '+  "b": 2', " }"],
        ),
    ],
)
def test_difference_lines(field: str, before: Any, after: Any, lines: list[str]) -> None:
    assert difference_lines(FieldChange(field=field, before=before, after=after)) == lines


def test_a_difference_in_white_space_alone_is_still_shown() -> None:
    change = FieldChange(field="description", before=LONG, after=LONG.replace(". It", ".  It"))
    lines = difference_lines(change)
    assert lines[2:] == [f'-"{change.before}"', f'+"{change.after}"']
