"""The usage log on a real database: what is written, what a database away costs, privacy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row
from sqlalchemy.engine import make_url

from registry import RegistrySettings, UsageLog, UsageSettings, migrate
from registry.usage import CallRecord, SelectionRecord, UsageHit
from tests.support.databases import psycopg_url

ROOT = Path(__file__).parents[2]


def rows(url: str, query: str) -> list[dict[str, Any]]:
    with psycopg.connect(psycopg_url(url), row_factory=dict_row) as connection:
        return connection.execute(query.encode()).fetchall()


def selections(url: str) -> list[dict[str, Any]]:
    return rows(url, "SELECT * FROM tool_selection ORDER BY created_at, id")


def usage(url: str) -> dict[str, tuple[Any, ...]]:
    """Each tool's row of the only selection: offered, called, status, rank."""
    found = rows(url, "SELECT * FROM tool_usage_log ORDER BY tool_name")
    return {
        row["tool_name"]: tuple(
            row[name] for name in ("was_offered", "was_called", "call_status", "rank")
        )
        for row in found
    }


def selection(**changes: Any) -> SelectionRecord:
    values: dict[str, Any] = {
        "id": uuid4(),
        "namespace": "default",
        "strategy": "retrieval",
        "threshold": 0.2,
        "latency_ms": 3.5,
        "hits": (
            UsageHit(tool_name="near", rank=1, relevance=0.75, was_offered=True),
            UsageHit(tool_name="far", rank=2, relevance=0.125, was_offered=False),
        ),
        **changes,
    }
    return SelectionRecord(**values)


def call(selection_id: UUID, tool_name: str, status: Any = "success", **changes: Any) -> CallRecord:
    return CallRecord(selection_id=selection_id, tool_name=tool_name, status=status, **changes)


@pytest.fixture
def log(database_url: str) -> Iterator[UsageLog]:
    with UsageLog(database_url, settings=UsageSettings(flush_interval_s=0.01)) as made:
        yield made


class TestWritten:
    def test_a_selection_with_everything(self, log: UsageLog, database_url: str) -> None:
        (model,) = rows(
            database_url,
            "INSERT INTO embedding_model (name, revision, dimensions, state, threshold)"
            " VALUES ('m', '', 2, 'active', 0.2) RETURNING id",
        )
        given = selection(
            run_id="r",
            thread_id="t",
            session_id="s",
            conversation_id="c",
            query_text="what?",
            query_vector="[0.5,0.25]",
            embedding_model_id=model["id"],
        )
        log.record_selection(given)
        assert log.flush()
        (row,) = selections(database_url)
        assert row.pop("query_vector") == "[0.5,0.25]"
        assert row == {
            "id": given.id,
            "namespace": "default",
            "run_id": "r",
            "thread_id": "t",
            "session_id": "s",
            "conversation_id": "c",
            "query_snippet": "what?",
            "embedding_model_id": model["id"],
            "strategy": "retrieval",
            "threshold": 0.2,
            "latency_ms": 3.5,
            "created_at": given.created_at,
        }
        assert usage(database_url) == {
            "near": (True, False, None, 1),
            "far": (False, False, None, 2),
        }

    def test_a_model_that_was_pruned_meanwhile_costs_its_id_alone(
        self, log: UsageLog, database_url: str
    ) -> None:
        log.record_selection(selection(query_vector="[1,0]", embedding_model_id=4_711))
        assert log.flush()
        (row,) = selections(database_url)
        assert (row["embedding_model_id"], row["query_vector"]) == (None, "[1,0]")

    def test_calls_mark_hits_and_add_what_was_not_found(
        self, log: UsageLog, database_url: str
    ) -> None:
        given = selection()
        log.record_selection(given)
        log.record_call(call(given.id, "near", call_ms=7.0))
        log.record_call(call(given.id, "pinned", "error", call_ms=1.0))
        log.record_call(call(given.id, "invented", "refused", was_offered=False))
        assert log.flush()
        assert usage(database_url) == {
            "near": (True, True, "success", 1),
            "far": (False, False, None, 2),
            "pinned": (True, True, "error", None),
            "invented": (False, True, "refused", None),
        }
        times = rows(database_url, "SELECT tool_name, call_ms FROM tool_usage_log")
        assert {row["tool_name"]: row["call_ms"] for row in times} == {
            "near": 7.0,
            "far": None,
            "pinned": 1.0,
            "invented": None,  # USE-1: unknown is not zero
        }

    @pytest.mark.parametrize(
        ("first", "second", "stands"),
        [
            ("error", "success", "success"),
            ("success", "error", "success"),
            ("refused", "cancelled", "cancelled"),
            ("timeout", "refused", "timeout"),
        ],
    )
    def test_the_best_status_of_two_batches_stands(
        self, log: UsageLog, database_url: str, first: Any, second: Any, stands: str
    ) -> None:
        given = selection()
        log.record_selection(given)
        for status, call_ms in ((first, 2.0), (second, None), (second, 9.0), (second, 1.0)):
            log.record_call(call(given.id, "near", status, call_ms=call_ms))
            assert log.flush()
        (row,) = rows(
            database_url, "SELECT call_status, call_ms FROM tool_usage_log WHERE was_called"
        )
        assert (row["call_status"], row["call_ms"]) == (stands, 9.0)

    def test_what_is_written_twice_changes_nothing(self, log: UsageLog, database_url: str) -> None:
        """A lost answer to a commit makes the log send a batch again."""
        given = selection()
        for _ in range(2):
            log.record_selection(given)
            log.record_call(call(given.id, "near", call_ms=7.0))
            assert log.flush()
        assert len(selections(database_url)) == 1
        assert usage(database_url)["near"] == (True, True, "success", 1)
        assert log.failed == 0

    def test_one_record_that_is_refused_costs_no_other(
        self, log: UsageLog, database_url: str
    ) -> None:
        good, bad, late = selection(), selection(query_vector="nonsense"), selection()
        for record in (good, bad, late):
            log.record_selection(record)
        log.record_call(call(late.id, "near"))
        assert log.flush()
        assert {row["id"] for row in selections(database_url)} == {good.id, late.id}
        assert (log.written, log.failed) == (3, 1)

    def test_statistics_are_what_happened(self, log: UsageLog, database_url: str) -> None:
        for called in (True, True, False):
            given = selection()
            log.record_selection(given)
            if called:
                log.record_call(call(given.id, "near"))
        other = selection(namespace="other")
        log.record_selection(other)
        log.record_call(call(other.id, "pinned", "error"))
        assert log.flush()
        found = rows(
            database_url,
            "SELECT namespace, tool_name, injected_count, called_count, call_rate_pct::float8,"
            " avg_relevance, min_relevance FROM tool_usage_stats ORDER BY namespace, tool_name",
        )
        assert [tuple(row.values()) for row in found] == [
            ("default", "far", 0, 0, None, None, None),
            ("default", "near", 3, 2, 66.7, 0.75, 0.75),
            ("other", "far", 0, 0, None, None, None),
            ("other", "near", 1, 0, 0.0, 0.75, 0.75),
            ("other", "pinned", 1, 1, 100.0, None, None),
        ]


