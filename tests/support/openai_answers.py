"""What the local OpenAI server answers: scripted replies and vectors as wire documents, pure."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import re
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from langchain_core.messages import AIMessage

from tests.support.openai_rules import estimated_tokens

__all__ = [
    "ChatReply",
    "EmbeddingFault",
    "Scripted",
    "ServerFault",
    "completion",
    "embed_text",
    "embeddings_document",
    "stream_events",
]

_PIECE_CHARS = 7  # so short that arguments and text are split over several stream chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFault:
    """Answer with an error status instead, once `hold` (when given) is set."""

    status: int = 500
    message: str = "The server had an error while processing your request."
    hold: threading.Event | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """One scripted reply.

    Attributes:
        calls: (id, name, arguments as sent, valid JSON or not). An empty id is filled in when the
            reply is sent, unique on its server.
        finish_reason: `stop`, or `tool_calls` where there are calls, when not given.
        hold: The reply waits until this is set (or the server is closed).
    """

    text: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    finish_reason: str | None = None
    hold: threading.Event | None = None

    @classmethod
    def of(cls, reply: Scripted) -> ChatReply | ServerFault:
        """Read a reply from a text, an `AIMessage`, or a dict of the same shape.

        A dict holds `text`, `tool_calls` (dicts of `name`, `args` and optionally `id`; args as a
        string go out as they are), `finish_reason` and `hold`.
        """
        match reply:
            case ChatReply() | ServerFault():
                return reply
            case str():
                return cls(text=reply)
            case AIMessage():
                calls: Iterable[Mapping[str, Any]] = [
                    *reply.tool_calls,
                    *reply.invalid_tool_calls,
                ]
                return cls(text=reply.text, calls=_wire_calls(calls))
            case _:
                if unknown := reply.keys() - {"text", "tool_calls", "finish_reason", "hold"}:
                    raise ValueError(f"a scripted reply has no {sorted(unknown)}")
                return cls(
                    text=reply.get("text", ""),
                    calls=_wire_calls(reply.get("tool_calls", ())),
                    finish_reason=reply.get("finish_reason"),
                    hold=reply.get("hold"),
                )

    def with_ids(self, prefix: str) -> ChatReply:
        """Return the reply with every empty call id filled in."""
        return dataclasses.replace(
            self,
            calls=tuple(
                (call_id or f"{prefix}_{number}", name, arguments)
                for number, (call_id, name, arguments) in enumerate(self.calls, start=1)
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingFault:
    """What is wrong with one answer of `/v1/embeddings`.

    Attributes:
        kind: `fewer` drops the last vector, `none` sends an empty list; `dimensions` makes vectors
            one longer; `null` and `nan` put such a value first in the first vector, `huge` a number
            beyond float32; `zeros` makes the first vector zero; `shuffled` reverses `data` with
            right `index` fields; `hold` answers rightly, but only after `hold` is set.
    """

    kind: Literal["fewer", "none", "dimensions", "null", "nan", "huge", "zeros", "shuffled", "hold"]
    hold: threading.Event | None = None


Scripted = str | AIMessage | Mapping[str, Any] | ChatReply | ServerFault


def embed_text(text: str, dimensions: int) -> list[float]:
    """Return the unit vector the server gives for a text: its words hashed into a bag."""
    vector = [0.0] * dimensions
    for word in re.findall(r"\w+", text.casefold()) or [text]:
        digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
        slot = int.from_bytes(digest)
        vector[slot % dimensions] += 1.0 if slot >> 63 else -1.0
    # Two words may cancel each other out; no text has the zero vector.
    length = math.hypot(*vector)
    return [value / length for value in vector] if length else [1.0] + [0.0] * (dimensions - 1)


def embeddings_document(
    texts: Sequence[str],
    body: Mapping[str, Any],
    fault: EmbeddingFault | None,
    *,
    dimensions: int,
) -> dict[str, Any]:
    """Return the document that answers an embedding request, wrong in the way of `fault`."""
    size = body.get("dimensions", dimensions)
    kind = fault.kind if fault else "hold"
    vectors: list[list[float | None]] = [
        [*embed_text(text, size + (kind == "dimensions"))] for text in texts
    ]
    if kind in ("null", "nan", "huge"):
        vectors[0][0] = {"null": None, "nan": math.nan, "huge": 1e300}[kind]
    elif kind == "zeros":
        vectors[0] = [0.0] * size
    as_base64 = body.get("encoding_format") == "base64"
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _base64(vector) if as_base64 else vector,
        }
        for index, vector in enumerate(vectors)
    ]
    if kind in ("fewer", "none"):
        data = data[:-1] if kind == "fewer" else []
    elif kind == "shuffled":
        data.reverse()
    tokens = sum(estimated_tokens(text) for text in texts)
    return {
        "object": "list",
        "data": data,
        "model": body["model"],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _base64(vector: Iterable[float | None]) -> str:
    # float32 has no null and nothing beyond 3.4e38: such values become NaN and infinity.
    floats = [math.nan if value is None else value for value in vector]
    small = [math.copysign(math.inf, value) if abs(value) > 3.4e38 else value for value in floats]
    return base64.b64encode(struct.pack(f"<{len(small)}f", *small)).decode()


def _wire_calls(calls: Iterable[Mapping[str, Any]]) -> tuple[tuple[str, str, str], ...]:
    return tuple(
        (
            call.get("id") or "",
            call["name"],
            call["args"] if isinstance(call["args"], str) else json.dumps(call["args"]),
        )
        for call in calls
    )


def _wire_call(call: tuple[str, str, str]) -> dict[str, Any]:
    call_id, name, arguments = call
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _head(answer_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": answer_id, "created": 1_700_000_000, "model": body["model"]}


def _message(reply: ChatReply) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": reply.text or (None if reply.calls else ""),
        "refusal": None,
    }
    if reply.calls:
        message["tool_calls"] = [_wire_call(call) for call in reply.calls]
    return message


def _finish_reason(reply: ChatReply) -> str:
    return reply.finish_reason or ("tool_calls" if reply.calls else "stop")


def _usage(body: Mapping[str, Any], reply: ChatReply) -> dict[str, int]:
    prompt = estimated_tokens(json.dumps([body["messages"], body.get("tools", [])]))
    completion = estimated_tokens(reply.text + "".join("".join(call[1:]) for call in reply.calls))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def completion(answer_id: str, reply: ChatReply, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document that answers a chat request without streaming."""
    return {
        **_head(answer_id, body),
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": _message(reply),
                "logprobs": None,
                "finish_reason": _finish_reason(reply),
            }
        ],
        "usage": _usage(body, reply),
    }


