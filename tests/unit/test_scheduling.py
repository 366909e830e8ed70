"""Learning on a schedule, the pure part."""

from __future__ import annotations

from typing import Any

import pytest

from agent.cli.exit_codes import CliError
from agent.cli.learning import seconds_of
from registry.errors import ConfigurationError
from registry.scheduling import MAX_INTERVAL_S, check_interval, done_for_s, pause_s


@pytest.mark.parametrize("every_s", [60, 61, 3_600, 86_400, MAX_INTERVAL_S])
@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999])
def test_the_next_turn_comes_after_the_mark_has_run_out_and_soon_after_the_interval(
    every_s: float, chance: float
) -> None:
    pause = pause_s(every_s, chance=chance)
    # A second at least: what the two clocks, or the time between mark and pause, may differ by.
    assert done_for_s(every_s) + 1 < pause < 1.06 * every_s


def test_jitter_keeps_processes_apart_that_start_together() -> None:
    pauses = [pause_s(3_600, chance=number / 10) for number in range(11)]
    assert pauses == sorted(set(pauses))
    assert pauses[-1] - pauses[0] == pytest.approx(360)


def test_a_database_that_is_away_is_asked_again_after_a_minute() -> None:
    assert pause_s(86_400, chance=0.5, failed=True) == 60
    assert pause_s(60, chance=1.0, failed=True) == 63


@pytest.mark.parametrize("every_s", [0, 59.9, -3_600, MAX_INTERVAL_S + 1, float("nan"), True])
def test_intervals_out_of_range_are_refused(every_s: Any) -> None:
    with pytest.raises(ConfigurationError, match="every_s is"):
        check_interval(every_s)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("60s", 60), ("30m", 1_800), (" 1H ", 3_600), ("1 d", 86_400), ("30d", 2_592_000)],
)
def test_an_interval_is_a_number_and_a_unit(given: str, seconds: int) -> None:
    assert seconds_of(given) == seconds


@pytest.mark.parametrize("given", ["", "1", "h", "59s", "31d", "1.5h", "-1h", "1h30m", "1 week"])
def test_any_other_is_told_with_examples(given: str) -> None:
    with pytest.raises(CliError, match=r"--every is .* for example 30m, 1h or 1d"):
        seconds_of(given)
