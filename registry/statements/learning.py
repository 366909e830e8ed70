"""Statements of learning from use: which calls count, what they add up to, the replay, the change.

Everything is set-based: no vector leaves the database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pgvector.sqlalchemy import HALFVEC, VECTOR
from sqlalchemy import (
    CTE,
    REAL,
    BigInteger,
    ColumnElement,
    Double,
    FromClause,
    Insert,
    Integer,
    Numeric,
    Select,
    Subquery,
    Text,
    Update,
    bindparam,
    case,
    cast,
    func,
    literal,
    null,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import array, insert

from registry.learning import SHRINK, TRAFFIC_SHRINK, WEIGHT
from registry.statements._rows import Rows
from registry.statements.models import searched_vector
from registry.tables import (
    tool_embedding,
    tool_learning,
    tool_registry,
    tool_selection,
    tool_usage_log,
)

__all__ = [
    "CountedCalls",
    "Lesson",
    "counted_calls",
    "learning_state",
    "lock_moved_tools",
    "lock_moving_tools",
    "mark_undone",
    "moved_questions",
    "moves",
    "promote",
    "recorded_calls",
    "replayed",
    "set_learning_memory",
    "state_of_tool",
    "text_vector",
    "times",
    "undo",
    "write_learning",
]

_PARTS = 5  # one session in so many is held back
_Vector = ColumnElement[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedCalls:
    """Which recorded calls count: with success, with a vector of the model, of registered tools.

    Attributes:
        namespace: Of the questions and of the tools.
        model_id: Of the vectors.
        dimensions: Of the model; a vector of another length cannot be its own.
        since: Of the oldest question.
        until: Of the newest question.
    """

    namespace: str
    model_id: int
    dimensions: int
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What tools learn, from which calls.

    Attributes:
        calls: Those that count.
        min_sessions: From which on a tool moves.
        neutral: How much of the traffic's mean is taken off.
        without_held_back: Leave out the sessions whose questions are replayed.
    """

    calls: CountedCalls
    min_sessions: int
    neutral: float
    without_held_back: bool = False


# ---------------------------------------------------------------- which calls


def learning_state(namespace: str, model_id: int) -> Rows:
    """(version, fingerprint, recorded_until, learned_at, neutral) of what was learnt last."""
    return select(
        tool_learning.c.version,
        tool_learning.c.fingerprint,
        tool_learning.c.recorded_until,
        tool_learning.c.learned_at,
        tool_learning.c.neutral,
    ).where(tool_learning.c.namespace == namespace, tool_learning.c.embedding_model_id == model_id)


def counted_calls(calls: CountedCalls, *, max_calls: int, previous_until: datetime | None) -> Rows:
    """One row: how many calls, sessions and used tools there are, of the newest `max_calls`.

    `used_rest` and `used_previous` count the active tools used in sessions that are not held
    back, the latter up to `previous_until`. `fingerprint` is other for other calls or tools.
    """
    found = recorded_calls(calls).subquery("found")
    place = func.row_number().over(
        order_by=[found.c.created_at.desc(), found.c.selection_id, found.c.tool_id]
    )
    numbered = select(found, place.label("place")).cte("numbered").prefix_with("MATERIALIZED")
    c = numbered.c
    kept = c.place <= max_calls
    rest = kept & ~c.held_back & c.is_active

    def used(rows: ColumnElement[bool]) -> ColumnElement[int]:
        return func.count(c.tool_id.distinct()).filter(rows)

    digest = func.sum(
        func.hashtextextended(
            func.concat_ws("/", c.selection_id, c.tool_id, c.session), 0, type_=BigInteger
        ),
        type_=Numeric,
    ).filter(kept)
    active = (
        select(func.count())
        .select_from(_embedded(calls))
        .where(tool_registry.c.is_active)
        .scalar_subquery()
    )
    before = rest & (c.created_at <= previous_until) if previous_until is not None else ~true()
    return select(
        func.count().filter(kept).label("calls"),
        func.count().filter(~kept).label("left_out"),
        func.count().filter(kept & (c.session == "")).label("anonymous"),
        func.count(c.session.distinct()).filter(kept).label("sessions"),
        used(kept & c.is_active).label("used"),
        used(rest).label("used_rest"),
        used(before).label("used_previous"),
        func.min(c.created_at).filter(kept).label("since"),
        func.max(c.created_at).label("until"),
        func.coalesce(cast(digest, Text), "").label("fingerprint"),
        active.label("active"),
    )


def set_learning_memory() -> Rows:
    """Let the replay keep the vectors it goes through in memory, in this transaction."""
    return select(func.set_config("work_mem", "128MB", True), func.set_config("jit", "off", True))


