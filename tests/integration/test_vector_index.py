"""Searches through the HNSW index: as complete as a scan, with the plan that was meant."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import psycopg
import pytest
from langchain_core.embeddings import Embeddings
from sqlalchemy import event, make_url

from registry import Embedder, RegistrySettings, ToolRegistry, ToolSpec, migrate, statements
from registry.base import INDEX_BUSY
from registry.errors import ConfigurationError
from registry.migrate import HNSW_INDEX_PREFIX
from registry.statements import DriverStatement
from registry.store._runtime import fetch
from tests.support.catalogue import spec
from tests.support.databases import Databases, psycopg_url
from tests.support.interleaving import before_statement, each_statement

DIMENSIONS = 64
COUNT = 6_000
DISABLED = 100


class NumberedEmbeddings(Embeddings):
    """A text that holds `at <n>` lies n steps away from the question, others anywhere."""

    def __init__(self, dimensions: int = DIMENSIONS) -> None:
        self.dimensions = dimensions

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        match = re.search(r"at (\d+)", text)
        seed = int(match.group(1)) if match else 0
        random_part = np.random.default_rng(seed).normal(size=self.dimensions)
        vector = np.zeros(self.dimensions)
        vector[0] = 1.0
        return (vector + random_part * seed / 4_000).tolist()


def numbered(count: int, *, start: int = 1, **fields: Any) -> list[ToolSpec]:
    return [spec(f"t{n:05d}", f"at {n}", **fields) for n in range(start, start + count)]


@pytest.fixture(scope="module")
def indexed_url(databases: Databases, migrated_template: str) -> Iterator[str]:
    """A database whose model has an index; the 100 nearest tools are switched off."""
    with databases.temporary(template=migrated_template) as url:
        with ToolRegistry(url, embeddings=NumberedEmbeddings()) as registry:
            report = registry.sync(numbered(COUNT))
            assert report.notes == []
        with psycopg.connect(psycopg_url(url)) as connection:
            found = connection.execute(
                "UPDATE tool_registry SET is_active = false WHERE id IN (SELECT tool_id FROM "
                "tool_embedding ORDER BY vector <=> %s::halfvec LIMIT %s)",
                (vector_text("at 0"), DISABLED),
            )
            assert found.rowcount == DISABLED
        yield url


@pytest.fixture
def registry(indexed_url: str) -> Iterator[ToolRegistry]:
    with ToolRegistry(indexed_url, embeddings=NumberedEmbeddings()) as registry:
        yield registry


def vector_text(text: str) -> str:
    return str(NumberedEmbeddings().embed_query(text)).replace(" ", "")


def exact(url: str, k: int, *, namespace: str = "default") -> list[str]:
    with psycopg.connect(psycopg_url(url)) as connection:
        connection.execute("SET LOCAL enable_indexscan = off")
        return [
            name
            for (name,) in connection.execute(
                "SELECT tool_name FROM tool_registry t JOIN tool_embedding e ON e.tool_id = t.id "
                "WHERE is_active AND namespace = %s ORDER BY vector <=> %s::halfvec, tool_name "
                "LIMIT %s",
                (namespace, vector_text("at 0"), k),
            ).fetchall()
        ]


def names(registry: ToolRegistry, k: int) -> list[str]:
    return [hit.tool_name for hit in registry.search("at 0", k=k, threshold=0)]


def plan_of(registry: ToolRegistry, statement: DriverStatement, k: int = 5) -> str:
    """Return the server's plan of the very SQL that a search sends, under its own settings."""
    explain = replace(statement, sql=f"EXPLAIN {statement.sql}")
    with registry._connection() as connection:
        fetch(connection, registry._search_settings(k))
        lines = fetch(connection, explain, parameters(registry, "at 0", k))
    return "\n".join(re.sub(r"\[[^]]*\]", "[…]", line["QUERY PLAN"]) for line in lines)


def parameters(registry: ToolRegistry, question: str, k: int) -> Mapping[str, Any]:
    vectors = [registry.embedder.embed_query(question)]
    return {**registry._search_parameters([question], vectors, k), "k": k}


def exactly() -> DriverStatement:
    return DriverStatement.of(statements.nearest_tools_exactly(1, DIMENSIONS))


def test_vec_1_the_nearest_being_disabled_does_not_shorten_the_answer(
    registry: ToolRegistry, indexed_url: str
) -> None:
    """VEC-1: the same 5 as an exact scan, with the planner left alone."""
    assert "hnsw" in plan_of(registry, registry._search_statement(1, 5))
    assert names(registry, 5) == exact(indexed_url, 5)
    assert len(set(names(registry, 50)) & set(exact(indexed_url, 50))) >= 49


