"""Relevance: what evidence is made of, and where recorded calls put its zero."""

from __future__ import annotations

import numpy as np
import pytest

from registry.anchors import ANCHORS
from registry.relevance import (
    LEAST_CALLS,
    ZERO,
    Calibration,
    Scale,
    evidence,
    null_evidence,
    relevance,
    scale_of,
    traffic_of,
    without_own,
    zero_of_calls,
)

SHARE = np.array([1.0, 0.5, 0.1])
COVERED = np.array([0.2, 0.0, 0.4, 0.0, 0.1, 0.0])
COSINE = np.array([0.31, 0.28, 0.22, 0.2, 0.11, -0.05])


def normal(mean: float, deviation: float, *, count: int = 4_000, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, deviation, count)


def test_the_anchors_are_distinct() -> None:
    tools, questions = zip(*ANCHORS, strict=True)
    assert len(set(tools)) == len(set(questions)) == len(ANCHORS) == 120


@pytest.mark.parametrize("shift", [0.0, 0.78])
@pytest.mark.parametrize("stretch", [1.0, 0.3])
def test_ret_3_where_a_models_cosines_lie_changes_nothing(shift: float, stretch: float) -> None:
    """RET-3: cosines from 0.75 to 0.9, as some models give, mean what those from 0 to 0.5 do."""
    expected = evidence(COSINE, COVERED, SHARE, Scale(center=0.03, spread=0.06))
    scale = Scale(center=0.03 * stretch + shift, spread=0.06 * stretch)
    found = evidence(COSINE * stretch + shift, COVERED, SHARE, scale)
    assert found == pytest.approx(expected)


def test_the_scale_is_that_of_strangers_alone() -> None:
    rng = np.random.default_rng(3)
    questions, tools = rng.normal(size=(2, 40, 64))
    tools[:, 0] += 3
    questions[:, 0] += 3
    for vectors in (questions, tools):
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = questions @ tools.T
    strangers = [cosines[q, t] for q in range(40) for t in range(40) if q != t]
    scale = scale_of(questions, tools)
    assert (scale.center, scale.spread) == pytest.approx((np.mean(strangers), np.std(strangers)))
    # A model that tells nothing apart must not turn noise into evidence.
    assert scale_of(np.ones((4, 1)), np.ones((4, 1))).spread == 0.01


def test_zero_is_where_the_default_threshold_lies() -> None:
    by = Calibration(scale=Scale(center=0.0, spread=0.1), null=3.0, zero=0.4)
    below, at, above = relevance(np.array([3.0, 3.4, 3.8]), by)
    assert below < 0.6 < above
    assert at == pytest.approx(0.6)


def test_questions_that_a_catalogue_has_tools_for_do_not_raise_its_null() -> None:
    without = list(normal(2.0, 0.5, count=80))
    null = null_evidence(without)
    with_tools = without[:60] + [value + 4 for value in without[60:]]
    assert null_evidence(with_tools) - null < 0.25
    assert null_evidence([value + 1 for value in without]) == pytest.approx(null + 1)


def test_a_question_is_no_part_of_its_own_traffic() -> None:
    questions = np.random.default_rng(4).normal(size=(50, 16))
    questions /= np.linalg.norm(questions, axis=1, keepdims=True)
    own = float(questions[7] @ traffic_of(questions))
    others = float(questions[7] @ traffic_of(np.delete(questions, 7, axis=0)))
    assert without_own(own, 50) == pytest.approx(others)
    assert own > others


class TestZeroOfCalls:
    def test_too_few_calls_say_nothing(self) -> None:
        calls = list(normal(5, 1, count=LEAST_CALLS))
        assert zero_of_calls(calls[:-1], filtered=0) == ZERO
        assert zero_of_calls([], filtered=0) == ZERO
        assert zero_of_calls(calls, filtered=0) != ZERO

    @pytest.mark.parametrize("mean", [1.9, 2.2, 2.6])
    def test_about_96_percent_of_the_called_tools_stay(self, mean: float) -> None:
        calls = normal(mean, 1)
        zero = zero_of_calls(list(calls), filtered=0)
        assert np.mean(calls >= zero) == pytest.approx(0.96, abs=0.01)

    def test_the_fewer_the_calls_the_nearer_to_the_prior(self) -> None:
        calls = list(normal(2.8, 1))
        zeros = [zero_of_calls(calls[:count], filtered=0) for count in (40, 400, 4_000)]
        assert ZERO < zeros[0] < zeros[1] < zeros[2]

    @pytest.mark.parametrize(("mean", "bound"), [(30.0, 1.3), (-30.0, -0.3)])
    def test_however_calls_were_recorded_it_stays_in_bounds(
        self, mean: float, bound: float
    ) -> None:
        assert zero_of_calls(list(normal(mean, 1)), filtered=0) == bound

    def test_a_tenth_of_calls_without_any_evidence_costs_little(self) -> None:
        calls = normal(2.6, 1)
        before = zero_of_calls(list(calls), filtered=0)
        calls[::10] = -3.0
        assert before - zero_of_calls(list(calls), filtered=0) < 0.6

    @pytest.mark.parametrize("mean", [1.9, 2.2, 2.6])
    @pytest.mark.parametrize("deviation", [0.9, 1.2])
    def test_it_does_not_climb_behind_its_own_threshold(
        self, mean: float, deviation: float
    ) -> None:
        """What a zero hid is never recorded; measured again and again, it must not rise with it."""
        right = normal(mean, deviation)
        zero, climbing = ZERO, ZERO
        for _ in range(12):
            zero = zero_of_calls(list(right[right >= zero]), filtered=1)
            climbing = float(np.quantile(right[right >= climbing], 0.04))
        assert np.mean(right >= zero) >= 0.95
        assert np.mean(right >= climbing) < 0.75, "what it would do, were it put at their 4 %"
