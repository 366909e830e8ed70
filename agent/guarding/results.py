"""What a model is shown of a tool's result: readable, never empty, and no more than a cap."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

__all__ = [
    "MAX_KEPT_CHARS",
    "MAX_KEPT_RESULTS",
    "Page",
    "Shown",
    "keep_results",
    "page_of",
    "shown",
    "text_of",
]

MAX_KEPT_RESULTS = 8
MAX_KEPT_CHARS = 2_000_000  # in a thread, over all results that were cut

_MAX_LITERAL_CHARS = 20_000_000
_NOTE_ROOM = 300
_SAMPLE_CHARS = 1_000
_MAX_URL_CHARS = 200
_BYTES = re.compile(r"""(?:bytearray\()?b(?:'.*'|".*")\)?""", re.DOTALL)
# What no text holds: control characters but tab, newline, return, escape and form feed.
_CONTROL = re.compile(r"[\x01-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f�]")
_MAX_CONTROL_SHARE = 0.1
_MEDIA = ("image", "image_url", "audio", "input_audio", "video", "file", "document")

Content = str | list[str | dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Shown:
    """A result as the model is shown it.

    Attributes:
        content: Of the tool message.
        full_text: All of its text, where something was cut; else None.
        handle: Under which the full text is read on.
    """

    content: Content
    full_text: str | None = None
    handle: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a kept result.

    Attributes:
        text: From the offset on, with a note where it does not end there.
        is_error: There is nothing to read; `text` says why.
    """

    text: str
    is_error: bool = False


def shown(
    content: Any,
    *,
    tool_name: str,
    max_chars: int,
    media: Literal["describe", "keep"] = "describe",
    can_read_on: bool = True,
) -> Shown:
    """Return what a model is shown of a tool's result.

    Args:
        content: Of the tool's message: a text or blocks.
        tool_name: For the sentence that stands for nothing.
        max_chars: Characters of text (and of kept media, in JSON) in all.
        media: Describe what is no text in words, or keep it while it fits.
        can_read_on: A cut text can be read on with `read_more`.
    """
    if isinstance(content, str):
        text = _readable(content)
        if not text.strip() or text == "null":
            return Shown(f"Tool {tool_name!r} finished without output.")
        return _capped(text, max_chars, can_read_on=can_read_on)
    blocks = [_block(block, media, max_chars) for block in cast("Sequence[Any]", content or ())]
    texts = [block for block in blocks if isinstance(block, str)]
    kept: list[str | dict[str, Any]] = [block for block in blocks if not isinstance(block, str)]
    full = "\n".join(text for text in texts if text.strip())
    if not full and not kept:
        return Shown(f"Tool {tool_name!r} finished without output.")
    room = max_chars - sum(len(json.dumps(block, default=str)) for block in kept)
    if not full:
        return Shown(kept)
    cut = _capped(full, max(room, _NOTE_ROOM + 1), can_read_on=can_read_on)
    if cut.full_text is None:
        in_place: list[str | dict[str, Any]] = [
            {"type": "text", "text": block} if isinstance(block, str) else block
            for block in blocks
            if not isinstance(block, str) or block.strip()
        ]
        return Shown(in_place)
    return Shown([{"type": "text", "text": cut.content}, *kept], cut.full_text, cut.handle)


def text_of(content: Any) -> str:
    """Return the text of a message's content, with what is no text in words."""
    if isinstance(content, str):
        return _readable(content)
    blocks = (_block(block, "describe", 0) for block in cast("Sequence[Any]", content or ()))
    return "\n".join(str(block) for block in blocks if str(block).strip())


def page_of(kept: Mapping[str, str], handle: str, offset: int, *, max_chars: int) -> Page:
    """Return a kept result from an offset on.

    Args:
        kept: Full texts by handle.
        handle: From the note of a cut result.
        offset: Characters to leave out, 0 or more.
        max_chars: Characters of the page in all.
    """
    text = kept.get(handle)
    if text is None:
        return Page(
            f"No result is kept under the handle {handle[:40]!r}. Only the newest "
            f"{MAX_KEPT_RESULTS} cut results of a conversation are; call the tool again if you "
            "need more of it.",
            is_error=True,
        )
    if not 0 <= offset < len(text):
        return Page(
            f"offset is {offset}; the result has {len(text)} characters, so give 0 to "
            f"{len(text) - 1}.",
            is_error=True,
        )
    end = offset + max_chars - _NOTE_ROOM
    if end >= len(text):
        return Page(text[offset:])
    note = (
        f"\n[… characters {offset:,} to {end:,} of {len(text):,}. "
        f'To read on, call read_more with handle "{handle}" and offset {end}.]'
    )
    return Page(text[offset:end] + note)