def test_vec_1_another_tenants_nearest_do_not_shorten_the_answer(
    indexed_url: str, registry: ToolRegistry
) -> None:
    """VEC-1: a small namespace inside a large index."""
    settings = RegistrySettings(namespace="small")
    with ToolRegistry(indexed_url, embeddings=NumberedEmbeddings(), settings=settings) as small:
        small.sync(numbered(7, start=2_900))
        assert names(small, 5) == exact(indexed_url, 5, namespace="small")
        assert len(names(small, 50)) == 7


def test_vec_2_the_second_scan_is_exact_whatever_the_index_may_do(indexed_url: str) -> None:
    """VEC-2: when the walk meets its own cap, the rescue inherits neither cap nor index."""
    settings = RegistrySettings(namespace="far", ef_search=10)
    with ToolRegistry(indexed_url, embeddings=NumberedEmbeddings(), settings=settings) as far:
        far.sync(numbered(7, start=COUNT - 100))

        @event.listens_for(far._engine, "begin")
        def cap(connection: Any) -> None:
            for setting in (
                "hnsw.max_scan_tuples = 1",
                "enable_sort = off",
                "enable_seqscan = off",
            ):
                connection.exec_driver_sql(f"SET LOCAL {setting}")

        fast, rescue = far._search_statement(1, 5), exactly()
        found_with = parameters(far, "at 0", 5)
        with far._connection() as connection:
            fetch(connection, far._search_settings(5))
            found = fetch(connection, fast, found_with)
        assert "hnsw" in plan_of(far, fast)
        nearest = sorted(found, key=lambda row: row["distance_0"])
        assert [row["tool_name"] for row in nearest] == exact(indexed_url, 7, namespace="far")
        assert "hnsw" not in plan_of(far, rescue)
        assert names(far, 5) == exact(indexed_url, 5, namespace="far")


def test_vec_2_a_short_answer_means_that_there_is_no_more(
    registry: ToolRegistry, indexed_url: str
) -> None:
    """VEC-2: asked for 1,000 of a namespace that holds 7, and of one that holds more."""
    assert len(names(registry, 1_000)) == 1_000
    assert names(registry, 1_000)[:20] == exact(indexed_url, 20)


def test_vec_3_more_than_forty_are_answered(indexed_url: str) -> None:
    """VEC-3: the candidate list follows k, whatever it is set to otherwise."""
    settings = RegistrySettings(ef_search=40)
    with ToolRegistry(indexed_url, embeddings=NumberedEmbeddings(), settings=settings) as short:
        found = names(short, 100)
        assert len(found) == 100
        assert len(set(found) & set(exact(indexed_url, 100))) >= 95
        with short._connection() as connection:
            fetch(connection, short._search_settings(100))
            assert connection.exec_driver_sql("SHOW hnsw.ef_search").scalar() == "400"


def test_vec_4_the_settings_of_a_search_end_with_it(indexed_url: str) -> None:
    """VEC-4: on a pool of one, the next checkout has the server's defaults."""
    settings = RegistrySettings(pool_size=1, max_overflow=0)
    with ToolRegistry(indexed_url, embeddings=NumberedEmbeddings(), settings=settings) as one:
        assert len(names(one, 100)) == 100
        with one._engine.connect() as connection:
            for setting, default in (
                ("hnsw.ef_search", "40"),
                ("hnsw.iterative_scan", "off"),
                ("statement_timeout", "0"),
            ):
                assert connection.exec_driver_sql(f"SHOW {setting}").scalar() == default


def test_vec_5_the_search_walks_the_index_in_its_own_order(registry: ToolRegistry) -> None:
    """VEC-5: ascending distance with the index's operator; similarity is not ordered by."""
    plan = plan_of(registry, registry._search_statement(1, 5))
    walk, _, rest = plan.partition("CTE passed")
    assert f"Index Scan using {HNSW_INDEX_PREFIX}1" in walk
    assert "Order By: ((vector)::halfvec(64) <=> " in walk
    assert "Seq Scan on tool_embedding" not in walk
    assert "Seq Scan on tool_registry" not in walk
    # What scans is begun only where too few pass the filters.
    assert "One-Time Filter" in rest


