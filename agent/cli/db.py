"""`toolrag db`: the embedded server and the schema."""

from __future__ import annotations

from typing import Annotated

import typer

from agent.cli import exit_codes
from agent.cli.consent import YesOption, agreed, check_can_ask
from agent.cli.exit_codes import CliError
from agent.cli.options import GlobalOptions, global_options
from agent.cli.output import Output
from registry.errors import RegistryError, SchemaVersionError

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
    local = LocalPostgres(options.data_dir).start(detached=True)
    try:
        migrated(local.url)
        status = local.status()
    finally:
        local.stop()
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
    from registry import migrate, threads
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
        elif local.shared:
            facts["ends with"] = "the last command that uses it"
    found = None if address is None else migrate.current_revision(address)
    facts["url"] = None if address is None else display_url(normalise_url(address))
    facts["schema"] = found
    facts["schema needed"] = SCHEMA_REVISION
    tables = None if address is None else threads.current_version(address)
    is_foreign = tables == threads.FOREIGN
    known = None if tables is None else f"version {tables}"
    facts["thread tables"] = "another program's" if is_foreign else known
    advice = _advice(address, found, tables)
    ready = advice is None
    if as_json:
        named = {name.replace(" ", "_"): value for name, value in facts.items()}
        output.json({**named, "ready": ready, "advice": advice})
    else:
        for name, value in facts.items():
            output.parts((name.ljust(15), "dim"), (value or "none", ""))
        if advice is not None:
            output.note(f"Not ready. {advice}")
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
    yes: YesOption = False,
) -> None:
    """Take the schema back to an older revision. What newer tables hold is lost.

    Going back to base removes every tool of every namespace, with its history and vectors. Exit
    code 1 when you answer no.
    """
    check_can_ask("db downgrade", yes=yes)
    _migrate(context, "downgrade", revision, yes=yes)


def _advice(address: str | None, found: str | None, tables: int | None) -> str | None:
    """Return what keeps the database from being used and what to do, or None."""
    from registry import migrate, threads

    if address is None:
        return "Start the embedded server with `toolrag db start`; other commands do it themselves."
    try:
        migrate.check_revision(found)
        if tables != threads.FOREIGN:  # then agents do without durable threads
            threads.check_version(tables)
    except SchemaVersionError as error:
        return str(error)
    return None


def _migrate(context: typer.Context, direction: str, revision: str, *, yes: bool = True) -> None:
    from alembic.util import CommandError

    from agent.cli.context import starting
    from registry import migrate
    from registry.database import display_url, normalise_url
    from registry.local_postgres import LocalPostgres

    output = Output()
    options = global_options(context)
    # Before a server is started for it.
    _check_revision_name(revision)

    def run(address: str) -> None:
        before = migrate.current_revision(address)
        where = display_url(normalise_url(address))
        if before is not None and revision not in ("head", before):
            if not agreed(_loss(where, before, revision), yes=yes):
                output.note("Nothing was changed.")
                raise typer.Exit(exit_codes.FAILURE)
        try:
            getattr(migrate, direction)(address, revision)
        except RegistryError as error:
            # How far the steps of +1 lead is known only in the database.
            if _is_relative(revision) and isinstance(error.__cause__, CommandError):
                raise CliError(str(error)) from error
            raise
        after = migrate.current_revision(address)
        change = "unchanged" if before == after else f"was {before or 'none'}"
        output.text(f"Schema of {where}: {after or 'none'} ({change})")

    if options.database_url is not None:
        run(options.database_url)
        return
    local = LocalPostgres(options.data_dir)
    with starting(local, output):
        run(local.url)


def _loss(where: str, before: str, revision: str) -> str:
    lost = (
        "Every tool of every namespace, its history and its vectors are removed."
        if revision == "base"
        else "What newer tables and columns hold is removed."
    )
    return f"Take the schema of {where} from {before} back to {revision}? {lost}"


def _check_revision_name(revision: str) -> None:
    """Refuse a revision that no migration of this release has.

    Raises:
        CliError: The message names those there are.
    """
    from alembic.script import ScriptDirectory

    from registry import migrate

    if revision in ("head", "base") or _is_relative(revision):
        return
    scripts = ScriptDirectory.from_config(migrate.alembic_config())
    known = sorted(script.revision for script in scripts.walk_revisions())
    if revision not in known:
        raise CliError(
            f"There is no revision {revision!r} of the schema. This release knows "
            f"{', '.join(known)}, head (the newest) and base (none)."
        )


def _is_relative(revision: str) -> bool:
    """Return whether it is a number of steps from the present revision, such as +1."""
    return revision[:1] in ("+", "-") and revision[1:].isdecimal()


def _embedded_only(context: typer.Context, command: str) -> GlobalOptions:
    options = global_options(context)
    if options.database_url is not None:
        raise CliError(
            f"`toolrag db {command}` is for the embedded server, but a database URL is given. "
            "Leave --database-url out and unset TOOLRAG_DATABASE_URL."
        )
    return options
