"""Durable threads on real Postgres: resumption, one run at a time, tenants, set-up, connections."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from agent import (
    DurableThreads,
    ToolPolicy,
    aask,
    acontinue_run,
    approve,
    aresume,
    ask,
    continue_run,
    create_tool_rag_agent,
    reject,
    resume,
)
from agent.guarding.answers import OUTCOME_UNKNOWN, outcome_of
from registry import AsyncToolRegistry, RegistrySettings, ToolRegistry, Toolset, migrate, threads
from registry.errors import (
    ApprovalError,
    ConfigurationError,
    RegistryError,
    SchemaVersionError,
    ThreadBusyError,
    ThreadNotFoundError,
)
from tests.integration.test_store import rows
from tests.support.databases import Databases, psycopg_url
from tests.support.durable_work import _STARTER
from tests.support.embeddings import HashEmbeddings
from tests.support.fake_registry import FakeRegistry
from tests.support.pooler import TransactionPooler
from tests.support.scripted_model import ScriptedModel, asks, call, says

Effects = Callable[[str], object]
_TAKE_OVER = "UPDATE tool_lease SET holder = 'another:1:x', expires_at = now() + interval '1 h'"
_RUN_OUT = "UPDATE tool_lease SET expires_at = now() - interval '1 s' RETURNING holder"


def tools_of(effects: Effects) -> Toolset:
    @tool
    def charge(order: int) -> str:
        """Charge an order to the card."""
        effects(f"charge {order}")
        return f"charged {order}"

    @tool
    def look(order: int) -> str:
        """Look an order up."""
        effects(f"look {order}")
        return f"order {order}"

    @tool
    def refresh(order: int) -> str:
        """Refresh an order's cached copy."""
        effects(f"refresh {order}")
        return f"refreshed {order}"

    look.metadata = {"read_only": True}
    return Toolset([charge, look, refresh])


def agent_of(registry: Any, toolset: Toolset, *script: AIMessage, **options: Any) -> Any:
    options.setdefault("durable", DurableThreads(lease_s=2))
    return create_tool_rag_agent(
        ScriptedModel(script=list(script)),
        registry=registry,
        toolset=toolset,
        threshold=0,
        usage_log=False,
        policies={"refresh": ToolPolicy(idempotent=True)},
        **options,
    )


@pytest.fixture
def url(database_url: str) -> str:
    with ToolRegistry(database_url, embeddings=HashEmbeddings()) as registry:
        registry.sync(tools_of(print))
    return database_url


@pytest.fixture
def registry(url: str) -> Iterator[ToolRegistry]:
    with ToolRegistry(url, embeddings=HashEmbeddings()) as registry:
        yield registry


def messages_of(agent: Any, thread_id: str = "t") -> list[Any]:
    return agent.get_state({"configurable": {"thread_id": thread_id}}).values["messages"]


