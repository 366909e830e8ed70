"""`toolrag eval`: how well questions find their tools, for people and for CI."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.cli import exit_codes
from agent.cli.exit_codes import CliError
from agent.cli.options import GlobalOptions, global_options
from agent.cli.output import Output, counted

if TYPE_CHECKING:
    from registry.evaluation import Comparison, Evaluation, EvaluationQuestion, Outcome
    from registry.store import ToolRegistry
    from registry.types import ToolSpec

__all__ = ["evaluate"]

_File = Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What the files say, read and checked before anything is started."""

    tools: Sequence[ToolSpec] | None
    questions: Sequence[EvaluationQuestion]
    floors: Mapping[str, float]
    earlier: Sequence[Outcome] | None


def evaluate(
    context: typer.Context,
    tools: Annotated[
        _File,
        typer.Option(
            metavar="FILE",
            help='The catalogue, one JSON object a line, gzip or not: {"name": ..., '
            '"description": ...} and, optional, category, args_schema, examples, display_name.',
        ),
    ] = None,
    queries: Annotated[
        _File,
        typer.Option(
            metavar="FILE",
            help='The questions, one JSON object a line: {"id": ..., "query": ..., "relevant": '
            "\\[names of the right tools]}. An empty list: no tool fits. Instead of relevant, "
            "groups: lists of equally valid names. Optional: lang, split.",
        ),
    ] = None,
    registry: Annotated[
        bool,
        typer.Option(
            "--registry", help="Ask the configured registry as it is, instead of --tools."
        ),
    ] = False,
    bfcl: Annotated[
        bool,
        typer.Option(
            "--bfcl",
            help="Take the public set of the Berkeley leaderboard instead of --tools and "
            "--queries; needs `pip install --no-deps bfcl-eval`.",
        ),
    ] = False,
    k: Annotated[
        int, typer.Option("--k", "-k", min=1, max=1_000, help="Most tools that an agent offers.")
    ] = 5,
    floors: Annotated[
        _File,
        typer.Option(
            metavar="FILE",
            help='JSON object, metric to minimum, such as {"recall@5": 0.75}; for latency_, '
            "tokens_ and labels_unknown to maximum. Exit code 1 when one is missed.",
        ),
    ] = None,
    save: Annotated[
        _File,
        typer.Option(metavar="FILE", help="Keep each question's result, to compare with later."),
    ] = None,
    compare: Annotated[
        _File,
        typer.Option(metavar="FILE", help="Compare recall@k with a run kept by --save."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with flat names.")
    ] = False,
) -> None:
    r"""Measure how well questions find their tools; needs no database of yours.

    The catalogue is registered in a scratch database that is removed afterwards, with the
    embedding model of --embedding-model (before the command). Questions are asked one by one.

    Metrics, shares from 0 to 1: recall@1, @3, @5, @10 and @k; ndcg@5, @10, @k; completeness@5, @10,
    @k (all right tools found); mrr (within the hits looked at, 10 or k); kept_share (right tools in
    the top k that the default threshold keeps); rejected_share (questions that no tool fits and
    that get none). Each with _low and _high, the ends of its 95 % interval. Also: questions,
    questions_no_tool, tools, threshold, k, labels_unknown (right answers that no tool is),
    latency_ms_p50 and _p95 (a whole search, embedding included), tokens_offered (mean),
    tokens_all, tokens_offered_share (approximate). By language and split: recall@5\[lang=de],
    recall@5_low\[split=easy]. With --compare: recall@5_before, _after, _difference,
    _difference_low, _difference_high, _p_value.
    """
    from agent.cli.eval_files import check_writable, write_results
    from agent.cli.eval_output import document, print_report
    from registry.evaluation import compare as compared
    from registry.evaluation import missed_floors, outcome_of

    output = Output()
    options = global_options(context)
    if save is not None:
        check_writable(save)
    asked = _read(tools, queries, registry=registry, bfcl=bfcl, k=k, floors=floors, earlier=compare)
    evaluation = _evaluated(options, output, asked, k=k)
    comparison: Comparison | None = None
    if asked.earlier is not None:
        later = [outcome_of(result) for result in evaluation.results]
        comparison = compared(asked.earlier, later, k=k)
    if save is not None:
        write_results(save, evaluation)
    missed = missed_floors(evaluation.metrics, asked.floors)
    if as_json:
        model = options.embedding_model
        output.json(document(evaluation, comparison, missed, embedding_model=model))
    else:
        print_report(output, evaluation, comparison, missed, floors=len(asked.floors))
    if missed:
        raise typer.Exit(exit_codes.FAILURE)


def _read(
    tools: _File,
    queries: _File,
    *,
    registry: bool,
    bfcl: bool,
    k: int,
    floors: _File,
    earlier: _File,
) -> _Asked:
    """Read every file; the catalogue is None where the registry is asked as it is.

    Raises:
        CliError: Options do not go together, or a file cannot be used.
    """
    from agent.cli import eval_files
    from agent.cli.bfcl import bfcl_data_folder, load_bfcl

    catalogue: Sequence[ToolSpec] | None = None
    if bfcl:
        if tools or queries or registry:
            raise CliError(
                "--bfcl brings tools and questions; give no --tools, --queries or "
                "--registry with it."
            )
        catalogue, questions = load_bfcl(bfcl_data_folder())
    else:
        if queries is None:
            raise CliError("Name the questions with --queries FILE, or take --bfcl.")
        if (tools is None) != registry:
            raise CliError("Give either --tools FILE or --registry.")
        catalogue = None if tools is None else eval_files.read_tools(tools)
        questions = eval_files.read_questions(queries)
    limits = {} if floors is None else eval_files.read_floors(floors)
    _check_floors(floors, limits, questions, k)
    kept = None if earlier is None else eval_files.read_outcomes(earlier, k=k)
    if kept is not None:
        _check_shared(earlier, kept, questions)
    return _Asked(tools=catalogue, questions=questions, floors=limits, earlier=kept)


def _check_floors(
    path: _File, floors: Mapping[str, float], questions: Sequence[EvaluationQuestion], k: int
) -> None:
    """Refuse limits on what these questions have no figure of.

    Raises:
        CliError: The message names the nearest metrics.
    """
    if not floors:
        return
    from registry.evaluation import unknown_metrics

    known = _summary_of_nothing(questions, k).metrics
    for name, nearest in unknown_metrics(floors, known).items():
        hint = f" Nearest: {', '.join(nearest)}." if nearest else ""
        raise CliError(f"{path}: these questions have no metric {name!r}.{hint}")


def _summary_of_nothing(questions: Sequence[EvaluationQuestion], k: int) -> Evaluation:
    """Return the figures of a search that finds nothing: the same names as any other's."""
    from registry.evaluation import judged, summarise

    results = [judged(q, (), k=k, threshold=0.0, latency_ms=0.0) for q in questions]
    return summarise(results, k=k, threshold=0.0, tool_tokens={}, resamples=1)


def _check_shared(
    path: _File, earlier: Sequence[Outcome], questions: Sequence[EvaluationQuestion]
) -> None:
    """Refuse a comparison with a run over other questions, before any is asked.

    Raises:
        CliError: No question with right tools is in both.
    """
    from registry.evaluation import compare as compared
    from registry.evaluation import outcome_of

    nothing = [outcome_of(result) for result in _summary_of_nothing(questions, 1).results]
    try:
        compared(earlier, nothing, k=1)
    except ValueError as error:
        raise CliError(f"{path} cannot be compared with: {error}.") from error


def _evaluated(options: GlobalOptions, output: Output, asked: _Asked, *, k: int) -> Evaluation:
    from agent.cli.runs import schema_tokens
    from registry.evaluation import evaluate as evaluated
    from registry.types import SyncProgress

    total = len(asked.questions)
    with _registry_to_ask(options, output, asked.tools) as (registry, specs):
        tokens = {spec.tool_name: schema_tokens([spec]) for spec in specs}
        _note_unknown(output, asked.questions, tokens)
        output.note(f"Asking {counted(total, 'question')} of {counted(len(specs), 'tool')} ...")
        with output.embedding_progress("Asking") as advance:
            return evaluated(
                registry,
                asked.questions,
                k=k,
                tool_tokens=tokens,
                on_progress=advance
                and (lambda done: advance(SyncProgress(done=done, total=total))),
            )


@contextmanager
def _registry_to_ask(
    options: GlobalOptions, output: Output, tools: Sequence[ToolSpec] | None
) -> Generator[tuple[ToolRegistry, Sequence[ToolSpec]]]:
    """Give the open registry and its active tools."""
    from agent.cli.context import opened_registry
    from agent.cli.scratch import gather_statistics, scratch_database

    # A question asked twice must be embedded twice, or its latency would be no search's.
    settings = replace(options.settings, query_cache_size=0)
    options = replace(options, settings=settings)
    if tools is None:
        with opened_registry(options, output) as registry:
            specs = [record.spec for record in registry.list_tools()]
            if not specs:
                raise CliError(
                    f"No active tools in namespace {registry.namespace!r}. Register some with "
                    "`toolrag sync MODULE:ATTR`, or give --tools FILE.",
                    exit_code=exit_codes.FAILURE,
                )
            yield registry, specs
        return
    with scratch_database(options, output) as url:
        with opened_registry(replace(options, database_url=url), output) as registry:
            output.note(f"Embedding {counted(len(tools), 'tool')} ...")
            with output.embedding_progress() as on_progress:
                report = registry.sync(tools, on_progress=on_progress)
            if report.failed:
                name, reason = next(iter(report.failed.items()))
                raise CliError(
                    f"{counted(len(report.failed), 'tool')} cannot be registered; {name}: {reason}",
                    exit_code=exit_codes.MODEL,
                )
            gather_statistics(url)
            yield registry, tools


def _note_unknown(
    output: Output, questions: Sequence[EvaluationQuestion], tools: Mapping[str, Any]
) -> None:
    unknown = [
        (question.id, group[0])
        for question in questions
        for group in question.groups
        if tools.keys().isdisjoint(group)
    ]
    if unknown:
        identity, name = unknown[0]
        output.note(
            f"{counted(len(unknown), 'right answer')} can never be found, since there is no such "
            f"tool: question {identity} wants {name}"
            f"{' ...' if len(unknown) > 1 else ''} (labels_unknown)"
        )
