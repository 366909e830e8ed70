"""Vectors and words in one search, on a real database."""

from __future__ import annotations

import asyncio
import json
import math
import random
import threading
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import psycopg
import pytest
from psycopg.rows import dict_row

from registry import RegistrySettings, ToolRegistry, ToolSpec
from registry.errors import (
    ConfigurationError,
    EmbeddingError,
    EmbeddingUnavailableError,
    InvalidQueryError,
)
from registry.evaluation import EvaluationQuestion, aevaluate
from registry.relevance import DEFAULT_THRESHOLD
from registry.statements import index_name
from registry.statements import words as words_statements
from registry.types import ToolHit
from tests.integration.conftest import EitherRegistry, OpenRegistry
from tests.support.catalogue import many_specs, spec
from tests.support.databases import psycopg_url
from tests.support.embeddings import HashEmbeddings
from tests.support.words import bm25, common_words, rows, stored_words

_PLAIN = RegistrySettings(clauses=False, auto_calibrate=False)
_VECTORS = RegistrySettings(word_weight=0, clauses=False, auto_calibrate=False)


class Synonyms(HashEmbeddings):
    """Knows that some words mean the same."""

    _MEANING: ClassVar = {"automobile": "car", "purchase": "buy", "acquire": "buy"}

    def _vector(self, text: str) -> list[float]:
        for word, meant in self._MEANING.items():
            text = text.casefold().replace(word, meant)
        return super()._vector(text)


class Unrelated(HashEmbeddings):
    """Any other text is anywhere."""

    def _vector(self, text: str) -> list[float]:
        chance = random.Random(text)
        return [chance.gauss(0, 1) for _ in range(self.dimensions)]


def names(hits: list[ToolHit]) -> list[str]:
    return [hit.tool_name for hit in hits]


def argument(name: str, description: str = "") -> dict[str, Any]:
    properties = {name: {"type": "string", "description": description}}
    return {"type": "object", "properties": properties}


# ---------------------------------------------------------------- what finds what


@pytest.mark.parametrize(
    "found_by",
    [
        {"args_schema": argument("ibanOfBeneficiaryBank")},
        {"args_schema": argument("x", "The IBAN of the beneficiary's bank.")},
        {"args_schema": {"properties": {"payee": argument("iban", "Bank of the beneficiary.")}}},
    ],
)
async def test_words_find_what_the_vector_misses(
    open_registry: OpenRegistry, found_by: Mapping[str, Any]
) -> None:
    """Argument names and their descriptions are in no vector."""
    tools = [spec("pay", "Transfer money abroad.", **found_by), *many_specs(150)]
    hybrid = await open_registry(embeddings=Unrelated(), settings=_PLAIN)
    await hybrid.sync(tools)
    vectors = await open_registry(embeddings=Unrelated(), settings=_VECTORS)
    question = "Look up which bank a beneficiary's IBAN belongs to"
    # Beyond the candidates by vector, so only its words can bring it in.
    assert "pay" not in names(await vectors.search(question, k=50, threshold=0))
    hits = await hybrid.search(question, k=20, threshold=0)
    assert "pay" in names(hits)
    assert {hit.tool_name for hit in hits if hit.parts.words > 0} == {"pay"}


async def test_examples_count_among_words(open_registry: OpenRegistry) -> None:
    registry = await open_registry(settings=_PLAIN)
    await registry.sync([spec("quiet", "Act.", examples=("Zeig mir Zugluft",)), *many_specs(80)])
    hits = await registry.search("Zugluft", threshold=0)
    assert hits[0].tool_name == "quiet"
    assert hits[0].parts.words > 0


async def test_vectors_find_what_no_word_tells(open_registry: OpenRegistry) -> None:
    registry = await open_registry(embeddings=Synonyms(), settings=_PLAIN)
    await registry.sync([spec("dealer", "Buy car."), *many_specs(80)])
    hits = await registry.search("acquire automobile", threshold=0)
    assert hits[0].tool_name == "dealer"
    assert hits[0].parts.words == 0


