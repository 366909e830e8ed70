"""Calibration: done by a sync or by hand, stored by namespace and embedding model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import psycopg
import pytest
from langchain_core.embeddings import Embeddings
from psycopg import sql
from sqlalchemy import create_engine

from registry import RegistrySettings
from registry.embedding import Embedder
from registry.errors import RegistryError
from registry.learning import LearningSettings
from registry.relevance import LEAST_CALLS, ZERO, Calibration, Scale, relevance
from registry.statements import calibration as calibration_statements
from registry.statements.calls import CountedCalls
from registry.types import ToolSpec
from registry.weighing import LEAST_QUESTIONS
from tests.integration.conftest import EitherRegistry, OpenRegistry
from tests.support.catalogue import many_specs, spec
from tests.support.command_line import Run
from tests.support.databases import psycopg_url
from tests.support.embeddings import HashEmbeddings
from tests.support.usage_records import Called, record

STORED = "SELECT namespace, embedding_model_id, tools, version FROM tool_calibration ORDER BY 1, 2"


def stored(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(psycopg_url(url)) as connection:
        return connection.execute(STORED).fetchall()


def versions(registry: EitherRegistry) -> dict[str, int]:
    return {row[0]: row[3] for row in stored(registry.database_url)}


async def test_a_sync_calibrates_from_twenty_tools_on(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    await registry.sync(many_specs(19))
    assert stored(registry.database_url) == []
    # A small sync counts again only when it changed enough, so it comes as a larger one.
    await registry.sync(many_specs(22))
    assert versions(registry) == {"default": 1}
    await registry.search("alpha", threshold=0)
    assert registry.threshold == 0.6


async def test_it_is_done_again_when_a_fifth_came_or_went(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    await registry.sync(many_specs(30))
    await registry.sync(many_specs(30))
    await registry.sync(many_specs(35))
    assert versions(registry) == {"default": 1}, "less than a fifth"
    await registry.sync(many_specs(37))
    assert versions(registry) == {"default": 2}
    await registry.sync(many_specs(20), missing="deactivate")
    assert versions(registry) == {"default": 3}
    assert stored(registry.database_url)[0][2] == 20


async def test_it_is_done_again_when_learning_moved_vectors_or_undid_it(
    open_registry: OpenRegistry,
) -> None:
    embeddings = HashEmbeddings()
    registry = await open_registry(embeddings=embeddings)
    tools = many_specs(30)
    await registry.sync(tools)
    calls = [Called(question="sum it up", tool=tools[3].tool_name, session=s) for s in "abc"]
    record(registry.database_url, calls, embeddings)
    await registry.sync(tools)
    assert versions(registry) == {"default": 1}, "records alone move nothing"
    assert (await registry.learn(force=True)).promoted
    await registry.sync(tools)
    await registry.sync(tools)
    assert versions(registry) == {"default": 2}
    await registry.unlearn()
    await registry.sync(tools)
    assert versions(registry) == {"default": 3}


async def test_it_can_be_left_to_the_operator(open_registry: OpenRegistry) -> None:
    embeddings = HashEmbeddings()
    registry = await open_registry(
        settings=RegistrySettings(auto_calibrate=False), embeddings=embeddings
    )
    await registry.sync(many_specs(40))
    assert stored(registry.database_url) == []
    assert len(embeddings.calls) == 1, "nothing but the tools was embedded"
    before = await registry.search("handle alpha case 3", threshold=0)
    assert before[0].relevance == pytest.approx(1 - before[0].distance)
    report = await registry.calibrate()
    assert (report.version, report.tools, report.calls, report.zero) == (1, 40, 0, ZERO)
    assert (await registry.calibrate()).version == 2


async def test_relevance_goes_by_the_calibration_and_the_order_does_not(
    open_registry: OpenRegistry,
) -> None:
    registry = await open_registry(settings=RegistrySettings(auto_calibrate=False))
    await registry.sync(many_specs(40))
    before = await registry.search("handle alpha case 3", k=20, threshold=0)
    own = registry.threshold
    report = await registry.calibrate()
    assert registry.threshold == 0.6
    assert own != 0.6
    after = await registry.search("handle alpha case 3", k=20, threshold=0)
    assert [hit.tool_name for hit in after] == [hit.tool_name for hit in before]
    relevances = [hit.relevance for hit in after]
    assert relevances == sorted(relevances, reverse=True)
    assert relevances != [hit.relevance for hit in before]
    # The default threshold lies where the scale says: `zero` above the null of this catalogue.
    scale = Scale(center=report.center, spread=report.spread)
    by = Calibration(scale=scale, null=report.null, zero=report.zero)
    assert relevance(np.array([report.null + report.zero]), by)[0] == pytest.approx(0.6)
    # Another process takes it over with its first search.
    other = await open_registry()
    hits = await other.search("handle alpha case 3", k=20, threshold=0)
    assert [hit.relevance for hit in hits] == relevances
    assert other.threshold == 0.6


async def test_a_question_that_fits_passes_and_one_that_does_not_is_refused(
    open_registry: OpenRegistry,
) -> None:
    # The spread of so many dimensions is near that of a real model.
    registry = await open_registry(embeddings=HashEmbeddings(1_024))
    await registry.sync([*many_specs(30), spec("get_weather", "Weather forecast of a city.")])
    hits = await registry.search("weather forecast of a city")
    assert hits[0].tool_name == "get_weather"
    assert hits[0].relevance > 0.9
    assert await registry.search("zebra giraffe") == []


async def test_another_embedding_model_has_its_own(open_registry: OpenRegistry) -> None:
    old = await open_registry()
    await old.sync(many_specs(30))
    first = stored(old.database_url)
    other = Embedder(HashEmbeddings(512, model="other"), name="other")
    new = await open_registry(embeddings=other, opened=False)
    await new.build_embeddings()
    await new.switch_embeddings()
    reopened = await open_registry(
        embeddings=Embedder(HashEmbeddings(512, model="other"), name="other")
    )
    report = await reopened.calibrate()
    assert report.version == 1
    both = stored(old.database_url)
    assert first[0] in both, "the old model's stays for a way back"
    assert [row[3] for row in both] == [1, 1]
    assert len({row[1] for row in both}) == 2
    with psycopg.connect(psycopg_url(old.database_url)) as connection:
        spreads = connection.execute("SELECT spread FROM tool_calibration").fetchall()
    assert len(set(spreads)) == 2


async def test_another_namespace_has_its_own(open_registry: OpenRegistry) -> None:
    ours = await open_registry()
    theirs = await open_registry(settings=RegistrySettings(namespace="theirs"))
    await ours.sync(many_specs(30))
    await theirs.sync(many_specs(10))
    assert versions(ours) == {"default": 1}
    before = await ours.search("handle alpha case 3", threshold=0)
    await theirs.calibrate()
    assert versions(ours) == {"default": 1, "theirs": 1}
    await theirs.calibrate()
    assert versions(ours) == {"default": 1, "theirs": 2}
    assert await ours.search("handle alpha case 3", threshold=0) == before


async def test_nothing_to_calibrate(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    with pytest.raises(RegistryError, match="sync tools before calibrating"):
        await registry.calibrate()
    assert stored(registry.database_url) == []


# ---------------------------------------------------------------- recorded calls


class NoModel(Embeddings):
    """What a command that embeds nothing works with."""

    def embed_documents(self, texts: list[str]) -> NoReturn:
        raise AssertionError("nothing is to be embedded")

    def embed_query(self, text: str) -> NoReturn:
        raise AssertionError("nothing is to be embedded")


def calls_of(tools: Sequence[ToolSpec], count: int, *, words: str = "{text}") -> list[Called]:
    """Return calls, each of a session of its own; `{text}` is the tool's description."""
    chosen = [tools[number % len(tools)] for number in range(count)]
    return [
        Called(
            question=words.format(text=tool.description, number=number),
            tool=tool.tool_name,
            session=f"s{number}",
        )
        for number, tool in enumerate(chosen)
    ]


