"""What commands open: the database, the registry over it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from agent.cli.exit_codes import MODEL, CliError
from agent.cli.options import GlobalOptions
from agent.cli.output import Output
from registry.errors import ConfigurationError

if TYPE_CHECKING:
    from registry.embedding import Embedder
    from registry.local_postgres import LocalPostgres
    from registry.store import ToolRegistry

__all__ = ["migrated", "opened_database", "opened_registry", "prepared_registry", "starting"]


@contextmanager
def opened_registry(options: GlobalOptions, output: Output) -> Generator[ToolRegistry]:
    """Give the open registry that the options name.

    Raises:
        CliError: The embedding model cannot be used.
        ToolRAGError: The database cannot be used, or holds vectors of another model.
    """
    with prepared_registry(options, output) as registry:
        yield registry.open()


@contextmanager
def prepared_registry(options: GlobalOptions, output: Output) -> Generator[ToolRegistry]:
    """Give the registry that the options name before its checks; they belong to the caller.

    Raises:
        CliError: The embedding model cannot be used.
        ToolRAGError: The embedded server cannot be used.
    """
    from registry.store import ToolRegistry

    embedder = _embedder(options)
    with (
        opened_database(options, output) as url,
        closing(ToolRegistry(url, embeddings=embedder, settings=options.settings)) as registry,
    ):
        yield registry


@contextmanager
def opened_database(options: GlobalOptions, output: Output) -> Generator[str]:
    """Give the URL of the given database, or of the embedded one, started and migrated.

    A given database is never migrated: other programs may be using it.
    """
    if options.database_url is not None:
        yield options.database_url
        return
    from registry.local_postgres import LocalPostgres

    local = LocalPostgres(options.data_dir)
    with starting(local, output):
        yield migrated(local.url)


@contextmanager
def starting(local: LocalPostgres, output: Output) -> Generator[LocalPostgres]:
    """Start the embedded server for the time of a command, or attach to the one that runs."""
    if not local.data_dir.exists():
        output.note(f"Making the embedded PostgreSQL in {local.data_dir} (once) ...")
    with local:
        yield local


def migrated(url: str) -> str:
    """Return the URL once its database has the schema of this release."""
    from registry import migrate
    from registry.tables import SCHEMA_REVISION

    # Asked first: starting alembic takes longer than most commands.
    if migrate.current_revision(url) != SCHEMA_REVISION:
        migrate.upgrade(url)
    return url


def _embedder(options: GlobalOptions) -> Embedder:
    from registry.embedding import Embedder

    try:
        return Embedder.resolve(
            options.embedding_model,
            batch_size=options.settings.embedding_batch_size,
            cache_size=options.settings.query_cache_size,
        )
    except ConfigurationError as error:
        raise CliError(str(error), exit_code=MODEL) from error
