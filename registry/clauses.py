"""A compound question, cut without a model into the parts that may each need a tool."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from registry.lexical import UNSPACED, lexical_terms

__all__ = ["MAX_CLAUSES", "clauses"]

MAX_CLAUSES = 4
_MIN_CLAUSE_TERMS = 2
_MAX_CHARS = 4_000  # a longer text is a document: what it asks for does not stand between commas

_SENTENCE_END = re.compile(r"(?<=[.!?;])[\"'”»]?\s+|\n+|(?<=[。！？；])")
_JOINING = "|".join(
    word.replace(" ", r"\s+")
    for word in sorted(  # longest first: "e depois" begins with "e"
        "and then|and also|as well as|and|then|also|plus|but|after that|afterwards|finally"
        "|additionally|moreover|furthermore"
        "|und dann|und danach|und|dann|danach|sowie|außerdem|anschließend|aber|zudem"
        "|schließlich|als nächstes|zum schluss"
        "|et puis|et ensuite|et|puis|ensuite|ainsi que|mais|et après|enfin|après cela"
        "|y luego|y después|y|luego|después|también|además|y también|y además|por último"
        "|finalmente|a continuación"
        "|e poi|e|poi|inoltre|e depois|depois|também|além disso|infine|em seguida|e então"
        "|en dan|en|daarna|vervolgens|ook|maar|en daarna|ten slotte".split("|"),
        key=len,
        reverse=True,
    )
)
_JOINING_UNSPACED = (
    "そして|それから|また|次に|その後|最後に|然后|然後|之后|接下来|随后|最后|另外|此外"
    "|并且|以及|接着|同时|还有|그리고|그런 다음|그 다음|마지막으로"
)
_CLAUSE_END = re.compile(
    rf",\s+(?:(?:{_JOINING})\s+)*|\s+(?:{_JOINING})\s+|[、，](?:{_JOINING_UNSPACED})?"
    rf"|{_JOINING_UNSPACED}",
    re.IGNORECASE,
)
# An entry of a list, `1.`, `1)`, `(1)` or `a)`.
_ENTRY = re.compile(r"(?<!\S)(?:\(?([1-9])[.)]|\(?([a-i])\))(?=\s)")


def clauses(question: str) -> list[str]:
    """Split a compound question into 2 to `MAX_CLAUSES` parts; [] when it is simple or very long.

    A part has at least `_MIN_CLAUSE_TERMS` words that say something, numbers not counted: "salt
    and pepper" and "10 and 20" stay together, "Thank you" is no part. Of too many parts, cuts
    inside sentences are undone first, the smallest parts first.
    """
    if len(question) > _MAX_CHARS:
        return []
    parts: list[tuple[str, int, float]] = []  # text, number of the sentence, size
    sentences = [part for entry in _entries(question) for part in _SENTENCE_END.split(entry)]
    for number, sentence in enumerate(sentences):
        for piece in _pieces(sentence.strip()):
            if (size := _size(lexical_terms(piece))) >= _MIN_CLAUSE_TERMS:
                parts.append((piece, number, size))
    while len(parts) > MAX_CLAUSES:
        at = min(
            range(len(parts) - 1),
            key=lambda i: (parts[i][1] != parts[i + 1][1], parts[i][2] + parts[i + 1][2]),
        )
        one, other = parts[at], parts[at + 1]
        glue = ", " if one[1] == other[1] else " "
        parts[at : at + 2] = [(one[0] + glue + other[0], other[1], one[2] + other[2])]
    return [text for text, _, _ in parts] if len(parts) > 1 else []


def _entries(question: str) -> list[str]:
    """Return what stands before a list, and its entries; the question itself where it has none.

    A list begins with its first entry, behind nothing or the end of a sentence, and counts on:
    "step 2) of recipe 1)" is none.
    """
    spans: list[tuple[int, int]] = []
    kind = 0
    for match in _ENTRY.finditer(question):
        if "123456789abcdefghi".index(match[match.lastindex or 0]) % 9 != len(spans):
            continue
        if not spans:
            before = question[: match.start()].rstrip(" \t")
            if before and before[-1] not in ":;.!?\n：。":
                continue
            kind = match.lastindex or 0
        if match.lastindex == kind:
            spans.append(match.span())
    if len(spans) < 2:
        return [question]
    ends = [start for start, _ in spans[1:]] + [len(question)]
    inside = [question[end:following] for (_, end), following in zip(spans, ends, strict=True)]
    return [question[: spans[0][0]], *inside]


def _pieces(sentence: str) -> Iterator[str]:
    cuts = [match.span() for match in _CLAUSE_END.finditer(sentence)]
    begin = place = 0
    held: set[str] = set()  # terms up to `place`: a list of a thousand numbers is read once
    for (left, right), following in zip(
        cuts, [start for start, _ in cuts[1:]] + [len(sentence)], strict=False
    ):
        held.update(lexical_terms(sentence[place:left]))
        place = left
        if min(_size(held), _size(lexical_terms(sentence[right:following]))) >= _MIN_CLAUSE_TERMS:
            yield sentence[begin:left].strip()
            begin = place = right
            held = set()
    yield sentence[begin:].strip()


def _size(terms: Iterable[str]) -> float:
    # Four characters without spaces hold about as much as two words.
    return sum(0.5 if UNSPACED.match(term) else 1.0 for term in set(terms))
