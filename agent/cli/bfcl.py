"""The public set of the Berkeley Function-Calling Leaderboard, from the package `bfcl-eval`.

Its data files are read where they are installed; the package itself, which needs a gigabyte of
others, is never imported: `pip install --no-deps bfcl-eval` is enough.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agent.cli.exit_codes import CliError

if TYPE_CHECKING:
    from registry.evaluation import EvaluationQuestion
    from registry.types import ToolSpec

__all__ = ["bfcl_data_folder", "load_bfcl"]

_PACKAGE = "bfcl-eval"
# Where a question is one text and its right functions are known. Of the live files, names have up
# to a dozen different definitions; of the irrelevance files, another file's function may fit.
_QUESTIONS = ("simple_python", "multiple", "parallel_multiple")
# All functions in English with Python's types, so that the right ones stand among many.
_TOOLS = (
    *_QUESTIONS,
    "parallel",
    "irrelevance",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
    "live_relevance",
    "live_irrelevance",
)
_JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


def bfcl_data_folder() -> Path:
    """Return the folder of the installed package's data files.

    Raises:
        CliError: The package is not installed.
    """
    try:
        distribution = importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError as error:
        raise CliError(
            f"--bfcl needs the package {_PACKAGE}. Only its data is used: "
            f"pip install --no-deps {_PACKAGE}"
        ) from error
    return Path(str(distribution.locate_file("bfcl_eval/data")))


def load_bfcl(folder: Path) -> tuple[list[ToolSpec], list[EvaluationQuestion]]:
    """Return all functions, pooled into one catalogue, and the questions about them.

    Of several functions of one name the first is taken.

    Args:
        folder: From `bfcl_data_folder`.

    Raises:
        CliError: A file is missing or not of the known form.
    """
    try:
        return _loaded(folder)
    except (KeyError, TypeError, ValueError) as error:
        raise CliError(
            f"The data of the installed {_PACKAGE} has another form than that of the release "
            f"2026.3.23 ({type(error).__name__}: {error}). Install that one."
        ) from error


def _loaded(folder: Path) -> tuple[list[ToolSpec], list[EvaluationQuestion]]:
    tools: dict[str, ToolSpec] = {}
    questions: list[EvaluationQuestion] = []
    for split in _TOOLS:
        entries = list(_rows(folder, split))
        for entry in entries:
            for function in entry["function"]:
                spec = _spec(function)
                tools.setdefault(spec.tool_name, spec)
        if split in _QUESTIONS:
            answers = {
                row["id"]: row["ground_truth"] for row in _rows(folder / "possible_answer", split)
            }
            questions += [_question(entry, answers, split) for entry in entries]
    return list(tools.values()), questions


def _rows(folder: Path, split: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file, of the newest version where there are several.

    Not by a pattern alone: `BFCL_v4_parallel_multiple.json` ends like that of `multiple`.
    """
    versions = {
        int(match[1]): path
        for path in folder.glob(f"BFCL_v*_{split}.json")
        if (match := re.fullmatch(rf"BFCL_v(\d+)_{split}\.json", path.name))
    }
    if not versions:
        raise CliError(f"The installed {_PACKAGE} has no {folder.name}/BFCL_v*_{split}.json.")
    for line in versions[max(versions)].read_text(encoding="utf-8").split("\n"):
        if line.strip():
            yield json.loads(line)


def _spec(function: Mapping[str, Any]) -> ToolSpec:
    from registry.text import humanise, legal_name
    from registry.types import ToolSpec

    name = function["name"]
    return ToolSpec(
        tool_name=legal_name(name),
        display_name=name,
        description=function["description"] or humanise(name),
        args_schema=_json_schema(function.get("parameters") or {}),
    )


def _question(
    entry: Mapping[str, Any], answers: Mapping[str, Any], split: str
) -> EvaluationQuestion:
    from registry.evaluation import EvaluationQuestion
    from registry.text import legal_name

    names = [legal_name(name) for call in answers[entry["id"]] for name in call]
    # The first turn; a system message, where there is one, is not the user's question.
    text = "\n".join(m["content"] for m in entry["question"][0] if m["role"] == "user").strip()
    return EvaluationQuestion(
        id=entry["id"],
        text=text,
        groups=tuple((name,) for name in dict.fromkeys(names)),
        lang="en",
        split=split,
    )


def _json_schema(schema: Any) -> Any:
    """Return a schema with Python's type names, at any depth, as JSON Schema."""
    if isinstance(schema, list):
        return [_json_schema(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    fields = cast("dict[str, Any]", schema)
    kind = fields.get("type")
    changed = {name: _json_schema(value) for name, value in fields.items()}
    # A property may itself be called "type": then its value is a schema, no name.
    if isinstance(kind, str):
        if kind == "any":
            del changed["type"]
        else:
            changed["type"] = _JSON_TYPES.get(kind, kind)
    return changed
