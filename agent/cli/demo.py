"""`toolrag demo`: the whole thing at work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agent.cli import exit_codes
from agent.cli.ask import DEMO_NAMESPACE, ModelOption, quiet_ask
from agent.cli.options import global_options
from agent.cli.output import Output
from registry.errors import InvalidQueryError

if TYPE_CHECKING:
    from agent.result import RunResult

__all__ = ["demo"]


def demo(
    context: typer.Context,
    question: Annotated[
        list[str] | None,
        typer.Option("--question", "-q", help="Ask this instead; may be given several times."),
    ] = None,
    model: ModelOption = None,
) -> None:
    """Register the demo's tools, ask some questions, and show every step.

    Needs no key, no Docker and no network: the database, the embedding model and the tools are
    local. Exit code 0 only when every question was answered with the help of a tool.
    """
    from agent.cli.context import opened_registry
    from agent.cli.model import chosen_model
    from agent.cli.runs import print_run
    from agent.cli.sync import summary
    from agent.demo import DEMO_QUESTIONS, demo_toolset
    from agent.factory import create_tool_rag_agent

    output = Output()
    options = global_options(context).in_namespace(DEMO_NAMESPACE)
    questions = question or [each.text for each in DEMO_QUESTIONS]
    if any(not each.strip() for each in questions):
        raise InvalidQueryError("The question is empty.")
    chosen = chosen_model(model, options.environ)
    toolset = demo_toolset()
    failed: list[str] = []
    with opened_registry(options, output) as registry:
        with output.embedding_progress() as on_progress:
            report = registry.sync(toolset, on_progress=on_progress)
        categories = {spec.category for spec in toolset.specs}
        output.text(
            f"Registered {len(toolset)} tools in {len(categories)} categories, namespace "
            f"{DEMO_NAMESPACE}: {summary(report)}"
        )
        output.text(chosen.label, style="" if chosen.is_language_model else "bold yellow")
        agent = create_tool_rag_agent(chosen.model, registry=registry, toolset=toolset)
        for number, text in enumerate(questions, start=1):
            output.text()
            output.rule(f"{number}/{len(questions)}  {text}")
            run = quiet_ask(agent, text, chosen)
            print_run(output, run, toolset.specs, chosen)
            if not _succeeded(run):
                failed.append(text)
    output.text()
    output.rule("Done")
    output.text(f"{len(questions) - len(failed)} of {len(questions)} questions answered with tools")
    for text in failed:
        output.text(f"not answered: {text}", style="red", indent=2)
    if not chosen.is_language_model:
        output.text("* by the rule-based stand-in, which is no language model", style="yellow")
    if failed:
        raise typer.Exit(exit_codes.FAILURE)


def _succeeded(run: RunResult) -> bool:
    from agent.cli.runs import used_a_tool, was_answered

    return was_answered(run) and used_a_tool(run)
