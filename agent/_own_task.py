"""A generator in a task of its own, so that whoever reads it may be cancelled in any way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

__all__ = ["in_own_task"]

_Item = TypeVar("_Item")

_tasks: set[asyncio.Task[None]] = set()  # the event loop itself keeps only weak references


async def in_own_task(items: AsyncGenerator[_Item]) -> AsyncGenerator[_Item]:
    """Yield what a generator yields; it goes on only while the next item is waited for.

    A server built on anyio (Starlette, FastAPI) cancels a response anew at each `await` until its
    task has ended. A run that is cancelled so can neither cancel its tools nor give its thread
    back. In a task of its own it is cancelled once, and comes to its end also when whoever reads
    cannot wait for that.

    Args:
        items: Its errors come out as they are.
    """
    wanted: asyncio.Queue[None] = asyncio.Queue()
    # None at the end: an item stands in a tuple.
    made: asyncio.Queue[tuple[_Item] | None] = asyncio.Queue()

    async def make() -> None:
        async with aclosing(items):
            await wanted.get()
            async for item in items:
                made.put_nowait((item,))
                await wanted.get()

    def end(task: asyncio.Task[None]) -> None:
        _tasks.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not report it as lost
        made.put_nowait(None)

    task = asyncio.create_task(make(), name="toolrag-run")
    _tasks.add(task)
    task.add_done_callback(end)
    try:
        wanted.put_nowait(None)
        while (item := await made.get()) is not None:
            yield item[0]
            wanted.put_nowait(None)
        task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
