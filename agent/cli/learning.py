"""`toolrag learn`: let recorded calls move the tools, once or for ever, undo that, explain it."""

from __future__ import annotations

import random
import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from agent.cli import exit_codes
from agent.cli.consent import YesOption, agreed, check_can_ask
from agent.cli.exit_codes import CliError
from agent.cli.names import registered_name
from agent.cli.options import global_options
from agent.cli.output import Output, counted, one_line, without_secrets

if TYPE_CHECKING:
    from registry.learning import (
        GateVerdict,
        LearnedQuestion,
        LearningExplanation,
        LearningReport,
        LearningSettings,
    )
    from registry.store import ToolRegistry

__all__ = ["app"]

app = typer.Typer(
    help="Learn from recorded calls: move tools towards the questions they were called for.",
    invoke_without_command=True,
)

_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
_SHOWN = 20
_INTERVAL = re.compile(r"(\d{1,9})\s*([smhd])")
_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@app.callback()
def learn(
    context: typer.Context,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Replay and report, change nothing.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Whatever the replay says, and also without new calls."),
    ] = False,
    neutral: Annotated[
        float | None,
        typer.Option(
            min=-1,
            max=1,
            help="How much of what all questions share is taken off. Default: from how many "
            "tools are used.",
        ),
    ] = None,
    min_sessions: Annotated[
        int, typer.Option(min=2, max=1_000, help="Distinct sessions from which on a tool moves.")
    ] = 2,
    every: Annotated[
        str | None,
        typer.Option(
            metavar="INTERVAL",
            help="Go on for ever, learn once an interval such as 30m, 1h or 1d, one line a run. Of "
            "several processes that do so, one learns. Ends at Ctrl-C or SIGTERM with exit code 0.",
        ),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Learn from recorded calls: move tools towards the questions they were called for.

    The result is first replayed on questions that were held back, and searched only if it is not
    worse. Without new calls there is nothing to do. Exit code 1 when the replay refuses it.
    """
    given = dry_run or force or as_json
    if context.invoked_subcommand is not None:
        if given or every or neutral is not None or min_sessions != 2:
            raise CliError("Options of `toolrag learn` itself do not go with a command of it.")
        return
    from agent.cli.context import registry_without_model
    from registry.learning import LearningSettings

    output = Output()
    settings = LearningSettings(neutral=neutral, min_sessions=min_sessions)
    if every is not None:
        if given:
            raise CliError("--every goes with neither --dry-run, --force nor --json.")
        keep_learning(context, output, seconds_of(every), settings)
        return
    with registry_without_model(global_options(context), output) as registry:
        report = registry.learn(dry_run=dry_run, force=force, settings=settings)
    if as_json:
        output.json(report)
    else:
        _print_report(output, report)
    if not force and not all(verdict.passed for verdict in report.gate):
        raise typer.Exit(exit_codes.FAILURE)


def seconds_of(interval: str) -> int:
    """Return the seconds of an interval such as `30m`.

    Raises:
        CliError: It cannot be read, or is out of range.
    """
    from registry.errors import ConfigurationError
    from registry.scheduling import check_interval

    found = _INTERVAL.fullmatch(interval.strip().lower())
    seconds = int(found[1]) * _UNITS_S[found[2]] if found else 0
    try:
        check_interval(seconds)
    except ConfigurationError as error:
        raise CliError(
            f"--every is {interval!r}; give a number and a unit, from 1m (a minute) to 30d, for "
            "example 30m, 1h or 1d."
        ) from error
    return seconds


def keep_learning(
    context: typer.Context, output: Output, every_s: int, settings: LearningSettings
) -> None:
    """Learn once an interval until the process is told to end; a run broken off changes nothing.

    The first turn comes at once: where another process learnt within the interval, so did this
    one before a restart, and nothing is done.

    Raises:
        ToolRAGError: What will not pass by itself, such as a schema of another release.
    """
    from agent.cli.context import prepared_registry
    from registry.scheduling import pause_s

    try:
        # Not opened: the database may be away when this starts, too.
        with prepared_registry(global_options(context), output) as registry:
            while True:
                line, failed = _turn(registry, every_s, settings)
                output.text(f"{datetime.now(UTC).isoformat(timespec='seconds')} {line}")
                chance = random.random()
                time.sleep(pause_s(every_s, chance=chance, failed=failed))
    except KeyboardInterrupt:
        output.note("Stopped.")


def _turn(registry: ToolRegistry, every_s: int, settings: LearningSettings) -> tuple[str, bool]:
    """Return what is said of a turn, and whether the database did not answer."""
    from registry.errors import RegistryUnavailableError

    try:
        done = registry.learn_if_due(every_s=every_s, settings=settings)
    except RegistryUnavailableError as error:
        return f"Not learnt: {one_line(without_secrets(str(error)))} Trying again.", True
    if done is None:
        return "Nothing to do: it was learnt within this interval, or is being.", False
    return " ".join([one_line(_outcome(done.report)), *map(one_line, done.notes)]), False


@app.command()
def undo(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="[TOOL]", help="One tool. Default: all.")
    ] = None,
    yes: YesOption = False,
) -> None:
    """Search the tools' texts alone again, at once; the records stay.

    The next `toolrag learn` moves the tools again. Exit code 1 when you answer no.
    """
    from agent.cli.context import registry_without_model

    output = Output()
    check_can_ask("learn undo", yes=yes)
    with registry_without_model(global_options(context), output) as registry:
        if name is not None:
            name = registered_name(registry, name, output)
        what = name or f"every tool of namespace {registry.namespace}"
        if not agreed(f"Take back what was learnt of {what}?", yes=yes):
            output.note("Nothing was changed.")
            raise typer.Exit(exit_codes.FAILURE)
        undone = registry.unlearn(name)
    if undone:
        output.text(f"{counted(len(undone), 'tool')} went back: {', '.join(undone)}.")
        output.note("The records stay: the next `toolrag learn` moves them again.")
    else:
        output.text(f"Nothing was learnt of {what}.")


@app.command()
def explain(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="TOOL", help="Name of a registered tool.")],
    limit: Annotated[int, typer.Option(min=1, help="Most questions to show.")] = _SHOWN,
    as_json: _Json = False,
) -> None:
    """Show which recorded questions moved a tool, and how near it was and is to each."""
    from agent.cli.context import registry_without_model

    output = Output()
    with registry_without_model(global_options(context), output) as registry:
        name = registered_name(registry, name, output)
        told = registry.explain_learning(name, limit=limit)
    if as_json:
        output.json(told)
    else:
        _print_explanation(output, told)


def _print_report(output: Output, report: LearningReport) -> None:
    output.text(_outcome(report))
    if report.calls:
        output.note(
            f"From {counted(report.calls, 'call')} of {counted(report.sessions, 'session')}; "
            f"{report.used_tools} of {counted(report.active_tools, 'active tool')} were called."
        )
    if report.anonymous_calls:
        output.note(
            f"{counted(report.anonymous_calls, 'call')} had no session, thread or run id and "
            "count as one session."
        )
    if report.left_out:
        output.note(f"{counted(report.left_out, 'older call')} left out.")
    for verdict in report.gate:
        output.text(_verdict(verdict))
    if report.moves:
        output.table(
            ["tool", "sessions", "cosine with text", "cosine with before"],
            [
                [
                    move.tool_name,
                    str(move.sessions),
                    f"{move.cosine_with_description:.3f}",
                    f"{move.cosine_with_previous:.3f}",
                ]
                for move in report.moves[:_SHOWN]
            ],
            numeric=["sessions", "cosine with text", "cosine with before"],
        )
    if len(report.moves) > _SHOWN:
        output.note(f"{len(report.moves) - _SHOWN:,} more; --json shows all.")


def _outcome(report: LearningReport) -> str:
    moved = counted(len(report.moves), "tool")
    if report.promoted:
        return f"Learnt: {moved} moved, version {report.version}."
    if report.reason:
        return f"Nothing was changed: {report.reason}."
    return f"Would move {moved}; nothing was changed (--dry-run)."


def _verdict(verdict: GateVerdict) -> str:
    state = "the texts alone" if verdict.against == "descriptions" else "what was learnt before"
    if not verdict.questions:
        return f"Replay against {state}: no question was held back yet."
    return (
        f"Replay against {state}: mean reciprocal rank {verdict.mrr_before:.3f} to "
        f"{verdict.mrr_after:.3f} on {counted(verdict.questions, 'held-back question')} "
        f"(z {verdict.z:+.1f}, {'good' if verdict.passed else 'REFUSED'})."
    )


def _print_explanation(output: Output, told: LearningExplanation) -> None:
    if told.moved:
        output.text(
            f"{told.tool_name} was moved by {counted(told.sessions, 'session')}; its cosine with "
            f"its text is {told.cosine_with_description:.3f}."
        )
    else:
        output.text(f"{told.tool_name} is where its text puts it.")
    if told.waiting:
        output.note(f"{counted(told.waiting, 'call')} not learnt from yet.")
    if not told.questions:
        output.note("No call that ended with success was recorded for it.")
        return
    output.table(
        ["before", "now", "vote", "asked", "session", "question"],
        [_question_row(question) for question in told.questions],
        numeric=["before", "now", "vote"],
        wide="question",
    )
    if told.calls > len(told.questions):
        output.note(f"{told.calls - len(told.questions):,} more; --limit shows them.")


def _question_row(question: LearnedQuestion) -> list[str]:
    return [
        f"{question.cosine_before:.3f}",
        f"{question.cosine_after:.3f}",
        f"{question.vote:.2f}",
        question.asked_at.isoformat(timespec="seconds"),
        question.session or "none",
        question.text or "(text not recorded)",
    ]
