"""What recorded calls are worth at scale: MetaTool among 13,712 foreign tools.

    python -m benchmarks feedback

One registry with MetaTool's tools and those of `catalog_openapi`, default search. Once before any
feedback, then with up to one, three and ten recorded calls a tool: questions of one half (by hash
of the id), each a session of its own, written as the agent's log writes them, and then `learn()`.
Recall@5 is of 600 questions of the other half. A tool moves only once two sessions called it, so
the one question of the first step was asked in two. Prints one JSON document.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from benchmarks.data import rows, specs
from benchmarks.relevance import Log, past_calls, right_tools
from benchmarks.retrieval import QUESTIONS, is_held_out, prepare, spread
from registry import ToolRegistry

K = 5
NAME = "metatool"
PAST = (1, 3, 10)


def recall(registry: ToolRegistry, questions: list[dict[str, Any]]) -> float:
    """Return recall@5 in percent."""
    found = 0.0
    for question in questions:
        relevant = right_tools(question)
        hits = {hit.tool_name for hit in registry.search(question["query"], k=K, threshold=0)}
        found += len(relevant & hits) / len(relevant)
    return round(100 * found / len(questions), 1)


def main() -> None:
    held_out = [q for q in rows(f"{NAME}/queries") if is_held_out(q["id"]) and right_tools(q)]
    questions = spread(held_out, QUESTIONS)
    tools = specs(NAME)
    figures: dict[str, Any] = {"questions": len(questions), "tools": len(tools)}
    with prepare() as (databases, embedder):
        url = databases.among_the_catalogue(tools)
        with ToolRegistry(url, embeddings=embedder) as registry:
            figures["without"] = recall(registry, questions)
            log = Log(url, registry)
            for past in PAST:
                calls = past_calls(NAME, most=past)
                if past == 1:
                    calls += [
                        ({**question, "id": f"{question['id']} again"}, tool)
                        for question, tool in calls
                    ]
                log.replace(calls)
                learnt = registry.learn(force=True)
                figures[f"past_{past}"] = {
                    "calls": len(calls),
                    "tools_moved": len(learnt.moves),
                    "recall_at_5_pct": recall(registry, questions),
                }
                print(f"{past}: {figures[f'past_{past}']}", file=sys.stderr)
            log.close()
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
