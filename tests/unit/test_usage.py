"""What is recorded of use, and the queue it waits in; the database is a stand-in here."""

from __future__ import annotations

import gc
import logging
import math
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from langgraph.runtime import ExecutionInfo, Runtime

from agent.middleware._usage import run_ids, usage_hits
from agent.selection import Offer
from registry import UsageLog, UsageSettings, usage_log
from registry.errors import (
    ConfigurationError,
    RegistryError,
    RegistryUnavailableError,
    SchemaVersionError,
)
from registry.types import ToolHit
from registry.usage import (
    MAX_QUESTION_CHARS,
    CallRecord,
    SelectionRecord,
    UsageHit,
    UsageRecord,
    admitted,
    merged_calls,
    storable,
)

URL = "postgresql://someone:s3cret@127.0.0.1:1/nothing"


def selection(**changes: Any) -> SelectionRecord:
    values: dict[str, Any] = {
        "id": uuid4(),
        "namespace": "default",
        "strategy": "retrieval",
        "threshold": 0.2,
        "latency_ms": 3.0,
        **changes,
    }
    return SelectionRecord(**values)


def call(selection_id: UUID, name: str = "tool", **changes: Any) -> CallRecord:
    values: dict[str, Any] = {"status": "success", **changes}
    return CallRecord(selection_id=selection_id, tool_name=name, **values)


class TestSettings:
    @pytest.mark.parametrize(
        ("name", "low", "high"),
        [
            ("queue_size", 1, 1_000_000),
            ("batch_size", 1, 10_000),
            ("flush_interval_s", 0.001, 3_600),
        ],
    )
    def test_both_ends_of_a_range_are_inside_and_what_is_beyond_is_refused(
        self, name: str, low: float, high: float
    ) -> None:
        for inside in (low, high):
            assert getattr(UsageSettings(**{name: inside}), name) == inside
        step = 0.0001 if name.endswith("_s") else 1
        for outside in (low - step, high + step):
            with pytest.raises(ConfigurationError, match=rf"^{name} is {outside}; it must be from"):
                UsageSettings(**{name: outside})
        for wrong in ("5", None, True, math.nan):
            with pytest.raises(ConfigurationError, match=rf"^{name} is .*; it must be"):
                UsageSettings(**{name: wrong})

    @pytest.mark.parametrize("name", ["enabled", "record_question_text", "record_question_vector"])
    def test_switches_are_true_or_false(self, name: str) -> None:
        with pytest.raises(ConfigurationError, match=rf"^{name} is 'no'; it must be True or False"):
            UsageSettings(**{name: "no"})  # type: ignore[arg-type]

    def test_the_hook_is_a_function(self) -> None:
        with pytest.raises(ConfigurationError, match=r"^redact is 'x'; it must be a function"):
            UsageSettings(redact="x")  # type: ignore[arg-type]


