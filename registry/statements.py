"""Pure functions that return SQLAlchemy statements; both stores run the same ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pgvector.sqlalchemy import HALFVEC
from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Double,
    Insert,
    Row,
    Select,
    Text,
    TextClause,
    Update,
    Uuid,
    bindparam,
    cast,
    column,
    func,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.types import TypeEngine

from registry.migrate import HNSW_INDEX_PREFIX
from registry.tables import embedding_model, tool_embedding, tool_registry
from registry.text import content_hash
from registry.types import EmbeddingModel, ToolHit, ToolRecord, ToolSpec

__all__ = ["MAX_INDEXED_DIMENSIONS", "CurrentTool", "Rows"]

_HIT_COLUMNS = (
    tool_registry.c.tool_name,
    tool_registry.c.display_name,
    tool_registry.c.description,
    tool_registry.c.category,
    tool_registry.c.binding,
    tool_registry.c.origin,
    tool_registry.c.requires_approval,
    tool_registry.c.read_only,
    tool_registry.c.version,
)
_SPEC_FIELDS = (
    "tool_name",
    "display_name",
    "description",
    "category",
    "examples",
    "binding",
    "origin",
    "args_schema",
    "requires_approval",
    "read_only",
)
_RECORD_COLUMNS = (
    *(tool_registry.c[name] for name in _SPEC_FIELDS),
    tool_registry.c.namespace,
    tool_registry.c.is_active,
    tool_registry.c.version,
    tool_registry.c.content_hash,
    tool_registry.c.created_at,
    tool_registry.c.updated_at,
)
Rows = Select[*tuple[Any, ...]]
MAX_INDEXED_DIMENSIONS = 4_000  # pgvector's limit for an HNSW index on halfvec
# Among 10,000 real tools the defaults (m 16, ef_construction 64, ef_search 40) give the exact top 5
# for 80 of 100 questions; these with ef_search 200 for over 99.
_HNSW_OPTIONS = {"m": 24, "ef_construction": 400}
_HNSW_OPERATOR_CLASS = "halfvec_cosine_ops"


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentTool:
    """What a sync needs to know of a registered tool.

    Attributes:
        source_hash: Hash of the text its vector was made from, None without a vector.
    """

    content_hash: str
    origin: str
    is_active: bool
    source_hash: str | None


# ---------------------------------------------------------------- search


def set_search_settings(*, ef_search: int, statement_timeout_s: float) -> Rows:
    """Set the search's options until the end of the transaction, and for nothing after it."""
    return select(
        func.set_config("hnsw.ef_search", str(ef_search), True),
        func.set_config("hnsw.iterative_scan", "strict_order", True),
        # The planner takes a distance for cheap and a page in memory for dear: with its default
        # of 4 it scans 10,000 vectors although the index answers in a third of the time.
        func.set_config("random_page_cost", "1.1", True),
        func.set_config("statement_timeout", str(round(statement_timeout_s * 1_000)), True),
    )


def set_statement_timeout(timeout_s: float) -> Rows:
    """Limit the statements of this transaction."""
    return select(func.set_config("statement_timeout", str(round(timeout_s * 1_000)), True))


def nearest_tools(model_id: int, dimensions: int) -> Rows:
    """Return the nearest active tools of a namespace, by cosine distance, ties by name.

    Binds `namespace`, `vector` (pgvector's text form) and `k`. The model's id is written into
    the statement: only then can a prepared statement use the model's partial index. The order
    is by distance, ascending, with the index's own operator and expression, so the index serves.
    """
    distance = _distance(tool_embedding.c.vector, dimensions)
    return (
        select(*_HIT_COLUMNS, distance.label("distance"))
        .select_from(tool_embedding)
        .join(tool_registry, tool_registry.c.id == tool_embedding.c.tool_id)
        .where(_of_model(model_id), *_visible())
        .order_by(distance, tool_registry.c.tool_name)
        .limit(bindparam("k"))
    )


def nearest_tools_exactly(model_id: int, dimensions: int) -> Rows:
    """Return the same rows as `nearest_tools`, from a scan that cannot use the index.

    For the search whose index walk came back short: filters are applied after the walk, so a
    short answer does not prove that there are no more rows. Materialising the distances of the
    filtered rows leaves the planner no other way, whatever is set in the session.
    """
    measured = (
        select(
            tool_registry.c.id,
            tool_registry.c.tool_name,
            _distance(tool_embedding.c.vector, dimensions).label("distance"),
        )
        .select_from(tool_embedding)
        .join(tool_registry, tool_registry.c.id == tool_embedding.c.tool_id)
        .where(_of_model(model_id), *_visible())
        .cte("measured")
        .prefix_with("MATERIALIZED")
    )
    nearest = (
        select(measured.c.id, measured.c.distance)
        .order_by(measured.c.distance, measured.c.tool_name)
        .limit(bindparam("k"))
        .subquery("nearest")
    )
    return (
        select(*_HIT_COLUMNS, nearest.c.distance)
        .select_from(nearest)
        .join(tool_registry, tool_registry.c.id == nearest.c.id)
        .order_by(nearest.c.distance, tool_registry.c.tool_name)
    )


