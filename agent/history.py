"""How much of a conversation a model is sent, and what was left out. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeGuard

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.messages.utils import count_tokens_approximately

from registry.errors import HistoryBudgetError

__all__ = ["HistoryBudget", "HistoryCut"]

TokenCounter = Callable[[Sequence[BaseMessage]], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryBudget:
    """How much of a conversation the model is sent. The thread itself keeps everything.

    Tokens are those of the system message and the messages; the definitions of the offered tools
    and the reply come on top of them.

    Attributes:
        max_tokens: Of one request; a longer history is cut.
        keep_share: What a cut leaves of the room beside the system message and the question, 0.1
            to 0.9. A cut changes the beginning of the prompt, which empties a provider's cache,
            so it is deep and seldom.
        keep_last_steps: Newest steps of the current turn whose observations stay whole while
            anything else can be cut, 1 or more.
        summary_model: Sums up what is dropped; None to drop it with a note.
        summary_max_tokens: Tokens of a summary, at most half of `max_tokens`.
        summary_timeout_s: Seconds for making one.
        token_counter: Counts messages; what it says of a list should be the sum of its messages.
            The default takes a token for four characters: too few for Chinese, Japanese or
            Korean, where `model.get_num_tokens_from_messages` or a tokenizer is right.

    Raises:
        HistoryBudgetError: A value is out of range.
    """

    max_tokens: int = 64_000
    keep_share: float = 0.6
    keep_last_steps: int = 2
    summary_model: BaseChatModel | None = field(default=None, hash=False)
    summary_max_tokens: int = 1_000
    summary_timeout_s: float = 30.0
    token_counter: TokenCounter = count_tokens_approximately

    def __post_init__(self) -> None:
        for name in ("max_tokens", "keep_last_steps", "summary_max_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise HistoryBudgetError(f"{name} is {value!r}; use a whole number of 1 or more")
        if not _is_number(self.keep_share) or not 0.1 <= self.keep_share <= 0.9:
            raise HistoryBudgetError(f"keep_share is {self.keep_share!r}; use 0.1 to 0.9")
        if not _is_number(self.summary_timeout_s) or self.summary_timeout_s <= 0:
            raise HistoryBudgetError(
                f"summary_timeout_s is {self.summary_timeout_s!r}; use a number above 0"
            )
        if not callable(self.token_counter):
            raise HistoryBudgetError(
                f"token_counter is {self.token_counter!r}; give a function of messages"
            )
        if self.summary_model is None:
            return
        if not isinstance(self.summary_model, BaseChatModel):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise HistoryBudgetError(f"summary_model is {self.summary_model!r}; give a chat model")
        if self.summary_max_tokens > self.max_tokens // 2:
            raise HistoryBudgetError(
                f"summary_max_tokens is {self.summary_max_tokens:,}, more than half of max_tokens "
                f"({self.max_tokens:,}); lower it"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryCut:
    """What of a thread the model was not sent. The thread itself lost nothing.

    Attributes:
        dropped_messages: Messages left out whole.
        trimmed_messages: Messages sent with their middle left out.
        tokens: About how many tokens that saved when it was cut.
        is_summarised: A summary stands for the dropped ones, else a note that they are missing.
        problem: Why the request is larger than the budget all the same; None where it is not.
        cut_at: When, in ISO 8601, UTC.
    """

    dropped_messages: int
    trimmed_messages: int
    tokens: int
    is_summarised: bool
    problem: str | None
    cut_at: str

    def is_same_cut(self, other: HistoryCut) -> bool:
        """Return whether the same is missing, whatever else was added since."""
        return _what_is_missing(self) == _what_is_missing(other)

    def to_state(self) -> dict[str, Any]:
        """Return plain values, which every checkpointer keeps."""
        return asdict(self)

    @classmethod
    def from_state(cls, values: Mapping[str, Any] | None) -> HistoryCut | None:
        """Return a kept cut; None where there is none."""
        return cls(**values) if values else None


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _what_is_missing(cut: HistoryCut) -> tuple[int, int, bool, bool]:
    return cut.dropped_messages, cut.trimmed_messages, cut.is_summarised, cut.problem is None
