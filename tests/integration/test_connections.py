"""Connections that break, are few, or are shared: pooler, killed backends, restarts, full pools."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool

from agent import create_tool_rag_agent
from registry import RegistrySettings, ToolRegistry, Toolset, migrate
from registry.errors import RegistryError, RegistryUnavailableError
from registry.local_postgres import LocalPostgres
from registry.text import embedding_text
from tests.integration.conftest import EitherRegistry, OpenRegistry
from tests.integration.test_store import rows
from tests.support.catalogue import many_specs, spec
from tests.support.databases import Databases, psycopg_url
from tests.support.embeddings import HashEmbeddings
from tests.support.interleaving import before_statement, call, each_statement, in_thread
from tests.support.pooler import TransactionPooler
from tests.support.scripted_model import ScriptedModel, asks, says
from tests.support.scripted_model import call as tool_call
from tests.support.worker import Job, Worker

_END_BACKENDS = (
    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name = 'toolrag'"
)


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPostgres]:
    """A server that these tests may restart."""
    folder = tmp_path_factory.mktemp("restarted")
    with LocalPostgres(folder, settings={"fsync": "off"}) as server:
        yield server


@pytest.fixture
def own_url(own_server: LocalPostgres) -> str:
    """URL of a fresh, migrated database on that server."""
    url = Databases(own_server.url).create()
    migrate.upgrade(url)
    return url


def restart(server: LocalPostgres) -> None:
    server.stop()
    server.start()


async def found(registry: EitherRegistry, question: str = "handle alpha case 0") -> str:
    return (await registry.search(question, threshold=0))[0].tool_name


class TestTransactionPooler:
    """DBC-1."""

    @pytest.fixture
    def pooler(self, database_url: str, tmp_path: Path) -> Iterator[TransactionPooler]:
        direct = Job(task="sync", url=database_url, log=tmp_path / "synced")
        with direct.registry() as registry:
            registry.sync(many_specs(30))
        with TransactionPooler(database_url, servers=3) as pooler:
            yield pooler

    def job(self, pooler: TransactionPooler, log: Path, *, prepared: bool) -> Job:
        settings = RegistrySettings(prepared_statements=prepared)
        return Job(task="search", url=pooler.url, log=log, tools=50, settings=settings)

    def test_dbc_1_two_processes_search_fifty_times_each_without_prepared_statements(
        self, pooler: TransactionPooler, tmp_path: Path
    ) -> None:
        job = self.job(pooler, tmp_path / "log", prepared=False)
        with Worker(job) as one, Worker(job) as two:
            assert (one.result(), two.result()) == ({"found": 50}, {"found": 50})
        assert pooler.transactions >= 100

    def test_dbc_1_with_them_it_fails_and_the_error_names_the_setting(
        self, pooler: TransactionPooler, tmp_path: Path
    ) -> None:
        job = self.job(pooler, tmp_path / "log", prepared=True)
        with Worker(job) as one, Worker(job) as two:
            done = [one.ended(), two.ended()]
            errors = [worker.error for worker in (one, two) if worker.error]
        assert not all(done)
        for error in errors:
            assert error.startswith("RegistryError: ")
            assert "prepared statement" in error
            assert "prepared_statements=False" in error
            assert "\n" not in error

    async def test_dbc_1_everything_else_works_through_it_as_well(
        self, open_registry: OpenRegistry, database_url: str
    ) -> None:
        settings = RegistrySettings(prepared_statements=False)
        with TransactionPooler(database_url, servers=3) as pooler:
            registries = [await open_registry(url=pooler.url, settings=settings) for _ in range(2)]
            try:
                one, two = registries
                await one.sync(many_specs(30))
                await asyncio.gather(
                    *(call(r, "search", f"handle {n}") for r in registries for n in range(25))
                )
                for number in range(10):
                    await one.update_tool("tool_00000", description=f"Change {number}.")
                    await two.update_tool("tool_00000", category=f"category {number}")
                assert len(await two.history("tool_00000")) == 21
                await two.deactivate("tool_00001")
                assert len(await one.list_tools()) == 29
                await one.build_embeddings(rebuild=True)
                await one.switch_embeddings()
                assert await found(one, "change 9") == "tool_00000"
            finally:
                for registry in registries:
                    await registry.close()


class TestStaleConnections:
    """DBC-2."""

    async def test_dbc_2_killed_backends_are_not_noticed(self, open_registry: OpenRegistry) -> None:
        registry = await open_registry()
        await registry.sync(many_specs(10))
        actions: list[Callable[[], Awaitable[Any]]] = [
            lambda: found(registry),
            lambda: registry.get("tool_00001"),
            lambda: registry.update_tool("tool_00002", description="Changed."),
            lambda: registry.sync([*many_specs(10), spec("new", "New.")]),
            lambda: registry.build_embeddings(rebuild=True),
            lambda: registry.switch_embeddings(),
            lambda: registry.history("tool_00002"),
        ]
        for action in actions:
            assert rows(registry.database_url, _END_BACKENDS) != []
            await action()

    async def test_dbc_2_a_backend_killed_within_a_transaction_is_one_clear_error(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await open_registry()
        await registry.sync([spec("add", "Add two numbers.")])

        def kill() -> None:
            assert rows(registry.database_url, _END_BACKENDS) != []

        # A search has changed nothing, so it asks again by itself.
        with before_statement("<=>", kill):
            assert [hit.tool_name for hit in await call(registry, "search", "add")] == ["add"]
        for pattern, action in (
            ("tool_history", lambda: registry.update_tool("add", description="Sum.")),
            ("tool_history", lambda: registry.sync([spec("add", "Sum up.")])),
        ):
            with before_statement(pattern, kill):
                with pytest.raises(RegistryUnavailableError, match="does not answer") as caught:
                    await action()
            assert "\n" not in str(caught.value)
        assert (await registry.get("add")).version == 1
        assert [h.description for h in await registry.search("add numbers")] == ["Add two numbers."]
        assert list((await registry.sync([spec("add", "Sum up.")])).updated) == ["add"]

    async def test_dbc_2_a_run_goes_on_when_backends_die_while_the_model_thinks(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await open_registry()
        toolset = Toolset([_adder(lambda a, b: a + b)])
        await registry.sync(toolset)
        killed: list[int] = []

        def think(messages: list[BaseMessage]) -> AIMessage:
            killed.append(len(rows(registry.database_url, _END_BACKENDS)))
            if isinstance(messages[-1], HumanMessage):
                return asks(tool_call("add", a=2, b=3))
            return says("Five.")

        result = await run(registry, toolset, think)
        assert [m.content for m in result if isinstance(m, ToolMessage)] == ["5"]
        assert result[-1].content == "Five."
        assert all(killed), "a reply without a connection to kill"

    async def test_dbc_2_a_search_whose_backend_is_killed_under_it_asks_again(
        self, open_registry: OpenRegistry
    ) -> None:
        """And the pool's other connections, which were killed as well, are not tried in turn."""
        registry = await open_registry(settings=RegistrySettings(pool_size=3))
        await registry.sync([spec("add", "Add two numbers.")])
        await asyncio.gather(*(call(registry, "search", "add") for _ in range(9)))
        with psycopg.connect(psycopg_url(registry.database_url)) as blocker:
            blocker.execute("LOCK TABLE tool_registry IN ACCESS EXCLUSIVE MODE")
            blocked = asyncio.create_task(call(registry, "search", "add"))
            while rows(registry.database_url, _WAITING) != [(1,)]:
                await asyncio.sleep(0.01)
            assert rows(registry.database_url, _END_BACKENDS)
        assert [hit.tool_name for hit in await blocked] == ["add"]

    async def test_dbc_2_the_server_is_restarted_between_two_runs(
        self, open_registry: OpenRegistry, own_server: LocalPostgres, own_url: str
    ) -> None:
        registry = await open_registry(url=own_url)
        toolset = Toolset([_adder(lambda a, b: a + b)])
        await registry.sync(toolset)
        for number in range(2):
            result = await run(registry, toolset, _one_call)
            assert [m.content for m in result if isinstance(m, ToolMessage)] == ["5"]
            if number == 0:
                restart(own_server)

    async def test_a_server_restarted_while_the_model_thinks(
        self, open_registry: OpenRegistry, own_server: LocalPostgres, own_url: str
    ) -> None:
        registry = await open_registry(url=own_url)
        toolset = Toolset([_adder(lambda a, b: a + b)])
        await registry.sync(toolset)

        def think(messages: list[BaseMessage]) -> AIMessage:
            if isinstance(messages[-1], HumanMessage):
                restart(own_server)
            return _one_call(messages)

        result = await run(registry, toolset, think)
        assert [m.content for m in result if isinstance(m, ToolMessage)] == ["5"]


