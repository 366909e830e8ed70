"""Files of an evaluation: tools and questions as JSON lines, floors, results kept for later."""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from agent.cli.exit_codes import CliError

if TYPE_CHECKING:
    from registry.evaluation import Evaluation, EvaluationQuestion, Outcome
    from registry.types import ToolSpec

__all__ = [
    "check_writable",
    "read_floors",
    "read_outcomes",
    "read_questions",
    "read_tools",
    "write_results",
]

_GZIP_MAGIC = b"\x1f\x8b"
_Row = dict[str, Any]
_T = TypeVar("_T")


def read_tools(path: Path) -> list[ToolSpec]:
    """Return the tools of a file of JSON lines, under names that every provider takes.

    A tool without a description is described by its name: the registry takes none without.

    Raises:
        CliError: The file cannot be read or holds no tools, a line is none, or two lines have one
            name; the line's number is given.
    """
    found: dict[str, ToolSpec] = {}
    lines: dict[str, int] = {}
    for number, spec in _parsed(path, _tool, "tool", '{"name": "...", "description": "..."}'):
        first = lines.setdefault(spec.tool_name, number)
        if first != number and found[spec.tool_name] != spec:
            raise CliError(
                f"Line {number} of {path}: another tool named {spec.display_name!r} is on line "
                f"{first}. Rename one of them."
            )
        found[spec.tool_name] = spec
    if not found:
        raise CliError(f"{path} holds no tools.")
    return list(found.values())


def read_questions(path: Path) -> list[EvaluationQuestion]:
    """Return the questions of a file of JSON lines.

    Raises:
        CliError: The file cannot be read or holds no questions, a line is none, or two lines have
            one id; the line's number is given.
    """
    expected = '{"id": "...", "query": "...", "relevant": ["tool_name"]}'
    found: list[EvaluationQuestion] = []
    lines: dict[str, int] = {}
    for number, question in _parsed(path, _question, "question", expected):
        first = lines.setdefault(question.id, number)
        if first != number:
            raise CliError(
                f"Line {number} of {path}: the id {question.id!r} is taken by line {first}. "
                "Give each question its own."
            )
        found.append(question)
    if not found:
        raise CliError(f"{path} holds no questions.")
    return found


def read_floors(path: Path) -> dict[str, float]:
    """Return the limits of a JSON object, metric to number.

    Raises:
        CliError: The file cannot be read, is something else, names a metric twice, or wants more
            of a share than there is.
    """
    from registry.evaluation import is_share

    text = "\n".join(line for _, line in _lines(path))

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise CliError(f"{path} names {name!r} twice. Leave one of them out.")
        return dict(pairs)

    try:
        document = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise CliError(f"{path} is not JSON: {error}.") from error
    if not isinstance(document, dict) or not document:
        raise CliError(f'{path} must be a JSON object such as {{"recall@5": 0.75}}.')
    floors = cast("dict[str, Any]", document)
    for name, value in floors.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
            raise CliError(f"{path}: the limit of {name!r} is no number.")
        if is_share(name) and not 0 <= value <= 1:
            raise CliError(
                f"{path}: the limit of {name!r} is {value}, but it goes from 0 to 1; 75 % is 0.75."
            )
    return {name: float(value) for name, value in floors.items()}


def write_results(path: Path, evaluation: Evaluation) -> None:
    """Write one JSON line a question; compressed where the name ends in `.gz`.

    Raises:
        CliError: The file cannot be written.
    """
    from registry.evaluation.report import DEPTH

    depth = max(DEPTH, evaluation.k)
    rows = (
        {
            "id": result.question.id,
            "query": result.question.text,
            "groups": result.question.groups,
            "lang": result.question.lang,
            "split": result.question.split,
            "depth": depth,
            "names": result.names,
            "relevances": [round(value, 6) for value in result.relevances],
            "offered": result.offered,
            "ranks": result.ranks,
            "latency_ms": round(result.latency_ms, 3),
        }
        for result in evaluation.results
    )
    text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    content = gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode()
    try:
        path.write_bytes(content)
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror or error}.") from error


def read_outcomes(path: Path, *, k: int) -> list[Outcome]:
    """Return the results that `write_results` kept.

    Raises:
        CliError: The file cannot be read, is something else, or looked at fewer than k hits.
    """

    def outcome(row: _Row) -> tuple[Outcome, int]:
        from registry.evaluation import Outcome

        groups, ranks, names = row["groups"], row["ranks"], row["names"]
        if len(groups) != len(ranks) or not all(rank is None or rank >= 1 for rank in ranks):
            raise ValueError("its ranks do not fit its groups")
        kept = Outcome(
            id=str(row["id"]),
            text=str(row["query"]),
            groups=tuple(tuple(map(str, group)) for group in groups),
            names=tuple(map(str, names)),
            ranks=tuple(ranks),
        )
        return kept, int(row["depth"])

    rows = list(_parsed(path, outcome, "kept result", "a line written by --save"))
    if not rows:
        raise CliError(f"{path} holds no results. Make them with --save.")
    depth = min(kept_depth for _, (_, kept_depth) in rows)
    if depth < k:
        raise CliError(f"The run kept in {path} looked at {depth} hits, so --k goes to {depth}.")
    return [kept for _, (kept, _) in rows]


