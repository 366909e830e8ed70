"""The tool registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from registry import statements
from registry.base import Work
from registry.store_async import _runtime
from registry.store_async.sets import AsyncEmbeddingSets
from registry.sync import Missing, SyncPlan, listed, plan_sync, specs_of, sync_steps
from registry.toolset import ToolLike, Toolset
from registry.types import SyncProgress, SyncReport, ToolHit

if TYPE_CHECKING:
    from langchain_postgres import PGVectorStore

__all__ = ["AsyncToolRegistry"]


class AsyncToolRegistry(AsyncEmbeddingSets):
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

    async def search(
        self, query: str, *, k: int = 5, threshold: float | None = None
    ) -> list[ToolHit]:
        """Return the active tools that fit a question best, by meaning and by words, best first.

        Args:
            query: The question, in any language the embedding model knows.
            k: Most hits, 1 to 1,000.
            threshold: Relevance that a hit must reach, 0 (all) to 1; the embedding model's own
                when not given.

        Returns:
            At most k hits; fewer only when no more tools are registered or reach the threshold.
            Equal scores are in order of distance, then name.

        Raises:
            InvalidQueryError: Empty question, k or threshold out of range.
            EmbeddingError: The question could not be embedded.
            EmbeddingModelMismatchError: The registry's vectors were changed to another model and
                the old ones removed since this process started.
            RegistryUnavailableError: The database does not answer.
        """
        await self.open()
        needed = self._checked_threshold(k, threshold)
        parts = self._parts(query)
        vectors = await self._embedder.aembed_queries(parts)
        async with self._search_connection() as connection:
            await self._know_model(connection)
            if self._model is None:
                return []
            await _runtime.fetch(connection, self._search_settings(k))
            rows = await _runtime.fetch(
                connection,
                self._search_statement(len(parts)),
                self._search_parameters(parts, vectors, k),
            )
            if not rows:
                self._check_model_is_kept(
                    (await connection.execute(statements.list_models())).all()
                )
        return self._hits(rows, parts, k, needed)

    async def as_vector_store(self) -> PGVectorStore:
        """Return the active tools of this namespace as a read-only LangChain vector store.

        For other LangChain code; our own search is faster and exact about filters.
        """
        from registry.vector_store import vector_store_arguments

        await self.open()
        async with self._connection() as connection:
            schema = await connection.scalar(statements.current_schema())
        return await _runtime.create_vector_store(
            **vector_store_arguments(self._url, self._embedder, self.namespace, schema=schema)
        )

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
        changed = len(report.added) + len(report.updated) + len(report.deactivated)
        await self._ensure_terms(changed=changed)
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
