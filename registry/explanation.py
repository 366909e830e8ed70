"""Why a tool was offered for a question or was not, and what would change that. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from registry.lexical import lexical_terms, tool_terms
from registry.types import Explanation, ScoreParts, ToolHit, ToolRecord, ToolSelection

__all__ = ["explanation"]

_SHOWN_WORDS = 8
_SHOWN_NAMES = 3
_SHOWN_CHARS = 160
_NEAR_PLACES = 3  # times k: nobody offers fifty tools to bring one in
_NEAR_RELEVANCE = 0.15  # below the threshold by more, whatever answers nothing passes with it
_TWIN_SHARE = 0.8  # of a description, said by another tool as well
_LEAST_TWIN_WORDS = 3


def explanation(
    query: str,
    record: ToolRecord,
    *,
    ranking: Sequence[ToolHit],
    selection: ToolSelection,
    k: int,
    feedback: float,
    has_reranker: bool = False,
    given_chars: int = 0,
) -> Explanation:
    """Return why a tool was offered or not.

    Args:
        query: The question, as it was searched.
        record: The tool.
        ranking: Every candidate, best first, the tool among them if it could be measured.
        selection: What is offered for the question.
        k: Most hits of a search.
        feedback: What the tool's cosine gained by what was learnt from use.
        has_reranker: Whether the selection is in a reranker's order, not in that of `ranking`.
        given_chars: Characters of the question as it was asked.
    """
    hit = next((each for each in ranking if each.tool_name == record.spec.tool_name), None)
    passed = [
        each
        for each in selection.hits
        if each.relevance >= selection.threshold or each.tool_name in selection.exempt
    ]
    asked = dict.fromkeys(lexical_terms(query))
    own = tool_terms(record.spec)
    is_offered = record.is_active and any(
        each.tool_name == record.spec.tool_name for each in passed
    )
    facts = _Facts(query, record, hit, ranking, selection, passed, k, has_reranker=has_reranker)
    return Explanation(
        tool_name=record.spec.tool_name,
        is_offered=is_offered,
        hit=hit,
        feedback=feedback,
        threshold=selection.threshold,
        strategy=selection.strategy,
        categories=selection.categories,
        shared_words=tuple(term for term in asked if term in own),
        missing_words=tuple(term for term in asked if term not in own),
        reasons=tuple(facts.reasons_offered() if is_offered else facts.reasons_not()),
        advice=() if is_offered else tuple(facts.advice()),
        notes=tuple(_notes(query, selection, given_chars=given_chars)),
        by_words_alone=selection.by_words_alone,
    )


def _notes(query: str, selection: ToolSelection, *, given_chars: int) -> Iterator[str]:
    if selection.by_words_alone:
        yield (
            "words decide alone, and no tool's nearness to the question is known: "
            f"{selection.words_alone_reason}"
        )
    if given_chars > len(query):
        half = len(query) // 2
        yield (
            f"the question has {given_chars:,} characters, of which the first and the last "
            f"{half:,} are searched"
        )


class _Facts:
    def __init__(
        self,
        query: str,
        record: ToolRecord,
        hit: ToolHit | None,
        ranking: Sequence[ToolHit],
        selection: ToolSelection,
        passed: Sequence[ToolHit],
        k: int,
        *,
        has_reranker: bool,
    ) -> None:
        self.query = query
        self.record = record
        self.hit = hit
        self.selection = selection
        self.passed = passed
        self.k = k
        self.total = len(ranking)
        name = record.spec.tool_name
        self.before = [each for each in ranking[:k] if each.tool_name != name]
        self.taken = next((each for each in selection.hits if each.tool_name == name), None)
        ours = [h.tool_name for h in ranking if record.is_active or h.tool_name != name]
        theirs = [h.tool_name for h in selection.hits]
        self.is_reranked = has_reranker and ours[:k] != theirs[:k]

    @property
    def is_ranked_out(self) -> bool:
        return self.hit is not None and self.hit.rank > self.k and not self.is_reranked

    @property
    def is_weak(self) -> bool:
        return self.hit is not None and self.hit.relevance < self.selection.threshold

    @property
    def has_no_words(self) -> bool:
        """Whether words decide alone, and it was found by none."""
        parts = self.hit.parts if self.hit else None
        has_words = parts is not None and bool(parts.words or parts.clause_words)
        return self.selection.by_words_alone and self.record.is_active and not has_words

    @property
    def behind(self) -> str:
        """What it means to be a fallback tool."""
        fitting = sum(not each.fallback for each in self.passed)
        return f"marked as fallback, so it stands behind every other tool that fits ({fitting} do)"

    def reasons_offered(self) -> list[str]:
        assert self.hit is not None
        behind = [self.behind] if self.record.spec.fallback else []
        if self.record.spec.tool_name in self.selection.exempt:
            why = (
                "so few tools are active that all are offered"
                if self.selection.strategy == "all"
                else f"the question is about its category, {self.record.spec.category}"
            )
            return [f"offered whatever its relevance: {why}", *behind]
        moved = self.taken is not None and self.taken.rank != self.hit.rank
        return [
            f"rank {self.hit.rank} of {self.total} candidates, and {self.k} are taken"
            + (f"; the reranker moved it to {self.taken.rank}" if self.taken and moved else ""),
            f"relevance {self.hit.relevance:.2f} reaches the threshold "
            f"{self.selection.threshold:.2f}",
            *behind,
        ]

    def reasons_not(self) -> list[str]:
        reasons: list[str] = []
        if not self.record.is_active:
            reasons.append("it is switched off")
        if self.hit is None:
            if self.record.is_active:
                reasons.append("it has no vector of the embedding model in use")
            return reasons
        if self.has_no_words:
            reasons.append("words decide alone, and none of its texts has one of the question's")
        elif self.record.spec.fallback:
            reasons.append(f"{self.behind}, and {self.k} are taken")
        elif self.is_ranked_out:
            reasons += self._ranked_out(self.hit)
        elif self.is_reranked and self.taken is None and self.record.is_active:
            reasons.append(
                f"rank {self.hit.rank} of {self.total} candidates before the reranker, which "
                f"dropped it or did not put it among the first {self.k}"
            )
        if self.is_weak:
            reasons.append(self._weak(self.hit))
        return reasons

    def _ranked_out(self, hit: ToolHit) -> list[str]:
        others = [each for each in self.before if not each.fallback]
        place = f"rank {hit.rank} of {self.total} candidates, and {self.k} are taken"
        if not others:
            return [place]
        last = others[-1]
        reasons = [
            f"{place}: the last of these, {last.tool_name}, scores {last.score:.2f}, "
            f"this one {hit.score:.2f}{_gap(hit.parts, last.parts)}"
        ]
        if twins := self._twins():
            reasons.append(f"tools that say the same or more stand before it: {_some(twins)}")
        return reasons

    def _weak(self, hit: ToolHit) -> str:
        relevance, threshold = _told_apart(hit.relevance, self.selection.threshold)
        best = max((each.relevance for each in self.selection.hits), default=0.0)
        nobody = (
            "; no tool of this registry reaches it for this question"
            if best < self.selection.threshold
            else ""
        )
        return f"relevance {relevance} is below the threshold {threshold}{nobody}"

    def advice(self) -> list[str]:
        if not self.record.is_active:
            return [f"activate it: `toolrag tools activate {self.record.spec.tool_name}`"]
        if self.hit is None:
            return ["run `toolrag sync`, which embeds what has no vector"]
        if self.record.spec.fallback and not self.is_weak:
            name = self.record.spec.tool_name
            return [
                "take the mark away, so that its score decides: "
                f"`toolrag tools update {name} --no-fallback`"
            ]
        advice: list[str] = []
        if self.is_ranked_out and self._twins():
            advice.append(
                "if those do the same, switch all but one of them off; if not, say in its "
                "description what only this one does"
            )
        advice.append(self._example(self.hit))
        advice += self._settings(self.hit)
        return advice

    def _example(self, hit: ToolHit) -> str:
        clause = hit.parts.clause if hit.parts else ""
        own = tool_terms(self.record.spec)
        asked = dict.fromkeys(lexical_terms(clause or self.query))
        known = {term for each in self.before for term in _words(each)}
        # First those that the tools before it have: by these it was beaten.
        missing = sorted((term for term in asked if term not in own), key=lambda t: t not in known)
        name = self.record.spec.tool_name
        # Of a compound question the other parts are other tools' business.
        asking = "this part of the question" if clause else "the question"
        example = "that question as an example"
        if clause:
            example = f'that part as an example ("{_short(clause)}")'
        if not missing:
            return f"if it should answer {asking}, give {name} {example}"
        return (
            f"none of its texts has these words of {asking}: {_some(missing, _SHOWN_WORDS)}. If "
            f"it should answer such questions, give {name} {example}, or say so in its description"
        )

    def _settings(self, hit: ToolHit) -> list[str]:
        """Return what settings would take it in, where those settings make sense."""
        if hit.rank > self.k * _NEAR_PLACES and self.is_ranked_out:
            return []
        if hit.relevance < self.selection.threshold - _NEAR_RELEVANCE:
            return []
        lower = math.floor(hit.relevance * 100) / 100
        if self.is_ranked_out and self.is_weak:
            return [f"k of at least {hit.rank} with a threshold of {lower:.2f} would take it in"]
        if self.is_ranked_out:
            return [f"k of at least {hit.rank} would take it in"]
        if not self.is_weak:
            return []
        others = [
            each.tool_name
            for each in self.selection.hits
            if lower <= each.relevance < self.selection.threshold
            and each.tool_name != hit.tool_name
        ]
        beside = f", and with it {_some(others)}" if others else ""
        return [f"a threshold of {lower:.2f} or less would let it pass{beside}"]

    def _twins(self) -> list[str]:
        """Return the names of tools before it that say what it says."""
        own = set(lexical_terms(self.record.spec.description))
        if len(own) < _LEAST_TWIN_WORDS:
            return []
        return [
            each.tool_name
            for each in self.before
            if len(own & _words(each)) >= _TWIN_SHARE * len(own)
        ]


def _words(hit: ToolHit) -> set[str]:
    return set(lexical_terms(f"{hit.display_name} {hit.description}"))


def _gap(own: ScoreParts | None, last: ScoreParts | None) -> str:
    """Return where a score is lost, and where it is won back."""
    if own is None or last is None:
        return ""
    differences = {
        "by meaning": last.vector + last.clause_vector - own.vector - own.clause_vector,
        "by words": last.words + last.clause_words - own.words - own.clause_words,
        "by its category": last.route - own.route,
    }
    told = [
        f"{abs(value):.2f} {'lost' if value > 0 else 'won'} {by}"
        for by, value in differences.items()
        if abs(value) >= 0.005
    ]
    return f" ({', '.join(told)})" if told else ""


def _told_apart(low: float, high: float) -> tuple[str, str]:
    """Return two numbers with as many digits as show which is the lower one."""
    for digits in (2, 3, 4):
        texts = f"{low:.{digits}f}", f"{high:.{digits}f}"
        if texts[0] != texts[1]:
            return texts
    return f"{low:.6f}", f"{high:.6f}"


def _some(names: Sequence[str], most: int = _SHOWN_NAMES) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _short(text: str) -> str:
    text = text.strip("\"'”“ ")
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS].rstrip()} …"
