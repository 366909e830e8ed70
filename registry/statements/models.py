"""Statements about embedding models and the vectors of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from pgvector.sqlalchemy import HALFVEC, VECTOR
from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Insert,
    Label,
    Text,
    TextClause,
    Update,
    Uuid,
    bindparam,
    case,
    cast,
    column,
    delete,
    func,
    select,
    text,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.dml import ReturningDelete

from registry.statements._rows import SPEC_FIELDS, AnyRow, Rows, spec_of, values_of
from registry.tables import embedding_model, tool_embedding, tool_registry, tool_vector_archive
from registry.types import EmbeddingModel, EmbeddingModelRecord, ToolSpec

__all__ = [
    "activate_model",
    "active_model",
    "add_model",
    "archive_vectors",
    "delete_model",
    "known_vectors",
    "lacking_row",
    "list_models",
    "lock_for_writing",
    "lock_tools",
    "model_of_row",
    "model_record",
    "newest_model",
    "reopen_model",
    "retire_active_model",
    "searched_vector",
    "serving_model_id",
    "store_vectors",
    "stored_models",
    "tools_to_mend",
    "tools_without_vector",
    "vector_is_lacking",
]

_MODEL_COLUMNS = (
    embedding_model.c.id,
    embedding_model.c.name,
    embedding_model.c.revision,
    embedding_model.c.dimensions,
    embedding_model.c.threshold,
)


# ---------------------------------------------------------------- models


def active_model(*, locked: bool = False) -> Rows:
    """(id, name, revision, dimensions, threshold) of the model that serves searches.

    Args:
        locked: Keep it from being switched until the end of the transaction.
    """
    statement = select(*_MODEL_COLUMNS).where(embedding_model.c.state == "active")
    return statement.with_for_update(read=True) if locked else statement


def newest_model(model: EmbeddingModel) -> Rows:
    """(id, …, state, generation) of the newest generation of a model."""
    return (
        select(*_MODEL_COLUMNS, embedding_model.c.state, embedding_model.c.generation)
        .where(
            embedding_model.c.name == model.name,
            embedding_model.c.revision == model.revision,
            embedding_model.c.dimensions == model.dimensions,
        )
        .order_by(embedding_model.c.generation.desc())
        .limit(1)
    )


def list_models() -> Rows:
    """Every model with its state and number of up-to-date rows, newest first."""
    vectors = (
        select(func.count())
        .select_from(tool_embedding)
        .where(tool_embedding.c.embedding_model_id == embedding_model.c.id)
        .scalar_subquery()
    )
    return select(
        *_MODEL_COLUMNS,
        embedding_model.c.state,
        embedding_model.c.generation,
        embedding_model.c.created_at,
        embedding_model.c.activated_at,
        vectors.label("vectors"),
    ).order_by(embedding_model.c.id.desc())


def serving_model_id() -> Label[int]:
    """Id of the model that serves searches, to be selected beside something else."""
    return (
        select(embedding_model.c.id)
        .where(embedding_model.c.state == "active")
        .scalar_subquery()
        .label("serving")
    )


def stored_models() -> Rows:
    """(id, …, state, activated_at) of every model, newest first; counts nothing."""
    return select(
        *_MODEL_COLUMNS, embedding_model.c.state, embedding_model.c.activated_at
    ).order_by(embedding_model.c.id.desc())


def add_model(model: EmbeddingModel, *, state: str, generation: int = 1) -> Insert:
    """Register an embedding model; nothing happens where it, or an active one, is there."""
    return (
        insert(embedding_model)
        .values(
            name=model.name,
            revision=model.revision,
            dimensions=model.dimensions,
            threshold=model.threshold,
            generation=generation,
            state=state,
            activated_at=func.now() if state == "active" else None,
        )
        .on_conflict_do_nothing()
    )


def lock_tools() -> TextClause:
    """Keep writers, and other switches, out until the end of the transaction; searches go on."""
    return text("LOCK TABLE tool_registry, tool_embedding IN SHARE ROW EXCLUSIVE MODE")


def lock_for_writing() -> TextClause:
    """Wait for a switch that is under way, before anything else is locked."""
    return text("LOCK TABLE tool_registry, tool_embedding IN ROW EXCLUSIVE MODE")


def retire_active_model(successor_id: int) -> Update:
    """Stop the active model from serving, in favour of another."""
    return (
        update(embedding_model)
        .where(embedding_model.c.state == "active", embedding_model.c.id != successor_id)
        .values(state="retired")
    )


def reopen_model(model_id: int) -> Update:
    """Let a retired model be brought up to date, and switched to again."""
    return (
        update(embedding_model)
        .where(embedding_model.c.id == model_id, embedding_model.c.state == "retired")
        .values(state="building")
    )


def activate_model(model_id: int) -> Update:
    """Let a model serve searches; returns its id, nothing where it is gone."""
    return (
        update(embedding_model)
        .where(embedding_model.c.id == model_id)
        .values(state="active", activated_at=func.now())
        .returning(embedding_model.c.id)
    )


def delete_model(model_id: int) -> ReturningDelete[*tuple[Any, ...]]:
    """Remove a model that does not serve, with all its vectors; returns its id."""
    return (
        delete(embedding_model)
        .where(embedding_model.c.id == model_id, embedding_model.c.state != "active")
        .returning(embedding_model.c.id)
    )


def model_of_row(row: AnyRow) -> tuple[int, EmbeddingModel]:
    """Return (id, identity) of a row of `active_model` or `newest_model`."""
    values = values_of(row)
    names = ("name", "revision", "dimensions", "threshold")
    return values["id"], EmbeddingModel(**{name: values[name] for name in names})


def model_record(row: AnyRow) -> EmbeddingModelRecord:
    """Return the record of a row of `list_models`."""
    model_id, model = model_of_row(row)
    values = values_of(row)
    names = ("state", "generation", "vectors", "created_at", "activated_at")
    return EmbeddingModelRecord(id=model_id, model=model, **{name: values[name] for name in names})


# ---------------------------------------------------------------- vectors


def tools_without_vector(model_id: int) -> Rows:
    """(id, namespace, text_hash, is_active, is_stale, spec fields) of tools without a vector.

    Stale is one that has a vector of an earlier text. Active tools come first.
    """
    return (
        select(
            tool_registry.c.id,
            tool_registry.c.namespace,
            tool_registry.c.text_hash,
            tool_registry.c.is_active,
            tool_embedding.c.tool_id.is_not(None).label("is_stale"),
            *(tool_registry.c[name] for name in SPEC_FIELDS),
        )
        .select_from(tool_registry)
        .outerjoin(
            tool_embedding,
            (tool_embedding.c.tool_id == tool_registry.c.id)
            & (tool_embedding.c.embedding_model_id == model_id),
        )
        .where(tool_embedding.c.source_hash.is_distinct_from(tool_registry.c.text_hash))
        .order_by(
            tool_registry.c.is_active.desc(), tool_registry.c.namespace, tool_registry.c.tool_name
        )
    )


def tools_to_mend(namespace: str, model_id: int, names: Sequence[str]) -> Rows:
    """Rows of `tools_without_vector` of these active tools."""
    return tools_without_vector(model_id).where(
        tool_registry.c.namespace == namespace,
        tool_registry.c.is_active,
        tool_registry.c.tool_name == func.any(bindparam("names", list(names), ARRAY(Text))),
    )


def vector_is_lacking(tool_id: UUID) -> Rows:
    """(id) of a tool, where a model serves that has no vector of its present text."""
    stored = select(tool_embedding.c.tool_id).where(
        tool_embedding.c.tool_id == tool_registry.c.id,
        tool_embedding.c.embedding_model_id == embedding_model.c.id,
        tool_embedding.c.source_hash == tool_registry.c.text_hash,
    )
    return (
        select(tool_registry.c.id)
        .join(embedding_model, embedding_model.c.state == "active")
        .where(tool_registry.c.id == tool_id, ~stored.exists())
    )


def lacking_row(row: AnyRow) -> tuple[UUID, str, ToolSpec]:
    """Return (id, namespace, spec) of a row of `tools_without_vector`."""
    values = values_of(row)
    return values["id"], values["namespace"], spec_of(values)


def known_vectors(model_id: int, hashes: Sequence[str]) -> Rows:
    """(source_hash, vector as text) of texts this model embedded before, whoever's they were."""
    wanted = func.any(bindparam("hashes", list(hashes), ARRAY(Text)))
    return select(
        *union_all(
            select(tool_embedding.c.source_hash, cast(_of_text(), Text).label("vector")).where(
                tool_embedding.c.embedding_model_id == model_id,
                tool_embedding.c.source_hash == wanted,
            ),
            select(
                tool_vector_archive.c.source_hash, cast(tool_vector_archive.c.vector, Text)
            ).where(
                tool_vector_archive.c.embedding_model_id == model_id,
                tool_vector_archive.c.source_hash == wanted,
            ),
        )
        .subquery("known")
        .c
    ).distinct()


