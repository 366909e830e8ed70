"""Pure: relevance of a hit, 0 to 1, which means the same for every embedding model and catalogue.

    strength(tool) = cosine / spread + 2 * coverage                      of every candidate
    evidence(hit)  = best * (own * share(hit) + 2/3 - own) + mean of the five greatest / 3
    relevance(hit) = sigmoid(logit(0.6) + slope * (evidence - null - zero))

Whether any tool fits at all shows in the best and in the mean of the first five far better than in
a hit's own cosine, so a hit's own part is only a fifth. No constant is fitted to labels of the
catalogue: `spread` is measured on the anchors (`registry.anchors`) for each model, `null` is the
evidence that the anchors' questions, most of which no tool fits, find in each catalogue.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from registry.fusion import Floats

__all__ = [
    "DEFAULT_THRESHOLD",
    "ZERO",
    "Calibration",
    "coverage",
    "evidence",
    "null_evidence",
    "relevance",
    "spread_of",
]

DEFAULT_THRESHOLD = 0.6
ZERO = 0.25  # evidence above null at which relevance is 0.6
_FIRST = 5
_OWN = 0.2
_COVERAGE_WEIGHT = 2.0
_COVERAGE_SHRINK = 3.0
_SLOPE = 0.9
_LEAST_SPREAD = 0.01  # of a model whose vectors tell nothing apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What turns evidence into relevance, of one namespace and one embedding model.

    Attributes:
        spread: Standard deviation of the model's cosines between texts that do not belong
            together.
        null: Median evidence of questions that most catalogues have no tool for.
        zero: Evidence above `null` at which relevance is the default threshold.
    """

    spread: float
    null: float
    zero: float = ZERO


def coverage(bm25: Floats, possible: float) -> Floats:
    """Return how much of a question's words, weighted by rarity, each candidate holds.

    Args:
        bm25: Of each candidate.
        possible: Sum of the rarities of all the question's words, unknown ones too.
    """
    return bm25 / (possible + _COVERAGE_SHRINK)


def evidence(cosine: Floats, covered: Floats, share: Floats, *, spread: float) -> Floats:
    """Return the evidence that hits answer their question.

    Args:
        cosine: Of every candidate.
        covered: Of every candidate, as `coverage` gives it.
        share: Of each hit: its ranking score as a share of the first hit's, 0 to 1.
        spread: The model's.
    """
    strength = cosine / spread + _COVERAGE_WEIGHT * covered
    greatest = np.sort(strength)[-_FIRST:]
    best, mean = greatest[-1], greatest.mean()
    return best * (_OWN * share + 2 / 3 - _OWN) + mean / 3


def relevance(found: Floats, by: Calibration) -> Floats:
    """Return evidence as relevance, 0 to 1."""
    at = math.log(DEFAULT_THRESHOLD / (1 - DEFAULT_THRESHOLD))
    return 1 / (1 + np.exp(-(at + _SLOPE * (found - by.null - by.zero))))


def spread_of(questions: Floats, tools: Floats) -> float:
    """Return a model's spread from the anchors' vectors, of length 1, rows in the same order."""
    cosines = questions @ tools.T
    return max(float(cosines[~np.eye(len(cosines), dtype=bool)].std()), _LEAST_SPREAD)


def null_evidence(first: Sequence[float]) -> float:
    """Return a catalogue's null from the evidence of the anchors' first hits."""
    return float(np.median(first))
