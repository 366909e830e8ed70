"""`toolrag calibrate`: measure what relevance means in this catalogue."""

from __future__ import annotations

from typing import Annotated

import typer

from agent.cli.exit_codes import FAILURE, CliError
from agent.cli.options import global_options
from agent.cli.output import Output, counted

__all__ = ["calibrate"]


def calibrate(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Measure what relevance means with this embedding model and catalogue; needs no labels.

    A sync does so by itself from 20 tools on, and again when the number of tools changed by a
    fifth; `toolrag learn` does when it moved tools. Afterwards a relevance of 0.6 means the same
    as in every other calibrated registry. Calls of 30 sessions and more move `zero`.
    """
    from agent.cli.context import opened_registry

    output = Output()
    with opened_registry(global_options(context), output) as registry:
        if not registry.tool_categories():
            raise CliError(
                f"No active tools in namespace {registry.namespace!r}, so there is nothing to "
                "measure. Register some with `toolrag sync MODULE:ATTR`.",
                exit_code=FAILURE,
            )
        report = registry.calibrate()
        threshold = registry.threshold
        model = registry.embedder.name
    if as_json:
        output.json(report)
        return
    output.text(
        f"Calibrated for {counted(report.tools, 'tool')} with {model} "
        f"(version {report.version}); the default threshold is {threshold:.2f}."
    )
    facts = {
        "spread": f"{report.spread:.4f}  (deviation of the model's cosines between strangers)",
        "null": f"{report.null:.2f}  (evidence of questions that most catalogues have no tool for)",
        "zero": f"{report.zero:.2f}  (evidence above null at which relevance is 0.60)",
        "words": f"{report.words:g} x word_weight  (what recorded calls leave to words)",
    }
    for label, value in facts.items():
        output.parts((label.ljust(8), "dim"), (value, ""))
    if report.calls:
        output.note(
            f"{counted(report.calls, 'recorded call')} moved zero to where about 96 % of such "
            "tools stay offered."
        )
