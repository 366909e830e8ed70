"""Databases of 1,000 to 100,000 tools, beside the same tools in a PGVectorStore.

Filling the largest takes a quarter of an hour, so a folder named by TOOLRAG_BENCH_FOLDER keeps
server and vectors for the next run; without it everything is made anew and thrown away.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from langchain_core.embeddings import Embeddings
from langchain_postgres import PGEngine
from psycopg import sql
from sqlalchemy.engine import make_url

from benchmarks.data import catalogue, catalogue_vectors, rows, specs
from registry import Embedder, LocalPostgres, RegistrySettings, ToolRegistry, migrate
from registry.clauses import clauses
from registry.embedding import LocalEmbeddings, Vectors
from registry.text import embedding_text
from registry.types import ToolSpec

REAL = 10_000
QUESTIONS = 100
DIMENSIONS = 512
INDEX = RegistrySettings(auto_calibrate=False)
INDEX_FROM = INDEX.index_min_tools
MEMORY = {"shared_buffers": "2GB", "max_connections": "200", "maintenance_work_mem": "1GB"}
NO_INDEX = RegistrySettings(auto_calibrate=False, index_min_tools=1_000_000_000)


class Prepared(Embeddings):
    """Vectors made beforehand, so that no side of a comparison pays for embedding."""

    def __init__(self, texts: list[str], vectors: Vectors) -> None:
        self.vectors = vectors
        self.place = {text: place for place, text in enumerate(texts)}
        self._lists: dict[str, list[float]] = {}

    def embed_documents(self, texts: list[str]) -> Any:
        return self.vectors[[self.place[text] for text in texts]]

    def embed_query(self, text: str) -> list[float]:
        if text not in self._lists:
            self._lists[text] = self.vectors[self.place[text]].tolist()
        return self._lists[text]

    async def aembed_query(self, text: str) -> list[float]:
        return self.embed_query(text)


class Prepare:
    """A server and what is needed to fill it.

    Attributes:
        questions: Questions of `bfcl`, whose tools are not in the catalogue; half of them are
            compound and are searched in parts as well.
    """

    def __init__(self, folder: Path, server: LocalPostgres) -> None:
        self._url = server.url
        self.questions = [row["query"] for row in islice(rows("bfcl/queries"), QUESTIONS)]
        self._parts = [part for q in self.questions for part in (q, *clauses(q))]
        kept = folder / "vectors-with-clauses.npy"
        if not kept.exists():
            texts = [embedding_text(spec) for spec in specs("catalog_openapi", limit=REAL)]
            model = LocalEmbeddings()
            np.save(kept, np.array(model.embed_documents([*texts, *self._parts]), np.float32))
        vectors = np.load(kept)
        self._real, self._asked = vectors[: -len(self._parts)], vectors[-len(self._parts) :]

    def url(self, count: int) -> str:
        """Return the URL of the database with so many tools."""
        named = make_url(self._url).set(database=f"bench_{count}")
        return named.render_as_string(hide_password=False)

    def questions_embedder(self) -> Embedder:
        """Return an embedder that knows the questions and their clauses only."""
        return _embedder(Prepared(self._parts, self._asked))

    def tools(self, count: int) -> tuple[list[ToolSpec], Embedder]:
        """Return so many tools and an embedder that knows them."""
        tools = catalogue(count)
        vectors = catalogue_vectors(self._real[:count], count)
        return tools, _embedder(Prepared([embedding_text(tool) for tool in tools], vectors))

    def fill(self, count: int) -> dict[str, Any]:
        """Make that database unless it is there; return how long each step took, in seconds."""
        database = sql.Identifier(f"bench_{count}")
        with psycopg.connect(dsn(self._url), autocommit=True) as server:
            if _exists(server, f"bench_{count}"):
                with psycopg.connect(dsn(self.url(count))) as found:
                    ready = found.execute("SELECT to_regclass('bench_ready')").fetchone() != (None,)
                if ready:
                    migrate.upgrade(self.url(count))
                    return {"kept_from_an_earlier_run": True}
            server.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(database))
            server.execute(sql.SQL("CREATE DATABASE {}").format(database))
        migrate.upgrade(self.url(count))
        tools, embedder = self.tools(count)
        took: dict[str, Any] = {}
        with ToolRegistry(self.url(count), embeddings=embedder, settings=NO_INDEX) as registry:
            with timed(took, "first_sync_without_embedding_and_index_s"):
                registry.sync(tools)
        with ToolRegistry(self.url(count), embeddings=embedder, settings=INDEX) as registry:
            with timed(took, "index_s"):
                registry.sync(tools[:1])
        _fill_vector_store(self.url(count), indexed=count >= INDEX_FROM, took=took)
        with psycopg.connect(dsn(self.url(count)), autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CREATE TABLE bench_ready ()")
        return took


@contextmanager
def prepare() -> Generator[Prepare]:
    """Yield a running server; it ends with the block."""
    given = os.environ.get("TOOLRAG_BENCH_FOLDER")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with LocalPostgres(folder / "data", settings=MEMORY) as server:
            yield Prepare(folder, server)


@contextmanager
def timed(figures: dict[str, Any], name: str) -> Generator[None]:
    """Note the seconds the block takes."""
    start = time.perf_counter()
    yield
    figures[name] = round(time.perf_counter() - start, 2)


def dsn(url: str) -> str:
    """Return the URL as psycopg reads it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def _embedder(embeddings: Prepared) -> Embedder:
    return Embedder(embeddings, name="builtin", dimensions=DIMENSIONS)


def _exists(server: psycopg.Connection, database: str) -> bool:
    found = server.execute("SELECT FROM pg_database WHERE datname = %s", (database,))
    return found.rowcount > 0


def _fill_vector_store(url: str, *, indexed: bool, took: dict[str, Any]) -> None:
    """Copy the tools in SQL: the store's own way in takes far longer and leaves the same rows."""
    engine = PGEngine.from_connection_string(url)
    engine.init_vectorstore_table("vector_store", vector_size=DIMENSIONS)
    with psycopg.connect(dsn(url), autocommit=True) as connection:
        connection.execute(
            "INSERT INTO vector_store (langchain_id, content, embedding, langchain_metadata) "
            "SELECT t.id, t.description, e.vector::vector, "
            "json_build_object('tool_name', t.tool_name) "
            "FROM tool_registry t JOIN tool_embedding e ON e.tool_id = t.id"
        )
        if indexed:
            with timed(took, "vector_store_index_s"):
                connection.execute(
                    "CREATE INDEX vector_store_hnsw ON vector_store USING hnsw "
                    "(embedding vector_cosine_ops) WITH (m = 24, ef_construction = 400)"
                )