class TestAKilledCall:
    """A process is killed when `charge` and `refresh` have had their effect, and `look` is done."""

    BATCH = asks(
        call("charge", "c", order=1), call("look", "l", order=2), call("refresh", "r", order=3)
    )

    @staticmethod
    def work(url: str, reports: Any) -> None:
        def effects(what: str) -> None:
            reports.send(what)
            if not what.startswith("look"):
                threading.Event().wait()

        toolset = tools_of(effects)
        with ToolRegistry(url, embeddings=HashEmbeddings()) as registry:
            agent = agent_of(registry, toolset, TestAKilledCall.BATCH, says("Never said."))
            ask(agent, "Charge 1, look 2 up, refresh 3", thread_id="t")

    @pytest.fixture
    def killed(self, url: str) -> None:
        reports, theirs = _STARTER.Pipe(duplex=False)
        process = _STARTER.Process(target=self.work, args=(url, theirs), daemon=True)
        process.start()
        theirs.close()
        assert {reports.recv() for _ in range(3)} == {"charge 1", "look 2", "refresh 3"}
        stored = "SELECT 1 FROM checkpoint_writes WHERE channel = 'messages' AND blob::text LIKE %s"
        while not rows(url, stored, f"%{b'order 2'.hex()}%"):
            assert process.is_alive()
        process.kill()
        process.join()

    @pytest.mark.usefixtures("killed")
    def test_its_run_is_continued(self, registry: ToolRegistry, url: str) -> None:
        ran: list[str] = []
        agent = agent_of(registry, tools_of(ran.append), says("Done."), says("Hello."))
        for attempt in (continue_run, ask):
            question = {"question": "Hello?"} if attempt is ask else {}
            with pytest.raises(ThreadBusyError, match=r"'t' is under way .*killed") as busy:
                attempt(agent, **question, thread_id="t")
            assert busy.value.thread_id == "t"
        assert rows(url, _RUN_OUT)
        result = continue_run(agent, thread_id="t")
        assert (result.answer, ran) == ("Done.", ["refresh 3"])
        [step] = result.steps
        assert [found.status for found in step.tool_calls] == ["error", "success", "success"]
        [charged] = [m for m in messages_of(agent) if getattr(m, "tool_call_id", "") == "c"]
        assert outcome_of(charged) == OUTCOME_UNKNOWN
        assert "not known" in charged.content
        # Once more, it says the same; and the thread goes on, with nothing left behind.
        assert continue_run(agent, thread_id="t").answer == "Done."
        assert ask(agent, "Hello?", thread_id="t").answer == "Hello."
        assert rows(url, "SELECT * FROM tool_call_mark") == rows(url, "SELECT * FROM tool_lease")

    @pytest.mark.usefixtures("killed")
    def test_a_new_question_closes_it(self, registry: ToolRegistry, url: str) -> None:
        """What is finished keeps its result, what is not is said to be unknown; nothing is run."""
        ran: list[str] = []
        agent = agent_of(registry, tools_of(ran.append), says("Hello."))
        assert rows(url, _RUN_OUT)
        result = ask(agent, "Hello?", thread_id="t")
        assert (result.answer, result.steps, ran) == ("Hello.", (), [])
        kinds = [type(message) for message in messages_of(agent)]
        assert kinds == [HumanMessage, AIMessage, *3 * [ToolMessage], HumanMessage, AIMessage]
        told = {m.tool_call_id: m for m in messages_of(agent) if isinstance(m, ToolMessage)}
        assert told["l"].content == "order 2"
        assert {outcome_of(told["c"]), outcome_of(told["r"])} == {OUTCOME_UNKNOWN}


