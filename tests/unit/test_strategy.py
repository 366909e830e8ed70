"""Which strategy at which size, and that a wrong route hides nothing."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import ConfigurationError
from registry.strategy import (
    Plan,
    ResolvedStrategy,
    Strategy,
    StrategyLimits,
    choose,
    choose_hits,
    fallbacks_behind,
    hits_to_fetch,
    is_exempt,
)
from registry.types import ToolHit

LIMITS = StrategyLimits()


@dataclass(frozen=True)
class Hit:
    name: str
    category: str
    relevance: float


HITS = [
    Hit("forecast", "weather", 0.9),
    Hit("invoice", "billing", 0.7),
    Hit("storms", "weather", 0.6),
    Hit("refund", "billing", 0.4),
    Hit("rain", "weather", 0.1),
]


@pytest.mark.parametrize(
    ("tools", "routed", "strategy", "categories"),
    [
        (0, ["weather"], "all", ()),
        (10, ["weather"], "all", ()),
        (11, ["weather"], "routing", ("weather",)),
        (30, ["weather", "billing"], "routing", ("weather", "billing")),
        (30, [], "retrieval", ()),
        (31, ["weather"], "retrieval", ()),
        (50, ["weather"], "retrieval", ()),
        (51, ["weather", "weather"], "hybrid", ("weather",)),
        (50_000, [], "retrieval", ()),
    ],
)
def test_auto_goes_by_the_number_of_tools(
    tools: int, routed: list[str], strategy: str, categories: tuple[str, ...]
) -> None:
    plan = choose("auto", active_tools=tools, routed=routed)
    assert (plan.strategy, plan.categories) == (strategy, categories)


@pytest.mark.parametrize("strategy", ["all", "routing", "retrieval", "hybrid"])
def test_a_named_strategy_holds_at_any_size(strategy: ResolvedStrategy) -> None:
    for tools in (1, 20, 40, 10_000):
        assert choose(strategy, active_tools=tools, routed=["weather"]).strategy == strategy


def test_the_sizes_are_settings() -> None:
    limits = StrategyLimits(all_up_to=0, routing_up_to=0, retrieval_up_to=1_000, route_bonus=0)
    assert choose("auto", active_tools=1, routed=["a"], limits=limits).strategy == "retrieval"
    plan = choose("auto", active_tools=1_001, routed=["a"], limits=limits)
    assert (plan.strategy, plan.bonus_of("a")) == ("hybrid", 0)


def test_only_hybrid_gives_a_bonus_and_only_to_routed_categories() -> None:
    for strategy, bonus in (("routing", 0), ("hybrid", 0.5), ("retrieval", 0), ("all", 0)):
        plan = choose(strategy, active_tools=100, routed=["weather"])
        assert plan.bonus_of("weather") == bonus
        assert plan.bonus_of("billing") == 0


def test_an_unknown_strategy_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="'magic'; choose from auto, all, routing"):
        choose("magic", active_tools=1, routed=[])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values",
    [
        {"all_up_to": 31},
        {"routing_up_to": 51},
        {"retrieval_up_to": 1_001},
        {"all_up_to": -1},
        {"route_bonus": -0.1},
        {"route_bonus": 11},
    ],
)
def test_limits_out_of_range_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=r"ascend, from 0 to 1000|from 0 to 10$"):
        StrategyLimits(**values)  # type: ignore[arg-type]


def test_what_each_strategy_offers() -> None:
    def offered(strategy: Strategy) -> list[str]:
        plan = choose(strategy, active_tools=20, routed=["weather"])
        return [hit.name for hit in choose_hits(plan, HITS, k=2)]

    assert offered("all") == ["forecast", "invoice", "storms", "refund", "rain"]
    assert offered("routing") == ["forecast", "invoice", "storms", "rain"]
    assert offered("retrieval") == offered("hybrid") == ["forecast", "invoice"]


def test_how_many_hits_a_plan_needs_to_see() -> None:
    def wanted(strategy: Strategy, tools: int, k: int = 5) -> int:
        plan = choose(strategy, active_tools=tools, routed=["weather"])
        return hits_to_fetch(plan, k=k, active_tools=tools, limits=LIMITS)

    assert wanted("all", 9) == 9
    assert wanted("all", 3) == 5
    assert wanted("routing", 12) == 30
    assert wanted("routing", 12, k=40) == 40
    assert wanted("retrieval", 45) == wanted("hybrid", 10_000) == 5


@given(
    st.sampled_from(["routing", "hybrid", "all"]),
    st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(0, 1)).map(lambda pair: Hit("t", *pair)),
        max_size=30,
    ),
    st.lists(st.sampled_from("abcd"), max_size=3),
    st.integers(1, 10),
)
def test_no_route_hides_what_a_search_would_have_offered(
    strategy: Strategy, hits: list[Hit], routed: list[str], k: int
) -> None:
    found = choose_hits(Plan(strategy="retrieval"), hits, k=k)
    plan = choose(strategy, active_tools=len(hits), routed=routed)
    offered = choose_hits(plan, hits, k=k)
    places = [place for hit in offered for place, each in enumerate(hits) if each is hit]
    assert places == sorted(set(places))
    assert {id(hit) for hit in found} <= {id(hit) for hit in offered}


# ---------------------------------------------------------------- fallback tools


def tool_hits(relevances: list[tuple[float, bool]], categories: list[str]) -> list[ToolHit]:
    """Return hits in this order, of (relevance, fallback)."""
    return [
        ToolHit(
            tool_name=f"{'any' if fallback else 'tool'}_{number}",
            display_name="",
            description="",
            category=category,
            binding="",
            origin="code",
            requires_approval=False,
            read_only=False,
            version=1,
            rank=number,
            distance=1 - relevance,
            relevance=relevance,
            fallback=fallback,
        )
        for number, ((relevance, fallback), category) in enumerate(
            zip(relevances, categories, strict=True), start=1
        )
    ]


def behind(relevances: list[tuple[float, bool]], *, k: int = 3) -> list[str]:
    hits = tool_hits(relevances, ["general"] * len(relevances))
    plan = Plan(strategy="retrieval")
    found = fallbacks_behind(plan, hits, k=k, threshold=0.6)
    assert [hit.rank for hit in found] == list(range(1, len(found) + 1))
    return [hit.tool_name for hit in found]


def test_ret_8_a_fallback_tool_stands_behind_what_fits() -> None:
    """RET-8: and before what does not, unless it does not fit either."""
    assert behind([(0.9, True), (0.8, False), (0.7, False)]) == ["tool_2", "tool_3", "any_1"]
    assert behind([(0.8, False), (0.2, False), (0.9, True)]) == ["tool_1", "any_3", "tool_2"]
    assert behind([(0.2, False), (0.1, False), (0.9, True)]) == ["any_3", "tool_1", "tool_2"]
    assert behind([(0.2, False), (0.5, True), (0.1, False)]) == ["tool_1", "tool_3", "any_2"]
    assert behind([(0.9, True), (0.7, True), (0.1, True)]) == ["any_1", "any_2", "any_3"]


def test_ret_8_it_takes_no_place_where_enough_fit() -> None:
    """RET-8: behind the fourth that fits as well, so that a larger k finds that one first."""
    four = [(0.9, True), *[(0.8, False)] * 4, (0.1, False)]
    assert behind(four) == ["tool_2", "tool_3", "tool_4", "tool_5", "any_1", "tool_6"]
    # Where the first three leave a place, a fourth that fits does not come nearer by it.
    weak = [(0.8, False), (0.1, False), (0.1, False), (0.8, False), (0.9, True)]
    assert behind(weak) == ["tool_1", "any_5", "tool_2", "tool_3", "tool_4"]


@given(
    st.sampled_from(["routing", "hybrid", "retrieval", "all"]),
    st.lists(
        st.tuples(st.floats(0, 1), st.booleans(), st.sampled_from("abc")), min_size=1, max_size=30
    ),
    st.integers(1, 10),
    st.floats(0, 1),
)
def test_ret_8_no_other_tool_loses_its_offer_or_its_order(
    strategy: ResolvedStrategy, drawn: list[tuple[float, bool, str]], k: int, threshold: float
) -> None:
    """RET-8: what is offered without the fallback tools is offered with them, before them."""
    plan = Plan(strategy=strategy, categories=("a",) if strategy == "routing" else ())
    hits = tool_hits([(r, f) for r, f, _ in drawn], [category for *_, category in drawn])
    others = [hit for hit in hits if not hit.fallback]

    def offered(among: list[ToolHit]) -> list[str]:
        return [
            hit.tool_name
            for hit in choose_hits(plan, among, k=k)
            if hit.relevance >= threshold or is_exempt(plan, hit.category)
        ]

    found = fallbacks_behind(plan, hits, k=k, threshold=threshold)
    assert sorted(hit.tool_name for hit in found) == sorted(hit.tool_name for hit in hits)
    assert [h.tool_name for h in found if not h.fallback] == [h.tool_name for h in others]
    before, after = offered(others), offered(found)
    assert after[: len(before)] == before
    assert all(name.startswith("any_") for name in after[len(before) :])
    assert fallbacks_behind(plan, others, k=k, threshold=threshold) == others
