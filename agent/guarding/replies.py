"""A model's reply whose tool calls cannot all be read, made fit to be kept and answered."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    HumanMessage,
    message_chunk_to_message,
)
from pydantic import ValidationError

__all__ = ["MAX_REQUESTS_AGAIN", "Broken", "readable", "request_again"]

MAX_REQUESTS_AGAIN = 2

CUT_OFF = "the reply was cut off at its token limit"
_MAX_INPUT_CHARS = 100
_NOT_AN_OBJECT = "they are not a JSON object"
# How providers say that a reply ended because it got too long.
_CUT_REASONS = frozenset(
    {"length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"}
)
_CALL_BLOCKS = frozenset({"tool_use", "function_call", "tool_call", "invalid_tool_call"})

RawArguments = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Broken:
    """A call that could not be read.

    Attributes:
        place: In the mended reply's `tool_calls`.
        reason: Why.
        text: What the model wrote.
    """

    place: int
    reason: str
    text: str


@dataclass(slots=True)
class _Calls:
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    broken: list[Broken] = field(default_factory=list[Broken])

    def add(self, call: Mapping[str, Any], reason: str | None = None, text: str = "") -> None:
        if reason is not None:
            self.broken.append(Broken(len(self.calls), reason, text))
        arguments = {} if reason is not None else call["args"]
        self.calls.append(
            {
                "name": call.get("name") or "",
                "args": arguments,
                "id": call.get("id"),
                "type": "tool_call",
            }
        )


def readable(
    message: AIMessage, *, streamed: RawArguments | None = None
) -> tuple[AIMessage, list[Broken]]:
    """Return a reply in which every call is a legal one, and those that could not be read.

    A call that cannot be read stands there with empty arguments, in every place where a message
    holds calls: a server that parses the history refuses it otherwise. Parsers let two kinds of
    half arguments pass as whole ones; where the text is known, or the reply was cut off, they are
    found out here. No text at all is what models send for no arguments.

    Args:
        message: As the model gave it.
        streamed: Returns the text of a call's arguments by the call's id, as it was streamed.

    Returns:
        The message itself where all is well.
    """
    written = _written_arguments(message)
    found = _Calls()
    for place, call in enumerate(message.tool_calls):
        call_id = call["id"] or ""
        text = streamed(call_id) if streamed is not None and call_id else None
        text = text if text is not None else written.get((call_id, call["name"]))
        problem = None if text is None else _problem_of(text)
        if problem is None and text is None and _may_be_cut(message, place):
            problem, text = CUT_OFF, ""
        found.add(call, problem, text or "")
    for call in message.invalid_tool_calls:
        text = call.get("args")
        problem = _problem_of(text or "") or "it is not a legal call"
        if not (text or "").strip() and not call.get("error"):
            found.add({**call, "args": {}})
        else:
            found.add(call, CUT_OFF if _was_cut(message) else problem, text or "")
    if not found.broken and not message.invalid_tool_calls:
        return message, []
    if isinstance(message, AIMessageChunk):
        message = cast("AIMessage", message_chunk_to_message(message))
    ids = {found.calls[broken.place]["id"] for broken in found.broken}
    return (
        message.model_copy(
            update={
                "tool_calls": found.calls,
                "invalid_tool_calls": [],
                "content": _emptied_content(message.content, ids),
                "additional_kwargs": _emptied_kwargs(message.additional_kwargs, ids),
            }
        ),
        found.broken,
    )


def request_again(error: ValidationError) -> HumanMessage | None:
    """Return what to ask a model whose reply could not even be made into a message.

    So it is with some providers when arguments are JSON, but no object: the names and ids of the
    calls are lost with the reply, so nothing can be answered under them.

    Args:
        error: Raised by the model's class.

    Returns:
        None where the error is of something else.
    """
    details = error.errors(include_url=False, include_context=False)
    if error.title != "AIMessage" or not all(
        detail["loc"][:1] == ("tool_calls",) and detail["loc"][-1:] == ("args",)
        for detail in details
    ):
        return None
    written = ", ".join(
        json.dumps(detail["input"], default=str)[:_MAX_INPUT_CHARS] for detail in details
    )
    return HumanMessage(
        f"Your last reply could not be read, so nothing was run: the arguments of a tool call were "
        f"{written}, which is no JSON object. Send the reply again, with one complete JSON object "
        "as the arguments of each call."
    )


def _problem_of(text: str) -> str | None:
    """Return why a text is not the arguments of a call; None when it is."""
    if not text.strip():
        return None
    try:
        value = json.loads(text)
    except RecursionError:
        return "they are nested too deeply"
    except ValueError as error:
        return f"invalid JSON, {error}"
    return None if isinstance(value, dict) else _NOT_AN_OBJECT


def _was_cut(message: AIMessage) -> bool:
    metadata = message.response_metadata
    incomplete = metadata.get("incomplete_details")
    reasons = [
        metadata.get("finish_reason"),
        metadata.get("stop_reason"),
        metadata.get("done_reason"),
        cast("dict[str, Any]", incomplete).get("reason") if isinstance(incomplete, dict) else None,
    ]
    return any(isinstance(reason, str) and reason.lower() in _CUT_REASONS for reason in reasons)


def _may_be_cut(message: AIMessage, place: int) -> bool:
    """Return whether a call is the last of a reply that was cut off: half of it may be missing."""
    return (
        place == len(message.tool_calls) - 1
        and not message.invalid_tool_calls
        and _was_cut(message)
    )


def _written_arguments(message: AIMessage) -> dict[tuple[str, str], str]:
    """Return the text of arguments by call id and name, from where providers leave it."""
    found: dict[tuple[str, str], str] = {}
    for raw in _dicts(message.additional_kwargs.get("tool_calls")):
        function = raw.get("function")
        if isinstance(function, dict):
            _note(found, raw.get("id"), cast("dict[str, Any]", function), "arguments")
    for block in _dicts(message.content):
        if block.get("type") in _CALL_BLOCKS:
            for key in ("arguments", "input", "partial_json"):
                _note(found, block.get("call_id") or block.get("id"), block, key)
    for chunk in getattr(message, "tool_call_chunks", ()):
        _note(found, chunk.get("id"), chunk, "args")
    return found


def _note(
    found: dict[tuple[str, str], str], call_id: Any, holder: Mapping[str, Any], key: str
) -> None:
    if isinstance(text := holder.get(key), str):
        found[str(call_id or ""), str(holder.get("name") or "")] = text


def _emptied_content(content: Any, ids: set[Any]) -> Any:
    if not isinstance(content, list):
        return content
    return [_emptied_block(block, ids) for block in cast("list[Any]", content)]


def _emptied_block(block: Any, ids: set[Any]) -> Any:
    if not isinstance(block, dict):
        return block
    part = cast("dict[str, Any]", block)
    if part.get("type") not in _CALL_BLOCKS:
        return part
    if part["type"] != "invalid_tool_call" and (part.get("call_id") or part.get("id")) not in ids:
        return part
    part = {key: value for key, value in part.items() if key not in ("partial_json", "error")}
    match part["type"]:
        case "function_call":
            return {**part, "arguments": "{}"}
        case "tool_use":
            return {**part, "input": {}}
        case _:
            return {**part, "type": "tool_call", "args": {}}


def _emptied_kwargs(kwargs: dict[str, Any], ids: set[Any]) -> dict[str, Any]:
    emptied = dict(kwargs)
    if isinstance(raw_calls := kwargs.get("tool_calls"), list):
        emptied["tool_calls"] = [
            {**raw, "function": {**cast("dict[str, Any]", raw["function"]), "arguments": "{}"}}
            if isinstance(raw, dict)
            and raw.get("id") in ids
            and isinstance(raw.get("function"), dict)
            else raw
            for raw in cast("list[Any]", raw_calls)
        ]
    if isinstance(function := kwargs.get("function_call"), dict):
        part = cast("dict[str, Any]", function)
        if isinstance(part.get("arguments"), str) and _problem_of(part["arguments"]):
            emptied["function_call"] = {**part, "arguments": "{}"}
    return emptied


def _dicts(value: Any) -> list[dict[str, Any]]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]
