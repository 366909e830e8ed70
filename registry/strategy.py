"""How tools are chosen for a question: by how many there are, and what it is about. Pure.

A route is a preference, never a filter: every search looks at the whole registry, and a tool
outside the routed categories gives way only to one inside that is nearly as good. As a filter the
route lost up to 37 points of recall@5 on the development sets, since often not every right tool
is inside; with the search widened where the best tool outside beat the best inside, still up to
8; as a bonus 0.4. See `benchmarks/README.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeVar

from registry.errors import ConfigurationError
from registry.types import ToolHit

__all__ = [
    "STRATEGIES",
    "Plan",
    "ResolvedStrategy",
    "Strategy",
    "StrategyLimits",
    "choose",
    "choose_hits",
    "fallbacks_behind",
    "hits_to_fetch",
    "is_exempt",
]

ResolvedStrategy = Literal["all", "routing", "retrieval", "hybrid"]
Strategy = Literal["auto"] | ResolvedStrategy

STRATEGIES = ("auto", "all", "routing", "retrieval", "hybrid")


class _Hit(Protocol):
    @property
    def category(self) -> str: ...


H = TypeVar("H", bound=_Hit)


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyLimits:
    """Sizes at which `auto` changes its strategy, and how much a route counts.

    Attributes:
        all_up_to: Active tools that are all offered.
        routing_up_to: Active tools up to which those of the routed categories are offered.
        retrieval_up_to: Active tools up to which a search looks at the question alone; above, at
            its categories as well.
        route_bonus: What a tool in a routed category gains, in standard deviations of the cosine
            among the nearest tools; 0 ignores routes, 1 is already much.

    Raises:
        ConfigurationError: A value is out of range, or the sizes do not ascend.
    """

    all_up_to: int = 10
    routing_up_to: int = 30
    retrieval_up_to: int = 50
    route_bonus: float = 0.5

    @property
    def counted(self) -> int:
        """Active tools beyond which it makes no difference how many there are."""
        return self.retrieval_up_to + 1

    def __post_init__(self) -> None:
        sizes = (self.all_up_to, self.routing_up_to, self.retrieval_up_to)
        if not 0 <= sizes[0] <= sizes[1] <= sizes[2] <= 1_000:
            raise ConfigurationError(
                f"all_up_to, routing_up_to and retrieval_up_to are {sizes[0]}, {sizes[1]} and "
                f"{sizes[2]}; they must ascend, from 0 to 1000"
            )
        if not 0 <= self.route_bonus <= 10:
            raise ConfigurationError(f"route_bonus is {self.route_bonus}; it must be from 0 to 10")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do for one question.

    Attributes:
        strategy: `all` offers every active tool; `routing` those of the categories and the best
            of the others; `retrieval` the best; `hybrid` the best, with a bonus for the
            categories.
        categories: The routed ones, best first; none where they do not matter.
        route_bonus: What a tool in one of them gains, in standard deviations of the cosine.
    """

    strategy: ResolvedStrategy
    categories: tuple[str, ...] = ()
    route_bonus: float = 0.0

    def bonus_of(self, category: str) -> float:
        """Return what a tool of this category gains in the ranking."""
        return self.route_bonus if category in self.categories else 0.0


def choose(
    strategy: Strategy,
    *,
    active_tools: int,
    routed: Sequence[str],
    limits: StrategyLimits | None = None,
) -> Plan:
    """Return the plan for a question.

    Args:
        strategy: `auto` goes by the number of tools. A strategy that routes becomes `retrieval`
            for a question that no category matches: the whole registry is searched.
        active_tools: Number of tools that could be offered; above `retrieval_up_to` any number
            means the same.
        routed: Categories whose keywords are in the question, best first.
        limits: Sizes and bonus.

    Raises:
        ConfigurationError: There is no such strategy.
    """
    if strategy not in STRATEGIES:
        raise ConfigurationError(f"strategy is {strategy!r}; choose from {', '.join(STRATEGIES)}")
    limits = limits or StrategyLimits()
    if strategy == "auto":
        strategy = _by_size(active_tools, limits)
    categories = tuple(dict.fromkeys(routed))
    if strategy in ("all", "retrieval"):
        return Plan(strategy=strategy)
    if not categories:
        return Plan(strategy="retrieval")
    # The tools of a category that are offered anyway must not push the best of the others out.
    bonus = limits.route_bonus if strategy == "hybrid" else 0.0
    return Plan(strategy=strategy, categories=categories, route_bonus=bonus)


def _by_size(active_tools: int, limits: StrategyLimits) -> ResolvedStrategy:
    if active_tools <= limits.all_up_to:
        return "all"
    if active_tools <= limits.routing_up_to:
        return "routing"
    return "retrieval" if active_tools <= limits.retrieval_up_to else "hybrid"


def hits_to_fetch(plan: Plan, *, k: int, active_tools: int, limits: StrategyLimits) -> int:
    """Return how many of the best tools `choose_hits` wants to see; k at least."""
    if plan.strategy == "all":
        return max(k, active_tools)
    return max(k, limits.routing_up_to) if plan.strategy == "routing" else k


def is_exempt(plan: Plan, category: str) -> bool:
    """Return whether a tool is offered whatever its relevance."""
    return plan.strategy == "all" or (plan.strategy == "routing" and category in plan.categories)


def choose_hits(plan: Plan, hits: Sequence[H], *, k: int) -> list[H]:
    """Return the hits that may be offered, in the order given: the k best, and the exempt ones.

    The k best are always among them, so that a wrong route hides nothing.

    Args:
        plan: From `choose`.
        hits: Of the whole registry, best first, `hits_to_fetch` of them, whatever their relevance.
        k: Most hits of a search.
    """
    return [hit for place, hit in enumerate(hits) if place < k or is_exempt(plan, hit.category)]


def fallbacks_behind(
    plan: Plan, hits: Sequence[ToolHit], *, k: int, threshold: float
) -> list[ToolHit]:
    """Return the hits with every fallback tool behind the others that are offered, ranks anew.

    One that fits stands before those that do not fit, so it is offered where there is room; one
    that does not stands at the end. The order of all others stays.

    Args:
        plan: From `choose`.
        hits: Best first, as for `choose_hits`.
        k: Most hits of a search.
        threshold: Relevance from which a tool fits.
    """
    if not any(hit.fallback for hit in hits):
        return list(hits)

    def fits(hit: ToolHit) -> bool:
        return hit.relevance >= threshold or is_exempt(plan, hit.category)

    others = [hit for hit in hits if not hit.fallback]
    fitting = [place for place, hit in enumerate(others) if fits(hit)]
    behind = 1 + max(
        (place for place in fitting if place < k or is_exempt(plan, others[place].category)),
        default=-1,
    )
    while behind in fitting:
        behind += 1
    ordered = [
        *others[:behind],
        *(hit for hit in hits if hit.fallback and fits(hit)),
        *others[behind:],
        *(hit for hit in hits if hit.fallback and not fits(hit)),
    ]
    return [replace(hit, rank=rank) for rank, hit in enumerate(ordered, start=1)]
