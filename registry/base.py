"""What both registries share: settings, checks and decisions, no I/O."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import numpy as np
from langchain_core.embeddings import Embeddings
from sqlalchemy import Delete, Insert
from sqlalchemy.exc import OperationalError, ProgrammingError

from registry import statements
from registry.clauses import clauses
from registry.database import normalise_url
from registry.embedding import Embedder
from registry.errors import (
    ConfigurationError,
    EmbeddingModelMismatchError,
    IncompleteEmbeddingsError,
    InvalidQueryError,
    RegistryBusyError,
    RegistryError,
    ToolNotFoundError,
)
from registry.fusion import CANDIDATES, Floats, Ranked, fuse
from registry.lexical import lexical_terms
from registry.settings import RegistrySettings
from registry.statements import AnyRow, DriverStatement
from registry.text import nearest_names, text_hash
from registry.types import EmbeddingModel, EmbeddingModelRecord, ScoreParts, ToolHit, ToolSpec

__all__ = [
    "INDEX_BUSY",
    "MAX_K",
    "NO_INDEX_FOR_SIZE",
    "Lease",
    "RegistryBase",
    "Waiting",
    "Work",
    "index_refused",
    "out_of_shared_memory",
]

_NEEDED = 10  # of the nearest, before a search measures the caller's own tools one by one
_HIT_FIELDS = (
    "tool_name",
    "display_name",
    "description",
    "category",
    "binding",
    "origin",
    "requires_approval",
    "read_only",
    "version",
)
MAX_K = 1_000  # hnsw.ef_search ends there, and a model is never shown more
NO_INDEX_FOR_SIZE = (
    f"vectors of more than {statements.MAX_INDEXED_DIMENSIONS} dimensions have no index; "
    "searches scan exactly"
)
INDEX_BUSY = "another process is making the vector index; searches scan exactly until it stands"


class RegistryBase:
    """State and pure decisions of `ToolRegistry` and `AsyncToolRegistry`."""

    def __init__(
        self,
        url: str,
        *,
        embeddings: str | Embeddings | Embedder = "builtin",
        replica_url: str | None = None,
        settings: RegistrySettings | None = None,
    ) -> None:
        self.settings = settings or RegistrySettings()
        self._url = normalise_url(url)
        self._replica_url = None if replica_url is None else normalise_url(replica_url)
        self._embedder = Embedder.resolve(
            embeddings,
            batch_size=self.settings.embedding_batch_size,
            cache_size=self.settings.query_cache_size,
        )
        self._model: tuple[int, EmbeddingModel] | None = None
        self._searches: dict[tuple[int, int], DriverStatement] = {}
        self._statement_timeout = statements.set_statement_timeout(
            self.settings.statement_timeout_s
        )
        self._settings_statements: dict[int, DriverStatement] = {}
        self._closed = False

    @property
    def namespace(self) -> str:
        """Tenant whose tools this registry sees."""
        return self.settings.namespace

    @property
    def embedder(self) -> Embedder:
        """Embedding model that questions and tools are embedded with."""
        return self._embedder

    @property
    def threshold(self) -> float:
        """Relevance below which a hit is taken as not relevant; stored with the model."""
        return self._model[1].threshold if self._model else self._embedder.threshold

    def _check_not_closed(self) -> None:
        if self._closed:
            raise RegistryError("This registry was closed; make a new one.")

    def _accept_model(self, row: AnyRow | None) -> None:
        """Take over the stored model, or refuse it.

        Raises:
            EmbeddingModelMismatchError: It is not the configured one.
        """
        if row is None:
            return
        model_id, stored = statements.model_of_row(row)
        ours = self._embedder
        same = (stored.name, stored.revision) == (ours.name, ours.revision)
        if not same or ours.dimensions not in (None, stored.dimensions):
            size = f" ({ours.dimensions} dimensions)" if ours.dimensions else ""
            revision = f"@{ours.revision}" if ours.revision else ""
            raise EmbeddingModelMismatchError(
                stored=str(stored), configured=f"{ours.name}{revision}{size}"
            )
        ours.dimensions = stored.dimensions
        self._model = (model_id, stored)

    def _accept_model_for_writing(self, row: AnyRow | None) -> None:
        """Make sure that the vectors about to be written are of the model that serves.

        Raises:
            EmbeddingModelMismatchError: Searches were switched to another set since.
        """
        before = self._model
        self._accept_model(row)
        if before is not None and self._model is not None and before[0] != self._model[0]:
            self._model = before
            raise EmbeddingModelMismatchError(
                stored=f"another set of {self._embedder.name}", configured=f"set {before[0]}"
            )

    def _check_model_is_kept(self, models: Sequence[AnyRow]) -> None:
        """Tell an empty answer of an empty registry from one of a set that was removed.

        Raises:
            EmbeddingModelMismatchError: The set this process searches is gone.
        """
        assert self._model is not None
        if models and all(row.id != self._model[0] for row in models):
            active = next((row for row in models if row.state == "active"), models[0])
            raise EmbeddingModelMismatchError(
                stored=str(statements.model_of_row(active)[1]),
                configured=f"{self._model[1]}, whose vectors were pruned; restart this process",
            )

    def _incomplete(
        self, record: EmbeddingModelRecord, lacking: Sequence[AnyRow]
    ) -> IncompleteEmbeddingsError:
        names = [f"{row.namespace}/{row.tool_name}" for row in lacking]
        return IncompleteEmbeddingsError(str(record.model), record.model.name, tool_names=names)

    def _serving(
        self, models: Sequence[EmbeddingModelRecord], serving: Embedder
    ) -> EmbeddingModelRecord:
        """Return the set that serves.

        Raises:
            ConfigurationError: It is not of the given model.
        """
        for record in models:
            same = (record.model.name, record.model.revision) == (serving.name, serving.revision)
            if record.state == "active" and same:
                return record
        raise ConfigurationError(
            f"{serving.name} does not serve searches, so nothing can be compared with it."
        )

    def _hashes_of(self, tool_name: str, versions: Sequence[AnyRow]) -> list[str]:
        """Return the hashes of every text that a tool ever had."""
        specs: list[ToolSpec] = []
        for row in versions:
            if row.snapshot is not None:
                values = {
                    name: value for name, value in row.snapshot.items() if name != "is_active"
                }
                values["examples"] = tuple(values["examples"])
                specs.append(ToolSpec(tool_name=tool_name, **values))
        return [text_hash(spec) for spec in specs]

    def _parts(self, query: str) -> list[str]:
        """Return the question, and its clauses where it is a compound one."""
        return [query, *(clauses(query) if self.settings.clauses else ())]

    def _search_statement(self, parts: int) -> DriverStatement:
        """Return the search of the model in use for a number of parts, built once."""
        assert self._model is not None
        model_id, model = self._model
        if (model_id, parts) not in self._searches:
            self._searches[model_id, parts] = DriverStatement.of(
                statements.search_candidates(
                    model_id,
                    model.dimensions,
                    parts=parts,
                    words=self.settings.word_weight > 0,
                )
            )
        return self._searches[model_id, parts]

    def _search_settings(self, k: int) -> DriverStatement:
        ef_search = min(MAX_K, max(self.settings.ef_search, 2 * max(k, CANDIDATES)))
        if ef_search not in self._settings_statements:
            self._settings_statements[ef_search] = DriverStatement.of(
                statements.set_search_settings(
                    ef_search=ef_search, statement_timeout_s=self.settings.statement_timeout_s
                )
            )
        return self._settings_statements[ef_search]

    def _search_parameters(
        self, parts: Sequence[str], vectors: Sequence[str], k: int
    ) -> Mapping[str, Any]:
        masks: dict[str, int] = {}
        for place, part in enumerate(parts):
            for term in lexical_terms(part):
                masks[term] = masks.get(term, 0) | 1 << place
        return {
            "namespace": self.namespace,
            **{f"vector_{place}": vector for place, vector in enumerate(vectors)},
            "terms": list(masks),
            "masks": [mask | 1 for mask in masks.values()],  # what is in a clause is in the whole
            "candidates": max(k, CANDIDATES),
            "needed": max(k, _NEEDED),
        }

    def _checked_threshold(self, k: int, threshold: float | None) -> float:
        if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= MAX_K:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidQueryError(f"k is {k}; ask for 1 to {MAX_K} tools.")
        if threshold is None:
            return self.threshold
        if not 0 <= threshold <= 1:
            raise InvalidQueryError(f"threshold is {threshold}; relevance goes from 0 to 1.")
        return threshold

    def _hits(
        self, rows: Sequence[Mapping[str, Any]], parts: Sequence[str], k: int, threshold: float
    ) -> list[ToolHit]:
        """Rank the candidates, best first; of the first k those that reach the threshold."""
        if not rows:
            return []
        rows = sorted(rows, key=lambda row: (row["distance_0"], row["tool_name"]))
        cosine = _column(rows, "distance", len(parts))
        np.subtract(1.0, cosine, out=cosine)
        words = _column(rows, "words", len(parts))
        ranking = fuse(cosine, words, word_weight=self.settings.word_weight, limit=k)
        hits = [_hit(rows[r.index], parts, r, rank) for rank, r in enumerate(ranking, start=1)]
        return [hit for hit in hits if hit.relevance >= threshold]

    def _not_found(self, tool_name: str, known: Sequence[str]) -> ToolNotFoundError:
        # A name may come from anywhere: a long or unprintable one is not repeated in full.
        shown = tool_name[:100].encode("utf-8", "replace").decode()
        return ToolNotFoundError(
            shown, namespace=self.namespace, nearest=nearest_names(shown, known)
        )


def _column(rows: Sequence[Mapping[str, Any]], name: str, parts: int) -> Floats:
    return np.array([[row[f"{name}_{p}"] for row in rows] for p in range(parts)], dtype=float)


def _hit(row: Mapping[str, Any], parts: Sequence[str], ranked: Ranked, rank: int) -> ToolHit:
    distance = max(0.0, float(row["distance_0"]))
    fields = {name: row[name] for name in _HIT_FIELDS}
    return ToolHit(
        **fields,
        rank=rank,
        distance=distance,
        relevance=max(0.0, 1.0 - distance),
        score=ranked.score,
        parts=ScoreParts(
            vector=ranked.vector,
            words=ranked.words,
            clause=parts[ranked.clause] if ranked.clause else "",
            clause_vector=ranked.clause_vector,
            clause_words=ranked.clause_words,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to be the only process that does something, as long as it is prolonged.

    Attributes:
        name: What is done.
        seconds: How long it lasts without being prolonged.
        holder: Host, process and call.
    """

    name: str
    seconds: int
    holder: str = field(
        default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
    )

    @property
    def take(self) -> Insert:
        """Take or prolong it."""
        return statements.take_lease(self.name, self.holder, seconds=self.seconds)

    @property
    def release(self) -> Delete:
        """Give it back."""
        return statements.release_lease(self.name, self.holder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a generator of steps is driven for.

    Attributes:
        changed_by: Who, for the history; the database user when empty.
        lease: Prolonged with each transaction.
    """

    changed_by: str = ""
    lease: Lease | None = None


class Waiting:
    """How long to wait for another process's lease, and when to stop waiting.

    Raises:
        RegistryBusyError: From `pause_s`, when there is nothing to wait for any more.
    """

    def __init__(self, name: str, *, settings: RegistrySettings, wait: bool) -> None:
        self._name = name
        self._wait_s = settings.lease_wait_s if wait else 0.0
        self._since = time.monotonic()
        self._pause_s = 0.05

    @property
    def waited_s(self) -> float:
        """How long it has been waited, seconds."""
        return time.monotonic() - self._since

    def pause_s(self) -> float:
        """Return how long to sleep before the next try, seconds."""
        waited = self.waited_s
        if waited >= self._wait_s:
            after = f" after {waited:.0f} s" if self._wait_s else ""
            raise RegistryBusyError(
                f"Another process holds {self._name!r}{after}. Let it finish; if it was killed, "
                "its hold runs out within a minute."
            )
        self._pause_s = min(self._pause_s * 1.5, 1.0)
        return self._pause_s


def out_of_shared_memory(error: OperationalError) -> bool:
    """Return whether the workers of an index build found too small a /dev/shm, as in containers."""
    return getattr(error.orig, "sqlstate", None) == "53100"


def index_refused(error: ProgrammingError) -> str:
    """Return the note of a sync that may not make the index."""
    said = str(error.orig or error).splitlines()[0]
    return (
        f"the vector index was not made ({said}); searches scan exactly, which is slower. "
        "Run one sync as the owner of the table tool_embedding"
    )
