"""What recorded calls add up to: the vector that each tool would be searched with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pgvector.sqlalchemy import HALFVEC, VECTOR
from sqlalchemy import CTE, REAL, ColumnElement, Double, Integer, cast, func, literal, select, true
from sqlalchemy.dialects.postgresql import array

from registry.learning import SHRINK, TRAFFIC_SHRINK, WEIGHT
from registry.statements.calls import CountedCalls, recorded_calls
from registry.statements.models import searched_vector
from registry.tables import tool_embedding

__all__ = ["Lesson", "cosine", "learnt_vectors", "text_vector", "times"]

_Vector = ColumnElement[Any]


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


def learnt_vectors(lesson: Lesson, name: str) -> CTE:
    """(tool_id, sessions, feedback, vector) of the tools that move."""
    calls = recorded_calls(lesson.calls, with_vectors=True, name=f"{name}_call")
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
    e = tool_embedding.c
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
            (e.tool_id == rounded.c.tool_id) & (e.embedding_model_id == lesson.calls.model_id),
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


def cosine(one: _Vector, other: _Vector) -> ColumnElement[float]:
    """Return the cosine of two vectors."""
    return 1 - one.op("<=>", return_type=Double())(other)
