"""The tool registry, sync."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from langchain_core.embeddings import Embeddings
from sqlalchemy import Connection
from sqlalchemy.exc import ProgrammingError

from registry import statements
from registry.base import INDEX_BUSY, NO_INDEX_FOR_SIZE, RegistryBase, index_refused
from registry.database import create_registry_engine, translated_errors
from registry.embedding import Embedder
from registry.embedding_migration import Execute, migration_steps
from registry.errors import EmbeddingError
from registry.migrate import check_revision, read_revision
from registry.settings import RegistrySettings
from registry.sync import Embed, Write, specs_of, sync_steps
from registry.toolset import ToolLike, Toolset
from registry.types import EmbeddingMigrationReport, SyncProgress, SyncReport, ToolHit, ToolRecord

if TYPE_CHECKING:
    from langchain_postgres import PGVectorStore

__all__ = ["ToolRegistry"]

T = TypeVar("T")


class ToolRegistry(RegistryBase):
    """Embedded tool descriptions in Postgres: registered, searched, switched on and off.

    One object a process: it owns one connection pool, is safe to share between threads, and
    holds no connection while it embeds. Making one does no I/O; `open` (or the first use)
    checks the schema and the embedding model.

    Args:
        url: `postgresql://user:password@host:5432/name`.
        embeddings: `builtin`, `<provider>:<model>`, any LangChain `Embeddings`, or an
            `Embedder` with a name of its own.
        settings: Namespace, pool, time limits and search options.

    Raises:
        ConfigurationError: The URL, the embedding model or a setting cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        embeddings: str | Embeddings | Embedder = "builtin",
        settings: RegistrySettings | None = None,
    ) -> None:
        super().__init__(url, embeddings=embeddings, settings=settings)
        self._engine = create_registry_engine(self._url, self.settings)
        self._open_lock = threading.Lock()
        self._is_open = False

    def open(self) -> Self:
        """Check the database; does nothing when that was done before.

        Raises:
            RegistryUnavailableError: The server does not answer.
            SchemaVersionError: The schema is absent, older or newer.
            EmbeddingModelMismatchError: The vectors are of another embedding model.
        """
        self._check_not_closed()
        with self._open_lock:
            if not self._is_open:
                with self._connection() as connection:
                    check_revision(read_revision(connection))
                    self._accept_model(connection.execute(statements.active_model()).one_or_none())
                self._is_open = True
        return self

    def close(self) -> None:
        """Close every connection; the registry cannot be used afterwards."""
        self._closed = True
        self._engine.dispose()

    def __enter__(self) -> Self:
        try:
            return self.open()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc: object) -> None:
        self.close()

    def sync(
        self,
        tools: Toolset | Iterable[ToolLike],
        *,
        origin: str = "code",
        on_progress: Callable[[SyncProgress], None] | None = None,
    ) -> SyncReport:
        """Register tools: embed what is new or changed, leave the rest as it is.

        Each batch is stored in a transaction of its own, so what was done stays done when a
        later batch fails; a tool that cannot be registered or embedded is in `failed`, with the
        reason, and blocks no other. Tools are never deleted, and switched-off ones stay off.

        Args:
            tools: A toolset, or LangChain tools, plain typed functions and specs.
            origin: Where tools that are not specs come from; a toolset knows its own.
            on_progress: Called after each embedding request.

        Raises:
            DuplicateToolError: Two tools have one name; nothing was written.
            RegistryUnavailableError: The database went away; finished batches stay.
        """
        specs, refused = specs_of(tools, origin=origin)
        self.open()
        with self._connection() as connection:
            rows = connection.execute(
                statements.current_tools(self.namespace, self._model[0] if self._model else None)
            )
            current = dict(map(statements.current_tool, rows))
        report = self._drive(
            sync_steps(
                specs,
                current,
                refused=refused,
                batch_size=self._embedder.batch_size,
                on_progress=on_progress,
            )
        )
        return replace(report, notes=self._ensure_index(changed=report.embedded))

    def migrate_embeddings(
        self, *, on_progress: Callable[[SyncProgress], None] | None = None
    ) -> EmbeddingMigrationReport:
        """Make this registry's embedding model the one that serves searches, of all namespaces.

        Its vectors are made beside the serving ones, which go on answering; the switch is one
        transaction, made only when every tool has a new vector. A run that was broken off is
        taken up where it stopped by calling again.

        Args:
            on_progress: Called after each embedding request.

        Raises:
            ConfigurationError: The model is in use already.
            EmbeddingError: Not even one text could be embedded to learn the dimensions.
            SchemaVersionError: The schema is absent, older or newer.
            RegistryUnavailableError: The database went away; what was embedded stays.
        """
        self._check_not_closed()
        with self._connection() as connection:
            check_revision(read_revision(connection))
        report = self._drive(migration_steps(self._embedder, on_progress=on_progress))
        self._is_open = False
        if not report.switched:
            return report
        self.open()
        return replace(report, notes=self._ensure_index(changed=report.embedded))

    def search(self, query: str, *, k: int = 5, threshold: float | None = None) -> list[ToolHit]:
        """Return the active tools nearest to a question, best first.

        Args:
            query: The question, in any language the embedding model knows.
            k: Most hits, 1 to 1,000.
            threshold: Relevance that a hit must reach, 0 (all) to 1; the embedding model's own
                when not given.

        Returns:
            At most k hits; fewer only when no more tools are registered or reach the threshold.
            Equal distances are in name order.

        Raises:
            InvalidQueryError: Empty question, k or threshold out of range.
            EmbeddingError: The question could not be embedded.
            RegistryUnavailableError: The database does not answer.
        """
        self.open()
        needed = self._checked_threshold(k, threshold)
        vector = self._embedder.embed_query(query)
        with self._connection() as connection:
            if self._model is None:
                self._accept_model(connection.execute(statements.active_model()).one_or_none())
                if self._model is None:
                    return []
            fast, exact = self._search_statements()
            parameters = self._search_parameters(vector, k)
            connection.execute(self._search_settings(k))
            rows = connection.execute(fast, parameters).all()
            if len(rows) < k and self._has_index(connection):
                rows = connection.execute(exact, parameters).all()
        return self._hits(rows, needed)

    def get(self, tool_name: str) -> ToolRecord:
        """Return a registered tool, active or not.

        Raises:
            ToolNotFoundError: Not registered in this namespace; the nearest names are given.
        """
        self.open()
        with self._connection() as connection:
            row = connection.execute(statements.get_tool(self.namespace, tool_name)).one_or_none()
            if row is None:
                names = connection.scalars(statements.tool_names(self.namespace)).all()
                raise self._not_found(tool_name, names)
        return statements.tool_record(row)

    def list_tools(self, *, include_inactive: bool = False) -> list[ToolRecord]:
        """Return the registered tools in name order."""
        self.open()
        with self._connection() as connection:
            rows = connection.execute(
                statements.list_tools(self.namespace, include_inactive=include_inactive)
            ).all()
        return [statements.tool_record(row) for row in rows]

    def active_states(self, names: Iterable[str]) -> dict[str, bool]:
        """Return whether tools are active; names that are not registered are absent."""
        self.open()
        with self._connection() as connection:
            rows = connection.execute(statements.active_states(self.namespace, names)).all()
        return {row.tool_name: row.is_active for row in rows}

    def activate(self, tool_name: str) -> None:
        """Offer a tool again, from the next search of every process on.

        Raises:
            ToolNotFoundError: Not registered in this namespace.
        """
        self._set_active(tool_name, is_active=True)

    def deactivate(self, tool_name: str) -> None:
        """Stop offering a tool, from the next search and call of every process on.

        Raises:
            ToolNotFoundError: Not registered in this namespace.
        """
        self._set_active(tool_name, is_active=False)

    def as_vector_store(self) -> PGVectorStore:
        """Return the active tools of this namespace as a read-only LangChain vector store.

        For other LangChain code; our own search is faster and exact about filters.
        """
        from langchain_postgres import PGVectorStore

        from registry.vector_store import vector_store_arguments

        self.open()
        return PGVectorStore.create_sync(
            **vector_store_arguments(self._url, self._embedder, self.namespace)
        )

    @contextmanager
    def _connection(self) -> Generator[Connection]:
        """One transaction: committed at the end, rolled back on an error; driver errors are ours.

        Reads are committed as well: a rollback makes psycopg forget its prepared statements.
        """
        with translated_errors(self._url), self._engine.begin() as connection:
            yield connection

    def _set_active(self, tool_name: str, *, is_active: bool) -> None:
        self.open()
        with self._connection() as connection:
            found = connection.scalar(
                statements.set_active(self.namespace, tool_name, is_active=is_active)
            )
            if found is None:
                names = connection.scalars(statements.tool_names(self.namespace)).all()
                raise self._not_found(tool_name, names)

    def _drive(self, steps: Generator[Embed | Execute | Write, Any, T]) -> T:
        """Do what a generator of steps asks for, one at a time, and return its report."""
        try:
            step = next(steps)
            while True:
                try:
                    answer = self._answer(step)
                except EmbeddingError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return end.value

    def _answer(self, step: Embed | Execute | Write) -> Any:
        if isinstance(step, Embed):
            return self._embedder.embed_documents(step.texts)
        if isinstance(step, Write):
            return self._write(step)
        with self._connection() as connection:
            rows: Any = None
            for statement, parameters in step.statements:
                result = connection.execute(statement, parameters)
                rows = result.all() if result.returns_rows else None
        return rows

    def _write(self, step: Write) -> None:
        with self._connection() as connection:
            connection.execute(statements.upsert_tools(), step.rows(self.namespace))
            if step.vectors is not None:
                if self._model is None:
                    self._register_model(connection)
                assert self._model is not None
                connection.execute(
                    statements.upsert_vectors(),
                    {"namespace": self.namespace, "model_id": self._model[0], **step.arrays()},
                )

    def _register_model(self, connection: Connection) -> None:
        connection.execute(statements.add_model(self._embedder.identity, state="active"))
        self._accept_model(connection.execute(statements.active_model()).one_or_none())

    def _has_index(self, connection: Connection) -> bool:
        assert self._model is not None
        return connection.execute(statements.index_state(self._model[0])).one_or_none() is not None

    def _ensure_index(self, *, changed: int) -> list[str]:
        """Make or mend the model's index where there are vectors enough; return notes."""
        if self._model is None:
            return []
        model_id, model = self._model
        engine = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        with translated_errors(self._url), engine.connect() as connection:
            try:
                if changed >= self.settings.index_min_tools:
                    for statement in statements.analyze():
                        connection.execute(statement)
                if not self._wants_index(connection.scalar(statements.count_vectors(model_id))):
                    return []
                if model.dimensions > statements.MAX_INDEXED_DIMENSIONS:
                    return [NO_INDEX_FOR_SIZE]
                state = connection.execute(statements.index_state(model_id)).one_or_none()
                if state is not None and state.is_valid and state.as_expected:
                    return []
                if not connection.scalar(statements.try_index_lock(model_id)):
                    return [INDEX_BUSY]
                try:
                    connection.execute(statements.drop_index(model_id))
                    connection.execute(statements.create_index(model_id, model.dimensions))
                finally:
                    connection.execute(statements.release_index_lock(model_id))
            except ProgrammingError as error:
                return [index_refused(error)]
        return []
