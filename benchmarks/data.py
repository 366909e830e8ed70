"""The public development sets, read from beside the project."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from registry.text import legal_name
from registry.types import ToolSpec

FOLDER = Path(__file__).parents[2] / "shared" / "bench"


def rows(name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of `<set>/<tools|queries>`."""
    path = FOLDER / f"{name}.jsonl.gz"
    if not path.exists():
        sys.exit(f"{path} is missing: this benchmark needs the public development sets there.")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def specs(name: str, *, limit: int | None = None) -> list[ToolSpec]:
    """Return the tools of a set as specs with legal, distinct names."""
    found: dict[str, ToolSpec] = {}
    for row in rows(f"{name}/tools"):
        spec = ToolSpec(
            tool_name=legal_name(row["name"]),
            display_name=row["name"],
            description=row["description"],
            category=row.get("category") or "general",
            args_schema=row.get("args_schema") or {},
        )
        found.setdefault(spec.tool_name, spec)
        if len(found) == limit:
            break
    return list(found.values())