def tool_hit(row: Row[*tuple[Any, ...]], rank: int) -> ToolHit:
    """Return the hit of a search row; relevance is 1 - distance, within 0 to 1."""
    values = _values(row)
    distance = max(0.0, float(values.pop("distance")))
    return ToolHit(**values, rank=rank, distance=distance, relevance=max(0.0, 1.0 - distance))


def _values(row: Row[*tuple[Any, ...]]) -> dict[str, Any]:
    # SQLAlchemy's public name for it; the underscore keeps it apart from columns.
    return dict(row._mapping)  # pyright: ignore[reportPrivateUsage]


def _distance(vector: ColumnElement[Any], dimensions: int) -> ColumnElement[float]:
    sized = HALFVEC(dimensions)
    question = cast(bindparam("vector", type_=Text), sized)
    return cast(vector, sized).op("<=>", return_type=Double())(question)


def _of_model(model_id: int) -> ColumnElement[bool]:
    return tool_embedding.c.embedding_model_id == bindparam(
        "model_id", model_id, literal_execute=True
    )


def _visible() -> tuple[ColumnElement[bool], ...]:
    """Return the one rule of what a caller sees; a missing namespace matches none."""
    return (tool_registry.c.namespace == bindparam("namespace"), tool_registry.c.is_active)


# ---------------------------------------------------------------- reading


def get_tool(namespace: str, tool_name: str) -> Rows:
    """One tool, active or not."""
    return select(*_RECORD_COLUMNS).where(
        tool_registry.c.namespace == namespace, tool_registry.c.tool_name == tool_name
    )


def list_tools(namespace: str, *, include_inactive: bool) -> Rows:
    """All tools of a namespace, by name."""
    statement = select(*_RECORD_COLUMNS).where(tool_registry.c.namespace == namespace)
    if not include_inactive:
        statement = statement.where(tool_registry.c.is_active)
    return statement.order_by(tool_registry.c.tool_name)


def tool_names(namespace: str) -> Rows:
    """Names of the active tools of a namespace, in order."""
    return (
        select(tool_registry.c.tool_name)
        .where(tool_registry.c.namespace == namespace, tool_registry.c.is_active)
        .order_by(tool_registry.c.tool_name)
    )


def active_states(namespace: str, names: Iterable[str]) -> Rows:
    """(tool_name, is_active) of those names that are registered."""
    return select(tool_registry.c.tool_name, tool_registry.c.is_active).where(
        tool_registry.c.namespace == namespace,
        tool_registry.c.tool_name == func.any(bindparam("names", list(names), ARRAY(Text))),
    )


def tool_record(row: Row[*tuple[Any, ...]]) -> ToolRecord:
    """Return the record of a row of `get_tool` or `list_tools`."""
    values = _values(row)
    fields = {name: values.pop(name) for name in _SPEC_FIELDS}
    fields["examples"] = tuple(fields["examples"])
    return ToolRecord(spec=ToolSpec(**fields), **values)


# ---------------------------------------------------------------- sync


def current_tools(namespace: str, model_id: int | None) -> Rows:
    """(tool_name, content_hash, origin, is_active, source_hash) of a whole namespace."""
    return (
        select(
            tool_registry.c.tool_name,
            tool_registry.c.content_hash,
            tool_registry.c.origin,
            tool_registry.c.is_active,
            tool_embedding.c.source_hash,
        )
        .select_from(tool_registry)
        .outerjoin(
            tool_embedding,
            (tool_embedding.c.tool_id == tool_registry.c.id)
            & (tool_embedding.c.embedding_model_id == (0 if model_id is None else model_id)),
        )
        .where(tool_registry.c.namespace == namespace)
    )


def current_tool(row: Row[*tuple[Any, ...]]) -> tuple[str, CurrentTool]:
    """Return (tool name, state) of a row of `current_tools`."""
    values = _values(row)
    return values.pop("tool_name"), CurrentTool(**values)


