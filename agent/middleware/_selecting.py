"""Options of `ToolRAGMiddleware`, and what it says of a selection; pure but for the log."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from numbers import Real
from typing import Any

from agent.selection import MAX_BOUND_TOOLS, Offer, Selection, pinned_offer
from registry.base import MAX_K
from registry.errors import ConfigurationError
from registry.strategy import STRATEGIES
from registry.text import nearest_names
from registry.toolset import Toolset
from registry.types import ToolSelection

__all__ = ["check_options", "log_dropped", "log_selection", "pinned_offers", "selection_record"]

_logger = logging.getLogger("agent.middleware.tool_rag")


def _is_count(value: object) -> bool:
    """Return whether a value is a whole number of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def check_options(
    *, k: int, threshold: float | None, on_no_match: str, max_offered: int, strategy: str
) -> None:
    """Pass options that are within their ranges.

    Raises:
        ConfigurationError: One is not.
    """
    if not _is_count(k) or k > MAX_K:
        raise ConfigurationError(f"k is {k}; it must be a whole number from 1 to {MAX_K}")
    is_number = isinstance(threshold, Real) and not isinstance(threshold, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
    if threshold is not None and not (is_number and 0 <= threshold <= 1):
        raise ConfigurationError(f"threshold is {threshold!r}; it must be a number from 0 to 1")
    if strategy not in STRATEGIES:
        raise ConfigurationError(f"strategy is {strategy!r}; choose from {', '.join(STRATEGIES)}")
    if on_no_match not in ("answer", "best_hit"):
        raise ConfigurationError(f"on_no_match is {on_no_match!r}; use 'answer' or 'best_hit'")
    if not _is_count(max_offered) or max_offered > MAX_BOUND_TOOLS:
        raise ConfigurationError(
            f"max_offered is {max_offered}; it must be from 1 to {MAX_BOUND_TOOLS}"
        )


def pinned_offers(
    pinned: Sequence[str], toolset: Toolset, *, max_offered: int
) -> tuple[Offer, ...]:
    """Return the offers of pinned names, in order.

    Raises:
        ConfigurationError: A name is not in the toolset, or there are too many.
    """
    if isinstance(pinned, str):
        raise ConfigurationError(f"pinned is the text {pinned!r}; give a list of names")
    specs = {spec.tool_name: spec for spec in toolset.specs}
    for name in pinned:
        if name not in specs:
            near = nearest_names(name, specs)
            hint = f" Nearest: {', '.join(near)}." if near else ""
            raise ConfigurationError(f"Pinned tool {name!r} is not in the toolset.{hint}")
    names = list(dict.fromkeys(pinned))
    if len(names) > max_offered:
        raise ConfigurationError(
            f"{len(names)} tools are pinned, but max_offered is {max_offered}; "
            "raise it or pin fewer"
        )
    return tuple(pinned_offer(specs[name]) for name in names)


def selection_record(
    selection: Selection, found: ToolSelection, *, turn: int, search_tools: bool
) -> dict[str, Any]:
    """Return how a selection came about, as it lies in the thread's state; every value is JSON.

    Args:
        selection: What came of it.
        found: What the registry answered.
        turn: Number of the run in its thread, from 1.
        search_tools: Whether the thread has the tool of that name.
    """
    offered = {offer["name"] for offer in selection.offers}
    return {
        "turn": turn,
        "strategy": found.strategy,
        "categories": list(found.categories),
        "threshold": found.threshold,
        "by_words_alone": found.by_words_alone,
        "hits": [
            {
                "name": hit.tool_name,
                "relevance": float(hit.relevance),
                "passed": hit.tool_name in selection.passed,
                "offered": hit.tool_name in offered,
            }
            for hit in found.hits
        ],
        "dropped": list(selection.dropped),
        "unbound": list(selection.unbound),
        "search_tools": search_tools,
    }


def log_dropped(dropped: Sequence[str], *, wanted: Collection[str]) -> None:
    """Log what was dropped: a warning where there was no room for what is wanted now."""
    if dropped:
        level = logging.INFO if set(wanted).isdisjoint(dropped) else logging.WARNING
        _logger.log(level, "offered_tools_dropped", extra={"tool_names": list(dropped)})


def log_selection(selection: Selection, record: dict[str, Any]) -> None:
    """Log a selection, and what was left out of it."""
    _logger.info("tools_selected", extra={"selection": record})
    log_dropped(selection.dropped, wanted=selection.passed)
    if selection.unbound:
        _logger.warning("hits_without_live_tool", extra={"tool_names": list(selection.unbound)})
