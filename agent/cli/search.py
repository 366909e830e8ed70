"""`toolrag search`: what a question finds, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from agent.cli.exit_codes import CliError
from agent.cli.names import registered_name
from agent.cli.options import GlobalOptions, global_options
from agent.cli.output import Output

if TYPE_CHECKING:
    from registry.store import ToolRegistry
    from registry.strategy import Strategy
    from registry.types import ToolHit

__all__ = ["search"]


def search(
    context: typer.Context,
    query: Annotated[str, typer.Argument(help="A question, as a user would put it.")],
    k: Annotated[int, typer.Option("--k", "-k", help="Most tools to return.")] = 5,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Lowest relevance of a hit, 0 to 1; 0 shows the nearest tools however weak. "
            "Default: 0.60 in a calibrated registry, else what suits the embedding model."
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Show what each score is made of, and what is too weak to be offered.",
        ),
    ] = False,
    tool: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --explain: why this tool is offered or is not, and what would change that.",
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --explain: hybrid, as a search ranks (default); auto, as an agent chooses; "
            "all, routing or retrieval.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Find the tools for a question, best first; with --explain, say why."""
    from agent.cli.context import opened_registry
    from agent.cli.explain_output import note_words_alone

    if not explain and (tool is not None or strategy is not None):
        raise CliError(f"--{'tool' if tool is not None else 'strategy'} needs --explain.")
    output = Output()
    options = global_options(context)
    with opened_registry(options, output) as registry:
        if explain:
            # The registry refuses what is no strategy, with the names of those there are.
            chosen = cast("Strategy", strategy or "hybrid")
            if tool is None:
                _explain_hits(registry, options, output, query, k, threshold, chosen, as_json)
            else:
                _explain_tool(registry, output, query, tool, k, threshold, chosen, as_json)
            return
        found = registry.select(query, k=k, threshold=threshold, strategy="hybrid")
        applied = found.threshold
        hits = [hit for hit in found.hits if hit.relevance >= applied]
        known = bool(hits) or bool(registry.list_tools())
    if as_json:
        document: dict[str, Any] = {"query": query, "k": k, "threshold": applied}
        output.json({**document, "by_words_alone": found.by_words_alone, "hits": hits})
        return
    note_words_alone(output, found)
    if hits:
        _print_hits(output, hits)
    elif known:
        output.note(
            f"No tool has a relevance of {applied:.2f} or more. See the nearest ones with "
            "--threshold 0, and why they are too weak with --explain."
        )
    else:
        _note_empty(output, options)


def _print_hits(output: Output, hits: list[ToolHit]) -> None:
    output.table(
        ["rank", "relevance", "name", "category", "description"],
        [[str(h.rank), f"{h.relevance:.2f}", h.tool_name, h.category, h.description] for h in hits],
        numeric=["rank", "relevance"],
        wide="description",
    )


def _note_empty(output: Output, options: GlobalOptions) -> None:
    output.note(
        f"No active tools in namespace {options.settings.namespace!r}. Register some with "
        "`toolrag sync MODULE:ATTR`."
    )


def _explain_hits(
    registry: ToolRegistry,
    options: GlobalOptions,
    output: Output,
    query: str,
    k: int,
    threshold: float | None,
    strategy: Strategy,
    as_json: bool,
) -> None:
    from agent.cli.explain_output import print_selection, selection_document

    found = registry.select(query, k=k, threshold=threshold, strategy=strategy)
    if as_json:
        output.json({"query": query, "k": k, **selection_document(found)})
    elif found.hits:
        print_selection(output, found)
    else:
        _note_empty(output, options)


def _explain_tool(
    registry: ToolRegistry,
    output: Output,
    query: str,
    tool: str,
    k: int,
    threshold: float | None,
    strategy: Strategy,
    as_json: bool,
) -> None:
    from agent.cli.explain_output import print_explanation
    from agent.cli.output import jsonable

    name = registered_name(registry, tool, output)
    told = registry.explain(query, name, k=k, threshold=threshold, strategy=strategy)
    if as_json:
        output.json({"query": query, "k": k, **jsonable(told)})
    else:
        print_explanation(output, told)
