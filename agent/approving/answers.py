"""What the model is told when a call was not approved, or ran with other arguments."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall, ToolMessage
from langgraph.types import Command

from agent.approving.records import (
    ApprovalRecord,
    answered_by,
    fingerprint,
    is_of,
    records_of,
)
from agent.guarding.answers import MAX_REASON_CHARS, REFUSED, approval_refusal, outcome_of
from agent.middleware._messages import METADATA_KEY, clean

__all__ = [
    "CANNOT_ASK",
    "FAILED_RULE",
    "REJECTED",
    "SETTLED_BEFORE",
    "TOO_OFTEN",
    "closed_history",
    "rejections",
    "told_of_edit",
    "unapproved",
    "used_up",
]

REJECTED = "rejected"

CANNOT_ASK = (
    "Tool {tool!r} needs a person's approval, and this agent cannot ask for it, because it keeps "
    "no threads. Nothing was run. Do not call it again; tell the user that this needs approval."
)
FAILED_RULE = (
    "Tool {tool!r} was not run: a rule that decides on its calls could not be applied, which is "
    "not a mistake in the call. Do not call it again; say that it could not be done."
)
SETTLED_BEFORE = (
    "A person has decided against exactly this call of {tool!r} before, so they were not asked "
    "again and nothing was run. Do not call it with these arguments again; do without it, or ask "
    "the user what they want instead."
)
TOO_OFTEN = (
    "A person has decided against calls of {tool!r} {count} times in this turn, so they were not "
    "asked again and nothing was run. Do not call it again; ask the user what they want instead."
)

_Answer = TypeVar("_Answer", bound="ToolMessage | Command[Any]")


def unapproved(state: Any, call: ToolCall) -> ToolMessage | None:
    """Return why a call that needs approval may not run; None when its record says it may.

    Args:
        state: Of the thread. One without records is of an agent that asks nobody.
        call: As it is about to run.
    """
    record = records_of(state).get(call["id"] or "")
    if record is None:
        return approval_refusal(call)
    messages = cast("Mapping[str, Any]", state).get("messages") or ()
    if not is_of(record, call, messages):
        return _refusal(
            call,
            f"Tool {call['name']!r} was not run: the approval there is was given for another call. "
            "Call it again as it is to run.",
        )
    earlier = answered_by(messages, record["reply_id"], record["call_id"])
    if earlier is not None:  # under its own message id, so that it takes its own place
        return earlier
    match record["verdict"]:
        case "approved":
            return None
        case "rejected":
            return _rejection(call, record)
        case "refused" if record["message"]:
            return _refusal(call, record["message"])
        case _:  # nobody decided; or a policy let it pass, and the registry asks for more by now
            return approval_refusal(call)


def used_up(call: ToolCall) -> ToolMessage:
    """Return the answer to a call whose approval was used in another run of its thread."""
    return _refusal(
        call,
        f"The approval of this call of {call['name']!r} was used already, so it was not run again. "
        "Whether it took effect is not known here; find out with another tool.",
    )


def rejections(messages: Sequence[AnyMessage], tool: str) -> list[str]:
    """Return the fingerprints of a tool's calls that a person rejected in the run under way."""
    found: list[str] = []
    for message in reversed(messages):
        if isinstance(message, HumanMessage):
            break
        if (
            isinstance(message, ToolMessage)
            and message.name == tool
            and outcome_of(message) == REJECTED
        ):
            found.append(message.response_metadata[METADATA_KEY].get("arguments", ""))
    return found


def told_of_edit(answer: _Answer, record: ApprovalRecord) -> _Answer:
    """Return a call's answer with word of the arguments that a person put in place of its own."""
    if not record["is_edited"]:
        return answer
    arguments = json.dumps(record["arguments"], ensure_ascii=False, default=repr)
    note = (
        "A person changed this call before it ran. It ran with these arguments: "
        f"{clean(arguments, max_chars=MAX_REASON_CHARS)}. Do not repeat the original call. Result:"
    )
    if isinstance(answer, ToolMessage):
        return cast("_Answer", _noted(answer, note))
    update = getattr(answer, "update", None)
    messages = cast("dict[str, Any]", update).get("messages") if isinstance(update, dict) else None
    if not isinstance(messages, list):
        return answer
    noted = [
        _noted(message, note)
        if isinstance(message, ToolMessage) and message.tool_call_id == record["call_id"]
        else message
        for message in cast("list[Any]", messages)
    ]
    changed = {**cast("dict[str, Any]", update), "messages": noted}
    return cast("_Answer", replace(cast("Command[Any]", answer), update=changed))


def closed_history(
    messages: Sequence[AnyMessage], reply_id: str, asked: Collection[str]
) -> list[AnyMessage] | None:
    """Return the messages with every open call of a reply answered: none of them was run.

    Args:
        messages: Of a thread that goes on with something else than a decision.
        reply_id: Of the reply that waited for one.
        asked: Ids of the calls that a person was asked about.

    Returns:
        None where there is no such reply, or no call of it is open.
    """
    place = next(
        (
            place
            for place, message in enumerate(messages)
            if isinstance(message, AIMessage) and message.id == reply_id
        ),
        None,
    )
    if place is None:
        return None
    reply = cast("AIMessage", messages[place])
    end = place + 1
    while end < len(messages) and isinstance(messages[end], ToolMessage):
        end += 1
    answered = {cast("ToolMessage", message).tool_call_id for message in messages[place + 1 : end]}
    closing = [
        _abandoned(call, was_asked=call["id"] in asked)
        for call in reply.tool_calls
        if call["id"] not in answered
    ]
    return [*messages[:end], *closing, *messages[end:]] if closing else None


def _abandoned(call: ToolCall, *, was_asked: bool) -> ToolMessage:
    if was_asked:
        text = (
            f"The call of {call['name']!r} was not approved: the user went on without deciding on "
            "it. Nothing was run. Call it again only if they ask for it."
        )
    else:
        text = (
            f"Tool {call['name']!r} was not run: another call of the same reply waited for "
            "approval, and the user went on without giving it. Call it again if it is still needed."
        )
    return _refusal(call, text)


def _rejection(call: ToolCall, record: ApprovalRecord) -> ToolMessage:
    said = clean(record["message"] or "", max_chars=MAX_REASON_CHARS).strip()
    why = f" They say: {said}" if said else ""
    return _refusal(
        call,
        f"A person decided against this call of {call['name']!r}, so it was not run.{why}\n"
        "Do not call it with these arguments again; go by what they say, or do without it.",
        outcome=REJECTED,
        arguments=fingerprint(record["arguments"]),
    )


def _refusal(call: ToolCall, text: str, *, outcome: str = REFUSED, **mark: str) -> ToolMessage:
    return ToolMessage(
        text,
        name=call["name"],
        tool_call_id=call["id"] or "",
        status="error",
        response_metadata={METADATA_KEY: {"outcome": outcome, **mark}},
    )


def _noted(answer: ToolMessage, note: str) -> ToolMessage:
    content = cast("str | list[Any]", answer.content)
    if isinstance(content, str):
        return answer.model_copy(update={"content": f"{note}\n{content}"})
    return answer.model_copy(update={"content": [{"type": "text", "text": note}, *content]})
