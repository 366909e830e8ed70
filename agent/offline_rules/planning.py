"""The next call, or the decision to answer: replayed from the question at every step.

The plan is a pure function of the question, the bound tools and the observations so far, so the
model needs no memory: clauses are walked in order, each call that has an observation is taken as
done, and the first that has none is what to do next.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent.offline_rules.arguments import PreviousNumber, implied_concepts, read_facts, subject_text
from agent.offline_rules.clauses import Clause, Question
from agent.offline_rules.lexicon import concepts
from agent.offline_rules.matching import BoundTool, Call, best_call, call_key
from agent.offline_rules.mending import mended_call
from registry.text import humanise

__all__ = ["Observation", "Plan", "main_number", "next_step"]

_MAX_CALLS_A_CLAUSE = 2
_EQUALS = re.compile(r"=\s*(-?\d{1,300}(?:\.\d+)?)")
_NUMBER = re.compile(r"(?<![\w.-])-?\d{1,300}(?:\.\d+)?(?![\w-])")
_KEY_UNITS = {"c": "celsius", "f": "fahrenheit", "km": "km", "kg": "kg", "m": "m"}


@dataclass(frozen=True, slots=True)
class Observation:
    """A call made for this question and what came back."""

    tool_name: str
    arguments: dict[str, Any]
    content: str
    is_error: bool


class _Pending(Exception):
    def __init__(self, call: Call) -> None:
        super().__init__(call.tool_name)
        self.call = call


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now: a call, or none when the rules can do no more.

    Attributes:
        left_out: Steps of arithmetic or conversion that no bound tool could do.
    """

    call: Call | None = None
    left_out: tuple[str, ...] = ()


def next_step(
    question: Question, tools: Sequence[BoundTool], observations: Sequence[Observation]
) -> Plan:
    """Return the next call, or the end of the plan."""
    walk = _Walk(question, tools, observations)
    try:
        for clause in question.of_kind("request"):
            if not walk.work_on(clause):
                break
    except _Pending as pending:
        return Plan(pending.call)
    return Plan(left_out=tuple(walk.left_out))


class _Walk:
    """One replay of the plan over the observations."""

    def __init__(
        self, question: Question, tools: Sequence[BoundTool], observations: Sequence[Observation]
    ) -> None:
        self._question = question
        self._tools = tools
        self._done = {call_key(o.tool_name, o.arguments): o for o in observations}
        self._previous: PreviousNumber | None = None
        self._unanswered = ""
        self.left_out: list[str] = []

    def work_on(self, clause: Clause) -> bool:
        """Take the clause's calls in order; return False when one failed for good."""
        text = f"{self._unanswered} {clause.text}".strip()
        about = concepts(subject_text(text), language=self._question.language)
        facts = read_facts(text, about, self._previous)
        implied = implied_concepts(facts)
        covered: frozenset[str] = frozenset()
        used: set[str] = set()
        # Arithmetic is one call, whichever of the tools for it does the work.
        is_reckoning = bool((about | implied) & concepts("calculate convert"))
        most = 1 if is_reckoning else _MAX_CALLS_A_CLAUSE
        while len(used) < most:
            call = best_call(self._tools, about, facts, implied=implied, covered=covered, used=used)
            if call is None:
                break
            observation = self._observed(call, self._thought(clause, call))
            if observation.is_error:
                return self._after_error(call, observation)
            self._previous = main_number(observation, about) or self._previous
            used.add(call.tool_name)
            tool = next(tool for tool in self._tools if tool.name == call.tool_name)
            covered |= tool.subject or about
        # "My marks are 3, 4 and 8. What is their average?": the next clause needs this one.
        self._unanswered = "" if used else text
        if is_reckoning and not used:
            self.left_out.append(clause.text)
        return True

    def _after_error(self, call: Call, observation: Observation) -> bool:
        mended = mended_call(call, observation.content, self._question)
        if mended is None:
            fallbacks = self._question.of_kind("fallback")
            self._question = Question(self._question.text, self._question.language, ())
            return any(self.work_on(Clause(c.text, "request")) for c in fallbacks)
        values = ", ".join(str(value) for value in mended.arguments.values())
        error = " ".join(observation.content.split()).rstrip(".")
        again = self._observed(
            mended, f"The tool reports: {error}. I need to try again with {values}."
        )
        if again.is_error:
            return False
        self._previous = main_number(again, frozenset()) or self._previous
        return True

    def _observed(self, call: Call, thought: str) -> Observation:
        observation = self._done.get(call_key(call.tool_name, call.arguments))
        if observation is None:
            raise _Pending(Call(call.tool_name, call.arguments, thought))
        return observation

    def _thought(self, clause: Clause, call: Call) -> str:
        values = ", ".join(str(value) for value in call.arguments.values())
        for_what = f" for {values}" if values else ""
        known = ""
        if self._previous is not None and str(self._previous.value) in values:
            known = f"The step before gave {self._previous.value}. "
        return f"{known}I need {humanise(call.tool_name)}{for_what}: “{clause.text}”"


def main_number(observation: Observation, about: frozenset[str]) -> PreviousNumber | None:
    """Return the number of an observation that a following step works on.

    Of a JSON record, the number whose key shares most words with the question; of a text, the one
    after the equals sign, else the first.
    """
    try:
        value: Any = json.loads(observation.content)
    except ValueError:
        match = _EQUALS.search(observation.content) or _NUMBER.search(observation.content)
        if match is None:
            return None
        text = match.group(match.lastindex or 0)
        return PreviousNumber(float(text) if "." in text else int(text))
    if isinstance(value, dict):
        numbers = {str(key): v for key, v in value.items() if _is_number(v)}
        if not numbers:
            return None
        key = max(numbers, key=lambda name: len(concepts(humanise(name)) & about))
        unit = _KEY_UNITS.get(key.rpartition("_")[2], "")
        return PreviousNumber(numbers[key], unit)
    return PreviousNumber(value) if _is_number(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
