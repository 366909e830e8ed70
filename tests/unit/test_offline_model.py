"""The offline stand-in: picks, fills, chains, mends and stops by rules; never by script."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain.agents.middleware import ToolErrorMiddleware
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.tools import BaseTool, tool
from langchain_core.utils.function_calling import convert_to_openai_tool

import agent.offline_model
from agent.demo import DEMO_QUESTIONS, demo_toolset
from agent.offline_model import OfflineChatModel
from agent.offline_rules.answers import LABEL
from registry.toolset import Toolset

_SCHEMAS = [convert_to_openai_tool(tool) for tool in demo_toolset().values()]

DISTRACTORS = (
    "convert_temperature",
    "weather_forecast",
    "cancel_order",
    "track_shipment",
    "news_search",
    "archive_search",
    "percentage_of",
    "stock_price_history",
    "add_note",
    "current_time",
)


@pytest.fixture(scope="module")
def toolset() -> Toolset:
    return demo_toolset()


Run = Callable[..., list[AnyMessage]]


@pytest.fixture
def run(toolset: Toolset) -> Run:
    """Run a question through `create_agent`; by default with every demo tool bound."""

    def run_question(question: str, tools: list[BaseTool] | None = None) -> list[AnyMessage]:
        agent = create_agent(
            model=OfflineChatModel(),
            tools=list(toolset.values()) if tools is None else tools,
            middleware=[ToolErrorMiddleware(lambda error, _: str(error))],
        )
        return agent.invoke({"messages": [HumanMessage(question)]})["messages"]

    return run_question


def calls_of(messages: list[AnyMessage]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (call["name"], call["args"])
        for message in messages
        if isinstance(message, AIMessage)
        for call in message.tool_calls
    ]


def some(toolset: Toolset, *names: str) -> list[BaseTool]:
    """The named tools after ten that do not fit, so that neither order nor number decides."""
    return [toolset[name] for name in (*DISTRACTORS, *names) if name in toolset]


DEMO_RUNS: list[tuple[str, tuple[str, ...], list[tuple[str, dict[str, Any]]], tuple[str, ...]]] = [
    (
        DEMO_QUESTIONS[0].text,
        ("refund_policy", "lookup_order"),
        [("lookup_order", {"order_id": "A100"}), ("refund_policy", {})],
        ("Yes", "A100", "2026-10-31", "2026-10-13"),
    ),
    (
        DEMO_QUESTIONS[1].text,
        ("get_weather",),
        [("get_weather", {"city": "Tokyo"})],
        ("18", "cloudy", "Yes", "warm enough"),
    ),
    (
        DEMO_QUESTIONS[2].text,
        ("get_weather", "multiply"),
        [("get_weather", {"city": "Cairo"}), ("multiply", {"first": 31, "second": 3})],
        ("The result is 93.",),
    ),
    (
        DEMO_QUESTIONS[2].text,
        ("get_weather", "calculator"),
        [("get_weather", {"city": "Cairo"}), ("calculator", {"expression": "31 * 3"})],
        ("The result is 93.",),
    ),
    (
        DEMO_QUESTIONS[3].text,
        ("calculator",),
        [("calculator", {"expression": "10 / 0"}), ("calculator", {"expression": "10 / 4"})],
        ("division by zero", "The result is 2.5."),
    ),
    (
        DEMO_QUESTIONS[3].text,
        ("divide",),
        [
            ("divide", {"dividend": 10, "divisor": 0}),
            ("divide", {"dividend": 10, "divisor": 4}),
        ],
        ("division by zero", "The result is 2.5."),
    ),
    (
        DEMO_QUESTIONS[4].text,
        ("get_stock_price",),
        [("get_stock_price", {"symbol": "AAPL"})],
        ("231.3", "sample data"),
    ),
]


@pytest.mark.parametrize(("question", "names", "calls", "parts"), DEMO_RUNS)
def test_demo_questions_among_distractors(
    run: Run,
    toolset: Toolset,
    question: str,
    names: tuple[str, ...],
    calls: list[tuple[str, dict[str, Any]]],
    parts: tuple[str, ...],
) -> None:
    messages = run(question, some(toolset, *names))
    assert calls_of(messages) == calls
    answer = messages[-1].text
    assert answer.startswith(LABEL)
    assert [part for part in parts if part not in answer] == []


def test_the_failed_division_is_seen_before_it_is_mended(run: Run, toolset: Toolset) -> None:
    messages = run(DEMO_QUESTIONS[3].text, some(toolset, "calculator"))
    error = messages[2]
    assert isinstance(error, ToolMessage)
    assert error.status == "error"
    assert "the divisor must not be 0" in messages[3].text
    assert "10 / 4" in messages[3].text


@pytest.mark.parametrize(
    ("question", "calls"),
    [
        (
            "What is 7 / 0? If that fails, divide by 2 instead.",
            ["7 / 0", "7 / 2"],
        ),
        ("What is 3 x 4?", ["3 x 4", "3 * 4"]),
        ("What is 12 ÷ 5 + 2?", ["12 ÷ 5 + 2", "12 / 5 + 2"]),
        ("What is 2 ^ 8?", ["2 ^ 8", "2 ** 8"]),
        ("What is 10 / 0?", ["10 / 0"]),
        ("What is 10 / 0? If that is impossible, divide by 0 instead.", ["10 / 0"]),
    ],
)
def test_a_call_is_mended_only_as_its_error_says(
    run: Run, toolset: Toolset, question: str, calls: list[str]
) -> None:
    messages = run(question, [toolset["calculator"]])
    assert [arguments["expression"] for _, arguments in calls_of(messages)] == calls
    if len(calls) == 1:
        assert "could not be done: division by zero" in messages[-1].text


def test_a_fallback_may_be_another_request(run: Run) -> None:
    messages = run("What is 10 / 0? Otherwise get the weather in Cairo.")
    assert calls_of(messages) == [
        ("calculator", {"expression": "10 / 0"}),
        ("get_weather", {"city": "Cairo"}),
    ]


def test_a_step_no_tool_can_do_is_named(run: Run, toolset: Toolset) -> None:
    messages = run(DEMO_QUESTIONS[2].text, [toolset["get_weather"]])
    assert calls_of(messages) == [("get_weather", {"city": "Cairo"})]
    assert "No bound tool could do this step: “multiply it by 3”." in messages[-1].text


def test_a_fallback_is_not_used_when_nothing_failed(run: Run, toolset: Toolset) -> None:
    messages = run(
        "What is 10 / 5? If that is impossible, divide by 4 instead.", [toolset["calculator"]]
    )
    assert calls_of(messages) == [("calculator", {"expression": "10 / 5"})]


def test_a_spelling_the_error_suggests_is_tried_once(run: Run) -> None:
    @tool
    def get_weather(city: str) -> str:
        """Get the weather in a city."""
        if city == "Munich":
            raise ValueError("unknown city 'Munich'. Did you mean München?")
        return f"{city}: 9 degrees"

    messages = run("What is the weather in Munich?", [get_weather])
    assert calls_of(messages) == [
        ("get_weather", {"city": "Munich"}),
        ("get_weather", {"city": "München"}),
    ]


def test_an_order_number_is_never_replaced_by_a_similar_one(run: Run, toolset: Toolset) -> None:
    messages = run("Cancel order A109", [toolset["cancel_order"]])
    assert calls_of(messages) == [("cancel_order", {"order_id": "A109"})]
    assert "unknown order 'A109'" in messages[-1].text


@pytest.mark.parametrize(
    ("question", "calls"),
    [
        ("Convert 5 feet to cm", [("convert_length", [5, "foot", "cm"])]),
        ("How many kilometres are 26 miles?", [("convert_length", [26, "mile", "km"])]),
        ("How many yen are 200 dollars?", [("convert_currency", [200, "USD", "JPY"])]),
        ("Subtract 3 from 10", [("subtract", [10, 3])]),
        ("How much is 15 % of 80?", [("percentage_of", [15, 80])]),
        ("What is the average of 3, 4 and 1,008?", [("average", [[3, 4, 1008]])]),
        ("My marks are 3, 4 and 8. What is their average?", [("average", [[3, 4, 8]])]),
        (
            "How far is it from Paris to New York?",
            [("distance_between_cities", ["Paris", "New York"])],
        ),
        ("Which weekday is 13.10.2026?", [("day_of_week", ["2026-10-13"])]),
        ("Who was Ada Lovelace?", [("encyclopedia_search", ["Ada Lovelace"])]),
        ('I need the SHA-512 of "a and b"', [("hash_text", ["a and b", "sha512"])]),
        ("What is the share price of Apple?", [("get_stock_price", ["AAPL"])]),
        (
            "Get the temperature in Cairo and convert it to Fahrenheit",
            [("get_weather", ["Cairo"]), ("convert_temperature", [31, "celsius", "fahrenheit"])],
        ),
        (
            "Subtract 3 from 10 and then multiply the result by 2",
            [("subtract", [10, 3]), ("multiply", [7, 2])],
        ),
        (
            "Convert 10 miles to km and then divide it by 2",
            [("convert_length", [10, "mile", "km"]), ("divide", [16.09344, 2])],
        ),
        (
            "What is Berlin's weather and what is the capital of Japan?",
            [("get_weather", ["Berlin"]), ("capital_city", ["Japan"])],
        ),
        ("Wie ist das Wetter in Tokio?", [("get_weather", ["Tokyo"])]),
        ("東京の天気はどうですか。", [("get_weather", ["Tokyo"])]),
        ("Wo ist mein Paket zu A101?", [("track_shipment", ["A101"])]),
        ("A101の荷物は今どこにありますか？", [("track_shipment", ["A101"])]),
        (
            "Hole die Temperatur in Kairo und multipliziere sie mit 3",
            [("get_weather", ["Cairo"]), ("multiply", [31, 3])],
        ),
        (
            "カイロの気温を調べて、それに３を掛けてください",
            [("get_weather", ["Cairo"]), ("multiply", [31, 3])],
        ),
        (
            "Was ist 10 / 0? Wenn das unmöglich ist, teile stattdessen durch 4.",
            [("calculator", ["10 / 0"]), ("calculator", ["10 / 4"])],
        ),
        (
            "10 / 0 はいくつですか？できない場合は、代わりに4で割ってください。",
            [("calculator", ["10 / 0"]), ("calculator", ["10 / 4"])],
        ),
    ],
)
def test_tools_and_arguments_among_all_demo_tools(
    run: Run, question: str, calls: list[tuple[str, list[Any]]]
) -> None:
    made = calls_of(run(question))
    assert [(name, list(arguments.values())) for name, arguments in made] == calls


@pytest.mark.parametrize(
    ("question", "start"),
    [
        ("Will my order A101 be refunded? Today is 2026-10-13.", "Not now: order A101 is shipping"),
        ("Will my order A102 be refunded? Today is 2026-10-13.", "No: order A102 was delivered"),
        ("Will my order A100 be refunded? Today is 2026-10-31.", "Yes: order A100"),
        ("Will my order A100 be refunded? Today is 2026-11-01.", "No: order A100"),
        ("Will my order A100 be refunded?", "Order A100 was delivered on 2026-10-01; it can be"),
        ("Can I get a refund for A999?", "That could not be done: unknown order 'A999'"),
        (
            "Bekomme ich das Geld für meine Bestellung A100 zurück? Heute ist der 2026-10-13.",
            "Ja: Bestellung A100",
        ),
        ("注文A100は返金されますか？今日は2026-10-13です。", "はい。注文A100"),
    ],
)
def test_refunds_compare_delivery_window_and_today(run: Run, question: str, start: str) -> None:
    assert run(question)[-1].text.startswith(f"{LABEL} {start}")


@pytest.mark.parametrize(
    ("question", "part"),
    [
        ("Tell me a joke", "None of the bound tools fits"),
        ("Erzähle mir bitte einen Witz", "Keins der gebundenen Werkzeuge"),
        ("面白い話をしてください", "ツールがありません"),
        ("", "None of the bound tools fits"),
        ("What is the weather?", "None of the bound tools fits"),
    ],
)
def test_it_says_so_when_no_tool_fits(run: Run, question: str, part: str) -> None:
    messages = run(question)
    assert calls_of(messages) == []
    assert messages[-1].text.startswith(LABEL)
    assert part in messages[-1].text


def test_without_tools_it_answers_without_a_call() -> None:
    reply = OfflineChatModel().invoke("What is the weather in Tokyo?")
    assert reply.tool_calls == []
    assert "no language model" in reply.text


def test_a_changing_tool_needs_its_word_in_the_question(run: Run, toolset: Toolset) -> None:
    question = "Where is my order A101?"
    assert calls_of(run(question, [toolset["cancel_order"]])) == []
    assert calls_of(run("Cancel my order A103", [toolset["cancel_order"]])) == [
        ("cancel_order", {"order_id": "A103"})
    ]


def test_the_mechanism_serves_tools_it_has_never_seen(run: Run) -> None:
    @tool
    def find_recipe(query: str) -> str:
        """Search cooking recipes by dish."""
        return f"recipe for {query}"

    @tool
    def count_stars(number_of_galaxies: int) -> int:
        """Estimate the stars in galaxies."""
        return number_of_galaxies * 100

    made = calls_of(run("Find a recipe for lentil soup", [count_stars, find_recipe]))
    assert made == [("find_recipe", {"query": "lentil soup"})]
    made = calls_of(run("How many stars have 3 galaxies?", [find_recipe, count_stars]))
    assert made == [("count_stars", {"number_of_galaxies": 3})]


def test_it_never_repeats_a_call_nor_exceeds_the_limit(toolset: Toolset) -> None:
    question = " and then ".join(f"multiply {n} by {n + 1}" for n in range(2, 12))
    model = OfflineChatModel().bind_tools([toolset["multiply"]])
    messages: list[AnyMessage] = [HumanMessage(question)]
    while True:
        reply = model.invoke(messages)
        messages.append(reply)
        if not reply.tool_calls:
            break
        # The same error every time tempts a rule to try again and again.
        call = reply.tool_calls[0]
        result = toolset["multiply"].invoke(call["args"])
        messages.append(ToolMessage(str(result), tool_call_id=call["id"]))
        assert len(messages) < 40
    made = [json.dumps(call) for call in calls_of(messages)]
    assert len(made) == len(set(made)) == 6


@pytest.mark.parametrize("error", ["boom", "division by zero: the divisor must not be 0"])
def test_an_error_that_stays_ends_the_run(toolset: Toolset, error: str) -> None:
    model = OfflineChatModel().bind_tools([toolset["calculator"]])
    messages: list[AnyMessage] = [HumanMessage(DEMO_QUESTIONS[3].text)]
    for _ in range(10):
        reply = model.invoke(messages)
        messages.append(reply)
        if not reply.tool_calls:
            break
        call_id = reply.tool_calls[0]["id"]
        messages.append(ToolMessage(error, tool_call_id=call_id, status="error"))
    assert len(calls_of(messages)) <= 2
    assert f"could not be done: {error}" in messages[-1].text


def test_only_the_newest_question_counts(toolset: Toolset) -> None:
    model = OfflineChatModel().bind_tools([toolset["get_weather"], toolset["lookup_order"]])
    first = model.invoke([HumanMessage("What is the weather in Tokyo?")])
    history = [
        HumanMessage("What is the weather in Tokyo?"),
        first,
        ToolMessage("{}", tool_call_id=first.tool_calls[0]["id"]),
        AIMessage("done"),
        HumanMessage("What is the weather in Tokyo?"),
    ]
    assert calls_of([model.invoke(history)]) == [("get_weather", {"city": "Tokyo"})]


def test_tool_call_ids_are_unique_and_calls_carry_a_thought(run: Run) -> None:
    messages = run(DEMO_QUESTIONS[0].text)
    asking = [m for m in messages if isinstance(m, AIMessage) and m.tool_calls]
    ids = [call["id"] for message in asking for call in message.tool_calls]
    assert len(set(ids)) == len(ids) == 2
    assert all("I need " in message.text for message in asking)


def test_usage_counts_bound_schemas(toolset: Toolset) -> None:
    question = [SystemMessage("Be brief."), HumanMessage("What is the weather in Tokyo?")]
    few = OfflineChatModel().bind_tools([toolset["get_weather"]]).invoke(question)
    many = OfflineChatModel().bind_tools(list(toolset.values())).invoke(question)
    assert few.usage_metadata is not None
    assert many.usage_metadata is not None
    assert 20 < few.usage_metadata["input_tokens"] < 200
    assert many.usage_metadata["input_tokens"] > 30 * few.usage_metadata["input_tokens"]
    for usage in (few.usage_metadata, many.usage_metadata):
        assert usage["output_tokens"] > 0
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


@pytest.mark.parametrize("question", ["What is the weather in Tokyo?", "Tell me a joke"])
def test_streaming_gives_the_same_message(toolset: Toolset, question: str) -> None:
    model = OfflineChatModel().bind_tools([toolset["get_weather"]])
    whole = model.invoke(question)
    chunks = list(model.stream(question))
    assert len([chunk for chunk in chunks if chunk.content]) > 3
    merged = chunks[0]
    assert isinstance(merged, AIMessageChunk)
    for chunk in chunks[1:]:
        merged = merged + chunk
    assert merged.text == whole.text
    assert calls_of([merged]) == calls_of([whole])
    assert merged.usage_metadata == whole.usage_metadata
    assert merged.response_metadata["finish_reason"] == whole.response_metadata["finish_reason"]


async def test_async_gives_the_same_calls(toolset: Toolset) -> None:
    model = OfflineChatModel().bind_tools([toolset["get_weather"]])
    reply = await model.ainvoke("What is the weather in Tokyo?")
    assert calls_of([reply]) == [("get_weather", {"city": "Tokyo"})]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [("none", []), ("auto", ["lookup_order"]), ("track_shipment", ["track_shipment"])],
)
def test_tool_choice(toolset: Toolset, choice: str, expected: list[str]) -> None:
    tools = [toolset["lookup_order"], toolset["track_shipment"]]
    model = OfflineChatModel().bind_tools(tools, tool_choice=choice)
    reply = model.invoke("Show order A100 and its shipment")
    assert [name for name, _ in calls_of([reply])] == expected


def test_dict_schemas_can_be_bound() -> None:
    schema = {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    }
    reply = OfflineChatModel().bind_tools([schema]).invoke("How is the weather in Rome?")
    assert calls_of([reply]) == [("get_weather", {"city": "Rome"})]


def test_a_built_in_tool_of_a_provider_is_left_alone() -> None:
    model = OfflineChatModel().bind(tools=[{"type": "web_search"}])
    assert calls_of([model.invoke("Search the web for bread")]) == []


_PIECES = st.sampled_from(
    [
        "get the weather in Tokyo ",
        "and then ",
        "multiply it by 3 ",
        "If that fails, ",
        "divide by ",
        "10 / 0 ",
        "A100 ",
        "2026-99-99 ",
        "9" * 5_000,
        "((((",
        '"',
        "「",
        "% ",
        "カイロ",
        "? ",
        "\x00",
        " " * 3_000,
        "{[",
    ]
)


@settings(deadline=None, max_examples=60)
@given(
    question=st.one_of(st.text(max_size=60), st.lists(_PIECES, max_size=8).map("".join)),
    result=st.one_of(st.text(max_size=20), st.sampled_from(["9" * 5_000, "NaN", "[1]", "null"])),
    is_error=st.booleans(),
)
def test_no_question_and_no_result_breaks_it(question: str, result: str, is_error: bool) -> None:
    model = OfflineChatModel().bind(tools=_SCHEMAS)
    messages: list[AnyMessage] = [HumanMessage(question)]
    for _ in range(8):
        reply = model.invoke(messages)
        messages.append(reply)
        if not reply.tool_calls:
            break
        status = "error" if is_error else "success"
        call_id = reply.tool_calls[0]["id"]
        messages.append(ToolMessage(result, tool_call_id=call_id, status=status))
    made = [json.dumps(call) for call in calls_of(messages)]
    assert len(made) == len(set(made)) <= 6
    assert messages[-1].text.startswith(LABEL)


def test_it_calls_itself_no_language_model_everywhere() -> None:
    model = OfflineChatModel()
    assert "no-language-model" in model._llm_type
    assert "no language model" in (OfflineChatModel.__doc__ or "")
    assert "no language model" in model.invoke("Hello").text
    assert model.invoke("Hello").response_metadata["note"] == LABEL


def test_model_and_demo_tools_do_not_know_each_other() -> None:
    folder = Path(agent.offline_model.__file__).parent
    model_files = [folder / "offline_model.py", *sorted((folder / "offline_rules").glob("*.py"))]
    demo_files = sorted((folder / "demo").glob("*.py"))
    assert len(model_files) > 5
    assert len(demo_files) > 5
    assert not {name for path in model_files for name in _imports(path) if "demo" in name}
    assert not {name for path in demo_files for name in _imports(path) if "offline" in name}


def _imports(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found
