"""Learning from use: tools move towards the questions they were called for, safely and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from registry import statements
from registry.base import Lease, Work
from registry.learning import (
    GateVerdict,
    LearnedQuestion,
    LearningExplanation,
    LearningReport,
    LearningSettings,
    Replayed,
    ToolMove,
    gate,
    neutral_share,
    refusal,
    replays,
)
from registry.statements import AnyRow
from registry.statements import learning as learning_statements
from registry.statements import replay as replay_statements
from registry.statements.calls import CountedCalls, counted_calls
from registry.statements.lessons import Lesson
from registry.store_async._runtime import AsyncConnection
from registry.store_async.calibrating import AsyncCalibrating
from registry.types import ProgressCallback, SyncProgress

__all__ = ["AsyncLearning"]

_STEPS = 3  # counting, replaying, changing
_NO_MOVES = (
    "no tool was called with success in {min_sessions} sessions or more, so there is nothing to "
    "learn yet"
)
_UNDONE = "what was learnt was undone, or the embedding model changed, while this ran"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """What may be promoted.

    Attributes:
        lesson: From all calls.
        before: Version that was searched when the calls were counted.
        fingerprint: Of the calls and what else the result depends on.
        until: Time of the newest question, None without any.
    """

    lesson: Lesson
    before: int
    fingerprint: str
    until: datetime | None


class AsyncLearning(AsyncCalibrating):
    """The part of the registry that learns from recorded calls."""

    async def learn(
        self,
        *,
        dry_run: bool = False,
        force: bool = False,
        settings: LearningSettings | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> LearningReport:
        """Move tools towards the questions they were called for with success, if that is better.

        All recorded calls of this namespace that have a question's vector of the serving
        embedding model count, of a session its newest, and each session once a tool. The result is
        first replayed on the questions of a fifth of the sessions, made without them; it is
        searched only when it is not worse than the tools' texts alone, nor than what was learnt
        before. One transaction makes the change, so a run that is broken off changes nothing.
        Without new calls there is nothing to do. Afterwards relevance is measured anew, unless
        `auto_calibrate` is off. Needs no embedding model loaded, and embeds nothing.

        Args:
            dry_run: Replay and report, change nothing.
            force: Promote whatever the replay says, also without new calls.
            settings: Smallest number of sessions, most calls of all and of a session, how much of
                the traffic is neutral.
            on_progress: Called after each of the three steps.

        Raises:
            RegistryBusyError: Another process is learning in this namespace.
            RegistryUnavailableError: The database went away; what was searched still is.
        """
        await self._check_schema()
        settings = settings or LearningSettings()
        if dry_run:
            return await self._learn(settings, None, force=force, on_progress=on_progress)
        async with self._lease(f"learn:{self.namespace}", wait=False) as lease:
            report = await self._learn(settings, lease, force=force, on_progress=on_progress)
        if report.promoted:
            await self._recalibrate()
        return report

    async def unlearn(self, tool_name: str | None = None) -> list[str]:
        """Search the vectors of the tools' texts again, at once, with every embedding model.

        The records stay, so the next `learn` moves the tools again; to keep a tool from moving,
        remove the records that mislead before it.

        Args:
            tool_name: One tool, active or not; all of the namespace when not given.

        Returns:
            The tools that went back, in name order.

        Raises:
            ToolNotFoundError: Not registered in this namespace.
        """
        await self._check_schema()
        async with self._connection() as connection:
            if tool_name is not None:
                await self._get(connection, tool_name)
            await connection.execute(statements.lock_for_writing())
            await connection.execute(learning_statements.lock_moved_tools(self.namespace))
            rows = (
                await connection.execute(learning_statements.undo(self.namespace, tool_name))
            ).all()
            await connection.execute(
                learning_statements.mark_undone(self.namespace, entirely=tool_name is None)
            )
        await self._recalibrate()
        return sorted({row.tool_name for row in rows})

    async def explain_learning(self, tool_name: str, *, limit: int = 20) -> LearningExplanation:
        """Return which recorded questions moved a tool, and how near it was and is to each.

        Args:
            tool_name: Model-facing name, active or not.
            limit: Most questions, 1 or more; those that came nearest.

        Raises:
            ToolNotFoundError: Not registered in this namespace.
        """
        await self._check_schema()
        async with self._connection() as connection:
            await self._get(connection, tool_name)
            await self._allow_time(connection)
            model = (await connection.execute(statements.active_model())).one_or_none()
            tool = state = None
            rows: list[AnyRow] = []
            if model is not None:
                calls = self._counted(model, LearningSettings())
                tool = (
                    await connection.execute(
                        learning_statements.state_of_tool(self.namespace, model.id, tool_name)
                    )
                ).one_or_none()
                state = await self._learning_state(connection, model)
                until = None if state is None else state.recorded_until
                questions = learning_statements.moved_questions(
                    calls, tool_name, learned_until=until, limit=max(limit, 1)
                )
                rows = list((await connection.execute(questions)).all())
        return _explanation(tool_name, tool, state, rows)

    async def _learn(
        self,
        settings: LearningSettings,
        lease: Lease | None,
        *,
        force: bool,
        on_progress: ProgressCallback | None,
    ) -> LearningReport:
        """Replay, then change, in two transactions: the first locks nothing and takes longer."""

        def done(step: int) -> None:
            if on_progress is not None:
                on_progress(SyncProgress(done=step, total=_STEPS))

        async with self._connection() as connection:
            await self._allow_time(connection)
            model = (await connection.execute(statements.active_model())).one_or_none()
            if model is None:
                reason = "there are no vectors yet; the first sync makes them"
                return LearningReport(dry_run=lease is None, reason=reason)
            report, candidate, previous = await self._counted_candidate(
                connection, model, settings, force=force
            )
            report = replace(report, dry_run=lease is None)
            done(1)
            if candidate is None:
                return report
            report = replace(
                report, gate=await self._replay(connection, report, candidate, previous)
            )
            reason = "" if force else refusal(report.gate)
            done(2)
            if lease is None or reason:
                rows = (await connection.execute(learning_statements.moves(candidate.lesson))).all()
                done(3)
                if not rows:
                    reason = reason or _nothing(candidate.lesson)
                return replace(report, reason=reason, moves=_moves(rows))
        async with self._connection() as connection:
            await self._allow_time(connection)
            await self._prolong(connection, Work(lease=lease))
            report = await self._promote(connection, candidate, report)
        done(3)
        return report

    async def _counted_candidate(
        self, connection: AsyncConnection, model: AnyRow, settings: LearningSettings, *, force: bool
    ) -> tuple[LearningReport, _Candidate | None, Lesson | None]:
        """Return what there is to learn from, None without anything new, and the state before."""
        calls = self._counted(model, settings)
        state = await self._learning_state(connection, model)
        before = None if state is None else state.recorded_until
        counted = (await connection.execute(counted_calls(calls))).one()
        neutral = settings.neutral
        if neutral is None:
            neutral = neutral_share(counted.used, counted.active - counted.used)
        report = LearningReport(
            version=0 if state is None else state.version,
            embedding_model=str(statements.model_of_row(model)[1]),
            calls=counted.calls,
            sessions=counted.sessions,
            anonymous_calls=counted.anonymous,
            left_out=counted.left_out,
            over_session=counted.over_session,
            used_tools=counted.used,
            active_tools=counted.active,
            neutral=float(neutral),
        )
        fingerprint = (
            f"{counted.calls}/{counted.fingerprint}/{report.neutral:.4f}/{settings.min_sessions}"
        )
        if not counted.calls and before is None:
            reason = (
                "no call that ended with success was recorded with its question's vector of "
                f"{report.embedding_model} in namespace {self.namespace}"
            )
            return replace(report, reason=reason), None, None
        if state is not None and state.fingerprint == fingerprint and not force:
            reason = "no call was recorded since the registry last learnt"
            return replace(report, reason=reason), None, None
        lesson = Lesson(
            calls=replace(calls, until=counted.until),
            min_sessions=settings.min_sessions,
            neutral=report.neutral,
        )
        candidate = _Candidate(
            lesson=lesson,
            before=report.version,
            fingerprint=fingerprint,
            until=counted.until,
        )
        if state is None or before is None:
            return report, candidate, None
        # As it was made then, from the window as it was then.
        previous = replace(lesson, calls=replace(calls, until=before), neutral=state.neutral)
        return report, candidate, previous

    async def _replay(
        self,
        connection: AsyncConnection,
        report: LearningReport,
        candidate: _Candidate,
        previous: Lesson | None,
    ) -> tuple[GateVerdict, ...]:
        """Ask the held-back questions, of the texts alone and of what was learnt before."""
        await connection.execute(replay_statements.set_learning_memory())
        statement = replay_statements.replayed(
            candidate.lesson, previous, limit=replays(report.active_tools)
        )
        return _verdicts((await connection.execute(statement)).all())

    async def _promote(
        self, connection: AsyncConnection, candidate: _Candidate, report: LearningReport
    ) -> LearningReport:
        calls = candidate.lesson.calls
        # Tables before the model, the order in which a switch takes them: else a deadlock.
        await connection.execute(statements.lock_for_writing())
        await connection.execute(learning_statements.lock_moving_tools(candidate.lesson))
        model = (await connection.execute(statements.active_model(locked=True))).one_or_none()
        state = None if model is None else await self._learning_state(connection, model)
        version = 0 if state is None else state.version
        if model is None or model.id != calls.model_id or version != candidate.before:
            return replace(report, reason=_UNDONE)
        rows = (await connection.execute(learning_statements.promote(candidate.lesson))).all()
        values = {
            "fingerprint": candidate.fingerprint,
            "recorded_until": candidate.until,
            "calls": report.calls,
            "sessions": report.sessions,
            "neutral": report.neutral,
            "gate": [asdict(verdict) for verdict in report.gate],
        }
        version = await connection.scalar(
            learning_statements.write_learning(self.namespace, model.id, values, moved=bool(rows))
        )
        report = replace(report, version=version, moves=_moves(rows))
        if not rows:
            return replace(report, reason=_nothing(candidate.lesson))
        return replace(report, promoted=True)

    async def _learning_state(self, connection: AsyncConnection, model: AnyRow) -> AnyRow | None:
        statement = learning_statements.learning_state(self.namespace, model.id)
        return (await connection.execute(statement)).one_or_none()

    def _counted(self, model: AnyRow, settings: LearningSettings) -> CountedCalls:
        return CountedCalls(
            namespace=self.namespace,
            model_id=model.id,
            dimensions=model.dimensions,
            per_session=settings.calls_per_session,
            newest=settings.max_calls,
        )


def _nothing(lesson: Lesson) -> str:
    return _NO_MOVES.format(min_sessions=lesson.min_sessions)


def _verdicts(rows: Sequence[AnyRow]) -> tuple[GateVerdict, ...]:
    with_descriptions = [_replayed(row, row.descriptions) for row in rows]
    with_previous = [_replayed(row, row.previous) for row in rows if row.previous is not None]
    return (
        gate(with_descriptions, against="descriptions"),
        *([gate(with_previous, against="previous")] if with_previous else ()),
    )


def _replayed(row: AnyRow, before: int) -> Replayed:
    return Replayed(
        session=row.session, tool_name=row.tool_name, before=before, after=row.candidate
    )


def _moves(rows: Sequence[AnyRow]) -> tuple[ToolMove, ...]:
    found = [
        ToolMove(
            tool_name=row.tool_name,
            sessions=row.sessions,
            cosine_with_description=row.cosine_with_description,
            cosine_with_previous=row.cosine_with_previous,
        )
        for row in rows
    ]
    return tuple(sorted(found, key=lambda move: (move.cosine_with_description, move.tool_name)))


def _explanation(
    tool_name: str, tool: AnyRow | None, state: AnyRow | None, rows: Sequence[AnyRow]
) -> LearningExplanation:
    is_learnt = state is not None and state.recorded_until is not None
    return LearningExplanation(
        tool_name=tool_name,
        moved=tool is not None and tool.moved,
        sessions=0 if tool is None else tool.sessions,
        cosine_with_description=1.0 if tool is None else tool.cosine_with_description,
        learned_at=state.learned_at if state is not None and is_learnt else None,
        calls=rows[0].calls if rows else 0,
        waiting=rows[0].waiting if rows else 0,
        questions=tuple(
            LearnedQuestion(
                text=row.text,
                session=row.session,
                asked_at=row.asked_at,
                vote=float(row.vote),
                cosine_before=row.cosine_before,
                cosine_after=row.cosine_after,
            )
            for row in rows
        ),
    )
