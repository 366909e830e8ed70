"""`registry.explain` and `toolrag search --explain`: why a tool is offered, and why it is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from registry import RegistrySettings
from registry.errors import ConfigurationError, InvalidQueryError, ToolNotFoundError
from registry.types import Explanation, ScoreParts
from tests.integration.conftest import EitherRegistry, OpenRegistry
from tests.support.catalogue import many_specs, spec
from tests.support.command_line import Run
from tests.support.databases import psycopg_url

SETTINGS = RegistrySettings(auto_calibrate=False)
TOOLS = [
    spec("get_forecast", "Weather forecast of a city.", category="weather"),
    spec("get_humidity", "Humidity of the air.", category="weather"),
    spec("list_invoices", "Invoices of a customer.", category="billing"),
    spec("pay_invoice", "Pay an invoice of a supplier.", category="billing"),
    *many_specs(12),
]
QUESTION = "weather forecast of a city"


async def opened(open_registry: OpenRegistry, tools: Any = TOOLS) -> EitherRegistry:
    registry = await open_registry(settings=SETTINGS)
    await registry.sync(tools)
    return registry


def total(parts: ScoreParts) -> float:
    return parts.vector + parts.words + parts.route + parts.clause_vector + parts.clause_words


async def test_offered(open_registry: OpenRegistry) -> None:
    registry = await opened(open_registry)
    told: Explanation = await registry.explain(QUESTION, "get_forecast", threshold=0.5)
    assert told.is_offered
    assert told.hit is not None
    assert told.hit.parts is not None
    assert told.hit.rank == 1
    assert told.hit.score == pytest.approx(total(told.hit.parts))
    assert told.hit == (await registry.search(QUESTION, threshold=0.5))[0]
    assert (told.feedback, told.advice, told.missing_words) == (0, (), ())
    assert set(told.shared_words) == {"weather", "forecast", "city"}
    assert told.reasons[0].startswith("rank 1 of ")


async def test_ranked_out(open_registry: OpenRegistry) -> None:
    registry = await opened(open_registry)
    last = (await registry.search(QUESTION, k=3, threshold=0))[2]
    told = await registry.explain(QUESTION, last.tool_name, k=2, threshold=0)
    assert not told.is_offered
    assert told.hit is not None
    assert told.hit.rank == 3
    second = (await registry.search(QUESTION, k=2, threshold=0))[1]
    assert f"the last of these, {second.tool_name}, scores {second.score:.2f}" in told.reasons[0]
    assert "k of at least 3 would take it in" in told.advice
    assert (await registry.explain(QUESTION, last.tool_name, k=3, threshold=0)).is_offered


async def test_below_the_threshold(open_registry: OpenRegistry) -> None:
    registry = await opened(open_registry)
    hit = (await registry.search(QUESTION, k=2, threshold=0))[1]
    told = await registry.explain(QUESTION, hit.tool_name, threshold=hit.relevance + 0.01)
    assert not told.is_offered
    assert told.reasons == (
        f"relevance {hit.relevance:.2f} is below the threshold {hit.relevance + 0.01:.2f}",
    )
    assert any(text.endswith("or less would let it pass") for text in told.advice)
    assert (await registry.explain(QUESTION, hit.tool_name, threshold=hit.relevance)).is_offered
    nobody = await registry.explain("zebra", "get_forecast", threshold=1)
    assert "no tool of this registry reaches it" in nobody.reasons[-1]


async def test_inactive(open_registry: OpenRegistry) -> None:
    registry = await opened(open_registry)
    await registry.deactivate("get_forecast")
    told = await registry.explain(QUESTION, "get_forecast", threshold=0)
    assert not told.is_offered
    assert told.reasons == ("it is switched off",)
    assert told.advice == ("activate it: `toolrag tools activate`",)
    assert told.hit is not None, "it is measured all the same"
    assert told.hit.rank == 1
    await registry.activate("get_forecast")
    assert (await registry.explain(QUESTION, "get_forecast", threshold=0)).is_offered


async def test_an_inactive_tool_takes_no_place(open_registry: OpenRegistry) -> None:
    registry = await opened(open_registry)
    first, second = (await registry.search(QUESTION, k=2, threshold=0))[:2]
    await registry.deactivate(first.tool_name)
    await registry.explain(QUESTION, first.tool_name, k=1, threshold=0)
    told = await registry.explain(QUESTION, second.tool_name, k=1, threshold=0)
    assert told.is_offered
    assert told.hit is not None
    assert told.hit.rank == 1


async def test_the_only_tool_is_inactive(open_registry: OpenRegistry) -> None:
    registry = await opened(open_registry, TOOLS[:1])
    await registry.deactivate("get_forecast")
    told = await registry.explain(QUESTION, "get_forecast")
    assert (told.is_offered, told.reasons[0]) == (False, "it is switched off")


async def test_unknown(open_registry: OpenRegistry) -> None:
    registry = await opened(open_registry)
    with pytest.raises(ToolNotFoundError, match="get_forecast"):
        await registry.explain(QUESTION, "get_forecasts")
    with pytest.raises(ConfigurationError, match="strategy is 'best'"):
        await registry.explain(QUESTION, "get_forecast", strategy="best")
    with pytest.raises(InvalidQueryError):
        await registry.explain(" ", "get_forecast")


async def test_a_tool_of_another_namespace_is_as_if_it_did_not_exist(
    open_registry: OpenRegistry,
) -> None:
    registry = await opened(open_registry)
    theirs = await open_registry(
        settings=RegistrySettings(namespace="theirs", auto_calibrate=False)
    )
    before = await registry.explain(QUESTION, "get_humidity", threshold=0)
    await theirs.sync([spec("get_secret", QUESTION), spec("get_humidity", QUESTION)])
    with pytest.raises(ToolNotFoundError, match="get_secret") as error:
        await registry.explain(QUESTION, "get_secret")
    assert "get_secret" not in error.value.nearest
    assert await registry.explain(QUESTION, "get_humidity", threshold=0) == before
    assert (await theirs.explain(QUESTION, "get_secret", threshold=0)).is_offered


async def test_of_a_small_registry_all_are_offered(open_registry: OpenRegistry) -> None:
    registry = await opened(open_registry, TOOLS[:4])
    told = await registry.explain("zebra", "pay_invoice", k=1, threshold=1, strategy="auto")
    assert (told.is_offered, told.strategy) == (True, "all")
    assert "so few tools are active" in told.reasons[0]
    searched = await registry.explain("zebra", "pay_invoice", k=1, threshold=1)
    assert (searched.is_offered, searched.strategy) == (False, "retrieval")


@pytest.mark.parametrize("strategy", ["routing", "hybrid"])
async def test_a_routed_category(open_registry: OpenRegistry, strategy: str) -> None:
    registry = await opened(open_registry)
    await registry.set_category("billing", ["supplier"])
    question = "weather of the supplier"
    # The route counts in the ranking of `hybrid` alone; `routing` offers the whole category.
    bonus = 0.5 if strategy == "hybrid" else 0
    found = await registry.select(question, k=2, threshold=1, strategy=strategy)
    for name, routed in (("list_invoices", True), ("get_forecast", False)):
        told = await registry.explain(question, name, k=2, threshold=1, strategy=strategy)
        assert told.categories == ("billing",)
        assert told.strategy == strategy
        assert told.hit is not None
        assert told.hit.parts is not None
        assert told.hit.parts.route == (bonus if routed else 0)
        assert told.is_offered == (routed and strategy == "routing")
        if told.is_offered:
            assert "the question is about its category, billing" in told.reasons[0]
        for hit in found.hits:
            if hit.tool_name == name:
                assert told.hit == hit


async def test_what_was_learnt_shows_as_feedback(open_registry: OpenRegistry) -> None:
    registry = await opened(open_registry)
    before = await registry.explain("zebra crossing", "get_humidity", threshold=0)
    zebra = str(registry.embedder.embed_query("zebra crossing"))
    with psycopg.connect(psycopg_url(registry.database_url)) as connection:
        connection.execute(
            "UPDATE tool_embedding SET description_vector = vector, vector = %s::halfvec "
            "WHERE tool_id = (SELECT id FROM tool_registry WHERE tool_name = 'get_humidity')",
            [zebra],
        )
    told = await registry.explain("zebra crossing", "get_humidity", threshold=0)
    assert before.hit is not None
    assert told.hit is not None
    assert told.hit.distance == pytest.approx(0, abs=1e-3)
    assert told.feedback == pytest.approx(before.hit.distance, abs=1e-3)
    assert told.feedback > 0.5


# ---------------------------------------------------------------- the command


@pytest.fixture
def shop(toolrag: Run) -> Run:
    assert toolrag("sync", "shop_tools:TOOLS").code == 0
    return toolrag


def test_explained_hits_have_the_parts_of_their_scores(shop: Run) -> None:
    ended = shop("search", "weather in a city and price of a share", "--explain", "--json")
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert document["query"] == "weather in a city and price of a share"
    assert (document["k"], document["strategy"], document["categories"]) == (5, "retrieval", [])
    assert 0 < document["threshold"] < 1
    assert len(document["hits"]) == 3, "what is too weak is shown too"
    for hit in document["hits"]:
        assert hit["score"] == pytest.approx(total(ScoreParts(**hit["parts"])))
        assert hit["is_offered"] == (hit["relevance"] >= document["threshold"])
    clauses = {hit["tool_name"]: hit["parts"]["clause"] for hit in document["hits"]}
    assert clauses["get_weather"] == "weather in a city"
    assert clauses["get_stock_price"] == "price of a share"


def test_explained_hits_for_people(shop: Run) -> None:
    ended = shop("search", "weather in Rome", "--explain", "-k", "2", "--threshold", "0.99")
    assert ended.code == 0, ended.err
    heading, blank, columns, *rows = ended.out.splitlines()
    assert heading == "strategy retrieval, not routed, threshold 0.99"
    assert blank == ""
    names = ["RANK", "SCORE", "VECTOR", "WORDS", "ROUTE", "CLAUSE", "RELEVANCE", "OFFERED", "NAME"]
    assert columns.split() == names
    cells = [row.split() for row in rows]
    assert [row[0] for row in cells] == ["1", "2"]
    assert (cells[0][7], cells[0][8]) == ("no", "get_weather")
    for row in cells:
        assert float(row[1]) == pytest.approx(sum(map(float, row[2:6])), abs=0.03)
    small = shop("search", "weather in Rome", "--explain", "--strategy", "auto", "-k", "1")
    assert small.out.splitlines()[0].startswith("strategy all, ")
    assert [row.split()[7] for row in small.out.splitlines()[3:]] == ["always"] * 3


def test_a_tool_that_is_not_offered_for_people(shop: Run) -> None:
    ended = shop("search", "weather in Rome", "--explain", "--tool", "add_numbers", "-k", "1")
    assert ended.code == 0, ended.err
    first, *others = ended.out.splitlines()
    assert first == "add_numbers is not offered:"
    assert others[0].startswith("  - rank ")
    labels = [line.split("  ")[0] for line in others]
    for label in ("rank", "relevance", "score", "feedback", "shared words", "missing words"):
        assert label in labels
    assert "missing words  weather, rome" in others
    assert "To have it offered:" in others
    offered = shop("search", "weather in Rome", "--explain", "--tool", "get_weather")
    assert offered.out.startswith("get_weather is offered:\n  - rank 1 of 3 candidates")
    assert "To have it offered" not in offered.out


def test_a_tool_as_json(shop: Run) -> None:
    ended = shop("search", "weather in Rome", "--explain", "--tool", "get_weather", "--json")
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert document["is_offered"] is True
    assert document["shared_words"] == ["weather"]
    assert document["missing_words"] == ["rome"]
    assert document["hit"]["rank"] == 1
    assert document["hit"]["parts"]["vector"] > 0
    assert (document["query"], document["k"]) == ("weather in Rome", 5)


def test_what_cannot_be_explained(shop: Run) -> None:
    unknown = shop("search", "rain", "--explain", "--tool", "get_wether")
    shown = shop("tools", "show", "get_wether")
    assert (unknown.code, unknown.error) == (shown.code, shown.error)
    assert unknown.code == 1
    assert "get_weather" in unknown.error
    for arguments, said in (
        (["--tool", "get_weather"], "--tool needs --explain."),
        (["--strategy", "auto"], "--strategy needs --explain."),
        (["--explain", "--strategy", "best"], "strategy is 'best'"),
        (["--explain", "--k", "0"], "k is 0"),
    ):
        ended = shop("search", "rain", *arguments)
        assert ended.code == 2
        assert said in ended.error
        assert ended.out == ""


def test_an_empty_registry_explains_nothing(toolrag: Run) -> None:
    ended = toolrag("search", "rain", "--explain")
    assert (ended.code, ended.out) == (0, "")
    assert "No active tools in namespace 'default'" in ended.err
    document = json.loads(toolrag("search", "rain", "--explain", "--json").out)
    assert document["hits"] == []


def test_a_tool_by_its_display_name(toolrag: Run) -> None:
    Path("named.py").write_text(
        "from registry import ToolSpec\n"
        "TOOLS = [ToolSpec(tool_name='price', display_name='stock/price', description='A price.')]",
        encoding="utf-8",
    )
    assert toolrag("sync", "named:TOOLS").code == 0
    ended = toolrag("search", "a price", "--explain", "--tool", "stock/price")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("price is ")
