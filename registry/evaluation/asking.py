"""Asks a registry every question, one after another, and times it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from registry.errors import ConfigurationError, EmbeddingUnavailableError
from registry.evaluation.report import DEPTH, Evaluation, summarise
from registry.evaluation.results import EvaluationQuestion, Found, QuestionResult, judged

__all__ = ["AsyncSearcher", "Searcher", "aevaluate", "check_question_list", "evaluate"]

# The first search opens connections and loads the model: no question is timed with that.
_WARM_UP = "warm-up"
_MAX_K = 1_000


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
        questions: At least one. What words find alone, while the embedding model is away, is not
            measured: it would pass for the registry's figures.
        k: Most tools an agent offers, 1 to 1,000.
        tool_tokens: Every tool's name, with the prompt tokens of its schema; without it there are
            no token figures.
        on_progress: Called with the number of questions answered.

    Raises:
        ConfigurationError: There are no questions, or k is out of range.
        EmbeddingUnavailableError: The embedding model gave no vector of a question.
        RegistryError: A search failed.
    """
    _check(questions, k)
    _search(registry, _WARM_UP, 1)
    results: list[QuestionResult] = []
    for question in questions:
        began = time.perf_counter()
        hits = _search(registry, question.text, max(DEPTH, k))
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
    _check(questions, k)
    await _asearch(registry, _WARM_UP, 1)
    results: list[QuestionResult] = []
    for question in questions:
        began = time.perf_counter()
        hits = await _asearch(registry, question.text, max(DEPTH, k))
        results.append(_judged(registry, question, hits, k, time.perf_counter() - began))
        if on_progress is not None:
            on_progress(len(results))
    return summarise(results, k=k, threshold=registry.threshold, tool_tokens=tool_tokens)


def _check(questions: Sequence[EvaluationQuestion], k: int) -> None:
    check_question_list(questions)
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= _MAX_K:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"k is {k!r}; it must be a whole number from 1 to {_MAX_K}")
    if not questions:
        raise ConfigurationError("questions is empty: there are no questions to ask")


def check_question_list(questions: Sequence[EvaluationQuestion]) -> None:
    """Refuse what is no sequence of questions.

    Raises:
        ConfigurationError: The message names the argument.
    """
    if isinstance(questions, str) or not isinstance(questions, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            f"questions is a {type(questions).__name__}; give a list of EvaluationQuestion"
        )
    for question in questions:
        if not isinstance(question, EvaluationQuestion):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"questions holds a {type(question).__name__}; give EvaluationQuestion objects"
            )


def _search(registry: Searcher, text: str, k: int) -> Sequence[Found]:
    select = getattr(registry, "select", None)
    if select is None:  # a stand-in that only searches
        return registry.search(text, k=k, threshold=0)
    return _by_vectors(select(text, k=k, threshold=0, strategy="hybrid"))


async def _asearch(registry: AsyncSearcher, text: str, k: int) -> Sequence[Found]:
    select = getattr(registry, "select", None)
    if select is None:
        return await registry.search(text, k=k, threshold=0)
    return _by_vectors(await select(text, k=k, threshold=0, strategy="hybrid"))


def _by_vectors(found: Any) -> Sequence[Found]:
    """Return the hits of a selection, where the embedding model answered."""
    if found.by_words_alone:
        raise EmbeddingUnavailableError(
            f"Nothing is measured by words alone: {found.words_alone_reason}"
        )
    return found.hits


def _judged(
    registry: Searcher | AsyncSearcher,
    question: EvaluationQuestion,
    hits: Sequence[Found],
    k: int,
    seconds: float,
) -> QuestionResult:
    return judged(question, hits, k=k, threshold=registry.threshold, latency_ms=1_000 * seconds)
