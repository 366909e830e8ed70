"""Alembic's entry: one transaction a revision, one upgrade at a time."""

from __future__ import annotations

import os

from alembic import context
from pgvector.sqlalchemy import HALFVEC, SPARSEVEC, VECTOR
from sqlalchemy import Connection, create_engine, pool, text

from registry.database import normalise_url, translated_errors
from registry.errors import ConfigurationError
from registry.migrate import MIGRATION_LOCK_KEY, include_object
from registry.tables import VERSION_TABLE, metadata

DATABASE_URL_VARIABLE = "TOOLRAG_DATABASE_URL"


def render_item(kind: str, item: object, autogen_context: object) -> str | bool:
    """Write pgvector types with the import they need into generated migrations."""
    if kind == "type" and isinstance(item, (HALFVEC, SPARSEVEC, VECTOR)):
        autogen_context.imports.add("import pgvector.sqlalchemy")  # type: ignore[attr-defined]
        return f"pgvector.sqlalchemy.{type(item).__name__}(dim={item.dim!r})"
    return False


def configure(**target: object) -> None:
    context.configure(
        **target,  # type: ignore[arg-type]
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        include_object=include_object,
        render_item=render_item,
        transaction_per_migration=True,
        compare_server_default=True,
    )


def run(connection: Connection) -> None:
    # Session-level, so it outlives the autocommit blocks that concurrent indexes need.
    connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": MIGRATION_LOCK_KEY})
    connection.commit()
    try:
        configure(connection=connection)
        with context.begin_transaction():
            context.run_migrations()
    finally:
        connection.rollback()
        connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": MIGRATION_LOCK_KEY})
        connection.commit()


def main() -> None:
    given = context.config.attributes.get("url") or os.environ.get(DATABASE_URL_VARIABLE, "")
    if context.is_offline_mode():
        configure(url=str(given) or "postgresql+psycopg://", literal_binds=True)
        with context.begin_transaction():
            context.run_migrations()
        return
    if not given:
        raise ConfigurationError(
            f"Set {DATABASE_URL_VARIABLE} to the database to migrate, or use `toolrag db upgrade`."
        )
    url = normalise_url(given)
    engine = create_engine(url, poolclass=pool.NullPool, connect_args={"connect_timeout": 10})
    with translated_errors(url), engine.connect() as connection:
        run(connection)


main()
