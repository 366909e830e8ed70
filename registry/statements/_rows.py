"""What the statements share: a row type, row access, the fields of a spec."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, Select

from registry.types import ToolSpec

__all__ = ["SPEC_FIELDS", "AnyRow", "Rows", "spec_of", "values_of"]

Rows = Select[*tuple[Any, ...]]
AnyRow = Row[*tuple[Any, ...]]

SPEC_FIELDS = (
    "tool_name",
    "display_name",
    "description",
    "category",
    "examples",
    "binding",
    "origin",
    "args_schema",
    "requires_approval",
    "read_only",
    "fallback",
)


def values_of(row: AnyRow) -> dict[str, Any]:
    """Return a row as a dict."""
    # SQLAlchemy's public name for it; the underscore keeps it apart from columns.
    return dict(row._mapping)  # pyright: ignore[reportPrivateUsage]


def spec_of(values: dict[str, Any]) -> ToolSpec:
    """Return the spec in these values, and take its fields out of them."""
    fields = {name: values.pop(name) for name in SPEC_FIELDS}
    fields["examples"] = tuple(fields["examples"])
    return ToolSpec(**fields)
