"""The durable threads of a registry, as this process sees them: holds, and marks of calls."""

from __future__ import annotations

import re
import threading
import time
import weakref
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from psycopg import Connection
from psycopg.rows import DictRow
from sqlalchemy import Executable

from agent.durable.connections import ThreadConnections
from agent.durable.holds import Heartbeat, Hold
from agent.durable.settings import DurableThreads
from agent.middleware._messages import clean
from registry import threads as checkpointer_tables
from registry.base import RegistryBase
from registry.errors import ConfigurationError, RegistryError, ThreadBusyError
from registry.statements import DriverStatement, leases
from registry.statements import threads as statements
from registry.statements._rows import Rows
from registry.text import is_unicode

__all__ = ["HOLD_KEY", "ThreadStore", "checked_thread_id"]

# Of a run's configuration. LangGraph keeps what begins so out of what it stores.
HOLD_KEY = "__toolrag_hold"
_MAX_ID_CHARS = 255
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def checked_thread_id(thread_id: object) -> str:
    """Return a thread id that can be stored.

    Raises:
        ConfigurationError: It cannot.
    """
    if thread_id is None:
        raise ConfigurationError("This agent keeps threads; say which one with thread_id=…")
    if not isinstance(thread_id, str):
        raise ConfigurationError(
            f"thread_id is {thread_id!r:.60}, a {type(thread_id).__name__}; give a text"
        )
    wrong = (
        "is empty"
        if not thread_id.strip()
        else f"has {len(thread_id)} characters, {_MAX_ID_CHARS} at most"
        if len(thread_id) > _MAX_ID_CHARS
        else "holds a control character"
        if _CONTROL.search(thread_id)
        else "is not valid Unicode"
        if not is_unicode(thread_id)
        else ""
    )
    if wrong:
        raise ConfigurationError(f"The thread_id {thread_id[:40]!r} {wrong}")
    return thread_id


def _compiled(statement: Executable) -> DriverStatement:
    return DriverStatement.of(cast("Rows", statement))


_PROLONG = _compiled(statements.prolong_leases())
_BEGIN = _compiled(statements.begin_call())
_FORGET_CALL = _compiled(statements.forget_call())
_FORGET_CALLS = _compiled(statements.forget_calls())
_RELEASE = _compiled(statements.release_thread())
_END = _compiled(statements.end_thread())
_IS_THERE = DriverStatement(checkpointer_tables.IS_THERE, (), {})
_VERSION = DriverStatement(checkpointer_tables.VERSION, (), {})


