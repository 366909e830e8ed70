"""Calibrating: what relevance means in this catalogue, from the anchors and from recorded calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from registry import ranking, statements
from registry.anchors import ANCHORS
from registry.embedding import vector_literal
from registry.errors import EmbeddingError, RegistryBusyError, RegistryError
from registry.fusion import CANDIDATES, Floats
from registry.learning import LEARNING_TIMEOUT_S
from registry.relevance import (
    LEAST_CALLS,
    Calibration,
    Scale,
    null_evidence,
    scale_of,
    traffic_of,
    without_own,
    zero_of_calls,
)
from registry.statements import AnyRow, DriverStatement
from registry.statements import calibration as calibration_statements
from registry.statements import learning as learning_statements
from registry.statements.calls import CountedCalls
from registry.store_async import _runtime
from registry.store_async._runtime import AsyncConnection
from registry.store_async.categories import AsyncCategories
from registry.types import CalibrationReport
from registry.weighing import Weighed, weighed, words_share

__all__ = ["AsyncCalibrating"]

_CALIBRATED_FROM_TOOLS = 20
_STALE_SHARE = 0.2  # of the tools, that came or went since
_MOST_CALLS = 500  # that are asked again; each is a search
_NOTHING = "Nothing is registered yet; sync tools before calibrating."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """A set of vectors.

    Attributes:
        id: Of the set.
        dimensions: Of the vectors.
        scale: Of the model.
    """

    id: int
    dimensions: int
    scale: Scale


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A question that is asked to measure with.

    Attributes:
        text: What was asked; empty where words count for nothing.
        vector: In pgvector's text form.
        traffic: Inner product with the traffic of the other questions.
        distances: Of tools, as if they had learnt nothing of this question.
        called: Tools that were called for it.
        filtered: A tool had to reach a threshold to be offered.
    """

    text: str
    vector: str
    traffic: float
    distances: Mapping[str, float] = field(default_factory=dict[str, float])
    called: frozenset[str] = frozenset()
    filtered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Calls:
    """Recorded questions with the tools that were called, and what the questions share."""

    asked: Sequence[_Asked]
    traffic: Floats


