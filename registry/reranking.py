"""A LangChain document compressor in the search: hits as documents, its order as ours. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

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
            "fallback": hit.fallback,
            "rank": hit.rank,
            "relevance": hit.relevance,
        },
    )


def reranked(
    hits: Sequence[ToolHit], given: Sequence[ToolHit], returned: object
) -> tuple[list[ToolHit], int]:
    """Return hits in a reranker's order, ranks counted anew, all else as it was.

    Args:
        hits: Best first.
        given: The first of them, which the reranker was given.
        returned: What it made of these. Those that are missing are dropped, all of them too:
            that is a filter's way to say that none fits. What is no document that it was given,
            and repetitions, are passed over. The hits that it was not given follow.

    Returns:
        The hits, and how much of the answer was passed over.

    Raises:
        ValueError: It returned no list, or one that holds none of what it was given.
    """
    if not isinstance(returned, Sequence) or isinstance(returned, (str, bytes)):
        raise ValueError(f"the reranker returned a {type(returned).__name__}, no list of documents")
    answer = cast("Sequence[object]", returned)
    by_name = {hit.tool_name: hit for hit in given}
    known = dict.fromkeys(name for name in map(_name_of, answer) if name in by_name)
    if answer and not known:
        raise ValueError("the reranker returned no document that it was given")
    ordered = [*(by_name[name] for name in known), *hits[len(given) :]]
    ranked = [replace(hit, rank=rank) for rank, hit in enumerate(ordered, start=1)]
    return ranked, len(answer) - len(known)


def _name_of(document: object) -> str:
    if not isinstance(document, Document):
        return ""
    # Rerankers copy documents, and not all copy the id.
    name = document.metadata.get("tool_name", document.id)
    return name if isinstance(name, str) else ""
