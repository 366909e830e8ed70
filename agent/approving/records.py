"""What lies in a thread's state about the calls of its last reply, and what a person is shown.

A record is bound to one reply, one call in it, its tool and its arguments. Without a record that
fits, a call that needs approval does not run.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast
from uuid import uuid4

from langchain.agents.middleware.human_in_the_loop import ActionRequest, ReviewConfig
from langchain_core.messages import AIMessage, AnyMessage, ToolCall, ToolMessage
from typing_extensions import TypedDict  # pydantic needs this one below Python 3.12

__all__ = [
    "STATE_KEY",
    "ApprovalAction",
    "ApprovalRecord",
    "ApprovalRequest",
    "Verdict",
    "answered_by",
    "asked_records",
    "fingerprint",
    "is_of",
    "is_showable",
    "last_reply",
    "new_record",
    "new_request",
    "records_of",
    "was_anybody_asked",
    "with_id",
]

STATE_KEY = "approvals"

Verdict = Literal["free", "asked", "approved", "rejected", "refused"]
_DECISIONS: tuple[Literal["approve", "edit", "reject"], ...] = ("approve", "edit", "reject")
_MAX_SHOWN_CHARS = 4_000
# Categories of characters that show nothing, or make others show elsewhere.
_INVISIBLE = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})


class ApprovalRecord(TypedDict):
    """How one call stands; every value is JSON.

    Keys:
        id: Of this request for approval; no other has it, in no thread.
        reply_id: Of the message that asks for the call.
        call_id: Of the call.
        tool: Model-facing name.
        called_with: Fingerprint of the arguments as the model gave them.
        arguments: As they were checked; as they run.
        reason: Why a person is asked.
        verdict: How it stands.
        message: For the model, where it does not run.
        is_edited: A person changed the arguments.
    """

    id: str
    reply_id: str
    call_id: str
    tool: str
    called_with: str
    arguments: dict[str, Any]
    reason: str
    verdict: Verdict
    message: str | None
    is_edited: bool


class ApprovalAction(ActionRequest):
    """A call that a person is asked about: LangChain's `ActionRequest`, and what identifies it.

    Keys:
        call_id: Goes into the decision.
        tool: Model-facing name, the same as `name`.
        reason: Why approval is needed.
        problem: Why the last decision on it did nothing; None when there was none.
    """

    call_id: str
    tool: str
    reason: str
    problem: str | None


class ApprovalRequest(TypedDict):
    """Value of the interrupt; a `HITLRequest` with more in it.

    Keys:
        action_requests: The calls, in the order the model asked for them.
        review_configs: One for each of them.
        problems: What was wrong with the last answer as a whole.
    """

    action_requests: list[ApprovalAction]
    review_configs: list[ReviewConfig]
    problems: list[str]


def fingerprint(arguments: Mapping[str, Any]) -> str:
    """Return a hash that two sets of arguments share only if they are equal as JSON."""
    text = json.dumps(arguments, sort_keys=True, ensure_ascii=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


def is_showable(value: Any) -> bool:
    """Return whether every text in a JSON value can be stored and shown: no NUL, no half pair."""
    if isinstance(value, str):
        return "\x00" not in value and not any("\ud800" <= char <= "\udfff" for char in value)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return all(is_showable(key) and is_showable(inner) for key, inner in items)
    if isinstance(value, (list, tuple)):
        return all(is_showable(inner) for inner in cast("Sequence[Any]", value))
    return True


def new_record(
    reply: AIMessage,
    call: ToolCall,
    *,
    arguments: Mapping[str, Any],
    verdict: Verdict,
    reason: str = "",
    message: str | None = None,
) -> ApprovalRecord:
    """Return the record of a call that its rules were asked about."""
    return ApprovalRecord(
        id=uuid4().hex,
        reply_id=reply.id or "",
        call_id=call["id"] or "",
        tool=call["name"],
        called_with=fingerprint(call["args"]),
        arguments=dict(arguments),
        reason=reason,
        verdict=verdict,
        message=message,
        is_edited=False,
    )


def records_of(state: Any) -> dict[str, ApprovalRecord]:
    """Return the records of a thread's last reply by call id."""
    found = cast("Mapping[str, Any]", state).get(STATE_KEY)
    return dict(cast("Mapping[str, ApprovalRecord]", found)) if found else {}


