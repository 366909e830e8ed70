"""VEC-10: whatever a text is made of, wherever it is given, it is data and never SQL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.tools import StructuredTool

from registry import RegistrySettings, Toolset, ToolSpec, UsageLog, UsageSettings
from registry.errors import (
    CategoryNotFoundError,
    ConfigurationError,
    ToolNotFoundError,
)
from registry.text import is_legal_name, legal_name
from registry.usage import CallRecord, SelectionRecord, UsageHit
from tests.integration.conftest import EitherRegistry, OpenRegistry
from tests.support.catalogue import many_specs, spec
from tests.support.words import rows

ATTACKS = [
    "tag' = 'x' OR '1'='1' --",
    'x"; DROP TABLE tool_registry; --',
    "\\'; DELETE FROM tool_registry WHERE 'a'='a",
    "') OR namespace LIKE '%' /* $$; SELECT 1; $$ --",
    "%s %(namespace)s :namespace $1 {0} %%",
    "a\nb\tc\r\n",
    "％＇；Ⅳ 💥 \u202e ﷽",
    "%",
]
EVERYWHERE = pytest.mark.parametrize("attack", ATTACKS)
SETTINGS = RegistrySettings(auto_calibrate=False)
_TABLES = (
    *("tool_registry", "tool_history", "tool_embedding", "tool_term", "tool_category"),
    *("tool_selection", "tool_usage_log"),
)


async def neighbour(open_registry: OpenRegistry) -> EitherRegistry:
    """Return a registry of another tenant, filled: what a way out of the SQL would reach."""
    registry = await open_registry(
        settings=RegistrySettings(namespace="neighbour", auto_calibrate=False)
    )
    await registry.sync([*many_specs(12), spec("secret", "Weather of the neighbour.")])
    await registry.set_category("weather", ["weather"])
    return registry


def of_the_neighbour(url: str) -> list[tuple[Any, ...]]:
    """Return every row that the other tenant has."""
    return [
        row
        for table in ("tool_registry", "tool_history", "tool_category")
        for row in rows(url, f"SELECT t::text FROM {table} AS t WHERE namespace = 'neighbour'")  # noqa: S608
    ] + rows(url, "SELECT count(*) FROM tool_term WHERE namespace = 'neighbour'")


def counts(url: str) -> dict[str, int]:
    """Return the number of rows of each table."""
    return {
        table: rows(url, f"SELECT count(*) FROM {table}")[0][0]  # noqa: S608
        for table in _TABLES
    }


@EVERYWHERE
async def test_vec_10_as_every_text_of_a_tool(open_registry: OpenRegistry, attack: str) -> None:
    """VEC-10: stored and found as it is, through its whole life; nobody else's row is touched."""
    theirs = await neighbour(open_registry)
    before = of_the_neighbour(theirs.database_url)
    registry = await open_registry(settings=SETTINGS)
    schema = {"properties": {attack: {"type": "string", "description": attack, "enum": [attack]}}}
    given = ToolSpec(
        tool_name="odd",
        display_name=attack,
        description=f"Odd {attack}",
        category=attack,
        examples=(attack, f"{attack}?"),
        binding=attack,
        origin=f"mcp:{attack}",
        args_schema=schema,
    )
    report = await registry.sync([given, *many_specs(5)], changed_by=attack)
    assert "odd" in report.added
    assert (await registry.get("odd")).spec == given
    assert (await registry.sync([given, *many_specs(5)])).unchanged[-1:] != []
    assert {record.spec.tool_name for record in await registry.list_tools()} == {
        "odd",
        *(each.tool_name for each in many_specs(5)),
    }
    hits = await registry.search(f"Odd {attack}", k=100, threshold=0)
    assert len(hits) == 6
    assert hits[0].tool_name == "odd"
    assert (hits[0].category, hits[0].binding, hits[0].origin) == (attack, attack, f"mcp:{attack}")

    await registry.update_tool("odd", description=f"{attack} odd", changed_by=attack)
    await registry.rollback("odd", 1, changed_by=attack)
    versions = await registry.history("odd")
    assert [(v.change, v.changed_by) for v in versions] == [
        ("rolled back to 1", attack),
        ("updated", attack),
        ("added", attack),
    ]
    assert versions[0].spec == given
    [change] = await registry.diff("odd", 1, 2)
    assert (change.before, change.after) == (f"Odd {attack}", f"{attack} odd")
    await registry.deactivate("odd", changed_by=attack)
    assert "odd" not in {h.tool_name for h in await registry.search(attack, k=100, threshold=0)}
    await registry.activate("odd", changed_by=attack)
    await registry.purge("odd", changed_by=attack)
    assert len(await registry.list_tools()) == 5
    assert of_the_neighbour(theirs.database_url) == before


