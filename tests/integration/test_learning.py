"""Learning from recorded calls, on real Postgres, against a second implementation in numpy."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import Any

import numpy as np
import psycopg
import pytest
from sqlalchemy import create_engine

from registry import RegistrySettings, ToolRegistry
from registry.errors import RegistryBusyError, RegistryUnavailableError, ToolNotFoundError
from registry.learning import (
    SHRINK,
    TRAFFIC_SHRINK,
    WEIGHT,
    LearningReport,
    LearningSettings,
    neutral_share,
)
from registry.statements.calls import CountedCalls
from registry.statements.lessons import Lesson
from registry.statements.replay import replayed
from registry.types import SyncProgress
from tests.integration.conftest import EitherRegistry, OpenRegistry
from tests.integration.test_store import rows
from tests.support.catalogue import many_specs, spec
from tests.support.databases import psycopg_url
from tests.support.embeddings import HashEmbeddings
from tests.support.interleaving import before_statement, call
from tests.support.usage_records import Called, RandomEmbeddings, record

_STATE = """
    SELECT t.tool_name, e.vector::text, e.description_vector::text, e.feedback_vector::text,
           e.feedback_count, e.source_hash
    FROM tool_embedding e JOIN tool_registry t ON t.id = e.tool_id
    ORDER BY t.namespace, t.tool_name, e.embedding_model_id
"""
_VECTORS = """
    SELECT t.tool_name, e.vector::text, coalesce(e.description_vector, e.vector)::text
    FROM tool_embedding e JOIN tool_registry t ON t.id = e.tool_id
    WHERE t.namespace = 'default' AND e.embedding_model_id = %s
"""
_HELD_BACK = "SELECT hashtextextended(%s, 0) %% 5 = 0"
_END_BACKENDS = """
    SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'toolrag'
"""
EMBEDDINGS = RandomEmbeddings()
NEVER_REFUSED = {"force": True}


def vectors(url: str, *, model_id: int = 1) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return of each tool what is searched and what its text alone gives."""

    def parsed(text: str) -> np.ndarray:
        return np.array(text.strip("[]").split(","), dtype=float)

    return {name: (parsed(one), parsed(two)) for name, one, two in rows(url, _VECTORS, model_id)}


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def learnt(
    texts: dict[str, np.ndarray], calls: Sequence[Called], *, min_sessions: int = 2
) -> dict[str, np.ndarray]:
    """Return the vectors that tools should have, worked out one call after the other."""
    votes: dict[str, dict[str, list[np.ndarray]]] = defaultdict(lambda: defaultdict(list))
    for each in calls:
        session = each.session or each.thread or each.run or ""
        votes[each.tool][session].append(unit(np.array(EMBEDDINGS.embed_query(each.question))))
    of_tool = {
        tool: [np.mean(asked, axis=0) for asked in sessions.values()]
        for tool, sessions in votes.items()
    }
    everything = [vote for of_one in of_tool.values() for vote in of_one]
    traffic = np.sum(everything, axis=0) / (len(everything) + TRAFFIC_SHRINK)
    neutral = neutral_share(len(of_tool), len(texts) - len(of_tool))
    moved = dict(texts)
    for tool, of_one in of_tool.items():
        n = len(of_one)
        if n >= min_sessions:
            gain = WEIGHT * n / (n + SHRINK)
            apart = np.mean(of_one, axis=0) - neutral * traffic
            moved[tool] = unit(unit(texts[tool]) + gain * apart)
    return moved


def random_calls(count: int, *, tools: int, sessions: int, seed: int = 0) -> list[Called]:
    rng = np.random.default_rng(seed)
    return [
        Called(
            question=f"q {rng.integers(10**6)}",
            tool=f"tool_{rng.integers(tools):05d}",
            session=f"s{rng.integers(sessions)}",
        )
        for _ in range(count)
    ]


async def synced(open_registry: OpenRegistry, count: int = 30, **options: Any) -> EitherRegistry:
    registry = await open_registry(embeddings=EMBEDDINGS, **options)
    await registry.sync(many_specs(count))
    return registry


