"""`toolrag tune`: the ranking settings that suit one's own catalogue."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.cli.options import global_options
from agent.cli.output import Output, counted, jsonable

if TYPE_CHECKING:
    from registry.settings import RegistrySettings
    from registry.tuning import RankingSettings, TuningReport

__all__ = ["tune"]

_SHOWN = 5


def tune(
    context: typer.Context,
    queries: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help='Questions about the registered tools, one JSON object a line: {"id": ..., '
            '"query": ..., "relevant": \\[names of the right tools]}, as for `toolrag eval`.',
        ),
    ],
    k: Annotated[
        int, typer.Option("--k", "-k", min=1, max=1_000, help="Most tools that an agent offers.")
    ] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Find the weight of words, and whether clauses help, for the registered tools.

    Settings are chosen on one half of the questions and compared with the defaults on the other
    half. Another setting is recommended only where it is significantly better there. Needs 40
    questions whose right tools are registered, better some hundreds. Nothing is changed: the
    variables to set are printed.
    """
    from agent.cli.context import opened_registry
    from agent.cli.eval_files import read_questions
    from registry.types import SyncProgress

    output = Output()
    options = global_options(context)
    questions = read_questions(queries)
    with opened_registry(options, output) as registry:
        output.note(f"Asking {counted(len(questions), 'question')} ...")
        with output.embedding_progress("Asking") as advance:
            report = registry.tune(
                questions,
                k=k,
                on_progress=advance
                and (lambda done, total: advance(SyncProgress(done=done, total=total))),
            )
    if as_json:
        output.json(_document(report))
    else:
        _print_report(output, report, options.settings)


def variables(settings: RankingSettings) -> dict[str, str]:
    """Return the environment variables that a setting is made with."""
    return {
        "TOOLRAG_WORD_WEIGHT": f"{settings.word_weight:g}",
        "TOOLRAG_CLAUSES": str(settings.clauses).lower(),
    }


def _document(report: TuningReport) -> dict[str, Any]:
    from registry.evaluation import flat_comparison

    document = jsonable(report)
    del document["comparison"]
    document |= flat_comparison(report.comparison)
    document["worse"] = jsonable(report.comparison.worse)
    document["better"] = jsonable(report.comparison.better)
    document["environment"] = variables(report.recommended)
    return document


def _print_report(output: Output, report: TuningReport, in_force: RegistrySettings) -> None:
    comparison = report.comparison
    left_out = (
        f" ({report.left_out:,} left out: no right tool that is registered and active)"
        if report.left_out
        else ""
    )
    output.text(f"{counted(report.questions, 'question')}{left_out}, {len(report.trials)} settings")
    output.text(f"\nBest on the {report.questions - comparison.questions:,} chosen on:")
    # The defaults are always shown, as what the others are compared with.
    defaults = next(trial for trial in report.trials if trial.settings == report.defaults)
    best = report.trials[:_SHOWN]
    output.table(
        ["word_weight", "clauses", f"recall@{report.k}", ""],
        [
            [
                f"{trial.settings.word_weight:g}",
                "on" if trial.settings.clauses else "off",
                f"{100 * trial.recall:.1f}",
                "defaults" if trial is defaults else "",
            ]
            for trial in (best if defaults in best else (*best, defaults))
        ],
        numeric=["word_weight", f"recall@{report.k}"],
        indent=2,
    )
    output.text()
    if report.chosen == report.defaults:
        output.text("No setting beats the defaults. Keep them.")
    else:
        output.text(
            f"On the {comparison.questions:,} others: recall@{report.k} "
            f"{100 * comparison.recall_before:.1f} with the defaults, "
            f"{100 * comparison.recall_after:.1f} with {_named(report.chosen)}; difference "
            f"{100 * comparison.difference:+.1f} (95 % interval {100 * comparison.low:+.1f} to "
            f"{100 * comparison.high:+.1f}, p = {comparison.p_value:.3g})"
        )
        if report.recommended == report.defaults:
            output.text("That may be chance. Keep the defaults.")
        else:
            output.text("That is more than chance. Set:")
    present = {name: getattr(in_force, name) for name in asdict(report.recommended)}
    if report.recommended != report.defaults or present != asdict(report.recommended):
        _print_settings(output, report.recommended)


def _print_settings(output: Output, settings: RankingSettings) -> None:
    output.text()
    for name, value in variables(settings).items():
        output.text(f"{name}={value}", indent=2)
    output.text(
        f"\nIn Python: RegistrySettings(word_weight={settings.word_weight:g}, "
        f"clauses={settings.clauses})."
    )
    output.note("Afterwards run `toolrag calibrate`, so that relevance fits the new ranking.")


def _named(settings: RankingSettings) -> str:
    return f"word_weight {settings.word_weight:g}, clauses {'on' if settings.clauses else 'off'}"
