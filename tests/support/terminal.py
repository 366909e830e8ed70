"""A program at a terminal of its own: what it shows, and keys for it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tests.support.command_line import started

__all__ = ["CTRL_C", "CTRL_D", "Terminal", "at_terminal"]

CTRL_C, CTRL_D = b"\x03", b"\x04"
_PATIENCE_S = 40.0


class Terminal:
    """Both ends of a conversation with a program."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self._master = master
        self._process = process
        self.shown = ""

    def type(self, line: str) -> None:
        """Type a line and press Enter."""
        self.press(f"{line}\n".encode())

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def until(self, text: str) -> str:
        """Wait until the program shows this; return all that is shown since the last wait."""
        seen = ""
        deadline = time.monotonic() + _PATIENCE_S
        while text not in seen:
            ready, _, _ = select.select([self._master], [], [], deadline - time.monotonic())
            assert ready, f"{text!r} was not shown, but: {self.shown[-2000:]}"
            try:
                read = os.read(self._master, 4096)
            except OSError:  # so Linux says that the program is gone
                read = b""
            assert read, f"the program ended without showing {text!r}: {self.shown[-2000:]}"
            piece = read.decode(errors="replace").replace("\r\n", "\n")
            seen += piece
            self.shown += piece
        return seen

    def ended(self) -> int:
        """Return the exit code, once the program has ended; it must not hang."""
        while True:
            try:
                ready, _, _ = select.select([self._master], [], [], _PATIENCE_S)
                assert ready, f"the program does not end: {self.shown[-2000:]}"
                read = os.read(self._master, 4096)
            except OSError:
                read = b""
            if not read:
                return self._process.wait(timeout=_PATIENCE_S)
            self.shown += read.decode(errors="replace").replace("\r\n", "\n")


@contextmanager
def at_terminal(command: Sequence[str], env: Mapping[str, str]) -> Iterator[Terminal]:
    """Start a program whose input, output and errors are one terminal, with Ctrl-C as a signal."""
    master, slave = pty.openpty()

    def control() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    try:
        with started(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**env, "TERM": "dumb", "COLUMNS": "200"},
            start_new_session=True,
            preexec_fn=control,
        ) as process:
            os.close(slave)
            yield Terminal(master, process)
    finally:
        os.close(master)
