"""Doing something exactly between two statements of another, and many things at once."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Engine, event

T = TypeVar("T")
_THREADS = ThreadPoolExecutor(32)


@contextmanager
def before_statement(pattern: str, action: Callable[[], object]) -> Generator[list[str]]:
    """Do something once, right before the first statement that matches; yield what matched.

    Statements of the action itself do not count. The test fails where nothing matched.
    """
    matched: list[str] = []

    def intervene(*arguments: Any) -> None:
        statement = str(arguments[2])
        if not matched and re.search(pattern, statement):
            matched.append(statement)
            action()

    event.listen(Engine, "before_cursor_execute", intervene)
    try:
        yield matched
    finally:
        event.remove(Engine, "before_cursor_execute", intervene)
    assert matched, f"no statement was like {pattern!r}"


async def call(registry: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    """Call a registry's method beside others: in a thread where it is the sync one."""
    found = getattr(getattr(registry, "wrapped", registry), method)
    if inspect.iscoroutinefunction(found):
        return await found(*args, **kwargs)
    return await in_thread(found, *args, **kwargs)


async def in_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run a function in a thread of its own, of up to 32; asyncio's have six on two cores."""
    return await asyncio.get_running_loop().run_in_executor(
        _THREADS, partial(function, *args, **kwargs)
    )
