"""Filling a tool's arguments from a clause, by name and schema type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from agent.offline_rules.lexicon import (
    CITIES,
    COMPANIES,
    COUNTRIES,
    CURRENCIES,
    STOP_WORDS,
    UNITS,
    concepts,
    places_in,
    spans_of,
)
from registry.text import humanise

__all__ = [
    "Facts",
    "Filled",
    "PreviousNumber",
    "fill_arguments",
    "implied_concepts",
    "normal_expression",
    "read_facts",
    "subject_text",
]

_ID = re.compile(r"(?<![A-Za-z0-9])[A-Z]{1,4}-?\d{2,}(?![A-Za-z0-9])")
_SHA = re.compile(r"(?:SHA-?\d+|CRC-?32|MD5|UTF-?\d+|Base64)", re.IGNORECASE)
_ISO_DATE = re.compile(r"(?<!\d)(\d{4})-(\d{1,2})-(\d{1,2})(?!\d)")
_GERMAN_DATE = re.compile(r"(?<!\d)(\d{1,2})\.\s?(\d{1,2})\.\s?(\d{4})(?!\d)")
_JAPANESE_DATE = re.compile(r"(\d{4})年(\d{1,2})月(\d{1,2})日")
_TIME = re.compile(r"(?<!\d)([01]?\d|2[0-3]):([0-5]\d)(?!\d)")
_NUMBER = re.compile(
    r"(?<![\w.])(?:(?<![\d)] )-)?(?:\d{1,3}(?:,\d{3}){1,90}|\d{1,300})(?:\.\d+)?"
    r"|(?<=[\u3040-\u30ff\u4e00-\u9fff°])\d{1,300}(?:\.\d+)?"
)
_PERCENT = re.compile(r"(\d{1,300}(?:\.\d+)?)\s?(?:%|percent|prozent)", re.IGNORECASE)
_EXPRESSION = re.compile(
    r"(?<![\d.(])\(*-?\d{1,300}(?:\.\d+)?\)*"
    r"(?:\s?(?:\*\*|[-+*/^÷×x:])\s?\(*-?\d{1,300}(?:\.\d+)?\)*)+"
)
_QUOTE = re.compile(r"\"([^\"]*)\"|“([^“”]*)”|„([^„“”]*)[“”]|「([^「」]*)」")
_PRONOUN = re.compile(
    r"\b(?:it|that|the result|this|them|es|sie|das ergebnis|ihn)\b|それ|その結果", re.IGNORECASE
)
_TICKER = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2,5}(?![A-Za-z0-9])")
_NOT_TICKERS = frozenset({"JSON", "CSV", "SQL", "URL", "USD", "EUR", "SHA", "UTC", "AI", "OK"})
_REVERSED = re.compile(r"\b(?:subtract|take)\b.*\bfrom\b|\bziehe\b.*\bvon\b", re.IGNORECASE)
_ABOUT = re.compile(r"\b(?:about|regarding|on|for|zu|zum|zur|über|nach)\b\s+(.+)", re.IGNORECASE)
_JAPANESE_TOPIC = re.compile(r"^(.+?)(?:について|とは|に関する|を提案)")
_WEEKDAY = re.compile(
    r"\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b|\b(?:montag|dienstag|mittwoch|donnerstag|"
    r"freitag|samstag|sonntag)\b|曜日",
    re.IGNORECASE,
)
_PERSON = re.compile(r"^\s*(?:who (?:is|was|were)|wer (?:ist|war|waren))\b", re.IGNORECASE)
_WORD = re.compile(r"[\w'-]+")
_OPERATORS = {"multiply": "*", "divid": "/", "add": "+", "subtract": "-"}


@dataclass(frozen=True, slots=True)
class PreviousNumber:
    """The number an earlier observation holds, with its unit where the key tells it."""

    value: int | float
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Values a clause names, each kind in the order of the text."""

    text: str
    topic: str
    about: frozenset[str]
    expression: str
    numbers: tuple[int | float, ...]
    percents: tuple[int | float, ...]
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


@dataclass(frozen=True, slots=True)
class Filled:
    """Arguments, and how many of them hold a thing the clause names (a city, an id …)."""

    arguments: dict[str, Any]
    named: int


