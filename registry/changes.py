"""Pure: changed specs, versions of a tool, what differs between two of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypedDict

from registry.errors import (
    ConfigurationError,
    InvalidToolError,
    ToolNotFoundError,
    VersionNotFoundError,
)
from registry.statements import AnyRow, tool_version
from registry.text import is_unicode
from registry.toolset import tool_spec
from registry.types import FieldChange, ToolSpec, ToolVersion

__all__ = [
    "ToolChanges",
    "changed_spec",
    "check_author",
    "check_version",
    "diff_versions",
    "history_of",
    "purged_advice",
    "version_of",
]


class ToolChanges(TypedDict, total=False):
    """What of a tool can be changed in the registry; the rest belongs to code."""

    description: str
    display_name: str
    category: str
    examples: Sequence[str]
    requires_approval: bool
    read_only: bool
    fallback: bool


def changed_spec(spec: ToolSpec, changes: Mapping[str, Any]) -> ToolSpec:
    """Return the spec with these changes, checked.

    Raises:
        InvalidToolError: It would not be a valid tool.
        TypeError: A field that is not one of `ToolChanges`.
    """
    values = dict(changes)
    for name in values.keys() - ToolChanges.__annotations__.keys():
        raise TypeError(f"update_tool() got an unexpected keyword argument {name!r}")
    if "examples" in values:
        if isinstance(values["examples"], str):
            raise InvalidToolError(spec.tool_name, "examples must be a list of questions")
        values["examples"] = tuple(values["examples"])
    return tool_spec(spec.replace(**values))


def history_of(rows: Sequence[AnyRow], tool_name: str, *, namespace: str) -> list[ToolVersion]:
    """Return the versions of the tool that has this name now, newest first.

    Args:
        rows: At least one, of `tool_history_of`: those of a tool that stands before those of a
            purged one.
        tool_name: Name of both.
        namespace: For the error.

    Raises:
        ToolNotFoundError: It was purged.
    """
    newest = rows[0]
    if newest.snapshot is None:
        raise ToolNotFoundError(
            tool_name,
            namespace=namespace,
            advice=purged_advice(newest),
        )
    return [tool_version(row) for row in rows if row.tool_id == newest.tool_id]


def purged_advice(row: AnyRow) -> str:
    """Return what is told of a purged tool, from the row of `tool_history_of` that is left."""
    return f"It was purged on {row.changed_at:%Y-%m-%d} by {row.changed_by}; nothing of it is kept."


def check_author(changed_by: str) -> None:
    """Refuse what cannot stand in the history as the author of a change.

    Raises:
        ConfigurationError: No text, or not valid Unicode, or with a NUL character.
    """
    if not isinstance(changed_by, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            f"changed_by is a {type(changed_by).__name__}; give a name, or nothing."
        )
    if "\0" in changed_by or not is_unicode(changed_by):
        raise ConfigurationError(
            "changed_by holds a NUL character or is not valid Unicode; give a readable name."
        )


def check_version(version: int) -> None:
    """Refuse what is no version number.

    Raises:
        ConfigurationError: It is not a whole number.
    """
    if not isinstance(version, int) or isinstance(version, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            f"version is {version!r}, a {type(version).__name__}; versions are whole numbers."
        )


def version_of(versions: Sequence[ToolVersion], version: int) -> ToolVersion:
    """Return one of a tool's versions.

    Raises:
        VersionNotFoundError: There is no such version.
        ConfigurationError: That is no version number.
    """
    check_version(version)
    for found in versions:
        if found.version == version:
            return found
    known = sorted(found.version for found in versions)
    raise VersionNotFoundError(versions[0].spec.tool_name, version, known=known)


def diff_versions(before: ToolVersion, after: ToolVersion) -> list[FieldChange]:
    """Return the fields that differ, `is_active` last."""
    names = [field.name for field in fields(ToolSpec)]
    changes = [
        FieldChange(field=name, before=getattr(before.spec, name), after=getattr(after.spec, name))
        for name in names
        if getattr(before.spec, name) != getattr(after.spec, name)
    ]
    if before.is_active != after.is_active:
        changes.append(
            FieldChange(field="is_active", before=before.is_active, after=after.is_active)
        )
    return changes