class TestPrivacy:
    @pytest.mark.parametrize(
        ("options", "kept"),
        [
            ({}, ("write to ann@example.org", "[1,0]")),
            ({"record_question_text": False}, (None, "[1,0]")),
            ({"record_question_vector": False}, ("write to ann@example.org", None)),
            ({"redact": lambda text: text.replace("ann@", "***@")}, ("write to ***@example.org",)),
            ({"redact": lambda text: 1 / 0}, (None,)),
        ],
        ids=["all", "no text", "no vector", "redacted", "broken hook"],
    )
    def test_what_is_kept_of_a_question(
        self, database_url: str, options: dict[str, Any], kept: tuple[str | None, ...]
    ) -> None:
        with UsageLog(database_url, settings=UsageSettings(**options)) as log:
            log.record_selection(
                selection(query_text="write to ann@example.org", query_vector="[1,0]")
            )
        (row,) = selections(database_url)
        assert (row["query_snippet"], row["query_vector"])[: len(kept)] == kept

    def test_long_and_strange_questions_are_kept_as_far_as_they_go(
        self, log: UsageLog, database_url: str
    ) -> None:
        for text in ("ä" * 5_000, "a\x00b", "half \ud83d", "👩‍👩‍👧" * 200):
            log.record_selection(selection(query_text=text))
        assert log.flush()
        assert log.failed == 0
        kept = {row["query_snippet"] for row in selections(database_url)}
        assert kept == {"ä" * 500, "ab", "half ?", ("👩‍👩‍👧" * 200)[:500]}


