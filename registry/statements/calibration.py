"""Statements about the relevance scale of a namespace and an embedding model."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from pgvector.sqlalchemy import HALFVEC, VECTOR
from sqlalchemy import (
    ColumnElement,
    DateTime,
    Delete,
    Double,
    Insert,
    Text,
    and_,
    case,
    cast,
    delete,
    func,
    literal,
    null,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import insert

from registry.learning import SHRINK, WEIGHT, LearningSettings
from registry.relevance import Calibration
from registry.statements._rows import Rows
from registry.statements.calls import CountedCalls, recorded_calls
from registry.statements.lessons import text_vector, times
from registry.tables import (
    tool_anchor,
    tool_calibration,
    tool_corpus,
    tool_embedding,
    tool_learning,
    tool_selection,
)

__all__ = [
    "anchors",
    "calibration_state",
    "forget_anchors",
    "left_out",
    "sampled_calls",
    "store_anchors",
    "store_calibration",
    "stored_scale",
]


def calibration_state(namespace: str, model_id: int) -> Rows:
    """(tools, calibrated, moved): tools counted by the last larger sync, and when calibrated.

    `calibrated` is null where the namespace and model were never calibrated; `moved` says that
    learning moved vectors since. No row means that nothing was counted yet.
    """
    moved = (
        select(tool_learning.c.version)
        .where(
            tool_learning.c.namespace == namespace,
            tool_learning.c.embedding_model_id == model_id,
            tool_learning.c.learned_at > tool_calibration.c.calibrated_at,
            tool_learning.c.version > 0,
        )
        .correlate(tool_calibration)
        .exists()
    )
    return (
        select(
            tool_corpus.c.tools, tool_calibration.c.tools.label("calibrated"), moved.label("moved")
        )
        .select_from(tool_corpus)
        .outerjoin(
            tool_calibration,
            (tool_calibration.c.namespace == tool_corpus.c.namespace)
            & (tool_calibration.c.embedding_model_id == model_id),
        )
        .where(tool_corpus.c.namespace == namespace)
    )


def stored_scale(namespace: str, model_id: int) -> Rows:
    """(center, spread, words_share) of the last calibration; no row where there was none."""
    return select(
        tool_calibration.c.center, tool_calibration.c.spread, tool_calibration.c.words_share
    ).where(
        tool_calibration.c.namespace == namespace,
        tool_calibration.c.embedding_model_id == model_id,
    )


def store_calibration(
    namespace: str,
    model_id: int,
    by: Calibration,
    *,
    traffic: str | None,
    tools: int,
    calls: int,
) -> Insert:
    """Store a calibration instead of the one before; returns (version).

    Args:
        namespace: Of the tools.
        model_id: Of the vectors.
        by: The calibration.
        traffic: What answered questions have in common, in pgvector's text form.
        tools: Active ones.
        calls: That moved `zero`.
    """
    statement = insert(tool_calibration).values(
        namespace=namespace,
        embedding_model_id=model_id,
        center=by.scale.center,
        spread=by.scale.spread,
        null_evidence=by.null,
        zero=by.zero,
        words_share=by.words,
        traffic=null() if traffic is None else cast(literal(traffic, Text), HALFVEC()),
        tools=tools,
        calls=calls,
    )
    new = statement.excluded
    names = ("center", "spread", "null_evidence", "zero", "words_share", "traffic")
    names += ("tools", "calls")
    return statement.on_conflict_do_update(
        index_elements=[tool_calibration.c.namespace, tool_calibration.c.embedding_model_id],
        set_={
            **{name: new[name] for name in names},
            "version": tool_calibration.c.version + 1,
            "calibrated_at": func.now(),
        },
    ).returning(tool_calibration.c.version)


# ---------------------------------------------------------------- anchors


def anchors(model_id: int) -> Rows:
    """(question, vector) in order, the vector in pgvector's text form."""
    return (
        select(tool_anchor.c.question, cast(tool_anchor.c.vector, Text).label("vector"))
        .where(tool_anchor.c.embedding_model_id == model_id)
        .order_by(tool_anchor.c.place)
    )


def store_anchors(model_id: int, anchored: Sequence[tuple[str, str]]) -> Insert:
    """Keep the anchors' questions with their vectors in pgvector's text form."""
    statement = insert(tool_anchor).values(
        [
            {
                "embedding_model_id": model_id,
                "place": place,
                "question": question,
                "vector": cast(literal(vector, Text), HALFVEC()),
            }
            for place, (question, vector) in enumerate(anchored)
        ]
    )
    new = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=[tool_anchor.c.embedding_model_id, tool_anchor.c.place],
        set_={"question": new.question, "vector": new.vector},
    )


def forget_anchors(model_id: int, *, from_place: int) -> Delete:
    """Remove what another release had more of."""
    return delete(tool_anchor).where(
        tool_anchor.c.embedding_model_id == model_id, tool_anchor.c.place >= from_place
    )


# ---------------------------------------------------------------- recorded calls


