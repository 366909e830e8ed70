"""Names that people type and names that models see: a tool is found by either."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING

from agent.cli.exit_codes import FAILURE, CliError
from agent.cli.output import Output

if TYPE_CHECKING:
    from registry.store import ToolRegistry
    from registry.types import ToolSpec

__all__ = ["named_otherwise", "registered_name"]


def named_otherwise(specs: Iterable[ToolSpec]) -> dict[str, str]:
    """Return registered name to display name, where no provider takes the latter.

    A mere prefix, such as that of an MCP server, is not counted.
    """
    from registry.text import is_legal_name

    return {
        spec.tool_name: spec.display_name
        for spec in specs
        if spec.display_name != spec.tool_name
        and not (
            is_legal_name(spec.display_name) and spec.tool_name.endswith(f"_{spec.display_name}")
        )
    }


def registered_name(registry: ToolRegistry, name: str, output: Output) -> str:
    """Return the name that a tool is registered under, given that one or its display name.

    What is unknown comes back as it is, for the registry to refuse.

    Raises:
        CliError: Several tools have this display name.
    """
    if name in registry.active_states([name]):
        return name
    wanted = unicodedata.normalize("NFC", name)
    found = [
        record.spec.tool_name
        for record in registry.list_tools(include_inactive=True)
        if unicodedata.normalize("NFC", record.spec.display_name) == wanted
    ]
    if len(found) > 1:
        raise CliError(
            f"{len(found)} tools are displayed as {name!r}: {', '.join(found)}. Name one of them.",
            exit_code=FAILURE,
        )
    if found:
        output.note(f"{name} is registered as {found[0]}.")
        return found[0]
    return name