def keep_results(kept: Mapping[str, str] | None, new: Mapping[str, str] | None) -> dict[str, str]:
    """Return kept results with new ones; the oldest go where there is no room (a reducer)."""
    merged = dict(kept or {})
    for handle, text in (new or {}).items():
        merged.pop(handle, None)
        merged[handle] = text[:MAX_KEPT_CHARS]
    while len(merged) > MAX_KEPT_RESULTS or sum(map(len, merged.values())) > MAX_KEPT_CHARS:
        del merged[next(iter(merged))]
    return merged


def _capped(text: str, max_chars: int, *, can_read_on: bool) -> Shown:
    if len(text) <= max_chars:
        return Shown(text)
    end = max_chars - _NOTE_ROOM
    # Equal results have equal handles: whether a call was repeated is seen by its result.
    handle = "r-" + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
    advice = "It cannot be read on; ask for less, for example with a filter or a page."
    if can_read_on:
        advice = f'To read on, call read_more with handle "{handle}" and offset {end}.'
        if len(text) > MAX_KEPT_CHARS:
            advice += f" No more than {MAX_KEPT_CHARS:,} are kept."
    note = f"\n[… cut: the first {end:,} of {len(text):,} characters are shown. {advice}]"
    return Shown(text[:end] + note, text if can_read_on else None, handle if can_read_on else None)


def _readable(text: str) -> str:
    """Return text without NULs and half surrogates; bytes and binary are described."""
    if text[:12].startswith(("b'", 'b"', "bytearray(b")) and _BYTES.fullmatch(text):
        text = _decoded(text)
    text = text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")
    sample = text[:_SAMPLE_CHARS]
    if sample and len(_CONTROL.findall(sample)) > _MAX_CONTROL_SHARE * len(sample):
        return f"(binary data, {len(text):,} characters, not shown)"
    return text


def _decoded(text: str) -> str:
    """Return the text of bytes that were written as Python writes them, or what they are."""
    if len(text) > _MAX_LITERAL_CHARS:
        return f"(binary data, {len(text):,} characters as text, not shown)"
    literal = text[len("bytearray(") : -1] if text.startswith("bytearray(") else text
    try:
        value = ast.literal_eval(literal)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    try:
        return cast("bytes", value).decode("utf-8")
    except (UnicodeDecodeError, AttributeError):
        return f"(binary data, {len(cast('bytes', value)):,} bytes, not shown)"


def _block(block: Any, media: Literal["describe", "keep"], max_chars: int) -> str | dict[str, Any]:
    """Return a block as text, or as it is where it is kept."""
    if isinstance(block, str):
        return _readable(block)
    if not isinstance(block, dict):
        return _readable(str(block))
    part = cast("dict[str, Any]", block)
    kind = part.get("type")
    if kind == "text":
        return _readable(str(part.get("text") or ""))
    size = len(json.dumps(part, default=str))
    if media == "keep" and size <= max_chars:
        return part
    if kind in _MEDIA:
        return _readable(_described(part, size))
    return _readable(json.dumps(part, ensure_ascii=False, default=str))


def _described(part: Mapping[str, Any], size: int) -> str:
    source: Any = part.get("source") or part.get("image_url") or part.get("file") or part
    source = cast("Mapping[str, Any]", source) if isinstance(source, dict) else {"url": source}
    kind = str(part.get("type")).removesuffix("_url").removeprefix("input_")
    mime = part.get("mime_type") or source.get("mime_type") or source.get("media_type") or ""
    url = str(source.get("url") or "")
    if url.startswith("data:"):
        mime = mime or url[5:].partition(";")[0]
        url = ""
    facts = [str(mime)[:_MAX_URL_CHARS], url[:_MAX_URL_CHARS] or f"{size:,} characters of data"]
    return f"[{kind}: {', '.join(fact for fact in facts if fact)}; not shown]"
