"""What differs between the sync registry, generated from the async one, and its source."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from time import sleep
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import psycopg
from psycopg import Pipeline, RawCursor
from psycopg.rows import dict_row
from sqlalchemy import Connection

from registry.database import create_registry_engine as create_engine
from registry.statements import DriverStatement

if TYPE_CHECKING:
    from langchain_postgres import PGVectorStore

__all__ = [
    "Connection",
    "Lock",
    "Reading",
    "create_engine",
    "create_vector_store",
    "fetch",
    "fetch_all",
    "run",
    "sleep",
]

T = TypeVar("T")
Reading: TypeAlias = Callable[[Connection], T]  # changes nothing


def run(connection: Connection, function: Callable[[Connection], T]) -> T:
    """Call a function that needs a sync connection."""
    return function(connection)


def fetch(
    connection: Connection, statement: DriverStatement, parameters: Mapping[str, Any] = {}
) -> list[dict[str, Any]]:
    """Run a compiled statement on the driver's connection, in this one's transaction."""
    with _driver_of(connection) as driver:
        cursor = _sent(driver, statement, parameters)
        return cursor.fetchall()


def fetch_all(
    connection: Connection,
    asked: Sequence[DriverStatement],
    parameters: Mapping[str, Any],
) -> list[list[dict[str, Any]]]:
    """Run compiled statements that only read, in a transaction of their own.

    What is sent together is one transaction even where every statement is its own, and takes one
    round trip, where the driver's libpq can (14 and newer).

    Args:
        connection: In autocommit mode.
        asked: In order.
        parameters: Of all of them.
    """
    with _driver_of(connection) as driver:
        together = driver.pipeline() if Pipeline.is_supported() else driver.transaction()
        with together:
            cursors = [_sent(driver, statement, parameters) for statement in asked]
        return [cursor.fetchall() for cursor in cursors]


def _sent(
    driver: psycopg.Connection[Any], statement: DriverStatement, parameters: Mapping[str, Any]
) -> RawCursor[dict[str, Any]]:
    cursor = RawCursor(driver, row_factory=dict_row)
    return cursor.execute(statement.sql, statement.values(parameters), binary=True)


@contextmanager
def _driver_of(
    connection: Connection,
) -> Generator[psycopg.Connection[Any]]:
    driver: Any = connection.connection.driver_connection
    try:
        yield driver
    except psycopg.Error as error:
        if driver.closed:  # which SQLAlchemy has not seen: it would roll back, and fail
            connection.invalidate(error)
        raise


def create_vector_store(**arguments: Any) -> PGVectorStore:
    """Make LangChain's vector store; imported where it is used, because it is heavy."""
    from langchain_postgres import PGVectorStore

    return PGVectorStore.create_sync(**arguments)
