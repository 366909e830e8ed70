"""Connections: engines, transactions, leases, the checks of a start."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Self, TypeVar

import psycopg
from langchain_core.embeddings import Embeddings
from sqlalchemy.exc import DBAPIError

from registry import statements
from registry.base import SWITCH, Lease, RegistryBase, Waiting, Work
from registry.database import translated_errors
from registry.embedding import Embedder
from registry.errors import RegistryBusyError, RegistryError
from registry.migrate import check_revision, read_revision
from registry.settings import RegistrySettings
from registry.statements import AnyRow
from registry.store_async import _runtime
from registry.store_async._runtime import AsyncConnection
from registry.usage_log import UsageLog

__all__ = ["AsyncConnections"]

T = TypeVar("T")

_log = logging.getLogger(__name__)


class AsyncConnections(RegistryBase):
    """Opens, closes and hands out connections; the rest of the registry is built on it."""

    def __init__(
        self,
        url: str,
        *,
        embeddings: str | Embeddings | Embedder = "builtin",
        replica_url: str | None = None,
        settings: RegistrySettings | None = None,
    ) -> None:
        super().__init__(url, embeddings=embeddings, replica_url=replica_url, settings=settings)
        self._engine = _runtime.create_engine(self._url, self.settings)
        # Of the same pool: what only reads needs no transaction around it.
        self._reads = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._replica_reads = self._reads
        if self._replica_url is not None:
            replica = _runtime.create_engine(self._replica_url, self.settings)
            self._replica_reads = replica.execution_options(isolation_level="AUTOCOMMIT")
        self._open_lock = _runtime.Lock()
        self._is_open = False
        self._schema_fits = False

    async def open(self) -> Self:
        """Check the database; does nothing when that was done before.

        Raises:
            RegistryUnavailableError: The server does not answer.
            SchemaVersionError: The schema is absent, older or newer.
            EmbeddingModelMismatchError: The vectors are of another embedding model.
        """
        await self._check_schema()
        async with self._open_lock:
            if not self._is_open:
                async with self._connection() as connection:
                    self._accept_model(
                        (await connection.execute(statements.active_model())).one_or_none()
                    )
                self._is_open = True
        return self

    async def _check_schema(self) -> None:
        """Check the schema alone: what embeds nothing works whatever model is configured."""
        self._check_not_closed()
        if not self._schema_fits:
            async with self._connection() as connection:
                check_revision(await _runtime.run(connection, read_revision))
            self._schema_fits = True

    async def close(self) -> None:
        """Close every connection, the usage log's too; the registry cannot be used afterwards."""
        self._closed = True
        for close in self.closers:
            await close()
        if (log := UsageLog.existing(self)) is not None:
            await log.aclose()
        await self._engine.dispose()
        await self._replica_reads.dispose()

    async def __aenter__(self) -> Self:
        try:
            return await self.open()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[AsyncConnection]:
        """One transaction: committed at the end, rolled back on an error; driver errors are ours.

        Reads are committed as well: a rollback makes psycopg forget its prepared statements.
        """
        with translated_errors(self._url):
            connection = await self._live_connection()
            try:
                yield connection
                await connection.commit()
            finally:
                await connection.close()

    async def _live_connection(self) -> AsyncConnection:
        """Begin a transaction; on a new connection where the server ended the pool's meanwhile.

        The first statement shows whether it did: asking beforehand would be one more round trip.
        """
        connection = await self._engine.connect()
        try:
            await connection.execute(self._statement_timeout)
        except BaseException:
            has_gone = connection.invalidated  # and with it the pool's others
            await connection.close()
            if not has_gone:
                raise
        else:
            return connection
        connection = await self._engine.connect()
        try:
            await connection.execute(self._statement_timeout)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _read(self, ask: _runtime.Reading[T], *, from_replica: bool = False) -> T:
        """Ask on a connection, and once more where the server ended it.

        Args:
            ask: Changes nothing, so it may be done twice.
            from_replica: Where there is one.
        """
        url = self._replica_url if from_replica else self._url
        engine = self._replica_reads if from_replica else self._reads
        with translated_errors(url or self._url):
            async with engine.connect() as connection:
                try:
                    return await ask(connection)
                except (psycopg.Error, DBAPIError):
                    if not connection.invalidated:
                        raise
            await engine.dispose()  # the pool's others have gone with it
            async with engine.connect() as connection:
                return await ask(connection)

    @asynccontextmanager
    async def _autocommit_connection(self) -> AsyncGenerator[AsyncConnection]:
        """Each statement on its own, for indexes that are made without blocking writers.

        A connection outside of the pool: what is set in its session ends with it.
        """
        unpooled = _runtime.create_engine(self._url, self.settings, pooled=False)
        engine = unpooled.execution_options(isolation_level="AUTOCOMMIT")
        with translated_errors(self._url):
            async with engine.connect() as connection:
                yield connection

    @asynccontextmanager
    async def _writing(self) -> AsyncGenerator[AsyncConnection]:
        """One transaction that may store texts; begins once no switch keeps writers waiting."""
        # As long as a switch may: it takes its lease once, and does not prolong it.
        waiting = Waiting(SWITCH, wait_s=self.settings.lease_wait_s + self.settings.lease_s)
        while True:
            async with self._connection() as connection:
                # First the lock, then the look: a switch that comes later waits for this one.
                await connection.execute(statements.lock_for_writing())
                held = (await connection.execute(statements.lease_holder(SWITCH))).one_or_none()
                if held is None:
                    yield connection
                    return
            await self._wait(waiting, SWITCH, held)

    async def _wait(self, waiting: Waiting, name: str, held: AnyRow | None) -> None:
        pause_s = waiting.pause_s(held)
        _log.info("lease_wait", extra={"lease": name, "waited_s": waiting.waited_s})
        await _runtime.sleep(pause_s)

    async def _know_model(self, connection: AsyncConnection) -> None:
        """Learn the set that serves: the first, or a newer one of the same model."""
        self._follow_model((await connection.execute(statements.active_model())).one_or_none())

    @asynccontextmanager
    async def _lease(self, name: str, *, wait: bool) -> AsyncGenerator[Lease]:
        """Be the only process that does something; a killed one's lease runs out."""
        lease = Lease(name=name, seconds=round(self.settings.lease_s))
        waiting = Waiting(name, wait_s=self.settings.lease_wait_s if wait else 0.0)
        while True:
            async with self._connection() as connection:
                if (await connection.execute(lease.take)).one_or_none() is not None:
                    break
                held = (await connection.execute(statements.lease_holder(name))).one_or_none()
            await self._wait(waiting, name, held)
        try:
            yield lease
        finally:
            # A lease that cannot be given back runs out; what ended the work is what matters.
            with suppress(RegistryError):
                async with self._connection() as connection:
                    await connection.execute(lease.release)

    async def _prolong(self, connection: AsyncConnection, work: Work) -> None:
        if work.lease is None:
            return
        if (await connection.execute(work.lease.take)).one_or_none() is None:
            raise RegistryBusyError(
                f"Another process took {work.lease.name!r} over, because this one was silent for "
                f"more than {work.lease.seconds} s. What was stored stays; run this again."
            )
