"""What both registries share: settings, checks and decisions, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.embeddings import Embeddings
from sqlalchemy import Row
from sqlalchemy.exc import ProgrammingError

from registry import statements
from registry.database import normalise_url
from registry.embedding import Embedder
from registry.errors import (
    EmbeddingModelMismatchError,
    InvalidQueryError,
    RegistryError,
    ToolNotFoundError,
)
from registry.settings import RegistrySettings
from registry.statements import Rows
from registry.text import nearest_names
from registry.types import EmbeddingModel, ToolHit

__all__ = ["INDEX_BUSY", "MAX_K", "NO_INDEX_FOR_SIZE", "RegistryBase", "index_refused"]

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
        settings: RegistrySettings | None = None,
    ) -> None:
        self.settings = settings or RegistrySettings()
        self._url = normalise_url(url)
        self._embedder = Embedder.resolve(
            embeddings,
            batch_size=self.settings.embedding_batch_size,
            cache_size=self.settings.query_cache_size,
        )
        self._model: tuple[int, EmbeddingModel] | None = None
        self._searches: dict[int, tuple[Rows, Rows]] = {}
        self._settings_statements: dict[int, Rows] = {}
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

    def _accept_model(self, row: Row[*tuple[Any, ...]] | None) -> None:
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

    def _search_statements(self) -> tuple[Rows, Rows]:
        """Return the (fast, exact) statements of the model in use, built once."""
        assert self._model is not None
        model_id, model = self._model
        if model_id not in self._searches:
            self._searches[model_id] = (
                statements.nearest_tools(model_id, model.dimensions),
                statements.nearest_tools_exactly(model_id, model.dimensions),
            )
        return self._searches[model_id]

    def _search_settings(self, k: int) -> Rows:
        ef_search = min(MAX_K, max(self.settings.ef_search, 2 * k))
        if ef_search not in self._settings_statements:
            self._settings_statements[ef_search] = statements.set_search_settings(
                ef_search=ef_search, statement_timeout_s=self.settings.statement_timeout_s
            )
        return self._settings_statements[ef_search]

    def _search_parameters(self, vector: str, k: int) -> Mapping[str, Any]:
        return {"namespace": self.namespace, "vector": vector, "k": k}

    def _checked_threshold(self, k: int, threshold: float | None) -> float:
        if isinstance(k, bool) or not 1 <= k <= MAX_K:
            raise InvalidQueryError(f"k is {k}; ask for 1 to {MAX_K} tools.")
        if threshold is None:
            return self.threshold
        if not 0 <= threshold <= 1:
            raise InvalidQueryError(f"threshold is {threshold}; relevance goes from 0 to 1.")
        return threshold

    def _hits(self, rows: Sequence[Row[*tuple[Any, ...]]], threshold: float) -> list[ToolHit]:
        hits = [statements.tool_hit(row, rank) for rank, row in enumerate(rows, start=1)]
        return [hit for hit in hits if hit.relevance >= threshold]

    def _wants_index(self, vectors: int | None) -> bool:
        return (vectors or 0) >= self.settings.index_min_tools

    def _not_found(self, tool_name: str, known: Sequence[str]) -> ToolNotFoundError:
        return ToolNotFoundError(
            tool_name, namespace=self.namespace, nearest=nearest_names(tool_name, known)
        )


def index_refused(error: ProgrammingError) -> str:
    """Return the note of a sync that may not make the index."""
    said = str(error.orig or error).splitlines()[0]
    return (
        f"the vector index was not made ({said}); searches scan exactly, which is slower. "
        "Run one sync as the owner of the table tool_embedding"
    )
