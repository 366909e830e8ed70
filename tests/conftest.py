"""Fixtures of every test: a real database, migrated once, cloned per test."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from registry import migrate
from tests.support.databases import Databases, server_url

BENCH_FOLDER = Path(__file__).parents[2] / "shared" / "bench"


@pytest.fixture(scope="session")
def databases() -> Generator[Databases]:
    """Maker of databases on the session's server."""
    with server_url() as url:
        yield Databases(url)


@pytest.fixture(scope="session")
def migrated_template(databases: Databases) -> Iterator[str]:
    """Name of a database at the newest schema revision, to be cloned."""
    with databases.temporary() as url:
        migrate.upgrade(url)
        name = make_url(url).database
        assert name is not None
        yield name


@pytest.fixture
def database_url(databases: Databases, migrated_template: str) -> Iterator[str]:
    """URL of a fresh, migrated, empty database."""
    with databases.temporary(template=migrated_template) as url:
        yield url


@pytest.fixture
def empty_database_url(databases: Databases) -> Iterator[str]:
    """URL of a fresh database without schema and without the extension."""
    with databases.temporary() as url:
        yield url


@pytest.fixture(scope="session")
def bench_folder() -> Path:
    """Folder of the public development sets; tests that need it are skipped without it."""
    if not BENCH_FOLDER.is_dir():
        pytest.skip("the development sets are not beside the project")
    return BENCH_FOLDER
