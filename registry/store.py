"""The tool registry, sync."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from langchain_core.embeddings import Embeddings
from sqlalchemy import Connection
from sqlalchemy.exc import ProgrammingError

from registry import statements
from registry.base import (
    INDEX_BUSY,
    NO_INDEX_FOR_SIZE,
    Lease,
    RegistryBase,
    Waiting,
    Work,
    index_refused,
)
from registry.changes import ToolChanges, changed_spec, diff_versions, history_of, version_of
from registry.database import create_registry_engine, translated_errors
from registry.embedding import Embedder
from registry.embedding_migration import (
    Execute,
    build_steps,
    comparison,
    model_to_revert_to,
    model_to_switch_to,
    models_to_prune,
)
from registry.errors import (
    EmbeddingError,
    RegistryBusyError,
    RegistryError,
    VersionConflictError,
)
from registry.migrate import check_revision, read_revision
from registry.settings import RegistrySettings
from registry.statements import AnyRow
from registry.sync import (
    Change,
    Deactivate,
    Embed,
    MarkSynced,
    Missing,
    Reuse,
    SyncPlan,
    Write,
    listed,
    plan_sync,
    specs_of,
    sync_steps,
)
from registry.text import embedding_text, is_legal_name, text_hash
from registry.toolset import ToolLike, Toolset
from registry.types import (
    EmbeddingBuildReport,
    EmbeddingComparison,
    EmbeddingModelRecord,
    FieldChange,
    Question,
    SyncProgress,
    SyncReport,
    ToolHit,
    ToolRecord,
    ToolSpec,
    ToolVersion,
)
from registry.validation import ValidationReport, schema_report, validation_report

if TYPE_CHECKING:
    from langchain_postgres import PGVectorStore

__all__ = ["ToolRegistry"]

T = TypeVar("T")
_log = logging.getLogger(__name__)
_Steps = Embed | Execute | Reuse | Write | MarkSynced | Deactivate


class ToolRegistry(RegistryBase):
    """Embedded tool descriptions in Postgres: registered, searched, changed, switched off.

    One object a process: it owns one connection pool, may be shared between threads (the async
    one: within one event loop), and holds no connection while it embeds. Making one does no I/O;
    `open` (or the first use) checks the schema and the embedding model.

    Args:
        url: `postgresql://user:password@host:5432/name`.
        embeddings: `builtin`, `<provider>:<model>`, any LangChain `Embeddings`, or an
            `Embedder` with a name of its own.
        replica_url: A read-only copy of the database for searches; it may lag behind. Its
            connections are a second pool.
        settings: Namespace, pool, time limits and search options.

    Raises:
        ConfigurationError: The URL, the embedding model or a setting cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        embeddings: str | Embeddings | Embedder = "builtin",
        replica_url: str | None = None,
        settings: RegistrySettings | None = None,
    ) -> None:
        super().__init__(url, embeddings=embeddings, replica_url=replica_url, settings=settings)
        self._engine = create_registry_engine(self._url, self.settings)
        self._search_engine = (
            self._engine
            if self._replica_url is None
            else create_registry_engine(self._replica_url, self.settings)
        )
        self._open_lock = threading.Lock()
        self._is_open = False
        self._schema_fits = False

    def open(self) -> Self:
        """Check the database; does nothing when that was done before.

        Raises:
            RegistryUnavailableError: The server does not answer.
            SchemaVersionError: The schema is absent, older or newer.
            EmbeddingModelMismatchError: The vectors are of another embedding model.
        """
        self._check_schema()
        with self._open_lock:
            if not self._is_open:
                with self._connection() as connection:
                    self._accept_model(connection.execute(statements.active_model()).one_or_none())
                self._is_open = True
        return self

    def _check_schema(self) -> None:
        """Check the schema alone: what embeds nothing works whatever model is configured."""
        self._check_not_closed()
        if not self._schema_fits:
            with self._connection() as connection:
                check_revision(read_revision(connection))
            self._schema_fits = True

    def close(self) -> None:
        """Close every connection; the registry cannot be used afterwards."""
        self._closed = True
        self._engine.dispose()
        self._search_engine.dispose()

    def __enter__(self) -> Self:
        try:
            return self.open()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ------------------------------------------------------------ search

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
            EmbeddingModelMismatchError: The registry's vectors were changed to another model and
                the old ones removed since this process started.
            RegistryUnavailableError: The database does not answer.
        """
        self.open()
        needed = self._checked_threshold(k, threshold)
        vector = self._embedder.embed_query(query)
        with self._search_connection() as connection:
            self._know_model(connection)
            if self._model is None:
                return []
            connection.execute(self._search_settings(k))
            fast, _ = self._search_statements()
            rows = connection.execute(fast, self._search_parameters(vector, k)).all()
            if not rows:
                self._check_model_is_kept(connection.execute(statements.list_models()).all())
        return self._hits(rows, needed)

    def as_vector_store(self) -> PGVectorStore:
        """Return the active tools of this namespace as a read-only LangChain vector store.

        For other LangChain code; our own search is faster and exact about filters.
        """
        from langchain_postgres import PGVectorStore

        from registry.vector_store import vector_store_arguments

        self.open()
        with self._connection() as connection:
            schema = connection.scalar(statements.current_schema())
        return PGVectorStore.create_sync(
            **vector_store_arguments(self._url, self._embedder, self.namespace, schema=schema)
        )

    # ------------------------------------------------------------ tools

    def get(self, tool_name: str) -> ToolRecord:
        """Return a registered tool, active or not.

        Raises:
            ToolNotFoundError: Not registered in this namespace; the nearest names are given.
        """
        self._check_schema()
        with self._connection() as connection:
            return self._get(connection, tool_name)

    def list_tools(self, *, include_inactive: bool = False) -> list[ToolRecord]:
        """Return the registered tools in name order."""
        self._check_schema()
        with self._connection() as connection:
            rows = connection.execute(
                statements.list_tools(self.namespace, include_inactive=include_inactive)
            ).all()
        return [statements.tool_record(row) for row in rows]

    def active_states(self, names: Iterable[str]) -> dict[str, bool]:
        """Return whether tools are active; names that are not registered are absent."""
        self._check_schema()
        with self._connection() as connection:
            rows = connection.execute(statements.active_states(self.namespace, names)).all()
        return {row.tool_name: row.is_active for row in rows}

    def sync(
        self,
        tools: Toolset | Iterable[ToolLike],
        *,
        origin: str = "code",
        missing: Missing = "report",
        overwrite_edits: bool = False,
        changed_by: str = "",
        on_progress: Callable[[SyncProgress], None] | None = None,
    ) -> SyncReport:
        """Register tools: embed what is new or changed, leave the rest as it is.

        Each batch is stored in a transaction of its own, so what was done stays done when a
        later batch fails; a tool that cannot be registered or embedded is in `failed`, with the
        reason, and blocks no other. Tools are never deleted, and switched-off ones stay off. A
        tool that was edited in the registry stays so until code changes. Of several processes
        that sync one namespace at once, one works and the others wait for it.

        Args:
            tools: A toolset, or LangChain tools, plain typed functions and specs.
            origin: Where tools that are not specs come from; a toolset knows its own.
            missing: Report tools that code no longer has, or switch them off (`deactivate`).
            overwrite_edits: Let code win over edits even where it did not change.
            changed_by: Who, for the history; the database user when empty.
            on_progress: Called after each embedding request.

        Raises:
            DuplicateToolError: Two tools have one name; nothing was written.
            RegistryBusyError: Another process's sync did not end in time.
            RegistryUnavailableError: The database went away; finished batches stay.
        """
        tools = tools if isinstance(tools, Toolset) else listed(tools)
        plan = self.plan(tools, origin=origin, overwrite_edits=overwrite_edits)
        if not plan.changes_something and (missing == "report" or not plan.missing):
            report = self._drive(sync_steps(plan, batch_size=1), Work())
        else:
            with self._lease(f"sync:{self.namespace}", wait=True) as lease:
                steps = sync_steps(
                    self.plan(tools, origin=origin, overwrite_edits=overwrite_edits),
                    batch_size=self._embedder.batch_size,
                    missing=missing,
                    on_progress=on_progress,
                )
                report = self._drive(steps, Work(changed_by=changed_by, lease=lease))
        return replace(report, notes=self._ensure_index(changed=report.embedded))

    def plan(
        self,
        tools: Toolset | Iterable[ToolLike],
        *,
        origin: str = "code",
        overwrite_edits: bool = False,
    ) -> SyncPlan:
        """Return what a sync would do, without doing it.

        Args:
            tools: As for `sync`.
            origin: As for `sync`.
            overwrite_edits: As for `sync`.

        Raises:
            DuplicateToolError: Two tools have one name.
            ConfigurationError: That is no list of tools.
            RegistryUnavailableError: The database does not answer.
        """
        specs, refused = specs_of(tools, origin=origin)
        self.open()
        with self._connection() as connection:
            self._know_model(connection)
            model_id = self._model[0] if self._model else None
            rows = connection.execute(statements.current_tools(self.namespace, model_id)).all()
        current = dict(map(statements.current_tool, rows))
        return plan_sync(specs, current, refused=refused, overwrite_edits=overwrite_edits)

    def update_tool(
        self,
        tool_name: str,
        *,
        expected_version: int | None = None,
        changed_by: str = "",
        **changes: Unpack[ToolChanges],
    ) -> ToolRecord:
        """Change a tool in the registry: version + 1, one embedding call if its text changes.

        The change holds until code changes the tool; then the next sync brings code's text, and
        this one is in the history.

        Args:
            tool_name: Model-facing name.
            expected_version: Refuse unless the tool still has this version.
            changed_by: Who, for the history; the database user when empty.
            **changes: New values of `description`, `display_name`, `category`, `examples`,
                `requires_approval` and `read_only`.

        Returns:
            The tool as it is now; unchanged where the values are what they were.

        Raises:
            ToolNotFoundError: Not registered in this namespace.
            InvalidToolError: The result would not be a valid tool.
            VersionConflictError: Somebody else changed it; nothing was changed.
            EmbeddingError: The new text could not be embedded; nothing was changed.
        """
        return self._change(
            tool_name,
            lambda record: changed_spec(record.spec, changes),
            change="updated",
            expected_version=expected_version,
            changed_by=changed_by,
        )

    def activate(self, tool_name: str, *, changed_by: str = "") -> None:
        """Offer a tool again, from the next search of every process on.

        Raises:
            ToolNotFoundError: Not registered in this namespace.
        """
        self._set_active(tool_name, is_active=True, changed_by=changed_by)

    def deactivate(self, tool_name: str, *, changed_by: str = "") -> None:
        """Stop offering a tool, from the next search and call of every process on.

        Raises:
            ToolNotFoundError: Not registered in this namespace.
        """
        self._set_active(tool_name, is_active=False, changed_by=changed_by)

    def history(self, tool_name: str) -> list[ToolVersion]:
        """Return every version of a tool, newest first.

        Raises:
            ToolNotFoundError: Never registered in this namespace, or purged.
        """
        self._check_schema()
        with self._connection() as connection:
            return self._history(connection, tool_name)

    def diff(self, tool_name: str, before: int, after: int | None = None) -> list[FieldChange]:
        """Return the fields that differ between two versions, in a fixed order.

        Args:
            tool_name: Model-facing name.
            before: Version to compare from.
            after: Version to compare to; the newest when not given.

        Raises:
            ToolNotFoundError: Never registered in this namespace, or purged.
            VersionNotFoundError: The tool has no such version.
        """
        versions = self.history(tool_name)
        return diff_versions(
            version_of(versions, before),
            versions[0] if after is None else version_of(versions, after),
        )

    def rollback(
        self,
        tool_name: str,
        version: int,
        *,
        expected_version: int | None = None,
        changed_by: str = "",
    ) -> ToolRecord:
        """Give a tool the content it had at a version: a new version, whose activity stays.

        The vector of the old text is reused; nothing is embedded where it is still there.

        Args:
            tool_name: Model-facing name.
            version: Version to go back to.
            expected_version: Refuse unless the tool still has this version.
            changed_by: Who, for the history; the database user when empty.

        Raises:
            ToolNotFoundError: Not registered in this namespace, or purged.
            VersionNotFoundError: The tool has no such version.
            VersionConflictError: Somebody else changed it; nothing was changed.
        """
        self.open()
        with self._connection() as connection:
            spec = version_of(self._history(connection, tool_name), version).spec
        return self._change(
            tool_name,
            lambda record: spec,
            change=f"rolled back to {version}",
            expected_version=expected_version,
            changed_by=changed_by,
        )

    def purge(self, tool_name: str, *, changed_by: str = "") -> None:
        """Remove a tool for good: its row, its vectors and every text in its history.

        For privacy; to retire a tool, deactivate it. One row stays that says a tool of this name
        was purged, when and by whom.

        Raises:
            ToolNotFoundError: Not registered in this namespace.
        """
        self._check_schema()
        with self._connection() as connection:
            deleted = connection.execute(
                statements.delete_tool(self.namespace, tool_name)
            ).one_or_none()
            if deleted is None:
                names = connection.scalars(statements.tool_names(self.namespace)).all()
                raise self._not_found(tool_name, names)
            versions = connection.execute(
                statements.delete_history(self.namespace, tool_name)
            ).all()
            connection.execute(
                statements.delete_archived_vectors(self._hashes_of(tool_name, versions))
            )
            connection.execute(
                statements.record_purge(
                    deleted.id, self.namespace, tool_name, version=deleted.version + 1
                ),
                {"changed_by": changed_by},
            )

    def validate(self, toolset: Toolset) -> ValidationReport:
        """Compare the registry with the code of this process.

        Returns:
            What does not fit, each with what to do: registered but not in code, in code but not
            registered, text or schema that differ, tools without a vector of their text, a
            schema or an embedding model that is not this release's. No finding: all is well.

        Raises:
            RegistryUnavailableError: The database does not answer.
        """
        self._check_not_closed()
        with self._connection() as connection:
            revision = read_revision(connection)
            if (problem := schema_report(revision)) is not None:
                return problem
            model = connection.execute(statements.active_model()).one_or_none()
            rows = connection.execute(
                statements.list_tools(self.namespace, include_inactive=True)
            ).all()
            lacking = connection.execute(
                statements.tools_without_vector(model.id if model else 0)
            ).all()
        return validation_report(
            toolset,
            records=[statements.tool_record(row) for row in rows],
            without_vector={
                spec.tool_name
                for _, namespace, spec in map(statements.lacking_row, lacking)
                if namespace == self.namespace
            },
            model=None if model is None else statements.model_of_row(model)[1],
            embedder=self._embedder,
        )

    # ------------------------------------------------------------ embedding models

    def embedding_models(self) -> list[EmbeddingModelRecord]:
        """Return every set of vectors, newest first; needs no particular model configured."""
        self._check_not_closed()
        with self._connection() as connection:
            check_revision(read_revision(connection))
            return [
                statements.model_record(row) for row in connection.execute(statements.list_models())
            ]

    def build_embeddings(
        self,
        *,
        rebuild: bool = False,
        on_progress: Callable[[SyncProgress], None] | None = None,
    ) -> EmbeddingBuildReport:
        """Make this registry's embedding model a set of vectors of all tools, of all namespaces.

        It stands beside the serving set, which goes on answering; `switch_embeddings` makes it
        serve. A run that was broken off is taken up where it stopped by calling again.

        Args:
            rebuild: Make a new set even of the model in use, with every text embedded anew.
            on_progress: Called after each embedding request.

        Raises:
            ConfigurationError: The model is in use already and no rebuild was asked for.
            EmbeddingError: Not even one text could be embedded to learn the dimensions.
            RegistryBusyError: Another process is building or switching.
            SchemaVersionError: The schema is absent, older or newer.
            RegistryUnavailableError: The database went away; what was embedded stays.
        """
        self.embedding_models()  # the schema's revision fits
        with self._lease("embeddings", wait=False) as lease:
            steps = build_steps(self._embedder, rebuild=rebuild, on_progress=on_progress)
            return self._drive(steps, Work(lease=lease))

    def compare_embeddings(
        self, questions: Sequence[Question], *, serving: Embedder, k: int = 5
    ) -> EmbeddingComparison:
        """Ask both the serving set and the one built by this registry's model, and compare.

        Args:
            questions: With their right tools where known, in this registry's namespace.
            serving: The embedding model of the serving set.
            k: Hits to look at, 1 to 1,000.

        Raises:
            ConfigurationError: No other set of this model was built, or `serving` does not serve.
            InvalidQueryError: A question is empty, or k out of range.
        """
        self._checked_threshold(k, None)
        models = self.embedding_models()
        new = model_to_switch_to(models, self._embedder)
        old = self._serving(models, serving)
        before = [self._names(old, serving.embed_query(q.text), k) for q in questions]
        after = [self._names(new, self._embedder.embed_query(q.text), k) for q in questions]
        return comparison(questions, before, after, k=k)

    def switch_embeddings(self) -> EmbeddingModelRecord:
        """Let the set that this registry's model built serve searches, in one transaction.

        A few tools that changed since the build are embedded first. The old set stays, and
        processes that started on it go on answering from it.

        Raises:
            ConfigurationError: Nothing was built.
            RegistryError: The build is not complete; building again embeds what lacks.
            RegistryBusyError: Another process is building or switching.
        """
        while True:
            record = model_to_switch_to(self.embedding_models(), self._embedder)
            lacking = self._switch(record)
            if not lacking:
                return self._switched(record)
            # A few were changed since the build; more than that is a build that is not done.
            if len(lacking) > self._embedder.batch_size:
                raise self._incomplete(record, lacking)
            if self.build_embeddings().failed:
                raise self._incomplete(record, lacking)

    def revert_embeddings(self) -> EmbeddingModelRecord:
        """Let the set that served before serve again, at once; needs no model configured.

        Raises:
            ConfigurationError: There is no earlier set.
            RegistryError: Tools changed since; `build_embeddings` with that model embeds those.
        """
        record = model_to_revert_to(self.embedding_models())
        if lacking := self._switch(record):
            raise self._incomplete(record, lacking)
        return self._switched(record)

    def prune_embeddings(self, model_id: int | None = None) -> list[EmbeddingModelRecord]:
        """Remove sets of vectors that do not serve: one by id, or all that served before.

        Raises:
            ConfigurationError: No set has that id, or it serves searches.
        """
        removed = models_to_prune(self.embedding_models(), model_id)
        for record in removed:
            with self._connection() as connection:
                connection.execute(statements.delete_model(record.id))
            with self._autocommit_connection() as connection:
                connection.execute(statements.drop_index(record.id))
        return removed

    # ------------------------------------------------------------ how it is done

    @contextmanager
    def _connection(self) -> Generator[Connection]:
        """One transaction: committed at the end, rolled back on an error; driver errors are ours.

        Reads are committed as well: a rollback makes psycopg forget its prepared statements.
        """
        with translated_errors(self._url), self._engine.begin() as connection:
            connection.execute(self._statement_timeout)
            yield connection

    @contextmanager
    def _search_connection(self) -> Generator[Connection]:
        """One transaction on the replica, or on the database itself where there is none."""
        with (
            translated_errors(self._replica_url or self._url),
            self._search_engine.begin() as connection,
        ):
            yield connection

    @contextmanager
    def _autocommit_connection(self) -> Generator[Connection]:
        """Each statement on its own, for indexes that are made without blocking writers."""
        engine = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        with translated_errors(self._url), engine.connect() as connection:
            yield connection

    def _get(self, connection: Connection, tool_name: str) -> ToolRecord:
        row = None
        if is_legal_name(tool_name):
            row = connection.execute(statements.get_tool(self.namespace, tool_name)).one_or_none()
        if row is None:
            names = connection.scalars(statements.tool_names(self.namespace)).all()
            raise self._not_found(tool_name, names)
        return statements.tool_record(row)

    def _history(self, connection: Connection, tool_name: str) -> list[ToolVersion]:
        rows = connection.execute(statements.tool_history_of(self.namespace, tool_name)).all()
        names = connection.scalars(statements.tool_names(self.namespace)).all() if not rows else ()
        return history_of(rows, tool_name, namespace=self.namespace, known=names)

    def _set_active(self, tool_name: str, *, is_active: bool, changed_by: str) -> None:
        self._check_schema()
        with self._connection() as connection:
            self._get(connection, tool_name)
            connection.execute(
                statements.set_active(self.namespace, tool_name, is_active=is_active),
                {
                    "change": "activated" if is_active else "deactivated",
                    "changed_by": changed_by,
                },
            )

    def _change(
        self,
        tool_name: str,
        new_spec: Callable[[ToolRecord], ToolSpec],
        *,
        change: str,
        expected_version: int | None,
        changed_by: str,
    ) -> ToolRecord:
        """Read, embed without holding a connection, write if nobody was faster; else again."""
        while True:
            record = self.get(tool_name)
            if expected_version not in (None, record.version):
                raise VersionConflictError(
                    tool_name, expected=expected_version or 0, found=record.version
                )
            spec = new_spec(record)
            if spec == record.spec:
                return record
            vector = self._vector_of(record.spec, spec)
            changed = Change(spec=spec, tool_id=record.id, row=False, vector=vector)
            with self._connection() as connection:
                done = connection.execute(
                    statements.change_tool(self.namespace, spec, seen_version=record.version),
                    {"change": change, "changed_by": changed_by},
                ).one_or_none()
                if done is not None:
                    self._store_vectors(connection, Write(changes=[changed]), {})
                    return self._get(connection, tool_name)

    def _vector_of(self, before: ToolSpec, after: ToolSpec) -> str | None:
        """Return the vector of a changed text; None where the text stays as it was."""
        digest = text_hash(after)
        if digest == text_hash(before):
            return None
        known = self._answer(Reuse(hashes=[digest]), Work())
        if digest in known:
            return known[digest]
        (vector,) = self._embedder.embed_documents([embedding_text(after)])
        return vector

    def _drive(self, steps: Generator[_Steps, Any, T], work: Work) -> T:
        """Do what a generator of steps asks for, one at a time, and return its report."""
        try:
            step = next(steps)
            while True:
                try:
                    answer = self._answer(step, work)
                except EmbeddingError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return end.value

    def _answer(self, step: _Steps, work: Work) -> Any:
        if isinstance(step, Embed):
            return self._embedder.embed_documents(step.texts)
        if isinstance(step, Write):
            return self._write(step, work)
        with self._connection() as connection:
            if isinstance(step, Reuse):
                self._know_model(connection)
                if self._model is None:
                    return {}
                rows = connection.execute(statements.known_vectors(self._model[0], step.hashes))
                return {row.source_hash: row.vector for row in rows}
            if isinstance(step, MarkSynced):
                connection.execute(statements.mark_synced(self.namespace, step.hashes))
                return None
            if isinstance(step, Deactivate):
                for tool_name in step.tool_names:
                    connection.execute(
                        statements.set_active(self.namespace, tool_name, is_active=False),
                        {"change": "deactivated: not in code", "changed_by": work.changed_by},
                    )
                return None
            self._prolong(connection, work)
            answer: Any = None
            for statement, parameters in step.statements:
                result = connection.execute(statement, parameters)
                answer = result.all() if result.returns_rows else None
            return answer

    def _write(self, step: Write, work: Work) -> Sequence[str]:
        """Store changes in one transaction; return the names that somebody else had changed."""
        with self._connection() as connection:
            self._prolong(connection, work)
            self._hold_model(connection)
            rows = step.rows
            written = (
                connection.execute(
                    statements.write_tools(),
                    {
                        "namespace": self.namespace,
                        "rows": rows,
                        "change": "synced",
                        "changed_by": work.changed_by,
                    },
                ).all()
                if rows
                else []
            )
            ids = {row.tool_name: row.tool_id for row in written}
            skipped = [row["tool_name"] for row in rows if row["tool_name"] not in ids]
            conflicts: list[str] = []
            if skipped:
                hashes = {row["tool_name"]: row["content_hash"] for row in rows}
                stored = connection.execute(
                    statements.content_hashes(self.namespace, skipped)
                ).all()
                same = {r.tool_name: r.id for r in stored if r.content_hash == hashes[r.tool_name]}
                ids |= same
                conflicts = [name for name in skipped if name not in same]
            self._store_vectors(connection, step, ids)
        return conflicts

    def _store_vectors(self, connection: Connection, step: Write, ids: dict[str, Any]) -> None:
        arrays = step.arrays(ids)
        if arrays["ids"]:
            self._hold_model(connection)
            assert self._model is not None
            parameters = {"model_id": self._model[0], **arrays}
            connection.execute(statements.archive_vectors(), parameters)
            connection.execute(statements.store_vectors(), parameters)

    def _know_model(self, connection: Connection) -> None:
        """Learn the stored model, which may have been registered since this one was opened."""
        if self._model is None:
            self._accept_model(connection.execute(statements.active_model()).one_or_none())

    def _hold_model(self, connection: Connection) -> None:
        """Register the model where there is none; keep it from being switched meanwhile."""
        # Tables before the model, the order in which a switch takes them: else a deadlock.
        connection.execute(statements.lock_for_writing())
        if self._model is None and self._embedder.dimensions is not None:
            connection.execute(statements.add_model(self._embedder.identity, state="active"))
        row = connection.execute(statements.active_model(locked=True)).one_or_none()
        self._accept_model_for_writing(row)

    @contextmanager
    def _lease(self, name: str, *, wait: bool) -> Generator[Lease]:
        """Be the only process that does something; a killed one's lease runs out."""
        lease = Lease(name=name, seconds=round(self.settings.lease_s))
        waiting = Waiting(name, settings=self.settings, wait=wait)
        while True:
            with self._connection() as connection:
                taken = connection.execute(lease.take).one_or_none()
            if taken is not None:
                break
            pause_s = waiting.pause_s()
            _log.info("lease_wait", extra={"lease": name, "waited_s": waiting.waited_s})
            time.sleep(pause_s)
        try:
            yield lease
        finally:
            # A lease that cannot be given back runs out; what ended the work is what matters.
            with suppress(RegistryError), self._connection() as connection:
                connection.execute(lease.release)

    def _prolong(self, connection: Connection, work: Work) -> None:
        if work.lease is None:
            return
        if connection.execute(work.lease.take).one_or_none() is None:
            raise RegistryBusyError(
                f"Another process took {work.lease.name!r} over, because this one was silent for "
                f"more than {work.lease.seconds} s. What was stored stays; run this again."
            )

    def _switch(self, record: EmbeddingModelRecord) -> Sequence[AnyRow]:
        """Let a set serve; return the tools it lacks a vector of, in which case nothing changed."""
        # Writers wait while this transaction looks for tools without a vector, and switches.
        with self._lease("embeddings", wait=False), self._connection() as connection:
            connection.execute(statements.lock_tools())
            connection.execute(statements.retire_active_model(record.id))
            if connection.execute(statements.activate_model(record.id)).one_or_none() is not None:
                return []
            return connection.execute(statements.tools_without_vector(record.id)).all()

    def _switched(self, record: EmbeddingModelRecord) -> EmbeddingModelRecord:
        self._is_open, self._model = False, None
        models = self.embedding_models()
        return next(found for found in models if found.id == record.id)

    def _names(self, record: EmbeddingModelRecord, vector: str, k: int) -> set[str]:
        statement = statements.nearest_tools_exactly(record.id, record.model.dimensions)
        with self._connection() as connection:
            rows = connection.execute(statement, self._search_parameters(vector, k)).all()
        return {row.tool_name for row in rows}

    def _ensure_index(self, *, changed: int) -> list[str]:
        """Make or mend the model's index where there are vectors enough; return notes."""
        if self._model is None:
            return []
        model_id, model = self._model
        with self._autocommit_connection() as connection:
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