class TestTwoRunsOfAThread:
    async def test_one_wins_and_the_other_is_told(self, url: str) -> None:
        """Two workers, each with a registry of its own: one sync, one async."""
        inside, leave = threading.Event(), threading.Event()

        def hold_on(what: str) -> None:
            inside.set()
            assert leave.wait(30)

        charge = asks(call("charge", order=1))
        with ToolRegistry(url, embeddings=HashEmbeddings()) as first:
            agent = agent_of(first, tools_of(hold_on), charge, says("Done."), says("Again."))
            run = asyncio.create_task(asyncio.to_thread(ask, agent, "Charge 1", thread_id="t"))
            assert await asyncio.to_thread(inside.wait, 30)
            async with AsyncToolRegistry(url, embeddings=HashEmbeddings()) as second:
                other = agent_of(second, tools_of(print), says("Other."), says("Third."))
                # Longer than a hold lasts without being prolonged, as the database's clock says.
                held = "SELECT now() > expires_at, expires_at FROM tool_lease"
                [(_, began)] = rows(url, held)
                while (found := rows(url, held))[0][1] == began:
                    assert not found[0][0], "the hold ran out under a live run"
                with pytest.raises(ThreadBusyError):
                    await aask(other, "Hello?", thread_id="t")
                with pytest.raises(ThreadBusyError):
                    await acontinue_run(other, thread_id="t")
                config: Any = {"configurable": {"thread_id": "t"}}
                with pytest.raises(ThreadBusyError):
                    await other.aupdate_state(config, {"messages": [HumanMessage("!")]})
                # No connection waits for the tool; another thread is free.
                busy = "SELECT state FROM pg_stat_activity WHERE state LIKE 'idle in%%'"
                assert rows(url, busy) == []
                assert (await aask(other, "Hello?", thread_id="u")).answer == "Other."
                leave.set()
                assert (await run).answer == "Done."
                assert (await aask(other, "Hello?", thread_id="t")).answer == "Third."

    def test_a_run_that_lost_its_thread_runs_nothing_more(
        self, registry: ToolRegistry, url: str
    ) -> None:
        ran: list[str] = []

        def effects(what: str) -> None:
            ran.append(what)
            if what == "look 1":
                with psycopg.connect(psycopg_url(url)) as connection:
                    connection.execute(_TAKE_OVER)

        script = asks(call("look", "l", order=1)), asks(call("charge", "c", order=2))
        agent = agent_of(registry, tools_of(effects), *script, says("Never said."))
        with pytest.raises(ThreadBusyError, match="taken over"):
            ask(agent, "Look 1 up, charge 2", thread_id="t")
        assert ran == ["look 1"]
        assert rows(url, "SELECT holder FROM tool_lease") == [("another:1:x",)]

    @pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
    async def test_apr_8_two_workers_take_one_approval(self, url: str, is_async: bool) -> None:
        """APR-8: side by side or one after the other, the first stands and the tool runs once."""
        ran: list[str] = []
        toolset = tools_of(ran.append)
        kind: Any = AsyncToolRegistry if is_async else ToolRegistry
        registries = [kind(url, embeddings=HashEmbeddings()) for _ in range(3)]
        agents = [
            agent_of(registry, toolset, *script, approval={"charge": True})
            for registry, script in zip(
                registries,
                [[asks(call("charge", "c", order=1))], [says("Done.")], [says("Done.")]],
                strict=True,
            )
        ]

        async def decide(agent: Any, decision: Any) -> Any:
            if is_async:
                return await aresume(agent, [decision], thread_id="t")
            return await asyncio.to_thread(resume, agent, [decision], thread_id="t")

        if is_async:
            first = await aask(agents[0], "Charge 1", thread_id="t")
        else:
            first = ask(agents[0], "Charge 1", thread_id="t")
        assert [pending.call_id for pending in first.pending] == ["c"]
        config: Any = {"configurable": {"thread_id": "t"}}
        waiting = (await agents[1].aget_state(config)).interrupts
        found = await asyncio.gather(
            decide(agents[1], approve("c")),
            decide(agents[2], approve("c")),
            return_exceptions=True,
        )
        lost = [result for result in found if isinstance(result, Exception)]
        assert len(lost) == 1
        assert isinstance(lost[0], (ThreadBusyError, ApprovalError)), lost
        assert ran == ["charge 1"]
        # Whoever read what waits before it was settled, and comes after.
        from langgraph.types import Command

        answer = {"decisions": [reject("c")]}
        for late in (Command(resume={waiting[0].id: answer}), Command(resume=answer)):
            with pytest.raises(ApprovalError, match="settled already"):
                await agents[0].ainvoke(late, config)
        assert ran == ["charge 1"]
        for registry in registries:
            await registry.close() if is_async else registry.close()


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_a_tool_that_asks_runs_anew_with_the_answer(url: str, is_async: bool) -> None:
    """An interrupt is no unfinished call."""

    @tool
    def book(seat: int) -> str:
        """Book a seat."""
        return f"booked {seat} for {interrupt('For whom?')}"

    from langgraph.types import Command

    kind: Any = AsyncToolRegistry if is_async else ToolRegistry
    registry = kind(url, embeddings=HashEmbeddings())
    script = asks(call("book", seat=1)), says("Done.")
    agent = agent_of(registry, tools_of(print), *script, tools=[book])
    config: Any = {"configurable": {"thread_id": "t"}}
    asked = await agent.ainvoke({"messages": [HumanMessage("Book 1")]}, config)
    assert [waiting.value for waiting in asked["__interrupt__"]] == ["For whom?"]
    output = await agent.ainvoke(Command(resume="Ada"), config)
    assert [m.content for m in output["messages"][-2:]] == ["booked 1 for Ada", "Done."]
    await registry.close() if is_async else registry.close()


async def test_a_cancelled_run_leaves_a_thread_that_goes_on(url: str) -> None:
    """At once: its hold is given back. The cancelled call is not run again."""
    inside = asyncio.Event()

    @tool
    async def send(text: str) -> str:
        """Send a text."""
        inside.set()
        await asyncio.Event().wait()
        return "sent"

    async with AsyncToolRegistry(url, embeddings=HashEmbeddings()) as registry:
        script = asks(call("send", "s", text="x")), says("Hello."), says("More.")
        agent = agent_of(registry, tools_of(print), *script, tools=[send])
        run = asyncio.create_task(aask(agent, "Send x", thread_id="t"))
        await inside.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert (await aask(agent, "Hello?", thread_id="t")).answer == "Hello."
        state = await agent.aget_state({"configurable": {"thread_id": "t"}})
        [told] = [m for m in state.values["messages"] if isinstance(m, ToolMessage)]
        assert (told.tool_call_id, outcome_of(told)) == ("s", OUTCOME_UNKNOWN)
        assert (await acontinue_run(agent, thread_id="t")).answer == "Hello."


