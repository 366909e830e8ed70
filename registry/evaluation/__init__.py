"""How well a registry answers questions whose right tools are known."""

from __future__ import annotations

from registry.evaluation.asking import AsyncSearcher, Searcher, aevaluate, evaluate
from registry.evaluation.comparison import (
    Change,
    Comparison,
    Outcome,
    compare,
    flat_comparison,
    outcome_of,
)
from registry.evaluation.floors import Missed, is_ceiling, is_share, missed_floors, unknown_metrics
from registry.evaluation.report import Evaluation, summarise
from registry.evaluation.results import EvaluationQuestion, QuestionResult, judged

__all__ = [
    "AsyncSearcher",
    "Change",
    "Comparison",
    "Evaluation",
    "EvaluationQuestion",
    "Missed",
    "Outcome",
    "QuestionResult",
    "Searcher",
    "aevaluate",
    "compare",
    "evaluate",
    "flat_comparison",
    "is_ceiling",
    "is_share",
    "judged",
    "missed_floors",
    "outcome_of",
    "summarise",
    "unknown_metrics",
]
