"""Searching: candidates from the database, and the relevance scale of a catalogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from registry import statements
from registry.anchors import ANCHORS
from registry.errors import EmbeddingError, RegistryBusyError, RegistryError
from registry.relevance import Calibration, null_evidence, spread_of
from registry.store_async import _runtime
from registry.store_async._runtime import AsyncConnection
from registry.store_async.sets import AsyncEmbeddingSets
from registry.types import CalibrationReport

__all__ = ["AsyncSearching"]

_CALIBRATED_FROM_TOOLS = 20
_STALE_SHARE = 0.2  # of the tools, that came or went since


class AsyncSearching(AsyncEmbeddingSets):
    """The part of the registry that asks the database what a question may be answered by."""

    async def calibrate(self) -> CalibrationReport:
        """Measure what relevance means with this embedding model and this catalogue; no labels.

        A sync does so by itself, from 20 tools on, when a fifth of them came or went, and when
        `learn` moved vectors since.

        Raises:
            RegistryError: Nothing is registered yet.
            EmbeddingError: The questions that it is measured with could not be embedded.
            RegistryUnavailableError: The database does not answer.
        """
        await self.open()
        tools, questions = (list(texts) for texts in zip(*ANCHORS, strict=True))
        tool_vectors = await self._embedder.aembed_documents(tools)
        question_vectors = await self._embedder.aembed_queries(questions)
        spread = spread_of(_rows(question_vectors), _rows(tool_vectors))
        first: list[float] = []
        for question in questions:
            rows = await self._candidates([question], 1)
            if not rows:
                raise RegistryError("Nothing is registered yet; sync tools before calibrating.")
            first.append(self._first_evidence(rows, [question], spread))
        by = Calibration(spread=spread, null=null_evidence(first))
        assert self._model is not None
        async with self._connection() as connection:
            counted = await connection.scalar(statements.corpus_size(self.namespace)) or 0
            version = await connection.scalar(
                statements.store_calibration(
                    self.namespace, self._model[0], by, tools=counted, calls=0
                )
            )
        self._calibration = by
        return CalibrationReport(
            spread=spread, null=by.null, zero=by.zero, tools=counted, calls=0, version=version or 1
        )

    async def _ensure_calibration(self) -> list[str]:
        """Calibrate where that was never done, or the catalogue has become another one since.

        Returns:
            A note where it could not be done: a sync does not fail for it.
        """
        if self._model is None or not self.settings.auto_calibrate:
            return []
        async with self._connection() as connection:
            state = (
                await connection.execute(
                    statements.calibration_state(self.namespace, self._model[0])
                )
            ).one_or_none()
        if state is None or state.tools < _CALIBRATED_FROM_TOOLS:
            return []
        known = state.calibrated
        same = known is not None and abs(state.tools - known) <= _STALE_SHARE * known
        if same and not state.moved:
            return []
        try:
            async with self._lease(f"calibrate:{self.namespace}", wait=False):
                await self.calibrate()
        except RegistryBusyError:
            return []  # another process is doing it
        except EmbeddingError as error:
            return [f"relevance was not calibrated ({error}); run `toolrag calibrate`"]
        return []

    async def _candidates(
        self, parts: Sequence[str], k: int, *, explained: str | None = None
    ) -> list[dict[str, Any]]:
        """Return what a question and its clauses may be answered by, in no order.

        Args:
            parts: The question, and its clauses.
            k: Most hits.
            explained: Name of a tool that is to be among them.
        """
        vectors = await self._embedder.aembed_queries(parts)
        parameters = {**self._search_parameters(parts, vectors, k), "explained": explained}
        async with self._search_connection() as connection:
            rows = await self._asked(
                connection, parameters, len(parts), k, on_replica=self._replica_url is not None
            )
        if rows is None:
            async with self._connection() as connection:
                rows = await self._asked(connection, parameters, len(parts), k, on_replica=False)
        return rows or []

    async def _asked(
        self,
        connection: AsyncConnection,
        parameters: Mapping[str, Any],
        parts: int,
        k: int,
        *,
        on_replica: bool,
    ) -> list[dict[str, Any]] | None:
        """Return the candidates; None where a replica lags behind a switch."""
        if self._model is None:
            await self._know_model(connection)
        if self._model is None:
            return []
        (settings,) = await _runtime.fetch(connection, self._search_settings(k))
        serving = settings["serving"]
        if serving not in (self._model[0], self._other_serving) and not await self._settled(
            connection, serving, on_replica=on_replica
        ):
            return None
        rows = await _runtime.fetch(
            connection,
            self._search_statement(parts, explained=parameters["explained"] is not None),
            parameters,
        )
        if rows:
            await self._current_router(connection, rows[0]["categories_stamp"])
        elif not await self._settled(connection, serving, on_replica=on_replica):
            return None
        return rows

    async def _settled(
        self, connection: AsyncConnection, serving: int | None, *, on_replica: bool
    ) -> bool:
        """Find out which set to search when another one serves, or nothing was found.

        Returns:
            False where the replica does not know yet what the primary knows.

        Raises:
            EmbeddingModelMismatchError: The set this process searches was pruned.
        """
        models = (await connection.execute(statements.stored_models())).all()
        active = next((row for row in models if row.id == serving), None)
        if not on_replica:
            self._follow_model(active)
        elif self._is_followed_by(active):
            return False
        if models and not self._is_kept(models):
            if on_replica:
                return False
            raise self._pruned(models)
        self._other_serving = serving
        return True


def _rows(vectors: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([np.fromstring(vector.strip("[]"), sep=",") for vector in vectors])