class TestWhatMoves:
    @pytest.mark.parametrize("seed", [1, 2])
    @pytest.mark.parametrize("used", [3, 12, 30], ids=["few_used", "some_used", "all_used"])
    async def test_it_is_the_formula(
        self, open_registry: OpenRegistry, used: int, seed: int
    ) -> None:
        registry = await synced(open_registry)
        texts = {name: text for name, (_, text) in vectors(registry.database_url).items()}
        calls = random_calls(120, tools=used, sessions=25, seed=seed)
        record(registry.database_url, calls, EMBEDDINGS)
        report = await registry.learn(**NEVER_REFUSED)
        assert report.promoted
        expected = learnt(texts, calls)
        for name, (searched, text) in vectors(registry.database_url).items():
            # Half precision: three digits.
            assert searched == pytest.approx(expected[name], abs=3e-3), name
            assert text == pytest.approx(texts[name], abs=0)
        assert (report.calls, report.sessions) == (120, len({each.session for each in calls}))
        assert (report.used_tools, report.active_tools) == (
            len({each.tool for each in calls}),
            30,
        )

    async def test_a_second_run_on_more_calls_is_the_formula_too(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await synced(open_registry)
        texts = {name: text for name, (_, text) in vectors(registry.database_url).items()}
        calls = random_calls(60, tools=10, sessions=20)
        record(registry.database_url, calls, EMBEDDINGS)
        await registry.learn(**NEVER_REFUSED)
        more = random_calls(60, tools=15, sessions=30, seed=9)
        record(registry.database_url, more, EMBEDDINGS)
        report = await registry.learn(**NEVER_REFUSED)
        assert report.version == 2
        assert [verdict.against for verdict in report.gate] == ["descriptions", "previous"]
        expected = learnt(texts, [*calls, *more])
        for name, (searched, _) in vectors(registry.database_url).items():
            assert searched == pytest.approx(expected[name], abs=3e-3), name

    async def test_a_tool_moves_from_two_sessions_on(self, open_registry: OpenRegistry) -> None:
        registry = await synced(open_registry)
        alone = [Called(question=f"q {n}", tool="tool_00001", session="one") for n in range(40)]
        record(registry.database_url, alone, EMBEDDINGS)
        before = rows(registry.database_url, _STATE)
        for options in ({"dry_run": True}, {}, NEVER_REFUSED):
            report = await registry.learn(**options)
            assert (report.promoted, report.moves, report.calls) == (False, (), 40)
            assert report.version == 0
            assert "in 2 sessions or more, so there is nothing to learn yet" in report.reason
            assert rows(registry.database_url, _STATE) == before
        # What there is was looked at, so it is not gone through again.
        assert (await registry.learn()).reason.startswith("no call was recorded since")

        second = Called(question="q 0", tool="tool_00001", session="two")
        record(registry.database_url, [second], EMBEDDINGS)
        report = await registry.learn(**NEVER_REFUSED)
        (move,) = report.moves
        assert (report.promoted, report.version) == (True, 1)
        assert (move.tool_name, move.sessions) == ("tool_00001", 2)
        assert move.cosine_with_description < 0.99
        (counted,) = rows(
            registry.database_url, "SELECT sum(feedback_count)::int FROM tool_embedding"
        )
        assert counted == (2,)

    async def test_more_sessions_can_be_asked_for(self, open_registry: OpenRegistry) -> None:
        registry = await synced(open_registry)
        calls = [
            Called(question=f"q {n}", tool=f"tool_0000{tool}", session=f"s{n}")
            for tool, sessions in ((1, 2), (2, 3))
            for n in range(sessions)
        ]
        record(registry.database_url, calls, EMBEDDINGS)
        report = await registry.learn(settings=LearningSettings(min_sessions=3), force=True)
        assert [move.tool_name for move in report.moves] == ["tool_00002"]

    async def test_a_session_has_one_vote_however_often_it_calls(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await synced(open_registry)
        texts = {name: text for name, (_, text) in vectors(registry.database_url).items()}
        honest = [Called(question=f"q {n}", tool="tool_00001", session=f"s{n}") for n in range(5)]
        loud = [Called(question="spam", tool="tool_00001", session="loud") for _ in range(200)]
        record(registry.database_url, [*honest, *loud], EMBEDDINGS)
        await registry.learn(**NEVER_REFUSED)
        searched = vectors(registry.database_url)["tool_00001"][0]
        once = learnt(texts, [*honest, loud[0]])["tool_00001"]
        assert searched == pytest.approx(once, abs=3e-3)

    async def test_threads_and_runs_are_sessions_where_no_session_is_known(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await synced(open_registry)
        calls = [
            Called(question="q 1", tool="tool_00001", thread="t"),
            Called(question="q 2", tool="tool_00001", thread="t", run="r"),
            Called(question="q 3", tool="tool_00001", run="r"),
            Called(question="q 4", tool="tool_00001", session="s", thread="t", run="r"),
        ]
        record(registry.database_url, calls, EMBEDDINGS)
        (move,) = (await registry.learn(**NEVER_REFUSED)).moves
        assert move.sessions == 3

    async def test_calls_without_any_id_are_one_session(self, open_registry: OpenRegistry) -> None:
        registry = await synced(open_registry)
        calls = [Called(question=f"q {n}", tool="tool_00001") for n in range(10)]
        record(registry.database_url, calls, EMBEDDINGS)
        report = await registry.learn(**NEVER_REFUSED)
        assert (report.anonymous_calls, report.sessions, report.moves) == (10, 1, ())

    async def test_only_the_newest_calls_count_and_that_is_said(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await synced(open_registry)
        start = datetime.now(UTC)
        calls = [
            Called(
                question=f"q {n}",
                tool=f"tool_{n // 5:05d}",
                session=f"s{n}",
                asked_at=start + timedelta(seconds=n),
            )
            for n in range(20)
        ]
        record(registry.database_url, calls, EMBEDDINGS)
        report = await registry.learn(settings=LearningSettings(max_calls=10), force=True)
        assert (report.calls, report.left_out) == (10, 10)
        assert {move.tool_name for move in report.moves} == {"tool_00002", "tool_00003"}

    @pytest.mark.parametrize("flooder", ["one", None], ids=["one session", "calls without any id"])
    async def test_one_sessions_flood_pushes_nobody_out(
        self, open_registry: OpenRegistry, flooder: str | None
    ) -> None:
        registry = await synced(open_registry)
        start = datetime.now(UTC)
        honest = [
            Called(question=f"q {n}", tool=f"tool_{n % 5:05d}", session=f"s{n}", asked_at=start)
            for n in range(40)
        ]
        record(registry.database_url, honest, EMBEDDINGS)
        settings = LearningSettings(max_calls=200, neutral=1.0)
        first = await registry.learn(settings=settings, force=True)
        assert {move.sessions for move in first.moves} == {8}
        before = {name: searched for name, (searched, _) in vectors(registry.database_url).items()}
        later = start + timedelta(minutes=1)
        flood = [
            Called(
                question=f"q {n}",
                tool=f"tool_{n % 30:05d}",
                session=flooder,
                asked_at=later + timedelta(seconds=n),
            )
            for n in range(300)
        ]
        record(registry.database_url, flood, EMBEDDINGS)
        report = await registry.learn(settings=settings, force=True)
        assert settings.calls_per_session == 2
        assert (report.calls, report.sessions) == (42, 41)
        assert (report.left_out, report.over_session) == (298, 298)
        assert report.anonymous_calls == (2 if flooder is None else 0)
        assert {move.tool_name for move in report.moves} == {m.tool_name for m in first.moves}
        assert report.gate[0].sessions >= first.gate[0].sessions > 0
        for name, (searched, _) in vectors(registry.database_url).items():
            assert float(unit(before[name]) @ unit(searched)) > 0.995, name

    async def test_neutral_can_be_forced(self, open_registry: OpenRegistry) -> None:
        registry = await synced(open_registry)
        record(registry.database_url, random_calls(60, tools=20, sessions=20), EMBEDDINGS)
        report = await registry.learn(settings=LearningSettings(neutral=-0.5), force=True)
        assert report.neutral == -0.5
        plain = await registry.learn(dry_run=True, force=True)
        assert plain.neutral == 1.0
        assert all(move.cosine_with_previous < 0.9999 for move in plain.moves)


class TestWhatDoesNotCount:
    async def test_calls_that_did_not_succeed(self, open_registry: OpenRegistry) -> None:
        registry = await synced(open_registry)
        calls = [
            Called(question=f"q {n}", tool="tool_00001", session=f"{status}{n}", status=status)
            for n in range(4)
            for status in ("error", "timeout", "cancelled", "refused", None)
        ]
        record(registry.database_url, calls, EMBEDDINGS)  # type: ignore[arg-type]
        report = await registry.learn(**NEVER_REFUSED)
        assert (report.promoted, report.calls) == (False, 0)
        assert "no call that ended with success" in report.reason

    async def test_another_namespaces_calls(self, open_registry: OpenRegistry) -> None:
        registry = await synced(open_registry)
        other = await synced(open_registry, settings=RegistrySettings(namespace="other"))
        calls = random_calls(50, tools=5, sessions=20)
        record(registry.database_url, calls, EMBEDDINGS, namespace="other")
        before = vectors(registry.database_url)
        assert (await registry.learn(**NEVER_REFUSED)).calls == 0
        assert (await other.learn(**NEVER_REFUSED)).promoted
        after = vectors(registry.database_url)
        assert all(np.array_equal(before[name], after[name]) for name in before)
        assert await registry.unlearn() == []
        assert len(await other.unlearn()) == 5

    async def test_a_purged_tools_calls_also_when_its_name_comes_back(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await synced(open_registry)
        calls = [Called(question=f"q {n}", tool="tool_00001", session=f"s{n}") for n in range(5)]
        record(registry.database_url, calls, EMBEDDINGS)
        await registry.purge("tool_00001")
        assert (await registry.learn(**NEVER_REFUSED)).calls == 0
        await registry.sync(many_specs(30))
        assert (await registry.learn(**NEVER_REFUSED)).calls == 0

    async def test_an_unknown_name_and_a_vector_of_another_size(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await synced(open_registry)
        unknown = [Called(question=f"q {n}", tool="renamed", session=f"s{n}") for n in range(5)]
        record(registry.database_url, unknown, EMBEDDINGS)
        known = [Called(question=f"q {n}", tool="tool_00001", session=f"s{n}") for n in range(5)]
        record(registry.database_url, known, RandomEmbeddings(8))
        assert (await registry.learn(**NEVER_REFUSED)).calls == 0

    async def test_a_deactivated_tool_learns_but_is_neither_asked_nor_found(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await synced(open_registry, 6)
        calls = [
            Called(question=f"q {n}", tool=f"tool_0000{n % 2}", session=f"s{n}") for n in range(60)
        ]
        record(registry.database_url, calls, EMBEDDINGS)
        await registry.deactivate("tool_00001")
        report = await registry.learn(**NEVER_REFUSED)
        assert (report.used_tools, report.active_tools) == (1, 5)
        assert {move.tool_name for move in report.moves} == {"tool_00000", "tool_00001"}
        held = sum(rows(registry.database_url, _HELD_BACK, f"s{n}")[0][0] for n in range(0, 60, 2))
        assert report.gate[0].questions == held > 0
        assert "tool_00001" not in {hit.tool_name for hit in await registry.search("q 1", k=6)}

    async def test_another_embedding_models_questions(self, open_registry: OpenRegistry) -> None:
        registry = await synced(open_registry)
        record(registry.database_url, random_calls(50, tools=5, sessions=20), EMBEDDINGS)
        assert (await registry.learn(**NEVER_REFUSED)).promoted
        new = await open_registry(embeddings=HashEmbeddings(32, model="new"), opened=False)
        await new.build_embeddings()
        await new.switch_embeddings()
        report = await new.learn(**NEVER_REFUSED)
        assert (report.promoted, report.calls, report.version) == (False, 0, 0)
        of_new = vectors(registry.database_url, model_id=2)
        assert all(np.array_equal(searched, text) for searched, text in of_new.values())

        calls = random_calls(50, tools=5, sessions=20, seed=3)
        record(registry.database_url, calls, HashEmbeddings(32), model_id=2)
        assert (await new.learn(**NEVER_REFUSED)).calls == 50
        # What the old set learnt is there when it serves again.
        old = await open_registry(embeddings=EMBEDDINGS, opened=False)
        await old.revert_embeddings()
        assert "no call was recorded since" in (await old.learn()).reason


class TestGate:
    @pytest.fixture
    async def attacked(self, open_registry: OpenRegistry) -> EitherRegistry:
        """Thirty sessions, none of them held back, call the wrong tool for others' questions."""
        embeddings = HashEmbeddings()
        registry = await open_registry(embeddings=embeddings)
        await registry.sync(
            [
                spec("get_weather", "Weather forecast: rain, snow, temperature, wind."),
                spec("get_shares", "Price of shares on the stock exchange."),
                *many_specs(10),
            ]
        )
        held, rest = [], []
        for n in range(400):
            is_held = rows(registry.database_url, _HELD_BACK, f"s{n}")[0][0]
            (held if is_held else rest).append(f"s{n}")
        asked = ["rain and wind today", "snow and temperature forecast", "weather forecast wind"]
        record(
            registry.database_url,
            [
                *(
                    Called(question=asked[n % 3], tool="get_weather", session=session)
                    for n, session in enumerate(held[:12])
                ),
                *(
                    Called(question=asked[n % 3], tool="get_shares", session=session)
                    for n, session in enumerate(rest[:30])
                ),
            ],
            embeddings,
        )
        return registry

    async def test_a_tool_that_pulls_anothers_questions_is_refused(
        self, attacked: EitherRegistry
    ) -> None:
        before = rows(attacked.database_url, _STATE)
        report = await attacked.learn()
        assert not report.promoted
        assert "Most lost: get_weather" in report.reason
        (verdict,) = report.gate
        assert (verdict.passed, verdict.questions, verdict.sessions) == (False, 12, 12)
        assert verdict.mrr_before == 1.0
        assert verdict.mrr_after < 0.7
        assert [move.tool_name for move in report.moves] == ["get_shares", "get_weather"]
        assert rows(attacked.database_url, _STATE) == before
        assert rows(attacked.database_url, "SELECT * FROM tool_learning") == []

    async def test_force_promotes_it_all_the_same(self, attacked: EitherRegistry) -> None:
        report = await attacked.learn(force=True)
        assert (report.promoted, report.reason, report.gate[0].passed) == (True, "", False)
        assert await attacked.unlearn("get_shares") == ["get_shares"]

    async def test_what_serves_is_the_other_bar(self, open_registry: OpenRegistry) -> None:
        """A candidate that is better than the texts, but worse than what was learnt before."""
        registry = await synced(open_registry, 200)
        held, rest = [], []
        for n in range(300):
            is_held = rows(registry.database_url, _HELD_BACK, f"s{n}")[0][0]
            (held if is_held else rest).append(f"s{n}")
        good = [
            Called(question=f"q {n % 4}", tool=f"tool_{n % 4:05d}", session=session)
            for n, session in enumerate([*held[:20], *rest[:40]])
        ]
        record(registry.database_url, good, EMBEDDINGS)
        first = await registry.learn()
        assert first.promoted
        assert first.gate[0].mrr_after == 1.0 > first.gate[0].mrr_before
        # Every question is called with four other tools as well, by far more sessions.
        bad = [
            Called(question=f"q {n % 4}", tool=f"tool_{10 + n % 4:05d}", session=session)
            for n, session in enumerate(rest[40:200])
        ]
        record(registry.database_url, bad, EMBEDDINGS)
        second = await registry.learn()
        against = {verdict.against: verdict for verdict in second.gate}
        assert against["descriptions"].passed
        assert not against["previous"].passed
        assert against["previous"].mrr_before == 1.0
        assert "what serves now" in second.reason
        assert (second.promoted, second.version) == (False, 1)

    async def test_no_session_fills_the_replay(self, open_registry: OpenRegistry) -> None:
        registry = await synced(open_registry)
        held = [
            f"s{n}" for n in range(200) if rows(registry.database_url, _HELD_BACK, f"s{n}")[0][0]
        ]
        calls = [
            Called(question=f"q {n}", tool=f"tool_{n % 30:05d}", session=session)
            for session, count in ((held[0], 90), (held[1], 90), *((s, 2) for s in held[2:12]))
            for n in range(count)
        ]
        record(registry.database_url, calls, EMBEDDINGS)
        counted = CountedCalls(namespace="default", model_id=1, dimensions=16)
        lesson = Lesson(calls=counted, min_sessions=2, neutral=1.0)
        engine = create_engine(registry.database_url)
        with engine.connect() as connection:
            asked = connection.execute(replayed(lesson, None, limit=24)).all()
        engine.dispose()
        assert Counter(row.session for row in asked) == dict.fromkeys(held[:12], 2)

    async def test_one_malicious_session_moves_nothing_by_itself(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await synced(open_registry)
        honest = random_calls(200, tools=30, sessions=100, seed=5)
        record(registry.database_url, honest, EMBEDDINGS)
        await registry.learn(**NEVER_REFUSED)
        before = {name: searched for name, (searched, _) in vectors(registry.database_url).items()}
        poison = [
            Called(question=each.question, tool="tool_00007", session="malicious")
            for each in honest
            if each.tool != "tool_00007"
        ]
        record(registry.database_url, poison, EMBEDDINGS)
        report = await registry.learn(**NEVER_REFUSED)
        assert report.calls == 200 + len(poison) > 380
        after = {name: searched for name, (searched, _) in vectors(registry.database_url).items()}
        # One vote of many for one tool, and one of two hundred for what all have in common.
        assert float(unit(before["tool_00007"]) @ unit(after["tool_00007"])) > 0.97
        for name in before.keys() - {"tool_00007"}:
            assert float(unit(before[name]) @ unit(after[name])) > 0.999


class TestRunning:
    async def test_nothing_new_nothing_done(self, open_registry: OpenRegistry) -> None:
        registry = await synced(open_registry)
        empty = await registry.learn()
        assert (empty.promoted, empty.version) == (False, 0)
        record(registry.database_url, random_calls(50, tools=5, sessions=20), EMBEDDINGS)
        assert (await registry.learn(**NEVER_REFUSED)).version == 1
        before = rows(registry.database_url, _STATE)
        again = await registry.learn()
        assert (again.promoted, again.version, again.gate) == (False, 1, ())
        assert again.reason == "no call was recorded since the registry last learnt"
        assert rows(registry.database_url, _STATE) == before
        forced = await registry.learn(force=True)
        assert (forced.promoted, forced.version) == (True, 2)
        assert all(move.cosine_with_previous == 1 for move in forced.moves)

    async def test_a_registry_without_vectors_says_so(self, open_registry: OpenRegistry) -> None:
        registry = await open_registry()
        assert "the first sync makes them" in (await registry.learn()).reason

    async def test_a_dry_run_reports_the_same_and_changes_nothing(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await synced(open_registry)
        record(registry.database_url, random_calls(50, tools=5, sessions=20), EMBEDDINGS)
        before = rows(registry.database_url, _STATE)
        tried = await registry.learn(dry_run=True, **NEVER_REFUSED)
        assert (tried.promoted, tried.dry_run, len(tried.moves)) == (False, True, 5)
        assert rows(registry.database_url, _STATE) == before
        done = await registry.learn(**NEVER_REFUSED)
        assert (done.moves, done.gate) == (tried.moves, tried.gate)

    async def test_removed_records_are_forgotten(self, open_registry: OpenRegistry) -> None:
        registry = await synced(open_registry)
        before = rows(registry.database_url, _STATE)
        record(registry.database_url, random_calls(50, tools=5, sessions=20), EMBEDDINGS)
        await registry.learn(**NEVER_REFUSED)
        with psycopg.connect(psycopg_url(registry.database_url)) as connection:
            connection.execute("DELETE FROM tool_selection")
        report = await registry.learn()
        assert report.promoted
        assert {(move.sessions, move.cosine_with_description) for move in report.moves} == {(0, 1)}
        assert rows(registry.database_url, _STATE) == before

    async def test_progress_is_told(self, open_registry: OpenRegistry) -> None:
        registry = await synced(open_registry)
        record(registry.database_url, random_calls(50, tools=5, sessions=20), EMBEDDINGS)
        seen: list[SyncProgress] = []
        await registry.learn(on_progress=seen.append, **NEVER_REFUSED)
        assert [(state.done, state.total) for state in seen] == [(1, 3), (2, 3), (3, 3)]

    async def test_of_two_at_once_one_learns(self, open_registry: OpenRegistry) -> None:
        registries = [await synced(open_registry) for _ in range(4)]
        url = registries[0].database_url
        record(url, random_calls(300, tools=30, sessions=60), EMBEDDINGS)
        results = await asyncio.gather(
            *(call(registry, "learn", force=True) for registry in registries),
            return_exceptions=True,
        )
        done = [result for result in results if isinstance(result, LearningReport)]
        assert done
        assert all(report.promoted for report in done)
        assert all(isinstance(result, (LearningReport, RegistryBusyError)) for result in results), (
            results
        )
        assert (await registries[0].learn()).reason.startswith("no call was recorded since")

    async def test_a_killed_run_leaves_what_was_searched(self, open_registry: OpenRegistry) -> None:
        registry = await synced(open_registry)
        record(registry.database_url, random_calls(80, tools=20, sessions=30), EMBEDDINGS)
        before = rows(registry.database_url, _STATE)

        def kill() -> None:
            assert rows(registry.database_url, _END_BACKENDS)

        for last in ("UPDATE tool_embedding SET", "INTO tool_learning"):
            with (
                before_statement(last, kill),
                pytest.raises(RegistryUnavailableError),
            ):
                await registry.learn(**NEVER_REFUSED)
            assert rows(registry.database_url, _STATE) == before
            with psycopg.connect(psycopg_url(registry.database_url)) as connection:
                connection.execute("DELETE FROM tool_lease")  # it would run out in a minute
        assert (await registry.learn(**NEVER_REFUSED)).version == 1

    async def test_what_is_undone_meanwhile_stays_undone(self, open_registry: OpenRegistry) -> None:
        registry = await synced(open_registry)
        record(registry.database_url, random_calls(80, tools=20, sessions=30), EMBEDDINGS)
        before = rows(registry.database_url, _STATE)
        moved = (await registry.learn(**NEVER_REFUSED)).moves
        record(registry.database_url, random_calls(9, tools=9, sessions=9, seed=7), EMBEDDINGS)
        undone: list[str] = []

        def undo() -> None:
            with ToolRegistry(registry.database_url, embeddings=EMBEDDINGS) as other:
                undone.extend(other.unlearn())

        def in_thread() -> None:
            thread = Thread(target=undo)
            thread.start()
            thread.join()

        with before_statement("LOCK TABLE tool_registry", in_thread):
            report = await registry.learn(**NEVER_REFUSED)
        assert len(undone) == len(moved) > 10
        assert "undone" in report.reason
        assert not report.promoted
        assert rows(registry.database_url, _STATE) == before

    async def test_a_text_that_changes_keeps_what_was_learnt(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await synced(open_registry)
        calls = random_calls(80, tools=20, sessions=30)
        record(registry.database_url, calls, EMBEDDINGS)
        await registry.learn(**NEVER_REFUSED)
        before = vectors(registry.database_url)["tool_00003"]
        await registry.update_tool("tool_00003", description="Something else entirely.")
        searched, text = vectors(registry.database_url)["tool_00003"]
        assert not np.allclose(text, before[1])
        texts = {name: of_text for name, (_, of_text) in vectors(registry.database_url).items()}
        assert searched == pytest.approx(learnt(texts, calls)["tool_00003"], abs=3e-3)
        # Learning again from the same calls gives the very same vector.
        await registry.learn(force=True)
        assert np.array_equal(vectors(registry.database_url)["tool_00003"][0], searched)
        await registry.update_tool("tool_00003", description=many_specs(4)[3].description)
        assert np.array_equal(vectors(registry.database_url)["tool_00003"], before)


class TestUndoing:
    async def test_everything_goes_back_bit_by_bit(self, open_registry: OpenRegistry) -> None:
        registry = await synced(open_registry)
        before = rows(registry.database_url, _STATE)
        record(registry.database_url, random_calls(80, tools=20, sessions=30), EMBEDDINGS)
        moved = (await registry.learn(**NEVER_REFUSED)).moves
        assert rows(registry.database_url, _STATE) != before
        assert await registry.unlearn() == sorted(move.tool_name for move in moved)
        assert rows(registry.database_url, _STATE) == before
        assert await registry.unlearn() == []

    async def test_one_tool_goes_back_and_learns_again(self, open_registry: OpenRegistry) -> None:
        registry = await synced(open_registry)
        record(registry.database_url, random_calls(80, tools=20, sessions=30), EMBEDDINGS)
        await registry.learn(**NEVER_REFUSED)
        learnt_state = rows(registry.database_url, _STATE)
        assert await registry.unlearn("tool_00003") == ["tool_00003"]
        searched, text = vectors(registry.database_url)["tool_00003"]
        assert np.array_equal(searched, text)
        changed = [
            row[0]
            for row, old in zip(rows(registry.database_url, _STATE), learnt_state, strict=True)
            if row != old
        ]
        assert changed == ["tool_00003"]
        assert (await registry.learn()).promoted
        assert rows(registry.database_url, _STATE) == learnt_state

    async def test_searches_see_it_at_once(self, open_registry: OpenRegistry) -> None:
        registry = await synced(open_registry)
        plain = [hit.distance for hit in await registry.search("q 1", k=30, threshold=0)]
        calls = [Called(question="q 1", tool="tool_00003", session=f"s{n}") for n in range(9)]
        record(registry.database_url, calls, EMBEDDINGS)
        await registry.learn(**NEVER_REFUSED)
        first = (await registry.search("q 1", k=30, threshold=0))[0]
        assert first.tool_name == "tool_00003"
        assert first.distance < 0.5
        await registry.unlearn()
        assert [hit.distance for hit in await registry.search("q 1", k=30, threshold=0)] == plain

    async def test_an_unknown_tool_is_refused(self, open_registry: OpenRegistry) -> None:
        registry = await synced(open_registry)
        for method in ("unlearn", "explain_learning"):
            with pytest.raises(ToolNotFoundError, match="Nearest: tool_0"):
                await getattr(registry, method)("tool_0001")


class TestExplaining:
    async def test_which_questions_moved_a_tool(self, open_registry: OpenRegistry) -> None:
        registry = await synced(open_registry)
        calls = [
            Called(question="q 1", tool="tool_00003", session="one"),
            Called(question="q 2", tool="tool_00003", session="one"),
            Called(question="q 3", tool="tool_00003", session="two"),
            Called(question="q 4", tool="tool_00004", session="two"),
        ]
        record(registry.database_url, calls, EMBEDDINGS)
        await registry.learn(**NEVER_REFUSED)
        later = Called(question="q 5", tool="tool_00003", session="three")
        record(registry.database_url, [later], EMBEDDINGS)
        told = await registry.explain_learning("tool_00003")
        assert (told.moved, told.sessions, told.calls, told.waiting) == (True, 2, 4, 1)
        assert told.learned_at is not None
        searched, text = vectors(registry.database_url)["tool_00003"]
        assert told.cosine_with_description == pytest.approx(unit(searched) @ unit(text), abs=1e-3)
        assert {(q.text, q.session, q.vote) for q in told.questions} == {
            ("q 1", "one", 0.5),
            ("q 2", "one", 0.5),
            ("q 3", "two", 1.0),
            ("q 5", "three", 1.0),
        }
        for question in told.questions:
            asked = unit(np.array(EMBEDDINGS.embed_query(question.text or "")))
            assert question.cosine_before == pytest.approx(asked @ unit(text), abs=2e-3)
            assert question.cosine_after == pytest.approx(asked @ unit(searched), abs=2e-3)
        gains = [q.cosine_after - q.cosine_before for q in told.questions]
        assert gains == sorted(gains, reverse=True)
        assert len((await registry.explain_learning("tool_00003", limit=2)).questions) == 2

    async def test_a_tool_that_does_not_move(self, open_registry: OpenRegistry) -> None:
        registry = await synced(open_registry)
        record(
            registry.database_url,
            [Called(question="q 4", tool="tool_00004", session="two")],
            EMBEDDINGS,
        )
        told = await registry.explain_learning("tool_00004")
        assert (told.moved, told.sessions, told.calls, told.waiting) == (False, 0, 1, 1)
        assert (told.cosine_with_description, told.learned_at) == (1.0, None)
        unasked = await registry.explain_learning("tool_00005")
        assert (unasked.calls, unasked.questions) == (0, ())
