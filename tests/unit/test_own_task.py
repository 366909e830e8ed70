"""A generator in a task of its own: order, errors, back-pressure, and every way of cancelling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
import pytest

from agent._own_task import in_own_task


class Source:
    """A generator that needs to wait before it has ended, as one that gives a thread back."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.ended = asyncio.Event()
        self.is_clean = False

    async def items(self, *, hangs_at: int = 99, count: int = 3) -> AsyncGenerator[int]:
        try:
            for number in range(count):
                if number == hangs_at:
                    await asyncio.Event().wait()
                self.made.append(number)
                yield number
        finally:
            try:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                self.is_clean = True
            finally:
                self.ended.set()


async def turns() -> None:
    """Let everything happen that waits for nothing."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_items_come_in_order_and_none_is_made_before_it_is_wanted() -> None:
    source = Source()
    async with aclosing(in_own_task(source.items())) as items:
        async for item in items:
            await turns()
            assert source.made[-1] == item
    assert (source.made, source.is_clean) == ([0, 1, 2], True)


async def test_an_error_comes_out_behind_what_came_before_it() -> None:
    async def failing() -> AsyncGenerator[int]:
        yield 1
        raise LookupError("broken")

    items = in_own_task(failing())
    assert await anext(items) == 1
    with pytest.raises(LookupError, match="broken"):
        await anext(items)


async def test_leaving_the_loop_ends_it_before_the_reader_goes_on() -> None:
    source = Source()
    async with aclosing(in_own_task(source.items())) as items:
        async for _ in items:
            break
    assert (source.made, source.is_clean) == ([0], True)


@pytest.mark.parametrize("hangs_at", [1, 99])
async def test_a_server_that_cancels_at_every_await_does_no_harm(hangs_at: int) -> None:
    """ERR-4: what Starlette does to the response of a client that went away."""
    source = Source()

    async def respond() -> None:
        async with aclosing(in_own_task(source.items(hangs_at=hangs_at))) as items:
            async for item in items:
                if item == 0 and hangs_at == 99:
                    scope.cancel()
                    await asyncio.sleep(0)  # cancelled here, while the generator waits

    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(respond)
            while not source.made:
                await anyio.sleep(0)
            await turns()
            scope.cancel()
    async with asyncio.timeout(10):
        await source.ended.wait()
    assert source.is_clean
