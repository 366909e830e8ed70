"""Pure: search hits, pinned tools and what a thread was offered before -> what is offered now."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from typing_extensions import TypedDict  # pydantic needs this one below Python 3.12

from registry.text import model_facing_description
from registry.types import ToolHit, ToolSpec

__all__ = [
    "MAX_BOUND_TOOLS",
    "Offer",
    "OnNoMatch",
    "Selection",
    "fit",
    "found_offer",
    "late_offer",
    "passing",
    "pinned_offer",
    "select",
    "with_late",
]

MAX_BOUND_TOOLS = 128  # OpenAI refuses a request with more

# Tools of earlier questions make way together, once this many are offered beside the pinned ones;
# `_level` says when it is more.
_MANY = 16
_FEW = 8  # of which each counts, so that none makes way before it must
_NO_CALLS: Mapping[str, int] = MappingProxyType({})

OnNoMatch = Literal["answer", "best_hit"]


class Offer(TypedDict):
    """A tool offered in a thread, as it lies in the thread's state; every value is JSON.

    Keys:
        name: Model-facing name.
        binding: Key of the live tool in the `Toolset`.
        description: Model-facing description, at most 1,024 characters.
        relevance: 0 to 1, of the last search that found it; None for a pinned tool never found.
        pinned: Bound whatever is searched, and never dropped.
        requires_approval: A person must agree before a call.
        read_only: The registry says that a call changes nothing, so it may be tried again.
        active: Whether the registry had it active at the start of the run.
        turn: Number of the run in this thread whose search last found it, from 1.
    """

    name: str
    binding: str
    description: str
    relevance: float | None
    pinned: bool
    requires_approval: bool
    read_only: bool
    active: bool
    turn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is offered now, and what happened to the rest.

    Attributes:
        offers: In the order they are bound; earlier offers keep their places.
        passed: Names of the hits taken, best first.
        dropped: Names for which there was no room, first dropped first.
        unbound: Names of hits without a live tool in this process.
    """

    offers: tuple[Offer, ...]
    passed: tuple[str, ...]
    dropped: tuple[str, ...]
    unbound: tuple[str, ...]


def select(
    hits: Sequence[ToolHit],
    *,
    offered: Iterable[Offer],
    pinned: Sequence[Offer],
    states: Mapping[str, bool],
    bindings: Container[str],
    threshold: float,
    on_no_match: OnNoMatch,
    max_offered: int,
    turn: int,
    exempt: Container[str] = (),
    called: Mapping[str, int] = _NO_CALLS,
) -> Selection:
    """Return what a thread is offered from now on.

    Offers grow at their end, in a stable order, so that a provider's prompt cache holds. Those of
    earlier questions make way together, seldom (`_fitted`); `fit` says what is dropped when there
    is no room all the same.

    Args:
        hits: Search results of this run, best first.
        offered: What the thread was offered before, in order.
        pinned: Tools that are always bound.
        states: Name to whether the registry has it active now; absent means not registered.
        bindings: Keys of the live tools of this process.
        threshold: Relevance from which a hit is taken, 0 to 1; 0 takes all.
        on_no_match: Take nothing (`answer`) or the best hit when none reaches the threshold.
        max_offered: Room, in tools.
        turn: Number of this run in its thread, from 1.
        exempt: Names of hits that are taken whatever their relevance.
        called: Name to the number of the run after the one that last called it: a call is as good
            as being found then.
    """
    passed = passing(
        hits, bindings=bindings, threshold=threshold, on_no_match=on_no_match, exempt=exempt
    )
    before = {offer["name"]: offer for offer in offered}
    pins = {offer["name"]: offer for offer in pinned}
    # A thread's first run puts the pinned tools first; pins added later go behind what it has.
    merged: dict[str, Offer] = {
        name: _kept(offer, pins.get(name), states) for name, offer in before.items()
    }
    for name, pin in pins.items():
        merged.setdefault(name, {**pin, "active": states.get(name, True), "turn": turn})
    for hit in passed:
        merged[hit.tool_name] = found_offer(hit, turn=turn, pin=pins.get(hit.tool_name))

    fresh = {hit.tool_name for hit in passed}
    level = _level(max_offered, found=len(passed))
    kept, dropped = _fitted(
        list(merged.values()), max_offered, level=level, fresh=fresh, called=called
    )
    return Selection(
        offers=tuple(kept),
        passed=tuple(hit.tool_name for hit in passed),
        dropped=tuple(dropped),
        unbound=tuple(hit.tool_name for hit in hits if hit.binding not in bindings),
    )


def passing(
    hits: Sequence[ToolHit],
    *,
    bindings: Container[str],
    threshold: float,
    on_no_match: OnNoMatch,
    exempt: Container[str] = (),
) -> list[ToolHit]:
    """Return the hits that may be offered, in the order given; options as in `select`."""
    usable = [hit for hit in hits if hit.binding in bindings]
    passed = [hit for hit in usable if hit.relevance >= threshold or hit.tool_name in exempt]
    return usable[:1] if not passed and on_no_match == "best_hit" else passed


