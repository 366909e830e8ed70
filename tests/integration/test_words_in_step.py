"""The words of tools are those of what the tools are now, whatever happens to the tools."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from registry import RegistrySettings, ToolRegistry, ToolSpec, lexical, migrate
from registry.errors import ToolNotFoundError, VersionNotFoundError
from registry.statements import terms as terms_statements
from registry.statements import tools as tools_statements
from registry.store import writing as writing
from registry.store_async import writing as writing_async
from tests.integration.conftest import EitherRegistry, OpenRegistry
from tests.support.catalogue import many_specs, spec
from tests.support.embeddings import HashEmbeddings
from tests.support.interleaving import before_statement, call
from tests.support.words import common_words, right_words, rows, stored_words
from tests.support.worker import Job, Worker

_VOCABULARY = "weather forecast mail send city 天気予報 Änderungen files sha256 the 12".split()


async def assert_in_step(registry: EitherRegistry) -> None:
    records = await registry.list_tools(include_inactive=True)
    assert stored_words(registry.database_url, registry.namespace) == right_words(records)


def random_spec(chance: random.Random, name: str) -> ToolSpec:
    def text(most: int) -> str:
        return " ".join(chance.choices(_VOCABULARY, k=chance.randint(1, most)))

    return spec(
        name,
        text(8),
        examples=tuple(text(3) for _ in range(chance.randint(0, 2))),
        args_schema={"type": "object", "properties": {text(1): {"description": text(3)}}},
    )


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happens_words_follow(open_registry: OpenRegistry, seed: int) -> None:
    chance = random.Random(seed)
    names = [f"tool_{n}" for n in range(12)]
    registry = await open_registry(settings=RegistrySettings(embedding_batch_size=3))
    code = {name: random_spec(chance, name) for name in names}

    async def sync() -> None:
        for name in chance.sample(names, 3):
            code[name] = random_spec(chance, name)
        given = chance.sample(list(code.values()), chance.randint(1, len(code)))
        missing = chance.choice(["report", "deactivate"])
        await registry.sync(given, missing=missing, overwrite_edits=chance.random() < 0.3)

    async def edit() -> None:
        made = random_spec(chance, "x")
        changes: dict[str, Any] = chance.choice(
            [
                {"description": made.description},
                {"examples": made.examples},
                {"display_name": made.description},
                {"category": "other"},
            ]
        )
        await registry.update_tool(chance.choice(names), **changes)

    async def roll_back() -> None:
        await registry.rollback(chance.choice(names), chance.randint(1, 3))

    async def switch() -> None:
        method = chance.choice([registry.activate, registry.deactivate])
        await method(chance.choice(names))

    async def purge() -> None:
        await registry.purge(chance.choice(names))

    await registry.sync(code.values())
    await assert_in_step(registry)
    for _ in range(40):
        do = chance.choices([sync, edit, roll_back, switch, purge], [2, 4, 3, 6, 1])[0]
        try:
            await do()
        except (ToolNotFoundError, VersionNotFoundError):
            continue
        await assert_in_step(registry)


async def test_a_tool_that_is_off_has_no_words(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    await registry.sync([spec("one", "Unique."), spec("two", "Other.")])
    await registry.deactivate("one")
    assert list(stored_words(registry.database_url)) == ["two"]
    await registry.update_tool("one", description="Changed while off.")
    assert list(stored_words(registry.database_url)) == ["two"]
    await registry.activate("one")
    assert "changed" in stored_words(registry.database_url)["one"][0]
    await registry.purge("one")
    assert list(stored_words(registry.database_url)) == ["two"]


async def test_a_sync_that_switches_off_takes_the_words_along(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    await registry.sync([spec("one", "Unique."), spec("two", "Other.")])
    await registry.sync([spec("two", "Other.")], missing="deactivate")
    assert list(stored_words(registry.database_url)) == ["two"]


# ---------------------------------------------------------------- other releases


async def test_an_upgraded_registry_gets_its_words_with_the_next_sync(
    open_registry: OpenRegistry,
) -> None:
    """Nothing is embedded, no version is made; before that sync, searches go by vector."""
    settings = RegistrySettings(auto_calibrate=False)
    registry = await open_registry(settings=settings)
    url, tools = registry.database_url, many_specs(60)
    await registry.sync(tools)
    await registry.deactivate(tools[3].tool_name)
    await registry.close()
    migrate.downgrade(url, "0002")
    migrate.upgrade(url)
    embeddings = HashEmbeddings()
    registry = await open_registry(embeddings=embeddings, settings=settings)
    assert stored_words(url) == {}
    before = await registry.search(tools[7].description, threshold=0)
    assert before[0].tool_name == tools[7].tool_name
    assert {hit.parts.words for hit in before} == {0.0}
    versions = [record.version for record in await registry.list_tools(include_inactive=True)]

    report = await registry.sync(tools)
    assert (report.embedded, list(report.updated), len(report.unchanged)) == (0, [], 60)
    assert embeddings.calls == [[tools[7].description]]
    await assert_in_step(registry)
    after = await registry.list_tools(include_inactive=True)
    assert [record.version for record in after] == versions
    assert (await registry.search(tools[7].description, threshold=0))[0].parts.words > 0
    assert rows(url, "SELECT tools FROM tool_corpus") == [(59,)]


async def test_words_of_another_release_are_made_anew(
    open_registry: OpenRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    embeddings = HashEmbeddings()
    settings = RegistrySettings(auto_calibrate=False)
    registry = await open_registry(embeddings=embeddings, settings=settings)
    tools = many_specs(20)
    await registry.sync(tools)
    calls = len(embeddings.calls)
    for module in (terms_statements, tools_statements):
        monkeypatch.setattr(module, "TERMS_REVISION", lexical.TERMS_REVISION + 1)
    monkeypatch.setattr(terms_statements, "tool_terms", lambda made: {f"new-{made.tool_name}": 2.0})
    for module in (writing, writing_async):
        monkeypatch.setattr(module, "_TERMS_BATCH", 7)
    assert len((await registry.sync(tools[:1])).unchanged) == 1
    assert stored_words(registry.database_url) == {
        tool.tool_name: ({f"new-{tool.tool_name}": 2.0}, 2.0) for tool in tools
    }
    assert len(embeddings.calls) == calls
    revisions = rows(registry.database_url, "SELECT DISTINCT terms_revision FROM tool_registry")
    assert revisions == [(lexical.TERMS_REVISION + 1,)]


async def test_an_older_release_that_switches_a_tool_on_leaves_it_to_be_mended(
    open_registry: OpenRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both releases run during a roll-out: the newer one knows whose words a tool has."""
    registry = await open_registry()
    tools = many_specs(2)
    await registry.sync(tools)
    await registry.deactivate(tools[0].tool_name)
    with monkeypatch.context() as newer:
        for module in (terms_statements, tools_statements):
            newer.setattr(module, "TERMS_REVISION", lexical.TERMS_REVISION + 1)
        newer.setattr(terms_statements, "tool_terms", lambda made: {"new": 1.0})
        await registry.sync(tools)
    await registry.activate(tools[0].tool_name)  # by the older one
    with monkeypatch.context() as newer:
        for module in (terms_statements, tools_statements):
            newer.setattr(module, "TERMS_REVISION", lexical.TERMS_REVISION + 1)
        newer.setattr(terms_statements, "tool_terms", lambda made: {"new": 1.0})
        await registry.sync(tools)
    stored = stored_words(registry.database_url)
    assert {name: set(found) for name, (found, _) in stored.items()} == {
        tool.tool_name: {"new"} for tool in tools
    }


