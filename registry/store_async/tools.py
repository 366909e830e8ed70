"""Tools one by one: read, changed, switched off, their history."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Unpack

from registry import statements
from registry.base import Work
from registry.changes import (
    ToolChanges,
    changed_spec,
    check_author,
    check_version,
    diff_versions,
    history_of,
    purged_advice,
    version_of,
)
from registry.errors import ToolNotFoundError, VersionConflictError
from registry.migrate import read_revision
from registry.statements import DriverStatement
from registry.store_async import _runtime
from registry.store_async._runtime import AsyncConnection
from registry.store_async.writing import AsyncWriting
from registry.sync import Change, Reuse, Write, specs_of
from registry.text import embedding_text, is_legal_name, text_hash
from registry.toolset import ToolLike, Toolset
from registry.types import FieldChange, ToolRecord, ToolSpec, ToolVersion
from registry.validation import (
    ValidationReport,
    schema_report,
    validation_report,
    without_vector_detail,
)

__all__ = ["AsyncTools"]

_ACTIVE_STATES = DriverStatement.of(statements.active_states())


class AsyncTools(AsyncWriting):
    """The part of the registry that deals with single tools."""

    async def get(self, tool_name: str) -> ToolRecord:
        """Return a registered tool, active or not.

        Raises:
            ToolNotFoundError: Not registered in this namespace; the nearest names are given.
        """
        await self._check_schema()
        async with self._connection() as connection:
            return await self._get(connection, tool_name)

    async def list_tools(self, *, include_inactive: bool = False) -> list[ToolRecord]:
        """Return the registered tools in name order."""
        await self._check_schema()
        async with self._connection() as connection:
            rows = (
                await connection.execute(
                    statements.list_tools(self.namespace, include_inactive=include_inactive)
                )
            ).all()
        return [statements.tool_record(row) for row in rows]

    async def active_states(self, names: Iterable[str]) -> dict[str, bool]:
        """Return whether tools are active; names that are not registered are absent."""
        await self._check_schema()
        legal = [name for name in names if is_legal_name(name)]
        if not legal:
            return {}

        async def ask(connection: AsyncConnection) -> list[list[dict[str, Any]]]:
            return await _runtime.fetch_all(
                connection,
                (self._driver_timeout, _ACTIVE_STATES),
                {"namespace": self.namespace, "names": legal},
            )

        _, rows = await self._read(ask)
        return {row["tool_name"]: row["is_active"] for row in rows}

    async def update_tool(
        self,
        tool_name: str,
        *,
        expected_version: int | None = None,
        changed_by: str = "",
        **changes: Unpack[ToolChanges],
    ) -> ToolRecord:
        """Change a tool in the registry: version + 1, one embedding call if its text changes.

        The change holds until code changes the tool; then the next sync brings code's text, and
        this one is in the history.

        Args:
            tool_name: Model-facing name.
            expected_version: Refuse unless the tool still has this version.
            changed_by: Who, for the history; the database user when empty.
            **changes: New values of `description`, `display_name`, `category`, `examples`,
                `requires_approval`, `read_only` and `fallback`.

        Returns:
            The tool as it is now; unchanged where the values are what they were.

        Raises:
            ToolNotFoundError: Not registered in this namespace.
            InvalidToolError: The result would not be a valid tool.
            VersionConflictError: Somebody else changed it; nothing was changed.
            EmbeddingError: The new text could not be embedded; nothing was changed.
        """
        return await self._change(
            tool_name,
            lambda record: changed_spec(record.spec, changes),
            change="updated",
            expected_version=expected_version,
            changed_by=changed_by,
        )

    async def activate(self, tool_name: str, *, changed_by: str = "") -> None:
        """Offer a tool again, from the next search of every process on.

        Raises:
            ToolNotFoundError: Not registered in this namespace.
            EmbeddingModelMismatchError: It has no vector of the model that serves, which is not
                the configured one.
            EmbeddingError: It has none, and its text could not be embedded; it stays off.
        """
        check_author(changed_by)
        while (record := await self._switched_on(tool_name, changed_by)) is not None:
            # It was off when the model that serves was switched to, and could not be embedded.
            await self.open()
            vector = await self._vector_of(record.spec)
            change = Change(spec=record.spec, tool_id=record.id, row=False, vector=vector)
            async with self._writing() as connection:
                await self._store_vectors(connection, Write(changes=[change]), {})

    async def deactivate(self, tool_name: str, *, changed_by: str = "") -> None:
        """Stop offering a tool, from the next search and call of every process on.

        Raises:
            ToolNotFoundError: Not registered in this namespace.
        """
        check_author(changed_by)
        await self._check_schema()
        async with self._connection() as connection:
            await self._set_active(connection, tool_name, is_active=False, changed_by=changed_by)

    async def history(self, tool_name: str) -> list[ToolVersion]:
        """Return every version of a tool, newest first.

        Raises:
            ToolNotFoundError: Never registered in this namespace, or purged.
        """
        await self._check_schema()
        async with self._connection() as connection:
            return await self._history(connection, tool_name)

    async def diff(
        self, tool_name: str, before: int, after: int | None = None
    ) -> list[FieldChange]:
        """Return the fields that differ between two versions, in a fixed order.

        Args:
            tool_name: Model-facing name.
            before: Version to compare from.
            after: Version to compare to; the newest when not given.

        Raises:
            ToolNotFoundError: Never registered in this namespace, or purged.
            VersionNotFoundError: The tool has no such version.
        """
        versions = await self.history(tool_name)
        return diff_versions(
            version_of(versions, before),
            versions[0] if after is None else version_of(versions, after),
        )

    async def rollback(
        self,
        tool_name: str,
        version: int,
        *,
        expected_version: int | None = None,
        changed_by: str = "",
    ) -> ToolRecord:
        """Give a tool the content it had at a version: a new version, whose activity stays.

        The vector of the old text is reused; nothing is embedded where it is still there.

        Args:
            tool_name: Model-facing name.
            version: Version to go back to.
            expected_version: Refuse unless the tool still has this version.
            changed_by: Who, for the history; the database user when empty.

        Raises:
            ToolNotFoundError: Not registered in this namespace, or purged.
            VersionNotFoundError: The tool has no such version.
            VersionConflictError: Somebody else changed it; nothing was changed.
            ConfigurationError: That is no version number.
        """
        check_version(version)
        await self.open()
        async with self._connection() as connection:
            spec = version_of(await self._history(connection, tool_name), version).spec
        return await self._change(
            tool_name,
            lambda record: spec,
            change=f"rolled back to {version}",
            expected_version=expected_version,
            changed_by=changed_by,
        )

    async def purge(self, tool_name: str, *, changed_by: str = "") -> None:
        """Remove a tool for good: its row, its vectors and every text in its history.

        For privacy; to retire a tool, deactivate it. One row stays that says a tool of this name
        was purged, when and by whom.

        Raises:
            ToolNotFoundError: Not registered in this namespace.
        """
        check_author(changed_by)
        await self._check_schema()
        async with self._connection() as connection:
            if not is_legal_name(tool_name):
                raise await self._missing(connection, tool_name)
            deleted = (
                await connection.execute(statements.delete_tool(self.namespace, tool_name))
            ).one_or_none()
            if deleted is None:
                raise await self._missing(connection, tool_name)
            versions = (
                await connection.execute(statements.delete_history(self.namespace, tool_name))
            ).all()
            await connection.execute(
                statements.delete_archived_vectors(self._hashes_of(tool_name, versions))
            )
            await connection.execute(
                statements.record_purge(
                    deleted.id, self.namespace, tool_name, version=deleted.version + 1
                ),
                {"changed_by": changed_by},
            )

    async def validate(
        self, tools: Toolset | Iterable[ToolLike], *, origin: str = "code"
    ) -> ValidationReport:
        """Compare the registry with the code of this process.

        Args:
            tools: As for `sync`.
            origin: As for `sync`.

        Returns:
            What does not fit, each with what to do: registered but not in code, in code but not
            registered, text or schema that differ, tools without a vector of their text, a
            schema or an embedding model that is not this release's, tools that cannot be
            registered, or that a sync switched off. No finding: all is well.

        Raises:
            DuplicateToolError: Two tools have one name.
            ConfigurationError: That is no list of tools.
            RegistryUnavailableError: The database does not answer.
        """
        specs, refused = specs_of(tools, origin=origin)
        self._check_not_closed()
        async with self._connection() as connection:
            revision = await _runtime.run(connection, read_revision)
            if (problem := schema_report(revision)) is not None:
                return problem
            model = (await connection.execute(statements.active_model())).one_or_none()
            rows = (
                await connection.execute(
                    statements.list_tools(self.namespace, include_inactive=True)
                )
            ).all()
            lacking = (
                await connection.execute(statements.tools_without_vector(model.id if model else 0))
            ).all()
            off = (await connection.execute(statements.switched_off_by_sync(self.namespace))).all()
        return validation_report(
            specs,
            refused=refused,
            records=[statements.tool_record(row) for row in rows],
            without_vector={
                row.tool_name: without_vector_detail(is_stale=row.is_stale)
                for row in lacking
                if row.namespace == self.namespace
            },
            switched_off={
                row.tool_name: f"since {row.changed_at:%Y-%m-%d} by {row.changed_by}" for row in off
            },
            model=None if model is None else statements.model_of_row(model)[1],
            embedder=self._embedder,
        )

    async def _get(self, connection: AsyncConnection, tool_name: str) -> ToolRecord:
        row = None
        if is_legal_name(tool_name):
            row = (
                await connection.execute(statements.get_tool(self.namespace, tool_name))
            ).one_or_none()
        if row is None:
            raise await self._missing(connection, tool_name)
        return statements.tool_record(row)

    async def _missing(self, connection: AsyncConnection, tool_name: str) -> ToolNotFoundError:
        """Return the error for a name that is not registered, or was purged."""
        names = (await connection.scalars(statements.tool_names(self.namespace))).all()
        if is_legal_name(tool_name):
            left = (
                await connection.execute(statements.tool_history_of(self.namespace, tool_name))
            ).first()
            if left is not None and left.snapshot is None:
                return ToolNotFoundError(
                    tool_name, namespace=self.namespace, advice=purged_advice(left)
                )
        return self._not_found(tool_name, names)

    async def _history(self, connection: AsyncConnection, tool_name: str) -> list[ToolVersion]:
        if not is_legal_name(tool_name):
            raise await self._missing(connection, tool_name)
        rows = (
            await connection.execute(statements.tool_history_of(self.namespace, tool_name))
        ).all()
        if not rows:
            raise await self._missing(connection, tool_name)
        return history_of(rows, tool_name, namespace=self.namespace)

    async def _switched_on(self, tool_name: str, changed_by: str) -> ToolRecord | None:
        """Switch a tool on; return it instead where it has no vector to be found by."""
        await self._check_schema()
        async with self._writing() as connection:
            record = await self._get(connection, tool_name)
            if (
                await connection.execute(statements.vector_is_lacking(record.id))
            ).one_or_none() is not None:
                return record
            await self._set_active(connection, tool_name, is_active=True, changed_by=changed_by)
        return None

    async def _set_active(
        self, connection: AsyncConnection, tool_name: str, *, is_active: bool, changed_by: str
    ) -> None:
        await self._get(connection, tool_name)
        change = {
            "change": "activated" if is_active else "deactivated",
            "changed_by": changed_by,
        }
        switched = (
            await connection.execute(
                statements.set_active(self.namespace, tool_name, is_active=is_active), change
            )
        ).one_or_none()
        if switched is not None:
            # Read again: from here on nobody else changes it.
            record = await self._get(connection, tool_name)
            await self._store_terms(connection, {record.id: record.spec})

    async def _change(
        self,
        tool_name: str,
        new_spec: Callable[[ToolRecord], ToolSpec],
        *,
        change: str,
        expected_version: int | None,
        changed_by: str,
    ) -> ToolRecord:
        """Read, embed without holding a connection, write if nobody was faster; else again."""
        check_author(changed_by)
        if expected_version is not None:
            check_version(expected_version)
        while True:
            record = await self.get(tool_name)
            if expected_version not in (None, record.version):
                raise VersionConflictError(
                    tool_name, expected=expected_version or 0, found=record.version
                )
            spec = new_spec(record)
            if spec == record.spec:
                return record
            same_text = text_hash(spec) == text_hash(record.spec)
            vector = None if same_text else await self._vector_of(spec)
            changed = Change(spec=spec, tool_id=record.id, row=False, vector=vector)
            async with self._writing() as connection:
                done = (
                    await connection.execute(
                        statements.change_tool(self.namespace, spec, seen_version=record.version),
                        {"change": change, "changed_by": changed_by},
                    )
                ).one_or_none()
                if done is not None:
                    await self._store_vectors(connection, Write(changes=[changed]), {})
                    await self._store_terms(connection, {record.id: spec})
                    return await self._get(connection, tool_name)

    async def _vector_of(self, spec: ToolSpec) -> str:
        """Return the vector of a tool's text, which may have been embedded before."""
        digest = text_hash(spec)
        known = await self._answer(Reuse(hashes=[digest]), Work())
        if digest in known:
            return known[digest]
        (vector,) = await self._embedder.aembed_documents([embedding_text(spec)])
        return vector
