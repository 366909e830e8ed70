"""What the OpenAI API refuses, as pure checks of a request body.

Wordings follow the public API's own error texts. Two rules are stricter than OpenAI's on purpose,
because servers that speak its protocol hold them: arguments of earlier calls must be JSON objects,
and (on request) every tool the history names must be defined in `tools`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["EmbeddingLimits", "Refused", "check_chat", "check_embeddings", "estimated_tokens"]

MAX_TOOLS = 128
MAX_DESCRIPTION_CHARS = 1_024
MAX_CALL_ID_CHARS = 40

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SPEAKER_NAME = re.compile(r"[^\s<|\\/>]+")
_SCHEMA_TYPES = {"object", "array", "string", "number", "integer", "boolean", "null"}
_CHAT_FIELDS = {
    *("model", "messages", "tools", "tool_choice", "parallel_tool_calls", "stream"),
    *("stream_options", "temperature", "top_p", "n", "stop", "seed", "user", "max_tokens"),
    *("max_completion_tokens", "response_format", "frequency_penalty", "presence_penalty"),
    *("logprobs", "top_logprobs", "logit_bias", "reasoning_effort", "metadata", "store"),
}
_EMBEDDING_FIELDS = {"model", "input", "dimensions", "encoding_format", "user"}
_PART_TYPES = {
    "system": {"text"},
    "developer": {"text"},
    "tool": {"text"},
    "user": {"text", "image_url", "input_audio", "file"},
    "assistant": {"text", "refusal"},
}


class Refused(Exception):
    """The request is not answered; `status` and `body` are what goes on the wire."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingLimits:
    """Limits of an embedding request; tokens are estimated, one for four characters."""

    max_inputs: int = 2_048
    max_request_tokens: int = 300_000
    max_text_tokens: int = 8_191
    strings_only: bool = True
    base64: bool = True


def estimated_tokens(text: str) -> int:
    return math.ceil(len(text) / 4)


def check_chat(body: Mapping[str, Any], *, require_definitions: bool = False) -> None:
    """Pass a chat request that the API would answer.

    Raises:
        Refused: It would not.
    """
    _check_fields(body, known=_CHAT_FIELDS, required=("model", "messages"))
    if body.get("stream_options") is not None and not body.get("stream"):
        raise Refused(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            param="stream_options",
        )
    defined = _check_tools(body.get("tools"))
    _check_tool_choice(body.get("tool_choice"), defined)
    if "parallel_tool_calls" in body and not defined:
        raise Refused(
            "'parallel_tool_calls' is only allowed when 'tools' are specified.",
            param="parallel_tool_calls",
        )
    messages = body["messages"]
    if not isinstance(messages, list) or not messages:
        raise Refused(
            "Invalid 'messages': expected an array with minimum length 1.",
            param="messages",
            code="empty_array",
        )
    for place, message in _numbered("messages", messages):
        _check_message(place, message)
    _check_pairing(messages)
    if require_definitions:
        _check_definitions(messages, defined)


def check_embeddings(body: Mapping[str, Any], limits: EmbeddingLimits) -> list[str]:
    """Return the texts to embed, in order; a list of token ids counts as one text.

    Raises:
        Refused: The API would not answer.
    """
    _check_fields(body, known=_EMBEDDING_FIELDS, required=("model", "input"))
    encoding = body.get("encoding_format", "float")
    if encoding not in (("float", "base64") if limits.base64 else ("float",)):
        raise Refused(f"encoding_format {encoding!r} is not supported.", param="encoding_format")
    dimensions = body.get("dimensions", 1)
    if not _is_integer(dimensions) or dimensions < 1:
        raise Refused("'dimensions' must be a positive integer.", param="dimensions")
    inputs = _listed_inputs(body["input"])
    if not 1 <= len(inputs) <= limits.max_inputs:
        raise Refused(
            f"'input' holds {len(inputs)} items; 1 to {limits.max_inputs} are taken.",
            param="input",
        )
    total = 0
    for place, item in _numbered("input", inputs):
        if isinstance(item, str):
            tokens = estimated_tokens(item)
        elif isinstance(item, list) and item and all(_is_integer(token) for token in item):
            if limits.strings_only:
                raise Refused(
                    f"'{place}' is a list of token ids; this server takes only strings.",
                    param="input",
                )
            tokens = len(item)
        else:
            raise Refused(f"'{place}' is not a string or a list of token ids.", param="input")
        if item == "":
            raise Refused(f"'{place}' cannot be an empty string.", param="input")
        if tokens > limits.max_text_tokens:
            raise Refused(
                f"This model's maximum context length is {limits.max_text_tokens} tokens, "
                f"however '{place}' has {tokens}.",
                param="input",
            )
        total += tokens
    if total > limits.max_request_tokens:
        raise Refused(
            f"Requested {total} tokens, max {limits.max_request_tokens} tokens per request.",
            param="input",
            code="max_tokens_per_request",
        )
    return [item if isinstance(item, str) else " ".join(map(str, item)) for item in inputs]


