"""Learning from use: a replay of 3,000 questions through the registry, and one malicious session.

    python -m benchmarks learning

MetaTool, built-in embedding model. Half of the questions (by hash of the id) are asked one after
another; the default search offers five tools, and only an offered tool can be called: a wrong one
for a share of the questions, whether or not the right one is among the five. Each question is a
session of its own, its record is written as the agent's log writes it, and `learn()` runs after
every 100. Recall@5 is of 1,000 questions of the other half. Prints one JSON document.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import psycopg

from benchmarks.data import rows, specs
from benchmarks.prepared import dsn
from benchmarks.retrieval import is_held_out, spread
from registry import LocalPostgres, RegistrySettings, ToolRegistry, migrate
from registry.database import normalise_url
from registry.learning import LearningReport
from registry.text import legal_name
from registry.usage import CallRecord, SelectionRecord, UsageHit, UsageSettings
from registry.usage_writer import UsageWriter

K = 5
EVERY = 100
POINTS = (300, 3_000)
ASKED, JUDGED, POISON = 3_000, 1_000, 300
WRONG_SHARES = (0.1, 0.3)


class Replay:
    """Asks, calls and records in a namespace of its own."""

    def __init__(self, url: str, namespace: str, *, wrong: float) -> None:
        self.registry = ToolRegistry(
            url, settings=RegistrySettings(namespace=namespace, query_cache_size=100_000)
        )
        self.registry.sync(specs("metatool"))
        (self.model,) = self.registry.embedding_models()
        self._dsn = dsn(url)
        self._writer = UsageWriter(normalise_url(url), UsageSettings(), self.registry.settings)
        self._random = random.Random(1)
        self._wrong = wrong

    def ask(self, questions: Sequence[dict[str, Any]], *, first: int) -> None:
        """Ask questions, each in a session of its own, and record what is called."""
        calls: list[tuple[dict[str, Any], str, str]] = []
        for number, question in enumerate(questions, start=first):
            offered = self.offered(question)
            relevant = right_tools(question)
            for right in relevant:
                errs = self._random.random() < self._wrong
                wrong = [name for name in offered if name not in relevant]
                if errs:
                    calls.append((question, self._random.choice(wrong), f"s{number}"))
                elif right in offered:
                    calls.append((question, right, f"s{number}"))
        self.record(calls)

    def offered(self, question: dict[str, Any]) -> list[str]:
        """Return the names of the first five hits."""
        hits = self.registry.search(question["query"], k=K, threshold=0)
        return [hit.tool_name for hit in hits]

    def record(self, calls: Sequence[tuple[dict[str, Any], str, str]]) -> None:
        """Write calls of tools for questions in sessions, all of them with success."""
        selections: list[SelectionRecord] = []
        ended: list[CallRecord] = []
        for question, tool, session in calls:
            selection = SelectionRecord(
                id=uuid4(),
                namespace=self.registry.namespace,
                strategy="retrieval",
                threshold=0.0,
                latency_ms=1.0,
                hits=(UsageHit(tool_name=tool, rank=1, relevance=1.0, was_offered=True),),
                session_id=session,
                query_text=question["query"],
                query_vector=self.registry.embedder.embed_query(question["query"]),
                embedding_model_id=self.model.id,
            )
            selections.append(selection)
            ended.append(CallRecord(selection_id=selection.id, tool_name=tool, status="success"))
        self._writer.write([*selections, *ended])

    def forget(self, session: str) -> None:
        """Remove the records of a session."""
        with psycopg.connect(self._dsn) as connection:
            connection.execute(
                "DELETE FROM tool_selection WHERE namespace = %s AND session_id = %s",
                (self.registry.namespace, session),
            )

    def recall(self, questions: Sequence[dict[str, Any]]) -> float:
        """Return recall@5 in percent."""
        found = 0.0
        for question in questions:
            relevant = right_tools(question)
            found += len(relevant & set(self.offered(question))) / len(relevant)
        return round(100 * found / len(questions), 1)

    def close(self) -> None:
        self._writer.close()
        self.registry.close()


def right_tools(question: dict[str, Any]) -> set[str]:
    return {legal_name(tool) for tool in question["relevant"]}


def poisoned(
    replay: Replay, asked: Sequence[dict[str, Any]], judged: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return what one session can do that calls wrong tools for 300 questions of all kinds."""
    tools = [spec.tool_name for spec in specs("metatool")]
    pick = random.Random(2)
    figures: list[dict[str, Any]] = []
    for kind in ("one tool", "another one", "a random tool each"):
        chosen = pick.choice(tools)
        replay.record(
            [
                (question, pick.choice(tools) if kind.startswith("a random") else chosen, "bad")
                for question in pick.sample(list(asked), POISON)
            ]
        )
        report = replay.registry.learn(force=True)
        figures.append(
            {
                "calls_for_300_questions": kind,
                "recall_at_5_pct": replay.recall(judged),
                "replay_would_refuse": not all(verdict.passed for verdict in report.gate),
            }
        )
        replay.forget("bad")
        replay.registry.learn(force=True)
    return figures


def measure(
    url: str, wrong: float, asked: Sequence[dict[str, Any]], judged: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return recall before, at the points on the way, and what a malicious session costs."""
    replay = Replay(url, f"wrong_{round(100 * wrong)}", wrong=wrong)
    figures: dict[str, Any] = {"before": replay.recall(judged)}
    refused, slowest_s = 0, 0.0
    report = LearningReport()
    for start in range(0, ASKED, EVERY):
        replay.ask(asked[start : start + EVERY], first=start)
        begun = time.perf_counter()
        report = replay.registry.learn()
        slowest_s = max(slowest_s, time.perf_counter() - begun)
        refused += not report.promoted
        done = start + EVERY
        if done in POINTS:
            figures[f"after_{done}"] = replay.recall(judged)
            if wrong == min(WRONG_SHARES):
                figures[f"after_{done}_and_one_bad_session"] = poisoned(replay, asked, judged)
            print(f"{wrong}: {figures}", file=sys.stderr)
    figures |= {
        "calls": report.calls,
        "tools_moved": len(report.moves),
        "runs_refused": refused,
        "slowest_learn_s": round(slowest_s, 2),
    }
    replay.close()
    return figures


def main() -> None:
    questions = [q for q in rows("metatool/queries") if right_tools(q)]
    asked = spread([q for q in questions if not is_held_out(q["id"])], ASKED)
    judged = spread([q for q in questions if is_held_out(q["id"])], JUDGED)
    figures: dict[str, Any] = {"asked": len(asked), "judged": len(judged)}
    with tempfile.TemporaryDirectory() as folder, LocalPostgres(f"{folder}/data") as server:
        migrate.upgrade(server.url)
        for wrong in WRONG_SHARES:
            figures[f"wrong_calls_{round(100 * wrong)}_pct"] = measure(
                server.url, wrong, asked, judged
            )
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
