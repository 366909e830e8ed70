"""Measures by hand and by property; intervals, the paired test, flat names and floors."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import ConfigurationError, EmbeddingUnavailableError
from registry.evaluation import (
    EvaluationQuestion,
    Missed,
    Outcome,
    QuestionResult,
    aevaluate,
    compare,
    evaluate,
    flat_comparison,
    judged,
    missed_floors,
    outcome_of,
    summarise,
    unknown_metrics,
)
from registry.evaluation.metrics import (
    completeness_at,
    ndcg_at,
    ranks_of,
    recall_at,
    reciprocal_rank,
)
from registry.evaluation.statistics import bootstrap_ratios, permutation_p_value
from registry.types import ToolSelection

NAMES = [f"t{number}" for number in range(12)]


@dataclass(frozen=True)
class Hit:
    tool_name: str
    relevance: float


def question(
    *groups: str | tuple[str, ...], id: str = "q", text: str = "?", lang: str = "", split: str = ""
) -> EvaluationQuestion:
    right = tuple((group,) if isinstance(group, str) else group for group in groups)
    return EvaluationQuestion(id=id, text=text, groups=right, lang=lang, split=split)


def result(
    asked: EvaluationQuestion,
    *names: str,
    relevance: float = 0.9,
    k: int = 5,
    threshold: float = 0.6,
    latency_ms: float = 1.0,
) -> QuestionResult:
    hits = [Hit(name, relevance) for name in names]
    return judged(asked, hits, k=k, threshold=threshold, latency_ms=latency_ms)


class TestMeasures:
    def test_by_hand(self) -> None:
        ranks = ranks_of([("a",), ("b", "c"), ("d",)], ["x", "c", "y", "a", "b", "z"])
        assert ranks == (4, 2, None)
        assert [recall_at(ranks, k) for k in (1, 2, 3, 4, 10)] == [0, 1 / 3, 1 / 3, 2 / 3, 2 / 3]
        assert completeness_at(ranks, 10) == 0
        assert completeness_at(ranks[:2], 4) == 1
        assert completeness_at(ranks[:2], 3) == 0
        assert reciprocal_rank(ranks) == 0.5
        gain = 1 / math.log2(3) + 1 / math.log2(5)
        best = 1 + 1 / math.log2(3) + 1 / 2
        assert ndcg_at(ranks, 5) == pytest.approx(gain / best)
        assert ndcg_at(ranks, 2) == pytest.approx((1 / math.log2(3)) / (1 + 1 / math.log2(3)))

    def test_a_group_counts_once_however_many_of_its_names_are_found(self) -> None:
        ranks = ranks_of([("a", "b"), ("c",)], ["a", "b", "x", "y", "z"])
        assert ranks == (1, None)
        assert recall_at(ranks, 5) == 0.5
        assert ndcg_at(ranks, 5) < 1

    def test_one_hit_may_answer_two_groups_and_no_measure_exceeds_one(self) -> None:
        ranks = ranks_of([("a", "b"), ("a", "c")], ["a"])
        assert ranks == (1, 1)
        assert recall_at(ranks, 1) == completeness_at(ranks, 1) == ndcg_at(ranks, 5) == 1

    def test_nothing_found_is_zero_everywhere(self) -> None:
        ranks = ranks_of([("a",)], ["x"])
        assert recall_at(ranks, 10) == completeness_at(ranks, 10) == ndcg_at(ranks, 10) == 0
        assert reciprocal_rank(ranks) == 0

    @given(
        found=st.permutations(NAMES),
        groups=st.lists(
            st.lists(st.sampled_from([*NAMES, "absent"]), min_size=1, max_size=3),
            min_size=1,
            max_size=6,
        ),
    )
    def test_properties(self, found: list[str], groups: list[list[str]]) -> None:
        ranks = ranks_of(groups, found)
        for measure in (recall_at, completeness_at, ndcg_at):
            values = [measure(ranks, k) for k in range(1, 13)]
            assert all(0 <= value <= 1 for value in values)
        for measure in (recall_at, completeness_at):
            values = [measure(ranks, k) for k in range(1, 13)]
            assert values == sorted(values)
        assert 0 <= reciprocal_rank(ranks) <= 1
        assert all(completeness_at(ranks, k) <= recall_at(ranks, k) for k in range(1, 13))

    @given(right=st.lists(st.sampled_from(NAMES), min_size=1, max_size=8, unique=True))
    def test_a_perfect_ranking_is_one(self, right: list[str]) -> None:
        others = [name for name in NAMES if name not in right]
        ranks = ranks_of([(name,) for name in right], [*right, *others])
        assert recall_at(ranks, 8) == completeness_at(ranks, 8) == reciprocal_rank(ranks) == 1
        assert all(ndcg_at(ranks, k) == pytest.approx(1) for k in range(1, 13))

    @given(
        found=st.permutations(NAMES), right=st.sets(st.sampled_from(NAMES), min_size=1, max_size=4)
    )
    def test_ndcg_falls_when_a_right_tool_moves_down(
        self, found: list[str], right: set[str]
    ) -> None:
        groups = [(name,) for name in sorted(right)]
        place = min(found.index(name) for name in right)
        moved = found[:place] + found[place + 1 :] + [found[place]]
        assert ndcg_at(ranks_of(groups, moved), 12) <= ndcg_at(ranks_of(groups, found), 12) + 1e-12


class TestIntervals:
    def test_the_interval_is_about_that_of_the_normal_approximation(self) -> None:
        share, count = 0.3, 2_000
        values = np.zeros((count, 1))
        values[: int(share * count)] = 1
        low, high = bootstrap_ratios(values, np.ones_like(values))[:, 0]
        half = 1.96 * math.sqrt(share * (1 - share) / count)
        assert low == pytest.approx(share - half, abs=0.003)
        assert high == pytest.approx(share + half, abs=0.003)

    def test_it_covers_the_truth_about_95_times_in_a_hundred(self) -> None:
        rng = np.random.default_rng(7)
        covered = 0
        for _ in range(200):
            sample = (rng.random((150, 1)) < 0.4).astype(float)
            low, high = bootstrap_ratios(sample, np.ones_like(sample), resamples=300)[:, 0]
            covered += low <= 0.4 <= high
        assert 180 <= covered <= 199

    def test_equal_results_give_equal_figures(self) -> None:
        values = np.arange(50, dtype=float)[:, None] % 2
        one, two = (bootstrap_ratios(values, np.ones_like(values)) for _ in range(2))
        assert (one == two).all()

    def test_weights_make_a_ratio_of_sums(self) -> None:
        values = np.array([[1.0], [0.0], [3.0]])
        weights = np.array([[1.0], [0.0], [3.0]])
        assert bootstrap_ratios(values, weights)[:, 0].tolist() == [1, 1]
        nothing = bootstrap_ratios(np.zeros((3, 1)), np.zeros((3, 1)))
        assert np.isnan(nothing).all()

    def test_ten_thousand_questions_take_less_than_a_second(self) -> None:
        values = np.random.default_rng(1).random((10_000, 11))
        best = math.inf
        for _ in range(3):  # the machine may be busy with other tests
            began = time.process_time()
            bootstrap_ratios(values, np.ones_like(values))
            best = min(best, time.process_time() - began)
        assert best < 1


class TestPairedTest:
    @pytest.mark.parametrize(("gained", "lost"), [(8, 0), (9, 1), (12, 4), (5, 5), (30, 12)])
    def test_equal_sizes_make_it_the_sign_test(self, gained: int, lost: int) -> None:
        count = gained + lost
        tail = sum(math.comb(count, more) for more in range(max(gained, lost), count + 1))
        exact = min(1.0, 2 * tail / 2**count)
        p = permutation_p_value([0.5] * gained + [-0.5] * lost + [0.0] * 40)
        assert p == pytest.approx(exact, abs=0.005)

    def test_sizes_count_against_every_assignment_of_signs(self) -> None:
        differences = [1.0, 0.5, 1 / 3, -0.25, 0.2, 1 / 3, -1.0, 0.5]
        observed = abs(sum(differences))
        signs = np.array(np.meshgrid(*[[-1, 1]] * len(differences))).reshape(len(differences), -1)
        exact = float(np.mean(np.abs(np.array(differences) @ signs) >= observed - 1e-9))
        assert permutation_p_value(differences) == pytest.approx(exact, abs=0.005)

    def test_no_difference_is_no_evidence(self) -> None:
        assert permutation_p_value([0.0, 0.0]) == 1
        assert permutation_p_value([]) == 1

    @given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 1 / 3, 1.0]), max_size=30))
    def test_the_sign_of_all_does_not_matter(self, differences: list[float]) -> None:
        p = permutation_p_value(differences)
        assert 0 < p <= 1
        assert p == permutation_p_value([-d for d in differences])


class TestSummary:
    def test_figures_by_hand(self) -> None:
        results = [
            result(question("a", id="1", lang="en"), "a", "b", "c", latency_ms=1),
            result(question("a", "b", id="2", lang="en"), "x", "b", "y", latency_ms=2),
            result(question("a", id="3", lang="de"), "x", relevance=0.1, latency_ms=3),
            result(question(id="4", lang="de"), "x", "y", relevance=0.5, latency_ms=4),
            result(question(id="5", lang="de"), "x", "y", relevance=0.7, latency_ms=5),
        ]
        tokens = {"a": 10, "b": 20, "c": 30, "x": 40, "y": 50}
        metrics = summarise(results, k=5, threshold=0.6, tool_tokens=tokens).metrics
        assert metrics["questions"] == 5
        assert metrics["questions_no_tool"] == 2
        assert metrics["recall@1"] == pytest.approx(1 / 3)
        assert metrics["recall@5"] == pytest.approx((1 + 0.5 + 0) / 3)
        assert metrics["completeness@5"] == pytest.approx(1 / 3)
        assert metrics["mrr"] == pytest.approx((1 + 0.5) / 3)
        assert metrics["rejected_share"] == 0.5
        assert metrics["kept_share"] == 1
        assert metrics["latency_ms_p50"] == 3
        assert metrics["tokens_all"] == 150
        # a b c; x b y; nothing twice; x y
        assert metrics["tokens_offered"] == (60 + 110 + 0 + 0 + 90) / 5
        assert metrics["tokens_offered_share"] == pytest.approx(52 / 150)
        assert metrics["questions[lang=de]"] == 3
        assert metrics["recall@5[lang=en]"] == 0.75
        assert metrics["recall@5[lang=de]"] == 0
        assert "rejected_share[lang=en]" not in metrics
        assert metrics["rejected_share[lang=de]"] == 0.5
        assert not [name for name in metrics if "split" in name]
        assert metrics["labels_unknown"] == 0

    def test_a_figure_lies_within_its_interval(self) -> None:
        results = [
            result(question("a", id=str(n), split="even" if n % 2 else "odd"), *NAMES[n % 7 :], "a")
            for n in range(60)
        ]
        metrics = summarise(results, k=7, threshold=0.6).metrics
        measured = [name for name in metrics if "_low" in name]
        assert "recall@7_low[split=odd]" in measured
        assert "ndcg@7_low" in measured
        for name in measured:
            low, high = metrics[name], metrics[name.replace("_low", "_high")]
            value = metrics[name.replace("_low", "")]
            if name.startswith("kept_share"):
                continue
            assert low is not None
            assert high is not None
            assert value is not None
            assert low <= value <= high

    def test_kept_is_what_the_threshold_leaves_of_the_right_tools_found(self) -> None:
        asked = question("a", ("b", "c"), "d")
        hits = [Hit("a", 0.9), Hit("b", 0.5), Hit("c", 0.7), Hit("x", 0.65), Hit("d", 0.2)]
        judged_result = judged(asked, hits, k=5, threshold=0.6, latency_ms=1)
        assert judged_result.offered == ("a", "c", "x")
        metrics = summarise([judged_result], k=5, threshold=0.6).metrics
        assert metrics["kept_share"] == pytest.approx(2 / 3)

    def test_what_nothing_defines_is_none(self) -> None:
        metrics = summarise([result(question("a"), "x")], k=5, threshold=0.6).metrics
        assert metrics["kept_share"] is None
        assert metrics["kept_share_low"] is None
        assert "rejected_share" not in metrics
        only_no_tool = summarise([result(question(), "x")], k=5, threshold=0.6).metrics
        assert "recall@5" not in only_no_tool
        assert only_no_tool["rejected_share"] == 0

    def test_right_answers_that_no_tool_is_are_counted(self) -> None:
        results = [result(question("gone", ("gone", "a")), "a"), result(question("lost"), "a")]
        metrics = summarise(results, k=5, threshold=0, tool_tokens={"a": 1}).metrics
        assert metrics["labels_unknown"] == 2

    def test_no_results_are_refused(self) -> None:
        with pytest.raises(ValueError, match="no results"):
            summarise([], k=5, threshold=0.6)


class TestComparison:
    def outcomes(self, *ranks: int | None, text: str = "?") -> list[Outcome]:
        return [
            Outcome(id=f"q{n}", text=text, groups=(("a",),), names=("a",), ranks=(rank,))
            for n, rank in enumerate(ranks)
        ]

    def test_difference_and_changed_questions(self) -> None:
        before = self.outcomes(1, 1, None, 9, 2, 5)
        after = self.outcomes(2, None, 3, 1, 6, 5)
        compared = compare(before, after, k=5)
        assert (compared.questions, compared.left_out) == (6, 0)
        assert compared.recall_before == compared.recall_after == pytest.approx(4 / 6)
        assert compared.difference == 0
        assert compared.low < 0 < compared.high
        assert compared.p_value == pytest.approx(1, abs=0.01)
        assert [change.id for change in compared.worse] == ["q1", "q4"]
        assert [change.id for change in compared.better] == ["q2", "q3"]
        flat = flat_comparison(compared)
        assert flat["recall@5_difference"] == 0
        assert flat["compared_questions"] == 6

    def test_a_clear_gain_is_significant_and_the_same_run_is_not(self) -> None:
        before, after = self.outcomes(*[None] * 40, *[1] * 60), self.outcomes(*[1] * 100)
        gain = compare(before, after, k=5)
        assert gain.difference == pytest.approx(0.4)
        assert gain.low > 0.3
        assert gain.p_value < 0.001
        same = compare(after, after, k=5)
        assert (same.difference, same.low, same.high, same.p_value) == (0, 0, 0, 1)

    def test_the_most_changed_come_first(self) -> None:
        def three(rank: int | None, other: int | None, id: str) -> Outcome:
            groups = (("a",), ("b",))
            return Outcome(id=id, text="?", groups=groups, names=(), ranks=(rank, other))

        before = [three(1, 2, "half"), three(1, 2, "all")]
        after = [three(1, None, "half"), three(None, None, "all")]
        assert [change.id for change in compare(before, after, k=5).worse] == ["all", "half"]

    def test_only_the_same_questions_are_compared(self) -> None:
        before = [*self.outcomes(1, 1), *self.outcomes(1, 1, 1, text="other words")[2:]]
        after = self.outcomes(1, None, 1, 1)
        compared = compare(before, after, k=5)
        assert (compared.questions, compared.left_out) == (2, 2)
        other = [Outcome(id="q0", text="?", groups=(("b",),), names=(), ranks=(1,))]
        with pytest.raises(ValueError, match="share no question"):
            compare(other, after, k=5)

    def test_the_order_within_groups_makes_no_other_question(self) -> None:
        one = Outcome(id="q", text="?", groups=(("a", "b"), ("c",)), names=(), ranks=(1, None))
        two = Outcome(id="q", text="?", groups=(("c",), ("b", "a")), names=(), ranks=(None, 1))
        assert compare([one], [two], k=5).difference == 0


class TestFloors:
    def test_minimums_and_maximums(self) -> None:
        metrics = {
            "recall@5": 0.75,
            "recall@5_low": 0.7,
            "latency_ms_p50": 5.0,
            "tokens_offered": 400.0,
            "labels_unknown": 1.0,
            "kept_share": None,
        }
        assert not missed_floors(
            metrics, {"recall@5": 0.75, "latency_ms_p50": 5, "tokens_offered": 400}
        )
        floors = {
            "recall@5": 0.751,
            "recall@5_low": 0.1,
            "latency_ms_p50": 4.9,
            "labels_unknown": 0,
            "kept_share": 0.0,
        }
        assert missed_floors(metrics, floors) == [
            Missed(metric="recall@5", value=0.75, allowed=0.751),
            Missed(metric="latency_ms_p50", value=5.0, allowed=4.9),
            Missed(metric="labels_unknown", value=1.0, allowed=0),
            Missed(metric="kept_share", value=None, allowed=0.0),
        ]

    def test_unknown_names_come_with_the_nearest(self) -> None:
        known = ["recall@5", "recall@10", "ndcg@5"]
        assert unknown_metrics(["recall@5"], known) == {}
        (nearest,) = unknown_metrics(["recal@5"], known).values()
        assert nearest[0] == "recall@5"


class Searching:
    """A registry of fixed answers that notes how it was asked."""

    threshold = 0.5

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, float | None]] = []

    def search(self, query: str, *, k: int = 5, threshold: float | None = None) -> Sequence[Hit]:
        self.asked.append((query, k, threshold))
        return [Hit(name, 1 - 0.2 * place) for place, name in enumerate(query.split())][:k]


class AsyncSearching(Searching):
    async def search(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, query: str, *, k: int = 5, threshold: float | None = None
    ) -> Sequence[Hit]:
        return super().search(query, k=k, threshold=threshold)


QUESTIONS = [question("a", id="1", text="a b c d"), question("d", id="2", text="c b a d")]


class TestAsking:
    def test_every_question_is_asked_once_to_the_depth_needed(self) -> None:
        registry, done = Searching(), list[int]()
        evaluation = evaluate(registry, QUESTIONS, k=2, on_progress=done.append)
        # The first search, which opens connections, is of no question.
        assert registry.asked[1:] == [("a b c d", 10, 0), ("c b a d", 10, 0)]
        assert done == [1, 2]
        assert evaluation.metrics["recall@2"] == 0.5
        assert evaluation.metrics["recall@5"] == 1
        assert [r.offered for r in evaluation.results] == [("a", "b"), ("c", "b")]
        assert all(r.latency_ms > 0 for r in evaluation.results)
        assert evaluation.threshold == 0.5
        evaluate(registry, QUESTIONS, k=20)
        assert registry.asked[-1] == ("c b a d", 20, 0)

    async def test_both_ways_of_asking_come_to_the_same(self) -> None:
        one = evaluate(Searching(), QUESTIONS, tool_tokens={"a": 3})
        two = await aevaluate(AsyncSearching(), QUESTIONS, tool_tokens={"a": 3})
        timed = ("latency_ms_p50", "latency_ms_p95")
        assert {n: v for n, v in one.metrics.items() if n not in timed} == {
            n: v for n, v in two.metrics.items() if n not in timed
        }
        assert list(map(outcome_of, one.results)) == list(map(outcome_of, two.results))

    async def test_no_questions_are_refused_before_anything_is_asked(self) -> None:
        registry = Searching()
        with pytest.raises(ConfigurationError, match="no questions"):
            evaluate(registry, [])
        with pytest.raises(ConfigurationError, match="no questions"):
            await aevaluate(AsyncSearching(), [])
        assert not registry.asked

    @pytest.mark.parametrize(
        ("questions", "k", "message"),
        [
            (QUESTIONS, 0, "k is 0; it must be a whole number from 1 to 1000"),
            (QUESTIONS, 1_001, "k is 1001"),
            (QUESTIONS, True, "k is True"),
            (QUESTIONS, "5", "k is '5'"),
            (None, 5, "questions is a NoneType; give a list of EvaluationQuestion"),
            ("What?", 5, "questions is a str"),
            (["What?"], 5, "questions holds a str"),
        ],
    )
    async def test_arguments_that_are_none_are_named(
        self, questions: Any, k: Any, message: str
    ) -> None:
        registry = Searching()
        with pytest.raises(ConfigurationError, match=re.escape(message)):
            evaluate(registry, questions, k=k)
        with pytest.raises(ConfigurationError, match=re.escape(message)):
            await aevaluate(AsyncSearching(), questions, k=k)
        assert not registry.asked

    async def test_what_words_find_alone_is_not_measured(self) -> None:
        """Else the figures of an outage would pass for those of the registry."""
        away = ToolSelection(
            hits=(),
            exempt=frozenset(),
            strategy="hybrid",
            categories=(),
            threshold=0,
            words_alone_reason="no answer within 10 s",
        )

        class Away(Searching):
            def select(self, *_: object, **__: object) -> ToolSelection:
                return away

        class AsyncAway(AsyncSearching):
            async def select(self, *_: object, **__: object) -> ToolSelection:
                return away

        with pytest.raises(EmbeddingUnavailableError, match="no answer within 10 s"):
            evaluate(Away(), QUESTIONS)
        with pytest.raises(EmbeddingUnavailableError, match="no answer within 10 s"):
            await aevaluate(AsyncAway(), QUESTIONS)

    @pytest.mark.parametrize("groups", ["name", ("name",), (("a", 3),), ((),), None, (("a",), "b")])
    def test_a_text_is_no_group_of_names(self, groups: Any) -> None:
        """Its letters would be the right tools, and the question counted as missed."""
        with pytest.raises(ConfigurationError, match="groups of question 'q' is "):
            EvaluationQuestion(id="q", text="?", groups=groups)