@EVERYWHERE
async def test_vec_10_as_a_tools_own_name_and_its_servers(
    open_registry: OpenRegistry, attack: str
) -> None:
    """VEC-10: a server may call its tool, and itself, whatever it likes; the model sees a name."""
    registry = await open_registry(settings=SETTINGS)
    tool = StructuredTool.from_function(
        lambda city: city, name=attack, description="Weather of a city."
    )
    toolset = Toolset([tool], origin=f"mcp:{attack}")
    await registry.sync(toolset)
    [record] = await registry.list_tools()
    name = record.spec.tool_name
    assert is_legal_name(name)
    assert name == legal_name(attack, prefix=attack)
    assert (record.spec.display_name, record.spec.origin) == (attack, f"mcp:{attack}")
    [hit] = await registry.search("Weather of a city", threshold=0)
    assert toolset[hit.binding] is tool
    given = spec(attack, "A spec's name is what the model sees, so it is refused as it is.")
    refused = await registry.sync([given])
    assert list(refused.failed) == [attack]
    assert "legal_name() makes it" in refused.failed[attack]
    assert len(await registry.list_tools()) == 1


@EVERYWHERE
async def test_vec_10_as_the_name_of_a_tool_that_is_asked_for(
    open_registry: OpenRegistry, attack: str
) -> None:
    """VEC-10: no such tool, under every method, and no row comes, goes or changes."""
    await neighbour(open_registry)
    registry = await open_registry(settings=SETTINGS)
    await registry.sync(many_specs(5))
    before = counts(registry.database_url)
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: registry.get(attack),
        lambda: registry.update_tool(attack, description="Overwritten."),
        lambda: registry.activate(attack),
        lambda: registry.deactivate(attack),
        lambda: registry.history(attack),
        lambda: registry.diff(attack, 1),
        lambda: registry.rollback(attack, 1),
        lambda: registry.purge(attack),
        lambda: registry.explain("weather", attack),
    ]
    for call in calls:
        with pytest.raises(ToolNotFoundError):
            await call()
    assert await registry.active_states([attack, "tool_00001"]) == {"tool_00001": True}
    with pytest.raises(CategoryNotFoundError):
        await registry.remove_category(attack)
    assert len(await registry.list_tools()) == 5
    assert counts(registry.database_url) == before


@EVERYWHERE
async def test_vec_10_as_a_question(open_registry: OpenRegistry, attack: str) -> None:
    """VEC-10: a search finds what it would find, and no row of another tenant."""
    theirs = await neighbour(open_registry)
    before = of_the_neighbour(theirs.database_url)
    registry = await open_registry(settings=SETTINGS)
    await registry.sync(many_specs(12))
    await registry.set_category("case", ["alpha"])
    own = {each.tool_name for each in many_specs(12)}
    for question in (attack, f"{attack}, and handle alpha case 3 and {attack}"):
        for strategy in ("all", "routing", "retrieval", "hybrid"):
            found = await registry.select(question, k=50, threshold=0, strategy=strategy)
            assert {hit.tool_name for hit in found.hits} == own
        told = await registry.explain(question, "tool_00003", threshold=0)
        assert told.hit is not None
    assert of_the_neighbour(theirs.database_url) == before


@EVERYWHERE
async def test_vec_10_as_a_category_and_its_keyword(
    open_registry: OpenRegistry, attack: str
) -> None:
    """VEC-10: what can be a keyword routes to its category; what cannot is refused."""
    theirs = await neighbour(open_registry)
    before = of_the_neighbour(theirs.database_url)
    registry = await open_registry(settings=SETTINGS)
    category = attack.strip()
    if not category.isprintable():
        with pytest.raises(ConfigurationError, match="one line of printable text"):
            await registry.set_category(category, ["zebra"])
        return
    await registry.sync([spec("odd", "Odd.", category=category), *many_specs(12)])
    await registry.set_category(category, ["zebra"])
    assert await registry.categories() == {category: ("zebra",)}
    assert (await registry.tool_categories())[category] == 1
    found = await registry.select("a zebra", k=1, threshold=1, strategy="routing")
    assert found.categories == (category,)
    assert "odd" in found.exempt
    try:
        await registry.set_category("general", [attack])
    except ConfigurationError:
        pass  # it holds no word
    else:
        assert (await registry.categories())["general"] == (category,)
        found = await registry.select(f"do {attack} now", k=1, threshold=1, strategy="routing")
        assert "general" in found.categories
        await registry.remove_category("general")
    await registry.remove_category(category)
    assert await registry.categories() == {}
    assert of_the_neighbour(theirs.database_url) == before


