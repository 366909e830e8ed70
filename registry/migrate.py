"""Run the schema's migrations from code, and check what state a database is in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy import exc as sa_exc

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
    "ensure_vector_extension",
    "include_object",
    "upgrade",
]

MINIMUM_PGVECTOR = (0, 8)
# "toolrag" as bytes: one key for the whole database, unlikely to be another program's.
MIGRATION_LOCK_KEY = int.from_bytes(b"toolrag")
# One index per embedding model, made when there is enough data; not part of the metadata.
HNSW_INDEX_PREFIX = "ix_tool_embedding_hnsw_"


def upgrade(url: str, revision: str = "head") -> None:
    """Bring the schema to a revision; waits for an upgrade another process is running.

    Raises:
        ConfigurationError: The URL cannot be read.
        RegistryUnavailableError: The server does not answer.
        SchemaVersionError: The database is newer than this release.
        RegistryError: pgvector is absent or too old, or a privilege is missing.
    """
    _run_alembic("upgrade", url, revision)


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
    """Return the revision that this connection's database is at, or None."""
    if connection.scalar(text("SELECT to_regclass(:name)"), {"name": VERSION_TABLE}) is None:
        return None
    return connection.scalar(
        text("SELECT version_num FROM toolrag_schema_version")  # VERSION_TABLE, a constant
    )


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
        _check_version(available)
        try:
            connection.execute(text("CREATE EXTENSION vector"))
        except sa_exc.ProgrammingError as error:
            raise RegistryError(
                "This user may not create the extension. An administrator must run once in this "
                "database: CREATE EXTENSION vector;"
            ) from error
    else:
        _check_version(installed)


def _check_version(version: str) -> None:
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if numbers < MINIMUM_PGVECTOR:
        raise RegistryError(
            f"pgvector {version} is too old; this project needs "
            f"{'.'.join(map(str, MINIMUM_PGVECTOR))} or newer. An administrator must install it "
            "and run: ALTER EXTENSION vector UPDATE;"
        )


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
    with translated_errors(parsed):
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
