"""Sync and search at 10,000 real tools, side by side with langchain-postgres on the same data.

    python -m benchmarks scale

Prints one JSON document. Ratios are what counts: both sides run in one process, in turns.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import psycopg
from langchain_core.embeddings import Embeddings
from langchain_postgres import PGEngine, PGVectorStore
from langchain_postgres.v2.indexes import DistanceStrategy, HNSWIndex, HNSWQueryOptions

from benchmarks.data import rows, specs
from registry import LocalPostgres, RegistrySettings, ToolRegistry, migrate
from registry.embedding import Embedder, LocalEmbeddings
from registry.text import embedding_text
from registry.types import ToolSpec

TOOLS = 10_000
QUESTIONS = 100  # of another set than the one the index options were chosen on
ROUNDS = 5
MEMORY = {"shared_buffers": "1GB"}  # the data of every side fits, so none pays for another's


class Remembering(Embeddings):
    """The built-in model; remembers vectors, so that both sides search without embedding."""

    def __init__(self) -> None:
        self.model = LocalEmbeddings()
        self.known: dict[str, list[float]] = {}
        self.calls = 0

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        new = [text for text in texts if text not in self.known]
        if new:
            self.calls += 1
            self.known |= zip(new, self.model.embed_documents(new), strict=True)
        return [self.known[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


def seconds(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def latency_ms(samples: list[float]) -> dict[str, float]:
    ordered = sorted(samples)
    return {
        "p50_ms": round(statistics.median(ordered) * 1_000, 3),
        "p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1_000, 3),
    }


def fill_vector_store(
    url: str, table: str, tools: list[ToolSpec], embeddings: Remembering, *, index: bool
) -> PGVectorStore:
    """Return a PGVectorStore of the same tools, with the index a careful user would make."""
    engine = PGEngine.from_connection_string(url)
    engine.init_vectorstore_table(table, vector_size=512)
    store = PGVectorStore.create_sync(
        engine,
        embeddings,
        table,
        index_query_options=HNSWQueryOptions(ef_search=200) if index else None,
    )
    texts = [embedding_text(spec) for spec in tools]
    store.add_embeddings(
        texts,
        embeddings.embed_documents(texts),
        [{"tool_name": spec.tool_name} for spec in tools],
    )
    if index:
        store.apply_vector_index(
            HNSWIndex(m=24, ef_construction=128, distance_strategy=DistanceStrategy.COSINE_DISTANCE)
        )
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
    return store


def exact_top(url: str, vector: str, k: int) -> list[str]:
    """Return the names nearest to a vector, by a scan that uses no index at all."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute("SET LOCAL enable_indexscan = off")
        found = connection.execute(
            "SELECT t.tool_name FROM tool_embedding e JOIN tool_registry t ON t.id = e.tool_id "
            "ORDER BY e.vector <=> %s::halfvec, t.tool_name LIMIT %s",
            (vector, k),
        ).fetchall()
    return [name for (name,) in found]


def main() -> None:
    tools = specs("catalog_openapi", limit=TOOLS)
    questions = [row["query"] for row in islice(rows("bfcl/queries"), QUESTIONS)]
    figures: dict[str, Any] = {"tools": len(tools), "questions": len(questions)}
    embeddings = Remembering()
    embedder = Embedder(embeddings, name="builtin", dimensions=512)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalPostgres(f"{folder}/data", settings=MEMORY) as server,
    ):
        migrate.upgrade(server.url)
        with ToolRegistry(server.url, embeddings=embedder, settings=RegistrySettings()) as registry:
            took, report = seconds(lambda: registry.sync(tools))
            figures["first_sync"] = {
                "seconds": round(took, 1),
                "added": len(report.added),
                "failed": len(report.failed),
                "notes": list(report.notes),
            }
            took, report = seconds(lambda: registry.sync(tools))
            figures["unchanged_sync"] = {
                "seconds": round(took, 2),
                "unchanged": len(report.unchanged),
                "embedded": report.embedded,
            }
            changed = [tools[0].replace(description=tools[0].description + " Changed."), *tools[1:]]
            calls = embeddings.calls
            took, report = seconds(lambda: registry.sync(changed))
            figures["one_changed"] = {
                "seconds": round(took, 2),
                "updated": len(report.updated),
                "embedded": report.embedded,
                "embedding_calls": embeddings.calls - calls,
            }
            registry.sync(tools)
            stores = {
                "pgvectorstore_hnsw": fill_vector_store(
                    server.url, "with_index", tools, embeddings, index=True
                ),
                "pgvectorstore_exact": fill_vector_store(
                    server.url, "no_index", tools, embeddings, index=False
                ),
            }
            sides: dict[str, Callable[[str], Any]] = {
                "toolrag": lambda q: registry.search(q, k=5, threshold=0),
                **{
                    name: (lambda q, store=store: store.similarity_search_with_score(q, k=5))
                    for name, store in stores.items()
                },
            }
            samples: dict[str, list[float]] = {name: [] for name in sides}
            for question in questions:
                for search in sides.values():
                    search(question)  # warm: vectors are cached, pages are in memory
            for _ in range(ROUNDS):
                for question in questions:
                    for name, search in sides.items():
                        samples[name].append(seconds(lambda s=search, q=question: s(q))[0])
            figures["search"] = {name: latency_ms(taken) for name, taken in samples.items()}
            ours = figures["search"]["toolrag"]["p50_ms"]
            figures["times_faster_at_p50"] = {
                name: round(figures["search"][name]["p50_ms"] / ours, 1) for name in stores
            }
            alone = RegistrySettings(word_weight=0, clauses=False)
            with ToolRegistry(server.url, embeddings=embedder, settings=alone) as vectors:
                same = sum(
                    [hit.tool_name for hit in vectors.search(question, k=5, threshold=0)]
                    == exact_top(server.url, embedder.embed_query(question), 5)
                    for question in questions
                )
            figures["vectors_same_top_5_as_exact_scan"] = f"{same} of {len(questions)}"
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
