"""How the reasons of a search are printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agent.cli.output import Output, jsonable

if TYPE_CHECKING:
    from registry.types import Explanation, ToolHit, ToolSelection

__all__ = ["note_words_alone", "print_explanation", "print_selection", "selection_document"]

_NUMERIC = ("rank", "score", "vector", "words", "route", "clause", "relevance")


def selection_document(found: ToolSelection) -> dict[str, Any]:
    """Return what was found as JSON: each hit with its parts and whether it is offered."""
    return {
        "strategy": found.strategy,
        "categories": list(found.categories),
        "threshold": found.threshold,
        "by_words_alone": found.by_words_alone,
        "hits": [{**jsonable(hit), "is_offered": _state(found, hit) != "no"} for hit in found.hits],
    }


def note_words_alone(output: Output, found: ToolSelection) -> None:
    """Say on stderr that the embedding model was away, where it was."""
    if found.by_words_alone:
        output.note(f"Found by words alone: {found.words_alone_reason}")


def print_selection(output: Output, found: ToolSelection) -> None:
    """Print each hit with what its score is made of, those below the threshold too."""
    output.text(_in_force(found.strategy, found.categories, found.threshold))
    output.text()
    in_parts = any(hit.parts and hit.parts.clause for hit in found.hits)
    columns = [*_NUMERIC, "offered", "name", *(["part of the question"] if in_parts else [])]
    output.table(
        columns,
        [
            [
                *_numbers(hit),
                _state(found, hit),
                hit.tool_name,
                *([_clause(hit)] if in_parts else []),
            ]
            for hit in found.hits
        ],
        numeric=_NUMERIC,
        wide="part of the question",
    )
    output.note("score = vector + words + route + clause; offered goes by relevance.")
    note_words_alone(output, found)


def print_explanation(output: Output, told: Explanation) -> None:
    """Print why a tool is offered or is not, the figures behind it, and what would change it."""
    output.text(f"{told.tool_name} is {'' if told.is_offered else 'not '}offered:")
    _list(output, told.reasons)
    output.text()
    facts = {"search": _in_force(told.strategy, told.categories, told.threshold)}
    if told.hit is not None:
        facts |= _standing(told.hit)
        if not told.by_words_alone:
            facts["cosine"] = f"{1 - told.hit.distance:.3f}"
            facts["feedback"] = f"{told.feedback:+.3f} of its cosine was learnt from use"
    facts["shared words"] = ", ".join(told.shared_words) or "none"
    facts["missing words"] = ", ".join(told.missing_words) or "none"
    width = max(map(len, facts)) + 2
    for label, value in facts.items():
        output.parts((label.ljust(width), "dim"), (value, ""))
    if told.advice:
        output.text("\nTo have it offered:")
        _list(output, told.advice)
    if told.notes:
        output.text("\nTo be known:")
        _list(output, told.notes)


def _standing(hit: ToolHit) -> dict[str, str]:
    _, score, vector, words, route, clause, relevance = _numbers(hit)
    made = f"{score} = vector {vector} + words {words} + route {route}"
    if hit.parts and hit.parts.clause:
        made += f" + clause {clause}"
    facts = {"rank": str(hit.rank), "relevance": relevance, "score": made}
    if hit.parts and hit.parts.clause:
        facts["clause"] = hit.parts.clause
    return facts


def _numbers(hit: ToolHit) -> list[str]:
    parts = hit.parts
    numbers = (
        (0.0, 0.0, 0.0, 0.0)
        if parts is None
        else (parts.vector, parts.words, parts.route, parts.clause_vector + parts.clause_words)
    )
    return [
        str(hit.rank),
        *(f"{number:.2f}" for number in (hit.score, *numbers)),
        f"{hit.relevance:.2f}",
    ]


def _clause(hit: ToolHit) -> str:
    return hit.parts.clause if hit.parts else ""


def _state(found: ToolSelection, hit: ToolHit) -> str:
    if hit.tool_name in found.exempt:
        return "always"
    return "yes" if hit.relevance >= found.threshold else "no"


def _in_force(strategy: str, categories: Sequence[str], threshold: float) -> str:
    routed = f"routed to {', '.join(categories)}" if categories else "not routed"
    return f"strategy {strategy}, {routed}, threshold {threshold:.2f}"


def _list(output: Output, lines: Sequence[str]) -> None:
    for line in lines:
        output.parts(("- ", ""), (line, ""), indent=2)
