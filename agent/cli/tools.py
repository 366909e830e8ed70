"""`toolrag tools`: look at registered tools, change them, switch them on and off."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from agent.cli import tool_history
from agent.cli.exit_codes import CliError
from agent.cli.names import registered_name
from agent.cli.options import ChangedByOption, changed_by, global_options
from agent.cli.output import Output, jsonable

if TYPE_CHECKING:
    from registry.changes import ToolChanges
    from registry.types import ToolRecord

__all__ = ["app"]

app = typer.Typer(
    help="Look at registered tools, change them, switch them on and off, go back.",
    no_args_is_help=True,
)

_Name = Annotated[str, typer.Argument(help="Name of a registered tool, or its display name.")]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command("list")
def list_tools(
    context: typer.Context,
    include_inactive: Annotated[
        bool, typer.Option("--all", help="Deactivated tools as well.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """List the tools of the namespace."""
    from agent.cli.context import opened_registry

    output = Output()
    options = global_options(context)
    with opened_registry(options, output) as registry:
        records = registry.list_tools(include_inactive=include_inactive)
    if as_json:
        output.json([document(record) for record in records])
    elif records:
        # For the few that have one of their own; most tools are displayed under their name.
        displayed = any(r.spec.display_name != r.spec.tool_name for r in records)
        output.table(
            [
                "name",
                *(["display name"] if displayed else []),
                *("category", "origin", "state", "version", "description"),
            ],
            [
                [
                    record.spec.tool_name,
                    *([record.spec.display_name] if displayed else []),
                    record.spec.category,
                    record.spec.origin,
                    "active" if record.is_active else "inactive",
                    str(record.version),
                    record.spec.description,
                ]
                for record in records
            ],
            numeric=["version"],
            wide="description",
        )
    else:
        output.note(
            f"No {'' if include_inactive else 'active '}tools in namespace "
            f"{options.settings.namespace!r}. Register some with `toolrag sync MODULE:ATTR`."
        )


@app.command()
def show(context: typer.Context, name: _Name, as_json: _Json = False) -> None:
    """Show everything that is stored of one tool."""
    from agent.cli.context import opened_registry

    output = Output()
    with opened_registry(global_options(context), output) as registry:
        record = registry.get(registered_name(registry, name, output))
    if as_json:
        output.json(document(record))
        return
    spec = record.spec
    facts = {
        "name": spec.tool_name,
        "display name": spec.display_name,
        "category": spec.category,
        "origin": spec.origin,
        "binding": spec.binding,
        "namespace": record.namespace,
        "state": "active" if record.is_active else "inactive",
        "version": f"{record.version}{' (edited in the registry)' if record.is_edited else ''}",
        "needs approval": "yes" if spec.requires_approval else "no",
        "read only": "yes" if spec.read_only else "no",
        "fallback": "yes" if spec.fallback else "no",
        "created": record.created_at.isoformat(timespec="seconds"),
        "updated": record.updated_at.isoformat(timespec="seconds"),
    }
    width = max(map(len, facts)) + 2
    for label, value in facts.items():
        output.parts((label.ljust(width), "dim"), (value, ""))
    output.text("\nDescription")
    output.text(spec.description, indent=2)
    if spec.examples:
        output.text("\nExamples")
        for example in spec.examples:
            output.text(example, indent=2)
    output.text("\nArguments")
    rows = argument_rows(spec.args_schema)
    if rows:
        output.table(["name", "type", "required", "description"], rows, indent=2)
    else:
        output.text("none", indent=2)


@app.command()
def update(
    context: typer.Context,
    name: _Name,
    description: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What the tool does, in full.")
    ] = None,
    display_name: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The name that people read.")
    ] = None,
    category: Annotated[str | None, typer.Option(metavar="TEXT", help="One word.")] = None,
    example: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="A question that the tool answers; may be given several times. Replaces all.",
        ),
    ] = None,
    no_examples: Annotated[
        bool, typer.Option("--no-examples", help="Remove all examples.")
    ] = False,
    requires_approval: Annotated[
        bool | None,
        typer.Option(
            "--requires-approval/--no-requires-approval", help="A person must agree to a call."
        ),
    ] = None,
    read_only: Annotated[
        bool | None,
        typer.Option("--read-only/--no-read-only", help="The tool changes nothing."),
    ] = None,
    fallback: Annotated[
        bool | None,
        typer.Option("--fallback/--no-fallback", help="Ranked behind every other tool that fits."),
    ] = None,
    expect_version: tool_history.ExpectVersionOption = None,
    who: ChangedByOption = "",
) -> None:
    """Change a tool in the registry: a new version, at most one embedding call.

    The change holds until code changes the tool; then the next sync brings code's text, and this
    one is in the history.
    """
    from agent.cli.context import opened_registry

    output = Output()
    if example and no_examples:
        raise CliError("--example and --no-examples exclude each other.")
    given = {
        "description": description,
        "display_name": display_name,
        "category": category,
        "examples": example or ([] if no_examples else None),
        "requires_approval": requires_approval,
        "read_only": read_only,
        "fallback": fallback,
    }
    changes = {field: value for field, value in given.items() if value is not None}
    if not changes:
        raise CliError(
            "Nothing to change. Give at least one of --description, --display-name, --category, "
            "--example, --no-examples, --requires-approval, --read-only, --fallback."
        )
    with opened_registry(global_options(context), output) as registry:
        name = registered_name(registry, name, output)
        before = registry.get(name)
        record = registry.update_tool(
            name,
            expected_version=expect_version,
            changed_by=changed_by(who),
            **cast("ToolChanges", changes),
        )
    if record.version == before.version:
        output.text(f"{name} is like that already (version {record.version}).")
    else:
        output.text(f"{name} is at version {record.version} now.")


app.command("history")(tool_history.history)
app.command("diff")(tool_history.diff)
app.command("rollback")(tool_history.rollback)
app.command("purge")(tool_history.purge)


@app.command()
def activate(context: typer.Context, name: _Name, who: ChangedByOption = "") -> None:
    """Let a tool be found again."""
    _switch(context, name, who, active=True)


@app.command()
def deactivate(context: typer.Context, name: _Name, who: ChangedByOption = "") -> None:
    """Take a tool out of every search, in every process, from the next search on."""
    _switch(context, name, who, active=False)


def _switch(context: typer.Context, name: str, who: str, *, active: bool) -> None:
    from agent.cli.context import opened_registry

    output = Output()
    with opened_registry(global_options(context), output) as registry:
        name = registered_name(registry, name, output)
        if active:
            registry.activate(name, changed_by=changed_by(who))
        else:
            registry.deactivate(name, changed_by=changed_by(who))
    output.text(f"{name} is {'active' if active else 'inactive'} now.")


def document(record: ToolRecord) -> dict[str, Any]:
    """Return a record as one flat JSON object."""
    fields: dict[str, Any] = jsonable(record)
    return {**fields.pop("spec"), **fields}


def argument_rows(schema: Any) -> list[list[str]]:
    """Return (name, type, required, description) of each argument of a JSON Schema."""
    properties: dict[str, Any] = dict(schema.get("properties", {}))
    required = set(schema.get("required", ()))
    return [
        [
            name,
            _type_name(rule),
            "yes" if name in required else "no",
            str(rule.get("description", "")) if isinstance(rule, dict) else "",
        ]
        for name, rule in properties.items()
    ]


def _type_name(rule: Any) -> str:
    if not isinstance(rule, dict):
        return "any"
    if "enum" in rule:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in rule["enum"])
    if options := rule.get("anyOf") or rule.get("oneOf"):
        return " | ".join(_type_name(option) for option in options)
    kind = rule.get("type", "any")
    if kind == "array":
        return f"array of {_type_name(rule.get('items', {}))}"
    return " | ".join(kind) if isinstance(kind, list) else str(kind)