def recorded_calls(calls: CountedCalls, *, with_vectors: bool = False) -> Rows:
    """(tool_id, tool_name, is_active, selection_id, session, created_at, held_back[, vector]).

    What was asked before a tool was registered was asked of another one of that name. Where there
    is no id at all there is no telling sessions apart: they are one.
    """
    s, u, t = tool_selection.c, tool_usage_log.c, tool_registry.c
    session = func.coalesce(*(func.nullif(s[name], "") for name in _SESSION_IDS), "", type_=Text)
    statement = (
        select(
            t.id.label("tool_id"),
            t.tool_name,
            t.is_active,
            s.id.label("selection_id"),
            session.label("session"),
            s.created_at,
            (func.hashtextextended(session, 0, type_=BigInteger) % _PARTS == 0).label("held_back"),
        )
        .select_from(tool_selection)
        .join(tool_usage_log, u.selection_id == s.id)
        .join(tool_registry, (t.namespace == s.namespace) & (t.tool_name == u.tool_name))
        .where(
            s.namespace == calls.namespace,
            s.embedding_model_id == calls.model_id,
            s.query_vector.is_not(None),
            func.vector_dims(s.query_vector) == calls.dimensions,
            u.was_called,
            u.call_status == "success",
            s.created_at >= t.created_at,
        )
    )
    if with_vectors:
        statement = statement.add_columns(s.query_vector.label("vector"), s.query_snippet)
    if calls.since is not None:
        statement = statement.where(s.created_at >= calls.since)
    if calls.until is not None:
        statement = statement.where(s.created_at <= calls.until)
    return statement


_SESSION_IDS = ("session_id", "conversation_id", "thread_id", "run_id")


def _embedded(calls: CountedCalls) -> FromClause:
    """Tools of the namespace with their vectors of the model."""
    return tool_embedding.join(
        tool_registry,
        (tool_registry.c.id == tool_embedding.c.tool_id)
        & (tool_registry.c.namespace == calls.namespace)
        & (tool_embedding.c.embedding_model_id == calls.model_id),
    )


# ---------------------------------------------------------------- what they add up to


def _learnt(lesson: Lesson, name: str) -> CTE:
    """(tool_id, sessions, feedback, vector) of the tools that move."""
    calls = recorded_calls(lesson.calls, with_vectors=True).subquery(f"{name}_call")
    length_1 = func.l2_normalize(cast(calls.c.vector, VECTOR()), type_=VECTOR())
    vote = select(
        calls.c.tool_id, calls.c.session, func.avg(length_1, type_=VECTOR()).label("vector")
    ).group_by(calls.c.tool_id, calls.c.session)
    if lesson.without_held_back:
        vote = vote.where(~calls.c.held_back)
    votes = vote.cte(f"{name}_vote").prefix_with("MATERIALIZED")
    total = func.sum(votes.c.vector, type_=VECTOR())
    share = lesson.neutral / (func.count() + TRAFFIC_SHRINK)
    dimensions = lesson.calls.dimensions
    traffic = (
        select(times(total, share, dimensions).label("vector"))
        .select_from(votes)
        .cte(f"{name}_traffic")
        .prefix_with("MATERIALIZED")
    )
    mean = (
        select(
            votes.c.tool_id,
            func.count().label("sessions"),
            func.avg(votes.c.vector, type_=VECTOR()).label("vector"),
        )
        .group_by(votes.c.tool_id)
        .having(func.count() >= lesson.min_sessions)
        .subquery(f"{name}_mean")
    )
    gain = WEIGHT * mean.c.sessions / (mean.c.sessions + SHRINK)
    apart = mean.c.vector.op("-", return_type=VECTOR())(traffic.c.vector)
    # Rounded before it is added, so that it adds up to the same when a text changes.
    feedback = cast(times(apart, gain, dimensions), HALFVEC())
    rounded = (
        select(mean.c.tool_id, mean.c.sessions, feedback.label("feedback"))
        .join(traffic, true())
        .cte(f"{name}_rounded")
        .prefix_with("MATERIALIZED")
    )
    return (
        select(
            rounded.c.tool_id,
            rounded.c.sessions,
            rounded.c.feedback,
            searched_vector(text_vector(), rounded.c.feedback).label("vector"),
        )
        .select_from(rounded)
        .join(
            tool_embedding,
            (tool_embedding.c.tool_id == rounded.c.tool_id)
            & (tool_embedding.c.embedding_model_id == lesson.calls.model_id),
        )
        .cte(name)
        .prefix_with("MATERIALIZED")
    )


def times(vector: _Vector, factor: ColumnElement[Any], dimensions: int) -> _Vector:
    """Return a vector times a number, for which pgvector has no operator."""
    filled = func.array_fill(cast(factor, REAL), array([literal(dimensions, Integer)]))
    return vector.op("*", return_type=VECTOR())(cast(filled, VECTOR()))


def text_vector() -> _Vector:
    """Return the vector of a tool's text, whether or not learning moved what is searched."""
    return func.coalesce(
        tool_embedding.c.description_vector, tool_embedding.c.vector, type_=HALFVEC()
    )


def _cosine(one: _Vector, other: _Vector) -> ColumnElement[float]:
    return 1 - one.op("<=>", return_type=Double())(other)


# ---------------------------------------------------------------- replay


