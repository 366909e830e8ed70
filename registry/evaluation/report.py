"""Figures of a whole evaluation: means with intervals, by language and split, under flat names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from registry.evaluation.metrics import completeness_at, ndcg_at, recall_at, reciprocal_rank
from registry.evaluation.results import QuestionResult
from registry.evaluation.statistics import RESAMPLES, bootstrap_ratios

__all__ = ["DEPTH", "Evaluation", "summarise"]

# Hits that are asked for, whatever k: the deepest of the fixed measures.
DEPTH = 10
_RECALL_AT = (1, 3, 5, 10)
_OTHERS_AT = (5, 10)
# Value and weight of one question in one measure.
_Share = tuple[float, float]
# A figure and the ends of its interval; None where nothing defines it.
_Interval = tuple[float | None, float | None, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Results of all questions and what they come to.

    Attributes:
        results: One a question, in the order asked.
        k: Most tools an agent offers.
        threshold: Relevance that an offered tool had to have.
        metrics: Flat names to figures, for example `recall@5`, `recall@5_low`, `latency_ms_p50`,
            `recall@5[lang=de]`; shares are 0 to 1. None where a figure is not defined, such as
            `kept_share` when no right tool was found.
    """

    results: tuple[QuestionResult, ...]
    k: int
    threshold: float
    metrics: Mapping[str, float | None]


def summarise(
    results: Sequence[QuestionResult],
    *,
    k: int,
    threshold: float,
    tool_tokens: Mapping[str, int] | None = None,
    resamples: int = RESAMPLES,
) -> Evaluation:
    """Return the figures of results.

    Args:
        results: At least one.
        k: Most tools an agent offers.
        threshold: Relevance that an offered tool had to have.
        tool_tokens: Every tool's name, with the prompt tokens of its schema: for the token figures
            and the number of right answers that no tool is.
        resamples: Of the bootstrap that makes the intervals.

    Raises:
        ValueError: There are no results.
    """
    if not results:
        raise ValueError("there are no results to summarise")
    metrics: dict[str, float | None] = {"k": k, "threshold": threshold}
    metrics |= _flat(results, k, resamples, suffix="")
    latencies = [result.latency_ms for result in results]
    for percent in (50, 95):
        metrics[f"latency_ms_p{percent}"] = float(np.percentile(latencies, percent))
    if tool_tokens is not None:
        metrics |= _catalogue_figures(results, tool_tokens)
    for kind in ("lang", "split"):
        for name in dict.fromkeys(getattr(result.question, kind) for result in results):
            if name:
                part = [r for r in results if getattr(r.question, kind) == name]
                metrics |= _flat(part, k, resamples, suffix=f"[{kind}={name}]")
    return Evaluation(results=tuple(results), k=k, threshold=threshold, metrics=metrics)


def _flat(
    results: Sequence[QuestionResult], k: int, resamples: int, *, suffix: str
) -> dict[str, float | None]:
    no_tool = sum(not result.question.groups for result in results)
    flat: dict[str, float | None] = {
        f"questions{suffix}": len(results),
        f"questions_no_tool{suffix}": no_tool,
    }
    for name, (value, low, high) in _intervals(results, k, resamples).items():
        flat[f"{name}{suffix}"] = value
        flat[f"{name}_low{suffix}"] = low
        flat[f"{name}_high{suffix}"] = high
    return flat


def _intervals(results: Sequence[QuestionResult], k: int, resamples: int) -> dict[str, _Interval]:
    answerable = [_answerable(result, k) for result in results if result.question.groups]
    unanswerable = [
        {"rejected_share": (float(not result.offered), 1.0)}
        for result in results
        if not result.question.groups
    ]
    # Each kind resampled by itself: how many questions of a kind were asked is no chance.
    return {**_resampled(answerable, resamples), **_resampled(unanswerable, resamples)}


def _answerable(result: QuestionResult, k: int) -> dict[str, _Share]:
    """Return what one question with right tools adds to each measure."""
    ranks = result.ranks
    measures = {f"recall@{at}": recall_at(ranks, at) for at in sorted({*_RECALL_AT, k})}
    others = sorted({*_OTHERS_AT, k})
    measures |= {f"ndcg@{at}": ndcg_at(ranks, at) for at in others}
    measures |= {f"completeness@{at}": completeness_at(ranks, at) for at in others}
    measures["mrr"] = reciprocal_rank(ranks)
    shares = {name: (value, 1.0) for name, value in measures.items()}
    shares["kept_share"] = (float(result.kept), float(result.found_within(k)))
    return shares


def _resampled(rows: Sequence[Mapping[str, _Share]], resamples: int) -> dict[str, _Interval]:
    if not rows:
        return {}
    names = list(rows[0])
    table = np.array([[row[name] for name in names] for row in rows], dtype=np.float64)
    values, weights = table[:, :, 0], table[:, :, 1]
    low, high = bootstrap_ratios(values, weights, resamples=resamples)
    intervals: dict[str, _Interval] = {}
    for column, name in enumerate(names):
        weight = float(weights[:, column].sum())
        value = float(values[:, column].sum()) / weight if weight else None
        intervals[name] = (value, _known(low[column]), _known(high[column]))
    return intervals


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _catalogue_figures(
    results: Sequence[QuestionResult], tool_tokens: Mapping[str, int]
) -> dict[str, float | None]:
    every = sum(tool_tokens.values())
    offered = [sum(tool_tokens.get(name, 0) for name in result.offered) for result in results]
    mean = sum(offered) / len(offered)
    unknown = sum(
        tool_tokens.keys().isdisjoint(group) for r in results for group in r.question.groups
    )
    return {
        "tools": len(tool_tokens),
        "labels_unknown": unknown,
        "tokens_all": every,
        "tokens_offered": mean,
        "tokens_offered_share": mean / every if every else None,
    }
