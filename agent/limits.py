"""Limits of a run and of a thread as they are set, and the prices of tokens. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Literal, TypeGuard

from registry.errors import RunLimitError

__all__ = ["ModelPrice", "RunLimits", "StopReason", "ThreadLimits", "check_priced", "price_of"]

# What a provider's reply appends to a model's name: -2024-07-18, -20250514, @20240620, -001.
_RELEASE = re.compile(r"[-@:.](?:\d[\d.-]*|latest)")


class StopReason(StrEnum):
    """Why a run ended."""

    ANSWERED = "answered"
    STEP_LIMIT = "step_limit"
    TOOL_CALL_LIMIT = "tool_call_limit"
    TOKEN_LIMIT = "token_limit"
    COST_LIMIT = "cost_limit"
    TIME_LIMIT = "time_limit"
    NO_PROGRESS = "no_progress"
    EMPTY_ANSWER = "empty_answer"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrice:
    """What a million tokens of a model cost, in a currency of your choice.

    Attributes:
        input_per_million: Prompt tokens, 0 or more.
        output_per_million: Tokens of replies, 0 or more.
        cached_input_per_million: Prompt tokens read from the provider's cache, 0 or more; None
            for the price of the others.

    Raises:
        RunLimitError: A price is negative or no number.
    """

    input_per_million: float
    output_per_million: float
    cached_input_per_million: float | None = None

    def __post_init__(self) -> None:
        for name in ("input_per_million", "output_per_million", "cached_input_per_million"):
            price = getattr(self, name)
            if price is None and name == "cached_input_per_million":
                continue
            if not _is_number(price) or price < 0:
                raise RunLimitError(f"{name} is {price!r}; a price is a number of 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadLimits:
    """Limits of a thread: all its runs together. None means no limit.

    Attributes:
        max_steps: Model calls.
        max_tool_calls: Tool calls.
        max_total_tokens: Prompt and reply tokens of all model calls.
        max_input_tokens: Prompt tokens, those read from a cache included.
        max_output_tokens: Tokens of replies.
        max_cost: In the currency of the run's prices.
        timeout_s: Seconds at work; waiting for a person does not count.

    Raises:
        RunLimitError: A limit is no number above zero.
    """

    max_steps: int | None = None
    max_tool_calls: int | None = None
    max_total_tokens: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_cost: float | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        _check_limits(self, of="a thread")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """Limits of one run, with defaults that are safe in production. None means no limit.

    A step is one model call and the tool calls it asks for. The limits are looked at before each
    model call and each tool call, the deadline also inside them. A model call that has begun is
    paid for, so tokens and cost may end above their limit by that one call; steps and tool calls
    never do.

    Attributes:
        max_steps: Model calls in a run; always limited.
        max_tool_calls: Tool calls in a run; those of a reply that are too many do not run.
        max_total_tokens: Prompt and reply tokens of all model calls.
        max_input_tokens: Prompt tokens, those read from a cache included.
        max_output_tokens: Tokens of replies.
        max_cost: In the currency of `prices`.
        timeout_s: Seconds at work; waiting for a person does not count.
        on_limit: `stop` ends the run with a sentence that says so; `summarise` gives the model
            one more call, without tools, to sum up what was found.
        summary_timeout_s: Seconds for that call, beyond `timeout_s`.
        summary_max_tokens: Tokens of its reply, where the model knows the setting `max_tokens`.
        prices: Model name to price; needed for `max_cost`. A release that a provider appends to
            the name (`-2024-07-18`) needs no entry of its own.
        thread: Limits for all runs of a thread together.

    Raises:
        RunLimitError: A limit is no number above zero, or one of cost comes without prices.
    """

    max_steps: int = 10
    max_tool_calls: int | None = 50
    max_total_tokens: int | None = 200_000
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_cost: float | None = None
    timeout_s: float | None = 300.0
    on_limit: Literal["stop", "summarise"] = "stop"
    summary_timeout_s: float = 30.0
    summary_max_tokens: int = 1_000
    prices: Mapping[str, ModelPrice] = field(default_factory=dict[str, ModelPrice], hash=False)
    thread: ThreadLimits = field(default_factory=ThreadLimits)

    def __post_init__(self) -> None:
        _check_limits(self, of="a run")
        if self.max_steps is None:  # pyright: ignore[reportUnnecessaryComparison]
            raise RunLimitError("max_steps is None; the steps of a run are always limited")
        if self.on_limit not in ("stop", "summarise"):
            raise RunLimitError(f"on_limit is {self.on_limit!r}; use 'stop' or 'summarise'")
        _check_amount("summary_timeout_s", self.summary_timeout_s, of="a summary")
        _check_count("summary_max_tokens", self.summary_max_tokens, of="a summary")
        if not isinstance(self.thread, ThreadLimits):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RunLimitError(f"thread is {self.thread!r}; give ThreadLimits(…)")
        object.__setattr__(self, "prices", _checked_prices(self.prices))
        if not self.prices and not self.max_cost == self.thread.max_cost is None:
            raise RunLimitError(
                "max_cost needs prices={'MODEL': ModelPrice(…)}; without them no cost is known"
            )


def price_of(prices: Mapping[str, ModelPrice], name: str | None) -> ModelPrice | None:
    """Return the price of a model by the name a reply gives it, or None.

    Args:
        prices: Model name to price.
        name: Exact, or with a release appended.
    """
    if name is None:
        return None
    if name in prices:
        return prices[name]
    priced = [known for known in prices if name.startswith(known)]
    longest = max(priced, key=len, default=None)
    if longest is None or not _RELEASE.fullmatch(name[len(longest) :]):
        return None
    return prices[longest]


def check_priced(prices: Mapping[str, ModelPrice], name: str | None) -> None:
    """Pass a model that the prices know, or any when there are none.

    Args:
        prices: Model name to price.
        name: As the model is configured; None where it does not tell.

    Raises:
        RunLimitError: The model has no price.
    """
    if not prices or price_of(prices, name) is not None:
        return
    known = ", ".join(map(repr, sorted(prices)))
    if name is None:
        raise RunLimitError(
            f"The chat model does not tell its name, so the prices of {known} cannot be applied. "
            "Use a model with a name, or leave out prices and max_cost"
        )
    raise RunLimitError(f"prices has no entry for the model {name!r}, only for {known}; add one")


def _check_limits(limits: RunLimits | ThreadLimits, *, of: str) -> None:
    for name in (
        "max_steps",
        "max_tool_calls",
        "max_total_tokens",
        "max_input_tokens",
        "max_output_tokens",
    ):
        _check_count(name, getattr(limits, name), of=of)
    for name in ("max_cost", "timeout_s"):
        _check_amount(name, getattr(limits, name), of=of)


def _check_count(name: str, value: object, *, of: str) -> None:
    if value is not None and not (_is_number(value) and isinstance(value, int) and value >= 1):
        raise RunLimitError(f"{name} is {value!r}; {of} needs a whole number of 1 or more")


def _check_amount(name: str, value: object, *, of: str) -> None:
    if value is not None and not (_is_number(value) and value > 0):
        raise RunLimitError(f"{name} is {value!r}; {of} needs a number above 0")


def _checked_prices(prices: object) -> Mapping[str, ModelPrice]:
    if not isinstance(prices, Mapping):
        raise RunLimitError(f"prices is {prices!r}; give a mapping of model name to ModelPrice")
    checked: dict[str, ModelPrice] = {}
    for name, price in _items(prices):
        if not isinstance(name, str) or not name.strip():
            raise RunLimitError(f"prices has the key {name!r}; use the model's name")
        if not isinstance(price, ModelPrice):
            raise RunLimitError(f"The price of {name!r} is {price!r}; give ModelPrice(…)")
        checked[name] = price
    return MappingProxyType(checked)


def _items(mapping: Mapping[object, object]) -> Iterable[tuple[object, object]]:
    return mapping.items()


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
