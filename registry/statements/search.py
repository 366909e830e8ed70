"""Statements of a search: its settings, the fast way and the exact one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pgvector.sqlalchemy import HALFVEC
from sqlalchemy import (
    ColumnElement,
    Double,
    FromClause,
    Integer,
    Text,
    bindparam,
    cast,
    func,
    literal_column,
    select,
    union_all,
)

from registry.statements._rows import Rows
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
_K = bindparam("k", type_=Integer)
_EF_SEARCH = cast(func.current_setting("hnsw.ef_search"), Integer)


def set_search_settings(*, ef_search: int, statement_timeout_s: float) -> Rows:
    """Set the search's options until the end of the transaction, and for nothing after it."""
    return select(
        func.set_config("hnsw.ef_search", str(ef_search), True),
        func.set_config("hnsw.iterative_scan", "relaxed_order", True),
        # The planner takes a distance for cheap and a page in memory for dear: with its default
        # of 4 it scans 10,000 vectors although the index answers in a third of the time.
        func.set_config("random_page_cost", "1.1", True),
        # Compiling the exact scan, which most searches never begin, takes longer than a search.
        func.set_config("jit", "off", True),
        func.set_config("statement_timeout", str(round(statement_timeout_s * 1_000)), True),
    )


def nearest_tools(model_id: int, dimensions: int) -> Rows:
    """Return the nearest active tools of a namespace, by cosine distance, ties by name.

    Binds `namespace`, `vector` (pgvector's text form) and `k`. The model's id is written into
    the statement: only then can a prepared statement use the model's partial index. The walk is
    ordered by distance, ascending, with the index's own operator and expression, so the index
    serves.

    An index knows no filters, and one that goes on walking until k tools pass them has left the
    well-explored part of its graph: among 100,000 tools recall@10 fell to 0.9 where 1 tool in 100
    passed, and to 0.3 where the nearest 10,000 were another namespace's. So only the nearer half
    of what the index sees in one go is taken. Where k of it pass, nearer than its farthest, they
    are the answer; else the caller's own tools are measured one by one, in this same statement.
    """
    walked = (
        select(tool_embedding.c.tool_id, _distance(dimensions).label("distance"))
        .where(_of_model(model_id))
        .order_by(_distance(dimensions))
        .limit(func.greatest(2 * _K, _EF_SEARCH // 2))
        .cte("walked")
        .prefix_with("MATERIALIZED")
    )
    farthest = select(func.max(walked.c.distance)).scalar_subquery()
    passed = (
        select(tool_registry.c.id, tool_registry.c.tool_name, walked.c.distance)
        .select_from(walked)
        .join(tool_registry, tool_registry.c.id == walked.c.tool_id)
        .where(*_visible(), walked.c.distance < farthest)
        .cte("passed")
        .prefix_with("MATERIALIZED")
    )
    count = select(func.count()).select_from(passed).scalar_subquery()
    measured = (
        _measured(model_id, dimensions)
        .where(count < _K)
        .cte("measured")
        .prefix_with("MATERIALIZED")
    )
    found = union_all(select(passed).where(count >= _K), select(measured)).subquery("found")
    return _nearest_of(found)


def nearest_tools_exactly(model_id: int, dimensions: int) -> Rows:
    """Return the nearest active tools of a namespace from a scan that cannot use the index.

    Binds what `nearest_tools` binds. Materialising the distances of the filtered rows leaves the
    planner no other way, whatever is set in the session.
    """
    measured = _measured(model_id, dimensions).cte("measured").prefix_with("MATERIALIZED")
    return _nearest_of(measured)


def tool_hit(row: Mapping[str, Any], rank: int) -> ToolHit:
    """Return the hit of a search row; relevance is 1 - distance, within 0 to 1."""
    values = dict(row)
    distance = max(0.0, float(values.pop("distance")))
    return ToolHit(**values, rank=rank, distance=distance, relevance=max(0.0, 1.0 - distance))


def _measured(model_id: int, dimensions: int) -> Rows:
    """(id, tool_name, distance) of what the caller sees."""
    return (
        select(
            tool_registry.c.id,
            tool_registry.c.tool_name,
            _distance(dimensions).label("distance"),
        )
        .select_from(tool_embedding)
        .join(tool_registry, tool_registry.c.id == tool_embedding.c.tool_id)
        .where(_of_model(model_id), *_visible())
    )


def _nearest_of(measured: FromClause) -> Rows:
    """Return the hits of the k nearest; the wide columns are read for those alone."""
    nearest = (
        select(measured.c.id, measured.c.distance)
        .order_by(measured.c.distance, measured.c.tool_name)
        .limit(_K)
        .subquery("nearest")
    )
    return (
        select(*_HIT_COLUMNS, nearest.c.distance)
        .select_from(nearest)
        .join(tool_registry, tool_registry.c.id == nearest.c.id)
        .order_by(nearest.c.distance, tool_registry.c.tool_name)
    )


def _distance(dimensions: int) -> ColumnElement[float]:
    sized = HALFVEC(dimensions)
    question = cast(bindparam("vector", type_=Text), sized)
    return cast(tool_embedding.c.vector, sized).op("<=>", return_type=Double())(question)


def _of_model(model_id: int) -> ColumnElement[bool]:
    return tool_embedding.c.embedding_model_id == literal_column(f"{model_id:d}", Integer)


def _visible() -> tuple[ColumnElement[bool], ...]:
    """Return the one rule of what a caller sees; a missing namespace matches none."""
    return (tool_registry.c.namespace == bindparam("namespace"), tool_registry.c.is_active)
