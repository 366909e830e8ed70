"""Sets of vectors: built beside the serving one, compared, switched to, reverted, pruned."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from registry import statements
from registry.base import SWITCH, Work
from registry.embedding import Embedder
from registry.embedding_migration import (
    PROBE,
    build_steps,
    catch_up_steps,
    comparison,
    label,
    model_to_revert_to,
    model_to_switch_to,
    models_to_prune,
)
from registry.errors import ConfigurationError
from registry.migrate import check_revision, read_revision
from registry.statements import AnyRow
from registry.store_async import _runtime
from registry.store_async._runtime import AsyncConnection
from registry.store_async.learning import AsyncLearning
from registry.types import (
    EmbeddingBuildReport,
    EmbeddingComparison,
    EmbeddingModelRecord,
    EmbeddingRevertReport,
    Question,
    SyncProgress,
)

__all__ = ["AsyncEmbeddingSets"]

_log = logging.getLogger(__name__)


class AsyncEmbeddingSets(AsyncLearning):
    """The part of the registry that changes the embedding model under running searches."""

    async def embedding_models(self) -> list[EmbeddingModelRecord]:
        """Return every set of vectors, newest first; needs no particular model configured."""
        self._check_not_closed()
        async with self._connection() as connection:
            check_revision(await _runtime.run(connection, read_revision))
            return await self._models(connection)

    async def build_embeddings(
        self,
        *,
        rebuild: bool = False,
        on_progress: Callable[[SyncProgress], None] | None = None,
    ) -> EmbeddingBuildReport:
        """Make this registry's embedding model a set of vectors of all tools, of all namespaces.

        It stands beside the serving set, which goes on answering; `switch_embeddings` makes it
        serve. A run that was broken off is taken up where it stopped by calling again. Of the model
        in use, what its set lacks after a revert is embedded.

        Args:
            rebuild: Make a new set even of the model in use, with every text embedded anew.
            on_progress: Called after each embedding request.

        Raises:
            ConfigurationError: The model is in use and lacks nothing, and no rebuild was asked for.
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
        self._check_search(k, None)
        new = await self._built()
        models = await self.embedding_models()
        old = self._serving(models, serving)
        before = [await self._names(old, await serving.aembed_query(q.text), k) for q in questions]
        after = [
            await self._names(new, await self._embedder.aembed_query(q.text), k) for q in questions
        ]
        async with self._connection() as connection:
            known = (await connection.scalars(statements.tool_names(self.namespace))).all()
        return comparison(questions, before, after, k=k, known=known)

    async def switch_embeddings(self) -> EmbeddingModelRecord:
        """Let the set that this registry's model built serve searches, in one transaction.

        What was written since the build is embedded first. Where others write faster than that,
        writers of every process wait for the end of one last pass, at most `lease_s`; searches go
        on. The old set stays, and processes that started on it go on answering from it.

        Returns:
            The set that serves. Where nothing was built since the last switch nothing happens, and
            it is the one that served before the call.

        Raises:
            ConfigurationError: Nothing was built.
            IncompleteEmbeddingsError: Some tools could not be embedded; nothing was switched.
            RegistryBusyError: Another process is building or switching.
        """
        record = await self._built()
        if record.state == "active":
            _log.info("embeddings_serve_already", extra={"set": record.id})
            return record
        async with self._lease("embeddings", wait=False) as lease:
            work = Work(lease=lease)
            lacking = await self._switch(record)
            if lacking:
                lacking = await self._caught_up(record, work)
            if lacking:
                async with self._lease(SWITCH, wait=True):
                    # Its lock is granted once those who did not see the lease yet have written.
                    lacking = await self._switch(record)
                    if lacking:
                        lacking = await self._caught_up(record, work)
        if lacking:
            raise self._incomplete(record, lacking)
        return await self._switched(record)

    async def revert_embeddings(self) -> EmbeddingRevertReport:
        """Let the set that served before serve again, at once; needs no model configured.

        Nothing is embedded and nobody waited for: what was written since is reported.

        Raises:
            ConfigurationError: There is no earlier set.
        """
        await self.embedding_models()  # the schema's revision fits
        async with self._connection() as connection:
            await connection.execute(statements.lock_tools())
            record = model_to_revert_to(await self._models(connection))
            await self._let_serve(connection, record)
            lacking = await self._lacking(connection, record)
        return EmbeddingRevertReport(
            serving=await self._switched(record),
            stale=[label(row) for row in lacking if row.is_stale],
            missing=[label(row) for row in lacking if not row.is_stale],
        )

    async def prune_embeddings(self, model_id: int | None = None) -> list[EmbeddingModelRecord]:
        """Remove sets of vectors that do not serve: one by id, or all that served before.

        Raises:
            ConfigurationError: No set has that id, or it serves searches.
            RegistryBusyError: Another process is building or switching.
        """
        await self.embedding_models()  # the schema's revision fits
        async with self._lease("embeddings", wait=False):
            async with self._connection() as connection:
                # Before a set is looked at: one that is being reverted to is not removed.
                await connection.execute(statements.lock_for_writing())
                chosen = models_to_prune(await self._models(connection), model_id)
                removed = [
                    record
                    for record in chosen
                    if (await connection.execute(statements.delete_model(record.id))).one_or_none()
                ]
            for record in removed:
                async with self._autocommit_connection() as connection:
                    await connection.execute(statements.drop_index(record.id))
        return removed

    async def _models(self, connection: AsyncConnection) -> list[EmbeddingModelRecord]:
        rows = (await connection.execute(statements.list_models())).all()
        return [statements.model_record(row) for row in rows]

    async def _built(self) -> EmbeddingModelRecord:
        """Return the set of this model that was built, or that serves; of its size and no other.

        Raises:
            ConfigurationError: There is none.
        """
        models = await self.embedding_models()
        record = model_to_switch_to(models, self._embedder)
        if self._embedder.dimensions is None:
            await self._embedder.aembed_documents([PROBE])
            record = model_to_switch_to(models, self._embedder)
        return record

    async def _caught_up(self, record: EmbeddingModelRecord, work: Work) -> Sequence[AnyRow]:
        """Embed what a set lacks, then let it serve; return what it lacks where it does not."""
        report = await self._drive(catch_up_steps(record, self._embedder), work)
        lacking = await self._switch(record)
        if lacking and report.failed:
            raise self._incomplete(record, lacking)
        return lacking

    async def _switch(self, record: EmbeddingModelRecord) -> Sequence[AnyRow]:
        """Let a set serve; return the tools it lacks a vector of, in which case nothing changed."""
        async with self._connection() as connection:
            # Writers wait while this transaction looks for tools without a vector, and switches.
            await connection.execute(statements.lock_tools())
            lacking = await self._lacking(connection, record)
            if not lacking:
                await self._let_serve(connection, record)
            return lacking

    async def _lacking(
        self, connection: AsyncConnection, record: EmbeddingModelRecord
    ) -> list[AnyRow]:
        """Return the active tools that a set has no vector of for their present text."""
        rows = (await connection.execute(statements.tools_without_vector(record.id))).all()
        return [row for row in rows if row.is_active]

    async def _let_serve(self, connection: AsyncConnection, record: EmbeddingModelRecord) -> None:
        await connection.execute(statements.retire_active_model(record.id))
        activated = await connection.execute(statements.activate_model(record.id))
        if activated.one_or_none() is None:
            raise ConfigurationError(f"Set {record.id} ({record.model}) was removed meanwhile.")

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
