"""Writes batches of usage records; used by one thread at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL

from registry.database import create_registry_engine, translated_errors
from registry.errors import SchemaVersionError
from registry.migrate import check_revision, read_revision
from registry.settings import RegistrySettings
from registry.statements import set_statement_timeout
from registry.statements import usage as statements
from registry.usage import (
    CallRecord,
    SelectionRecord,
    UsageRecord,
    UsageSettings,
    merged_calls,
    storable,
)

__all__ = ["UsageWriter"]

_SCHEMA_CHECK_EVERY_S = 60.0


class UsageWriter:
    """One connection of its own, made when it is needed.

    Args:
        url: As `normalise_url` returns it.
        settings: What of a question may be kept.
        registry_settings: Time limits of connection and statements.
    """

    def __init__(
        self, url: URL, settings: UsageSettings, registry_settings: RegistrySettings
    ) -> None:
        self._url = url
        self._settings = settings
        self._registry_settings = replace(registry_settings, pool_size=1, max_overflow=0)
        self._engine: Engine | None = None
        self._schema_fits = False
        self._schema_problem: SchemaVersionError | None = None
        self._schema_checked_at = 0.0

    def write(self, batch: Sequence[UsageRecord]) -> set[UUID]:
        """Write records in one transaction; written twice, they change nothing the second time.

        Returns:
            Ids of selections that are not there, so that calls of them were not written.

        Raises:
            RegistryUnavailableError: The database does not answer, or not in time.
            SchemaVersionError: Its schema is not this release's; asked again after a minute.
            RegistryError: It refused the records.
        """
        self._recall_schema_problem()
        selections = [
            storable(record, self._settings)
            for record in batch
            if isinstance(record, SelectionRecord)
        ]
        calls = merged_calls(record for record in batch if isinstance(record, CallRecord))
        if self._engine is None:
            self._engine = create_registry_engine(self._url, self._registry_settings)
        try:
            with translated_errors(self._url), self._engine.begin() as connection:
                connection.execute(
                    set_statement_timeout(self._registry_settings.statement_timeout_s)
                )
                self._check_schema(connection)
                _add_selections(connection, selections)
                return _add_calls(connection, calls)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the connection back; the next `write` makes another one."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()

    def _recall_schema_problem(self) -> None:
        waited = time.monotonic() - self._schema_checked_at
        if self._schema_problem is not None and waited < _SCHEMA_CHECK_EVERY_S:
            raise self._schema_problem

    def _check_schema(self, connection: Connection) -> None:
        if self._schema_fits:
            return
        self._schema_checked_at = time.monotonic()
        try:
            check_revision(read_revision(connection))
        except SchemaVersionError as error:
            self._schema_problem = error
            raise
        self._schema_problem = None
        self._schema_fits = True


def _add_selections(connection: Connection, selections: Sequence[SelectionRecord]) -> None:
    if not selections:
        return
    connection.execute(statements.add_selections(), statements.selection_rows(selections))
    if rows := statements.hit_rows(selections):
        connection.execute(statements.add_hits(), rows)


def _add_calls(connection: Connection, calls: Sequence[CallRecord]) -> set[UUID]:
    if not calls:
        return set()
    wanted = {call.selection_id for call in calls}
    there = set(connection.scalars(statements.lock_selections(wanted)))
    if rows := statements.call_rows([call for call in calls if call.selection_id in there]):
        connection.execute(statements.add_calls(), rows)
    return wanted - there
