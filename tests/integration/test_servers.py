"""Servers as they are: other schemas, replicas, settings that reach every connection."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import make_url

from registry import RegistrySettings, migrate
from registry.errors import RegistryUnavailableError, SchemaVersionError
from tests.integration.conftest import OpenRegistry
from tests.integration.test_store import rows
from tests.support.catalogue import spec
from tests.support.databases import psycopg_url
from tests.support.embeddings import HashEmbeddings


def in_schema(url: str, path: str) -> str:
    """Return the URL with a search path, as libpq takes it."""
    with_options = make_url(url).update_query_dict({"options": f"-c search_path={path}"})
    return with_options.render_as_string(hide_password=False)


async def test_a_schema_of_its_own_comes_with_the_url(
    open_registry: OpenRegistry, empty_database_url: str
) -> None:
    """Made by the migration where it is absent; nothing of ours is put into public."""
    url = in_schema(empty_database_url, "tools,public")
    with psycopg.connect(psycopg_url(empty_database_url), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
    migrate.upgrade(url)
    migrate.upgrade(url)
    assert migrate.current_revision(url) is not None
    assert migrate.current_revision(empty_database_url) is None
    registry = await open_registry(url=url, settings=RegistrySettings(index_min_tools=1))
    await registry.sync([spec("add", "Add two numbers."), spec("pay", "Pay an invoice.")])
    assert [h.tool_name for h in await registry.search("add numbers")] == ["add"]
    await registry.update_tool("pay", description="Pay a bill.")
    await registry.rollback("pay", 1)
    new = await open_registry(url=url, embeddings=HashEmbeddings(16, model="new"), opened=False)
    await new.build_embeddings()
    await new.switch_embeddings()
    assert await new.prune_embeddings() != []
    store = await new.as_vector_store()
    documents = await store.asimilarity_search("add numbers", k=1)
    assert documents[0].metadata["tool_name"] == "add"
    ours = rows(
        empty_database_url,
        "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'tool%%'",
    )
    assert ours == [("tools",)]
    migrate.downgrade(url, "base")
    assert migrate.current_revision(url) is None


async def test_two_installations_in_one_database_do_not_see_each_other(
    open_registry: OpenRegistry, database_url: str
) -> None:
    """The one in public is not taken for that of a schema which comes first in the path."""
    public = await open_registry()
    await public.sync([spec("public_tool", "In public.")])
    url = in_schema(database_url, "second,public")
    with pytest.raises(SchemaVersionError, match="no toolrag schema"):
        await open_registry(url=url)
    migrate.upgrade(url)
    second = await open_registry(url=url)
    assert await second.list_tools() == []
    await second.sync([spec("second_tool", "In the second schema.")])
    assert [r.spec.tool_name for r in await public.list_tools()] == ["public_tool"]
    assert [r.spec.tool_name for r in await second.list_tools()] == ["second_tool"]


async def test_searches_go_to_the_replica_and_writes_do_not(
    open_registry: OpenRegistry, database_url: str
) -> None:
    """The replica's connections are told apart by their name and are read-only."""
    replica = (
        make_url(database_url)
        .update_query_dict({"options": "-c default_transaction_read_only=on"})
        .render_as_string(hide_password=False)
    )
    registry = await open_registry(replica_url=replica)
    await registry.sync([spec("add", "Add two numbers.")])
    assert [h.tool_name for h in await registry.search("add numbers")] == ["add"]
    await registry.update_tool("add", description="Sum two numbers.")
    assert [h.tool_name for h in await registry.search("sum numbers")] == ["add"]
    away = await open_registry(replica_url="postgresql://user:secret@127.0.0.1:9/none")
    assert (await away.get("add")).version == 2
    with pytest.raises(RegistryUnavailableError, match=r"127\.0\.0\.1:9") as caught:
        await away.search("add numbers")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("prepared", [True, False])
async def test_dbc_1_one_setting_turns_preparation_off(
    open_registry: OpenRegistry, prepared: bool
) -> None:
    """DBC-1: no connection of the product prepares a statement then."""
    settings = RegistrySettings(pool_size=1, max_overflow=0, prepared_statements=prepared)
    registry = await open_registry(settings=settings)
    await registry.sync([spec("add", "Add two numbers.")])
    for _ in range(10):
        await registry.search("add numbers")
    count = "SELECT count(*) FROM pg_prepared_statements"

    async def prepared_now() -> Any:
        wrapped: Any = registry.wrapped
        if hasattr(wrapped, "__aenter__"):
            async with wrapped._connection() as connection:
                return (await connection.exec_driver_sql(count)).scalar()
        with wrapped._connection() as connection:
            return connection.exec_driver_sql(count).scalar()

    assert (await prepared_now() > 0) == prepared


def test_tls_parameters_of_the_url_reach_the_driver(database_url: str) -> None:
    url = (
        make_url(database_url)
        .update_query_dict({"sslmode": "verify-full", "sslrootcert": "/nonexistent/ca.pem"})
        .render_as_string(hide_password=False)
    )
    if "host=%2F" in url or "host=/" in url:
        url = (
            make_url("postgresql://someone@127.0.0.1:9/none")
            .update_query_dict({"sslmode": "verify-full", "sslrootcert": "/nonexistent/ca.pem"})
            .render_as_string(hide_password=False)
        )
    with pytest.raises(RegistryUnavailableError, match=r"ca\.pem|refused"):
        migrate.current_revision(url)
