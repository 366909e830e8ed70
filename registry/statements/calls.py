"""Which recorded calls count: one rule for everything that learns or measures from them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Numeric,
    Select,
    Subquery,
    Text,
    case,
    cast,
    false,
    func,
    select,
    true,
)

from registry.learning import LearningSettings
from registry.statements._rows import Rows
from registry.tables import tool_embedding, tool_registry, tool_selection, tool_usage_log

__all__ = ["CountedCalls", "counted_calls", "embedded_tools", "recorded_calls"]

_PARTS = 5  # one session in so many is held back
_SESSION_IDS = ("session_id", "conversation_id", "thread_id", "run_id")
_DEFAULT = LearningSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedCalls:
    """Which recorded calls count: with success, with a vector of the model, of registered tools.

    Attributes:
        namespace: Of the questions and of the tools.
        model_id: Of the vectors.
        dimensions: Of the model; a vector of another length cannot be its own.
        per_session: Newest calls of a session that count.
        newest: Of what is left of all sessions, the newest that count.
        until: Time of the newest question; what came later is not looked at.
    """

    namespace: str
    model_id: int
    dimensions: int
    per_session: int = _DEFAULT.calls_per_session
    newest: int = _DEFAULT.max_calls
    until: datetime | None = None


def recorded_calls(
    calls: CountedCalls, *, with_vectors: bool = False, name: str = "call"
) -> Subquery:
    """(tool_id, tool_name, is_active, selection_id, session, created_at, held_back).

    With vectors also (vector, query_snippet), read only of calls that count.
    """
    numbered = _numbered(calls).subquery(f"{name}_numbered")
    if not with_vectors:
        return _within(calls, numbered).subquery(name)
    within = _within(calls, numbered).subquery(f"{name}_within")
    s = tool_selection.alias(f"{name}_selection")
    return (
        select(within, s.c.query_vector.label("vector"), s.c.query_snippet)
        .join(s, s.c.id == within.c.selection_id)
        .subquery(name)
    )


def counted_calls(calls: CountedCalls) -> Rows:
    """One row: how many calls, sessions and used tools there are, and how many do not count.

    `over_session` are those beyond what a session may have, `left_out` all that do not count.
    `fingerprint` is other for other calls or tools.
    """
    numbered = _numbered(calls).cte("numbered").prefix_with("MATERIALIZED")
    c = _within(calls, numbered).subquery("kept").c
    all_of_them = select(
        func.count().label("calls"),
        func.count().filter(numbered.c.turn > calls.per_session).label("over_session"),
    ).subquery("all_of_them")
    digest = func.sum(
        func.hashtextextended(
            func.concat_ws("/", c.selection_id, c.tool_id, c.session), 0, type_=BigInteger
        ),
        type_=Numeric,
    )
    kept = select(
        func.count().label("calls"),
        func.count().filter(c.session == "").label("anonymous"),
        func.count(c.session.distinct()).label("sessions"),
        func.count(c.tool_id.distinct()).filter(c.is_active).label("used"),
        func.max(c.created_at).label("until"),
        func.coalesce(cast(digest, Text), "").label("fingerprint"),
    ).subquery("counted")
    active = (
        select(func.count())
        .select_from(embedded_tools(calls))
        .where(tool_registry.c.is_active)
        .scalar_subquery()
    )
    return select(
        kept,
        all_of_them.c.over_session,
        (all_of_them.c.calls - kept.c.calls).label("left_out"),
        active.label("active"),
    ).select_from(kept.join(all_of_them, kept.c.calls >= 0))


def embedded_tools(calls: CountedCalls) -> FromClause:
    """Tools of the namespace with their vectors of the model."""
    return tool_embedding.join(
        tool_registry,
        (tool_registry.c.id == tool_embedding.c.tool_id)
        & (tool_registry.c.namespace == calls.namespace)
        & (tool_embedding.c.embedding_model_id == calls.model_id),
    )


def _numbered(calls: CountedCalls) -> Rows:
    """All calls, those of each session numbered from the newest on.

    What was asked before a tool was registered was asked of another one of that name. Where there
    is no id at all there is no telling sessions apart: they are one. No vector is carried along:
    all of this is sorted.
    """
    s, u, t = tool_selection.c, tool_usage_log.c, tool_registry.c
    session = func.coalesce(*(func.nullif(s[name], "") for name in _SESSION_IDS), "", type_=Text)
    turn = func.row_number().over(
        partition_by=session.collate("C"), order_by=[s.created_at.desc(), s.id, t.id]
    )
    # Always true in effect; an equation is taken for one row in 200, and 200 tools are then tried
    # with each question.
    fits = case((func.vector_dims(s.query_vector) == calls.dimensions, true()), else_=false())
    statement = (
        select(
            t.id.label("tool_id"),
            t.tool_name,
            t.is_active,
            s.id.label("selection_id"),
            session.label("session"),
            s.created_at,
            turn.label("turn"),
        )
        .select_from(tool_selection)
        .join(tool_usage_log, u.selection_id == s.id)
        .join(tool_registry, (t.namespace == s.namespace) & (t.tool_name == u.tool_name))
        .where(
            s.namespace == calls.namespace,
            s.embedding_model_id == calls.model_id,
            s.query_vector.is_not(None),
            fits,
            u.was_called,
            u.call_status == "success",
            s.created_at >= t.created_at,
        )
    )
    return statement if calls.until is None else statement.where(s.created_at <= calls.until)


def _within(calls: CountedCalls, numbered: FromClause) -> Select[*tuple[Any, ...]]:
    """Return what counts of numbered calls: no session has more than its share of the newest."""
    n = numbered.c
    held_back: ColumnElement[bool] = (
        func.hashtextextended(n.session, 0, type_=BigInteger) % _PARTS == 0
    )
    return (
        select(
            n.tool_id,
            n.tool_name,
            n.is_active,
            n.selection_id,
            n.session,
            n.created_at,
            held_back.label("held_back"),
        )
        .where(n.turn <= calls.per_session)
        .order_by(n.created_at.desc(), n.selection_id, n.tool_id)
        .limit(calls.newest)
    )