def with_late(
    offers: Sequence[Offer],
    late: Sequence[Offer],
    *,
    max_offered: int,
    called: Mapping[str, int] = _NO_CALLS,
) -> tuple[list[Offer], list[str]]:
    """Return the offers with those added that a run's model asked for, and the names dropped.

    What the model asks for goes before what a search with the question found. What was offered
    before keeps its place, and stays pinned.
    """
    merged = {offer["name"]: offer for offer in offers}
    for offer in late:
        before = merged.get(offer["name"])
        merged[offer["name"]] = offer if before is None else _again(offer, before)
    offers = list(merged.values())
    fresh = {offer["name"] for offer in late}
    # In the middle of a run nothing makes way before it must.
    level = len(offers) if len(offers) <= max_offered else _level(max_offered, found=len(late))
    return _fitted(offers, max_offered, level=level, fresh=fresh, called=called)


def fit(
    offers: Sequence[Offer],
    *,
    room: int,
    fresh: Container[str] = (),
    called: Mapping[str, int] = _NO_CALLS,
) -> tuple[list[Offer], list[str]]:
    """Drop what there is no room for; the rest keeps its order.

    Dropped first: what is not fresh, then least recently found or called, then lowest relevance,
    then last offered. What the history calls has no other privilege, or a long thread could not be
    offered anything new; a stand-in keeps its definition (`agent.middleware._binding`). Pinned
    tools are never dropped, even when they alone exceed the room.

    Args:
        offers: In order.
        room: In tools.
        fresh: Names that are dropped last.
        called: As in `select`.

    Returns:
        The offers kept, and the names dropped, first dropped first.
    """
    excess = len(offers) - max(room, 0)
    if excess <= 0:
        return list(offers), []
    dropped = [offer["name"] for offer in _in_drop_order(offers, fresh, called)[:excess]]
    gone = set(dropped)
    return [offer for offer in offers if offer["name"] not in gone], dropped


def _in_drop_order(
    offers: Sequence[Offer], fresh: Container[str], called: Mapping[str, int]
) -> list[Offer]:
    droppable = [(place, offer) for place, offer in enumerate(offers) if not offer["pinned"]]
    droppable.sort(
        key=lambda item: (
            item[1]["name"] in fresh,
            _last_needed(item[1], called),
            item[1]["relevance"] or 0.0,
            -item[0],
        )
    )
    return [offer for _, offer in droppable]


def _level(max_offered: int, *, found: int) -> int:
    """Return above how many offers beside the pinned ones earlier ones make way.

    Room for three questions, and for half of what may be offered.
    """
    return min(max_offered, max(max_offered // 2, _MANY, 3 * found))


def _fitted(
    offers: Sequence[Offer],
    max_offered: int,
    *,
    level: int,
    fresh: Container[str],
    called: Mapping[str, int],
) -> tuple[list[Offer], list[str]]:
    """Let earlier offers make way where there are more than the level, then `fit` the rest.

    A provider's cache ends at the first tool that is gone, so many go seldom rather than few at
    each turn, until half of the level is left; and what nobody needed for some turns costs its
    tokens in every request. What is fresh or was needed in the newest turn stays.
    """
    ordered = _in_drop_order(offers, fresh, called)
    going: list[str] = []
    if len(ordered) > level >= _FEW:
        newest = max(offer["turn"] for offer in offers)
        going = [
            offer["name"]
            for offer in ordered[: len(ordered) - level // 2]
            if offer["name"] not in fresh and _last_needed(offer, called) < newest
        ]
    gone = set(going)
    left = [offer for offer in offers if offer["name"] not in gone]
    kept, dropped = fit(left, room=max_offered, fresh=fresh, called=called)
    return kept, [*going, *dropped]


def _last_needed(offer: Offer, called: Mapping[str, int]) -> int:
    return max(offer["turn"], called.get(offer["name"], 0))


def pinned_offer(spec: ToolSpec) -> Offer:
    """Return the offer of a pinned tool, from its spec in code: it needs no registry row."""
    return Offer(
        name=spec.tool_name,
        binding=spec.binding,
        description=model_facing_description(spec.description),
        relevance=None,
        pinned=True,
        requires_approval=spec.requires_approval,
        read_only=spec.read_only,
        active=True,
        turn=0,
    )


def late_offer(spec: ToolSpec, *, turn: int) -> Offer:
    """Return the offer of a registered tool that the model called without having it.

    Args:
        spec: Of the registry.
        turn: Number of this run in its thread, from 1.
    """
    return {**pinned_offer(spec), "pinned": False, "turn": turn}


def found_offer(hit: ToolHit, *, turn: int, pin: Offer | None = None) -> Offer:
    """Return the offer of a tool that a search found.

    Args:
        hit: Of the search.
        turn: Number of this run in its thread, from 1.
        pin: The offer of the same tool as a pinned one.
    """
    return Offer(
        name=hit.tool_name,
        binding=hit.binding,
        description=model_facing_description(hit.description),
        relevance=float(hit.relevance),
        pinned=pin is not None,
        requires_approval=hit.requires_approval or (pin is not None and pin["requires_approval"]),
        read_only=hit.read_only,
        active=True,
        turn=turn,
    )


def _again(offer: Offer, before: Offer) -> Offer:
    gated = before["pinned"] and before["requires_approval"]  # code's word stands
    return {
        **offer,
        "pinned": before["pinned"],
        "requires_approval": offer["requires_approval"] or gated,
    }


def _kept(offer: Offer, pin: Offer | None, states: Mapping[str, bool]) -> Offer:
    kept = offer.copy()
    kept["pinned"] = pin is not None
    # Code put a pinned tool there, so it may be unregistered; any other must be active now.
    kept["active"] = states.get(offer["name"], pin is not None)
    if pin is not None:
        kept["binding"] = pin["binding"]
        kept["requires_approval"] = offer["requires_approval"] or pin["requires_approval"]
    return kept
