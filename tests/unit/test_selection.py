"""What a thread is offered: pure, so every rule is tested without an agent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.selection import Offer, fit, pinned_offer, select, with_late
from registry.types import ToolHit, ToolSpec


def hit(name: str, relevance: float = 0.5, **fields) -> ToolHit:
    values = {
        "tool_name": name,
        "display_name": name,
        "description": f"does {name}",
        "category": "general",
        "binding": name,
        "origin": "code",
        "requires_approval": False,
        "read_only": False,
        "version": 1,
        "rank": 1,
        "distance": 1 - relevance,
        "relevance": relevance,
    }
    return ToolHit(**(values | fields))


def offer(name: str, **fields) -> Offer:
    values = {
        "name": name,
        "binding": name,
        "description": f"does {name}",
        "relevance": 0.5,
        "pinned": False,
        "requires_approval": False,
        "active": True,
        "turn": 1,
    }
    return Offer(**(values | fields))


class Everything:
    def __contains__(self, name: object) -> bool:
        return True


def choose(hits=(), **options):
    values = {
        "offered": [],
        "pinned": [],
        "states": {entry["name"]: True for entry in options.get("offered", [])},
        "bindings": Everything(),
        "threshold": 0.3,
        "on_no_match": "answer",
        "max_offered": 32,
        "turn": 2,
    }
    return select(list(hits), **(values | options))


def names(selection) -> list[str]:
    return [entry["name"] for entry in selection.offers]


def test_hits_at_the_threshold_pass_and_below_do_not():
    selection = choose([hit("a", 0.9), hit("b", 0.3), hit("c", 0.2999)])
    assert names(selection) == ["a", "b"]
    assert selection.passed == ("a", "b")


def test_threshold_zero_takes_all():
    assert names(choose([hit("a", 0.0)], threshold=0)) == ["a"]


@pytest.mark.parametrize(("on_no_match", "expected"), [("answer", []), ("best_hit", ["b"])])
def test_nothing_above_the_threshold(on_no_match, expected):
    hits = [hit("gone", 0.2), hit("b", 0.1), hit("c", 0.05)]
    assert names(choose(hits, on_no_match=on_no_match, bindings={"b", "c"})) == expected


def test_best_hit_is_not_added_when_something_passes():
    assert names(choose([hit("a", 0.5), hit("b", 0.1)], on_no_match="best_hit")) == ["a"]


def test_unbound_hits_are_named_and_not_offered():
    selection = choose([hit("a"), hit("b")], bindings={"b"})
    assert (names(selection), selection.unbound) == (["b"], ("a",))


def test_earlier_offers_keep_their_places_and_new_ones_follow_best_first():
    before = [offer("x"), offer("y")]
    selection = choose([hit("n", 0.9), hit("y", 0.8), hit("m", 0.7)], offered=before)
    assert names(selection) == ["x", "y", "n", "m"]
    assert [entry["turn"] for entry in selection.offers] == [1, 2, 2, 2]


def test_a_fresh_hit_brings_fresh_facts():
    before = [offer("x", description="old", binding="old")]
    [fresh] = choose(
        [hit("x", 0.9, description="new", binding="new", requires_approval=True)], offered=before
    ).offers
    assert (fresh["description"], fresh["binding"]) == ("new", "new")
    assert (fresh["relevance"], fresh["requires_approval"]) == (0.9, True)


def test_long_descriptions_are_cut_for_the_model():
    [entry] = choose([hit("x", description="word " * 1_000)]).offers
    assert len(entry["description"]) <= 1_024
    assert entry["description"].endswith("[…]")


def test_pinned_come_first_in_a_new_thread_and_stay_pinned_when_found():
    pin = pinned_offer(ToolSpec(tool_name="p", description="does p", requires_approval=True))
    selection = choose([hit("a"), hit("p", 0.8)], pinned=[pin])
    assert names(selection) == ["p", "a"]
    entry = selection.offers[0]
    assert (entry["pinned"], entry["relevance"], entry["requires_approval"]) == (True, 0.8, True)


def test_a_pin_taken_back_makes_an_ordinary_offer():
    [entry] = choose(offered=[offer("p", pinned=True)]).offers
    assert entry["pinned"] is False


@pytest.mark.parametrize(
    ("states", "pinned", "active"),
    [
        ({"x": True}, False, True),
        ({"x": False}, False, False),
        ({}, False, False),
        ({}, True, True),
    ],
)
def test_activity_is_the_registrys_word(states, pinned, active):
    pins = [pinned_offer(ToolSpec(tool_name="x", description="d"))] if pinned else []
    [entry] = choose(offered=[offer("x")], states=states, pinned=pins).offers
    assert entry["active"] is active


def test_drop_order():
    offers = [
        offer("pinned", pinned=True, turn=0),
        offer("old_weak", turn=1, relevance=0.1),
        offer("old_strong", turn=1, relevance=0.9),
        offer("new_weak", turn=2, relevance=0.2),
        offer("new_strong", turn=2, relevance=0.8),
    ]
    order = ["old_weak", "old_strong", "new_weak", "new_strong"]
    for room in range(5, 0, -1):
        kept, dropped = fit(offers, room=room)
        assert dropped == order[: 5 - room]
        assert [entry["name"] for entry in kept] == [
            entry["name"] for entry in offers if entry["name"] not in dropped
        ]
    kept, _ = fit(offers, room=0)
    assert [entry["name"] for entry in kept] == ["pinned"]


def test_drops_are_reported():
    selection = choose([hit(f"n{n}", 0.9 - n / 100) for n in range(5)], max_offered=3)
    assert names(selection) == ["n0", "n1", "n2"]
    assert selection.dropped == ("n4", "n3")


@given(
    turns=st.lists(st.lists(st.integers(0, 30), max_size=8, unique=True), max_size=8),
    room=st.integers(1, 12),
)
def test_over_many_turns_order_is_stable_and_the_cap_holds(turns, room):
    offered: list[Offer] = []
    for turn, found in enumerate(turns, start=1):
        hits = [hit(f"t{number}", 0.9 - place / 100) for place, number in enumerate(found)]
        states = {entry["name"]: True for entry in offered}
        selection = choose(hits, offered=offered, states=states, max_offered=room, turn=turn)
        after = names(selection)
        survivors = [entry["name"] for entry in offered if entry["name"] in after]
        assert after[: len(survivors)] == survivors
        assert len(after) == len(set(after)) <= room
        assert {*after, *selection.dropped} == {
            *(entry["name"] for entry in offered),
            *selection.passed,
        }
        offered = list(selection.offers)


def turned(name: str, turn: int, relevance: float | None = 0.5, **fields) -> Offer:
    return offer(name, turn=turn, relevance=relevance, **fields)


def test_earlier_tools_make_way_together_and_seldom():
    offered: list[Offer] = []
    sizes: list[int] = []
    for turn in range(1, 14):
        hits = [hit(f"t{turn}_{place}", 0.9 - place / 100) for place in range(3)]
        states = {entry["name"]: True for entry in offered}
        selection = choose(hits, offered=offered, states=states, max_offered=32, turn=turn)
        before = [entry["name"] for entry in offered]
        after = names(selection)
        grown = [*before, *(found.tool_name for found in hits)]
        assert after == [name for name in grown if name in after]
        # What was found a turn ago, or now, is never among those that make way.
        assert {f"t{turn - ago}_{n}" for n in range(3) for ago in (0, 1) if turn > ago} <= {*after}
        sizes.append(len(after))
        offered = list(selection.offers)
    assert sizes == [3, 6, 9, 12, 15, 8, 11, 14, 8, 11, 14, 8, 11]


@pytest.mark.parametrize(
    ("max_offered", "k", "sizes"),
    [
        (32, 10, [10, 20, 30, 15]),  # room for three questions at least
        (128, 5, [5, 10, 15, 20]),
        (16, 5, [5, 10, 15, 8]),
        (7, 2, [2, 4, 6, 7]),  # where there are few, none goes before it must
        (32, 40, [32, 32, 32, 32]),
    ],
)
def test_when_earlier_tools_make_way(max_offered, k, sizes):
    offered: list[Offer] = []
    for turn, size in enumerate(sizes, start=1):
        hits = [hit(f"t{turn}_{place}", 0.9 - place / 100) for place in range(k)]
        selection = choose(hits, offered=offered, max_offered=max_offered, turn=turn)
        assert len(selection.offers) == size
        offered = list(selection.offers)


def test_a_call_is_as_good_as_being_found_in_the_next_turn():
    offered = [offer("called", turn=1), *(offer(f"old{n}", turn=2) for n in range(14))]
    pin = offer("pin", pinned=True, turn=0)
    hits = [hit("new0"), hit("new1")]
    selection = choose(hits, offered=[pin, *offered], pinned=[pin], turn=3, called={"called": 3})
    assert names(selection) == ["pin", "called", "old0", "old1", "old2", "old3", "old4", *NEW]
    assert [entry["turn"] for entry in selection.offers[:2]] == [0, 1]
    assert "called" not in names(choose(hits, offered=offered, turn=3))
    kept, dropped = fit(offered, room=14, called={"called": 3})
    assert ("called" in [entry["name"] for entry in kept], dropped) == (True, ["old13"])


NEW = ["new0", "new1"]


def test_a_late_offer_goes_behind_the_rest_or_stays_where_it_is():
    before = [turned("a", 1), turned("p", 0, pinned=True, requires_approval=True), turned("b", 2)]
    late = [turned("p", 2, 0.7), turned("new", 2, None), turned("a", 2, 0.8)]
    kept, dropped = with_late(before, late, max_offered=32)
    assert [entry["name"] for entry in kept] == ["a", "p", "b", "new"]
    assert dropped == []
    a, p, _, _ = kept
    assert (a["turn"], a["relevance"]) == (2, 0.8)
    # What code pinned and gated stays so, whatever the search says of it.
    assert (p["pinned"], p["requires_approval"], p["relevance"]) == (True, True, 0.7)


def test_a_late_offer_takes_the_place_of_a_found_one_but_not_of_a_pinned_one():
    before = [turned("p", 0, pinned=True), turned("a", 2, 0.9)]
    kept, dropped = with_late(before, [turned("new", 2, None)], max_offered=2)
    assert ([entry["name"] for entry in kept], dropped) == (["p", "new"], ["a"])
    kept, dropped = with_late(before[:1], [turned("new", 2, None)], max_offered=1)
    assert ([entry["name"] for entry in kept], dropped) == (["p"], ["new"])
