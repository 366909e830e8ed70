"""A compound question, cut without a model into the parts that may each need a tool."""

from __future__ import annotations

import re
from collections.abc import Iterator

from registry.lexical import UNSPACED, lexical_terms

__all__ = ["MAX_CLAUSES", "clauses"]

MAX_CLAUSES = 4
_MIN_CLAUSE_TERMS = 2

_SENTENCE_END = re.compile(r"(?<=[.!?;])[\"'”»]?\s+|\n+|(?<=[。！？；])")
_JOINING = "|".join(
    word.replace(" ", r"\s+")
    for word in (
        "and then|and also|as well as|and|then|also|plus|but|after that|afterwards|finally"
        "|additionally|moreover|furthermore"
        "|und dann|und|dann|danach|sowie|außerdem|anschließend|aber"
        "|et puis|et ensuite|et|puis|ensuite|ainsi que|mais"
        "|y luego|y después|y|luego|después|también|además"
        "|e poi|e|poi|inoltre|e depois|depois|também|além disso"
        "|en dan|en|daarna|vervolgens|ook|maar"
    ).split("|")
)
_JOINING_UNSPACED = (
    "そして|それから|また|次に|その後|然后|并且|以及|接着|同时|还有|그리고|그런 다음"
)
_CLAUSE_END = re.compile(
    rf",\s+(?:(?:{_JOINING})\s+)*|\s+(?:{_JOINING})\s+|[、，](?:{_JOINING_UNSPACED})?"
    rf"|{_JOINING_UNSPACED}",
    re.IGNORECASE,
)


def clauses(question: str) -> list[str]:
    """Split a compound question into 2 to `MAX_CLAUSES` parts; [] when it is simple.

    A part has at least `_MIN_CLAUSE_TERMS` words that say something, numbers not counted: "salt
    and pepper" and "10 and 20" stay together, "Thank you" is no part. Of too many parts, cuts
    inside sentences are undone first, the smallest parts first.
    """
    parts: list[tuple[str, int, float]] = []  # text, number of the sentence, size
    for number, sentence in enumerate(_SENTENCE_END.split(question)):
        for piece in _pieces(sentence.strip()):
            if (size := _size(piece)) >= _MIN_CLAUSE_TERMS:
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


def _pieces(sentence: str) -> Iterator[str]:
    cuts = [match.span() for match in _CLAUSE_END.finditer(sentence)]
    begin = 0
    for (left, right), following in zip(
        cuts, [start for start, _ in cuts[1:]] + [len(sentence)], strict=False
    ):
        sizes = _size(sentence[begin:left]), _size(sentence[right:following])
        if min(sizes) >= _MIN_CLAUSE_TERMS:
            yield sentence[begin:left].strip()
            begin = right
    yield sentence[begin:].strip()


def _size(text: str) -> float:
    # Four characters without spaces hold about as much as two words.
    return sum(0.5 if UNSPACED.match(term) else 1.0 for term in set(lexical_terms(text)))
