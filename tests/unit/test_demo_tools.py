"""Every demo tool is called once with its exact result, and refuses bad input helpfully."""

from __future__ import annotations

import json
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import BaseTool

from agent.demo import DEMO_QUESTIONS, RETRIEVAL_QUESTIONS, dates, demo_toolset
from agent.demo.shop import DemoDatabase, note_tools, shop_tools
from registry.text import MAX_DESCRIPTION_CHARS
from registry.toolset import Toolset

CSV = "item,price\npen,2\nbook,10.5"
RECORDS = '[{"item": "pen", "price": 2}, {"item": "book", "price": 3}]'

CALLS: list[tuple[str, dict[str, Any], Any]] = [
    ("calculator", {"expression": "(2 + 3) * 4 - 10 / 5"}, 18),
    ("add", {"first": 0.1, "second": 0.2}, 0.3),
    ("subtract", {"minuend": 10, "subtrahend": 3}, 7),
    ("multiply", {"first": 31, "second": 3}, 93),
    ("divide", {"dividend": 10, "divisor": 4}, 2.5),
    ("remainder", {"dividend": 17, "divisor": 5}, 2),
    ("power", {"base": 2, "exponent": 10}, 1024),
    ("square_root", {"number": 144}, 12),
    ("factorial", {"number": 5}, 120),
    ("greatest_common_divisor", {"first": 84, "second": 36}, 12),
    ("prime_factors", {"number": 360}, "360 = 2 * 2 * 2 * 3 * 3 * 5"),
    ("round_number", {"number": 3.14159, "decimals": 2}, 3.14),
    ("percentage_of", {"percent": 15, "number": 80}, 12),
    ("percentage_change", {"old_value": 80, "new_value": 100}, 25),
    ("percentage_share", {"part": 12, "whole": 48}, 25),
    ("split_bill", {"amount": 90, "people": 4, "tip_percent": 10}, 24.75),
    ("average", {"numbers": [3, 4, 8]}, 5),
    ("median", {"numbers": [9, 1, 5, 7]}, 6),
    ("standard_deviation", {"numbers": [2, 4, 4, 4, 5, 5, 7, 9]}, 2.1380899353),
    ("correlation", {"first_series": [1, 2, 3], "second_series": [2, 4, 6]}, 1),
    ("smallest_and_largest", {"numbers": [4, -1, 9]}, {"minimum": -1, "maximum": 9, "range": 10}),
    (
        "convert_length",
        {"value": 26, "from_unit": "miles", "to_unit": "Kilometers"},
        "26 mile = 41.842944 km",
    ),
    ("convert_weight", {"value": 1, "from_unit": "lbs", "to_unit": "g"}, "1 pound = 453.59237 g"),
    ("convert_volume", {"value": 2, "from_unit": "litres", "to_unit": "ml"}, "2 l = 2000 ml"),
    ("convert_speed", {"value": 36, "from_unit": "km/h", "to_unit": "m/s"}, "36 km/h = 10 m/s"),
    ("convert_area", {"value": 2, "from_unit": "ha", "to_unit": "m²"}, "2 hectare = 20000 m2"),
    ("convert_data_size", {"value": 1, "from_unit": "GiB", "to_unit": "MiB"}, "1 gib = 1024 mib"),
    (
        "convert_temperature",
        {"value": 98.6, "from_unit": "°F", "to_unit": "celsius"},
        "98.6 F = 37 C",
    ),
    ("days_between", {"start_date": "2026-10-13", "end_date": "2026-12-24"}, 72),
    ("add_days", {"start_date": "2026-10-01", "days": 30}, "2026-10-31"),
    ("day_of_week", {"calendar_date": "2027-01-01"}, "Friday"),
    ("week_number", {"calendar_date": "2027-01-01"}, "2026-W53"),
    ("is_leap_year", {"year": 1900}, "1900 is not a leap year"),
    ("age_on_date", {"birth_date": "2000-02-29", "calendar_date": "2026-02-28"}, 25),
    ("count_working_days", {"start_date": "2026-10-09", "end_date": "2026-10-19"}, 7),
    ("current_time", {"time_zone": "Tokyo"}, "2026-10-13 21:00 (Asia/Tokyo)"),
    (
        "convert_time_zone",
        {"local_time": "2026-10-13 09:00", "from_zone": "Europe/Berlin", "to_zone": "東京"},
        "2026-10-13 16:00 (Asia/Tokyo)",
    ),
    ("count_words", {"text": "one two\nthree"}, {"words": 3, "characters": 13, "lines": 2}),
    ("change_case", {"text": "tool rag", "style": "title"}, "Tool Rag"),
    ("reverse_text", {"text": "abc"}, "cba"),
    (
        "find_and_replace",
        {"text": "a cat, a cat", "search": "cat", "replacement": "dog"},
        "a dog, a dog",
    ),
    (
        "extract_email_addresses",
        {"text": "Ask ada@example.org or bob.b@mail.example.com, ada@example.org."},
        "ada@example.org, bob.b@mail.example.com",
    ),
    ("sort_lines", {"text": "pear\nApple\nfig"}, "Apple\nfig\npear"),
    ("remove_duplicate_lines", {"text": "a\nb\na"}, "a\nb"),
    ("make_slug", {"text": "Größe & Gewicht!"}, "grosse-gewicht"),
    (
        "first_sentences",
        {"text": "One. Two! Three? Four.", "sentences": 2},
        "One. Two! […] (2 more sentences)",
    ),
    ("format_json", {"json_text": '{"a":[1]}'}, '{\n  "a": [\n    1\n  ]\n}'),
    ("minify_json", {"json_text": '{ "a" : "é" }'}, '{"a":"é"}'),
    ("read_json_value", {"json_text": RECORDS, "path": "1.item"}, "book"),
    (
        "csv_to_json",
        {"csv_text": CSV},
        '[{"item": "pen", "price": "2"}, {"item": "book", "price": "10.5"}]',
    ),
    ("json_to_csv", {"json_text": RECORDS}, "item,price\npen,2\nbook,3"),
    ("sum_csv_column", {"csv_text": CSV, "column": "price"}, 12.5),
    (
        "hash_text",
        {"text": "hello"},
        "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
    ),
    ("checksum_crc32", {"text": "123456789"}, "cbf43926"),
    ("encode_base64", {"text": "héllo"}, "aMOpbGxv"),
    ("decode_base64", {"encoded": "aMOpbGxv"}, "héllo"),
    ("encode_url", {"text": "a b&c"}, "a%20b%26c"),
    ("decode_url", {"encoded": "caf%C3%A9"}, "café"),
    ("make_uuid", {"name": "example"}, "f8b72323-0e40-5a08-bd7f-039dfb85a9b2"),
    ("add_note", {"text": " buy milk "}, "note 2 saved"),
    ("list_notes", {}, "1: keep me"),
    ("search_notes", {"query": "milk"}, "no note contains 'milk'"),
    ("delete_note", {"note_id": 1}, "note 1 deleted"),
    (
        "lookup_order",
        {"order_id": "a100"},
        {
            "order_id": "A100",
            "item": "espresso machine",
            "status": "delivered",
            "delivered_on": "2026-10-01",
            "amount": 250_000,
            "source": "sample data",
        },
    ),
    (
        "list_orders",
        {},
        "A100: espresso machine, delivered\nA101: desk lamp, shipping\n"
        "A102: office chair, delivered\nA103: notebook, processing\n(sample data)",
    ),
    (
        "track_shipment",
        {"order_id": "A101"},
        {
            "order_id": "A101",
            "carrier": "ParcelFox",
            "location": "sorting centre north",
            "source": "sample data",
        },
    ),
    ("cancel_order", {"order_id": "A101"}, "order A101 cancelled (sample data)"),
    (
        "refund_policy",
        {},
        "Refunds are possible within 30 days after delivery, for delivered orders only. "
        "(sample data)",
    ),
    (
        "check_product_stock",
        {"product": "Desk Lamp"},
        "desk lamp: price 48000, 12 in stock (sample data)",
    ),
    (
        "get_stock_price",
        {"symbol": "aapl"},
        {"symbol": "AAPL", "company": "Apple", "price_usd": 231.3, "source": "sample data"},
    ),
    (
        "stock_price_history",
        {"symbol": "TM"},
        {
            "symbol": "TM",
            "closes_usd": [174.0, 175.5, 176.1, 175.2, 177.8],
            "source": "sample data",
        },
    ),
    (
        "find_ticker_symbol",
        {"company": "apple"},
        "Apple: AAPL, consumer electronics (sample data)",
    ),
    (
        "convert_currency",
        {"amount": 200, "from_currency": "usd", "to_currency": "JPY"},
        "200 USD = 29900 JPY (sample data)",
    ),
    ("compound_interest", {"principal": 1000, "annual_rate_percent": 5, "years": 2}, 1102.5),
    (
        "loan_payment",
        {"principal": 200_000, "annual_rate_percent": 4, "months": 240},
        1211.96,
    ),
    (
        "get_weather",
        {"city": "Tokyo, Japan"},
        {"city": "Tokyo", "temperature_c": 18, "sky": "cloudy", "source": "sample data"},
    ),
    (
        "weather_forecast",
        {"city": "Kairo"},
        {
            "city": "Cairo",
            "high_tomorrow_c": 32,
            "high_day_after_c": 30,
            "source": "sample data",
        },
    ),
    (
        "air_quality",
        {"city": "Delhi"},
        {
            "city": "Delhi",
            "air_quality_index": 187,
            "level": "unhealthy",
            "source": "sample data",
        },
    ),
    (
        "sunrise_and_sunset",
        {"city": "London"},
        {"city": "London", "sunrise": "07:22", "sunset": "18:12", "source": "sample data"},
    ),
    (
        "distance_between_cities",
        {"from_city": "Paris", "to_city": "New York"},
        {"from": "Paris", "to": "New York", "distance_km": 5837, "source": "sample data"},
    ),
    (
        "city_coordinates",
        {"city": "Berlin"},
        {"city": "Berlin", "latitude": 52.52, "longitude": 13.41, "source": "sample data"},
    ),
    ("capital_city", {"country": "Japan"}, "The capital of Japan is Tokyo. (sample data)"),
    (
        "country_population",
        {"country": "kenya"},
        {"country": "Kenya", "population_millions": 55, "source": "sample data"},
    ),
    (
        "country_facts",
        {"country": "India"},
        {
            "country": "India",
            "languages": "Hindi, English",
            "currency": "INR",
            "calling_code": "+91",
            "source": "sample data",
        },
    ),
    (
        "web_search",
        {"query": "sourdough bread"},
        "Sourdough bread for beginners: Flour, water, salt and patience: a bread recipe. "
        "[example.org/sourdough]\n(sample data)",
    ),
    (
        "news_search",
        {"query": "interest rates"},
        "Central bank keeps interest rates unchanged: Inflation is near its target. "
        "[Sample Times, 2026-10-12]\n(sample data)",
    ),
    (
        "paper_search",
        {"query": "transformer"},
        "Attention Is All You Need: Introduces the Transformer architecture. "
        "[Vaswani et al., 2017]\n(sample data)",
    ),
    (
        "encyclopedia_search",
        {"query": "Lovelace"},
        "Ada Lovelace: English mathematician (1815-1852), author of the first published computer "
        "program. [sample encyclopedia]\n(sample data)",
    ),
    (
        "archive_search",
        {"query": "anything"},
        "Nothing found for 'anything'. Try another tool. (sample data)",
    ),
]

