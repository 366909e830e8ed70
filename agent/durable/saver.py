"""LangGraph's Postgres checkpointer on the registry's database, for runs that hold their thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.postgres.base import BasePostgresSaver

from agent.durable.store import ThreadStore

__all__ = ["ThreadSaver"]


class ThreadSaver(BasePostgresSaver):
    """Stores checkpoints with `PostgresSaver`, or `AsyncPostgresSaver` over an async registry.

    Each operation has a saver and a pooled connection of its own: one saver lets one operation at
    a time through, whatever its pool. A run that lost its thread to another writes nothing.

    Args:
        threads: Of the registry.
    """

    def __init__(self, threads: ThreadStore) -> None:
        super().__init__()
        self.threads = threads

    # --- sync

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint, the newest where none is named."""
        inner = self._inner(config)
        self.threads.check()
        with self.threads.connections.connection() as connection:
            return self._outer(PostgresSaver(connection, serde=self.serde).get_tuple(inner))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Return the checkpoints of a thread, newest first."""
        inner = self._inner(_named(config))
        self.threads.check()
        with self.threads.connections.connection() as connection:
            saver = PostgresSaver(connection, serde=self.serde)
            found = list(saver.list(inner, filter=filter, before=before, limit=limit))
        return iter([self._shown(saved) for saved in found])

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint.

        Raises:
            ThreadBusyError: Another run has taken the thread.
        """
        self.threads.check_held(config)
        with self.threads.connections.connection() as connection:
            saver = PostgresSaver(connection, serde=self.serde)
            return self._given(saver.put(self._inner(config), checkpoint, metadata, new_versions))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what one call or node wrote.

        Raises:
            ThreadBusyError: Another run has taken the thread.
        """
        self.threads.check_held(config)
        with self.threads.connections.connection() as connection:
            saver = PostgresSaver(connection, serde=self.serde)
            saver.put_writes(self._inner(config), writes, task_id, task_path)

    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread with all that was stored of it."""
        stored_id = self.threads.stored_id(thread_id)
        with self.threads.connections.connection() as connection:
            PostgresSaver(connection, serde=self.serde).delete_thread(stored_id)
        self.threads.forget_calls(stored_id)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes that channels of differences are put together from."""
        inner = self._inner(config)
        with self.threads.connections.connection() as connection:
            saver = PostgresSaver(connection, serde=self.serde)
            return saver.get_delta_channel_history(config=inner, channels=channels)

    # --- async

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint, the newest where none is named."""
        if not self.threads.connections.is_async:
            return await asyncio.to_thread(self.get_tuple, config)
        inner = self._inner(config)
        await self.threads.acheck()
        async with self.threads.connections.aconnection() as connection:
            saver = AsyncPostgresSaver(connection, serde=self.serde)
            return self._outer(await saver.aget_tuple(inner))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Return the checkpoints of a thread, newest first."""
        options: dict[str, Any] = {"filter": filter, "before": before, "limit": limit}
        if not self.threads.connections.is_async:
            for saved in await asyncio.to_thread(self.list, config, **options):
                yield saved
            return
        inner = self._inner(_named(config))
        await self.threads.acheck()
        async with self.threads.connections.aconnection() as connection:
            saver = AsyncPostgresSaver(connection, serde=self.serde)
            found = [saved async for saved in saver.alist(inner, **options)]
        for saved in found:
            yield self._shown(saved)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint.

        Raises:
            ThreadBusyError: Another run has taken the thread.
        """
        if not self.threads.connections.is_async:
            return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)
        await self.threads.acheck_held(config)
        async with self.threads.connections.aconnection() as connection:
            saver = AsyncPostgresSaver(connection, serde=self.serde)
            inner = self._inner(config)
            return self._given(await saver.aput(inner, checkpoint, metadata, new_versions))

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what one call or node wrote.

        Raises:
            ThreadBusyError: Another run has taken the thread.
        """
        if not self.threads.connections.is_async:
            await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)
            return
        await self.threads.acheck_held(config)
        async with self.threads.connections.aconnection() as connection:
            saver = AsyncPostgresSaver(connection, serde=self.serde)
            await saver.aput_writes(self._inner(config), writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """Remove a thread with all that was stored of it."""
        if not self.threads.connections.is_async:
            await asyncio.to_thread(self.delete_thread, thread_id)
            return
        stored_id = self.threads.stored_id(thread_id)
        async with self.threads.connections.aconnection() as connection:
            await AsyncPostgresSaver(connection, serde=self.serde).adelete_thread(stored_id)
        await self.threads.aforget_calls(stored_id)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes that channels of differences are put together from."""
        if not self.threads.connections.is_async:
            return await asyncio.to_thread(
                self.get_delta_channel_history, config=config, channels=channels
            )
        async with self.threads.connections.aconnection() as connection:
            saver = AsyncPostgresSaver(connection, serde=self.serde)
            inner = self._inner(config)
            return await saver.aget_delta_channel_history(config=inner, channels=channels)

    # --- names of threads

    def _inner(self, config: RunnableConfig) -> RunnableConfig:
        """Return a configuration with the thread's name in the database."""
        configurable = config.get("configurable") or {}
        stored_id = self.threads.stored_id(configurable.get("thread_id"))
        return {**config, "configurable": {**configurable, "thread_id": stored_id}}

    def _given(self, config: RunnableConfig) -> RunnableConfig:
        """Return a configuration with the thread's name as callers have it."""
        configurable = config.get("configurable") or {}
        thread_id = self.threads.given_id(configurable["thread_id"])
        return {**config, "configurable": {**configurable, "thread_id": thread_id}}

    def _shown(self, saved: CheckpointTuple) -> CheckpointTuple:
        parent = saved.parent_config
        return saved._replace(
            config=self._given(saved.config),
            parent_config=None if parent is None else self._given(parent),
        )

    def _outer(self, saved: CheckpointTuple | None) -> CheckpointTuple | None:
        return None if saved is None else self._shown(saved)


def _named(config: RunnableConfig | None) -> RunnableConfig:
    # Without a thread it would list those of every tenant.
    return cast("RunnableConfig", {}) if config is None else config
