"""`toolrag tools history|diff|rollback|purge`: what a tool was, back to it, and rid of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.cli import exit_codes
from agent.cli.consent import YesOption, agreed, check_can_ask
from agent.cli.differences import difference_lines
from agent.cli.names import registered_name
from agent.cli.options import ChangedByOption, changed_by, global_options
from agent.cli.output import Output, counted, jsonable

if TYPE_CHECKING:
    from registry.types import ToolVersion

__all__ = ["ExpectVersionOption", "diff", "history", "purge", "rollback"]

ExpectVersionOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Refuse unless the tool still has this version."),
]
_Name = Annotated[str, typer.Argument(help="Name of a registered tool, or its display name.")]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def history(context: typer.Context, name: _Name, as_json: _Json = False) -> None:
    """List every version of a tool, newest first: when, by whom, what changed."""
    from agent.cli.context import opened_registry

    output = Output()
    with opened_registry(global_options(context), output) as registry:
        name = registered_name(registry, name, output)
        versions = registry.history(name)
    if as_json:
        output.json([_document(version) for version in versions])
        return
    output.table(
        ["version", "changed", "by", "change", "state", "fields"],
        [
            [
                str(version.version),
                version.changed_at.isoformat(timespec="seconds"),
                version.changed_by,
                version.change,
                "active" if version.is_active else "inactive",
                fields,
            ]
            for version, fields in zip(versions, _changed_fields(versions), strict=True)
        ],
        numeric=["version"],
    )


def diff(
    context: typer.Context,
    name: _Name,
    before: Annotated[int, typer.Argument(metavar="A", help="Version to compare from.")],
    after: Annotated[
        int | None,
        typer.Argument(metavar="[B]", help="Version to compare to. Default: the newest."),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Show what differs between two versions of a tool."""
    from agent.cli.context import opened_registry
    from registry.changes import diff_versions, version_of

    output = Output()
    with opened_registry(global_options(context), output) as registry:
        name = registered_name(registry, name, output)
        versions = registry.history(name)
    old = version_of(versions, before)
    new = versions[0] if after is None else version_of(versions, after)
    changes = diff_versions(old, new)
    if as_json:
        output.json(
            {
                "tool_name": name,
                "before": old.version,
                "after": new.version,
                "changes": changes,
            }
        )
        return
    if not changes:
        output.text(f"Versions {old.version} and {new.version} of {name} are the same.")
        return
    output.text(f"--- {_heading(name, old)}", style="red")
    output.text(f"+++ {_heading(name, new)}", style="green")
    for change in changes:
        head, *lines = difference_lines(change)
        output.text(head, style="bold")
        for line in lines:
            output.text(line, style=_STYLES.get(line[:1], ""))


def rollback(
    context: typer.Context,
    name: _Name,
    version: Annotated[int, typer.Argument(help="Version to go back to.")],
    expect_version: ExpectVersionOption = None,
    who: ChangedByOption = "",
) -> None:
    """Give a tool the content it had: a new version; whether it is active stays.

    Nothing is embedded where the vector of the old text is still there.
    """
    from agent.cli.context import opened_registry

    output = Output()
    with opened_registry(global_options(context), output) as registry:
        name = registered_name(registry, name, output)
        before = registry.get(name)
        record = registry.rollback(
            name, version, expected_version=expect_version, changed_by=changed_by(who)
        )
    if record.version == before.version:
        output.text(f"{name} has the content of version {version} already.")
    else:
        output.text(f"{name} is at version {record.version} now, as it was at version {version}.")


def purge(
    context: typer.Context, name: _Name, yes: YesOption = False, who: ChangedByOption = ""
) -> None:
    """Remove a tool and every text of its history for good; for privacy.

    To retire a tool, use `toolrag tools deactivate`: that can be undone. Exit code 1 when you
    answer no.
    """
    from agent.cli.context import opened_registry

    output = Output()
    check_can_ask("tools purge", yes=yes)
    with opened_registry(global_options(context), output) as registry:
        name = registered_name(registry, name, output)
        registry.get(name)
        versions = counted(len(registry.history(name)), "version")
        what = (
            f"{name} (namespace {registry.namespace}), the texts of its {versions}, and its "
            "vectors of every embedding model"
        )
        if not agreed(f"Remove {what}? This cannot be undone.", yes=yes):
            output.note("Nothing was changed.")
            raise typer.Exit(exit_codes.FAILURE)
        registry.purge(name, changed_by=changed_by(who))
    output.text(f"Removed {what}.")
    output.note("One row stays that says who purged a tool of this name, and when.")
    output.note("If the tool is still in code, the next sync registers it anew.")


def _document(version: ToolVersion) -> dict[str, Any]:
    fields: dict[str, Any] = jsonable(version)
    return {**fields.pop("spec"), **fields}


def _changed_fields(versions: Sequence[ToolVersion]) -> list[str]:
    """Return for each version, newest first, the fields that it changed."""
    from registry.changes import diff_versions

    changed = [
        ", ".join(change.field for change in diff_versions(older, newer))
        for newer, older in pairwise(versions)
    ]
    return [*changed, ""] if versions else []


def _heading(name: str, version: ToolVersion) -> str:
    when = version.changed_at.isoformat(timespec="seconds")
    return f"{name} version {version.version} ({version.change} by {version.changed_by}, {when})"
