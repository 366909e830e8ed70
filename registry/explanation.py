"""Why a tool was offered for a question or was not, and what would change that. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from registry.lexical import lexical_terms, tool_terms
from registry.types import Explanation, ToolHit, ToolRecord, ToolSelection

__all__ = ["explanation"]

_SHOWN_WORDS = 8


def explanation(
    query: str,
    record: ToolRecord,
    *,
    ranking: Sequence[ToolHit],
    selection: ToolSelection,
    k: int,
    feedback: float,
) -> Explanation:
    """Return why a tool was offered or not.

    Args:
        query: The question.
        record: The tool.
        ranking: Every candidate, best first, the tool among them if it could be measured.
        selection: What is offered for the question.
        k: Most hits of a search.
        feedback: What the tool's cosine gained by what was learnt from use.
    """
    hit = next((each for each in ranking if each.tool_name == record.spec.tool_name), None)
    passed = {
        each.tool_name
        for each in selection.hits
        if each.relevance >= selection.threshold or each.tool_name in selection.exempt
    }
    asked = dict.fromkeys(lexical_terms(query))
    own = tool_terms(record.spec)
    missing = tuple(term for term in asked if term not in own)
    is_offered = record.is_active and record.spec.tool_name in passed
    facts = _Facts(record, hit, ranking, selection, k, missing)
    return Explanation(
        tool_name=record.spec.tool_name,
        is_offered=is_offered,
        hit=hit,
        feedback=feedback,
        threshold=selection.threshold,
        strategy=selection.strategy,
        categories=selection.categories,
        shared_words=tuple(term for term in asked if term in own),
        missing_words=missing,
        reasons=tuple(facts.reasons_offered() if is_offered else facts.reasons_not()),
        advice=() if is_offered else tuple(facts.advice()),
    )


class _Facts:
    def __init__(
        self,
        record: ToolRecord,
        hit: ToolHit | None,
        ranking: Sequence[ToolHit],
        selection: ToolSelection,
        k: int,
        missing: Sequence[str],
    ) -> None:
        self.record = record
        self.hit = hit
        self.selection = selection
        self.k = k
        self.missing = missing
        # Those that stand before it are what it must pass.
        self.last_taken = ranking[min(k, len(ranking)) - 1] if ranking else None
        self.total = len(ranking)
        name = record.spec.tool_name
        self.taken = next((each for each in selection.hits if each.tool_name == name), None)
        ours = [h.tool_name for h in ranking if record.is_active or h.tool_name != name]
        theirs = [h.tool_name for h in selection.hits]
        self.is_reranked = ours[:k] != theirs[:k]

    @property
    def is_ranked_out(self) -> bool:
        return self.hit is not None and self.hit.rank > self.k and not self.is_reranked

    @property
    def is_weak(self) -> bool:
        return self.hit is not None and self.hit.relevance < self.selection.threshold

    def reasons_offered(self) -> list[str]:
        assert self.hit is not None
        if self.record.spec.tool_name in self.selection.exempt:
            why = (
                "so few tools are active that all are offered"
                if self.selection.strategy == "all"
                else f"the question is about its category, {self.record.spec.category}"
            )
            return [f"offered whatever its relevance: {why}"]
        moved = self.taken is not None and self.taken.rank != self.hit.rank
        return [
            f"rank {self.hit.rank} of {self.total} candidates, and {self.k} are taken"
            + (f"; the reranker moved it to {self.taken.rank}" if self.taken and moved else ""),
            f"relevance {self.hit.relevance:.2f} reaches the threshold "
            f"{self.selection.threshold:.2f}",
        ]

    def reasons_not(self) -> list[str]:
        reasons: list[str] = []
        if not self.record.is_active:
            reasons.append("it is switched off")
        if self.hit is None:
            if self.record.is_active:
                reasons.append("it has no vector of the embedding model in use")
            return reasons
        if self.is_ranked_out and self.last_taken is not None:
            reasons.append(
                f"rank {self.hit.rank} of {self.total} candidates, and {self.k} are taken: the "
                f"last of these, {self.last_taken.tool_name}, scores {self.last_taken.score:.2f}, "
                f"this one {self.hit.score:.2f}"
            )
        elif self.is_reranked and self.taken is None and self.record.is_active:
            reasons.append(
                f"rank {self.hit.rank} of {self.total} candidates before the reranker, which "
                f"dropped it or did not put it among the first {self.k}"
            )
        if self.is_weak:
            best = max((each.relevance for each in self.selection.hits), default=0.0)
            reasons.append(
                f"relevance {self.hit.relevance:.2f} is below the threshold "
                f"{self.selection.threshold:.2f}"
                + (
                    "; no tool of this registry reaches it for this question"
                    if best < self.selection.threshold
                    else ""
                )
            )
        return reasons

    def advice(self) -> list[str]:
        if not self.record.is_active:
            return ["activate it: `toolrag tools activate`"]
        if self.hit is None:
            return ["run `toolrag sync`, which embeds what has no vector"]
        advice: list[str] = []
        if self.missing:
            words = ", ".join(self.missing[:_SHOWN_WORDS])
            advice.append(
                f"none of its texts has these words of the question: {words}. If it should answer "
                "such questions, give it this one as an example, or say so in its description"
            )
        else:
            advice.append("give it questions like this one as examples")
        if self.is_ranked_out:
            advice.append(f"k of at least {self.hit.rank} would take it in")
        if self.is_weak:
            advice.append(f"a threshold of {self.hit.relevance:.2f} or less would let it pass")
        return advice