BAD_INPUT: list[tuple[str, dict[str, Any], str]] = [
    ("calculator", {"expression": "10 / 0"}, "division by zero: the divisor must not be 0"),
    ("calculator", {"expression": "10 % 0"}, "division by zero"),
    ("calculator", {"expression": "3 ÷ 2"}, "unsupported character '÷'.*/ for divided by"),
    ("calculator", {"expression": "3 x 2"}, "not an arithmetic expression.*\\* for times"),
    ("calculator", {"expression": "  "}, "empty"),
    ("calculator", {"expression": "1" * 201}, "at most 200"),
    ("calculator", {"expression": "9 ** 9 ** 9"}, "too large"),
    ("calculator", {"expression": "10 ** 299 * 10 ** 299"}, "too large"),
    ("calculator", {"expression": "1e999"}, "too large"),
    ("calculator", {"expression": "(-8) ** 0.5"}, "negative base"),
    ("calculator", {"expression": "0 ** -1"}, "division by zero"),
    ("calculator", {"expression": "sqrt(-1)"}, "no real value"),
    ("calculator", {"expression": "exp(1000)"}, "no real value"),
    ("calculator", {"expression": "__import__(1)"}, "is not arithmetic"),
    ("calculator", {"expression": "(1).real"}, "is not arithmetic"),
    ("calculator", {"expression": "True + 1"}, "is not arithmetic"),
    ("calculator", {"expression": "(" * 150 + "1"}, "not an arithmetic expression"),
    ("divide", {"dividend": 10, "divisor": 0}, "the divisor must not be 0"),
    ("remainder", {"dividend": 10, "divisor": 0}, "the divisor must not be 0"),
    ("multiply", {"first": 1e300, "second": 1e300}, "too large"),
    ("power", {"base": 10, "exponent": 100_000}, "too large"),
    ("square_root", {"number": -4}, "-4 is negative"),
    ("factorial", {"number": 1_000_000}, "from 0 to 150"),
    ("prime_factors", {"number": 1}, "from 2"),
    ("round_number", {"number": 1, "decimals": 99}, "from 0 to 12"),
    ("percentage_change", {"old_value": 0, "new_value": 1}, "must not be 0"),
    ("percentage_share", {"part": 1, "whole": 0}, "must not be 0"),
    ("split_bill", {"amount": 9, "people": 0}, "at least 1"),
    ("average", {"numbers": []}, "at least 1 numbers"),
    ("median", {"numbers": [1, float("nan")]}, "not a finite number"),
    ("standard_deviation", {"numbers": [1]}, "at least 2"),
    ("correlation", {"first_series": [1, 2], "second_series": [1, 2, 3]}, "equally long"),
    ("correlation", {"first_series": [1, 1], "second_series": [1, 2]}, "must differ"),
    ("convert_length", {"value": 1, "from_unit": "mil", "to_unit": "km"}, "Did you mean mile"),
    ("convert_temperature", {"value": 1, "from_unit": "R", "to_unit": "C"}, "Known: Celsius"),
    ("convert_temperature", {"value": -1, "from_unit": "K", "to_unit": "C"}, "absolute zero"),
    ("days_between", {"start_date": "13.10.2026", "end_date": "x"}, "write YYYY-MM-DD"),
    ("add_days", {"start_date": "2026-10-13", "days": 10**9}, "outside the years"),
    ("day_of_week", {"calendar_date": "2026-02-30"}, "is not a date"),
    ("is_leap_year", {"year": 0}, "from 1 to 9999"),
    ("age_on_date", {"birth_date": "2026-01-01", "calendar_date": "2025-01-01"}, "swap them"),
    ("count_working_days", {"start_date": "2026-02-01", "end_date": "2026-01-01"}, "swap"),
    ("current_time", {"time_zone": "Europe"}, "unknown time zone 'Europe'"),
    ("current_time", {"time_zone": "../etc/passwd"}, "unknown time zone"),
    (
        "convert_time_zone",
        {"local_time": "nine", "from_zone": "UTC", "to_zone": "UTC"},
        "YYYY-MM-DD HH:MM",
    ),
    (
        "convert_time_zone",
        {"local_time": "2026-10-13T09:00+02:00", "from_zone": "UTC", "to_zone": "UTC"},
        "has an offset",
    ),
    ("find_and_replace", {"text": "a", "search": "", "replacement": "b"}, "search is empty"),
    ("make_slug", {"text": "東京"}, "no Latin letter"),
    ("first_sentences", {"text": "a", "sentences": 0}, "at least 1"),
    ("format_json", {"json_text": "{'a': 1}"}, "not valid JSON at line 1, column 2"),
    ("minify_json", {"json_text": "[" * 100_000}, "nested too deeply"),
    ("read_json_value", {"json_text": '{"price": 1}', "path": "prize"}, "Did you mean price"),
    ("read_json_value", {"json_text": "[1]", "path": "1"}, "from 0 to 0"),
    ("read_json_value", {"json_text": "1", "path": "a"}, "nothing lies below 1"),
    ("csv_to_json", {"csv_text": "a,b\n1"}, "row 1 does not have 2 fields"),
    ("csv_to_json", {"csv_text": "a,b"}, "at least one row of data"),
    ("json_to_csv", {"json_text": "{}"}, "list of records"),
    ("json_to_csv", {"json_text": "[1]"}, "must be a record"),
    ("sum_csv_column", {"csv_text": CSV, "column": "cost"}, "Known: item, price"),
    ("sum_csv_column", {"csv_text": CSV, "column": "item"}, "row 1 of column 'item'"),
    ("decode_base64", {"encoded": "!!"}, "is not Base64"),
    ("decode_url", {"encoded": "%FF"}, "is not percent-encoded UTF-8"),
    ("add_note", {"text": " "}, "the note is empty"),
    ("add_note", {"text": "x" * 2_001}, "at most 2000"),
    ("delete_note", {"note_id": 7}, "there is no note 7"),
    ("lookup_order", {"order_id": "A999"}, "unknown order 'A999'.*Known: A100"),
    ("track_shipment", {"order_id": "' OR 1=1 --"}, "unknown order"),
    ("cancel_order", {"order_id": "A100"}, "order A100 is delivered; only orders"),
    ("check_product_stock", {"product": "desk lamps"}, "Did you mean desk lamp"),
    ("get_stock_price", {"symbol": "APPL"}, "Did you mean AAPL"),
    ("find_ticker_symbol", {"company": "Aple"}, "Did you mean Apple"),
    (
        "convert_currency",
        {"amount": 1, "from_currency": "XXX", "to_currency": "EUR"},
        "unknown currency 'XXX'",
    ),
    (
        "compound_interest",
        {"principal": 1, "annual_rate_percent": 900, "years": 9_000},
        "too large",
    ),
    ("compound_interest", {"principal": 1, "annual_rate_percent": 5, "years": -1}, "negative"),
    ("loan_payment", {"principal": 1, "annual_rate_percent": 5, "months": 0}, "from 1 to"),
    ("get_weather", {"city": "Tokyoo"}, "Did you mean Tokyo"),
    ("capital_city", {"country": "Jpan"}, "Did you mean Japan"),
    ("web_search", {"query": "?"}, "no word to search for"),
]


