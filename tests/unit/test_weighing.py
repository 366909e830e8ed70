"""How much words count, from calls: surely better, or as before."""

from __future__ import annotations

import numpy as np
import pytest

from registry.weighing import LEAST_QUESTIONS, SHARES, Weighed, weighed, words_share

WEIGHT = 0.4
CANDIDATES = 20


def question(random: np.random.Generator, *, called_by: str, other: float = 6.0) -> Weighed:
    """Return a question whose called tool is found by vectors, by words or by neither."""
    standing, words = random.normal(0, 1, CANDIDATES), random.uniform(0, 3, CANDIDATES)
    called = np.zeros(CANDIDATES, dtype=bool)
    called[0] = True
    if called_by == "vectors":  # and words find a foreign tool
        standing[0], words[0], words[1] = 4.0, 0.0, other / WEIGHT
    elif called_by == "words":  # and vectors find a foreign tool
        standing[0], words[0], standing[1] = 0.0, 3.0 / WEIGHT, other
    return Weighed(standing=standing, words=words, called=called)


def many(called_by: str, count: int = LEAST_QUESTIONS, seed: int = 1) -> list[Weighed]:
    random = np.random.default_rng(seed)
    return [question(random, called_by=called_by) for _ in range(count)]


def test_words_count_less_where_vectors_find_the_called_tools() -> None:
    assert words_share(many("vectors"), word_weight=WEIGHT, before=1.0) < 0.5


def test_words_count_more_where_they_find_the_called_tools() -> None:
    assert words_share(many("words"), word_weight=WEIGHT, before=1.0) > 1.0


@pytest.mark.parametrize("before", [0.25, 1.0])
@pytest.mark.parametrize(
    "questions",
    [
        [],
        many("vectors", LEAST_QUESTIONS - 1),
        *(many("neither", 300, seed) for seed in range(5)),
    ],
    ids=["none", "too few", *(f"chance {seed}" for seed in range(5))],
)
def test_what_is_not_sure_changes_nothing(questions: list[Weighed], before: float) -> None:
    assert words_share(questions, word_weight=WEIGHT, before=before) == before


def test_without_words_there_is_nothing_to_weigh() -> None:
    assert words_share(many("words"), word_weight=0.0, before=1.0) == 1.0


def test_what_was_found_once_is_found_again() -> None:
    """A second look at the same calls does not go on moving."""
    questions = many("vectors", 200)
    found = words_share(questions, word_weight=WEIGHT, before=1.0)
    assert found in SHARES
    assert words_share(questions, word_weight=WEIGHT, before=found) == found


def test_a_question_whose_called_tools_are_no_candidates_says_nothing() -> None:
    lost = [
        Weighed(each.standing, each.words, np.zeros_like(each.called)) for each in many("words")
    ]
    assert words_share(lost, word_weight=WEIGHT, before=1.0) == 1.0


def test_candidates_come_from_the_rows_of_a_search() -> None:
    rows = [
        {"tool_name": name, "distance_0": distance, "words_0": words}
        for name, distance, words in (("far", 0.9, 2.0), ("near", 0.1, 0.0), ("between", 0.5, 1.0))
    ]
    found = weighed(rows, frozenset({"far", "elsewhere"}))
    assert found.called.tolist() == [False, False, True]
    assert found.words.tolist() == [0.0, 1.0, 2.0]
    assert (np.diff(found.standing) < 0).all()
