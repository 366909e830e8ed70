"""`toolrag search`: what a question finds."""

from __future__ import annotations

from typing import Annotated

import typer

from agent.cli.options import global_options
from agent.cli.output import Output

__all__ = ["search"]


def search(
    context: typer.Context,
    query: Annotated[str, typer.Argument(help="A question, as a user would put it.")],
    k: Annotated[int, typer.Option("--k", "-k", help="Most tools to return.")] = 5,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Lowest relevance, 0 to 1; 0 for none. Default: the embedding model's own."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Find the tools for a question, best first."""
    from agent.cli.context import opened_registry

    output = Output()
    options = global_options(context)
    with opened_registry(options, output) as registry:
        hits = registry.search(query, k=k, threshold=threshold)
        applied = registry.threshold if threshold is None else threshold
        known = bool(hits) or bool(registry.list_tools())
    if as_json:
        output.json({"query": query, "k": k, "threshold": applied, "hits": hits})
        return
    if hits:
        output.table(
            ["rank", "relevance", "name", "category", "description"],
            [
                [str(h.rank), f"{h.relevance:.2f}", h.tool_name, h.category, h.description]
                for h in hits
            ],
            numeric=["rank", "relevance"],
            wide="description",
        )
    elif known:
        output.note(
            f"No tool has a relevance of {applied:.2f} or more. See the nearest ones with "
            "--threshold 0."
        )
    else:
        output.note(
            f"No active tools in namespace {options.settings.namespace!r}. Register some with "
            "`toolrag sync MODULE:ATTR`."
        )
