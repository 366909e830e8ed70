"""Hybrid search against vectors alone and words alone, on the public development sets.

    python -m benchmarks retrieval        or        python -m benchmarks.retrieval metatool bfcl

Each set in a registry of its own, and once more among the tools of `catalog_openapi`; a catalogue
tool with the name or the description of one of the set's is left out. Half of each set (by hash of
the question's id) was looked at when the search was tuned; the figures are of the other half.
The sides answer each question in turn, all with its vectors at hand. Prints one JSON
document, and a table as it goes. With TOOLRAG_BENCH_FOLDER, vectors are kept for the next run.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from psycopg import sql
from sqlalchemy.engine import make_url

from benchmarks.data import rows, specs
from benchmarks.prepared import MEMORY, dsn
from registry import Embedder, LocalPostgres, RegistrySettings, ToolRegistry, migrate
from registry.clauses import clauses
from registry.embedding import LocalEmbeddings
from registry.text import legal_name
from registry.types import ToolHit, ToolSpec

SETS = ("metatool", "toolbench", "sealtools", "bfcl", "homeassistant")
QUESTIONS = 600
K = 5
SIDES = {
    "vector": RegistrySettings(word_weight=0, clauses=False),
    # Words decide; what is left to vectors is taken out again by `in_order_of_words`.
    "words": RegistrySettings(word_weight=10, clauses=False),
    "without_clauses": RegistrySettings(clauses=False),
    "default": RegistrySettings(),
}
_CATALOGUE = "retrieval_catalogue"
_DATABASE = "retrieval"


class KeptEmbeddings(LocalEmbeddings):
    """The built-in model, which remembers what it embedded, also in a file.

    Args:
        name: Of the file, kept in TOOLRAG_BENCH_FOLDER where that is set.
    """

    def __init__(self, name: str = "retrieval_vectors") -> None:
        super().__init__()
        folder = os.environ.get("TOOLRAG_BENCH_FOLDER")
        file = None if folder is None else Path(folder) / f"{name}.npz"
        self._file = file
        self._known: dict[str, list[float]] = {}
        if file is not None and file.exists():
            kept = np.load(file)
            self._known = dict(zip(kept["texts"].tolist(), kept["vectors"].tolist(), strict=True))

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        digests = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        missing = {d: t for d, t in zip(digests, texts, strict=True) if d not in self._known}
        if missing:
            vectors = self.embed_anew(list(missing.values()))
            self._known |= zip(missing, vectors, strict=True)
        return [self._known[digest] for digest in digests]

    def embed_anew(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of texts that are not known yet."""
        return super().embed_documents(texts)

    def embedder(self) -> Embedder:
        """Return it with the built-in model's identity."""
        builtin = Embedder.resolve("builtin")
        return Embedder(
            self,
            name=builtin.name,
            revision=builtin.revision,
            dimensions=builtin.dimensions,
            threshold=builtin.threshold,
        )

    def keep(self) -> None:
        """Write the file."""
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            vectors = np.array(list(self._known.values()), np.float32)
            np.savez(self._file, texts=np.array(list(self._known)), vectors=vectors)


@dataclass(slots=True)
class Side:
    """What one side found, a value a question."""

    first: list[float] = field(default_factory=list[float])
    recall: list[float] = field(default_factory=list[float])
    complete: list[float] = field(default_factory=list[float])
    took_ms: list[float] = field(default_factory=list[float])

    def add(self, hits: Sequence[ToolHit], relevant: set[str], took_ms: float) -> None:
        """Note the answer to a question."""
        found = sum(hit.tool_name in relevant for hit in hits[:K])
        self.first.append(bool(hits) and hits[0].tool_name in relevant)
        self.recall.append(found / len(relevant))
        self.complete.append(found == len(relevant))
        self.took_ms.append(took_ms)

    def figures(self) -> dict[str, float]:
        """Return percentages."""
        return {
            "right_tool_first_pct": _percent(self.first),
            "recall_at_5_pct": _percent(self.recall),
            "completeness_at_5_pct": _percent(self.complete),
        }


def is_held_out(question_id: str) -> bool:
    """Return whether a question belongs to the half that is reported on."""
    return int(hashlib.sha256(question_id.encode()).hexdigest(), 16) % 2 == 1