def upsert_tools() -> Insert:
    """Add tools, or update those whose content differs: version + 1. Takes many rows.

    Activity is not touched: a tool that an operator switched off stays off.
    """
    statement = insert(tool_registry)
    new = statement.excluded
    changed = {name: new[name] for name in (*_SPEC_FIELDS, "content_hash") if name != "tool_name"}
    return statement.on_conflict_do_update(
        index_elements=[tool_registry.c.namespace, tool_registry.c.tool_name],
        set_={**changed, "version": tool_registry.c.version + 1, "updated_at": func.now()},
        where=tool_registry.c.content_hash != new.content_hash,
    )


def tool_row(namespace: str, spec: ToolSpec) -> Mapping[str, Any]:
    """Return a spec as a row of `upsert_tools`."""
    row = {name: getattr(spec, name) for name in _SPEC_FIELDS}
    return {
        **row,
        "examples": list(spec.examples),
        "args_schema": dict(spec.args_schema),
        "namespace": namespace,
        "content_hash": content_hash(spec),
    }


def upsert_vectors() -> Insert:
    """Store vectors of tools by name.

    Binds `namespace`, `model_id` and the arrays `names`, `vectors` (text form), `hashes`.
    """
    return _upsert_vectors(
        "names",
        Text(),
        lambda key: (
            (tool_registry.c.tool_name == key)
            & (tool_registry.c.namespace == bindparam("namespace"))
        ),
    )


def upsert_vectors_by_id() -> Insert:
    """Store vectors of tools by id, as `upsert_vectors`; binds `ids` in place of the names.

    A tool that was removed meanwhile is passed over.
    """
    return _upsert_vectors("ids", Uuid(), lambda key: tool_registry.c.id == key)


def _upsert_vectors(
    keys: str, kind: TypeEngine[Any], matches: Callable[[ColumnElement[Any]], ColumnElement[bool]]
) -> Insert:
    given = (
        func.unnest(
            bindparam(keys, type_=ARRAY(kind)),
            bindparam("vectors", type_=ARRAY(Text)),
            bindparam("hashes", type_=ARRAY(Text)),
        )
        .table_valued(
            column("key", kind), column("vector", Text), column("source_hash", Text), name="given"
        )
        .render_derived()
    )
    rows = (
        select(
            tool_registry.c.id,
            bindparam("model_id"),
            cast(given.c.vector, HALFVEC()),
            given.c.source_hash,
        )
        .select_from(given)
        .join(tool_registry, matches(given.c.key))
    )
    statement = insert(tool_embedding).from_select(
        ["tool_id", "embedding_model_id", "vector", "source_hash"], rows
    )
    return statement.on_conflict_do_update(
        index_elements=[tool_embedding.c.tool_id, tool_embedding.c.embedding_model_id],
        set_={
            "vector": statement.excluded.vector,
            "source_hash": statement.excluded.source_hash,
            "created_at": func.now(),
        },
    )


def set_active(namespace: str, tool_name: str, *, is_active: bool) -> Update:
    """Switch a tool on or off; returns its name where it exists."""
    return (
        update(tool_registry)
        .where(tool_registry.c.namespace == namespace, tool_registry.c.tool_name == tool_name)
        .values(is_active=is_active, updated_at=func.now())
        .returning(tool_registry.c.tool_name)
    )


# ---------------------------------------------------------------- embedding models


def active_model() -> Rows:
    """(id, name, revision, dimensions, threshold) of the model that serves searches."""
    return select(
        embedding_model.c.id,
        embedding_model.c.name,
        embedding_model.c.revision,
        embedding_model.c.dimensions,
        embedding_model.c.threshold,
    ).where(embedding_model.c.state == "active")


def add_model(model: EmbeddingModel, *, state: str) -> Insert:
    """Register an embedding model; nothing happens where it, or an active one, is there."""
    return (
        insert(embedding_model)
        .values(
            name=model.name,
            revision=model.revision,
            dimensions=model.dimensions,
            threshold=model.threshold,
            state=state,
        )
        .on_conflict_do_nothing()
    )


def model_id(model: EmbeddingModel) -> Rows:
    """(id) of a registered model."""
    return select(embedding_model.c.id).where(
        embedding_model.c.name == model.name,
        embedding_model.c.revision == model.revision,
        embedding_model.c.dimensions == model.dimensions,
    )


def lock_tools() -> TextClause:
    """Keep writers out until the end of the transaction; searches go on."""
    return text("LOCK TABLE tool_registry, tool_embedding IN SHARE MODE")


def _is_complete(model_id: int) -> ColumnElement[bool]:
    """Return whether every tool has a vector of a model."""
    of_model = select(tool_embedding.c.tool_id).where(
        tool_embedding.c.tool_id == tool_registry.c.id,
        tool_embedding.c.embedding_model_id == model_id,
    )
    return ~select(tool_registry.c.id).where(~of_model.exists()).exists()


