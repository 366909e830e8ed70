"""Pure text functions: model-facing names, the text that is embedded, content hashes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from difflib import get_close_matches

from registry.types import ToolSpec

__all__ = [
    "MAX_DESCRIPTION_CHARS",
    "MAX_NAME_CHARS",
    "content_hash",
    "embedding_text",
    "humanise",
    "is_legal_name",
    "is_unicode",
    "legal_name",
    "model_facing_description",
    "nearest_names",
    "text_hash",
]

MAX_NAME_CHARS = 64  # OpenAI, Anthropic, Bedrock: ^[a-zA-Z0-9_-]{1,64}$
MAX_DESCRIPTION_CHARS = 1_024  # the smallest limit among the providers

_LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ILLEGAL_RUN = re.compile(r"[^a-zA-Z0-9_-]+")
_WORD_BREAK = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[_\-./:\s]+")
_CUT_MARK = " […]"
_DIGEST_CHARS = 8


def is_legal_name(name: str) -> bool:
    """Return whether every provider takes this as a tool name."""
    return _LEGAL.fullmatch(name) is not None


def legal_name(name: str, *, prefix: str = "") -> str:
    """Return a model-facing name, `[a-zA-Z0-9_-]{1,64}`, the same for the same input always.

    A legal name without prefix comes back as it is. Whatever had to be replaced or cut is made
    up for by eight hex digits of the original's SHA-256, so that two originals stay apart.

    Args:
        name: The tool's own name.
        prefix: Put before it with two underscores, for example an MCP server's name.

    Raises:
        ValueError: The name is empty or blank.
    """
    if not name.strip():
        raise ValueError("the name is empty")
    full = f"{prefix}__{name}" if prefix else name
    if is_legal_name(full):
        return full
    # A thousand names without one Latin letter share all but the digits: six would not do.
    digest = hashlib.sha256(full.encode()).hexdigest()[:_DIGEST_CHARS]
    readable = _ILLEGAL_RUN.sub("_", full).strip("_") or "tool"
    return f"{readable[: MAX_NAME_CHARS - _DIGEST_CHARS - 1]}_{digest}"


def is_unicode(text: str) -> bool:
    """Return whether a text can be encoded: JSON may bring half a surrogate, which cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def humanise(name: str) -> str:
    """Split snake_case, kebab-case and CamelCase: `getUserByID` becomes `get User By ID`."""
    return " ".join(part for part in _WORD_BREAK.split(name) if part)


def embedding_text(spec: ToolSpec) -> str:
    """Return the text that is embedded for a tool; never blank, since the name is in it."""
    parts = [humanise(spec.display_name), spec.description.strip(), *spec.examples]
    return "\n".join(part for part in parts if part)


def content_hash(spec: ToolSpec) -> str:
    """Return the SHA-256 (hex) of every stored field: equal hashes mean nothing to do."""
    fields = [
        spec.display_name,
        spec.description,
        spec.category,
        list(spec.examples),
        spec.binding,
        spec.origin,
        dict(spec.args_schema),
        spec.requires_approval,
        spec.read_only,
        # A tool without the mark keeps the hash that it had before there was one.
        *(["fallback"] if spec.fallback else []),
    ]
    canonical = json.dumps(fields, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def text_hash(spec: ToolSpec) -> str:
    """Return the SHA-256 (hex) of the text to embed: equal hashes mean the vector can stay."""
    return hashlib.sha256(embedding_text(spec).encode()).hexdigest()


def model_facing_description(description: str, *, max_chars: int = MAX_DESCRIPTION_CHARS) -> str:
    """Return the description as a provider takes it: cut at a word, with a visible mark."""
    if len(description) <= max_chars:
        return description
    room = max_chars - len(_CUT_MARK)
    head, _, _ = description[: room + 1].rpartition(" ")
    # A text without spaces (Japanese, a URL) is cut where the room ends.
    return (head if len(head) > room // 2 else description[:room]).rstrip() + _CUT_MARK


def nearest_names(name: str, known: Iterable[str], *, limit: int = 3) -> list[str]:
    """Return up to `limit` known names like `name`, nearest first; letter case is ignored."""
    by_folded = {candidate.casefold(): candidate for candidate in sorted(known, reverse=True)}
    folded = name.casefold()
    # Models decorate names ("functions.search_notes"): compare the last part as well.
    tail = re.split(r"[./:\s]", folded)[-1]
    found = [exact for exact in (folded, tail) if exact in by_folded]
    found += get_close_matches(folded, by_folded, n=limit, cutoff=0.6)
    found += get_close_matches(tail, by_folded, n=limit, cutoff=0.6)
    return [by_folded[match] for match in dict.fromkeys(found)][:limit]
