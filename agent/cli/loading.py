"""`MODULE:ATTR`: live tools from a module of the user's."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from agent.cli.exit_codes import CliError
from registry.errors import InvalidToolError
from registry.text import nearest_names

if TYPE_CHECKING:
    from registry.toolset import ToolLike, Toolset

__all__ = ["check_origin", "load_tools", "load_toolset"]

# A module of the user's may raise anything at import, SystemExit too; Ctrl-C still passes.
_ANY_FAILURE = (Exception, SystemExit)
_KINDS = "a Toolset, a tool, a list of tools or functions, or a function without arguments for it"


def load_tools(reference: str) -> Toolset | list[ToolLike]:
    """Return what `MODULE:ATTR` names, at least one tool.

    Args:
        reference: `package.module:attribute`, or `package.module` alone for all tools that the
            module itself holds. The current folder is searched first.

    Raises:
        CliError: The module or attribute is missing, fails to import, or holds no tools.
    """
    from langchain_core.tools import BaseTool

    from registry.toolset import Toolset

    module_name, separator, attribute = reference.partition(":")
    if not module_name or (separator and not attribute):
        raise CliError(f"{reference!r} is not MODULE:ATTR, for example my_app.tools:TOOLS.")
    module = _import(module_name)
    found = _tools_of_module(module) if not separator else _attribute(module, attribute)
    if _is_factory(found):
        found = _called(found, reference)
    if isinstance(found, BaseTool):
        found = [found]
    if isinstance(found, Toolset):
        tools: Toolset | list[ToolLike] = found
    elif isinstance(found, Iterable) and not isinstance(found, (str, bytes, Mapping)):
        tools = _listed(cast("Iterable[ToolLike]", found), reference)
        _check_kinds(tools, reference)
    else:
        raise CliError(f"{reference} is of type {type(found).__name__}; it must be {_KINDS}.")
    if not tools:
        raise CliError(f"{reference} holds no tools.")
    return tools


def load_toolset(reference: str, *, origin: str | None = None) -> Toolset:
    """Return what `MODULE:ATTR` names as a `Toolset`, so that its tools can run.

    Args:
        reference: As for `load_tools`.
        origin: Where the tools come from; `code` when not given.

    Raises:
        CliError: As for `load_tools` and `check_origin`, or a tool is a mere `ToolSpec` and
            cannot run.
        InvalidToolError: A tool has no name or no description.
        DuplicateToolError: Two tools have one name.
    """
    from registry.toolset import Toolset
    from registry.types import ToolSpec

    tools = load_tools(reference)
    check_origin(tools, reference, origin)
    if isinstance(tools, Toolset):
        return tools
    for item in tools:
        if isinstance(item, ToolSpec):
            raise CliError(
                f"{reference} holds the spec of {item.tool_name!r}, which cannot run. "
                "Give the tool itself."
            )
    return Toolset(cast("list[Any]", tools), origin=origin or "code")


def check_origin(tools: Toolset | list[ToolLike], reference: str, origin: str | None) -> None:
    """Refuse an origin for tools that know theirs.

    Raises:
        CliError: The tools are a `Toolset`.
    """
    from registry.toolset import Toolset

    if isinstance(tools, Toolset) and origin is not None:
        raise CliError(f"{reference} is a Toolset, which has its own origins. Leave --origin out.")


def _import(name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if name.endswith(".py") or "/" in name:
        dotted = name.removeprefix("./").removesuffix(".py").replace("/", ".")
        raise CliError(f"{name} is a file name. Give the module's name, for example {dotted}.")
    try:
        # What it prints must not mix with our results.
        with redirect_stdout(sys.stderr):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise CliError(
                f"No module {error.name!r} in {os.getcwd()} or among the installed packages."
            ) from error
        raise CliError(
            f"Module {name!r} needs {error.name!r}, which is not installed here."
        ) from error
    except _ANY_FAILURE as error:
        raise CliError(f"Module {name!r} cannot be imported: {_said(error)}") from error


def _attribute(module: ModuleType, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        try:
            with redirect_stdout(sys.stderr):
                found = getattr(found, part)
        except AttributeError as error:
            names = [name for name in dir(found) if not name.startswith("_")]
            if part in names:
                raise CliError(f"{module.__name__}:{path} failed: {_said(error)}") from error
            nearest = nearest_names(part, names)
            hint = f" Nearest: {', '.join(nearest)}." if nearest else ""
            raise CliError(f"Module {module.__name__!r} has no {path!r}.{hint}") from error
        except _ANY_FAILURE as error:
            raise CliError(f"{module.__name__}:{path} failed: {_said(error)}") from error
    return found


def _listed(found: Iterable[ToolLike], reference: str) -> list[ToolLike]:
    """Return all of them; a generator or container of the user's may raise anything."""
    try:
        with redirect_stdout(sys.stderr):
            return list(found)
    except _ANY_FAILURE as error:
        raise CliError(f"{reference} failed when its tools were listed: {_said(error)}") from error


def _tools_of_module(module: ModuleType) -> Any:
    """Return the module's one Toolset, or else the LangChain tools it holds, in their order."""
    from langchain_core.tools import BaseTool

    from registry.toolset import Toolset

    values = [value for name, value in vars(module).items() if not name.startswith("_")]
    toolsets = [value for value in values if isinstance(value, Toolset)]
    if len(toolsets) > 1:
        raise CliError(
            f"Module {module.__name__!r} holds {len(toolsets)} toolsets. Name one of them: "
            f"{module.__name__}:NAME."
        )
    if toolsets:
        return toolsets[0]
    tools = list({id(value): value for value in values if isinstance(value, BaseTool)}.values())
    if not tools:
        raise CliError(
            f"Module {module.__name__!r} holds no tools. Mark functions with LangChain's @tool, "
            f"or name {_KINDS}: {module.__name__}:NAME."
        )
    return tools


def _is_factory(found: Any) -> bool:
    from langchain_core.tools import BaseTool

    return callable(found) and not isinstance(found, (BaseTool, Iterable))


def _called(factory: Callable[..., Any], reference: str) -> Any:
    try:
        needed = [
            parameter.name
            for parameter in inspect.signature(factory).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):
        needed = []
    if needed:
        raise CliError(
            f"{reference} is a function that needs {', '.join(needed)}; it must be {_KINDS}. "
            "Is it a tool itself? Put it in a list."
        )
    try:
        with redirect_stdout(sys.stderr):
            result = factory()
    except _ANY_FAILURE as error:
        raise CliError(f"{reference}() failed: {_said(error)}") from error
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise CliError(f"{reference} is an async function; it must be {_KINDS}.")
    return result


def _check_kinds(tools: Iterable[Any], reference: str) -> None:
    from langchain_core.tools import BaseTool

    from registry.types import ToolSpec

    for position, item in enumerate(tools, start=1):
        if not isinstance(item, (BaseTool, ToolSpec)) and not callable(item):
            raise InvalidToolError(
                _shown(item),
                f"item {position} of {reference} is of type {type(item).__name__}, neither a tool "
                "nor a function",
            )


def _shown(item: Any) -> str:
    try:
        return repr(item)[:60]
    except _ANY_FAILURE:
        return object.__repr__(item)[:60]


def _said(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())[:300]
    except _ANY_FAILURE:
        text = ""
    return f"{type(error).__name__}: {text}".rstrip(": ")
