"""Whether the arguments of a call are what its tool takes, and what is wrong with them if not."""

from __future__ import annotations

import inspect
import json
import logging
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

from langchain.tools import ToolRuntime
from langchain_core.tools import BaseTool, InjectedToolArg
from langchain_core.tools.simple import Tool
from langchain_core.utils.pydantic import model_json_schema
from pydantic import BaseModel, ValidationError

from agent.guarding.schemas import ObjectSchema, UnknownArgument
from registry.text import nearest_names

__all__ = [
    "ArgumentChecker",
    "Arguments",
    "Checkers",
    "UnusableSchemaError",
    "validation_errors_caught",
]

_MAX_VALUE_CHARS = 60
_MAX_PROBLEM_CHARS = 200
_MAX_PROBLEMS = 10
_MAX_CHECKERS = 2_048

_logger = logging.getLogger(__name__)

_caught: ContextVar[list[ValidationError] | None] = ContextVar("caught", default=None)


class UnusableSchemaError(Exception):
    """A tool's schema cannot be used to check arguments: a fault of whoever wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What became of a call's arguments.

    Attributes:
        values: As the tool is to get them.
        problems: What is wrong, a line each; empty when the call may run.
        concerned: Schemas of the arguments that the problems are about.
        hidden_count: Arguments that only the program may set, and that were left out.
    """

    values: dict[str, Any]
    problems: tuple[str, ...] = ()
    concerned: Mapping[str, Any] | None = None
    hidden_count: int = 0


class ArgumentChecker:
    """Checks arguments for one tool; everything that can be worked out once is.

    Args:
        tool: Its schema is a pydantic class or a JSON Schema.
    """

    def __init__(self, tool: BaseTool) -> None:
        self._tool = tool
        self._lock = threading.Lock()
        self._validator: Any = None
        args_schema = tool.args_schema
        self._is_free_text = isinstance(tool, Tool) and args_schema is None
        self._model = _pydantic_class(tool)
        self.hidden = _hidden_names(tool, self._model)
        self._has_hidden_fields = self._model is not None and bool(
            self.hidden & self._model.model_fields.keys()
        )
        self._schema = ObjectSchema(self._shown_schema())
        aliases = {} if self._model is None else _aliases(self._model)
        # A model is shown the field's name where arguments are hidden, its alias elsewhere.
        self._to_shown = (
            {alias: name for name, alias in aliases.items()} if self._has_hidden_fields else aliases
        )
        self._to_tool = aliases if self._has_hidden_fields else {}
        self.tool = self._tool_that_tells()

    def check(self, arguments: Mapping[str, Any]) -> Arguments:
        """Return arguments fit for the tool, or what is wrong with them.

        Raises:
            UnusableSchemaError: Nothing can be said, because the schema is wrong.
        """
        given = {key: value for key, value in arguments.items() if key not in self.hidden}
        hidden_count = len(arguments) - len(given)
        if self._is_free_text:
            return Arguments(values=given, hidden_count=hidden_count)
        try:
            mended = self._schema.mend(_renamed(given, self._to_shown))
            values = _renamed(mended.arguments, self._to_tool)
            problems = [*_unknown_problems(mended.unknown), *self._wrong_values(values)]
        except RecursionError:
            return Arguments(values=given, problems=("the arguments are nested too deeply",))
        return Arguments(
            values=values,
            problems=tuple(problem.text for problem in problems[:_MAX_PROBLEMS]),
            concerned=self._concerned(problems) if problems else None,
            hidden_count=hidden_count,
        )

    def model_problems(self, error: ValidationError) -> tuple[str, ...]:
        """Return what a validation error says of arguments that the model gives."""
        return tuple(problem.text for problem in self._pydantic_problems(error))

    def is_about_arguments(self, error: ValidationError) -> bool:
        """Return whether a validation error is of this tool's arguments, not of its work."""
        return self._model is not None and error.title == self._model.__name__

    def _wrong_values(self, values: dict[str, Any]) -> list[_Problem]:
        if self._model is None:
            return self._json_problems(values)
        try:
            self._model.model_validate(values)
        except ValidationError as error:
            return self._pydantic_problems(error)
        except Exception:  # a validator of the tool's own that breaks will do so again in the tool
            _logger.debug("argument_validator_failed", extra={"tool_name": self._tool.name})
        return []

    def _pydantic_problems(self, error: ValidationError) -> list[_Problem]:
        problems: list[_Problem] = []
        for detail in error.errors(include_url=False, include_input=False, include_context=False):
            place = [str(part) for part in detail["loc"]]
            if place and place[0] in self.hidden:
                continue
            reason = str(detail["msg"]).removeprefix("Value error, ")
            reason = reason.removeprefix("Assertion failed, ").strip()
            if not reason or reason == "Value error," or reason == "Assertion failed,":
                reason = "this is not allowed"
            problems.append(_problem(place, reason))
        return problems

    def _json_problems(self, values: dict[str, Any]) -> list[_Problem]:
        if not self._schema.document:
            return []
        validator = self._json_validator()
        try:
            errors = sorted(
                validator.iter_errors(values), key=lambda error: list(map(str, error.path))
            )
        except RecursionError:
            raise
        except Exception as error:  # a reference that leads nowhere shows only now
            raise UnusableSchemaError(_one_line(str(error))) from error
        return [problem for error in errors for problem in _json_problems_of(error, self._schema)]

    def _json_validator(self) -> Any:
        # Calls run in parallel threads, and a validator is dear to make.
        with self._lock:
            if self._validator is None:
                self._validator = _compiled(self._schema.document)
            return self._validator

    def _concerned(self, problems: Sequence[_Problem]) -> dict[str, Any]:
        properties = self._schema.properties
        names = {problem.argument for problem in problems if problem.argument in properties}
        if any(problem.argument not in properties for problem in problems):
            names = set(properties)  # a name nobody has, or a rule over several
        return {name: value for name, value in properties.items() if name in names}

    def _shown_schema(self) -> dict[str, Any]:
        """Return the schema as the model knows it: without hidden arguments."""
        args_schema = self._tool.args_schema
        if isinstance(args_schema, dict):
            properties = args_schema.get("properties")
            if not isinstance(properties, dict) or not self.hidden & properties.keys():
                return args_schema
            kept = {
                name: value
                for name, value in cast("dict[str, Any]", properties).items()
                if name not in self.hidden
            }
            required = [name for name in args_schema.get("required", ()) if name not in self.hidden]
            return {**args_schema, "properties": kept, "required": required}
        if self._is_free_text:
            return {}
        shown: Any = self._model
        if self._model is None or self._has_hidden_fields:
            shown = self._tool.tool_call_schema
        try:
            return model_json_schema(shown)
        except Exception:  # a type that JSON Schema cannot say; pydantic still checks it
            _logger.debug("no_json_schema", extra={"tool_name": self._tool.name})
            return {}

    def _tool_that_tells(self) -> BaseTool:
        """Return the tool; where a rule can only run with hidden values, one that tells its reason.

        LangGraph's own message about such a rule has an empty reason.
        """
        if self._tool.handle_validation_error or not self._has_hidden_fields:
            return self._tool
        return self._tool.model_copy(update={"handle_validation_error": _keep_error})


