"""Statements of the usage log: selections with their hits, and what became of the calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from pgvector.sqlalchemy import HALFVEC
from sqlalchemy import ARRAY, Insert, Integer, Text, bindparam, case, cast, func, select
from sqlalchemy.dialects.postgresql import insert

from registry.statements._rows import Rows
from registry.tables import embedding_model, tool_selection, tool_usage_log
from registry.usage import CALL_STATUSES, CallRecord, SelectionRecord

__all__ = [
    "add_calls",
    "add_hits",
    "add_selections",
    "call_rows",
    "hit_rows",
    "lock_selections",
    "selection_rows",
]


def add_selections() -> Insert:
    """Write selections, rows of `selection_rows`; one that was written before stays as it is."""
    # A set of vectors may be pruned between the search and the writing.
    model = (
        select(embedding_model.c.id)
        .where(embedding_model.c.id == bindparam("model_id", type_=Integer))
        .scalar_subquery()
    )
    return (
        insert(tool_selection)
        .values(
            embedding_model_id=model,
            query_vector=cast(bindparam("vector_text", type_=Text), HALFVEC()),
        )
        .on_conflict_do_nothing(index_elements=[tool_selection.c.id])
    )


def add_hits() -> Insert:
    """Write found and offered tools, rows of `hit_rows`."""
    return insert(tool_usage_log).on_conflict_do_nothing(
        index_elements=[tool_usage_log.c.selection_id, tool_usage_log.c.tool_name]
    )


def lock_selections(ids: Iterable[UUID]) -> Rows:
    """Ids of those selections that are there, kept from being removed in this transaction."""
    table = tool_selection
    return (
        select(table.c.id)
        .where(table.c.id == func.any(cast(list(ids), ARRAY(table.c.id.type))))
        .order_by(table.c.id)
        .with_for_update(read=True, key_share=True)
    )


def add_calls() -> Insert:
    """Mark tools of selections as called, rows of `call_rows`; a tool without a row gets one.

    Where a call was marked before, the better status and the longer time stand.
    """
    statement = insert(tool_usage_log)
    given, before = statement.excluded, tool_usage_log.c
    rank_of = {status: rank for rank, status in enumerate(CALL_STATUSES)}
    given_is_better = case(rank_of, value=given.call_status) < case(
        rank_of, value=before.call_status, else_=len(CALL_STATUSES)
    )
    return statement.on_conflict_do_update(
        index_elements=[before.selection_id, before.tool_name],
        set_={
            "was_called": True,
            "call_status": case((given_is_better, given.call_status), else_=before.call_status),
            "call_ms": func.greatest(before.call_ms, given.call_ms),
        },
    )


def selection_rows(selections: Sequence[SelectionRecord]) -> list[dict[str, Any]]:
    """Return the rows that `add_selections` is executed with."""
    return [
        {
            "id": record.id,
            "namespace": record.namespace,
            "run_id": record.run_id,
            "thread_id": record.thread_id,
            "session_id": record.session_id,
            "conversation_id": record.conversation_id,
            "query_snippet": record.query_text,
            "vector_text": record.query_vector,
            "model_id": record.embedding_model_id,
            "strategy": record.strategy,
            "threshold": record.threshold,
            "latency_ms": record.latency_ms,
            "created_at": record.created_at,
        }
        for record in selections
    ]


def hit_rows(selections: Sequence[SelectionRecord]) -> list[dict[str, Any]]:
    """Return the rows that `add_hits` is executed with."""
    return [
        {
            "selection_id": record.id,
            "tool_name": hit.tool_name,
            "rank": hit.rank,
            "relevance_score": hit.relevance,
            "was_offered": hit.was_offered,
        }
        for record in selections
        for hit in record.hits
    ]


def call_rows(calls: Sequence[CallRecord]) -> list[dict[str, Any]]:
    """Return the rows that `add_calls` is executed with."""
    return [
        {
            "selection_id": call.selection_id,
            "tool_name": call.tool_name,
            "was_offered": call.was_offered,
            "was_called": True,
            "call_status": call.status,
            "call_ms": call.call_ms,
        }
        for call in calls
    ]
