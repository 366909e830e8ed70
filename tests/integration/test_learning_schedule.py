"""Learning on a schedule: one run an interval, of as many processes as there are."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy.engine import make_url

from registry import AsyncToolRegistry, Embedder, RegistrySettings, ToolRegistry
from registry.embedding import LocalEmbeddings
from registry.errors import ConfigurationError, RegistryUnavailableError
from registry.scheduling import ScheduledLearning
from tests.integration.conftest import OpenRegistry
from tests.integration.test_cli import ROOT, command, environment
from tests.integration.test_store import rows
from tests.support.catalogue import many_specs, spec
from tests.support.command_line import TOOLS, Run, started
from tests.support.databases import Databases, psycopg_url
from tests.support.embeddings import HashEmbeddings
from tests.support.usage_records import Called, record

TWO = [
    spec("get_weather", "Temperature and sky in a city."),
    spec("send_letter", "Send a letter by post to an address."),
]
HOUR = 3_600.0


def asked(count: int, start: int = 0) -> list[Called]:
    return [
        Called(question=f"umbrella in town {n}?", tool="get_weather", session=f"s{n}")
        for n in range(start, start + count)
    ]


def make_it_due(url: str) -> None:
    """Let the mark of the last run be as old as it is when it is time again."""
    rows(url, "UPDATE tool_lease SET expires_at = now() - interval '1 second' RETURNING name")


class Away:
    """A database that takes no connection for a while, whatever its owner wants."""

    def __init__(self, url: str) -> None:
        self._name = str(make_url(url).database)
        self._server = psycopg_url(make_url(url).set(database="postgres"))

    def goes(self) -> None:
        self._allow(False)
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s",
                [self._name],
            )

    def returns(self) -> None:
        self._allow(True)

    def _allow(self, allowed: bool) -> None:
        statement = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}").format(
            sql.Identifier(self._name), sql.Literal(allowed)
        )
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(statement)


class TestOneRunAnInterval:
    async def test_whoever_comes_first_learns_and_the_others_find_it_done(
        self, open_registry: OpenRegistry, database_url: str
    ) -> None:
        first, second = await open_registry(), await open_registry()
        await first.sync(TWO)
        record(database_url, asked(5), HashEmbeddings())
        done = await first.learn_if_due(every_s=HOUR)
        assert isinstance(done, ScheduledLearning)
        assert (done.report.promoted, done.report.calls) == (True, 5)
        record(database_url, asked(5, start=5), HashEmbeddings())
        assert await first.learn_if_due(every_s=HOUR) is None
        assert await second.learn_if_due(every_s=HOUR) is None

        make_it_due(database_url)
        again = await second.learn_if_due(every_s=HOUR)
        assert again is not None
        assert (again.report.promoted, again.report.calls) == (True, 10)
        assert await first.learn_if_due(every_s=HOUR) is None

    async def test_a_run_without_news_or_refused_is_a_run(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await open_registry()
        await registry.sync(TWO)
        done = await registry.learn_if_due(every_s=HOUR)
        assert done is not None
        assert "no call that ended with success" in done.report.reason
        assert await registry.learn_if_due(every_s=HOUR) is None

    async def test_namespaces_have_each_their_own(self, open_registry: OpenRegistry) -> None:
        one = await open_registry()
        other = await open_registry(settings=RegistrySettings(namespace="other"))
        assert await one.learn_if_due(every_s=HOUR) is not None
        assert await other.learn_if_due(every_s=HOUR) is not None
        assert await one.learn_if_due(every_s=HOUR) is None

    async def test_the_mark_is_as_long_as_the_interval_less_a_tenth(
        self, open_registry: OpenRegistry, database_url: str
    ) -> None:
        registry = await open_registry()
        await registry.learn_if_due(every_s=7_200)
        ((left,),) = rows(
            database_url,
            "SELECT extract(epoch FROM expires_at - now())::float FROM tool_lease",
        )
        assert 6_480 - 60 < left <= 6_480

    async def test_nobody_learns_beside_one_that_does(
        self, open_registry: OpenRegistry, database_url: str
    ) -> None:
        registry = await open_registry()
        rows(
            database_url,
            "INSERT INTO tool_lease (name, holder, expires_at) "
            "VALUES ('learn:default', 'host:1:x', now() + interval '1 hour') RETURNING name",
        )
        assert await registry.learn_if_due(every_s=HOUR) is None
        rows(database_url, "DELETE FROM tool_lease RETURNING name")
        assert await registry.learn_if_due(every_s=HOUR) is not None, "no mark was left"

    async def test_a_run_that_failed_is_tried_again_at_the_next_turn(
        self, open_registry: OpenRegistry, database_url: str
    ) -> None:
        registry = await open_registry()
        await registry.sync(TWO)
        record(database_url, asked(5), HashEmbeddings())
        away = Away(database_url)
        away.goes()
        try:
            with pytest.raises(RegistryUnavailableError):
                await registry.learn_if_due(every_s=HOUR)
        finally:
            away.returns()
        done = await registry.learn_if_due(every_s=HOUR)
        assert done is not None
        assert done.report.promoted

    def test_of_eight_at_once_one_changes_something(self, database_url: str) -> None:
        registries = [ToolRegistry(database_url, embeddings=HashEmbeddings()) for _ in range(8)]
        registries[0].sync(TWO)
        record(database_url, asked(50), HashEmbeddings())
        together = threading.Barrier(8)

        def turn(registry: ToolRegistry) -> ScheduledLearning | None:
            together.wait(30)
            return registry.learn_if_due(every_s=HOUR)

        with ThreadPoolExecutor(8) as pool:
            done = list(pool.map(turn, registries))
        assert sum(run is not None and run.report.promoted for run in done) == 1
        assert rows(database_url, "SELECT version FROM tool_learning") == [(1,)]
        for registry in registries:
            registry.close()

    async def test_relevance_is_measured_anew_where_vectors_moved(
        self, open_registry: OpenRegistry, database_url: str
    ) -> None:
        registry = await open_registry()
        await registry.sync([*TWO, *many_specs(30)])
        assert rows(database_url, "SELECT version FROM tool_calibration") == [(1,)]
        record(database_url, asked(5), HashEmbeddings())
        done = await registry.learn_if_due(every_s=HOUR)
        assert done is not None
        assert (done.report.promoted, done.notes) == (True, [])
        assert rows(database_url, "SELECT version FROM tool_calibration") == [(2,)]
        make_it_due(database_url)
        await registry.learn_if_due(every_s=HOUR)
        assert rows(database_url, "SELECT version FROM tool_calibration") == [(2,)]

    async def test_it_learns_without_the_serving_model_and_says_what_it_could_not_do(
        self, open_registry: OpenRegistry, database_url: str
    ) -> None:
        registry = await open_registry()
        await registry.sync(TWO)
        record(database_url, asked(5), HashEmbeddings())
        other = await open_registry(embeddings=HashEmbeddings(model="another"), opened=False)
        done = await other.learn_if_due(every_s=HOUR)
        assert done is not None
        assert done.report.promoted
        assert "relevance was not measured anew" in done.notes[0]

    async def test_a_wild_interval_is_refused(self, open_registry: OpenRegistry) -> None:
        registry = await open_registry()
        with pytest.raises(ConfigurationError, match="30 days"):
            await registry.learn_if_due(every_s=1)


async def test_the_background_task_of_the_docs_learns_and_outlives_an_absence(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What docs/learning.md tells a service to do."""
    text = (ROOT / "docs" / "learning.md").read_text(encoding="utf-8")
    (code,) = (c for c in re.findall(r"```python\n(.*?)```", text, re.S) if "learn_if_due" in c)
    names: dict[str, Any] = {}
    exec(code, names)
    away, turns = Away(database_url), iter(("returns", "ends"))
    registry = AsyncToolRegistry(database_url, embeddings=HashEmbeddings())
    await registry.sync(TWO)
    record(database_url, asked(5), HashEmbeddings())

    async def pause(seconds: float) -> None:
        if next(turns) == "ends":
            raise asyncio.CancelledError
        away.returns()

    monkeypatch.setattr(asyncio, "sleep", pause)
    away.goes()
    with pytest.raises(asyncio.CancelledError):
        await names["keep_learning"](registry)
    assert rows(database_url, "SELECT version FROM tool_learning") == [(1,)]
    await registry.close()


