"""One face for both registries, so that a sync registry serves async runs as well."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, TypedDict, Unpack, cast

from registry.base import RegistryBase
from registry.embedding import Embedder
from registry.errors import ConfigurationError, ToolNotFoundError
from registry.types import ToolSelection
from registry.usage_log import UsageLog

if TYPE_CHECKING:
    from registry.store import ToolRegistry
    from registry.store_async import AsyncToolRegistry
    from registry.strategy import Strategy
    from registry.types import ToolHit, ToolRecord

__all__ = ["RegistryAccess", "SelectOptions"]


class SelectOptions(TypedDict):
    """How `registry.select` chooses."""

    k: int
    threshold: float | None
    strategy: Strategy


class RegistryAccess:
    """What an agent asks its registry, each for sync and for async runs.

    Args:
        registry: A sync registry serves both kinds of run (in a worker thread for async ones);
            an async registry serves async runs only.
    """

    def __init__(self, registry: ToolRegistry | AsyncToolRegistry) -> None:
        self._registry = registry
        self._is_async = iscoroutinefunction(registry.search)

    @property
    def namespace(self) -> str:
        """Tenant whose tools are searched."""
        return getattr(self._registry, "namespace", "default")

    @property
    def embedding_model_id(self) -> int | None:
        """Set of vectors that is searched; known after the first search."""
        return getattr(self._registry, "embedding_model_id", None)

    @property
    def usage_log(self) -> UsageLog | None:
        """Log that all agents over this registry share; None for one without a database."""
        # Stand-ins with the same methods serve as registries too.
        if not isinstance(self._registry, RegistryBase):  # pyright: ignore[reportUnnecessaryIsInstance]
            return None
        return UsageLog.of(self._registry)

    def question_vector(self, question: str) -> str | None:
        """Return the vector of a question that was searched a moment ago; embeds nothing."""
        embedder = getattr(self._registry, "embedder", None)
        return embedder.cached_query(question) if isinstance(embedder, Embedder) else None

    def select(self, query: str, **options: Unpack[SelectOptions]) -> ToolSelection:
        """Return what may be offered for a question.

        Raises:
            ConfigurationError: The registry is an async one, or there is no such strategy.
            RegistryError: The search failed.
        """
        registry = self._sync()
        if not hasattr(registry, "select"):  # a stand-in that only searches
            return self._searched(registry.search(query, k=options["k"], threshold=0), options)
        return registry.select(query, **options)

    async def aselect(self, query: str, **options: Unpack[SelectOptions]) -> ToolSelection:
        """Like `select`, for async runs."""
        if not self._is_async:
            return await asyncio.to_thread(self.select, query, **options)
        registry = cast("AsyncToolRegistry", self._registry)
        if not hasattr(registry, "select"):
            hits = await registry.search(query, k=options["k"], threshold=0)
            return self._searched(hits, options)
        return await registry.select(query, **options)

    def _searched(self, hits: list[ToolHit], options: SelectOptions) -> ToolSelection:
        given = options["threshold"]
        return ToolSelection(
            hits=tuple(hits),
            exempt=frozenset(),
            strategy="retrieval",
            categories=(),
            threshold=self._registry.threshold if given is None else given,
        )

    def active_states(self, names: Sequence[str]) -> dict[str, bool]:
        """Return name to whether it is active now; names not registered are absent.

        Raises:
            ConfigurationError: The registry is an async one.
            RegistryError: The registry does not answer.
        """
        return self._sync().active_states(names) if names else {}

    async def aactive_states(self, names: Sequence[str]) -> dict[str, bool]:
        """Like `active_states`, for async runs."""
        if not names:
            return {}
        if self._is_async:
            return await cast("AsyncToolRegistry", self._registry).active_states(names)
        return await asyncio.to_thread(self._sync().active_states, names)

    def record(self, tool_name: str | None) -> ToolRecord | None:
        """Return a registered tool, active or not; None where there is none, or no name.

        Raises:
            ConfigurationError: The registry is an async one.
            RegistryError: The registry does not answer.
        """
        if tool_name is None or not hasattr(self._registry, "get"):
            return None
        try:
            return self._sync().get(tool_name)
        except ToolNotFoundError:
            return None

    async def arecord(self, tool_name: str | None) -> ToolRecord | None:
        """Like `record`, for async runs."""
        if tool_name is None:
            return None
        if not self._is_async:
            return await asyncio.to_thread(self.record, tool_name)
        registry = cast("AsyncToolRegistry", self._registry)
        if not hasattr(registry, "get"):  # a stand-in that only searches
            return None
        try:
            return await registry.get(tool_name)
        except ToolNotFoundError:
            return None

    def _sync(self) -> ToolRegistry:
        if self._is_async:
            raise ConfigurationError(
                "This agent has an AsyncToolRegistry, which works in async runs only. "
                "Use `ainvoke` or `astream`, or give the agent a ToolRegistry."
            )
        return cast("ToolRegistry", self._registry)
