"""The registry as a LangChain retriever and as a vector store."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from langchain_core.runnables import RunnableLambda

from registry import AsyncToolRegistry, RegistrySettings, ToolRegistry, ToolRetriever
from registry.errors import ConfigurationError, InvalidQueryError
from tests.integration.conftest import EitherRegistry, OpenRegistry
from tests.support.catalogue import spec
from tests.support.databases import psycopg_url
from tests.support.embeddings import HashEmbeddings

TOOLS = [
    spec("weather", "Weather forecast for a city.", category="world", read_only=True),
    spec("add", "Add two numbers.", category="math"),
    spec("wipe", "Wipe the disk.", category="danger", requires_approval=True),
]


async def filled(open_registry: OpenRegistry, **options: Any) -> EitherRegistry:
    registry = await open_registry(**options)
    await registry.sync(TOOLS)
    return registry


async def test_the_retriever_gives_documents_under_every_call(open_registry: OpenRegistry) -> None:
    registry = await filled(open_registry)
    retriever = ToolRetriever(registry=registry.wrapped, k=2, threshold=0.0)
    documents = await retriever.ainvoke("forecast for the city")
    assert documents[0].id == "weather"
    assert documents[0].page_content == "Weather forecast for a city."
    assert documents[0].metadata["binding"] == "weather"
    assert documents[0].metadata["read_only"] is True
    assert len(documents) == 2
    names = retriever | RunnableLambda(lambda found: [document.id for document in found])
    assert (await names.ainvoke("forecast for the city"))[0] == "weather"
    if isinstance(registry.wrapped, ToolRegistry):
        assert retriever.invoke("forecast for the city") == documents
        assert retriever.batch(["forecast for the city"]) == [documents]
    else:
        with pytest.raises(ConfigurationError, match="call ainvoke"):
            retriever.invoke("forecast for the city")


async def test_the_retriever_refuses_what_the_registry_refuses(
    open_registry: OpenRegistry,
) -> None:
    registry = await filled(open_registry)
    with pytest.raises(InvalidQueryError):
        await ToolRetriever(registry=registry.wrapped).ainvoke("  ")
    with pytest.raises(InvalidQueryError):
        await ToolRetriever(registry=registry.wrapped, k=0).ainvoke("add")


async def test_the_vector_store_finds_the_active_tools_of_its_namespace_only(
    open_registry: OpenRegistry,
) -> None:
    other = await open_registry(settings=RegistrySettings(namespace="other"))
    await other.sync([spec("secret", "Weather of another tenant, for a city.")])
    registry = await filled(open_registry)
    await registry.deactivate("wipe")
    store = await registry.as_vector_store()
    found = await store.asimilarity_search_with_score("weather forecast for a city", k=10)
    assert [document.metadata["tool_name"] for document, _ in found] == ["weather", "add"]
    assert found[0][1] < found[1][1]
    documents = await store.asimilarity_search("numbers", k=10, filter={"category": "math"})
    assert [document.metadata["tool_name"] for document in documents] == ["add"]
    as_retriever = store.as_retriever(search_kwargs={"k": 1})
    assert (await as_retriever.ainvoke("add numbers"))[0].metadata["tool_name"] == "add"


async def test_the_vector_store_cannot_write(open_registry: OpenRegistry) -> None:
    registry = await filled(open_registry)
    store = await registry.as_vector_store()
    with pytest.raises(Exception, match=r"cannot (insert|execute INSERT)"):
        await store.aadd_texts(["intruder"])
    with pytest.raises(Exception, match=r"cannot (delete|execute DELETE)"):
        await store.adelete(ids=[(await store.asimilarity_search("add", k=1))[0].id])
    assert len(await registry.list_tools()) == 3


async def test_vec_9_filters_of_the_vector_store_fail_closed(open_registry: OpenRegistry) -> None:
    """VEC-9: an unknown key or operator is an error; empty and missing values match nothing."""
    registry = await filled(open_registry)
    store = await registry.as_vector_store()

    async def names(given: dict[str, Any]) -> list[str]:
        documents = await store.asimilarity_search("anything", k=10, filter=given)
        return sorted(document.metadata["tool_name"] for document in documents)

    assert await names({"category": {"$in": ["math", "world"]}}) == ["add", "weather"]
    assert await names({"category": {"$nin": ["math"]}}) == ["weather", "wipe"]
    assert await names({"category": "' OR '1'='1"}) == []
    assert await names({"category": {"$in": []}}) == []
    for refused in (
        {"owner": "me"},
        {"category": {"$like_no_other": "x"}},
        {"category' = 'x' OR '1'='1' --": "x"},
    ):
        with pytest.raises(Exception, match=r".+"):
            await names(refused)


_ALL = ["add", "weather", "wipe"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, _ALL),
        # Null is no value that a tool could have, and unequal to none either.
        ({"category": None}, []),
        ({"category": {"$eq": None}}, []),
        ({"category": {"$ne": None}}, []),
        ({"category": {"$exists": False}}, []),
        ({"category": {"$exists": True}}, _ALL),
        # A number given as text is compared as the column's type says.
        ({"version": 1}, _ALL),
        ({"version": "1"}, _ALL),
        ({"version": {"$in": ["2"]}}, []),
        ({"read_only": "true"}, ["weather"]),
        ({"category": 5}, "operator does not exist"),
        ({"version": "one"}, "invalid input syntax"),
        # Nothing is in an empty list, everything of this namespace is outside it.
        ({"category": {"$in": []}}, []),
        ({"category": {"$nin": []}}, _ALL),
        ({"category": {"$nin": ["math"]}}, ["weather", "wipe"]),
        ({"category": {"$ne": "math"}}, ["weather", "wipe"]),
        ({"$not": {"category": "math"}}, ["weather", "wipe"]),
        ({"category": {"$nin": ["math", None]}}, "Unsupported type"),
        ({"category": ["math"]}, []),
        ({"category": {"$in": "math"}}, "malformed array literal"),
        # What is no operator, no key or no condition is an error.
        ({"category": {"$is": "math"}}, "Invalid operator"),
        ({"category": {"$eq": "math", "$ne": "math"}}, "single key"),
        ({"category": {}}, "single key"),
        ({"$nor": [{"category": "math"}]}, "Expected"),
        ({"$or": []}, "empty"),
        ({"owner": "neighbour"}, "does not exist"),
        ({"namespace": "neighbour"}, "does not exist"),
        ({"namespace": {"$nin": ["default"]}}, "does not exist"),
        ({"$or": [{"category": "math"}, {"namespace": "neighbour"}]}, "does not exist"),
    ],
    ids=str,
)
async def test_vec_9_each_filter_has_one_result(
    open_registry: OpenRegistry, given: dict[str, Any], expected: list[str] | str
) -> None:
    """VEC-9: documented at `as_vector_store`; under none of them comes another owner's tool."""
    theirs = await open_registry(settings=RegistrySettings(namespace="neighbour"))
    await theirs.sync([spec("secret", "Anything of a neighbour.", category="math")])
    registry = await filled(open_registry)
    store = await registry.as_vector_store()
    if isinstance(expected, str):
        with pytest.raises(Exception, match=expected):
            await store.asimilarity_search("anything", k=10, filter=given)
    else:
        documents = await store.asimilarity_search("anything", k=10, filter=given)
        assert sorted(document.metadata["tool_name"] for document in documents) == expected


