"""One face for both registries, so that a sync registry serves async runs as well."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, cast

from registry.errors import ConfigurationError

if TYPE_CHECKING:
    from registry.store import ToolRegistry
    from registry.store_async import AsyncToolRegistry
    from registry.types import ToolHit

__all__ = ["RegistryAccess"]


class RegistryAccess:
    """The two questions an agent asks its registry, each for sync and for async runs.

    Args:
        registry: A sync registry serves both kinds of run (in a worker thread for async ones);
            an async registry serves async runs only.
    """

    def __init__(self, registry: ToolRegistry | AsyncToolRegistry) -> None:
        self._registry = registry
        self._is_async = iscoroutinefunction(registry.search)

    @property
    def threshold(self) -> float:
        """Relevance threshold of the registry's embedding model; known after the first search."""
        return self._registry.threshold

    def search(self, query: str, *, k: int) -> list[ToolHit]:
        """Return up to k hits, best first, without a threshold.

        Raises:
            ConfigurationError: The registry is an async one.
            RegistryError: The search failed.
        """
        return self._sync().search(query, k=k, threshold=0)

    async def asearch(self, query: str, *, k: int) -> list[ToolHit]:
        """Like `search`, for async runs."""
        if self._is_async:
            return await cast("AsyncToolRegistry", self._registry).search(query, k=k, threshold=0)
        return await asyncio.to_thread(self._sync().search, query, k=k, threshold=0)

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

    def _sync(self) -> ToolRegistry:
        if self._is_async:
            raise ConfigurationError(
                "This agent has an AsyncToolRegistry, which works in async runs only. "
                "Use `ainvoke` or `astream`, or give the agent a ToolRegistry."
            )
        return cast("ToolRegistry", self._registry)
