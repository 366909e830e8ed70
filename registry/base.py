"""What both registries share: settings, checks and decisions, no I/O."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any
from uuid import uuid4

from langchain_core.embeddings import Embeddings
from sqlalchemy import Delete, Insert
from sqlalchemy.exc import OperationalError, ProgrammingError

from registry import statements
from registry.changes import check_author
from registry.clauses import clauses
from registry.database import normalise_url
from registry.embedding import Embedder, checked_question
from registry.errors import (
    ConfigurationError,
    EmbeddingModelMismatchError,
    IncompleteEmbeddingsError,
    InvalidQueryError,
    RegistryBusyError,
    RegistryError,
    ToolNotFoundError,
)
from registry.fusion import CANDIDATES
from registry.lexical import lexical_terms
from registry.ranking import Candidates, ranked
from registry.relevance import (
    DEFAULT_THRESHOLD,
    Calibration,
)
from registry.settings import RegistrySettings
from registry.statements import AnyRow, DriverStatement
from registry.strategy import Plan, StrategyLimits
from registry.text import nearest_names, text_hash
from registry.types import EmbeddingModel, EmbeddingModelRecord, ToolHit, ToolSpec

__all__ = [
    "INDEX_BUSY",
    "MAX_K",
    "NO_INDEX_FOR_SIZE",
    "SWITCH",
    "Lease",
    "RegistryBase",
    "Waiting",
    "Work",
    "index_refused",
    "out_of_shared_memory",
]

_NEEDED = 10  # of the nearest, before a search measures the caller's own tools one by one
COUNTED = StrategyLimits().counted
_WALKS = (CANDIDATES, 100, 200, 400, 1_000)  # a statement for each of these, not for each k
MAX_K = 1_000  # hnsw.ef_search ends there, and a model is never shown more
NO_INDEX_FOR_SIZE = (
    f"vectors of more than {statements.MAX_INDEXED_DIMENSIONS} dimensions have no index; "
    "searches scan exactly"
)
SWITCH = "embeddings:switch"  # lease that writers wait for the end of
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
        self._other_serving: int | None = None  # set that serves, seen and known to be no news
        self._searches: dict[tuple[int, int, int, bool, bool], DriverStatement] = {}
        self._statement_timeout = statements.set_statement_timeout(
            self.settings.statement_timeout_s
        )
        # The same, for what is sent without a transaction around it.
        self._driver_timeout = DriverStatement.of(self._statement_timeout)
        self._settings_statements: dict[tuple[int, int], DriverStatement] = {}
        self._calibration: Calibration | None = None
        self._closed = False
        # What else is closed with this registry; coroutine functions in the async one.
        self.closers: list[Callable[[], Any]] = []

    @property
    def url(self) -> str:
        """The database's URL, its password included."""
        return self._url.render_as_string(hide_password=False)

    @property
    def embedding_model_id(self) -> int | None:
        """Number of the set of vectors that is searched; None before anything was."""
        return self._model[0] if self._model else None

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
        """Relevance below which a hit is taken as not relevant.

        0.6 in a calibrated registry; before the first search or calibration the model's own.
        """
        if self._calibration is not None:
            return DEFAULT_THRESHOLD
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

    def _follow_model(self, row: AnyRow | None) -> None:
        """Take over the stored model where none is known yet, or a newer set of the same one.

        A process whose model was replaced goes on with its own set.

        Raises:
            EmbeddingModelMismatchError: None is known yet, and it is not the configured one.
        """
        if self._model is None:
            self._accept_model(row)
        elif row is not None and self._is_followed_by(row):
            self._model = statements.model_of_row(row)

    def _is_followed_by(self, row: AnyRow | None) -> bool:
        """Return whether this is another set of the model that this process searches."""
        if row is None or self._model is None or row.id == self._model[0]:
            return False
        return statements.model_of_row(row)[1].same_vectors(self._model[1])

    def _is_kept(self, models: Sequence[AnyRow]) -> bool:
        """Return whether the set that this process searches is there, and complete once."""
        assert self._model is not None
        return any(row.id == self._model[0] and row.activated_at for row in models)

    def _pruned(self, models: Sequence[AnyRow]) -> EmbeddingModelMismatchError:
        """Return the error of a process whose set was removed."""
        assert self._model is not None
        active = next((row for row in models if row.state == "active"), models[0])
        return EmbeddingModelMismatchError(
            stored=str(statements.model_of_row(active)[1]),
            configured=str(self._model[1]),
            pruned=True,
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
        question = checked_question(query)
        return [question, *(clauses(question) if self.settings.clauses else ())]

    def _search_statement(
        self, parts: int, k: int, *, vectors: bool = True, explained: bool = False
    ) -> DriverStatement:
        """Return the search of the model in use for a number of parts and hits, built once."""
        assert self._model is not None
        model_id, model = self._model
        walked = next(2 * least for least in _WALKS if k <= least)
        key = (model_id, parts, walked, vectors, explained)
        if key not in self._searches:
            self._searches[key] = DriverStatement.of(
                statements.search_candidates(
                    model_id,
                    model.dimensions,
                    parts=parts,
                    walked=walked,
                    words=self.settings.word_weight > 0,
                    vectors=vectors,
                    explained=explained,
                )
            )
        return self._searches[key]

    def _search_settings(self, k: int, model_id: int | None = None) -> DriverStatement:
        """Return what comes before a search for k hits, in the set in use where none is given."""
        if model_id is None:
            assert self._model is not None
            model_id = self._model[0]
        # The same for all usual k: what comes first does not depend on how much is asked for.
        least = 2 * CANDIDATES if k <= CANDIDATES else 4 * k
        ef_search = min(MAX_K, max(self.settings.ef_search, least))
        key = (model_id, ef_search)
        if key not in self._settings_statements:
            statement = statements.set_search_settings(model_id, ef_search=ef_search).params(
                namespace=self.namespace, counted=COUNTED
            )
            self._settings_statements[key] = DriverStatement.of(statement)
        return self._settings_statements[key]

    def _search_parameters(
        self, parts: Sequence[str], vectors: Sequence[str], k: int
    ) -> dict[str, Any]:
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

    def _check_search(self, k: int, threshold: float | None) -> None:
        if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= MAX_K:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidQueryError(f"k is {k}; ask for 1 to {MAX_K} tools.")
        if threshold is None:
            return
        if not isinstance(threshold, Real) or isinstance(threshold, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidQueryError(f"threshold is {threshold!r}; give a number from 0 to 1.")
        if not 0 <= threshold <= 1:
            raise InvalidQueryError(f"threshold is {threshold}; relevance goes from 0 to 1.")

    def _ranked(
        self, found: Candidates, parts: Sequence[str], k: int, plan: Plan | None = None
    ) -> list[ToolHit]:
        return ranked(found, parts, k, word_weight=self.settings.word_weight, plan=plan)

    def _not_found(self, tool_name: str, known: Sequence[str]) -> ToolNotFoundError:
        # A name may come from anywhere: a long or unprintable one is not repeated in full.
        shown = tool_name[:100].encode("utf-8", "replace").decode()
        return ToolNotFoundError(
            shown, namespace=self.namespace, nearest=nearest_names(shown, known)
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

    def __post_init__(self) -> None:
        check_author(self.changed_by)


class Waiting:
    """How long to wait for another process's lease, and when to stop waiting.

    Args:
        name: Of the lease.
        wait_s: Longest wait, seconds.

    Raises:
        RegistryBusyError: From `pause_s`, when there is nothing to wait for any more.
    """

    def __init__(self, name: str, *, wait_s: float) -> None:
        self._name = name
        self._wait_s = wait_s
        self._since = time.monotonic()
        self._pause_s = 0.05

    @property
    def waited_s(self) -> float:
        """How long it has been waited, seconds."""
        return time.monotonic() - self._since

    def pause_s(self, held: AnyRow | None) -> float:
        """Return how long to sleep before the next try, seconds.

        Args:
            held: Row of `lease_holder`; None where it was given back in this moment.
        """
        waited = self.waited_s
        if waited >= self._wait_s:
            after = f" after {waited:.0f} s" if self._wait_s else ""
            who = f": {held.holder} until {held.expires_at:%Y-%m-%d %H:%M:%S %Z}" if held else ""
            raise RegistryBusyError(
                f"Another process holds {self._name!r}{after}{who}. Let it finish; while it works "
                "it prolongs its hold, and if it was killed, the hold runs out then."
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
