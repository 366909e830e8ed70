"""Limits, prices and sums, without a model (LOOP-1, LOOP-3, LOOP-7)."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.limits import ModelPrice, RunLimits, StopReason, ThreadLimits, check_priced, price_of
from agent.spending import (
    Ledger,
    LimitMet,
    Spent,
    TokenCount,
    call_limit,
    cost_of,
    limit_met,
    reported_tokens,
    room_for_calls,
    time_left_s,
    time_limit,
)
from registry.errors import RunLimitError

COUNTS = [
    "max_steps",
    "max_tool_calls",
    "max_total_tokens",
    "max_input_tokens",
    "max_output_tokens",
]
AMOUNTS = ["max_cost", "timeout_s"]
MINI = ModelPrice(input_per_million=0.15, cached_input_per_million=0.075, output_per_million=0.6)
NO_LIMITS = {
    name: None for name in [*COUNTS, *AMOUNTS] if name != "max_steps"
}  # a run's steps are always limited

counts = st.integers(min_value=0, max_value=10**9)
spent = st.builds(
    Spent,
    steps=counts,
    tool_calls=counts,
    input_tokens=counts,
    output_tokens=counts,
    total_tokens=counts,
    cached_input_tokens=counts,
    cost=st.none() | st.floats(0, 1e6),
    active_s=st.floats(0, 1e6),
    is_estimated=st.booleans(),
)


@pytest.mark.parametrize("limits", [RunLimits, ThreadLimits])
@pytest.mark.parametrize("name", [*COUNTS, *AMOUNTS])
@pytest.mark.parametrize("value", [0, -1, True, False, math.nan, math.inf, -math.inf, "10", [1]])
def test_loop_1_an_unusable_limit_is_refused_by_name(limits, name, value):
    with pytest.raises(RunLimitError, match=f"{name} is "):
        limits(**{name: value})


@pytest.mark.parametrize("name", [*COUNTS, "summary_max_tokens"])
def test_loop_1_counts_are_whole_numbers(name):
    with pytest.raises(RunLimitError, match=f"{name} is 1.5; .* whole number of 1 or more"):
        RunLimits(**{name: 1.5})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_steps": None}, "max_steps is None; the steps of a run are always limited"),
        ({"on_limit": "raise"}, "on_limit is 'raise'; use 'stop' or 'summarise'"),
        ({"summary_timeout_s": 0}, "summary_timeout_s is 0"),
        ({"thread": {"max_steps": 3}}, "thread is .*; give ThreadLimits"),
        ({"thread": RunLimits()}, "thread is .*; give ThreadLimits"),
        ({"max_cost": 1.0}, "max_cost needs prices"),
        ({"thread": ThreadLimits(max_cost=1.0)}, "max_cost needs prices"),
        ({"prices": [("m", MINI)]}, "prices is .*; give a mapping"),
        ({"prices": {"m": 0.15}}, "The price of 'm' is 0.15; give ModelPrice"),
        ({"prices": {" ": MINI}}, "prices has the key ' '"),
    ],
)
def test_loop_1_other_unusable_settings_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(RunLimitError, match=message):
        RunLimits(**options)


@pytest.mark.parametrize("price", [-1, math.nan, math.inf, True, "1", None])
@pytest.mark.parametrize("name", [field.name for field in fields(ModelPrice)])
def test_unusable_prices_are_refused(name, price):
    given_prices = {"input_per_million": 1, "output_per_million": 1, name: price}
    if name == "cached_input_per_million" and price is None:
        assert ModelPrice(**given_prices).cached_input_per_million is None
        return
    with pytest.raises(RunLimitError, match=f"{name} is "):
        ModelPrice(**given_prices)


def test_loop_1_the_defaults_limit_steps_calls_tokens_and_time():
    limits = RunLimits()
    assert (limits.max_steps, limits.max_tool_calls) == (10, 50)
    assert (limits.max_total_tokens, limits.timeout_s) == (200_000, 300)
    assert limits.on_limit == "stop"


def test_prices_do_not_change_with_the_callers_mapping():
    prices = {"m": MINI}
    limits = RunLimits(prices=prices)
    prices.clear()
    assert dict(limits.prices) == {"m": MINI}
    assert hash(limits) == hash(RunLimits(prices={"m": MINI}))


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("gpt-4o", "gpt-4o"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("gpt-4o-mini", "gpt-4o-mini"),
        ("gpt-4o-mini-2024-07-18", "gpt-4o-mini"),
        ("claude-x@20240620", "claude-x"),
        ("claude-x-20240620", "claude-x"),
        ("claude-x-latest", "claude-x"),
        ("gemini-001", "gemini"),
        ("gpt-4o-audio", None),
        ("gpt-4", None),
        ("claude-x-large-20240620", None),
        ("", None),
        (None, None),
    ],
)
def test_a_release_has_the_price_of_its_model_and_another_model_has_not(name, known):
    prices = {
        other: ModelPrice(input_per_million=place, output_per_million=1)
        for place, other in enumerate(["gpt-4o", "gpt-4o-mini", "claude-x", "gemini"])
    }
    assert price_of(prices, name) == (None if known is None else prices[known])


def test_a_price_table_without_the_model_is_refused():
    check_priced({}, "anything")
    check_priced({}, None)
    check_priced({"m": MINI}, "m")
    with pytest.raises(RunLimitError, match="prices has no entry for the model 'other', only for"):
        check_priced({"m": MINI}, "other")
    with pytest.raises(RunLimitError, match="does not tell its name"):
        check_priced({"m": MINI}, None)


def test_cached_tokens_are_counted_and_paid_once():
    tokens = reported_tokens(
        {
            "input_tokens": 1_000_000,
            "output_tokens": 100_000,
            "total_tokens": 1_100_000,
            "input_token_details": {"cache_read": 400_000},
        }
    )
    assert tokens == TokenCount(
        input_tokens=1_000_000,
        output_tokens=100_000,
        total_tokens=1_100_000,
        cached_input_tokens=400_000,
    )
    assert cost_of(tokens, MINI) == pytest.approx(0.6 * 0.15 + 0.4 * 0.075 + 0.1 * 0.6)
    plain = ModelPrice(input_per_million=0.15, output_per_million=0.6)
    assert cost_of(tokens, plain) == pytest.approx(0.15 + 0.06)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0},
        {"input_tokens": None, "output_tokens": None, "total_tokens": None},
        {"input_tokens": math.nan, "output_tokens": -3, "total_tokens": "7"},
    ],
)
def test_a_reply_that_tells_no_tokens_is_told_apart(usage):
    assert reported_tokens(usage) is None


def test_a_provider_that_reports_more_cached_than_sent_costs_no_negative_amount():
    usage = {"input_tokens": 5, "input_token_details": {"cache_read": 90}, "output_tokens": 1}
    tokens = reported_tokens(usage)
    assert (tokens.cached_input_tokens, tokens.total_tokens) == (5, 6)
    assert cost_of(tokens, MINI) > 0


@given(one=spent, other=spent)
def test_sums_survive_a_checkpoint_and_do_not_depend_on_order(one, other):
    assert Spent.from_state(one.to_state()) == one
    assert one + other == other + one
    assert one + Spent() == one


@pytest.mark.parametrize("kept", [None, [], {"steps": "many", "newer": 1, "cost": None}])
def test_sums_of_another_version_count_as_nothing(kept):
    assert Spent.from_state(kept) == Spent()


FIELD_OF = {
    "max_steps": "steps",
    "max_tool_calls": "tool_calls",
    "max_total_tokens": "total_tokens",
    "max_input_tokens": "input_tokens",
    "max_output_tokens": "output_tokens",
    "max_cost": "cost",
    "timeout_s": "active_s",
}
REASON_OF = {
    "max_steps": StopReason.STEP_LIMIT,
    "max_tool_calls": StopReason.TOOL_CALL_LIMIT,
    "max_total_tokens": StopReason.TOKEN_LIMIT,
    "max_input_tokens": StopReason.TOKEN_LIMIT,
    "max_output_tokens": StopReason.TOKEN_LIMIT,
    "max_cost": StopReason.COST_LIMIT,
    "timeout_s": StopReason.TIME_LIMIT,
}


def limits_of(scope: str, name: str, allowed: float) -> RunLimits:
    own = {**NO_LIMITS, "max_steps": 10**9, "prices": {"m": MINI}}
    if scope == "run":
        return RunLimits(**{**own, name: allowed})
    return RunLimits(**own, thread=ThreadLimits(**{name: allowed}))


@pytest.mark.parametrize("scope", ["run", "thread"])
@pytest.mark.parametrize("name", [name for name in FIELD_OF if name != "max_tool_calls"])
@given(allowed=st.integers(2, 10**6))
def test_loop_7_a_limit_is_met_at_its_value_and_not_before(scope, name, allowed):
    limits = limits_of(scope, name, allowed)
    before, at = (
        Ledger().plus(Spent(**{FIELD_OF[name]: amount})) for amount in (allowed - 1, allowed)
    )
    assert limit_met(limits, before, before="model") is None
    met = limit_met(limits, at, before="model")
    assert met == LimitMet(reason=REASON_OF[name], name=name, allowed=allowed, scope=scope)
    # The tools of a step belong to it.
    assert limit_met(limits, at, before="tool") == (None if name == "max_steps" else met)


@given(
    run_limit=st.none() | st.integers(1, 20),
    thread_limit=st.none() | st.integers(1, 20),
    earlier=st.integers(0, 20),
    batches=st.lists(st.integers(0, 6), max_size=8),
)
def test_loop_3_batches_never_overshoot_and_refused_calls_use_nothing_up(
    run_limit, thread_limit, earlier, batches
):
    limits = RunLimits(max_tool_calls=run_limit, thread=ThreadLimits(max_tool_calls=thread_limit))
    ledger = Ledger(thread=Spent(tool_calls=min(earlier, thread_limit or earlier)))
    before = ledger.thread.tool_calls
    for asked in batches:
        room = room_for_calls(limits, ledger)
        allowed = asked if room is None else min(asked, room)
        ledger = ledger.plus(Spent(tool_calls=allowed, refused_calls=asked - allowed))
        met = limit_met(limits, ledger, before="model")
        assert (met is not None) == (ledger.run.refused_calls > 0)
        if met is not None:
            assert met.reason is StopReason.TOOL_CALL_LIMIT
            assert met == call_limit(limits, ledger)
    run_room = math.inf if run_limit is None else run_limit
    thread_room = math.inf if thread_limit is None else thread_limit - before
    assert ledger.run.tool_calls == min(sum(batches), run_room, thread_room)


def test_the_nearest_deadline_counts():
    limits = RunLimits(timeout_s=60, thread=ThreadLimits(timeout_s=100))
    fresh = Ledger(run=Spent(active_s=10), thread=Spent(active_s=20))
    late = Ledger(run=Spent(active_s=10), thread=Spent(active_s=90))
    assert (time_left_s(limits, fresh), time_limit(limits, fresh).scope) == (50, "run")
    assert (time_left_s(limits, late), time_limit(limits, late).scope) == (10, "thread")
    assert time_left_s(RunLimits(timeout_s=None), late) is None


@pytest.mark.parametrize(
    ("name", "allowed", "words"),
    [
        ("max_steps", 1, "1 step"),
        ("max_tool_calls", 2, "2 tool calls"),
        ("max_total_tokens", 200_000, "200,000 tokens"),
        ("max_input_tokens", 1, "1 input token"),
        ("max_output_tokens", 5, "5 output tokens"),
        ("max_cost", 0.5, "0.5 in cost"),
        ("timeout_s", 300.0, "300 s"),
    ],
)
def test_a_limit_in_words(name, allowed, words):
    met = LimitMet(reason=REASON_OF[name], name=name, allowed=allowed, scope="run")
    assert met.amount == words
