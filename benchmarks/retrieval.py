"""Recall of the default search on the public development sets, each in its own registry.

    python -m benchmarks retrieval

Half of each set (by hash of the question's id) chose the built-in model's threshold; the figures
are of the other half. Prints one JSON document.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from typing import Any

from benchmarks.data import rows, specs
from registry import LocalPostgres, RegistrySettings, ToolRegistry, migrate
from registry.text import legal_name

SETS = ("metatool", "toolbench", "sealtools", "bfcl", "homeassistant")
QUESTIONS = 400
K = 5


def is_held_out(question_id: str) -> bool:
    """Return whether a question belongs to the half that is reported on."""
    return int(hashlib.sha256(question_id.encode()).hexdigest(), 16) % 2 == 1


def spread(questions: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return up to `count` questions, spread over the whole set by hash of the id."""
    ordered = sorted(questions, key=lambda q: hashlib.sha256(q["id"].encode()).hexdigest()[::-1])
    return ordered[:count]


def measure(registry: ToolRegistry, name: str) -> dict[str, Any]:
    """Return recall@1, recall@5, completeness@5 and what the threshold does."""
    questions = [q for q in rows(f"{name}/queries") if is_held_out(q["id"])]
    first = recall = complete = kept = found_count = 0.0
    chosen = spread(questions, QUESTIONS)
    for question in chosen:
        relevant = {legal_name(tool) for tool in question["relevant"]}
        hits = registry.search(question["query"], k=K, threshold=0)
        found = [hit for hit in hits if hit.tool_name in relevant]
        recall += len(found) / len(relevant)
        complete += len(found) == len(relevant)
        first += hits[0].tool_name in relevant
        found_count += len(found)
        kept += sum(hit.relevance >= registry.threshold for hit in found)
    return {
        "questions": len(chosen),
        "right_tool_first_pct": round(100 * first / len(chosen), 1),
        "recall_at_5_pct": round(100 * recall / len(chosen), 1),
        "completeness_at_5_pct": round(100 * complete / len(chosen), 1),
        "kept_above_threshold_pct": round(100 * kept / found_count, 1),
    }


def main() -> None:
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, LocalPostgres(f"{folder}/data") as server:
        migrate.upgrade(server.url)
        for name in SETS:
            settings = RegistrySettings(namespace=name)
            with ToolRegistry(server.url, settings=settings) as registry:
                tools = specs(name)
                registry.sync(tools)
                figures[name] = {"tools": len(tools), **measure(registry, name)}
                if name == "metatool":
                    unanswerable = [
                        q["query"] for q in rows("metatool/queries_no_tool") if is_held_out(q["id"])
                    ]
                    empty = sum(not registry.search(question, k=K) for question in unanswerable)
                    figures["no_tool_fits"] = {
                        "questions": len(unanswerable),
                        "no_tool_offered_pct": round(100 * empty / len(unanswerable), 1),
                    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
