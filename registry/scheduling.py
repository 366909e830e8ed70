"""Pure: how processes that all learn on a schedule come to one run an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from registry.errors import ConfigurationError
from registry.learning import LearningReport

__all__ = [
    "MAX_INTERVAL_S",
    "MIN_INTERVAL_S",
    "ScheduledLearning",
    "check_interval",
    "done_for_s",
    "pause_s",
]

MIN_INTERVAL_S, MAX_INTERVAL_S = 60.0, 30 * 86_400.0

# A run is done for a little less than the interval, so that the process that made it does not find
# its own mark still there at its next turn. Jitter keeps processes that start together apart.
_DONE_SHARE = 0.9
_JITTER = 0.05
_RETRY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledLearning:
    """What a process did whose turn it was to learn.

    Attributes:
        report: What was learnt.
        notes: What an operator should know, for example that relevance could not be measured anew.
    """

    report: LearningReport
    notes: Sequence[str] = ()


def check_interval(every_s: float) -> float:
    """Return an interval, seconds.

    Raises:
        ConfigurationError: It is not from a minute to 30 days.
    """
    if isinstance(every_s, bool) or not MIN_INTERVAL_S <= every_s <= MAX_INTERVAL_S:
        raise ConfigurationError(
            f"every_s is {every_s!r}; learn every 60 s (a minute) to "
            f"{MAX_INTERVAL_S:.0f} s (30 days)."
        )
    return every_s


def done_for_s(every_s: float) -> int:
    """Return for how long nobody learns again after a run, seconds."""
    return int(every_s * _DONE_SHARE)


def pause_s(every_s: float, *, chance: float, failed: bool = False) -> float:
    """Return how long a process waits for its next turn, seconds.

    Args:
        every_s: The interval.
        chance: A random number from 0 to 1, for the jitter of a twentieth either way.
        failed: The database did not answer: the next try is after a minute.
    """
    wait_s = min(every_s, _RETRY_S) if failed else every_s
    return wait_s * (1 + _JITTER * (2 * chance - 1))
