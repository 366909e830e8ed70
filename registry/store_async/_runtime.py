"""What differs between the async registry and the sync one, which is generated from it."""

from __future__ import annotations

from asyncio import Lock, sleep
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import AsyncRawCursor
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
    "create_engine",
    "create_vector_store",
    "fetch",
    "run",
    "sleep",
]

T = TypeVar("T")


async def run(connection: AsyncConnection, function: Callable[[Connection], T]) -> T:
    """Call a function that needs a sync connection."""
    return await connection.run_sync(function)


async def fetch(
    connection: AsyncConnection, statement: DriverStatement, parameters: Mapping[str, Any] = {}
) -> list[dict[str, Any]]:
    """Run a compiled statement on the driver's connection, in this one's transaction."""
    driver: Any = (await connection.get_raw_connection()).driver_connection
    try:
        async with AsyncRawCursor(driver, row_factory=dict_row) as cursor:
            await cursor.execute(statement.sql, statement.values(parameters), binary=True)
            return await cursor.fetchall()
    except psycopg.Error as error:
        if driver.closed:  # which SQLAlchemy has not seen: it would roll back, and fail
            await connection.invalidate(error)
        raise


async def create_vector_store(**arguments: Any) -> PGVectorStore:
    """Make LangChain's vector store; imported where it is used, because it is heavy."""
    from langchain_postgres import PGVectorStore

    return await PGVectorStore.create(**arguments)
