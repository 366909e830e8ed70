"""What differs between the sync registry, generated from the async one, and its source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from time import sleep
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import RawCursor
from psycopg.rows import dict_row
from sqlalchemy import Connection

from registry.database import create_registry_engine as create_engine
from registry.statements import DriverStatement

if TYPE_CHECKING:
    from langchain_postgres import PGVectorStore

__all__ = ["Connection", "Lock", "create_engine", "create_vector_store", "fetch", "run", "sleep"]

T = TypeVar("T")


def run(connection: Connection, function: Callable[[Connection], T]) -> T:
    """Call a function that needs a sync connection."""
    return function(connection)


def fetch(
    connection: Connection, statement: DriverStatement, parameters: Mapping[str, Any] = {}
) -> list[dict[str, Any]]:
    """Run a compiled statement on the driver's connection, in this one's transaction."""
    driver: Any = connection.connection.driver_connection
    try:
        with RawCursor(driver, row_factory=dict_row) as cursor:
            cursor.execute(statement.sql, statement.values(parameters), binary=True)
            return cursor.fetchall()
    except psycopg.Error as error:
        if driver.closed:  # which SQLAlchemy has not seen: it would roll back, and fail
            connection.invalidate(error)
        raise


def create_vector_store(**arguments: Any) -> PGVectorStore:
    """Make LangChain's vector store; imported where it is used, because it is heavy."""
    from langchain_postgres import PGVectorStore

    return PGVectorStore.create_sync(**arguments)
