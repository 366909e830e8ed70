"""What a sync does, step by step, without doing it: both stores drive the same generator."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar
from uuid import UUID

from registry.embedding import plan_batches
from registry.errors import (
    ConfigurationError,
    DuplicateToolError,
    EmbeddingError,
    InvalidToolError,
)
from registry.statements import CurrentTool, tool_row
from registry.text import content_hash, embedding_text, text_hash
from registry.toolset import ToolLike, Toolset, tool_spec
from registry.types import SyncProgress, SyncReport, ToolSpec

__all__ = [
    "Change",
    "Deactivate",
    "Embed",
    "Lacking",
    "MarkSynced",
    "Missing",
    "Requests",
    "Reuse",
    "SyncPlan",
    "SyncSteps",
    "Write",
    "listed",
    "plan_sync",
    "specs_of",
    "sync_steps",
]

Item = TypeVar("Item")
Missing = Literal["report", "deactivate"]

_WRITE_BATCH = 500
_LOOK_UP_BATCH = 5_000
# After so many single texts refused in a row the model may be down rather than the texts bad.
_PROBE_AFTER = 3
_PROBE = "Tell what time it is."


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A tool whose row is to be written, or whose vector, or both.

    Attributes:
        tool_id: None for a tool to be added.
        seen_version: Version the decision rests on, None for a tool to be added.
        row: Whether the stored fields differ.
        vector: Vector in pgvector's text form, None while it is not known or stays.
    """

    spec: ToolSpec
    tool_id: UUID | None = None
    seen_version: int | None = None
    row: bool = True
    vector: str | None = None

    def with_vector(self, vector: str) -> Change:
        """Return the change with its vector."""
        return Change(
            spec=self.spec,
            tool_id=self.tool_id,
            seen_version=self.seen_version,
            row=self.row,
            vector=vector,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed:
    """Ask: the vectors, in text form, of one request's worth of texts."""

    texts: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """Ask: hash to vector, in text form, of those texts that were embedded before."""

    hashes: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacking:
    """Ask: (id, spec) of those of these tools that have no vector of the text they have now."""

    tool_names: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkSynced:
    """Ask: note what code says (tool name to content hash); nothing else changes."""

    hashes: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deactivate:
    """Ask: switch these tools off."""

    tool_names: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Ask: store these in one transaction; the answer is the names somebody else had changed."""

    changes: Sequence[Change]

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """Rows of `statements.write_tools`."""
        return [tool_row(c.spec, seen_version=c.seen_version) for c in self.changes if c.row]

    def arrays(self, ids: Mapping[str, UUID]) -> Mapping[str, list[Any]]:
        """Arrays of `statements.store_vectors`, given the ids of tools added just now."""
        found: dict[str, list[Any]] = {"ids": [], "vectors": [], "hashes": []}
        for change in self.changes:
            tool_id = change.tool_id or ids.get(change.spec.tool_name)
            if change.vector is not None and tool_id is not None:
                found["ids"].append(tool_id)
                found["vectors"].append(change.vector)
                found["hashes"].append(text_hash(change.spec))
        return found


@dataclass(slots=True)
class SyncPlan:
    """What a sync has to do, in the order of its tools.

    Attributes:
        failed: Tools that cannot be registered, with the reason.
        write: Changes of which the vector stays.
        embed: Changes that need a vector.
        mark: Content hashes of tools that already are as code says, after an edit.
        lacking: Tools that stay as they are in the registry, but have no vector of their text.
        switched_off: Tools that an earlier sync switched off, because it did not bring them.
    """

    specs: Sequence[ToolSpec]
    failed: dict[str, str]
    added: list[str] = field(default_factory=list[str])
    updated: list[str] = field(default_factory=list[str])
    unchanged: list[str] = field(default_factory=list[str])
    edited: list[str] = field(default_factory=list[str])
    missing: list[str] = field(default_factory=list[str])
    write: list[Change] = field(default_factory=list[Change])
    embed: list[Change] = field(default_factory=list[Change])
    mark: dict[str, str] = field(default_factory=dict[str, str])
    lacking: list[str] = field(default_factory=list[str])
    switched_off: list[str] = field(default_factory=list[str])

    @property
    def changes_something(self) -> bool:
        """Whether anything has to be embedded or written."""
        return bool(self.write or self.embed or self.mark or self.lacking)


SyncSteps = Generator[Embed | Lacking | Reuse | Write | MarkSynced | Deactivate, Any, SyncReport]


class Requests(Generic[Item]):
    """Embedding requests for a list of items, in order; a refused one is halved and tried again.

    So one bad text does not sink its batch, and a model that is down is not asked for ever.

    Args:
        items: What is embedded.
        texts: The text of each.
        size: Most texts in one request.
    """

    def __init__(self, items: Sequence[Item], *, texts: Sequence[str], size: int) -> None:
        self._pending = [items[run.start : run.stop] for run in plan_batches(texts, max_items=size)]
        self._pending.reverse()
        self._refused_in_a_row = 0
        self.given_up = ""

    def __iter__(self) -> Iterator[Sequence[Item]]:
        while self._pending and not self.given_up:
            yield self._pending.pop()

    def accepted(self) -> None:
        """Note that a request was answered."""
        self._refused_in_a_row = 0

    def refused(
        self, request: Sequence[Item], error: EmbeddingError
    ) -> Generator[Embed, Any, bool]:
        """Plan what follows a refused request; return whether its one item has failed for good.

        After some texts refused in a row a harmless one is asked for: only a model that refuses
        that too is given up.
        """
        if len(request) > 1:
            middle = len(request) // 2
            self._pending += [request[middle:], request[:middle]]
            return False
        self._refused_in_a_row += 1
        if self._refused_in_a_row >= _PROBE_AFTER:
            try:
                yield Embed(texts=[_PROBE])
            except EmbeddingError as still:
                self.given_up = f"not tried, the embedding model refuses everything: {still}"
            else:
                self._refused_in_a_row = 0
        return True

    def untried(self) -> list[Item]:
        """Return the items that were given up without being tried alone."""
        return [item for request in reversed(self._pending) for item in request]


def listed(tools: Iterable[ToolLike]) -> list[ToolLike]:
    """Return the tools as a list, to be gone through more than once.

    Raises:
        ConfigurationError: That is no list of tools.
    """
    if not isinstance(tools, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            f"tools is a {type(tools).__name__}; give a list of tools, or a Toolset."
        )
    return list(tools)


def specs_of(
    tools: Toolset | Iterable[ToolLike], *, origin: str
) -> tuple[list[ToolSpec], dict[str, str]]:
    """Return checked specs, one a name, and why others cannot be registered, by name.

    One bad tool does not block the rest.

    Raises:
        DuplicateToolError: Two tools have one model-facing name; it would be chance which wins.
        ConfigurationError: That is no list of tools.
    """
    if isinstance(tools, Toolset):
        return tools.specs, {}
    specs: dict[str, ToolSpec] = {}
    refused: dict[str, str] = {}
    for item in listed(tools):
        try:
            spec = tool_spec(item, origin=origin)
        except InvalidToolError as error:
            # Several may have one name, or that of a good one: none is left out of the report.
            label, number = error.tool_name, 2
            while label in refused or label in specs:
                label, number = f"{error.tool_name} ({number})", number + 1
            refused[label] = error.reason
            continue
        if (other := specs.get(spec.tool_name)) is not None:
            raise DuplicateToolError(spec.tool_name, sorted((other.origin, spec.origin)))
        specs[spec.tool_name] = spec
    return list(specs.values()), {
        name if name not in specs else f"{name} (2)": reason for name, reason in refused.items()
    }


def plan_sync(
    specs: Sequence[ToolSpec],
    current: Mapping[str, CurrentTool],
    *,
    refused: Mapping[str, str],
    overwrite_edits: bool,
) -> SyncPlan:
    """Return what has to be done to make the registry as code says.

    A tool that was edited in the registry stays edited while code says what it said at the last
    sync; when code changes, code wins, and the edit is in the history.

    Args:
        specs: Distinct tools, in the order to report.
        current: The namespace's tools by name.
        refused: Tools that cannot be registered, with the reason; reported as failed.
        overwrite_edits: Code wins over edits even when it did not change.
    """
    plan = SyncPlan(specs=specs, failed=dict(refused))
    for spec in specs:
        _plan_tool(plan, spec, current.get(spec.tool_name), overwrite_edits=overwrite_edits)
    given = {spec.tool_name for spec in specs} | set(refused)
    origins = {spec.origin for spec in specs}
    plan.missing = sorted(
        name
        for name, known in current.items()
        if known.is_active and known.origin in origins and name not in given
    )
    planned = {change.spec.tool_name for change in plan.embed}
    plan.lacking = sorted(
        name
        for name, known in current.items()
        if known.is_active and known.source_hash != known.text_hash and name not in planned
    )
    plan.switched_off = [
        spec.tool_name
        for spec in specs
        if (known := current.get(spec.tool_name)) and known.is_switched_off_by_sync
    ]
    return plan


def _plan_tool(
    plan: SyncPlan, spec: ToolSpec, known: CurrentTool | None, *, overwrite_edits: bool
) -> None:
    name = spec.tool_name
    if known is None:
        plan.added.append(name)
        plan.embed.append(Change(spec=spec))
        return
    if known.origin != spec.origin:
        plan.failed[name] = (
            f"the name belongs to origin {known.origin}; {spec.origin} may not take it over"
        )
        return
    digest = content_hash(spec)
    is_as_code_says = known.content_hash == digest
    if not is_as_code_says and known.synced_hash == digest and not overwrite_edits:
        plan.edited.append(name)
        return
    # The text may be composed in another way than by the release that wrote the row.
    needs_row = not is_as_code_says or known.text_hash != text_hash(spec)
    needs_vector = known.source_hash != text_hash(spec)
    if not needs_row and known.synced_hash != digest:
        plan.mark[name] = digest
    if not needs_row and not needs_vector:
        plan.unchanged.append(name)
        return
    plan.updated.append(name)
    change = Change(spec=spec, tool_id=known.id, seen_version=known.version, row=needs_row)
    (plan.embed if needs_vector else plan.write).append(change)


def sync_steps(
    plan: SyncPlan,
    *,
    batch_size: int,
    missing: Missing = "report",
    on_progress: Callable[[SyncProgress], None] | None = None,
) -> SyncSteps:
    """Yield what has to be looked up, embedded and written; return the report.

    The driver answers each step, or throws EmbeddingError into the generator in answer to
    `Embed`. A failed request is halved until the text at fault stands alone, so that one bad text
    does not sink its batch; finished batches stay.

    Args:
        plan: From `plan_sync`.
        batch_size: Texts in one request.
        missing: Whether tools that code no longer has are switched off.
        on_progress: Called after each request.
    """
    failed = plan.failed
    if plan.mark:
        yield MarkSynced(hashes=plan.mark)
    yield from _written(plan.write, failed)

    deactivated = plan.missing if missing == "deactivate" else []
    mended: list[Change] = []
    if names := [name for name in plan.lacking if name not in deactivated]:
        mended = [
            Change(spec=spec, tool_id=tool_id, row=False)
            for tool_id, spec in (yield Lacking(tool_names=names))
        ]

    changes = [*plan.embed, *mended]
    known: dict[str, str] = {}
    hashes = list(dict.fromkeys(text_hash(change.spec) for change in changes))
    for start in range(0, len(hashes), _LOOK_UP_BATCH):
        known |= yield Reuse(hashes=hashes[start : start + _LOOK_UP_BATCH])
    reusable = [c.with_vector(known[h]) for c in changes if (h := text_hash(c.spec)) in known]
    yield from _written(reusable, failed)
    to_embed = [change for change in changes if text_hash(change.spec) not in known]

    embedded, done = 0, 0
    texts = [embedding_text(change.spec) for change in to_embed]
    requests = Requests(to_embed, texts=texts, size=batch_size)
    for batch in requests:
        try:
            vectors = yield Embed(texts=[embedding_text(change.spec) for change in batch])
        except EmbeddingError as error:
            if not (yield from requests.refused(batch, error)):
                continue
            failed[batch[0].spec.tool_name] = str(error)
        else:
            requests.accepted()
            embedded += len(batch)
            stored = [c.with_vector(v) for c, v in zip(batch, vectors, strict=True)]
            yield from _written(stored, failed)
        done += len(batch)
        if on_progress is not None:
            on_progress(SyncProgress(done=done, total=len(to_embed)))
    failed |= {change.spec.tool_name: requests.given_up for change in requests.untried()}

    if deactivated:
        yield Deactivate(tool_names=deactivated)
    return SyncReport(
        added=[name for name in plan.added if name not in failed],
        updated=[name for name in plan.updated if name not in failed],
        unchanged=plan.unchanged,
        edited=plan.edited,
        failed=failed,
        missing=plan.missing,
        switched_off=plan.switched_off,
        deactivated=deactivated,
        mended=[c.spec.tool_name for c in mended if c.spec.tool_name not in failed],
        embedded=embedded,
        reused=len(reusable),
    )


def _written(
    changes: Sequence[Change], failed: dict[str, str]
) -> Generator[Write, Sequence[str], None]:
    for start in range(0, len(changes), _WRITE_BATCH):
        for name in (yield Write(changes=changes[start : start + _WRITE_BATCH])):
            failed[name] = "somebody else changed it during this sync; sync again"
