"""Sets of vectors, as the command line shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agent.cli.exit_codes import CliError
from agent.cli.options import GlobalOptions
from agent.cli.output import Output, counted, jsonable

if TYPE_CHECKING:
    from registry.embedding import Embedder
    from registry.types import EmbeddingComparison, EmbeddingModelRecord

__all__ = [
    "comparison_text",
    "configured_model",
    "document",
    "instead_of",
    "is_of",
    "print_sets",
    "serving_set",
    "setting_of",
]


def serving_set(sets: Sequence[EmbeddingModelRecord]) -> EmbeddingModelRecord | None:
    """Return the set that answers searches."""
    return next((record for record in sets if record.state == "active"), None)


def is_of(record: EmbeddingModelRecord, embedder: Embedder) -> bool:
    """Return whether a set is of an embedding model, whose dimensions may not be known yet."""
    return (record.model.name, record.model.revision) == (embedder.name, embedder.revision)


def configured_model(options: GlobalOptions) -> tuple[str, str]:
    """Return (name, revision) of the configured model, also where it cannot be loaded here."""
    from agent.cli.context import embedder_of

    try:
        embedder = embedder_of(options)
    except CliError:
        return options.embedding_model, ""
    return embedder.name, embedder.revision


def setting_of(record: EmbeddingModelRecord) -> str:
    """Return the value of TOOLRAG_EMBEDDING_MODEL for the model of a set."""
    return record.model.name


def instead_of(before: EmbeddingModelRecord | None) -> str:
    """Return the end of a question that names the set to be replaced."""
    return "" if before is None else f" instead of set {before.id}, {before.model}"


def print_sets(output: Output, sets: Sequence[EmbeddingModelRecord]) -> None:
    """Print one line a set."""
    output.table(
        ["id", "state", "vectors", "dimensions", "generation", "made", "active since", "model"],
        [
            [
                str(s.id),
                s.state,
                str(s.vectors),
                str(s.model.dimensions),
                str(s.generation),
                s.created_at.isoformat(timespec="seconds"),
                "-" if s.activated_at is None else s.activated_at.isoformat(timespec="seconds"),
                s.model.name + (f"@{s.model.revision}" if s.model.revision else ""),
            ]
            for s in sets
        ],
        numeric=["id", "vectors", "dimensions", "generation"],
    )


def document(record: EmbeddingModelRecord) -> dict[str, Any]:
    """Return a set as one flat JSON object."""
    fields: dict[str, Any] = jsonable(record)
    return {**fields.pop("model"), **fields}


def comparison_text(compared: EmbeddingComparison) -> str:
    """Return what a comparison found, in a sentence or two."""
    text = (
        f"Compared on {counted(compared.questions, 'question')}: of the first {compared.k} tools, "
        f"{compared.overlap:.0%} are the same."
    )
    if compared.recall_before is not None and compared.recall_after is not None:
        text += (
            f" Recall@{compared.k}: {compared.recall_before:.1%} before, "
            f"{compared.recall_after:.1%} after."
        )
    if compared.unknown:
        text += f" Labels that are no active tool: {', '.join(compared.unknown)}."
    return text
