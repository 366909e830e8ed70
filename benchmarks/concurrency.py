"""Searches at 1,000, 10,000 and 100,000 tools, alone and 16 at once, sync and async.

    python -m benchmarks concurrency        or        python -m benchmarks.concurrency 1000 10000

Four sides answer the same questions in turns, round by round, all with the question's vector at
hand: `toolrag`; `pgvectorstore` with the same index and options; `bare` psycopg, which sends the
very SQL of `toolrag`, in as many round trips (probe, begin, settings, search, commit); and
`bare_one_trip`, which sends the search alone on connections that were set up beforehand. Every
side has 16 connections. Prints one JSON document; only ratios within a run mean anything.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import psycopg
from langchain_postgres import PGEngine, PGVectorStore
from langchain_postgres.v2.indexes import HNSWQueryOptions

from benchmarks.prepared import INDEX_FROM, Prepare, dsn, prepare
from registry import AsyncToolRegistry, RegistrySettings, ToolRegistry

SIZES = (1_000, 10_000, 100_000)
CALLERS = 16
ROUNDS = 6
K = 5
SETTINGS = RegistrySettings(pool_size=CALLERS, max_overflow=0)

Search = Callable[[str], Any]
AsyncSearch = Callable[[str], Awaitable[Any]]


@dataclass(slots=True)
class Samples:
    """What one side took."""

    latencies_s: list[float] = field(default_factory=list[float])
    elapsed_s: float = 0.0
    cpu_s: float = 0.0

    def add(self, latencies_s: Sequence[float], elapsed_s: float, cpu_s: float) -> None:
        self.latencies_s += latencies_s
        self.elapsed_s += elapsed_s
        self.cpu_s += cpu_s

    def figures(self) -> dict[str, float]:
        ordered = sorted(self.latencies_s)
        return {
            "p50_ms": round(statistics.median(ordered) * 1_000, 2),
            "p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1_000, 2),
            "per_second": round(len(ordered) / self.elapsed_s),
            "client_cpu_ms": round(self.cpu_s / len(ordered) * 1_000, 2),
        }


class Captured:
    """The SQL that a search of `toolrag` sends: of its settings and of itself."""

    def __init__(self, registry: ToolRegistry, questions: Sequence[str]) -> None:
        registry.open()
        settings = registry._search_settings(K)
        self.settings = settings.sql.encode(), settings.values({})
        self._searches: dict[str, tuple[str, dict[str, Any]]] = {}
        for question in questions:
            parts = registry._parts(question)
            vectors = registry.embedder.embed_queries(parts)
            search = registry._search_statement(len(parts), K)
            bound = registry._search_parameters(parts, vectors, K)
            self._searches[question] = search.sql.encode(), search.values(bound)

    def search(self, question: str) -> tuple[Any, Any]:
        return self._searches[question]

    @property
    def session_settings(self) -> tuple[Any, Any]:
        sql, parameters = self.settings
        return sql, [False if value is True else value for value in parameters]


def bare_search(url: str, captured: Captured, *, one_trip: bool) -> Search:
    connection = psycopg.connect(dsn(url), autocommit=True, cursor_factory=psycopg.RawCursor)
    if one_trip:
        connection.execute(*captured.session_settings)
        return lambda question: connection.execute(*captured.search(question)).fetchall()

    def search(question: str) -> Any:
        connection.autocommit = True
        connection.execute("SELECT 1")
        connection.autocommit = False
        connection.execute(*captured.settings).fetchone()
        found = connection.execute(*captured.search(question)).fetchall()
        connection.commit()
        return found

    return search


async def bare_search_async(url: str, captured: Captured, *, one_trip: bool) -> AsyncSearch:
    connection = await psycopg.AsyncConnection.connect(
        dsn(url), autocommit=True, cursor_factory=psycopg.AsyncRawCursor
    )
    if one_trip:
        await connection.execute(*captured.session_settings)

        async def search_alone(question: str) -> Any:
            return await (await connection.execute(*captured.search(question))).fetchall()

        return search_alone

    async def search(question: str) -> Any:
        await connection.set_autocommit(True)
        await connection.execute("SELECT 1")
        await connection.set_autocommit(False)
        await (await connection.execute(*captured.settings)).fetchone()
        found = await (await connection.execute(*captured.search(question))).fetchall()
        await connection.commit()
        return found

    return search


def store_options(url: str, count: int) -> dict[str, Any]:
    return {
        "engine": PGEngine.from_connection_string(url, pool_size=CALLERS, max_overflow=0),
        "table_name": "vector_store",
        "index_query_options": HNSWQueryOptions(ef_search=200) if count >= INDEX_FROM else None,
    }


def run(searches: Sequence[Search], questions: Sequence[str], pool: ThreadPoolExecutor) -> Any:
    """Let each caller ask its share; return (latencies, elapsed, processor time), seconds."""

    def ask(number: int) -> list[float]:
        taken: list[float] = []
        for question in questions[number :: len(searches)]:
            start = time.perf_counter()
            searches[number](question)
            taken.append(time.perf_counter() - start)
        return taken

    start, cpu = time.perf_counter(), time.process_time()
    taken = [one for part in pool.map(ask, range(len(searches))) for one in part]
    return taken, time.perf_counter() - start, time.process_time() - cpu


async def run_async(searches: Sequence[AsyncSearch], questions: Sequence[str]) -> Any:
    """Async twin of `run`, on one event loop."""

    async def ask(number: int) -> list[float]:
        taken: list[float] = []
        for question in questions[number :: len(searches)]:
            start = time.perf_counter()
            await searches[number](question)
            taken.append(time.perf_counter() - start)
        return taken

    start, cpu = time.perf_counter(), time.process_time()
    parts = await asyncio.gather(*(ask(number) for number in range(len(searches))))
    taken = [one for part in parts for one in part]
    return taken, time.perf_counter() - start, time.process_time() - cpu


def report(samples: dict[str, Samples]) -> dict[str, Any]:
    figures: dict[str, Any] = {name: taken.figures() for name, taken in samples.items()}
    ours = figures["toolrag"]["p50_ms"]
    figures["toolrag_p50_divided_by"] = {
        name: round(ours / figures[name]["p50_ms"], 2) for name in samples if name != "toolrag"
    }
    return figures


def measure(prepared: Prepare, url: str, count: int, captured: Captured) -> dict[str, Any]:
    embedder = prepared.questions_embedder()
    store = PGVectorStore.create_sync(
        embedding_service=embedder.embeddings, **store_options(url, count)
    )
    figures: dict[str, Any] = {}
    with ToolRegistry(url, embeddings=embedder, settings=SETTINGS) as registry:
        for callers in (1, CALLERS):
            sides: dict[str, list[Search]] = {
                "toolrag": [lambda q: registry.search(q, k=K, threshold=0)] * callers,
                "pgvectorstore": [lambda q: store.similarity_search_with_score(q, k=K)] * callers,
                "bare": [bare_search(url, captured, one_trip=False) for _ in range(callers)],
                "bare_one_trip": [
                    bare_search(url, captured, one_trip=True) for _ in range(callers)
                ],
            }
            samples = {name: Samples() for name in sides}
            with ThreadPoolExecutor(callers) as pool:
                for number in range(ROUNDS + 1):
                    for name, searches in sides.items():
                        taken = run(searches, asked(prepared, callers), pool)
                        if number:  # the first round is to warm up
                            samples[name].add(*taken)
            figures[f"{callers}_sync"] = report(samples)
    return figures


async def measure_async(
    prepared: Prepare, url: str, count: int, captured: Captured
) -> dict[str, Any]:
    embedder = prepared.questions_embedder()
    store = await PGVectorStore.create(
        embedding_service=embedder.embeddings, **store_options(url, count)
    )
    figures: dict[str, Any] = {}
    async with AsyncToolRegistry(url, embeddings=embedder, settings=SETTINGS) as registry:
        for callers in (1, CALLERS):
            sides: dict[str, list[AsyncSearch]] = {
                "toolrag": [lambda q: registry.search(q, k=K, threshold=0)] * callers,
                "pgvectorstore": [lambda q: store.asimilarity_search_with_score(q, k=K)] * callers,
                "bare": [
                    await bare_search_async(url, captured, one_trip=False) for _ in range(callers)
                ],
                "bare_one_trip": [
                    await bare_search_async(url, captured, one_trip=True) for _ in range(callers)
                ],
            }
            samples = {name: Samples() for name in sides}
            for number in range(ROUNDS + 1):
                for name, searches in sides.items():
                    taken = await run_async(searches, asked(prepared, callers))
                    if number:
                        samples[name].add(*taken)
            figures[f"{callers}_async"] = report(samples)
    return figures


def asked(prepared: Prepare, callers: int) -> list[str]:
    return prepared.questions * (1 if callers == 1 else 4)


def main(sizes: Sequence[int] = SIZES) -> None:
    figures: dict[str, Any] = {}
    with prepare() as prepared:
        for count in sizes:
            preparing = prepared.fill(count)
            url = prepared.url(count)
            embedder = prepared.questions_embedder()
            with ToolRegistry(url, embeddings=embedder, settings=SETTINGS) as registry:
                captured = Captured(registry, prepared.questions)
            figures[str(count)] = {
                "preparing": preparing,
                **measure(prepared, url, count, captured),
                **asyncio.run(measure_async(prepared, url, count, captured)),
            }
            print(json.dumps({str(count): figures[str(count)]}), file=sys.stderr, flush=True)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or SIZES)
