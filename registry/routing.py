"""Which categories a question is about, by their keywords; which keywords a catalogue suggests.

Pure, and microseconds a question: it runs before every search.
"""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import log
from string import punctuation

from registry.errors import ConfigurationError
from registry.lexical import UNSPACED, lexical_terms
from registry.text import humanise
from registry.types import ToolSpec

__all__ = ["Router", "checked_category", "suggested_keywords"]

_UNCATEGORISED = "general"  # the category of a spec that was given none
_MAX_CHARS = 100
_MAX_KEYWORDS = 500


class Router:
    """Categories by their keywords, compiled once.

    A keyword is found as whole words; letter case, accents, plural s and punctuation do not
    matter, words such as "the" and bare numbers are passed over: "stock price" is in "What are
    the Stock-Prices?", "car" is neither in "scar" nor in "careful". A keyword with Chinese,
    Japanese, Korean, Thai, Lao, Khmer or Burmese characters is found anywhere in the text.

    Args:
        categories: Name to keywords. A keyword that says nothing is never found.

    Raises:
        ConfigurationError: Keywords are one text instead of a list.
    """

    def __init__(self, categories: Mapping[str, Sequence[str]]) -> None:
        # First term, or first character, to (what is to be found, category, keyword).
        self._by_term: defaultdict[str, list[tuple[list[str], str, str]]] = defaultdict(list)
        self._by_character: defaultdict[str, list[tuple[str, str, str]]] = defaultdict(list)
        for name, keywords in categories.items():
            _check_list(keywords)
            for keyword in dict.fromkeys(keywords):
                folded = _folded(keyword)
                if UNSPACED.search(folded):
                    self._by_character[folded[0]].append((folded, name, keyword))
                elif terms := lexical_terms(folded):
                    self._by_term[terms[0]].append((terms, name, keyword))

    def route(self, question: str) -> tuple[str, ...]:
        """Return the categories whose keywords are in a question; none: the whole registry.

        Those with most keywords in it come first, ties in name order.
        """
        return tuple(self.keywords_in(question))

    def keywords_in(self, question: str) -> dict[str, tuple[str, ...]]:
        """Return the categories of `route`, each with its keywords that were found, sorted."""
        if not self._by_term and not self._by_character:
            return {}
        folded = _folded(question)
        found: defaultdict[str, set[str]] = defaultdict(set)
        terms = lexical_terms(folded) if self._by_term else []
        for place, term in enumerate(terms):
            for wanted, name, keyword in self._by_term.get(term, ()):
                if len(wanted) == 1 or terms[place : place + len(wanted)] == wanted:
                    found[name].add(keyword)
        if self._by_character and not folded.isascii():
            for place, character in enumerate(folded):
                for text, name, keyword in self._by_character.get(character, ()):
                    if folded.startswith(text, place):
                        found[name].add(keyword)
        best_first = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
        return {name: tuple(sorted(keywords)) for name, keywords in best_first}


