"""Learning on a schedule: any number of processes ask, one of them learns each interval."""

from __future__ import annotations

from registry import statements
from registry.base import Lease
from registry.errors import EmbeddingModelMismatchError, RegistryBusyError
from registry.learning import LearningSettings
from registry.scheduling import ScheduledLearning, check_interval, done_for_s
from registry.store_async.tuning import AsyncTuning

__all__ = ["AsyncScheduling"]


class AsyncScheduling(AsyncTuning):
    """The part of the registry that learns when it is time to."""

    async def learn_if_due(
        self, *, every_s: float, settings: LearningSettings | None = None
    ) -> ScheduledLearning | None:
        """Learn from recorded calls unless a process did so within this interval.

        To be called again and again, from as many processes as there are: when it is not time
        yet, that costs one short query. Where vectors moved, what relevance means is measured
        anew. That a run was made is noted only when it was: after a failure the next call tries
        again.

        Args:
            every_s: How often the namespace learns, 60 s to 30 days.
            settings: As for `learn`.

        Returns:
            None when it was not time, or another process is learning right now.

        Raises:
            ConfigurationError: The interval is out of range.
            RegistryUnavailableError: The database does not answer; what was searched still is.
        """
        check_interval(every_s)
        await self._check_schema()
        mark = Lease(name=f"learnt:{self.namespace}", seconds=done_for_s(every_s))
        async with self._connection() as connection:
            done = (await connection.execute(statements.lease_holder(mark.name))).one_or_none()
        if done is not None:
            return None
        try:
            report = await self.learn(settings=settings)
        except RegistryBusyError:
            return None
        notes: list[str] = []
        try:
            await self.open()
            notes = await self._ensure_calibration()
        except EmbeddingModelMismatchError as error:
            notes = [f"relevance was not measured anew: {error}"]
        async with self._connection() as connection:
            # A lease that nobody gives back: it runs out when it is time again.
            await connection.execute(mark.take)
        return ScheduledLearning(report=report, notes=notes)
