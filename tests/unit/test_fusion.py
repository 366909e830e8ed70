"""From cosines and words to a ranking."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from registry.fusion import CANDIDATES, Floats, Ranked, fuse


@st.composite
def found(draw: st.DrawFn, *, distinct: bool = False) -> tuple[Floats, Floats]:
    """Cosines and words of 1 to 5 parts and up to 120 candidates."""
    parts = draw(st.integers(1, 5))
    count = draw(st.integers(1, 120))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    cosine = rng.uniform(-1, 1, (parts, count))
    bm25 = np.where(rng.random((parts, count)) < 0.5, 0, rng.exponential(8, (parts, count)))
    if not distinct and draw(st.booleans()):
        cosine, bm25 = cosine.round(1), bm25.round(0)
    return cosine, bm25


def total(ranked: Ranked) -> float:
    whole = ranked.vector + ranked.words + ranked.route
    return whole + ranked.clause_vector + ranked.clause_words


@given(found(), st.floats(0, 10), st.integers(1, 150), st.booleans())
def test_the_parts_add_up_to_the_score(
    given_: tuple[Floats, Floats], word_weight: float, limit: int, routed: bool
) -> None:
    cosine, bm25 = given_
    bonus = np.arange(cosine.shape[1]) % 2 / 2 if routed else None
    ranking = fuse(cosine, bm25, word_weight=word_weight, limit=limit, bonus=bonus)
    assert len(ranking) == min(limit, cosine.shape[1])
    assert len({ranked.index for ranked in ranking}) == len(ranking)
    for ranked in ranking:
        assert total(ranked) == pytest.approx(ranked.score, rel=1e-9, abs=1e-9)
        assert ranked.words == pytest.approx(word_weight * bm25[0, ranked.index])
        assert ranked.route == (0 if bonus is None else bonus[ranked.index])
        assert (ranked.clause == 0) == (len(cosine) == 1)
        assert 0 <= ranked.clause < len(cosine)


@given(found(distinct=True), st.floats(0.1, 2), st.randoms(use_true_random=False))
def test_the_order_of_the_candidates_does_not_matter(
    given_: tuple[Floats, Floats], word_weight: float, random: object
) -> None:
    cosine, bm25 = given_
    order = list(range(cosine.shape[1]))
    random.shuffle(order)  # type: ignore[attr-defined]
    plain = fuse(cosine, bm25, word_weight=word_weight, limit=10)
    shuffled = fuse(cosine[:, order], bm25[:, order], word_weight=word_weight, limit=10)
    assert [order[ranked.index] for ranked in shuffled] == [ranked.index for ranked in plain]


@given(found(), st.integers(1, 20), st.integers(1, 20))
def test_asking_for_more_changes_nothing_before(
    given_: tuple[Floats, Floats], few: int, more: int
) -> None:
    cosine, bm25 = given_
    longer = fuse(cosine, bm25, word_weight=0.4, limit=few + more)
    assert longer[:few] == fuse(cosine, bm25, word_weight=0.4, limit=few)


@given(st.integers(1, 80), st.integers(1, 5))
def test_equal_scores_stay_in_the_order_given(count: int, parts: int) -> None:
    """All cosines equal: their spread is none, and nothing is divided by it."""
    for value in (0.3, 1.0, 0.0, -0.2):
        cosine, bm25 = np.full((parts, count), value), np.zeros((parts, count))
        ranking = fuse(cosine, bm25, word_weight=0.4, limit=count)
        assert [ranked.index for ranked in ranking] == list(range(count))
        assert all(abs(ranked.score) < 1e-6 for ranked in ranking)


def test_twins_stay_in_the_order_given() -> None:
    cosine = np.array([[0.1, 0.9, 0.5, 0.9, 0.5]])
    ranking = fuse(cosine, np.zeros_like(cosine), word_weight=0.4, limit=5)
    assert [ranked.index for ranked in ranking] == [1, 3, 2, 4, 0]


def test_words_decide_among_equal_cosines() -> None:
    cosine, bm25 = np.full((1, 4), 0.5), np.array([[0.0, 2.0, 5.0, 1.0]])
    ranking = fuse(cosine, bm25, word_weight=0.4, limit=4)
    assert [ranked.index for ranked in ranking] == [2, 1, 3, 0]


def test_a_lone_candidate() -> None:
    (only,) = fuse(np.array([[0.7]]), np.array([[3.0]]), word_weight=0.4, limit=5)
    assert (only.index, only.vector, only.words) == (0, 0.0, pytest.approx(1.2))
    (only,) = fuse(np.full((3, 1), 0.7), np.zeros((3, 1)), word_weight=0.4, limit=5)
    assert (only.index, only.score, only.clause) == (0, 0.0, 1)


@given(found(distinct=True))
def test_without_a_weight_for_words_the_order_is_that_of_the_cosines(
    given_: tuple[Floats, Floats],
) -> None:
    cosine, bm25 = given_[0][:1], given_[1][:1]
    ranking = fuse(cosine, bm25, word_weight=0, limit=200)
    # Far below the nearest, candidates are told apart no more, and stay in the order given.
    standing = {ranked.index: ranked.vector for ranked in ranking}
    order = sorted(
        range(cosine.shape[1]),
        key=lambda index: (-standing[index], -cosine[0, index] if standing[index] > -8 else 0),
    )
    assert [ranked.index for ranked in ranking] == order
    near = [index for index in order if standing[index] > -8]
    assert near == sorted(near, key=lambda index: -cosine[0, index])


@given(found(distinct=True), st.floats(0.3, 100), st.floats(-50, 50))
def test_no_constant_depends_on_the_embedding_model(
    given_: tuple[Floats, Floats], scale: float, shift: float
) -> None:
    """Cosines on another scale, as of another model, rank alike."""
    cosine, bm25 = given_
    # Below a spread of 0.01 the cosines tell nothing apart, and words are to decide.
    assume(np.sort(cosine)[:, -CANDIDATES:].std(axis=1).min() * min(scale, 1.0) > 0.01)
    plain = fuse(cosine, bm25, word_weight=0.4, limit=5)
    other = fuse(cosine * scale + shift, bm25, word_weight=0.4, limit=5)
    if cosine.shape[1] > 1:
        assert [ranked.index for ranked in other] == [ranked.index for ranked in plain]


def test_far_candidates_do_not_move_the_standing_of_near_ones() -> None:
    near = np.linspace(0.5, 0.9, CANDIDATES)[None]
    far = np.concatenate([near, np.full((1, 300), -0.5)], axis=1)
    alone = fuse(near, np.zeros_like(near), word_weight=0.4, limit=5)
    beside = fuse(far, np.zeros_like(far), word_weight=0.4, limit=5)
    assert [r.score for r in beside] == pytest.approx([r.score for r in alone])


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_every_part_of_a_compound_question_gets_its_tools(parts: int) -> None:
    """Ten tools fit each part; without shares that shrink the first part took all places."""
    count = 10 * parts + 60
    rng = np.random.default_rng(parts)
    cosine = rng.normal(0.1, 0.02, (parts + 1, count))
    for part in range(parts):
        mine = slice(10 * part, 10 * part + 10)
        # The first part's tools are nearest in all.
        cosine[part + 1, mine] += 0.5 - 0.03 * part
        cosine[0, mine] += 0.25 - 0.02 * part
    ranking = fuse(cosine, np.zeros_like(cosine), word_weight=0.4, limit=2 * parts)
    served = {ranked.index // 10 for ranked in ranking}
    assert served == set(range(parts))
    assert {ranked.clause for ranked in ranking} == set(range(1, parts + 1))


def test_the_clause_that_counted_is_the_one_that_fits_best() -> None:
    cosine = np.array([[0.5, 0.5, 0.1], [0.9, 0.1, 0.1], [0.1, 0.9, 0.1]])
    ranking = fuse(cosine, np.zeros_like(cosine), word_weight=0.4, limit=2)
    assert [(ranked.index, ranked.clause) for ranked in ranking] == [(0, 1), (1, 2)]


def test_nothing_given_is_changed() -> None:
    cosine, bm25 = np.random.default_rng(0).random((2, 3, 70))
    before = cosine.copy(), bm25.copy()
    fuse(cosine, bm25, word_weight=0.4, limit=5)
    assert np.array_equal(cosine, before[0])
    assert np.array_equal(bm25, before[1])


@given(found(), st.integers(1, 60), st.integers(0, 2**32))
def test_ret_8_the_last_come_behind_all_others_and_take_no_place(
    given_: tuple[Floats, Floats], limit: int, seed: int
) -> None:
    """RET-8: whatever their score; the others are ranked as if these stood nowhere."""
    cosine, bm25 = given_
    last = np.random.default_rng(seed).random(cosine.shape[1]) < 0.3
    ranking = fuse(cosine, bm25, word_weight=0.4, limit=limit, last=last)
    others = [ranked for ranked in ranking if not last[ranked.index]]
    assert ranking[: len(others)] == others
    assert len(others) == min(limit, (~last).sum())
    assert len(ranking) - len(others) == min(limit, last.sum())
    shorter = fuse(cosine, bm25, word_weight=0.4, limit=1, last=last)
    assert shorter[:1] == ranking[:1]
    for ranked in ranking:
        assert total(ranked) == pytest.approx(ranked.score, rel=1e-9, abs=1e-9)


def test_ret_8_a_catch_all_uses_up_no_clause() -> None:
    """RET-8: a clause counts less with each tool chosen for it, but not for one ranked last."""
    cosine = np.array([[0.9, 0.85, 0.6, 0.2], [0.9, 0.8, 0.1, 0.1], [0.1, 0.1, 0.7, 0.1]])
    words = np.zeros_like(cosine)
    plain = fuse(cosine, words, word_weight=0.4, limit=4)
    assert [(ranked.index, ranked.clause) for ranked in plain[:3]] == [(0, 1), (2, 2), (1, 1)]
    last = np.array([True, False, False, False])
    ranking = fuse(cosine, words, word_weight=0.4, limit=3, last=last)
    assert [(r.index, r.clause) for r in ranking] == [(1, 1), (2, 2), (3, 2), (0, 1)]
    scores = [{ranked.index: ranked.score for ranked in each} for each in (plain, ranking)]
    assert scores[1][1] > scores[0][1], "the clause of the catch-all is not used up for it"
