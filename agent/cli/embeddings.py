"""`toolrag embeddings`: the sets of vectors in the registry, and the change from one to another."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent.cli import exit_codes
from agent.cli.consent import YesOption, agreed, check_can_ask
from agent.cli.embedding_sets import (
    comparison_text,
    configured_model,
    document,
    instead_of,
    is_of,
    print_sets,
    serving_set,
    setting_of,
)
from agent.cli.exit_codes import CliError
from agent.cli.options import GlobalOptions, global_options
from agent.cli.output import Output, counted

if TYPE_CHECKING:
    from registry.embedding import Embedder
    from registry.store import ToolRegistry
    from registry.types import EmbeddingBuildReport, EmbeddingModelRecord, Question

__all__ = ["app"]

app = typer.Typer(
    help="See which embedding models the registry holds vectors of, and change the one in use.",
    no_args_is_help=True,
)

_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command()
def status(context: typer.Context, as_json: _Json = False) -> None:
    """List every set of vectors; exit code 4 when the one in use is not of the configured model."""
    from agent.cli.context import registry_without_model

    output = Output()
    options = global_options(context)
    with registry_without_model(options, output) as registry:
        sets = registry.embedding_models()
    serving = serving_set(sets)
    name, revision = configured_model(options)
    fits = serving is None or (serving.model.name, serving.model.revision) == (name, revision)
    if as_json:
        output.json({"configured": name, "fits": fits, "sets": [document(s) for s in sets]})
    elif not sets:
        output.text(f"No vectors yet. The first sync makes them, with {name}.")
    else:
        print_sets(output, sets)
    if not fits and serving is not None:
        output.note(
            f"{name} is configured, but {serving.model} is in use. Configure "
            f"{setting_of(serving)} with --embedding-model or TOOLRAG_EMBEDDING_MODEL, or run "
            f"`toolrag embeddings migrate --to {options.embedding_model}`."
        )
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
    questions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='Compare both models on these before the switch. One JSON object a line: {"query":'
            ' "...", "relevant": ["tool_name"]}; relevant may be left out.',
        ),
    ] = None,
    k: Annotated[
        int, typer.Option("--k", "-k", min=1, max=1_000, help="Hits to compare for each question.")
    ] = 5,
    yes: YesOption = False,
    as_json: _Json = False,
) -> None:
    """Embed every tool of every namespace with another model, compare, then switch to it.

    The old vectors serve searches until the switch, and are kept. A run that was broken off goes on
    where it stopped when the command is repeated. Exit code 1 when a tool failed or you answer
    no; then nothing is switched.
    """
    from agent.cli.context import prepared_registry

    output = Output()
    check_can_ask("embeddings migrate", yes=yes)
    asked = [] if questions is None else _questions(questions)
    options = global_options(context)
    with prepared_registry(replace(options, embedding_model=to), output) as registry:
        before = serving_set(registry.embedding_models())
        old = None if before is None or not asked else _loaded(before, options)
        if asked and old is None:
            output.note("Nothing serves searches yet, so there is nothing to compare with.")
        report = _built(registry, output, rebuild=False, as_json=as_json)
        if before is not None and report.set_id == before.id:
            _mended(output, report, before, as_json=as_json)
            return
        compared = None if old is None else registry.compare_embeddings(asked, serving=old, k=k)
        if compared is not None and not as_json:
            output.text(comparison_text(compared))
        record = _switched(registry, output, report, before, yes=yes)
    if as_json:
        output.json({"build": report, "comparison": compared, "serving": document(record)})
    _advise(output, record, before, setting=to)


@app.command()
def rebuild(context: typer.Context, yes: YesOption = False, as_json: _Json = False) -> None:
    """Embed every text of every namespace anew with the model in use, then switch.

    The old vectors serve searches until the switch, and are kept. A run that was broken off goes on
    where it stopped when the command is repeated. Exit code 1 when a tool failed or you answer
    no; then nothing is switched.
    """
    from agent.cli.context import prepared_registry

    output = Output()
    check_can_ask("embeddings rebuild", yes=yes)
    options = global_options(context)
    with prepared_registry(options, output) as registry:
        before = serving_set(registry.embedding_models())
        if before is not None and not is_of(before, registry.embedder):
            raise CliError(
                f"{before.model} is in use, but {registry.embedder.name} is configured. Configure "
                f"the model in use, or run `toolrag embeddings migrate --to "
                f"{options.embedding_model}`.",
                exit_code=exit_codes.MODEL,
            )
        report = _built(registry, output, rebuild=True, as_json=as_json)
        record = _switched(registry, output, report, before, yes=yes)
    if as_json:
        output.json({"build": report, "serving": document(record)})
    _advise(output, record, before, setting=None)


@app.command()
def revert(context: typer.Context, yes: YesOption = False, as_json: _Json = False) -> None:
    """Let the set of vectors that was in use before serve searches again, at once.

    Needs no embedding model: tools that were changed or added since are listed, and embedded by the
    next sync with the model of that set. Exit code 1 when you answer no.
    """
    from agent.cli.context import registry_without_model
    from registry.embedding_migration import model_to_revert_to

    output = Output()
    check_can_ask("embeddings revert", yes=yes)
    with registry_without_model(global_options(context), output) as registry:
        sets = registry.embedding_models()
        before, target = serving_set(sets), model_to_revert_to(sets)
        _ask(
            output,
            f"Let set {target.id}, {target.model}, serve searches{instead_of(before)}?",
            yes=yes,
        )
        report = registry.revert_embeddings()
    record = report.serving
    if as_json:
        lists = {"stale": report.stale, "missing": report.missing}
        output.json({"serving": document(record), **lists})
    else:
        output.text(f"{record.model} serves searches again.")
        if report.stale:
            output.text(f"Changed since, found by their earlier text: {', '.join(report.stale)}")
        if report.missing:
            output.text(f"Added since, not found by vectors: {', '.join(report.missing)}")
    if report.stale or report.missing:
        output.note(
            "The next sync with this model embeds these, or all at once: toolrag embeddings "
            f"migrate --to {setting_of(record)}"
        )
    _advise(output, record, before, setting=setting_of(record))


@app.command()
def prune(
    context: typer.Context,
    set_id: Annotated[
        int | None,
        typer.Argument(metavar="[ID]", help="Set to remove. Default: all that were in use before."),
    ] = None,
    yes: YesOption = False,
    as_json: _Json = False,
) -> None:
    """Remove sets of vectors that are not in use, with their index; this cannot be undone.

    Needs no embedding model. Exit code 1 when you answer no.
    """
    from agent.cli.context import registry_without_model
    from registry.embedding_migration import models_to_prune

    output = Output()
    check_can_ask("embeddings prune", yes=yes)
    with registry_without_model(global_options(context), output) as registry:
        going = models_to_prune(registry.embedding_models(), set_id)
        if going and not as_json:
            print_sets(output, going)
        if going:
            output.note(
                "Processes that still answer from a removed set of another model must be restarted."
            )
            _ask(output, f"Remove {counted(len(going), 'set')} of vectors?", yes=yes)
        # Each by its id: never more than what was shown.
        removed = [record for s in going for record in registry.prune_embeddings(s.id)]
    if as_json:
        output.json({"removed": [document(record) for record in removed]})
    elif removed:
        output.text(f"Removed {counted(len(removed), 'set')} of vectors.")
    else:
        output.text("Nothing to remove: no set of vectors was in use before.")


def _questions(path: Path) -> list[Question]:
    from agent.cli.questions import read_questions

    return read_questions(path)


def _loaded(before: EmbeddingModelRecord, options: GlobalOptions) -> Embedder:
    """Return the model in use, ready to embed the questions; before hours of building."""
    from agent.cli.context import embedder_of

    embedder = embedder_of(options)
    if not is_of(before, embedder):
        raise CliError(
            f"--questions needs the model in use, {before.model}, but {embedder.name} is "
            f"configured. Run `toolrag --embedding-model {setting_of(before)} embeddings migrate "
            "...`, or leave --questions out."
        )
    return embedder


def _built(
    registry: ToolRegistry, output: Output, *, rebuild: bool, as_json: bool
) -> EmbeddingBuildReport:
    with _resumable(output), output.embedding_progress() as on_progress:
        report = registry.build_embeddings(rebuild=rebuild, on_progress=on_progress)
    if report.failed and as_json:
        output.json({"build": report, "serving": None})
    if not as_json:
        output.text(f"{counted(report.embedded, 'text')} embedded with {report.model}.")
        _print_failed(output, "failed", report.failed)
        _print_failed(output, "failed, but switched off", report.failed_inactive)
    if report.failed:
        output.note(
            "Nothing was switched. What was embedded is kept: the same command tries only these."
        )
        raise typer.Exit(exit_codes.FAILURE)
    if report.remaining:
        written = counted(report.remaining, "tool")
        output.note(f"{written} written meanwhile; the switch embeds what was.")
    return report


def _print_failed(output: Output, heading: str, failed: Mapping[str, str]) -> None:
    if failed:
        output.text()
        output.table([heading, "reason"], [list(item) for item in failed.items()])


def _mended(
    output: Output, report: EmbeddingBuildReport, record: EmbeddingModelRecord, *, as_json: bool
) -> None:
    """Tell that the set in use, which lacked vectors after a revert, was completed."""
    if as_json:
        output.json({"build": report, "comparison": None, "serving": document(record)})
    output.note(f"In use as before: set {record.id}, {record.model}. Nothing was switched.")


def _switched(
    registry: ToolRegistry,
    output: Output,
    report: EmbeddingBuildReport,
    before: EmbeddingModelRecord | None,
    *,
    yes: bool,
) -> EmbeddingModelRecord:
    _ask(output, f"Let {report.model} serve searches{instead_of(before)}?", yes=yes)
    with _resumable(output):
        return registry.switch_embeddings()


@contextmanager
def _resumable(output: Output) -> Generator[None]:
    try:
        yield
    except KeyboardInterrupt:
        output.note("What was embedded is kept: the same command goes on from there.")
        raise


def _ask(output: Output, question: str, *, yes: bool) -> None:
    if not agreed(question, yes=yes):
        output.note("Nothing was switched or removed.")
        raise typer.Exit(exit_codes.FAILURE)


def _advise(
    output: Output,
    record: EmbeddingModelRecord,
    before: EmbeddingModelRecord | None,
    *,
    setting: str | None,
) -> None:
    output.note(f"In use now: set {record.id}, {record.model}.")
    if setting is not None and not (before and before.model.name == record.model.name):
        output.note(f"Set TOOLRAG_EMBEDDING_MODEL={setting} for every process from now on.")
    if before is None:
        return
    if before.model.same_vectors(record.model):
        output.note("Running processes follow by themselves.")
    else:
        output.note("Restart running processes: until then they answer from the former vectors.")
    output.note(
        "To go back: toolrag embeddings revert. To remove the former vectors: "
        "toolrag embeddings prune."
    )
