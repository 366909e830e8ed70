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

__all__ = [
    "embedder_of",
    "migrated",
    "opened_database",
    "opened_registry",
    "prepared_registry",
    "registry_without_model",
    "starting",
]


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
    with _registry_of(embedder_of(options), options, output) as registry:
        yield registry


@contextmanager
def registry_without_model(options: GlobalOptions, output: Output) -> Generator[ToolRegistry]:
    """Give a registry that embeds nothing, for what concerns stored vectors alone.

    So a missing key or package of a model never stands in the way of going back from it.
    """
    from langchain_core.embeddings import Embeddings

    from registry.embedding import Embedder

    class NoModel(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            raise NotImplementedError("this command embeds nothing")

        def embed_query(self, text: str) -> list[float]:
            raise NotImplementedError("this command embeds nothing")

    with _registry_of(Embedder(NoModel(), name="none"), options, output) as registry:
        yield registry


@contextmanager
def _registry_of(
    embedder: Embedder, options: GlobalOptions, output: Output
) -> Generator[ToolRegistry]:
    from registry.store import ToolRegistry

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
    """Start the embedded server, or attach to it; the last command that uses it ends it."""
    if not local.data_dir.exists():
        output.note(f"Making the embedded PostgreSQL in {local.data_dir} (once) ...")
    local.start(shared=True)
    try:
        yield local
    finally:
        local.stop()


def migrated(url: str) -> str:
    """Return the URL once its database has the schema of this release."""
    from registry import migrate
    from registry.tables import SCHEMA_REVISION

    # Asked first: starting alembic takes longer than most commands.
    if migrate.current_revision(url) != SCHEMA_REVISION:
        migrate.upgrade(url)
    return url


def embedder_of(options: GlobalOptions) -> Embedder:
    """Return the embedding model that the options name.

    Raises:
        CliError: It is unknown, or its package or key is missing.
    """
    from registry.embedding import Embedder

    try:
        return Embedder.resolve(
            options.embedding_model,
            batch_size=options.settings.embedding_batch_size,
            cache_size=options.settings.query_cache_size,
        )
    except ConfigurationError as error:
        raise CliError(str(error), exit_code=MODEL) from error
