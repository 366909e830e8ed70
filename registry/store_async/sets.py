"""Sets of vectors: built beside the serving one, compared, switched to, reverted, pruned."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from registry import statements
from registry.base import Work
from registry.embedding import Embedder
from registry.embedding_migration import (
    build_steps,
    comparison,
    model_to_revert_to,
    model_to_switch_to,
    models_to_prune,
)
from registry.migrate import check_revision, read_revision
from registry.statements import AnyRow
from registry.store_async import _runtime
from registry.store_async.categories import AsyncCategories
from registry.types import (
    EmbeddingBuildReport,
    EmbeddingComparison,
    EmbeddingModelRecord,
    Question,
    SyncProgress,
)

__all__ = ["AsyncEmbeddingSets"]


class AsyncEmbeddingSets(AsyncCategories):
    """The part of the registry that changes the embedding model under running searches."""

    async def embedding_models(self) -> list[EmbeddingModelRecord]:
        """Return every set of vectors, newest first; needs no particular model configured."""
        self._check_not_closed()
        async with self._connection() as connection:
            check_revision(await _runtime.run(connection, read_revision))
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
            rows = (
                await connection.execute(
                    statement, {"namespace": self.namespace, "vector_0": vector, "k": k}
                )
            ).all()
        return {row.tool_name for row in rows}