def was_anybody_asked(state: Any) -> bool:
    """Return whether a person has decided on a call of the thread's last reply."""
    kept = cast("Mapping[str, Any]", state).get(STATE_KEY) or {}
    return any(record["verdict"] in ("approved", "rejected") for record in kept.values())


def last_reply(messages: Sequence[AnyMessage]) -> AIMessage | None:
    """Return the newest message of the model."""
    return next((m for m in reversed(messages) if isinstance(m, AIMessage)), None)


def with_id(reply: AIMessage) -> AIMessage:
    """Return a reply that has an id, which its records are bound to; itself if it has one."""
    return reply if reply.id else reply.model_copy(update={"id": str(uuid4())})


def answered_by(messages: Sequence[AnyMessage], reply_id: str, call_id: str) -> ToolMessage | None:
    """Return what answers a call behind its reply, or None."""
    for message in reversed(messages):
        if isinstance(message, AIMessage) and message.id == reply_id:
            return None
        if isinstance(message, ToolMessage) and message.tool_call_id == call_id:
            return message
    return None


def is_of(record: ApprovalRecord, call: ToolCall, messages: Sequence[AnyMessage]) -> bool:
    """Return whether a record is of this very call: its reply, id, tool and arguments."""
    reply = last_reply(messages)
    return (
        reply is not None
        and reply.id == record["reply_id"]
        and call["id"] == record["call_id"]
        and call["name"] == record["tool"]
        and fingerprint(call["args"]) == record["called_with"]
    )


def asked_records(
    state: Any, messages: Sequence[AnyMessage], *, room: int | None = None
) -> list[ApprovalRecord]:
    """Return the records a person has to decide on, in the order of the calls.

    Args:
        state: Of the thread.
        messages: Of the thread.
        room: How many of the reply's calls may still run; the first have it. None for all.
    """
    records, reply = records_of(state), last_reply(messages)
    if not records or reply is None:
        return []
    waiting = [
        call
        for call in reply.tool_calls
        if answered_by(messages, reply.id or "", call["id"] or "") is None
    ]
    return [
        record
        for call in waiting[:room]
        if (record := records.get(call["id"] or "")) is not None
        and record["verdict"] == "asked"
        and is_of(record, call, messages)
    ]


def new_request(
    asked: Iterable[ApprovalRecord],
    *,
    problems: Mapping[str, str],
    of_all: Sequence[str] = (),
) -> ApprovalRequest:
    """Return what a person is shown.

    Args:
        asked: Records that wait for a decision.
        problems: What was wrong with the last decision, by call id.
        of_all: What was wrong with the last answer as a whole.
    """
    actions = [
        ApprovalAction(
            name=record["tool"],
            args=record["arguments"],
            description=_description(record),
            call_id=record["call_id"],
            tool=record["tool"],
            reason=record["reason"],
            problem=problems.get(record["call_id"]),
        )
        for record in asked
    ]
    return ApprovalRequest(
        action_requests=actions,
        review_configs=[
            ReviewConfig(action_name=action["name"], allowed_decisions=list(_DECISIONS))
            for action in actions
        ],
        problems=list(of_all),
    )


def _description(record: ApprovalRecord) -> str:
    """Return the request in words; characters that show nothing are written as their code.

    A name that reads right to left, or ends in a character nobody sees, must not look like another.
    """
    text = json.dumps(record["arguments"], ensure_ascii=False, default=repr, indent=1)
    shown = "".join(
        char
        if char == "\n" or unicodedata.category(char) not in _INVISIBLE
        else f"\\u{{{ord(char):x}}}"
        for char in text[:_MAX_SHOWN_CHARS]
    )
    more = " […]" if len(text) > _MAX_SHOWN_CHARS else ""
    return f"Approval needed: {record['reason']}.\n\nTool: {record['tool']}\nArgs: {shown}{more}"
