"""How an evaluation is printed: a compact table for people, one flat object for programs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent.cli.output import Output, counted

if TYPE_CHECKING:
    from registry.evaluation import Change, Comparison, Evaluation, Missed

__all__ = ["document", "print_report"]

_LABELS = {
    "mrr": "MRR",
    "kept_share": "right tools kept",
    "rejected_share": "no tool fits: rejected",
}
_MOST_SHOWN = 10
_GROUP = re.compile(r"questions\[(lang|split)=(.*)\]")
_GROUP_COLUMNS = ("recall@1", "recall@5", "ndcg@10", "completeness@5", "mrr", "rejected_share")


def document(
    evaluation: Evaluation,
    comparison: Comparison | None,
    missed: Sequence[Missed],
    *,
    embedding_model: str,
) -> dict[str, Any]:
    """Return everything as one JSON object with flat names."""
    from registry.evaluation import flat_comparison

    flat: dict[str, Any] = {"embedding_model": embedding_model}
    flat |= {name: _rounded(value) for name, value in evaluation.metrics.items()}
    if comparison is not None:
        flat |= {name: _rounded(value) for name, value in flat_comparison(comparison).items()}
        flat["worse"] = comparison.worse
        flat["better"] = comparison.better
    flat["floors_missed"] = [miss.metric for miss in missed]
    return flat


def print_report(
    output: Output,
    evaluation: Evaluation,
    comparison: Comparison | None,
    missed: Sequence[Missed],
    *,
    floors: int,
) -> None:
    """Print the figures, then the comparison, then what the floors say."""
    metrics = evaluation.metrics
    no_tool = int(metrics["questions_no_tool"] or 0)
    fitting = f", of which no tool fits {no_tool:,}" if no_tool else ""
    output.text(
        f"{counted(len(evaluation.results), 'question')}{fitting}; "
        f"{counted(int(metrics['tools'] or 0), 'tool')}; top {evaluation.k}, "
        f"threshold {evaluation.threshold:.2f}"
    )
    output.text()
    measured = [name.removesuffix("_low") for name in metrics if name.endswith("_low")]
    output.table(
        ["metric", "%", "95 % interval"],
        [_line(metrics, name) for name in measured],
        numeric=["%"],
    )
    output.text()
    output.text(
        f"Search with embedding: {metrics['latency_ms_p50']:.1f} ms at the median, "
        f"{metrics['latency_ms_p95']:.1f} ms at the 95th percentile"
    )
    output.text(
        f"Schemas: approx. {metrics['tokens_offered']:,.0f} tokens a question for the tools "
        f"offered, {metrics['tokens_all']:,.0f} for all"
    )
    for kind, heading in (("lang", "language"), ("split", "split")):
        _print_groups(output, metrics, kind, heading)
    if comparison is not None:
        _print_comparison(output, comparison)
    if floors:
        _print_floors(output, missed, floors)


def _line(metrics: Mapping[str, float | None], name: str) -> list[str]:
    low, high = _percent(metrics[f"{name}_low"]), _percent(metrics[f"{name}_high"])
    return [_LABELS.get(name, name), _percent(metrics[name]), f"{low} to {high}"]


def _print_groups(
    output: Output, metrics: Mapping[str, float | None], kind: str, heading: str
) -> None:
    matches = [match for name in metrics if (match := _GROUP.fullmatch(name))]
    names = [match[2] for match in matches if match[1] == kind]
    if len(names) < 2:
        return
    columns = [column for column in _GROUP_COLUMNS if column in metrics]
    output.text()
    output.table(
        [heading, "questions", *(_LABELS.get(column, column) for column in columns)],
        [
            [
                name,
                f"{metrics[f'questions[{kind}={name}]']:,.0f}",
                *(_percent(metrics.get(f"{column}[{kind}={name}]")) for column in columns),
            ]
            for name in names
        ],
        numeric=["questions", *(_LABELS.get(column, column) for column in columns)],
    )


def _print_comparison(output: Output, comparison: Comparison) -> None:
    output.text()
    left_out = (
        f" ({comparison.left_out:,} left out: in one run only, or changed)"
        if comparison.left_out
        else ""
    )
    output.text(f"Compared on {counted(comparison.questions, 'question')}{left_out}")
    output.text(
        f"recall@{comparison.k}: {_percent(comparison.recall_before)} before, "
        f"{_percent(comparison.recall_after)} now, difference {100 * comparison.difference:+.1f} "
        f"(95 % interval {100 * comparison.low:+.1f} to {100 * comparison.high:+.1f}, "
        f"p = {comparison.p_value:.3g})"
    )
    for label, changes in (("worse", comparison.worse), ("better", comparison.better)):
        if changes:
            _print_changes(output, label, changes)


def _print_changes(output: Output, label: str, changes: Sequence[Change]) -> None:
    output.text()
    shown = changes[:_MOST_SHOWN]
    more = f", the {len(shown)} most changed" if len(changes) > len(shown) else ""
    output.text(f"{counted(len(changes), 'question')} got {label}{more}:")
    output.table(
        ["id", "before", "now", "first tool now", "question"],
        [
            [
                change.id,
                _percent(change.recall_before),
                _percent(change.recall_after),
                change.names_after[0] if change.names_after else "none",
                change.text,
            ]
            for change in shown
        ],
        numeric=["before", "now"],
        wide="question",
        indent=2,
    )


def _print_floors(output: Output, missed: Sequence[Missed], floors: int) -> None:
    from registry.evaluation import is_ceiling

    output.text()
    if not missed:
        output.text(f"{counted(floors, 'limit')} kept.")
    for miss in missed:
        value = "not defined" if miss.value is None else f"{miss.value:.4g}"
        bound = "at most" if is_ceiling(miss.metric) else "at least"
        output.text(
            f"missed: {miss.metric} is {value}, must be {bound} {miss.allowed:g}", style="red"
        )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _rounded(value: float | None) -> float | None:
    return round(value, 6) if isinstance(value, float) else value
