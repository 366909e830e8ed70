"""`toolrag sync`: register the tools of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from agent.cli import exit_codes
from agent.cli.options import ChangedByOption, changed_by, global_options
from agent.cli.output import Output

if TYPE_CHECKING:
    from registry.types import SyncReport

__all__ = ["OriginOption", "sync"]

OriginOption = Annotated[
    str | None,
    typer.Option(
        "--origin",
        help="Where the tools come from: code (default), mcp:<server> or openapi:<name>.",
    ),
]


def sync(
    context: typer.Context,
    reference: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:ATTR",
            help="A Toolset, a list of tools or typed functions, or a function that returns one. "
            "MODULE alone: all its LangChain tools. The current folder is searched first.",
        ),
    ],
    origin: OriginOption = None,
    missing: Annotated[
        Literal["report", "deactivate"],
        typer.Option(help="What to do with tools that the module no longer has."),
    ] = "report",
    overwrite_edits: Annotated[
        bool,
        typer.Option(
            "--overwrite-edits",
            help="Bring code's text even to tools that were edited in the registry since.",
        ),
    ] = False,
    who: ChangedByOption = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Register the tools of a module; only what changed is embedded.

    Tools that are in the registry under the same origin but not in the module are listed as
    missing, and switched off with --missing deactivate; none is ever deleted. Exit code 1 when a
    tool failed; the others are registered.
    """
    from agent.cli.context import opened_registry
    from agent.cli.loading import check_origin, load_tools

    output = Output()
    # Before the database is touched: most mistakes are in the reference.
    tools = load_tools(reference)
    check_origin(tools, reference, origin)
    with opened_registry(global_options(context), output) as registry:
        with output.embedding_progress() as on_progress:
            report = registry.sync(
                tools,
                origin=origin or "code",
                missing=missing,
                overwrite_edits=overwrite_edits,
                changed_by=changed_by(who),
                on_progress=on_progress,
            )
    if as_json:
        output.json(report)
    else:
        print_report(output, report)
    if report.failed:
        raise typer.Exit(exit_codes.FAILURE)


def print_report(output: Output, report: SyncReport) -> None:
    """Print what a sync did: counts, then every name that needs attention."""
    output.text(summary(report))
    for note in report.notes:
        output.note(note)
    if report.failed:
        output.text()
        output.table(
            ["failed", "reason"], [[name, reason] for name, reason in report.failed.items()]
        )
    if report.edited:
        output.text()
        output.text(f"Edited in the registry, left so: {', '.join(report.edited)}")
        output.note("To bring code's text: toolrag sync MODULE:ATTR --overwrite-edits")
    if report.deactivated:
        output.text()
        output.text(f"Switched off, since not in this sync: {', '.join(report.deactivated)}")
    elif report.missing:
        output.text()
        missing = ", ".join(report.missing)
        output.text(f"In the registry, but not in this sync: {missing}")
        output.note("If they are gone for good: toolrag sync MODULE:ATTR --missing deactivate")


def summary(report: SyncReport) -> str:
    """Return the counts of a sync, for example `3 added, 1 updated, 40 unchanged`."""
    counts = {
        "added": len(report.added),
        "updated": len(report.updated),
        "unchanged": len(report.unchanged),
        "edited": len(report.edited),
        "failed": len(report.failed),
        "missing": 0 if report.deactivated else len(report.missing),
        "deactivated": len(report.deactivated),
    }
    always = ("added", "updated", "unchanged")
    parts = [f"{count} {word}" for word, count in counts.items() if count or word in always]
    reused = f", {report.reused} reused" if report.reused else ""
    return f"{', '.join(parts)} ({report.embedded} embedded{reused})"