class ThreadStore:
    """Holds and marks in the registry's database.

    Args:
        registry: Whose database it is; closing it closes this.
        settings: How threads are kept.
    """

    def __init__(self, registry: RegistryBase, settings: DurableThreads) -> None:
        self.connections = ThreadConnections(registry)
        self._namespace = registry.namespace
        self._seconds = settings.lease_s
        # Known weakly: a run that is dropped unfinished lets go of its thread.
        self._holds: weakref.WeakValueDictionary[str, Hold] = weakref.WeakValueDictionary()
        self._heartbeat = Heartbeat(self._prolong, seconds=self._seconds, on_idle=self._rest)
        self._beating: Connection[DictRow] | None = None
        self._fits = False
        registry.closers.append(self._aclose if self.connections.is_async else self._close)

    @classmethod
    def of(cls, registry: object, settings: DurableThreads) -> ThreadStore:
        """Return the store that all agents over one registry share.

        Raises:
            ConfigurationError: The registry has no database.
        """
        if not isinstance(registry, RegistryBase):
            raise ConfigurationError(
                "durable needs a ToolRegistry or an AsyncToolRegistry: threads are kept in its "
                "database. Give this agent a checkpointer instead."
            )
        with _shared_lock:
            stores = _shared.setdefault(registry, {})
            if settings not in stores:
                stores[settings] = cls(registry, settings)
            return stores[settings]

    def stored_id(self, thread_id: object) -> str:
        """Return how the database names a thread: no tenant can name another's.

        Raises:
            ConfigurationError: It is no usable thread id.
        """
        return f"{self._namespace}/{checked_thread_id(thread_id)}"

    def given_id(self, stored_id: str) -> str:
        """Return how callers name a thread."""
        return stored_id.removeprefix(f"{self._namespace}/")

    # --- the tables

    def check(self) -> None:
        """Check that the tables are there, once.

        Raises:
            SchemaVersionError: They are not, or are another release's.
            RegistryUnavailableError: The server does not answer.
        """
        if self._fits:
            return
        found = self.connections.ask(_IS_THERE)[0]["found"]
        self._judge(self.connections.ask(_VERSION)[0]["found"] if found == 1 else found)

    async def acheck(self) -> None:
        """Like `check`, for async code."""
        if self._fits:
            return
        found = (await self.connections.aask(_IS_THERE))[0]["found"]
        if found == 1:
            found = (await self.connections.aask(_VERSION))[0]["found"]
        self._judge(found)

    def _judge(self, found: int | None) -> None:
        checkpointer_tables.check_version(found)
        self._fits = True

    # --- one run at a time

    def take(self, thread_id: str) -> Hold:
        """Take a thread for a run.

        Raises:
            ThreadBusyError: Another run has it.
        """
        self.check()
        hold, take, asked_at = self._new(thread_id)
        if self.connections.ask(take):
            return self._taken(hold, asked_at)
        held = self.connections.ask(_compiled(leases.lease_holder(hold.lease)))
        raise self._busy(hold, held)

    async def atake(self, thread_id: str) -> Hold:
        """Like `take`, for async code."""
        await self.acheck()
        hold, take, asked_at = self._new(thread_id)
        if await self.connections.aask(take):
            return self._taken(hold, asked_at)
        held = await self.connections.aask(_compiled(leases.lease_holder(hold.lease)))
        raise self._busy(hold, held)

    def release(self, hold: Hold, *, is_over: bool) -> None:
        """Give a thread back; what cannot be given back runs out.

        Args:
            hold: Of the run.
            is_over: Every result of the run is stored, so its marks may go.
        """
        self._let_go(hold)
        with suppress(RegistryError):
            self.connections.ask(_END if is_over else _RELEASE, **_named(hold))

    async def arelease(self, hold: Hold, *, is_over: bool) -> None:
        """Like `release`, for async code."""
        self._let_go(hold)
        with suppress(RegistryError):
            await self.connections.aask(_END if is_over else _RELEASE, **_named(hold))

    def check_held(self, config: Mapping[str, Any]) -> None:
        """Pass a run that has its thread still; one without a hold is none of ours.

        Raises:
            ThreadBusyError: Another run has it.
        """
        hold = self.hold_of(config)
        if hold is not None and self._is_due(hold):
            asked_at = time.monotonic()
            kept = self.connections.ask(_PROLONG, holders=[hold.holder], seconds=hold.seconds)
            self._confirm(hold, asked_at, is_held=bool(kept))

    async def acheck_held(self, config: Mapping[str, Any]) -> None:
        """Like `check_held`, for async code."""
        hold = self.hold_of(config)
        if hold is not None and self._is_due(hold):
            asked_at = time.monotonic()
            kept = await self.connections.aask(
                _PROLONG, holders=[hold.holder], seconds=hold.seconds
            )
            self._confirm(hold, asked_at, is_held=bool(kept))

    def hold_of(self, config: Mapping[str, Any]) -> Hold | None:
        """Return the hold of a run; None for what runs without one.

        Raises:
            ThreadBusyError: The run gave it back already.
        """
        configurable: Mapping[str, Any] = config.get("configurable") or {}
        holder = configurable.get(HOLD_KEY)
        if holder is None:
            return None
        hold = self._holds.get(holder)
        if hold is None:
            thread_id = self.given_id(str(configurable.get("thread_id")))
            raise ThreadBusyError(
                f"This run of thread {thread_id!r} is over, and does nothing more.",
                thread_id=thread_id,
            )
        return hold

    # --- calls that may not be run twice

    def begin_call(self, hold: Hold, *, task_id: str, tool_name: str, call_id: str) -> bool:
        """Mark a call as begun; return whether it had not begun before.

        Raises:
            ThreadBusyError: Another run has the thread.
        """
        asked_at = time.monotonic()
        [row] = self.connections.ask(
            _BEGIN, **_call(hold, task_id=task_id, tool_name=tool_name, call_id=call_id)
        )
        self._confirm(hold, asked_at, is_held=row["held"] == 1)
        return row["marked"] == 1

    async def abegin_call(self, hold: Hold, *, task_id: str, tool_name: str, call_id: str) -> bool:
        """Like `begin_call`, for async code."""
        asked_at = time.monotonic()
        [row] = await self.connections.aask(
            _BEGIN, **_call(hold, task_id=task_id, tool_name=tool_name, call_id=call_id)
        )
        self._confirm(hold, asked_at, is_held=row["held"] == 1)
        return row["marked"] == 1

    def forget_call(self, hold: Hold, *, task_id: str) -> None:
        """Take a mark back: the call is to be run anew."""
        self.connections.ask(_FORGET_CALL, thread_id=hold.stored_id, task_id=task_id)

    async def aforget_call(self, hold: Hold, *, task_id: str) -> None:
        """Like `forget_call`, for async code."""
        await self.connections.aask(_FORGET_CALL, thread_id=hold.stored_id, task_id=task_id)

    def forget_calls(self, stored_id: str) -> None:
        """Take the marks of a thread away, with the thread."""
        self.connections.ask(_FORGET_CALLS, thread_id=stored_id)

    async def aforget_calls(self, stored_id: str) -> None:
        """Like `forget_calls`, for async code."""
        await self.connections.aask(_FORGET_CALLS, thread_id=stored_id)

    # --- inside

    def _new(self, thread_id: str) -> tuple[Hold, DriverStatement, float]:
        hold = Hold(thread_id=thread_id, stored_id=self.stored_id(thread_id), seconds=self._seconds)
        statement = leases.take_lease(hold.lease, hold.holder, seconds=hold.seconds)
        return hold, _compiled(statement), time.monotonic()

    def _taken(self, hold: Hold, asked_at: float) -> Hold:
        hold.confirm(asked_at=asked_at)
        self._holds[hold.holder] = hold
        self._heartbeat.add(hold)
        return hold

    def _let_go(self, hold: Hold) -> None:
        self._heartbeat.discard(hold)
        self._holds.pop(hold.holder, None)

    def _busy(self, hold: Hold, held: Sequence[DictRow]) -> ThreadBusyError:
        who = ""
        if held:
            by, until = held[0]["holder"], held[0]["expires_at"]
            who = f" ({by.rpartition(':')[0]}, until {until:%H:%M:%S %Z} if it was killed)"
        return ThreadBusyError(
            f"Another run of thread {hold.thread_id!r} is under way{who}. Wait for it; a killed "
            f"one's hold runs out within {self._seconds} s.",
            thread_id=hold.thread_id,
        )

    def _is_due(self, hold: Hold) -> bool:
        if hold.is_lost:
            raise hold.lost()
        return hold.age_s > hold.seconds * 2 / 3

    def _confirm(self, hold: Hold, asked_at: float, *, is_held: bool) -> None:
        if not is_held:
            raise hold.lost()
        hold.confirm(asked_at=asked_at)

    def _prolong(self, holders: Sequence[str]) -> Collection[str]:
        """Prolong holds; called by the heartbeat, which has a connection of its own."""
        if self._beating is None:
            self._beating = self.connections.single()
        try:
            rows = self.connections.ask_on(
                self._beating, _PROLONG, holders=list(holders), seconds=self._seconds
            )
        except RegistryError:
            self._rest()
            raise
        return {row["holder"] for row in rows}

    def _rest(self) -> None:
        connection, self._beating = self._beating, None
        if connection is not None:
            connection.close()

    def _close(self) -> None:
        self._heartbeat.close()
        self.connections.close()

    async def _aclose(self) -> None:
        self._heartbeat.close()
        await self.connections.aclose()


def _named(hold: Hold) -> dict[str, Any]:
    return {"lease": hold.lease, "holding": hold.holder, "thread_id": hold.stored_id}


def _call(hold: Hold, *, task_id: str, tool_name: str, call_id: str) -> dict[str, Any]:
    call = {
        "task_id": task_id,
        "tool_name": clean(tool_name, max_chars=_MAX_ID_CHARS),
        "call_id": clean(call_id, max_chars=_MAX_ID_CHARS),
    }
    return {**_named(hold), "seconds": hold.seconds, **call}


_shared_lock = threading.Lock()
_shared: weakref.WeakKeyDictionary[RegistryBase, dict[DurableThreads, ThreadStore]] = (
    weakref.WeakKeyDictionary()
)
