"""Routing by keywords: time a question, and recall without it, as a filter and as a bonus.

    python -m benchmarks routing

Keywords are made from the tools alone (`suggested_keywords`), or also from the words of the
questions of one half of each set; recall is of the other half. Searches are exact, in memory, over
vectors and BM25 as `registry.fusion` and `registry.lexical` have them, without clauses. Prints one
JSON document.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import rows, specs
from benchmarks.retrieval import QUESTIONS, K, is_held_out, spread
from registry.embedding import LocalEmbeddings
from registry.fusion import CANDIDATES
from registry.lexical import K1, LENGTH_SHARE, lexical_terms, tool_terms
from registry.routing import Router, suggested_keywords
from registry.strategy import StrategyLimits
from registry.text import embedding_text, legal_name
from registry.types import ToolSpec

SETS = ("toolbench", "sealtools", "homeassistant")  # those whose tools have categories
WORD_WEIGHT = 0.4
LEARNED = 20  # words a category takes from questions
Floats = NDArray[np.float64]


def categorised(name: str) -> list[ToolSpec]:
    """Return a set's tools; of `Science/Geology` the part before the stroke."""
    return [tool.replace(category=tool.category.partition("/")[0]) for tool in specs(name)]


def learned_keywords(
    tools: Sequence[ToolSpec], questions: Sequence[Mapping[str, Any]]
) -> dict[str, list[str]]:
    """Return the words of questions that tell the categories of their right tools apart."""
    category = {tool.tool_name: tool.category for tool in tools}
    inside: defaultdict[str, Counter[str]] = defaultdict(Counter)
    everywhere: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    for question in questions:
        terms = set(lexical_terms(question["query"]))
        everywhere.update(terms)
        for name in {category[right] for right in question["relevant"] if right in category}:
            inside[name].update(terms)
            asked[name] += 1
    found: dict[str, list[str]] = {}
    for name, counts in inside.items():
        others = len(questions) - asked[name] + 1
        weights = {
            term: count * log((count / asked[name]) / ((everywhere[term] - count + 0.5) / others))
            for term, count in counts.items()
            if count >= 2
        }
        found[name] = sorted(weights, key=lambda term: (-weights[term], term))[:LEARNED]
    return found


def fit(tools: Sequence[ToolSpec], questions: Sequence[str]) -> Floats:
    """Return standing of the cosine plus weighted BM25, questions by tools."""
    model = LocalEmbeddings()
    vectors = np.asarray(model.embed_documents([embedding_text(tool) for tool in tools]))
    cosine = np.asarray(model.embed_documents(list(questions))) @ vectors.T
    count = min(CANDIDATES, len(tools))
    nearest = -np.partition(-cosine, count - 1, axis=1)[:, :count]
    standing = (cosine - nearest.mean(axis=1, keepdims=True)) / nearest.std(axis=1, keepdims=True)
    postings: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    lengths = np.zeros(len(tools))
    for place, tool in enumerate(tools):
        terms = tool_terms(tool)
        lengths[place] = sum(terms.values())
        for term, frequency in terms.items():
            postings[term].append((place, frequency))
    discount = K1 * (1 - LENGTH_SHARE + LENGTH_SHARE * lengths / lengths.mean())
    words = np.zeros_like(standing)
    for row, question in enumerate(questions):
        for term in set(lexical_terms(question)):
            if found := postings.get(term):
                places = np.array([place for place, _ in found])
                frequency = np.array([frequency for _, frequency in found])
                rarity = log(1 + (len(tools) - len(found) + 0.5) / (len(found) + 0.5))
                share = frequency * (K1 + 1) / (frequency + discount[places])
                words[row, places] += rarity * share
    return standing + WORD_WEIGHT * words


def recall(scores: Floats, right: NDArray[np.bool_]) -> float:
    """Return recall@5 in %; equal scores in the order of the tools."""
    top = np.argsort(-scores, axis=1, kind="stable")[:, :K]
    return round(100 * float((np.take_along_axis(right, top, 1).sum(1) / right.sum(1)).mean()), 1)


