"""Words of tools and questions: what is indexed, what is looked up, and how rare words weigh more.

The same function makes the terms of both sides; BM25 itself is computed in SQL, from the numbers
that stand here (`registry.statements.search`).
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from registry.types import ToolSpec

__all__ = [
    "COMMON_TERM_TOOLS",
    "K1",
    "LENGTH_SHARE",
    "MAX_POSTINGS",
    "MAX_TERM_CHARS",
    "TERMS_REVISION",
    "UNSPACED",
    "lexical_terms",
    "tool_terms",
    "word_score",
]

# Raise it when the terms of an unchanged tool change: the next sync writes them anew.
TERMS_REVISION = 2

K1 = 1.2  # BM25's saturation of repeated words
LENGTH_SHARE = 0.9  # BM25's b: how much a long text discounts its words
MAX_POSTINGS = 6_000  # read for a question, rarest words first; common words say little
MAX_TERM_CHARS = 64  # an entry of a B-tree has room for 2,704 bytes, its namespace included
COMMON_TERM_TOOLS = 20  # words in more tools than this are counted beforehand

_FIELD_WEIGHTS = {"name": 3.0, "description": 1.0, "examples": 1.0, "args": 0.5, "arg_docs": 0.3}
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# Indic and South-East Asian vowel signs are marks, not letters, to `re`.
_MARKS = (
    "\u0900-\u0963\u0971-\u09e5\u09f0-\u0dff\u0e00-\u0e4e\u0e80-\u0ece\u1000-\u103f\u1780-\u17d3"
)
# The signs of `C++`, `F#` and `.NET` belong to the word; those of `c++x`, `#tag`, `x.net` do not.
_WORD = re.compile(
    rf"(?:(?<![A-Za-z0-9_.])\.(?=(?i:net)(?![A-Za-z0-9])))?(?:[^\W_]|[{_MARKS}])+"
    r"(?:(?:\+\+|\#)(?![A-Za-z+#]))?"
)
_SIGNED = re.compile(r"(?<![A-Za-z0-9])[A-Za-z](?:\+\+|\#)$")
_PIECE = re.compile(rf"\d+|(?:[^\W\d_]|[{_MARKS}])+")
_ACCENT = re.compile("[\u0300-\u036f]")  # not the Japanese voicing marks
# Thai, Lao, Burmese, Khmer, Kana, Han, Hangul.
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)
_PARTICLES = re.compile("[\u3041-\u309f]+")  # hiragana alone is grammar more often than sense
# Function words of en, de, fr, es, it, nl, pt, accents taken off: small catalogues need them,
# since there a word's document frequency does not show that it says nothing.
STOP_WORDS = frozenset(
    """
    a aan aber about ai al all als also am an and any are as at au auch auf aus aux avec
    avez be been bei being bij bin bitte but by c can ce ces cet cette che chi com come
    comment como con could cual cuando d da dan dann dans das de dein del della dem den der
    des di dich did die dir do does don donde done dos dove du e each een ein eine einem
    einen einer eines el elle elles em en er era es est et etait eu for from fur geen get
    give gli haben had has hat have having he help her here het hij him his hoe how i ich if
    ihm ihn ihr ik il ils im in into io is ist it its j je jij jouw just kann kein keine
    know konnen l la las le les let like ll lo los m ma maar mais man mas may me mein meine
    mes met meu mi mia mich might mij mijn mine minha mio mir mis mit moi mon must my n na
    naar nach nao ne need nel nella nicht niet no noch non nos not nous o oder of on onde
    ons ook op or os ou our out over par para pas per pero please plus por pour qu qual
    quand quando que quel quelle quelles quels qui quoi re s sans se sein sem seu shall she
    should show si sie sin sind so soll some son sono sont su sua sur sus t ta te tell tes
    than that the their them then there these they this those to toi ton too tu uber uit um
    uma un una unas und une uno unos uns up us van ve very vom von voor vous waar wann
    wanneer want war waren was wat we welche welcher welches welke wenn wer werden were what
    when where which who whom whose why wie will wir wird with without wo would wurde y yes
    yo you your ze zij zijn zu zum zur
    """.split()
)


def lexical_terms(text: str) -> list[str]:
    """Return the terms of a text, in order, repeated as often as they occur.

    The same for tools and questions: case, accents and plurals folded, `getUserByID` and
    `snake_case` split (a joined form is kept too, so that `GitHub` meets `github` and `sha256`
    stays whole), scripts without spaces as pairs of characters; `C++`, `F#` and `.NET` keep their
    signs. Bare numbers are left out: in a question they are values, which say nothing about the
    tool that takes them.
    """
    if not text.isascii():
        text = _ACCENT.sub("", unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text)))
        text = unicodedata.normalize("NFKC", text)
    return [
        term
        for word in _WORD.findall(text)
        # Nobody's endless words are kept in memory.
        for term in (_known_terms(word) if len(word) <= MAX_TERM_CHARS else _terms_of_word(word))
    ]


def _terms_of_word(word: str) -> tuple[str, ...]:
    if word.startswith("."):
        return (word.casefold(), *_terms_of_word(word[1:]))
    if signed := _SIGNED.search(word):
        return (*_terms_of_word(word[: signed.start()]), signed.group().casefold())
    terms: list[str] = []
    place = 0
    # Where a script without spaces begins, so does another word: `MP3を` holds `MP3`.
    for run in UNSPACED.finditer(word):
        terms += _terms_of_spaced(word[place : run.start()])
        terms += _terms_of_unspaced(run.group())
        place = run.end()
    return (*terms, *_terms_of_spaced(word[place:]))


# Questions are made of the same words: looking one up is eight times as fast.
_known_terms = lru_cache(maxsize=20_000)(_terms_of_word)


def _terms_of_spaced(word: str) -> Iterable[str]:
    pieces = [piece for part in _CAMEL.split(word) for piece in _PIECE.findall(part)]
    if 1 < len(pieces) <= 3:
        yield _singular(word.rstrip("+#").casefold())
    for piece in pieces:
        yield from _plain(piece)


def _terms_of_unspaced(characters: str) -> Iterable[str]:
    if len(characters) == 1:
        yield characters
    for pair in map("".join, itertools.pairwise(characters)):
        if not _PARTICLES.fullmatch(pair):
            yield pair


def _plain(word: str) -> Iterable[str]:
    word = word.casefold()
    term = _singular(word)
    if word and not word.isdigit() and STOP_WORDS.isdisjoint((word, term)):
        yield term


def _singular(word: str) -> str:
    word = word[:MAX_TERM_CHARS]
    if len(word) > 4:
        if word.endswith(("ies", "ie")):  # queries, movies, movie
            return word.removesuffix("s")[:-2] + "y"
        if word.endswith(("sses", "shes", "ches", "xes", "zes")):
            return word[:-2]
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def tool_terms(spec: ToolSpec) -> dict[str, float]:
    """Return a tool's terms with their weighted frequency; the sum of these is its length."""
    found: Counter[str] = Counter()
    for field, text in _fields(spec):
        for term in lexical_terms(text):
            found[term] += _FIELD_WEIGHTS[field]  # pyright: ignore[reportArgumentType]
    return dict(found)


def word_score(
    terms: Mapping[str, float], weights: Iterable[Mapping[str, Any]], *, part: int
) -> float:
    """Return a tool's BM25 for one part of a question, as the search works it out in SQL.

    Args:
        terms: Of the tool.
        weights: Rows of `statements.words.term_weights`.
        part: 0 for the whole question, then its clauses.
    """
    length = sum(terms.values())
    return sum(
        row["most"] * has / (has + row["floor"] + row["per_word"] * length)
        for row in weights
        if row["mask"] & 1 << part and (has := terms.get(row["term"], 0.0))
    )


def _fields(spec: ToolSpec) -> Iterator[tuple[str, str]]:
    yield "name", spec.display_name
    yield "description", spec.description
    yield from (("examples", example) for example in spec.examples)
    yield from _arguments(spec.args_schema, depth=2)


def _arguments(schema: Any, *, depth: int) -> Iterator[tuple[str, str]]:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping) or not depth:
        return
    for name, argument in properties.items():
        yield "args", str(name)
        if isinstance(argument, Mapping):
            yield "arg_docs", str(argument.get("description") or "")
            yield from _arguments(argument.get("items", argument), depth=depth - 1)
