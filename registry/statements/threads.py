"""Statements of durable threads: who runs one, and which of its calls have begun.

They are compiled once; the values are given with each call, under the names of the arguments.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Delete, Integer, Text, bindparam, delete, exists, func, select, update
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.sql.dml import ReturningUpdate

from registry.statements._rows import Rows
from registry.tables import tool_call_mark, tool_lease

__all__ = [
    "begin_call",
    "end_thread",
    "forget_call",
    "forget_calls",
    "prolong_leases",
    "release_thread",
]

_HOLDER = tool_lease.c.holder
_MARK = tool_call_mark.c


def prolong_leases() -> ReturningUpdate[Any]:
    """Prolong what `holders` hold still, run out or not, by `seconds`; returns their holders."""
    return (
        update(tool_lease)
        .where(_HOLDER == func.any(bindparam("holders", type_=ARRAY(Text))))
        .values(expires_at=_until())
        .returning(_HOLDER)
    )


def begin_call() -> Rows:
    """Mark a call as begun: (held, marked), 1 or 0 each.

    `held` is 0 where another took the thread over, and `marked` where the call began before. The
    lease is prolonged and the mark is made in one statement, so no process that lost the thread
    can mark a call. Of `lease`, `holding`, `seconds`, and the columns of the mark.
    """
    held = (
        update(tool_lease)
        .where(_is_held())
        .values(expires_at=_until())
        .returning(tool_lease.c.name)
        .cte("held")
    )
    columns = ("thread_id", "task_id", "tool_name", "call_id")
    row = select(*(bindparam(name, type_=Text) for name in columns))
    marked = (
        insert(tool_call_mark)
        .from_select(columns, row.select_from(held))
        .on_conflict_do_nothing()
        .returning(_MARK.task_id)
        .cte("marked")
    )
    return select(
        select(func.count()).select_from(held).scalar_subquery().label("held"),
        select(func.count()).select_from(marked).scalar_subquery().label("marked"),
    )


def forget_call() -> Delete:
    """Take the mark of `task_id` in `thread_id` back: the call is to be run anew."""
    return delete(tool_call_mark).where(_is_of_thread(), _MARK.task_id == bindparam("task_id"))


def forget_calls() -> Delete:
    """Take the marks of `thread_id` away, with the thread."""
    return delete(tool_call_mark).where(_is_of_thread())


def release_thread() -> Delete:
    """Give `lease` back, if `holding` has it still; the marks stay."""
    return delete(tool_lease).where(_is_held())


def end_thread() -> Delete:
    """Give `lease` back, and take the marks of `thread_id` away if `holding` had it still."""
    released = delete(tool_lease).where(_is_held()).returning(tool_lease.c.name).cte("released")
    return forget_calls().where(exists(select(released.c.name)))


def _is_held() -> Any:
    return (tool_lease.c.name == bindparam("lease")) & (_HOLDER == bindparam("holding"))


def _is_of_thread() -> Any:
    return _MARK.thread_id == bindparam("thread_id")


def _until() -> Any:
    seconds = bindparam("seconds", type_=Integer)
    return func.now() + func.make_interval(0, 0, 0, 0, 0, 0, seconds)
