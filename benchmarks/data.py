"""The public development sets, read from beside the project."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from registry.embedding import Vectors
from registry.text import humanise, legal_name
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
            # The registry takes none without; toolbench has 214.
            description=row["description"].strip() or humanise(row["name"]),
            category=row.get("category") or "general",
            args_schema=row.get("args_schema") or {},
        )
        found.setdefault(spec.tool_name, spec)
        if len(found) == limit:
            break
    return list(found.values())


def catalogue(count: int, *, real: int = 10_000) -> list[ToolSpec]:
    """Return `count` tools: real ones, and when those are used up numbered variants of them.

    The tool at place i is a variant of the tool at place i modulo the number of real ones.
    """
    known = specs("catalog_openapi", limit=min(count, real))
    return [
        _variant(spec, place // len(known))
        for place, spec in zip(range(count), cycle(known), strict=False)
    ]


def _variant(spec: ToolSpec, number: int) -> ToolSpec:
    if not number:
        return spec
    name = legal_name(f"{spec.tool_name}_v{number}")
    return spec.replace(tool_name=name, binding=name, display_name=f"{spec.display_name} v{number}")


def catalogue_vectors(real: Vectors, count: int, *, seed: int = 1) -> Vectors:
    """Return a vector for each tool of `catalogue`, length 1, float32, `count` rows.

    A variant's is the real vector moved by a share of the difference of two other real vectors:
    such differences spread like the real vectors do, which noise of equal size in every dimension
    would not, and they keep a variant at a cosine of 0.6 to 0.95 from its original.
    """
    rng = np.random.default_rng(seed)
    made = [real]
    for start in range(len(real), count, len(real)):
        base = real[: count - start]
        one, other = rng.integers(len(real), size=(2, len(base)))
        share = rng.uniform(0.25, 0.9, size=(len(base), 1)).astype(np.float32)
        made.append(base + share * (real[one] - real[other]))
    vectors = np.concatenate(made)[:count]
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
