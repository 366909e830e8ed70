"""`toolrag enrich`: a chat model writes example questions for the registered tools."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.cli import exit_codes
from agent.cli.ask import ModelOption
from agent.cli.consent import YesOption, agreed, check_can_ask
from agent.cli.exit_codes import CliError
from agent.cli.names import registered_name
from agent.cli.options import GlobalOptions, global_options
from agent.cli.output import Output, counted, jsonable, one_line, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.cli.model import ChosenModel
    from registry.enriching import EnrichmentPlan, EnrichmentReport, ToolEnrichment
    from registry.store import ToolRegistry

__all__ = ["enrich"]

_Price = typer.Option(min=0, metavar="PRICE", help="Price of a million tokens, for the estimate.")


def enrich(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOOL]...", help="Registered tools. Default: all active ones."),
    ] = None,
    model: ModelOption = None,
    questions: Annotated[
        int, typer.Option("--questions", min=1, max=20, help="Questions to ask for, a tool.")
    ] = 5,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Also tools that have such questions, to replace those by new ones."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Estimate the cost, ask and change nothing.")
    ] = False,
    yes: YesOption = False,
    input_price: Annotated[float | None, _Price] = None,
    output_price: Annotated[float | None, _Price] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=64, help="Calls of the chat model at once.")
    ] = 4,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Let a chat model write example questions for tools; keep those that fit.

    The cost is estimated first. A question that another tool clearly fits better is dropped. Each
    tool is stored when it is done: after Ctrl-C, run the same command again to go on. The
    questions stay until code changes the tool. Give them to all tools rather than to a few: they
    draw questions from tools that have none. Exit code 1 when a tool failed, or you answer no.
    """
    from agent.cli.context import opened_registry, registry_without_model
    from agent.cli.model import model_name
    from registry.enriching import plan_enrichment

    output = Output()
    options = global_options(context)
    if (input_price is None) != (output_price is None):
        raise CliError("Give both --input-price and --output-price, or neither.")
    prices = None if input_price is None or output_price is None else (input_price, output_price)

    def planned(registry: ToolRegistry) -> EnrichmentPlan:
        known = [registered_name(registry, name, output) for name in names or ()]
        return plan_enrichment(registry, tool_names=known or None, questions=questions, again=again)

    if dry_run:
        with registry_without_model(options, output) as registry:
            plan = planned(registry)
        if as_json:
            output.json(_estimate(plan, model_name(model, options.environ), prices))
        else:
            _print_estimate(output.text, plan, model_name(model, options.environ), prices)
        return
    check_can_ask("enrich", yes=yes)
    chosen = _language_model(model, options)
    with opened_registry(options, output) as registry:
        plan = planned(registry)
        _print_estimate(output.note, plan, chosen.name, prices)
        if plan.tools and not agreed(f"Ask {chosen.name}?", yes=yes):
            output.note("Nothing was asked.")
            raise typer.Exit(exit_codes.FAILURE)
        report = _enriched(registry, chosen, plan, concurrency, output, quiet=as_json)
    if as_json:
        estimate = _estimate(plan, chosen.name, prices)
        output.json({**estimate, **jsonable(report), "failed": report.failed})
    elif plan.tools:
        output.text(_summary(report))
    if report.given_up:
        raise CliError(
            f"Given up: {report.given_up} Mend that and run the same command again; what is "
            "done stays.",
            exit_code=exit_codes.MODEL,
        )
    if report.failed:
        raise typer.Exit(exit_codes.FAILURE)


def _language_model(given: str | None, options: GlobalOptions) -> ChosenModel:
    from agent.cli.model import chosen_model

    chosen = chosen_model(given, options.environ)
    if not chosen.is_language_model:
        raise CliError(
            "Questions are written by a language model, and none is set up. Set OPENAI_API_KEY or "
            "OPENAI_BASE_URL, or use --model <provider>:<model>.",
            exit_code=exit_codes.MODEL,
        )
    return chosen


