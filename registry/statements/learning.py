"""Statements of learning from use: what was learnt, the change, its undoing, its explanation.

Everything is set-based: no vector leaves the database.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pgvector.sqlalchemy import HALFVEC
from sqlalchemy import (
    ColumnElement,
    Insert,
    Select,
    Subquery,
    Update,
    bindparam,
    case,
    func,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from registry.statements._rows import Rows
from registry.statements.calls import CountedCalls, embedded_tools, recorded_calls
from registry.statements.lessons import Lesson, cosine, learnt_vectors, text_vector
from registry.statements.models import searched_vector
from registry.tables import tool_embedding, tool_learning, tool_registry

__all__ = [
    "learning_state",
    "lock_moved_tools",
    "lock_moving_tools",
    "mark_undone",
    "moved_questions",
    "moves",
    "promote",
    "state_of_tool",
    "undo",
    "write_learning",
]


def learning_state(namespace: str, model_id: int) -> Rows:
    """(version, fingerprint, recorded_until, learned_at, neutral) of what was learnt last."""
    return select(
        tool_learning.c.version,
        tool_learning.c.fingerprint,
        tool_learning.c.recorded_until,
        tool_learning.c.learned_at,
        tool_learning.c.neutral,
    ).where(tool_learning.c.namespace == namespace, tool_learning.c.embedding_model_id == model_id)


# ---------------------------------------------------------------- the change


def moves(lesson: Lesson) -> Rows:
    """(tool_name, sessions, cosine_with_description, cosine_with_previous), farthest first."""
    moved = _moves(lesson)
    apart = cosine(moved.c.after, moved.c.of_text)
    return select(
        moved.c.tool_name,
        moved.c.sessions,
        apart.label("cosine_with_description"),
        cosine(moved.c.after, moved.c.before).label("cosine_with_previous"),
    ).order_by(apart, moved.c.tool_name)


def lock_moving_tools(lesson: Lesson) -> Rows:
    """Keep the tools that change as they are until the end of the transaction.

    In the order in which a sync locks its tools, so that neither waits for the other for ever.
    """
    called = select(recorded_calls(lesson.calls).c.tool_id)
    return _locked(lesson.calls.namespace, tool_registry.c.id.in_(called))


def lock_moved_tools(namespace: str) -> Rows:
    """Keep the tools that learnt something as they are, in the same order."""
    return _locked(namespace, ~true())


def _locked(namespace: str, chosen: ColumnElement[bool]) -> Rows:
    learnt = select(tool_embedding.c.tool_id).where(tool_embedding.c.feedback_vector.is_not(None))
    return (
        select(tool_registry.c.id)
        .where(tool_registry.c.namespace == namespace, chosen | tool_registry.c.id.in_(learnt))
        .order_by(tool_registry.c.tool_name)
        .with_for_update(key_share=True)
    )


def promote(lesson: Lesson) -> Update:
    """Let what was learnt be searched; tools whose calls are gone go back to their texts.

    Needs `lock_moving_tools` before it. Returns what `moves` returns, in no order.
    """
    moved = _moves(lesson)
    # Of the row that is written, not of the one that was read: its text may just have changed.
    of_text, feedback = text_vector(), moved.c.feedback
    return (
        update(tool_embedding)
        .where(
            tool_embedding.c.tool_id == moved.c.tool_id,
            tool_embedding.c.embedding_model_id == lesson.calls.model_id,
        )
        .values(
            vector=case((feedback.is_(None), of_text), else_=searched_vector(of_text, feedback)),
            description_vector=case((feedback.is_not(None), of_text)),
            feedback_vector=feedback,
            feedback_count=moved.c.sessions,
        )
        .returning(
            moved.c.tool_name,
            moved.c.sessions,
            cosine(moved.c.after, moved.c.of_text).label("cosine_with_description"),
            cosine(moved.c.after, moved.c.before).label("cosine_with_previous"),
        )
    )


def _moves(lesson: Lesson) -> Subquery:
    """(tool_id, tool_name, sessions, feedback, of_text, before, after) of tools that change."""
    learnt = learnt_vectors(lesson, "learnt")
    return (
        select(
            tool_registry.c.id.label("tool_id"),
            tool_registry.c.tool_name,
            func.coalesce(learnt.c.sessions, 0).label("sessions"),
            learnt.c.feedback,
            text_vector().label("of_text"),
            tool_embedding.c.vector.label("before"),
            func.coalesce(learnt.c.vector, text_vector(), type_=HALFVEC()).label("after"),
        )
        .select_from(
            embedded_tools(lesson.calls).outerjoin(learnt, learnt.c.tool_id == tool_registry.c.id)
        )
        .where(learnt.c.tool_id.is_not(None) | tool_embedding.c.feedback_vector.is_not(None))
        .subquery("moved")
    )


def write_learning(
    namespace: str, model_id: int, values: Mapping[str, Any], *, moved: bool
) -> Insert:
    """Note what was learnt from, and whether any tool moved for it; returns the version."""
    statement = insert(tool_learning).values(
        namespace=namespace, embedding_model_id=model_id, version=1 if moved else 0, **values
    )
    changed = {"version": tool_learning.c.version + 1, "learned_at": func.now()} if moved else {}
    return statement.on_conflict_do_update(
        index_elements=[tool_learning.c.namespace, tool_learning.c.embedding_model_id],
        set_={**values, **changed},
    ).returning(tool_learning.c.version)


# ---------------------------------------------------------------- undoing


def undo(namespace: str, tool_name: str | None) -> Update:
    """Search the vectors of the texts again, of every model; returns names, each once a model."""
    statement = (
        update(tool_embedding)
        .where(
            tool_embedding.c.tool_id == tool_registry.c.id,
            tool_registry.c.namespace == namespace,
            tool_embedding.c.feedback_vector.is_not(None),
        )
        .values(
            vector=text_vector(), description_vector=None, feedback_vector=None, feedback_count=0
        )
        .returning(tool_registry.c.tool_name)
    )
    return (
        statement if tool_name is None else statement.where(tool_registry.c.tool_name == tool_name)
    )


def mark_undone(namespace: str, *, entirely: bool) -> Update:
    """Let the next run learn anew, though no call was recorded since."""
    values: dict[str, Any] = {
        "fingerprint": None,
        "version": tool_learning.c.version + 1,
        "learned_at": func.now(),  # vectors moved: the next sync measures relevance anew
    }
    if entirely:
        values["recorded_until"] = None
    return update(tool_learning).where(tool_learning.c.namespace == namespace).values(values)


# ---------------------------------------------------------------- explaining


def state_of_tool(namespace: str, model_id: int, tool_name: str) -> Rows:
    """(sessions, cosine_with_description) of a tool; no row where it has no vector."""
    return (
        select(
            tool_embedding.c.feedback_count.label("sessions"),
            tool_embedding.c.feedback_vector.is_not(None).label("moved"),
            cosine(tool_embedding.c.vector, text_vector()).label("cosine_with_description"),
        )
        .join(tool_registry, tool_registry.c.id == tool_embedding.c.tool_id)
        .where(
            tool_registry.c.namespace == namespace,
            tool_registry.c.tool_name == tool_name,
            tool_embedding.c.embedding_model_id == model_id,
        )
    )


def moved_questions(
    calls: CountedCalls, tool_name: str, *, learned_until: datetime | None, limit: int
) -> Select[*tuple[Any, ...]]:
    """(text, session, asked_at, vote, cosine_before, cosine_after, calls, waiting).

    Of a tool's calls, what came nearest first; the last two count all, also those cut off.
    """
    found = recorded_calls(calls, with_vectors=True)
    before, after = (
        cosine(vector, found.c.vector) for vector in (text_vector(), tool_embedding.c.vector)
    )
    since = bindparam("learned_until", learned_until, type_=found.c.created_at.type)
    waiting = since.is_(None) | (found.c.created_at > since)
    return (
        select(
            found.c.query_snippet.label("text"),
            found.c.session,
            found.c.created_at.label("asked_at"),
            (1.0 / func.count().over(partition_by=found.c.session)).label("vote"),
            before.label("cosine_before"),
            after.label("cosine_after"),
            func.count().over().label("calls"),
            func.count().filter(waiting).over().label("waiting"),
        )
        .join(
            tool_embedding,
            (tool_embedding.c.tool_id == found.c.tool_id)
            & (tool_embedding.c.embedding_model_id == calls.model_id),
        )
        .where(found.c.tool_name == tool_name)
        .order_by((before - after), found.c.created_at.desc(), found.c.selection_id)
        .limit(limit)
    )
