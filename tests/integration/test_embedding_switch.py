"""Switching to another set of vectors while others write, prune, revert, or lag behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from registry import Embedder, RegistrySettings, ToolRegistry
from registry.base import SWITCH
from registry.errors import EmbeddingModelMismatchError, RegistryBusyError
from tests.integration.conftest import OpenRegistry
from tests.integration.test_embedding_sets import first, new_model, old_model, serving
from tests.integration.test_store import rows
from tests.support.catalogue import many_specs, spec
from tests.support.databases import Databases, psycopg_url
from tests.support.embeddings import HashEmbeddings
from tests.support.interleaving import before_statement, call

_LACKING = (
    "SELECT m.id, count(*) FROM embedding_model AS m, tool_registry AS t WHERE NOT EXISTS ("
    "SELECT FROM tool_embedding AS e WHERE e.tool_id = t.id AND e.embedding_model_id = m.id "
    "AND e.source_hash = t.text_hash) GROUP BY m.id"
)
_INDEXES = "SELECT indexname FROM pg_indexes WHERE indexdef ~ 'hnsw'"
_HOLD = (
    "INSERT INTO tool_lease VALUES (%s, 'elsewhere:7', clock_timestamp() + interval '1 hour') "
    "RETURNING name"
)
_RELEASE = "DELETE FROM tool_lease WHERE name = %s RETURNING name"


class OutrunEmbeddings(HashEmbeddings):
    """Takes as long for each request as another needs to write more tools than it embeds."""

    def __init__(self, written: list[str], is_paused: Callable[[], bool]) -> None:
        super().__init__(128, model="slow")
        self.written = written
        self.is_paused = is_paused

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        enough = len(self.written) + 2 * len(texts)
        while len(self.written) < enough and not self.is_paused():
            time.sleep(0.01)
        return super().embed_documents(texts)


@contextmanager
def writer(url: str, written: list[str], failures: list[Exception]) -> Generator[None]:
    """Write without a pause, until the process's model is replaced."""
    stop = threading.Event()

    def write() -> None:
        with ToolRegistry(url, embeddings=old_model()) as registry:
            for number in range(1_000_000):
                if stop.is_set():
                    return
                name, text = f"tool_{number % 40:05}", f"Written {number}."
                try:
                    registry.update_tool(name, description=text)
                except EmbeddingModelMismatchError:
                    return
                except Exception as error:
                    failures.append(error)
                    return
                written.append(text)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


