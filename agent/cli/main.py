"""The command `toolrag`: global options, and every way in which a command can end."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from agent.cli import (
    ask,
    calibrate,
    categories,
    chat,
    db,
    demo,
    embeddings,
    enrich,
    exit_codes,
    learning,
    search,
    sync,
    tools,
    tune,
    validate,
)
from agent.cli import eval as evaluation
from agent.cli.exit_codes import CliError, exit_code_of
from agent.cli.options import GlobalOptions
from agent.cli.output import Output, one_line, without_secrets
from agent.cli.streams import flush_or_discard, is_write_failure, stand_in_for_closed_streams
from agent.cli.version import describe_version
from agent.cli.waiting import WaitNotice
from registry.errors import ToolRAGError
from registry.settings import RegistrySettings

__all__ = ["app", "main"]

app = typer.Typer(
    name="toolrag",
    help="LangChain agents that see only the tools they need: Tool RAG over Postgres and pgvector.",
    epilog=exit_codes.EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("sync")(sync.sync)
app.command("search")(search.search)
app.command("ask")(ask.ask)
app.command("chat")(chat.chat)
app.command("validate")(validate.validate)
app.command("eval")(evaluation.evaluate)
app.command("tune")(tune.tune)
app.command("calibrate")(calibrate.calibrate)
app.add_typer(tools.app, name="tools")
app.add_typer(categories.app, name="categories")
app.add_typer(learning.app, name="learn")
app.command("enrich")(enrich.enrich)
app.add_typer(db.app, name="db")
app.add_typer(embeddings.app, name="embeddings")


@app.command()
def version() -> None:
    """Print the version of toolrag, its schema and Python."""
    Output().text(describe_version())


def _print_version(value: bool) -> None:
    if value:
        version()
        raise typer.Exit


@app.callback()
def _globals(  # pyright: ignore[reportUnusedFunction]
    context: typer.Context,
    database_url: Annotated[
        str | None,
        typer.Option(
            envvar="TOOLRAG_DATABASE_URL",
            show_envvar=True,
            help="Postgres server with pgvector, postgresql://user:password@host/name. "
            "Default: an embedded server.",
        ),
    ] = None,
    data_dir: Annotated[
        str | None,
        typer.Option(
            envvar="TOOLRAG_DATA_DIR",
            metavar="FOLDER",
            help="Folder of the embedded server's data.",
        ),
    ] = None,
    embedding_model: Annotated[
        str,
        typer.Option(
            envvar="TOOLRAG_EMBEDDING_MODEL",
            help="'builtin' or <provider>:<model>, such as openai:text-embedding-3-small.",
        ),
    ] = "builtin",
    namespace: Annotated[
        str | None,
        typer.Option(
            envvar="TOOLRAG_NAMESPACE", help="Tenant whose tools are seen. Default: default."
        ),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print versions."),
    ] = False,
) -> None:
    environ = dict(os.environ)
    if namespace is not None:
        environ["TOOLRAG_NAMESPACE"] = namespace
    context.obj = GlobalOptions(
        database_url=database_url,
        # An empty text would be the current folder.
        data_dir=Path(data_dir) if data_dir and data_dir.strip() else None,
        embedding_model=embedding_model,
        settings=RegistrySettings.from_env(environ),
        environ=environ,
        debug=debug,
    )


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command and exit; every failure is one line on stderr and an exit code."""
    stand_in_for_closed_streams()
    arguments = sys.argv[1:] if arguments is None else arguments
    # Read here as well: an error may come before the options are parsed.
    debug = "--debug" in arguments
    with _logging(debug=debug):
        code = _end_of(arguments, debug=debug)
    if code in _ENDED:
        _complain(_ENDED[code])
    flush_or_discard()
    sys.exit(code)


_ENDED = {exit_codes.INTERRUPTED: "interrupted", exit_codes.TERMINATED: "terminated"}


