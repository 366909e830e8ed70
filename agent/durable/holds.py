"""Which run has a thread: holds that are prolonged while the process lives, and run out after."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from uuid import uuid4

from registry.errors import RegistryError, ThreadBusyError

__all__ = ["Heartbeat", "Hold"]

_END_S = 5.0

_log = logging.getLogger(__name__)


class Hold:
    """The right of one run to go on with a thread.

    Args:
        thread_id: As the caller names it.
        stored_id: As the database has it.
        seconds: How long it lasts without being prolonged.
    """

    def __init__(self, *, thread_id: str, stored_id: str, seconds: int) -> None:
        self.thread_id = thread_id
        self.stored_id = stored_id
        self.seconds = seconds
        self.lease = f"thread:{stored_id}"
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:12]}"
        self.is_lost = False
        self._confirmed_at = 0.0

    @property
    def age_s(self) -> float:
        """Seconds since the database was last asked with success."""
        return time.monotonic() - self._confirmed_at

    def confirm(self, *, asked_at: float) -> None:
        """Note that the database said yes to what was asked then (`time.monotonic`)."""
        self._confirmed_at = max(self._confirmed_at, asked_at)

    def lost(self) -> ThreadBusyError:
        """Note that another run has the thread, and return the error that says so."""
        self.is_lost = True
        return ThreadBusyError(
            f"Thread {self.thread_id!r} was taken over by another run, because this one was "
            f"silent for more than {self.seconds} s. What it stored stays; look at the thread "
            "before you ask again.",
            thread_id=self.thread_id,
        )


class Heartbeat:
    """A daemon thread that prolongs the holds of this process, while it has any.

    Holds are known weakly: a run that was dropped without being closed loses its thread.

    Args:
        prolong: Prolongs holds by their holders, and returns the holders that still have theirs.
        seconds: How long a hold lasts.
        on_idle: Called when the thread ends.
    """

    def __init__(
        self,
        prolong: Callable[[Sequence[str]], Collection[str]],
        *,
        seconds: int,
        on_idle: Callable[[], None],
    ) -> None:
        self._prolong = prolong
        self._seconds = seconds
        self._on_idle = on_idle
        # Re-entrant: a finaliser may release a run in the middle of anything.
        self._changed = threading.Condition(threading.RLock())
        self._holds: weakref.WeakSet[Hold] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._is_ending = False

    def add(self, hold: Hold) -> None:
        """Prolong this one from now on."""
        with self._changed:
            self._holds.add(hold)
            if self._thread is None or not self._thread.is_alive():  # in a fork it is not
                self._thread = threading.Thread(
                    target=self._run, name="toolrag-threads", daemon=True
                )
                self._thread.start()

    def discard(self, hold: Hold) -> None:
        """Prolong this one no more."""
        with self._changed:
            self._holds.discard(hold)

    def close(self) -> None:
        """End the thread; holds run out."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(_END_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_ending, self._seconds / 3)
                holds = [] if self._is_ending else list(self._holds)
                if not holds:
                    self._on_idle()
                    self._thread = None
                    return
            self._beat({h.holder: h for h in holds if h.age_s > self._seconds / 4})

    def _beat(self, due: dict[str, Hold]) -> None:
        if not due:
            return
        asked_at = time.monotonic()
        try:
            kept = self._prolong(list(due))
        except RegistryError as error:  # the next beat may find it back
            _log.warning("thread_hold_not_prolonged", extra={"reason": str(error)})
            return
        for holder, hold in due.items():
            if holder in kept:
                hold.confirm(asked_at=asked_at)
            elif hold in self._holds:  # else it was given back meanwhile
                hold.is_lost = True
                _log.error("thread_hold_lost", extra={"thread_id": hold.thread_id})
