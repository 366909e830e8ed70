"""JSON Schema as models fill it in: what a value may be, and small slips that are put right.

Two slips have one possible meaning and are mended: null for an optional value that cannot be null
is no value, and a text that holds the JSON of an object is that object where no text may stand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

__all__ = ["Mended", "ObjectSchema", "UnknownArgument"]

_MAX_DEPTH = 50
_MAX_JSON_CHARS = 1_000_000
_KINDS = ("object", "array", "string", "number", "integer", "boolean", "null")
# What says of an object that keys beyond its properties may be right.
_OPENERS = (
    "patternProperties",
    "unevaluatedProperties",
    "anyOf",
    "oneOf",
    "if",
    "dependentSchemas",
)

Schema = dict[str, Any]
_ANYTHING: Schema = {}


@dataclass(frozen=True, slots=True)
class UnknownArgument:
    """A key that the schema does not have.

    Attributes:
        path: Where, for example `("filter", "colour")`.
        known: Keys that the schema has there.
    """

    path: tuple[str, ...]
    known: tuple[str, ...]


@dataclass(slots=True)
class Mended:
    """Arguments as the schema wants them, and the keys it does not know."""

    arguments: dict[str, Any]
    unknown: list[UnknownArgument] = field(default_factory=list[UnknownArgument])


@dataclass(slots=True)
class _View:
    properties: dict[str, Any]
    required: set[str]
    is_closed: bool


class ObjectSchema:
    """The schema of a tool's arguments; what is worked out of it is kept.

    Keys are unknown where an object's schema lists its properties and says nothing of others:
    JSON Schema would let them pass, but a misspelt option would then be lost in silence.

    Args:
        schema: Of an object, `$defs` included; never changed afterwards.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.document: Schema = dict(schema)
        # By the id of a part of the document, which lives as long as this; equal for all threads.
        self._resolved: dict[int, Any] = {}
        self._views: dict[int, _View | None] = {}
        self._allowed: dict[tuple[int, str], bool] = {}
        self._branches: dict[tuple[int, str], Any] = {}

    def mend(self, arguments: Mapping[str, Any]) -> Mended:
        """Return arguments with small slips mended.

        Args:
            arguments: As a model gave them.
        """
        mended = Mended({})
        mended.arguments = self._object(dict(arguments), self.document, (), mended.unknown)
        return mended

    @property
    def properties(self) -> dict[str, Any]:
        """Schemas of the arguments by name, with references replaced by what they mean."""
        view = self._view(self.document)
        if view is None:
            return {}
        return {name: self._expanded(value, 3) for name, value in view.properties.items()}

    def kinds_at(self, path: list[str | int]) -> list[str]:
        """Return the JSON types that a value may have at a place; empty where that is unknown."""
        part: Any = self.document
        for key in path:
            kind = "array" if isinstance(key, int) else "object"
            part = self._branch(kind, part)
            view = self._view(part) if isinstance(key, str) else None
            if view is not None and key in view.properties:
                part = view.properties[key]
            elif isinstance(key, int) and isinstance(part, dict):
                part = cast("Schema", part).get("items", _ANYTHING)
            else:
                return []
        kinds = [kind for kind in _KINDS if self._allows(kind, part)]
        return [kind for kind in kinds if kind != "integer" or "number" not in kinds]

    def _object(
        self,
        value: dict[str, Any],
        schema: Any,
        path: tuple[str, ...],
        unknown: list[UnknownArgument],
    ) -> dict[str, Any]:
        view = self._view(schema)
        if view is None or len(path) > _MAX_DEPTH:
            return value
        result: dict[str, Any] = {}
        for key, inner in value.items():
            if key not in view.properties:
                if view.is_closed:
                    unknown.append(UnknownArgument((*path, key), tuple(view.properties)))
                result[key] = inner
                continue
            part = view.properties[key]
            if inner is None:
                if key in view.required or self._allows("null", part):
                    result[key] = None
            elif isinstance(inner, (str, dict, list)):
                result[key] = self._value(inner, part, (*path, key), unknown)
            else:
                result[key] = inner
        return result

    def _value(
        self, value: Any, schema: Any, path: tuple[str, ...], unknown: list[UnknownArgument]
    ) -> Any:
        if isinstance(value, str):
            value = self._parsed(value, schema)
        if isinstance(value, dict):
            branch = self._branch("object", schema)
            return self._object(cast("dict[str, Any]", value), branch, path, unknown)
        if isinstance(value, list) and len(path) <= _MAX_DEPTH:
            branch = self._branch("array", schema)
            items = cast("Schema", branch).get("items") if isinstance(branch, dict) else None
            if isinstance(items, dict):
                return [
                    self._value(item, items, (*path, str(place)), unknown)
                    for place, item in enumerate(cast("list[Any]", value))
                ]
        return value

    def _parsed(self, text: str, schema: Any) -> Any:
        if text.lstrip()[:1] not in ("{", "[") or len(text) > _MAX_JSON_CHARS:
            return text
        kind = "object" if text.lstrip()[0] == "{" else "array"
        if self._allows("string", schema) or not self._allows(kind, schema):
            return text
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text

    def _meaning(self, schema: Any) -> Any:
        """Follow `$ref`s within the document; what stands beside one counts too."""
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema
        key = id(cast("object", schema))
        if key not in self._resolved:
            meaning: Any = schema
            for _ in range(_MAX_DEPTH):
                part = cast("Schema", meaning)
                target = self._target(part["$ref"])
                beside = {name: value for name, value in part.items() if name != "$ref"}
                meaning = (
                    {**cast("Schema", target), **beside} if isinstance(target, dict) else target
                )
                if not isinstance(meaning, dict) or "$ref" not in meaning:
                    break
            else:
                meaning = {}
            self._resolved[key] = meaning
        return self._resolved[key]

    def _target(self, reference: Any) -> Any:
        if reference == "#":
            return self.document
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return {}  # the validator says what is wrong with it
        place: Any = self.document
        for part in reference[2:].split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(place, dict) and key in place:
                place = cast("Schema", place)[key]
            elif isinstance(place, list) and key.isdigit() and int(key) < len(cast("Any", place)):
                place = cast("list[Any]", place)[int(key)]
            else:
                return {}
        return place

    def _view(self, schema: Any) -> _View | None:
        """Return the properties of an object's schema; None where they cannot be told."""
        key = id(schema)
        if key not in self._views:
            self._views[key] = self._new_view(schema, 0)
        return self._views[key]

    def _new_view(self, schema: Any, depth: int) -> _View | None:
        schema = self._meaning(schema)
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return None
        schema = cast("Schema", schema)
        if "properties" not in schema and "allOf" not in schema:
            return None  # no word of properties: whatever is in it is wanted
        properties, required = schema.get("properties"), schema.get("required")
        view = _View(
            properties=dict(cast("Schema", properties)) if isinstance(properties, dict) else {},
            required={item for item in _list(required) if isinstance(item, str)},
            is_closed=not schema.get("additionalProperties")
            and not any(schema.get(opener) for opener in _OPENERS),
        )
        for part in _list(schema.get("allOf")):
            inner = self._new_view(part, depth + 1)
            if inner is None:
                view.is_closed = False
                continue
            view.properties = {**inner.properties, **view.properties}
            view.required |= inner.required
            view.is_closed = view.is_closed and inner.is_closed
        return view

    def _allows(self, kind: str, schema: Any) -> bool:
        """Return whether a value of a JSON type may stand there; True where it is hard to say."""
        key = (id(schema), kind)
        if key not in self._allowed:
            self._allowed[key] = self._newly_allows(kind, schema, 0)
        return self._allowed[key]

    def _newly_allows(self, kind: str, schema: Any, depth: int) -> bool:
        schema = self._meaning(schema)
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return schema is not False
        schema = cast("Schema", schema)
        if kind == "null" and schema.get("nullable") is True:  # OpenAPI 3.0
            return True
        types = schema.get("type")
        if isinstance(types, str):
            types = [types]
        if (
            types is not None
            and kind not in types
            and not (kind == "integer" and "number" in types)
        ):
            return False
        if "enum" in schema and not any(_is_kind(kind, value) for value in _list(schema["enum"])):
            return False
        if "const" in schema and not _is_kind(kind, schema["const"]):
            return False
        for group in ("anyOf", "oneOf"):
            branches = _list(schema.get(group))
            if branches and not any(
                self._newly_allows(kind, branch, depth + 1) for branch in branches
            ):
                return False
        return all(self._newly_allows(kind, part, depth + 1) for part in _list(schema.get("allOf")))

    def _branch(self, kind: str, schema: Any) -> Any:
        """Return the one alternative that takes such a value; {} where several do."""
        key = (id(schema), kind)
        if key not in self._branches:
            part = self._meaning(schema)
            for _ in range(_MAX_DEPTH):
                branches = (
                    _list(part.get("anyOf")) or _list(part.get("oneOf"))
                    if isinstance(part, dict)
                    else []
                )
                if not branches:
                    break
                fitting = [branch for branch in branches if self._allows(kind, branch)]
                part = self._meaning(fitting[0]) if len(fitting) == 1 else {}
            self._branches[key] = part
        return self._branches[key]

    def _expanded(self, schema: Any, depth: int) -> Any:
        schema = self._meaning(schema)
        if depth == 0:
            return schema
        if isinstance(schema, dict):
            return {
                key: self._expanded(value, depth - 1)
                for key, value in cast("Schema", schema).items()
                if key != "title" or not isinstance(value, str)
            }
        if isinstance(schema, list):
            return [self._expanded(value, depth) for value in cast("list[Any]", schema)]
        return schema


def _is_kind(kind: str, value: Any) -> bool:
    if value is None or isinstance(value, bool):
        return kind == ("null" if value is None else "boolean")
    match kind:
        case "integer":
            return isinstance(value, int)
        case "number":
            return isinstance(value, (int, float))
        case "string":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list)
        case _:
            return kind == "object" and isinstance(value, dict)


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
