"""A call that is given up at a deadline, sync and async.

Python cannot stop a thread, and a coroutine may ignore its cancellation. So what does not end is
abandoned: the caller goes on at the deadline, the call may still be at work behind its back, and
whatever it brings then is dropped. Write tools with time limits of their own where that matters.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextvars import copy_context
from typing import Any, TypeVar

from registry.errors import AgentError

__all__ = ["CallTimeoutError", "acall_with_timeout", "call_with_timeout"]

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


def call_with_timeout(function: Callable[[], _Result], timeout_s: float | None) -> _Result:
    """Return what a function returns, if it does so in time.

    It runs in a daemon thread of its own, with a copy of the context variables; without a timeout
    in the caller's thread. After the timeout the thread is left to itself.

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
    context = copy_context()

    def work(outcome: Future[_Result]) -> None:
        try:
            result = context.run(function)
        except BaseException as error:  # the caller's to handle, whatever it is
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    threading.Thread(target=work, args=(future,), name="toolrag-call", daemon=True).start()
    wait([future], timeout=timeout_s)
    if not future.done():
        raise CallTimeoutError(timeout_s)
    try:
        return future.result()
    except CallTimeoutError as error:
        raise TimeoutError(str(error)) from error
    finally:
        del future  # its exception holds this frame, and this frame the future


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
    """
    if timeout_s is None:
        return await factory()
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