class AsyncCalibrating(AsyncCategories):
    """The part of the registry that measures what relevance means."""

    async def calibrate(self) -> CalibrationReport:
        """Measure what relevance means with this embedding model and this catalogue; no labels.

        From 30 sessions with recorded calls on, these say as well which evidence a tool has that
        is called. A sync does so by itself, from 20 tools on, when a fifth of them came or went,
        and `learn` and `unlearn` do where they moved vectors.

        Raises:
            RegistryError: Nothing is registered yet.
            EmbeddingError: The questions that it is measured with could not be embedded.
            RegistryUnavailableError: The database does not answer.
        """
        await self.open()
        async with self._connection() as connection:
            await self._know_model(connection)
            models = (await connection.execute(statements.stored_models())).all()
        if self._model is None:
            raise RegistryError(_NOTHING)
        if not self._is_kept(models):
            raise self._pruned(models)
        tools, questions = (list(texts) for texts in zip(*ANCHORS, strict=True))
        tool_vectors = await self._embedder.aembed_documents(tools)
        vectors = await self._embedder.aembed_queries(questions)
        scale = scale_of(_rows(vectors), _rows(tool_vectors))
        anchors = list(zip(questions, vectors, strict=True))
        model = _Model(id=self._model[0], dimensions=self._model[1].dimensions, scale=scale)
        async with self._connection() as connection:
            report = await self._calibrate(connection, model, anchors)
            await connection.execute(calibration_statements.store_anchors(model.id, anchors))
            await connection.execute(
                calibration_statements.forget_anchors(model.id, from_place=len(anchors))
            )
        return report

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

    async def _recalibrate(self) -> None:
        """Measure anew after vectors moved; embeds nothing.

        Where that was never done, or is left to the operator, or nothing is active any more, the
        calibration stays as it is.
        """
        if not self.settings.auto_calibrate:
            return
        async with self._connection() as connection:
            found = (await connection.execute(statements.active_model())).one_or_none()
            if found is None:
                return
            scale = (
                await connection.execute(
                    calibration_statements.stored_scale(self.namespace, found.id)
                )
            ).one_or_none()
            rows = (await connection.execute(calibration_statements.anchors(found.id))).all()
        if scale is None or not rows:
            return
        model = _Model(
            id=found.id,
            dimensions=found.dimensions,
            scale=Scale(center=scale.center, spread=scale.spread),
        )
        try:
            async with self._lease(f"calibrate:{self.namespace}", wait=False):
                async with self._connection() as connection:
                    anchors = [(row.question, row.vector) for row in rows]
                    await self._calibrate(connection, model, anchors)
        except RegistryBusyError:
            return  # another process is doing it, and the next sync looks again

    async def _calibrate(
        self, connection: AsyncConnection, model: _Model, anchors: Sequence[tuple[str, str]]
    ) -> CalibrationReport:
        """Measure and store.

        Raises:
            RegistryError: Nothing is registered.
        """
        calls = await self._recorded(connection, model)
        traffic = np.zeros(model.dimensions) if calls is None else calls.traffic
        asked = () if calls is None else calls.asked
        stored = (
            await connection.execute(calibration_statements.stored_scale(self.namespace, model.id))
        ).one_or_none()
        await _runtime.fetch(connection, self._search_settings(1, model.id))
        before = 1.0 if stored is None else stored.words_share
        found, candidates = await self._asked_again(connection, model, asked, words=before)
        words = words_share(candidates, word_weight=self.settings.word_weight, before=before)
        if words != before:
            found, _ = await self._asked_again(connection, model, asked, words=words)
        anchored, _ = await self._asked_again(
            connection, model, _anchored(anchors, traffic), words=words
        )
        first = [next(iter(evidences.values()), None) for evidences in anchored]
        if None in first:
            raise RegistryError(_NOTHING)
        null = null_evidence([value for value in first if value is not None])
        above: list[float] = []
        filtered = 0
        for question, evidences in zip(asked, found, strict=True):
            of_called = [
                value - null for name, value in evidences.items() if name in question.called
            ]
            above += of_called
            filtered += len(of_called) if question.filtered else 0
        by = Calibration(
            scale=model.scale,
            null=null,
            zero=zero_of_calls(above, filtered=filtered / max(len(above), 1)),
            words=words,
        )
        counted = await connection.scalar(statements.corpus_size(self.namespace)) or 0
        moved = len(above) if len(above) >= LEAST_CALLS else 0
        version = await connection.scalar(
            statements.store_calibration(
                self.namespace,
                model.id,
                by,
                traffic=None if calls is None else _literal(calls.traffic),
                tools=counted,
                calls=moved,
            )
        )
        if self._model is not None and self._model[0] == model.id:
            self._calibration = by
        return CalibrationReport(
            center=by.scale.center,
            spread=by.scale.spread,
            null=by.null,
            zero=by.zero,
            words=by.words,
            tools=counted,
            calls=moved,
            version=version or 1,
        )

    async def _recorded(self, connection: AsyncConnection, model: _Model) -> _Calls | None:
        """Return the recorded calls to ask again, None where there are too few."""
        counted = CountedCalls(
            namespace=self.namespace, model_id=model.id, dimensions=model.dimensions
        )
        await self._allow_time(connection)
        asked = (
            await connection.execute(
                calibration_statements.sampled_calls(
                    counted, limit=_MOST_CALLS, with_text=self.settings.word_weight > 0
                )
            )
        ).all()
        if len(asked) < LEAST_CALLS:
            return None
        vectors = _rows([row.vector for row in asked])
        traffic = traffic_of(vectors)
        state = (
            await connection.execute(learning_statements.learning_state(self.namespace, model.id))
        ).one_or_none()
        neutral = 0.0 if state is None else state.neutral
        rows = (
            await connection.execute(
                calibration_statements.left_out(
                    counted,
                    [(row.selection_id, row.session) for row in asked],
                    neutral=_literal(neutral * traffic),
                    learned_until=None if state is None else state.recorded_until,
                )
            )
        ).all()
        tools: defaultdict[Any, list[AnyRow]] = defaultdict(list)
        for row in rows:
            tools[row.selection_id].append(row)
        common = (vectors @ traffic).tolist()
        return _Calls(
            asked=[
                _asked(row, tools[row.selection_id], without_own(value, len(asked)))
                for row, value in zip(asked, common, strict=True)
            ],
            traffic=traffic,
        )

    async def _allow_time(self, connection: AsyncConnection) -> None:
        """Let statements of this transaction that go through all records take their time."""
        limit_s = max(LEARNING_TIMEOUT_S, self.settings.statement_timeout_s)
        await connection.execute(statements.set_statement_timeout(limit_s))

    async def _asked_again(
        self, connection: AsyncConnection, model: _Model, asked: Sequence[_Asked], *, words: float
    ) -> tuple[list[dict[str, float]], list[Weighed]]:
        """Return the evidence of each question's first hits, best first, and all its candidates.

        Compound questions are not cut: that would need the vectors of their clauses.

        Args:
            connection: With the settings of a search.
            model: Whose vectors.
            asked: In order.
            words: How much of `word_weight` counts.
        """
        search = DriverStatement.of(
            statements.search_candidates(
                model.id,
                model.dimensions,
                parts=1,
                walked=2 * CANDIDATES,
                words=self.settings.word_weight > 0,
            )
        )
        evidences: list[dict[str, float]] = []
        candidates: list[Weighed] = []
        for question in asked:
            parameters = self._search_parameters([question.text], [question.vector], 1)
            found = await _runtime.fetch(connection, search, parameters)
            rows = [_unlearnt(row, question.distances) for row in found]
            if not rows:
                evidences.append({})
                continue
            evidences.append(
                ranking.evidences(
                    rows,
                    model.scale,
                    traffic=question.traffic,
                    word_weight=words * self.settings.word_weight,
                )
            )
            candidates.append(weighed(rows, question.called))
        return evidences, candidates


def _anchored(anchors: Sequence[tuple[str, str]], traffic: Floats) -> list[_Asked]:
    common = (_rows([vector for _, vector in anchors]) @ traffic).tolist()
    return [
        _Asked(text=question, vector=vector, traffic=value)
        for (question, vector), value in zip(anchors, common, strict=True)
    ]


def _asked(row: AnyRow, tools: Sequence[AnyRow], traffic: float) -> _Asked:
    return _Asked(
        text=row.text or "",
        vector=row.vector,
        traffic=traffic,
        distances={tool.tool_name: tool.distance for tool in tools if tool.distance is not None},
        called=frozenset(tool.tool_name for tool in tools if tool.was_called),
        filtered=row.filtered,
    )


def _unlearnt(row: dict[str, Any], distances: Mapping[str, float]) -> dict[str, Any]:
    name = row["tool_name"]
    return {**row, "distance_0": distances[name]} if name in distances else row


def _rows(vectors: Sequence[str]) -> Floats:
    return np.array([np.fromstring(vector.strip("[]"), sep=",") for vector in vectors])


def _literal(vector: Floats) -> str:
    return vector_literal(vector.astype(np.float32))
