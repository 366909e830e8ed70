"""Whether a call has been made before in this run, and whether that led anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall, ToolMessage

from agent.guarding.answers import OUTCOME_UNKNOWN, REPEATED, outcome_of

__all__ = ["Standing", "is_stuck", "last_calls", "standing"]

# Notices of a repeat after which a run is no longer worth its money.
MAX_NOTICES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How often a call was made in this run without anything new.

    Attributes:
        times: Answers of this call since something new was found, the first included.
        failures: Of these, errors.
        notices: Of these, notices that it is a repeat.
        may_have_worked: An earlier one ended without an answer, and may have had its effect.
    """

    times: int = 0
    failures: int = 0
    notices: int = 0
    may_have_worked: bool = False

    def is_repeat(self, limit: int | None) -> bool:
        """Return whether it is not to be run again."""
        return limit is not None and (self.times >= limit or self.failures >= limit - 1)

    def is_stuck(self, limit: int | None) -> bool:
        """Return whether it has been repeated even after notices."""
        return limit is not None and (
            self.notices >= MAX_NOTICES or self.times >= limit + MAX_NOTICES
        )


_NEW = Standing()


def standing(messages: Sequence[AnyMessage], call: ToolCall | Mapping[str, Any]) -> Standing:
    """Return how a call stands in the run that is under way.

    The run goes from the last human message on. A result that differs from the one before is
    something new, so polling goes on; so is another call's success that was not there before.
    Keys of arguments may come in any order.

    Args:
        messages: Of the thread.
        call: The call; calls without an answer, such as itself, do not count, nor does it alone.
    """
    run = messages[_start_of_run(messages) :]
    # Nearly every call is new, and that is soon seen.
    is_new = not any(
        made["id"] != call["id"] and _is_same(call, made)
        for message in run
        if isinstance(message, AIMessage)
        for made in message.tool_calls
    )
    return _NEW if is_new else _counted(list(_steps(run)), call)


def is_stuck(
    messages: Sequence[AnyMessage], limits: Mapping[str, int | None], default: int | None
) -> str | None:
    """Return the name of a tool that a run cannot get away from, or None.

    Args:
        messages: Of the thread.
        limits: Repeat limits by tool name.
        default: Of all other tools.
    """
    for call in last_calls(messages):
        limit = limits.get(call["name"], default)
        if standing(messages, call).is_stuck(limit):
            return call["name"]
    return None


def last_calls(messages: Sequence[AnyMessage]) -> Sequence[ToolCall]:
    """Return the calls of the last reply, if only their answers came after it."""
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            return message.tool_calls
        if not isinstance(message, ToolMessage):
            return ()
    return ()


_Answered = tuple[ToolCall, ToolMessage]


def _start_of_run(messages: Sequence[AnyMessage]) -> int:
    return next(
        (
            place
            for place in range(len(messages) - 1, -1, -1)
            if isinstance(messages[place], HumanMessage)
        ),
        0,
    )


def _steps(run: Sequence[AnyMessage]) -> Iterator[list[_Answered]]:
    calls: Sequence[ToolCall] = ()
    answers: dict[str, ToolMessage] = {}
    for message in run:
        if isinstance(message, ToolMessage):
            answers[message.tool_call_id] = message
        elif isinstance(message, AIMessage):
            yield _paired(calls, answers)
            calls, answers = message.tool_calls, {}
    yield _paired(calls, answers)


def _paired(calls: Sequence[ToolCall], answers: Mapping[str, ToolMessage]) -> list[_Answered]:
    return [(call, answers[call["id"] or ""]) for call in calls if (call["id"] or "") in answers]


def _counted(steps: Sequence[Sequence[_Answered]], call: ToolCall | Mapping[str, Any]) -> Standing:
    times = failures = notices = 0
    may_have_worked = False
    last_result: Any = None
    others: list[_Answered] = []
    for step in steps:
        found_new = False
        for made, answer in step:
            if not _is_same(call, made):
                found_new = _is_news(made, answer, others) or found_new
                continue
            outcome = outcome_of(answer)
            may_have_worked = may_have_worked or outcome == OUTCOME_UNKNOWN
            if answer.status == "error":
                times, failures, notices = times + 1, failures + 1, notices + (outcome == REPEATED)
            elif times and _is_equal(last_result, answer.content):
                times += 1
            else:
                times, failures, notices = 1, 0, 0
                last_result = cast("Any", answer.content)
        if found_new:
            times, failures, notices = min(times, 1), min(failures, 1), 0
    return Standing(
        times=times, failures=failures, notices=notices, may_have_worked=may_have_worked
    )


def _is_news(made: ToolCall, answer: ToolMessage, others: list[_Answered]) -> bool:
    """Return whether another call found something out; it is then one of the others."""
    if answer.status == "error":
        return False
    for place, (earlier, result) in enumerate(others):
        if _is_same(earlier, made):
            others[place] = (made, answer)
            return not _is_equal(result.content, answer.content)
    others.append((made, answer))
    return True


def _is_same(call: ToolCall | Mapping[str, Any], other: ToolCall) -> bool:
    return call["name"] == other["name"] and _is_equal(call["args"], other["args"])


def _is_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except RecursionError:  # nested too deeply to compare
        return False
