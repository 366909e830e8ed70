"""Values of the registry: frozen, slotted, without behaviour beyond their own fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any

__all__ = [
    "EmbeddingMigrationReport",
    "EmbeddingModel",
    "SyncProgress",
    "SyncReport",
    "ToolHit",
    "ToolRecord",
    "ToolSpec",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """What the registry stores of a tool. Made by `registry.toolset.tool_spec` and by hand.

    Attributes:
        tool_name: Model-facing name, `[a-zA-Z0-9_-]{1,64}`, unique in its namespace.
        description: What the tool does, in full; the text that is embedded and searched.
        display_name: The tool's own name before it was made legal; what people read.
        category: One word or short phrase.
        examples: Questions this tool answers; they are embedded with the description.
        binding: Key of the live tool in a `Toolset`; never an import path.
        origin: Where the tool comes from: `code`, `mcp:<server>` or `openapi:<name>`.
        args_schema: JSON Schema of the arguments.
        requires_approval: A person must agree before a call.
        read_only: The tool changes nothing, so a repeated call does no harm.
    """

    tool_name: str
    description: str
    display_name: str = ""
    category: str = "general"
    examples: tuple[str, ...] = ()
    binding: str = ""
    origin: str = "code"
    args_schema: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    requires_approval: bool = False
    read_only: bool = False

    def __post_init__(self) -> None:
        # An unset display name or binding is the tool's name: filled here so no reader has to ask.
        if not self.display_name:
            object.__setattr__(self, "display_name", self.tool_name)
        if not self.binding:
            object.__setattr__(self, "binding", self.tool_name)

    def replace(self, **changes: Any) -> ToolSpec:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRecord:
    """A registered tool: its spec and what the registry knows about it."""

    spec: ToolSpec
    namespace: str
    is_active: bool
    version: int
    content_hash: str
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolHit:
    """One search result.

    Attributes:
        rank: 1 for the nearest tool.
        distance: Cosine distance, 0 (same direction) to 2; small is near.
        relevance: 1 - distance, cut at 0: 1 is an exact match, large is good.
    """

    tool_name: str
    display_name: str
    description: str
    category: str
    binding: str
    origin: str
    requires_approval: bool
    read_only: bool
    version: int
    rank: int
    distance: float
    relevance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingModel:
    """Identity of an embedding model. Vectors of two identities are never compared.

    Attributes:
        name: For example `builtin` or `openai:text-embedding-3-small`.
        revision: Release of the weights or preprocessing; empty when the model has none.
        dimensions: Length of its vectors.
        threshold: Relevance below which its hits are taken as not relevant, 0 to 1.
    """

    name: str
    revision: str = ""
    dimensions: int
    threshold: float

    def same_vectors(self, other: EmbeddingModel) -> bool:
        """Return whether vectors of both may be compared; the threshold does not matter."""
        return (self.name, self.revision, self.dimensions) == (
            other.name,
            other.revision,
            other.dimensions,
        )

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.name}{revision} ({self.dimensions} dimensions)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncProgress:
    """Where a running sync stands: `done` of `total` tools that need embedding."""

    done: int
    total: int


ProgressCallback = Callable[[SyncProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """What a sync did, as names in the order given.

    Attributes:
        added: Newly registered.
        updated: A stored field changed; version + 1.
        unchanged: Nothing to do, not embedded again.
        failed: Name to reason; these tools stay as they were before the sync.
        missing: Active in the registry under an origin of this sync, but not among its tools.
        embedded: Number of texts sent to the embedding model.
        notes: What an operator should know, for example an index that could not be made.
    """

    added: Sequence[str] = ()
    updated: Sequence[str] = ()
    unchanged: Sequence[str] = ()
    failed: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    missing: Sequence[str] = ()
    embedded: int = 0
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingMigrationReport:
    """What a change of embedding model did.

    Attributes:
        model: The new model.
        embedded: Texts embedded by this run; those of an earlier, broken-off run are kept.
        switched: The new model serves searches now; false when a tool failed.
        failed: `namespace/tool` to reason. Running again tries these alone.
        notes: What an operator should know.
    """

    model: EmbeddingModel
    embedded: int
    switched: bool
    failed: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    notes: Sequence[str] = ()
