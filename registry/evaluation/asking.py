"""Asks a registry every question, one after another, and times it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from registry.evaluation.report import DEPTH, Evaluation, summarise
from registry.evaluation.results import EvaluationQuestion, Found, QuestionResult, judged

__all__ = ["AsyncSearcher", "Searcher", "aevaluate", "evaluate"]

# The first search opens connections and loads the model: no question is timed with that.
_WARM_UP = "warm-up"


class Searcher(Protocol):
    """What is evaluated; a `ToolRegistry` is one."""

    @property
    def threshold(self) -> float:
        """Relevance below which a hit is not offered."""
        ...

    def search(self, query: str, *, k: int = 5, threshold: float | None = None) -> Sequence[Found]:
        """Return at most k hits, best first."""
        ...


class AsyncSearcher(Protocol):
    """What is evaluated in async code; an `AsyncToolRegistry` is one."""

    @property
    def threshold(self) -> float:
        """Relevance below which a hit is not offered."""
        ...

    async def search(
        self, query: str, *, k: int = 5, threshold: float | None = None
    ) -> Sequence[Found]:
        """Return at most k hits, best first."""
        ...


def evaluate(
    registry: Searcher,
    questions: Sequence[EvaluationQuestion],
    *,
    k: int = 5,
    tool_tokens: Mapping[str, int] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Ask a registry questions whose right tools are known, and measure its answers.

    Args:
        registry: A `ToolRegistry`, or anything that searches like one.
        questions: At least one.
        k: Most tools an agent offers, 1 to 1,000.
        tool_tokens: Every tool's name, with the prompt tokens of its schema; without it there are
            no token figures.
        on_progress: Called with the number of questions answered.

    Raises:
        ValueError: There are no questions.
        RegistryError: A search failed.
    """
    _check(questions)
    registry.search(_WARM_UP, k=1, threshold=0)
    results: list[QuestionResult] = []
    for question in questions:
        began = time.perf_counter()
        hits = registry.search(question.text, k=max(DEPTH, k), threshold=0)
        results.append(_judged(registry, question, hits, k, time.perf_counter() - began))
        if on_progress is not None:
            on_progress(len(results))
    return summarise(results, k=k, threshold=registry.threshold, tool_tokens=tool_tokens)


async def aevaluate(
    registry: AsyncSearcher,
    questions: Sequence[EvaluationQuestion],
    *,
    k: int = 5,
    tool_tokens: Mapping[str, int] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Ask a registry questions whose right tools are known; like `evaluate`, for async code."""
    _check(questions)
    await registry.search(_WARM_UP, k=1, threshold=0)
    results: list[QuestionResult] = []
    for question in questions:
        began = time.perf_counter()
        hits = await registry.search(question.text, k=max(DEPTH, k), threshold=0)
        results.append(_judged(registry, question, hits, k, time.perf_counter() - began))
        if on_progress is not None:
            on_progress(len(results))
    return summarise(results, k=k, threshold=registry.threshold, tool_tokens=tool_tokens)


def _check(questions: Sequence[EvaluationQuestion]) -> None:
    if not questions:
        raise ValueError("there are no questions to ask")


def _judged(
    registry: Searcher | AsyncSearcher,
    question: EvaluationQuestion,
    hits: Sequence[Found],
    k: int,
    seconds: float,
) -> QuestionResult:
    return judged(question, hits, k=k, threshold=registry.threshold, latency_ms=1_000 * seconds)