def spread(questions: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return up to `count` questions, spread over the whole set by hash of the id."""
    ordered = sorted(questions, key=lambda q: hashlib.sha256(q["id"].encode()).hexdigest()[::-1])
    return ordered[:count]


def asked(name: str) -> list[dict[str, Any]]:
    """Return the questions of a set that are reported on."""
    return spread([q for q in rows(f"{name}/queries") if is_held_out(q["id"])], QUESTIONS)


def in_order_of_words(hits: Sequence[ToolHit]) -> list[ToolHit]:
    """Return the hits that have a word of the question, by BM25 alone."""
    scored = [(-hit.parts.words, hit.tool_name, hit) for hit in hits if hit.parts is not None]
    return [hit for words, _, hit in sorted(scored, key=lambda s: s[:2]) if words < 0]


def measure(name: str, url: str, embedder: Embedder) -> dict[str, Any]:
    """Return what each side finds for a set's questions, and how long it searches."""
    questions = asked(name)
    sides = {side: Side() for side in SIDES}
    parts = [1 + len(clauses(question["query"])) for question in questions]
    relevances: list[float] = []  # of right tools among the first
    with ExitStack() as stack:
        registries = {
            side: stack.enter_context(ToolRegistry(url, embeddings=embedder, settings=settings))
            for side, settings in SIDES.items()
        }
        for question in questions:
            relevant = {legal_name(tool) for tool in question["relevant"]}
            embedder.embed_queries([question["query"], *clauses(question["query"])])
            for side, registry in registries.items():
                start = time.perf_counter()
                hits = registry.search(
                    question["query"], k=50 if side == "words" else K, threshold=0
                )
                took_ms = (time.perf_counter() - start) * 1_000
                hits = in_order_of_words(hits) if side == "words" else hits
                sides[side].add(hits, relevant, took_ms)
                if side == "default":
                    relevances += [hit.relevance for hit in hits if hit.tool_name in relevant]
        threshold = registries["default"].threshold
    return {
        "questions": len(questions),
        **{side: answers.figures() for side, answers in sides.items()},
        "kept_above_threshold_pct": _percent([value >= threshold for value in relevances]),
        "split_pct": _percent([count > 1 for count in parts]),
        "clauses_of_a_split_question": _mean([count - 1 for count in parts if count > 1]),
        "search_ms": _times(sides, parts),
    }


def _times(sides: dict[str, Side], parts: Sequence[int]) -> dict[str, float]:
    """Return medians, and what the default takes for each of the vector search's milliseconds."""
    one = [place for place, count in enumerate(parts) if count == 1]
    vector, default = sides["vector"].took_ms, sides["default"].took_ms
    figures = {
        "vector_p50": round(statistics.median(vector), 2),
        "default_p50": round(statistics.median(default), 2),
        "ratio": round(statistics.median(default) / statistics.median(vector), 2),
    }
    if one:
        ours, theirs = (statistics.median([took[p] for p in one]) for took in (default, vector))
        figures["default_of_one_part_p50"] = round(ours, 2)
        figures["ratio_of_one_part"] = round(ours / theirs, 2)
    return figures


class Databases:
    """Makes the registry of a set, alone or among the catalogue's tools."""

    def __init__(self, server: str, embedder: Embedder) -> None:
        self._server = server
        self._embedder = embedder

    def alone(self, tools: Sequence[ToolSpec]) -> str:
        """Return the URL of a registry with these tools."""
        url = self._make(_DATABASE)
        migrate.upgrade(url)
        return self._filled(url, tools)

    def among_the_catalogue(self, tools: Sequence[ToolSpec]) -> str:
        """Return the URL of a registry with these tools and the catalogue's, no tool twice."""
        url = self._make(_DATABASE, template=self._catalogue())
        names = {spec.tool_name for spec in tools}
        texts = {spec.description for spec in tools}
        with ToolRegistry(url, embeddings=self._embedder) as registry:
            for record in registry.list_tools():
                if record.spec.tool_name in names or record.spec.description in texts:
                    registry.purge(record.spec.tool_name)
        return self._filled(url, tools)

    def _catalogue(self) -> str:
        with psycopg.connect(dsn(self._server)) as connection:
            query = "SELECT FROM pg_database WHERE datname = %s"
            there = connection.execute(query, (_CATALOGUE,)).rowcount
        if not there:
            url = self._make(_CATALOGUE)
            migrate.upgrade(url)
            self._filled(url, specs("catalog_openapi"))
        return _CATALOGUE

    def _filled(self, url: str, tools: Sequence[ToolSpec]) -> str:
        with ToolRegistry(url, embeddings=self._embedder) as registry:
            report = registry.sync(tools)
        if report.failed:
            sys.exit(f"not registered: {dict(report.failed)}")
        with psycopg.connect(dsn(url), autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
        return url

    def _make(self, name: str, *, template: str = "template1") -> str:
        with psycopg.connect(dsn(self._server), autocommit=True) as connection:
            drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
            connection.execute(drop.format(sql.Identifier(name)))
            create = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
            connection.execute(create.format(sql.Identifier(name), sql.Identifier(template)))
        return make_url(self._server).set(database=name).render_as_string(hide_password=False)


@contextmanager
def prepare(embeddings: KeptEmbeddings | None = None) -> Generator[tuple[Databases, Embedder]]:
    """Yield a server of this run's own, and the built-in model or another one."""
    embeddings = embeddings or KeptEmbeddings()
    embedder = embeddings.embedder()
    with (
        tempfile.TemporaryDirectory() as data,
        LocalPostgres(f"{data}/data", settings=MEMORY) as server,
    ):
        yield Databases(server.url, embedder), embedder
        embeddings.keep()


def table_row(name: str, figures: dict[str, Any]) -> str:
    """Return recall@1 / recall@5 / completeness@5 of each side, as in the README."""
    cells = [" / ".join(f"{value:.1f}" for value in figures[side].values()) for side in SIDES]
    cells += [f"{figures['split_pct']:.0f} %"]
    times = figures["search_ms"]
    cells += [f"{times['vector_p50']} → {times['default_p50']} ms ({times['ratio']})"]
    return f"| {name} | {figures['questions']} | {' | '.join(cells)} |"


def _percent(values: Sequence[float]) -> float:
    return round(100 * statistics.fmean(values), 1)


def _mean(values: Sequence[float]) -> float:
    return round(statistics.fmean(values), 2) if values else 0.0


def main(sets: Sequence[str] = SETS) -> None:
    if unknown := set(sets) - set(SETS):
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(SETS)}")
    figures: dict[str, Any] = {}
    with prepare() as (databases, embedder):
        for name in sets:
            tools = specs(name)
            of_set: dict[str, Any] = {"tools": len(tools)}
            figures[name] = of_set
            url = databases.alone(tools)
            of_set["alone"] = measure(name, url, embedder)
            print(table_row(name, of_set["alone"]), file=sys.stderr, flush=True)
            url = databases.among_the_catalogue(tools)
            of_set["among_the_catalogue"] = measure(name, url, embedder)
            row = table_row(f"{name}, among the catalogue", of_set["among_the_catalogue"])
            print(row, file=sys.stderr, flush=True)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:] or SETS)
