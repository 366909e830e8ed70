"""Searching the registry for what may be offered: hits of tools that this process has."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from agent._registry_access import RegistryAccess, SelectOptions
from registry.base import MAX_K
from registry.strategy import Strategy
from registry.toolset import Toolset
from registry.types import ToolHit, ToolSelection

__all__ = ["Found", "Searcher"]

_NOTHING = ToolSelection(hits=(), exempt=frozenset(), strategy="none", categories=(), threshold=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one search brought.

    Attributes:
        query: What was searched; empty where nothing was.
        selection: The registry's answer, cut behind the first k hits with a live tool.
        latency_ms: How long it took, milliseconds.
    """

    query: str
    selection: ToolSelection
    latency_ms: float


class Searcher:
    """Searches a registry the same way each time.

    Args:
        registry: What is searched.
        toolset: The live tools.
        k: Hits with a live tool that are asked for.
        threshold: Relevance a hit needs; None for the embedding model's own.
        strategy: How tools are chosen.
    """

    def __init__(
        self,
        registry: RegistryAccess,
        toolset: Toolset,
        *,
        k: int,
        threshold: float | None,
        strategy: Strategy,
    ) -> None:
        self._registry = registry
        self._toolset = toolset
        self._k = k
        self._threshold = threshold
        self._strategy: Strategy = strategy

    def search(self, query: str) -> Found:
        """Return what the registry has for a query; nothing for an empty one.

        Raises:
            ConfigurationError: The registry is an async one.
            RegistryError: The search failed.
        """
        found = _NOTHING
        started_at = time.perf_counter()
        for k in self._sizes(query):
            found = self._registry.select(query, **self._options(k))
            if self._is_enough(found, k):
                break
        return self._found(query, found, started_at)

    async def asearch(self, query: str) -> Found:
        """Like `search`, for async runs."""
        found = _NOTHING
        started_at = time.perf_counter()
        for k in self._sizes(query):
            found = await self._registry.aselect(query, **self._options(k))
            if self._is_enough(found, k):
                break
        return self._found(query, found, started_at)

    def _options(self, k: int) -> SelectOptions:
        return SelectOptions(k=k, threshold=self._threshold, strategy=self._strategy)

    def _sizes(self, query: str) -> Iterator[int]:
        """Yield how many hits to ask for: more, while too few of them have a live tool here.

        Rows of tools that code no longer has, or of another application, must not use up k.
        """
        k = self._k
        while query:
            yield k
            if k == MAX_K:
                return
            k = min(MAX_K, 4 * k)

    def _is_enough(self, found: ToolSelection, k: int) -> bool:
        live = sum(hit.binding in self._toolset for hit in found.hits)
        # An embedding model that is away would be waited for again.
        return len(found.hits) < k or live >= self._k or found.by_words_alone

    def _found(self, query: str, found: ToolSelection, started_at: float) -> Found:
        """Keep the first k hits with a live tool, what stands before them, and the exempt."""
        latency_ms = 1_000 * (time.perf_counter() - started_at)
        kept: list[ToolHit] = []
        live = 0
        for hit in found.hits:
            if live < self._k or hit.tool_name in found.exempt:
                live += hit.binding in self._toolset
                kept.append(hit)
        return Found(query=query, selection=replace(found, hits=tuple(kept)), latency_ms=latency_ms)
