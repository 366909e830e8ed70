"""Searching: candidates from the database."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from registry import statements
from registry.base import COUNTED
from registry.errors import EmbeddingError, EmbeddingUnavailableError
from registry.lexical import tool_terms, word_score
from registry.ranking import Candidates
from registry.statements import DriverStatement
from registry.statements.words import term_weights
from registry.store_async import _runtime
from registry.store_async._runtime import AsyncConnection
from registry.store_async.sets import AsyncEmbeddingSets
from registry.types import ToolSpec

__all__ = ["AsyncSearching"]

_log = logging.getLogger(__name__)


class AsyncSearching(AsyncEmbeddingSets):
    """The part of the registry that asks the database what a question may be answered by."""

    async def _candidates(
        self,
        parts: Sequence[str],
        k: int,
        *,
        counted: int = COUNTED,
        explained: str | None = None,
        words_suffice: bool = False,
    ) -> Candidates:
        """Return what a question and its clauses may be answered by.

        Args:
            parts: The question, and its clauses.
            k: Most hits.
            counted: How far active tools are counted.
            explained: Name of a tool that is to be among them.
            words_suffice: Whether to go on where the embedding model does not answer.
        """
        vectors, reason = await self._question_vectors(parts, words_suffice=words_suffice)
        parameters = {
            **self._search_parameters(parts, vectors, k),
            "counted": counted,
            "explained": explained,
        }

        async def ask(connection: AsyncConnection, *, on_replica: bool) -> Candidates | None:
            return await self._asked(connection, parameters, len(parts), k, on_replica=on_replica)

        found = None
        if self._replica_url is not None:
            found = await self._read(partial(ask, on_replica=True), from_replica=True)
        if found is None:
            found = await self._read(partial(ask, on_replica=False))
        assert found is not None
        self._calibration = found.calibration
        return replace(found, words_alone_reason=reason)

    async def _with_words_of(
        self, spec: ToolSpec, found: Candidates, parts: Sequence[str]
    ) -> Candidates:
        """Return the candidates with the words of one that is switched off: it has no rows."""
        if self.settings.word_weight == 0:
            return found
        statement = DriverStatement.of(term_weights())
        parameters = self._search_parameters(parts, (), 1)

        async def ask(connection: AsyncConnection) -> list[dict[str, Any]]:
            return await _runtime.fetch(connection, statement, parameters)

        weights, terms = await self._read(ask), tool_terms(spec)
        scores = {
            f"words_{part}": word_score(terms, weights, part=part) for part in range(len(parts))
        }
        rows = [
            {**row, **scores} if row["tool_name"] == spec.tool_name else row for row in found.rows
        ]
        return replace(found, rows=rows)

    async def _question_vectors(
        self, parts: Sequence[str], *, words_suffice: bool
    ) -> tuple[Sequence[str], str]:
        """Return the vectors of a question and its clauses; none, and why, where words must do.

        The model's client has tried again already, as often as it is set to.
        """
        try:
            timeout_s = self.settings.embed_timeout_s
            return await self._embedder.aembed_queries(parts, timeout_s=timeout_s), ""
        except EmbeddingUnavailableError as error:
            allowed = self.settings.search_by_words_alone and self.settings.word_weight > 0
            if not (words_suffice and allowed):
                raise
            # Said once, not with each search until the model answers again; an answer that is
            # none is a fault in the set-up, which no other try mends.
            level = (
                logging.ERROR if isinstance(error.__cause__, EmbeddingError) else logging.WARNING
            )
            is_news = self._embedder.begins_outage()
            extra = {"reason": str(error)}
            _log.log(level if is_news else logging.DEBUG, "searched_by_words_alone", extra=extra)
            return (), str(error)

    async def _asked(
        self,
        connection: AsyncConnection,
        parameters: Mapping[str, Any],
        parts: int,
        k: int,
        *,
        on_replica: bool,
    ) -> Candidates | None:
        """Return the candidates; None where a replica lags behind a switch."""
        if self._model is None:
            await self._know_model(connection)
        if self._model is None:
            return Candidates()
        searched = self._model
        asked = (
            # By itself: the next one may wait for a lock already.
            self._driver_timeout,
            self._search_settings(k),
            self._search_statement(
                parts,
                k,
                vectors="vector_0" in parameters,
                explained=parameters["explained"] is not None,
            ),
        )
        _, (settings,), rows = await _runtime.fetch_all(connection, asked, parameters)
        serving = settings["serving"]
        is_news = serving not in (self._model[0], self._other_serving)
        if (is_news or not rows) and not await self._settled(
            connection, serving, on_replica=on_replica
        ):
            return None
        if self._model != searched:  # a newer set of the same model serves
            return await self._asked(connection, parameters, parts, k, on_replica=on_replica)
        if rows:
            await self._current_router(connection, settings["categories_stamp"])
        return Candidates.of(settings, rows)

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
