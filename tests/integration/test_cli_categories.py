"""`toolrag categories`: list, set, remove, suggest."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command_line import Run

CATEGORISED = '''
from langchain_core.tools import tool

@tool
def get_weather(city: str) -> str:
    """Get the weather in a city: temperature and sky."""
    return city

@tool
def list_invoices(customer: str) -> str:
    """List the invoices of a customer."""
    return customer

get_weather.metadata = {"category": "weather"}
list_invoices.metadata = {"category": "billing"}
TOOLS = [get_weather, list_invoices]
'''


def synced(toolrag: Run) -> None:
    Path("sorted_tools.py").write_text(CATEGORISED, encoding="utf-8")
    assert toolrag("sync", "sorted_tools:TOOLS").code == 0


def test_suggest_set_list_and_remove(toolrag: Run) -> None:
    synced(toolrag)
    suggested = json.loads(toolrag("categories", "suggest", "--json").out)
    assert [each["name"] for each in suggested] == ["billing", "weather"]
    assert "invoices" in suggested[0]["keywords"]

    done = toolrag("categories", "set", "weather", "rain", "storm front")
    assert (done.code, done.out, done.err) == (0, "weather has 2 keywords now.\n", "")
    assert toolrag("categories", "list").out.splitlines() == [
        "NAME     TOOLS  KEYWORDS",
        "billing      1",
        "weather      1  rain, storm front",
    ]
    assert json.loads(toolrag("categories", "list", "--json").out) == [
        {"name": "billing", "tools": 1, "keywords": []},
        {"name": "weather", "tools": 1, "keywords": ["rain", "storm front"]},
    ]

    removed = toolrag("categories", "remove", "weather")
    assert (removed.code, removed.out) == (0, "weather has no keywords any more.\n")
    again = toolrag("categories", "remove", "weather")
    assert again.code == 1
    assert again.error.startswith("Category 'weather' has no keywords in namespace 'default'.")


def test_a_table_of_suggestions_says_how_to_store_them(toolrag: Run) -> None:
    synced(toolrag)
    shown = toolrag("categories", "suggest", "--per-category", "1")
    assert shown.out.splitlines() == ["NAME     KEYWORDS", "billing  billing", "weather  weather"]
    assert "toolrag categories set NAME KEYWORD..." in shown.err


def test_a_category_that_no_tool_has_is_pointed_out(toolrag: Run) -> None:
    synced(toolrag)
    done = toolrag("categories", "set", "wether", "rain")
    assert done.code == 0
    assert "No active tool has the category 'wether'" in done.err
    assert "billing, weather" in done.err


def test_bad_keywords_are_a_usage_error(toolrag: Run) -> None:
    for keywords in (["the"], [" "], ["storm", "storms"], ["x" * 101]):
        ended = toolrag("categories", "set", "weather", *keywords)
        assert ended.code == 2, keywords
        assert "eyword" in ended.error
    assert toolrag("categories", "set", "weather").code == 2
    assert json.loads(toolrag("categories", "list", "--json").out) == []


def test_an_empty_registry_says_what_to_do(toolrag: Run) -> None:
    assert "toolrag sync" in toolrag("categories", "list").err
    assert "--category" in toolrag("categories", "suggest").err
