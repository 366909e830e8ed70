"""Statements of a search: its settings, the fast way and the exact one."""

from __future__ import annotations

from typing import Any

from pgvector.sqlalchemy import HALFVEC
from sqlalchemy import ColumnElement, Double, Text, bindparam, cast, func, select

from registry.statements._rows import AnyRow, Rows, values_of
from registry.tables import tool_embedding, tool_registry
from registry.types import ToolHit

__all__ = ["nearest_tools", "nearest_tools_exactly", "set_search_settings", "tool_hit"]

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


def tool_hit(row: AnyRow, rank: int) -> ToolHit:
    """Return the hit of a search row; relevance is 1 - distance, within 0 to 1."""
    values = values_of(row)
    distance = max(0.0, float(values.pop("distance")))
    return ToolHit(**values, rank=rank, distance=distance, relevance=max(0.0, 1.0 - distance))


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
