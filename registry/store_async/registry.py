"""The tool registry."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING

from registry import statements
from registry.base import MAX_K, Work
from registry.embedding import Embedder
from registry.errors import ConfigurationError, InvalidQueryError
from registry.explanation import explanation
from registry.ranking import Candidates
from registry.reranking import document_of, reranked
from registry.settings import RegistrySettings
from registry.store_async import _runtime
from registry.store_async.scheduling import AsyncScheduling
from registry.strategy import (
    Plan,
    Strategy,
    StrategyLimits,
    choose,
    choose_hits,
    fallbacks_behind,
    hits_to_fetch,
    is_exempt,
)
from registry.sync import Missing, SyncPlan, listed, plan_sync, specs_of, sync_steps
from registry.toolset import ToolLike, Toolset
from registry.types import Explanation, SyncProgress, SyncReport, ToolHit, ToolSelection

if TYPE_CHECKING:
    from langchain_core.documents import BaseDocumentCompressor
    from langchain_core.embeddings import Embeddings
    from langchain_postgres import PGVectorStore

__all__ = ["AsyncToolRegistry"]

_log = logging.getLogger(__name__)


class AsyncToolRegistry(AsyncScheduling):
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
        reranker: A LangChain document compressor that orders the first hits anew, and may drop
            some. Where it fails, a search goes on with its own order.
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
        reranker: BaseDocumentCompressor | None = None,
        settings: RegistrySettings | None = None,
    ) -> None:
        super().__init__(url, embeddings=embeddings, replica_url=replica_url, settings=settings)
        if reranker is not None and not hasattr(reranker, "acompress_documents"):
            raise ConfigurationError(
                f"reranker is a {type(reranker).__name__}; give a LangChain BaseDocumentCompressor."
            )
        self._reranker = reranker

    async def search(
        self, query: str, *, k: int = 5, threshold: float | None = None
    ) -> list[ToolHit]:
        """Return the active tools that fit a question best, by meaning and by words, best first.

        Args:
            query: The question, in any language the embedding model knows. Of more than 8,000
                characters the first and last 4,000 are searched; the log says so.
            k: Most hits, 1 to 1,000.
            threshold: Relevance that a hit must reach, 0 (all) to 1; the embedding model's own
                when not given.

        Returns:
            At most k hits; fewer only when no more tools are registered or reach the threshold.
            `select` also says whether words decided alone, since the embedding model was away.
            Equal scores are in order of distance, then name; a reranker's order goes first.

        Raises:
            InvalidQueryError: Empty question, k or threshold out of range.
            EmbeddingError: The embedding model refused the question, or gave it no vector in
                time and words may not decide alone (`search_by_words_alone`, `word_weight`).
            EmbeddingModelMismatchError: The registry's vectors were changed to another model and
                the old ones removed since this process started.
            RegistryUnavailableError: The database does not answer.
        """
        found = await self.select(query, k=k, threshold=threshold, strategy="hybrid")
        return [hit for hit in found.hits if hit.relevance >= found.threshold]

    async def select(
        self,
        query: str,
        *,
        k: int = 5,
        threshold: float | None = None,
        strategy: Strategy = "auto",
        limits: StrategyLimits | None = None,
    ) -> ToolSelection:
        """Return the tools to offer for a question; of a small registry more than a search finds.

        Args:
            query: As for `search`.
            k: As for `search`; strategies that offer all, or whole categories, go beyond it.
            threshold: As for `search`.
            strategy: `auto` goes by the number of active tools: `all` offers every one, `routing`
                those of the question's categories and the best of the others, `retrieval` the
                best, `hybrid` the best, where the question's categories count too.
            limits: Sizes at which `auto` changes, and how much a route counts.

        Raises:
            ConfigurationError: There is no such strategy.
            InvalidQueryError: As for `search`, and the other errors of it.
        """
        limits = limits or StrategyLimits()
        self._check_search(k, threshold)
        await self.open()
        parts = self._parts(query)
        counted = MAX_K if strategy == "all" else limits.counted
        found = await self._candidates(
            parts, self._wanted(k, strategy), counted=counted, words_suffice=True
        )
        plan = self._plan(parts, found, strategy, limits)
        return await self._selected(parts, found, k, threshold, plan, limits)

    async def explain(
        self,
        query: str,
        tool_name: str,
        *,
        k: int = 5,
        threshold: float | None = None,
        strategy: Strategy = "hybrid",
    ) -> Explanation:
        """Return why a tool is offered for a question or is not, and what would change that.

        Args:
            query: As for `search`.
            tool_name: A registered tool, active or not.
            k: As for `search`.
            threshold: As for `search`.
            strategy: As for `select`.

        Raises:
            ToolNotFoundError: Not registered in this namespace.
            InvalidQueryError: As for `search`, and the other errors of it.
        """
        self._check_search(k, threshold)
        if not isinstance(tool_name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidQueryError(f"tool_name is {tool_name!r}; name the tool to explain.")
        await self.open()
        record = await self.get(tool_name)
        parts = self._parts(query)
        found = await self._candidates(
            parts, self._wanted(k, strategy), explained=tool_name, words_suffice=True
        )
        if not record.is_active:
            found = await self._with_words_of(record.spec, found, parts)
        # What is offered is decided without the tool where it is no candidate by itself.
        is_itself = record.is_active and not found.lacks_words(tool_name)
        is_seen = [is_itself or row["tool_name"] != tool_name for row in found.rows]
        seen = replace(found, rows=[*compress(found.rows, is_seen)])
        limits = StrategyLimits()
        plan = self._plan(parts, seen, strategy, limits)
        selection = await self._selected(parts, seen, k, threshold, plan, limits)
        own = next((row for row in found.rows if row["tool_name"] == tool_name), None)
        ranking = self._ranked(found, parts, len(found.rows), plan)
        feedback = 0.0 if own is None else own["description_distance"] - own["distance_0"]
        return explanation(
            parts[0],
            record,
            ranking=fallbacks_behind(plan, ranking, k=k, threshold=selection.threshold),
            selection=selection,
            k=k,
            feedback=feedback,
            has_reranker=self._reranker is not None,
            given_chars=len(query.strip()),
        )

    def _wanted(self, k: int, strategy: Strategy) -> int:
        """Return how many candidates of each kind a search asks for."""
        if strategy == "all":
            return MAX_K
        return k if self._reranker is None else max(k, self.settings.rerank_candidates)

    def _plan(
        self,
        parts: Sequence[str],
        found: Candidates,
        strategy: Strategy,
        limits: StrategyLimits,
    ) -> Plan:
        routed = self._router[1].route(parts[0])
        return choose(strategy, active_tools=found.active_tools, routed=routed, limits=limits)

    async def _selected(
        self,
        parts: Sequence[str],
        found: Candidates,
        k: int,
        threshold: float | None,
        plan: Plan,
        limits: StrategyLimits,
    ) -> ToolSelection:
        fetched = hits_to_fetch(plan, k=k, active_tools=found.active_tools, limits=limits)
        hits = self._ranked(found, parts, self._wanted(fetched, plan.strategy), plan)
        if plan.strategy != "all":
            hits = await self._reranked(parts[0], hits)
        threshold = self.threshold if threshold is None else threshold
        chosen = choose_hits(plan, fallbacks_behind(plan, hits, k=k, threshold=threshold), k=k)
        return ToolSelection(
            hits=tuple(chosen),
            exempt=frozenset(hit.tool_name for hit in chosen if is_exempt(plan, hit.category)),
            strategy=plan.strategy,
            categories=plan.categories,
            threshold=threshold,
            active_tools=found.active_tools,
            words_alone_reason=found.words_alone_reason,
        )

    async def _reranked(self, query: str, hits: list[ToolHit]) -> list[ToolHit]:
        if self._reranker is None or not hits:
            return hits
        given = hits[: self.settings.rerank_candidates]
        try:
            documents = [document_of(hit) for hit in given]
            returned = await self._reranker.acompress_documents(documents, query)
            ordered, passed_over = reranked(hits, given, returned)
        except Exception as error:  # anybody's code, and a search goes on without it
            _log.warning("reranker_failed", extra={"error": type(error).__name__}, exc_info=error)
            return hits
        if passed_over:
            _log.warning("reranker_answer_mended", extra={"passed_over": passed_over})
        if not returned:
            _log.warning("reranker_dropped_all", extra={"given": len(given)})
        return ordered

    async def as_vector_store(self) -> PGVectorStore:
        """Return the active tools of this namespace as a read-only LangChain vector store.

        For other LangChain code; our own search is faster, and knows words and fallback tools.

        A `filter` is langchain-postgres': keys are the columns of `tool_catalogue`. An unknown key
        or operator is an error. `None` matches no tool, under `$ne` neither; a number given as
        text is compared as the column's type says. No tool is in an empty list, and all of this
        namespace are outside it. No filter reaches another namespace.
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
            notes = await self._measure(report)
        else:
            async with self._lease(f"sync:{self.namespace}", wait=True) as lease:
                steps = sync_steps(
                    await self.plan(tools, origin=origin, overwrite_edits=overwrite_edits),
                    batch_size=self._embedder.batch_size,
                    missing=missing,
                    on_progress=on_progress,
                )
                report = await self._drive(steps, Work(changed_by=changed_by, lease=lease))
                # Within the lease: those that wait find it done.
                notes = await self._measure(report)
        notes += await self._ensure_index(changed=report.embedded)
        return replace(report, notes=[*report.notes, *notes])

    async def _measure(self, report: SyncReport) -> list[str]:
        """Bring the words and the relevance scale up to date; return notes."""
        changed = len(report.added) + len(report.updated) + len(report.deactivated)
        await self._ensure_terms(changed=changed)
        return await self._ensure_calibration()

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
