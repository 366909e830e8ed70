"""Exactness of filtered searches among 100,000 tools, with what such a registry weighs.

    python -m benchmarks exactness

Recall@10 of the vectors' part of a search against an exact scan, and the time of a whole search
beside that of the vectors' part, with nothing filtered; with 99 of 100
of the 10,000 nearest tools switched off; with the 10,000 nearest in another namespace; and for
namespaces of 1, 10 and 50 % of the tools. Beside that: sizes on disk, and time and memory of a
sync that finds nothing to do. Prints one JSON document.
"""

from __future__ import annotations

import json
import resource
import statistics
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg

from benchmarks.prepared import Prepare, dsn, prepare, timed
from registry import RegistrySettings, ToolRegistry

TOOLS = 100_000
NEAREST = 10_000
K = 10
# Each of these asks 10 to 60 questions: a filter that follows the question rewrites 10,000 rows.
FEW, SOME, MANY = 10, 30, 60

Change = Callable[[psycopg.Connection, str], None]


def reset(connection: psycopg.Connection) -> None:
    connection.execute(
        "UPDATE tool_registry SET is_active = true, namespace = 'default' "
        "WHERE NOT is_active OR namespace <> 'default'"
    )


def rank_all(connection: psycopg.Connection, vector: str) -> None:
    connection.execute("DROP TABLE IF EXISTS pg_temp.ranked")
    connection.execute(
        "CREATE TEMP TABLE ranked AS SELECT tool_id, row_number() OVER "
        "(ORDER BY vector::halfvec(512) <=> %s::halfvec(512)) AS place FROM tool_embedding",
        (vector,),
    )


def disable_nearest(connection: psycopg.Connection, vector: str) -> None:
    reset(connection)
    rank_all(connection, vector)
    connection.execute(
        "UPDATE tool_registry SET is_active = false WHERE id IN "
        "(SELECT tool_id FROM ranked WHERE place <= %s AND place %% 100 <> 50)",
        (NEAREST,),
    )


def move_nearest(connection: psycopg.Connection, vector: str) -> None:
    reset(connection)
    rank_all(connection, vector)
    connection.execute(
        "UPDATE tool_registry SET namespace = 'other' WHERE id IN "
        "(SELECT tool_id FROM ranked WHERE place <= %s)",
        (NEAREST,),
    )


def exact(connection: psycopg.Connection, vector: str, namespace: str) -> set[str]:
    with connection.transaction():
        connection.execute("SET LOCAL enable_indexscan = off")
        return {
            name
            for (name,) in connection.execute(
                "SELECT tool_name FROM tool_registry t JOIN tool_embedding e ON e.tool_id = t.id "
                "WHERE is_active AND namespace = %s "
                "ORDER BY vector::halfvec(512) <=> %s::halfvec(512), tool_name LIMIT %s",
                (namespace, vector, K),
            )
        }


def measure(
    prepared: Prepare,
    connection: psycopg.Connection,
    *,
    count: int,
    namespace: str = "default",
    before: Change | None = None,
) -> dict[str, float]:
    embedder = prepared.questions_embedder()
    whole = RegistrySettings(namespace=namespace, auto_calibrate=False)
    alone = replace(whole, word_weight=0, clauses=False)
    recalls: list[float] = []
    taken_ms: list[float] = []
    whole_ms: list[float] = []
    exact_ms: list[float] = []
    url = prepared.url(TOOLS)
    with (
        ToolRegistry(url, embeddings=embedder, settings=alone) as registry,
        ToolRegistry(url, embeddings=embedder, settings=whole) as hybrid,
    ):
        for either in (registry, hybrid):
            either.search(prepared.questions[-1], k=K, threshold=0)
        for question in prepared.questions[:count]:
            vector = embedder.embed_query(question)
            if before is not None:
                before(connection, vector)
            start = time.perf_counter()
            found = {hit.tool_name for hit in registry.search(question, k=K, threshold=0)}
            taken_ms.append((time.perf_counter() - start) * 1_000)
            start = time.perf_counter()
            hybrid.search(question, k=K, threshold=0)
            whole_ms.append((time.perf_counter() - start) * 1_000)
            start = time.perf_counter()
            wanted = exact(connection, vector, namespace)
            exact_ms.append((time.perf_counter() - start) * 1_000)
            recalls.append(len(found & wanted) / K)
    return {
        "questions": count,
        "recall_at_10": round(statistics.mean(recalls), 4),
        "worst": min(recalls),
        "vectors_p50_ms": round(statistics.median(taken_ms), 1),
        "vectors_longest_ms": round(max(taken_ms), 1),
        "search_p50_ms": round(statistics.median(whole_ms), 1),
        "search_longest_ms": round(max(whole_ms), 1),
        "exact_scan_p50_ms": round(statistics.median(exact_ms), 1),
    }


def searches(prepared: Prepare, connection: psycopg.Connection) -> dict[str, Any]:
    figures = {
        "nothing filtered": measure(prepared, connection, count=MANY),
        f"99 of 100 of the nearest {NEAREST} disabled": measure(
            prepared, connection, count=FEW, before=disable_nearest
        ),
        f"the nearest {NEAREST} in another namespace": measure(
            prepared, connection, count=FEW, before=move_nearest
        ),
    }
    for namespace, share in (("small", 100), ("tenth", 10), ("half", 2)):
        reset(connection)
        connection.execute(
            "UPDATE tool_registry SET namespace = %s WHERE abs(hashtext(tool_name)) %% %s = 0",
            (namespace, share),
        )
        connection.execute("VACUUM ANALYZE tool_registry")
        figures[f"namespace with 1 in {share} of the tools"] = measure(
            prepared, connection, count=SOME, namespace=namespace
        )
    reset(connection)
    connection.execute("VACUUM FULL ANALYZE tool_registry")
    return figures


def sizes_mb(connection: psycopg.Connection) -> dict[str, float]:
    found = connection.execute(
        "SELECT relname, (CASE relkind WHEN 'r' THEN pg_table_size(oid) "
        "ELSE pg_relation_size(oid) END / 1e6)::float FROM pg_class "
        "WHERE relkind IN ('r', 'i') AND relname ~ '^(ix_|pk_|uq_)?(tool|vector_store)' "
        "AND pg_relation_size(oid) > 1e6 ORDER BY 2 DESC"
    ).fetchall()
    return {name: round(size, 1) for name, size in found}


def unchanged_sync(prepared: Prepare) -> dict[str, float]:
    tools, embedder = prepared.tools(TOOLS)
    figures: dict[str, float] = {}
    settings = RegistrySettings(auto_calibrate=False)  # the embedder knows the tools alone
    with ToolRegistry(prepared.url(TOOLS), embeddings=embedder, settings=settings) as registry:
        with timed(figures, "seconds"):
            unchanged = len(registry.sync(tools).unchanged)
        tracemalloc.start()
        registry.sync(tools)
        figures["peak_mb_beyond_the_tools"] = round(tracemalloc.get_traced_memory()[1] / 1e6, 1)
        tracemalloc.stop()
    figures["unchanged"] = unchanged
    figures["process_peak_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
    return figures


def main() -> None:
    with prepare() as prepared:
        figures: dict[str, Any] = {"preparing": prepared.fill(TOOLS)}
        with psycopg.connect(dsn(prepared.url(TOOLS)), autocommit=True) as connection:
            reset(connection)
            figures["sizes_mb"] = sizes_mb(connection)
            figures["unchanged_sync"] = unchanged_sync(prepared)
            figures["searches"] = searches(prepared, connection)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