# ---------------------------------------------------------------- counts


async def test_what_is_counted(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    url, tools = registry.database_url, many_specs(100)
    await registry.sync(tools)
    words = stored_words(url)
    mean = sum(length for _, length in words.values()) / len(words)
    ((count, mean_length),) = rows(url, "SELECT tools, mean_length FROM tool_corpus")
    assert (count, mean_length) == (100, pytest.approx(mean, rel=1e-5))
    counted = dict(rows(url, "SELECT term, tools FROM tool_term_count"))
    assert counted == common_words(words) != {}


async def test_counts_follow_larger_changes_only(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    url, tools = registry.database_url, many_specs(100)
    corpus = "SELECT tools, counted_at FROM tool_corpus"
    await registry.sync(tools)
    first = rows(url, corpus)
    await registry.sync([*tools[:99], spec("last", "New.")])
    assert rows(url, corpus) == first
    await registry.sync(tools[:50], missing="deactivate")
    ((count, counted_at),) = rows(url, corpus)
    assert count == 50
    assert counted_at > first[0][1]


async def test_small_changes_add_up(open_registry: OpenRegistry) -> None:
    """A catalogue that grows a tool at a time is counted again, as one that grows at once."""
    registry = await open_registry()
    url, tools = registry.database_url, many_specs(103)
    await registry.sync(tools[:100])
    for tool in tools[100:]:
        await registry.sync([tool])
    assert rows(url, "SELECT tools FROM tool_corpus") == [(103,)]
    for tool in tools[:3]:
        await registry.deactivate(tool.tool_name)
    await registry.sync(tools)
    assert rows(url, "SELECT tools FROM tool_corpus") == [(100,)]


@pytest.mark.parametrize("description", ["12 345", "The, and of?", "🎉"])
async def test_a_catalogue_without_a_word(open_registry: OpenRegistry, description: str) -> None:
    registry = await open_registry()
    await registry.sync([spec("the_1", description), spec("a_2", description)])
    assert stored_words(registry.database_url) == {}
    assert rows(registry.database_url, "SELECT tools, mean_length FROM tool_corpus") == [(2, 1.0)]
    assert len(await registry.search("Anything at all", threshold=0)) == 2


async def test_an_empty_catalogue(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    await registry.sync([])
    assert await registry.search("Anything at all", threshold=0) == []
    await registry.sync([spec("one", "First.")])
    await registry.sync([], missing="deactivate")
    await registry.deactivate("one")
    await registry.sync([])
    assert await registry.search("First", threshold=0) == []


async def test_a_word_without_end_sinks_no_sync(open_registry: OpenRegistry) -> None:
    """A key in base64, say: an entry of the index has room for 2,704 bytes."""
    chance = random.Random(1)
    long_word = "".join(chance.choices("abcdefghijklmnopqrstuvwxyzжщюя", k=7_000))
    registry = await open_registry()
    report = await registry.sync(
        [spec("long", f"Decode {long_word}."), *many_specs(30)], origin="code"
    )
    assert dict(report.failed) == {}
    await assert_in_step(registry)
    hits = await registry.search(f"What is {long_word}?", threshold=0)
    assert hits[0].tool_name == "long"
    assert hits[0].parts.words > 0


# ---------------------------------------------------------------- at the same time


async def test_switched_on_while_somebody_edits(open_registry: OpenRegistry) -> None:
    """The words are of the text that the tool has when it is switched on, not as read before."""
    registry = await open_registry()
    with ToolRegistry(registry.database_url, embeddings=HashEmbeddings()) as other:
        await registry.sync([spec("one", "Old text."), spec("two", "Old text.")])
        await registry.deactivate("one")
        for name in ("one", "two"):  # "two" is on already
            with before_statement(
                r"UPDATE tool_registry SET is_active",
                lambda name=name: other.update_tool(name, description="Edited meanwhile."),
            ):
                await registry.activate(name)
            await assert_in_step(registry)


async def test_counted_by_two_at_once(open_registry: OpenRegistry) -> None:
    """Replicas of one service start together: none fails because the other counts as well."""
    registry = await open_registry()
    url, tools = registry.database_url, many_specs(100)
    await registry.sync(tools)
    for statement in ("tool_corpus", "tool_term_count"):
        rows(url, f"DELETE FROM {statement} RETURNING 1")  # noqa: S608
    with ToolRegistry(url, embeddings=HashEmbeddings()) as other:
        other.open()
        failed: list[BaseException] = []

        def sync_beside() -> None:
            try:
                other.sync(tools)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=sync_beside)

        def begin_and_wait() -> None:
            thread.start()
            wait_until(lambda: not thread.is_alive() or bool(rows(url, _BLOCKED)))

        with before_statement("INSERT INTO tool_term_count", begin_and_wait):
            await registry.sync(tools)
        thread.join()
    assert failed == []
    counted = dict(rows(url, "SELECT term, tools FROM tool_term_count"))
    assert counted == common_words(stored_words(url))


_BLOCKED = """
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0
"""


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


async def test_syncs_edits_and_switches_at_once(open_registry: OpenRegistry) -> None:
    """No deadlock, no error, and the words are right in the end."""
    settings = RegistrySettings(embedding_batch_size=5, lease_wait_s=60)
    registries = [await open_registry(settings=settings) for _ in range(3)]
    tools = many_specs(30)
    await registries[0].sync(tools)
    names = [tool.tool_name for tool in tools]

    async def work(number: int, registry: EitherRegistry) -> None:
        chance = random.Random(number)
        for step in range(12):
            what = chance.choice(["sync", "update_tool", "activate", "deactivate", "rollback"])
            name = chance.choice(names[:6])
            if what == "sync":
                changed = [
                    tool.replace(description=f"Round {number} {step} {tool.description}")
                    for tool in chance.sample(tools, 15)
                ]
                await call(registry, "sync", changed)
            elif what == "update_tool":
                await call(registry, what, name, description=f"Edited {number} {step}.")
            elif what == "rollback":
                await call(registry, what, name, 1)
            else:
                await call(registry, what, name)

    await asyncio.gather(*(work(n, registry) for n, registry in enumerate(registries)))
    await assert_in_step(registries[0])


async def test_words_mended_by_many_at_once(open_registry: OpenRegistry) -> None:
    """After an upgrade every replica mends, while one of them writes other texts."""
    registries = [await open_registry() for _ in range(4)]
    tools = many_specs(200)
    await registries[0].sync(tools)
    for round_ in range(3):
        rows(
            registries[0].database_url,
            "UPDATE tool_registry SET terms_revision = 0 RETURNING 1",
        )
        rows(registries[0].database_url, "DELETE FROM tool_term RETURNING 1")
        rows(registries[0].database_url, "DELETE FROM tool_corpus RETURNING 1")
        new = [t.replace(description=f"{round_}: {t.description}") for t in reversed(tools)]
        await asyncio.gather(
            call(registries[0], "sync", new, overwrite_edits=True),
            *(call(registry, "sync", tools) for registry in registries[1:3]),
            call(registries[3], "sync", tools[:1]),
        )
        await call(registries[0], "sync", new)
        await assert_in_step(registries[0])


@pytest.mark.parametrize("stored", [4, 12, 20, 28, 36])
def test_a_killed_sync_leaves_words_and_rows_in_step(
    database_url: str, tmp_path: Path, stored: int
) -> None:
    settings = RegistrySettings(embedding_batch_size=4, lease_s=1, lease_wait_s=30)
    job = Job(
        task="sync",
        url=database_url,
        log=tmp_path / "embedded",
        tools=40,
        delay_s=0.005,
        settings=settings,
    )
    with job.registry() as registry:
        registry.sync([tool.replace(description="Before.") for tool in job.toolset.specs[:20]])
    with Worker(job) as worker:
        assert worker.wait_for_progress(stored)
        worker.kill()
    with job.registry() as registry:
        records = registry.list_tools(include_inactive=True)
        assert len(records) >= stored
        assert stored_words(database_url) == right_words(records)
        registry.sync(job.toolset)
        records = registry.list_tools()
        assert len(records) == 40
        assert stored_words(database_url) == right_words(records)