def _adder(add: Callable[[int, int], Any], *, coroutine: Any = None) -> BaseTool:
    return StructuredTool.from_function(
        func=_typed(add),
        coroutine=None if coroutine is None else _typed(coroutine),
        name="add",
        description="Add two numbers.",
    )


def _typed(function: Callable[..., Any]) -> Callable[..., Any]:
    function.__annotations__.update(a=int, b=int)
    return function


def _one_call(messages: list[BaseMessage]) -> AIMessage:
    if isinstance(messages[-1], HumanMessage):
        return asks(tool_call("add", a=2, b=3))
    return says("Five.")


async def run(registry: EitherRegistry, toolset: Toolset, script: Any) -> list[BaseMessage]:
    """Run an agent on a question that finds `add`, the way that fits the registry."""
    agent = create_tool_rag_agent(
        ScriptedModel(script=script), registry=registry.wrapped, toolset=toolset, threshold=0
    )
    given: Any = {"messages": [HumanMessage("add two numbers")]}
    if isinstance(registry.wrapped, ToolRegistry):
        result = await in_thread(agent.invoke, given)
    else:
        result = await agent.ainvoke(given)
    return result["messages"]


class TestFewConnections:
    """DBC-5."""

    async def test_dbc_5_twelve_runs_whose_tools_wait_for_each_other_share_two_connections(
        self, open_registry: OpenRegistry
    ) -> None:
        """Each tool returns only once all twelve run: a connection held meanwhile would jam."""
        settings = RegistrySettings(pool_size=2, max_overflow=0, pool_timeout_s=10)
        registry = await open_registry(settings=settings)
        threads, tasks = threading.Barrier(12), asyncio.Barrier(12)

        def wait(a: int, b: int) -> int:
            threads.wait(30)
            return a + b

        async def wait_async(a: int, b: int) -> int:
            await asyncio.wait_for(tasks.wait(), 30)
            return a + b

        toolset = Toolset([_adder(wait, coroutine=wait_async)])
        await registry.sync(toolset)
        results = await asyncio.gather(*(run(registry, toolset, _one_call) for _ in range(12)))
        for messages in results:
            assert [m.content for m in messages if isinstance(m, ToolMessage)] == ["5"]
        count = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND application_name = 'toolrag'"
        )
        assert rows(registry.database_url, count)[0][0] <= 2

    async def test_dbc_5_a_pool_that_is_really_used_up_is_its_own_clear_error(
        self, open_registry: OpenRegistry
    ) -> None:
        settings = RegistrySettings(pool_size=1, max_overflow=0, pool_timeout_s=0.2)
        registry = await open_registry(settings=settings)
        await registry.sync([spec("add", "Add two numbers.")])
        with psycopg.connect(psycopg_url(registry.database_url)) as blocker:
            blocker.execute("LOCK TABLE tool_registry IN ACCESS EXCLUSIVE MODE")
            blocked = asyncio.create_task(call(registry, "search", "add"))
            while rows(registry.database_url, _WAITING) != [(1,)]:
                await asyncio.sleep(0.01)
            with pytest.raises(RegistryUnavailableError, match="Raise pool_size") as caught:
                await call(registry, "get", "add")
            assert "\n" not in str(caught.value)
        assert [hit.tool_name for hit in await blocked] == ["add"]
        assert (await registry.get("add")).version == 1