class TestDatabaseAway:
    def test_a_locked_table_delays_and_loses_nothing(
        self, log: UsageLog, database_url: str
    ) -> None:
        with psycopg.connect(psycopg_url(database_url)) as blocker:
            blocker.execute("LOCK TABLE tool_selection")
            for _ in range(3):
                log.record_selection(selection())
            assert not log.flush(timeout_s=0.05)
            assert (log.pending, log.written) == (3, 0)
        assert log.flush(timeout_s=30.0)
        assert log.written == 3
        assert len(selections(database_url)) == 3

    def test_a_lock_that_outlasts_the_statement_limit_ends_in_a_drop(
        self, database_url: str
    ) -> None:
        limits = RegistrySettings(statement_timeout_s=0.05)
        log = UsageLog(database_url, registry_settings=limits)
        with psycopg.connect(psycopg_url(database_url)) as blocker:
            blocker.execute("LOCK TABLE tool_selection")
            log.record_selection(selection())
            log.close(timeout_s=30.0)
            assert (log.dropped, log.failed) == (1, 0)
        assert selections(database_url) == []

    def test_a_killed_connection_is_made_anew(self, log: UsageLog, database_url: str) -> None:
        log.record_selection(selection())
        assert log.flush()
        killed = rows(
            database_url,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        assert len(killed) == 1  # the log has one connection
        log.record_selection(selection())
        assert log.flush()
        assert (log.written, log.dropped) == (2, 0)

    def test_no_connection_stays_behind(self, log: UsageLog, database_url: str) -> None:
        log.record_selection(selection())
        log.close()
        assert log.written == 1
        others = rows(
            database_url,
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = 'toolrag' AND pid <> pg_backend_pid()",
        )
        assert others == []

    def test_a_dropped_database_does_not_trouble_the_end(
        self, databases: Any, migrated_template: str
    ) -> None:
        url = databases.create(template=migrated_template)
        log = UsageLog(url)
        log.record_selection(selection())
        assert log.flush()
        databases.drop(url)
        log.record_selection(selection())
        log.close(timeout_s=30.0)
        assert (log.written, log.dropped, log.failed) == (1, 1, 0)

    @pytest.mark.parametrize("revision", [None, "0002"])
    def test_an_old_schema_is_told_once_with_what_to_do(
        self, empty_database_url: str, revision: str | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        if revision is not None:
            migrate.upgrade(empty_database_url, revision)
        caplog.clear()
        with UsageLog(empty_database_url) as log:
            for _ in range(3):
                log.record_selection(selection())
                assert log.flush()
            assert log.dropped == 3
        (told,) = [record for record in caplog.records if record.message == "usage_log_schema"]
        assert "toolrag db upgrade" in vars(told)["reason"]

    def test_a_database_that_takes_no_writes_loses_records_and_nothing_else(
        self, database_url: str
    ) -> None:
        name = sql.Identifier(str(make_url(database_url).database))
        with psycopg.connect(psycopg_url(database_url)) as connection:
            connection.execute(
                sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name)
            )
        with UsageLog(database_url) as log:
            log.record_selection(selection())
            assert log.flush()
            assert (log.written, log.failed) == (0, 1)


_SCRIPT_HEAD = """
import os, sys
from uuid import uuid4
from registry import UsageLog, UsageSettings
from registry.usage import CallRecord, SelectionRecord

def selection(thread):
    return SelectionRecord(id=uuid4(), namespace="default", strategy="retrieval", threshold=0.2,
                           latency_ms=1.0, thread_id=thread)
log = UsageLog(sys.argv[1], settings=UsageSettings(flush_interval_s=float(sys.argv[2])))
"""


def run_script(body: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _SCRIPT_HEAD + body, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def threads_recorded(url: str) -> list[str]:
    return sorted(row["thread_id"] for row in selections(url))


class TestProcesses:
    def test_what_was_taken_is_written_when_the_process_ends(self, database_url: str) -> None:
        run_script(
            """
given = selection("a")
log.record_selection(given)
log.record_call(CallRecord(selection_id=given.id, tool_name="t", status="success"))
""",
            database_url,
            "3600",
        )
        assert threads_recorded(database_url) == ["a"]
        assert usage(database_url) == {"t": (True, True, "success", None)}

    def test_a_process_ends_although_there_is_no_database(self) -> None:
        said = subprocess.run(
            [
                sys.executable,
                "-c",
                _SCRIPT_HEAD + 'log.record_selection(selection("a"))',
                "postgresql://someone:s3cret@127.0.0.1:1/nothing",
                "3600",
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (said.returncode, said.stdout) == (0, "")
        assert said.stderr.splitlines() == ["usage_records_lost"]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
    @pytest.mark.parametrize("flush_interval_s", ["0.001", "3600"], ids=["writing", "waiting"])
    def test_a_forked_child_writes_its_own_records_alone(
        self, database_url: str, flush_interval_s: str
    ) -> None:
        """Neither the parent's connection nor its queue serves a child, nor the child's it."""
        run_script(
            """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on: a fork beside threads
for number in range(20):
    log.record_selection(selection(f"before {number:02}"))
if float(sys.argv[2]) < 1:
    assert log.flush()
child = os.fork()
if child == 0:
    status = 1
    try:
        assert (log.pending, log.written, log.dropped) == (0, 0, 0), "the parent's"
        log.record_selection(selection("child"))
        assert log.flush()
        log.close()
        assert (log.written, log.dropped, log.failed) == (1, 0, 0)
        status = 0
    finally:
        os._exit(status)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0
log.record_selection(selection("parent"))
assert log.flush()
assert (log.written, log.dropped, log.failed) == (21, 0, 0)
""",
            database_url,
            flush_interval_s,
        )
        before = [f"before {number:02}" for number in range(20)]
        assert threads_recorded(database_url) == [*before, "child", "parent"]
