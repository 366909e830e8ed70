"""Building a set of vectors beside the serving one, step by step, without doing it.

Tool by tool, so a run that was broken off goes on where it stopped. Only a set in which no active
tool lacks a vector of its present text can be switched to, in one transaction; the old set stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
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
    "PROBE",
    "BuildSteps",
    "Execute",
    "build_steps",
    "catch_up_steps",
    "comparison",
    "label",
    "model_to_build",
    "model_to_revert_to",
    "model_to_switch_to",
    "models_to_prune",
]

PROBE = "How many dimensions does this model have?"
_LOOKED_UP = 500  # texts in one look at what is known
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
        ConfigurationError: The model is the one in use, lacks nothing, and no rebuild was asked
            for.
    """
    while True:
        record = yield from _set_to_build(embedder, rebuild=rebuild)
        report = yield from catch_up_steps(record, embedder, on_progress=on_progress)
        # The size of an unfinished set is believed until the model answers with another one.
        if embedder.dimensions is None and not report.failed:
            yield Embed(texts=[PROBE])
        if embedder.dimensions in (None, record.model.dimensions):
            return report


def catch_up_steps(
    record: EmbeddingModelRecord,
    embedder: Embedder,
    *,
    on_progress: Callable[[SyncProgress], None] | None = None,
) -> BuildSteps:
    """Yield what a set lacks to be embedded and stored; return the report.

    Whoever writes meanwhile makes another pass necessary. There is one as long as the one before
    left at most half of what it began with: the number of passes is bounded however much is
    written, and what is left to a switch is about as little as the model's pace allows.

    Args:
        record: The set; its dimensions must be the model's, or nothing is stored.
        embedder: Its model.
        on_progress: Called after each request.

    Raises:
        RegistryError: Tools were registered by a release that composes their text otherwise.
    """
    embedded = 0
    rows: _Rows = yield Execute(statements=[(statements.tools_without_vector(record.id), None)])
    while True:
        of_text = _by_text(statements.lacking_row(row) for row in rows)
        done = yield from _reuse(record.id, of_text)
        firsts = [tools[0] for tools in of_text.values()]
        texts = [embedding_text(spec) for _, _, spec in firsts]
        requests = Requests(firsts, texts=texts, size=embedder.batch_size)
        failed: dict[UUID, str] = {}
        for part in requests:
            tools_of_part = [of_text[text_hash(spec)] for _, _, spec in part]
            try:
                vectors = yield Embed(texts=[embedding_text(spec) for _, _, spec in part])
            except EmbeddingError as error:
                if not (yield from requests.refused(part, error)):
                    continue
                failed |= {tool_id: str(error) for tool_id, _, _ in tools_of_part[0]}
            else:
                if embedder.dimensions != record.model.dimensions:
                    return _report(record, embedded=embedded, rows=rows)
                requests.accepted()
                yield _store(record.id, tools_of_part, vectors)
                embedded += len(part)
            done += sum(map(len, tools_of_part))
            if on_progress is not None:
                on_progress(SyncProgress(done=done, total=len(rows)))
        failed |= {
            tool_id: requests.given_up
            for _, _, spec in requests.untried()
            for tool_id, _, _ in of_text[text_hash(spec)]
        }
        before = len(rows)
        rows = yield Execute(statements=[(statements.tools_without_vector(record.id), None)])
        if failed or not rows or 2 * len(rows) > before:
            if not failed:
                _check_composition(rows)
            return _report(record, embedded=embedded, rows=rows, failed=failed)


def _by_text(lacking: Iterable[_Lacking]) -> dict[str, list[_Lacking]]:
    """Return hash of the text to the tools that have it, in order."""
    found: dict[str, list[_Lacking]] = {}
    for tool in lacking:
        found.setdefault(text_hash(tool[2]), []).append(tool)
    return found


def _reuse(
    model_id: int, of_text: dict[str, list[_Lacking]]
) -> Generator[Embed | Execute, Any, int]:
    """Store vectors that the set holds or held already; take their texts out of `of_text`.

    Returns:
        How many tools have their vector now.
    """
    stored = 0
    hashes = list(of_text)
    for start in range(0, len(hashes), _LOOKED_UP):
        looked_up = hashes[start : start + _LOOKED_UP]
        known: _Rows = yield Execute(
            statements=[(statements.known_vectors(model_id, looked_up), None)]
        )
        vectors = {row.source_hash: row.vector for row in known}
        if vectors:
            tools = [of_text.pop(text) for text in vectors]
            yield _store(model_id, tools, list(vectors.values()))
            stored += sum(map(len, tools))
    return stored


def _report(
    record: EmbeddingModelRecord,
    *,
    embedded: int,
    rows: _Rows,
    failed: dict[UUID, str] | None = None,
) -> EmbeddingBuildReport:
    reasons = failed or {}
    return EmbeddingBuildReport(
        set_id=record.id,
        model=record.model,
        embedded=embedded,
        failed={label(r): reasons[r.id] for r in rows if r.id in reasons and r.is_active},
        failed_inactive={
            label(r): reasons[r.id] for r in rows if r.id in reasons and not r.is_active
        },
        remaining=sum(r.is_active and r.id not in reasons for r in rows),
    )


def _check_composition(rows: _Rows) -> None:
    """Refuse to go on with texts that no vector can ever be stored for.

    Raises:
        RegistryError: An active tool's stored hash is not that of its text.
    """
    names = [
        label(row)
        for row in rows
        if row.is_active and row.text_hash != text_hash(statements.lacking_row(row)[2])
    ]
    if names:
        raise RegistryError(
            f"{len(names)} tools were registered by another release "
            f"({', '.join(names[:5])}); sync them first."
        )