def test_vec_5_the_prepared_statement_keeps_the_plan(registry: ToolRegistry) -> None:
    """VEC-5: after psycopg prepared the statement the partial index still serves."""
    for _ in range(12):
        assert len(names(registry, 5)) == 5
    with registry._connection() as connection:
        prepared = connection.exec_driver_sql(
            "SELECT statement FROM pg_prepared_statements WHERE statement LIKE '%%<=>%%'"
        ).scalars()
        assert all("embedding_model_id = 1" in statement for statement in prepared)
    assert "hnsw" in plan_of(registry, registry._search_statement(1, 5))


def test_vec_5_a_plan_for_all_questions_expects_no_more_than_the_walk(
    registry: ToolRegistry,
) -> None:
    """VEC-5: of a limit it does not know, a generic plan expects a tenth of the table.

    Among 100,000 tools that made it scan and sort all: 75 ms instead of 8.
    """
    for k, most in ((5, 100), (50, 100), (60, 200), (1_000, 2_000)):
        search = registry._search_statement(1, k)
        with registry._connection() as connection:
            fetch(connection, registry._search_settings(k))
            connection.exec_driver_sql(f"PREPARE search_{k} AS {search.sql}".replace("%", "%%"))
            nothing = ", ".join(["NULL"] * len(set(re.findall(r"\$\d+", search.sql))))
            lines = connection.exec_driver_sql(f"EXPLAIN EXECUTE search_{k}({nothing})").scalars()
            walk = "\n".join(lines).partition("CTE walked")[2].partition("CTE ")[0]
            connection.exec_driver_sql(f"DEALLOCATE search_{k}")
        limit = re.search(r"Limit .*rows=(\d+)", walk)
        assert limit is not None
        assert int(limit[1]) == min(most, COUNT)
        assert "Index Scan using" in walk or k == 1_000


def test_vec_6_no_index_while_small_and_an_hnsw_one_once_filled(
    database_url: str, indexed_url: str
) -> None:
    """VEC-6: the index is made after loading; its top 10 agree with an exact scan."""
    with ToolRegistry(database_url, embeddings=NumberedEmbeddings()) as small:
        small.sync(numbered(50))
        assert indexes(database_url) == []
    with ToolRegistry(indexed_url, embeddings=NumberedEmbeddings()) as large:
        assert len(indexes(indexed_url)) == 1
        rng = random.Random(7)
        agreeing = 0
        for _ in range(30):
            question = f"at {rng.randrange(1, 4_000)}"
            found = {hit.tool_name for hit in large.search(question, k=10, threshold=0)}
            with large._connection() as connection:
                truth = fetch(connection, exactly(), parameters(large, question, 10))
            agreeing += len(found & {row["tool_name"] for row in truth})
    assert agreeing >= 0.98 * 300


def indexes(url: str) -> list[tuple[str, str, bool]]:
    with psycopg.connect(psycopg_url(url)) as connection:
        return connection.execute(
            "SELECT c.relname, pg_get_indexdef(c.oid), i.indisvalid FROM pg_class c "
            "JOIN pg_index i ON i.indexrelid = c.oid WHERE c.relname LIKE %s",
            (HNSW_INDEX_PREFIX + "%",),
        ).fetchall()


@pytest.mark.parametrize(
    ("dimensions", "indexed"), [(1_536, True), (3_072, True), (4_000, True), (4_001, False)]
)
def test_vec_7_large_vectors_are_indexed_as_halves_or_scanned(
    database_url: str, dimensions: int, indexed: bool
) -> None:
    """VEC-7: above 2,000 dimensions a half-precision index; above 4,000 none, and no crash."""
    settings = RegistrySettings(index_min_tools=20)
    with ToolRegistry(
        database_url, embeddings=NumberedEmbeddings(dimensions), settings=settings
    ) as registry:
        report = registry.sync(numbered(30))
        assert (len(indexes(database_url)) == 1) == indexed
        assert bool(report.notes) != indexed
        assert [hit.tool_name for hit in registry.search("at 0", k=1, threshold=0)] == ["t00001"]


def test_vec_7_more_dimensions_than_are_stored_are_refused_at_configuration() -> None:
    """VEC-7: pgvector stores half-precision vectors of at most 16,000 dimensions."""
    with pytest.raises(ConfigurationError, match="16001 dimensions; pgvector stores 1 to 16000"):
        Embedder(NumberedEmbeddings(), dimensions=16_001)


def test_a_left_over_invalid_index_is_made_again(database_url: str) -> None:
    """MIG-2: an index build that broke half-way is dropped and repeated by the next sync."""
    settings = RegistrySettings(index_min_tools=20)
    with ToolRegistry(database_url, embeddings=NumberedEmbeddings(), settings=settings) as registry:
        registry.sync(numbered(30))
        with psycopg.connect(psycopg_url(database_url), autocommit=True) as connection:
            connection.execute(
                "UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass",
                (f"{HNSW_INDEX_PREFIX}1",),
            )
        registry.sync(numbered(30))
        assert [valid for _, _, valid in indexes(database_url)] == [True]


