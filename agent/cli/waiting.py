"""Says on stderr that a command waits for another process, so that it does not seem to hang."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Generator

__all__ = ["WaitNotice"]

_LOGGER = "registry.store"
_EVENT = "lease_wait"


class WaitNotice(logging.Handler):
    """Turns the registry's event of waiting into one line, once for each thing waited for."""

    def __init__(self) -> None:
        super().__init__(level=logging.INFO)
        self._said: set[str] = set()

    @contextlib.contextmanager
    def attached(self) -> Generator[None]:
        """Listen to the registry."""
        logger = logging.getLogger(_LOGGER)
        level = logger.level
        logger.addHandler(self)
        logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        """Print the line of an event, unless it was printed."""
        lease = str(getattr(record, "lease", ""))
        if record.msg != _EVENT or lease in self._said:
            return
        self._said.add(lease)
        kind, _, namespace = lease.partition(":")
        what = f"the sync of namespace {namespace!r}" if kind == "sync" else f"the work on {kind}"
        with contextlib.suppress(OSError):
            print(f"Waiting for {what} by another process ...", file=sys.stderr, flush=True)
