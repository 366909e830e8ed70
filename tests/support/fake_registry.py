"""Registries in memory with the methods an agent uses; relevance is shared words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from uuid import NAMESPACE_OID, uuid5

from registry.errors import RegistryUnavailableError, ToolNotFoundError
from registry.text import content_hash
from registry.toolset import Toolset
from registry.types import ToolHit, ToolRecord, ToolSpec


def _words(text: str) -> set[str]:
    return {word for word in re.split(r"[^a-z0-9]+", text.lower()) if len(word) > 3}


class FakeRegistry:
    """Relevance is the share of a tool's words that the question has, so 0 to 1."""

    threshold = 0.2

    def __init__(self, toolset: Toolset | Iterable[ToolSpec] = ()) -> None:
        specs = toolset.specs if isinstance(toolset, Toolset) else list(toolset)
        self.specs = {spec.tool_name: spec for spec in specs}
        self.active = dict.fromkeys(self.specs, True)
        self.searched: list[str] = []
        self.is_away = False

    def search(self, query: str, *, k: int = 5, threshold: float | None = None) -> list[ToolHit]:
        self._answer_or_raise()
        self.searched.append(query)
        needed = self.threshold if threshold is None else threshold
        asked = _words(query)
        scored = []
        for spec in self.specs.values():
            if not self.active[spec.tool_name]:
                continue
            own = _words(f"{spec.tool_name} {spec.description}")
            relevance = len(own & asked) / len(own)
            if relevance >= needed:
                scored.append((-relevance, spec.tool_name, spec))
        return [
            _hit(spec, rank=rank, relevance=-negative)
            for rank, (negative, _, spec) in enumerate(sorted(scored)[:k], start=1)
        ]

    def active_states(self, names: Iterable[str]) -> dict[str, bool]:
        self._answer_or_raise()
        return {name: self.active[name] for name in names if name in self.active}

    def get(self, tool_name: str) -> ToolRecord:
        self._answer_or_raise()
        if tool_name not in self.specs:
            raise ToolNotFoundError(tool_name, namespace="default")
        spec = self.specs[tool_name]
        return ToolRecord(
            id=uuid5(NAMESPACE_OID, tool_name),
            spec=spec,
            namespace="default",
            is_active=self.active[tool_name],
            is_edited=False,
            version=1,
            content_hash=content_hash(spec),
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
            updated_at=datetime(2026, 1, 1, tzinfo=UTC),
        )

    def activate(self, tool_name: str) -> None:
        self.active[tool_name] = True

    def deactivate(self, tool_name: str) -> None:
        self.active[tool_name] = False

    def _answer_or_raise(self) -> None:
        if self.is_away:
            raise RegistryUnavailableError("The registry's database does not answer.")


class AsyncFakeRegistry:
    """The same, awaitable."""

    def __init__(self, toolset: Toolset | Iterable[ToolSpec] = ()) -> None:
        self.sync_twin = FakeRegistry(toolset)

    @property
    def threshold(self) -> float:
        return self.sync_twin.threshold

    async def search(
        self, query: str, *, k: int = 5, threshold: float | None = None
    ) -> list[ToolHit]:
        return self.sync_twin.search(query, k=k, threshold=threshold)

    async def active_states(self, names: Iterable[str]) -> dict[str, bool]:
        return self.sync_twin.active_states(names)

    async def get(self, tool_name: str) -> ToolRecord:
        return self.sync_twin.get(tool_name)

    async def activate(self, tool_name: str) -> None:
        self.sync_twin.activate(tool_name)

    async def deactivate(self, tool_name: str) -> None:
        self.sync_twin.deactivate(tool_name)


def _hit(spec: ToolSpec, *, rank: int, relevance: float) -> ToolHit:
    return ToolHit(
        tool_name=spec.tool_name,
        display_name=spec.display_name,
        description=spec.description,
        category=spec.category,
        binding=spec.binding,
        origin=spec.origin,
        requires_approval=spec.requires_approval,
        read_only=spec.read_only,
        version=1,
        rank=rank,
        distance=1 - relevance,
        relevance=relevance,
    )
