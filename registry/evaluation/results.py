"""A question with its right tools, and what a search made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from registry.errors import ConfigurationError
from registry.evaluation.metrics import ranks_of

__all__ = ["EvaluationQuestion", "Found", "QuestionResult", "judged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationQuestion:
    """A question whose right tools are known.

    Attributes:
        id: Unique among the questions; by it two runs are compared.
        text: As a user would put it.
        groups: The right answers, each a group of equally valid tool names; empty where no tool
            fits.
        lang: Language, for figures by language; empty where not known.
        split: Part of the set, for figures by part; empty where there is none.

    Raises:
        ConfigurationError: `groups`, or one of them, is a text and no tuple, or holds no names.
    """

    id: str
    text: str
    groups: tuple[tuple[str, ...], ...]
    lang: str = ""
    split: str = ""

    def __post_init__(self) -> None:
        for name in ("id", "text"):
            if not isinstance(value := getattr(self, name), str):
                raise ConfigurationError(f"{name} of a question is {value!r}; it must be a text")
        if not _is_groups(self.groups):
            raise ConfigurationError(
                f"groups of question {self.id!r} is {self.groups!r}; give a group of names for "
                "each right answer, for example (('get_weather',),)"
            )


def _is_groups(given: Any) -> bool:
    """Return whether these are groups of names; a text is a sequence too, of single letters."""
    return isinstance(given, (list, tuple)) and all(
        isinstance(group, (list, tuple, set, frozenset))
        and group
        and all(isinstance(name, str) for name in cast("tuple[Any, ...]", group))
        for group in cast("tuple[Any, ...]", given)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionResult:
    """What a search found for one question.

    Attributes:
        names: Tools found, best first, whatever their relevance.
        relevances: Of each of them, 0 to 1.
        offered: Those an agent would offer: among the first k, and relevant enough.
        ranks: Of each right answer, in the order of `question.groups`; None where not found.
        latency_ms: Of the whole search, embedding of the question included.
    """

    question: EvaluationQuestion
    names: tuple[str, ...]
    relevances: tuple[float, ...]
    offered: tuple[str, ...]
    ranks: tuple[int | None, ...]
    latency_ms: float

    def found_within(self, k: int) -> int:
        """Return how many right answers are among the first k hits."""
        return sum(rank is not None and rank <= k for rank in self.ranks)

    @property
    def kept(self) -> int:
        """How many right answers are offered."""
        offered = set(self.offered)
        return sum(not offered.isdisjoint(group) for group in self.question.groups)


class Found(Protocol):
    """A hit, as far as the evaluation looks at it; a `ToolHit` is one."""

    @property
    def tool_name(self) -> str:
        """Model-facing name."""
        ...

    @property
    def relevance(self) -> float:
        """Relevance, 0 to 1."""
        ...


def judged(
    question: EvaluationQuestion,
    hits: Sequence[Found],
    *,
    k: int,
    threshold: float,
    latency_ms: float,
) -> QuestionResult:
    """Return the result of a search made without a threshold.

    Args:
        question: What was asked.
        hits: Best first, k or more where there are so many tools.
        k: Most tools an agent offers.
        threshold: Relevance that an offered tool has at least.
        latency_ms: How long the search took.
    """
    names = tuple(hit.tool_name for hit in hits)
    return QuestionResult(
        question=question,
        names=names,
        relevances=tuple(hit.relevance for hit in hits),
        offered=tuple(hit.tool_name for hit in hits[:k] if hit.relevance >= threshold),
        ranks=ranks_of(question.groups, names),
        latency_ms=latency_ms,
    )
