"""What a command asks before it changes something that matters."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from agent.cli.exit_codes import CliError
from agent.cli.output import one_line

__all__ = ["YesOption", "agreed", "check_can_ask"]

YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask. Needed where there is no terminal.")
]


def check_can_ask(command: str, *, yes: bool) -> None:
    """Refuse, before any work is done, what could not be asked at its end.

    Args:
        command: For the message, for example `tools purge`.
        yes: Consent was given with the command.

    Raises:
        CliError: There is neither consent nor a terminal to ask for it.
    """
    if not yes and (sys.stdin is None or not sys.stdin.isatty()):
        raise CliError(
            f"`toolrag {command}` asks before it changes anything, and there is no terminal to "
            "ask on. Add --yes. Nothing was changed."
        )


def agreed(question: str, *, yes: bool) -> bool:
    """Return whether the user agrees; asked on stderr, since stdout is for results.

    Not `typer.confirm`, which writes a blank to stdout before whatever follows.
    """
    if yes:
        return True
    print(f"{one_line(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        answer = sys.stdin.readline()
    except UnicodeDecodeError:
        answer = ""
    if not answer:
        print(file=sys.stderr)
    return answer.strip().casefold() in ("y", "yes")