def replayed(candidate: Lesson, previous: Lesson | None, *, limit: int) -> Rows:
    """(session, tool_name, descriptions, candidate, previous) of held-back calls, as ranks.

    A rank is 1 more than the number of active tools nearer to the question, measured with what
    would be searched. Both states are made without the sessions that are held back. `previous`
    is None where nothing was learnt before.

    Args:
        candidate: From all calls.
        previous: From the calls there were when the registry last learnt.
        limit: Most calls, an even sample of all.
    """
    new = _learnt(replace(candidate, without_held_back=True), "candidate")
    states: dict[str, _Vector] = {
        "descriptions": text_vector(),
        "candidate": func.coalesce(new.c.vector, text_vector(), type_=HALFVEC()),
    }
    tools = _embedded(candidate.calls).outerjoin(new, new.c.tool_id == tool_registry.c.id)
    if previous is not None:
        old = _learnt(replace(previous, without_held_back=True), "previous")
        states["previous"] = func.coalesce(old.c.vector, text_vector(), type_=HALFVEC())
        tools = tools.outerjoin(old, old.c.tool_id == tool_registry.c.id)
    tool = (
        select(tool_registry.c.id, *(vector.label(name) for name, vector in states.items()))
        .select_from(tools)
        .where(tool_registry.c.is_active)
        .cte("tool")
        .prefix_with("MATERIALIZED")
    )
    calls = recorded_calls(candidate.calls, with_vectors=True).subquery("call")
    sample = (
        select(calls)
        .where(calls.c.held_back, calls.c.is_active)
        .order_by(
            func.md5(func.concat_ws("/", calls.c.selection_id, calls.c.tool_id)),
            calls.c.selection_id,
        )
        .limit(limit)
        .subquery("sample")
    )
    question = (
        select(
            sample.c.selection_id,
            sample.c.session,
            sample.c.tool_id,
            sample.c.tool_name,
            sample.c.vector,
            *(_cosine(tool.c[name], sample.c.vector).label(name) for name in states),
        )
        .join(tool, tool.c.id == sample.c.tool_id)
        .cte("question")
        .prefix_with("MATERIALIZED")
    )
    q = question.c
    # Counted for one question after the other: grouped, all pairs might be sorted with vectors.
    ranks = (
        select(
            *(
                (1 + func.count().filter(_cosine(tool.c[name], q.vector) > q[name])).label(name)
                for name in states
            )
        )
        .select_from(tool)
        .where(tool.c.id != q.tool_id)
        .lateral("ranks")
    )
    none = cast(null(), Integer).label("previous")
    return (
        select(q.session, q.tool_name, ranks, *([none] if previous is None else ()))
        .select_from(question.join(ranks, true()))
        .order_by(q.selection_id, q.tool_id)
    )


# ---------------------------------------------------------------- the change


def moves(lesson: Lesson) -> Rows:
    """(tool_name, sessions, cosine_with_description, cosine_with_previous), farthest first."""
    moved = _moves(lesson)
    apart = _cosine(moved.c.after, moved.c.of_text)
    return select(
        moved.c.tool_name,
        moved.c.sessions,
        apart.label("cosine_with_description"),
        _cosine(moved.c.after, moved.c.before).label("cosine_with_previous"),
    ).order_by(apart, moved.c.tool_name)


def lock_moving_tools(lesson: Lesson) -> Rows:
    """Keep the tools that change as they are until the end of the transaction.

    In the order in which a sync locks its tools, so that neither waits for the other for ever.
    """
    called = recorded_calls(lesson.calls).with_only_columns(tool_registry.c.id)
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
            _cosine(moved.c.after, moved.c.of_text).label("cosine_with_description"),
            _cosine(moved.c.after, moved.c.before).label("cosine_with_previous"),
        )
    )


def _moves(lesson: Lesson) -> Subquery:
    """(tool_id, tool_name, sessions, feedback, of_text, before, after) of tools that change."""
    learnt = _learnt(lesson, "learnt")
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
            _embedded(lesson.calls).outerjoin(learnt, learnt.c.tool_id == tool_registry.c.id)
        )
        .where(learnt.c.tool_id.is_not(None) | tool_embedding.c.feedback_vector.is_not(None))
        .subquery("moved")
    )


def write_learning(namespace: str, model_id: int, values: Mapping[str, Any]) -> Insert:
    """Note what was learnt from; returns the version."""
    statement = insert(tool_learning).values(
        namespace=namespace, embedding_model_id=model_id, version=1, **values
    )
    return statement.on_conflict_do_update(
        index_elements=[tool_learning.c.namespace, tool_learning.c.embedding_model_id],
        set_={**values, "version": tool_learning.c.version + 1, "learned_at": func.now()},
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
            _cosine(tool_embedding.c.vector, text_vector()).label("cosine_with_description"),
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
    call = recorded_calls(calls, with_vectors=True).where(tool_registry.c.tool_name == tool_name)
    found = call.subquery("call")
    before, after = (
        _cosine(vector, found.c.vector) for vector in (text_vector(), tool_embedding.c.vector)
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
        .order_by((before - after), found.c.created_at.desc(), found.c.selection_id)
        .limit(limit)
    )