def check_writable(path: Path) -> None:
    """Refuse, before any work is done, a place where results cannot be kept.

    Raises:
        CliError: Its folder is missing, or it is a folder itself.
    """
    if path.is_dir():
        raise CliError(f"{path} is a folder. Name a file.")
    if not path.parent.is_dir():
        raise CliError(f"{path} cannot be written: there is no folder {path.parent}.")


def _parsed(
    path: Path, parse: Callable[[_Row], _T], kind: str, expected: str
) -> Iterator[tuple[int, _T]]:
    """Yield line number and value of each line that is not blank.

    Raises:
        CliError: A line is no JSON object, or `parse` refuses it.
    """
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("it is not an object")
            value = parse(cast("_Row", row))
        except json.JSONDecodeError as error:
            reason = "not JSON"
            raise _bad_line(path, number, kind, reason, expected) from error
        except KeyError as error:
            reason = f"it has no {error.args[0]!r}"
            raise _bad_line(path, number, kind, reason, expected) from error
        except (ValueError, TypeError, RecursionError) as error:
            raise _bad_line(path, number, kind, str(error), expected) from error
        yield number, value


def _bad_line(path: Path, number: int, kind: str, reason: str, expected: str) -> CliError:
    return CliError(f"Line {number} of {path} is no {kind}: {reason}. Expected {expected}.")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a text file, compressed or not."""
    try:
        with path.open("rb") as file:
            is_gzip = file.read(2) == _GZIP_MAGIC
        with gzip.open(path) if is_gzip else path.open("rb") as content:
            # Only a line feed ends a line: JSON may hold other line ends as they are.
            text = io.TextIOWrapper(cast("Any", content), encoding="utf-8-sig", newline="\n")
            yield from enumerate(text, start=1)
    except UnicodeDecodeError as error:
        raise CliError(f"{path} is not UTF-8 text.") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CliError(f"{path} is a damaged gzip file: {error}.") from error
    except OSError as error:
        raise CliError(f"{path} cannot be read: {error.strerror or error}.") from error


def _tool(row: _Row) -> ToolSpec:
    from registry.errors import InvalidToolError
    from registry.text import humanise, legal_name
    from registry.toolset import tool_spec
    from registry.types import ToolSpec

    name = _text(row, "name")
    description = row["description"] or ""
    schema, examples = row.get("args_schema") or {}, row.get("examples") or []
    if not isinstance(description, str):
        raise ValueError("description is not a text")
    if not isinstance(schema, dict):
        raise ValueError("args_schema is not an object")
    spec = ToolSpec(
        tool_name=legal_name(name),
        display_name=_optional(row, "display_name") or name,
        description=description if description.strip() else humanise(name) or name,
        category=_optional(row, "category") or "general",
        examples=tuple(_texts(examples, "examples")),
        args_schema=cast("Mapping[str, Any]", schema),
    )
    try:
        return tool_spec(spec)
    except InvalidToolError as error:
        raise ValueError(error.reason) from error


def _question(row: _Row) -> EvaluationQuestion:
    from registry.evaluation import EvaluationQuestion

    text = _text(row, "query")
    identity = row.get("id", text)
    if isinstance(identity, bool) or not isinstance(identity, (str, int)) or identity == "":
        raise ValueError("id is neither a text nor a number")
    return EvaluationQuestion(
        id=str(identity),
        text=text,
        groups=_groups(row),
        lang=_optional(row, "lang"),
        split=_optional(row, "split"),
    )


def _groups(row: _Row) -> tuple[tuple[str, ...], ...]:
    """Return the right answers; `groups` says more than `relevant`, so it goes first."""
    from registry.text import legal_name

    given = row["relevant"] if row.get("groups") is None else row["groups"]
    if not isinstance(given, list):
        raise ValueError("relevant is not a list; an empty list says that no tool fits")
    groups: list[tuple[str, ...]] = []
    for item in cast("list[Any]", given):
        names = [item] if row.get("groups") is None else item
        listed = _texts(names, "groups" if names is item else "relevant")
        if not listed:
            raise ValueError("groups holds an empty group")
        groups.append(tuple(dict.fromkeys(map(legal_name, listed))))
    return tuple(dict.fromkeys(groups))


def _text(row: _Row, field: str) -> str:
    from registry.text import is_unicode

    value = row[field]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{field} is not a text, or empty")
    if not is_unicode(value) or "\x00" in value:
        raise ValueError(f"{field} holds half a character or a NUL")
    return value


def _optional(row: _Row, field: str) -> str:
    value = row.get(field)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{field} is not a text")
    return (value or "").strip()


def _texts(values: Any, field: str) -> Sequence[str]:
    if not isinstance(values, list):
        raise ValueError(f"{field} is not a list")
    items = cast("list[Any]", values)
    if not all(isinstance(item, str) and item.strip() for item in items):
        raise ValueError(f"{field} holds something else than names or texts")
    return items
