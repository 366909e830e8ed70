"""Who uses a server: each holds a shared lock, which the kernel takes off a process that ends."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Generator
from pathlib import Path

from registry._postgres.process import exclusive_lock, lock_file, open_lock_file, unlock_file
from registry.errors import LocalPostgresError

__all__ = ["ServerUse"]

if sys.platform != "win32":
    import fcntl

_LEAVE_TIMEOUT_S = 3.0


class ServerUse:
    """One user's hold on the server of a data folder.

    Three locks in this order, so that nobody waits in a circle: `users.lock`, shared by users and
    exclusive for whoever ends a server that has none left; `server.lock`, for one start at a time.
    """

    def __init__(self, users_lock: Path, server_lock: Path) -> None:
        self.path = users_lock
        self._server_lock = server_lock
        self._descriptor: int | None = None
        self._pid = 0
        self._guard = threading.Lock()

    def begin(self, *, timeout_s: float) -> None:
        """Become a user, after waiting for the end of a server that had none; repeatable.

        Raises:
            LocalPostgresError: The end of that server took longer.
        """
        with self._guard:
            if self._held:
                return
            if self._descriptor is not None:
                # A copy of the lock of the process this one was forked from: leave that alone.
                os.close(self._descriptor)
            descriptor = open_lock_file(self.path)
            try:
                if not lock_file(descriptor, fcntl.LOCK_SH, timeout_s=timeout_s):
                    raise LocalPostgresError(
                        f"The server of {self.path.parent} has been ending for more than "
                        f"{timeout_s:g} s. Wait for it, or end it with `toolrag db stop`."
                    )
            except BaseException:
                os.close(descriptor)
                raise
            self._descriptor, self._pid = descriptor, os.getpid()

    @contextlib.contextmanager
    def ending(self, *, timeout_s: float) -> Generator[bool]:
        """End the use; whether it was the last is given for the block, with everybody shut out.

        When another process is ending the server as its last user's heir, this waits for it.
        """
        with self._guard:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is None:
                yield False
                return
            try:
                yield self._pid == os.getpid() and self._is_last(descriptor, timeout_s=timeout_s)
            finally:
                if self._pid == os.getpid():
                    unlock_file(descriptor)
                os.close(descriptor)

    @property
    def _held(self) -> bool:
        return self._descriptor is not None and self._pid == os.getpid()

    def _is_last(self, descriptor: int, *, timeout_s: float) -> bool:
        # One at a time: of two that leave together, each would find the other still there. While
        # somebody is starting the server, there is a user.
        with (
            contextlib.suppress(LocalPostgresError, OSError),
            exclusive_lock(self._server_lock, timeout_s=_LEAVE_TIMEOUT_S),
        ):
            if lock_file(descriptor, fcntl.LOCK_EX, timeout_s=0):
                return True
            # Either others use it, or somebody is ending it already.
            lock_file(descriptor, fcntl.LOCK_SH, timeout_s=timeout_s)
            unlock_file(descriptor)  # before the next one that leaves looks
        return False
