"""Which ranking settings suit a catalogue, from questions whose right tools are known. Pure.

Candidates of a question do not depend on the settings, so they are asked for once, and the
ranking is replayed for each setting. Settings are chosen on one half of the questions and checked
on the other; what looks better on the half it was chosen on proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from registry.errors import ConfigurationError
from registry.evaluation import Comparison, EvaluationQuestion, Outcome, compare
from registry.evaluation.metrics import ranks_of, recall_at
from registry.fusion import CANDIDATES, Flags, Floats, candidate_scores, fuse
from registry.settings import RegistrySettings

__all__ = [
    "MIN_QUESTIONS",
    "AskedQuestion",
    "RankingSettings",
    "Trial",
    "TuningReport",
    "asked_question",
    "check_questions",
    "ranked_names",
    "tuned",
    "widest",
]

MIN_QUESTIONS = 40
_WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0)
_SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingSettings:
    """Settings of `RegistrySettings` that decide the ranking.

    Attributes:
        word_weight: What words count for beside vectors.
        clauses: Whether a compound question is also searched in parts.
    """

    word_weight: float
    clauses: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuestion:
    """A question with what it may be answered by.

    Attributes:
        names: n candidates; where scores are equal, the earlier one is ranked first.
        cosine: Parts by n; row 0 is the whole question, the others its clauses.
        bm25: The same shape.
        bonus: n, what each candidate gains by its category's route.
        last: n, which candidates are fallback tools.
    """

    question: EvaluationQuestion
    names: tuple[str, ...]
    cosine: Floats
    bm25: Floats
    bonus: Floats
    last: Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A setting with its recall@k on the half that settings are chosen on."""

    settings: RankingSettings
    recall: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningReport:
    """What tuning found.

    Attributes:
        questions: Number used: those with a right tool that is registered and active.
        left_out: Number of the others.
        k: Hits that count.
        defaults: The settings that all others are compared with.
        chosen: Best on one half.
        recommended: The chosen ones where they are significantly better on the other half too,
            else the defaults.
        comparison: The chosen settings against the defaults, on the other half.
        trials: Every setting tried, best first.
    """

    questions: int
    left_out: int
    k: int
    defaults: RankingSettings
    chosen: RankingSettings
    recommended: RankingSettings
    comparison: Comparison
    trials: tuple[Trial, ...]


def check_questions(count: int) -> None:
    """Refuse too few questions to tell settings apart.

    Raises:
        ConfigurationError: There are less than `MIN_QUESTIONS`.
    """
    if count < MIN_QUESTIONS:
        raise ConfigurationError(
            f"{count} of the questions have a right tool that is registered and active; tuning "
            f"needs at least {MIN_QUESTIONS}, better some hundreds."
        )


def widest(settings: RegistrySettings) -> Mapping[str, Any]:
    """Return the changes of settings that fetch the candidates of every setting tried."""
    return {"word_weight": settings.word_weight or RegistrySettings().word_weight, "clauses": True}


def asked_question(
    question: EvaluationQuestion,
    rows: Iterable[Mapping[str, Any]],
    parts: int,
    *,
    bonus_of: Mapping[str, float],
) -> AskedQuestion:
    """Return a question with the candidates that the search's statement found.

    Args:
        question: That was asked.
        rows: Of the statement, in any order.
        parts: 1 for the question, 1 more for each of its clauses.
        bonus_of: Category to what a route gains it; 0 for those that are missing.
    """
    rows, cosine, words = candidate_scores(rows, parts)
    return AskedQuestion(
        question=question,
        names=tuple(row["tool_name"] for row in rows),
        cosine=cosine,
        bm25=words,
        bonus=np.array([bonus_of.get(row["category"], 0.0) for row in rows], dtype=float),
        last=np.array([row["fallback"] for row in rows], dtype=bool),
    )


