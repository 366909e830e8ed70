"""A call that is given up at a deadline, sync and async.

Python cannot stop a thread, and a coroutine may ignore its cancellation. So what does not end is
abandoned: the caller goes on at the deadline, the call may still be at work behind its back, and
whatever it brings then is dropped. Write tools with time limits of their own where that matters.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextvars import Context, copy_context
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from registry.errors import AgentError

__all__ = ["CallCancelledError", "CallTimeoutError", "acall_with_timeout", "call_with_timeout"]

_MOST_IDLE = 32  # threads that wait for the next call
CANCEL_GRACE_S = 0.25  # for a cancelled coroutine to close what it has open

_Result = TypeVar("_Result")

_abandoned: set[asyncio.Task[Any]] = set()  # the event loop itself keeps only weak references


class CallTimeoutError(AgentError, TimeoutError):
    """A call did not end in time; it was abandoned and may still be at work.

    One that leaves `call_with_timeout` is always of that very call: a `TimeoutError` of the
    function's own comes out as it is, and a `CallTimeoutError` from deeper inside as a plain
    `TimeoutError`.
    """

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"no end after {max(timeout_s, 0):.3g} s")
        self.timeout_s = timeout_s


class CallCancelledError(AgentError):
    """Something that a call waited for was cancelled, while nobody cancelled the call."""

    def __init__(self) -> None:
        super().__init__("what it waited for was cancelled")


def call_with_timeout(function: Callable[[], _Result], timeout_s: float | None) -> _Result:
    """Return what a function returns, if it does so in time.

    It runs in a daemon thread that does nothing else meanwhile, with a copy of the context
    variables; without a timeout in the caller's thread. After the timeout the thread is left to
    itself.

    Args:
        function: Without arguments; its exceptions come out as they are.
        timeout_s: Seconds; at 0 or below the function is not called. None for no timeout.

    Raises:
        CallTimeoutError: The function did not end in time.
    """
    if timeout_s is None:
        return function()
    if timeout_s <= 0:
        raise CallTimeoutError(timeout_s)
    future: Future[_Result] = Future()
    _free_worker().give(_Job(function, future, copy_context()))
    wait([future], timeout=timeout_s)
    if not future.done():
        raise CallTimeoutError(timeout_s)
    try:
        return future.result()
    except CallTimeoutError as error:
        raise TimeoutError(str(error)) from error
    finally:
        del future  # its exception holds this frame, and this frame the future


@dataclass(frozen=True, slots=True)
class _Job:
    function: Callable[[], Any]
    outcome: Future[Any]
    context: Context

    def do(self) -> None:
        try:
            result = self.context.run(self.function)
        except BaseException as error:  # the caller's to handle, whatever it is
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(result)


class _Worker(threading.Thread):
    """A daemon thread that does one job after another: starting one takes longer than a job.

    Unlike those of an executor, one whose job never ends hinders neither others nor the end of
    the process.
    """

    def __init__(self) -> None:
        super().__init__(name="toolrag-call", daemon=True)
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self.start()

    def give(self, job: _Job) -> None:
        """Have a job done."""
        self._jobs.put(job)

    def run(self) -> None:
        """Do jobs while few others wait for some."""
        while True:
            job = self._jobs.get()
            job.do()
            del job  # it holds the caller's frame
            if len(_idle) >= _MOST_IDLE:
                return
            _idle.append(self)


_idle: deque[_Worker] = deque()
os.register_at_fork(after_in_child=_idle.clear)  # threads stay behind in the parent


def _free_worker() -> _Worker:
    try:
        return _idle.pop()
    except IndexError:
        return _Worker()


async def acall_with_timeout(
    factory: Callable[[], Awaitable[_Result]], timeout_s: float | None
) -> _Result:
    """Return what an awaitable returns, if it does so in time.

    It runs in a task of its own, which is cancelled at the deadline and abandoned if it does not
    end then. A cancellation of the caller is passed on to it, and comes out once it has ended.

    Args:
        factory: Makes the awaitable; its exceptions come out as they are.
        timeout_s: Seconds; at 0 or below nothing is started. None for no timeout.

    Raises:
        CallTimeoutError: The awaitable did not end in time.
        CallCancelledError: It was cancelled from within, which is a fault like any other.
    """
    if timeout_s is None:
        try:
            return await factory()
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            raise CallCancelledError from None
    if timeout_s <= 0:
        raise CallTimeoutError(timeout_s)

    async def work() -> _Result:
        return await factory()

    task = asyncio.create_task(work(), name="toolrag-call")
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    except asyncio.CancelledError:
        await _cancelled(task, grace_s=None)
        raise
    if not task.done():
        await _cancelled(task, grace_s=CANCEL_GRACE_S)
        # One that ended well all the same did its work, and its answer is the truth about it.
        if not task.done() or task.cancelled() or task.exception() is not None:
            raise CallTimeoutError(timeout_s)
    if task.cancelled():
        raise CallCancelledError
    try:
        return task.result()
    except CallTimeoutError as error:
        raise TimeoutError(str(error)) from error
    finally:
        del task


async def _cancelled(task: asyncio.Task[Any], *, grace_s: float | None) -> None:
    """Cancel a task and wait for its end, for `grace_s` seconds at most; then let go of it."""
    _abandoned.add(task)
    task.add_done_callback(_forget)
    task.cancel()
    await asyncio.wait({task}, timeout=grace_s)


def _forget(task: asyncio.Task[Any]) -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()  # looked at, so that asyncio does not report it as lost