def change(url: str, statement: sql.SQL | sql.Composed) -> None:
    with psycopg.connect(psycopg_url(url)) as connection:
        connection.execute(statement)


def traffic_is_known(url: str) -> bool:
    with psycopg.connect(psycopg_url(url)) as connection:
        rows = connection.execute("SELECT traffic IS NOT NULL FROM tool_calibration").fetchall()
    return bool(rows and rows[0][0])


@pytest.mark.parametrize("rises", [True, False], ids=["all fit well", "many hardly fit"])
async def test_recorded_calls_move_zero(open_registry: OpenRegistry, rises: bool) -> None:
    embeddings = HashEmbeddings(512)
    registry = await open_registry(embeddings=embeddings)
    # Of five tools each stands among the first five, whatever is asked.
    tools = many_specs(30 if rises else 5)
    await registry.sync(tools)
    before = await registry.calibrate()
    assert (before.calls, before.zero) == (0, ZERO)
    assert not traffic_is_known(registry.database_url)
    calls = calls_of(tools, 120)
    if not rises:
        calls[:60] = calls_of(tools, 60, words="whatever {number}")
    record(registry.database_url, calls, embeddings)
    after = await registry.calibrate()
    assert after.calls > LEAST_CALLS
    assert traffic_is_known(registry.database_url)
    assert after.zero > ZERO if rises else after.zero < ZERO
    assert after.version == before.version + 1
    # It belongs to what is recorded: without the records all is as before.
    change(registry.database_url, sql.SQL("DELETE FROM tool_selection"))
    gone = await registry.calibrate()
    assert (gone.calls, gone.zero, gone.null) == (0, ZERO, pytest.approx(before.null))
    assert not traffic_is_known(registry.database_url)


