"""The server's files: made whole or not at all, checked, and where its socket goes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import sys
import tempfile
from pathlib import Path

from registry._postgres.accounts import ServerUser, account_name, check_has_account, run_as
from registry._postgres.logs import reason_from_log
from registry.errors import LocalPostgresError

__all__ = [
    "PORT",
    "SUPERUSER",
    "data_argument",
    "ensure_cluster",
    "make_private_folder",
    "remove_stale_files",
    "socket_dir_for",
    "socket_fits",
    "temp_dirs",
]

PORT = 5432  # only a part of the socket's file name
SUPERUSER = "postgres"
# The kernel takes 107 bytes (macOS: 103) for the path of a socket.
_MAX_SOCKET_PATH_BYTES = 103
_SIGNS_OF_A_FULL_DISK = ("No space left", "quota exceeded", "File too large")
# Needs no quoting in a URL, an ini file (`%`) or a list of hosts (`,`).
_PLAIN_PATH = re.compile(r"[A-Za-z0-9._/-]+")


def socket_fits(folder: Path) -> bool:
    """Return whether a socket in this folder has a path that is short and needs no quoting."""
    socket = os.fsencode(folder / f".s.PGSQL.{PORT}")
    return len(socket) <= _MAX_SOCKET_PATH_BYTES and bool(_PLAIN_PATH.fullmatch(str(folder)))


def socket_dir_for(cluster: Path, *, temp_dirs: list[Path]) -> Path:
    """Return the folder for the socket: the cluster's own, else a short one for it alone.

    Raises:
        LocalPostgresError: No folder has a path that is short and plain enough.
    """
    name = f"toolrag-pg-{hashlib.sha256(os.fsencode(cluster)).hexdigest()[:12]}"
    for folder in (cluster, *(temp_dir / name for temp_dir in temp_dirs)):
        if socket_fits(folder):
            return folder
    raise LocalPostgresError(
        f"No folder for the server's socket: {cluster} and the temporary folders have paths that "
        "are too long or hold special characters. Set TMPDIR to a short one."
    )


def temp_dirs(user: ServerUser | None) -> list[Path]:
    """Return where a short folder for the socket may go, best first."""
    # Root's TMPDIR may be closed to the account that runs the server.
    own = [] if user else [Path(tempfile.gettempdir()).resolve()]
    return [*own, Path("/tmp").resolve()]


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
            f"{path} is not a private folder of user {account_name(uid)}: somebody else made it "
            "or opened it to others. Remove it, then try again."
        )


def data_argument(folder: Path, user: ServerUser | None) -> str:
    """Return the data folder as PostgreSQL is given it, started with that folder as its cwd."""
    # The account that runs the server for root may be unable to pass the folders above (/root is
    # closed), and PostgreSQL changes into the path it is given: this one leads to where it is.
    return "/proc/self/cwd" if user and sys.platform == "linux" else str(folder)


def ensure_cluster(
    cluster: Path,
    binaries: Path,
    user: ServerUser | None,
    *,
    durable: bool,
    timeout_s: float,
) -> None:
    """Make the server's files unless they are there; whole, or nothing.

    Args:
        cluster: Folder that holds them.
        binaries: Folder of `initdb`.
        user: Account that is to own them.
        durable: Wait until they are on the disk, so that a crash of the machine spares them.
        timeout_s: Longest wait, seconds.

    Raises:
        LocalPostgresError: They cannot be made, or what is there cannot be used.
    """
    _check_version(cluster, binaries, user)
    if (cluster / "PG_VERSION").exists():
        return
    if cluster.exists() and any(cluster.iterdir()):
        raise LocalPostgresError(
            f"{cluster} holds files, but no PostgreSQL data. Move them away, or choose "
            "another folder with --data-dir."
        )
    check_has_account(user)
    # Made beside and renamed when complete: what has the final name is whole.
    unfinished = cluster.with_name("cluster.new")
    if unfinished.exists():
        shutil.rmtree(unfinished)
    try:
        unfinished.mkdir(mode=0o700)
        if user:
            os.chown(unfinished, user.uid, user.gid)
        done = run_as(
            [
                binaries / "initdb",
                *_initdb_arguments(data_argument(unfinished, user), durable=durable),
            ],
            user,
            cwd=unfinished,
            timeout_s=timeout_s,
        )
        if done.returncode:
            reason = reason_from_log(done.stderr or done.stdout)
            full = any(sign in reason for sign in _SIGNS_OF_A_FULL_DISK)
            raise LocalPostgresError(
                f"The database files could not be made in {cluster.parent}: {reason}. "
                f"Nothing was left there; {'make room' if full else 'mend that'}, or choose "
                "another folder with --data-dir."
            )
        unfinished.rename(cluster)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _check_version(cluster: Path, binaries: Path, user: ServerUser | None) -> None:
    if (cluster.parent / "PG_VERSION").exists():
        raise LocalPostgresError(
            f"{cluster.parent} is the data folder of another PostgreSQL. Choose another folder "
            "with --data-dir."
        )
    try:
        made_by = (cluster / "PG_VERSION").read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return
    output = run_as([binaries / "postgres", "--version"], user, cwd=Path("/"), timeout_s=60).stdout
    found = re.search(r"\d+", output)
    major = found.group() if found else output.strip()
    if made_by != major:
        raise LocalPostgresError(
            f"The data in {cluster} was made by PostgreSQL {made_by}, and this release brings "
            f"PostgreSQL {major}. Choose another folder with --data-dir, or move this one away "
            "and sync the tools again."
        )


def _initdb_arguments(folder: str, *, durable: bool) -> list[str]:
    on_linux = sys.platform == "linux"
    # One call for all files instead of one a file: 0.1 s instead of 4 s.
    sync = (["--sync-method=syncfs"] if on_linux else []) if durable else ["--no-sync"]
    return [
        f"--pgdata={folder}",
        f"--username={SUPERUSER}",
        "--encoding=UTF8",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
        "--lc-collate=C",
        # With C here pg_trgm finds no trigram in text that is not ASCII.
        f"--lc-ctype={'C.UTF-8' if on_linux else 'en_US.UTF-8'}",
        "--lc-messages=C",
        # Whoever gets to the socket may connect; its folder is private. TCP, should somebody
        # switch it on, is open to every user of the machine, so it asks for a password.
        "--auth-local=trust",
        "--auth-host=scram-sha-256",
        "--no-instructions",
        *sync,
    ]


def remove_stale_files(cluster: Path, socket_dir: Path) -> None:
    """Remove what a dead server left: PostgreSQL itself stops at a pid that was used again."""
    for path in (cluster / "postmaster.pid", socket_dir / f".s.PGSQL.{PORT}.lock"):
        path.unlink(missing_ok=True)