async def test_the_parts_of_a_score_add_up(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    await registry.sync([*many_specs(60), spec("mail", "Send mail."), spec("rain", "Show rain.")])
    hits = await registry.search("Send mail to Ann and show rain in Paris", k=20, threshold=0)
    for hit in hits:
        parts = hit.parts
        total = parts.vector + parts.words + parts.route + parts.clause_vector + parts.clause_words
        assert total == pytest.approx(hit.score)
        assert parts.clause in ("Send mail to Ann", "show rain in Paris")
    assert {hit.tool_name: hit.parts.clause for hit in hits[:2]} == {
        "mail": "Send mail to Ann",
        "rain": "show rain in Paris",
    }
    assert [hit.rank for hit in hits] == list(range(1, 21))


async def test_settings_switch_words_and_clauses_off(open_registry: OpenRegistry) -> None:
    embeddings = HashEmbeddings()
    registry = await open_registry(embeddings=embeddings, settings=_VECTORS)
    await registry.sync(many_specs(60))
    question = "Handle alpha case 3 and send beta case 4"
    embeddings.calls.clear()
    hits = await registry.search(question, k=60, threshold=0)
    assert embeddings.calls == [[question]]
    assert [hit.distance for hit in hits] == sorted(hit.distance for hit in hits)
    assert {(hit.parts.words, hit.parts.clause) for hit in hits} == {(0.0, "")}
    words = await open_registry(embeddings=embeddings, settings=_PLAIN)
    hits = await words.search(question, k=60, threshold=0)
    assert {hit.parts.clause for hit in hits} == {""}
    assert hits[0].parts.words > 0


# ---------------------------------------------------------------- BM25


def random_catalogue(seed: int) -> list[ToolSpec]:
    """Words as rare as in texts: the n-th is in about one of n tools."""
    chance = random.Random(seed)
    vocabulary = [f"word{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(120)]
    weights = [1 / (n + 1) for n in range(120)]

    def text(most: int) -> str:
        return " ".join(chance.choices(vocabulary, weights, k=chance.randint(1, most)))

    return [
        spec(
            f"t{number}",
            text(30),
            display_name=text(2),
            examples=tuple(text(5) for _ in range(chance.randint(0, 2))),
            args_schema=argument(text(1), text(6)),
        )
        for number in range(chance.choice([3, 40, 150]))
    ]


def random_questions(seed: int) -> Iterator[str]:
    chance = random.Random(seed)
    vocabulary = [f"word{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(125)]
    for size in (1, 1, 2, 3, 5, 8, 40):
        yield " ".join(chance.choices(vocabulary, k=size))


async def assert_bm25_is_right(registry: EitherRegistry, seed: int, **limits: Any) -> int:
    """Compare with a plain formula; return how many scores were not nothing."""
    words = stored_words(registry.database_url, registry.namespace)
    ((tools, mean_length),) = rows(
        registry.database_url,
        "SELECT tools, mean_length FROM tool_corpus WHERE namespace = %s",
        registry.namespace,
    )
    counted = common_counts(registry)
    compared = 0
    for question in random_questions(seed):
        right = bm25(
            question, words, tools=tools, mean_length=mean_length, counted=counted, **limits
        )
        hits = await registry.search(question, k=1_000, threshold=0)
        assert len(hits) == len(words)
        for hit in hits:
            ours = hit.parts.words / registry.settings.word_weight
            assert ours == pytest.approx(right.get(hit.tool_name, 0.0), rel=1e-4, abs=1e-5)
        compared += len(right)
    return compared


def common_counts(registry: EitherRegistry) -> dict[str, int]:
    """Return the words that were counted, with the number of their tools."""
    statement = "SELECT term, tools FROM tool_term_count WHERE namespace = %s"
    return dict(rows(registry.database_url, statement, registry.namespace))


@pytest.mark.parametrize("seed", range(6))
async def test_words_are_weighed_as_bm25_says(open_registry: OpenRegistry, seed: int) -> None:
    registry = await open_registry(settings=_PLAIN)
    tools = random_catalogue(seed)
    await registry.sync(tools)
    assert await assert_bm25_is_right(registry, seed)
    # Frequencies are those of this moment; numbers and mean length those counted last.
    for tool in tools[:: len(tools) // 3]:
        await registry.deactivate(tool.tool_name)
    await registry.update_tool(tools[1].tool_name, description="wordaa wordab wordzz")
    await assert_bm25_is_right(registry, seed + 100)


@pytest.mark.parametrize("most", [1, 30, 90, 400])
async def test_rare_words_are_read_before_common_ones(
    open_registry: OpenRegistry, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(words_statements, "MAX_POSTINGS", most)
    registry = await open_registry(settings=_PLAIN)
    tools = [*random_catalogue(2), *(spec(f"u{n}", f"wordaa wordab u{n}x") for n in range(60))]
    await registry.sync(tools)
    counted = common_counts(registry)
    assert counted == common_words(stored_words(registry.database_url)) != {}
    assert await assert_bm25_is_right(registry, 7, max_postings=most)


async def test_each_clause_has_its_own_words(open_registry: OpenRegistry) -> None:
    registry = await open_registry(settings=RegistrySettings(auto_calibrate=False))
    await registry.sync([*many_specs(60), spec("mail", "Send mail."), spec("rain", "Show rain.")])
    words = stored_words(registry.database_url)
    ((tools, mean_length),) = rows(
        registry.database_url, "SELECT tools, mean_length FROM tool_corpus"
    )
    hits = await registry.search("Send mail to Ann and show rain in Paris", threshold=0)
    for hit in hits[:2]:
        right = bm25(
            hit.parts.clause,
            words,
            tools=tools,
            mean_length=mean_length,
            counted=common_counts(registry),
        )
        expected = registry.settings.word_weight * right[hit.tool_name]
        assert hit.parts.clause_words == pytest.approx(expected, rel=1e-4)


async def test_words_of_another_namespace_never_count(open_registry: OpenRegistry) -> None:
    registry = await open_registry(settings=_PLAIN)
    await registry.sync(random_catalogue(1))
    question = next(random_questions(3))
    before = await registry.search(question, k=200, threshold=0)
    for namespace in ("default2", "Default", "default:x"):
        other = await open_registry(
            settings=RegistrySettings(namespace=namespace, auto_calibrate=False)
        )
        await other.sync([spec(f"o{n}", f"{question} again") for n in range(40)])
    assert await registry.search(question, k=200, threshold=0) == before


# ---------------------------------------------------------------- odd questions


@pytest.mark.parametrize(
    "question",
    [
        "Is it on, or is it off?",
        "🎉🔥",
        "木",
        "12 34",
        "\x00",
        "a\x00b",
        "'; DROP TABLE tool_term; --",
        "%(terms)s %s {terms}",
        "天気, 気温 と 湿度",
        "x" * 20_000,
        "alpha beta " * 2_000,
        " ".join(f"word{n}x" for n in range(3_000)),
        "1, 2, " * 3_000,
        ", " * 10_000,
    ],
    ids=lambda question: repr(question[:12]),
)
async def test_any_question_is_answered(open_registry: OpenRegistry, question: str) -> None:
    registry = await open_registry(settings=RegistrySettings(auto_calibrate=False))
    await registry.sync(many_specs(7))
    hits = await registry.search(question, k=1_000, threshold=0)
    assert len(hits) == 7
    assert all(math.isfinite(hit.score) for hit in hits)


@pytest.mark.parametrize("question", ["", " \n", "\ud800 and more", None, 5, b"text"])
async def test_what_is_no_question_is_refused(open_registry: OpenRegistry, question: Any) -> None:
    registry = await open_registry(settings=RegistrySettings(auto_calibrate=False))
    await registry.sync(many_specs(7))
    with pytest.raises(InvalidQueryError):
        await registry.search(question)


@pytest.mark.parametrize("k", [1, 49, 50, 51, 120, 1_000])
async def test_as_many_hits_as_asked_for(open_registry: OpenRegistry, k: int) -> None:
    registry = await open_registry(settings=RegistrySettings(auto_calibrate=False))
    await registry.sync(many_specs(130))
    hits = await registry.search("Handle alpha case 3 and send beta case 4", k=k, threshold=0)
    assert len(hits) == min(k, 130)
    assert len({hit.tool_name for hit in hits}) == len(hits)


async def test_a_search_that_asks_for_more_begins_alike(open_registry: OpenRegistry) -> None:
    """k within the number of candidates changes nothing of what comes first."""
    registry = await open_registry(settings=RegistrySettings(auto_calibrate=False))
    await registry.sync(many_specs(130))
    question = "Handle alpha case 3 and send beta case 4"
    first = await registry.search(question, k=3, threshold=0)
    assert (await registry.search(question, k=40, threshold=0))[:3] == first


# ---------------------------------------------------------------- plans


def plan_of(registry: ToolRegistry, question: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the nodes of the plan a search runs with, and the texts of its vectors."""
    registry.open()
    parts = registry._parts(question)
    vectors = registry.embedder.embed_queries(parts)
    search, settings = registry._search_statement(len(parts), 5), registry._search_settings(5)
    values = search.values(registry._search_parameters(parts, vectors, 5))
    with psycopg.connect(psycopg_url(registry.url)) as connection:
        cursor = psycopg.RawCursor(connection, row_factory=dict_row)
        cursor.execute(settings.sql.encode(), settings.values({}))
        explain = f"EXPLAIN (VERBOSE, FORMAT JSON) {search.sql}"
        (row,) = cursor.execute(explain.encode(), values).fetchall()
    return list(nodes(row["QUERY PLAN"][0]["Plan"])), vectors


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


@pytest.mark.parametrize("count", [300, 2_500])
def test_words_are_read_from_their_index_and_vectors_parsed_once(
    database_url: str, count: int
) -> None:
    settings = RegistrySettings(auto_calibrate=False)
    embeddings = HashEmbeddings(512)
    with ToolRegistry(database_url, embeddings=embeddings, settings=settings) as registry:
        registry.sync(many_specs(count))
        with psycopg.connect(psycopg_url(database_url), autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
        plan, vectors = plan_of(registry, "Handle alpha case 3 and send beta case 4")
    assert len(vectors) == 3
    of_words = [node for node in plan if node.get("Relation Name") == "tool_term"]
    assert of_words
    for node in of_words:
        assert node["Node Type"] == "Index Only Scan"
        assert node["Index Name"] == "uq_tool_term_namespace_term_tool_number"
        assert f"{node['Alias']}.term = " in node["Index Cond"]
    parsed = 0
    for node in plan:
        own = json.dumps({name: value for name, value in node.items() if name != "Plans"})
        if any(vector[:40] in own for vector in vectors):
            assert node.get("Subplan Name", "").startswith("InitPlan"), own[:300]
            parsed += 1
    assert parsed >= len(vectors)
    walks = [node for node in plan if node.get("Index Name") == index_name(1)]
    assert bool(walks) == (count >= settings.index_min_tools)


# ---------------------------------------------------------------- field reports

_FILE_TOOLS = [
    spec("read_file", "Read the text of a file on disk.", args_schema=argument("path")),
    spec("write_file", "Write text to a file on disk.", args_schema=argument("path")),
    spec("delete_file", "Delete a file from disk for good.", args_schema=argument("path")),
    spec("list_folder", "List the files in a folder.", args_schema=argument("folder")),
    spec("search_files", "Search files for a text.", args_schema=argument("pattern")),
    spec("rename_file", "Rename or move a file.", args_schema=argument("new_name")),
    spec("copy_file", "Copy a file to another folder.", args_schema=argument("target")),
]
_MORE_FILE_TOOLS = [
    spec(line.partition("|")[0], line.partition("|")[2])
    for line in (
        "append_file|Append text to the end of a file.",
        "create_folder|Create an empty folder.",
        "delete_folder|Delete a folder with everything in it.",
        "move_folder|Move a folder to another place on the disk.",
        "file_size|Size of a file in bytes.",
        "file_owner|Who owns a file.",
        "change_owner|Change the owner of a file or folder.",
        "change_permissions|Change who may read and write a file.",
        "compress_folder|Compress a folder into a zip archive.",
        "extract_archive|Extract a zip or tar archive into a folder.",
        "compare_files|Compare two text files line by line.",
        "hash_file|Compute the checksum of a file.",
        "count_lines|Count the lines of a text file.",
        "tail_file|Read the last lines of a log file.",
        "watch_folder|Tell when a file in a folder changes.",
        "find_duplicates|Find files with equal content.",
        "disk_usage|How full a disk is.",
        "mount_disk|Mount a disk or a network share.",
        "link_file|Make a symbolic link to a file.",
        "empty_trash|Delete what is in the trash for good.",
    )
]
_FITTING = {
    "What files are in my downloads folder?": "list_folder",
    "Delete the file old.txt": "delete_file",
    "Read me the text of the file notes.md": "read_file",
    "Find all files that contain the text invoice": "search_files",
    "Copy the file report.pdf to another folder": "copy_file",
}
_UNFIT = [
    "Book an appointment with a dentist",
    "What is the capital of Australia?",
    "Play some jazz in the kitchen",
    "How do I bake a chocolate cake?",
    "Wie wird das Wetter morgen in Berlin?",
]


async def test_ret_3_weak_matches_are_no_matches(open_registry: OpenRegistry) -> None:
    """RET-3: the floor is absolute: no best of the bad reaches a threshold that right tools do."""
    registry = await open_registry(embeddings="builtin")
    await registry.sync(_FILE_TOOLS)
    right = []
    for question, tool_name in _FITTING.items():
        hits = await registry.search(question, threshold=0)
        right += [hit.relevance for hit in hits if hit.tool_name == tool_name]
    assert len(right) == len(_FITTING)
    least = min(right)
    for question in _UNFIT:
        everything = await registry.search(question, threshold=0, k=20)
        assert len(everything) == len(_FILE_TOOLS)
        assert await registry.search(question, threshold=least, k=20) == []
        assert await registry.search(question, threshold=1.0) == []


async def test_ret_3_at_the_default_threshold_of_a_calibrated_registry(
    open_registry: OpenRegistry,
) -> None:
    """RET-3: nobody has to know a number; what no tool can do is offered none."""
    registry = await open_registry(embeddings="builtin")
    await registry.sync([*_FILE_TOOLS, *_MORE_FILE_TOOLS])
    assert registry.threshold == DEFAULT_THRESHOLD
    for question, tool_name in _FITTING.items():
        assert tool_name in names(await registry.search(question)), question
    for question in _UNFIT:
        assert await registry.search(question) == [], question
        found = await registry.select(question)
        assert len(found.hits) == 5, "with their scores, to be looked at"
        assert all(0 < hit.relevance < found.threshold for hit in found.hits)


@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.2, 0.5, 0.6, 0.9, 1.0])
async def test_ret_3_a_threshold_only_takes_hits_away(
    open_registry: OpenRegistry, threshold: float
) -> None:
    """RET-3: what reaches the threshold is offered, in the order it had, whatever else is there."""
    registry = await open_registry(embeddings="builtin")
    await registry.sync(_FILE_TOOLS)
    for question in [*_FITTING, *_UNFIT, "List files and book a dentist for Ann"]:
        everything = await registry.search(question, threshold=0, k=20)
        kept = await registry.search(question, threshold=threshold, k=20)
        assert names(kept) == [h.tool_name for h in everything if h.relevance >= threshold]


_NARROW = """
weather_forecast|Weather forecast for a city and day.|Will it rain in Oslo tomorrow?
send_email|Send an e-mail to a person.|Mail Anna that the meeting moved
create_event|Create a calendar event.|Put lunch with Ben into my calendar
convert_currency|Convert an amount between currencies.|How many yen are 20 dollars?
translate_text|Translate a text to another language.|Translate good morning to French
read_file|Read a text file from disk.|Show me what is in notes.txt
run_sql|Run an SQL query against the database.|Query the database for last month's orders
resize_image|Resize an image to a width and height.|Make photo.png 800 pixels wide
stock_price|Current price of a share.|What does an Apple share cost?
book_flight|Book a flight between two airports.|Book a flight from Paris to Rome
find_restaurant|Find restaurants near a place.|A good Italian restaurant near the station
play_music|Play a song or an album.|Play something by Miles Davis
set_alarm|Set an alarm clock.|Wake me at seven
track_parcel|Track a parcel by its number.|Where is my parcel 12345?
search_web|Search the web for pages.|Search the web for python tutorials
summarise_page|Summarise a web page.|Summarise the page example.org
create_ticket|Create a support ticket.|Open a ticket about the broken printer
git_commit|Commit staged changes to git.|Commit my changes with a message
run_tests|Run the unit tests of a project.|Do the unit tests pass?
lint_code|Check source code for style problems.|Check this code for style
unzip_archive|Extract a zip archive.|Extract backup.zip
draw_chart|Draw a chart from numbers.|Draw a bar chart of sales
count_words|Count the words of a text.|How many words has this text?
hash_text|Compute the SHA-256 hash of a text.|SHA-256 of hello
generate_password|Generate a random password.|Make me a random password of 20 characters
timezone_now|Current time in a time zone.|What time is it in Tokyo?
dictionary_lookup|Look up the definition of a word.|Define the word serendipity
recipe_search|Find cooking recipes by ingredient.|A recipe with leeks and potatoes
open_ports|List open network ports of a host.|Which ports are open on the server?
unit_converter|Convert lengths, weights and temperatures.|How many miles are 10 kilometres?
"""


_EVERY_TEXT = " ".join(
    " ".join(line.split("|")[:2]).replace("_", " ") for line in _NARROW.strip().splitlines()
)


@pytest.mark.parametrize(
    "broad",
    [
        "Do any task with code, files, web or data: run, read, write, search, send, convert, "
        "compute, create, find and show anything you want.",
        "Do anything.",
        _EVERY_TEXT,
        _EVERY_TEXT * 9,
    ],
    ids=["as reported", "short", "says what all others say", "says it nine times"],
)
async def test_ret_8_a_tool_for_everything_wins_no_search(
    open_registry: OpenRegistry, broad: str
) -> None:
    """RET-8: thirty narrow tools stay in the first five; the broad one seldom comes first."""
    narrow = [line.split("|") for line in _NARROW.strip().splitlines()]
    assert len(narrow) == 30
    registry = await open_registry(embeddings="builtin")
    await registry.sync([spec("run_anything", broad), *(spec(n, text) for n, text, _ in narrow)])
    missed, won = [], []
    for name, _, question in narrow:
        found = names(await registry.search(question, threshold=0))
        missed += [question] if name not in found else []
        won += [question] if found[0] == "run_anything" else []
    assert missed == []
    assert len(won) <= 2, won


async def test_ret_8_a_tool_marked_fallback_is_ranked_last(open_registry: OpenRegistry) -> None:
    """RET-8: even one with every question as its example, which wins every search unmarked."""
    narrow = [line.split("|") for line in _NARROW.strip().splitlines()]
    questions = [question for *_, question in narrow]
    tools = [spec(name, text) for name, text, _ in narrow]
    greedy = [
        spec(f"run_anything_{n}", "Do any task.", examples=tuple(questions[n * 3 : n * 3 + 3]))
        for n in range(10)
    ]
    registry = await open_registry(embeddings="builtin")
    await registry.sync(tools)
    alone = {q: names(await registry.search(q, threshold=0)) for q in questions}
    await registry.sync([*tools, *greedy])
    won = [(await registry.search(q, threshold=0))[0].tool_name for q in questions]
    assert sum(name.startswith("run_anything") for name in won) >= 20, "the test tells something"

    report = await registry.sync([*tools, *(each.replace(fallback=True) for each in greedy)])
    assert list(report.updated) == [each.tool_name for each in greedy]
    assert report.embedded == 0
    missed = []
    for name, _, question in narrow:
        hits = await registry.search(question, threshold=0)
        assert not any(hit.fallback for hit in hits), question
        missed += [question] if name not in names(hits) else []
        assert set(names(hits)) >= set(alone[question][:2])
        everything = await registry.search(question, k=40, threshold=0)
        assert [hit.rank for hit in everything] == list(range(1, len(everything) + 1))
        assert [hit.fallback for hit in everything] == [False] * 30 + [True] * 10
    assert missed == []


async def test_ret_8_a_fallback_tool_is_offered_where_no_narrow_one_fits(
    open_registry: OpenRegistry,
) -> None:
    """RET-8: in the places that are left, and it lends no other tool its relevance."""
    narrow = [line.split("|") for line in _NARROW.strip().splitlines()]
    tools = [spec(name, text) for name, text, _ in narrow]
    question = "Gruesome daffodils quarrel about the marmalade"
    broad = spec("run_anything", "Do any task.", examples=(question,), fallback=True)
    registry = await open_registry(embeddings="builtin")
    await registry.sync([*tools, broad])
    everything = await registry.search(question, k=31, threshold=0)
    assert everything[-1].tool_name == "run_anything"
    others, own = everything[:-1], everything[-1]
    assert own.score > others[0].score
    assert own.relevance > others[0].relevance
    between = (own.relevance + max(hit.relevance for hit in others)) / 2
    [offered] = await registry.search(question, threshold=between)
    assert (offered.tool_name, offered.rank, offered.fallback) == ("run_anything", 1, True)
    # Behind two that fit, before those that do not.
    first = await registry.search(question, threshold=0)
    second = sorted((hit.relevance for hit in first), reverse=True)[1]
    hits = await registry.search(question, threshold=second)
    assert [hit.fallback for hit in hits] == [False, False, True]
    assert [hit.rank for hit in hits] == [1, 2, 3]
    assert (await registry.search(question, k=2, threshold=second)) == hits[:2]
    # What fits is as it is where there is no such tool.
    plain = await open_registry(
        embeddings="builtin", settings=RegistrySettings(namespace="without")
    )
    await plain.sync(tools)
    without = {h.tool_name: h.relevance for h in await plain.search(question, k=31, threshold=0)}
    for hit in others:
        assert hit.relevance == pytest.approx(without[hit.tool_name], abs=0.1)


async def test_ret_8_the_mark_holds_under_every_strategy(open_registry: OpenRegistry) -> None:
    """RET-8: where all are offered, or a whole category, it is offered last."""
    registry = await open_registry(settings=_PLAIN)
    question = "Handle alpha case 0"
    broad = spec("any_task", question, category="cases", fallback=True)
    await registry.sync([broad, *many_specs(8, category="cases"), spec("other", question)])
    await registry.set_category("cases", ["case"])
    for strategy in ("all", "routing", "retrieval", "hybrid"):
        found = await registry.select(question, k=10, threshold=0, strategy=strategy)
        assert len(found.hits) == 10
        assert found.hits[-1].tool_name == "any_task"
        assert [hit.rank for hit in found.hits] == list(range(1, 11))
        fewer = await registry.select(question, k=3, threshold=0, strategy=strategy)
        assert ("any_task" in names(list(fewer.hits))) == (strategy in ("all", "routing"))
        assert not fewer.hits[0].fallback


class Failing(HashEmbeddings):
    """Fails for the texts that hold a word."""

    def __init__(self, word: str, error: Exception) -> None:
        super().__init__()
        self.word, self.error = word, error

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        if any(self.word in text for text in texts):
            raise self.error
        return super().embed_documents(texts)


async def test_ret_8_the_mark_holds_where_words_decide_alone(open_registry: OpenRegistry) -> None:
    """RET-8: a search that had to do without vectors ranks it last as well."""
    registry = await open_registry(embeddings=Failing("a dentist", TimeoutError("timed out")))
    broad = spec("any_task", "Book dentists. Book dentists.", fallback=True)
    narrow = [spec("tooth", "Book dentists."), spec("gum", "See dentists.")]
    await registry.sync([broad, *narrow, *many_specs(25)])
    found = names(await registry.search("Book a dentist", threshold=0))
    assert set(found) == {"tooth", "gum", "any_task"}
    assert found[-1] == "any_task"
    assert "any_task" not in names(await registry.search("Book a dentist", k=2, threshold=0))


class Refused(Exception):
    """As HTTP clients raise it."""

    def __init__(self, status_code: int) -> None:
        super().__init__(f"status {status_code}")
        self.status_code = status_code


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_ret_9_a_refused_key_is_no_model_that_is_away(
    open_registry: OpenRegistry, status: int
) -> None:
    """RET-9: what another try cannot mend is an error; words must not hide it."""
    registry = await open_registry(embeddings=Failing("a dentist", Refused(status)))
    await registry.sync([*many_specs(7), spec("tooth", "Book dentists.")])
    with pytest.raises(EmbeddingError, match=f"status {status}") as caught:
        await registry.search("Book a dentist")
    assert not isinstance(caught.value, EmbeddingUnavailableError)


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_ret_9_a_busy_model_is_one_that_is_away(
    open_registry: OpenRegistry, status: int
) -> None:
    """RET-9: what may pass is bridged by words."""
    registry = await open_registry(embeddings=Failing("a dentist", Refused(status)))
    await registry.sync([*many_specs(7), spec("tooth", "Book dentists.")])
    assert names(await registry.search("Book a dentist")) == ["tooth"]


@pytest.mark.parametrize(
    "error", [RuntimeError("500 Internal Server Error"), TimeoutError("timed out")]
)
class TestRet9:
    """RET-9: a failed embedding is said, and words alone decide: no empty or half answer."""

    @pytest.mark.parametrize("count", [7, 60])
    async def test_of_a_question(
        self,
        open_registry: OpenRegistry,
        error: Exception,
        count: int,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Also where relevance is calibrated, at its threshold; what has no word stays out."""
        registry = await open_registry(embeddings=Failing("a dentist", error))
        await registry.sync([*many_specs(count), spec("tooth", "Book dentists.")])
        assert names(await registry.search("Book a dentist")) == ["tooth"]
        (event,) = [r for r in caplog.records if r.message == "searched_by_words_alone"]
        assert event.levelname == "WARNING"
        assert str(error) in event.__dict__["reason"]
        assert names(await registry.search("Where is a dentistry museum?")) == []
        caplog.clear()
        assert await registry.search("Handle alpha", threshold=0)
        assert not caplog.records

    @pytest.mark.parametrize(
        "settings",
        [RegistrySettings(word_weight=0), RegistrySettings(search_by_words_alone=False)],
    )
    async def test_of_a_question_where_words_may_not_decide_alone(
        self, open_registry: OpenRegistry, error: Exception, settings: RegistrySettings
    ) -> None:
        registry = await open_registry(embeddings=Failing("a dentist", error), settings=settings)
        await registry.sync([*many_specs(7), spec("tooth", "Book dentists.")])
        with pytest.raises(EmbeddingUnavailableError, match=str(error)):
            await registry.search("Book a dentist")

    async def test_of_an_explanation(self, open_registry: OpenRegistry, error: Exception) -> None:
        """It explains what a search does at that moment, and says so."""
        registry = await open_registry(embeddings=Failing("a dentist", error))
        await registry.sync([*many_specs(7), spec("tooth", "Book dentists.")])
        told = await registry.explain("Book a dentist", "tooth")
        assert (told.is_offered, told.by_words_alone, told.feedback) == (True, True, 0)
        assert told.hit.rank == 1
        assert told.hit.parts.words > 0
        assert told.hit.parts.words + told.hit.parts.vector == pytest.approx(told.hit.score)
        (note,) = told.notes
        assert note.startswith("words decide alone, and no tool's nearness")
        assert str(error) in note
        other = await registry.explain("Book a dentist", many_specs(1)[0].tool_name)
        assert (other.is_offered, other.by_words_alone) == (False, True)
        assert other.reasons[0].startswith("words decide alone, and none of its texts")
        assert other.tool_name not in names(await registry.search("Book a dentist", threshold=0))

    async def test_it_is_said_with_the_result_and_logged_once_an_outage(
        self, open_registry: OpenRegistry, error: Exception, caplog: pytest.LogCaptureFixture
    ) -> None:
        registry = await open_registry(embeddings=Failing("a dentist", error))
        await registry.sync([*many_specs(7), spec("tooth", "Book dentists.")])

        def events() -> int:
            return sum(r.message == "searched_by_words_alone" for r in caplog.records)

        await registry.select("Handle alpha")
        for place in range(3):
            found = await registry.select(f"Book a dentist {place}")
            assert found.by_words_alone
            assert str(error) in found.words_alone_reason
            # A question whose vector is kept does not show that the model is back.
            assert not (await registry.select("Handle alpha")).by_words_alone
        assert events() == 1
        found = await registry.select("Handle beta")
        assert (found.by_words_alone, found.words_alone_reason) == (False, "")
        await registry.select("Book a dentist")
        assert events() == 2

    async def test_of_an_evaluation(self, open_registry: OpenRegistry, error: Exception) -> None:
        """Whatever `search_by_words_alone` says: its figures would be others'."""
        registry = await open_registry(embeddings=Failing("a dentist", error))
        await registry.sync([*many_specs(7), spec("tooth", "Book dentists.")])
        asked = [EvaluationQuestion(id="1", text="Book a dentist", groups=(("tooth",),))]
        with pytest.raises(EmbeddingUnavailableError, match=f"by words alone: .*{error}"):
            await aevaluate(registry, asked)

    async def test_of_one_clause(
        self, open_registry: OpenRegistry, error: Exception, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Clause(Failing):
            def embed_documents(self, texts: list[str]) -> list[list[float]]:
                if texts == ["book cheap flights"]:
                    raise self.error
                return super().embed_documents(texts)

        registry = await open_registry(embeddings=Clause("-", error))
        await registry.sync(many_specs(7))
        found = await registry.search("Handle alpha cases and book cheap flights")
        assert found
        assert all(hit.parts and hit.parts.words > 0 for hit in found)
        assert "searched_by_words_alone" in caplog.text

    async def test_of_a_tool(self, open_registry: OpenRegistry, error: Exception) -> None:
        registry = await open_registry(embeddings=Failing("dentist", error))
        tools = [*many_specs(3), spec("tooth", "Book a dentist.")]
        report = await registry.sync(tools)
        assert list(report.failed) == ["tooth"]
        assert str(error) in report.failed["tooth"]
        assert "tooth" not in names(await registry.search("Book a tooth", threshold=0))
        assert set(stored_words(registry.database_url)) == {tool.tool_name for tool in tools[:3]}
        assert await registry.active_states(["tooth"]) == {}


class Garbled(HashEmbeddings):
    """Answers questions with what is no vector."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def embed_query(self, text: str) -> Any:
        return self.answer

    async def aembed_query(self, text: str) -> Any:
        return self.answer


@pytest.mark.parametrize("answer", [[math.nan] * 64, [0.0] * 64, [1.0, 2.0], "no vector", None])
async def test_ret_9_an_answer_that_is_no_vector(
    open_registry: OpenRegistry, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """RET-9: one broken answer ends no run; it is logged as the fault that it is."""
    registry = await open_registry(embeddings=Garbled(answer))
    await registry.sync([*many_specs(7), spec("tooth", "Book dentists.")])
    found = await registry.select("Book a dentist")
    assert found.by_words_alone
    assert found.hits[0].tool_name == "tooth"
    (event,) = [r for r in caplog.records if r.message == "searched_by_words_alone"]
    assert event.levelname == "ERROR"
    assert "answered with" in event.__dict__["reason"]


async def test_ret_9_a_model_that_hangs(open_registry: OpenRegistry) -> None:
    """RET-9: a search waits for it no longer than is set, then words find tools."""
    let_go = threading.Event()

    class Hanging(HashEmbeddings):
        def embed_query(self, text: str) -> list[float]:
            let_go.wait()
            return super().embed_query(text)

        async def aembed_query(self, text: str) -> list[float]:
            await asyncio.Event().wait()
            raise AssertionError

    settings = RegistrySettings(embed_timeout_s=0.05)
    registry = await open_registry(embeddings=Hanging(), settings=settings)
    await registry.sync([*many_specs(7), spec("tooth", "Book dentists.")])
    try:
        found = await registry.select("Book a dentist")
        assert "did not answer within 0.05 s" in found.words_alone_reason
        assert found.hits[0].tool_name == "tooth"
        assert (await registry.explain("Book a dentist", "tooth")).is_offered
    finally:
        let_go.set()


async def test_a_question_that_is_a_document(
    open_registry: OpenRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """Its ends are searched, with the words in them alone; log and explanation say so."""
    registry = await open_registry(settings=RegistrySettings(word_weight=10))
    await registry.sync([*many_specs(7), spec("tooth", "Book dentists."), spec("mid", "Middle.")])
    await registry.set_category("inside", ["middle"])
    filler = "lorem ipsum " * 20_000
    question = f"Book a dentist. {filler} middle {filler} Thank you"
    found = await registry.select(question, k=1, threshold=0, strategy="hybrid")
    assert (found.hits[0].tool_name, found.categories) == ("tooth", ())
    assert [r.message for r in caplog.records] == ["question_shortened"]
    told = await registry.explain(question, "mid", threshold=0)
    assert "middle" not in (*told.shared_words, *told.missing_words)
    (note,) = told.notes
    assert note == (
        f"the question has {len(question):,} characters, of which the first and the last 4,000 "
        "are searched"
    )
    assert (await registry.explain("Book a dentist", "tooth")).notes == ()


@pytest.mark.parametrize("threshold", ["0.5", True, [], math.nan])
async def test_a_threshold_that_is_no_number_is_refused_by_name(
    open_registry: OpenRegistry, threshold: Any
) -> None:
    registry = await open_registry()
    with pytest.raises(InvalidQueryError, match=r"^threshold is "):
        await registry.search("x", threshold=threshold)


async def test_what_cannot_be_explained_or_tuned_on_is_named(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    with pytest.raises(InvalidQueryError, match="tool_name is None; name the tool"):
        await registry.explain("x", None)
    with pytest.raises(ConfigurationError, match="questions is a NoneType; give a list"):
        await registry.tune(None)


@pytest.mark.parametrize("namespace", [None, "", "other", "%", "default' OR '1'='1"])
def test_vec_9_a_namespace_that_is_missing_matches_nothing(
    database_url: str, namespace: str | None
) -> None:
    """VEC-9: neither by vector nor by words, whatever stands in place of the namespace."""
    with ToolRegistry(database_url, embeddings=HashEmbeddings()) as registry:
        registry.sync(many_specs(60))
        question = "Handle alpha case 3 and send beta case 4"
        parts = registry._parts(question)
        search = registry._search_statement(len(parts), 5)
        vectors = registry.embedder.embed_queries(parts)
        given = dict(registry._search_parameters(parts, vectors, 5))
        with psycopg.connect(psycopg_url(database_url)) as connection:
            cursor = psycopg.RawCursor(connection)
            sent = search.sql.encode()
            right = cursor.execute(sent, search.values(given)).fetchall()
            given["namespace"] = namespace
            wrong = cursor.execute(sent, search.values(given)).fetchall()
    assert len(right) >= 50
    assert wrong == []


async def test_vec_10_odd_words_are_plain_text(open_registry: OpenRegistry) -> None:
    """VEC-10: what breaks out of SQL is indexed and found as words, and brings no other rows."""
    attack = "tag' = 'x' OR '1'='1' -- \\ %s %(terms)s $1 \" ; DROP TABLE secret"
    settings = RegistrySettings(clauses=False, auto_calibrate=False)
    registry = await open_registry(settings=settings)
    await registry.sync(
        [
            spec("by_name", "One.", display_name=attack),
            spec("by_example", "Two.", examples=(attack,)),
            spec("by_argument", "Three.", args_schema=argument(attack, attack)),
            *many_specs(20),
        ]
    )
    hidden = await open_registry(
        settings=RegistrySettings(namespace="hidden", auto_calibrate=False)
    )
    await hidden.sync([spec("hidden", attack)])
    hits = await registry.search(attack, k=100, threshold=0)
    assert len(hits) == 23
    assert {hit.tool_name for hit in hits if hit.parts.words > 0} == {
        "by_name",
        "by_example",
        "by_argument",
    }
    assert rows(registry.database_url, "SELECT count(*) > 0 FROM tool_term") == [(True,)]
