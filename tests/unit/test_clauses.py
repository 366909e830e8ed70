"""Compound questions, cut into parts."""

from __future__ import annotations

import re
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from registry import clauses as module
from registry.clauses import MAX_CLAUSES, clauses
from registry.lexical import lexical_terms


@pytest.mark.parametrize(
    ("question", "parts"),
    [
        (
            "Show the weather in Paris and send a mail to Ann",
            ["Show the weather in Paris", "send a mail to Ann"],
        ),
        (
            "Convert 10 euros to dollars, then book a flight to Rome.",
            ["Convert 10 euros to dollars", "book a flight to Rome."],
        ),
        (
            "Zeige das Wetter in Berlin und sende eine Nachricht an Anna",
            ["Zeige das Wetter in Berlin", "sende eine Nachricht an Anna"],
        ),
        (
            "Affiche la météo de Paris et puis envoie un message à Anne",
            ["Affiche la météo de Paris", "envoie un message à Anne"],
        ),
        (
            "Muestra el tiempo en Madrid y luego envía un correo a Ana",
            ["Muestra el tiempo en Madrid", "envía un correo a Ana"],
        ),
        (
            "Mostra il meteo di Roma e poi manda un messaggio ad Anna",
            ["Mostra il meteo di Roma", "manda un messaggio ad Anna"],
        ),
        (
            "Mostre o clima de Lisboa e depois envie um email para Ana",
            ["Mostre o clima de Lisboa", "envie um email para Ana"],
        ),
        (
            "Toon het weer in Utrecht en dan stuur een bericht naar Anna",
            ["Toon het weer in Utrecht", "stuur een bericht naar Anna"],
        ),
        ("查询北京的天气，然后发送邮件给小明", ["查询北京的天气", "发送邮件给小明"]),
        (
            "東京の天気予報を調べて、そして会議室を予約して",
            ["東京の天気予報を調べて", "会議室を予約して"],
        ),
        (
            "서울 날씨를 알려줘 그리고 회의실을 예약해줘",
            ["서울 날씨를 알려줘", "회의실을 예약해줘"],
        ),
        (
            "Zeig das Wetter in Berlin und danach buche einen Flug nach Rom",
            ["Zeig das Wetter in Berlin", "buche einen Flug nach Rom"],
        ),
        (
            "Muestra el tiempo en Madrid y también envía un correo a Ana",
            ["Muestra el tiempo en Madrid", "envía un correo a Ana"],
        ),
        ("查询北京的天气最后发送邮件给小明", ["查询北京的天气", "发送邮件给小明"]),
        (
            "1. Show the weather in Paris 2. Send a mail to Ann 3. Book a flight to Rome",
            ["Show the weather in Paris", "Send a mail to Ann", "Book a flight to Rome"],
        ),
        (
            "Please do this: (1) show the weather in Paris (2) send a mail to Ann",
            ["show the weather in Paris", "send a mail to Ann"],
        ),
        (
            "a) Show the weather in Paris b) Send a mail to Ann",
            ["Show the weather in Paris", "Send a mail to Ann"],
        ),
        (
            "Find flights to Rome.\nBook a hotel near the station!",
            ["Find flights to Rome.", "Book a hotel near the station!"],
        ),
        (
            'He said "open the door." Then close all windows.',
            ['He said "open the door.', "Then close all windows."],
        ),
    ],
)
def test_compound_questions(question: str, parts: list[str]) -> None:
    assert clauses(question) == parts


@pytest.mark.parametrize(
    "question",
    [
        "",
        " ",
        "weather",
        "What is the weather in Paris?",
        "Buy salt and pepper",
        "Add 10 and 20",
        "Multiply 10, 20, 30 and 40",
        "Thank you! Show the weather in Paris.",
        "Hello, can you show me the weather in Paris?",
        "Play rock and roll",
        "Multiply matrix (a) with matrix (b) of size 3) now",
        "What does step 2) of recipe 1) say about sugar?",
        "Salz und Pfeffer kaufen",
        "Is it black and white?",
        "and and and",
        "天気と気温",
        "🎉, 🎉 and 🎉",
        "\x00, \ud800 and \udfff",
    ],
)
def test_simple_questions_stay_whole(question: str) -> None:
    assert clauses(question) == []


def test_of_too_many_the_smallest_parts_of_a_sentence_are_joined_first() -> None:
    question = (
        "Open red windows, close blue doors and water all green plants in the garden today. "
        "Read my mail. Call uncle Bob. Book cheap flights."
    )
    assert clauses(question) == [
        "Open red windows, close blue doors, water all green plants in the garden today.",
        "Read my mail.",
        "Call uncle Bob.",
        "Book cheap flights.",
    ]


def test_sentences_are_joined_when_there_are_too_many() -> None:
    parts = clauses(" ".join(f"Open window{'abcdefgh'[n]} now." for n in range(8)))
    assert len(parts) == MAX_CLAUSES
    assert " ".join(parts) == " ".join(f"Open window{'abcdefgh'[n]} now." for n in range(8))


_WORDS = st.sampled_from(
    [
        *"and und et y e en then , . ; ， 、 そして 然后 그리고 the a 10 send mail Paris".split(),
        *("天気", "🎉", "\n"),
    ]
)


@given(
    st.lists(_WORDS, max_size=60).map(" ".join)
    | st.lists(_WORDS, max_size=60).map("".join)
    | st.text(st.characters(codec=None))
)
@example("a, " * 50)
def test_parts_of_any_text(question: str) -> None:
    parts = clauses(question)
    assert len(parts) != 1
    assert len(parts) <= MAX_CLAUSES
    for part in parts:
        assert part == part.strip() != ""
        assert lexical_terms(part)
        assert all(word in question for word in re.split(r"[\s,]+", part))


@given(
    st.lists(st.sampled_from(["open door", "send mail", "check weather"]), min_size=2, max_size=9)
)
def test_no_part_is_lost(asked: list[str]) -> None:
    parts = clauses(" and ".join(asked))
    assert lexical_terms(" ".join(parts)) == lexical_terms(" ".join(asked))


@pytest.mark.parametrize(
    "text",
    [
        ", ",
        "a, ",
        "12, ",
        "12 and ",
        "get rain, find sun, ",
        "and ",
        "天気、",
        ". ",
        "\n",
        " ",
        "，",
    ],
)
def test_work_grows_with_the_length_and_ends_where_texts_are_documents(text: str) -> None:
    """Characters read, not time: lists of numbers once cost the square of their length."""
    read = {length: _characters_read(text * (length // len(text))) for length in (1_000, 4_000)}
    assert read[1_000] <= 5 * 1_000
    assert read[4_000] <= 5 * 4_000
    assert clauses(text * 100_000) == []
    assert _characters_read(text * 100_000) == 0


def _characters_read(question: str) -> int:
    read = 0

    def counted(text: str) -> list[str]:
        nonlocal read
        read += len(text)
        return lexical_terms(text)

    with patch.object(module, "lexical_terms", counted):
        clauses(question)
    return read