def _set_to_build(
    embedder: Embedder, *, rebuild: bool
) -> Generator[Embed | Execute, Any, EmbeddingModelRecord]:
    rows: _Rows = yield Execute(statements=[(statements.list_models(), None)])
    models = [statements.model_record(row) for row in rows]
    record = model_to_build(models, embedder, rebuild=rebuild)
    if record is None and embedder.dimensions is None:
        yield Embed(texts=[PROBE])
        record = model_to_build(models, embedder, rebuild=rebuild)
    if record is None:
        target = embedder.identity
        generations = [m.generation for m in models if m.model.same_vectors(target)]
        made: _Rows = yield Execute(
            statements=[
                (
                    statements.add_model(
                        target, state="building", generation=max(generations, default=0) + 1
                    ),
                    None,
                ),
                (statements.list_models(), None),
            ]
        )
        return next(
            record
            for record in map(statements.model_record, made)
            if record.model.same_vectors(target)
        )
    if record.state == "retired":
        yield Execute(statements=[(statements.reopen_model(record.id), None)])
    if record.state == "active":
        lacking: _Rows = yield Execute(
            statements=[(statements.tools_without_vector(record.id), None)]
        )
        if not any(row.is_active for row in lacking):
            raise ConfigurationError(
                f"{record.model} is the embedding model in use; nothing to build. To embed every "
                "text anew: `toolrag embeddings rebuild`."
            )
    return record


def _store(model_id: int, tools: Sequence[Sequence[_Lacking]], vectors: Sequence[str]) -> Execute:
    """Store the vectors of texts, each for all tools that have it; replaced ones are archived."""
    pairs = [(tool, vector) for some, vector in zip(tools, vectors, strict=True) for tool in some]
    parameters = {
        "model_id": model_id,
        "ids": [tool_id for (tool_id, _, _), _ in pairs],
        "vectors": [vector for _, vector in pairs],
        "hashes": [text_hash(spec) for (_, _, spec), _ in pairs],
    }
    return Execute(
        statements=[
            (statements.archive_vectors(), parameters),
            (statements.store_vectors(), parameters),
        ]
    )


def label(row: AnyRow) -> str:
    """Return `namespace/tool` of a row of `tools_without_vector`."""
    return f"{row.namespace}/{row.tool_name}"


def model_to_build(
    models: Sequence[EmbeddingModelRecord], embedder: Embedder, *, rebuild: bool
) -> EmbeddingModelRecord | None:
    """Return the set to go on with; None where a new one has to be made, or a size be learnt.

    Args:
        models: Newest first.
        embedder: The model of the set; of unknown size, an unfinished set tells it.
        rebuild: Never go on with the one in use, or with a retired one.
    """
    ours = _of_model(models, embedder)
    serving = next((record for record in ours if record.state == "active"), None)
    unfinished = [record for record in ours if record.state == "building"]
    if rebuild:
        # Beside the serving set of the same size; one of another size is a change of model.
        sizes = {serving.model.dimensions} if serving else {r.model.dimensions for r in unfinished}
        return next((r for r in unfinished if r.model.dimensions in sizes), None)
    if serving is None:
        return next(iter(unfinished or ours), None)
    if embedder.dimensions is not None:
        return serving
    # The same name with vectors of another size, being changed to: an interrupted migration.
    size = serving.model.dimensions
    return next((record for record in unfinished if record.model.dimensions != size), None)


def model_to_switch_to(
    models: Sequence[EmbeddingModelRecord], embedder: Embedder
) -> EmbeddingModelRecord:
    """Return the set of the configured model that was built; the serving one where none was.

    Raises:
        ConfigurationError: There is none.
    """
    ours = _of_model(models, embedder)
    for state in ("building", "active"):
        for record in ours:
            if record.state == state:
                return record
    raise ConfigurationError(
        f"There is no set of vectors of {embedder.name} to switch to. Build it first: "
        "`toolrag embeddings migrate --to MODEL`."
    )


def _of_model(
    models: Sequence[EmbeddingModelRecord], embedder: Embedder
) -> list[EmbeddingModelRecord]:
    return [
        record
        for record in models
        if (record.model.name, record.model.revision) == (embedder.name, embedder.revision)
        and embedder.dimensions in (None, record.model.dimensions)
    ]


def model_to_revert_to(models: Sequence[EmbeddingModelRecord]) -> EmbeddingModelRecord:
    """Return the set that served last before the present one.

    Raises:
        ConfigurationError: There is none.
    """
    # One that is being brought up to date to be switched to again served before as well.
    earlier = [record for record in models if record.state != "active" and record.activated_at]
    if not earlier:
        raise ConfigurationError(
            "There is no earlier set of vectors to go back to: none served before, or it was "
            "pruned."
        )
    return max(earlier, key=lambda record: (str(record.activated_at), record.id))


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
    questions: Sequence[Question],
    before: Sequence[set[str]],
    after: Sequence[set[str]],
    *,
    k: int,
    known: Collection[str],
) -> EmbeddingComparison:
    """Return how the first k of two sets agree with each other and with the labels.

    Args:
        questions: With their labels.
        before: Names that the serving set found for each.
        after: Names that the new set found for each.
        k: Hits looked at.
        known: Names of the active tools.
    """
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
        unknown=sorted({name for q in questions for name in q.relevant} - set(known)),
    )
