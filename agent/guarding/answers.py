"""What the model is told when a call may not run, or when it failed.

Every message names the tool, says what happened and what to do, is bounded, and carries the id of
the call it answers. Its `response_metadata["toolrag"]["outcome"]` says the same to programs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import AIMessage, AnyMessage, ToolCall, ToolMessage

from agent.guarding.results import text_of
from agent.guarding.secrets import error_text, mask, short_paths
from agent.middleware._messages import METADATA_KEY, clean
from agent.selection import Offer
from registry.text import nearest_names

__all__ = [
    "FAILED",
    "INVALID",
    "MAX_REASON_CHARS",
    "OUTCOME_UNKNOWN",
    "REFUSED",
    "REPEATED",
    "UNAVAILABLE",
    "all_answered",
    "approval_refusal",
    "checked_result",
    "cut_short",
    "failure",
    "invalid_arguments",
    "not_offered_yet",
    "open_calls_answered",
    "outcome_of",
    "outcome_unknown",
    "refusal",
    "repeated",
    "set_up_fault",
    "unavailable_now",
    "unknown_tool",
    "unreadable",
    "without_answer",
]

MAX_REASON_CHARS = 1_000
_MAX_NAME_CHARS = 100
_MAX_EXCERPT_CHARS = 200

# Outcomes. With one of the first three, nothing was run.
REFUSED = "refused"
INVALID = "invalid_arguments"
REPEATED = "repeated"
FAILED = "failed"
UNAVAILABLE = "unavailable"
OUTCOME_UNKNOWN = "outcome_unknown"


def outcome_of(message: ToolMessage) -> str | None:
    """Return the outcome that an answer is marked with; None where it is no error of ours."""
    ours = message.response_metadata.get(METADATA_KEY)
    return cast("dict[str, str]", ours).get("outcome") if isinstance(ours, dict) else None


def refusal(
    call: ToolCall, offer: Offer, *, states: Mapping[str, bool], has_live_tool: bool
) -> ToolMessage | None:
    """Return why an offered tool is not there now, or None when it is.

    Args:
        call: The model's call.
        offer: What the thread was offered under that name.
        states: Name to whether the registry has it active now; absent means not registered.
        has_live_tool: Whether this process has the tool.
    """
    # Code put a pinned tool there, so it may be unregistered; any other must be active now.
    is_active = states.get(offer["name"], offer["pinned"])
    if is_active and has_live_tool:
        return None
    return _error(
        call,
        f"Tool {offer['name']!r} is no longer available, so nothing was run. "
        "Do not call it again; use another tool or answer without it.",
    )


def approval_refusal(call: ToolCall) -> ToolMessage:
    """Return the answer to a call that a person would have to agree to."""
    return _error(
        call,
        f"Tool {call['name']!r} needs a person's approval, which this call does not have, so "
        "nothing was run. Do not call it again; tell the user that this needs approval.",
    )


def unknown_tool(call: ToolCall, *, written: str, offered: Iterable[str]) -> ToolMessage:
    """Return the answer to a name that was not offered; only offered names are suggested.

    Args:
        call: The model's call.
        written: The name as the model wrote it, legal or not.
        offered: Names the model may call.
    """
    known = list(offered)
    near = nearest_names(written, known)
    if near:
        advice = f"Did you mean: {', '.join(near)}? Use the exact name of a tool you were given"
    elif known:
        advice = "Use the exact name of a tool you were given"
    else:
        advice = "You were given no tools for this question"
    return _error(
        call,
        f"There is no tool {clean(written, max_chars=_MAX_NAME_CHARS)!r} among your tools, so "
        f"nothing was run. {advice}, or answer without a tool and say that none fits.",
    )


def not_offered_yet(call: ToolCall, *, schema: Mapping[str, Any]) -> ToolMessage:
    """Return the answer to a call of a tool that is offered from the next step on.

    Args:
        call: The model's call, made without knowing the tool.
        schema: Of the tool's arguments.
    """
    head = (
        f"There is no tool {call['name']!r} among your tools yet, so nothing was run. You have it "
        "from now on. Call it again with arguments after its schema"
    )
    return _error(call, _with_json(f"{head}: ", schema))


def invalid_arguments(
    call: ToolCall, problems: Sequence[str], *, schema: Mapping[str, Any] | None
) -> ToolMessage:
    """Return the answer to arguments that the tool does not take.

    Args:
        call: The model's call.
        problems: What is wrong, a line each.
        schema: Of the arguments concerned, by name.
    """
    listed = clean("\n".join(f"- {problem}" for problem in problems), max_chars=600)
    text = (
        f"Tool {call['name']!r} was not run, because its arguments are wrong:\n{listed}\n"
        "Correct them and call it again."
    )
    if schema:
        text = _with_json(f"{text} Their schema: ", schema)
    elif schema is not None:
        text += " It takes no arguments."
    return _error(call, text, outcome=INVALID)


def unreadable(call: ToolCall, *, reason: str, excerpt: str) -> ToolMessage:
    """Return the answer to a call whose arguments could not be read.

    Args:
        call: The call as it is kept, with empty arguments.
        reason: Why, for example what the JSON parser said.
        excerpt: What the model wrote.
    """
    shown = clean(excerpt, max_chars=_MAX_EXCERPT_CHARS)
    what = f" You wrote: {shown}" if shown.strip() else ""
    return _error(
        call,
        f"Tool {call['name']!r} was not run, because its arguments cannot be read: "
        f"{clean(reason, max_chars=_MAX_EXCERPT_CHARS)}.{what}\n"
        "Call it again with one complete JSON object as arguments.",
        outcome=INVALID,
    )


def repeated(call: ToolCall, *, times: int, failures: int) -> ToolMessage:
    """Return the answer to a call that was made before, to no avail."""
    ended = "failed" if failures else "gave the same result"
    return _error(
        call,
        f"This is a repeat: {call['name']!r} was called with the same arguments {times} times "
        f"before and {ended}, so it was not run again. Use what you have, change the arguments, "
        "use another tool, or answer and say what is missing.",
        outcome=REPEATED,
    )


def unavailable_now(call: ToolCall) -> ToolMessage:
    """Return the answer to a call that could not be run now, through no fault of the model."""
    return _error(
        call,
        f"Tool {call['name']!r} is temporarily unavailable, so nothing was run. This is not a "
        "mistake in the call. Do not call it again now; answer with what you have and say what is "
        "missing.",
    )


def set_up_fault(call: ToolCall, error: BaseException) -> ToolMessage:
    """Return the answer to a call that met a fault of the program, or of what it needs.

    What went wrong is for the log: it would tell the model of hosts and settings.
    """
    return _error(
        call,
        f"Tool {call['name']!r} is temporarily unavailable ({type(error).__name__}). This is not "
        "a mistake in the call, and calling it again will not help. Answer with what you have and "
        "say what is missing.",
        outcome=UNAVAILABLE,
    )


def without_answer(call: ToolCall, error: BaseException) -> ToolMessage:
    """Return the answer to a call of a tool without effects that gave none, even when repeated."""
    timed_out = isinstance(error, TimeoutError)
    what = "did not answer in time" if timed_out else "did not answer"
    return _error(
        call,
        f"Tool {call['name']!r} {what} ({type(error).__name__}). This is not a mistake in the "
        "call. Do not repeat it now; use another tool, or answer and say what is missing.",
        outcome=UNAVAILABLE,
        timed_out=timed_out,
    )


def outcome_unknown(call: ToolCall, error: BaseException | None = None) -> ToolMessage:
    """Return the answer to a call that may have had its effect.

    Args:
        call: The model's call.
        error: How it ended; None for a repeat that was not run.
    """
    if error is None:
        what = (
            "was called with the same arguments before, without an answer. It may have worked, so "
            "it was not run again"
        )
    else:
        timed_out = isinstance(error, TimeoutError)
        what = (
            f"{'did not answer in time' if timed_out else 'did not answer'} "
            f"({type(error).__name__}). The outcome is unknown: it may have worked"
        )
    return _error(
        call,
        f"Tool {call['name']!r} {what}. Do not repeat the call; find out with another tool whether "
        "it took effect, or tell the user that this is not known.",
        outcome=OUTCOME_UNKNOWN,
        timed_out=isinstance(error, TimeoutError),
    )


def all_answered(messages: Sequence[AnyMessage]) -> Sequence[AnyMessage]:
    """Return a history in which every call has an answer; itself where it is so already.

    A run that was cancelled or killed inside a tool leaves a call without one, and every provider
    refuses such a history from then on.
    """
    answered: list[AnyMessage] = []
    is_open: dict[str, ToolCall] = {}
    for message in messages:
        if isinstance(message, ToolMessage):
            is_open.pop(message.tool_call_id, None)
        else:
            answered += [cut_short(call) for call in is_open.values()]
            is_open = {}
            if isinstance(message, AIMessage):
                is_open = {call["id"] or "": call for call in message.tool_calls}
        answered.append(message)
    answered += [cut_short(call) for call in is_open.values()]
    return messages if len(answered) == len(messages) else answered


def open_calls_answered(messages: Sequence[AnyMessage]) -> list[ToolMessage]:
    """Return answers to the calls of the last reply that have none, to be put behind the others."""
    answered = all_answered(messages)
    known = {id(message) for message in messages}
    behind: list[ToolMessage] = []
    for message in reversed(answered):
        if not isinstance(message, ToolMessage) or id(message) in known:
            break
        behind.append(message)
    return behind[::-1]


def cut_short(call: ToolCall) -> ToolMessage:
    """Return the answer to a call that was under way when its run stopped."""
    return _error(
        call,
        f"The run was stopped before tool {call['name']!r} gave an answer. Whether the call took "
        "effect is not known; find out with another tool before you repeat it.",
        outcome=OUTCOME_UNKNOWN,
    )


def failure(
    call: ToolCall,
    error: BaseException,
    *,
    secrets: Collection[str] = (),
    reason: str | None = None,
) -> ToolMessage:
    """Return the answer to a call whose tool raised: name, error class and a bounded reason.

    Args:
        call: The model's call.
        error: What the tool raised.
        secrets: Values that must not be shown.
        reason: In place of the error's own text.
    """
    kind = type(error).__name__
    text = error_text(error) if reason is None else reason
    text = _safe(text, call, secrets)
    what = f"failed: {kind}: {text}" if text else f"failed without detail ({kind})"
    stop = "" if what.endswith((".", "!", "?")) else "."
    return _error(
        call,
        f"Tool {call['name']!r} {what}{stop} Correct the arguments if they are the reason; "
        "otherwise use another tool or say what could not be done. Do not repeat the same call.",
        outcome=FAILED,
        timed_out=isinstance(error, TimeoutError),
    )


def checked_result(call: ToolCall, result: Any, *, secrets: Collection[str] = ()) -> Any:
    """Return a tool's result as the answer to its call: right id and name, safe if an error.

    Anything but a `ToolMessage` (a `Command`, a list of both) comes back as it is: LangGraph
    has checked that it answers the call.
    """
    if not isinstance(result, ToolMessage):
        return result
    changes: dict[str, Any] = {}
    if result.tool_call_id != call["id"]:
        changes["tool_call_id"] = call["id"]
    if result.name != call["name"]:
        changes["name"] = call["name"]
    if METADATA_KEY in result.response_metadata:  # ours to set, and not the tool's
        kept = {k: v for k, v in result.response_metadata.items() if k != METADATA_KEY}
        changes["response_metadata"] = kept
    if result.status == "error":
        text = _safe(text_of(result.content), call, secrets)
        changes["content"] = text or f"Tool {call['name']!r} failed without detail."
    return result.model_copy(update=changes) if changes else result


def _safe(text: str, call: ToolCall, secrets: Collection[str]) -> str:
    known = json.dumps(call["args"], ensure_ascii=False, default=str)
    text = short_paths(mask(text, secrets), known=known)
    return clean(text, max_chars=MAX_REASON_CHARS).strip()


def _with_json(head: str, schema: Mapping[str, Any]) -> str:
    room = MAX_REASON_CHARS - len(head)
    text = json.dumps(schema, ensure_ascii=False, default=str)
    if len(text) > room:  # whole names rather than half a schema
        text = json.dumps({name: _gist(value) for name, value in schema.items()}, default=str)
    return head + clean(text, max_chars=max(room, 100))


def _gist(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return "any"
    part = cast("dict[str, Any]", schema)
    return part.get("type") or part.get("enum") or "any"


def _error(
    call: ToolCall, content: str, *, outcome: str = REFUSED, timed_out: bool = False
) -> ToolMessage:
    mark = {"outcome": outcome, **({"timed_out": True} if timed_out else {})}
    return ToolMessage(
        content=content,
        name=call["name"],
        tool_call_id=call["id"] or "",
        status="error",
        response_metadata={METADATA_KEY: mark},
    )
