"""Ready-made specs for tests."""

from __future__ import annotations

from typing import Any

from registry.types import ToolSpec

_WORDS = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho "
    "sigma tau upsilon phi chi psi omega"
).split()


def spec(tool_name: str, description: str, **fields: Any) -> ToolSpec:
    """Return a spec with a name, a description and what else matters to the test."""
    return ToolSpec(tool_name=tool_name, description=description, **fields)


def many_specs(count: int, **fields: Any) -> list[ToolSpec]:
    """Return `count` specs whose descriptions differ."""
    return [
        spec(
            f"tool_{number:05d}",
            f"Handle {_WORDS[number % 24]} {_WORDS[number // 24 % 24]} case {number}.",
            **fields,
        )
        for number in range(count)
    ]
