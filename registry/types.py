"""Values of the registry: frozen, slotted, without behaviour beyond their own fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal
from uuid import UUID

__all__ = [
    "CalibrationReport",
    "EmbeddingBuildReport",
    "EmbeddingComparison",
    "EmbeddingModel",
    "EmbeddingModelRecord",
    "EmbeddingRevertReport",
    "Explanation",
    "FieldChange",
    "Question",
    "ScoreParts",
    "SyncProgress",
    "SyncReport",
    "ToolHit",
    "ToolRecord",
    "ToolSelection",
    "ToolSpec",
    "ToolVersion",
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
        fallback: The tool fits nearly everything, so it stands behind every other that fits.
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
    fallback: bool = False

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
    """A registered tool: its spec and what the registry knows about it.

    Attributes:
        version: 1 when it was added; each change of the spec or of `is_active` adds 1.
        is_edited: The spec differs from what the last sync brought: it was changed or rolled back
            in the registry since.
    """

    id: UUID
    spec: ToolSpec
    namespace: str
    is_active: bool
    is_edited: bool
    version: int
    content_hash: str
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolVersion:
    """A tool as it was at one version.

    Attributes:
        change: What made this version, for example `added`, `synced` or `rolled back to 3`.
        changed_by: Who; the database user where nobody was named.
    """

    spec: ToolSpec
    is_active: bool
    version: int
    change: str
    changed_at: datetime
    changed_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """One field that differs between two versions of a tool."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreParts:
    """What a hit's score is made of; the five numbers add up to it.

    Attributes:
        vector: The whole question's cosine, in standard deviations above its nearest candidates.
        words: The whole question's words (BM25), times their weight.
        route: What the question's categories gain it.
        clause: The clause of the question that counted, empty where it has none.
        clause_vector: As `vector`, of that clause.
        clause_words: As `words`, of that clause.
    """

    vector: float
    words: float
    route: float = 0.0
    clause: str = ""
    clause_vector: float = 0.0
    clause_words: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolHit:
    """One search result.

    Attributes:
        rank: 1 for the best.
        distance: Cosine distance of the whole question, 0 (same direction) to 2; small is near.
        relevance: How sure it is that the tool fits, 0 to 1, the same for every embedding model;
            1 - distance in a registry that was not calibrated yet.
        score: What the ranking rests on, large is good; only scores of one search compare.
        parts: What the score is the sum of.
        fallback: It stands behind every other tool that fits, whatever its score.
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
    score: float = 0.0
    parts: ScoreParts | None = None
    fallback: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSelection:
    """What a question's tools are, and how they were chosen.

    Attributes:
        hits: Best first, those below the threshold too.
        exempt: Names of hits that are offered whatever their relevance: the registry is small, or
            the question is about their category.
        strategy: What `auto` came to, or the strategy that was asked for.
        categories: That the question was routed to.
        threshold: Relevance that the other hits must reach.
        active_tools: How many are active, counted no further than `StrategyLimits.counted` unless
            all are offered; None where it was not counted.
        words_alone_reason: Why words decided alone: what the embedding model did instead of
            answering. Empty where it answered.
    """

    hits: tuple[ToolHit, ...]
    exempt: frozenset[str]
    strategy: str
    categories: tuple[str, ...]
    threshold: float
    active_tools: int | None = None
    words_alone_reason: str = ""

    @property
    def by_words_alone(self) -> bool:
        """Whether the embedding model did not answer, so that words decided alone."""
        return bool(self.words_alone_reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a tool was offered for a question, or was not.

    Attributes:
        hit: Its place, score and relevance among all candidates; None where it has no vector.
        feedback: What its cosine gained by what was learnt from use.
        threshold: That was in force.
        strategy: That was in force.
        categories: That the question was routed to.
        shared_words: Of the question, in the tool's texts.
        missing_words: Of the question, not in the tool's texts.
        reasons: Most important first.
        advice: What would bring it in; empty where it was offered.
        notes: What else to know, for example that the question was too long to be searched whole.
        by_words_alone: Whether the embedding model did not answer, so that words decided alone.
    """

    tool_name: str
    is_offered: bool
    hit: ToolHit | None
    feedback: float
    threshold: float
    strategy: str
    categories: tuple[str, ...]
    shared_words: tuple[str, ...]
    missing_words: tuple[str, ...]
    reasons: tuple[str, ...]
    advice: tuple[str, ...]
    notes: tuple[str, ...] = ()
    by_words_alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationReport:
    """What a calibration found.

    Attributes:
        center: Of the embedding model: mean of cosines between texts that do not belong together.
        spread: Of the embedding model: deviation of those cosines.
        null: Evidence that questions of no catalogue in particular find in this one.
        zero: Evidence above `null` at which relevance is the default threshold.
        words: How much of `word_weight` counts: 1 until recorded calls show that less or more
            finds the called tools better.
        tools: Active tools then.
        calls: Recorded calls that moved `zero`; 0 where there are too few.
        version: 1 for the first of this namespace and model.
    """

    center: float
    spread: float
    null: float
    zero: float
    words: float
    tools: int
    calls: int
    version: int


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
        edited: Left as they are in the registry, where they were changed since code last changed.
        switched_off: In code, but switched off since an earlier sync did not bring them; they stay
            off until somebody switches them on.
        failed: Name to reason; these tools stay as they were before the sync.
        missing: Active in the registry under an origin of this sync, but not among its tools.
        deactivated: Those of `missing` that this sync switched off.
        mended: Not of this sync's tools or edited since, but without a vector of their text: their
            text in the registry was embedded.
        embedded: Number of texts sent to the embedding model.
        reused: Number of texts whose vector was there already, from an earlier version or another
            tool with the same text.
        notes: What an operator should know, for example an index that could not be made.
    """

    added: Sequence[str] = ()
    updated: Sequence[str] = ()
    unchanged: Sequence[str] = ()
    edited: Sequence[str] = ()
    switched_off: Sequence[str] = ()
    failed: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    missing: Sequence[str] = ()
    deactivated: Sequence[str] = ()
    mended: Sequence[str] = ()
    embedded: int = 0
    reused: int = 0
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingModelRecord:
    """A set of vectors in the registry.

    Attributes:
        generation: 1 for the first set of a model; a rebuild makes the next.
        state: `active` serves searches; `building` is not complete yet or waits for its switch;
            `retired` served before and can be switched back to.
        vectors: Tools it has a vector of.
        activated_at: When it last began to serve.
    """

    id: int
    model: EmbeddingModel
    generation: int
    state: Literal["building", "active", "retired"]
    vectors: int
    created_at: datetime
    activated_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingBuildReport:
    """What building a set of vectors beside the serving one did.

    Attributes:
        set_id: Id of the set.
        model: The model of the set.
        embedded: Texts embedded by this run; those of an earlier, broken-off run are kept.
        failed: `namespace/tool` to reason, of active tools. Building again tries these alone.
        failed_inactive: As `failed`, of tools that are switched off: the switch does not wait for
            them; they are embedded when they are switched on, or by the next build.
        remaining: Active tools that were written meanwhile; the switch embeds them.
    """

    set_id: int
    model: EmbeddingModel
    embedded: int
    failed: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    failed_inactive: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    remaining: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRevertReport:
    """What going back to an earlier set of vectors means.

    Both lists hold `namespace/tool` of active tools. The next sync of a process on the set's model
    embeds those of its namespace, and no others.

    Attributes:
        serving: The set that serves again.
        stale: Changed since: found by their earlier text.
        missing: Added since: not found by vectors.
    """

    serving: EmbeddingModelRecord
    stale: Sequence[str] = ()
    missing: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question to compare embedding models on.

    Attributes:
        relevant: Names of the right tools; empty where they are not known.
    """

    text: str
    relevant: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingComparison:
    """How a new set of vectors answers, against the serving one.

    Attributes:
        questions: Number asked.
        k: Hits looked at.
        overlap: Mean share of the first k that both have, 0 to 1.
        recall_before: Recall@k of the serving set, None without labelled questions.
        recall_after: Recall@k of the new set.
        unknown: Labels that are no active tool's name, which no set can find.
    """

    questions: int
    k: int
    overlap: float
    recall_before: float | None
    recall_after: float | None
    unknown: Sequence[str] = ()