async def test_a_migration_ends_while_somebody_writes_faster_than_the_model_embeds(
    open_registry: OpenRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    await serving(open_registry, 40)
    caplog.set_level("INFO", logger="registry")
    written: list[str] = []
    failures: list[Exception] = []

    def is_paused() -> bool:
        return bool(failures) or any(getattr(r, "lease", "") == SWITCH for r in caplog.records)

    embedder = Embedder(OutrunEmbeddings(written, is_paused), dimensions=128, batch_size=5)
    new = await open_registry(embeddings=embedder, opened=False)
    with writer(new.database_url, written, failures):
        report = await new.build_embeddings()
        assert report.remaining == 40  # the race cannot be won
        assert report.embedded == 40
        assert not is_paused()
        assert (await new.switch_embeddings()).state == "active"
    assert failures == []
    assert is_paused()
    stored = {r.spec.description for r in await new.list_tools()}
    assert stored == set(written[-40:])
    assert rows(new.database_url, _LACKING) == []  # neither set lacks any
    assert rows(new.database_url, "SELECT name FROM tool_lease") == []


@pytest.mark.parametrize("change", ["update", "sync", "activate"])
async def test_writers_wait_for_a_switch_and_searches_do_not(
    open_registry: OpenRegistry, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    registry = await serving(open_registry, 5)
    await registry.deactivate("tool_00003")
    url = registry.database_url
    rows(url, _HOLD, SWITCH)
    caplog.set_level("INFO", logger="registry")
    writing: dict[str, tuple[Any, ...]] = {
        "sync": ([spec("tool_00001", "Other text.")],),
        "activate": ("tool_00003",),
    }
    waiting = asyncio.ensure_future(
        call(registry, "update_tool", "tool_00001", description="Other text.")
        if change == "update"
        else call(registry, change, *writing[change])
    )
    while not any(getattr(record, "lease", "") == SWITCH for record in caplog.records):
        await asyncio.sleep(0.01)
    assert await first(registry, "handle beta case 1") == "tool_00001"
    # It holds nothing while it waits: the switch itself could go on.
    with psycopg.connect(psycopg_url(url)) as connection:
        connection.execute("LOCK TABLE tool_registry, tool_embedding IN ACCESS EXCLUSIVE MODE")
    assert not waiting.done()
    rows(url, _RELEASE, SWITCH)
    await waiting
    if change == "activate":
        assert (await registry.get("tool_00003")).is_active
    else:
        assert await first(registry, "other text") == "tool_00001"

    rows(url, _HOLD, SWITCH)
    impatient = await open_registry(
        embeddings=old_model(), settings=RegistrySettings(lease_wait_s=0, lease_s=1)
    )
    held = rf"Another process holds '{SWITCH}' after 1 s: elsewhere:7 until \d+-\d+-\d+ "
    with pytest.raises(RegistryBusyError, match=held):
        await impatient.update_tool("tool_00002", description="Other text.")
    assert (await registry.get("tool_00002")).version == 1


async def test_a_revert_in_the_moment_of_a_prune_keeps_its_set_and_its_index(
    open_registry: OpenRegistry,
) -> None:
    settings = RegistrySettings(index_min_tools=20)
    old = await open_registry(embeddings=old_model(), settings=settings)
    await old.sync(many_specs(30))
    new = await open_registry(embeddings=new_model(), opened=False)
    await new.build_embeddings()
    await new.switch_embeddings()
    with ToolRegistry(new.database_url, embeddings=new_model()) as other:
        with before_statement("LOCK TABLE", other.revert_embeddings):
            removed = await new.prune_embeddings()
    assert [record.id for record in removed] == [2]
    assert [(m.id, m.state) for m in await old.embedding_models()] == [(1, "active")]
    ((index,),) = rows(new.database_url, _INDEXES)
    assert index.endswith("_1")
    assert await first(old) == "tool_00000"


async def test_going_back_waits_for_no_build(open_registry: OpenRegistry) -> None:
    await serving(open_registry, 10)
    new = await open_registry(embeddings=new_model(), opened=False)
    await new.build_embeddings()
    await new.switch_embeddings()
    third = await open_registry(embeddings=HashEmbeddings(32, model="third"), opened=False)
    other = ToolRegistry(new.database_url, embeddings=new_model())
    reverted: list[int] = []

    def revert(progress: Any) -> None:
        if not reverted:
            reverted.append(other.revert_embeddings().serving.id)

    await third.build_embeddings(on_progress=revert)
    other.close()
    assert reverted == [1]
    assert (await third.switch_embeddings()).id == 3
    assert (await third.revert_embeddings()).serving.id == 1


async def test_running_processes_follow_a_rebuild_of_their_model(
    open_registry: OpenRegistry,
) -> None:
    """Readers and writers take the new generation over, before its forerunner is pruned or not."""
    reader = await serving(open_registry, 10)
    writer = await open_registry(embeddings=old_model())
    late = await open_registry(embeddings=old_model())
    admin = await open_registry(embeddings=old_model())
    await admin.build_embeddings(rebuild=True)
    await admin.switch_embeddings()
    await admin.update_tool("tool_00001", description="Rewritten by the admin.")
    await writer.update_tool("tool_00002", description="Rewritten by a writer.")
    assert list((await writer.sync([spec("added", "Added by a writer.")])).added) == ["added"]
    assert await first(reader, "rewritten by the admin") == "tool_00001"
    assert await first(reader, "added by a writer") == "added"
    assert await first(writer, "rewritten by a writer") == "tool_00002"
    await admin.prune_embeddings()
    assert await first(late, "added by a writer") == "added"
    assert rows(reader.database_url, _LACKING) == []


async def test_a_process_on_a_pruned_model_is_told_and_one_on_a_retired_one_goes_on(
    open_registry: OpenRegistry,
) -> None:
    old = await serving(open_registry, 10)
    new = await open_registry(embeddings=new_model(), opened=False)
    await new.build_embeddings()
    await new.switch_embeddings()
    for _ in range(2):
        assert await first(old) == "tool_00000"
    await new.prune_embeddings()
    with pytest.raises(EmbeddingModelMismatchError, match="were pruned; restart"):
        await old.search("handle")


@pytest.fixture
def replica_url(databases: Databases, migrated_template: str) -> Generator[str]:
    """A second database, which stands for a replica that got what was done to it."""
    with databases.temporary(template=migrated_template) as url:
        yield url


@pytest.mark.parametrize("knows", ["nothing of the set", "half of the set"])
async def test_a_replica_that_lags_behind_a_switch_is_not_asked_until_it_has_caught_up(
    open_registry: OpenRegistry, replica_url: str, knows: str
) -> None:
    for url in (replica_url, None):
        options = {} if url is None else {"url": url}
        old = await open_registry(embeddings=old_model(), **options)
        await old.sync(many_specs(10))
    behind = ToolRegistry(replica_url, embeddings=new_model())
    if knows == "half of the set":
        behind.build_embeddings()
        rows(
            replica_url,
            "DELETE FROM tool_embedding AS e USING tool_registry AS t WHERE t.id = e.tool_id AND "
            "e.embedding_model_id = 2 AND t.tool_name > 'tool_00004' RETURNING 1",
        )
    new = await open_registry(embeddings=new_model(), opened=False, replica_url=replica_url)
    await new.build_embeddings()
    await new.switch_embeddings()
    assert len(await new.search("handle", threshold=0, k=20)) == 10

    # From here on the replica has the set, and something that only it says.
    behind.build_embeddings()
    behind.switch_embeddings()
    behind.update_tool("tool_00009", description="Said by the replica.")
    behind.close()
    assert [h.description for h in await new.search("said by the replica", threshold=0, k=1)] == [
        "Said by the replica."
    ]


async def test_a_replica_that_lags_behind_a_rebuild(
    open_registry: OpenRegistry, replica_url: str
) -> None:
    for url in (replica_url, None):
        options = {} if url is None else {"url": url}
        await (await open_registry(embeddings=old_model(), **options)).sync(many_specs(10))
    reader = await open_registry(embeddings=old_model(), replica_url=replica_url)
    admin = await open_registry(embeddings=old_model())
    await admin.build_embeddings(rebuild=True)
    await admin.switch_embeddings()
    await admin.prune_embeddings()
    await admin.update_tool("tool_00001", description="Rewritten.")
    await reader.update_tool("tool_00002", description="Rewritten by the reader.")  # it follows
    assert await first(reader, "rewritten by the reader") == "tool_00002"


async def test_a_request_that_takes_longer_than_the_lease_is_logged(
    open_registry: OpenRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    class Slower(HashEmbeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            time.sleep(1.1)
            return super().embed_documents(texts)

    settings = RegistrySettings(lease_s=1, auto_calibrate=False)
    registry = await open_registry(embeddings=Slower(), settings=settings)
    await registry.sync([spec("add", "Add two numbers.")])
    (record,) = [r for r in caplog.records if r.message == "embedding_outlasted_lease"]
    assert (record.levelname, record.__dict__["lease_s"]) == ("WARNING", 1)
    assert record.__dict__["took_s"] >= 1.1
