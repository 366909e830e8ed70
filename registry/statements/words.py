"""BM25 in SQL: how much of a question's words each tool has, rare words weighing more.

Source: Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    ColumnElement,
    Integer,
    Text,
    bindparam,
    column,
    func,
    literal_column,
    select,
    true,
    union_all,
)

from registry.lexical import COMMON_TERM_TOOLS, K1, LENGTH_SHARE, MAX_POSTINGS
from registry.tables import tool_corpus, tool_term, tool_term_count

__all__ = ["word_scores"]


def word_scores(parts: int) -> tuple[CTE, ColumnElement[float]]:
    """Return (tool_number, words_0, …) of the tools that have a word, and what all would weigh.

    Binds `namespace`, `terms` and `masks`, whose bit p says that a term is in part p. Rows of the
    index are read for the rarest terms first, up to `MAX_POSTINGS` in all. The second value is the
    sum of the rarities of all the question's terms, those that no tool has too.
    """
    corpus = _corpus()
    tools, mean_length = (
        select(corpus.c[name]).scalar_subquery() for name in ("tools", "mean_length")
    )
    asked = _asked()
    read = _read(asked)
    df, frequency = read.c.tools_with_it, read.c.frequency
    saturated = (
        frequency
        * (K1 + 1)
        / (frequency + K1 * (1 - LENGTH_SHARE + LENGTH_SHARE * read.c.length / mean_length))
    )
    weighed = select(
        read.c.mask, read.c.tool_number, (_rarity(tools, df) * saturated).label("weight")
    ).subquery("weighed")
    scored = (
        select(
            weighed.c.tool_number,
            *(
                func.coalesce(
                    func.sum(weighed.c.weight).filter(weighed.c.mask.op("&")(1 << part) != 0), 0
                ).label(f"words_{part}")
                for part in range(parts)
            ),
        )
        .group_by(weighed.c.tool_number)
        .cte("scored")
        .prefix_with("MATERIALIZED")
    )
    counts = (
        select(read.c.term, func.max(df).label("tools")).group_by(read.c.term).subquery("counts")
    )
    known = func.coalesce(asked.c.counted, counts.c.tools, 0)
    possible = (
        select(func.coalesce(func.sum(_rarity(tools, known)), 0))
        .select_from(asked.outerjoin(counts, counts.c.term == asked.c.term))
        .scalar_subquery()
    )
    return scored, possible


def _rarity(tools: Any, df: Any) -> ColumnElement[float]:
    return func.ln(1 + (func.greatest(tools, df) - df + 0.5) / (df + 0.5))


def _asked() -> CTE:
    """(term, mask, counted, is_read) of the question; `counted` is null for rare terms."""
    given = (
        func.unnest(bindparam("terms", type_=ARRAY(Text)), bindparam("masks", type_=ARRAY(Integer)))
        .table_valued(column("term", Text), column("mask", Integer), name="given")
        .render_derived()
    )
    rows = func.coalesce(tool_term_count.c.tools, COMMON_TERM_TOOLS)
    rarest_first = [rows, given.c.term]
    return (
        select(
            given.c.term,
            given.c.mask,
            tool_term_count.c.tools.label("counted"),
            (
                (func.sum(rows).over(order_by=rarest_first) <= MAX_POSTINGS)
                | (func.row_number().over(order_by=rarest_first) == 1)
            ).label("is_read"),
        )
        .select_from(
            given.outerjoin(
                tool_term_count,
                (tool_term_count.c.namespace == bindparam("namespace"))
                & (tool_term_count.c.term == given.c.term),
            )
        )
        .cte("asked")
        .prefix_with("MATERIALIZED")
    )


def _read(asked: CTE) -> CTE:
    """(term, mask, tool_number, frequency, length, tools_with_it) of the terms that are read."""
    posting = (
        select(tool_term.c.tool_number, tool_term.c.frequency, tool_term.c.length)
        .where(tool_term.c.namespace == bindparam("namespace"), tool_term.c.term == asked.c.term)
        .lateral("posting")
    )
    return (
        select(
            asked.c.term,
            asked.c.mask,
            posting,
            func.count().over(partition_by=asked.c.term).label("tools_with_it"),
        )
        .select_from(asked.join(posting, true()))
        .where(asked.c.is_read)
        .cte("read")
        .prefix_with("MATERIALIZED")
    )


def _corpus() -> CTE:
    """(tools, mean_length) of the namespace; guessed before its first sync ends."""
    counted = select(
        tool_corpus.c.tools, tool_corpus.c.mean_length, literal_column("1").label("choice")
    ).where(tool_corpus.c.namespace == bindparam("namespace"))
    guessed = select(literal_column("1000"), literal_column("40"), literal_column("2"))
    either = union_all(counted, guessed).subquery("either")
    return (
        select(either).order_by(either.c.choice).limit(1).cte("corpus").prefix_with("MATERIALIZED")
    )