@contextmanager
def validation_errors_caught() -> Generator[list[ValidationError]]:
    """Collect the validation errors of `ArgumentChecker.tool` while it runs."""
    errors: list[ValidationError] = []
    token = _caught.set(errors)
    try:
        yield errors
    finally:
        _caught.reset(token)


class Checkers:
    """The checkers of a process, one a tool, made when it is first called."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[BaseTool, ArgumentChecker]] = {}

    def of(self, tool: BaseTool) -> ArgumentChecker:
        """Return the checker of a tool."""
        known = self._of.get(id(tool))
        if known is not None and known[0] is tool:
            return known[1]
        if len(self._of) >= _MAX_CHECKERS:  # tools that are made anew all the time
            self._of.clear()
        checker = ArgumentChecker(tool)
        self._of[id(tool)] = (tool, checker)  # holds the tool, so that its id stays its own
        return checker


@dataclass(frozen=True, slots=True)
class _Problem:
    argument: str
    text: str


def _problem(place: Sequence[str], reason: str) -> _Problem:
    reason = _one_line(reason)
    where = ".".join(place)
    return _Problem(place[0] if place else "", f"{where}: {reason}" if where else reason)


def _unknown_problems(unknown: Sequence[UnknownArgument]) -> Iterator[_Problem]:
    for item in unknown:
        *parents, name = item.path
        near = nearest_names(name, item.known, limit=1)
        if near:
            hint = f"did you mean {near[0]!r}?"
        elif item.known:
            hint = f"known: {', '.join(item.known)}"
        else:
            hint = "it takes none"
        shown = _one_line(".".join(item.path), max_chars=_MAX_VALUE_CHARS)
        yield _Problem(
            parents[0] if parents else near[0] if near else "",
            f"unknown argument {shown!r}; {_one_line(hint)}",
        )


def _json_problems_of(error: Any, schema: ObjectSchema) -> Iterator[_Problem]:
    from jsonschema.exceptions import best_match

    if error.validator in ("anyOf", "oneOf") and error.context:
        error = best_match([error])
    kinds: list[str] = []
    if error.validator in ("anyOf", "oneOf"):  # no alternative is nearer than another
        kinds = schema.kinds_at(list(error.absolute_path))
    place = [str(part) for part in error.absolute_path]
    expected = error.validator_value
    match error.validator:
        case "required":
            for name in expected:
                if name not in error.instance:
                    yield _problem([*place, str(name)], "Field required")
            return
        case "type":
            kinds = [expected] if isinstance(expected, str) else expected
            reason = f"must be {' or '.join(kinds)}, not {_short(error.instance)}"
        case "enum":
            allowed = ", ".join(_short(value) for value in expected)
            reason = f"must be one of {allowed}, not {_short(error.instance)}"
        case "const":
            reason = f"must be {_short(expected)}, not {_short(error.instance)}"
        case "minimum":
            reason = f"must be at least {expected}, not {_short(error.instance)}"
        case "maximum":
            reason = f"must be at most {expected}, not {_short(error.instance)}"
        case "exclusiveMinimum":
            reason = f"must be more than {expected}, not {_short(error.instance)}"
        case "exclusiveMaximum":
            reason = f"must be less than {expected}, not {_short(error.instance)}"
        case "minLength" | "maxLength" | "minItems" | "maxItems":
            reason = f"must have {error.validator} {expected}, has {len(error.instance)}"
        case "pattern":
            reason = f"must match the pattern {_short(expected)}"
        case "additionalProperties" | "unevaluatedProperties":
            return  # reported as unknown, with the nearest name
        case "anyOf" | "oneOf" if 0 < len(kinds) < 6:
            reason = f"must be {' or '.join(kinds)}, not {_short(error.instance)}"
        case _:
            reason = str(error.message)
    yield _problem(place, reason)


def _compiled(schema: Mapping[str, Any]) -> Any:
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry

    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(dict(schema))
    except SchemaError as error:
        raise UnusableSchemaError(_one_line(str(error.message))) from error
    # An empty registry: a reference to the network is an error, never a request.
    return kind(schema, registry=Registry())


def _pydantic_class(tool: BaseTool) -> type[BaseModel] | None:
    if isinstance(tool.args_schema, dict) or (isinstance(tool, Tool) and tool.args_schema is None):
        return None
    schema = tool.get_input_schema()
    return schema if issubclass(schema, BaseModel) else None


def _hidden_names(tool: BaseTool, model: type[BaseModel] | None) -> frozenset[str]:
    """Return the names of the arguments that the program sets: not in the schema a model sees."""
    names = {
        name
        for function in _functions(tool)
        for name, annotation in _annotations(function).items()
        if name == "runtime" or _is_injected(annotation)
    }
    if model is not None:
        shown = tool.tool_call_schema
        fields = getattr(shown, "model_fields", None)
        if isinstance(fields, dict):
            names |= model.model_fields.keys() - fields.keys()
    return frozenset(names)


def _functions(tool: BaseTool) -> list[Callable[..., Any]]:
    own = [getattr(tool, "func", None), getattr(tool, "coroutine", None)]
    given = [function for function in own if callable(function)]
    return given or [tool._run, tool._arun]  # pyright: ignore[reportPrivateUsage]


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except Exception:  # a name that cannot be resolved must not hide the others
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            return {}
        return {parameter.name: parameter.annotation for parameter in parameters}


def _is_injected(annotation: Any) -> bool:
    kind = get_origin(annotation) or annotation
    if kind is Annotated:
        first, *marks = get_args(annotation)
        return _is_injected(first) or any(
            isinstance(mark, InjectedToolArg)
            or (isinstance(mark, type) and issubclass(mark, InjectedToolArg))
            for mark in marks
        )
    if isinstance(annotation, str):  # could not be resolved
        return "Injected" in annotation or "ToolRuntime" in annotation
    return isinstance(kind, type) and issubclass(kind, ToolRuntime)


def _aliases(model: type[BaseModel]) -> dict[str, str]:
    """Return field name to alias where only the alias is taken."""
    config = model.model_config
    if config.get("populate_by_name") or config.get("validate_by_name"):
        return {}
    aliases = {
        name: field.validation_alias or field.alias for name, field in model.model_fields.items()
    }
    return {
        name: alias
        for name, alias in aliases.items()
        if isinstance(alias, str) and alias != name and alias not in model.model_fields
    }


def _renamed(values: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in values.items()} if names else values


def _keep_error(error: Any) -> str:
    errors = _caught.get()
    if errors is not None and isinstance(error, ValidationError):
        errors.append(error)
    return "The arguments are not valid."


def _short(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return _one_line(text, max_chars=_MAX_VALUE_CHARS)


def _one_line(text: str, *, max_chars: int = _MAX_PROBLEM_CHARS) -> str:
    line = " ".join(text[: 4 * max_chars].split())
    return line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"
