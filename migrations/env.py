"""Alembic's entry: one transaction a revision, one upgrade at a time."""

from __future__ import annotations

import os

from alembic import context
from alembic.util import CommandError
from sqlalchemy import create_engine, pool

from registry.database import normalise_url, translated_errors
from registry.errors import ConfigurationError, ToolRAGError
from registry.migrate import ensure_schema, include_object, migration_lock
from registry.tables import VERSION_TABLE, metadata

DATABASE_URL_VARIABLE = "TOOLRAG_DATABASE_URL"


def render_item(kind: str, item: object, autogen_context: object) -> bool:
    """Give generated migrations the import that pgvector's types need."""
    if kind == "type" and type(item).__module__.startswith("pgvector."):
        autogen_context.imports.add("import pgvector.sqlalchemy")  # type: ignore[attr-defined]
    return False


def run(**target: object) -> None:
    context.configure(
        **target,  # type: ignore[arg-type]
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        include_object=include_object,
        render_item=render_item,
        transaction_per_migration=True,
        compare_server_default=True,
    )
    with context.begin_transaction():
        context.run_migrations()


def main(given: str) -> None:
    if context.is_offline_mode():
        run(dialect_name="postgresql", literal_binds=True)
        return
    if not given:
        raise ConfigurationError(
            f"Set {DATABASE_URL_VARIABLE} to the database to migrate, or use `toolrag db upgrade`."
        )
    url = normalise_url(given)
    engine = create_engine(url, poolclass=pool.NullPool, connect_args={"connect_timeout": 10})
    with translated_errors(url), engine.connect() as connection, migration_lock(connection):
        # The schema is named: alembic would take a version table further down the search path.
        run(connection=connection, version_table_schema=ensure_schema(connection))


if called_from_code := context.config.attributes.get("url"):
    main(called_from_code)
else:
    try:
        main(os.environ.get(DATABASE_URL_VARIABLE, ""))
    except ToolRAGError as error:
        # The only kind that alembic's command line shows as one line.
        raise CommandError(str(error)) from error