def _end_of(arguments: list[str], *, debug: bool) -> int:
    """Run one command; return its exit code, whichever way it ended."""
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        # A line `OPENAI_BASE_URL=` in an .env file means unset; the client takes it as an address.
        if not os.environ.get(variable, "").strip():
            os.environ.pop(variable, None)
    terminated = threading.Event()
    try:
        _end_as_at_ctrl_c(terminated)
        _check_is_text(arguments, os.environ)
        code = _run(arguments)
        # A full or closed pipe shows only when the buffer is written.
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone, and wants to hear no more
        code = exit_codes.FAILURE
    except (KeyboardInterrupt, typer.Abort):
        code = exit_codes.INTERRUPTED
    except ToolRAGError as error:
        if debug:
            traceback.print_exc()
        _complain(str(error))
        code = exit_code_of(error)
    except Exception as error:  # a usage error of the parser, or a bug of ours
        code = _other_failure(error, debug=debug)
    if code == exit_codes.INTERRUPTED and terminated.is_set():
        code = exit_codes.TERMINATED
    return code


def _end_as_at_ctrl_c(terminated: threading.Event) -> None:
    """Let SIGTERM end a command as Ctrl-C does: leases given back, what was done kept."""
    if threading.current_thread() is not threading.main_thread():
        return

    def end(signum: int, frame: object) -> NoReturn:
        terminated.set()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the next one ends it at once
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)


# Folders and files may have any name; everything else is text.
_PATH_OPTIONS = (
    *("--data-dir", "--questions"),
    *("--tools", "--queries", "--floors", "--save", "--compare"),
)
_PATH_VARIABLE = "TOOLRAG_DATA_DIR"


def _check_is_text(arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Refuse bytes that are not UTF-8; Python has made half characters of them.

    Raises:
        CliError: An argument or a variable of ours holds some.
    """
    given = {
        f"The argument {argument!a}": argument
        for before, argument in pairwise(["", *arguments])
        if before not in _PATH_OPTIONS and argument.partition("=")[0] not in _PATH_OPTIONS
    }
    given |= {
        f"The variable {name}": value
        for name, value in environ.items()
        if name.startswith(("TOOLRAG_", "OPENAI_")) and name != _PATH_VARIABLE
    }
    for what, value in given.items():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise CliError(f"{what} is not UTF-8 text.") from error


@contextmanager
def _logging(*, debug: bool) -> Generator[None]:
    """Show log messages with --debug, and in any case what is waited for, while a command runs."""
    # Without a handler Python prints warnings with tracebacks; what a user needs is printed.
    handler = logging.StreamHandler() if debug else logging.NullHandler()
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        with WaitNotice().attached():
            yield
    finally:
        root.removeHandler(handler)


def _run(arguments: list[str]) -> int:
    # Exit codes come back as the return value; commands themselves return nothing.
    returned: Any = app(arguments, prog_name="toolrag", standalone_mode=False)
    return returned if isinstance(returned, int) else exit_codes.OK


def _other_failure(error: Exception, *, debug: bool) -> int:
    # The parser's errors by what they can do: their class moved between releases of typer.
    format_message = getattr(error, "format_message", None)
    if format_message is not None:
        path = getattr(getattr(error, "ctx", None), "command_path", "toolrag")
        message = one_line(format_message())
        if not message:  # no arguments: the help has been printed
            return exit_codes.USAGE
        hint = f" {_PLACE}" if getattr(error, "option_name", None) in _GLOBAL_OPTIONS else ""
        _complain(f"{message.rstrip('.')}.{hint} See `{path} --help`.")
        return exit_codes.USAGE
    if isinstance(error, OSError) and is_write_failure(error):
        _complain(f"the output cannot be written: {error.strerror or error}")
        return exit_codes.FAILURE
    if debug:
        traceback.print_exc()
    _complain(
        f"internal error: {type(error).__name__}: {error} "
        "(run `toolrag --debug ...` for the traceback, and please report it)"
    )
    return exit_codes.INTERNAL


_GLOBAL_OPTIONS = {
    "--database-url",
    "--data-dir",
    "--embedding-model",
    "--namespace",
    "--debug",
    "--version",
}
_PLACE = "It goes before the command: toolrag OPTION COMMAND."


def _complain(message: str) -> None:
    secrets = [value for name, value in os.environ.items() if name.endswith("_API_KEY")]
    line = one_line(without_secrets(message, secrets=secrets))
    with suppress(OSError):  # nowhere to say it; the exit code does
        print(f"toolrag: {line}", file=sys.stderr)