def test_tenants_have_threads_of_their_own(url: str) -> None:
    south = RegistrySettings(namespace="south")
    with (
        ToolRegistry(url, embeddings=HashEmbeddings()) as ours,
        ToolRegistry(url, embeddings=HashEmbeddings(), settings=south) as theirs,
    ):
        agent = agent_of(ours, tools_of(print), says("Ours."))
        other = agent_of(theirs, tools_of(print), says("Theirs."))
        ask(agent, "A secret", thread_id="t")
        with pytest.raises(ThreadNotFoundError, match="no thread 't'"):
            continue_run(other, thread_id="t")
        assert ask(other, "Hello?", thread_id="t").answer == "Theirs."
        assert len(messages_of(other)) == len(messages_of(agent)) == 2
        other.checkpointer.delete_thread("t")
        assert len(messages_of(agent)) == 2
        listed = list(agent.checkpointer.list({"configurable": {"thread_id": "t"}}))
        assert {saved.config["configurable"]["thread_id"] for saved in listed} == {"t"}
        with pytest.raises(ConfigurationError):
            list(agent.checkpointer.list(None))


class TestSetUp:
    def test_many_at_once_and_again(self, url: str) -> None:
        tables = "checkpoints, checkpoint_blobs, checkpoint_writes, checkpoint_migrations"
        with psycopg.connect(psycopg_url(url)) as connection:
            connection.execute(f"DROP TABLE {tables}")
        assert threads.current_version(url) is None
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(threads.set_up, [url] * 4))
        assert threads.current_version(url) == threads.known_version()

    def test_in_the_schema_that_the_url_asks_for(self, databases: Databases) -> None:
        with databases.temporary() as plain:
            with psycopg.connect(psycopg_url(plain)) as connection:
                connection.execute("CREATE EXTENSION vector; CREATE SCHEMA tools")
            schema = f"{plain}{'&' if '?' in plain else '?'}options=-csearch_path%3Dtools,public"
            migrate.upgrade(schema)
            with ToolRegistry(schema, embeddings=HashEmbeddings()) as registry:
                registry.sync(tools_of(print))
                ask(agent_of(registry, tools_of(print), says("Hi.")), "Hello?", thread_id="t")
            assert rows(plain, "SELECT DISTINCT thread_id FROM tools.checkpoints") == [
                ("default/t",)
            ]

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            (
                "DROP TABLE checkpoints, checkpoint_migrations",
                "no tables for durable threads",
            ),
            ("DROP TABLE checkpoint_migrations", "`checkpoints` that is not LangGraph's"),
            ("DELETE FROM checkpoint_migrations WHERE v = 9", "at version 8, older than 9"),
            ("INSERT INTO checkpoint_migrations VALUES (10)", "at version 10, newer than 9"),
        ],
    )
    async def test_tables_that_do_not_fit_are_refused(
        self, url: str, change: str, told: str
    ) -> None:
        with psycopg.connect(psycopg_url(url)) as connection:
            connection.execute(change)  # type: ignore[arg-type]
        mended = "older" in told or "no tables" in told
        mends = "Run `toolrag db upgrade`" if mended else "Upgrade that package|a schema of its own"
        toolset = tools_of(print)
        with (
            ToolRegistry(url, embeddings=HashEmbeddings()) as registry,
            pytest.raises(SchemaVersionError, match=f"{told}.*({mends})"),
        ):
            agent_of(registry, toolset)
        async with AsyncToolRegistry(url, embeddings=HashEmbeddings()) as registry:
            agent = agent_of(registry, toolset, says("Never said."))
            with pytest.raises(SchemaVersionError, match=told):
                await aask(agent, "Hello?", thread_id="t")
        migrate.upgrade(url)
        if mended:
            with ToolRegistry(url, embeddings=HashEmbeddings()) as registry:
                assert agent_of(registry, toolset)


