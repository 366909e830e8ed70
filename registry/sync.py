"""What a sync does, step by step, without doing it: both stores drive the same generator."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from registry.embedding import Vectors, plan_batches, vector_literal
from registry.errors import DuplicateToolError, EmbeddingError, InvalidToolError
from registry.statements import CurrentTool, tool_row
from registry.text import content_hash, embedding_text, source_hash
from registry.toolset import ToolLike, Toolset, tool_spec
from registry.types import SyncProgress, SyncReport, ToolSpec

__all__ = ["Embed", "Requests", "SyncSteps", "Write", "specs_of", "sync_steps"]

Item = TypeVar("Item")

_WRITE_BATCH = 500
# After so many single texts refused in a row the embedding model is down, not the texts bad.
_GIVE_UP_AFTER = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed:
    """Ask: the vectors of one request's worth of texts."""

    texts: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Ask: store these tools in one transaction, with their vectors where given."""

    specs: Sequence[ToolSpec]
    vectors: Vectors | None = None
    hashes: Sequence[str] = ()

    def rows(self, namespace: str) -> list[Mapping[str, Any]]:
        """Rows of `statements.upsert_tools`; in name order, so two syncs cannot deadlock."""
        ordered = sorted(self.specs, key=lambda spec: spec.tool_name)
        return [tool_row(namespace, spec) for spec in ordered]

    def arrays(self) -> Mapping[str, list[str]]:
        """Arrays of `statements.upsert_vectors`."""
        assert self.vectors is not None
        return {
            "names": [spec.tool_name for spec in self.specs],
            "vectors": [vector_literal(vector) for vector in self.vectors],
            "hashes": list(self.hashes),
        }


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

    def refused(self, request: Sequence[Item], error: EmbeddingError) -> bool:
        """Plan what follows a refused request; return whether its one item has failed for good."""
        if len(request) > 1:
            middle = len(request) // 2
            self._pending += [request[middle:], request[:middle]]
            return False
        self._refused_in_a_row += 1
        if self._refused_in_a_row >= _GIVE_UP_AFTER:
            self.given_up = f"not tried after {_GIVE_UP_AFTER} failures in a row: {error}"
        return True

    def untried(self) -> list[Item]:
        """Return the items that were given up without being tried alone."""
        return [item for request in reversed(self._pending) for item in request]


SyncSteps = Generator[Embed | Write, Vectors | None, SyncReport]


def specs_of(
    tools: Toolset | Iterable[ToolLike], *, origin: str
) -> tuple[list[ToolSpec], dict[str, str]]:
    """Return checked specs, one a name, and why others cannot be registered, by name.

    One bad tool does not block the rest.

    Raises:
        DuplicateToolError: Two tools have one model-facing name; it would be chance which wins.
    """
    if isinstance(tools, Toolset):
        return tools.specs, {}
    specs: dict[str, ToolSpec] = {}
    refused: dict[str, str] = {}
    for item in tools:
        try:
            spec = tool_spec(item, origin=origin)
        except InvalidToolError as error:
            refused[error.tool_name] = error.reason
            continue
        if (other := specs.get(spec.tool_name)) is not None:
            raise DuplicateToolError(spec.tool_name, sorted((other.origin, spec.origin)))
        specs[spec.tool_name] = spec
    return list(specs.values()), refused


def sync_steps(
    specs: Sequence[ToolSpec],
    current: Mapping[str, CurrentTool],
    *,
    refused: Mapping[str, str],
    batch_size: int,
    on_progress: Callable[[SyncProgress], None] | None = None,
) -> SyncSteps:
    """Yield what has to be embedded and written; return the report.

    The driver answers `Embed` with vectors, or throws EmbeddingError into the generator, and
    answers `Write` with None. A failed request is halved until the text at fault stands alone,
    so that one bad text does not sink its batch; finished batches stay.

    Args:
        specs: Distinct tools, in the order to report.
        current: The namespace's tools by name.
        refused: Tools that cannot be registered, with the reason; reported as failed.
        batch_size: Texts in one request.
        on_progress: Called after each request.
    """
    added: set[str] = {spec.tool_name for spec in specs if spec.tool_name not in current}
    changed: set[str] = set()
    rows_only: list[ToolSpec] = []
    to_embed: list[tuple[ToolSpec, str, str]] = []
    failed: dict[str, str] = dict(refused)
    for spec in specs:
        known = current.get(spec.tool_name)
        if known is not None and known.origin != spec.origin:
            failed[spec.tool_name] = (
                f"the name belongs to origin {known.origin}; {spec.origin} may not take it over"
            )
            continue
        if known is None or known.content_hash != content_hash(spec):
            changed.add(spec.tool_name)
        text = embedding_text(spec)
        digest = source_hash(text)
        if known is None or known.source_hash != digest:
            to_embed.append((spec, text, digest))
        elif spec.tool_name in changed:
            rows_only.append(spec)

    for start in range(0, len(rows_only), _WRITE_BATCH):
        yield Write(specs=rows_only[start : start + _WRITE_BATCH])

    embedded, done = 0, 0
    requests = Requests(to_embed, texts=[item[1] for item in to_embed], size=batch_size)
    for batch in requests:
        try:
            vectors = yield Embed(texts=[text for _, text, _ in batch])
        except EmbeddingError as error:
            if not requests.refused(batch, error):
                continue
            failed[batch[0][0].tool_name] = str(error)
        else:
            requests.accepted()
            embedded += len(batch)
            yield Write(
                specs=[spec for spec, _, _ in batch],
                vectors=vectors,
                hashes=[digest for _, _, digest in batch],
            )
        done += len(batch)
        if on_progress is not None:
            on_progress(SyncProgress(done=done, total=len(to_embed)))
    failed |= {spec.tool_name: requests.given_up for spec, _, _ in requests.untried()}

    names = [spec.tool_name for spec in specs if spec.tool_name not in failed]
    given = {spec.tool_name for spec in specs} | set(refused)
    origins = {spec.origin for spec in specs}
    re_embedded = {spec.tool_name for spec, _, _ in to_embed}
    return SyncReport(
        added=[name for name in names if name in added],
        updated=[n for n in names if n not in added and (n in changed or n in re_embedded)],
        unchanged=[n for n in names if n not in changed and n not in re_embedded],
        failed=failed,
        missing=sorted(
            name
            for name, known in current.items()
            if known.is_active and known.origin in origins and name not in given
        ),
        embedded=embedded,
    )