def checked_category(name: str, keywords: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """Return a category's name and keywords without blanks around them, in the order given.

    Raises:
        ConfigurationError: The name or a keyword is empty, too long, not text or says nothing;
            two keywords are found in the same questions; there is no keyword, or too many.
    """
    _check_list(keywords)
    name = _checked_text(name, "The name of a category")
    by_meaning: dict[str | tuple[str, ...], str] = {}
    for given in keywords:
        keyword = _checked_text(given, f"A keyword of category {name!r}")
        meaning = _meaning(keyword)
        if not meaning:
            raise ConfigurationError(
                f"Keyword {keyword!r} of category {name!r} can never be found: it holds nothing "
                "but words that are in any question, numbers or signs. Use one that says more."
            )
        if meaning in by_meaning:
            raise ConfigurationError(
                f"Keywords {by_meaning[meaning]!r} and {keyword!r} of category {name!r} are found "
                "in the same questions. Leave one of them out."
            )
        by_meaning[meaning] = keyword
    if not by_meaning:
        raise ConfigurationError(f"Category {name!r} needs at least one keyword.")
    if len(by_meaning) > _MAX_KEYWORDS:
        raise ConfigurationError(
            f"Category {name!r} has {len(by_meaning)} keywords; at most {_MAX_KEYWORDS} are "
            "allowed. Keep those that no other category has."
        )
    return name, tuple(by_meaning.values())


def _check_list(keywords: Iterable[str]) -> None:
    if isinstance(keywords, str):  # a text is its letters
        raise ConfigurationError(
            f"keywords is the text {keywords!r}; give a list of texts, for example [{keywords!r}]"
        )


def suggested_keywords(
    specs: Iterable[ToolSpec], *, per_category: int = 10
) -> dict[str, tuple[str, ...]]:
    """Propose keywords of every category from its own tools, most characteristic first.

    The words of the category's name come first. A word weighs the number of the category's tools
    that have it times the logarithm of how much more frequent it is there than elsewhere.

    Args:
        specs: The catalogue; tools without a category of their own count as elsewhere.
        per_category: Most keywords of one category.

    Returns:
        Category to keywords, in name order; without those that nothing can be said of.
    """
    inside: defaultdict[str, Counter[str]] = defaultdict(Counter)
    spellings: defaultdict[str, Counter[str]] = defaultdict(Counter)
    sizes: Counter[str] = Counter()
    for spec in specs:
        text = f"{humanise(spec.display_name)} {spec.description}"
        inside[spec.category].update(set(lexical_terms(text)))
        sizes[spec.category] += 1
        _note_spellings(f"{text} {humanise(spec.category)}", spellings)
    everywhere: Counter[str] = Counter()
    for counts in inside.values():
        everywhere.update(counts)
    suggestions: dict[str, tuple[str, ...]] = {}
    for name in sorted(sizes.keys() - {_UNCATEGORISED}):
        telling = _telling_terms(
            inside[name], everywhere, tools=sizes[name], others=sizes.total() - sizes[name]
        )
        terms = dict.fromkeys([*lexical_terms(humanise(name)), *telling])
        if chosen := [t for t in terms if len(t) > 1 or UNSPACED.match(t)][:per_category]:
            suggestions[name] = tuple(_commonest(spellings[term], term) for term in chosen)
    return suggestions


def _note_spellings(text: str, spellings: Mapping[str, Counter[str]]) -> None:
    # People read and edit the keywords: "series", not the term "sery".
    for word in text.casefold().split():
        terms = lexical_terms(word)
        spelling = word.strip(punctuation)
        # Not "c" for "c++", which it does not lead back to.
        if len(terms) == 1 and spelling.isalnum() and lexical_terms(spelling) == terms:
            spellings[terms[0]][spelling] += 1


def _telling_terms(
    inside: Mapping[str, int], everywhere: Mapping[str, int], *, tools: int, others: int
) -> list[str]:
    # In a category of more than three tools a word of one tool says little about the others.
    least = 1 if tools <= 3 else 2
    weights = {
        term: count * log((count / tools) / ((everywhere[term] - count + 0.5) / (others + 1)))
        for term, count in inside.items()
        if count >= least
    }
    telling = (term for term, weight in weights.items() if weight > 0)
    return sorted(telling, key=lambda term: (-weights[term], term))


def _commonest(spellings: Counter[str], term: str) -> str:
    return min(spellings, key=lambda spelling: (-spellings[spelling], spelling), default=term)


def _folded(text: str) -> str:
    # Letter case first: a keyword "github" must be found in "GitHub", which would be three terms.
    return unicodedata.normalize("NFKC", text).casefold().strip()


def _meaning(keyword: str) -> str | tuple[str, ...]:
    folded = _folded(keyword)
    return folded if UNSPACED.search(folded) else tuple(lexical_terms(folded))


def _checked_text(given: str, what: str) -> str:
    if not isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"{what} is {given!r}; it must be a text.")
    text = given.strip()
    if not text:
        raise ConfigurationError(f"{what} is empty.")
    if len(text) > _MAX_CHARS:
        raise ConfigurationError(
            f"{what} has {len(text)} characters ({text[:30]!r}…); at most {_MAX_CHARS} are allowed."
        )
    if not text.isprintable():
        raise ConfigurationError(f"{what} is {text!r}; it must be one line of printable text.")
    return text
