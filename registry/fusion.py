"""Pure: candidates with their cosines and their words -> a ranking, and what each score is made of.

    score(tool) = fit(question, tool) + the best of its clauses: share(clause) * fit(clause, tool)
                  + route bonus
    fit(part, tool) = standing(cosine) + word_weight * BM25

Standing is the cosine in standard deviations above the mean of the part's nearest candidates, so
no constant depends on the embedding model. BM25 stays absolute, a sum of log odds: a question with
few or unknown words gives it little, a long or literal one much, and the weight of the words
thereby follows the question without a formula of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["CANDIDATES", "Flags", "Floats", "Ranked", "candidate_scores", "fuse", "standing"]

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

CANDIDATES = 50  # by vector and by words, for the question and for each clause
_CLAUSE_WEIGHT = 1.0
_SERVED = 0.7  # what a clause still counts after each tool that was chosen for it
# Among near-identical tools any difference would be many deviations. On the development sets the
# spread is 0.0126 at least.
_LEAST_SPREAD = 0.01
_LEAST_STANDING = -8.0


@dataclass(frozen=True, slots=True)
class Ranked:
    """One tool's place: its score is the sum of the five parts.

    Attributes:
        index: Column of the candidate.
        vector: Of the whole question, in standard deviations of its nearest candidates.
        words: Of the whole question, BM25 times its weight.
        route: What its category's route gains it.
        clause: The clause that counted, from 1; 0 where the question has none.
        clause_vector: Of that clause.
        clause_words: Of that clause.
    """

    index: int
    score: float
    vector: float
    words: float
    route: float = 0.0
    clause: int = 0
    clause_vector: float = 0.0
    clause_words: float = 0.0


def candidate_scores(
    rows: Iterable[Mapping[str, Any]], parts: int
) -> tuple[list[Mapping[str, Any]], Floats, Floats]:
    """Return the rows of a search's statement by distance and name, their cosines and BM25.

    Args:
        rows: In any order, with `distance_<p>`, `words_<p>` and `tool_name`.
        parts: 1 for the question, 1 more for each of its clauses.

    Returns:
        The rows, and two arrays of parts by rows.
    """
    ordered = sorted(rows, key=lambda row: (row["distance_0"], row["tool_name"]))
    distance, words = (
        np.array([[row[f"{name}_{part}"] for row in ordered] for part in range(parts)], dtype=float)
        for name in ("distance", "words")
    )
    return ordered, 1.0 - distance, words


def fuse(
    cosine: Floats,
    bm25: Floats,
    *,
    word_weight: float,
    limit: int,
    bonus: Floats | None = None,
    last: Flags | None = None,
) -> list[Ranked]:
    """Return the best candidates, best first; equal scores stay in the order given.

    A clause counts less with each tool that was chosen for it, so that every part of a compound
    question gets its tools.

    Args:
        cosine: Parts by candidates, exact; row 0 is the whole question, the others its clauses.
        bm25: The same shape; 0 where no word occurs.
        word_weight: Standard deviations of cosine that one nat of BM25 is worth.
        limit: Most tools to return.
        bonus: What each candidate gains beside, in standard deviations of cosine.
        last: Which candidates come after all others, whatever their score; beside `limit` of the
            others, up to as many of these.
    """
    vector = standing(cosine)
    words = word_weight * bm25
    fit = vector + words
    route = np.zeros(fit.shape[1]) if bonus is None else bonus
    share = np.full(len(fit) - 1, _CLAUSE_WEIGHT)
    free = np.ones(fit.shape[1], dtype=bool)
    behind = np.zeros_like(free) if last is None else last
    chosen: list[Ranked] = []
    for among in _turns(behind, limit):
        score = fit[0] + route
        if len(share):
            score += (share[:, None] * fit[1:]).max(axis=0)
        best = int(np.where(free & among, score, -np.inf).argmax())
        free[best] = False
        whole = Ranked(
            index=best,
            score=float(score[best]),
            vector=float(vector[0, best]),
            words=float(words[0, best]),
            route=float(route[best]),
        )
        if not len(share):
            chosen.append(whole)
            continue
        clause = int((share * fit[1:, best]).argmax())
        chosen.append(
            replace(
                whole,
                clause=clause + 1,
                clause_vector=float(share[clause] * vector[clause + 1, best]),
                clause_words=float(share[clause] * words[clause + 1, best]),
            )
        )
        share[clause] *= _SERVED
    return chosen


def _turns(behind: Flags, limit: int) -> Iterator[Flags]:
    """Yield which candidates may be chosen at each turn."""
    for among in (~behind, behind):
        yield from repeat(among, min(limit, int(among.sum())))


def standing(cosine: Floats) -> Floats:
    """Return cosines in standard deviations above the mean of each part's nearest candidates."""
    count = min(CANDIDATES, cosine.shape[1])
    nearest = -np.partition(-cosine, count - 1, axis=1)[:, :count]
    spread = np.maximum(nearest.std(axis=1, keepdims=True), _LEAST_SPREAD)
    return np.maximum((cosine - nearest.mean(axis=1, keepdims=True)) / spread, _LEAST_STANDING)
