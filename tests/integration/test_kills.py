"""SIGKILL of the process, of its backend and of the server, at random points of a sync and of a
build with its switch: what was acknowledged is there, the rest is mended by doing it again."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
import pytest

from registry import RegistrySettings, ToolRegistry, migrate
from registry.errors import RegistryBusyError
from registry.local_postgres import LocalPostgres
from registry.text import embedding_text, text_hash
from registry.types import ToolSpec
from tests.integration.test_store import rows
from tests.support.databases import Databases, psycopg_url
from tests.support.logged_embeddings import times_embedded
from tests.support.worker import Job, Worker

_POINTS = 4  # for each of three victims in each of two tasks: 24
_TOOLS = 40
# Ten requests, each a point of its own, and a hold that runs out soon after a kill.
_SETTINGS = RegistrySettings(embedding_batch_size=4, lease_s=1, lease_wait_s=30)
_STORED = """
    SELECT t.text_hash FROM tool_registry AS t
    JOIN tool_embedding AS e ON e.tool_id = t.id AND e.source_hash = t.text_hash
    JOIN embedding_model AS m ON m.id = e.embedding_model_id
    WHERE m.name = %s
"""
_SERVING = "SELECT name FROM embedding_model WHERE state = 'active'"
_END_BACKENDS = """
    SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'toolrag'
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPostgres]:
    """A server of these tests' own, as durable as in production."""
    with LocalPostgres(tmp_path_factory.mktemp("killed"), settings={"fsync": "on"}) as server:
        yield server


@pytest.fixture
def job(server: LocalPostgres, tmp_path: Path) -> Job:
    """A sync of everything into an empty database."""
    url = Databases(server.url).create()
    migrate.upgrade(url)
    return Job(
        task="sync",
        url=url,
        log=tmp_path / "embedded",
        tools=_TOOLS,
        delay_s=0.01,
        settings=_SETTINGS,
    )


@dataclass(frozen=True)
class Killer:
    """Ends what works on a job."""

    victim: str
    server: LocalPostgres

    def strike(self, job: Job, worker: Worker) -> bool:
        """Kill; return whether there was anything to be killed."""
        if self.victim == "process":
            struck = worker.process.is_alive()
            worker.kill()
        elif self.victim == "backend":
            struck = bool(rows(job.url, _END_BACKENDS))
            while not struck and worker.process.is_alive():  # not connected yet
                struck = bool(rows(job.url, _END_BACKENDS))
        else:
            pid = self.server.status().pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            struck = worker.process.is_alive()
        finished = worker.ended()
        if self.victim == "server":
            self.server.start()
        if self.victim != "process" and not finished:
            assert worker.error.startswith("RegistryUnavailableError: "), worker.error
        return struck


def specs_of(job: Job) -> list[ToolSpec]:
    return job.toolset.specs


def model_name(job: Job) -> str:
    return f"LoggedEmbeddings:{job.model}"


def stored_texts(job: Job) -> set[str]:
    """Return the texts of the job's tools that its model has a vector of."""
    texts = {text_hash(spec): embedding_text(spec) for spec in specs_of(job)}
    found = {text for (text,) in rows(job.url, _STORED, model_name(job))}
    return {texts[known] for known in found & texts.keys()}


def duration_of(job: Job) -> float:
    """Do a job without any fault; return how long it took."""
    start = time.monotonic()
    with Worker(job) as worker:
        worker.result()
    return time.monotonic() - start


def searched(job: Job) -> list[str]:
    """Return the names of all tools that a search finds, in order."""
    with job.registry() as registry:
        hits = registry.search("handle", threshold=0, k=1_000)
    return sorted(hit.tool_name for hit in hits)


def repeated(job: Job) -> None:
    """Do the job again, in this process, once the hold of the killed one has run out."""
    registry = replace(job, delay_s=0.0).registry()
    try:
        if job.task == "sync":
            assert dict(registry.sync(job.toolset).failed) == {}
            return
        if rows(job.url, _SERVING) == [(model_name(job),)]:
            return
        _once_free(lambda: _build(registry))
    finally:
        registry.close()


def _build(registry: ToolRegistry) -> None:
    registry.build_embeddings()
    registry.switch_embeddings()


def _once_free(work: Callable[[], object]) -> None:
    """Do what is refused as long as the hold of a killed process has not run out."""
    end = time.monotonic() + 30
    while True:
        try:
            work()
        except RegistryBusyError:
            assert time.monotonic() < end, "the killed process's hold never ran out"
            time.sleep(0.05)
        else:
            return


