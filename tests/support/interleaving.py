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
from unittest.mock import patch

import psycopg
from psycopg.sql import Composable

T = TypeVar("T")
_THREADS = ThreadPoolExecutor(32)


@contextmanager
def each_statement(seen: Callable[[str], object]) -> Generator[None]:
    """Call something with the text of each statement, right before the driver sends it."""
    plain, awaited = psycopg.Cursor.execute, psycopg.AsyncCursor.execute

    def execute(cursor: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
        seen(query.as_string() if isinstance(query, Composable) else str(query))
        return plain(cursor, query, *args, **kwargs)

    async def aexecute(cursor: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
        seen(query.as_string() if isinstance(query, Composable) else str(query))
        return await awaited(cursor, query, *args, **kwargs)

    with (
        patch.object(psycopg.Cursor, "execute", execute),
        patch.object(psycopg.AsyncCursor, "execute", aexecute),
    ):
        yield


@contextmanager
def before_statement(pattern: str, action: Callable[[], object]) -> Generator[list[str]]:
    """Do something once, right before the first statement that matches; yield what matched.

    Statements of the action itself do not count. The test fails where nothing matched.
    """
    matched: list[str] = []

    def intervene(statement: str) -> None:
        if not matched and re.search(pattern, statement):
            matched.append(statement)
            action()

    with each_statement(intervene):
        yield matched
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