def sampled_calls(calls: CountedCalls, *, limit: int, with_text: bool) -> Rows:
    """(selection_id, session, text, vector, filtered): one question a session, an even sample.

    `filtered` says that a tool had to reach a threshold to be offered.

    Args:
        calls: Those that count.
        limit: Most questions.
        with_text: Leave out questions of which the text is not known.
    """
    call = recorded_calls(calls)
    at_random = func.md5(cast(call.c.selection_id, Text))
    turn = func.row_number().over(
        partition_by=call.c.session.collate("C"),
        order_by=[at_random, call.c.selection_id, call.c.tool_id],
    )
    called = select(
        call.c.selection_id, call.c.session, at_random.label("place"), turn.label("turn")
    ).where(call.c.is_active)
    s = tool_selection.c
    if with_text:
        called = called.join(tool_selection, s.id == call.c.selection_id).where(
            func.length(func.trim(s.query_snippet)) > 0
        )
    c = called.subquery("called").c
    asked = (
        select(c.selection_id, c.session, c.place)
        .where(c.turn == 1)
        .order_by(c.place, c.selection_id)
        .limit(limit)
        .subquery("asked")
    )
    return (
        select(
            asked.c.selection_id,
            asked.c.session,
            s.query_snippet.label("text"),
            cast(_of_length_1(s.query_vector), Text).label("vector"),
            and_(s.threshold > 0, s.strategy != "all").label("filtered"),
        )
        .join(tool_selection, s.id == asked.c.selection_id)
        .order_by(asked.c.place, asked.c.selection_id)
    )


def left_out(
    calls: CountedCalls,
    asked: Sequence[tuple[UUID, str]],
    *,
    neutral: str,
    learned_until: datetime | None,
) -> Rows:
    """(selection_id, tool_name, was_called, distance): questions and the tools of their sessions.

    `distance` is what the tool's would be had the session not called it: what a question taught
    must not be counted for it. Null where it taught the tool nothing. `was_called` says that the
    tool was called for this very question.

    Args:
        calls: Those that count.
        asked: Selections with their sessions.
        neutral: What was taken off every question when the tools learnt, in pgvector's text form.
        learned_until: Time of the newest question that the tools learnt from.
    """
    call = recorded_calls(calls, with_vectors=True)
    found = (
        select(call)
        .where(call.c.is_active, call.c.session.in_({session for _, session in asked}))
        .cte("found")
        .prefix_with("MATERIALIZED")
    )
    f = found.c
    vote = (
        select(
            f.session,
            f.tool_id,
            f.tool_name,
            func.avg(_of_length_1(f.vector), type_=VECTOR())
            .filter(f.created_at <= literal(learned_until, DateTime(timezone=True)))
            .label("vector"),
        )
        .group_by(f.session, f.tool_id, f.tool_name)
        .subquery("vote")
    )
    question = (
        select(f.selection_id, f.session, func.min(cast(f.vector, Text)).label("vector"))
        .where(tuple_(f.selection_id, f.session).in_(asked))
        .group_by(f.selection_id, f.session)
        .subquery("question")
    )
    q, e = question.c, tool_embedding.c
    called = (
        select(f.tool_id)
        .where(f.selection_id == q.selection_id, f.tool_id == vote.c.tool_id)
        .correlate(question, vote)
        .exists()
    )
    distance = cast(_without(vote.c.vector, neutral, calls.dimensions), VECTOR()).op(
        "<=>", return_type=Double()
    )(cast(q.vector, VECTOR()))
    taught = vote.c.vector.is_not(None) & e.feedback_vector.is_not(None)
    return (
        select(
            q.selection_id,
            vote.c.tool_name,
            called.label("was_called"),
            case((taught, distance)).label("distance"),
        )
        .select_from(question)
        .join(vote, vote.c.session == q.session)
        .join(
            tool_embedding,
            (e.tool_id == vote.c.tool_id) & (e.embedding_model_id == calls.model_id),
        )
        .order_by(q.selection_id, vote.c.tool_name)
    )


def _without(vote: ColumnElement[Any], neutral: str, dimensions: int) -> ColumnElement[Any]:
    """Return the direction of a tool's vector without one of its n votes.

    With feedback f = WEIGHT / (n + SHRINK) * (sum of votes - n * neutral), it is that of
    (n + SHRINK - 1) * text + (n + SHRINK) * f - WEIGHT * (vote - neutral).
    """
    e = tool_embedding.c
    count = e.feedback_count + SHRINK
    text, feedback = cast(text_vector(), VECTOR()), cast(e.feedback_vector, VECTOR())
    apart = vote.op("-", return_type=VECTOR())(cast(literal(neutral, Text), VECTOR()))
    left = (
        times(text, count - 1, dimensions)
        .op("+", return_type=VECTOR())(times(feedback, count, dimensions))
        .op("-", return_type=VECTOR())(times(apart, cast(WEIGHT, Double), dimensions))
    )
    # With fewer votes it would not have moved.
    moves = e.feedback_count - 1 >= LearningSettings().min_sessions
    return case((moves, left), else_=text)


def _of_length_1(vector: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.l2_normalize(cast(vector, VECTOR()), type_=VECTOR())
