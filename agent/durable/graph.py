"""The compiled agent with durable threads: one run a thread at a time, saved before it acts."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Self, cast

from langchain_core.messages import AnyMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import TASKS
from langgraph.constants import CONFIG_KEY_CHECKPOINTER, END
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, StateSnapshot, StateUpdate

from agent.durable.holds import Hold
from agent.durable.store import HOLD_KEY, ThreadStore, checked_thread_id
from agent.guarding.answers import open_calls_answered
from registry.errors import ApprovalError, ConfigurationError

__all__ = ["DurableAgent"]

_TOOLS = "tools"
_CLEAR: Sequence[Sequence[StateUpdate]] = [[StateUpdate(None, END)]]

_logger = logging.getLogger(__name__)


class DurableAgent(CompiledStateGraph[Any, Any, Any, Any]):
    """A compiled agent that takes its thread before it reads it, and saves before it acts.

    Every way to run it (`invoke`, `stream`, events, batches) goes through `stream` or `astream`.
    """

    def __init__(self, *, threads: ThreadStore, **graph: Any) -> None:
        super().__init__(**graph)
        self.threads = threads

    @classmethod
    def of(cls, agent: CompiledStateGraph[Any, Any, Any, Any], threads: ThreadStore) -> Self:
        """Return a compiled agent as a durable one; `Pregel.copy` makes its copies the same way."""
        attributes = {
            name: value for name, value in vars(agent).items() if name != "__orig_class__"
        }
        return cls(threads=threads, **attributes)

    # --- runs

    def stream(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input: Any, config: RunnableConfig | None = None, **options: Any
    ) -> Iterator[Any]:
        """Run the agent; no other run of the thread is let in meanwhile.

        Raises:
            ThreadBusyError: Another run of the thread is under way.
            ApprovalError: What is answered waits no more.
        """
        thread_id = self._own_thread(config)
        if thread_id is None:
            yield from super().stream(input, config, **options)
            return
        options = _saving(options)
        hold = self.threads.take(thread_id)
        is_over = False
        try:
            held = _held(config, hold)
            yield from super().stream(self._fresh(input, held), held, **options)
            is_over = True
        finally:
            self.threads.release(hold, is_over=is_over)

    async def astream(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input: Any, config: RunnableConfig | None = None, **options: Any
    ) -> AsyncIterator[Any]:
        """Run the agent; no other run of the thread is let in meanwhile.

        Raises:
            ThreadBusyError: Another run of the thread is under way.
            ApprovalError: What is answered waits no more.
        """
        thread_id = self._own_thread(config)
        if thread_id is None:
            run = cast("Any", super().astream(input, config, **options))
            async with aclosing(run) as parts:
                async for part in parts:
                    yield part
            return
        options = _saving(options)
        hold = await self.threads.atake(thread_id)
        is_over = False
        try:
            held = _held(config, hold)
            given = await self._afresh(input, held)
            run = cast("Any", super().astream(given, held, **options))
            async with aclosing(run) as parts:
                async for part in parts:
                    yield part
            is_over = True
        finally:
            await self.threads.arelease(hold, is_over=is_over)

    # --- changes from outside

    def bulk_update_state(
        self, config: RunnableConfig, supersteps: Sequence[Sequence[StateUpdate]]
    ) -> RunnableConfig:
        """Change the thread's state; not while a run of it is under way.

        Raises:
            ThreadBusyError: One is.
        """
        thread_id = self._own_thread(config)
        if thread_id is None or _is_held(config):
            return super().bulk_update_state(config, supersteps)
        hold = self.threads.take(thread_id)
        try:
            return _plain(super().bulk_update_state(_held(config, hold), supersteps))
        finally:
            self.threads.release(hold, is_over=False)

    async def abulk_update_state(
        self, config: RunnableConfig, supersteps: Sequence[Sequence[StateUpdate]]
    ) -> RunnableConfig:
        """Change the thread's state; not while a run of it is under way.

        Raises:
            ThreadBusyError: One is.
        """
        thread_id = self._own_thread(config)
        if thread_id is None or _is_held(config):
            return await super().abulk_update_state(config, supersteps)
        hold = await self.threads.atake(thread_id)
        try:
            return _plain(await super().abulk_update_state(_held(config, hold), supersteps))
        finally:
            await self.threads.arelease(hold, is_over=False)

    # --- what a run finds

    def _own_thread(self, config: RunnableConfig | None) -> str | None:
        """Return the thread that this agent keeps itself; None as a part of another graph."""
        configurable: Mapping[str, Any] = (
            ensure_config(merge_configs(self.config, config)).get("configurable") or {}
        )
        if CONFIG_KEY_CHECKPOINTER in configurable:
            return None
        return checked_thread_id(configurable.get("thread_id"))

    def _fresh(self, given: Any, config: RunnableConfig) -> Any:
        """Return what a run is given, once it is known to fit the thread as it is now."""
        if given is None:
            return None
        if isinstance(given, Command):
            if given.resume is not None:
                _check_waiting(given, self.get_state(config))
            return given
        if not _has_calls(self._saver().get_tuple(config), config):
            return given
        if not _is_open(self.get_state(config)):
            return given
        # Finished calls keep their results; the others get an answer that says what is known.
        self.bulk_update_state(config, _CLEAR)
        return _after(self.get_state(config), given)

    async def _afresh(self, given: Any, config: RunnableConfig) -> Any:
        """Return what a run is given, once it is known to fit the thread as it is now."""
        if given is None:
            return None
        if isinstance(given, Command):
            if given.resume is not None:
                _check_waiting(given, await self.aget_state(config))
            return given
        if not _has_calls(await self._saver().aget_tuple(config), config):
            return given
        if not _is_open(await self.aget_state(config)):
            return given
        await self.abulk_update_state(config, _CLEAR)
        return _after(await self.aget_state(config), given)

    def _saver(self) -> Any:
        return self.checkpointer


def _saving(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run that is saved before each step.

    Raises:
        ConfigurationError: They say otherwise.
    """
    if options.get("durability") not in (None, "sync") or options.get("checkpoint_during"):
        raise ConfigurationError(
            "A durable agent saves each step before the next; leave durability out"
        )
    return {**options, "durability": "sync"}


