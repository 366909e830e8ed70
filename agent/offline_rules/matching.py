"""Which bound tool fits a clause: shared words, and whether its arguments can be filled."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.offline_rules.arguments import Facts, fill_arguments
from agent.offline_rules.lexicon import NEUTRAL, WRITING, concepts, stem
from registry.text import humanise

__all__ = ["BoundTool", "Call", "best_call", "bound_tool", "call_key"]

_WRITING = frozenset(stem(word) for word in WRITING)
_ARITHMETIC = concepts("add subtract multiply divide")
_MIN_SCORE = 2.0


@dataclass(frozen=True, slots=True)
class BoundTool:
    """A tool as the model sees it, with the concepts of its name and description."""

    name: str
    parameters: Mapping[str, Any]
    subject: frozenset[str]
    description: frozenset[str]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call the rules ask for, and the thought that goes with it."""

    tool_name: str
    arguments: dict[str, Any]
    thought: str = ""


def call_key(tool_name: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
    """Return what makes two calls the same."""
    return tool_name, repr(sorted(arguments.items()))


def bound_tool(schema: Mapping[str, Any]) -> BoundTool:
    """Return the tool of an OpenAI function schema."""
    function = schema["function"]
    words = " ".join(w for w in humanise(function["name"]).split() if w.casefold() not in NEUTRAL)
    return BoundTool(
        name=function["name"],
        parameters=function.get("parameters", {}),
        subject=concepts(words),
        description=concepts(function.get("description", "")),
    )


def best_call(
    tools: Sequence[BoundTool],
    about: frozenset[str],
    facts: Facts,
    *,
    implied: frozenset[str] = frozenset(),
    covered: frozenset[str] = frozenset(),
    used: Collection[str] = (),
) -> Call | None:
    """Return the call that fits best, or None when no tool fits.

    Args:
        tools: Bound tools; the earlier wins a tie.
        about: Concepts of the clause.
        facts: Values the clause names.
        implied: Concepts that follow from those values only; they weigh less than its words.
        covered: Concepts that calls for this clause answered already; a further call has to have
            one in its name that is not among them.
        used: Names of tools called for this clause already.
    """
    best: tuple[float, Call] | None = None
    for tool in tools:
        if tool.name in used or (covered and not tool.subject & (about - covered)):
            continue
        # A tool that changes something is never called on a mere likeness of words.
        if (tool.subject & _WRITING) - _ARITHMETIC - about:
            continue
        filled = fill_arguments(tool.parameters, facts)
        if filled is None:
            continue
        score = _score(tool, about, implied - about, filled.named)
        if score >= _MIN_SCORE and (best is None or score > best[0]):
            best = (score, Call(tool.name, filled.arguments))
    return best[1] if best else None


def _score(tool: BoundTool, about: frozenset[str], implied: frozenset[str], named: int) -> float:
    in_name = 3 * len(tool.subject & about) + 2 * len(tool.subject & implied)
    in_description = len((tool.description - tool.subject) & (about | implied))
    if not in_name and not in_description:
        return 0
    missing = len(tool.subject - about - implied)
    return in_name + min(in_description, 3) + 2 * named - 0.75 * missing
