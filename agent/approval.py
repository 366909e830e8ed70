"""Calls that wait for a person, and the decisions on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

__all__ = ["PendingApproval", "approve", "edit", "pending_approvals", "reject"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingApproval:
    """A call that a person has to decide on before it runs.

    Attributes:
        call_id: Identifies the call in the decision.
        tool: Model-facing name.
        arguments: Checked ones; the call runs with exactly these if it is approved.
        reason: Why approval is needed.
        problem: Why the last decision on it did nothing; None when there was none.
    """

    call_id: str
    tool: str
    arguments: Mapping[str, Any]
    reason: str
    problem: str | None = None


def approve(call_id: str) -> dict[str, Any]:
    """Return the decision that a call runs as it was asked for."""
    return {"type": "approve", "call_id": call_id}


def edit(call_id: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the decision that a call runs with other arguments.

    Args:
        call_id: Of the call.
        arguments: All of them; they are checked against the tool's schema.
    """
    return {"type": "edit", "call_id": call_id, "edited_action": {"args": dict(arguments)}}


def reject(call_id: str, message: str | None = None) -> dict[str, Any]:
    """Return the decision that a call does not run.

    Args:
        call_id: Of the call.
        message: For the model: why, or what to do instead.
    """
    decision: dict[str, Any] = {"type": "reject", "call_id": call_id}
    return decision if message is None else {**decision, "message": message}


def pending_approvals(interrupts: Iterable[Any]) -> dict[str, tuple[PendingApproval, ...]]:
    """Return the calls that wait, by the id of the interrupt that asks for them.

    Args:
        interrupts: LangGraph's, from a run's `__interrupt__` or a thread's state. Those of tools
            and of others are left out.
    """
    found: dict[str, tuple[PendingApproval, ...]] = {}
    for interrupt in interrupts:
        value = interrupt.value
        actions = (
            cast("Mapping[str, Any]", value).get("action_requests")
            if isinstance(value, Mapping)
            else None
        )
        if not isinstance(actions, list):
            continue
        ours = [
            cast("Mapping[str, Any]", action)
            for action in cast("list[Any]", actions)
            if isinstance(action, Mapping) and "call_id" in action and "reason" in action
        ]
        problems = " ".join(cast("Mapping[str, list[str]]", value).get("problems") or ())
        if ours:
            found[interrupt.id] = tuple(
                PendingApproval(
                    call_id=action["call_id"],
                    tool=action["name"],
                    arguments=action["args"],
                    reason=action["reason"],
                    problem=action.get("problem") or problems or None,
                )
                for action in ours
            )
    return found