def _listed_inputs(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise Refused("'input' must be a string or an array.", param="input")
    # A flat list of integers is one text as token ids.
    return [value] if value and all(_is_integer(item) for item in value) else value


def _check_fields(body: Any, *, known: set[str], required: Sequence[str]) -> None:
    if not isinstance(body, dict):
        raise Refused("We could not parse the JSON body of your request: expected an object.")
    for name in required:
        if body.get(name) is None:
            raise Refused(f"Missing required parameter: '{name}'.", param=name)
    if unknown := sorted(body.keys() - known):
        raise Refused(f"Unrecognized request argument supplied: {unknown[0]}", param=unknown[0])
    if not isinstance(body["model"], str) or not body["model"]:
        raise Refused("you must provide a model parameter", param="model")


def _check_tools(tools: Any) -> set[str]:
    if tools is None:
        return set()
    if not isinstance(tools, list) or not tools:
        raise Refused(
            "Invalid 'tools': expected an array with minimum length 1.",
            param="tools",
            code="empty_array",
        )
    if len(tools) > MAX_TOOLS:
        raise Refused(
            f"Invalid 'tools': array too long. Expected maximum length {MAX_TOOLS}, "
            f"but got {len(tools)}.",
            param="tools",
            code="array_above_max_length",
        )
    names: set[str] = set()
    for place, tool in _numbered("tools", tools):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise Refused(f"Invalid '{place}.type': expected 'function'.", param=f"{place}.type")
        function = tool.get("function")
        if not isinstance(function, dict):
            raise Refused(f"Missing required parameter: '{place}.function'.", param=place)
        name = _checked_tool_name(f"{place}.function.name", function.get("name"))
        if name in names:
            raise Refused(f"Tool names must be unique: {name!r} is defined twice.", param=place)
        names.add(name)
        _check_description(f"{place}.function.description", function.get("description"))
        _check_parameters(name, f"{place}.function.parameters", function.get("parameters"))
    return names


def _checked_tool_name(place: str, name: Any) -> str:
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise Refused(
            f"Invalid '{place}': string does not match pattern. "
            f"Expected a string that matches the pattern '^{_TOOL_NAME.pattern}$'.",
            param=place,
            code="invalid_value",
        )
    return name


def _check_description(place: str, description: Any) -> None:
    if description is None:
        return
    if not isinstance(description, str):
        raise Refused(f"Invalid type for '{place}': expected a string.", param=place)
    if len(description) > MAX_DESCRIPTION_CHARS:
        raise Refused(
            f"Invalid '{place}': string too long. Expected a string with maximum length "
            f"{MAX_DESCRIPTION_CHARS}, but got {len(description)}.",
            param=place,
            code="string_above_max_length",
        )


def _check_parameters(name: str, place: str, schema: Any) -> None:
    if schema is None:
        return
    problem = _schema_problem(schema)
    if problem is None and schema.get("type") != "object":
        problem = f"schema must be of 'type: \"object\"', got {schema.get('type')!r}."
    elif problem is None and not isinstance(schema.get("properties"), dict):
        problem = "In context=(), object schema missing properties."
    elif problem is None and schema.keys() & {"oneOf", "anyOf", "allOf", "enum", "not"}:
        problem = "schema must not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level."
    if problem is not None:
        raise Refused(
            f"Invalid schema for function {name!r}: {problem}",
            param=place,
            code="invalid_function_parameters",
        )


def _schema_problem(schema: Any, context: tuple[str, ...] = ()) -> str | None:
    if isinstance(schema, bool) and context:
        return None
    if not isinstance(schema, dict):
        return f"In context={context}, {schema!r} is not a JSON Schema."
    types = schema.get("type", [])
    for kind in [types] if isinstance(types, str) else types:
        if kind not in _SCHEMA_TYPES:
            return f"In context={context}, {kind!r} is not valid under any of the given schemas."
    if types == "array" and "items" not in schema:
        return f"In context={context}, array schema missing items."
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(item, str) for item in required):
        return f"In context={context}, 'required' is not an array of strings."
    for key, child in _subschemas(schema):
        if problem := _schema_problem(child, (*context, key)):
            return problem
    return None


def _subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for group in ("properties", "$defs", "definitions"):
        if isinstance(schema.get(group), dict):
            yield from schema[group].items()
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list):
            yield from ((key, child) for child in schema[key])
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield key, schema[key]


def _check_tool_choice(choice: Any, defined: set[str]) -> None:
    if choice is None:
        return
    if not defined:
        raise Refused(
            "'tool_choice' is only allowed when 'tools' are specified.", param="tool_choice"
        )
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            raise Refused(f"Invalid value for 'tool_choice': {choice!r}.", param="tool_choice")
        return
    function = choice.get("function") if isinstance(choice, dict) else None
    if not isinstance(function, dict) or choice.get("type") != "function":
        raise Refused("Invalid type for 'tool_choice'.", param="tool_choice")
    name = _checked_tool_name("tool_choice.function.name", function.get("name"))
    if name not in defined:
        raise Refused(f"Tool choice {name!r} is not defined in 'tools'.", param="tool_choice")


