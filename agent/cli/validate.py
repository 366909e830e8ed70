"""`toolrag validate`: whether the registry fits the code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agent.cli import exit_codes
from agent.cli.ask import DEMO_NAMESPACE
from agent.cli.exit_codes import CliError
from agent.cli.options import global_options
from agent.cli.output import Output, counted
from agent.cli.sync import OriginOption

if TYPE_CHECKING:
    from registry.validation import ValidationReport

__all__ = ["validate"]

# Without these nothing can be served at all; the others concern single tools.
_GRAVE = {"schema_revision", "embedding_model"}


def validate(
    context: typer.Context,
    reference: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:ATTR",
            help="The tools of the code, as for `toolrag sync`. Default: the demo's in namespace "
            "demo; elsewhere there is none.",
        ),
    ] = None,
    origin: OriginOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Compare the registry with the code; for start-up checks and deployments.

    Exit code 0 when they agree; 3 when the schema or the embedding model does not fit, so that
    nothing can be served; 1 when single tools do not fit.
    """
    from agent.cli.context import prepared_registry
    from agent.cli.loading import check_origin, load_tools
    from agent.demo import demo_toolset

    output = Output()
    options = global_options(context)
    if reference is not None:
        tools = load_tools(reference)
        check_origin(tools, reference, origin)
    elif options.settings.namespace == DEMO_NAMESPACE:
        tools = demo_toolset()
    else:
        raise CliError(
            "Name the tools to compare with, for example `toolrag validate my_app.tools:TOOLS`; "
            f"only namespace {DEMO_NAMESPACE} has its own."
        )
    with prepared_registry(options, output) as registry:
        report = registry.validate(tools, origin=origin or "code")
    if as_json:
        output.json(
            {
                "is_valid": report.is_valid,
                "checked": report.checked,
                "findings": report.findings,
            }
        )
    else:
        print_report(output, report)
    if any(finding.kind in _GRAVE for finding in report.findings):
        raise typer.Exit(exit_codes.DATABASE)
    if not report.is_valid:
        raise typer.Exit(exit_codes.FAILURE)


def print_report(output: Output, report: ValidationReport) -> None:
    """Print the number of tools looked at, and each finding with what to do about it."""
    if report.is_valid:
        output.text(f"{report.checked} tools checked: registry and code agree.")
        return
    output.text(f"{report.checked} tools checked, {counted(len(report.findings), 'finding')}:")
    output.text()
    output.table(
        ["finding", "tool", "what and what to do"],
        [
            [
                finding.kind.replace("_", " "),
                finding.tool_name or "-",
                f"{finding.detail} {finding.advice}",
            ]
            for finding in report.findings
        ],
    )
