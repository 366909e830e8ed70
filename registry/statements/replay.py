"""Statements of the replay: at which ranks held-back questions find their tools."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pgvector.sqlalchemy import HALFVEC
from sqlalchemy import ColumnElement, Integer, Subquery, cast, func, null, select, true

from registry.statements._rows import Rows
from registry.statements.calls import embedded_tools, recorded_calls
from registry.statements.lessons import Lesson, cosine, learnt_vectors, text_vector
from registry.tables import tool_registry, tool_selection

__all__ = ["replayed", "set_learning_memory"]

_Vector = ColumnElement[Any]


def set_learning_memory() -> Rows:
    """Let the replay keep the vectors it goes through in memory, in this transaction."""
    return select(func.set_config("work_mem", "128MB", True), func.set_config("jit", "off", True))


def replayed(candidate: Lesson, previous: Lesson | None, *, limit: int) -> Rows:
    """(session, tool_name, descriptions, candidate, previous) of held-back calls, as ranks.

    A rank is 1 more than the number of active tools nearer to the question, measured with what
    would be searched. Both states are made without the sessions that are held back. `previous`
    is None where nothing was learnt before.

    Args:
        candidate: From all calls.
        previous: From the calls there were when the registry last learnt.
        limit: Most calls, of as many sessions as there are.
    """
    new = learnt_vectors(replace(candidate, without_held_back=True), "candidate")
    states: dict[str, _Vector] = {
        "descriptions": text_vector(),
        "candidate": func.coalesce(new.c.vector, text_vector(), type_=HALFVEC()),
    }
    tools = embedded_tools(candidate.calls).outerjoin(new, new.c.tool_id == tool_registry.c.id)
    if previous is not None:
        old = learnt_vectors(replace(previous, without_held_back=True), "previous")
        states["previous"] = func.coalesce(old.c.vector, text_vector(), type_=HALFVEC())
        tools = tools.outerjoin(old, old.c.tool_id == tool_registry.c.id)
    tool = (
        select(tool_registry.c.id, *(vector.label(name) for name, vector in states.items()))
        .select_from(tools)
        .where(tool_registry.c.is_active)
        .cte("tool")
        .prefix_with("MATERIALIZED")
    )
    sample, s = _sample(candidate, limit), tool_selection.c
    question = (
        select(
            sample.c.selection_id,
            sample.c.session,
            sample.c.tool_id,
            sample.c.tool_name,
            s.query_vector.label("vector"),
            *(cosine(tool.c[name], s.query_vector).label(name) for name in states),
        )
        .join(tool, tool.c.id == sample.c.tool_id)
        .join(tool_selection, s.id == sample.c.selection_id)
        .cte("question")
        .prefix_with("MATERIALIZED")
    )
    q = question.c
    # Counted for one question after the other: grouped, all pairs might be sorted with vectors.
    ranks = (
        select(
            *(
                (1 + func.count().filter(cosine(tool.c[name], q.vector) > q[name])).label(name)
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


def _sample(candidate: Lesson, limit: int) -> Subquery:
    """Held-back calls, first one of each session, then a second of each, and so on."""
    calls = recorded_calls(candidate.calls)
    c = calls.c
    at_random = func.md5(func.concat_ws("/", c.selection_id, c.tool_id))
    turn = func.row_number().over(
        partition_by=c.session.collate("C"), order_by=[at_random, c.selection_id]
    )
    turned = (
        select(calls, at_random.label("place"), turn.label("turn"))
        .where(c.held_back, c.is_active)
        .subquery("turned")
    )
    return (
        select(turned)
        .order_by(turned.c.turn, turned.c.place, turned.c.selection_id)
        .limit(limit)
        .subquery("sample")
    )
