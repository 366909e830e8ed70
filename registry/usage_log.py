"""The usage log: what runs did, written behind their backs; it never breaks or slows a run."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Self

from sqlalchemy import exc as sa_exc
from sqlalchemy.engine import URL

from registry.base import RegistryBase
from registry.database import normalise_url
from registry.errors import RegistryError, RegistryUnavailableError, SchemaVersionError
from registry.settings import RegistrySettings
from registry.usage import CallRecord, SelectionRecord, UsageRecord, UsageSettings, admitted
from registry.usage_writer import UsageWriter

__all__ = ["UsageLog"]

_IDLE_S = 10.0  # then the thread ends and its connection is closed
_EXIT_S = 5.0
_RETRY_PAUSES_S = (0.2, 1.0, 3.0)
# A run that was interrupted may go on in another process before the first has written.
_SELECTION_WAIT_S = 30.0
_TELL_EVERY_S = 60.0

_log = logging.getLogger(__name__)


class UsageLog:
    """Takes records of runs and writes them to the registry's database in batches.

    Recording only puts the record into a bounded queue. One daemon thread with one connection of
    its own writes; both are made with the first record and go when there is nothing to do. What
    cannot be written is dropped, counted, and told in the log once a minute at most. Threads may
    share one; a forked child begins with an empty queue and a thread of its own.

    Args:
        url: `postgresql://user:password@host:5432/name`.
        settings: What is recorded.
        registry_settings: Time limits of connection and statements.

    Raises:
        ConfigurationError: The URL cannot be read.
    """

    def __init__(
        self,
        url: str | URL,
        *,
        settings: UsageSettings | None = None,
        registry_settings: RegistrySettings | None = None,
    ) -> None:
        self._settings = settings or UsageSettings()
        self._worker = _Worker(
            normalise_url(url), self._settings, registry_settings or RegistrySettings()
        )
        # A log that nobody holds any more still writes what it was given; `atexit` knows of it.
        weakref.finalize(self, self._worker.end).atexit = False

    @classmethod
    def of(cls, registry: RegistryBase) -> UsageLog:
        """Return the log that all agents over one registry share, with the default settings.

        It writes to the registry's own database, and the registry closes it when it is closed;
        after `close` a new one is made.
        """
        with _shared.lock:
            log = _shared.logs.get(registry)
            if log is None or log.is_closed:
                log = cls(registry.url, registry_settings=registry.settings)
                _shared.logs[registry] = log
            return log

    @classmethod
    def existing(cls, registry: RegistryBase) -> UsageLog | None:
        """Return the log of a registry if one was made."""
        with _shared.lock:
            return _shared.logs.get(registry)

    @property
    def settings(self) -> UsageSettings:
        """What is recorded."""
        return self._settings

    @property
    def is_closed(self) -> bool:
        """Whether it was closed; records are then dropped."""
        return self._worker.is_ending

    @property
    def written(self) -> int:
        """Records written, selections and calls."""
        return self._worker.written

    @property
    def dropped(self) -> int:
        """Records not written: no room, or no database for too long."""
        return self._worker.dropped

    @property
    def failed(self) -> int:
        """Records that the database refused."""
        return self._worker.failed

    @property
    def pending(self) -> int:
        """Records not written yet."""
        return self._worker.pending

    def record_selection(self, record: SelectionRecord) -> None:
        """Take a selection; never blocks, never raises."""
        if self._settings.enabled:
            self._worker.put(admitted(record, self._settings))

    def record_call(self, record: CallRecord) -> None:
        """Take a call; never blocks, never raises. Its selection was recorded before it."""
        if self._settings.enabled:
            self._worker.put(record)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until everything taken so far was written, or given up; return whether it was."""
        return self._worker.flush(timeout_s)

    async def aflush(self, timeout_s: float = 5.0) -> bool:
        """Like `flush`, without blocking the event loop."""
        return await asyncio.to_thread(self.flush, timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what was taken, end the thread, close the connection; drop what is left then."""
        self._worker.end()
        self._worker.wait_ended(timeout_s)

    async def aclose(self, timeout_s: float = 5.0) -> None:
        """Like `close`, without blocking the event loop."""
        await asyncio.to_thread(self.close, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Worker:
    """The queue and the thread that empties it; does not hold its `UsageLog`."""

    def __init__(
        self, url: URL, settings: UsageSettings, registry_settings: RegistrySettings
    ) -> None:
        self._url = url
        self._settings = settings
        self._registry_settings = registry_settings
        self.is_ending = False
        self.reset()
        _workers.add(self)

    def reset(self) -> None:
        """Begin anew; in a forked child nothing of the parent's may be used or written again."""
        # Its lock is re-entrant: a finaliser may run in the middle of anything.
        self._changed = threading.Condition(threading.RLock())
        self._queue: deque[UsageRecord] = deque()
        self._in_hand = 0
        self._homeless: list[tuple[CallRecord, float]] = []  # and until when each waits
        self._taken = self._settled = self._flush_to = 0
        self._thread: threading.Thread | None = None
        self.written = self.dropped = self.failed = 0
        self._told_losses, self._told_at, self._told_schema = 0, -_TELL_EVERY_S, False
        self._reason = ""

    @property
    def pending(self) -> int:
        return len(self._queue) + self._in_hand + len(self._homeless)

    # --- called by anyone

    def put(self, record: UsageRecord) -> None:
        with self._changed:
            if self.is_ending or len(self._queue) >= self._settings.queue_size:
                self.dropped += 1
                self._reason = "closed" if self.is_ending else "the queue is full"
                return
            self._queue.append(record)
            self._taken += 1
            if self._thread is None or not self._thread.is_alive():
                self._start()
            elif len(self._queue) in (1, self._settings.batch_size):
                self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        with self._changed:
            target = self._taken
            self._flush_to = max(self._flush_to, target)
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._settled >= target, timeout_s)

    def end(self) -> None:
        with self._changed:
            self.is_ending = True
            self._changed.notify_all()

    def wait_ended(self, timeout_s: float) -> None:
        with self._changed:
            thread = self._thread
        if thread is not None:
            thread.join(max(timeout_s, 0.0))
        with self._changed:
            self._give_up(len(self._queue), "closed before they were written")
            self._queue.clear()
        self._tell_losses()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="toolrag-usage-log", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            self._give_up(len(self._queue), str(error))
            self._queue.clear()
            return
        self._thread = thread
        _flush_when_the_process_ends()

    # --- called by the thread

    def _run(self) -> None:
        writer = UsageWriter(self._url, self._settings, self._registry_settings)
        try:
            while batch := self._next_batch():
                self._write(batch, writer)
                with self._changed:
                    self._in_hand = 0
                    self._changed.notify_all()
                self._tell_losses()
        finally:
            writer.close()

    def _next_batch(self) -> list[UsageRecord]:
        """Wait for records; return none when the thread is to end."""
        settings = self._settings
        with self._changed:
            idle_until = time.monotonic() + _IDLE_S
            while not self._queue and not self.is_ending:
                # Calls that wait for their selection are tried again as often as batches come.
                wait_s = settings.flush_interval_s if self._homeless else _IDLE_S
                if not self._changed.wait(wait_s) and (
                    self._homeless or time.monotonic() >= idle_until
                ):
                    break
            if self._queue:
                self._changed.wait_for(self._batch_is_due, settings.flush_interval_s)
            batch: list[UsageRecord] = [
                self._queue.popleft() for _ in range(min(len(self._queue), settings.batch_size))
            ]
            self._in_hand = len(batch)
            batch.extend(call for call, _ in self._homeless)
            if not batch:
                self._thread = None  # the next record starts another one
            return batch

    def _batch_is_due(self) -> bool:
        return (
            self.is_ending
            or len(self._queue) >= self._settings.batch_size
            or self._flush_to > self._settled
        )

    def _write(self, batch: Sequence[UsageRecord], writer: UsageWriter) -> None:
        pauses = iter(_RETRY_PAUSES_S)
        while True:
            ending = self.is_ending
            try:
                absent = writer.write(batch)
            except RegistryUnavailableError as error:
                if not ending and self._may_try_again(pauses):
                    continue
                self._settle(batch, dropped=str(error))
            except SchemaVersionError as error:
                self._tell_schema(error)
                self._settle(batch, dropped=str(error))
            except RegistryError as error:
                refused = isinstance(error.__cause__, (sa_exc.DataError, sa_exc.IntegrityError))
                if refused and len(batch) > 1:  # one bad record must not cost the others
                    for record in batch:
                        self._write([record], writer)
                    return
                self._settle(batch, failed=str(error))
            except Exception as error:  # a mistake of ours must not end the thread
                _log.exception("usage_log_broken")
                self._settle(batch, failed=type(error).__name__)
            else:
                calls = [
                    record
                    for record in batch
                    if isinstance(record, CallRecord) and record.selection_id in absent
                ]
                self._settle(batch, homeless=calls)
            return

    def _may_try_again(self, pauses: Iterator[float]) -> bool:
        pause_s = next(pauses, None)
        if pause_s is None:
            return False
        with self._changed:  # an end cuts the pause short, and is tried once more
            self._changed.wait_for(lambda: self.is_ending, pause_s)
        return True

    def _settle(
        self,
        batch: Sequence[UsageRecord],
        *,
        dropped: str = "",
        failed: str = "",
        homeless: Sequence[CallRecord] = (),
    ) -> None:
        """Count what became of a batch, and keep the calls whose selection is still to come."""
        with self._changed:
            waiting = {id(call): until for call, until in self._homeless}
            ours = {id(record) for record in batch}
            self._homeless = [item for item in self._homeless if id(item[0]) not in ours]
            self._settled += sum(id(record) not in waiting for record in batch)
            if dropped:
                self._give_up(len(batch), dropped, settle=False)
            elif failed:
                self.failed += len(batch)
                self._reason = failed
            else:
                self.written += len(batch) - len(homeless)
            now = time.monotonic()
            for call in homeless:
                until = waiting.get(id(call), now + _SELECTION_WAIT_S)
                full = len(self._homeless) >= self._settings.queue_size
                if self.is_ending or full or until <= now:
                    self._give_up(1, "their selection was never written", settle=False)
                else:
                    self._homeless.append((call, until))
            self._changed.notify_all()

    def _give_up(self, count: int, reason: str, *, settle: bool = True) -> None:
        if count:
            self.dropped += count
            self._settled += count if settle else 0
            self._reason = reason

    # --- what is said

    def _tell_schema(self, error: SchemaVersionError) -> None:
        if not self._told_schema:
            self._told_schema = True
            _log.error("usage_log_schema", extra={"reason": str(error)})

    def _tell_losses(self) -> None:
        with self._changed:
            losses, now = self.dropped + self.failed, time.monotonic()
            is_due = self.is_ending or now - self._told_at >= _TELL_EVERY_S
            if losses == self._told_losses or not is_due:
                return
            self._told_losses, self._told_at = losses, now
            extra = {"dropped": self.dropped, "failed": self.failed, "reason": self._reason}
        _log.warning("usage_records_lost", extra=extra)


class _Shared:
    """Logs of registries."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.logs: weakref.WeakKeyDictionary[RegistryBase, UsageLog] = weakref.WeakKeyDictionary()


_shared = _Shared()
_workers: weakref.WeakSet[_Worker] = weakref.WeakSet()
_exit_is_known = False


def _flush_when_the_process_ends() -> None:
    # Not at import: what was registered later runs earlier, and that should be this one rather
    # than the end of an embedded server.
    global _exit_is_known
    if not _exit_is_known:
        _exit_is_known = True
        atexit.register(_end_all)


def _end_all() -> None:
    until = time.monotonic() + _EXIT_S
    workers = list(_workers)
    for worker in workers:
        worker.end()
    for worker in workers:
        worker.wait_ended(until - time.monotonic())


def _begin_anew_in_child() -> None:
    _shared.lock = threading.Lock()
    for worker in list(_workers):
        worker.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew_in_child)
