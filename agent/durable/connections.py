"""The connections of durable threads: a small pool beside the registry's, closed with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from inspect import iscoroutinefunction
from typing import Any, cast

from psycopg import AsyncConnection, AsyncRawCursor, Connection, OperationalError, RawCursor
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from registry.base import RegistryBase
from registry.database import normalise_url, translated_errors
from registry.errors import ConfigurationError, RegistryError
from registry.statements import DriverStatement

__all__ = ["ThreadConnections"]

_NO_SYNC = (
    "This agent has an AsyncToolRegistry, which works in async runs only. "
    "Use `ainvoke` or `astream`, or give the agent a ToolRegistry."
)


class ThreadConnections:
    """Connections as LangGraph's checkpointer wants them, with the registry's own settings.

    Those of a sync registry serve async runs too, in a worker thread.

    Args:
        registry: Whose database it is.
    """

    def __init__(self, registry: RegistryBase) -> None:
        settings = registry.settings
        self.is_async = iscoroutinefunction(getattr(registry, "search", None))
        self._url = normalise_url(registry.url)
        self._conninfo = self._url.set(drivername="postgresql").render_as_string(
            hide_password=False
        )
        self._arguments: dict[str, Any] = {
            "autocommit": True,
            "row_factory": dict_row,
            # Where statements may not be prepared, never; the driver's own default elsewhere.
            "prepare_threshold": 5 if settings.prepared_statements else None,
            "connect_timeout": max(2, round(settings.connect_timeout_s)),
            "application_name": "toolrag",
        }
        self._options: dict[str, Any] = {
            "min_size": 0,
            "max_size": settings.pool_size,
            "timeout": settings.pool_timeout_s,
            "num_workers": 1,
            "open": False,
            "name": "toolrag-threads",
        }
        self._lock = threading.Lock()
        self._pool: ConnectionPool[Connection[DictRow]] | None = None
        self._async_pool: AsyncConnectionPool[AsyncConnection[DictRow]] | None = None
        self._is_closed = False

    @contextmanager
    def connection(self) -> Generator[Connection[DictRow]]:
        """One connection that lives; driver errors are ours.

        Raises:
            ConfigurationError: The registry is an async one.
            RegistryUnavailableError: The server does not answer.
        """
        if self.is_async:
            raise ConfigurationError(_NO_SYNC)
        with self._lock:
            self._check_open()
            if self._pool is None:
                self._pool = ConnectionPool(
                    self._conninfo,
                    kwargs=self._arguments,
                    check=self._check,
                    **self._options,
                )
                self._pool.open()
            pool = self._pool
        with translated_errors(self._url), pool.connection() as connection:
            yield connection

    @asynccontextmanager
    async def aconnection(self) -> AsyncGenerator[AsyncConnection[DictRow]]:
        """Like `connection`, of an async registry."""
        self._check_open()
        if self._async_pool is None:
            pool: AsyncConnectionPool[AsyncConnection[DictRow]] = AsyncConnectionPool(
                self._conninfo,
                kwargs=self._arguments,
                check=self._acheck,
                **self._options,
            )
            self._async_pool = pool
            await pool.open()
        with translated_errors(self._url):
            async with self._async_pool.connection() as connection:
                yield connection

    def single(self) -> Connection[DictRow]:
        """Return a connection outside of the pool, for the caller to close."""
        with translated_errors(self._url):
            return Connection[DictRow].connect(self._conninfo, **self._arguments)

    def ask(self, statement: DriverStatement, **values: Any) -> list[DictRow]:
        """Run a statement on its own; return its rows.

        Raises:
            ConfigurationError, RegistryError: As for `connection`.
        """
        with self.connection() as connection:
            return self.ask_on(connection, statement, **values)

    def ask_on(
        self, connection: Connection[DictRow], statement: DriverStatement, **values: Any
    ) -> list[DictRow]:
        """Run a statement on this connection."""
        with translated_errors(self._url):
            cursor = RawCursor(connection, row_factory=dict_row)
            cursor.execute(statement.sql, statement.values(values))
            return cursor.fetchall() if cursor.description else []

    async def aask(self, statement: DriverStatement, **values: Any) -> list[DictRow]:
        """Like `ask`, for async code."""
        if not self.is_async:
            return await asyncio.to_thread(self.ask, statement, **values)
        async with self.aconnection() as connection:
            cursor = AsyncRawCursor(connection, row_factory=dict_row)
            await cursor.execute(statement.sql, statement.values(values))
            return await cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        """Close the connections of a sync registry."""
        with self._lock:
            self._is_closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    async def aclose(self) -> None:
        """Close the connections of an async registry."""
        self._is_closed = True
        pool, self._async_pool = self._async_pool, None
        if pool is not None:
            await pool.close()

    def _check(self, connection: Connection[DictRow]) -> None:
        """Pass a connection that lives; where one was ended, the others are looked at as ended."""
        try:
            ConnectionPool.check_connection(cast("Any", connection))
        except OperationalError:
            # Each one met dead would make the caller wait longer.
            if self._pool is not None:
                self._pool.drain()
            raise

    async def _acheck(self, connection: AsyncConnection[DictRow]) -> None:
        """Like `_check`, of an async registry."""
        try:
            await AsyncConnectionPool.check_connection(cast("Any", connection))
        except OperationalError:
            if self._async_pool is not None:
                await self._async_pool.drain()
            raise

    def _check_open(self) -> None:
        if self._is_closed:
            raise RegistryError("This registry was closed; make a new one.")
