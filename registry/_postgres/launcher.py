"""Become the server: a script, run by `process.ServerProcess`, that ends in `execv`.

A process of its own, since the alternative (`preexec_fn`) runs Python between fork and exec, which
may deadlock in a process with threads. It imports nothing but the standard library.

Arguments: uid, gid (-1 to keep both), pid of the owner (0: nobody, outlive the starter), lock file
of the users and marker (both empty: nobody watches for the last user's end), then the command.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys

if sys.platform != "win32":
    import fcntl

_PR_SET_PDEATHSIG = 1
_STOP_TIMEOUT_S = 20.0


def main(arguments: list[str]) -> None:
    """Drop root, tie this process to its users' life, and run the command in its place."""
    uid, gid, owner_pid = (int(argument) for argument in arguments[:3])
    users_lock, marker = arguments[3:5]
    command = arguments[5:]
    if users_lock and sys.platform == "linux":
        _start_watcher(users_lock, marker)
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if owner_pid and sys.platform == "linux":
        # The kernel forgets the signal when the user changes, so this comes after setuid.
        # SIGINT is PostgreSQL's fast shutdown.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
        if os.getppid() != owner_pid:  # it died before the signal was asked for
            sys.exit("the process that started the server is gone")
    os.execv(command[0], command)


def _start_watcher(users_lock: str, marker: str) -> None:
    try:
        # Unlike its number, this never comes to mean another process.
        server = os.pidfd_open(os.getpid())
    except OSError:  # before Linux 5.3: then the last user ends the server, unless it is killed
        return
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os.close(server)
        return
    # Twice, so that it is no child of the server, which would wonder about it.
    try:
        os.setsid()
        if os.fork() == 0:
            os.chdir("/")
            _watch(users_lock, marker, server)
    finally:
        os._exit(0)


def _watch(users_lock: str, marker: str, server: int) -> None:
    """End the server once it has no user: one that is killed cannot do it itself."""
    lock = os.open(users_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not os.path.exists(marker):
        return
    # The lock is held until the server has ended, so that nobody begins to use it meanwhile.
    for number in (signal.SIGINT, signal.SIGQUIT):
        try:
            signal.pidfd_send_signal(server, number)
        except ProcessLookupError:
            return
        if select.select([server], [], [], _STOP_TIMEOUT_S)[0]:
            return


if __name__ == "__main__":
    main(sys.argv[1:])