@pytest.mark.parametrize(
    "owner", ["", "NEIGHBOUR", "neighbou", "neighbour ", "%", "neighbour,default"]
)
async def test_vec_9_an_owner_that_is_missing_or_nearly_right_owns_nothing(
    open_registry: OpenRegistry, owner: str
) -> None:
    """VEC-9: the owner of the view is compared as a whole, and an unset one is nobody's."""
    theirs = await open_registry(settings=RegistrySettings(namespace="neighbour"))
    await theirs.sync(TOOLS)
    query = "SELECT tool_name FROM tool_catalogue"
    with psycopg.connect(psycopg_url(theirs.database_url)) as connection:
        connection.execute("SELECT set_config('toolrag.namespace', %s, true)", [owner])
        assert connection.execute(query).fetchall() == []
        connection.execute("SELECT set_config('toolrag.namespace', 'neighbour', true)")
        assert len(connection.execute(query).fetchall()) == len(TOOLS)


async def test_the_view_is_empty_for_a_connection_without_a_namespace(
    open_registry: OpenRegistry,
) -> None:
    """VEC-9: a filter that is missing matches nothing."""
    registry = await filled(open_registry)
    if isinstance(registry.wrapped, AsyncToolRegistry):
        async with registry.wrapped._connection() as connection:
            rows = (await connection.exec_driver_sql("SELECT * FROM tool_catalogue")).all()
    else:
        with registry.wrapped._connection() as connection:
            rows = connection.exec_driver_sql("SELECT * FROM tool_catalogue").all()
    assert rows == []


async def test_a_vector_store_leaves_no_connection_open(open_registry: OpenRegistry) -> None:
    registry = await filled(open_registry, embeddings=HashEmbeddings())
    store = await registry.as_vector_store()
    await store.asimilarity_search("add", k=1)
    count = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid() AND query LIKE '%%tool_catalogue%%'"
    )
    if isinstance(registry.wrapped, AsyncToolRegistry):
        async with registry.wrapped._connection() as connection:
            open_now = (await connection.exec_driver_sql(count)).scalar()
    else:
        with registry.wrapped._connection() as connection:
            open_now = connection.exec_driver_sql(count).scalar()
    assert open_now == 0
