"""What decides about learning, without a database."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import ConfigurationError
from registry.learning import (
    GateVerdict,
    LearningSettings,
    Replayed,
    gate,
    neutral_share,
    refusal,
    replays,
)

ranks = st.integers(1, 300)
replayed = st.builds(
    Replayed,
    session=st.sampled_from("abcdefgh"),
    tool_name=st.sampled_from(["one", "two", "three"]),
    before=ranks,
    after=ranks,
)


def asked(session: int, before: int, after: int, tool: str = "tool") -> Replayed:
    return Replayed(session=str(session), tool_name=tool, before=before, after=after)


class TestNeutralShare:
    @pytest.mark.parametrize(
        ("used", "unused", "share"),
        [
            (0, 0, 1.0),
            (0, 500, 1.0),
            (10, 0, 1.0),
            (10, 40, 1.0),
            (10, 500, -1.0),
            (10, 9_000, -1.0),
            (100, 1_414, 0.0),  # half-way on the logarithmic scale
        ],
    )
    def test_known_points(self, used: int, unused: int, share: float) -> None:
        assert neutral_share(used, unused) == pytest.approx(share, abs=1e-3)

    @given(st.integers(0, 10**6), st.integers(0, 10**6))
    def test_it_stays_between_one_and_minus_one(self, used: int, unused: int) -> None:
        assert -1 <= neutral_share(used, unused) <= 1

    @given(st.integers(1, 1_000), st.lists(st.integers(0, 10**6), min_size=2))
    def test_more_unused_tools_never_raise_it(self, used: int, unused: list[int]) -> None:
        shares = [neutral_share(used, number) for number in sorted(unused)]
        assert all(later <= earlier for earlier, later in pairwise(shares))

    @given(st.integers(1, 1_000), st.integers(0, 60_000))
    def test_there_is_no_jump(self, used: int, unused: int) -> None:
        step = neutral_share(used, unused) - neutral_share(used, unused + 1)
        assert 0 <= step <= 2 / math.log(12.5) / (4 * used) + 1e-9


class TestGate:
    def test_without_questions_there_is_nothing_against_it(self) -> None:
        verdict = gate([], against="descriptions")
        assert (verdict.passed, verdict.questions, verdict.hurt) == (True, 0, ())

    @given(st.lists(replayed, min_size=1))
    def test_what_moves_nothing_passes(self, calls: list[Replayed]) -> None:
        same = [asked(i, call.before, call.before) for i, call in enumerate(calls)]
        verdict = gate(same, against="previous")
        assert (verdict.passed, verdict.z, verdict.hurt) == (True, 0.0, ())
        assert verdict.mrr_before == verdict.mrr_after

    @given(st.lists(replayed, min_size=1))
    def test_what_is_better_or_equal_for_everyone_passes(self, calls: list[Replayed]) -> None:
        better = [
            asked(i, max(call.before, call.after), min(call.before, call.after))
            for i, call in enumerate(calls)
        ]
        assert gate(better, against="descriptions").passed

    @given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 50)), min_size=3))
    def test_what_is_worse_for_everyone_does_not(self, falls: list[tuple[int, int]]) -> None:
        calls = [asked(i, rank, rank + fall) for i, (rank, fall) in enumerate(falls)]
        verdict = gate(calls, against="descriptions")
        assert verdict.mrr_after < verdict.mrr_before
        # Their losses may differ so much that chance explains them; never for the better.
        assert verdict.z < 0
        equal = [asked(i, 1, 5) for i, _ in enumerate(falls)]
        assert not gate(equal, against="descriptions").passed

    @given(st.lists(replayed, min_size=1))
    def test_the_order_of_questions_does_not_matter(self, calls: list[Replayed]) -> None:
        one, other = gate(calls, against="previous"), gate(calls[::-1], against="previous")
        assert one.z == pytest.approx(other.z, rel=1e-6, abs=1e-6)
        assert (one.questions, one.sessions) == (other.questions, other.sessions)

    def test_a_session_counts_once_however_much_it_asks(self) -> None:
        honest = [asked(i, 1 + i % 3, 1) for i in range(20)]
        loud = [asked(99, 1, 200) for _ in range(5_000)]
        assert gate([*honest, *loud], against="descriptions").passed
        assert gate([*honest, *loud], against="descriptions").sessions == 21

    def test_it_names_the_tools_whose_questions_lose_most(self) -> None:
        calls = [
            asked(1, 1, 9, "robbed"),
            asked(2, 1, 2, "crowded"),
            asked(3, 2, 1, "robber"),
            asked(4, 1, 9, "robbed"),
        ]
        assert gate(calls, against="descriptions").hurt == ("robbed", "crowded")

    @given(st.lists(replayed, min_size=1))
    def test_a_tool_pulling_anothers_questions_is_weighed_against_what_it_gains(
        self, calls: list[Replayed]
    ) -> None:
        verdict = gate(calls, against="descriptions")
        change = verdict.mrr_after - verdict.mrr_before
        one_each = [asked(i, call.before, call.after) for i, call in enumerate(calls)]
        z = gate(one_each, against="descriptions").z
        assert (z > 0) == (change > 1e-12) or abs(change) < 1e-12


class TestRefusal:
    def verdict(self, *, passed: bool) -> GateVerdict:
        return gate([asked(i, 1, 1 if passed else 4) for i in range(9)], against="previous")

    def test_it_says_which_figures_and_which_tools(self) -> None:
        said = refusal([self.verdict(passed=True), self.verdict(passed=False)])
        assert "9 held-back questions of 9 sessions" in said
        assert "what serves now: mean reciprocal rank 1.000 to 0.250" in said
        assert "Most lost: tool" in said

    def test_nothing_is_said_of_good_verdicts(self) -> None:
        assert refusal([self.verdict(passed=True)]) == ""


class TestSettings:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"min_sessions": 1},
            {"min_sessions": 2.0},
            {"min_sessions": True},
            {"max_calls": 0},
            {"max_session_calls": 0},
            {"neutral": 1.1},
            {"neutral": float("nan")},
        ],
    )
    def test_what_is_out_of_range_is_refused(self, wrong: dict[str, float]) -> None:
        with pytest.raises(ConfigurationError, match=next(iter(wrong))):
            LearningSettings(**wrong)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("settings", "calls"),
        [
            (LearningSettings(), 500),
            (LearningSettings(max_session_calls=7), 7),
            (LearningSettings(max_calls=5_000), 50),
            (LearningSettings(max_calls=1), 1),
        ],
    )
    def test_no_session_has_more_than_a_hundredth(
        self, settings: LearningSettings, calls: int
    ) -> None:
        assert settings.calls_per_session == calls

    def test_replays_cost_about_the_same_in_any_registry(self) -> None:
        assert replays(0) == replays(199) == 2_000
        assert replays(50_000) == 400
        assert replays(10**6) == 200
