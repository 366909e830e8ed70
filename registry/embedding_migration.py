"""Building a set of vectors beside the serving one, step by step, without doing it.

Tool by tool, so a run that was broken off goes on where it stopped. Only a set in which no tool
lacks a vector of its present text can be switched to, in one transaction; the old set stays.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy.sql import Executable

from registry import statements
from registry.embedding import Embedder
from registry.errors import ConfigurationError, EmbeddingError, RegistryError
from registry.statements import AnyRow
from registry.sync import Embed, Requests
from registry.text import embedding_text, text_hash
from registry.types import (
    EmbeddingBuildReport,
    EmbeddingComparison,
    EmbeddingModelRecord,
    Question,
    SyncProgress,
    ToolSpec,
)

__all__ = [
    "BuildSteps",
    "Execute",
    "build_steps",
    "comparison",
    "model_to_revert_to",
    "model_to_switch_to",
    "models_to_prune",
]

_MAX_FRUITLESS = 20
_Rows = Sequence[AnyRow]
_Lacking = tuple[UUID, str, ToolSpec]


@dataclass(frozen=True, slots=True, kw_only=True)
class Execute:
    """Ask: run these in one transaction; the answer is the rows of the last."""

    statements: Sequence[tuple[Executable, Any]]


BuildSteps = Generator[Embed | Execute, Any, EmbeddingBuildReport]


def build_steps(
    embedder: Embedder,
    *,
    rebuild: bool,
    on_progress: Callable[[SyncProgress], None] | None = None,
) -> BuildSteps:
    """Yield what has to be embedded and run; return the report.

    Args:
        embedder: The model of the new set.
        rebuild: Make a new generation even of the model in use, every text embedded anew.
        on_progress: Called after each request.

    Raises:
        ConfigurationError: The model is the one in use, and no rebuild was asked for.
    """
    model_id = yield from _set_to_build(embedder, rebuild=rebuild)
    embedded, fruitless = 0, 0
    while True:
        rows: _Rows = yield Execute(statements=[(statements.tools_without_vector(model_id), None)])
        if not rows:
            return EmbeddingBuildReport(model=embedder.identity, embedded=embedded)
        lacking = [statements.lacking_row(row) for row in rows]
        texts = [embedding_text(spec) for _, _, spec in lacking]
        requests = Requests(lacking, texts=texts, size=embedder.batch_size)
        failed: dict[str, str] = {}
        done, stored = 0, 0
        for part in requests:
            try:
                vectors = yield Embed(texts=[embedding_text(spec) for _, _, spec in part])
            except EmbeddingError as error:
                if not (yield from requests.refused(part, error)):
                    continue
                failed[_label(part[0])] = str(error)
            else:
                requests.accepted()
                ids: _Rows = yield Execute(statements=[_store(model_id, part, vectors)])
                stored += len(ids)
                embedded += len(part)
            done += len(part)
            if on_progress is not None:
                on_progress(SyncProgress(done=done, total=len(lacking)))
        failed |= {_label(item): requests.given_up for item in requests.untried()}
        if failed:
            return EmbeddingBuildReport(model=embedder.identity, embedded=embedded, failed=failed)
        if stored:
            continue
        composed_otherwise = [
            _label(item)
            for item, row in zip(lacking, rows, strict=True)
            if row.text_hash != text_hash(item[2])
        ]
        if composed_otherwise:
            raise RegistryError(
                f"{len(composed_otherwise)} tools were registered by another release "
                f"({', '.join(composed_otherwise[:5])}); sync them first."
            )
        # Each was changed between being read and being stored.
        fruitless += 1
        if fruitless >= _MAX_FRUITLESS:
            return EmbeddingBuildReport(
                model=embedder.identity,
                embedded=embedded,
                failed={_label(item): "it keeps being changed; build again" for item in lacking},
            )


def _set_to_build(embedder: Embedder, *, rebuild: bool) -> Generator[Embed | Execute, Any, int]:
    if embedder.dimensions is None:
        yield Embed(texts=["How many dimensions does this model have?"])
    target = embedder.identity
    newest: _Rows = yield Execute(statements=[(statements.newest_model(target), None)])
    generation = newest[0].generation if newest else 0
    if newest and newest[0].state == "building":
        return newest[0].id
    if newest and not rebuild:
        if newest[0].state == "active":
            raise ConfigurationError(
                f"{target} is the embedding model in use; nothing to build. To embed every text "
                "anew: `toolrag embeddings rebuild`."
            )
        return newest[0].id
    made: _Rows = yield Execute(
        statements=[
            (statements.add_model(target, state="building", generation=generation + 1), None),
            (statements.newest_model(target), None),
        ]
    )
    return made[0].id


def _store(
    model_id: int, part: Sequence[_Lacking], vectors: Sequence[str]
) -> tuple[Executable, Any]:
    return statements.store_vectors(), {
        "model_id": model_id,
        "ids": [tool_id for tool_id, _, _ in part],
        "vectors": list(vectors),
        "hashes": [text_hash(spec) for _, _, spec in part],
    }


def _label(item: _Lacking) -> str:
    return f"{item[1]}/{item[2].tool_name}"


def model_to_switch_to(
    models: Sequence[EmbeddingModelRecord], embedder: Embedder
) -> EmbeddingModelRecord:
    """Return the newest set of the configured model that does not serve yet.

    Raises:
        ConfigurationError: There is none.
    """
    for record in models:
        same = (record.model.name, record.model.revision) == (embedder.name, embedder.revision)
        if same and record.state != "active":
            return record
    raise ConfigurationError(
        f"There is no set of vectors of {embedder.name} to switch to. Build it first: "
        "`toolrag embeddings migrate --to MODEL`."
    )


def model_to_revert_to(models: Sequence[EmbeddingModelRecord]) -> EmbeddingModelRecord:
    """Return the set that served last before the present one.

    Raises:
        ConfigurationError: There is none.
    """
    retired = [record for record in models if record.state == "retired" and record.activated_at]
    if not retired:
        raise ConfigurationError(
            "There is no earlier set of vectors to go back to: none served before, or it was "
            "pruned."
        )
    return max(retired, key=lambda record: (str(record.activated_at), record.id))


def models_to_prune(
    models: Sequence[EmbeddingModelRecord], model_id: int | None
) -> list[EmbeddingModelRecord]:
    """Return the sets to remove: one by id, or all retired ones.

    Raises:
        ConfigurationError: No set has that id, or it serves searches.
    """
    if model_id is None:
        return [record for record in models if record.state == "retired"]
    chosen = [record for record in models if record.id == model_id]
    if not chosen:
        known = ", ".join(str(record.id) for record in models) or "none"
        raise ConfigurationError(f"There is no set of vectors {model_id}; there are: {known}.")
    if chosen[0].state == "active":
        raise ConfigurationError(
            f"Set {model_id} ({chosen[0].model}) serves searches and cannot be removed. Switch to "
            "another one first."
        )
    return chosen


def comparison(
    questions: Sequence[Question], before: Sequence[set[str]], after: Sequence[set[str]], *, k: int
) -> EmbeddingComparison:
    """Return how the first k of two sets agree with each other and with the labels."""
    labelled = [place for place, question in enumerate(questions) if question.relevant]

    def recall(found: Sequence[set[str]]) -> float | None:
        if not labelled:
            return None
        shares = [
            len(found[place] & set(questions[place].relevant)) / len(questions[place].relevant)
            for place in labelled
        ]
        return sum(shares) / len(shares)

    overlaps = [
        len(old & new) / max(len(old), len(new), 1) for old, new in zip(before, after, strict=True)
    ]
    return EmbeddingComparison(
        questions=len(questions),
        k=k,
        overlap=sum(overlaps) / len(overlaps) if overlaps else 1.0,
        recall_before=recall(before),
        recall_after=recall(after),
    )
