"""Pure: what a search found in the database -> hits, best first, with their relevance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from registry.fusion import Flags, Floats, Ranked, candidate_scores, fuse
from registry.relevance import FIRST, Calibration, Scale, coverage, evidence, relevance
from registry.strategy import Plan
from registry.types import ScoreParts, ToolHit

__all__ = ["Candidates", "evidences", "ranked"]

_HIT_FIELDS = (
    "tool_name",
    "display_name",
    "description",
    "category",
    "binding",
    "origin",
    "requires_approval",
    "read_only",
    "fallback",
    "version",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What a question may be answered by.

    Attributes:
        rows: Of `statements.search_candidates`, in no order.
        active_tools: That the namespace has, counted as far as was asked.
        calibration: Of the relevance scale; None where there was none yet.
        words_alone_reason: Why the question has no vector; empty where it has one.
    """

    rows: Sequence[Mapping[str, Any]] = ()
    active_tools: int = 0
    calibration: Calibration | None = None
    words_alone_reason: str = ""

    def lacks_words(self, tool_name: str) -> bool:
        """Return whether words decide alone, and this tool has none of the question's."""
        return bool(self.words_alone_reason) and not any(
            value
            for row in self.rows
            if row["tool_name"] == tool_name
            for column, value in row.items()
            if column.startswith("words_")
        )

    @classmethod
    def of(cls, settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Self:
        """Return them with what the row of `statements.set_search_settings` says."""
        calibration = None
        if settings["spread"] is not None:
            scale = Scale(center=settings["center"], spread=settings["spread"])
            calibration = Calibration(
                scale=scale,
                null=settings["null_evidence"],
                zero=settings["zero"],
                words=settings["words_share"],
            )
        return cls(rows=rows, active_tools=settings["active_tools"], calibration=calibration)


def ranked(
    found: Candidates,
    parts: Sequence[str],
    k: int,
    *,
    word_weight: float,
    plan: Plan | None = None,
) -> list[ToolHit]:
    """Return the k best of the candidates, best first; behind them k fallback tools.

    Args:
        found: What the question and its clauses may be answered by.
        parts: The question, and its clauses.
        k: Most hits of each kind.
        word_weight: Of the settings; the calibration says how much of it counts.
        plan: Says what a category gains a tool.
    """
    if not found.rows:
        return []
    rows, cosine, words = candidate_scores(found.rows, len(parts))
    last = _fallbacks(rows)
    share = 1.0 if found.calibration is None else found.calibration.words
    ranking = fuse(
        cosine,
        words,
        word_weight=share * word_weight,
        limit=k,
        bonus=None if plan is None else _bonus(rows, plan),
        last=last,
    )
    if found.calibration is None:
        relevances = np.maximum(0.0, cosine[0, [place.index for place in ranking]])
    else:
        scale = found.calibration.scale
        evident = _evidence(rows[0], cosine[0], words[0], ranking, scale, last)
        relevances = relevance(evident, found.calibration)
    return [
        _hit(rows[place.index], parts, place, rank=rank, relevance=float(relevant))
        for rank, (place, relevant) in enumerate(zip(ranking, relevances, strict=True), start=1)
    ]


def evidences(
    rows: Sequence[Mapping[str, Any]], scale: Scale, *, traffic: float, word_weight: float
) -> dict[str, float]:
    """Return the evidence of the first hits, best first, whatever the calibration in force.

    Args:
        rows: Candidates of a question of one part.
        scale: The model's.
        traffic: Of the question, whatever the rows say.
        word_weight: As for `fusion.fuse`.
    """
    rows, cosine, words = candidate_scores(rows, 1)
    last = _fallbacks(rows)
    best = fuse(cosine, words, word_weight=word_weight, limit=FIRST, last=last)
    row = {**rows[0], "traffic": traffic}
    found = _evidence(row, cosine[0], words[0], best, scale, last)
    return {
        rows[place.index]["tool_name"]: float(value)
        for place, value in zip(best, found, strict=True)
        if not last[place.index] or last.all()
    }


def _bonus(rows: Sequence[Mapping[str, Any]], plan: Plan) -> Floats:
    return np.array([plan.bonus_of(row["category"]) for row in rows])


def _fallbacks(rows: Sequence[Mapping[str, Any]]) -> Flags:
    return np.array([row["fallback"] for row in rows], dtype=bool)


def _evidence(
    row: Mapping[str, Any],
    cosine: Floats,
    words: Floats,
    ranking: Sequence[Ranked],
    scale: Scale,
    last: Flags,
) -> Floats:
    scores = np.array([place.score for place in ranking])
    share = np.clip(scores / scores[0], 0.0, 1.0) if scores[0] > 0 else np.ones(len(scores))
    covered = coverage(words, float(row["possible"]))
    traffic = float(row["traffic"])
    found = evidence(cosine, covered, share, scale, traffic=traffic)
    if not last.any() or last.all():
        return found
    # That a tool for everything is near does not show that another one fits.
    of_others = evidence(cosine[~last], covered[~last], share, scale, traffic=traffic)
    return np.where(last[[place.index for place in ranking]], found, of_others)


def _hit(
    row: Mapping[str, Any], parts: Sequence[str], place: Ranked, *, rank: int, relevance: float
) -> ToolHit:
    fields = {name: row[name] for name in _HIT_FIELDS}
    return ToolHit(
        **fields,
        rank=rank,
        distance=max(0.0, float(row["distance_0"])),
        relevance=relevance,
        score=place.score,
        parts=ScoreParts(
            vector=place.vector,
            words=place.words,
            route=place.route,
            clause=parts[place.clause] if place.clause else "",
            clause_vector=place.clause_vector,
            clause_words=place.clause_words,
        ),
    )
