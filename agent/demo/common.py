"""What every module of demo tools shares: making tools, tidy numbers, helpful refusals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from langchain_core.tools import BaseTool
from langchain_core.tools import tool as as_langchain_tool

from registry.text import nearest_names

__all__ = ["SAMPLE", "demo_tool", "demo_tools", "finite", "tidy", "unknown"]

SAMPLE = "sample data"
"""How a result says that it does not come from the live world."""


def demo_tool(
    function: Callable[..., Any],
    *,
    category: str,
    examples: Iterable[str] = (),
    read_only: bool = True,
    requires_approval: bool = False,
) -> BaseTool:
    """Return the function as a LangChain tool whose metadata the registry reads."""
    tool = as_langchain_tool(function)
    tool.metadata = {
        "category": category,
        "examples": list(examples),
        "read_only": read_only,
        "requires_approval": requires_approval,
    }
    return tool


def demo_tools(category: str, functions: Iterable[Callable[..., Any]]) -> list[BaseTool]:
    """Return read-only tools of one category."""
    return [demo_tool(function, category=category) for function in functions]


def tidy(number: float) -> int | float:
    """Return the number without float noise: 12 significant digits, whole numbers as int.

    Raises:
        ValueError: The number is infinite or not a number.
    """
    if isinstance(number, int):
        return number
    if not math.isfinite(number):
        raise ValueError("the result is too large or not a number; use smaller numbers")
    rounded = float(f"{number:.12g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def finite(numbers: Iterable[float], *, at_least: int = 1) -> list[float]:
    """Return the numbers as a list once there are enough of them and all are finite.

    Raises:
        ValueError: Fewer than `at_least`, or one is infinite or not a number.
    """
    checked = list(numbers)
    if len(checked) < at_least:
        raise ValueError(f"give at least {at_least} numbers; got {len(checked)}")
    for number in checked:
        if not math.isfinite(number):
            raise ValueError(f"{number} is not a finite number; leave it out")
    return checked


def unknown(kind: str, value: str, known: Iterable[str]) -> ValueError:
    """Return the error for a value that is not among the known ones; it names the way out."""
    names = sorted(known)
    nearest = nearest_names(value, names)
    hint = f" Did you mean {nearest[0]}?" if nearest else ""
    return ValueError(f"unknown {kind} {value!r}.{hint} Known: {', '.join(names)}")