class Turns:
    """In place of `time.sleep`: does one thing a pause, then Ctrl-C."""

    def __init__(self, *between: Callable[[], Any]) -> None:
        self.pauses: list[float] = []
        self._between = iter(between)

    def __call__(self, seconds: float) -> None:
        self.pauses.append(seconds)
        action = next(self._between, None)
        if action is None:
            raise KeyboardInterrupt
        action()


class TestTheCommand:
    @pytest.fixture
    def builtin(self) -> LocalEmbeddings:
        model = Embedder.resolve("builtin").embeddings
        assert isinstance(model, LocalEmbeddings)
        return model

    def test_one_line_a_run_over_a_database_that_goes_and_returns(
        self,
        toolrag: Run,
        database_url: str,
        builtin: LocalEmbeddings,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        Path("learnt_tools.py").write_text(TOOLS, encoding="utf-8")
        assert toolrag("sync", "learnt_tools:TOOLS").code == 0
        record(database_url, asked(5), builtin)
        away = Away(database_url)

        def comes_back_with_news() -> None:
            away.returns()
            make_it_due(database_url)
            record(database_url, asked(3, start=5), builtin)

        turns = Turns(lambda: None, away.goes, lambda: None, comes_back_with_news)
        monkeypatch.setattr("agent.cli.learning.time.sleep", turns)
        ended = toolrag("learn", "--every", "1h")
        assert ended.code == 0
        lines = ended.out.splitlines()
        assert len(lines) == 5
        stamp = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00 "
        assert all(re.match(stamp, line) for line in lines), lines
        said = [re.sub(stamp, "", line) for line in lines]
        assert said[0] == "Learnt: 1 tool moved, version 1."
        assert said[1].startswith("Nothing to do: it was learnt within this interval")
        assert all(line.startswith("Not learnt: The database") for line in said[2:4])
        assert said[4] == "Learnt: 1 tool moved, version 2."
        assert [pause < 70 for pause in turns.pauses] == [False, False, True, True, False]
        assert all(3_420 <= pause <= 3_780 for pause in turns.pauses if pause > 70)
        assert "Stopped." in ended.err
        assert "Traceback" not in ended.err

    def test_it_begins_while_the_database_is_away(
        self, toolrag: Run, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        away = Away(database_url)
        away.goes()
        monkeypatch.setattr("agent.cli.learning.time.sleep", Turns(away.returns))
        ended = toolrag("learn", "--every", "1h")
        assert ended.code == 0
        first, second = ended.out.splitlines()
        assert "Not learnt: The database" in first
        assert "Nothing was changed: there are no vectors yet" in second

    def test_what_does_not_pass_by_itself_ends_it(
        self, cli: Run, databases: Databases, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with databases.temporary() as url:
            monkeypatch.setenv("TOOLRAG_DATABASE_URL", url)
            ended = cli("learn", "--every", "1h")
        assert ended.code == 3
        assert "toolrag db upgrade" in ended.error

    @pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_ends_it_cleanly(
        self, toolrag: Run, database_url: str, sent: signal.Signals
    ) -> None:
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with started(
            command("learn", "--every", "1d"), **streams, text=True, env=environment(database_url)
        ) as process:
            assert process.stdout is not None
            assert "Nothing was changed" in process.stdout.readline()
            began = time.monotonic()
            process.send_signal(sent)
            out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "", "Stopped.\n")
        assert time.monotonic() - began < 20

    def test_a_signal_in_the_middle_of_a_run_changes_nothing_and_leaves_no_lease(
        self, toolrag: Run, database_url: str, builtin: LocalEmbeddings
    ) -> None:
        Path("learnt_tools.py").write_text(TOOLS, encoding="utf-8")
        assert toolrag("sync", "learnt_tools:TOOLS").code == 0
        record(database_url, asked(5), builtin)
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with psycopg.connect(psycopg_url(database_url)) as blocker:
            # The run waits for this transaction, in the middle of a statement.
            blocker.execute("LOCK TABLE tool_embedding IN ACCESS EXCLUSIVE MODE")
            with started(
                command("learn", "--every", "1h"),
                **streams,
                text=True,
                env=environment(database_url),
            ) as process:
                waiting = (
                    "SELECT count(*) FROM pg_locks WHERE NOT granted AND "
                    "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
                )
                until = time.monotonic() + 60
                while rows(database_url, waiting) == [(0,)]:
                    assert time.monotonic() < until
                process.send_signal(signal.SIGTERM)
                out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "", "Stopped.\n")
        assert rows(database_url, "SELECT count(*) FROM tool_learning") == [(0,)]
        assert rows(database_url, "SELECT name FROM tool_lease") == []

    def test_wrong_usage_is_told(self, toolrag: Run) -> None:
        for option in ("--dry-run", "--force", "--json"):
            ended = toolrag("learn", "--every", "1h", option)
            assert (ended.code, "--every goes with neither" in ended.error) == (2, True)
        assert toolrag("learn", "--every", "soon").code == 2
        assert toolrag("learn", "--every", "1h", "undo", "--yes").code == 2
