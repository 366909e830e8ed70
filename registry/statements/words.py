"""BM25 in SQL: how much of a question's words each tool has, rare words weighing more.

Source: Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009.
"""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    CTE,
    ColumnElement,
    Double,
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

from registry.lexical import K1, LENGTH_SHARE, MAX_POSTINGS
from registry.statements._rows import Rows
from registry.tables import tool_corpus, tool_term, tool_term_count

__all__ = ["term_weights", "word_scores"]


def word_scores(parts: int) -> tuple[CTE, ColumnElement[float]]:
    """Return (tool_number, words_0, …) of the tools that have a word, and what all would weigh.

    Binds `namespace`, `terms` and `masks`, whose bit p says that a term is in part p. Rows of the
    index are read for the rarest terms first, up to `MAX_POSTINGS` in all. The second value is the
    sum of the rarities of all the question's terms, those that no tool has too.
    """
    asked = _asked()
    posting = (
        select(tool_term.c.tool_number, tool_term.c.frequency, tool_term.c.length)
        .where(tool_term.c.namespace == bindparam("namespace"), tool_term.c.term == asked.c.term)
        .lateral("posting")
    )
    frequency = posting.c.frequency
    # What is the same for all of a term's rows is worked out once, in `asked`.
    weight = (
        asked.c.most * frequency / (frequency + asked.c.floor + asked.c.per_word * posting.c.length)
    )
    scored = (
        select(
            posting.c.tool_number,
            *(
                func.coalesce(
                    func.sum(weight).filter(asked.c.mask.op("&")(1 << part) != 0), 0
                ).label(f"words_{part}")
                for part in range(parts)
            ),
        )
        .select_from(asked.join(posting, true()))
        .where(asked.c.is_read)
        .group_by(posting.c.tool_number)
        .cte("scored")
        .prefix_with("MATERIALIZED")
    )
    possible = select(func.coalesce(func.sum(asked.c.rarity), 0)).scalar_subquery()
    return scored, possible


def term_weights() -> Rows:
    """(term, mask, most, floor, per_word) of the question's terms that a search reads.

    For what has no rows of its own, since it is switched off; see `lexical.word_score`. Binds as
    `word_scores` does.
    """
    asked = _asked()
    return (
        select(asked.c.term, asked.c.mask, asked.c.most, asked.c.floor, asked.c.per_word)
        .where(asked.c.is_read)
        .order_by(asked.c.term)
    )


def _asked() -> CTE:
    """(term, mask, is_read, rarity, most, floor, per_word) of the question's terms.

    A tool that has a term `frequency` times among `length` words in all gains
    `most * frequency / (frequency + floor + per_word * length)`.
    """
    given = (
        func.unnest(bindparam("terms", type_=ARRAY(Text)), bindparam("masks", type_=ARRAY(Integer)))
        .table_valued(column("term", Text), column("mask", Integer), name="given")
        .render_derived()
    )
    namespace = bindparam("namespace")
    # Words of few tools are not counted beforehand.
    few = (
        select(func.count())
        .where(tool_term.c.namespace == namespace, tool_term.c.term == given.c.term)
        .correlate(given)
        .scalar_subquery()
    )
    counted = (
        select(
            given.c.term,
            given.c.mask,
            func.coalesce(tool_term_count.c.tools, few).label("tools"),
        )
        .select_from(
            given.outerjoin(
                tool_term_count,
                (tool_term_count.c.namespace == namespace)
                & (tool_term_count.c.term == given.c.term),
            )
        )
        .cte("counted")
        .prefix_with("MATERIALIZED")
    )
    df = counted.c.tools
    corpus = _corpus()
    rarity = func.ln(1 + (func.greatest(corpus.c.tools, df) - df + 0.5) / (df + 0.5))
    rarest_first = [df, counted.c.term]
    return (
        select(
            counted.c.term,
            counted.c.mask,
            (
                (func.sum(df).over(order_by=rarest_first) <= MAX_POSTINGS)
                | (func.row_number().over(order_by=rarest_first) == 1)
            ).label("is_read"),
            rarity.label("rarity"),
            (rarity * (K1 + 1)).label("most"),
            literal_column(f"{K1 * (1 - LENGTH_SHARE)!r}::float8", Double).label("floor"),
            (K1 * LENGTH_SHARE / corpus.c.mean_length).label("per_word"),
        )
        .select_from(counted.join(corpus, true()))
        .cte("asked")
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
