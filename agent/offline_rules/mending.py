"""Changing a call that failed, in the way its error message says."""

from __future__ import annotations

import re
from typing import Any

from agent.offline_rules.arguments import normal_expression, read_facts
from agent.offline_rules.clauses import Question
from agent.offline_rules.lexicon import concepts
from agent.offline_rules.matching import Call

__all__ = ["mended_call"]

_DIVISOR_ZERO = re.compile(r"divisor|division by zero|zerodivision|durch null", re.IGNORECASE)
_CHARACTERS = re.compile(r"unsupported character|not an arithmetic expression", re.IGNORECASE)
_SUGGESTION = re.compile(r"did you mean ['\"`]?([^?'\"`]+)['\"`]?\?", re.IGNORECASE)
_ZERO_DIVISOR = re.compile(r"(/|%)\s*0+(?:\.0+)?(?![\d.])")
_ID = re.compile(r"[A-Za-z]{0,4}-?\d+")


def mended_call(failed: Call, error: str, question: Question) -> Call | None:
    """Return the failed call with one argument changed as the error says, or None.

    Only what the message names and the question allows is changed: characters it does not
    support, a divisor of 0 where the question gives another one to fall back to, and a spelling
    it suggests. An order number or other identifier is never replaced by a similar one.
    """
    if _CHARACTERS.search(error):
        arguments = {
            name: normal_expression(value) if isinstance(value, str) else value
            for name, value in failed.arguments.items()
        }
        if arguments != failed.arguments:
            return Call(failed.tool_name, arguments)
    if _DIVISOR_ZERO.search(error):
        return _with_other_divisor(failed, question)
    suggestion = _SUGGESTION.search(error)
    if suggestion:
        return _with_spelling(failed, error, suggestion.group(1).strip())
    return None


def _with_other_divisor(failed: Call, question: Question) -> Call | None:
    for clause in question.of_kind("fallback"):
        about = concepts(clause.text, language=question.language)
        facts = read_facts(clause.text, about, None)
        others = [number for number in facts.numbers if number != 0]
        if not concepts("divide") <= about or len(others) != 1:
            continue
        arguments = {name: _divided_by(v, others[0]) for name, v in failed.arguments.items()}
        if arguments != failed.arguments:
            return Call(failed.tool_name, arguments)
    return None


def _divided_by(value: Any, divisor: int | float) -> Any:
    if isinstance(value, str):
        return _ZERO_DIVISOR.sub(rf"\g<1> {divisor}", value)
    return divisor if value == 0 else value


def _with_spelling(failed: Call, error: str, suggestion: str) -> Call | None:
    for name, value in failed.arguments.items():
        named = isinstance(value, str) and value and value in error
        if named and value != suggestion and not _ID.fullmatch(value):
            return Call(failed.tool_name, {**failed.arguments, name: suggestion})
    return None