def read_facts(text: str, about: frozenset[str], previous: PreviousNumber | None) -> Facts:
    """Return what a clause names.

    A pronoun stands for the previous number at its place; a clause of arithmetic with one
    number and no pronoun starts from the previous number.
    """
    unquoted = _QUOTE.sub(" ", text)
    bare = " ".join(_SHA.sub(" ", unquoted).split())
    dates = _dates(bare)
    times = [f"{int(hour):02d}:{minute}" for hour, minute in _TIME.findall(bare)]
    for pattern in (_ISO_DATE, _GERMAN_DATE, _JAPANESE_DATE, _TIME):
        bare = pattern.sub(" ", bare)
    ids = _ID.findall(bare)
    bare = _ID.sub(" ", bare)
    placed = [(m.start(), _number(m.group())) for m in _NUMBER.finditer(bare)]
    pronoun = _PRONOUN.search(bare)
    arithmetic = about & set(_OPERATORS)
    if previous is not None and (pronoun or (arithmetic and len(placed) == 1)):
        placed.append((pronoun.start() if pronoun else -1, previous.value))
    numbers = [value for _, value in sorted(placed, key=lambda pair: pair[0])]
    if _REVERSED.search(bare):
        numbers.reverse()
    percents = [
        _number(n) for n in re.findall(r"(\d{1,300}(?:\.\d+)?)\s?(?:%|percent|prozent)", bare)
    ]
    expression = _expression(bare, numbers, about)
    cities = [name for _, name in places_in(bare, CITIES)]
    units, currencies = _measures(bare, previous)
    symbols = [symbol for name, symbol in COMPANIES.items() if name.casefold() in bare.casefold()]
    symbols += [word for word in _TICKER.findall(bare) if word not in {*_NOT_TICKERS, *CURRENCIES}]
    quotes = ["".join(groups) for groups in _QUOTE.findall(text)]
    values = {
        "city": cities,
        "country": [name for _, name in places_in(bare, COUNTRIES)],
        "company": [name for name in COMPANIES if name.casefold() in bare.casefold()],
        "symbol": list(dict.fromkeys(symbols)),
        "currency": currencies,
        "unit": units,
        "date": dates,
        "datetime": [f"{d} {t}" for d, t in zip(dates, times, strict=False)],
        "id": ids,
        "json": _bracketed(text),
        "text": quotes or _after_colon(text),
    }
    return Facts(
        text=text,
        topic=quotes[0] if quotes else _topic(unquoted),
        about=about,
        expression=expression,
        numbers=tuple(numbers),
        percents=tuple(percents),
        values={kind: tuple(found) for kind, found in values.items()},
    )


def subject_text(text: str) -> str:
    """Return the text without quotations and names of places, which are no subject."""
    bare = _QUOTE.sub(" ", text)
    for gazetteer in (CITIES, COUNTRIES):
        for start, end in reversed(spans_of(bare, gazetteer)):
            bare = f"{bare[:start]} {bare[end:]}"
    return bare


def fill_arguments(parameters: Mapping[str, Any], facts: Facts) -> Filled | None:
    """Return arguments for every required parameter, or None when the clause lacks one."""
    properties: Mapping[str, Any] = parameters.get("properties", {})
    required = list(parameters.get("required", ()))
    queues = {kind: list(values) for kind, values in facts.values.items()}
    queues_numbers = {"number": list(facts.numbers), "percent": list(facts.percents)}
    arguments: dict[str, Any] = {}
    named = 0
    for name, schema in properties.items():
        kind = _kind(name, schema)
        if name not in required and kind not in {"enum", "percent"}:
            continue
        value: Any = None
        if kind == "enum":
            value = _enum_value(schema["enum"], facts)
            named += value is not None
        elif kind == "expression":
            value = facts.expression or None
            named += value is not None and _EXPRESSION.search(facts.text) is not None
        elif kind == "numbers":
            value = list(facts.numbers) if len(facts.numbers) > 1 else None
        elif kind in {"number", "percent"}:
            value = _next_number(kind, queues_numbers)
        elif kind == "topic":
            value = facts.topic or None
        elif queues.get(kind):
            value = queues[kind].pop(0)
            named += 1
        if value is not None:
            arguments[name] = value
        elif name in required:
            return None
    return Filled(arguments, named)


def normal_expression(text: str) -> str:
    """Return an expression with plain operators: `10 ÷ 4`, `3 x 2` and `3 × 2` become ASCII."""
    plain = re.sub(r"(?<=[\d)\s])[x×·](?=[\s\d(])", "*", text)
    return re.sub(r"[÷:]", "/", plain).replace("^", "**").replace("−", "-").strip()


_KINDS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"expression", "formula"}), "expression"),
    (frozenset({"zone", "timezone", "city", "location", "place", "town"}), "city"),
    (frozenset({"country", "nation"}), "country"),
    (frozenset({"symbol", "ticker"}), "symbol"),
    (frozenset({"company"}), "company"),
    (frozenset({"currency"}), "currency"),
    (frozenset({"unit", "units"}), "unit"),
    (frozenset({"date"}), "date"),
    (frozenset({"time", "datetime"}), "datetime"),
    (frozenset({"json"}), "json"),
    (frozenset({"id", "order"}), "id"),
    (frozenset({"query", "topic", "term", "question", "keywords", "q", "product"}), "topic"),
)


def _kind(name: str, schema: Mapping[str, Any]) -> str:
    """Return what fills a parameter; a string nothing is known about takes quoted text."""
    words = set(humanise(name).casefold().split())
    if "enum" in schema:
        return "enum"
    if schema.get("type") in {"number", "integer"}:
        return "percent" if words & {"percent", "percentage", "rate"} else "number"
    if schema.get("type") == "array":
        return "numbers" if schema.get("items", {}).get("type") in {"number", "integer"} else "list"
    if schema.get("type") != "string":
        return "unknown"
    return next((kind for names, kind in _KINDS if words & names), "text")