@EVERYWHERE
def test_vec_10_as_a_namespace(attack: str) -> None:
    """VEC-10: a tenant's name comes from few characters, since settings of a server hold it."""
    with pytest.raises(ConfigurationError, match=r"^namespace is"):
        RegistrySettings(namespace=attack)


@pytest.mark.parametrize("namespace", ["_", "NULL", "default:x", "a.b", "-"])
async def test_vec_10_a_namespace_that_reads_like_a_pattern_is_one_name(
    open_registry: OpenRegistry, namespace: str
) -> None:
    """VEC-10: no pattern, no null, no prefix of another."""
    theirs = await neighbour(open_registry)
    registry = await open_registry(
        settings=RegistrySettings(namespace=namespace, auto_calibrate=False)
    )
    assert await registry.list_tools(include_inactive=True) == []
    assert await registry.search("weather", threshold=0) == []
    await registry.sync(many_specs(3))
    assert len(await registry.search("weather", threshold=0)) == 3
    store = await registry.as_vector_store()
    assert len(await store.asimilarity_search("weather", k=50)) == 3
    assert len(await theirs.list_tools()) == 13


@EVERYWHERE
async def test_vec_10_as_key_operator_and_value_of_a_filter(
    open_registry: OpenRegistry, attack: str
) -> None:
    """VEC-10: the vector store finds the value as text, and refuses the key and the operator."""
    await neighbour(open_registry)
    registry = await open_registry(settings=SETTINGS)
    await registry.sync([spec("odd", "Odd.", category=attack), *many_specs(3)])
    store = await registry.as_vector_store()

    async def names(given: dict[str, Any]) -> set[str]:
        documents = await store.asimilarity_search("weather", k=100, filter=given)
        return {document.metadata["tool_name"] for document in documents}

    others = {each.tool_name for each in many_specs(3)}
    assert await names({"category": attack}) == {"odd"}
    assert await names({"category": {"$in": [attack]}}) == {"odd"}
    assert await names({"category": {"$ne": attack}}) == others
    assert await names({"category": {"$nin": [attack]}}) == others
    assert await names({"origin": attack}) == set()
    refused: list[dict[str, Any]] = [
        {attack: "odd"},
        {f"category{attack}": "odd"},
        {"category": {attack: "odd"}},
        {"category": {f"${attack}": "odd"}},
        {f"${attack}": [{"category": "odd"}]},
    ]
    for given in refused:
        with pytest.raises(Exception, match=r"(?s).+"):
            await names(given)
    assert len(await registry.list_tools()) == 4


@EVERYWHERE
async def test_vec_10_in_the_usage_log(open_registry: OpenRegistry, attack: str) -> None:
    """VEC-10: ids, the question and a name that the model made up are written as they are."""
    theirs = await neighbour(open_registry)
    before = of_the_neighbour(theirs.database_url)
    url = theirs.database_url
    selection = SelectionRecord(
        id=uuid4(),
        namespace="default",
        strategy=attack,
        threshold=0.5,
        latency_ms=1.0,
        hits=(UsageHit(tool_name=attack, rank=1, relevance=0.5, was_offered=True),),
        run_id=attack,
        thread_id=attack,
        session_id=attack,
        conversation_id=attack,
        query_text=attack,
    )
    with UsageLog(url, settings=UsageSettings(flush_interval_s=0.01)) as log:
        log.record_selection(selection)
        log.record_call(CallRecord(selection_id=selection.id, tool_name=attack, status="success"))
        assert log.flush()
    stored = rows(
        url,
        "SELECT strategy, run_id, thread_id, session_id, conversation_id, query_snippet "
        "FROM tool_selection",
    )
    assert stored == [(attack,) * 6]
    assert rows(url, "SELECT tool_name, was_called FROM tool_usage_log") == [(attack, True)]
    registry = await open_registry(settings=SETTINGS)
    await registry.sync(many_specs(3))
    with pytest.raises(ToolNotFoundError):
        await registry.explain_learning(attack)
    with pytest.raises(ToolNotFoundError):
        await registry.unlearn(attack)
    assert of_the_neighbour(url) == before