def figures(scores: Floats, inside: NDArray[np.bool_], right: NDArray[np.bool_]) -> dict[str, Any]:
    """Return what a route does, as a filter, as a filter that widens, and as a bonus."""
    routed = inside.any(axis=1, keepdims=True)
    filtered = np.where(inside | ~routed, scores, -np.inf)
    outside = np.where(inside, -np.inf, scores).max(axis=1, keepdims=True)
    widened = np.where(outside > filtered.max(axis=1, keepdims=True), scores, filtered)
    return {
        "questions_routed_pct": round(100 * float(routed.mean()), 1),
        "every_right_tool_inside_pct": round(
            100 * float(((right <= inside).all(axis=1) & routed[:, 0]).sum() / routed.sum()), 1
        ),
        "recall_at_5_pct": {
            "filter": recall(filtered, right),
            "filter, widened": recall(widened, right),
            **{f"bonus {b}": recall(scores + b * inside, right) for b in (0.25, 0.5, 1.0)},
        },
    }


def offered(
    scores: Floats, inside: NDArray[np.bool_], right: NDArray[np.bool_]
) -> dict[str, float]:
    """Return what strategy `routing` offers: the tools of the categories, and the best 5 of all."""
    limits = StrategyLimits()
    place = np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1)
    given = (place < K) | (inside & (place < limits.routing_up_to))
    return {
        "right_tools_offered_pct": round(
            100 * float(((given & right).sum(1) / right.sum(1)).mean()), 1
        ),
        "tools_offered": round(float(given.sum(1).mean()), 1),
    }


def microseconds(router: Router, questions: Sequence[str]) -> float:
    """Return the median time to route one question, the best of three rounds for each."""

    def once(question: str) -> int:
        start = time.perf_counter_ns()
        router.route(question)
        return time.perf_counter_ns() - start

    return round(statistics.median(min(once(q) for _ in range(3)) for q in questions) / 1e3, 1)


def measure(name: str) -> dict[str, Any]:
    tools = categorised(name)
    places = {tool.tool_name: place for place, tool in enumerate(tools)}
    asked = [
        {**row, "relevant": {legal_name(right) for right in row["relevant"]}}
        for row in rows(f"{name}/queries")
    ]
    held_out = spread([row for row in asked if is_held_out(row["id"])], QUESTIONS)
    questions = [row["query"] for row in held_out]
    right = np.zeros((len(questions), len(tools)), dtype=bool)
    for row, question in zip(right, held_out, strict=True):
        row[[places[tool] for tool in question["relevant"]]] = True
    scores = fit(tools, questions)
    of_name = suggested_keywords(tools, per_category=2)
    of_tools = suggested_keywords(tools, per_category=10)
    of_questions = learned_keywords(tools, [row for row in asked if not is_held_out(row["id"])])
    with_learned = {
        category: [*of_tools.get(category, ()), *of_questions.get(category, ())]
        for category in {*of_tools, *of_questions}
    }
    found: dict[str, Any] = {
        "tools": len(tools),
        "categories": len({tool.category for tool in tools}),
        "questions": len(questions),
        "recall_at_5_without_routing_pct": recall(scores, right),
    }
    categories = np.array([tool.category for tool in tools])
    for label, keywords in (
        ("2 keywords a category", of_name),
        ("10 keywords", of_tools),
        (f"10 keywords and {LEARNED} from questions", with_learned),
    ):
        router = Router(keywords)
        inside = np.array([np.isin(categories, router.route(question)) for question in questions])
        found[label] = {
            "microseconds_a_question": microseconds(router, questions),
            **figures(scores, inside, right),
            "strategy_routing": offered(scores, inside, right),
        }
    return found


def main() -> None:
    found: dict[str, Any] = {"default_bonus": StrategyLimits().route_bonus}
    for name in SETS:
        print(f"  {name}", file=sys.stderr)
        found[name] = measure(name)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