_WAITING = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


class TestRestart:
    async def test_four_that_search_see_at_worst_one_clear_error_each(
        self, open_registry: OpenRegistry, own_server: LocalPostgres, own_url: str
    ) -> None:
        registry = await open_registry(url=own_url)
        await registry.sync(many_specs(50))
        searched, restarted = [0] * 4, asyncio.Event()
        errors: list[list[RegistryUnavailableError]] = [[] for _ in range(4)]

        async def search(worker: int) -> None:
            after = 0
            while after < 20:
                try:
                    hits = await call(registry, "search", f"handle {worker}", threshold=0, k=100)
                except RegistryUnavailableError as error:
                    errors[worker].append(error)
                    # A caller's retry; the second try has to work.
                    await restarted.wait()
                else:
                    assert len(hits) == 50
                    searched[worker] += 1
                    after += restarted.is_set()

        async def restart_meanwhile() -> None:
            while min(searched) < 5:
                await asyncio.sleep(0.01)
            await in_thread(restart, own_server)
            restarted.set()

        await asyncio.gather(*map(search, range(4)), restart_meanwhile())
        assert max(map(len, errors)) <= 1
        assert any(errors), "the restart was not noticed at all"
        for error in (error for found in errors for error in found):
            assert "\n" not in str(error)

    async def test_a_sync_goes_on_after_a_restart_between_two_batches(
        self, open_registry: OpenRegistry, own_server: LocalPostgres, own_url: str
    ) -> None:
        embeddings = HashEmbeddings()
        settings = RegistrySettings(embedding_batch_size=10, auto_calibrate=False)
        registry = await open_registry(url=own_url, embeddings=embeddings, settings=settings)

        def restart_once(progress: Any) -> None:
            if progress.done == 20:
                restart(own_server)

        report = await registry.sync(many_specs(40), on_progress=restart_once)
        assert (len(report.added), dict(report.failed), len(embeddings.calls)) == (40, {}, 4)
        assert len(await registry.search("handle", threshold=0, k=100)) == 40

    async def test_a_sync_broken_off_by_a_restart_is_one_error_and_is_taken_up(
        self, open_registry: OpenRegistry, own_server: LocalPostgres, own_url: str
    ) -> None:
        embeddings = HashEmbeddings()
        settings = RegistrySettings(embedding_batch_size=10, auto_calibrate=False)
        registry = await open_registry(url=own_url, embeddings=embeddings, settings=settings)
        stored: list[int] = []

        def note(progress: Any) -> None:
            stored.append(progress.done)

        def third_request(texts: list[str]) -> list[list[float]]:
            vectors = HashEmbeddings.embed_documents(embeddings, texts)
            if len(embeddings.calls) == 3:
                breaking.__enter__()
            return vectors

        breaking = before_statement("INSERT INTO tool_registry", lambda: restart(own_server))
        embeddings.embed_documents = third_request  # type: ignore[method-assign]
        with pytest.raises(RegistryUnavailableError, match="does not answer") as caught:
            await registry.sync(many_specs(40), on_progress=note)
        breaking.__exit__(None, None, None)
        assert "\n" not in str(caught.value)
        assert stored == [10, 20]
        assert len(await registry.list_tools()) == 20
        embeddings.calls.clear()
        report = await registry.sync(many_specs(40))
        assert (len(report.added), len(report.unchanged), report.embedded) == (20, 20, 20)
        embedded = {text for request in embeddings.calls for text in request}
        assert embedded == {embedding_text(s) for s in many_specs(40)[20:]}