def stream_events(answer_id: str, reply: ChatReply, body: Mapping[str, Any]) -> Iterator[str]:
    """Return the data of the events that answer a streamed chat request."""
    with_usage = (body.get("stream_options") or {}).get("include_usage")
    usage = _usage(body, reply) if with_usage else None
    head = _head(answer_id, body)

    def event(choices: list[dict[str, Any]], **more: Any) -> str:
        chunk = {**head, "object": "chat.completion.chunk", "choices": choices, **more}
        if usage is not None:
            chunk.setdefault("usage", None)
        return json.dumps(chunk)

    def delta(content: dict[str, Any], finish_reason: str | None = None) -> str:
        return event([{"index": 0, "delta": content, "finish_reason": finish_reason}])

    yield delta({"role": "assistant", "content": None if reply.calls and not reply.text else ""})
    for piece in _pieces(reply.text):
        yield delta({"content": piece})
    for index, (call_id, name, arguments) in enumerate(reply.calls):
        opening = _wire_call((call_id, name, ""))
        yield delta({"tool_calls": [{"index": index, **opening}]})
        for piece in _pieces(arguments):
            yield delta({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield delta({}, _finish_reason(reply))
    if usage is not None:
        yield event([], usage=usage)
    yield "[DONE]"


def _pieces(text: str) -> Iterator[str]:
    return (text[start : start + _PIECE_CHARS] for start in range(0, len(text), _PIECE_CHARS))
