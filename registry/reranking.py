"""A LangChain document compressor in the search: hits as documents, its order as ours. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from langchain_core.documents import Document

from registry.types import ToolHit

__all__ = ["document_of", "reranked"]


def document_of(hit: ToolHit) -> Document:
    """Return a hit as a document: the description is the text, the rest is metadata."""
    return Document(
        id=hit.tool_name,
        page_content=hit.description,
        metadata={
            "tool_name": hit.tool_name,
            "display_name": hit.display_name,
            "category": hit.category,
            "binding": hit.binding,
            "origin": hit.origin,
            "version": hit.version,
            "requires_approval": hit.requires_approval,
            "read_only": hit.read_only,
            "rank": hit.rank,
            "relevance": hit.relevance,
        },
    )


def reranked(
    hits: Sequence[ToolHit], given: Sequence[ToolHit], returned: Iterable[Document]
) -> list[ToolHit]:
    """Return hits in a reranker's order, ranks counted anew, all else as it was.

    Args:
        hits: Best first.
        given: The first of them, which the reranker was given.
        returned: What it made of these. Those that are missing are dropped; documents that it
            was not given, and repetitions, are passed over. The hits that it was not given follow.

    Raises:
        ValueError: It returned documents, but none of those that it was given.
    """
    by_name = {hit.tool_name: hit for hit in given}
    # Rerankers copy documents, and not all copy the id.
    names = [document.metadata.get("tool_name", document.id) for document in returned]
    known = dict.fromkeys(name for name in names if isinstance(name, str) and name in by_name)
    if names and not known:
        raise ValueError("the reranker returned no document that it was given")
    ordered = [*(by_name[name] for name in known), *hits[len(given) :]]
    return [replace(hit, rank=rank) for rank, hit in enumerate(ordered, start=1)]
