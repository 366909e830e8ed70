"""The standard streams: there, or stood in for, and what it means when they cannot be written."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import NoReturn

__all__ = ["flush_or_discard", "is_write_failure", "stand_in_for_closed_streams"]

# Disk or quota full, closed, broken, too long, device gone.
_WRITE_FAILURES = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EBADF,
    errno.EIO,
    errno.EFBIG,
    errno.ENXIO,
}


class _Closed(io.TextIOBase):
    """Standard output that the shell closed (`>&-`): it fails like a full one, once written to."""

    def writable(self) -> bool:
        return True

    def write(self, _: str, /) -> NoReturn:
        raise OSError(errno.EBADF, "standard output is closed")


def stand_in_for_closed_streams() -> None:
    """Give Python streams for those the shell closed, and occupy their numbers.

    Else the next file opened, such as a lock or a socket, would get the number of stdout.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stdout = _Closed()
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        # `print(file=None)` would write to stdout.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")


def is_write_failure(error: OSError) -> bool:
    """Return whether this is what writing to a standard stream raises; files have a name."""
    return error.filename is None and error.errno in _WRITE_FAILURES


def flush_or_discard() -> None:
    """Write what is left, or drop it: Python would complain at exit, and end with its own code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
