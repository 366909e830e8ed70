"""What figures must reach: minimums, and maximums where less is better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from registry.text import nearest_names

__all__ = ["Missed", "is_ceiling", "is_share", "missed_floors", "unknown_metrics"]

_LESS_IS_BETTER = ("latency_", "tokens_", "labels_unknown")
_SHARES = ("recall@", "ndcg@", "completeness@", "mrr", "kept_share", "rejected_share")


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """A figure that is worse than allowed; `value` is None where it is not defined."""

    metric: str
    value: float | None
    allowed: float


def is_ceiling(metric: str) -> bool:
    """Return whether less of a metric is better, so that its limit is a maximum."""
    return metric.startswith(_LESS_IS_BETTER)


def is_share(metric: str) -> bool:
    """Return whether a metric goes from 0 to 1."""
    return metric.startswith((*_SHARES, "tokens_offered_share", "threshold"))


def missed_floors(metrics: Mapping[str, float | None], floors: Mapping[str, float]) -> list[Missed]:
    """Return the limits that are missed, in the order of `floors`.

    Args:
        metrics: Flat names to figures.
        floors: Flat names to minimums; for latencies, tokens and unknown labels to maximums.

    Raises:
        KeyError: A name is no metric; ask `unknown_metrics` first.
    """
    missed: list[Missed] = []
    for name, allowed in floors.items():
        value = metrics[name]
        holds = value is not None and (value <= allowed if is_ceiling(name) else value >= allowed)
        if not holds:
            missed.append(Missed(metric=name, value=value, allowed=allowed))
    return missed


def unknown_metrics(names: Iterable[str], known: Iterable[str]) -> dict[str, list[str]]:
    """Return the names that are no metric, each with up to three metrics named like it."""
    metrics = list(known)
    return {name: nearest_names(name, metrics) for name in names if name not in metrics}
