"""Which part of a long history a model is sent. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    HumanMessage,
    SystemMessage,
)

from agent.history import HistoryBudget
from agent.history_text import SUMMARY_FRAME_TOKENS, Summary, cut, left_out, shown_chars, summed_up
from registry.errors import HistoryBudgetError

__all__ = ["Shaped", "shape"]

SHORT_CHARS = 800  # of an old observation; the tail holds a cut result's handle for `read_more`
LEAST_CHARS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped:
    """A history as it is sent.

    Attributes:
        kept: Messages in order, long ones among them cut.
        dropped: Messages that are left out, in order.
        trimmed_count: Kept messages that are cut.
        tokens_before: Of the whole history with the system message.
        tokens: Of what is sent, with the most that the note or summary in front takes.
        problem: Why the budget is not met; None where it is.
    """

    kept: tuple[AnyMessage, ...]
    dropped: tuple[AnyMessage, ...] = ()
    trimmed_count: int = 0
    tokens_before: int
    tokens: int
    problem: str | None = None

    @property
    def is_cut(self) -> bool:
        """Whether anything is missing."""
        return bool(self.dropped or self.trimmed_count)

    def messages(self, summary: Summary | None = None) -> list[AnyMessage]:
        """Return what is sent: with a note in front, or a summary, where messages are left out.

        Args:
            summary: Used if it covers exactly the messages that are left out.
        """
        if not self.dropped:
            return list(self.kept)
        is_covered = summary is not None and summary.covers_all(self.dropped)
        front = summed_up(summary) if summary and is_covered else left_out(len(self.dropped))
        first = next(
            (
                place
                for place, message in enumerate(self.kept)
                if not isinstance(message, SystemMessage)
            ),
            len(self.kept),
        )
        return [*self.kept[:first], front, *self.kept[first:]]


def shape(
    messages: Sequence[AnyMessage],
    budget: HistoryBudget,
    *,
    system_message: SystemMessage | None = None,
) -> Shaped:
    """Return what of a history fits a budget.

    While it fits, nothing is touched. Else, in this order and only until `keep_share` of the room
    is left: observations of older steps are shortened, and older human messages that take more
    than a quarter of the room; the newest step's observations are cut to half of the room; older
    turns are dropped, oldest first; the current turn's other observations are shortened; its older
    steps are dropped; and at the very last the newest step's observations are cut as far as
    needed. Steps are dropped whole, so calls and results stay together. System messages and the
    newest human message always stay, as they are.

    The history is followed from its beginning, and cut at each model call that needed it. So every
    request begins as the one before it did, until a cut; and nothing has to be remembered.

    Args:
        messages: The whole history.
        budget: In tokens.
        system_message: Sent in front of it.

    Raises:
        HistoryBudgetError: The system message, or the newest human message with it, is larger
            than the budget.
    """
    system_tokens = budget.token_counter([system_message]) if system_message else 0
    tokens = system_tokens + (budget.token_counter(messages) if messages else 0)
    if tokens <= budget.max_tokens:
        return Shaped(kept=tuple(messages), tokens_before=tokens, tokens=tokens)
    return _Cutter(messages, budget, system_tokens).shaped()


class _Cutter:
    """Follows a history from its beginning and cuts it at the model calls that need it."""

    def __init__(
        self, messages: Sequence[AnyMessage], budget: HistoryBudget, system_tokens: int
    ) -> None:
        self._messages = messages
        self._budget = budget
        self._system_tokens = system_tokens  # and those of system messages that were followed
        self._sizes = [self._size(message) for message in messages]
        self._tokens_before = system_tokens + sum(self._sizes)
        self._cut: dict[int, AnyMessage] = {}
        self._cut_sizes: dict[int, int] = {}
        self._dropped: set[int] = set()
        self._total = system_tokens
        self._front_tokens = 0
        # Of the messages followed so far, without what was dropped whole.
        self._begin = 0
        self._turns: list[int] = []  # where they start: at a human message
        self._steps: list[list[int]] = []  # a reply, and the answers to its calls
        self._system_places: set[int] = set()

    def shaped(self) -> Shaped:
        for place, message in enumerate(self._messages):
            if isinstance(message, AIMessage):  # this model call had what stands before it
                self._fit()
            self._follow(place, message)
        self._fit()
        self._refuse_what_never_fits()
        kept = [
            self._shown(place) for place in range(len(self._messages)) if place not in self._dropped
        ]
        return Shaped(
            kept=tuple(kept),
            dropped=tuple(self._messages[place] for place in sorted(self._dropped)),
            trimmed_count=len(self._cut.keys() - self._dropped),
            tokens_before=self._tokens_before,
            tokens=self._total,
            problem=self._problem,
        )

    def _follow(self, place: int, message: AnyMessage) -> None:
        self._total += self._sizes[place]
        if isinstance(message, SystemMessage):
            self._system_places.add(place)
            self._system_tokens += self._sizes[place]
        elif isinstance(message, HumanMessage):
            self._turns.append(place)
        elif isinstance(message, AIMessage):
            self._steps.append([place])
        elif self._steps and self._steps[-1][0] >= self._turn_start:
            self._steps[-1].append(place)

    def _fit(self) -> None:
        """Cut what was followed so far, if it is too much for a model call."""
        fixed = self._fixed_tokens
        if self._total <= self._budget.max_tokens or fixed > self._budget.max_tokens:
            return
        room = int(self._budget.keep_share * (self._budget.max_tokens - fixed))
        for _ in self._reductions(room):
            if self._total <= fixed + room:
                break
        self._turns = [turn for turn in self._turns if turn >= self._begin]
        self._steps = [step for step in self._steps if step[0] not in self._dropped]
        if self._total > self._budget.max_tokens and (step := self._last_step):
            others = self._total - sum(map(self._shown_size, step))
            self._squeeze(step, self._budget.max_tokens - others)

    def _reductions(self, room: int) -> Iterator[None]:
        """Make what is sent smaller, bit by bit, the most dispensable first."""
        current = [step for step in self._steps if step[0] >= self._turn_start]
        older = self._steps[: len(self._steps) - len(current)]
        for step in [*older, *current[: -self._budget.keep_last_steps]]:
            yield from self._shorten(step)
        # One message that is very long must not cost all the others.
        yield from self._shorten(
            [turn for turn in self._turns[:-1] if self._sizes[turn] > room // 4]
        )
        self._squeeze(self._last_step, room // 2)
        yield
        for start, stop in pairwise([self._begin, *self._turns]):
            self._begin = stop
            yield from self._drop(range(start, stop))
        for step in current[:-1]:
            yield from self._shorten(step)
        for step in current[:-1]:
            yield from self._drop(step)

    def _shorten(self, places: Sequence[int]) -> Iterator[None]:
        for place in places:
            if place not in self._dropped and self._cut_to(place, SHORT_CHARS):
                yield

    def _squeeze(self, step: Sequence[int], room: int) -> None:
        """Cut a step's observations to one length, the longest at which the step fits."""
        if sum(map(self._shown_size, step)) <= room:
            return
        least, most = LEAST_CHARS, max(shown_chars(self._shown(place)) for place in step)
        while least < most:
            middle = (least + most + 1) // 2
            if sum(self._size(self._at_length(place, middle)) for place in step) <= room:
                least = middle
            else:
                most = middle - 1
        for place in step:
            self._cut_to(place, least)

    def _drop(self, places: Sequence[int]) -> Iterator[None]:
        gone = [
            place
            for place in places
            if place not in self._dropped and place not in self._system_places
        ]
        if not gone:
            return
        self._total -= sum(map(self._shown_size, gone)) + self._front_tokens
        self._dropped.update(gone)
        self._front_tokens = self._front_size()
        self._total += self._front_tokens
        yield

    def _front_size(self) -> int:
        if self._budget.summary_model is not None:
            return self._budget.summary_max_tokens + SUMMARY_FRAME_TOKENS
        return self._size(left_out(len(self._dropped)))

    def _cut_to(self, place: int, max_chars: int) -> bool:
        """Cut a message; whether that made it smaller."""
        shown = self._shown(place)
        message = self._at_length(place, max_chars)
        if message is shown or (after := self._size(message)) >= self._shown_size(place):
            return False
        self._total += after - self._shown_size(place)
        self._cut[place], self._cut_sizes[place] = message, after
        return True

    def _at_length(self, place: int, max_chars: int) -> AnyMessage:
        shown = self._shown(place)
        if shown_chars(shown) <= max_chars:
            return shown
        # From the original, so that the mark tells the whole length.
        return cut(self._messages[place], max_chars)

    # --- what is known at any moment

    def _size(self, message: AnyMessage) -> int:
        return self._budget.token_counter([message])

    def _shown_size(self, place: int) -> int:
        return self._cut_sizes.get(place, self._sizes[place])

    def _shown(self, place: int) -> AnyMessage:
        return self._cut.get(place, self._messages[place])

    @property
    def _turn_start(self) -> int:
        return self._turns[-1] if self._turns else 0

    @property
    def _last_step(self) -> list[int]:
        is_current = self._steps and self._steps[-1][0] >= self._turn_start
        return self._steps[-1] if is_current else []

    @property
    def _fixed_tokens(self) -> int:
        return self._system_tokens + (self._sizes[self._turns[-1]] if self._turns else 0)

    @property
    def _problem(self) -> str | None:
        if self._total <= self._budget.max_tokens:
            return None
        return (
            f"the request takes about {self._total:,} tokens, and the budget is "
            f"{self._budget.max_tokens:,}; system messages, the newest human message and the "
            "newest step are never left out"
        )

    def _refuse_what_never_fits(self) -> None:
        allowed, fixed = self._budget.max_tokens, self._fixed_tokens
        if self._system_tokens >= allowed:
            raise HistoryBudgetError(
                f"The history's budget is {allowed:,} tokens (HistoryBudget.max_tokens), and the "
                f"system message alone takes {self._system_tokens:,}; raise the budget"
            )
        if fixed > allowed:
            raise HistoryBudgetError(
                f"The newest message takes about {fixed - self._system_tokens:,} tokens; the "
                f"history's budget of {allowed:,} (HistoryBudget.max_tokens) has room for "
                f"{allowed - self._system_tokens:,}. Shorten the message, or raise the budget"
            )
