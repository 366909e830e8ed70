"""Which account runs the server, and running a command as that account."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from registry.errors import LocalPostgresError

if sys.platform != "win32":
    import pwd

__all__ = ["ServerUser", "account_name", "clean_environment", "run_as", "server_user"]

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