def retire_active_model(successor_id: int) -> Update:
    """Stop the active model from serving, unless its successor lacks a vector."""
    return (
        update(embedding_model)
        .where(embedding_model.c.state == "active", _is_complete(successor_id))
        .values(state="retired")
    )


def activate_model(model_id: int) -> Update:
    """Let a complete model serve searches; returns its id where that was done."""
    return (
        update(embedding_model)
        .where(embedding_model.c.id == model_id, _is_complete(model_id))
        .values(state="active")
        .returning(embedding_model.c.id)
    )


def texts_and_hashes(model_id: int) -> Rows:
    """(id, namespace, spec fields, source_hash or NULL) of every tool of every namespace."""
    return (
        select(
            tool_registry.c.id,
            tool_registry.c.namespace,
            *(tool_registry.c[name] for name in _SPEC_FIELDS),
            tool_embedding.c.source_hash,
        )
        .select_from(tool_registry)
        .outerjoin(
            tool_embedding,
            (tool_embedding.c.tool_id == tool_registry.c.id)
            & (tool_embedding.c.embedding_model_id == model_id),
        )
        .order_by(tool_registry.c.namespace, tool_registry.c.tool_name)
    )


def text_row(row: Row[*tuple[Any, ...]]) -> tuple[UUID, ToolSpec, str | None]:
    """Return (id, spec, source hash) of a row of `texts_and_hashes`."""
    values = _values(row)
    fields = {name: values[name] for name in _SPEC_FIELDS}
    fields["examples"] = tuple(fields["examples"])
    return values["id"], ToolSpec(**fields), values["source_hash"]


def model_of_row(row: Row[*tuple[Any, ...]]) -> tuple[int, EmbeddingModel]:
    """Return (id, identity) of a row of `active_model`."""
    values = _values(row)
    return values.pop("id"), EmbeddingModel(**values)


# ---------------------------------------------------------------- the vector index


def index_name(model_id: int) -> str:
    """Return the name of a model's HNSW index."""
    return f"{HNSW_INDEX_PREFIX}{model_id:d}"


def count_vectors(model_id: int) -> Rows:
    """Count the vectors of a model, of all namespaces."""
    return (
        select(func.count())
        .select_from(tool_embedding)
        .where(tool_embedding.c.embedding_model_id == model_id)
    )


def index_state(model_id: int) -> TextClause:
    """(is_valid, as_expected) of a model's index; no row where there is none.

    Alembic does not compare operator classes, so method, class and options are compared here.
    """
    return text(
        """
        SELECT i.indisvalid AND i.indisready AS is_valid,
               am.amname = 'hnsw' AND oc.opcname = :operator_class
               AND c.reloptions @> CAST(:options AS text[]) AS as_expected
        FROM pg_class AS c
        JOIN pg_index AS i ON i.indexrelid = c.oid
        JOIN pg_am AS am ON am.oid = c.relam
        JOIN pg_opclass AS oc ON oc.oid = i.indclass[0]
        WHERE c.relname = :index_name AND i.indrelid = to_regclass('tool_embedding')
        """
    ).bindparams(
        operator_class=_HNSW_OPERATOR_CLASS,
        options=[f"{name}={value}" for name, value in _HNSW_OPTIONS.items()],
        index_name=index_name(model_id),
    )


def create_index(model_id: int, dimensions: int) -> TextClause:
    """Make a model's index without blocking writers; needs an autocommit connection."""
    options = ", ".join(f"{name} = {value:d}" for name, value in _HNSW_OPTIONS.items())
    return text(
        f"CREATE INDEX CONCURRENTLY {index_name(model_id)} ON tool_embedding "
        f"USING hnsw ((vector::halfvec({dimensions:d})) {_HNSW_OPERATOR_CLASS}) "
        f"WITH ({options}) WHERE embedding_model_id = {model_id:d}"
    )


def drop_index(model_id: int) -> TextClause:
    """Remove a model's index, a left-over invalid one included."""
    return text(f"DROP INDEX CONCURRENTLY IF EXISTS {index_name(model_id)}")


def try_index_lock(model_id: int) -> Rows:
    """Take the session's lock on making a model's index; false where another process has it."""
    return select(func.pg_try_advisory_lock(func.hashtext("toolrag_index"), model_id))


def release_index_lock(model_id: int) -> Rows:
    """Give that lock back."""
    return select(func.pg_advisory_unlock(func.hashtext("toolrag_index"), model_id))


def analyze() -> tuple[TextClause, ...]:
    """Refresh the planner's statistics after a large sync."""
    return (text("ANALYZE tool_registry"), text("ANALYZE tool_embedding"))
