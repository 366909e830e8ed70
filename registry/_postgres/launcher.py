"""Become the server: a script, run by `process.ServerProcess`, that ends in `execv`.

A process of its own, since the alternative (`preexec_fn`) runs Python between fork and exec, which
may deadlock in a process with threads. It imports nothing but the standard library.

Arguments: uid, gid (-1 to keep both), pid of the owner (0: nobody, outlive the starter), then
the command.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Drop root, tie this process to its owner's life, and run the command in its place."""
    uid, gid, owner_pid = (int(argument) for argument in arguments[:3])
    command = arguments[3:]
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


if __name__ == "__main__":
    main(sys.argv[1:])
