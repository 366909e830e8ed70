"""Turns of a conversation in an event loop, beside a blocking prompt; Ctrl-C ends a turn.

Nothing that hangs may take the prompt away, nor the end of the program: a run that does not end
when it is cancelled is left behind, and so is the thread of a sync tool.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any, ParamSpec, Self, TypeVar

__all__ = ["TurnCancelledError", "Turns"]

CANCEL_GRACE_S = 2.0

_P = ParamSpec("_P")
_T = TypeVar("_T")


class TurnCancelledError(Exception):
    """Ctrl-C ended a turn.

    Attributes:
        is_left_behind: Something of it did not end, and may still be at work.
    """

    def __init__(self, *, is_left_behind: bool) -> None:
        super().__init__("cancelled")
        self.is_left_behind = is_left_behind


class Turns:
    """An event loop for one turn after the other.

    The first Ctrl-C of a turn cancels it; a second one, as `KeyboardInterrupt`, ends the program,
    also where a tool blocks the loop itself.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._threads = _DaemonThreads()
        self._loop.set_default_executor(self._threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the loop; what does not end within `CANCEL_GRACE_S` is left behind."""
        # What is left behind is known; asyncio would tell of each task in the middle of the output.
        self._loop.set_exception_handler(_pass_over)
        try:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=CANCEL_GRACE_S))
            closing = self._loop.create_task(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(asyncio.wait({closing}, timeout=CANCEL_GRACE_S))
        finally:
            self._loop.close()

    def run(self, turn: Coroutine[Any, Any, _T]) -> _T:
        """Return what a turn returns.

        Raises:
            TurnCancelledError: Ctrl-C ended it.
        """
        task = self._loop.create_task(turn)
        cancelled = asyncio.Event()
        with self._on_ctrl_c(cancelled):
            self._loop.run_until_complete(_end_of(task, cancelled))
        if not task.done():
            raise TurnCancelledError(is_left_behind=True)
        if task.cancelled() or (cancelled.is_set() and task.exception() is not None):
            raise TurnCancelledError(is_left_behind=self._threads.is_busy)
        return task.result()

    @contextmanager
    def _on_ctrl_c(self, cancelled: asyncio.Event) -> Generator[None]:
        before = signal.getsignal(signal.SIGINT)
        if before is signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
            yield
            return

        def interrupt(signum: int, frame: FrameType | None) -> None:
            # Not `loop.add_signal_handler`: that waits for a loop that may be blocked.
            if was_pressed.is_set():
                raise KeyboardInterrupt
            was_pressed.set()
            self._loop.call_soon_threadsafe(cancelled.set)

        was_pressed = threading.Event()
        signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def _pass_over(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    pass


async def _end_of(task: asyncio.Task[Any], cancelled: asyncio.Event) -> None:
    asked = asyncio.create_task(cancelled.wait())
    await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_GRACE_S)


class _DaemonThreads(ThreadPoolExecutor):
    """A thread a call, none of which the end of the process waits for; asyncio wants this class."""

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self._at_work: set[threading.Thread] = set()

    @property
    def is_busy(self) -> bool:
        """Whether a call has not returned."""
        return any(thread.is_alive() for thread in list(self._at_work))

    def submit(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> Future[_T]:
        """Call a function in a thread of its own."""
        future: Future[_T] = Future()

        def work() -> None:
            try:
                if not future.set_running_or_notify_cancel():
                    return
                try:
                    result = fn(*args, **kwargs)
                except BaseException as error:  # the caller's to handle, whatever it is
                    future.set_exception(error)
                else:
                    future.set_result(result)
            finally:
                self._at_work.discard(threading.current_thread())

        thread = threading.Thread(target=work, name="toolrag-chat", daemon=True)
        self._at_work.add(thread)
        thread.start()
        return future
