"""Pure functions over messages: what they say, and making model output fit to be kept."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Container, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, cast
from uuid import uuid4

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    message_chunk_to_message,
)

from registry.text import is_legal_name, legal_name

__all__ = [
    "METADATA_KEY",
    "called_names",
    "clean",
    "legal_message",
    "newest_human_text",
    "original_name",
    "turns_after_calls",
]

METADATA_KEY = "toolrag"  # our corner of a message's response_metadata
MAX_ORIGINAL_CHARS = 200
MAX_CALL_ID_CHARS = 40  # OpenAI refuses a request with a longer one

_CALL_BLOCKS = frozenset(
    {"tool_use", "function_call", "custom_tool_call", "tool_call", "invalid_tool_call"}
)
_CUT_MARK = " […] "


def newest_human_text(messages: Sequence[AnyMessage]) -> str:
    """Return the text of the newest human message, stripped; empty when it has none.

    Half a surrogate, which no database or provider takes, becomes a question mark.
    """
    for message in reversed(messages):
        if isinstance(message, HumanMessage):
            return str(message.text).encode("utf-8", "replace").decode().strip()
    return ""


def turns_after_calls(messages: Sequence[AnyMessage], *, turn: int) -> dict[str, int]:
    """Return tool name to the number of the turn after the one that last called it.

    Args:
        messages: Of the thread.
        turn: Number of the turn that the newest human message began.
    """
    turns: dict[str, int] = {}
    after = turn + 1
    for message in reversed(messages):
        if isinstance(message, HumanMessage):
            after -= 1
        elif isinstance(message, AIMessage):
            for call in message.tool_calls:
                turns.setdefault(call["name"], after)
    return turns


def called_names(messages: Sequence[BaseMessage]) -> set[str]:
    """Return the tool names that these messages call."""
    return {
        call["name"]
        for message in messages
        if isinstance(message, AIMessage)
        for call in message.tool_calls
    }


def clean(text: str, *, max_chars: int) -> str:
    """Return text that every store and provider takes, cut in its middle with a visible mark.

    NUL characters and lone surrogates go; the end is kept because it often holds the reason.
    """
    text = text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")
    if len(text) <= max_chars:
        return text
    room = max_chars - len(_CUT_MARK)
    head = room // 3
    return text[:head] + _CUT_MARK + text[len(text) - (room - head) :]


def original_name(messages: Sequence[AnyMessage], call_id: str) -> str | None:
    """Return the name the model wrote for a call of the last reply, if it was not legal."""
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            ours = message.response_metadata.get(METADATA_KEY, {})
            return cast("str | None", ours.get("original_names", {}).get(call_id))
    return None


def legal_message(
    message: AIMessage, *, taken: Container[str], history: Sequence[AnyMessage] = ()
) -> AIMessage:
    """Return a reply whose tool calls have legal names and ids; itself if it is one.

    A provider refuses every later request of a thread whose history holds an illegal name, an
    empty or endless id, or one id twice in a reply; and an id that stands in two replies leaves
    open which call a result answers. Illegal names become `invalid__…`, which no tool has; what
    the model wrote is kept under `response_metadata["toolrag"]`. Tool calls stand in up to four
    places of a message, and all of them are changed.

    Args:
        message: A model's reply.
        taken: Names of real tools; no replacement equals one of them.
        history: What the thread holds already; no id equals one of its calls.
    """
    seen = {
        call["id"] or ""
        for earlier in history
        if isinstance(earlier, AIMessage)
        for call in earlier.tool_calls
    }
    calls: list[dict[str, Any]] = [dict(call) for call in message.tool_calls]
    broken: list[dict[str, Any]] = [dict(call) for call in message.invalid_tool_calls]
    if _all_legal([*calls, *broken], seen):
        return message
    if isinstance(message, AIMessageChunk):
        message = cast("AIMessage", message_chunk_to_message(message))

    original_names: dict[str, str] = {}
    original_ids: dict[str, str] = {}
    written: list[tuple[str, str, str]] = []  # id and name as the model wrote them, id as kept
    for call in [*calls, *broken]:
        old_id, old_name = call.get("id") or "", call.get("name") or ""
        if not _is_legal_id(old_id) or old_id in seen:
            call["id"] = f"call_{uuid4().hex[:24]}"
        call["name"] = _legal_call_name(old_name, taken)
        seen.add(call["id"])
        written.append((old_id, old_name, call["id"]))
        if call["name"] != old_name:
            original_names[call["id"]] = clean(old_name, max_chars=MAX_ORIGINAL_CHARS)
        if call["id"] != old_id:
            original_ids[call["id"]] = clean(old_id, max_chars=MAX_ORIGINAL_CHARS)
    ours = {
        **message.response_metadata.get(METADATA_KEY, {}),
        "original_names": original_names,
        "original_ids": original_ids,
    }
    return message.model_copy(
        update={
            "tool_calls": calls,
            "invalid_tool_calls": broken,
            "content": _legal_content(message.content, _Rewriter(written, taken)),
            "additional_kwargs": _legal_kwargs(
                message.additional_kwargs, _Rewriter(written, taken)
            ),
            "response_metadata": {**message.response_metadata, METADATA_KEY: ours},
        }
    )


class _Rewriter:
    """Gives one place of a message the same names and ids as its `tool_calls`, in order."""

    def __init__(self, written: Sequence[tuple[str, str, str]], taken: Container[str]) -> None:
        self._taken = taken
        self._waiting: defaultdict[tuple[str, str], deque[str]] = defaultdict(deque)
        for old_id, old_name, new_id in written:
            self._waiting[old_id, old_name].append(new_id)

    def rewrite(self, part: dict[str, Any], *, id_key: str) -> dict[str, Any]:
        name = part.get("name") or ""
        return {
            **part,
            "name": _legal_call_name(name, self._taken),
            id_key: self.next_id(part.get(id_key), name),
        }

    def next_id(self, old_id: str | None, name: str) -> str | None:
        waiting = self._waiting[old_id or "", name]
        return waiting.popleft() if waiting else old_id


def _legal_content(content: Any, rewriter: _Rewriter) -> Any:
    if not isinstance(content, list):
        return content
    blocks = cast("list[Any]", content)
    return [_legal_block(block, rewriter) for block in blocks]


def _legal_block(block: Any, rewriter: _Rewriter) -> Any:
    if not isinstance(block, dict):
        return block
    part = cast("dict[str, Any]", block)
    if part.get("type") not in _CALL_BLOCKS:
        return part
    # OpenAI's Responses API pairs by `call_id`; its `id` is the item's own.
    return rewriter.rewrite(part, id_key="call_id" if "call_id" in part else "id")


def _legal_kwargs(kwargs: dict[str, Any], rewriter: _Rewriter) -> dict[str, Any]:
    legal = dict(kwargs)
    if isinstance(raw_calls := kwargs.get("tool_calls"), list):
        legal["tool_calls"] = [
            _legal_raw_call(raw, rewriter) for raw in cast("list[Any]", raw_calls)
        ]
    if isinstance(function := kwargs.get("function_call"), dict):
        part = cast("dict[str, Any]", function)
        legal["function_call"] = {
            key: value for key, value in rewriter.rewrite(part, id_key="id").items() if key in part
        }
    return legal


def _legal_raw_call(raw: Any, rewriter: _Rewriter) -> Any:
    if not isinstance(raw, dict):
        return raw
    call = cast("dict[str, Any]", raw)
    function = cast("dict[str, Any]", call.get("function") or {})
    legal = rewriter.rewrite({"name": function.get("name"), "id": call.get("id")}, id_key="id")
    return {**call, "id": legal["id"], "function": {**function, "name": legal["name"]}}


def _all_legal(calls: Sequence[dict[str, Any]], seen: AbstractSet[str]) -> bool:
    ids = [call.get("id") or "" for call in calls]
    names_legal = all(is_legal_name(call.get("name") or "") for call in calls)
    ids_legal = all(map(_is_legal_id, ids)) and seen.isdisjoint(ids)
    return names_legal and ids_legal and len(set(ids)) == len(ids)


def _is_legal_id(call_id: str) -> bool:
    return 0 < len(call_id) <= MAX_CALL_ID_CHARS


def _legal_call_name(name: str, taken: Container[str]) -> str:
    if is_legal_name(name):
        return name
    readable = name if any(is_legal_name(char) for char in name) else "unnamed"
    candidate = legal_name(readable, prefix="invalid")
    number = 1
    while candidate in taken:
        number += 1
        candidate = legal_name(readable, prefix=f"invalid{number}")
    return candidate
