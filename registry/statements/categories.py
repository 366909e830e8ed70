"""Statements of categories: their keywords, and what a search needs to know before it routes."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import (
    ColumnElement,
    Delete,
    Insert,
    Integer,
    Text,
    bindparam,
    cast,
    delete,
    func,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import aggregate_order_by, insert

from registry.statements._rows import Rows
from registry.tables import tool_category, tool_registry

__all__ = [
    "categories_stamp",
    "count_active_tools",
    "delete_category",
    "list_categories",
    "tool_categories",
    "write_category",
]

_NAMESPACE = bindparam("namespace", type_=Text)


def list_categories(namespace: str) -> Rows:
    """Return name, keywords and `categories_stamp`, in name order."""
    return (
        select(
            tool_category.c.name,
            tool_category.c.keywords,
            categories_stamp(),
        )
        .where(tool_category.c.namespace == namespace)
        .order_by(tool_category.c.name)
        .params(namespace=namespace)
    )


def write_category(namespace: str, name: str, keywords: Sequence[str]) -> Insert:
    """Add a category, or give it other keywords."""
    # Not now(), a transaction's beginning: of two that overlap, the later must be told apart.
    values = {"keywords": list(keywords), "updated_at": func.clock_timestamp()}
    statement = insert(tool_category).values(namespace=namespace, name=name, **values)
    return statement.on_conflict_do_update(
        index_elements=[tool_category.c.namespace, tool_category.c.name], set_=values
    )


def delete_category(namespace: str, name: str) -> Delete:
    """Remove a category; the number of rows says whether it was there."""
    return delete(tool_category).where(
        tool_category.c.namespace == namespace, tool_category.c.name == name
    )


def tool_categories(namespace: str) -> Rows:
    """Return the categories of active tools with their number of tools, in name order."""
    return (
        select(tool_registry.c.category, func.count().label("tools"))
        .where(tool_registry.c.namespace == namespace, tool_registry.c.is_active)
        .group_by(tool_registry.c.category)
        .order_by(tool_registry.c.category)
    )


def categories_stamp() -> ColumnElement[str]:
    """Return a text that differs whenever a category was changed, as a column of any statement.

    Binds `namespace`. Whoever keeps a compiled router looks at it with each search.
    """
    entry = tool_category.c.name + " " + cast(tool_category.c.updated_at, Text)
    ordered = aggregate_order_by(literal_column("','"), tool_category.c.name)
    return (
        select(func.md5(func.coalesce(func.string_agg(entry, ordered), "")))
        .where(tool_category.c.namespace == _NAMESPACE)
        .correlate(None)
        .scalar_subquery()
        .label("categories_stamp")
    )


def count_active_tools() -> ColumnElement[int]:
    """Return the number of active tools, counted as far as `counted`, as a column of a statement.

    Binds `namespace` and `counted`. Counting all of a large registry would take longer than a
    search.
    """
    some = (
        select(literal_column("1"))
        .select_from(tool_registry)
        .where(tool_registry.c.namespace == _NAMESPACE, tool_registry.c.is_active)
        .limit(bindparam("counted", type_=Integer))
        .subquery("some")
    )
    return select(func.count()).select_from(some).scalar_subquery().label("active_tools")
