"""Whether a tool call may run, and what the model is told when it may not or when it failed.

Pure functions: `ToolRAGMiddleware` asks them in its tool hooks. Every message names the tool,
says what happened and what to do, is bounded, and carries the id of the call it answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from langchain_core.messages import ToolCall, ToolMessage

from agent.middleware._messages import clean
from agent.selection import Offer
from registry.text import nearest_names

__all__ = [
    "MAX_REASON_CHARS",
    "approval_refusal",
    "checked_result",
    "failure",
    "refusal",
    "unavailable_now",
    "unknown_tool",
]

MAX_REASON_CHARS = 1_000
_MAX_NAME_CHARS = 100


def refusal(
    call: ToolCall, offer: Offer, *, states: Mapping[str, bool], has_live_tool: bool
) -> ToolMessage | None:
    """Return why an offered tool may not run now, or None when it may.

    Args:
        call: The model's call.
        offer: What the thread was offered under that name.
        states: Name to whether the registry has it active now; absent means not registered.
        has_live_tool: Whether this process has the tool.
    """
    # Code put a pinned tool there, so it may be unregistered; any other must be active now.
    is_active = states.get(offer["name"], offer["pinned"])
    if not (is_active and has_live_tool):
        return _error(
            call,
            f"Tool {offer['name']!r} is no longer available, so nothing was run. "
            "Do not call it again; use another tool or answer without it.",
        )
    return approval_refusal(call) if offer["requires_approval"] else None


def approval_refusal(call: ToolCall) -> ToolMessage:
    """Return the answer to a call that a person would have to agree to."""
    return _error(
        call,
        f"Tool {call['name']!r} needs a person's approval, which this agent is not set up for, "
        "so nothing was run. Do not call it again; tell the user that this needs approval.",
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


def unavailable_now(call: ToolCall) -> ToolMessage:
    """Return the answer to a call that could not be checked because the registry is away."""
    return _error(
        call,
        f"Tool {call['name']!r} is temporarily unavailable, so nothing was run. This is not a "
        "mistake in the call. Answer with what you have and say what is missing.",
    )


def failure(call: ToolCall, error: Exception) -> ToolMessage:
    """Return the answer to a call whose tool raised: name, error class and a bounded reason."""
    kind = type(error).__name__
    reason = clean(_text_of(error), max_chars=MAX_REASON_CHARS).strip()
    what = f"failed: {kind}: {reason}" if reason else f"failed without detail ({kind})"
    stop = "" if what.endswith((".", "!", "?")) else "."
    return _error(
        call,
        f"Tool {call['name']!r} {what}{stop} Correct the arguments if they are the reason; "
        "otherwise use another tool or say what could not be done. Do not repeat the same call.",
    )


def checked_result(call: ToolCall, result: Any) -> Any:
    """Return a tool's result as the answer to its call: right id and name, bounded if an error.

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
    if result.status == "error" and isinstance(result.content, str):
        bounded = clean(result.content, max_chars=MAX_REASON_CHARS)
        empty = f"Tool {call['name']!r} failed without detail."
        changes["content"] = bounded if bounded.strip() else empty
    return result.model_copy(update=changes) if changes else result


def _text_of(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # an error whose __str__ fails still has to be reported
        return ""


def _error(call: ToolCall, content: str) -> ToolMessage:
    return ToolMessage(
        content=content, name=call["name"], tool_call_id=call["id"] or "", status="error"
    )
