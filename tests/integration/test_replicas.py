"""Many processes on one registry: who embeds, who waits, who takes over from a killed one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from registry import Embedder, RegistrySettings, ToolRegistry, migrate
from registry.anchors import ANCHORS
from registry.errors import EmbeddingModelMismatchError, RegistryBusyError
from registry.tables import SCHEMA_REVISION
from registry.text import embedding_text
from tests.integration.conftest import OpenRegistry
from tests.integration.test_store import rows
from tests.support.catalogue import many_specs, spec
from tests.support.embeddings import HashEmbeddings
from tests.support.interleaving import before_statement
from tests.support.logged_embeddings import logged_requests, times_embedded
from tests.support.migration_scripts import start_upgrade
from tests.support.worker import Job, Worker

_WAITING = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


def wait_until(what: str, is_so: Callable[[], bool], *, timeout_s: float = 30) -> None:
    end = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end, f"never {what}"
        time.sleep(0.02)


def lease_holders(url: str) -> list[tuple[Any, ...]]:
    return rows(url, "SELECT name, holder FROM tool_lease")


class TestStartAtOnce:
    def test_of_eight_replicas_one_embeds_and_all_end_with_the_same_registry(
        self, database_url: str, tmp_path: Path
    ) -> None:
        log = tmp_path / "embedded"
        tools = 300
        # Slow enough that the last is there before the first is done.
        job = Job(task="sync", url=database_url, log=log, tools=tools, delay_s=0.1)
        with ExitStack() as stack:
            workers = [stack.enter_context(Worker(job)) for _ in range(8)]
            results = [worker.result() for worker in workers]
        assert sorted(result["embedded"] for result in results) == [0] * 7 + [tools]
        assert all(result["failed"] == {} for result in results)
        assert len({request.pid for request in logged_requests(log)}) == 1
        texts = [*map(embedding_text, many_specs(tools)), *chain.from_iterable(ANCHORS)]
        assert times_embedded(log) == dict.fromkeys(texts, 1)
        stored = (
            "SELECT count(*), min(t.version), max(t.version), "
            "count(*) FILTER (WHERE e.source_hash = t.text_hash) FROM tool_registry AS t "
            "LEFT JOIN tool_embedding AS e ON e.tool_id = t.id"
        )
        assert rows(database_url, stored) == [(tools, 1, 1, tools)]
        assert rows(database_url, "SELECT count(*) FROM tool_history") == [(tools,)]
        assert rows(database_url, "SELECT count(*) FROM embedding_model") == [(1,)]
        assert lease_holders(database_url) == []

    def test_two_upgrades_at_once_then_two_syncs(
        self, empty_database_url: str, tmp_path: Path
    ) -> None:
        """What `toolrag db upgrade && toolrag sync` of two replicas comes to."""
        upgrades = [start_upgrade(empty_database_url) for _ in range(2)]
        outputs = [upgrade.communicate(timeout=60)[0] for upgrade in upgrades]
        assert ([u.returncode for u in upgrades], outputs) == ([0, 0], ["", ""])
        assert migrate.current_revision(empty_database_url) == SCHEMA_REVISION
        job = Job(task="sync", url=empty_database_url, log=tmp_path / "embedded")
        with Worker(job) as one, Worker(job) as two:
            assert sorted(w.result()["embedded"] for w in (one, two)) == [0, 50]


class TestTakingOver:
    def test_a_killed_holder_is_taken_over_from_and_nothing_stored_is_embedded_twice(
        self, database_url: str, tmp_path: Path
    ) -> None:
        log = tmp_path / "embedded"
        tools = 60
        settings = RegistrySettings(embedding_batch_size=10, lease_s=1, auto_calibrate=False)
        job = Job(
            task="sync", url=database_url, log=log, tools=tools, delay_s=0.1, settings=settings
        )
        with Worker(job) as first:
            assert first.wait_for_progress(20)
            with Worker(job) as second:
                first.kill()
                assert lease_holders(database_url) != []
                stored = rows(database_url, "SELECT count(*) FROM tool_embedding")[0][0]
                assert 20 <= stored < tools
                assert second.result()["embedded"] == tools - stored
        embedded = times_embedded(log)
        assert set(embedded) == {embedding_text(s) for s in many_specs(tools)}
        # The batch that the first had sent, and was killed before it could store.
        twice = [text for text, times in embedded.items() if times > 1]
        assert len(twice) <= 10
        assert rows(database_url, "SELECT count(*) FROM tool_embedding") == [(tools,)]
        assert lease_holders(database_url) == []

    async def test_a_live_holder_keeps_others_waiting_until_they_give_up_and_say_so(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await open_registry()
        await registry.sync([spec("add", "Add two numbers.")])
        impatient = await open_registry(settings=RegistrySettings(lease_wait_s=0.2))
        rows(
            registry.database_url,
            "INSERT INTO tool_lease VALUES ('sync:default', 'another', now() + interval '1 hour') "
            "RETURNING name",
        )
        changed = [spec("add", "Add integers.")]
        with pytest.raises(RegistryBusyError, match="Another process holds 'sync:default'"):
            await impatient.sync(changed)
        assert (await registry.get("add")).version == 1
        # What changes nothing needs no lease, so a waiting replica can start.
        assert list((await impatient.sync([spec("add", "Add two numbers.")])).unchanged) == ["add"]
        rows(
            registry.database_url,
            "UPDATE tool_lease SET expires_at = now() - interval '1 second' RETURNING name",
        )
        assert list((await impatient.sync(changed)).updated) == ["add"]

    async def test_namespaces_do_not_wait_for_each_other(self, open_registry: OpenRegistry) -> None:
        here = await open_registry(settings=RegistrySettings(lease_wait_s=0))
        rows(
            here.database_url,
            "INSERT INTO tool_lease VALUES ('sync:there', 'another', now() + interval '1 hour') "
            "RETURNING name",
        )
        assert list((await here.sync([spec("add", "Add.")])).added) == ["add"]


class TestSwitchMeetsSync:
    async def test_neither_deadlocks_and_the_set_that_serves_has_every_vector(
        self, open_registry: OpenRegistry
    ) -> None:
        """A sync is within its transaction when the switch comes: one waits for the other."""
        url = (await open_registry()).database_url
        old = await open_registry(embeddings=HashEmbeddings(64, model="old"))
        await old.sync(many_specs(10))
        switching = ToolRegistry(url, embeddings=HashEmbeddings(128, model="new"))
        switching.build_embeddings()
        failures: list[BaseException] = []

        def switch() -> None:
            try:
                switching.switch_embeddings()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=switch)

        def begin_to_switch() -> None:
            thread.start()
            wait_until("the switch waited", lambda: rows(url, _WAITING) == [(1,)])

        changed = [s.replace(description=f"Changed {s.description}") for s in many_specs(10)]
        try:
            with before_statement("INSERT INTO tool_registry", begin_to_switch):
                await old.sync(changed)
        except EmbeddingModelMismatchError:
            pass  # the switch came first, which is as good: nothing was changed
        finally:
            thread.join()
            switching.close()
        assert failures == []
        new = await open_registry(embeddings=HashEmbeddings(128, model="new"))
        assert len(await new.search("handle", threshold=0, k=20)) == 10
        lacking = (
            "SELECT count(*) FROM tool_registry AS t WHERE NOT EXISTS (SELECT FROM tool_embedding "
            "AS e JOIN embedding_model AS m ON m.id = e.embedding_model_id AND m.state = 'active' "
            "WHERE e.tool_id = t.id AND e.source_hash = t.text_hash)"
        )
        assert rows(url, lacking) == [(0,)]

    async def test_an_edit_that_is_stored_while_a_switch_comes(
        self, open_registry: OpenRegistry
    ) -> None:
        url = (await open_registry()).database_url
        old = await open_registry(embeddings=HashEmbeddings(64, model="old"))
        await old.sync(many_specs(10))
        switching = ToolRegistry(url, embeddings=HashEmbeddings(128, model="new"))
        switching.build_embeddings()
        thread = threading.Thread(target=switching.switch_embeddings)

        def begin_to_switch() -> None:
            thread.start()
            wait_until("the switch waited", lambda: rows(url, _WAITING) == [(1,)])

        try:
            with before_statement("FOR SHARE", begin_to_switch):
                await old.update_tool("tool_00003", description="Edited in this moment.")
        finally:
            thread.join()
            switching.close()
        new = await open_registry(embeddings=HashEmbeddings(128, model="new"))
        hit = (await new.search("edited in this moment", threshold=0))[0]
        assert hit.description == "Edited in this moment."


def test_one_that_was_silent_for_longer_than_its_lease_stores_nothing_over_its_successor(
    database_url: str,
) -> None:
    """It comes back from a long embedding call; the versions it saw are no longer there."""
    quick = ToolRegistry(database_url, embeddings=HashEmbeddings())
    successor = [s.replace(description=f"Quick {s.description}") for s in many_specs(10)]

    class Silent(HashEmbeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            if len(self.calls) == 2:
                rows(
                    database_url,
                    "UPDATE tool_lease SET expires_at = now() - interval '1 second' RETURNING name",
                )
                quick.sync(successor)
            return super().embed_documents(texts)

    embeddings = Silent()
    slow = ToolRegistry(
        database_url, embeddings=Embedder(embeddings, name="HashEmbeddings:hash", batch_size=5)
    )
    slow.sync(many_specs(10))
    failed = _sync_or_busy(
        slow, [s.replace(description=f"Slow {s.description}") for s in many_specs(10)]
    )
    assert failed is None or len(failed) == 10
    assert [r.spec.description for r in quick.list_tools()] == [s.description for s in successor]
    assert rows(
        database_url,
        "SELECT count(*) FROM tool_registry AS t JOIN tool_embedding AS e ON e.tool_id = t.id "
        "WHERE e.source_hash = t.text_hash",
    ) == [(10,)]
    slow.close()
    quick.close()


def _sync_or_busy(registry: ToolRegistry, tools: list[Any]) -> dict[str, str] | None:
    """Return what failed; None where the sync gave way."""
    try:
        return dict(registry.sync(tools).failed)
    except RegistryBusyError:
        return None
