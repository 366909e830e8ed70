"""What whole runs leave in the usage log, sync and async, and that they never notice it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from sqlalchemy import event

from agent import ToolRAGMiddleware, create_tool_rag_agent
from registry import ToolRegistry, Toolset, UsageLog, UsageSettings
from registry.errors import ConfigurationError
from tests.integration.conftest import EitherRegistry, OpenRegistry
from tests.integration.test_usage_log import rows, selections, usage
from tests.support.databases import psycopg_url
from tests.support.scripted_model import ScriptedModel, asks, call, says

QUESTION = "weather forecast for the city"


def tool_named(name: str, description: str, run: Any = None) -> BaseTool:
    async def run_async(**arguments: Any) -> Any:
        return await asyncio.to_thread(run, **arguments)

    run = run or (lambda: "done")
    return StructuredTool.from_function(
        func=run,
        coroutine=run_async,
        name=name,
        description=description,
        args_schema={"type": "object", "properties": {}},
    )


def fails() -> str:
    raise RuntimeError("password=s3cret at /srv/secret")


def times_out() -> str:
    raise TimeoutError


def toolset_of(*more: BaseTool) -> Toolset:
    return Toolset(
        [
            tool_named("weather", "Weather forecast for the city."),
            tool_named("storm", "Storm forecast for the city and weather.", fails),
            tool_named("tide", "Tide forecast for the city and weather.", times_out),
            tool_named("ledger", "Close the books."),
            *more,
        ]
    )


@asynccontextmanager
async def closed_log(url: str, **options: Any) -> AsyncIterator[UsageLog]:
    settings = UsageSettings(**{"flush_interval_s": 0.01, **options})
    log = UsageLog(url, settings=settings)
    try:
        yield log
    finally:
        await log.aclose()


@pytest.fixture
async def registry(open_registry: OpenRegistry) -> EitherRegistry:
    return await open_registry()


@pytest.fixture
async def log(database_url: str) -> AsyncIterator[UsageLog]:
    async with closed_log(database_url) as made:
        yield made


async def run(registry: EitherRegistry, agent: Any, given: Any = None, **config: Any) -> Any:
    """Run an agent the way that fits the registry; sync ones in a thread of their own."""
    given = {"messages": [HumanMessage(QUESTION)]} if given is None else given
    if isinstance(registry.wrapped, ToolRegistry):
        return await asyncio.to_thread(agent.invoke, given, config)
    return await agent.ainvoke(given, config)


def agent_of(
    registry: EitherRegistry,
    toolset: Toolset,
    *script: AIMessage,
    log: UsageLog | bool,
    **options: Any,
) -> Any:
    return create_tool_rag_agent(
        ScriptedModel(script=list(script)),
        registry=registry.wrapped,
        toolset=toolset,
        usage_log=log,
        **({"strategy": "retrieval"} | options),
    )


class TestRecorded:
    async def test_a_run_with_every_outcome(
        self, registry: EitherRegistry, log: UsageLog, database_url: str
    ) -> None:
        toolset = toolset_of()
        await registry.sync(toolset)
        agent = agent_of(
            registry,
            toolset,
            asks(
                call("weather", "1"),
                call("storm", "2"),
                call("tide", "3"),
                call("ledger", "4"),
                call("no such tool", "5"),
            ),
            says("Sunny."),
            log=log,
            threshold=0.3,
            k=4,
        )
        run_id = uuid4()
        output = await run(
            registry,
            agent,
            run_id=run_id,
            configurable={"session_id": "s1"},
            metadata={"conversation_id": "c1"},
        )
        assert await log.aflush()

        (row,) = selections(database_url)
        assert str(row["id"]) == output["last_selection"]["id"]
        assert row["query_snippet"] == QUESTION
        (model,) = rows(database_url, "SELECT id FROM embedding_model")
        assert row["embedding_model_id"] == model["id"]
        assert row["query_vector"].count(",") == 63
        assert (row["namespace"], row["strategy"], row["threshold"]) == (
            "default",
            "retrieval",
            0.3,
        )
        assert row["latency_ms"] > 0
        ids = ("run_id", "thread_id", "session_id", "conversation_id")
        assert [row[name] for name in ids] == [str(run_id), None, "s1", "c1"]

        ranks = {hit["name"]: n for n, hit in enumerate(output["last_selection"]["hits"], start=1)}
        assert usage(database_url) == {
            "weather": (True, True, "success", ranks["weather"]),
            "storm": (True, True, "error", ranks["storm"]),
            "tide": (True, True, "timeout", ranks["tide"]),
            # RET-3: found below the threshold, so not offered; the model called it all the same.
            "ledger": (False, True, "refused", ranks["ledger"]),
        }
        relevance = {
            row["tool_name"]: row["relevance_score"]
            for row in rows(database_url, "SELECT tool_name, relevance_score FROM tool_usage_log")
        }
        for hit in output["last_selection"]["hits"]:
            assert relevance[hit["name"]] == pytest.approx(hit["relevance"])
        ran = rows(database_url, "SELECT tool_name FROM tool_usage_log WHERE call_ms IS NOT NULL")
        assert {row["tool_name"] for row in ran} == {"weather", "storm", "tide"}

    async def test_err_3_no_error_text_is_in_any_row(
        self, registry: EitherRegistry, log: UsageLog, database_url: str
    ) -> None:
        toolset = toolset_of()
        await registry.sync(toolset)
        await run(registry, agent_of(registry, toolset, asks(call("storm")), says("x"), log=log))
        assert await log.aflush()
        kept = rows(
            database_url,
            "SELECT to_jsonb(s) AS selection, to_jsonb(u) AS usage FROM tool_selection s"
            " JOIN tool_usage_log u ON u.selection_id = s.id",
        )
        assert kept
        assert "s3cret" not in str(kept)

    async def test_offered_again_pinned_and_the_agents_own(
        self, registry: EitherRegistry, log: UsageLog, database_url: str
    ) -> None:
        """Second run of a thread: what is bound from before counts as offered, without a rank."""

        @tool
        def own_clock() -> str:
            """Tell the time."""
            return "12:00"

        toolset = toolset_of(tool_named("help", "Say what this shop is."))
        await registry.sync([spec for spec in toolset.specs if spec.tool_name != "help"])
        agent = agent_of(
            registry,
            toolset,
            says("Sunny."),
            asks(call("weather", "1"), call("help", "2"), call("own_clock", "3")),
            says("Closed."),
            log=log,
            k=1,
            threshold=0,
            pinned=["help"],
            tools=[own_clock],
            checkpointer=InMemorySaver(),
        )
        thread = {"thread_id": "t1"}
        await run(registry, agent, configurable=thread)
        second = {"messages": [HumanMessage("close the books")]}
        output = await run(registry, agent, second, configurable=thread)
        assert [m.content for m in output["messages"] if isinstance(m, ToolMessage)] == [
            "done",
            "done",
            "12:00",
        ]
        assert await log.aflush()
        assert [row["thread_id"] for row in selections(database_url)] == ["t1", "t1"]
        found = rows(
            database_url,
            "SELECT s.query_snippet, u.tool_name, u.rank, u.was_offered, u.call_status"
            " FROM tool_usage_log u JOIN tool_selection s ON s.id = u.selection_id"
            " ORDER BY s.created_at, u.tool_name",
        )
        assert [tuple(row.values()) for row in found] == [
            (QUESTION, "help", None, True, None),
            (QUESTION, "weather", 1, True, None),
            ("close the books", "help", None, True, "success"),
            ("close the books", "ledger", 1, True, None),
            ("close the books", "weather", None, True, "success"),
        ]
        stats = rows(
            database_url,
            "SELECT tool_name, injected_count, called_count, call_rate_pct::float8"
            " FROM tool_usage_stats ORDER BY tool_name",
        )
        assert [tuple(row.values()) for row in stats] == [
            ("help", 2, 1, 50.0),
            ("ledger", 1, 0, 0.0),
            ("weather", 2, 1, 50.0),
        ]

    async def test_parallel_calls_of_one_tool_are_one_row_that_success_wins(
        self, registry: EitherRegistry, log: UsageLog, database_url: str
    ) -> None:
        lock, seen = threading.Lock(), list[int]()

        def every_other_fails() -> str:
            with lock:
                seen.append(1)
                if len(seen) % 2:
                    raise ValueError("not this time")
            return "done"

        toolset = Toolset([tool_named("weather", QUESTION, every_other_fails)])
        await registry.sync(toolset)
        calls = [call("weather", str(number)) for number in range(6)]
        await run(registry, agent_of(registry, toolset, asks(*calls), says("x"), log=log))
        assert await log.aflush()
        assert len(seen) == 6
        assert usage(database_url) == {"weather": (True, True, "success", 1)}
        assert log.written == 7

    async def test_refusals_of_tools_that_were_offered(
        self, registry: EitherRegistry, log: UsageLog, database_url: str
    ) -> None:
        """Switched off meanwhile, and in need of approval: nothing ran, which is no error."""
        paying = tool_named("pay", "Pay for the weather forecast of the city.")
        paying.metadata = {"requires_approval": True}
        toolset = toolset_of(paying)
        await registry.sync(toolset)

        def switch_off_then_call(messages: list[Any]) -> AIMessage:
            if isinstance(messages[-1], ToolMessage):
                return says("x")
            with psycopg.connect(psycopg_url(database_url)) as connection:
                connection.execute(
                    "UPDATE tool_registry SET is_active = false WHERE tool_name = 'weather'"
                )
            return asks(call("weather", "1"), call("pay", "2"))

        agent = create_tool_rag_agent(
            ScriptedModel(script=switch_off_then_call),
            registry=registry.wrapped,
            toolset=toolset,
            threshold=0,
            usage_log=log,
        )
        await run(registry, agent)
        assert await log.aflush()
        found = usage(database_url)
        assert found["weather"][:3] == found["pay"][:3] == (True, True, "refused")

    async def test_a_tool_that_reports_its_own_failure(
        self, registry: EitherRegistry, log: UsageLog, database_url: str
    ) -> None:
        @tool
        def typed(number: int) -> str:
            """Weather forecast for the city by number."""
            return str(number)

        toolset = Toolset([typed])
        await registry.sync(toolset)
        agent = agent_of(
            registry, toolset, asks(call("typed", number="many")), says("x"), log=log, threshold=0
        )
        await run(registry, agent)
        assert await log.aflush()
        assert usage(database_url) == {"typed": (True, True, "error", 1)}

    async def test_a_run_without_a_question_still_counts_its_calls(
        self, registry: EitherRegistry, log: UsageLog, database_url: str
    ) -> None:
        toolset = toolset_of()
        agent = agent_of(
            registry, toolset, asks(call("ledger")), says("x"), log=log, pinned=["ledger"]
        )
        image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
        await run(registry, agent, {"messages": [HumanMessage(image)]})
        assert await log.aflush()
        (row,) = selections(database_url)
        assert (row["strategy"], row["query_snippet"], row["query_vector"]) == ("none", None, None)
        assert usage(database_url) == {"ledger": (True, True, "success", None)}


class TestCancelledAndInterrupted:
    async def test_a_cancelled_call_is_recorded_as_such_and_stays_cancelled(
        self, open_registry: OpenRegistry, log: UsageLog, database_url: str
    ) -> None:
        registry = await open_registry()
        began = asyncio.Event()

        async def wait() -> str:
            began.set()
            await asyncio.Event().wait()
            return "never"

        waiting = StructuredTool.from_function(coroutine=wait, name="weather", description=QUESTION)
        toolset = Toolset([waiting])
        await registry.sync(toolset)
        agent = agent_of(registry, toolset, asks(call("weather")), says("x"), log=log)
        task = asyncio.create_task(agent.ainvoke({"messages": [HumanMessage(QUESTION)]}))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await log.aflush()
        assert usage(database_url) == {"weather": (True, True, "cancelled", 1)}

    async def test_an_interrupt_is_no_outcome_and_the_resume_in_another_process_is(
        self, open_registry: OpenRegistry, database_url: str
    ) -> None:
        """The selection's id lies in the thread, so that the second process's log finds it."""
        saver = InMemorySaver()

        def ask_first() -> str:
            return f"you said {interrupt('sure?')}"

        toolset = Toolset([tool_named("weather", QUESTION, ask_first)])
        config = {"configurable": {"thread_id": "t"}}

        first = await open_registry()
        await first.sync(toolset)
        async with closed_log(database_url) as log:
            agent = agent_of(first, toolset, asks(call("weather")), log=log, checkpointer=saver)
            output = await run(first, agent, **config)
            assert output["__interrupt__"]
        assert usage(database_url) == {"weather": (True, False, None, 1)}

        second = await open_registry()
        async with closed_log(database_url) as log:
            agent = agent_of(second, toolset, says("done"), log=log, checkpointer=saver)
            output = await run(second, agent, Command(resume="yes"), **config)
            assert output["messages"][-2].content == "you said yes"
        assert usage(database_url) == {"weather": (True, True, "success", 1)}
        assert len(selections(database_url)) == 1


class TestOffTheRunsPath:
    async def test_recording_adds_no_round_trip_and_no_embedding(
        self, registry: EitherRegistry, log: UsageLog
    ) -> None:
        toolset = toolset_of()
        await registry.sync(toolset)
        engine = registry.wrapped._engine
        engine = getattr(engine, "sync_engine", engine)
        used: list[str] = []
        event.listen(engine.pool, "checkout", lambda *_: used.append("connection"))
        event.listen(engine, "before_cursor_execute", lambda *args: used.append(args[2]))
        embeddings = registry.wrapped.embedder.embeddings

        async def cost_of(question: str, log: UsageLog | bool) -> tuple[list[str], int]:
            used.clear()
            before = len(embeddings.calls)
            agent = agent_of(registry, toolset, asks(call("weather")), says("x"), log=log)
            await run(registry, agent, {"messages": [HumanMessage(question)]})
            return list(used), len(embeddings.calls) - before

        await cost_of("warm up the forecast", False)
        without = await cost_of("forecast of weather", False)
        assert await cost_of("weather of forecast", log) == without
        assert without[0]
        assert await log.aflush()
        assert log.written == 2

    async def test_a_locked_table_does_not_hold_a_run_up(
        self, registry: EitherRegistry, log: UsageLog, database_url: str
    ) -> None:
        """The runs end while the lock is held: it is given back only afterwards."""
        toolset = toolset_of()
        await registry.sync(toolset)
        with psycopg.connect(psycopg_url(database_url)) as blocker:
            blocker.execute("LOCK TABLE tool_selection, tool_usage_log")
            for _ in range(3):
                agent = agent_of(registry, toolset, asks(call("weather")), says("ok"), log=log)
                output = await run(registry, agent)
                assert output["messages"][-1].content == "ok"
            assert (log.written, log.dropped) == (0, 0)
        assert await log.aflush(30.0)
        assert log.written == 6

    async def test_a_full_queue_costs_records_and_no_run(
        self, registry: EitherRegistry, database_url: str
    ) -> None:
        toolset = toolset_of()
        await registry.sync(toolset)
        async with closed_log(database_url, queue_size=1, batch_size=1) as log:
            with psycopg.connect(psycopg_url(database_url)) as blocker:
                blocker.execute("LOCK TABLE tool_selection")
                for _ in range(3):
                    agent = agent_of(registry, toolset, asks(call("weather")), says("ok"), log=log)
                    output = await run(registry, agent)
                    assert output["messages"][-1].content == "ok"
                # One in the worker's hands, one in the queue, at most.
                assert log.dropped >= 4
            assert log.pending + log.dropped == 6

    async def test_a_log_without_its_database_costs_records_and_no_run(
        self, registry: EitherRegistry, caplog: pytest.LogCaptureFixture
    ) -> None:
        toolset = toolset_of()
        await registry.sync(toolset)
        async with closed_log("postgresql://someone:s3cret@127.0.0.1:1/nothing") as log:
            agent = agent_of(registry, toolset, asks(call("weather")), says("ok"), log=log)
            output = await run(registry, agent)
            assert output["messages"][-1].content == "ok"
        assert (log.written, log.dropped) == (0, 2)
        assert "s3cret" not in caplog.text

    async def test_ids_that_cannot_be_read_cost_the_record_and_no_run(
        self, registry: EitherRegistry, log: UsageLog, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Strange:
            def __str__(self) -> str:
                raise RuntimeError("no text of me")

        toolset = toolset_of()
        await registry.sync(toolset)
        agent = agent_of(registry, toolset, asks(call("weather")), says("ok"), log=log)
        output = await run(registry, agent, configurable={"session_id": Strange()})
        assert output["messages"][-1].content == "ok"
        assert "id" not in output["last_selection"]
        assert (log.pending, log.written, log.dropped) == (0, 0, 0)
        assert "usage_not_recorded" in caplog.text


class TestWhichLog:
    async def test_all_agents_over_a_registry_share_its_log_by_default(
        self, registry: EitherRegistry, database_url: str
    ) -> None:
        toolset = toolset_of()
        await registry.sync(toolset)
        for _ in range(2):
            agent = create_agent(
                ScriptedModel(script=[says("ok")]),
                middleware=[ToolRAGMiddleware(registry.wrapped, toolset)],
            )
            await run(registry, agent)
        with UsageLog.of(registry.wrapped) as log:
            assert await log.aflush()
            assert log.written == 2
        assert len(selections(database_url)) == 2

        # An agent outlives a log that was closed too early.
        agent = agent_of(registry, toolset, says("ok"), log=True)
        await run(registry, agent)
        assert UsageLog.of(registry.wrapped) is not log
        await UsageLog.of(registry.wrapped).aclose()
        assert len(selections(database_url)) == 3

    async def test_false_records_nothing(self, registry: EitherRegistry, database_url: str) -> None:
        toolset = toolset_of()
        await registry.sync(toolset)
        agent = agent_of(registry, toolset, asks(call("weather")), says("ok"), log=False)
        output = await run(registry, agent)
        assert "id" not in output["last_selection"]
        async with closed_log(database_url, enabled=False) as log:
            agent = agent_of(registry, toolset, asks(call("weather")), says("ok"), log=log)
            await run(registry, agent)
        assert selections(database_url) == []

    async def test_something_else_is_refused(self, registry: EitherRegistry) -> None:
        with pytest.raises(ConfigurationError, match=r"^usage_log is 'yes'; give a UsageLog"):
            agent_of(registry, toolset_of(), says("ok"), log="yes")  # type: ignore[arg-type]
