"""Pure: relevance of a hit, 0 to 1, which means the same for every embedding model and catalogue.

    strength(tool) = (cosine - center) / spread + 2 * coverage           of every candidate
    evidence(hit)  = best * (own * share(hit) + 2/3 - own) + mean of the five greatest / 3
                     + traffic / spread
    relevance(hit) = sigmoid(logit(0.6) + slope * (evidence - null - zero))

Whether any tool fits at all shows in the best and in the mean of the first five far better than in
a hit's own cosine, so a hit's own part is only a fifth. No constant is fitted to labels of the
catalogue: `center` and `spread` are measured on the anchors (`registry.anchors`) for each model,
`null` is the evidence that the anchors' questions, most of which no tool fits, find in each
catalogue. With recorded calls a question also gains by what it has in common with the questions
that were answered here, its traffic, and `zero` is moved to where those calls' tools stay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from registry.fusion import Floats
from registry.learning import TRAFFIC_SHRINK

__all__ = [
    "DEFAULT_THRESHOLD",
    "FIRST",
    "LEAST_CALLS",
    "ZERO",
    "Calibration",
    "Scale",
    "coverage",
    "evidence",
    "null_evidence",
    "relevance",
    "scale_of",
    "traffic_of",
    "without_own",
    "zero_of_calls",
]

DEFAULT_THRESHOLD = 0.6
FIRST = 5  # hits that are looked at
ZERO = 0.55  # evidence above null at which relevance is 0.6, as long as no calls say more
LEAST_CALLS = 30  # below it, recorded calls say nothing
_OWN = 0.2
_COVERAGE_WEIGHT = 2.0
_COVERAGE_SHRINK = 3.0
_SLOPE = 0.9
_NULL_SHARE = 0.75
_LEAST_SPREAD = 0.01  # of a model whose vectors tell nothing apart
_KEEP = 0.96  # of the called tools
_KEPT_BY_QUARTILE = 2.596  # of a normal distribution: from median to 4 %, in distances to 25 %
_PRIOR_CALLS = 100.0  # so many calls weigh as much as ZERO
_LOWEST_ZERO, _HIGHEST_ZERO = -0.3, 1.3  # however calls were recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How an embedding model's cosines between texts that do not belong together lie.

    Attributes:
        center: Their mean; near 0 for most models, 0.8 for some.
        spread: Their standard deviation.
    """

    center: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What turns evidence into relevance, of one namespace and one embedding model.

    Attributes:
        scale: Of the model.
        null: Evidence of questions that most catalogues have no tool for.
        zero: Evidence above `null` at which relevance is the default threshold.
        words: How much of the settings' `word_weight` the recorded calls leave to words.
    """

    scale: Scale
    null: float
    zero: float = ZERO
    words: float = 1.0


def coverage(bm25: Floats, possible: float) -> Floats:
    """Return how much of a question's words, weighted by rarity, each candidate holds.

    Args:
        bm25: Of each candidate.
        possible: Sum of the rarities of all the question's words, unknown ones too.
    """
    return bm25 / (possible + _COVERAGE_SHRINK)


def evidence(
    cosine: Floats, covered: Floats, share: Floats, scale: Scale, *, traffic: float = 0.0
) -> Floats:
    """Return the evidence that hits answer their question.

    Args:
        cosine: Of every candidate.
        covered: Of every candidate, as `coverage` gives it.
        share: Of each hit: its ranking score as a share of the first hit's, 0 to 1.
        scale: The model's.
        traffic: Inner product of the question with `traffic_of` those answered here.
    """
    strength = (cosine - scale.center) / scale.spread + _COVERAGE_WEIGHT * covered
    greatest = np.sort(strength)[-FIRST:]
    best, mean = greatest[-1], greatest.mean()
    return best * (_OWN * share + 2 / 3 - _OWN) + mean / 3 + traffic / scale.spread


def relevance(found: Floats, by: Calibration) -> Floats:
    """Return evidence as relevance, 0 to 1."""
    at = math.log(DEFAULT_THRESHOLD / (1 - DEFAULT_THRESHOLD))
    return 1 / (1 + np.exp(-(at + _SLOPE * (found - by.null - by.zero))))


def scale_of(questions: Floats, tools: Floats) -> Scale:
    """Return a model's scale from the anchors' vectors, of length 1, rows in the same order."""
    cosines = questions @ tools.T
    strangers = cosines[~np.eye(len(cosines), dtype=bool)]
    return Scale(center=float(strangers.mean()), spread=max(float(strangers.std()), _LEAST_SPREAD))


def null_evidence(first: Sequence[float]) -> float:
    """Return a catalogue's null from the evidence of the anchors' first hits.

    The mean of their lower three quarters: a catalogue may have tools for the others. A median's
    error is half as great again, as much as two embedding models may differ by.
    """
    lower = np.sort(first)[: math.ceil(_NULL_SHARE * len(first))]
    return float(lower.mean())


# ---------------------------------------------------------------- recorded calls


def traffic_of(questions: Floats) -> Floats:
    """Return what answered questions have in common: their mean, the shorter the fewer they are.

    Args:
        questions: Their vectors, of length 1, one a row.
    """
    return questions.sum(axis=0) / (len(questions) + TRAFFIC_SHRINK)


def without_own(traffic: float, questions: int) -> float:
    """Return a question's inner product with the traffic of the others.

    Args:
        traffic: Its inner product with the traffic that it is part of.
        questions: That the traffic was made of.
    """
    share = questions + TRAFFIC_SHRINK
    return (traffic * share - 1) / (share - 1)


def zero_of_calls(above_null: Sequence[float], *, filtered: float) -> float:
    """Return the zero that keeps about 96 % of the tools that were called.

    What a threshold hid was never called, so the lowest calls recorded say where the threshold
    was: a zero put 4 % above them would rise with every calibration, to where a tenth of the
    right tools is lost. So it is put where a normal distribution with the calls' median and lower
    quartile has its 4 %, after adding the 4 % that were not recorded.

    Args:
        above_null: Evidence above null of each called tool that stands among the first five.
        filtered: Share of the calls whose tools had to reach a threshold, 0 to 1.
    """
    if len(above_null) < LEAST_CALLS:
        return ZERO
    hidden = filtered * (1 - _KEEP)
    levels = [(level - hidden) / (1 - hidden) for level in (0.25, 0.5)]
    quartile, median = np.quantile(above_null, levels)
    asked = float(median - _KEPT_BY_QUARTILE * (median - quartile))
    share = len(above_null) / (len(above_null) + _PRIOR_CALLS)
    zero = (1 - share) * ZERO + share * asked
    return min(max(zero, _LOWEST_ZERO), _HIGHEST_ZERO)