def _next_number(kind: str, queues: dict[str, list[int | float]]) -> int | float | None:
    """Take the next number; one with a percent sign leaves both queues."""
    if kind == "percent" and not queues["percent"]:
        return None
    plain = [n for n in queues["number"] if n not in queues["percent"]]
    source = queues["percent"] if kind == "percent" else plain or queues["number"]
    if not source:
        return None
    value = source.pop(0)
    if value in queues["number"]:
        queues["number"].remove(value)
    return value


def _enum_value(choices: list[Any], facts: Facts) -> Any:
    compact = re.sub(r"[^a-z0-9]", "", facts.text.casefold())
    return next(
        (c for c in choices if re.sub(r"[^a-z0-9]", "", str(c).casefold()) in compact), None
    )


def _number(text: str) -> int | float:
    plain = text.replace(",", "")
    return float(plain) if "." in plain else int(plain)


def _dates(text: str) -> list[str]:
    found: list[tuple[int, str]] = []
    for pattern, order in (
        (_ISO_DATE, (0, 1, 2)),
        (_GERMAN_DATE, (2, 1, 0)),
        (_JAPANESE_DATE, (0, 1, 2)),
    ):
        for match in pattern.finditer(text):
            year, month, day = (int(match.groups()[index]) for index in order)
            try:
                found.append((match.start(), date(year, month, day).isoformat()))
            except ValueError:  # 31 February: hand it over as it is, the tool says what is wrong
                found.append((match.start(), match.group()))
    return [day for _, day in sorted(found)]


def _expression(text: str, numbers: list[int | float], about: frozenset[str]) -> str:
    written = _EXPRESSION.search(text)
    if written:
        return written.group().strip()
    operator = next((sign for name, sign in _OPERATORS.items() if name in about), None)
    if operator and len(numbers) >= 2:
        return f" {operator} ".join(str(number) for number in numbers)
    return ""


def _measures(text: str, previous: PreviousNumber | None) -> tuple[list[str], list[str]]:
    """Return units and currencies; what stands beside a number comes first."""
    units = _named(text, {unit: others for unit, (_, others) in UNITS.items()})
    currencies = _named(text, CURRENCIES)
    if previous is not None and previous.unit and len(units) == 1:
        units.insert(0, previous.unit)
    return units, currencies


def _named(text: str, spellings: Mapping[str, str]) -> list[str]:
    found: dict[str, tuple[bool, int]] = {}
    for name, others in spellings.items():
        for spelling in (name, *others.split()):
            bound = r"(?![^\W\u3040-\u9fff])" if spelling[-1].isascii() else ""
            # `98m` is a measure, `him` is not: a letter before rules it out, a digit does not.
            start = r"(?<![^\W\d\u3040-\u9fff])" if spelling[0].isascii() else ""
            for match in re.finditer(f"{start}{re.escape(spelling)}{bound}", text, re.IGNORECASE):
                before = text[: match.start()].rstrip()
                after = text[match.end() :].lstrip()
                beside = before[-1:].isdigit() or (
                    after[:1].isdigit() and not spelling[0].isascii()
                )
                place = (not beside, match.start())
                found[name] = min(found.get(name, place), place)
    return sorted(found, key=found.__getitem__)


def _bracketed(text: str) -> list[str]:
    match = re.search(r"\{.*\}|\[.*\]", text, re.DOTALL)
    return [match.group()] if match else []


def _after_colon(text: str) -> list[str]:
    head, colon, tail = text.partition(": ")
    return [tail.strip()] if colon and head and tail.strip() else []


def _topic(text: str) -> str:
    """Return what a search should look for: what follows `about`, else the content words."""
    japanese = _JAPANESE_TOPIC.match(text)
    if japanese:
        return japanese.group(1).strip()
    about = _ABOUT.search(text)
    words = _WORD.findall(about.group(1) if about else text)
    while words and words[0].casefold() in STOP_WORDS:
        words.pop(0)
    kept = [word for word in words if word.casefold() not in STOP_WORDS]
    return " ".join(kept)


def implied_concepts(facts: Facts) -> frozenset[str]:
    """Return concepts that the named values imply: two units ask for a conversion."""
    implied: set[str] = set()
    if facts.expression or facts.about & set(_OPERATORS):
        implied |= concepts("calculate")
    if "/" in facts.expression:
        implied |= concepts("divide")
    if facts.values["id"]:
        implied |= concepts("order")
    if facts.percents:
        implied |= concepts("percentage")
    if len(facts.values["date"]) > 1:
        implied |= concepts("days")
    if facts.values["datetime"] and len(facts.values["city"]) > 1:
        implied |= concepts("convert time zone")
    if _SHA.search(facts.text):
        implied |= concepts("hash checksum")
    if _WEEKDAY.search(facts.text):
        implied |= concepts("weekday day")
    if _PERSON.match(facts.text):
        implied |= concepts("encyclopedia")
    kinds = {UNITS[unit][0] for unit in facts.values["unit"]}
    if kinds and (facts.numbers or len(facts.values["unit"]) > 1):
        implied |= concepts(" ".join((*kinds, "convert")))
    if len(facts.values["currency"]) > 1:
        implied |= concepts("convert currency")
    return frozenset(implied)