def _enriched(
    registry: ToolRegistry,
    chosen: ChosenModel,
    plan: EnrichmentPlan,
    concurrency: int,
    output: Output,
    *,
    quiet: bool,
) -> EnrichmentReport:
    """Run it, and print each tool when it is done."""
    from registry.enriching import enrich as enrich_tools

    done = 0
    secrets = [value for name, value in os.environ.items() if name.endswith("_API_KEY")]

    def on_tool(outcome: ToolEnrichment) -> None:
        nonlocal done
        done += 1
        if not quiet:
            _print_tool(output, outcome, f"[{done}/{len(plan.tools)}]", secrets)
        elif done % 10 == 0 or done == len(plan.tools):
            output.note(f"{done} of {counted(len(plan.tools), 'tool')} done.")

    try:
        return enrich_tools(
            registry,
            chosen.model,
            plan,
            model_name=chosen.name,
            max_concurrency=concurrency,
            on_tool=on_tool,
        )
    except KeyboardInterrupt:
        output.note(
            f"{done} of {counted(len(plan.tools), 'tool')} done, and stored. Run the same command "
            "again to go on."
        )
        raise


def _estimate(
    plan: EnrichmentPlan, name: str, prices: tuple[float, float] | None
) -> dict[str, Any]:
    estimate: dict[str, Any] = {
        "model": name,
        "tools_to_ask": len(plan.tools),
        "skipped": list(plan.skipped),
        "questions": plan.questions,
        "calls": plan.calls,
        "input_tokens": plan.input_tokens,
        "output_tokens": plan.output_tokens,
    }
    if prices is not None:
        estimate["cost"] = plan.cost(input_price=prices[0], output_price=prices[1])
    return estimate


def _print_estimate(
    say: Callable[[str], None],
    plan: EnrichmentPlan,
    name: str,
    prices: tuple[float, float] | None,
) -> None:
    if plan.skipped:
        say(
            f"{counted(len(plan.skipped), 'tool')} skipped, with questions of a chat model "
            "already (--again replaces those)."
        )
    if not plan.tools:
        say("There is no tool to ask about.")
        return
    cost = ", at a price that is not known here (--input-price, --output-price)"
    if prices is not None:
        total = plan.cost(input_price=prices[0], output_price=prices[1])
        cost = f", which costs about {total:.4f} at these prices"
    say(
        f"{counted(len(plan.tools), 'tool')}, {counted(plan.questions, 'question')} each: "
        f"{counted(plan.calls, 'call')} of {name}, about {plan.input_tokens:,} input and "
        f"{plan.output_tokens:,} output tokens{cost}. A malformed answer costs one more call; a "
        "model that thinks first writes more."
    )


def _print_tool(
    output: Output, outcome: ToolEnrichment, place: str, secrets: Sequence[str]
) -> None:
    name = outcome.tool_name
    if outcome.error:
        output.text(
            f"{place} {name}: FAILED, {one_line(without_secrets(outcome.error, secrets=secrets))}"
        )
        return
    output.text(f"{place} {name}: {counted(len(outcome.added), 'question')} added")
    for question in outcome.added:
        output.text(f"+ {question}", indent=2)
    for dropped in outcome.dropped:
        better = f": {dropped.better_tool}" if dropped.better_tool else ""
        output.text(f"- {dropped.question} ({dropped.reason}{better})", indent=2)


def _summary(report: EnrichmentReport) -> str:
    added = sum(len(tool.added) for tool in report.tools)
    tools = sum(bool(tool.added) for tool in report.tools)
    dropped = sum(len(tool.dropped) for tool in report.tools)
    failed = f"; {counted(len(report.failed), 'tool')} failed" if report.failed else ""
    return (
        f"{counted(added, 'question')} added to {counted(tools, 'tool')}, {dropped:,} dropped"
        f"{failed}."
    )
