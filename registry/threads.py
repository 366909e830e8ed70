"""The tables of LangGraph's checkpointer in the registry's database: made, and checked.

They belong to `langgraph-checkpoint-postgres`, which numbers its own migrations.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, create_engine, pool, text

from registry.database import normalise_url, translated_errors
from registry.errors import SchemaVersionError
from registry.migrate import migration_lock, read_revision
from registry.tables import SCHEMA_REVISION

__all__ = [
    "FOREIGN",
    "IS_THERE",
    "VERSION",
    "check_version",
    "current_version",
    "known_version",
    "set_up",
    "version_of",
]

FOREIGN = -1  # as a version: the tables are another program's
_UPGRADE = "Run `toolrag db upgrade`."
# Whether the tables are there (1), or others that have their name (-1).
IS_THERE = """
    SELECT CASE
        WHEN to_regclass(quote_ident(current_schema()) || '.checkpoint_migrations') IS NOT NULL
        THEN 1
        WHEN to_regclass(quote_ident(current_schema()) || '.checkpoints') IS NOT NULL
        THEN -1
    END AS found
"""
VERSION = "SELECT max(v) AS found FROM checkpoint_migrations"


def known_version() -> int:
    """Return the version of the tables that the installed library works with."""
    from langgraph.checkpoint.postgres import PostgresSaver

    return len(PostgresSaver.MIGRATIONS) - 1


def current_version(url: str) -> int | None:
    """Return the version of the tables, or None where there are none (`FOREIGN`: others).

    Raises:
        ConfigurationError: The URL cannot be read.
        RegistryUnavailableError: The server does not answer.
    """
    parsed = normalise_url(url)
    engine = create_engine(parsed, poolclass=pool.NullPool, connect_args={"connect_timeout": 10})
    with translated_errors(parsed), engine.connect() as connection:
        return version_of(connection)


def version_of(connection: Connection) -> int | None:
    """Return the version of the tables in the schema that the search path begins with, or None."""
    is_there = connection.scalar(text(IS_THERE))
    return connection.scalar(text(VERSION)) if is_there == 1 else is_there


def check_version(found: int | None) -> None:
    """Refuse tables that the installed library cannot work with.

    Raises:
        SchemaVersionError: Absent, older or newer; the message names the command that mends it.
    """
    known = known_version()
    if found == known:
        return
    if found is None:
        advice = f"The database has no tables for durable threads. {_UPGRADE}"
    elif found == FOREIGN:
        advice = (
            "A table `checkpoints` that is not LangGraph's stands in the registry's schema, so "
            "threads cannot be kept there. Give the registry a schema of its own: "
            "?options=-csearch_path%3DNAME,public in its URL, then `toolrag db upgrade`."
        )
    elif found < known:
        advice = (
            f"The tables of LangGraph's checkpointer are at version {found}, older than {known}, "
            f"which this langgraph-checkpoint-postgres needs. {_UPGRADE}"
        )
    else:
        advice = (
            f"The tables of LangGraph's checkpointer are at version {found}, newer than {known}, "
            "which this langgraph-checkpoint-postgres knows. Upgrade that package."
        )
    raise SchemaVersionError(
        found=None if found is None else str(found), expected=str(known), advice=advice
    )


def set_up(url: str) -> None:
    """Bring the tables to the installed library's version; waits for others that do the same.

    Does nothing where the registry's own schema is not at the newest revision, and where tables of
    that name are another program's.

    Raises:
        RegistryUnavailableError: The server does not answer.
        RegistryError: A privilege is missing.
    """
    from langgraph.checkpoint.postgres import PostgresSaver

    parsed = normalise_url(url)
    engine = create_engine(
        parsed,
        poolclass=pool.NullPool,
        isolation_level="AUTOCOMMIT",  # indexes are made concurrently
        connect_args={"connect_timeout": 10, "prepare_threshold": None},
    )
    with translated_errors(parsed), engine.connect() as connection:
        if read_revision(connection) != SCHEMA_REVISION or _is_settled(connection):
            return
        with migration_lock(connection):
            driver: Any = connection.connection.driver_connection
            PostgresSaver(driver).setup()


def _is_settled(connection: Connection) -> bool:
    found = version_of(connection)
    return found is not None and (found == FOREIGN or found >= known_version())
