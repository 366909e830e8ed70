"""Both registries behind one awaitable face, so that one contract suite covers them."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from registry import AsyncToolRegistry, ToolRegistry
from tests.support.command_line import clean_environment, cli, toolrag  # noqa: F401
from tests.support.embeddings import HashEmbeddings

OpenRegistry = Callable[..., Awaitable["EitherRegistry"]]


class EitherRegistry:
    """Awaitable methods of a sync or an async registry."""

    def __init__(self, registry: ToolRegistry | AsyncToolRegistry, url: str) -> None:
        self.wrapped = registry
        self.database_url = url

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.wrapped, name)
        if not callable(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return call


@pytest.fixture(params=[ToolRegistry, AsyncToolRegistry], ids=["sync", "async"])
async def open_registry(
    request: pytest.FixtureRequest, database_url: str
) -> AsyncIterator[OpenRegistry]:
    """Maker of registries on this test's database; all are closed afterwards."""
    made: list[EitherRegistry] = []

    async def make(**options: Any) -> EitherRegistry:
        options.setdefault("embeddings", HashEmbeddings())
        url, opened = options.pop("url", database_url), options.pop("opened", True)
        registry = EitherRegistry(request.param(url, **options), url)
        made.append(registry)
        if opened:
            await registry.open()
        return registry

    yield make
    for registry in made:
        await registry.close()