def _check_message(place: str, message: Any) -> None:
    if not isinstance(message, dict):
        raise Refused(f"Invalid type for '{place}': expected an object.", param=place)
    role = message.get("role")
    if role not in _PART_TYPES:
        raise Refused(
            f"Invalid value: {role!r}. Supported values are: "
            f"{', '.join(repr(known) for known in _PART_TYPES)}.",
            param=f"{place}.role",
            code="invalid_value",
        )
    name = message.get("name")
    if name is not None and not (isinstance(name, str) and _SPEAKER_NAME.fullmatch(name)):
        raise Refused(
            f"Invalid '{place}.name': string does not match pattern.", param=f"{place}.name"
        )
    if "tool_calls" in message:
        _check_calls(f"{place}.tool_calls", role, message["tool_calls"])
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise Refused(f"Missing required parameter: '{place}.tool_call_id'.", param=place)
    _check_content(f"{place}.content", role, message)


def _check_content(place: str, role: str, message: Mapping[str, Any]) -> None:
    content = message.get("content")
    if isinstance(content, str) or (content is None and message.get("tool_calls")):
        return
    if not isinstance(content, list) or not content:
        raise Refused(
            f"Invalid value for '{place}': expected a string or an array of parts, "
            f"got {type(content).__name__}.",
            param=place,
        )
    for part_place, part in _numbered(place, content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _PART_TYPES[role]:
            raise Refused(
                f"Invalid value: {kind!r}. A {role!r} message takes parts of the types "
                f"{sorted(_PART_TYPES[role])}.",
                param=f"{part_place}.type",
                code="invalid_value",
            )
        if kind == "text" and not isinstance(part.get("text"), str):
            raise Refused(f"Invalid type for '{part_place}.text'.", param=f"{part_place}.text")


def _check_calls(place: str, role: str, calls: Any) -> None:
    if role != "assistant":
        raise Refused(f"'{place}' is only allowed in an assistant message.", param=place)
    if not isinstance(calls, list) or not calls:
        raise Refused(
            f"Invalid '{place}': expected an array with minimum length 1.",
            param=place,
            code="empty_array",
        )
    seen: set[str] = set()
    for call_place, call in _numbered(place, calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or call.get("type") != "function":
            raise Refused(f"Invalid type for '{call_place}'.", param=call_place)
        call_id = call.get("id")
        if not isinstance(call_id, str) or not 1 <= len(call_id) <= MAX_CALL_ID_CHARS:
            raise Refused(
                f"Invalid '{call_place}.id': expected a string of 1 to {MAX_CALL_ID_CHARS} "
                f"characters, got {call_id!r}.",
                param=f"{call_place}.id",
            )
        if call_id in seen:
            raise Refused(f"Duplicate tool call id {call_id!r}.", param=f"{call_place}.id")
        seen.add(call_id)
        _checked_tool_name(f"{call_place}.function.name", function.get("name"))
        if not _is_json_object(function.get("arguments")):
            raise Refused(
                f"Invalid '{call_place}.function.arguments': not a JSON object in a string.",
                param=f"{call_place}.function.arguments",
            )


def _check_pairing(messages: Sequence[Mapping[str, Any]]) -> None:
    open_ids: list[str] = []
    for place, message in _numbered("messages", messages):
        if message["role"] != "tool":
            _refuse_unanswered(place, open_ids)
            open_ids = [call["id"] for call in message.get("tool_calls", ())]
        elif (call_id := message["tool_call_id"]) in open_ids:
            open_ids.remove(call_id)
        else:
            raise Refused(
                "Invalid parameter: messages with role 'tool' must be a response to a preceding "
                f"message with 'tool_calls' ({call_id!r} is not open).",
                param=f"{place}.role",
            )
    _refuse_unanswered(f"messages[{len(messages)}]", open_ids)


def _refuse_unanswered(place: str, open_ids: Sequence[str]) -> None:
    if open_ids:
        raise Refused(
            "An assistant message with 'tool_calls' must be followed by tool messages responding "
            "to each 'tool_call_id'. The following tool_call_ids did not have response messages: "
            f"{', '.join(open_ids)}",
            param=f"{place}.role",
        )


def _check_definitions(messages: Sequence[Mapping[str, Any]], defined: set[str]) -> None:
    for place, message in _numbered("messages", messages):
        for call_place, call in _numbered(f"{place}.tool_calls", message.get("tool_calls", ())):
            if (name := call["function"]["name"]) not in defined:
                raise Refused(
                    f"The history calls {name!r}, which is not defined in 'tools'.",
                    param=f"{call_place}.function.name",
                )


def _numbered(place: str, items: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    return ((f"{place}[{number}]", item) for number, item in enumerate(items))


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_json_object(text: Any) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (TypeError, ValueError):
        return False
