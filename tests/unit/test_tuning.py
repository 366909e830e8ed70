"""Tuning: chosen on one half, believed only where the other half agrees."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from registry.errors import ConfigurationError
from registry.evaluation import EvaluationQuestion
from registry.settings import RegistrySettings
from registry.tuning import (
    MIN_QUESTIONS,
    AskedQuestion,
    RankingSettings,
    asked_question,
    ranked_names,
    tuned,
    widest,
)

DEFAULTS = RankingSettings(word_weight=0.4, clauses=True)
NAMES = tuple(f"tool_{number}" for number in range(12))


def question(number: int, right: str) -> EvaluationQuestion:
    return EvaluationQuestion(id=f"q{number}", text=f"question {number}", groups=((right,),))


def by_words(number: int) -> AskedQuestion:
    """A question whose right tool is last by its vector, and first by its words: barely."""
    cosine = np.linspace(0.9, 0.3, 12)[None, :]
    bm25 = np.zeros((1, 12))
    bm25[0, 11] = 3.0
    return AskedQuestion(
        question=question(number, NAMES[11]),
        names=NAMES,
        cosine=cosine,
        bm25=bm25,
        bonus=np.zeros(12),
        last=np.zeros(12, dtype=bool),
    )


def misled(number: int, bm25_of_others: float = 9.0) -> AskedQuestion:
    """A question whose right tool is first by its vector, and which words lead astray."""
    bm25 = np.full((1, 12), bm25_of_others)
    bm25[0, 0] = 0.0
    return AskedQuestion(
        question=question(number, NAMES[0]),
        names=NAMES,
        cosine=np.linspace(0.9, 0.3, 12)[None, :],
        bm25=bm25,
        bonus=np.zeros(12),
        last=np.zeros(12, dtype=bool),
    )


def indifferent(number: int) -> AskedQuestion:
    cosine = np.linspace(0.9, 0.3, 12)[None, :]
    return AskedQuestion(
        question=question(number, NAMES[0]),
        names=NAMES,
        cosine=cosine,
        bm25=np.zeros((1, 12)),
        bonus=np.zeros(12),
        last=np.zeros(12, dtype=bool),
    )


def compound(number: int) -> AskedQuestion:
    """A question whose one clause leads astray: five tools are nearer to it than the right one."""
    whole = np.array([0.52] * 5 + [0.0] * 2 + [0.50] * 5)
    clause = np.array([0.1] * 7 + [0.9] * 5)
    return AskedQuestion(
        question=question(number, NAMES[3]),
        names=NAMES,
        cosine=np.array([whole, clause, clause]),
        bm25=np.zeros((3, 12)),
        bonus=np.zeros(12),
        last=np.zeros(12, dtype=bool),
    )


def many(make: Callable[[int], AskedQuestion], count: int = 60) -> list[AskedQuestion]:
    return [make(number) for number in range(count)]


def test_words_that_find_the_right_tool_get_more_weight() -> None:
    report = tuned(many(by_words), k=1)
    assert report.chosen.word_weight > 0.4
    assert report.chosen.clauses
    assert report.recommended == report.chosen
    assert report.comparison.recall_before == 0
    assert report.comparison.recall_after == 1
    assert report.comparison.low > 0
    assert report.comparison.p_value < 0.05
    # Of those that find as much, the one nearest to the defaults.
    best = [trial.settings for trial in report.trials if trial.recall == 1]
    assert best[0] == report.chosen
    assert report.chosen.word_weight == min(s.word_weight for s in best)


def test_words_that_mislead_get_none_or_little() -> None:
    report = tuned(many(misled), k=1)
    assert report.chosen.word_weight < 0.4
    assert report.recommended == report.chosen


def test_clauses_that_mislead_are_switched_off() -> None:
    report = tuned(many(compound), k=5)
    assert not report.chosen.clauses
    assert report.chosen.word_weight == 0.4
    assert report.recommended == report.chosen


def test_where_nothing_matters_the_defaults_stay() -> None:
    report = tuned(many(indifferent), k=5)
    assert report.chosen == report.recommended == report.defaults == DEFAULTS
    assert report.comparison.difference == 0
    assert report.comparison.p_value == 1


def test_what_is_better_by_chance_is_not_recommended() -> None:
    """Two questions of sixty want more words: best on one half, no proof on the other."""
    chosen_otherwise = 0
    for start in range(0, 2_000, 60):
        asked = [indifferent(start + n) for n in range(58)]
        asked += [by_words(start + 58), by_words(start + 59)]
        report = tuned(asked, k=1)
        assert report.recommended == DEFAULTS
        chosen_otherwise += report.chosen != DEFAULTS
    assert chosen_otherwise > 10


def test_noise_is_hardly_ever_taken_for_a_finding() -> None:
    recommended = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        asked = [
            AskedQuestion(
                question=question(number, NAMES[int(rng.integers(12))]),
                names=NAMES,
                cosine=rng.normal(size=(3, 12)),
                bm25=rng.exponential(size=(3, 12)),
                bonus=np.zeros(12),
                last=np.zeros(12, dtype=bool),
            )
            for number in range(60)
        ]
        recommended += tuned(asked, k=3).recommended != DEFAULTS
    assert recommended <= 3


def test_the_half_that_checks_is_not_looked_at_to_choose() -> None:
    asked = many(by_words)
    before = tuned(asked, k=1)
    checked = {change.id for change in before.comparison.better}
    assert len(checked) == 30
    turned = [
        misled(n, 0.5) if each.question.id in checked else each for n, each in enumerate(asked)
    ]
    after = tuned(turned, k=1)
    assert after.trials == before.trials
    assert after.chosen == before.chosen
    assert after.recommended == DEFAULTS, "the other half says the opposite"
    assert after.comparison.difference < 0


def test_the_halves_do_not_depend_on_the_order() -> None:
    asked = [by_words(n) if n % 3 else misled(n) for n in range(81)]
    shuffled = list(asked)
    random.Random(4).shuffle(shuffled)
    one, other = tuned(asked, k=1), tuned(shuffled, k=1)
    assert (one.chosen, one.recommended) == (other.chosen, other.recommended)
    assert one.comparison.questions == other.comparison.questions == 41
    assert one.comparison.difference == pytest.approx(other.comparison.difference)


def test_too_few_questions() -> None:
    few = many(indifferent, MIN_QUESTIONS - 1)
    with pytest.raises(ConfigurationError, match=r"39 of the questions .* at least 40"):
        tuned(few, k=5)
    assert tuned([*few, indifferent(99)], k=5, left_out=7).left_out == 7


def test_the_grid_goes_from_vectors_alone_to_twice_the_words() -> None:
    trials = tuned(many(indifferent), k=5).trials
    weights = {trial.settings.word_weight for trial in trials}
    assert (min(weights), max(weights)) == (0, 2)
    assert len(trials) == len({trial.settings for trial in trials}) == 2 * len(weights)


def test_rows_in_any_order_become_one_ranking() -> None:
    rows = [
        {
            "tool_name": name,
            "category": "a" if n % 2 else "b",
            "fallback": n == 3,
            "distance_0": (n % 3) / 10,
            "words_0": float(n),
        }
        for n, name in enumerate(NAMES)
    ]
    asked = question(0, NAMES[0])
    one = asked_question(asked, rows, 1, bonus_of={"a": 0.5})
    other = asked_question(asked, rows[::-1], 1, bonus_of={"a": 0.5})
    assert one.names == other.names
    assert one.names[:4] == ("tool_0", "tool_3", "tool_6", "tool_9")
    assert list(one.bonus[:4]) == [0, 0.5, 0, 0.5]
    assert list(one.cosine[0][:5]) == [1, 1, 1, 1, 0.9]
    assert list(one.bm25[0][:4]) == [0, 3, 6, 9]
    assert list(one.last[:4]) == [False, True, False, False]
    ranking = ranked_names(one, DEFAULTS, k=12)
    assert ranking == ranked_names(other, DEFAULTS, k=12)
    assert ranking[-1] == "tool_3", "a fallback tool"
    assert ranked_names(one, DEFAULTS, k=11) == ranking[:11]


def test_a_question_without_candidates_finds_nothing() -> None:
    empty = asked_question(question(0, "tool"), [], 2, bonus_of={})
    assert ranked_names(empty, DEFAULTS, k=5) == ()


def test_candidates_are_fetched_for_every_setting() -> None:
    assert widest(RegistrySettings(word_weight=0, clauses=False)) == {
        "word_weight": 0.4,
        "clauses": True,
    }
    assert widest(RegistrySettings(word_weight=1.5))["word_weight"] == 1.5
