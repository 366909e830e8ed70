"""The server as a process: started, told apart from others, stopped."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from registry._postgres.accounts import ServerUser, clean_environment
from registry.errors import LocalPostgresError

if sys.platform != "win32":
    import fcntl

__all__ = [
    "POLL_S",
    "PidFile",
    "ServerProcess",
    "exclusive_lock",
    "live_server",
    "lock_file",
    "open_lock_file",
    "stop_postmaster",
    "unlock_file",
]

POLL_S = 0.02
_LAUNCHER = Path(__file__).with_name("launcher.py")


@dataclass(frozen=True, slots=True)
class PidFile:
    """What a server wrote to `postmaster.pid`; it may be long dead."""

    pid: int
    socket_dir: str


class ServerProcess:
    """A running server that is this process's child.

    A thread forks it, waits for it and reaps it. The kernel sends the parent-death signal when
    the forking *thread* ends, so the caller's thread will not do: it may be a short-lived worker.

    Args:
        command: The server's program and arguments.
        user: Account to run it as.
        cwd: Its folder.
        log_path: File for its output.
        detached: It outlives this process.
        watched: (lock file of the users, marker): a watcher ends it once nobody holds the lock,
            if the marker is there still. Linux only.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        user: ServerUser | None,
        cwd: Path,
        log_path: Path,
        detached: bool,
        watched: tuple[Path, Path] | None = None,
    ) -> None:
        self._ended = threading.Event()
        self._popen: Future[subprocess.Popen[bytes]] = Future()
        self._owner_pid = os.getpid()
        arguments = _launcher_command(command, user, 0 if detached else self._owner_pid, watched)
        threading.Thread(
            target=self._run,
            args=(arguments, cwd, log_path),
            name="toolrag-postgres",
            daemon=True,
        ).start()
        self._popen.result()

    def _run(self, command: Sequence[str], cwd: Path, log_path: Path) -> None:
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
            log = os.open(log_path, flags, 0o600)
            try:
                process = subprocess.Popen(
                    command,
                    cwd=cwd,
                    env=clean_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C of the owner's terminal is not for the server
                )
            finally:
                os.close(log)
        except BaseException as error:
            self._popen.set_exception(error)
            return
        self._popen.set_result(process)
        process.wait()
        self._ended.set()

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._popen.result().pid

    @property
    def alive(self) -> bool:
        """Whether it runs and is a child of this very process, not of one this was forked from."""
        return os.getpid() == self._owner_pid and not self._ended.is_set()

    def stop(self, *, timeout_s: float) -> None:
        """End it: fast shutdown, then without a last checkpoint, then by force."""
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            if not self.alive:
                return
            self._popen.result().send_signal(number)
            if self._ended.wait(timeout_s):
                return


def _launcher_command(
    command: Sequence[str],
    user: ServerUser | None,
    owner_pid: int,
    watched: tuple[Path, Path] | None,
) -> Sequence[str]:
    paths = [str(path) for path in watched or ("", "")]
    ids = (user.uid, user.gid) if user else (-1, -1)
    interpreters = (sys.executable, shutil.which("python3"))
    for interpreter in interpreters:
        # A process that gave up root may be running an interpreter it can no longer start.
        if interpreter and os.access(interpreter, os.X_OK):
            flags = [interpreter, "-I", "-S", str(_LAUNCHER)]
            return [*flags, *(str(number) for number in (*ids, owner_pid)), *paths, *command]
    raise LocalPostgresError(
        f"No Python interpreter to start PostgreSQL with: {sys.executable!r} cannot be executed "
        "by this user, and there is no python3 on PATH."
    )


def open_lock_file(path: Path) -> int:
    """Return a descriptor of a lock file, made when absent."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def lock_file(descriptor: int, operation: int, *, timeout_s: float) -> bool:
    """Return whether the lock, `LOCK_EX` or `LOCK_SH`, could be had within that time."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        else:
            return True


def unlock_file(descriptor: int) -> None:
    """Give a lock up. Closing is not enough: a child forked meanwhile would keep it alive."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextlib.contextmanager
def exclusive_lock(path: Path, *, timeout_s: float) -> Generator[None]:
    """Hold a lock file for the block; one holder at a time among all processes and threads.

    Raises:
        LocalPostgresError: Another process kept it for longer than `timeout_s`.
    """
    descriptor = open_lock_file(path)
    try:
        if not lock_file(descriptor, fcntl.LOCK_EX, timeout_s=timeout_s):
            raise LocalPostgresError(
                f"Another process has been starting the server of {path.parent} for more "
                f"than {timeout_s:g} s. Wait for it or end it, then try again."
            )
        try:
            yield
        finally:
            unlock_file(descriptor)
    finally:
        os.close(descriptor)


def read_pid_file(cluster: Path) -> PidFile | None:
    """Return what `postmaster.pid` says, or None when there is none or it is unreadable."""
    try:
        lines = (cluster / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        return PidFile(int(lines[0]), lines[4] if len(lines) > 4 else "")
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError, IndexError, ValueError):
        return None


def is_postmaster(pid: int, cluster: Path) -> bool:
    """Return whether this process is the server of this cluster, not one that got its old pid."""
    if pid <= 0:
        return False
    if sys.platform == "linux":
        # Links of a process of another user, or of a zombie, cannot be read: it is not ours.
        try:
            program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
            return program.startswith("postgres") and os.path.samefile(f"/proc/{pid}/cwd", cluster)
        except OSError:
            return False
    found = subprocess.run(
        ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return f"-D {cluster}" in found.stdout


def live_server(cluster: Path) -> PidFile | None:
    """Return the pid file of the live server of a cluster, or None."""
    found = read_pid_file(cluster)
    return found if found and is_postmaster(found.pid, cluster) else None


def stop_postmaster(pid: int, cluster: Path, *, timeout_s: float) -> bool:
    """End a server that is not a child of this process; return whether it ended.

    Raises:
        PermissionError: It runs as another user.
    """
    for number in (signal.SIGINT, signal.SIGQUIT):
        deadline = time.monotonic() + timeout_s
        with contextlib.suppress(ProcessLookupError):
            if is_postmaster(pid, cluster):
                os.kill(pid, number)
        while is_postmaster(pid, cluster):
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        else:
            return True
    return False
