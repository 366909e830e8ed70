"""Statements about the words of tools and the counts that weigh them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    REAL,
    Delete,
    Insert,
    Text,
    Update,
    Uuid,
    bindparam,
    cast,
    column,
    delete,
    func,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, insert

from registry.lexical import COMMON_TERM_TOOLS, TERMS_REVISION, tool_terms
from registry.statements._rows import SPEC_FIELDS, Rows
from registry.tables import tool_corpus, tool_registry, tool_term, tool_term_count
from registry.types import ToolSpec

__all__ = [
    "corpus_size",
    "count_corpus",
    "mark_terms",
    "remove_terms",
    "stale_terms",
    "store_terms",
    "term_rows",
]


def term_rows(specs: Mapping[UUID, ToolSpec]) -> list[dict[str, Any]]:
    """Return what `store_terms` binds as `rows`."""
    return [
        {"id": str(tool_id), "terms": terms, "length": sum(terms.values())}
        for tool_id, terms in ((tool_id, tool_terms(spec)) for tool_id, spec in specs.items())
    ]


def remove_terms(ids: Iterable[UUID]) -> Delete:
    """Remove the words of tools: a tool that is switched off has none."""
    numbers = select(tool_registry.c.number).where(tool_registry.c.id == _any(ids))
    return delete(tool_term).where(tool_term.c.tool_number.in_(numbers))


def store_terms() -> Insert:
    """Store the words of those tools that are active; theirs were removed before. Binds `rows`."""
    given = (
        func.jsonb_to_recordset(cast(bindparam("rows", type_=JSONB), JSONB))
        .table_valued(
            column("id", Uuid), column("terms", JSONB), column("length", REAL), name="given"
        )
        .render_derived(with_types=True)
    )
    posting = (
        func.jsonb_each_text(given.c.terms)
        .table_valued(column("term", Text), column("frequency", Text), name="posting")
        .render_derived()
    )
    rows = (
        select(
            tool_registry.c.namespace,
            posting.c.term,
            tool_registry.c.number,
            cast(posting.c.frequency, REAL),
            given.c.length,
        )
        .select_from(given)
        .join(posting, true())
        .join(tool_registry, tool_registry.c.id == given.c.id)
        .where(tool_registry.c.is_active)
    )
    names = ["namespace", "term", "tool_number", "frequency", "length"]
    return insert(tool_term).from_select(names, rows)


def mark_terms(ids: Iterable[UUID]) -> Update:
    """Note that the words of tools are those that this release makes."""
    return (
        update(tool_registry)
        .where(tool_registry.c.id == _any(ids))
        .values(terms_revision=TERMS_REVISION)
    )


def stale_terms(namespace: str, *, limit: int) -> Rows:
    """(id, spec fields) of tools whose words another release made, or none; locked."""
    return (
        select(tool_registry.c.id, *(tool_registry.c[name] for name in SPEC_FIELDS))
        .where(
            tool_registry.c.namespace == namespace,
            tool_registry.c.terms_revision != TERMS_REVISION,
        )
        .order_by(tool_registry.c.tool_name)
        .limit(limit)
        .with_for_update()
    )


def corpus_size(namespace: str) -> Rows:
    """(tools, active) of a namespace: when it was counted last, and now; no row: never counted."""
    active = (
        select(func.count())
        .where(tool_registry.c.namespace == namespace, tool_registry.c.is_active)
        .scalar_subquery()
    )
    return select(tool_corpus.c.tools, active.label("active")).where(
        tool_corpus.c.namespace == namespace
    )


def count_corpus(namespace: str) -> tuple[Insert, Delete, Insert]:
    """Count a namespace's tools, their mean length, and the words that many have.

    The namespace's one row comes first: whoever counts at the same time waits for it.
    """
    of_namespace = tool_term.c.namespace == namespace
    tools = (
        select(func.count())
        .where(tool_registry.c.namespace == namespace, tool_registry.c.is_active)
        .scalar_subquery()
    )
    total = select(func.sum(tool_term.c.frequency)).where(of_namespace).scalar_subquery()
    corpus = insert(tool_corpus).values(
        namespace=namespace,
        tools=tools,
        mean_length=func.coalesce(total / func.nullif(tools, 0), 1),
    )
    new = corpus.excluded
    common = (
        select(tool_term.c.namespace, tool_term.c.term, func.count())
        .where(of_namespace)
        .group_by(tool_term.c.namespace, tool_term.c.term)
        .having(func.count() > COMMON_TERM_TOOLS)
    )
    return (
        corpus.on_conflict_do_update(
            index_elements=[tool_corpus.c.namespace],
            set_={
                "tools": new.tools,
                "mean_length": new.mean_length,
                "counted_at": func.now(),
            },
        ),
        delete(tool_term_count).where(tool_term_count.c.namespace == namespace),
        insert(tool_term_count).from_select(["namespace", "term", "tools"], common),
    )


def _any(ids: Iterable[UUID]) -> Any:
    return func.any(bindparam("ids", list(ids), ARRAY(Uuid)))
