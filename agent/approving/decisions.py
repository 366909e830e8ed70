"""What a person's answer does to the calls it was asked for; what is unclear in it does nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from agent.approving.records import ApprovalRecord, fingerprint

__all__ = ["Edit", "Read", "read_answer"]


@dataclass(slots=True)
class Read:
    """What an answer settled, and what it did not.

    Attributes:
        settled: Records with their new verdict, by call id.
        problems: Why a decision did nothing, by the id of its call.
        of_all: What was wrong otherwise.
    """

    settled: dict[str, ApprovalRecord] = field(default_factory=dict[str, ApprovalRecord])
    problems: dict[str, str] = field(default_factory=dict[str, str])
    of_all: list[str] = field(default_factory=list[str])


Edit = Callable[[ApprovalRecord, Mapping[str, Any]], "dict[str, Any] | str"]


def read_answer(
    answer: Any,
    asked: Sequence[ApprovalRecord],
    *,
    edit: Edit,
    settled: Iterable[str] = (),
) -> Read:
    """Return what a person's answer does; what is unclear in it does nothing.

    Args:
        answer: As it came: `{"decisions": [{"type": …, "call_id": …}, …]}`. Decisions without call
            ids are those of LangChain: as many as were asked for, in that order.
        asked: Records it was asked for.
        edit: Returns the checked arguments of an edit, or what is wrong with them.
        settled: Call ids that an earlier answer has decided on.
    """
    read = Read()
    decisions = cast("Any", answer).get("decisions") if isinstance(answer, Mapping) else None
    if not isinstance(decisions, list) or not all(isinstance(d, Mapping) for d in decisions):
        read.of_all.append('The answer is not of the form {"decisions": [{"type": …}, …]}.')
        return read
    given = cast("list[Mapping[str, Any]]", decisions)
    if not given:
        read.of_all.append("The answer holds no decision.")
    elif not any("call_id" in decision for decision in given):
        _read_in_order(read, given, asked, edit)
    else:
        _read_by_id(read, given, asked, edit, set(settled))
    return read


def _read_in_order(
    read: Read, given: list[Mapping[str, Any]], asked: Sequence[ApprovalRecord], edit: Edit
) -> None:
    if len(given) != len(asked):
        read.of_all.append(
            f"There are {len(given)} decisions without call_id for {len(asked)} calls; nothing "
            "tells which is whose. Put its call_id into each."
        )
        return
    for record, decision in zip(asked, given, strict=True):
        _decide(read, record, decision, edit)


def _read_by_id(
    read: Read,
    given: list[Mapping[str, Any]],
    asked: Sequence[ApprovalRecord],
    edit: Edit,
    settled: set[str],
) -> None:
    records = {record["call_id"]: record for record in asked}
    ids = [decision.get("call_id") for decision in given]
    for call_id, decision in zip(ids, given, strict=True):
        if not isinstance(call_id, str):
            read.of_all.append("A decision without call_id was left out, since others have one.")
        elif call_id in settled:
            read.of_all.append(f"The call {call_id!r} is settled already; the first answer stands.")
        elif call_id not in records:
            read.of_all.append(f"The call {call_id!r} does not wait for approval.")
        elif ids.count(call_id) > 1:
            read.problems[call_id] = "There were several decisions on this call."
        else:
            _decide(read, records[call_id], decision, edit)
    read.of_all = list(dict.fromkeys(read.of_all))


def _decide(read: Read, record: ApprovalRecord, decision: Mapping[str, Any], edit: Edit) -> None:
    call_id = record["call_id"]
    outcome = _decided(record, decision, edit)
    if isinstance(outcome, str):
        read.problems[call_id] = outcome
    else:
        read.settled[call_id] = outcome


def _decided(
    record: ApprovalRecord, decision: Mapping[str, Any], edit: Edit
) -> ApprovalRecord | str:
    match decision.get("type"):
        case "approve":
            shown = record["arguments"]
            for key in ("args", "arguments"):
                if key in decision and fingerprint(decision[key]) != fingerprint(shown):
                    return (
                        "It was approved with other arguments; a decision of type edit does that."
                    )
            if decision.get("edited_action") is not None:
                return "An approval holds no edited_action; a decision of type edit does."
            return {**record, "verdict": "approved"}
        case "reject":
            message = decision.get("message")
            if message is not None and not isinstance(message, str):
                return "The message of a rejection is a text."
            return {**record, "verdict": "rejected", "message": message}
        case "edit":
            return _edited(record, decision, edit)
        case other:
            return f"{other!r} is no decision; use approve, edit or reject."


def _edited(
    record: ApprovalRecord, decision: Mapping[str, Any], edit: Edit
) -> ApprovalRecord | str:
    action = decision.get("edited_action")
    if not isinstance(action, Mapping):
        return "An edit holds edited_action with the args to run with."
    changed = cast("Mapping[str, Any]", action)
    if (name := changed.get("name", record["tool"])) != record["tool"]:
        return (
            f"An edit cannot put tool {name!r} in the place of {record['tool']!r}; reject the call."
        )
    arguments = changed.get("args")
    if not isinstance(arguments, Mapping):
        return "An edit holds edited_action with the args to run with."
    checked = edit(record, cast("Mapping[str, Any]", arguments))
    if isinstance(checked, str):
        return checked
    is_edited = fingerprint(checked) != fingerprint(record["arguments"])
    return {**record, "verdict": "approved", "arguments": checked, "is_edited": is_edited}
