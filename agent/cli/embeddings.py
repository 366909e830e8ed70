"""`toolrag embeddings`: which embedding model the registry uses, and its replacement."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from agent.cli import exit_codes
from agent.cli.options import global_options
from agent.cli.output import Output
from registry.errors import EmbeddingModelMismatchError

__all__ = ["app"]

app = typer.Typer(
    help="See whether the embedding model fits the registry's vectors, and replace it.",
    no_args_is_help=True,
)

_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command()
def status(context: typer.Context, as_json: _Json = False) -> None:
    """Show whether the configured model is the one of the stored vectors; exit code 4 if not."""
    from agent.cli.context import prepared_registry

    output = Output()
    with prepared_registry(global_options(context), output) as registry:
        fits, stored = True, None
        try:
            registry.open()
        except EmbeddingModelMismatchError as error:
            fits, stored = False, error.stored
        name = registry.embedder.name
        threshold = registry.threshold
    if as_json:
        output.json({"configured": name, "fits": fits, "stored": stored, "threshold": threshold})
    elif fits:
        output.text(f"{name} fits the registry. Its threshold is {threshold:.2f}.")
    else:
        output.text(f"{name} is configured, but the registry holds vectors of {stored}.")
        output.note(
            "Configure that model again with --embedding-model or TOOLRAG_EMBEDDING_MODEL, or "
            "run `toolrag embeddings migrate --to MODEL`."
        )
    if not fits:
        raise typer.Exit(exit_codes.MODEL)


@app.command()
def migrate(
    context: typer.Context,
    to: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="The new model: 'builtin' or <provider>:<model>, such as "
            "openai:text-embedding-3-small.",
        ),
    ],
    as_json: _Json = False,
) -> None:
    """Embed every tool of every namespace with another model, then switch to it.

    The old vectors serve searches until all new ones stand. A run that was broken off goes on
    where it stopped. Exit code 1 when a tool failed; then nothing is switched.
    """
    from agent.cli.context import prepared_registry

    output = Output()
    options = replace(global_options(context), embedding_model=to)
    with prepared_registry(options, output) as registry, output.embedding_progress() as on_progress:
        report = registry.migrate_embeddings(on_progress=on_progress)
    if as_json:
        output.json(report)
    else:
        done = "serves searches now" if report.switched else "is not switched to"
        output.text(f"{report.model} {done} ({report.embedded} embedded)")
        for note in report.notes:
            output.note(note)
        if report.failed:
            output.text()
            output.table(["failed", "reason"], [list(item) for item in report.failed.items()])
            output.note("The former model goes on serving. Run the command again to try these.")
    if not report.switched:
        raise typer.Exit(exit_codes.FAILURE)
    output.note(f"Use it from now on: set TOOLRAG_EMBEDDING_MODEL={to}")
