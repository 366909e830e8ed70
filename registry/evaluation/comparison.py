"""Two runs over the same questions: what changed, and whether it may be chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from registry.evaluation.metrics import recall_at
from registry.evaluation.results import QuestionResult
from registry.evaluation.statistics import bootstrap_ratios, permutation_p_value

__all__ = ["Change", "Comparison", "Outcome", "compare", "flat_comparison", "outcome_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What of a question's result is compared: enough to tell that it is the same question."""

    id: str
    text: str
    groups: tuple[tuple[str, ...], ...]
    names: tuple[str, ...]
    ranks: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A question that two runs answer differently: its recall, and the tools found."""

    id: str
    text: str
    recall_before: float
    recall_after: float
    names_before: tuple[str, ...]
    names_after: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A run against an earlier one, on recall@k of the questions they share.

    Attributes:
        questions: Number compared; those that no tool fits are not.
        left_out: Questions with right tools that are in one run only, or whose text or right
            tools changed.
        difference: Recall after minus recall before.
        low: Lower end of its 95 % confidence interval, a paired bootstrap.
        high: Upper end.
        p_value: Of a paired permutation test, two-sided.
        worse: Questions that lost, most first.
        better: Questions that gained, most first.
    """

    k: int
    questions: int
    left_out: int
    recall_before: float
    recall_after: float
    difference: float
    low: float
    high: float
    p_value: float
    worse: tuple[Change, ...]
    better: tuple[Change, ...]


def outcome_of(result: QuestionResult) -> Outcome:
    """Return what is compared of a result."""
    return Outcome(
        id=result.question.id,
        text=result.question.text,
        groups=result.question.groups,
        names=result.names,
        ranks=result.ranks,
    )


def compare(before: Sequence[Outcome], after: Sequence[Outcome], *, k: int) -> Comparison:
    """Compare two runs on the questions they share.

    Args:
        before: The earlier run, ids unique.
        after: The later run, ids unique.
        k: Hits that count; both runs looked at as many or more.

    Raises:
        ValueError: They share no question that has right tools.
    """
    earlier = {outcome.id: outcome for outcome in before if outcome.groups}
    later = {outcome.id: outcome for outcome in after if outcome.groups}
    shared = [key for key in later if key in earlier and _same(earlier[key], later[key])]
    if not shared:
        raise ValueError("the two runs share no question that has right tools")
    changes = [_change(earlier[key], later[key], k) for key in shared]
    differences = [change.recall_after - change.recall_before for change in changes]
    column = np.array(differences)[:, None]
    low, high = bootstrap_ratios(column, np.ones_like(column))[:, 0]
    by_size = sorted(changes, key=lambda c: (c.recall_after - c.recall_before, c.id))
    gained = sorted(changes, key=lambda c: (c.recall_before - c.recall_after, c.id))
    return Comparison(
        k=k,
        questions=len(shared),
        left_out=len(earlier.keys() | later.keys()) - len(shared),
        recall_before=sum(c.recall_before for c in changes) / len(changes),
        recall_after=sum(c.recall_after for c in changes) / len(changes),
        difference=sum(differences) / len(differences),
        low=float(low),
        high=float(high),
        p_value=permutation_p_value(differences),
        worse=tuple(c for c in by_size if c.recall_after < c.recall_before),
        better=tuple(c for c in gained if c.recall_after > c.recall_before),
    )


def flat_comparison(comparison: Comparison) -> Mapping[str, float]:
    """Return the figures of a comparison under flat names."""
    name = f"recall@{comparison.k}"
    return {
        "compared_questions": comparison.questions,
        "compared_left_out": comparison.left_out,
        f"{name}_before": comparison.recall_before,
        f"{name}_after": comparison.recall_after,
        f"{name}_difference": comparison.difference,
        f"{name}_difference_low": comparison.low,
        f"{name}_difference_high": comparison.high,
        f"{name}_p_value": comparison.p_value,
    }


def _same(one: Outcome, other: Outcome) -> bool:
    return one.text == other.text and set(map(frozenset, one.groups)) == set(
        map(frozenset, other.groups)
    )


def _change(before: Outcome, after: Outcome, k: int) -> Change:
    return Change(
        id=after.id,
        text=after.text,
        recall_before=recall_at(before.ranks, k),
        recall_after=recall_at(after.ranks, k),
        names_before=before.names[:k],
        names_after=after.names[:k],
    )
