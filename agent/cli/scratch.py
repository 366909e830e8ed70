"""A database that is there for one command: nothing of the user's is read or changed."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agent.cli.exit_codes import DATABASE, CliError
from agent.cli.output import Output

if TYPE_CHECKING:
    from agent.cli.options import GlobalOptions

__all__ = ["gather_statistics", "scratch_database"]

# Nothing has to survive a crash.
_FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


@contextmanager
def scratch_database(options: GlobalOptions, output: Output) -> Generator[str]:
    """Give the URL of a new, migrated database, removed at the end.

    On the server of `--database-url` where one is given; else on an embedded one in a temporary
    folder, so that the user's is not started.

    Raises:
        CliError: The given server makes no databases for this user.
        ToolRAGError: No server can be used.
    """
    from registry import migrate

    if options.database_url is not None:
        with _database_on(options.database_url) as url:
            output.note("Using a scratch database on the given server ...")
            migrate.upgrade(url)
            yield url
        return
    from registry.local_postgres import LocalPostgres

    output.note("Making a scratch database ...")
    with (
        tempfile.TemporaryDirectory(prefix="toolrag-eval-") as folder,
        LocalPostgres(f"{folder}/data", settings=_FAST) as local,
    ):
        migrate.upgrade(local.url)
        yield local.url


def gather_statistics(url: str) -> None:
    """Tell the planner what is in the tables, as autovacuum does within a minute of a sync.

    Until then searches take a multiple of their usual time, and that would be measured.
    """
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    from registry.database import normalise_url, translated_errors

    address = normalise_url(url)
    engine = create_engine(address, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with translated_errors(address), engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE")


@contextmanager
def _database_on(given: str) -> Generator[str]:
    from psycopg import sql
    from sqlalchemy import create_engine
    from sqlalchemy.exc import ProgrammingError
    from sqlalchemy.pool import NullPool

    from registry.database import normalise_url, translated_errors

    address = normalise_url(given)
    name = f"toolrag_eval_{uuid.uuid4().hex[:12]}"
    engine = create_engine(address, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    identifier = sql.Identifier(name).as_string()
    with translated_errors(address):
        try:
            with engine.connect() as connection:
                connection.exec_driver_sql(f"CREATE DATABASE {identifier}")
        except ProgrammingError as error:
            raise CliError(
                f"The given server makes no scratch database: {str(error.orig).splitlines()[0]}. "
                "Give the user the right CREATEDB, or leave --database-url out and unset "
                "TOOLRAG_DATABASE_URL to use an embedded server.",
                exit_code=DATABASE,
            ) from error
    try:
        query = {key: value for key, value in address.query.items() if key != "dbname"}
        yield address.set(database=name, query=query).render_as_string(hide_password=False)
    finally:
        with translated_errors(address), engine.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {identifier} WITH (FORCE)")
