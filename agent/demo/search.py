"""Search tools over small sample collections; no network is touched."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from langchain_core.tools import BaseTool

from agent.demo.common import SAMPLE, demo_tool, demo_tools
from agent.demo.sample_data import ENCYCLOPEDIA, NEWS, PAPERS, WEB_PAGES, Document

__all__ = ["search_tools"]

Query = Annotated[str, "Search words"]

_MAX_RESULTS = 3
_WORD = re.compile(r"\w{2,}")
_COMMON = frozenset(
    "about an and are at by for from how in into is it not of on or the that this to was what "
    "when where which who with".split()
)


def web_search(query: Query) -> str:
    """Search the web for pages, guides and how-to instructions on any topic."""
    return _found(query, WEB_PAGES, "web page")


def news_search(query: Query) -> str:
    """Search newspaper headlines for current events: what happened lately in the news."""
    return _found(query, NEWS, "news report")


def encyclopedia_search(query: Query) -> str:
    """Look up in an encyclopedia who a person was or what a thing or place is."""
    return _found(query, ENCYCLOPEDIA, "encyclopedia article")


def paper_search(query: Query) -> str:
    """Search scientific papers and research publications by topic, title or author."""
    return _found(query, PAPERS, "paper")


def archive_search(query: Query) -> str:
    """Search the retired intranet archive, which is empty: it never finds anything."""
    return f"Nothing found for {query!r}. Try another tool. ({SAMPLE})"


def _found(query: str, documents: Sequence[Document], kind: str) -> str:
    words = _words(query)
    if not words:
        raise ValueError(f"the query {query!r} has no word to search for; give at least one")
    scored = [(len(words & _words(f"{d.title} {d.text} {d.source}")), d) for d in documents]
    best = sorted((pair for pair in scored if pair[0]), key=lambda pair: -pair[0])
    if not best:
        return f"No {kind} matches {query!r}. ({SAMPLE})"
    lines = [f"{d.title}: {d.text} [{d.source}]" for _, d in best[:_MAX_RESULTS]]
    more = len(best) - _MAX_RESULTS
    tail = f"({SAMPLE}; {more} more)" if more > 0 else f"({SAMPLE})"
    return "\n".join([*lines, tail])


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold())) - _COMMON


def search_tools() -> list[BaseTool]:
    """Return the tools of category `search`."""
    examples = ("Who was Marie Curie?", "What is a glacier?")
    return [
        *demo_tools("search", (web_search, news_search, paper_search, archive_search)),
        demo_tool(encyclopedia_search, category="search", examples=examples),
    ]
