"""`toolrag db`: the embedded server and the schema."""

from __future__ import annotations

from typing import Annotated

import typer

from agent.cli import exit_codes
from agent.cli.exit_codes import CliError
from agent.cli.options import GlobalOptions, global_options
from agent.cli.output import Output

__all__ = ["app"]

app = typer.Typer(
    help="Start and stop the embedded server; upgrade the schema of any server.",
    no_args_is_help=True,
)

_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command()
def start(context: typer.Context) -> None:
    """Start the embedded server and leave it running; other commands then attach to it."""
    from agent.cli.context import migrated
    from registry.local_postgres import LocalPostgres

    output = Output()
    options = _embedded_only(context, "start")
    local = LocalPostgres(options.data_dir)
    local.start(detached=True)
    migrated(local.url)
    status = local.status()
    output.text(f"PostgreSQL {status.version} runs (process {status.pid}) in {status.data_dir}")
    if status.owner_pid is not None:
        output.note(f"It was running before and ends with its owner, process {status.owner_pid}.")


@app.command()
def stop(context: typer.Context) -> None:
    """Stop the embedded server, whoever started it."""
    from registry.local_postgres import stop_server

    output = Output()
    options = _embedded_only(context, "stop")
    before = stop_server(options.data_dir)
    if before.pid is None:
        output.text("The embedded server was not running.")
    else:
        output.text(f"Stopped the embedded server (process {before.pid}).")
        if before.owner_pid is not None:
            output.note(f"Process {before.owner_pid} was using it.")


@app.command()
def url(context: typer.Context) -> None:
    """Print the URL of the database, and nothing else."""
    from registry.database import display_url, normalise_url
    from registry.local_postgres import LocalPostgres

    options = global_options(context)
    if options.database_url is not None:
        found = normalise_url(options.database_url)
    else:
        status = LocalPostgres(options.data_dir).status()
        if status.url is None:
            raise CliError(
                f"The embedded server in {status.data_dir} is not running. "
                "Start it with `toolrag db start`.",
                exit_code=exit_codes.DATABASE,
            )
        found = normalise_url(status.url)
    # Without the driver's name, so that psql and other tools take it too.
    Output().text(display_url(found.set(drivername="postgresql")))


@app.command()
def status(context: typer.Context, as_json: _Json = False) -> None:
    """Show where the database is and whether its schema fits; exit code 3 when it does not."""
    from registry import migrate
    from registry.database import display_url, normalise_url
    from registry.local_postgres import LocalPostgres
    from registry.tables import SCHEMA_REVISION

    output = Output()
    options = global_options(context)
    facts: dict[str, str | None] = {}
    if options.database_url is not None:
        address = options.database_url
        facts["server"] = "given by --database-url or TOOLRAG_DATABASE_URL"
    else:
        local = LocalPostgres(options.data_dir).status()
        address = local.url
        running = f"running, PostgreSQL {local.version}, process {local.pid}"
        facts["server"] = f"embedded, {running if local.running else 'not running'}"
        facts["data folder"] = str(local.data_dir)
        if local.owner_pid is not None:
            facts["ends with"] = f"process {local.owner_pid}"
    found = None if address is None else migrate.current_revision(address)
    facts["url"] = None if address is None else display_url(normalise_url(address))
    facts["schema"] = found
    facts["schema needed"] = SCHEMA_REVISION
    ready = found == SCHEMA_REVISION
    if as_json:
        output.json({**{name.replace(" ", "_"): v for name, v in facts.items()}, "ready": ready})
    else:
        for name, value in facts.items():
            output.parts((name.ljust(15), "dim"), (value or "none", ""))
        if not ready:
            command = "toolrag db start" if address is None else "toolrag db upgrade"
            output.note(f"Not ready: run `{command}`.")
    if not ready:
        raise typer.Exit(exit_codes.DATABASE)


@app.command()
def upgrade(
    context: typer.Context,
    revision: Annotated[str, typer.Argument(help="Revision to go to.")] = "head",
) -> None:
    """Bring the schema up to this release; safe to repeat and to run from several processes."""
    _migrate(context, "upgrade", revision)


@app.command()
def downgrade(
    context: typer.Context,
    revision: Annotated[str, typer.Argument(help="Revision to go back to; base for none.")],
) -> None:
    """Take the schema back to an older revision. What newer tables hold is lost."""
    _migrate(context, "downgrade", revision)


def _migrate(context: typer.Context, direction: str, revision: str) -> None:
    from agent.cli.context import starting
    from registry import migrate
    from registry.database import display_url, normalise_url
    from registry.local_postgres import LocalPostgres

    output = Output()
    options = global_options(context)

    def run(address: str) -> None:
        before = migrate.current_revision(address)
        getattr(migrate, direction)(address, revision)
        after = migrate.current_revision(address)
        where = display_url(normalise_url(address))
        change = "unchanged" if before == after else f"was {before or 'none'}"
        output.text(f"Schema of {where}: {after or 'none'} ({change})")

    if options.database_url is not None:
        run(options.database_url)
        return
    local = LocalPostgres(options.data_dir)
    with starting(local, output):
        run(local.url)


def _embedded_only(context: typer.Context, command: str) -> GlobalOptions:
    options = global_options(context)
    if options.database_url is not None:
        raise CliError(
            f"`toolrag db {command}` is for the embedded server, but a database URL is given. "
            "Leave --database-url out and unset TOOLRAG_DATABASE_URL."
        )
    return options
