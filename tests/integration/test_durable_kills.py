"""Processes killed at random points inside steps; others go on with their threads, and no call
that may not be repeated is run twice."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage

from agent.guarding.answers import OUTCOME_UNKNOWN, outcome_of
from tests.integration.test_store import rows
from tests.support.durable_work import STEPS, Work, answers_of, in_process

_KILLS = 10  # for each of two kinds of worker: 20
_BEGUN = "SELECT 1 FROM checkpoints WHERE thread_id = %s LIMIT 1"


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_killed_run_is_finished_by_another_process(
    database_url: str, tmp_path: Path, is_async: bool
) -> None:
    """20 kills in all: never a second effect, one answer a call, and the thread goes on."""
    work = Work(url=database_url, log=tmp_path / "log", is_async=is_async, delay_s=0.015)
    work.register()
    chance = random.Random(f"durable {is_async}")
    process, reports = in_process(work, "begin", "whole")
    assert reports.recv() == "ready"
    start = time.monotonic()
    assert reports.recv() == "Thread whole is done."
    usual_s = time.monotonic() - start
    process.join()

    killed: list[str] = []
    while len(killed) < _KILLS:
        thread_id = f"t{time.monotonic_ns()}"
        process, reports = in_process(work, "begin", thread_id)
        assert reports.recv() == "ready"
        process.join(chance.uniform(0, usual_s))
        process.kill()
        process.join()
        with suppress(EOFError):  # unless the run was done already
            assert reports.recv() == f"Thread {thread_id} is done."
            usual_s *= 0.8
            continue
        if rows(database_url, _BEGUN, f"default/{thread_id}"):
            killed.append(thread_id)

    # Another process, and the other kind of it.
    other = Work(url=database_url, log=work.log, is_async=not is_async)
    process, reports = in_process(other, "finish", *killed)
    assert reports.recv() == "ready"
    assert [reports.recv() for _ in killed] == [f"Thread {name} is done." for name in killed]
    process.join()

    effects = Counter(work.log.read_text().splitlines())
    unknown = 0
    with other.session() as session:
        for thread_id in killed:
            messages = session.messages(thread_id)
            assert [len(m.tool_calls) for m in messages if isinstance(m, AIMessage)] == [
                *map(len, STEPS),
                0,
            ]
            answers = answers_of(messages)
            asked = [c["id"] for m in messages if isinstance(m, AIMessage) for c in m.tool_calls]
            assert [answer.tool_call_id for answer in answers] == asked
            for at, answer in enumerate(answers):
                done = effects[f"{answer.name} {thread_id} {at}"]
                if answer.name != "charge":
                    assert answer.status == "success"
                    assert done >= 1
                elif answer.status == "success":
                    assert done == 1
                else:
                    assert outcome_of(answer) == OUTCOME_UNKNOWN
                    assert done <= 1
                    unknown += 1
            assert session.again(thread_id).answer == f"Thread {thread_id} is done."
    assert max(n for what, n in effects.items() if what.startswith("charge")) == 1
    # A killed step has two such calls at most, and the other steps ran in full.
    assert unknown <= 2 * _KILLS
