"""One real PostgreSQL a test session, one database a test, cloned from a migrated template."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Generator
from contextlib import contextmanager

import psycopg
from psycopg import sql
from sqlalchemy.engine import URL, make_url

from registry.database import normalise_url

_FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


@contextmanager
def server_url() -> Generator[str]:
    """Yield the URL of a server: TEST_DATABASE_URL, else Docker, else the embedded one.

    Raises whatever kept the last of them from starting: tests fail, they are not skipped.
    """
    if given := os.environ.get("TEST_DATABASE_URL"):
        yield str(given)
        return
    if _docker_answers():
        from testcontainers.postgres import PostgresContainer

        image = os.environ.get("TEST_POSTGRES_IMAGE", "pgvector/pgvector:0.8.1-pg17")
        with PostgresContainer(image, driver="psycopg") as container:
            yield container.get_connection_url()
        return
    from registry.local_postgres import LocalPostgres

    with (
        tempfile.TemporaryDirectory(prefix="toolrag-test-") as folder,
        LocalPostgres(f"{folder}/data", settings={**_FAST, "max_connections": "300"}) as server,
    ):
        yield server.url


def _docker_answers() -> bool:
    # Asked only where an engine may be: docker-py leaves its socket open when none answers.
    if not os.environ.get("DOCKER_HOST") and not os.path.exists("/var/run/docker.sock"):
        return False
    import docker

    try:
        client = docker.from_env(timeout=3)
    except docker.errors.DockerException:
        return False
    try:
        return bool(client.ping())
    except Exception:  # requests and docker raise many kinds for an engine that is not there
        return False
    finally:
        client.close()


class Databases:
    """Makes and drops databases on one server."""

    def __init__(self, url: str) -> None:
        self.server: URL = normalise_url(url)
        self.migrated_template: str | None = None

    def create(self, *, template: str = "template1") -> str:
        """Return the URL of a new database."""
        name = f"toolrag_test_{uuid.uuid4().hex[:12]}"
        self._run(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY {}").format(
                sql.Identifier(name), sql.Identifier(template), sql.SQL("FILE_COPY")
            )
        )
        return self.server.set(database=name).render_as_string(hide_password=False)

    def drop(self, url: str) -> None:
        """Drop a database, whoever is connected."""
        name = make_url(url).database
        assert name is not None
        self._run(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    @contextmanager
    def temporary(self, *, template: str = "template1") -> Generator[str]:
        """Yield the URL of a database that is dropped afterwards."""
        url = self.create(template=template)
        try:
            yield url
        finally:
            self.drop(url)

    def _run(self, statement: sql.Composed) -> None:
        with psycopg.connect(psycopg_url(self.server), autocommit=True) as connection:
            connection.execute(statement)


def psycopg_url(url: str | URL) -> str:
    """Return the URL as psycopg itself reads it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