async def test_too_few_sessions_say_nothing_whatever_they_call(
    open_registry: OpenRegistry,
) -> None:
    """One user cannot move what all others are offered: a session counts once."""
    embeddings = HashEmbeddings(512)
    registry = await open_registry(embeddings=embeddings)
    tools = many_specs(30)
    await registry.sync(tools)
    calls = calls_of(tools, LEAST_CALLS - 2)
    many = [Called(question=c.question, tool=c.tool, session="one") for c in calls_of(tools, 90)]
    nobody = [Called(question=c.question, tool=c.tool) for c in calls_of(tools, 90)]
    record(registry.database_url, [*calls, *many], embeddings)
    assert (await registry.calibrate()).calls == 0
    assert not traffic_is_known(registry.database_url)
    record(registry.database_url, nobody, embeddings)
    assert (await registry.calibrate()).calls == LEAST_CALLS, "those without any id are one more"


@pytest.mark.parametrize("flooder", ["one", None], ids=["one session", "calls without any id"])
async def test_one_sessions_flood_hides_no_other_session(
    open_registry: OpenRegistry, flooder: str | None
) -> None:
    embeddings = HashEmbeddings(64)
    registry = await open_registry(embeddings=embeddings)
    tools = many_specs(30)
    await registry.sync(tools)
    record(registry.database_url, calls_of(tools, 60), embeddings)
    flood = [Called(question=c.question, tool=c.tool, session=flooder) for c in calls_of(tools, 90)]
    record(registry.database_url, flood, embeddings)
    counted = CountedCalls(namespace="default", model_id=1, dimensions=64, per_session=5, newest=65)
    engine = create_engine(registry.database_url)
    with engine.connect() as connection:
        asked = connection.execute(
            calibration_statements.sampled_calls(counted, limit=100, with_text=True)
        ).all()
        votes = connection.execute(
            calibration_statements.left_out(
                counted,
                [(row.selection_id, row.session) for row in asked],
                neutral=f"[{','.join('0' * 64)}]",
                learned_until=None,
            )
        ).all()
    engine.dispose()
    assert {row.session for row in asked} == {*(f"s{n}" for n in range(60)), flooder or ""}
    assert len(asked) == 61
    # One tool of each session, and of the loud one the five that it called last.
    assert len(votes) == 60 + 5


async def test_no_more_than_500_calls_are_asked_again(open_registry: OpenRegistry) -> None:
    embeddings = HashEmbeddings()
    registry = await open_registry(embeddings=embeddings)
    tools = many_specs(30)
    await registry.sync(tools)
    record(registry.database_url, calls_of(tools, 520), embeddings)
    assert (await registry.calibrate()).calls == 500


@pytest.mark.parametrize(
    ("missing", "settings", "counts"),
    [
        ("query_vector", RegistrySettings(), False),
        ("query_snippet", RegistrySettings(), False),
        # Where words count for nothing, the text is not needed.
        ("query_snippet", RegistrySettings(word_weight=0), True),
        ("query_vector", RegistrySettings(word_weight=0), False),
    ],
)
async def test_what_privacy_left_out_of_the_log(
    open_registry: OpenRegistry, missing: str, settings: RegistrySettings, counts: bool
) -> None:
    embeddings = HashEmbeddings(512)
    registry = await open_registry(embeddings=embeddings, settings=settings)
    tools = many_specs(30)
    await registry.sync(tools)
    record(registry.database_url, calls_of(tools, 60), embeddings)
    forget = sql.SQL("UPDATE tool_selection SET {} = NULL").format(sql.Identifier(missing))
    change(registry.database_url, forget)
    report = await registry.calibrate()
    assert (report.calls == 60) is counts
    assert (report.zero == ZERO) is not counts
    assert traffic_is_known(registry.database_url) is counts


