"""Statements that read and change tools; every change writes its history row with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Delete,
    Insert,
    Integer,
    Text,
    Update,
    bindparam,
    case,
    cast,
    column,
    delete,
    func,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.sql.dml import ReturningDelete

from registry.lexical import TERMS_REVISION
from registry.statements._rows import SPEC_FIELDS, AnyRow, Rows, spec_of, values_of
from registry.tables import tool_embedding, tool_history, tool_registry, tool_vector_archive
from registry.text import content_hash, text_hash
from registry.types import ToolRecord, ToolSpec, ToolVersion

__all__ = [
    "NOT_IN_CODE",
    "CurrentTool",
    "active_states",
    "change_tool",
    "content_hashes",
    "current_tool",
    "current_tools",
    "delete_archived_vectors",
    "delete_history",
    "delete_tool",
    "get_tool",
    "list_tools",
    "mark_synced",
    "record_purge",
    "set_active",
    "spec_row",
    "switched_off_by_sync",
    "tool_history_of",
    "tool_names",
    "tool_record",
    "tool_row",
    "tool_version",
    "write_tools",
]

NOT_IN_CODE = "deactivated: not in code"  # in the history, where a sync switched a tool off
_RECORD_COLUMNS = (
    *(tool_registry.c[name] for name in SPEC_FIELDS),
    tool_registry.c.id,
    tool_registry.c.namespace,
    tool_registry.c.is_active,
    tool_registry.c.version,
    tool_registry.c.content_hash,
    tool_registry.c.synced_hash,
    tool_registry.c.created_at,
    tool_registry.c.updated_at,
)
_CONTENT = (
    *SPEC_FIELDS[1:],
    "content_hash",
    "text_hash",
    "terms_revision",
)  # all but the name, which is the key
_SNAPSHOT = (*SPEC_FIELDS[1:], "is_active")


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentTool:
    """What a sync needs to know of a registered tool.

    Attributes:
        content_hash: Hash of what is stored now.
        synced_hash: Hash of what the last sync brought; differs after an edit in the registry.
        text_hash: Hash of the text that its vector should stand for.
        source_hash: Hash of the text its vector was made from, None without a vector.
        is_switched_off_by_sync: Whether it is off because a sync did not bring it.
    """

    id: UUID
    version: int
    content_hash: str
    text_hash: str
    synced_hash: str | None
    origin: str
    is_active: bool
    source_hash: str | None
    is_switched_off_by_sync: bool = False


# ---------------------------------------------------------------- reading


def get_tool(namespace: str, tool_name: str) -> Rows:
    """One tool, active or not."""
    return select(*_RECORD_COLUMNS).where(*_named(namespace, tool_name))


def list_tools(namespace: str, *, include_inactive: bool) -> Rows:
    """All tools of a namespace, by name."""
    statement = select(*_RECORD_COLUMNS).where(tool_registry.c.namespace == namespace)
    if not include_inactive:
        statement = statement.where(tool_registry.c.is_active)
    return statement.order_by(tool_registry.c.tool_name)


def tool_names(namespace: str) -> Rows:
    """Names of the active tools of a namespace, in order."""
    return (
        select(tool_registry.c.tool_name)
        .where(tool_registry.c.namespace == namespace, tool_registry.c.is_active)
        .order_by(tool_registry.c.tool_name)
    )


def active_states() -> Rows:
    """(tool_name, is_active) of those `names` that are registered in `namespace`; binds both."""
    return select(tool_registry.c.tool_name, tool_registry.c.is_active).where(
        tool_registry.c.namespace == bindparam("namespace", type_=Text),
        tool_registry.c.tool_name == func.any(bindparam("names", type_=ARRAY(Text))),
    )


def content_hashes(namespace: str, names: Iterable[str]) -> Rows:
    """(id, tool_name, content_hash) of those names that are registered."""
    return select(
        tool_registry.c.id, tool_registry.c.tool_name, tool_registry.c.content_hash
    ).where(
        tool_registry.c.namespace == namespace,
        tool_registry.c.tool_name == func.any(bindparam("names", list(names), ARRAY(Text))),
    )


def tool_record(row: AnyRow) -> ToolRecord:
    """Return the record of a row of `get_tool` or `list_tools`."""
    values = values_of(row)
    spec = spec_of(values)
    synced_hash = values.pop("synced_hash")
    is_edited = synced_hash is not None and synced_hash != values["content_hash"]
    return ToolRecord(spec=spec, is_edited=is_edited, **values)


def current_tools(namespace: str, model_id: int | None) -> Rows:
    """(tool_name, fields of CurrentTool) of a whole namespace."""
    return (
        select(
            tool_registry.c.tool_name,
            tool_registry.c.id,
            tool_registry.c.version,
            tool_registry.c.content_hash,
            tool_registry.c.text_hash,
            tool_registry.c.synced_hash,
            tool_registry.c.origin,
            tool_registry.c.is_active,
            tool_embedding.c.source_hash,
            # Looked up for the few that are off alone.
            case(
                (tool_registry.c.is_active, False),
                else_=_last_switching("change") == NOT_IN_CODE,
            ).label("is_switched_off_by_sync"),
        )
        .select_from(tool_registry)
        .outerjoin(
            tool_embedding,
            (tool_embedding.c.tool_id == tool_registry.c.id)
            & (tool_embedding.c.embedding_model_id == (0 if model_id is None else model_id)),
        )
        .where(tool_registry.c.namespace == namespace)
    )


def switched_off_by_sync(namespace: str) -> Rows:
    """(tool_name, changed_at, changed_by) of tools that are off because a sync did not bring them.

    One that a person switched off, or on and off again since, is not among them.
    """
    return select(
        tool_history.c.tool_name, tool_history.c.changed_at, tool_history.c.changed_by
    ).where(
        tool_registry.c.namespace == namespace,
        ~tool_registry.c.is_active,
        tool_history.c.tool_id == tool_registry.c.id,
        tool_history.c.version == _last_switching("version"),
        tool_history.c.change == NOT_IN_CODE,
    )


def _last_switching(name: str) -> ColumnElement[Any]:
    """Return a column of the history row in which a tool was last switched on or off."""
    history = tool_history.alias("switching")
    return (
        select(history.c[name])
        .where(
            history.c.tool_id == tool_registry.c.id,
            history.c.change.in_(("activated", "deactivated", NOT_IN_CODE)),
        )
        .order_by(history.c.version.desc())
        .limit(1)
        .correlate(tool_registry)
        .scalar_subquery()
    )


def current_tool(row: AnyRow) -> tuple[str, CurrentTool]:
    """Return (tool name, state) of a row of `current_tools`."""
    values = values_of(row)
    return values.pop("tool_name"), CurrentTool(**values)


def spec_row(row: AnyRow) -> tuple[UUID, ToolSpec]:
    """Return (id, spec) of a row that has these columns."""
    values = values_of(row)
    return values["id"], spec_of(values)


def tool_history_of(namespace: str, tool_name: str) -> Rows:
    """Every version of the tool of this name, newest first; after it what was purged.

    By version and not by time, which is that of the beginning of the change's transaction: one
    that had to wait is newer than its time says.
    """
    return (
        select(
            tool_history.c.tool_id,
            tool_history.c.tool_name,
            tool_history.c.version,
            tool_history.c.change,
            tool_history.c.snapshot,
            tool_history.c.changed_at,
            tool_history.c.changed_by,
        )
        .where(tool_history.c.namespace == namespace, tool_history.c.tool_name == tool_name)
        .order_by(tool_history.c.snapshot.is_(None), tool_history.c.version.desc())
    )


def tool_version(row: AnyRow) -> ToolVersion:
    """Return the version of a row of `tool_history_of` that has a snapshot."""
    values = values_of(row)
    snapshot = dict(values["snapshot"])
    is_active = snapshot.pop("is_active")
    snapshot["examples"] = tuple(snapshot["examples"])
    return ToolVersion(
        spec=ToolSpec(tool_name=values["tool_name"], **snapshot),
        is_active=is_active,
        version=values["version"],
        change=values["change"],
        changed_at=values["changed_at"],
        changed_by=values["changed_by"],
    )


# ---------------------------------------------------------------- changing


def write_tools() -> Insert:
    """Add tools, and update those that still have the version that was seen.

    Binds `namespace`, `rows` (of `tool_row`, as JSON), `change`, `changed_by`. Activity is not
    touched: a tool that was switched off stays off; one that was seen and is gone is not added
    anew. Returns what `_recorded` returns, for the rows that were written.
    """
    given = (
        func.jsonb_to_recordset(cast(bindparam("rows", type_=JSONB), JSONB))
        .table_valued(
            *(column(name, tool_registry.c[name].type) for name in ("tool_name", *_CONTENT)),
            column("version", Integer),
            name="given",
        )
        .render_derived(with_types=True)
    )
    names = ("tool_name", *_CONTENT, "version")
    # Locked, so that a purge in this moment comes before or after; in one order, so that two
    # syncs cannot deadlock.
    standing = (
        select(tool_registry.c.tool_name)
        .join(given, given.c.tool_name == tool_registry.c.tool_name)
        .where(tool_registry.c.namespace == bindparam("namespace", type_=Text))
        .order_by(tool_registry.c.tool_name)
        .with_for_update(of=tool_registry)
        .cte("standing")
    )
    rows = (
        select(
            bindparam("namespace", type_=Text),
            *(given.c[name] for name in names),
            given.c.content_hash,
        )
        .where((given.c.version == 1) | given.c.tool_name.in_(select(standing.c.tool_name)))
        .order_by(given.c.tool_name)
    )
    statement = insert(tool_registry).from_select(["namespace", *names, "synced_hash"], rows)
    new = statement.excluded
    return _recorded(
        statement.on_conflict_do_update(
            index_elements=[tool_registry.c.namespace, tool_registry.c.tool_name],
            set_={
                **{name: new[name] for name in (*_CONTENT, "version", "synced_hash")},
                "updated_at": func.now(),
            },
            where=tool_registry.c.version == new.version - 1,
        )
    )


def tool_row(spec: ToolSpec, *, seen_version: int | None) -> Mapping[str, Any]:
    """Return a spec as a row of `write_tools`; no version was seen of a tool to be added."""
    return {
        **{name: getattr(spec, name) for name in SPEC_FIELDS},
        "examples": list(spec.examples),
        "args_schema": dict(spec.args_schema),
        "content_hash": content_hash(spec),
        "text_hash": text_hash(spec),
        "terms_revision": TERMS_REVISION,
        "version": (seen_version or 0) + 1,
    }


def mark_synced(namespace: str, hashes: Mapping[str, str]) -> Update:
    """Note what code says of tools whose stored content is the same already."""
    given = (
        func.unnest(
            bindparam("names", list(hashes), ARRAY(Text)),
            bindparam("hashes", list(hashes.values()), ARRAY(Text)),
        )
        .table_valued(column("tool_name", Text), column("synced_hash", Text), name="given")
        .render_derived()
    )
    return (
        update(tool_registry)
        .where(
            tool_registry.c.namespace == namespace, tool_registry.c.tool_name == given.c.tool_name
        )
        .values(synced_hash=given.c.synced_hash)
    )


def change_tool(namespace: str, spec: ToolSpec, *, seen_version: int) -> Insert:
    """Give a tool other content, if it still has the version that was seen.

    Binds `change`, `changed_by`. What code said last is kept, so the next sync of unchanged code
    leaves the change alone.
    """
    row = tool_row(spec, seen_version=seen_version)
    return _recorded(
        update(tool_registry)
        .where(*_named(namespace, spec.tool_name), tool_registry.c.version == seen_version)
        .values({name: row[name] for name in (*_CONTENT, "version")})
        .values(updated_at=func.now())
    )


def set_active(namespace: str, tool_name: str, *, is_active: bool) -> Insert:
    """Switch a tool on or off, if it is not so already. Binds `change`, `changed_by`."""
    return _recorded(
        update(tool_registry)
        .where(*_named(namespace, tool_name), tool_registry.c.is_active != is_active)
        .values(
            is_active=is_active,
            version=tool_registry.c.version + 1,
            updated_at=func.now(),
            terms_revision=TERMS_REVISION,
        )
    )


def delete_tool(namespace: str, tool_name: str) -> ReturningDelete[*tuple[Any, ...]]:
    """Remove a tool with its vectors; returns (id, version)."""
    return (
        delete(tool_registry)
        .where(*_named(namespace, tool_name))
        .returning(tool_registry.c.id, tool_registry.c.version)
    )


def delete_history(namespace: str, tool_name: str) -> ReturningDelete[*tuple[Any, ...]]:
    """Remove every version of every tool that had this name; returns (snapshot)."""
    return (
        delete(tool_history)
        .where(tool_history.c.namespace == namespace, tool_history.c.tool_name == tool_name)
        .returning(tool_history.c.snapshot)
    )


def delete_archived_vectors(hashes: Iterable[str]) -> Delete:
    """Remove archived vectors of texts."""
    return delete(tool_vector_archive).where(
        tool_vector_archive.c.source_hash
        == func.any(bindparam("hashes", list(hashes), ARRAY(Text)))
    )


def record_purge(tool_id: UUID, namespace: str, tool_name: str, *, version: int) -> Insert:
    """Leave the one row that says a tool was purged. Binds `changed_by`."""
    return insert(tool_history).values(
        tool_id=tool_id,
        version=version,
        namespace=namespace,
        tool_name=tool_name,
        change="purged",
        changed_by=_changed_by(),
    )


def _named(namespace: str, tool_name: str) -> tuple[ColumnElement[bool], ...]:
    return (tool_registry.c.namespace == namespace, tool_registry.c.tool_name == tool_name)


def _recorded(changing: Insert | Update) -> Insert:
    """Return the change and its history rows as one statement; returns (id, name, version)."""
    changed = changing.returning(*_RECORD_COLUMNS).cte("changed")
    pairs = [part for name in _SNAPSHOT for part in (literal_column(f"'{name}'"), changed.c[name])]
    rows = select(
        changed.c.id,
        changed.c.version,
        changed.c.namespace,
        changed.c.tool_name,
        case((changed.c.version == 1, "added"), else_=bindparam("change", type_=Text)),
        func.jsonb_build_object(*pairs),
        _changed_by(),
    )
    return (
        insert(tool_history)
        .from_select(
            ["tool_id", "version", "namespace", "tool_name", "change", "snapshot", "changed_by"],
            rows,
        )
        .returning(tool_history.c.tool_id, tool_history.c.tool_name, tool_history.c.version)
    )


def _changed_by() -> ColumnElement[str]:
    given = func.nullif(bindparam("changed_by", type_=Text), "")
    return func.coalesce(given, literal_column("session_user::text"))
