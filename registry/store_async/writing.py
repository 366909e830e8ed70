"""Writing: what generators of steps ask for, changes of one tool, the vector index."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy.exc import OperationalError, ProgrammingError

from registry import statements
from registry.base import INDEX_BUSY, NO_INDEX_FOR_SIZE, Work, index_refused, out_of_shared_memory
from registry.embedding_migration import Execute
from registry.errors import EmbeddingError
from registry.store_async._runtime import AsyncConnection
from registry.store_async.connections import AsyncConnections
from registry.sync import Deactivate, Embed, Lacking, MarkSynced, Reuse, Write
from registry.text import text_hash
from registry.types import ToolSpec

__all__ = ["AsyncWriting"]

T = TypeVar("T")
_TERMS_BATCH = 500
_ANALYZED_FROM = 200  # without statistics the planner takes a few rows for a large table
_RECOUNT_FROM_SHARE = 50  # one tool in so many changed
_Steps = Embed | Execute | Reuse | Write | MarkSynced | Deactivate | Lacking

_log = logging.getLogger(__name__)


class AsyncWriting(AsyncConnections):
    """Stores tools and vectors; embeds without holding a connection."""

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
            return await self._embedded(step.texts, work)
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
            if isinstance(step, Lacking):
                await self._know_model(connection)
                model_id = self._model[0] if self._model else 0
                rows = (
                    await connection.execute(
                        statements.tools_to_mend(self.namespace, model_id, step.tool_names)
                    )
                ).all()
                found = [(statements.spec_row(row), row.text_hash) for row in rows]
                # A text composed by another release is its sync's to mend.
                return [
                    (tool_id, spec)
                    for (tool_id, spec), digest in found
                    if text_hash(spec) == digest
                ]
            if isinstance(step, Deactivate):
                for tool_name in step.tool_names:
                    changed = await connection.execute(
                        statements.set_active(self.namespace, tool_name, is_active=False),
                        {"change": statements.NOT_IN_CODE, "changed_by": work.changed_by},
                    )
                    await connection.execute(
                        statements.remove_terms(row.tool_id for row in changed)
                    )
                return None
            await self._prolong(connection, work)
            answer: Any = None
            for statement, parameters in step.statements:
                result = await connection.execute(statement, parameters)
                answer = result.all() if result.returns_rows else None
            return answer

    async def _embedded(self, texts: Sequence[str], work: Work) -> list[str]:
        began = time.monotonic()
        vectors = await self._embedder.aembed_documents(texts)
        took_s = time.monotonic() - began
        if work.lease is not None and took_s > work.lease.seconds:
            # Another process may have taken the work over meanwhile; both then pay for it.
            extra = {"lease": work.lease.name, "took_s": took_s, "lease_s": work.lease.seconds}
            _log.warning("embedding_outlasted_lease", extra=extra)
        return vectors

    async def _write(self, step: Write, work: Work) -> Sequence[str]:
        """Store changes in one transaction; return the names that somebody else had changed."""
        async with self._writing() as connection:
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
            specs = {change.spec.tool_name: change.spec for change in step.changes}
            await self._store_terms(
                connection, {row.tool_id: specs[row.tool_name] for row in written}
            )
        return conflicts

    async def _store_terms(
        self, connection: AsyncConnection, specs: Mapping[UUID, ToolSpec]
    ) -> None:
        """Store the words of tools, whose rows this transaction holds, instead of those before."""
        if specs:
            await connection.execute(statements.remove_terms(specs))
            await connection.execute(
                statements.store_terms(), {"rows": statements.term_rows(specs)}
            )

    async def _ensure_terms(self, *, changed: int) -> None:
        """Mend the words of tools that another release wrote, and count them where many changed."""
        while True:
            async with self._connection() as connection:
                stale = (
                    await connection.execute(
                        statements.stale_terms(self.namespace, limit=_TERMS_BATCH)
                    )
                ).all()
                specs = dict(map(statements.spec_row, stale))
                await self._store_terms(connection, specs)
                await connection.execute(statements.mark_terms(specs))
            changed += len(stale)
            if len(stale) < _TERMS_BATCH:
                break
        async with self._connection() as connection:
            size = (await connection.execute(statements.corpus_size(self.namespace))).one_or_none()
            if size is not None:  # many small syncs add up
                changed = max(changed, abs(size.active - size.tools))
            if size is None or changed * _RECOUNT_FROM_SHARE > size.tools:
                for statement in statements.count_corpus(self.namespace):
                    await connection.execute(statement)

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

    async def _hold_model(self, connection: AsyncConnection) -> None:
        """Register the model where there is none; keep it from being switched meanwhile.

        In a transaction of `_writing`, which holds the tables: first those, then the model, is
        the order in which a switch takes them.

        Raises:
            EmbeddingModelMismatchError: Searches were switched to another model since.
        """
        row = (await connection.execute(statements.active_model(locked=True))).one_or_none()
        if row is None and self._embedder.dimensions is not None:
            await connection.execute(statements.add_model(self._embedder.identity, state="active"))
            row = (await connection.execute(statements.active_model(locked=True))).one_or_none()
        # A newer set of the same model is as good: it is the one that others search and write.
        self._accept_model(row)

    async def _ensure_index(self, *, changed: int) -> list[str]:
        """Make or mend the model's index where there are vectors enough; return notes."""
        if self._model is None:
            return []
        model_id, model = self._model
        async with self._connection() as connection:
            if changed >= _ANALYZED_FROM:
                for statement in statements.analyze():
                    await connection.execute(statement)
            vectors = await connection.scalar(statements.count_vectors(model_id)) or 0
        if vectors < self.settings.index_min_tools:
            return []
        if model.dimensions > statements.MAX_INDEXED_DIMENSIONS:
            return [NO_INDEX_FOR_SIZE]
        # A transaction that touches no table: dropping an index waits for those that did.
        async with self._connection() as guard:
            if await self._has_index(guard, model_id):
                return []
            if not await guard.scalar(statements.try_index_lock(model_id)):
                return [INDEX_BUSY]
            if await self._has_index(guard, model_id):
                return []
            await guard.execute(statements.wait_in_transaction())
            return await self._make_index(model_id, model.dimensions, vectors=vectors)

    async def _has_index(self, connection: AsyncConnection, model_id: int) -> bool:
        state = (await connection.execute(statements.index_state(model_id))).one_or_none()
        return state is not None and state.is_valid and state.as_expected

    async def _make_index(self, model_id: int, dimensions: int, *, vectors: int) -> list[str]:
        create = statements.create_index(model_id, dimensions)
        async with self._autocommit_connection() as connection:
            await connection.execute(statements.set_index_memory(vectors, dimensions))
            try:
                await connection.execute(statements.drop_index(model_id))
                try:
                    await connection.execute(create)
                except OperationalError as error:
                    if not out_of_shared_memory(error):
                        raise
                    await connection.execute(statements.set_no_index_workers())
                    await connection.execute(statements.drop_index(model_id))
                    await connection.execute(create)
            except ProgrammingError as error:
                return [index_refused(error)]
        return []
