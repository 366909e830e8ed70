"""Calls that are given up at a deadline, sync and async, few of which are left hanging.

Python cannot stop a thread, and a coroutine may ignore its cancellation: what does not end is
abandoned. While too many of those are at work nothing new is begun, so that a model which hangs
for hours costs no thread a search.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import copy_context
from typing import TypeVar

from registry.errors import EmbeddingUnavailableError

__all__ = ["MAX_ABANDONED", "TimedCalls"]

MAX_ABANDONED = 16
_CANCEL_GRACE_S = 0.25  # for a cancelled coroutine to close what it has open

T = TypeVar("T")


class TimedCalls:
    """Calls of one embedding model.

    Args:
        name: Of the model.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._at_work = 0
        self._waited_for = 0

    def call(self, function: Callable[[], T], timeout_s: float | None) -> T:
        """Return what a function returns; it runs in a daemon thread of its own.

        Args:
            function: Without arguments; its exceptions come out as they are.
            timeout_s: Seconds. None for no limit, in the caller's thread.

        Raises:
            EmbeddingUnavailableError: It did not end in time, or too many others did not either.
        """
        if timeout_s is None:
            return function()
        with self._waiting():
            future = self._begun(function)
            wait([future], timeout=timeout_s)
            if not future.done():
                raise self._too_late(timeout_s)
            try:
                return future.result()
            finally:
                del future  # its exception holds this frame, and this frame the future

    async def acall_in_thread(self, function: Callable[[], T], timeout_s: float) -> T:
        """Like `call`, for async callers: the event loop's own threads stay free."""
        with self._waiting():
            future = asyncio.wrap_future(self._begun(function))
            future.add_done_callback(_forget)
            await asyncio.wait({future}, timeout=timeout_s)
            if not future.done():
                raise self._too_late(timeout_s)
            return future.result()

    async def acall(self, factory: Callable[[], Awaitable[T]], timeout_s: float | None) -> T:
        """Return what an awaitable returns; it is cancelled at the deadline.

        Args:
            factory: Makes the awaitable; its exceptions come out as they are.
            timeout_s: Seconds; None for no limit.

        Raises:
            EmbeddingUnavailableError: As for `call`.
        """
        if timeout_s is None:
            return await factory()

        async def work() -> T:
            with self._working():
                return await factory()

        with self._waiting():
            task = asyncio.create_task(work(), name="toolrag-embedding")
            try:
                await asyncio.wait({task}, timeout=timeout_s)
                if task.done():
                    return task.result()
                raise self._too_late(timeout_s)
            finally:
                if not task.done():
                    await _cancelled(task)

    def _begun(self, function: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        context = copy_context()

        def work(outcome: Future[T]) -> None:
            try:
                with self._working():
                    result = context.run(function)
            except BaseException as error:  # the caller's to handle, whatever it is
                outcome.set_exception(error)
            else:
                outcome.set_result(result)

        # Not to be cancelled by who stops waiting: then it could not take its result.
        future.set_running_or_notify_cancel()
        name = "toolrag-embedding"
        threading.Thread(target=work, args=(future,), name=name, daemon=True).start()
        return future

    @contextmanager
    def _waiting(self) -> Generator[None]:
        with self._lock:
            abandoned = self._at_work - self._waited_for
            if abandoned >= MAX_ABANDONED:
                raise EmbeddingUnavailableError(
                    f"The embedding model {self._name} did not answer {abandoned} earlier calls, "
                    "which still hang; it is asked again once one of them ends. Give its client a "
                    "time limit."
                )
            self._waited_for += 1
        try:
            yield
        finally:
            with self._lock:
                self._waited_for -= 1

    @contextmanager
    def _working(self) -> Generator[None]:
        with self._lock:
            self._at_work += 1
        try:
            yield
        finally:
            with self._lock:
                self._at_work -= 1

    def _too_late(self, timeout_s: float) -> EmbeddingUnavailableError:
        return EmbeddingUnavailableError(
            f"The embedding model {self._name} did not answer within {timeout_s:g} s "
            "(embed_timeout_s)."
        )


_abandoned: set[asyncio.Task[object]] = set()  # the event loop itself keeps only weak references


async def _cancelled(task: asyncio.Task[T]) -> None:
    """Cancel a task and wait a moment for its end; then let go of it."""
    _abandoned.add(task)
    task.add_done_callback(_abandoned.discard)
    task.add_done_callback(_forget)
    task.cancel()
    await asyncio.wait({task}, timeout=_CANCEL_GRACE_S)


def _forget(ended: asyncio.Future[T]) -> None:
    if not ended.cancelled():
        ended.exception()  # looked at, so that asyncio does not report it as lost
