"""Pure: what differs between two versions of a tool, as lines to read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from difflib import unified_diff
from typing import TYPE_CHECKING, Any, cast

from agent.cli.output import jsonable

if TYPE_CHECKING:
    from registry.types import FieldChange

__all__ = ["difference_lines", "one_value"]

_SHORT_CHARS = 60
# A description is mostly one long line; by sentence, the change is seen and not all of it.
_AFTER_SENTENCE = re.compile(r"(?<=[.!?;。！？])\s+|(?<=[。！？])")


def difference_lines(change: FieldChange) -> list[str]:
    """Return one line of a short field, a unified diff under the field's name of a long one.

    Long texts are compared sentence by sentence, lists item by item, schemas as indented JSON.
    """
    before, after = _lines(change.before), _lines(change.after)
    if len(before) <= 1 and len(after) <= 1:
        short = [one_value(change.before), one_value(change.after)]
        if max(map(len, short)) <= _SHORT_CHARS:
            return [f"{change.field}: {short[0]} -> {short[1]}"]
    if before == after:  # they differ in white space alone
        before, after = [one_value(change.before)], [one_value(change.after)]
    # The first two lines name files; there are none.
    return [change.field, *list(unified_diff(before, after, lineterm="", n=2))[2:]]


def one_value(value: Any) -> str:
    """Return a field's value as people read it, on one line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return json.dumps(jsonable(value), ensure_ascii=False)


def _lines(value: Any) -> list[str]:
    if isinstance(value, str):
        found = [part for line in value.splitlines() for part in _AFTER_SENTENCE.split(line)]
        return [part for part in found if part]
    if isinstance(value, Mapping):
        return json.dumps(jsonable(value), ensure_ascii=False, indent=2, sort_keys=True).split("\n")
    if isinstance(value, (list, tuple)):
        items = map(str, cast("Sequence[Any]", value))
        return [item if item.isprintable() else one_value(item) for item in items]
    return [one_value(value)]
