"""What the database holds of the words of tools, and what it should hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psycopg

from registry.lexical import COMMON_TERM_TOOLS, K1, LENGTH_SHARE, lexical_terms, tool_terms
from registry.types import ToolRecord
from tests.support.databases import psycopg_url

Words = Mapping[str, tuple[Mapping[str, float], float]]

_STORED = """
    SELECT t.tool_name, w.term, w.frequency, w.length FROM tool_term AS w
    LEFT JOIN tool_registry AS t ON t.number = w.tool_number AND t.namespace = w.namespace
    WHERE w.namespace = %s
"""


def rows(url: str, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    """Return what a statement returns."""
    with psycopg.connect(psycopg_url(url), autocommit=True) as connection:
        return connection.execute(statement, parameters).fetchall()  # type: ignore[arg-type]


def execute(url: str, *statements: str) -> None:
    """Run statements, each on its own."""
    with psycopg.connect(psycopg_url(url), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)  # type: ignore[arg-type]


def stored_words(url: str, namespace: str = "default") -> Words:
    """Return tool name to (term to frequency, length), as stored."""
    terms: dict[str, dict[str, float]] = {}
    lengths: dict[str, float] = {}
    for name, term, frequency, length in rows(url, _STORED, namespace):
        terms.setdefault(name, {})[term] = _rounded(frequency)
        assert lengths.setdefault(name, _rounded(length)) == _rounded(length)
    return {name: (terms[name], lengths[name]) for name in terms}


def right_words(records: Iterable[ToolRecord]) -> Words:
    """Return the same as it follows from the tools."""
    found: dict[str, tuple[Mapping[str, float], float]] = {}
    for record in records:
        terms = tool_terms(record.spec)
        if record.is_active and terms:
            rounded = {term: _rounded(frequency) for term, frequency in terms.items()}
            found[record.spec.tool_name] = rounded, _rounded(sum(terms.values()))
    return found


def bm25(
    question: str,
    words: Words,
    *,
    tools: int,
    mean_length: float,
    max_postings: float = math.inf,
    counted: Mapping[str, int],
) -> dict[str, float]:
    """Return the score of each tool that has a word of the question, the slow and plain way.

    Of common words the number of tools is the one `counted` last, of others that of this moment.

    Source: Robertson and Zaragoza, 2009; idf as in Lucene, which is never negative.
    """
    terms = set(lexical_terms(question))
    having = {
        term: {name: found[term] for name, (found, _) in words.items() if term in found}
        for term in terms
    }
    known = {term: counted.get(term, len(having[term])) for term in terms}
    scores: dict[str, float] = {}
    read = 0
    for place, term in enumerate(sorted(terms, key=lambda term: (known[term], term.encode()))):
        n = known[term]
        read += n
        if read > max_postings and place:
            break
        idf = math.log(1 + (max(tools, n) - n + 0.5) / (n + 0.5))
        for name, tf in having[term].items():
            length = words[name][1]
            norm = K1 * (1 - LENGTH_SHARE + LENGTH_SHARE * length / mean_length)
            scores[name] = scores.get(name, 0.0) + idf * tf * (K1 + 1) / (tf + norm)
    return scores


def common_words(words: Words) -> dict[str, int]:
    """Return the words that more than `COMMON_TERM_TOOLS` tools have, with their number."""
    every: Sequence[str] = [term for found, _ in words.values() for term in found]
    counts = {term: every.count(term) for term in set(every)}
    return {term: count for term, count in counts.items() if count > COMMON_TERM_TOOLS}


def _rounded(value: float) -> float:
    return round(float(value), 3)
