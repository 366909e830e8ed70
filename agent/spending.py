"""What a run and its thread have spent, and which limit that meets. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeGuard, cast

from agent.limits import ModelPrice, RunLimits, StopReason, ThreadLimits

__all__ = [
    "Ledger",
    "LimitMet",
    "Spent",
    "TokenCount",
    "call_limit",
    "cost_of",
    "limit_met",
    "reported_tokens",
    "room_for_calls",
    "time_left_s",
    "time_limit",
]

Scope = Literal["run", "thread"]

_UNITS = {
    "max_steps": "step",
    "max_tool_calls": "tool call",
    "max_total_tokens": "token",
    "max_input_tokens": "input token",
    "max_output_tokens": "output token",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCount:
    """Tokens of one model call; the cached ones are among the input."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_input_tokens: int = 0
    is_estimated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a run or a thread has spent so far.

    Attributes:
        steps: Model calls, without one for a summary.
        tool_calls: Calls the model asked for and the limits had room for.
        refused_calls: Calls there was no room for.
        input_tokens: Prompt tokens.
        output_tokens: Tokens of replies.
        total_tokens: Of both.
        cached_input_tokens: Those of the prompt tokens that a provider's cache held.
        cost: Of the tokens; None while nothing was priced.
        active_s: Seconds at work.
        is_estimated: The model did not tell some of the tokens, or has no price of its own.
    """

    steps: int = 0
    tool_calls: int = 0
    refused_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_input_tokens: int = 0
    cost: float | None = None
    active_s: float = 0.0
    is_estimated: bool = False

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            steps=self.steps + other.steps,
            tool_calls=self.tool_calls + other.tool_calls,
            refused_calls=self.refused_calls + other.refused_calls,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
            cost=_sum(self.cost, other.cost),
            active_s=self.active_s + other.active_s,
            is_estimated=self.is_estimated or other.is_estimated,
        )

    def to_state(self) -> dict[str, Any]:
        """Return the sums as plain values, which every checkpointer keeps."""
        return asdict(self)

    @classmethod
    def from_state(cls, values: object) -> Spent:
        """Return kept sums; what is missing, or no number, counts as nothing."""
        kept = cast("Mapping[str, Any]", values) if isinstance(values, Mapping) else {}
        known: dict[str, Any] = {
            item.name: kept[item.name] for item in fields(cls) if _is_amount(kept.get(item.name))
        }
        return cls(**known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The sums of a run, and of all runs of its thread with this one."""

    run: Spent = Spent()
    thread: Spent = Spent()

    def plus(self, spent: Spent) -> Ledger:
        """Return both sums with more on them."""
        return Ledger(run=self.run + spent, thread=self.thread + spent)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitMet:
    """A limit that was met.

    Attributes:
        reason: What the run stops for.
        name: Of the limit, as in `RunLimits`.
        allowed: Its value.
        scope: Whether it is one of the run or of the thread.
    """

    reason: StopReason
    name: str
    allowed: int | float
    scope: Scope

    @property
    def amount(self) -> str:
        """The limit in words: `3 steps`, `200,000 tokens`, `0.5 in cost`, `30 s`."""
        if self.name == "max_cost":
            return f"{self.allowed:g} in cost"
        if self.name == "timeout_s":
            return f"{self.allowed:g} s"
        return f"{self.allowed:,} {_UNITS[self.name]}{'' if self.allowed == 1 else 's'}"


def reported_tokens(usage: Mapping[str, Any] | None) -> TokenCount | None:
    """Return the tokens of a reply's `usage_metadata`; None where it tells nothing.

    Cached tokens are among the input tokens there, so they are not added.
    """
    if not usage:
        return None
    tokens_in, tokens_out = _count(usage.get("input_tokens")), _count(usage.get("output_tokens"))
    total = max(_count(usage.get("total_tokens")), tokens_in + tokens_out)
    if total == 0:
        return None
    details = usage.get("input_token_details")
    cached = _count(cast("Mapping[str, Any]", details or {}).get("cache_read"))
    return TokenCount(
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        total_tokens=total,
        cached_input_tokens=min(cached, tokens_in),
    )