class TestConnections:
    def test_dbc_1_behind_a_pooler_in_transaction_mode(self, url: str) -> None:
        """DBC-1: the registry's one setting holds for the checkpointer too."""
        settings = RegistrySettings(prepared_statements=False)
        steps = [asks(call("charge", f"c{n}", order=n)) for n in range(8)]
        ran: list[str] = []
        with (
            TransactionPooler(url, servers=3) as pooler,
            ToolRegistry(pooler.url, embeddings=HashEmbeddings(), settings=settings) as first,
            ToolRegistry(pooler.url, embeddings=HashEmbeddings(), settings=settings) as second,
            ThreadPoolExecutor(2) as pool,
        ):
            agents = [
                agent_of(r, tools_of(ran.append), *steps, says("Done.")) for r in (first, second)
            ]
            answers = list(
                pool.map(lambda n: ask(agents[n], "Charge all", thread_id=f"t{n}").answer, (0, 1))
            )
        assert answers == ["Done.", "Done."]
        assert len(ran) == 16

    async def test_dbc_2_backends_that_die_while_a_tool_works(self, url: str) -> None:
        """DBC-2: the run goes on, and no step is lost."""
        end = """
            SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name = 'toolrag'
        """
        toolset = tools_of(lambda _: rows(url, end))
        script = (
            asks(call("charge", "c", order=1)),
            says("Done."),
            asks(call("look", order=2)),
            says("Seen."),
        )
        with ToolRegistry(url, embeddings=HashEmbeddings()) as registry:
            agent = agent_of(registry, toolset, *script)
            assert ask(agent, "Charge 1", thread_id="t").answer == "Done."
            assert (await aask(agent, "Look 2 up", thread_id="t")).answer == "Seen."
            assert len(messages_of(agent)) == 8
        async with AsyncToolRegistry(url, embeddings=HashEmbeddings()) as registry:
            agent = agent_of(registry, toolset, *script)
            assert (await aask(agent, "Charge 1", thread_id="u")).answer == "Done."


class TestBadInput:
    @pytest.mark.parametrize(
        ("thread_id", "told"),
        [
            (None, "say which one with thread_id"),
            ("", "is empty"),
            (" ", "is empty"),
            (7, "thread_id is 7, a int; give a text"),
            ("a\x00b", "control character"),
            ("a\nb", "control character"),
            ("\ud800", "not valid Unicode"),
            (256 * "x", "has 256 characters, 255 at most"),
        ],
    )
    def test_thread_ids(self, registry: ToolRegistry, thread_id: Any, told: str) -> None:
        agent = agent_of(registry, tools_of(print), says("Never said."))
        config: Any = {"configurable": {"thread_id": thread_id}}
        attempts = [
            lambda: ask(agent, "Hello?", config=config),
            lambda: continue_run(agent, thread_id=thread_id),
        ]
        if isinstance(thread_id, str):  # LangGraph makes a text of all else before it reads
            attempts.append(lambda: agent.get_state(config))
        for attempt in attempts:
            with pytest.raises(ConfigurationError, match=told):
                attempt()

    def test_thread_ids_of_any_language(self, registry: ToolRegistry) -> None:
        agent = agent_of(registry, tools_of(print), says("Hi."), says("Hi."))
        for thread_id in (255 * "名", "a/b%c'd\"e"):
            assert ask(agent, "Hello?", thread_id=thread_id).answer == "Hi."

    def test_options(self, registry: ToolRegistry) -> None:
        toolset = tools_of(print)
        with pytest.raises(ConfigurationError, match="brings its own checkpointer"):
            agent_of(registry, toolset, checkpointer=InMemorySaver())
        with pytest.raises(ConfigurationError, match="durable is 'yes'"):
            agent_of(registry, toolset, durable="yes")
        with pytest.raises(ConfigurationError, match="threads are kept in its database"):
            agent_of(FakeRegistry(toolset), toolset)
        for lease_s in (0, 1, 3_601, 2.5, True):
            with pytest.raises(ConfigurationError, match="lease_s is"):
                DurableThreads(lease_s=lease_s)  # type: ignore[arg-type]
        agent = agent_of(registry, toolset, says("Never said."))
        config: Any = {"configurable": {"thread_id": "t"}}
        with pytest.raises(ConfigurationError, match="saves each step"):
            agent.invoke({"messages": []}, config, durability="exit")
        with pytest.raises(ThreadNotFoundError):
            continue_run(agent, thread_id="t")
        plain = agent_of(registry, toolset, says("Hi."), durable=False)
        with pytest.raises(ConfigurationError, match="keeps no threads"):
            continue_run(plain, thread_id="t")

    async def test_an_async_registry_in_a_sync_run(self, url: str) -> None:
        async with AsyncToolRegistry(url, embeddings=HashEmbeddings()) as registry:
            agent = agent_of(registry, tools_of(print), says("Never said."))
            with pytest.raises(ConfigurationError, match="async runs only"):
                ask(agent, "Hello?", thread_id="t")

    def test_a_closed_registry(self, url: str) -> None:
        with ToolRegistry(url, embeddings=HashEmbeddings()) as registry:
            agent = agent_of(registry, tools_of(print), says("Never said."))
        with pytest.raises(RegistryError, match="was closed"):
            ask(agent, "Hello?", thread_id="t")
