"""Pure: how much words count beside vectors in this catalogue, from the calls that were made.

Where tools have learnt from many questions their vectors find them by themselves, and the words of
thousands of foreign tools are in the way; where questions are literal it is the words that find
them. Which of both holds is seen in the calls: each is ranked as if its tool had learnt nothing of
it, with words counting more and less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np

from registry.fusion import Flags, Floats, candidate_scores, standing

__all__ = ["Weighed", "weighed", "words_share"]

SHARES = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
LEAST_QUESTIONS = 50
_SURE_Z = 2.5  # standard errors that the best of the shares must be ahead by


@dataclass(frozen=True, slots=True)
class Weighed:
    """A recorded question with n candidates.

    Attributes:
        standing: n, of the cosines.
        words: n, BM25.
        called: n, which of them were called for it.
    """

    standing: Floats
    words: Floats
    called: Flags


def weighed(rows: Iterable[Mapping[str, Any]], called: frozenset[str]) -> Weighed:
    """Return a question of one part with its candidates, from the rows of a search's statement."""
    rows, cosine, words = candidate_scores(rows, 1)
    return Weighed(
        standing=standing(cosine)[0],
        words=words[0],
        called=np.array([row["tool_name"] in called for row in rows], dtype=bool),
    )


def words_share(questions: Sequence[Weighed], *, word_weight: float, before: float) -> float:
    """Return how much of `word_weight` words count for.

    The share with the best mean reciprocal rank of the called tools, if it is surely better than
    the one before: the calls were made with that one, which offered what could be called.

    Args:
        questions: Each of a session of its own.
        word_weight: Of the settings.
        before: In force until now.
    """
    asked = [question for question in questions if question.called.any()]
    if len(asked) < LEAST_QUESTIONS or word_weight <= 0:
        return before
    ranks = {
        share: [_reciprocal(question, share * word_weight) for question in asked]
        for share in sorted({*SHARES, before})
    }
    best = max(ranks, key=lambda share: (round(fmean(ranks[share]), 9), -abs(share - before)))
    gains = [new - old for new, old in zip(ranks[best], ranks[before], strict=True)]
    spread = stdev(gains)
    if spread == 0:
        return before
    return best if fmean(gains) / (spread / len(gains) ** 0.5) >= _SURE_Z else before


def _reciprocal(question: Weighed, weight: float) -> float:
    """Return the mean reciprocal rank of the called tools; equal scores share the worst place."""
    scores = question.standing + weight * question.words
    ranks = (scores[None, :] >= scores[question.called][:, None]).sum(axis=1)
    return float((1.0 / ranks).mean())
