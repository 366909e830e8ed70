"""Pure: search hits, pinned tools and what a thread was offered before -> what is offered now."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    "late_offer",
    "pinned_offer",
    "select",
]

MAX_BOUND_TOOLS = 128  # OpenAI refuses a request with more

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
) -> Selection:
    """Return what a thread is offered from now on.

    Offers only grow, in a stable order, so that a provider's prompt cache holds and kept history
    never names a tool that is gone; `fit` says what is dropped when there is no room.

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
    """
    usable = [hit for hit in hits if hit.binding in bindings]
    passed = [hit for hit in usable if hit.relevance >= threshold or hit.tool_name in exempt]
    if not passed and on_no_match == "best_hit":
        passed = usable[:1]

    before = {offer["name"]: offer for offer in offered}
    pins = {offer["name"]: offer for offer in pinned}
    # A thread's first run puts the pinned tools first; pins added later go behind what it has.
    merged: dict[str, Offer] = {
        name: _kept(offer, pins.get(name), states) for name, offer in before.items()
    }
    for name, pin in pins.items():
        merged.setdefault(name, {**pin, "active": states.get(name, True), "turn": turn})
    for hit in passed:
        merged[hit.tool_name] = _found(hit, pins.get(hit.tool_name), turn)

    kept, dropped = fit(list(merged.values()), room=max_offered)
    return Selection(
        offers=tuple(kept),
        passed=tuple(hit.tool_name for hit in passed),
        dropped=tuple(dropped),
        unbound=tuple(hit.tool_name for hit in hits if hit.binding not in bindings),
    )


def fit(offers: Sequence[Offer], *, room: int) -> tuple[list[Offer], list[str]]:
    """Drop what there is no room for; the rest keeps its order.

    Dropped first: least recently found, then lowest relevance, then last offered. What the history
    calls has no privilege, or a long thread could not be offered anything new; a stand-in keeps
    its definition (`agent.middleware._binding`). Pinned tools are never dropped, even when they
    alone exceed the room.

    Returns:
        The offers kept, and the names dropped, first dropped first.
    """
    excess = len(offers) - max(room, 0)
    if excess <= 0:
        return list(offers), []
    droppable = [(place, offer) for place, offer in enumerate(offers) if not offer["pinned"]]
    droppable.sort(
        key=lambda item: (
            item[1]["turn"],
            item[1]["relevance"] or 0.0,
            -item[0],
        )
    )
    dropped = [offer["name"] for _, offer in droppable[:excess]]
    gone = set(dropped)
    return [offer for offer in offers if offer["name"] not in gone], dropped


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


def _kept(offer: Offer, pin: Offer | None, states: Mapping[str, bool]) -> Offer:
    kept = offer.copy()
    kept["pinned"] = pin is not None
    # Code put a pinned tool there, so it may be unregistered; any other must be active now.
    kept["active"] = states.get(offer["name"], pin is not None)
    if pin is not None:
        kept["binding"] = pin["binding"]
        kept["requires_approval"] = offer["requires_approval"] or pin["requires_approval"]
    return kept


def _found(hit: ToolHit, pin: Offer | None, turn: int) -> Offer:
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
