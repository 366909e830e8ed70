"""What is asked of the server over its socket."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

from registry._postgres.cluster import PORT, SUPERUSER

__all__ = [
    "OWNER_SETTING",
    "ask_server",
    "connection_problem",
    "ensure_database",
    "sqlalchemy_url",
]

# A setting of our own: the process the server ends with, told to whoever asks the server.
OWNER_SETTING = "toolrag.owner_pid"
_PROBE_TIMEOUT_S = 2  # asked again and again, or by somebody who waits for the answer
_WORK_TIMEOUT_S = 30


def sqlalchemy_url(socket_dir: Path, database: str) -> str:
    """Return the URL of a database; the socket folder's path needs no quoting."""
    return (
        f"postgresql+psycopg://{SUPERUSER}@/{quote(database, safe='')}"
        f"?host={socket_dir}&port={PORT}"
    )


def connection_problem(socket_dir: Path) -> str | None:
    """Return None when a server accepts connections, else why not (absent, starting, full)."""
    try:
        _connect(socket_dir, timeout_s=_PROBE_TIMEOUT_S).close()
    except psycopg.OperationalError as error:
        return " ".join(str(error).split())
    return None


def ask_server(socket_dir: Path) -> tuple[str, int | None]:
    """Return the version of the server and the process it ends with.

    Raises:
        psycopg.Error: It does not answer.
    """
    with _connect(socket_dir, timeout_s=_PROBE_TIMEOUT_S) as connection:
        row = connection.execute(
            "SELECT current_setting('server_version'), current_setting(%s, true)",
            (OWNER_SETTING,),
        ).fetchone()
    version, owner_pid = row or ("", None)
    return version, int(owner_pid or 0) or None


def ensure_database(socket_dir: Path, database: str) -> None:
    """Make an empty database unless there is one of that name.

    Raises:
        psycopg.Error: The server refuses, or does not answer.
    """
    with _connect(socket_dir, timeout_s=_WORK_TIMEOUT_S) as connection:
        found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (database,))
        if found.fetchone():
            return
        # Another process may make it in between; which error says so depends on the moment.
        taken = (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation)
        with contextlib.suppress(*taken):
            # Nobody can be connected to template0, which would block the copy.
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(database))
            )


def _connect(socket_dir: Path, *, timeout_s: int) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(
        host=str(socket_dir),
        port=PORT,
        user=SUPERUSER,
        dbname="postgres",
        connect_timeout=timeout_s,
        autocommit=True,
    )