class _Noon(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> _Noon:
        return cls(2026, 10, 13, 12, 0, tzinfo=tz)


@pytest.fixture(scope="module")
def toolset() -> Toolset:
    """One toolset for all tests of this file; making 89 tools takes a quarter of a second."""
    return demo_toolset()


@pytest.fixture
def tools(toolset: Toolset) -> dict[str, BaseTool]:
    """All tools by name; those over the database are fresh, with one note in it."""
    database = DemoDatabase()
    fresh = {tool.name: tool for tool in (*note_tools(database), *shop_tools(database))}
    fresh["add_note"].invoke({"text": "keep me"})
    return {**toolset, **fresh}


@pytest.fixture(autouse=True)
def no_network_and_a_fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a demo tool opened a socket")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(dates, "datetime", _Noon)


@pytest.mark.parametrize(("name", "arguments", "expected"), CALLS, ids=[c[0] for c in CALLS])
def test_every_tool_gives_its_exact_result(
    tools: dict[str, BaseTool], name: str, arguments: dict[str, Any], expected: Any
) -> None:
    result = tools[name].invoke(arguments)
    assert result == expected
    assert type(result) is type(expected)


def test_the_calls_cover_every_tool(toolset: Toolset) -> None:
    assert [name for name, _, _ in CALLS if name not in toolset] == []
    assert set(toolset) - {name for name, _, _ in CALLS} == set()


@pytest.mark.parametrize(
    ("name", "arguments", "message"), BAD_INPUT, ids=[f"{c[0]}-{c[2][:20]}" for c in BAD_INPUT]
)
def test_bad_input_is_refused_with_what_to_do(
    tools: dict[str, BaseTool], name: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        tools[name].invoke(arguments)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_there_are_enough_tools_in_enough_categories(toolset: Toolset) -> None:
    specs = toolset.specs
    assert len(specs) >= 64
    assert len({spec.category for spec in specs} - {"general"}) >= 8
    assert all(spec.category != "general" for spec in specs)
    descriptions = [spec.description for spec in specs]
    assert len(set(descriptions)) == len(descriptions)
    assert all(20 <= len(description) <= MAX_DESCRIPTION_CHARS for description in descriptions)


def test_tools_that_change_something_say_so(toolset: Toolset) -> None:
    writing = {spec.tool_name for spec in toolset.specs if not spec.read_only}
    approved = {spec.tool_name for spec in toolset.specs if spec.requires_approval}
    assert writing == {"add_note", "delete_note", "cancel_order"}
    assert approved == {"cancel_order", "delete_note"}


def test_what_would_need_the_network_says_it_is_sample_data(
    toolset: Toolset, tools: dict[str, BaseTool]
) -> None:
    live = {"finance", "weather", "geography", "search", "orders"}
    computed = {"compound_interest", "loan_payment"}
    specs = {spec.tool_name: spec for spec in toolset.specs}
    checked = 0
    for name, arguments, _ in CALLS:
        if specs[name].category in live and name not in computed:
            result = tools[name].invoke(arguments)
            assert "sample data" in json.dumps(result, ensure_ascii=False), name
            checked += 1
    assert checked >= 20


def test_the_network_is_refused_by_the_fixture() -> None:
    with pytest.raises(AssertionError, match="opened a socket"):
        socket.socket()


def test_notes_are_kept_found_and_deleted(tools: dict[str, BaseTool]) -> None:
    tools["add_note"].invoke({"text": "Buy Milk"})
    tools["add_note"].invoke({"text": "100% sure_thing"})
    assert tools["list_notes"].invoke({}) == "1: keep me\n2: Buy Milk\n3: 100% sure_thing"
    assert tools["search_notes"].invoke({"query": "milk"}) == "2: Buy Milk"
    # LIKE wildcards are plain characters here.
    assert tools["search_notes"].invoke({"query": "0%_"}) == "no note contains '0%_'"
    assert tools["delete_note"].invoke({"note_id": 3}) == "note 3 deleted"
    assert tools["list_notes"].invoke({}) == "1: keep me\n2: Buy Milk"
    assert tools["add_note"].invoke({"text": "next"}) == "note 4 saved"


def test_sql_in_a_note_is_only_text(tools: dict[str, BaseTool]) -> None:
    attack = "x'); DROP TABLE note; --"
    tools["add_note"].invoke({"text": attack})
    assert tools["list_notes"].invoke({}) == f"1: keep me\n2: {attack}"


def test_two_toolsets_share_nothing() -> None:
    first, second = demo_toolset(), demo_toolset()
    first["add_note"].invoke({"text": "mine"})
    first["cancel_order"].invoke({"order_id": "A103"})
    assert second["list_notes"].invoke({}) == "there are no notes yet"
    assert second["lookup_order"].invoke({"order_id": "A103"})["status"] == "processing"


def test_a_cancelled_order_stays_cancelled_in_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "demo shop.db")
    demo_toolset(database_path=path)["cancel_order"].invoke({"order_id": "A101"})
    again = demo_toolset(database_path=path)
    assert again["lookup_order"].invoke({"order_id": "A101"})["status"] == "cancelled"
    with pytest.raises(ValueError, match="A101 is cancelled"):
        again["cancel_order"].invoke({"order_id": "A101"})


def test_many_threads_write_every_note_once(tools: dict[str, BaseTool]) -> None:
    with ThreadPoolExecutor(8) as pool:
        saved = list(
            pool.map(lambda n: tools["add_note"].invoke({"text": f"note-{n}"}), range(200))
        )
    assert len(set(saved)) == 200
    lines = tools["list_notes"].invoke({}).splitlines()[1:]
    assert sorted(line.partition(": ")[2] for line in lines) == sorted(
        f"note-{n}" for n in range(200)
    )


def test_one_of_many_threads_cancels_an_order(tools: dict[str, BaseTool]) -> None:
    def cancel(_: int) -> bool:
        try:
            tools["cancel_order"].invoke({"order_id": "A101"})
        except ValueError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(cancel, range(40))) == 1


def test_questions_name_real_tools(toolset: Toolset) -> None:
    for question in (*DEMO_QUESTIONS, *RETRIEVAL_QUESTIONS):
        assert question.relevant
        assert set(question.relevant) <= set(toolset), question.text


def test_questions_are_asked_in_three_languages() -> None:
    texts = [question.text for question in RETRIEVAL_QUESTIONS]
    assert len(set(texts)) == len(texts)
    for lang in ("en", "de", "ja"):
        assert sum(question.lang == lang for question in RETRIEVAL_QUESTIONS) >= 12
    assert all(
        re.search(r"[\u3040-\u9fff]", question.text)
        for question in RETRIEVAL_QUESTIONS
        if question.lang == "ja"
    )


def test_no_question_is_copied_from_a_description(toolset: Toolset) -> None:
    texts = {text for spec in toolset.specs for text in (spec.description, *spec.examples)}
    for question in RETRIEVAL_QUESTIONS:
        assert question.text not in texts
