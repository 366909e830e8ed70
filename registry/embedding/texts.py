"""Texts before they are embedded: questions that can be asked, requests that fit. Pure."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence

from registry.errors import InvalidQueryError
from registry.text import is_unicode

__all__ = [
    "MAX_QUESTION_CHARS",
    "checked_question",
    "estimated_tokens",
    "in_parts",
    "plan_batches",
    "shortened",
    "split_text",
]

# Longer texts are documents, with the question before or behind. The built-in model reads 8,000
# characters in 0.1 to 0.2 s, and nobody else can ask it meanwhile.
MAX_QUESTION_CHARS = 8_000
_LEFT_OUT = "\n…\n"

# One request: OpenAI takes 2,048 texts and 300,000 tokens; others take less.
_MAX_REQUEST_TOKENS = 200_000
_MAX_TEXT_TOKENS = 6_000

_log = logging.getLogger(__name__)


def checked_question(text: str) -> str:
    """Return a question as it is searched: no space around it, at most `MAX_QUESTION_CHARS` long.

    Of a longer one the first and the last half of that stay; the log says so.

    Raises:
        InvalidQueryError: It is no text, blank, or not valid Unicode.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidQueryError(f"The question is a {type(text).__name__}, not a text.")
    stripped = text.strip()
    if not stripped:
        raise InvalidQueryError("The question is empty; there is nothing to search for.")
    if not is_unicode(stripped):
        raise InvalidQueryError("The question is not valid Unicode: it holds half a surrogate.")
    if len(stripped) > MAX_QUESTION_CHARS:
        extra = {"characters": len(stripped), "searched": MAX_QUESTION_CHARS}
        _log.warning("question_shortened", extra=extra)
    return shortened(stripped)


def shortened(question: str) -> str:
    """Return a question, or the head and the tail of one that is too long."""
    if len(question) <= MAX_QUESTION_CHARS:
        return question
    head = MAX_QUESTION_CHARS // 2
    tail = MAX_QUESTION_CHARS - head - len(_LEFT_OUT)
    return f"{question[:head]}{_LEFT_OUT}{question[-tail:]}"


def estimated_tokens(text: str) -> int:
    """Return an upper estimate: two bytes of UTF-8 a token (English has four, Chinese three)."""
    return len(text.encode()) // 2 + 1


def plan_batches(texts: Sequence[str], *, max_items: int) -> Iterator[range]:
    """Cut a list into runs that respect both limits of one request, texts and tokens.

    Args:
        texts: All texts, in order.
        max_items: Most texts in one request.

    Yields:
        Ranges of indexes, together exactly `range(len(texts))`; a range holds at most
        `max_items` texts and about 200,000 estimated tokens, but never none.
    """
    start, tokens = 0, 0
    for index, text in enumerate(texts):
        cost = estimated_tokens(text)
        if index > start and (index - start >= max_items or tokens + cost > _MAX_REQUEST_TOKENS):
            yield range(start, index)
            start, tokens = index, 0
        tokens += cost
    if start < len(texts):
        yield range(start, len(texts))


def split_text(text: str, *, max_tokens: int = _MAX_TEXT_TOKENS) -> list[str]:
    """Cut a text into nearly equal parts of at most `max_tokens` estimated tokens each."""
    parts = math.ceil(estimated_tokens(text) / max_tokens)
    if parts <= 1:
        return [text]
    size = math.ceil(len(text) / parts)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    # Bytes a character vary, so a piece may still be over; a blank one has nothing to embed.
    return [
        part
        for piece in pieces
        if piece.strip()
        for part in split_text(piece, max_tokens=max_tokens)
    ]


def in_parts(texts: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return the parts of all texts, and for each part the index of its text."""
    parts: list[str] = []
    owners: list[int] = []
    for index, text in enumerate(texts):
        for part in split_text(text):
            parts.append(part)
            owners.append(index)
    return parts, owners
