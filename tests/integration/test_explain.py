"""`registry.explain` and `toolrag search --explain`: why a tool is offered, and why it is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from registry import RegistrySettings
from registry.embedding import LocalEmbeddings
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


async def test_where_the_score_was_lost(open_registry: OpenRegistry) -> None:
    registry = await opened(open_registry)
    first = (await registry.search(QUESTION, k=1, threshold=0))[0]
    told = await registry.explain(QUESTION, "pay_invoice", k=1, threshold=0)
    assert told.hit is not None
    assert told.hit.parts is not None
    assert first.parts is not None
    meaning = first.parts.vector - told.hit.parts.vector
    words = first.parts.words - told.hit.parts.words
    assert min(meaning, words) > 0.005
    assert f"({meaning:.2f} lost by meaning, {words:.2f} lost by words)" in told.reasons[0]
    # A word of its own that the first has not: that much is won back.
    question = f"{QUESTION}, supplier"
    won = await registry.explain(question, "pay_invoice", k=1, threshold=0)
    first = (await registry.search(question, k=1, threshold=0))[0]
    assert first.tool_name == "get_forecast"
    assert won.shared_words == ("supplier",)
    parts = [
        (p.vector, p.words, p.clause_vector, p.clause_words) for p in (first.parts, won.hit.parts)
    ]
    lost = [one - other for one, other in zip(*parts, strict=True)]
    by_words = lost[1] + lost[3]
    kind = "lost" if by_words > 0 else "won"
    assert f"{abs(by_words):.2f} {kind} by words" in won.reasons[0]
    assert f"{lost[0] + lost[2]:.2f} lost by meaning" in won.reasons[0]


async def test_tools_that_say_the_same_are_named(open_registry: OpenRegistry) -> None:
    twins = [
        spec(name, f"Compute the area of a triangle{more}.")
        for name, more in (
            ("area", ""),
            ("area_of_triangle", " from base and height"),
            ("triangle_area", ""),
            ("circle", " or a circle"),
        )
    ]
    registry = await opened(open_registry, [*TOOLS, *twins])
    question = "Compute the area of a triangle from its base and height"
    ranked = [hit.tool_name for hit in await registry.search(question, k=4, threshold=0)]
    assert set(ranked) == {each.tool_name for each in twins}
    told = await registry.explain(question, "area", k=ranked.index("area"), threshold=0)
    [_, same] = told.reasons
    before = ranked[: ranked.index("area")]
    assert before
    assert same == f"tools that say the same or more stand before it: {', '.join(before)}"
    assert told.advice[0].startswith("if those do the same, switch all but one of them off")
    # One that says more of the question than it is no twin of those that say less.
    weather = await registry.explain(QUESTION, "get_humidity", k=1, threshold=0)
    assert not any("say the same" in reason for reason in weather.reasons)
    assert not any("switch all" in advice for advice in weather.advice)


async def test_advice_on_a_compound_question_is_about_one_part(
    open_registry: OpenRegistry,
) -> None:
    registry = await opened(open_registry)
    question = "Pay the plumber's bill of a supplier, and tell me the forecast for Oslo"
    told = await registry.explain(question, "pay_invoice", k=1, threshold=1)
    assert told.hit is not None
    assert told.hit.parts is not None
    part = told.hit.parts.clause
    assert part == "Pay the plumber's bill of a supplier"
    (advice,) = [text for text in told.advice if "as an example" in text]
    assert f'give pay_invoice that part as an example ("{part}")' in advice
    assert "plumber" in advice
    assert "oslo" not in advice
    assert "oslo" in told.missing_words, "of the whole question"


async def test_advice_followed_brings_the_tool_in(open_registry: OpenRegistry) -> None:
    registry = await opened(open_registry)
    question = "How damp will my cellar get?"
    told = await registry.explain(question, "get_humidity", k=1, threshold=0)
    assert not told.is_offered
    (advice,) = [text for text in told.advice if "as an example" in text]
    assert "damp, cellar" in advice.replace("cellar, damp", "damp, cellar")
    assert "give get_humidity that question as an example" in advice
    await registry.update_tool("get_humidity", examples=[question])
    assert (await registry.explain(question, "get_humidity", k=1, threshold=0)).is_offered


async def test_settings_are_advised_only_where_somebody_would_set_them(
    open_registry: OpenRegistry,
) -> None:
    registry = await opened(open_registry)
    ranked = await registry.search(QUESTION, k=16, threshold=0)
    third, last = ranked[2], ranked[-1]

    async def settings(hit: Any, **options: Any) -> list[str]:
        told = await registry.explain(QUESTION, hit.tool_name, **options)
        return [text for text in told.advice if "as an example" not in text]

    assert await settings(third, k=1, threshold=0) == ["k of at least 3 would take it in"]
    assert await settings(last, k=1, threshold=0) == [], "nobody offers 16 tools for one"
    assert await settings(third, k=5, threshold=1) == [], "nearly everything would pass"
    # Both, as neither alone would do.
    near = third.relevance + 0.05
    [both] = await settings(third, k=1, threshold=near)
    lower = f"{int(third.relevance * 100) / 100:.2f}"
    assert both == f"k of at least 3 with a threshold of {lower} would take it in"
    assert (
        await registry.explain(QUESTION, third.tool_name, k=3, threshold=float(lower))
    ).is_offered
    for k, threshold in ((3, near), (1, float(lower))):
        told = await registry.explain(QUESTION, third.tool_name, k=k, threshold=threshold)
        assert not told.is_offered
    # What else a lower threshold lets through.
    second = ranked[1]
    beside = await settings(third, k=5, threshold=second.relevance + 0.01)
    others = [h.tool_name for h in ranked[:5] if float(lower) <= h.relevance <= second.relevance]
    expected = ", ".join(name for name in others if name != third.tool_name)
    if third.relevance >= second.relevance + 0.01 - 0.15:
        assert beside == [
            f"a threshold of {lower} or less would let it pass, and with it {expected}"
        ]


async def test_numbers_that_look_the_same_are_told_apart(open_registry: OpenRegistry) -> None:
    registry = await opened(open_registry)
    hit = (await registry.search(QUESTION, k=2, threshold=0))[1]
    told = await registry.explain(QUESTION, hit.tool_name, threshold=hit.relevance + 0.0004)
    assert not told.is_offered
    low, high = told.reasons[-1].removeprefix("relevance ").split(" is below the threshold ")
    assert float(low) < float(high)
    (advice,) = [text for text in told.advice if "or less would let it pass" in text]
    threshold = float(advice.split()[3])
    assert (await registry.explain(QUESTION, hit.tool_name, threshold=threshold)).is_offered


async def test_ret_8_a_fallback_tool_is_told_as_one(open_registry: OpenRegistry) -> None:
    """RET-8: why it was not offered although its score is the best, and why it was."""
    broad = spec("run_anything", QUESTION, examples=(QUESTION,) * 3, fallback=True)
    registry = await opened(open_registry, [*TOOLS, broad])
    reason = "marked as fallback, so it stands behind every other tool that fits"
    told = await registry.explain(QUESTION, "run_anything", k=2, threshold=0)
    assert not told.is_offered
    assert told.hit is not None
    best = (await registry.search(QUESTION, k=1, threshold=0))[0]
    assert told.hit.score > best.score
    assert told.reasons == (f"{reason} (2 do), and 2 are taken",)
    [advice] = told.advice
    assert "`toolrag tools update run_anything --no-fallback`" in advice
    await registry.update_tool("run_anything", fallback=False)
    assert (await registry.explain(QUESTION, "run_anything", k=2, threshold=0)).is_offered
    await registry.update_tool("run_anything", fallback=True)

    high = best.relevance + 0.001
    told = await registry.explain(QUESTION, "run_anything", k=2, threshold=high)
    assert told.is_offered
    assert told.hit is not None
    assert told.hit == (await registry.search(QUESTION, k=2, threshold=high))[0]
    assert told.reasons[0].startswith("rank 1 of ")
    assert told.reasons[2] == f"{reason} (0 do)"
    weak = await registry.explain(QUESTION, "run_anything", k=2, threshold=1)
    assert not weak.is_offered
    assert weak.reasons[-1].startswith("relevance ")
    everything = await registry.explain(QUESTION, "run_anything", k=2, strategy="all")
    assert everything.is_offered
    assert everything.reasons[1].startswith(reason)
    # It never stands among those that another tool was beaten by.
    third = (await registry.search(QUESTION, k=3, threshold=0))[2]
    beaten = await registry.explain(QUESTION, third.tool_name, k=2, threshold=0)
    assert "run_anything" not in " ".join(beaten.reasons)


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
    question = f"{QUESTION} and the invoices of a customer"
    active = await registry.explain(question, "get_forecast", threshold=0)
    await registry.deactivate("get_forecast")
    of_clauses = await registry.explain(question, "get_forecast", threshold=0)
    # A word that only it had weighs a little more while it is not counted.
    assert active.hit.parts.words > 0 < active.hit.parts.clause_words
    for name in ("words", "clause_words"):
        was = getattr(active.hit.parts, name)
        assert was <= getattr(of_clauses.hit.parts, name) < 1.8 * was
    told = await registry.explain(QUESTION, "get_forecast", threshold=0)
    assert not told.is_offered
    assert told.reasons == ("it is switched off",)
    assert told.advice == ("activate it: `toolrag tools activate get_forecast`",)
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


def test_ret_9_words_alone_are_said(shop: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """RET-9: who asks sees that the embedding model is away, in text and in JSON."""
    asked = ("search", "weather in Rome")
    assert json.loads(shop(*asked, "--json").out)["by_words_alone"] is False
    assert shop(*asked).err == ""

    def away(*_: object) -> list[float]:
        raise ConnectionError("the model is away")

    monkeypatch.setattr(LocalEmbeddings, "embed_query", away)
    monkeypatch.setattr(LocalEmbeddings, "embed_documents", away)
    found = shop(*asked, "--threshold", "0")
    assert (found.code, len(found.out.splitlines())) == (0, 2)
    assert "get_weather" in found.out
    (line,) = found.err.splitlines()
    assert line.startswith("Found by words alone: ")
    assert "the model is away" in line
    for arguments in ((), ("--explain",), ("--explain", "--tool", "get_weather")):
        ended = shop(*asked, "--json", *arguments)
        assert ended.code == 0, ended.err
        assert json.loads(ended.out)["by_words_alone"] is True
    told = shop(*asked, "--explain", "--tool", "get_weather")
    assert "To be known:" in told.out
    assert "the model is away" in told.out
    assert "cosine" not in told.out
    assert "Found by words alone: " in shop(*asked, "--explain").err


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
