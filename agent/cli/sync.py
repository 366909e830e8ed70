"""`toolrag sync`: register the tools of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from agent.cli import exit_codes
from agent.cli.names import named_otherwise
from agent.cli.options import ChangedByOption, changed_by, global_options
from agent.cli.output import Output, counted, jsonable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from registry.store import ToolRegistry
    from registry.sync import SyncPlan
    from registry.types import SyncReport

__all__ = ["OriginOption", "print_report", "summary", "sync"]

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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done; embed and write nothing.")
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
        if dry_run:
            plan = registry.plan(tools, origin=origin or "code", overwrite_edits=overwrite_edits)
            _show_plan(output, plan, deactivate=missing == "deactivate", as_json=as_json)
            return
        with output.embedding_progress() as on_progress:
            report = registry.sync(
                tools,
                origin=origin or "code",
                missing=missing,
                overwrite_edits=overwrite_edits,
                changed_by=changed_by(who),
                on_progress=on_progress,
            )
        mapped = _mapped_names(registry, report)
    if as_json:
        output.json({**jsonable(report), "display_names": mapped})
    else:
        print_report(output, report, mapped)
    if report.failed:
        raise typer.Exit(exit_codes.FAILURE)


def _mapped_names(registry: ToolRegistry, report: SyncReport) -> dict[str, str]:
    """Return registered name to display name of new tools whose own name no provider takes."""
    if not report.added:
        return {}
    added = set(report.added)
    records = registry.list_tools(include_inactive=True)
    return named_otherwise(r.spec for r in records if r.spec.tool_name in added)


def _show_plan(output: Output, plan: SyncPlan, *, deactivate: bool, as_json: bool) -> None:
    """Print what a sync would do.

    Raises:
        typer.Exit: With the code of a sync of which a tool fails.
    """
    added = set(plan.added)
    mapped = named_otherwise(spec for spec in plan.specs if spec.tool_name in added)
    if as_json:
        output.json(
            {
                "dry_run": True,
                "added": plan.added,
                "updated": plan.updated,
                "unchanged": plan.unchanged,
                "edited": plan.edited,
                "switched_off": plan.switched_off,
                "failed": plan.failed,
                "missing": plan.missing,
                "deactivated": plan.missing if deactivate else [],
                "lacking": plan.lacking,
                "to_embed": len(plan.embed) + len(plan.lacking),
                "display_names": mapped,
            }
        )
    else:
        output.text(plan_summary(plan, deactivate=deactivate))
        for label, names in (("Would add", plan.added), ("Would update", plan.updated)):
            if names:
                output.text()
                output.text(f"{label}: {', '.join(names)}")
        _print_mapped(output, mapped, "Would be registered")
        _print_failed(output, plan.failed)
        if plan.edited:
            output.text()
            output.text(f"Edited in the registry, would be left so: {', '.join(plan.edited)}")
        _print_switched_off(output, plan.switched_off)
        if plan.missing:
            fate = "would be switched off" if deactivate else "but not in this sync"
            output.text()
            output.text(f"In the registry, {fate}: {', '.join(plan.missing)}")
        output.note("Nothing was embedded or written.")
    if plan.failed:
        raise typer.Exit(exit_codes.FAILURE)


def plan_summary(plan: SyncPlan, *, deactivate: bool) -> str:
    """Return the counts of what a sync would do and embed."""
    counts = {
        "to add": len(plan.added),
        "to update": len(plan.updated),
        "unchanged": len(plan.unchanged),
        "edited": len(plan.edited),
        "cannot be registered": len(plan.failed),
        "to deactivate" if deactivate else "missing": len(plan.missing),
    }
    always = ("to add", "to update", "unchanged")
    parts = [f"{count} {word}" for word, count in counts.items() if count or word in always]
    # A text that was embedded before, for an older version or another tool, is not sent again.
    to_embed = len(plan.embed) + len(plan.lacking)
    limit = "at most " if to_embed else ""
    return f"{', '.join(parts)} ({limit}{counted(to_embed, 'text')} to embed)"


def print_report(
    output: Output, report: SyncReport, display_names: Mapping[str, str] | None = None
) -> None:
    """Print what a sync did: counts, then every name that needs attention."""
    output.text(summary(report))
    for note in report.notes:
        output.note(note)
    _print_mapped(output, display_names or {}, "Registered")
    _print_failed(output, report.failed)
    if report.edited:
        output.text()
        output.text(f"Edited in the registry, left so: {', '.join(report.edited)}")
        output.note("To bring code's text: toolrag sync MODULE:ATTR --overwrite-edits")
    _print_switched_off(output, report.switched_off)
    if report.mended:
        output.text()
        output.text(f"Vector mended, of the text in the registry: {', '.join(report.mended)}")
    if report.deactivated:
        output.text()
        output.text(f"Switched off, since not in this sync: {', '.join(report.deactivated)}")
    elif report.missing:
        output.text()
        missing = ", ".join(report.missing)
        output.text(f"In the registry, but not in this sync: {missing}")
        output.note("If they are gone for good: toolrag sync MODULE:ATTR --missing deactivate")


def _print_mapped(output: Output, display_names: Mapping[str, str], what: str) -> None:
    if display_names:
        names = ", ".join(f"{shown} as {name}" for name, shown in display_names.items())
        output.text()
        output.text(f"{what} under names that models take: {names}")


def _print_switched_off(output: Output, names: Sequence[str]) -> None:
    if names:
        output.text()
        output.text(f"In code, but off since a sync did not bring them: {', '.join(names)}")
        output.note("To offer one again: toolrag tools activate NAME")


def _print_failed(output: Output, failed: Mapping[str, str]) -> None:
    if failed:
        output.text()
        output.table(["failed", "reason"], [list(item) for item in failed.items()])


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
