"""`toolrag ask`: one question to the agent."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated

import typer

from agent.cli import exit_codes
from agent.cli.exit_codes import CliError
from agent.cli.options import global_options
from agent.cli.output import Output
from registry.errors import InvalidQueryError

if TYPE_CHECKING:
    from agent.cli.model import ChosenModel
    from agent.result import Agent, RunResult
    from registry.store import ToolRegistry
    from registry.toolset import Toolset

__all__ = ["DEMO_NAMESPACE", "ModelOption", "ask", "check_registered", "quiet_ask"]

# The demo's tools never mix with those of the user.
DEMO_NAMESPACE = "demo"

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="Chat model as <provider>:<model>, or 'offline' for the rule-based stand-in. "
        "Default: $TOOLRAG_MODEL; else openai:gpt-4o-mini where OPENAI_API_KEY or "
        "OPENAI_BASE_URL is set; else offline.",
    ),
]


def ask(
    context: typer.Context,
    question: Annotated[str, typer.Argument(help="What to ask.")],
    toolset: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:ATTR",
            help="The tools that may run; register them before with `toolrag sync`. "
            "Default: the demo's, in the namespace demo.",
        ),
    ] = None,
    model: ModelOption = None,
    k: Annotated[int, typer.Option("--k", "-k", help="Most tools to offer.")] = 5,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Lowest relevance of a tool, 0 to 1. Default: the embedding model's own."
        ),
    ] = None,
    max_steps: Annotated[int, typer.Option(help="Most model calls.")] = 10,
    max_tool_calls: Annotated[int, typer.Option(help="Most tool calls.")] = 50,
    max_tokens: Annotated[
        int, typer.Option(help="Most tokens, of prompts and replies together.")
    ] = 200_000,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Most time.")] = 300.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Ask the agent one question and show what it did.

    Exit code 1 when the run ends without an answer, for example at a limit.
    """
    from agent.cli.context import opened_registry
    from agent.cli.loading import load_toolset
    from agent.cli.model import chosen_model
    from agent.cli.runs import print_run, run_document, was_answered
    from agent.demo import demo_toolset
    from agent.factory import create_tool_rag_agent
    from agent.limits import RunLimits

    output = Output()
    options = global_options(context)
    # Whatever needs no database is checked before one is started.
    if not question.strip():
        raise InvalidQueryError("The question is empty.")
    limits = RunLimits(
        max_steps=max_steps,
        max_tool_calls=max_tool_calls,
        max_total_tokens=max_tokens,
        timeout_s=timeout,
    )
    live = demo_toolset() if toolset is None else load_toolset(toolset)
    chosen = chosen_model(model, options.environ)
    if toolset is None:
        options = options.in_namespace(DEMO_NAMESPACE)
    with opened_registry(options, output) as registry:
        # Made before anything is written, since it checks the options.
        agent = create_tool_rag_agent(
            chosen.model,
            registry=registry,
            toolset=live,
            k=k,
            threshold=threshold,
            limits=limits,
        )
        if toolset is None:
            with output.embedding_progress() as on_progress:
                registry.sync(live, on_progress=on_progress)
        else:
            check_registered(registry, live, toolset, output)
        run = quiet_ask(agent, question, chosen)
    if as_json:
        output.json(run_document(question, run, live.specs, chosen))
    else:
        output.text(chosen.label, style="" if chosen.is_language_model else "bold yellow")
        print_run(output, run, live.specs, chosen)
    if not was_answered(run):
        raise typer.Exit(exit_codes.FAILURE)


def quiet_ask(agent: Agent, question: str, chosen: ChosenModel) -> RunResult:
    """Return what the agent did; what a tool prints must not mix with our results.

    Raises:
        CliError: The chat model failed.
    """
    from agent.cli.model import model_errors
    from agent.conversation import ask as ask_agent

    with model_errors(chosen.name), redirect_stdout(sys.stderr):
        return ask_agent(agent, question)


def check_registered(
    registry: ToolRegistry, toolset: Toolset, reference: str, output: Output
) -> None:
    """Say what of a toolset the registry does not know; it would never be offered."""
    names = [spec.tool_name for spec in toolset.specs]
    known = registry.active_states(names)
    unknown = [name for name in names if name not in known]
    if len(unknown) == len(names):
        raise CliError(
            f"None of the {len(names)} tools of {reference} is registered in namespace "
            f"{registry.namespace!r}. Run `toolrag sync {reference}` first.",
            exit_code=exit_codes.FAILURE,
        )
    if unknown:
        output.note(
            f"Not registered, so never offered: {', '.join(unknown)}. "
            f"Register them with `toolrag sync {reference}`."
        )
