"""One run of the agent in print: what was offered, each step, the answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent.cli.output import Output, counted, jsonable

if TYPE_CHECKING:
    from agent.cli.model import ChosenModel
    from agent.result import RunResult, Step, ToolCallResult
    from registry.types import ToolSpec

__all__ = ["print_run", "run_document", "schema_tokens", "used_a_tool", "was_answered"]

_LABEL_WIDTH = 11
_STATUS_STYLE = {"success": "", "error": "red", "pending": "yellow"}


def schema_tokens(specs: Iterable[ToolSpec]) -> int:
    """Return about how many prompt tokens the tools' schemas cost, at four characters each."""
    from langchain_core.messages.utils import count_tokens_approximately

    from registry.text import model_facing_description

    schemas: list[Any] = [
        {
            "type": "function",
            "function": {
                "name": spec.tool_name,
                "description": model_facing_description(spec.description),
                "parameters": jsonable(spec.args_schema),
            },
        }
        for spec in specs
    ]
    return count_tokens_approximately([], tools=schemas) if schemas else 0


def was_answered(run: RunResult) -> bool:
    """Return whether the run ended with an answer, not at a limit or with nothing."""
    return run.stop_reason.value == "answered"


def used_a_tool(run: RunResult) -> bool:
    """Return whether a tool call of the run succeeded."""
    return any(call.status == "success" for step in run.steps for call in step.tool_calls)


def run_document(
    question: str, run: RunResult, specs: Sequence[ToolSpec], chosen: ChosenModel
) -> dict[str, Any]:
    """Return the run as one JSON object."""
    offered, every = _tokens(run, specs)
    document = run.to_dict()
    # The steps say the same in the project's own words.
    del document["messages"]
    return {
        "question": question,
        "model": chosen.name,
        "is_language_model": chosen.is_language_model,
        **document,
        "schema_tokens_approx": {"offered": offered, "all": every},
    }


def print_run(
    output: Output, run: RunResult, specs: Sequence[ToolSpec], chosen: ChosenModel
) -> None:
    """Print what was offered and what it costs, each step, the answer and why the run ended.

    Args:
        output: Where to.
        run: What happened.
        specs: Every tool that could have been offered.
        chosen: The model that answered.
    """
    by_name = {spec.tool_name: spec for spec in specs}
    _print_offered(output, run, by_name)
    for number, step in enumerate(run.steps, start=1):
        _print_step(output, number, step)
    answer_label = "Answer" if chosen.is_language_model else "Answer *"
    _paragraph(output, answer_label, run.answer or "(none)", style="bold")
    stop = run.stop_reason.value.replace("_", " ")
    calls = sum(len(step.tool_calls) for step in run.steps)
    parts = [stop, counted(len(run.steps) + 1, "model call"), counted(calls, "tool call")]
    if run.usage.total_tokens:
        how = "estimated" if run.usage.is_estimated else "reported"
        parts.append(f"{run.usage.total_tokens:,} tokens {how}")
    _paragraph(output, "Stop", ", ".join(parts), style="" if was_answered(run) else "red")


def _print_offered(output: Output, run: RunResult, by_name: Mapping[str, ToolSpec]) -> None:
    offered, every = _tokens(run, list(by_name.values()))
    _paragraph(
        output, "Offered", f"{len(run.offered_tools)} of {counted(len(by_name), 'tool')}", style=""
    )
    if run.offered_tools:
        output.table(
            ["score", "tool", "category", "description"],
            [
                [
                    "pinned" if tool.relevance is None else f"{tool.relevance:.2f}",
                    tool.name,
                    by_name[tool.name].category if tool.name in by_name else "",
                    by_name[tool.name].description if tool.name in by_name else "",
                ]
                for tool in run.offered_tools
            ],
            numeric=["score"],
            wide="description",
            indent=_LABEL_WIDTH,
        )
    saved = f" ({1 - offered / every:.0%} less)" if every else ""
    _paragraph(
        output,
        "Schemas",
        f"approx. {offered:,} tokens for the tools offered, {every:,} for all{saved}",
        style="",
    )


def _print_step(output: Output, number: int, step: Step) -> None:
    output.text()
    _paragraph(output, f"Step {number}", step.thought or "(no text)", style="italic")
    for call in step.tool_calls:
        _paragraph(output, "  act", call_text(call), style="cyan")
        label = "  observe" if call.status != "error" else "  error"
        _paragraph(output, label, call.observation or call.status, style=_STATUS_STYLE[call.status])


def call_text(call: ToolCallResult) -> str:
    """Return a call as code reads: `multiply(a=31, b=3)`."""
    arguments = ", ".join(
        f"{name}={json.dumps(jsonable(value), ensure_ascii=False)}"
        for name, value in call.arguments.items()
    )
    return f"{call.tool}({arguments})"


def _paragraph(output: Output, label: str, text: str, *, style: str) -> None:
    output.parts((label.ljust(_LABEL_WIDTH), "dim"), (text, style))


def _tokens(run: RunResult, specs: Sequence[ToolSpec]) -> tuple[int, int]:
    names = {tool.name for tool in run.offered_tools}
    return schema_tokens(spec for spec in specs if spec.tool_name in names), schema_tokens(specs)