class TestPrivacy:
    """ERR-3: what must not be kept is not kept, and no error text of a hook either."""

    def stored(self, record: SelectionRecord, **options: Any) -> SelectionRecord:
        settings = UsageSettings(**options)
        return storable(admitted(record, settings), settings)

    def test_text_and_vector_are_each_optional(self) -> None:
        asked = selection(query_text="my question", query_vector="[1,0]")
        assert self.stored(asked) == asked
        assert self.stored(asked, record_question_text=False) == replace(asked, query_text=None)
        assert self.stored(asked, record_question_vector=False) == replace(asked, query_vector=None)

    def test_what_is_switched_off_does_not_even_wait_in_memory(self) -> None:
        asked = selection(query_text="x" * 9_000, query_vector="[1,0]")
        off = UsageSettings(record_question_text=False, record_question_vector=False)
        assert (admitted(asked, off).query_text, admitted(asked, off).query_vector) == (None, None)
        assert len(admitted(asked, UsageSettings()).query_text or "") == MAX_QUESTION_CHARS

    def test_the_hook_sees_the_whole_question_before_it_is_cut(self) -> None:
        text = "a" * (MAX_QUESTION_CHARS - 3) + "secret" + "b" * 100
        stored = self.stored(
            selection(query_text=text), redact=lambda said: said.replace("secret", "***")
        )
        assert stored.query_text == "a" * (MAX_QUESTION_CHARS - 3) + "***"

    @pytest.mark.parametrize("answer", [None, 5, b"bytes", ValueError("my secret question")])
    def test_a_hook_that_fails_loses_the_text_and_says_so_without_it(
        self, answer: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        def redact(text: str) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        asked = selection(query_text="my secret question", query_vector="[1,0]")
        assert self.stored(asked, redact=redact) == replace(asked, query_text=None)
        (record,) = caplog.records
        assert record.message == "usage_redaction_failed"
        assert "secret" not in str(record.__dict__)

    def test_what_a_text_column_does_not_take_is_mended(self) -> None:
        stored = self.stored(
            selection(
                query_text="a\x00b\ud800c",
                thread_id="t\x00" * 300,
                run_id=None,
                threshold=math.inf,
                latency_ms=math.nan,
            )
        )
        assert stored.query_text == "ab?c"
        assert stored.thread_id == "t" * 200
        assert stored.run_id is None
        assert (stored.threshold, stored.latency_ms) == (0.0, 0.0)


class TestMergedCalls:
    def test_the_best_status_and_the_slowest_call_stand_whatever_the_order(self) -> None:
        one, two = sorted((uuid4(), uuid4()))
        calls = [
            call(two, "b", status="refused", was_offered=False),
            call(one, "a", status="error", call_ms=9.0),
            call(one, "a", status="success", call_ms=2.0),
            call(one, "a", status="refused"),
            call(one, "b", status="cancelled", call_ms=1.0),
            call(one, "b", status="timeout", call_ms=4.0),
        ]
        wanted = [
            call(one, "a", status="success", call_ms=9.0),
            call(one, "b", status="timeout", call_ms=4.0),
            call(two, "b", status="refused", was_offered=False),
        ]
        assert merged_calls(calls) == wanted
        assert merged_calls(reversed(calls)) == wanted
        assert merged_calls([*calls, *merged_calls(calls)]) == wanted


class TestWhatARunRecords:
    def test_ids_come_from_the_first_place_that_has_them(self) -> None:
        @dataclass
        class Context:
            session_id: str = "from the context"
            conversation_id: int = 7

        info = ExecutionInfo(checkpoint_id="", checkpoint_ns="", task_id="", run_id="r1")
        config = {
            "configurable": {"thread_id": "t1", "session_id": ""},
            "metadata": {"thread_id": "other", "session_id": "from metadata"},
        }
        assert run_ids(config, Runtime(context=Context(), execution_info=info)) == {
            "run_id": "r1",
            "thread_id": "t1",
            "session_id": "from metadata",
            "conversation_id": "7",
        }
        assert run_ids({}, Runtime(context={"session_id": "s"}))["session_id"] == "s"
        assert set(run_ids({}, Runtime()).values()) == {None}

    def test_ret_3_hits_below_the_threshold_keep_their_relevance_and_pins_have_none(self) -> None:
        """RET-3: scores of what was not offered are kept as well."""

        def hit(name: str, rank: int, relevance: float) -> ToolHit:
            return ToolHit(
                tool_name=name,
                display_name=name,
                description="",
                category="",
                binding=name,
                origin="code",
                requires_approval=False,
                read_only=False,
                version=1,
                rank=rank,
                distance=1 - relevance,
                relevance=relevance,
            )

        def offer(name: str, *, active: bool = True) -> Offer:
            return Offer(
                name=name,
                binding=name,
                description="",
                relevance=None,
                pinned=False,
                requires_approval=False,
                active=active,
                turn=1,
            )

        hits = usage_hits(
            [hit("near", 1, 0.9), hit("far", 2, 0.1)],
            [offer("pinned"), offer("near"), offer("switched_off", active=False)],
        )
        assert hits == (
            UsageHit(tool_name="near", rank=1, relevance=0.9, was_offered=True),
            UsageHit(tool_name="far", rank=2, relevance=0.1, was_offered=False),
            UsageHit(tool_name="pinned", rank=None, relevance=None, was_offered=True),
        )


class StandIn:
    """A writer whose gate the test opens, and whose answers it chooses."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.batches: list[list[UsageRecord]] = []
        self.errors: list[Exception] = []
        self.known: set[UUID] = set()
        self.closed = threading.Event()

    def __call__(self, *_: Any) -> StandIn:
        return self

    def write(self, batch: Sequence[UsageRecord]) -> set[UUID]:
        self.entered.set()
        assert self.gate.wait(30)
        self.batches.append(list(batch))
        if self.errors:
            raise self.errors.pop(0)
        self.known |= {record.id for record in batch if isinstance(record, SelectionRecord)}
        called = {record.selection_id for record in batch if isinstance(record, CallRecord)}
        return called - self.known

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    made = StandIn()
    monkeypatch.setattr(usage_log, "UsageWriter", made)
    monkeypatch.setattr(usage_log, "_RETRY_PAUSES_S", (0.0, 0.0))
    yield made
    made.gate.set()


def log_with(**options: Any) -> UsageLog:
    return UsageLog(URL, settings=UsageSettings(**{"flush_interval_s": 0.01, **options}))


def usage_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "toolrag-usage-log"]


class TestQueue:
    def test_nothing_is_started_before_the_first_record(self, writer: StandIn) -> None:
        before = usage_threads()
        with log_with() as log:
            assert usage_threads() == before
            assert log.flush()
            log.record_selection(selection())
            (thread,) = set(usage_threads()) - set(before)
            assert thread.daemon
        assert not thread.is_alive()
        assert writer.closed.is_set()

    def test_a_switched_off_log_takes_nothing(self, writer: StandIn) -> None:
        with log_with(enabled=False) as log:
            log.record_selection(selection())
            log.record_call(call(uuid4()))
            assert (log.pending, log.dropped) == (0, 0)
        assert writer.batches == []

    def test_records_are_written_in_order_and_in_batches(self, writer: StandIn) -> None:
        writer.gate.clear()
        with log_with(batch_size=3) as log:
            records = [selection() for _ in range(8)]
            for record in records:
                log.record_selection(record)
            assert log.pending == 8
            writer.gate.set()
            assert log.flush()
            assert [record for batch in writer.batches for record in batch] == records
            assert max(len(batch) for batch in writer.batches) == 3
            assert (log.written, log.dropped, log.failed, log.pending) == (8, 0, 0, 0)

    def test_a_batch_does_not_wait_longer_than_it_must(self, writer: StandIn) -> None:
        """Full, or flushed, or closed: each cuts a wait of an hour short."""
        log = log_with(batch_size=2, flush_interval_s=3_600)
        first, second, third, last = (selection() for _ in range(4))
        log.record_selection(first)
        log.record_selection(second)
        assert log.flush()
        log.record_selection(third)
        assert log.flush()
        log.record_selection(last)
        log.close()
        assert writer.batches == [[first, second], [third], [last]]

    def test_when_there_is_no_room_records_are_dropped_and_counted(
        self, writer: StandIn, caplog: pytest.LogCaptureFixture
    ) -> None:
        writer.gate.clear()
        with log_with(queue_size=2, batch_size=1) as log:
            log.record_selection(selection())
            assert writer.entered.wait(30)
            for _ in range(5):
                log.record_selection(selection())
            assert (log.pending, log.dropped) == (3, 3)
            assert not log.flush(timeout_s=0.0)
            writer.gate.set()
            assert log.flush()
        assert (log.written, log.dropped) == (3, 3)
        losses = [record for record in caplog.records if record.message == "usage_records_lost"]
        assert [vars(record)["dropped"] for record in losses] == [3]
        assert vars(losses[0])["reason"] == "the queue is full"

    def test_after_its_end_records_are_dropped(self, writer: StandIn) -> None:
        log = log_with()
        log.close()
        log.close()
        log.record_selection(selection())
        assert (log.is_closed, log.dropped, log.pending) == (True, 1, 0)
        assert writer.batches == []

    def test_what_cannot_be_written_before_the_end_is_dropped(self, writer: StandIn) -> None:
        writer.gate.clear()
        log = log_with(batch_size=1)
        log.record_selection(selection())
        assert writer.entered.wait(30)
        log.record_selection(selection())
        log.close(timeout_s=0.0)
        assert log.dropped == 1
        writer.gate.set()
        log.close()
        assert (log.written, log.dropped) == (1, 1)

    def test_a_log_that_nobody_holds_writes_what_it_was_given(self, writer: StandIn) -> None:
        log = log_with(flush_interval_s=3_600)
        record, gone = selection(), weakref.ref(log)
        log.record_selection(record)
        del log
        gc.collect()
        assert gone() is None
        assert writer.closed.wait(30)
        assert writer.batches == [[record]]

    def test_a_thread_that_had_nothing_to_do_goes_and_another_one_comes(
        self, writer: StandIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(usage_log, "_IDLE_S", 0.0)
        with log_with() as log:
            for _ in range(3):
                writer.closed.clear()
                log.record_selection(selection())
                assert writer.closed.wait(30)
            assert log.written == 3

    def test_a_thread_that_cannot_be_started_costs_the_record_alone(
        self, writer: StandIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with log_with() as log:
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", refuse)
                log.record_selection(selection())
            assert (log.dropped, log.pending) == (1, 0)
            log.record_selection(selection())
            assert log.flush()
            assert log.written == 1


class TestFaults:
    AWAY = RegistryUnavailableError("does not answer")

    def test_a_batch_is_tried_again_while_the_database_is_away(self, writer: StandIn) -> None:
        writer.errors = [self.AWAY, self.AWAY]
        with log_with() as log:
            log.record_selection(selection())
            assert log.flush()
            assert (log.written, log.dropped) == (1, 0)
        assert len(writer.batches) == 3

    def test_then_it_is_dropped_and_the_next_one_is_written(
        self, writer: StandIn, caplog: pytest.LogCaptureFixture
    ) -> None:
        writer.errors = [self.AWAY] * 3
        with log_with() as log:
            log.record_selection(selection())
            assert log.flush()
            log.record_selection(selection())
            assert log.flush()
            assert (log.written, log.dropped, log.failed) == (1, 1, 0)
        (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
        assert vars(record)["reason"] == "does not answer"

    def test_losses_are_told_once_a_minute_and_at_the_end(
        self, writer: StandIn, caplog: pytest.LogCaptureFixture
    ) -> None:
        log = log_with()
        for _ in range(5):
            writer.errors = [self.AWAY] * 3
            log.record_selection(selection())
            assert log.flush()
        # The line of the first is written when its batch is settled, which a flush may overtake.
        log.close()
        told = [vars(r)["dropped"] for r in caplog.records if r.message == "usage_records_lost"]
        assert told == [1, 5]

    def test_a_schema_that_does_not_fit_is_told_once(
        self, writer: StandIn, caplog: pytest.LogCaptureFixture
    ) -> None:
        advice = "Run `toolrag db upgrade`."
        writer.errors = [SchemaVersionError(found="0002", expected="0003", advice=advice)] * 4
        with log_with() as log:
            for _ in range(4):
                log.record_selection(selection())
                assert log.flush()
            assert log.dropped == 4
        (told,) = [r for r in caplog.records if r.message == "usage_log_schema"]
        assert vars(told)["reason"] == advice

    @pytest.mark.parametrize("error", [RegistryError("refused"), ZeroDivisionError("a bug")])
    def test_what_is_refused_is_counted_as_failed_and_the_thread_lives_on(
        self, writer: StandIn, error: Exception
    ) -> None:
        writer.errors = [error]
        with log_with() as log:
            log.record_selection(selection())
            assert log.flush()
            log.record_selection(selection())
            assert log.flush()
            assert (log.written, log.failed, log.dropped) == (1, 1, 0)

    def test_a_call_waits_for_its_selection_from_another_process(self, writer: StandIn) -> None:
        ours = uuid4()
        with log_with() as log:
            log.record_call(call(ours))
            assert log.flush()
            assert (log.pending, log.written) == (1, 0)
            writer.known.add(ours)
            log.record_selection(selection())
            assert log.flush()
            assert (log.pending, log.written, log.dropped) == (0, 2, 0)

    def test_a_call_whose_selection_never_comes_is_dropped(
        self, writer: StandIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with log_with() as log:
            log.record_call(call(uuid4()))
            assert log.flush()
            assert log.pending == 1
        assert (log.pending, log.dropped) == (0, 1)
        monkeypatch.setattr(usage_log, "_SELECTION_WAIT_S", 0.0)
        with log_with() as log:
            log.record_call(call(uuid4()))
            assert log.flush()
            assert (log.pending, log.dropped) == (0, 1)


def test_no_secret_of_the_url_is_told(caplog: pytest.LogCaptureFixture) -> None:
    log = UsageLog(URL)
    log.record_selection(selection(query_text="my question"))
    log.close(timeout_s=30.0)
    assert log.dropped == 1
    told = str([vars(record) for record in caplog.records if record.name.startswith("registry")])
    assert "127.0.0.1" in told
    assert "s3cret" not in told
    assert "my question" not in told
