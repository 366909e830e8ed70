"""Which account runs the server, and running a command as that account."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from registry.errors import LocalPostgresError

if sys.platform != "win32":
    import pwd

__all__ = [
    "ServerUser",
    "absolute_folder",
    "account_name",
    "check_has_account",
    "clean_environment",
    "home_folder",
    "run_as",
    "server_user",
]

# An account made for it, then the one packages of PostgreSQL bring, then one every system has.
_ACCOUNTS = ("toolrag", "postgres", "nobody")
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True)
class ServerUser:
    """The unprivileged account that runs the server for root, which PostgreSQL refuses."""

    name: str
    uid: int
    gid: int


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
                f"{cluster} belongs to user {account_name(owner_uid)}. Run as that user or as "
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


def check_has_account(user: ServerUser | None) -> None:
    """Refuse to make a server's files for a number that no account has, as in some containers.

    Raises:
        LocalPostgresError: The user of this process has no account; PostgreSQL looks its name up.
    """
    uid = user.uid if user else os.geteuid()
    try:
        pwd.getpwuid(uid)
    except KeyError as error:
        raise LocalPostgresError(
            f"This process runs as uid {uid}, which has no account here (no line in /etc/passwd), "
            "and the embedded PostgreSQL can only be made by a user with a name. Add an account "
            "for it, run as a user that has one, or give the URL of a server with --database-url."
        ) from error


def home_folder(environ: Mapping[str, str]) -> Path:
    """Return the user's home folder: `HOME`, or that of the account where it is empty.

    Raises:
        LocalPostgresError: Neither names a folder.
    """
    if sys.platform == "win32":
        return Path.home()
    home = environ.get("HOME", "")
    if not home:
        with contextlib.suppress(KeyError):
            home = pwd.getpwuid(os.getuid()).pw_dir
    if not home:
        raise LocalPostgresError(
            "This user has no home folder. Choose a folder with --data-dir, or set HOME."
        )
    return Path(home)


def absolute_folder(given: Path | str) -> Path:
    """Return the path of a folder from the root on, `~` and `~name` filled in.

    Raises:
        LocalPostgresError: There is no such home folder.
    """
    path = Path(given)
    if path.parts[:1] == ("~",):
        # Not by `expanduser`, which takes an empty HOME for the root folder.
        return home_folder(os.environ).joinpath(*path.parts[1:]).resolve()
    try:
        return path.expanduser().resolve()
    except RuntimeError as error:
        raise LocalPostgresError(
            f"{path.parts[0]} in {path} is no home folder of a user here. Choose another folder "
            "with --data-dir."
        ) from error


def account_name(uid: int) -> str:
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
