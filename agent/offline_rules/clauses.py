"""A question cut into what it asks for, what it states, and what to do if that fails."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from agent.offline_rules.lexicon import Language, language_of, normalise

__all__ = ["Clause", "Question", "read_question"]

_QUOTED = re.compile(r"\"[^\"]*\"|“[^“”]*”|„[^„“”]*[“”]|「[^「」]*」")
# A dot inside a number, a name or an address ends no sentence.
_SENTENCE = re.compile(r"(?<=[.!?;])\s+|(?<=[?!])(?=[\u3040-\u9fff])|(?<=[。？！])")
_VERBS = (
    "add|calculate|cancel|check|compare|compute|convert|count|divide|double|find|get|give|list|"
    "look|multiply|note|read|remove|round|save|search|show|subtract|take|tell|write|"
    "what|how|who|when|where|which|is|are|will|"
    "addiere|berechne|dividiere|finde|hole|multipliziere|nimm|rechne|schreibe|speichere|suche|"
    "subtrahiere|teile|zeige|ziehe|was|wie|wer|wann|wo|ist|wird"
)
_AND = re.compile(
    rf"(?:,?\s+(?:and\s+then|and|then|und\s+dann|und|dann)\s+(?=(?:{_VERBS})\b))"
    r"|(?:、\s*(?=それ|その|これ|次に))|(?:そして)",
    re.IGNORECASE,
)
_FALLBACK = re.compile(
    r"^\s*(?:if\b.*?\b(?:impossible|not|fails?|cannot|can't|error|doesn't)\b"
    r"|otherwise\b|or else\b|failing that\b"
    r"|(?:wenn|falls)\b.*?\b(?:unmöglich|nicht|fehlschlägt|fehler)\b|sonst\b|andernfalls\b"
    r"|.*?(?:できない場合|無理な場合|だめなら|不可能な場合|失敗した場合))",
    re.IGNORECASE,
)
_STATEMENT = re.compile(r"^\s*(?:today(?:'s| is)|heute ist|今日は\s*\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Clause:
    """One part of a question: a request, a stated fact, or what to do if a request fails."""

    text: str
    kind: Literal["request", "statement", "fallback"]


@dataclass(frozen=True, slots=True)
class Question:
    """A question in normal form (NFKC) with its clauses in order."""

    text: str
    language: Language
    clauses: tuple[Clause, ...]

    def of_kind(self, kind: Literal["request", "statement", "fallback"]) -> tuple[Clause, ...]:
        """Return the clauses of one kind, in order."""
        return tuple(clause for clause in self.clauses if clause.kind == kind)


def read_question(text: str) -> Question:
    """Return the question with its clauses; quoted text is never cut."""
    normal = normalise(text).strip()
    quotes = _QUOTED.findall(normal)
    # Cut with placeholders where quotes are, then put them back.
    masked = normal
    for number, quote in enumerate(quotes):
        masked = masked.replace(quote, f"\x00{number}\x00", 1)
    clauses: list[Clause] = []
    for sentence in _SENTENCE.split(masked):
        if _FALLBACK.match(sentence):
            clauses.append(Clause(_unmasked(sentence, quotes), "fallback"))
            continue
        for part in _AND.split(sentence):
            if part.strip():
                kind = "statement" if _STATEMENT.match(part) else "request"
                clauses.append(Clause(_unmasked(part, quotes), kind))
    return Question(normal, language_of(normal), tuple(clauses))


def _unmasked(text: str, quotes: list[str]) -> str:
    for number, quote in enumerate(quotes):
        text = text.replace(f"\x00{number}\x00", quote)
    return text.strip()
