"""Live tools of this process, and how a tool becomes a spec."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from langchain_core.tools import BaseTool
from langchain_core.tools import tool as as_langchain_tool
from langchain_core.utils.function_calling import convert_to_openai_tool

from registry.errors import DuplicateToolError, InvalidToolError
from registry.text import legal_name
from registry.types import ToolSpec

__all__ = ["ToolLike", "Toolset", "tool_spec"]

ToolLike = BaseTool | Callable[..., Any] | ToolSpec
_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")


class Toolset(Mapping[str, BaseTool]):
    """LangChain tools by binding name: what the registry's rows are resolved with at run time.

    The registry never holds code; a row's `binding` is looked up here, and a row whose binding
    is not here is not offered.

    Args:
        tools: LangChain tools, or plain functions with type hints and a docstring.
        origin: `code`, `mcp:<server>` or `openapi:<name>`; anything but `code` becomes a prefix
            of the model-facing names, so that two servers may offer one name.

    Raises:
        InvalidToolError: A tool has no name or no description.
        DuplicateToolError: Two tools have one model-facing name.
    """

    def __init__(
        self, tools: Iterable[BaseTool | Callable[..., Any]] = (), *, origin: str = "code"
    ) -> None:
        self._tools: dict[str, BaseTool] = {}
        self._specs: dict[str, ToolSpec] = {}
        self.add(tools, origin=origin)

    def add(self, tools: Iterable[BaseTool | Callable[..., Any]], *, origin: str = "code") -> None:
        """Add tools; all of them, or none when one is refused.

        Raises:
            InvalidToolError: A tool has no name or no description.
            DuplicateToolError: A model-facing name is taken already.
        """
        new_tools: dict[str, BaseTool] = {}
        new_specs: dict[str, ToolSpec] = {}
        for item in tools:
            live = live_tool(item)
            spec = tool_spec(live, origin=origin)
            other = new_specs.get(spec.binding) or self._specs.get(spec.binding)
            if other is not None:
                raise DuplicateToolError(spec.tool_name, sorted((other.origin, origin)))
            new_tools[spec.binding] = live
            new_specs[spec.binding] = spec
        self._tools |= new_tools
        self._specs |= new_specs

    @property
    def specs(self) -> list[ToolSpec]:
        """Specs of all tools, in the order they were added."""
        return list(self._specs.values())

    def __getitem__(self, binding: str) -> BaseTool:
        return self._tools[binding]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)


def live_tool(item: BaseTool | Callable[..., Any]) -> BaseTool:
    """Return a LangChain tool; a plain function becomes one.

    Raises:
        InvalidToolError: The function has no docstring, or is not callable at all.
    """
    if isinstance(item, BaseTool):
        return item
    name = getattr(item, "__name__", type(item).__name__)
    if not callable(item):
        raise InvalidToolError(repr(item)[:80], f"a {name} is neither a tool nor a function")
    if not hasattr(item, "__name__"):
        raise InvalidToolError(
            name, "a partial or callable object has no name; wrap it in a function with a docstring"
        )
    if not (item.__doc__ or "").strip():
        raise InvalidToolError(name, "it has no description; give the function a docstring")
    try:
        return as_langchain_tool(item)
    except Exception as error:  # LangChain raises many kinds for a signature it cannot describe
        raise InvalidToolError(name, str(error)) from error


def tool_spec(item: ToolLike, *, origin: str = "code") -> ToolSpec:
    """Return the spec of a LangChain tool, a plain function or a spec (checked, unchanged).

    A tool may carry `category`, `examples`, `requires_approval`, `read_only` and `fallback` in
    its `metadata`.

    Raises:
        InvalidToolError: No name, no description, or a schema that is not JSON.
    """
    if isinstance(item, ToolSpec):
        _check(item)
        return item
    live = live_tool(item)
    prefix = "" if origin == "code" else origin.partition(":")[2] or origin
    try:
        tool_name = legal_name(live.name, prefix=prefix)
    except ValueError as error:
        raise InvalidToolError(live.name, str(error)) from error
    metadata = live.metadata or {}
    examples = metadata.get("examples") or ()
    if isinstance(examples, str) or not isinstance(examples, Iterable):
        raise InvalidToolError(live.name, "metadata['examples'] must be a list of questions")
    try:
        args_schema = convert_to_openai_tool(live)["function"].get("parameters", {})
    except Exception as error:  # pydantic and LangChain raise many kinds here
        raise InvalidToolError(live.name, f"its arguments have no JSON Schema: {error}") from error
    spec = ToolSpec(
        tool_name=tool_name,
        display_name=live.name,
        description=live.description.strip(),
        category=metadata.get("category") or "general",
        examples=tuple(examples),
        origin=origin,
        args_schema=args_schema,
        requires_approval=bool(metadata.get("requires_approval", False)),
        read_only=metadata.get("read_only") is True,  # "false" must not promise anything
        fallback=metadata.get("fallback") is True,
    )
    _check(spec)
    return spec


def _check(spec: ToolSpec) -> None:
    try:
        if legal_name(spec.tool_name) != spec.tool_name:
            raise InvalidToolError(
                spec.tool_name,
                "providers take 1 to 64 characters of a-z A-Z 0-9 _ -; "
                f"legal_name() makes it {legal_name(spec.tool_name)!r}",
            )
    except ValueError as error:
        raise InvalidToolError(spec.tool_name, str(error)) from error
    texts = (spec.display_name, spec.description, spec.category, spec.binding, spec.origin)
    if not _are_texts(*texts, *spec.examples):
        raise InvalidToolError(
            spec.tool_name, "description, category, examples, binding and origin must be texts"
        )
    if not _are_flags(spec.requires_approval, spec.read_only, spec.fallback):
        raise InvalidToolError(
            spec.display_name, "requires_approval, read_only and fallback must be True or False"
        )
    if not spec.description.strip():
        raise InvalidToolError(spec.display_name, "it has no description, so no question finds it")
    if not spec.category.strip():
        raise InvalidToolError(spec.display_name, "its category is empty")
    if not spec.origin.strip():
        raise InvalidToolError(spec.display_name, "its origin is empty")
    try:
        # Sorted, as the content hash needs it: keys of two types are refused here, not there.
        json.dumps(dict(spec.args_schema), allow_nan=False, sort_keys=True)
        texts = (*texts, *spec.examples, *_texts_in(spec.args_schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidToolError(spec.display_name, f"args_schema is not JSON: {error}") from error
    for text in texts:
        if _NOT_STORABLE.search(text):
            raise InvalidToolError(
                spec.display_name,
                f"PostgreSQL stores no NUL character and no half of a surrogate pair: {text!a:.80}",
            )


def _are_texts(*values: object) -> bool:
    return all(isinstance(value, str) for value in values)


def _are_flags(*values: object) -> bool:
    return all(isinstance(value, bool) for value in values)


def _texts_in(value: object) -> Iterator[str]:
    """Yield every text of a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from _texts_in(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts_in(inner)
