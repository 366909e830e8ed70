"""Bootstrap intervals and a paired test, with fixed seeds: the same results, the same figures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["RESAMPLES", "bootstrap_ratios", "permutation_p_value"]

RESAMPLES = 1_000
_SEED = 20_240_229
_SIGN_FLIPS = 100_000
_ROUNDING = 1e-9

Matrix = npt.NDArray[np.float64]


def bootstrap_ratios(
    values: Matrix, weights: Matrix, *, resamples: int = RESAMPLES, confidence: float = 0.95
) -> Matrix:
    """Return the percentile interval of each column's sum of values over its sum of weights.

    Questions are drawn with replacement, whole: all columns of one resample are of the same
    questions.

    Args:
        values: n questions by m measures.
        weights: n by m; 1 everywhere makes the ratio a mean, 0 leaves a question out.
        resamples: Number of draws.
        confidence: Share of draws within the interval.

    Returns:
        2 by m: lower and upper ends; NaN where every draw's weights are 0.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13.
    """
    count, measures = values.shape
    rng = np.random.default_rng(_SEED)
    table = np.ascontiguousarray(np.hstack([values, weights]))
    sums = np.empty((resamples, 2 * measures))
    for number in range(resamples):
        # One row at a time: all draws of 100,000 questions at once would need gigabytes.
        drawn = np.bincount(rng.integers(count, size=count), minlength=count)
        sums[number] = drawn.astype(np.float64) @ table
    top, bottom = sums[:, :measures], sums[:, measures:]
    ratios = np.full_like(top, np.nan)
    np.divide(top, bottom, out=ratios, where=bottom > 0)
    tail = 100 * (1 - confidence) / 2
    ends = np.full((2, measures), np.nan)
    for column in range(measures):
        # A draw may miss all of the few questions that a measure is of.
        known = ratios[~np.isnan(ratios[:, column]), column]
        if known.size:
            ends[:, column] = np.percentile(known, [tail, 100 - tail])
    return ends


def permutation_p_value(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of paired differences under random signs, in (0, 1].

    How probable a mean at least as far from 0 is when each question might as well have gone the
    other way: 100,000 draws, so never less than 0.00001. Where all differences are equally large,
    this is the sign test.

    Source: Smucker, Allan and Carterette, CIKM 2007; Phipson and Smyth, 2010, for the added 1.
    """
    changes = np.round(np.asarray(differences, dtype=np.float64), 12)
    changes = changes[changes != 0]
    if not changes.size:
        return 1.0
    # Questions whose differences are equally large are exchangeable: their number of signs is
    # drawn, not each sign.
    sizes, counts = np.unique(np.abs(changes), return_counts=True)
    rng = np.random.default_rng(_SEED)
    positive = rng.binomial(counts, 0.5, size=(_SIGN_FLIPS, len(counts)))
    drawn = np.abs((2 * positive - counts) @ sizes)
    extreme = int(np.count_nonzero(drawn >= abs(changes.sum()) - _ROUNDING))
    return (1 + extreme) / (1 + _SIGN_FLIPS)