@pytest.mark.parametrize("status", ["error", "refused", "timeout", None])
async def test_calls_without_success_say_nothing(open_registry: OpenRegistry, status: Any) -> None:
    embeddings = HashEmbeddings()
    registry = await open_registry(embeddings=embeddings)
    tools = many_specs(30)
    await registry.sync(tools)
    calls = [
        Called(question=c.question, tool=c.tool, session=c.session, status=status)
        for c in calls_of(tools, 60)
    ]
    record(registry.database_url, calls, embeddings)
    record(registry.database_url, calls_of(tools, 60), embeddings, namespace="theirs")
    assert (await registry.calibrate()).calls == 0


async def test_learning_measures_anew_at_once_and_embeds_nothing(
    open_registry: OpenRegistry,
) -> None:
    embeddings = HashEmbeddings()
    registry = await open_registry(embeddings=embeddings)
    tools = many_specs(30)
    await registry.sync(tools)
    record(registry.database_url, calls_of(tools, 90, words="do {text} now"), embeddings)
    before = (await registry.search("handle alpha case 3", threshold=0))[0].relevance
    without_model = await open_registry(embeddings=Embedder(NoModel(), name="none"), opened=False)
    assert (await without_model.learn(force=True)).promoted
    assert versions(registry) == {"default": 2}
    assert traffic_is_known(registry.database_url)
    with psycopg.connect(psycopg_url(registry.database_url)) as connection:
        (row,) = connection.execute("SELECT zero, calls FROM tool_calibration").fetchall()
    assert row[0] != ZERO
    assert row[1] == 90
    # It is what `calibrate` measures, with vectors that are rounded once.
    measured = await registry.calibrate()
    assert (measured.zero, measured.calls) == (pytest.approx(row[0], abs=0.02), 90)
    after = (await registry.search("handle alpha case 3", threshold=0))[0].relevance
    assert after != before, "another process goes by it with its next search"
    await without_model.unlearn()
    assert versions(registry) == {"default": 4}


async def test_learning_leaves_it_to_the_operator_where_the_settings_say_so(
    open_registry: OpenRegistry,
) -> None:
    embeddings = HashEmbeddings()
    settings = RegistrySettings(auto_calibrate=False)
    registry = await open_registry(embeddings=embeddings, settings=settings)
    tools = many_specs(30)
    await registry.sync(tools)
    record(registry.database_url, calls_of(tools, 90), embeddings)
    assert (await registry.learn(force=True)).promoted
    assert stored(registry.database_url) == []
    await registry.calibrate()
    await registry.unlearn()
    assert versions(registry) == {"default": 1}


async def test_a_question_is_measured_as_if_its_session_had_taught_nothing(
    open_registry: OpenRegistry,
) -> None:
    embeddings = HashEmbeddings(128)
    registry = await open_registry(embeddings=embeddings)
    tools = many_specs(24)
    await registry.sync(tools)
    calls = [
        Called(question=f"{word} {place}", tool=tools[place].tool_name, session=f"s{place}{word}")
        for place in range(3)
        for word in ("sum", "total", "add up")
    ]
    # A session that called two tools, one of them twice, and a tool that falls below two sessions.
    calls += [
        Called(question="sum it", tool=tools[0].tool_name, session="both"),
        Called(question="count it", tool=tools[0].tool_name, session="both"),
        Called(question="count it all", tool=tools[1].tool_name, session="both"),
        Called(question="count them too", tool=tools[9].tool_name, session="both"),
        Called(question="never mind", tool=tools[9].tool_name, session="other"),
    ]
    record(registry.database_url, calls, embeddings)
    settings = LearningSettings(neutral=0.0)
    assert (await registry.learn(force=True, settings=settings)).promoted
    engine = create_engine(registry.database_url)
    counted = CountedCalls(namespace="default", model_id=1, dimensions=128)
    with engine.connect() as connection:
        (row,) = [
            row
            for row in connection.execute(
                calibration_statements.sampled_calls(counted, limit=100, with_text=True)
            )
            if row.session == "both"
        ]
        learnt_until = connection.exec_driver_sql(
            "SELECT recorded_until FROM tool_learning"
        ).scalar()
        found = connection.execute(
            calibration_statements.left_out(
                counted,
                [(row.selection_id, row.session)],
                neutral=f"[{','.join('0' * 128)}]",
                learned_until=learnt_until,
            )
        ).all()
        unseen = connection.execute(
            calibration_statements.left_out(
                counted,
                [(row.selection_id, row.session)],
                neutral=f"[{','.join('0' * 128)}]",
                learned_until=None,
            )
        ).all()
    engine.dispose()
    names = sorted(tools[place].tool_name for place in (0, 1, 9))
    assert [each.tool_name for each in found] == names
    called = {call.tool for call in calls if call.question == row.text and call.session == "both"}
    assert {each.tool_name for each in found if each.was_called} == called
    assert [each.distance for each in unseen] == [None] * 3, "what nothing was learnt from"
    forget = sql.SQL("DELETE FROM tool_selection WHERE session_id = 'both'")
    change(registry.database_url, forget)
    await registry.learn(force=True, settings=settings)
    distances = {
        hit.tool_name: hit.distance for hit in await registry.search(row.text, k=24, threshold=0)
    }
    for each in found:
        assert each.distance == pytest.approx(distances[each.tool_name], abs=0.003)


