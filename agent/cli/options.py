"""The options that every command shares. This and `main.py` are where the environment is read."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, cast

import typer

from registry.settings import RegistrySettings

__all__ = ["ChangedByOption", "GlobalOptions", "changed_by", "global_options"]

ChangedByOption = Annotated[
    str,
    typer.Option(
        "--changed-by",
        metavar="WHO",
        help="Who makes the change, for the history. Default: the user of the operating system.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalOptions:
    """What stands before the command, or in the environment.

    Attributes:
        database_url: The server to use; None for the embedded one.
        data_dir: Folder of the embedded server; None for its default.
        embedding_model: Name for the registry, for example `builtin`.
        settings: Of the registry.
        environ: The environment, for the chat model.
        debug: Show tracebacks.
    """

    database_url: str | None = None
    data_dir: Path | None = None
    embedding_model: str = "builtin"
    settings: RegistrySettings = field(default_factory=RegistrySettings)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    debug: bool = False

    def in_namespace(self, namespace: str) -> GlobalOptions:
        """Return the same options for another namespace."""
        return replace(self, settings=replace(self.settings, namespace=namespace))


def global_options(context: typer.Context) -> GlobalOptions:
    """Return the options that `main.py` put there before the command ran."""
    return cast("GlobalOptions", context.obj)


def changed_by(given: str) -> str:
    """Return who makes a change: as given, else the user of the operating system.

    Empty where the system knows no name, as in some containers: then the database user is noted.
    """
    name = given.strip()
    if not name:
        try:
            name = getpass.getuser()
        except (ImportError, KeyError, OSError):
            return ""
    # An environment may hold any bytes; PostgreSQL stores text.
    return name.encode("utf-8", "replace").decode()
