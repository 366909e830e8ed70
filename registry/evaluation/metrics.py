"""Measures of one ranking, each 0 to 1, from the ranks of the right answers.

A right answer is a group of equally valid names; its rank is that of the first of them, 1 for the
best hit, None where none was found. Every function needs at least one right answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["Ranks", "completeness_at", "ndcg_at", "ranks_of", "recall_at", "reciprocal_rank"]

Ranks = Sequence[int | None]


def ranks_of(groups: Sequence[Sequence[str]], names: Sequence[str]) -> tuple[int | None, ...]:
    """Return the rank of each right answer among the names found, best first."""
    place: dict[str, int] = {}
    for rank, name in enumerate(names, start=1):
        place.setdefault(name, rank)
    return tuple(min((place[n] for n in group if n in place), default=None) for group in groups)


def recall_at(ranks: Ranks, k: int) -> float:
    """Return the share of right answers among the first k hits."""
    return _found(ranks, k) / len(ranks)


def completeness_at(ranks: Ranks, k: int) -> float:
    """Return 1 where all right answers are among the first k hits, else 0."""
    return float(_found(ranks, k) == len(ranks))


def ndcg_at(ranks: Ranks, k: int) -> float:
    """Return the normalised discounted cumulative gain of the first k hits.

    Each right answer gains 1, once, at its rank; 1 is reached when the right answers stand first.

    Source: Järvelin and Kekäläinen, ACM TOIS 2002.
    """
    gain = sum(1 / math.log2(rank + 1) for rank in ranks if rank is not None and rank <= k)
    best = sum(1 / math.log2(place + 1) for place in range(1, min(len(ranks), k) + 1))
    # One hit that is right for two overlapping groups gains twice at one rank.
    return min(1.0, gain / best)


def reciprocal_rank(ranks: Ranks) -> float:
    """Return 1 / rank of the first right answer; 0 where none was found."""
    return max((1 / rank for rank in ranks if rank is not None), default=0.0)


def _found(ranks: Ranks, k: int) -> int:
    return sum(rank is not None and rank <= k for rank in ranks)
