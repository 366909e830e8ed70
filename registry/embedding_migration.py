"""The change of embedding model, step by step, without doing it: both stores drive it.

The new model's vectors are made beside the serving ones, tool by tool, so a run that was broken
off goes on where it stopped. Only when no tool lacks a vector of the new model is it switched to,
in one transaction; the old vectors stay.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row
from sqlalchemy.sql import Executable

from registry import statements
from registry.embedding import Embedder, Vectors, vector_literal
from registry.errors import ConfigurationError, EmbeddingError
from registry.sync import Embed, Requests
from registry.text import embedding_text, source_hash
from registry.types import EmbeddingMigrationReport, SyncProgress

__all__ = ["Execute", "MigrationSteps", "migration_steps"]

_Rows = Sequence[Row[*tuple[Any, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Execute:
    """Ask: run these in one transaction; the answer is the rows of the last."""

    statements: Sequence[tuple[Executable, Any]]


MigrationSteps = Generator[Embed | Execute, Any, EmbeddingMigrationReport]


def migration_steps(
    embedder: Embedder, *, on_progress: Callable[[SyncProgress], None] | None = None
) -> MigrationSteps:
    """Yield what has to be embedded and run; return the report.

    Raises:
        ConfigurationError: The model is the one in use already.
    """
    if embedder.dimensions is None:
        yield Embed(texts=["How many dimensions does this model have?"])
    target = embedder.identity
    active = yield Execute(statements=[(statements.active_model(), None)])
    if active and statements.model_of_row(active[0])[1].same_vectors(target):
        raise ConfigurationError(f"{target} is the embedding model in use; nothing to migrate.")
    found: _Rows = yield Execute(
        statements=[
            (statements.add_model(target, state="building"), None),
            (statements.model_id(target), None),
        ]
    )
    model_id: int = found[0].id

    embedded = 0
    while True:
        rows: _Rows = yield Execute(statements=[(statements.texts_and_hashes(model_id), None)])
        outdated = _outdated(rows)
        if not outdated:
            # Writers wait while this transaction looks once more and switches.
            switched: _Rows = yield Execute(
                statements=[
                    (statements.lock_tools(), None),
                    (statements.retire_active_model(model_id), None),
                    (statements.activate_model(model_id), None),
                ]
            )
            if switched:
                return EmbeddingMigrationReport(model=target, embedded=embedded, switched=True)
            continue
        failed: dict[str, str] = {}
        done = 0
        requests = Requests(
            outdated, texts=[item[2] for item in outdated], size=embedder.batch_size
        )
        for part in requests:
            try:
                vectors: Vectors = yield Embed(texts=[text for _, _, text in part])
            except EmbeddingError as error:
                if not requests.refused(part, error):
                    continue
                failed[part[0][1]] = str(error)
            else:
                requests.accepted()
                yield Execute(statements=[_store(model_id, part, vectors)])
                embedded += len(part)
            done += len(part)
            if on_progress is not None:
                on_progress(SyncProgress(done=done, total=len(outdated)))
        failed |= {name: requests.given_up for _, name, _ in requests.untried()}
        if failed:
            return EmbeddingMigrationReport(
                model=target, embedded=embedded, switched=False, failed=failed
            )


def _store(
    model_id: int, part: Sequence[tuple[Any, str, str]], vectors: Vectors
) -> tuple[Executable, Any]:
    parameters = {
        "model_id": model_id,
        "ids": [tool_id for tool_id, _, _ in part],
        "vectors": [vector_literal(vector) for vector in vectors],
        "hashes": [source_hash(text) for _, _, text in part],
    }
    return statements.upsert_vectors_by_id(), parameters


def _outdated(rows: _Rows) -> list[tuple[Any, str, str]]:
    """Return (id, name, text) of the tools whose text has no vector of the new model."""
    found: list[tuple[Any, str, str]] = []
    for row in rows:
        tool_id, spec, known = statements.text_row(row)
        text = embedding_text(spec)
        if known != source_hash(text):
            found.append((tool_id, f"{row.namespace}/{spec.tool_name}", text))
    return found
