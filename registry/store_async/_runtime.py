"""What differs between the async registry and the sync one, which is generated from it."""

from __future__ import annotations

from asyncio import Lock, sleep
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import psycopg
from psycopg import AsyncRawCursor, Pipeline
from psycopg.rows import dict_row
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from registry.database import create_registry_engine_async as create_engine
from registry.statements import DriverStatement

if TYPE_CHECKING:
    from langchain_postgres import PGVectorStore

__all__ = [
    "AsyncConnection",
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
Reading: TypeAlias = Callable[[AsyncConnection], Awaitable[T]]  # changes nothing


async def run(connection: AsyncConnection, function: Callable[[Connection], T]) -> T:
    """Call a function that needs a sync connection."""
    return await connection.run_sync(function)


async def fetch(
    connection: AsyncConnection, statement: DriverStatement, parameters: Mapping[str, Any] = {}
) -> list[dict[str, Any]]:
    """Run a compiled statement on the driver's connection, in this one's transaction."""
    async with _driver_of(connection) as driver:
        cursor = await _sent(driver, statement, parameters)
        return await cursor.fetchall()


async def fetch_all(
    connection: AsyncConnection,
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
    async with _driver_of(connection) as driver:
        together = driver.pipeline() if Pipeline.is_supported() else driver.transaction()
        async with together:
            cursors = [await _sent(driver, statement, parameters) for statement in asked]
        return [await cursor.fetchall() for cursor in cursors]


async def _sent(
    driver: psycopg.AsyncConnection[Any], statement: DriverStatement, parameters: Mapping[str, Any]
) -> AsyncRawCursor[dict[str, Any]]:
    cursor = AsyncRawCursor(driver, row_factory=dict_row)
    return await cursor.execute(statement.sql, statement.values(parameters), binary=True)


@asynccontextmanager
async def _driver_of(
    connection: AsyncConnection,
) -> AsyncGenerator[psycopg.AsyncConnection[Any]]:
    driver: Any = (await connection.get_raw_connection()).driver_connection
    try:
        yield driver
    except psycopg.Error as error:
        if driver.closed:  # which SQLAlchemy has not seen: it would roll back, and fail
            await connection.invalidate(error)
        raise


async def create_vector_store(**arguments: Any) -> PGVectorStore:
    """Make LangChain's vector store; imported where it is used, because it is heavy."""
    from langchain_postgres import PGVectorStore

    return await PGVectorStore.create(**arguments)