def _held(config: RunnableConfig | None, hold: Hold) -> RunnableConfig:
    configurable = (config or {}).get("configurable") or {}
    return {**(config or {}), "configurable": {**configurable, HOLD_KEY: hold.holder}}


def _is_held(config: RunnableConfig) -> bool:
    return HOLD_KEY in (config.get("configurable") or {})


def _plain(config: RunnableConfig) -> RunnableConfig:
    """Return a configuration without the hold, which is given back."""
    configurable = config.get("configurable") or {}
    kept = {name: value for name, value in configurable.items() if name != HOLD_KEY}
    return {**config, "configurable": kept}


def _answered(command: Command[Any]) -> list[str]:
    """Return the ids of the interrupts that a command answers by id."""
    resume = command.resume
    if not isinstance(resume, dict):
        return []
    keys = [str(key) for key in cast("dict[Any, Any]", resume)]
    return keys if all(len(key) == 32 and key.isalnum() for key in keys) else []


def _check_waiting(command: Command[Any], snapshot: StateSnapshot) -> None:
    """Pass answers to what waits now: another process may have taken the same ones just before.

    Raises:
        ApprovalError: Something answered waits no more.
    """
    waiting = {interrupt.id for interrupt in snapshot.interrupts}
    if not waiting or not waiting.issuperset(_answered(command)):
        raise ApprovalError(
            "What is answered waits no more: it is settled already, and the first answer stands. "
            "Go on from the thread's newest state."
        )


def _has_calls(saved: CheckpointTuple | None, config: RunnableConfig) -> bool:
    if saved is None or (config.get("configurable") or {}).get("checkpoint_id"):
        return False
    return bool(saved.checkpoint["channel_values"].get(TASKS))


def _is_open(snapshot: StateSnapshot) -> bool:
    """Return whether a run ended inside tool calls."""
    return any(task.name == _TOOLS for task in snapshot.tasks)


def _after(snapshot: StateSnapshot, given: Any) -> Any:
    """Return a run's input behind the answers to the calls that the last run left open."""
    messages = cast("list[AnyMessage]", snapshot.values.get("messages") or [])
    answers = open_calls_answered(messages)
    _logger.warning("unfinished_run_closed", extra={"open_calls": len(answers)})
    if not answers or not isinstance(given, Mapping):
        return given
    fields = cast("Mapping[str, Any]", given)
    new = fields.get("messages") or []
    return {**fields, "messages": [*answers, *(new if isinstance(new, list) else [new])]}