@pytest.mark.parametrize("victim", ["process", "backend", "server"])
def test_a_sync_that_is_broken_off(server: LocalPostgres, job: Job, victim: str) -> None:
    chance = random.Random(f"sync {victim}")
    killer = Killer(victim, server)
    duration_of(job)
    usual_s = duration_of(replace(job, prefix="again: "))
    names = [spec.tool_name for spec in specs_of(job)]
    points = 0
    for attempt in itertools.count(1):
        assert attempt <= 5 * _POINTS, "nearly every kill came too late"
        # Every text is new.
        changed = replace(job, prefix=f"{attempt}: ")
        with Worker(changed) as worker:
            worker.process.join(chance.uniform(0.02, usual_s))
            if killer.strike(changed, worker):
                points += 1
            else:
                usual_s *= 0.7  # too late: the machine is less busy now
        stored = stored_texts(changed)
        acknowledged = specs_of(changed)[: worker.progress]
        assert {embedding_text(spec) for spec in acknowledged} <= stored
        # Old or new, each tool is found by its own vector.
        assert searched(changed) == names
        with changed.registry() as registry:
            findings = registry.validate(changed.toolset).findings
        assert {finding.kind for finding in findings} <= {"text_differs"}
        assert len(findings) == len(names) - len(stored)

        before = times_embedded(job.log)
        repeated(changed)
        embedded_anew = set(times_embedded(job.log) - before)
        assert embedded_anew == {embedding_text(s) for s in specs_of(changed)} - stored
        with changed.registry() as registry:
            assert str(registry.validate(changed.toolset)).endswith("registry and code agree.")
            versions = [v.version for v in registry.history(names[0])]
        assert versions == list(range(attempt + 2, 0, -1))
        if points == _POINTS:
            break


@pytest.mark.parametrize("victim", ["process", "backend", "server"])
def test_a_change_of_model_that_is_broken_off(server: LocalPostgres, job: Job, victim: str) -> None:
    chance = random.Random(f"build {victim}")
    killer = Killer(victim, server)
    serving = job
    duration_of(serving)
    names = [spec.tool_name for spec in specs_of(job)]

    def to(attempt: int) -> Job:
        return replace(job, task="build", model=f"model {attempt}", dimensions=32 + attempt)

    usual_s = duration_of(to(0))
    serving = to(0)
    points = 0
    for attempt in itertools.count(1):
        assert attempt <= 5 * _POINTS, "nearly every kill came too late"
        changed = replace(to(attempt), log=job.log.with_name(f"embedded {attempt}"))
        with Worker(changed) as worker:
            worker.process.join(chance.uniform(0.02, usual_s))
            if killer.strike(changed, worker):
                points += 1
            else:
                usual_s *= 0.7  # too late: the machine is less busy now
        stored = stored_texts(changed)
        acknowledged = specs_of(changed)[: worker.progress]
        assert {embedding_text(spec) for spec in acknowledged} <= stored
        # One model serves, the old or the new, and it has every tool.
        ((active,),) = rows(job.url, _SERVING)
        assert active in (model_name(serving), model_name(changed))
        assert searched(serving if active == model_name(serving) else changed) == names
        # A process that started on the old model goes on answering from it in any case.
        assert len(rows(job.url, _STORED, model_name(serving))) == _TOOLS

        before = times_embedded(changed.log)
        repeated(changed)
        embedded_anew = set(times_embedded(changed.log) - before)
        assert {text for text in embedded_anew if "Handle" in text} == {
            embedding_text(spec) for spec in specs_of(changed)
        } - stored
        assert rows(job.url, _SERVING) == [(model_name(changed),)]
        assert searched(changed) == names
        with changed.registry() as registry:
            assert registry.validate(changed.toolset).is_valid
            # A process killed after its switch, but before it gave its lease back, holds it yet.
            _once_free(registry.prune_embeddings)
        serving = changed
        if points == _POINTS:
            break


def test_the_server_is_as_durable_as_in_production(server: LocalPostgres) -> None:
    with psycopg.connect(psycopg_url(server.url)) as connection:
        settings = [
            connection.execute("SELECT current_setting(%s)", [name]).fetchone()
            for name in ("fsync", "synchronous_commit", "full_page_writes")
        ]
    assert settings == [("on",)] * 3
