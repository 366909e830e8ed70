"""Run the schema's migrations from code, and check what state a database is in."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy import exc as sa_exc
from sqlalchemy.schema import CreateSchema

from registry.database import display_url, normalise_url, translated_errors
from registry.errors import RegistryError, SchemaVersionError
from registry.tables import SCHEMA_REVISION, VERSION_TABLE, metadata

__all__ = [
    "HNSW_INDEX_PREFIX",
    "MIGRATION_LOCK_KEY",
    "MINIMUM_PGVECTOR",
    "check_revision",
    "current_revision",
    "downgrade",
    "ensure_schema",
    "ensure_vector_extension",
    "first_schema",
    "include_object",
    "migration_lock",
    "upgrade",
]

_log = logging.getLogger(__name__)

MINIMUM_PGVECTOR = (0, 8)
# "toolrag" as bytes: one key for the whole database, unlikely to be another program's.
MIGRATION_LOCK_KEY = int.from_bytes(b"toolrag")
# One index per embedding model, made when there is enough data; not part of the metadata.
HNSW_INDEX_PREFIX = "ix_tool_embedding_hnsw_"
_NEEDED = f"this project needs {'.'.join(map(str, MINIMUM_PGVECTOR))} or newer"
_INSUFFICIENT_PRIVILEGE = "42501"
_LONGEST_PAUSE_S = 1.0
# alembic keeps the running migration in module globals, so one run a process.
_alembic_in_use = threading.Lock()


def upgrade(url: str, revision: str = "head") -> None:
    """Bring the schema to a revision; waits for an upgrade another process is running.

    At the newest revision the tables of LangGraph's checkpointer are brought up to date as well.

    Raises:
        ConfigurationError: The URL cannot be read.
        RegistryUnavailableError: The server does not answer.
        SchemaVersionError: The database is newer than this release.
        RegistryError: pgvector is absent or too old, or a privilege is missing.
    """
    from registry import threads

    _run_alembic("upgrade", url, revision)
    threads.set_up(url)


def downgrade(url: str, revision: str) -> None:
    """Take the schema back to a revision, `base` for none. Data of newer tables is lost.

    Raises:
        ConfigurationError, RegistryUnavailableError, RegistryError: As for `upgrade`.
    """
    _run_alembic("downgrade", url, revision)


def current_revision(url: str) -> str | None:
    """Return the schema's revision, or None where there is no schema of ours.

    Raises:
        ConfigurationError: The URL cannot be read.
        RegistryUnavailableError: The server does not answer.
    """
    from sqlalchemy import create_engine, pool

    parsed = normalise_url(url)
    engine = create_engine(parsed, poolclass=pool.NullPool, connect_args={"connect_timeout": 10})
    with translated_errors(parsed), engine.connect() as connection:
        return read_revision(connection)


def read_revision(connection: Connection) -> str | None:
    """Return the revision of the schema that this connection's search path begins with, or None.

    A schema of ours further down the path is another installation's.
    """
    # With a path such as "tools, public" and no schema "tools", PostgreSQL would go on to public.
    if first_schema(connection) != connection.scalar(text("SELECT current_schema()")):
        return None
    table = connection.scalar(
        text("SELECT to_regclass(quote_ident(current_schema()) || '.' || :name)"),
        {"name": VERSION_TABLE},
    )
    if table is None:
        return None
    return connection.scalar(
        text("SELECT version_num FROM toolrag_schema_version")  # VERSION_TABLE, a constant
    )


def first_schema(connection: Connection) -> str | None:
    """Return the schema that a search path such as `tools, public` asks for first.

    `"$user"` counts only where that schema exists, as it does for PostgreSQL.
    """
    return connection.scalar(
        text(
            """
            SELECT trim(BOTH '"' FROM trim(entry))
            FROM unnest(string_to_array(current_setting('search_path'), ','))
                 WITH ORDINALITY AS path (entry, place)
            WHERE trim(entry) <> '"$user"'
               OR EXISTS (SELECT FROM pg_namespace WHERE nspname = current_user)
            ORDER BY place LIMIT 1
            """
        )
    )


def ensure_schema(connection: Connection) -> str:
    """Make the schema that the search path begins with, where it is absent; return its name.

    Raises:
        RegistryError: The search path is empty, or the right to make the schema is missing.
    """
    wanted = first_schema(connection)
    if not wanted:
        raise RegistryError("The connection's search_path is empty; set one, for example public.")
    try:
        if wanted not in ("$user", connection.scalar(text("SELECT current_schema()"))):
            connection.execute(CreateSchema(wanted, if_not_exists=True))
    except sa_exc.ProgrammingError as error:
        raise RegistryError(
            f"The schema {wanted!r} does not exist and this user may not make it. An "
            f"administrator must run in this database: CREATE SCHEMA {wanted};"
        ) from error
    name = connection.scalar(text("SELECT current_schema()"))
    # Alembic takes an open transaction for its caller's, and would leave it open.
    connection.commit()
    return str(name)


def check_revision(found: str | None) -> None:
    """Refuse a schema this release cannot work with.

    Raises:
        SchemaVersionError: Absent, older or newer; the message names the command that mends it.
    """
    if found == SCHEMA_REVISION:
        return
    if found is None:
        advice = "The database has no toolrag schema. Run `toolrag db upgrade`."
    elif found < SCHEMA_REVISION:
        advice = (
            f"The database schema is at revision {found}, older than {SCHEMA_REVISION}, which "
            "this release needs. Run `toolrag db upgrade`."
        )
    else:
        advice = (
            f"The database schema is at revision {found}, newer than {SCHEMA_REVISION}, which "
            "this release knows. Upgrade the toolrag package (or, to go back, run the newer "
            f"release's `toolrag db downgrade {SCHEMA_REVISION}`)."
        )
    raise SchemaVersionError(found=found, expected=SCHEMA_REVISION, advice=advice)


def ensure_vector_extension(connection: Connection) -> None:
    """Create pgvector where it is absent; a user without that right is told whom to ask.

    Raises:
        RegistryError: The server has no pgvector, an old one, or the right is missing.
    """
    installed = connection.scalar(
        text("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
    )
    if installed is None:
        available = connection.scalar(
            text("SELECT default_version FROM pg_available_extensions WHERE name = 'vector'")
        )
        if available is None:
            raise RegistryError(
                "The server has no pgvector. Install the package postgresql-<version>-pgvector "
                "there (or use the image pgvector/pgvector), then run this again."
            )
        if _is_too_old(available):
            raise RegistryError(
                f"The server has pgvector {available}, which is too old; {_NEEDED}. An "
                "administrator must install it on the server, then run this again."
            )
        _create_vector_extension(connection)
    elif _is_too_old(installed):
        raise RegistryError(
            f"pgvector {installed} in this database is too old; {_NEEDED}. An administrator must "
            "install it on the server and run in this database: ALTER EXTENSION vector UPDATE;"
        )
    _check_type_is_visible(connection)


def _create_vector_extension(connection: Connection) -> None:
    try:
        with connection.begin_nested():
            connection.execute(text("CREATE EXTENSION vector"))
    except sa_exc.IntegrityError:
        # Another program of this database created it in this moment, which is as good.
        return
    except sa_exc.ProgrammingError as error:
        if getattr(error.orig, "sqlstate", None) != _INSUFFICIENT_PRIVILEGE:
            raise
        raise RegistryError(
            "This user may not create the extension. An administrator must run once in this "
            "database: CREATE EXTENSION vector;"
        ) from error


def _is_too_old(version: str) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and tuple(map(int, numbers.groups())) < MINIMUM_PGVECTOR


def _check_type_is_visible(connection: Connection) -> None:
    """Refuse an extension in a schema (`extensions`, on some hosts) that is not searched.

    Raises:
        RegistryError: The search path does not lead to pgvector's types.
    """
    if connection.scalar(text("SELECT to_regtype('halfvec')")) is not None:
        return
    schema = connection.scalar(
        text("SELECT extnamespace::regnamespace::text FROM pg_extension WHERE extname = 'vector'")
    )
    raise RegistryError(
        f"pgvector is installed in the schema {schema}, which this user's search_path does not "
        f"hold. An administrator must run: ALTER ROLE <user> SET search_path = public, {schema};"
    )


@contextmanager
def migration_lock(connection: Connection) -> Generator[None]:
    """Hold the database's one migration lock, after waiting for the process that has it.

    The lock is the session's, so it outlives the autocommit blocks that concurrent indexes need.
    It is asked for again and again: a statement that waits for it keeps a snapshot, and the
    CREATE INDEX CONCURRENTLY of the process that has it would wait for that snapshot in turn.
    """
    key = {"key": MIGRATION_LOCK_KEY}
    pause_s = 0.05
    while not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), key):
        connection.rollback()
        _log.info("migration_lock_wait", extra={"pause_s": pause_s})
        time.sleep(pause_s)
        pause_s = min(_LONGEST_PAUSE_S, 1.5 * pause_s)
    connection.commit()
    try:
        yield
    finally:
        # A lost connection lost its lock as well; asking it would hide the error that ended it.
        if not connection.invalidated:
            connection.rollback()
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), key)
            connection.commit()


def include_object(
    item: object, name: str | None, kind: str, reflected: bool, compare_to: object
) -> bool:
    """Tell alembic which objects are ours: other tables of the database are left alone."""
    if kind == "table":
        return name in metadata.tables
    # A missing filter here would make autogenerate drop the indexes that a sync makes.
    return not (kind == "index" and reflected and (name or "").startswith(HNSW_INDEX_PREFIX))


def script_location() -> Path:
    """Return the folder of the migration scripts: in the wheel, or beside the packages."""
    packaged = Path(__file__).with_name("_migrations")
    return packaged if packaged.is_dir() else Path(__file__).parents[1] / "migrations"


def alembic_config(url: str | None = None) -> Any:
    """Return an alembic Config for our scripts, without a file and without logging set-up."""
    from alembic.config import Config

    config = Config()
    # Percent signs are the parser's escape character.
    config.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    config.attributes["url"] = url
    return config


def _run_alembic(direction: str, url: str, revision: str) -> None:
    from alembic import command
    from alembic.util import CommandError

    parsed = normalise_url(url)
    with translated_errors(parsed), _alembic_in_use:
        try:
            getattr(command, direction)(
                alembic_config(parsed.render_as_string(hide_password=False)), revision
            )
        except CommandError as error:
            found = current_revision(url)
            if found is not None and found > SCHEMA_REVISION:
                check_revision(found)
            raise RegistryError(
                f"Cannot {direction} {display_url(parsed)} to {revision!r}: {error}"
            ) from error
