"""A circuit breaker: what keeps failing is left alone for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["CircuitBreaker"]


class CircuitBreaker:
    """Closed until a number of failures in a row, then open for a time, then half open.

    Half open, one call is let through: its success closes the breaker, its failure opens it
    anew. A call that never reports back keeps the others out no longer than the time. Safe for
    threads.

    Args:
        max_failures: Failures in a row that open it, at least 1.
        reset_s: Seconds until a call is let through again.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        *,
        max_failures: int,
        reset_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_failures = max_failures
        self._reset_s = reset_s
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._shut_until: float | None = None  # None: calls pass freely

    def admits(self) -> bool:
        """Return whether a call may run now; when half open, the first that asks may."""
        with self._lock:
            if self._shut_until is None:
                return True
            now = self._clock()
            if now < self._shut_until:
                return False
            self._shut_until = now + self._reset_s
            return True

    def succeeded(self) -> None:
        """Note that the tool works."""
        with self._lock:
            self._failures = 0
            self._shut_until = None

    def failed(self) -> bool:
        """Note a failure; return whether the breaker opened from being closed."""
        with self._lock:
            self._failures += 1
            if self._failures < self._max_failures:
                return False
            was_closed = self._shut_until is None
            self._shut_until = self._clock() + self._reset_s
            return was_closed
