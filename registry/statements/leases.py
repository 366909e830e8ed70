"""Statements of leases: one process does a thing, the others wait or are told."""

from __future__ import annotations

from sqlalchemy import Delete, Insert, Text, cast, delete, func, literal, select
from sqlalchemy.dialects.postgresql import INTERVAL, insert

from registry.statements._rows import Rows
from registry.tables import tool_lease

__all__ = ["lease_holder", "release_lease", "take_lease"]


def take_lease(name: str, holder: str, *, seconds: int) -> Insert:
    """Take or prolong a lease; returns its name unless another holder's has not run out."""
    expires = func.now() + cast(literal(f"{seconds:d} seconds", Text), INTERVAL)
    statement = insert(tool_lease).values(name=name, holder=holder, expires_at=expires)
    return statement.on_conflict_do_update(
        index_elements=[tool_lease.c.name],
        set_={"holder": holder, "expires_at": expires},
        where=(tool_lease.c.holder == holder) | (tool_lease.c.expires_at < func.now()),
    ).returning(tool_lease.c.name)


def lease_holder(name: str) -> Rows:
    """(holder, expires_at) of a lease that has not run out, whenever the transaction began."""
    return select(tool_lease.c.holder, tool_lease.c.expires_at).where(
        tool_lease.c.name == name, tool_lease.c.expires_at > func.clock_timestamp()
    )


def release_lease(name: str, holder: str) -> Delete:
    """Give a lease back."""
    return delete(tool_lease).where(tool_lease.c.name == name, tool_lease.c.holder == holder)