def cost_of(tokens: TokenCount, price: ModelPrice) -> float:
    """Return what the tokens of a call cost, in the currency of the price."""
    cached_price = price.cached_input_per_million
    if cached_price is None:
        cached_price = price.input_per_million
    fresh = tokens.input_tokens - tokens.cached_input_tokens
    return (
        fresh * price.input_per_million
        + tokens.cached_input_tokens * cached_price
        + tokens.output_tokens * price.output_per_million
    ) / 1_000_000


def limit_met(
    limits: RunLimits, ledger: Ledger, *, before: Literal["model", "tool"]
) -> LimitMet | None:
    """Return the first limit that forbids another call, those of the run before the thread's.

    The tools of a step belong to it, so a limit of steps never forbids a tool call; how many of
    them run is said by `room_for_calls`. The model may still answer when it has used up its tool
    calls: that limit is met once it asked for more.
    """
    for scope, one, spent in _scopes(limits, ledger):
        if before == "model" and one.max_steps is not None and spent.steps >= one.max_steps:
            return LimitMet(
                reason=StopReason.STEP_LIMIT, name="max_steps", allowed=one.max_steps, scope=scope
            )
    if before == "model" and ledger.run.refused_calls:
        return call_limit(limits, ledger)
    for scope, one, spent in _scopes(limits, ledger):
        for name, allowed, used, reason in (
            ("max_total_tokens", one.max_total_tokens, spent.total_tokens, StopReason.TOKEN_LIMIT),
            ("max_input_tokens", one.max_input_tokens, spent.input_tokens, StopReason.TOKEN_LIMIT),
            (
                "max_output_tokens",
                one.max_output_tokens,
                spent.output_tokens,
                StopReason.TOKEN_LIMIT,
            ),
            ("max_cost", one.max_cost, spent.cost or 0, StopReason.COST_LIMIT),
            ("timeout_s", one.timeout_s, spent.active_s, StopReason.TIME_LIMIT),
        ):
            if allowed is not None and used >= allowed:
                return LimitMet(reason=reason, name=name, allowed=allowed, scope=scope)
    return None


def room_for_calls(limits: RunLimits, ledger: Ledger) -> int | None:
    """Return how many more tool calls may run, 0 or more; None for any number."""
    rooms = [
        max(one.max_tool_calls - spent.tool_calls, 0)
        for _, one, spent in _scopes(limits, ledger)
        if one.max_tool_calls is not None
    ]
    return min(rooms, default=None)


def call_limit(limits: RunLimits, ledger: Ledger) -> LimitMet | None:
    """Return the limit of tool calls that leaves the least room."""
    found: list[tuple[int, Scope, int]] = [
        (one.max_tool_calls - spent.tool_calls, scope, one.max_tool_calls)
        for scope, one, spent in _scopes(limits, ledger)
        if one.max_tool_calls is not None
    ]
    if not found:
        return None
    _, scope, allowed = min(found)  # "run" comes before "thread" where both are met
    return LimitMet(
        reason=StopReason.TOOL_CALL_LIMIT, name="max_tool_calls", allowed=allowed, scope=scope
    )


def time_left_s(limits: RunLimits, ledger: Ledger) -> float | None:
    """Return the seconds until the nearest deadline, negative after it; None without one."""
    left = [
        one.timeout_s - spent.active_s
        for _, one, spent in _scopes(limits, ledger)
        if one.timeout_s is not None
    ]
    return min(left, default=None)


def time_limit(limits: RunLimits, ledger: Ledger) -> LimitMet | None:
    """Return the limit of time whose deadline is nearest."""
    found: list[tuple[float, Scope, float]] = [
        (one.timeout_s - spent.active_s, scope, one.timeout_s)
        for scope, one, spent in _scopes(limits, ledger)
        if one.timeout_s is not None
    ]
    if not found:
        return None
    _, scope, allowed = min(found)
    return LimitMet(reason=StopReason.TIME_LIMIT, name="timeout_s", allowed=allowed, scope=scope)


def _scopes(
    limits: RunLimits, ledger: Ledger
) -> Iterator[tuple[Scope, RunLimits | ThreadLimits, Spent]]:
    yield "run", limits, ledger.run
    yield "thread", limits.thread, ledger.thread


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other


def _count(value: object) -> int:
    return int(value) if _is_amount(value) else 0


def _is_amount(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and math.isfinite(value) and value >= 0