@pytest.mark.parametrize(
    "definition",
    [
        "USING hnsw ((vector::halfvec(64)) halfvec_l2_ops)",
        "USING ivfflat ((vector::halfvec(64)) halfvec_cosine_ops)",
        "USING hnsw ((vector::halfvec(64)) halfvec_cosine_ops)",
    ],
    ids=["other operator class", "other method", "other options"],
)
def test_mig_5_an_index_that_was_swapped_by_hand_is_found_and_mended(
    database_url: str, definition: str
) -> None:
    """MIG-5: alembic does not compare these; the sync does."""
    settings = RegistrySettings(index_min_tools=20)
    with ToolRegistry(database_url, embeddings=NumberedEmbeddings(), settings=settings) as registry:
        registry.sync(numbered(30))
        wanted = indexes(database_url)
        name = f"{HNSW_INDEX_PREFIX}1"
        with psycopg.connect(psycopg_url(database_url), autocommit=True) as connection:
            connection.execute(f"DROP INDEX {name}")
            connection.execute(
                f"CREATE INDEX {name} ON tool_embedding {definition} WHERE embedding_model_id = 1"
            )
        registry.sync(numbered(30))
        assert indexes(database_url) == wanted


def test_an_index_build_without_shared_memory_for_its_workers_is_made_alone(
    database_url: str,
) -> None:
    """A container's /dev/shm of 64 MB does not hold what parallel workers share."""
    settings = RegistrySettings(index_min_tools=20)
    sent: list[str] = []

    def no_room() -> None:
        raise psycopg.errors.DiskFull("could not resize shared memory segment")

    with (
        ToolRegistry(database_url, embeddings=NumberedEmbeddings(), settings=settings) as registry,
        each_statement(sent.append),
        before_statement("CREATE INDEX CONCURRENTLY", no_room),
    ):
        assert registry.sync(numbered(30)).notes == []
    assert [valid for _, _, valid in indexes(database_url)] == [True]
    made = [at for at, statement in enumerate(sent) if "CREATE INDEX CONCURRENTLY" in statement]
    assert len(made) == 1, "the refused one never reached the server"
    assert any("set_config" in statement for statement in sent[made[0] - 2 : made[0]])


def test_two_that_would_make_the_index_do_not_wait_for_each_other(database_url: str) -> None:
    """The other one says so; the lock is a transaction's, so it holds behind a pooler."""
    settings = RegistrySettings(index_min_tools=20)
    notes: list[list[str]] = []

    def other() -> None:
        with ToolRegistry(database_url, embeddings=NumberedEmbeddings(), settings=settings) as two:
            notes.append(two.sync(numbered(30)).notes)

    with (
        ToolRegistry(database_url, embeddings=NumberedEmbeddings(), settings=settings) as registry,
        before_statement("CREATE INDEX CONCURRENTLY", other),
    ):
        assert registry.sync(numbered(30)).notes == []
    assert notes == [[INDEX_BUSY]]
    assert [valid for _, _, valid in indexes(database_url)] == [True]


def test_a_user_who_may_not_make_the_index_is_told_and_searches_all_the_same(
    databases: Databases, database_url: str
) -> None:
    role = f"toolrag_app_{random.Random().getrandbits(40):x}"
    with psycopg.connect(psycopg_url(database_url), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
        connection.execute(
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role};"
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}"
        )
    try:
        settings = RegistrySettings(index_min_tools=20)
        as_role = make_url(database_url).update_query_dict({"options": f"-c role={role}"})
        url = as_role.render_as_string(hide_password=False)
        with ToolRegistry(url, embeddings=NumberedEmbeddings(), settings=settings) as app:
            report = app.sync(numbered(30))
            assert len(report.added) == 30
            assert "must be owner" in report.notes[0]
            assert len(names(app, 5)) == 5
    finally:
        databases.drop(database_url)
        with psycopg.connect(psycopg_url(databases.server), autocommit=True) as connection:
            connection.execute(f"DROP ROLE IF EXISTS {role}")


def test_index_statements_hold_numbers_only() -> None:
    """VEC-10: what is written into SQL as text is a number or a constant."""
    with pytest.raises((ValueError, TypeError)):
        statements.create_index("1; DROP TABLE tool_registry", 64)  # type: ignore[arg-type]
    assert migrate.HNSW_INDEX_PREFIX.isidentifier()