# ---------------------------------------------------------------- the command


def test_the_command_prints_the_report(toolrag: Run, database_url: str) -> None:
    assert toolrag("sync", "shop_tools:TOOLS").code == 0
    assert stored(database_url) == []
    ended = toolrag("calibrate")
    assert ended.code == 0, ended.err
    first, *facts = ended.out.splitlines()
    assert first.startswith("Calibrated for 3 tools with builtin:")
    assert first.endswith(" (version 1); the default threshold is 0.60.")
    assert [line.split()[0] for line in facts] == ["spread", "null", "zero", "words"]
    document = json.loads(toolrag("calibrate", "--json").out)
    assert (document["tools"], document["calls"], document["version"]) == (3, 0, 2)
    assert 0 < document["spread"] < 1
    assert document["zero"] == ZERO
    assert json.loads(toolrag("search", "rain", "--json").out)["threshold"] == 0.6


def test_the_command_on_an_empty_registry(toolrag: Run, database_url: str) -> None:
    for arguments in ([], ["--json"]):
        ended = toolrag("calibrate", *arguments)
        assert (ended.code, ended.out) == (1, "")
        assert ended.error.startswith("No active tools in namespace 'default', so there is nothing")
    assert stored(database_url) == []
    assert toolrag("sync", "shop_tools:TOOLS").code == 0
    other = toolrag("--namespace", "theirs", "calibrate")
    assert (other.code, "namespace 'theirs'" in other.error) == (1, True)


class Topics(Embeddings):
    """Near each other is what is about letters, whatever its words."""

    model = "topics"

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        seed = int.from_bytes(text.encode()[:64]) % 2**32
        vector = np.random.default_rng(seed).normal(size=32) / 6
        if "letter" in text.casefold() or "quill" in text.casefold():
            vector[0] += 1.0 if "make" not in text.casefold() else 0.2
        return vector.tolist()


async def test_calls_show_how_much_words_count(open_registry: OpenRegistry) -> None:
    """Questions have the words of a tool that nobody calls for them."""
    embeddings = Topics()
    registry = await open_registry(embeddings=embeddings)
    letter = spec("send_letter", "Send a letter by post.")
    quills = spec("make_quill", "Make a quill: quill, ink and quill paper.")
    await registry.sync([letter, quills, *many_specs(30)])
    questions = [f"quill ink paper number {n}" for n in range(LEAST_QUESTIONS)]
    found = await registry.search("quill ink paper to Rome", threshold=0)
    assert found[0].tool_name == "make_quill"

    calls = [Called(question=q, tool="send_letter", session=q) for q in questions]
    record(registry.database_url, calls[:-1], embeddings)
    assert (await registry.calibrate()).words == 1.0, "too few to be sure"
    record(registry.database_url, calls[-1:], embeddings)
    report = await registry.calibrate()
    assert report.words < 1.0
    other = await open_registry(embeddings=embeddings)
    for process in (registry, other):
        found = await process.search("quill ink paper to Rome", threshold=0)
        assert found[0].tool_name == "send_letter"
    assert (await registry.calibrate()).words == report.words
    explained = await registry.explain("quill ink paper to Rome", "make_quill")
    assert explained.hit is not None
    assert explained.hit.parts is not None
    assert explained.hit.parts.words < 1.0