class TestStartUpRunsNoDDL:
    """MIG-6."""

    _CATALOGUE = """
        SELECT c.oid, c.relname, c.relkind, c.relfilenode, c.xmin::text, a.attname, a.atttypid,
               a.xmin::text
        FROM pg_class AS c LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid
        WHERE c.relnamespace NOT IN ('pg_catalog'::regnamespace, 'pg_toast'::regnamespace,
                                     'information_schema'::regnamespace)
        ORDER BY c.oid, a.attnum
    """

    async def test_mig_6_starting_twice_changes_nothing_and_a_dropped_index_stays_dropped(
        self, open_registry: OpenRegistry, database_url: str
    ) -> None:
        settings = RegistrySettings(index_min_tools=10)
        first = await open_registry(settings=settings)
        await first.sync(many_specs(20))
        indexes = "SELECT indexname FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1"
        before = {name for (name,) in rows(database_url, indexes)}
        dropped = {name for name in before if "hnsw" in name or "source_hash" in name}
        assert len(dropped) == 2
        with psycopg.connect(psycopg_url(database_url), autocommit=True) as connection:
            for name in dropped:
                connection.execute(f"DROP INDEX {name}")
        catalogue = rows(database_url, self._CATALOGUE)
        assert len(catalogue) > 50

        ran: list[str] = []

        with each_statement(ran.append):
            for _ in range(2):
                again = await open_registry(settings=settings)
                assert await found(again) == "tool_00000"
                assert len(await again.list_tools()) == 20
                await again.close()
        assert rows(database_url, self._CATALOGUE) == catalogue
        assert {name for (name,) in rows(database_url, indexes)} == before - dropped
        started = {statement.split()[0].upper() for statement in ran}
        assert started <= {"SELECT", "SHOW", "WITH", ";"}, started  # ; is the pool's ping


def test_a_refused_statement_is_no_unavailable_server() -> None:
    """The two are told apart: one may pass when tried again, the other never will."""
    assert not issubclass(RegistryError, RegistryUnavailableError)
