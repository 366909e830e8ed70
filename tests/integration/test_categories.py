"""Categories in the database: kept by namespace, seen by every process at the next search."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from sqlalchemy import select

from registry import RegistrySettings, statements
from registry.errors import CategoryNotFoundError, ConfigurationError
from tests.integration.conftest import EitherRegistry, OpenRegistry
from tests.support.catalogue import spec
from tests.support.databases import psycopg_url

TOOLS = [
    spec("get_forecast", "Weather forecast of a city.", category="weather"),
    spec("get_rain", "Rain expected in a city.", category="weather"),
    spec("list_invoices", "Invoices of a customer.", category="billing"),
    spec("anything", "Do anything."),
]


def routing_state(registry: EitherRegistry, *, up_to: int = 51) -> tuple[int, str]:
    """Return what a search reads beside its candidates."""
    statement = statements.DriverStatement.of(
        select(statements.count_active_tools(), statements.categories_stamp())
    )
    values = statement.values({"namespace": registry.namespace, "counted": up_to})
    with psycopg.connect(psycopg_url(registry.database_url)) as connection:
        row = psycopg.RawCursor(connection).execute(statement.sql.encode(), values).fetchone()
    assert row is not None
    return row[0], row[1]


async def routed(registry: EitherRegistry, question: str) -> tuple[str, ...]:
    """Route a question as a search does: by the stamp that came with its candidates."""
    _, stamp = routing_state(registry)
    wrapped: Any = registry.wrapped
    opened = wrapped._connection()
    if hasattr(opened, "__aenter__"):
        async with opened as connection:
            router = await wrapped._current_router(connection, stamp)
    else:
        with opened as connection:
            router = wrapped._current_router(connection, stamp)
    return router.route(question)


async def test_set_list_change_and_remove(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    assert await registry.categories() == {}
    await registry.set_category("weather", ["rain", "天気"])
    await registry.set_category(" billing ", iter([" invoice "]))
    assert await registry.categories() == {"billing": ("invoice",), "weather": ("rain", "天気")}
    await registry.set_category("weather", ["storm"])
    assert await registry.categories() == {"billing": ("invoice",), "weather": ("storm",)}
    await registry.remove_category("weather")
    assert await registry.categories() == {"billing": ("invoice",)}


async def test_an_unknown_category_is_named_with_the_known_ones(
    open_registry: OpenRegistry,
) -> None:
    registry = await open_registry()
    with pytest.raises(CategoryNotFoundError, match="'sky' has no keywords in namespace 'default'"):
        await registry.remove_category("sky")
    await registry.set_category("weather", ["rain"])
    with pytest.raises(CategoryNotFoundError, match="Those that have: weather") as error:
        await registry.remove_category("sky")
    assert (error.value.name, error.value.known) == ("sky", ("weather",))


async def test_what_cannot_be_used_changes_nothing(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    await registry.set_category("weather", ["rain"])
    for name, keywords in (("weather", []), ("weather", ["the"]), ("", ["rain"]), ("x\x00", ["y"])):
        with pytest.raises(ConfigurationError):
            await registry.set_category(name, keywords)
    assert await registry.categories() == {"weather": ("rain",)}


async def test_namespaces_do_not_see_each_other(open_registry: OpenRegistry) -> None:
    ours = await open_registry()
    theirs = await open_registry(settings=RegistrySettings(namespace="theirs"))
    await ours.set_category("weather", ["rain"])
    await theirs.set_category("weather", ["snow"])
    assert await routed(ours, "rain or snow") == ("weather",)
    with pytest.raises(CategoryNotFoundError):
        await theirs.remove_category("billing")
    await theirs.remove_category("weather")
    assert await ours.categories() == {"weather": ("rain",)}
    assert await routed(theirs, "rain or snow") == ()


async def test_every_process_routes_by_the_present_categories(open_registry: OpenRegistry) -> None:
    here, there = await open_registry(), await open_registry()
    assert await routed(here, "Will it rain?") == ()
    await there.set_category("weather", ["rain"])
    assert await routed(here, "Will it rain?") == ("weather",)
    await there.set_category("weather", ["snow"])
    assert await routed(here, "Will it rain?") == ()
    assert await routed(here, "snow") == ("weather",)
    await there.remove_category("weather")
    assert await routed(here, "snow") == ()


async def test_a_router_is_compiled_once_for_the_same_categories(
    open_registry: OpenRegistry,
) -> None:
    registry = await open_registry()
    await registry.set_category("weather", ["rain"])
    await routed(registry, "rain")
    first = registry.wrapped._router
    await routed(registry, "rain")
    assert registry.wrapped._router is first
    await registry.set_category("weather", ["rain"])
    await routed(registry, "rain")
    assert registry.wrapped._router is not first


async def test_the_stamp_is_that_of_the_rows_that_were_read(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    await registry.set_category("weather", ["rain"])
    _, old = routing_state(registry)
    await registry.set_category("weather", ["snow"])
    wrapped: Any = registry.wrapped
    wrapped._router = ("", wrapped._router[1])
    assert await routed(registry, "snow") == ("weather",)
    assert wrapped._router[0] == routing_state(registry)[1] != old


async def test_active_tools_are_counted_as_far_as_it_matters(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    assert routing_state(registry)[0] == 0
    await registry.sync(TOOLS)
    await registry.deactivate("anything")
    assert routing_state(registry)[0] == 3
    assert routing_state(registry, up_to=2)[0] == 2
    assert await registry.tool_categories() == {"billing": 1, "weather": 2}


async def test_suggestions_come_from_active_tools_and_are_not_stored(
    open_registry: OpenRegistry,
) -> None:
    registry = await open_registry()
    await registry.sync(TOOLS)
    suggested = await registry.suggest_categories(per_category=3)
    assert list(suggested) == ["billing", "weather"]
    assert suggested["billing"][0] == "billing"
    assert {"invoices", "customer"} & set(suggested["billing"])
    assert await registry.categories() == {}
    await registry.deactivate("list_invoices")
    assert list(await registry.suggest_categories()) == ["weather"]