def tuned(asked: Sequence[AskedQuestion], *, k: int, left_out: int = 0) -> TuningReport:
    """Return the settings that suit these questions, and whether that is more than chance.

    Settings with equal recall go by their distance from the defaults.

    Args:
        asked: At least `MIN_QUESTIONS`, ids unique, each with a right tool.
        k: Hits that count, 1 or more.
        left_out: Number of questions that could not be used, for the report.

    Raises:
        ConfigurationError: There are too few questions.
    """
    check_questions(len(asked))
    default = RegistrySettings()
    defaults = RankingSettings(word_weight=default.word_weight, clauses=default.clauses)
    choosing, checking = _halves(asked)

    def order(trial: Trial) -> tuple[float, bool, float, float]:
        weight, clauses = trial.settings.word_weight, trial.settings.clauses
        distance = abs(weight - defaults.word_weight)
        # Sums of equal shares differ in the last digit by the order of the questions.
        return -round(trial.recall, 9), clauses != defaults.clauses, round(distance, 9), weight

    trials = sorted((_trial(choosing, settings, k) for settings in _grid(defaults)), key=order)
    chosen = trials[0].settings
    comparison = compare(_outcomes(checking, defaults, k), _outcomes(checking, chosen, k), k=k)
    better = comparison.low > 0 and comparison.p_value < _SIGNIFICANT
    return TuningReport(
        questions=len(asked),
        left_out=left_out,
        k=k,
        defaults=defaults,
        chosen=chosen,
        recommended=chosen if better else defaults,
        comparison=comparison,
        trials=tuple(trials),
    )


def ranked_names(asked: AskedQuestion, settings: RankingSettings, *, k: int) -> tuple[str, ...]:
    """Return the names that a search with these settings finds, best first."""
    if not asked.names:
        return ()
    cosine, bm25, names = asked.cosine, asked.bm25, np.array(asked.names)
    bonus, last = asked.bonus, asked.last
    if not settings.clauses:
        cosine, bm25 = cosine[:1], bm25[:1]
    if settings.word_weight == 0 or len(cosine) < len(asked.cosine):
        most = max(k, CANDIDATES)
        own = _candidates(cosine[0], bm25 * settings.word_weight, names, most=most)
        cosine, bm25, names = cosine[:, own], bm25[:, own], names[own]
        bonus, last = bonus[own], last[own]
    weight = settings.word_weight
    ranking = fuse(cosine, bm25, word_weight=weight, limit=k, bonus=bonus, last=last)
    return tuple(str(names[ranked.index]) for ranked in ranking[:k])


def _candidates(
    cosine: Floats, words: Floats, names: NDArray[np.str_], *, most: int
) -> NDArray[np.bool_]:
    """Return which of the candidates a search finds that looks at fewer parts, or at no words."""
    own = np.zeros(len(names), dtype=bool)
    own[np.lexsort((names, -cosine))[:most]] = True
    for worded in words:
        best = np.argsort(-worded, kind="stable")[:most]
        own[best[worded[best] > 0]] = True
    return own


def _grid(defaults: RankingSettings) -> list[RankingSettings]:
    weights = sorted({*_WEIGHTS, defaults.word_weight})
    return [
        RankingSettings(word_weight=weight, clauses=clauses)
        for clauses in (True, False)
        for weight in weights
    ]


def _halves(
    asked: Sequence[AskedQuestion],
) -> tuple[Sequence[AskedQuestion], Sequence[AskedQuestion]]:
    """Cut by the ids' hashes: the order in the file, and what else is in it, hardly matter."""
    ordered = sorted(asked, key=lambda each: sha256(each.question.id.encode()).digest())
    return ordered[: len(ordered) // 2], ordered[len(ordered) // 2 :]


def _trial(asked: Sequence[AskedQuestion], settings: RankingSettings, k: int) -> Trial:
    recalls = [recall_at(outcome.ranks, k) for outcome in _outcomes(asked, settings, k)]
    return Trial(settings=settings, recall=float(np.mean(recalls)))


def _outcomes(asked: Sequence[AskedQuestion], settings: RankingSettings, k: int) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for each in asked:
        names = ranked_names(each, settings, k=k)
        outcomes.append(
            Outcome(
                id=each.question.id,
                text=each.question.text,
                groups=each.question.groups,
                names=names,
                ranks=ranks_of(each.question.groups, names),
            )
        )
    return outcomes
