"""Tools that work on a text."""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated, Literal

from langchain_core.tools import BaseTool

from agent.demo.common import demo_tools

__all__ = ["text_tools"]

_EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")


def count_words(text: str) -> dict[str, int]:
    """Count how many words, characters and lines a text has."""
    return {"words": len(text.split()), "characters": len(text), "lines": len(text.splitlines())}


def change_case(text: str, style: Literal["upper", "lower", "title"]) -> str:
    """Write a text in capital letters, in small letters, or with Each Word Capitalised."""
    return {"upper": text.upper(), "lower": text.lower(), "title": text.title()}[style]


def reverse_text(text: str) -> str:
    """Write a text backwards, last character first."""
    return text[::-1]


def find_and_replace(text: str, search: str, replacement: str) -> str:
    """Replace every occurrence of a phrase in a text by another phrase."""
    if not search:
        raise ValueError("search is empty; say which phrase to replace")
    return text.replace(search, replacement)


def extract_email_addresses(text: str) -> str:
    """Pull all e-mail addresses out of a text, each once, in order."""
    found = list(dict.fromkeys(_EMAIL.findall(text)))
    return ", ".join(found) if found else "no e-mail address in the text"


def sort_lines(text: str) -> str:
    """Put the lines of a text into alphabetical order."""
    return "\n".join(sorted(text.splitlines(), key=lambda line: (line.casefold(), line)))


def remove_duplicate_lines(text: str) -> str:
    """Drop repeated lines from a text and keep the first of each."""
    return "\n".join(dict.fromkeys(text.splitlines()))


def make_slug(text: str) -> str:
    """Turn a headline into a slug for web addresses: small letters, digits and hyphens."""
    plain = unicodedata.normalize("NFKD", text.replace("ß", "ss"))
    slug = re.sub(r"[^a-z0-9]+", "-", plain.encode("ascii", "ignore").decode().lower()).strip("-")
    if not slug:
        raise ValueError(f"{text!r} has no Latin letter or digit to make a slug of")
    return slug


def first_sentences(
    text: str, sentences: Annotated[int, "How many sentences to keep, from 1"] = 2
) -> str:
    """Shorten a long text to its first few sentences as a crude summary."""
    if sentences < 1:
        raise ValueError(f"sentences is {sentences}; it must be at least 1")
    parts = [part for part in _SENTENCE_END.split(text.strip()) if part]
    kept = " ".join(part.strip() for part in parts[:sentences])
    left_out = len(parts) - sentences
    return kept if left_out <= 0 else f"{kept} […] ({left_out} more sentences)"


def text_tools() -> list[BaseTool]:
    """Return the tools of category `text`."""
    return demo_tools(
        "text",
        (
            count_words,
            change_case,
            reverse_text,
            find_and_replace,
            extract_email_addresses,
            sort_lines,
            remove_duplicate_lines,
            make_slug,
            first_sentences,
        ),
    )