def archive_vectors() -> Insert:
    """Keep the vectors that `store_vectors` with the same binds is about to replace."""
    given = _given()
    rows = (
        select(
            tool_embedding.c.embedding_model_id,
            tool_embedding.c.source_hash,
            _of_text(),
        )
        .select_from(given)
        .join(tool_embedding, tool_embedding.c.tool_id == given.c.tool_id)
        .where(
            tool_embedding.c.embedding_model_id == bindparam("model_id"),
            tool_embedding.c.source_hash != given.c.source_hash,
        )
    )
    return (
        insert(tool_vector_archive)
        .from_select(["embedding_model_id", "source_hash", "vector"], rows)
        .on_conflict_do_nothing()
    )


def store_vectors() -> Insert:
    """Store vectors of tools; returns the ids that were stored.

    Binds `model_id` and the arrays `ids`, `vectors` (text form), `hashes`. A vector is stored only
    while its tool still has the text it was made from. What was learnt from use is kept: the
    searched vector is then the normalised sum of both.
    """
    given = _given()
    rows = (
        select(
            tool_registry.c.id,
            bindparam("model_id"),
            cast(given.c.vector, HALFVEC()),
            given.c.source_hash,
        )
        .select_from(given)
        .join(tool_registry, tool_registry.c.id == given.c.tool_id)
        .where(tool_registry.c.text_hash == given.c.source_hash)
        .with_for_update(read=True, of=tool_registry)
    )
    statement = insert(tool_embedding).from_select(
        ["tool_id", "embedding_model_id", "vector", "source_hash"], rows
    )
    feedback, text_vector = tool_embedding.c.feedback_vector, statement.excluded.vector
    summed = searched_vector(text_vector, feedback)
    return statement.on_conflict_do_update(
        index_elements=[tool_embedding.c.tool_id, tool_embedding.c.embedding_model_id],
        set_={
            "vector": case((feedback.is_(None), text_vector), else_=summed),
            "description_vector": case((feedback.is_not(None), text_vector)),
            "source_hash": statement.excluded.source_hash,
            "created_at": func.now(),
        },
    ).returning(tool_embedding.c.tool_id)


def searched_vector(text_vector: ColumnElement[Any], feedback: ColumnElement[Any]) -> Any:
    """Return the normalised sum of a text's vector, taken at length 1, and what was learnt."""
    of_text = func.l2_normalize(cast(text_vector, VECTOR()), type_=VECTOR())
    return cast(func.l2_normalize(of_text + cast(feedback, VECTOR())), HALFVEC())


def _of_text() -> ColumnElement[Any]:
    """Vector of a tool's text, without what was learnt from use."""
    return func.coalesce(tool_embedding.c.description_vector, tool_embedding.c.vector)


def _given() -> Any:
    return (
        func.unnest(
            bindparam("ids", type_=ARRAY(Uuid)),
            bindparam("vectors", type_=ARRAY(Text)),
            bindparam("hashes", type_=ARRAY(Text)),
        )
        .table_valued(
            column("tool_id", Uuid),
            column("vector", Text),
            column("source_hash", Text),
            name="given",
        )
        .render_derived()
    )
