"""The tool registry, async: the same methods as `ToolRegistry`, to be awaited."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from langchain_core.embeddings import Embeddings
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import AsyncConnection

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
from registry.database import create_registry_engine_async, translated_errors
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

__all__ = ["AsyncToolRegistry"]

T = TypeVar("T")
_log = logging.getLogger(__name__)
_Steps = Embed | Execute | Reuse | Write | MarkSynced | Deactivate


class AsyncToolRegistry(RegistryBase):
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
        self._engine = create_registry_engine_async(self._url, self.settings)
        self._search_engine = (
            self._engine
            if self._replica_url is None
            else create_registry_engine_async(self._replica_url, self.settings)
        )
        self._open_lock = asyncio.Lock()
        self._is_open = False
        self._schema_fits = False

    async def open(self) -> Self:
        """Check the database; does nothing when that was done before.

        Raises:
            RegistryUnavailableError: The server does not answer.
            SchemaVersionError: The schema is absent, older or newer.
            EmbeddingModelMismatchError: The vectors are of another embedding model.
        """
        await self._check_schema()
        async with self._open_lock:
            if not self._is_open:
                async with self._connection() as connection:
                    self._accept_model(
                        (await connection.execute(statements.active_model())).one_or_none()
                    )
                self._is_open = True
        return self

    async def _check_schema(self) -> None:
        """Check the schema alone: what embeds nothing works whatever model is configured."""
        self._check_not_closed()
        if not self._schema_fits:
            async with self._connection() as connection:
                check_revision(await connection.run_sync(read_revision))
            self._schema_fits = True

    async def close(self) -> None:
        """Close every connection; the registry cannot be used afterwards."""
        self._closed = True
        await self._engine.dispose()
        await self._search_engine.dispose()

    async def __aenter__(self) -> Self:
        try:
            return await self.open()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # ------------------------------------------------------------ search

    async def search(
        self, query: str, *, k: int = 5, threshold: float | None = None
    ) -> list[ToolHit]:
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
        await self.open()
        needed = self._checked_threshold(k, threshold)
        vector = await self._embedder.aembed_query(query)
        async with self._search_connection() as connection:
            await self._know_model(connection)
            if self._model is None:
                return []
            await connection.execute(self._search_settings(k))
            fast, _ = self._search_statements()
            rows = (await connection.execute(fast, self._search_parameters(vector, k))).all()
            if not rows:
                self._check_model_is_kept(
                    (await connection.execute(statements.list_models())).all()
                )
        return self._hits(rows, needed)

    async def as_vector_store(self) -> PGVectorStore:
        """Return the active tools of this namespace as a read-only LangChain vector store.

        For other LangChain code; our own search is faster and exact about filters.
        """
        from langchain_postgres import PGVectorStore

        from registry.vector_store import vector_store_arguments

        await self.open()
        async with self._connection() as connection:
            schema = await connection.scalar(statements.current_schema())
        return await PGVectorStore.create(
            **vector_store_arguments(self._url, self._embedder, self.namespace, schema=schema)
        )

    # ------------------------------------------------------------ tools

    async def get(self, tool_name: str) -> ToolRecord:
        """Return a registered tool, active or not.

        Raises:
            ToolNotFoundError: Not registered in this namespace; the nearest names are given.
        """
        await self._check_schema()
        async with self._connection() as connection:
            return await self._get(connection, tool_name)

    async def list_tools(self, *, include_inactive: bool = False) -> list[ToolRecord]:
        """Return the registered tools in name order."""
        await self._check_schema()
        async with self._connection() as connection:
            rows = (
                await connection.execute(
                    statements.list_tools(self.namespace, include_inactive=include_inactive)
                )
            ).all()
        return [statements.tool_record(row) for row in rows]

    async def active_states(self, names: Iterable[str]) -> dict[str, bool]:
        """Return whether tools are active; names that are not registered are absent."""
        await self._check_schema()
        async with self._connection() as connection:
            rows = (await connection.execute(statements.active_states(self.namespace, names))).all()
        return {row.tool_name: row.is_active for row in rows}

    async def sync(
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
        plan = await self.plan(tools, origin=origin, overwrite_edits=overwrite_edits)
        if not plan.changes_something and (missing == "report" or not plan.missing):
            report = await self._drive(sync_steps(plan, batch_size=1), Work())
        else:
            async with self._lease(f"sync:{self.namespace}", wait=True) as lease:
                steps = sync_steps(
                    await self.plan(tools, origin=origin, overwrite_edits=overwrite_edits),
                    batch_size=self._embedder.batch_size,
                    missing=missing,
                    on_progress=on_progress,
                )
                report = await self._drive(steps, Work(changed_by=changed_by, lease=lease))
        return replace(report, notes=await self._ensure_index(changed=report.embedded))

    async def plan(
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
        await self.open()
        async with self._connection() as connection:
            await self._know_model(connection)
            model_id = self._model[0] if self._model else None
            rows = (
                await connection.execute(statements.current_tools(self.namespace, model_id))
            ).all()
        current = dict(map(statements.current_tool, rows))
        return plan_sync(specs, current, refused=refused, overwrite_edits=overwrite_edits)

    async def update_tool(
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
        return await self._change(
            tool_name,
            lambda record: changed_spec(record.spec, changes),
            change="updated",
            expected_version=expected_version,
            changed_by=changed_by,
        )

    async def activate(self, tool_name: str, *, changed_by: str = "") -> None:
        """Offer a tool again, from the next search of every process on.

        Raises:
            ToolNotFoundError: Not registered in this namespace.
        """
        await self._set_active(tool_name, is_active=True, changed_by=changed_by)

    async def deactivate(self, tool_name: str, *, changed_by: str = "") -> None:
        """Stop offering a tool, from the next search and call of every process on.

        Raises:
            ToolNotFoundError: Not registered in this namespace.
        """
        await self._set_active(tool_name, is_active=False, changed_by=changed_by)

    async def history(self, tool_name: str) -> list[ToolVersion]:
        """Return every version of a tool, newest first.

        Raises:
            ToolNotFoundError: Never registered in this namespace, or purged.
        """
        await self._check_schema()
        async with self._connection() as connection:
            return await self._history(connection, tool_name)

    async def diff(
        self, tool_name: str, before: int, after: int | None = None
    ) -> list[FieldChange]:
        """Return the fields that differ between two versions, in a fixed order.

        Args:
            tool_name: Model-facing name.
            before: Version to compare from.
            after: Version to compare to; the newest when not given.

        Raises:
            ToolNotFoundError: Never registered in this namespace, or purged.
            VersionNotFoundError: The tool has no such version.
        """
        versions = await self.history(tool_name)
        return diff_versions(
            version_of(versions, before),
            versions[0] if after is None else version_of(versions, after),
        )

    async def rollback(
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
        await self.open()
        async with self._connection() as connection:
            spec = version_of(await self._history(connection, tool_name), version).spec
        return await self._change(
            tool_name,
            lambda record: spec,
            change=f"rolled back to {version}",
            expected_version=expected_version,
            changed_by=changed_by,
        )

    async def purge(self, tool_name: str, *, changed_by: str = "") -> None:
        """Remove a tool for good: its row, its vectors and every text in its history.

        For privacy; to retire a tool, deactivate it. One row stays that says a tool of this name
        was purged, when and by whom.

        Raises:
            ToolNotFoundError: Not registered in this namespace.
        """
        await self._check_schema()
        async with self._connection() as connection:
            deleted = (
                await connection.execute(statements.delete_tool(self.namespace, tool_name))
            ).one_or_none()
            if deleted is None:
                names = (await connection.scalars(statements.tool_names(self.namespace))).all()
                raise self._not_found(tool_name, names)
            versions = (
                await connection.execute(statements.delete_history(self.namespace, tool_name))
            ).all()
            await connection.execute(
                statements.delete_archived_vectors(self._hashes_of(tool_name, versions))
            )
            await connection.execute(
                statements.record_purge(
                    deleted.id, self.namespace, tool_name, version=deleted.version + 1
                ),
                {"changed_by": changed_by},
            )

    async def validate(self, toolset: Toolset) -> ValidationReport:
        """Compare the registry with the code of this process.

        Returns:
            What does not fit, each with what to do: registered but not in code, in code but not
            registered, text or schema that differ, tools without a vector of their text, a
            schema or an embedding model that is not this release's. No finding: all is well.

        Raises:
            RegistryUnavailableError: The database does not answer.
        """
        self._check_not_closed()
        async with self._connection() as connection:
            revision = await connection.run_sync(read_revision)
            if (problem := schema_report(revision)) is not None:
                return problem
            model = (await connection.execute(statements.active_model())).one_or_none()
            rows = (
                await connection.execute(
                    statements.list_tools(self.namespace, include_inactive=True)
                )
            ).all()
            lacking = (
                await connection.execute(statements.tools_without_vector(model.id if model else 0))
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

    async def embedding_models(self) -> list[EmbeddingModelRecord]:
        """Return every set of vectors, newest first; needs no particular model configured."""
        self._check_not_closed()
        async with self._connection() as connection:
            check_revision(await connection.run_sync(read_revision))
            return [
                statements.model_record(row)
                for row in (await connection.execute(statements.list_models())).all()
            ]

    async def build_embeddings(
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
        await self.embedding_models()  # the schema's revision fits
        async with self._lease("embeddings", wait=False) as lease:
            steps = build_steps(self._embedder, rebuild=rebuild, on_progress=on_progress)
            return await self._drive(steps, Work(lease=lease))

    async def compare_embeddings(
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
        models = await self.embedding_models()
        new = model_to_switch_to(models, self._embedder)
        old = self._serving(models, serving)
        before = [await self._names(old, await serving.aembed_query(q.text), k) for q in questions]
        after = [
            await self._names(new, await self._embedder.aembed_query(q.text), k) for q in questions
        ]
        return comparison(questions, before, after, k=k)

    async def switch_embeddings(self) -> EmbeddingModelRecord:
        """Let the set that this registry's model built serve searches, in one transaction.

        A few tools that changed since the build are embedded first. The old set stays, and
        processes that started on it go on answering from it.

        Raises:
            ConfigurationError: Nothing was built.
            RegistryError: The build is not complete; building again embeds what lacks.
            RegistryBusyError: Another process is building or switching.
        """
        while True:
            record = model_to_switch_to(await self.embedding_models(), self._embedder)
            lacking = await self._switch(record)
            if not lacking:
                return await self._switched(record)
            # A few were changed since the build; more than that is a build that is not done.
            if len(lacking) > self._embedder.batch_size:
                raise self._incomplete(record, lacking)
            if (await self.build_embeddings()).failed:
                raise self._incomplete(record, lacking)

    async def revert_embeddings(self) -> EmbeddingModelRecord:
        """Let the set that served before serve again, at once; needs no model configured.

        Raises:
            ConfigurationError: There is no earlier set.
            RegistryError: Tools changed since; `build_embeddings` with that model embeds those.
        """
        record = model_to_revert_to(await self.embedding_models())
        if lacking := await self._switch(record):
            raise self._incomplete(record, lacking)
        return await self._switched(record)

    async def prune_embeddings(self, model_id: int | None = None) -> list[EmbeddingModelRecord]:
        """Remove sets of vectors that do not serve: one by id, or all that served before.

        Raises:
            ConfigurationError: No set has that id, or it serves searches.
        """
        removed = models_to_prune(await self.embedding_models(), model_id)
        for record in removed:
            async with self._connection() as connection:
                await connection.execute(statements.delete_model(record.id))
            async with self._autocommit_connection() as connection:
                await connection.execute(statements.drop_index(record.id))
        return removed

    # ------------------------------------------------------------ how it is done

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[AsyncConnection]:
        """One transaction: committed at the end, rolled back on an error; driver errors are ours.

        Reads are committed as well: a rollback makes psycopg forget its prepared statements.
        """
        with translated_errors(self._url):
            async with self._engine.begin() as connection:
                await connection.execute(self._statement_timeout)
                yield connection

    @asynccontextmanager
    async def _search_connection(self) -> AsyncGenerator[AsyncConnection]:
        """One transaction on the replica, or on the database itself where there is none."""
        with translated_errors(self._replica_url or self._url):
            async with self._search_engine.begin() as connection:
                yield connection

    @asynccontextmanager
    async def _autocommit_connection(self) -> AsyncGenerator[AsyncConnection]:
        """Each statement on its own, for indexes that are made without blocking writers."""
        engine = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        with translated_errors(self._url):
            async with engine.connect() as connection:
                yield connection

    async def _get(self, connection: AsyncConnection, tool_name: str) -> ToolRecord:
        row = None
        if is_legal_name(tool_name):
            row = (
                await connection.execute(statements.get_tool(self.namespace, tool_name))
            ).one_or_none()
        if row is None:
            names = (await connection.scalars(statements.tool_names(self.namespace))).all()
            raise self._not_found(tool_name, names)
        return statements.tool_record(row)

    async def _history(self, connection: AsyncConnection, tool_name: str) -> list[ToolVersion]:
        rows = (
            await connection.execute(statements.tool_history_of(self.namespace, tool_name))
        ).all()
        names = (
            (await connection.scalars(statements.tool_names(self.namespace))).all()
            if not rows
            else ()
        )
        return history_of(rows, tool_name, namespace=self.namespace, known=names)

    async def _set_active(self, tool_name: str, *, is_active: bool, changed_by: str) -> None:
        await self._check_schema()
        async with self._connection() as connection:
            await self._get(connection, tool_name)
            await connection.execute(
                statements.set_active(self.namespace, tool_name, is_active=is_active),
                {
                    "change": "activated" if is_active else "deactivated",
                    "changed_by": changed_by,
                },
            )

    async def _change(
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
            record = await self.get(tool_name)
            if expected_version not in (None, record.version):
                raise VersionConflictError(
                    tool_name, expected=expected_version or 0, found=record.version
                )
            spec = new_spec(record)
            if spec == record.spec:
                return record
            vector = await self._vector_of(record.spec, spec)
            changed = Change(spec=spec, tool_id=record.id, row=False, vector=vector)
            async with self._connection() as connection:
                done = (
                    await connection.execute(
                        statements.change_tool(self.namespace, spec, seen_version=record.version),
                        {"change": change, "changed_by": changed_by},
                    )
                ).one_or_none()
                if done is not None:
                    await self._store_vectors(connection, Write(changes=[changed]), {})
                    return await self._get(connection, tool_name)

    async def _vector_of(self, before: ToolSpec, after: ToolSpec) -> str | None:
        """Return the vector of a changed text; None where the text stays as it was."""
        digest = text_hash(after)
        if digest == text_hash(before):
            return None
        known = await self._answer(Reuse(hashes=[digest]), Work())
        if digest in known:
            return known[digest]
        (vector,) = await self._embedder.aembed_documents([embedding_text(after)])
        return vector

    async def _drive(self, steps: Generator[_Steps, Any, T], work: Work) -> T:
        """Do what a generator of steps asks for, one at a time, and return its report."""
        try:
            step = next(steps)
            while True:
                try:
                    answer = await self._answer(step, work)
                except EmbeddingError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return end.value

    async def _answer(self, step: _Steps, work: Work) -> Any:
        if isinstance(step, Embed):
            return await self._embedder.aembed_documents(step.texts)
        if isinstance(step, Write):
            return await self._write(step, work)
        async with self._connection() as connection:
            if isinstance(step, Reuse):
                await self._know_model(connection)
                if self._model is None:
                    return {}
                rows = await connection.execute(
                    statements.known_vectors(self._model[0], step.hashes)
                )
                return {row.source_hash: row.vector for row in rows}
            if isinstance(step, MarkSynced):
                await connection.execute(statements.mark_synced(self.namespace, step.hashes))
                return None
            if isinstance(step, Deactivate):
                for tool_name in step.tool_names:
                    await connection.execute(
                        statements.set_active(self.namespace, tool_name, is_active=False),
                        {"change": "deactivated: not in code", "changed_by": work.changed_by},
                    )
                return None
            await self._prolong(connection, work)
            answer: Any = None
            for statement, parameters in step.statements:
                result = await connection.execute(statement, parameters)
                answer = result.all() if result.returns_rows else None
            return answer

    async def _write(self, step: Write, work: Work) -> Sequence[str]:
        """Store changes in one transaction; return the names that somebody else had changed."""
        async with self._connection() as connection:
            await self._prolong(connection, work)
            await self._hold_model(connection)
            rows = step.rows
            written = (
                (
                    await connection.execute(
                        statements.write_tools(),
                        {
                            "namespace": self.namespace,
                            "rows": rows,
                            "change": "synced",
                            "changed_by": work.changed_by,
                        },
                    )
                ).all()
                if rows
                else []
            )
            ids = {row.tool_name: row.tool_id for row in written}
            skipped = [row["tool_name"] for row in rows if row["tool_name"] not in ids]
            conflicts: list[str] = []
            if skipped:
                hashes = {row["tool_name"]: row["content_hash"] for row in rows}
                stored = (
                    await connection.execute(statements.content_hashes(self.namespace, skipped))
                ).all()
                same = {r.tool_name: r.id for r in stored if r.content_hash == hashes[r.tool_name]}
                ids |= same
                conflicts = [name for name in skipped if name not in same]
            await self._store_vectors(connection, step, ids)
        return conflicts

    async def _store_vectors(
        self, connection: AsyncConnection, step: Write, ids: dict[str, Any]
    ) -> None:
        arrays = step.arrays(ids)
        if arrays["ids"]:
            await self._hold_model(connection)
            assert self._model is not None
            parameters = {"model_id": self._model[0], **arrays}
            await connection.execute(statements.archive_vectors(), parameters)
            await connection.execute(statements.store_vectors(), parameters)

    async def _know_model(self, connection: AsyncConnection) -> None:
        """Learn the stored model, which may have been registered since this one was opened."""
        if self._model is None:
            self._accept_model((await connection.execute(statements.active_model())).one_or_none())

    async def _hold_model(self, connection: AsyncConnection) -> None:
        """Register the model where there is none; keep it from being switched meanwhile."""
        # Tables before the model, the order in which a switch takes them: else a deadlock.
        await connection.execute(statements.lock_for_writing())
        if self._model is None and self._embedder.dimensions is not None:
            await connection.execute(statements.add_model(self._embedder.identity, state="active"))
        row = (await connection.execute(statements.active_model(locked=True))).one_or_none()
        self._accept_model_for_writing(row)

    @asynccontextmanager
    async def _lease(self, name: str, *, wait: bool) -> AsyncGenerator[Lease]:
        """Be the only process that does something; a killed one's lease runs out."""
        lease = Lease(name=name, seconds=round(self.settings.lease_s))
        waiting = Waiting(name, settings=self.settings, wait=wait)
        while True:
            async with self._connection() as connection:
                taken = (await connection.execute(lease.take)).one_or_none()
            if taken is not None:
                break
            pause_s = waiting.pause_s()
            _log.info("lease_wait", extra={"lease": name, "waited_s": waiting.waited_s})
            await asyncio.sleep(pause_s)
        try:
            yield lease
        finally:
            # A lease that cannot be given back runs out; what ended the work is what matters.
            with suppress(RegistryError):
                async with self._connection() as connection:
                    await connection.execute(lease.release)

    async def _prolong(self, connection: AsyncConnection, work: Work) -> None:
        if work.lease is None:
            return
        if (await connection.execute(work.lease.take)).one_or_none() is None:
            raise RegistryBusyError(
                f"Another process took {work.lease.name!r} over, because this one was silent for "
                f"more than {work.lease.seconds} s. What was stored stays; run this again."
            )

    async def _switch(self, record: EmbeddingModelRecord) -> Sequence[AnyRow]:
        """Let a set serve; return the tools it lacks a vector of, in which case nothing changed."""
        # Writers wait while this transaction looks for tools without a vector, and switches.
        async with self._lease("embeddings", wait=False), self._connection() as connection:
            await connection.execute(statements.lock_tools())
            await connection.execute(statements.retire_active_model(record.id))
            if (
                await connection.execute(statements.activate_model(record.id))
            ).one_or_none() is not None:
                return []
            return (await connection.execute(statements.tools_without_vector(record.id))).all()

    async def _switched(self, record: EmbeddingModelRecord) -> EmbeddingModelRecord:
        self._is_open, self._model = False, None
        models = await self.embedding_models()
        return next(found for found in models if found.id == record.id)

    async def _names(self, record: EmbeddingModelRecord, vector: str, k: int) -> set[str]:
        statement = statements.nearest_tools_exactly(record.id, record.model.dimensions)
        async with self._connection() as connection:
            rows = (await connection.execute(statement, self._search_parameters(vector, k))).all()
        return {row.tool_name for row in rows}

    async def _ensure_index(self, *, changed: int) -> list[str]:
        """Make or mend the model's index where there are vectors enough; return notes."""
        if self._model is None:
            return []
        model_id, model = self._model
        async with self._autocommit_connection() as connection:
            try:
                if changed >= self.settings.index_min_tools:
                    for statement in statements.analyze():
                        await connection.execute(statement)
                if not self._wants_index(
                    await connection.scalar(statements.count_vectors(model_id))
                ):
                    return []
                if model.dimensions > statements.MAX_INDEXED_DIMENSIONS:
                    return [NO_INDEX_FOR_SIZE]
                state = (await connection.execute(statements.index_state(model_id))).one_or_none()
                if state is not None and state.is_valid and state.as_expected:
                    return []
                if not await connection.scalar(statements.try_index_lock(model_id)):
                    return [INDEX_BUSY]
                try:
                    await connection.execute(statements.drop_index(model_id))
                    await connection.execute(statements.create_index(model_id, model.dimensions))
                finally:
                    await connection.execute(statements.release_index_lock(model_id))
            except ProgrammingError as error:
                return [index_refused(error)]
        return []
