"""Calls that are given up at a deadline."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextvars import ContextVar

import pytest

from agent.middleware._deadline import (
    CallCancelledError,
    CallTimeoutError,
    acall_with_timeout,
    call_with_timeout,
)

NEVER_S = 30.0  # a deadline no test comes near to

colour: ContextVar[str] = ContextVar("colour", default="none")


async def both_ways(function, timeout_s):
    """Return what the sync and the async call bring: a value, or the exception raised."""

    async def as_coroutine():
        return function()

    outcomes = []
    for attempt in (
        lambda: asyncio.to_thread(call_with_timeout, function, timeout_s),
        lambda: acall_with_timeout(as_coroutine, timeout_s),
    ):
        try:
            outcomes.append(await attempt())
        except BaseException as error:
            outcomes.append(error)
    return outcomes


@pytest.mark.parametrize("timeout_s", [None, NEVER_S])
async def test_the_result_comes_through(timeout_s):
    assert await both_ways(lambda: 42, timeout_s) == [42, 42]


@pytest.mark.parametrize("timeout_s", [None, NEVER_S])
@pytest.mark.parametrize("kind", [ValueError, TimeoutError, KeyboardInterrupt, SystemExit])
def test_the_functions_own_exception_comes_through(kind, timeout_s):
    error = kind("own")

    def fail():
        raise error

    with pytest.raises(kind) as caught:
        call_with_timeout(fail, timeout_s)
    assert caught.value is error


@pytest.mark.parametrize("timeout_s", [None, NEVER_S])
@pytest.mark.parametrize("kind", [ValueError, TimeoutError])
async def test_the_coroutines_own_exception_comes_through(kind, timeout_s):
    async def fail():
        raise kind("own")

    with pytest.raises(kind) as caught:
        await acall_with_timeout(fail, timeout_s)
    assert type(caught.value) is kind


@pytest.mark.parametrize("timeout_s", [None, NEVER_S])
async def test_a_cancellation_from_within_is_a_fault_like_any_other(timeout_s):
    """A caller that is not being cancelled itself must not end as if it were."""

    async def wait_for_what_is_cancelled():
        inner = asyncio.get_running_loop().create_future()
        inner.cancel()
        await inner

    with pytest.raises(CallCancelledError):
        await acall_with_timeout(wait_for_what_is_cancelled, timeout_s)


@pytest.mark.parametrize("timeout_s", [0, -1.5])
async def test_nothing_starts_after_the_deadline(timeout_s):
    started = []
    outcomes = await both_ways(lambda: started.append(1), timeout_s)
    assert [type(outcome) for outcome in outcomes] == [CallTimeoutError] * 2
    assert started == []


def test_a_hanging_function_is_left_behind():
    release, late = threading.Event(), threading.Event()

    def hang():
        release.wait(NEVER_S)
        late.set()
        raise ValueError("nobody hears of it")

    with pytest.raises(CallTimeoutError) as caught:
        call_with_timeout(hang, 0.05)
    assert caught.value.timeout_s == 0.05
    assert not late.is_set()
    release.set()
    assert late.wait(NEVER_S)


async def test_a_hanging_coroutine_is_cancelled():
    ended = []

    async def hang():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    with pytest.raises(CallTimeoutError):
        await acall_with_timeout(hang, 0.05)
    assert ended == [1]


async def test_a_coroutine_that_ignores_its_cancellation_is_left_behind():
    release, late = asyncio.Event(), asyncio.Event()

    async def stubborn():
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        late.set()
        raise ValueError("nobody hears of it")

    with pytest.raises(CallTimeoutError):
        await acall_with_timeout(stubborn, 0.05)
    gc.collect()  # the task is kept, though nobody here holds it
    release.set()
    async with asyncio.timeout(NEVER_S):
        await late.wait()
    await asyncio.sleep(0)
    gc.collect()  # a lost exception would be reported now


async def test_one_that_ends_well_while_it_is_cancelled_has_ended():
    async def finishes():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "written"

    assert await acall_with_timeout(finishes, 0.05) == "written"


async def test_a_cancelled_caller_cancels_the_coroutine_and_is_cancelled():
    running, ended = asyncio.Event(), []

    async def hang():
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    caller = asyncio.create_task(acall_with_timeout(hang, NEVER_S))
    await running.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended == [1]


async def test_a_deadline_further_in_is_told_apart_from_this_one():
    def inner():
        return call_with_timeout(threading.Event().wait, 0.02)

    async def ainner():
        return await acall_with_timeout(asyncio.Event().wait, 0.02)

    with pytest.raises(TimeoutError) as caught:
        call_with_timeout(inner, NEVER_S)
    assert type(caught.value) is TimeoutError
    with pytest.raises(TimeoutError) as caught:
        await acall_with_timeout(ainner, NEVER_S)
    assert type(caught.value) is TimeoutError


@pytest.mark.parametrize("timeout_s", [None, NEVER_S])
async def test_context_variables_are_seen_inside(timeout_s):
    token = colour.set("blue")
    try:
        assert await both_ways(colour.get, timeout_s) == ["blue", "blue"]
    finally:
        colour.reset(token)
