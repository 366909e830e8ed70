"""Enriching: what a chat model wrote is stored where it fits, once, beside the author's."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage

from registry import Embedder, ToolRegistry
from registry.embedding import LocalEmbeddings
from registry.enriching import (
    EnrichmentPlan,
    EnrichmentReport,
    aenrich,
    aplan_enrichment,
    enrich,
    plan_enrichment,
)
from registry.errors import ConfigurationError, ToolNotFoundError
from registry.text import embedding_text
from registry.types import ToolSpec
from tests.integration.conftest import EitherRegistry, OpenRegistry
from tests.support.catalogue import many_specs, spec
from tests.support.embeddings import HashEmbeddings
from tests.support.scripted_model import ScriptedModel, asks, call, says
from tests.support.usage_records import Called, record

TOOLS = [
    spec("get_stock_price", "Current price of a share on the stock exchange."),
    spec("get_weather", "Temperature and sky in a city.", examples=("is it warm outside?",)),
    spec("send_letter", "Send a letter by post to an address."),
]
WRITTEN = {
    "get_stock_price": ["what is one Apple share worth?", "price of a share of Siemens now"],
    "get_weather": ["umbrella for Rome tomorrow, sky grey?", "temperature in a city like Oslo"],
    "send_letter": ["post this letter to my aunt", "mail my aunt her birthday card by post"],
}


NOW = "Temperature and sky in a city, of today."


class Killed(BaseException):
    """Whatever ends a process in the middle of something."""


def tool_of(messages: Sequence[BaseMessage]) -> str:
    """Name of the tool that a request is about."""
    document, _ = json.JSONDecoder().raw_decode(messages[-1].text)
    return document["name"].replace(" ", "_")


def written(*questions: Any) -> AIMessage:
    return asks(call("example_questions", questions=list(questions)))


def writer(answers: dict[str, Any] | None = None) -> ScriptedModel:
    """A model that answers by tool: questions, a message, an exception, or one after another."""
    lock, asked = threading.Lock(), Counter[str]()
    by_tool = WRITTEN | (answers or {})

    def answer(messages: list[BaseMessage]) -> Any:
        name = tool_of(messages)
        with lock:
            asked[name] += 1
        given = by_tool[name]
        if isinstance(given, tuple):
            given = given[min(asked[name], len(given)) - 1]
        if callable(given):
            given = given()
        return written(*given) if isinstance(given, list) else given

    return ScriptedModel(script=answer)


async def planned(registry: EitherRegistry, **options: Any) -> EnrichmentPlan:
    if isinstance(registry.wrapped, ToolRegistry):
        return plan_enrichment(registry.wrapped, **options)
    return await aplan_enrichment(registry.wrapped, **options)


async def enriched(
    registry: EitherRegistry,
    model: Any,
    plan: EnrichmentPlan | None = None,
    **options: Any,
) -> EnrichmentReport:
    plan = plan or await planned(registry, questions=3)
    if isinstance(registry.wrapped, ToolRegistry):
        return enrich(registry.wrapped, model, plan, **options)
    return await aenrich(registry.wrapped, model, plan, **options)


@pytest.fixture
def make(open_registry: OpenRegistry) -> Callable[..., Any]:
    async def opened(tools: Sequence[ToolSpec] = TOOLS, **options: Any) -> EitherRegistry:
        options.setdefault("embeddings", HashEmbeddings(256))
        registry = await open_registry(**options)
        await registry.sync(tools)
        return registry

    return opened


async def test_questions_are_stored_at_once_beside_the_author_s_and_found_by(make: Any) -> None:
    registry = await make()
    (first_hit,) = await registry.search("umbrella Rome", k=1, threshold=0)
    assert first_hit.tool_name != "get_weather", "the test would show nothing"
    seen: list[tuple[str, int]] = []
    report = await enriched(
        registry,
        writer(),
        model_name="small",
        max_concurrency=1,
        on_tool=lambda tool: seen.append((tool.tool_name, len(tool.added))),
    )
    assert seen == [(name, 2) for name in sorted(WRITTEN)]
    assert {tool.tool_name: list(tool.added) for tool in report.tools} == WRITTEN
    assert (report.failed, report.given_up) == ({}, "")

    tool = await registry.get("get_weather")
    assert tool.spec.examples == ("is it warm outside?", *WRITTEN["get_weather"])
    newest, first = await registry.history("get_weather")
    assert newest.changed_by == "enrich:small"
    assert first.spec.examples == ("is it warm outside?",)
    assert (await registry.search("umbrella Rome", k=1, threshold=0))[0].tool_name == "get_weather"
    assert [embedding_text(tool.spec)] in registry.embedder.embeddings.calls


async def test_they_outlive_a_sync_until_code_changes_or_wins(make: Any) -> None:
    registry = await make()
    await enriched(registry, writer())
    report = await registry.sync(TOOLS)
    assert sorted(report.edited) == sorted(WRITTEN)
    assert (await registry.get("send_letter")).spec.examples == tuple(WRITTEN["send_letter"])
    assert [(p.calls, len(p.skipped)) for p in [await planned(registry)]] == [(0, 3)]

    changed = spec("send_letter", "Send a letter or a parcel by post.", examples=("mail it",))
    await registry.sync([*TOOLS[:2], changed])
    assert (await registry.get("send_letter")).spec.examples == ("mail it",)
    plan = await planned(registry)
    assert [tool.record.spec.tool_name for tool in plan.tools] == ["send_letter"]
    await registry.sync([*TOOLS[:2], changed], overwrite_edits=True)
    assert (await planned(registry)).calls == 3


async def test_a_question_that_fits_another_tool_is_dropped_and_the_tool_named(make: Any) -> None:
    registry = await make()
    stray = "current price of a share on the stock exchange"
    report = await enriched(registry, writer({"send_letter": [stray, "post a letter to Ann"]}))
    letter = report.tools[2]
    assert letter.added == ("post a letter to Ann",)
    (dropped,) = letter.dropped
    assert (dropped.question, dropped.better_tool) == (stray, "get_stock_price")
    assert stray not in (await registry.get("send_letter")).spec.examples


async def test_a_tool_of_which_nothing_is_left_stays_as_it_is(make: Any) -> None:
    registry = await make()
    answer = ["current price of a share on the stock exchange", " ", "x" * 400, "half \ud83d"]
    report = await enriched(registry, writer({"send_letter": answer}))
    assert report.tools[2].added == ()
    assert len(report.tools[2].dropped) == 4
    assert report.failed == {}
    assert (await registry.get("send_letter")).version == 1


@pytest.mark.parametrize(
    "malformed",
    [
        says("I would rather write a poem."),
        written(),
        written("good?", 7),
        asks(call("example_questions", poem="roses")),
        AIMessage(
            content="",
            invalid_tool_calls=[
                {
                    "name": "example_questions",
                    "args": '{"questions": ["cut o',
                    "id": "c1",
                    "error": "no JSON",
                    "type": "invalid_tool_call",
                }
            ],
        ),
        ValueError("the parser of an integration gave up"),
    ],
    ids=["text", "none", "a number", "another key", "cut JSON", "ValueError"],
)
async def test_a_malformed_answer_is_asked_for_once_more(make: Any, malformed: Any) -> None:
    registry = await make()
    model = writer({"get_weather": (malformed, WRITTEN["get_weather"])})
    report = await enriched(registry, model, max_concurrency=2)
    assert report.failed == {}
    assert [list(tool.added) for tool in report.tools] == list(WRITTEN.values())
    again = [r for r in model.requests if "could not be used" in r.messages[-1].text]
    assert [tool_of(request.messages) for request in again] == ["get_weather"]
    assert len(model.requests) == 4


async def test_a_second_malformed_answer_fails_that_tool_alone(make: Any) -> None:
    registry = await make()
    model = writer({"get_weather": says("a poem")})
    report = await enriched(registry, model)
    assert list(report.failed) == ["get_weather"]
    assert "malformed twice" in report.failed["get_weather"]
    assert len(model.requests) == 4
    assert (await registry.get("get_weather")).version == 1
    assert (await registry.get("send_letter")).version == 2


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_run_that_was_killed_is_taken_up_and_no_answer_is_asked_for_twice(
    make: Any, concurrency: int
) -> None:
    tools = many_specs(7)
    names = [tool.tool_name for tool in tools]
    answers: dict[str, Any] = {
        tool.tool_name: [f"please {tool.description} number {place}"]
        for place, tool in enumerate(tools)
    }
    registry = await make(tools)
    loop = asyncio.get_running_loop()

    def strike() -> list[str]:
        if isinstance(registry.wrapped, ToolRegistry):
            raise Killed
        loop.call_soon_threadsafe(run.cancel)
        return []

    first = writer(answers | {names[4]: strike})
    run = asyncio.create_task(enriched(registry, first, max_concurrency=concurrency))
    with pytest.raises((Killed, asyncio.CancelledError)):
        await run
    second = writer(answers)
    report = await enriched(registry, second, max_concurrency=concurrency)
    asked = Counter(tool_of(r.messages) for model in (first, second) for r in model.requests)
    under_way = names[4 : 4 + concurrency]
    assert {name for name, count in asked.items() if count > 1} <= set(under_way)
    assert set(asked) == set(names)
    assert list(report.skipped) == names[:4]
    assert all([(await registry.get(name)).version == 2 for name in names])
    assert (await planned(registry)).calls == 0


async def test_a_model_that_is_down_is_given_up_and_what_was_done_stays(make: Any) -> None:
    tools = many_specs(12)
    answers: dict[str, Any] = {tool.tool_name: RuntimeError("no route") for tool in tools}
    answers[tools[1].tool_name] = [f"please {tools[1].description}"]
    registry = await make(tools)
    model = writer(answers)
    report = await enriched(registry, model, max_concurrency=4)
    assert len(model.requests) == 8, "five in a row failed within the second batch"
    assert len(report.failed) == 11
    assert "RuntimeError): no route" in report.given_up
    assert "not asked" in report.failed[tools[11].tool_name]
    assert (await registry.get(tools[1].tool_name)).version == 2


async def test_one_refused_call_blocks_no_other_tool(make: Any) -> None:
    registry = await make()
    report = await enriched(registry, writer({"get_weather": RuntimeError("content filter")}))
    assert list(report.failed) == ["get_weather"]
    assert report.given_up == ""
    assert (await registry.get("send_letter")).version == 2


async def test_an_embedding_model_that_is_down_is_told_and_given_up(make: Any) -> None:
    registry = await make(many_specs(12))

    def down(texts: list[str]) -> list[list[float]]:
        raise ConnectionError("the embedding model is away")

    registry.embedder.embeddings.embed_documents = down
    model = ScriptedModel(script=lambda messages: written("please handle it"))
    report = await enriched(registry, model, max_concurrency=3)
    assert len(report.failed) == 12
    assert "embedding model is away" in report.given_up
    assert len(model.requests) == 6
    assert {tool.version for tool in await registry.list_tools()} == {1}


async def test_a_tool_that_somebody_changed_meanwhile_is_not_overwritten(
    make: Any, database_url: str
) -> None:
    registry = await make()

    def answer(messages: list[BaseMessage]) -> AIMessage:
        if tool_of(messages) == "get_weather":
            with ToolRegistry(database_url, embeddings=HashEmbeddings(256)) as other:
                other.update_tool("get_weather", description=NOW)
        return written(*WRITTEN[tool_of(messages)])

    report = await enriched(registry, ScriptedModel(script=answer))
    assert "somebody else changed it" in report.failed["get_weather"]
    tool = await registry.get("get_weather")
    assert (tool.spec.description, tool.version) == (NOW, 2)
    assert tool.spec.examples == ("is it warm outside?",)


async def test_again_replaces_the_model_s_questions_and_leaves_the_author_s(make: Any) -> None:
    registry = await make()
    await enriched(registry, writer())
    plan = await planned(registry, again=True, questions=3)
    fresh = ["is the sky over a city blue?", WRITTEN["get_weather"][0]]
    stray = ["current price of a share on the stock exchange"]
    model = writer({"get_weather": fresh, "send_letter": stray})
    report = await enriched(registry, model, plan)
    assert report.failed == {}
    weather = await registry.get("get_weather")
    assert weather.spec.examples == ("is it warm outside?", *fresh)
    # Nothing is taken away before there is something better.
    assert (await registry.get("send_letter")).spec.examples == tuple(WRITTEN["send_letter"])
    assert (await planned(registry)).calls == 0


async def test_only_active_tools_are_asked_about_and_named_ones_must_be(make: Any) -> None:
    registry = await make()
    await registry.deactivate("send_letter")
    plan = await planned(registry)
    assert [t.record.spec.tool_name for t in plan.tools] == ["get_stock_price", "get_weather"]
    named = await planned(registry, tool_names=["get_weather", "get_weather"])
    assert [t.record.spec.tool_name for t in named.tools] == ["get_weather"]
    with pytest.raises(ConfigurationError, match="switched off"):
        await planned(registry, tool_names=["send_letter"])
    with pytest.raises(ToolNotFoundError, match="get_weather"):
        await planned(registry, tool_names=["get_wether"])


async def test_what_cannot_work_is_refused_before_anything_is_asked(make: Any) -> None:
    registry = await make()
    plain = GenericFakeChatModel(messages=iter([]))
    with pytest.raises(ConfigurationError, match="GenericFakeChatModel gives no structured output"):
        await enriched(registry, plain)
    with pytest.raises(ConfigurationError, match="max_concurrency"):
        await enriched(registry, writer(), max_concurrency=0)
    with pytest.raises(ConfigurationError, match="NUL"):
        await enriched(registry, writer(), model_name="a\0b")


async def test_examples_count_from_the_start_and_beside_what_was_learnt(
    open_registry: OpenRegistry,
) -> None:
    """Without one recorded call, the author's and a model's; and learning adds to both."""
    registry = await open_registry(embeddings=Embedder.resolve("builtin"))
    await registry.sync(TOOLS)
    builtin = registry.embedder.embeddings
    assert isinstance(builtin, LocalEmbeddings)

    async def cosine(question: str) -> float:
        found = await registry.search(question, k=3, threshold=0)
        return 1 - next(hit.distance for hit in found if hit.tool_name == "get_weather")

    plain = spec("get_weather", TOOLS[1].description)
    await registry.sync([plain, TOOLS[0], TOOLS[2]])
    asked, authors = "umbrella for Rome tomorrow?", "do I need sun cream at the beach?"
    bare = {question: await cosine(question) for question in (asked, authors)}
    await registry.sync([plain.replace(examples=(authors,)), TOOLS[0], TOOLS[2]])
    assert await cosine(authors) > bare[authors] + 0.1
    await enriched(registry, writer({"get_weather": [asked]}))
    with_examples = await cosine(asked)
    assert with_examples > bare[asked] + 0.1
    assert (await registry.get("get_weather")).spec.examples == (authors, asked)

    past = [
        Called(question=text, tool="get_weather", session=f"s{n}")
        for n, text in enumerate(["is it raining?", "will it snow?", "how cold is it?"] * 3)
    ]
    record(registry.database_url, past, builtin)
    before = await cosine("will it snow?")
    report = await registry.learn(force=True)
    assert report.promoted
    assert await cosine("will it snow?") > before + 0.1
    assert await cosine(asked) > bare[asked]
    again = await enriched(
        registry,
        writer({"get_weather": ["coat or jacket today?"]}),
        await planned(registry, tool_names=["get_weather"], again=True),
    )
    assert again.failed == {}
    assert (await registry.explain_learning("get_weather")).moved, "what was learnt stays"
    assert re.search("coat", embedding_text((await registry.get("get_weather")).spec))
