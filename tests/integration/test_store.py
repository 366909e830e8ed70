"""The contract of both registries, on a real database."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import Any

import psycopg
import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.tools import tool

from registry import Embedder, RegistrySettings, ToolRegistry, Toolset
from registry.errors import (
    ConfigurationError,
    DuplicateToolError,
    EmbeddingModelMismatchError,
    InvalidQueryError,
    RegistryError,
    RegistryUnavailableError,
    SchemaVersionError,
    ToolNotFoundError,
)
from tests.integration.conftest import OpenRegistry
from tests.support.catalogue import many_specs, spec
from tests.support.databases import psycopg_url
from tests.support.embeddings import HashEmbeddings


def rows(url: str, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(psycopg_url(url), autocommit=True) as connection:
        return connection.execute(statement, parameters).fetchall()  # type: ignore[arg-type]


class AngleEmbeddings(Embeddings):
    """Two dimensions; a text that ends in a number of degrees points there."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        angle = math.radians(float(text.split()[-1].rstrip(".")))
        return [math.cos(angle), math.sin(angle)]


async def test_registers_tools_functions_and_specs(open_registry: OpenRegistry) -> None:
    @tool
    def decorated(city: str) -> str:
        """Tell the weather of a city."""
        return city

    def plain(first: int, second: int = 2) -> int:
        """Add two numbers."""
        return first + second

    registry = await open_registry()
    report = await registry.sync([decorated, plain, spec("by_hand", "Made by hand.")])
    assert list(report.added) == ["decorated", "plain", "by_hand"]
    record = await registry.get("plain")
    assert record.spec.description == "Add two numbers."
    assert record.spec.args_schema["properties"]["second"]["default"] == 2
    assert (record.version, record.is_active, record.namespace) == (1, True, "default")


async def test_search_returns_best_first_with_every_stored_field(
    open_registry: OpenRegistry,
) -> None:
    registry = await open_registry()
    weather = spec(
        "weather",
        "Weather forecast for a city.",
        category="world",
        origin="mcp:sky",
        requires_approval=True,
        read_only=True,
        binding="sky/weather",
        display_name="Weather",
    )
    await registry.sync([weather, spec("add", "Add two numbers.")])
    hits = await registry.search("forecast for the city", threshold=0)
    assert [hit.tool_name for hit in hits] == ["weather", "add"]
    best = hits[0]
    assert (best.rank, best.category, best.origin, best.binding, best.display_name) == (
        1,
        "world",
        "mcp:sky",
        "sky/weather",
        "Weather",
    )
    assert best.requires_approval
    assert best.read_only
    assert best.relevance == pytest.approx(1 - best.distance)


async def test_vec_8_scores_run_one_way_and_thresholds_keep_the_nearest(
    open_registry: OpenRegistry,
) -> None:
    """VEC-8: relevance is large for near tools; an exact match scores 1."""
    registry = await open_registry(embeddings=AngleEmbeddings())
    await registry.sync([spec(f"at_{angle}", f"points to {angle}.") for angle in (0, 45, 90, 180)])

    async def names(threshold: float) -> list[str]:
        return [hit.tool_name for hit in await registry.search("0", threshold=threshold)]

    hits = await registry.search("0", threshold=0)
    assert [round(hit.relevance, 2) for hit in hits] == [1.0, 0.71, 0.0, 0.0]
    assert [round(hit.distance, 2) for hit in hits] == [0.0, 0.29, 1.0, 2.0]
    assert await names(0.5) == ["at_0", "at_45"]
    assert await names(0.99) == ["at_0"]


async def test_ties_are_in_name_order(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    same = [
        spec(name, "Same words.", display_name="same") for name in ("delta", "alpha", "charlie")
    ]
    await registry.sync(same)
    hits = await registry.search("same words", threshold=0, k=2)
    assert [hit.tool_name for hit in hits] == ["alpha", "charlie"]


@pytest.mark.parametrize("query", ["", "   ", "\n\t"])
async def test_a_blank_question_is_refused_before_it_is_embedded(
    open_registry: OpenRegistry, query: str
) -> None:
    embeddings = HashEmbeddings()
    registry = await open_registry(embeddings=embeddings)
    with pytest.raises(InvalidQueryError, match="question is empty"):
        await registry.search(query)
    assert embeddings.calls == []


@pytest.mark.parametrize("k", [0, -1, 1_001, 10_000, 1.5, True])
async def test_k_out_of_range_is_refused(open_registry: OpenRegistry, k: int) -> None:
    registry = await open_registry()
    with pytest.raises(InvalidQueryError, match=f"k is {k}; ask for 1 to 1000"):
        await registry.search("anything", k=k)


@pytest.mark.parametrize("threshold", [-0.1, 1.01, math.nan])
async def test_a_threshold_out_of_range_is_refused(
    open_registry: OpenRegistry, threshold: float
) -> None:
    registry = await open_registry()
    with pytest.raises(InvalidQueryError, match="relevance goes from 0 to 1"):
        await registry.search("anything", threshold=threshold)


async def test_an_empty_registry_finds_nothing_and_says_so_plainly(
    open_registry: OpenRegistry,
) -> None:
    registry = await open_registry()
    assert await registry.search("anything") == []
    assert await registry.list_tools() == []


async def test_another_process_filling_the_registry_is_seen_without_reopening(
    open_registry: OpenRegistry,
) -> None:
    reader, writer = await open_registry(), await open_registry()
    assert await reader.search("numbers") == []
    await writer.sync([spec("add", "Add two numbers.")])
    assert [hit.tool_name for hit in await reader.search("add numbers")] == ["add"]


async def test_vec_12_syncing_again_adds_and_embeds_nothing(
    open_registry: OpenRegistry, database_url: str
) -> None:
    """VEC-12: identity is (namespace, name); unchanged tools are not embedded again."""
    embeddings = HashEmbeddings()
    registry = await open_registry(embeddings=embeddings)
    tools = many_specs(20)
    await registry.sync(tools)
    embeddings.calls.clear()
    report = await registry.sync(tools)
    assert list(report.unchanged) == [s.tool_name for s in tools]
    assert report.embedded == 0
    assert embeddings.calls == []

    changed = [tools[0].replace(description="Something else."), *tools[1:]]
    report = await registry.sync(changed)
    assert list(report.updated) == ["tool_00000"]
    assert [len(call) for call in embeddings.calls] == [1]
    assert (await registry.get("tool_00000")).version == 2
    assert rows(database_url, "SELECT count(*) FROM tool_registry") == [(20,)]
    assert rows(database_url, "SELECT count(*) FROM tool_embedding") == [(20,)]


async def test_vec_12_two_ingestions_at_once_make_no_copies(
    open_registry: OpenRegistry, database_url: str
) -> None:
    """VEC-12: concurrent syncs in opposite order neither double rows nor deadlock."""
    tools = many_specs(300)
    registries = [await open_registry() for _ in range(4)]
    if isinstance(registries[0].wrapped, ToolRegistry):
        failures: list[BaseException] = []

        def run(registry: Any, ordered: list[Any]) -> None:
            try:
                registry.sync(ordered)
            except BaseException as error:
                failures.append(error)

        threads = [
            threading.Thread(target=run, args=(r.wrapped, tools[:: 1 - 2 * (i % 2)]))
            for i, r in enumerate(registries)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
    else:
        await asyncio.gather(*(r.sync(tools[:: 1 - 2 * (i % 2)]) for i, r in enumerate(registries)))
    assert rows(database_url, "SELECT count(*), max(version) FROM tool_registry") == [(300, 1)]
    assert rows(database_url, "SELECT count(*) FROM tool_embedding") == [(300,)]
    assert rows(database_url, "SELECT count(*) FROM embedding_model") == [(1,)]


async def test_a_change_that_is_not_searched_keeps_the_vector(
    open_registry: OpenRegistry,
) -> None:
    registry = await open_registry()
    await registry.sync([spec("wipe", "Wipe the disk.")])
    report = await registry.sync([spec("wipe", "Wipe the disk.", requires_approval=True)])
    assert (list(report.updated), report.embedded) == (["wipe"], 0)
    assert (await registry.get("wipe")).spec.requires_approval


async def test_missing_tools_are_reported_by_origin_and_left_alone(
    open_registry: OpenRegistry,
) -> None:
    registry = await open_registry()
    await registry.sync([spec("a", "First."), spec("b", "Second.")])
    await registry.sync([spec("far", "Of a server.", origin="mcp:far")])
    report = await registry.sync([spec("a", "First.")])
    assert list(report.missing) == ["b"]
    assert [r.spec.tool_name for r in await registry.list_tools()] == ["a", "b", "far"]


async def test_deactivated_tools_vanish_at_once_and_a_sync_does_not_bring_them_back(
    open_registry: OpenRegistry,
) -> None:
    registry, other = await open_registry(), await open_registry()
    tools = [spec("add", "Add two numbers."), spec("sum", "Sum a list of numbers.")]
    await registry.sync(tools)
    await registry.deactivate("add")
    assert [h.tool_name for h in await other.search("numbers", threshold=0)] == ["sum"]
    await registry.sync([tools[0].replace(description="Add two integers."), tools[1]])
    assert await other.active_states(["add", "sum", "unknown"]) == {"add": False, "sum": True}
    assert [r.spec.tool_name for r in await registry.list_tools()] == ["sum"]
    assert len(await registry.list_tools(include_inactive=True)) == 2
    await registry.activate("add")
    assert "add" in [h.tool_name for h in await other.search("add integers", threshold=0)]


@pytest.mark.parametrize("action", ["get", "activate", "deactivate"])
async def test_an_unknown_tool_is_named_with_its_nearest(
    open_registry: OpenRegistry, action: str
) -> None:
    registry = await open_registry()
    await registry.sync([spec("search_notes", "Search the notes.")])
    with pytest.raises(ToolNotFoundError, match="Nearest: search_notes") as caught:
        await getattr(registry, action)("serch_notes")
    assert caught.value.nearest == ("search_notes",)


async def test_namespaces_do_not_see_each_other(open_registry: OpenRegistry) -> None:
    north = await open_registry(settings=RegistrySettings(namespace="north"))
    south = await open_registry(settings=RegistrySettings(namespace="south"))
    await north.sync([spec("pay", "Pay an invoice.")])
    await south.sync([spec("pay", "Pay a salary.")])
    assert [h.description for h in await north.search("pay", threshold=0)] == ["Pay an invoice."]
    assert [h.description for h in await south.search("pay", threshold=0)] == ["Pay a salary."]
    await north.deactivate("pay")
    assert (await south.get("pay")).is_active
    assert await south.active_states(["pay"]) == {"pay": True}


async def test_two_tools_of_one_name_are_refused_and_nothing_is_written(
    open_registry: OpenRegistry,
) -> None:
    registry = await open_registry()
    with pytest.raises(DuplicateToolError, match="Two tools are named 'twin'"):
        await registry.sync([spec("ok", "Fine."), spec("twin", "One."), spec("twin", "Two.")])
    assert await registry.list_tools() == []


@pytest.mark.parametrize("order", [("north", "south"), ("south", "north")])
async def test_nam_1_two_servers_with_one_tool_name_are_both_reachable(
    open_registry: OpenRegistry, order: tuple[str, str]
) -> None:
    """NAM-1: origins become prefixes; the order of ingestion changes nothing."""

    def sender(what: str) -> Any:
        @tool("send_note", description=f"Send a note by {what}.")
        def send(text: str) -> str:
            return f"{what}:{text}"

        return send

    by_server = {"north": sender("pigeon"), "south": sender("balloon")}
    toolset = Toolset()
    registry = await open_registry()
    for server in order:
        toolset.add([by_server[server]], origin=f"mcp:{server}")
        await registry.sync([by_server[server]], origin=f"mcp:{server}")
    (pigeon, *_), (balloon, *_) = [
        await registry.search(f"send a note by {what}", threshold=0)
        for what in ("pigeon", "balloon")
    ]
    assert (pigeon.tool_name, pigeon.origin) == ("north__send_note", "mcp:north")
    assert (balloon.tool_name, balloon.display_name) == ("south__send_note", "send_note")
    assert toolset[pigeon.binding].invoke({"text": "x"}) == "pigeon:x"
    assert toolset[balloon.binding].invoke({"text": "x"}) == "balloon:x"


async def test_nam_1_an_origin_does_not_take_over_a_name(open_registry: OpenRegistry) -> None:
    """NAM-1: a name that belongs to another origin is refused, both origins named."""
    registry = await open_registry()
    await registry.sync([spec("pay", "Pay an invoice.")])
    report = await registry.sync([spec("pay", "Steal.", origin="mcp:evil"), spec("ok", "Fine.")])
    assert report.failed == {
        "pay": "the name belongs to origin code; mcp:evil may not take it over"
    }
    assert list(report.added) == ["ok"]
    assert (await registry.get("pay")).spec.description == "Pay an invoice."


async def test_nam_2_one_bad_tool_does_not_block_the_others(open_registry: OpenRegistry) -> None:
    """NAM-2: illegal names are mapped and kept beside the original; a nameless tool is refused."""

    def named(name: str) -> Any:
        @tool("placeholder", description=f"Do what {name} does.")
        def run() -> str:
            return name

        run.name = name
        return run

    names = ["report.daily", "get weather", "münze", ""]
    registry = await open_registry()
    report = await registry.sync([*map(named, names), *many_specs(10)])
    assert len(report.added) == 13
    assert list(report.failed.values()) == ["the name is empty"]
    hit = (await registry.search("do what münze does", threshold=0))[0]
    assert hit.display_name == "münze"
    assert hit.tool_name.isascii()


async def test_nam_6_a_long_description_is_searchable_to_its_end(
    open_registry: OpenRegistry,
) -> None:
    """NAM-6: the whole text is embedded, in parts where the model takes no more."""
    filler = "This tool handles many ordinary matters of the office. " * 90
    registry = await open_registry(embeddings=HashEmbeddings(2_048))
    await registry.sync([spec("long", filler + "It also polishes zeppelins."), *many_specs(20)])
    hits = await registry.search("zeppelins", threshold=0, k=1)
    assert [hit.tool_name for hit in hits] == ["long"]
    assert len((await registry.get("long")).spec.description) > 4_900


async def test_emb_2_a_blank_description_blocks_no_other(open_registry: OpenRegistry) -> None:
    """EMB-2: what has no text is refused by name; 48 of 50 are indexed, nothing blank is sent."""
    tools = many_specs(50)
    tools[7] = tools[7].replace(description="")
    tools[8] = tools[8].replace(description="   ")
    embeddings = HashEmbeddings()
    registry = await open_registry(embeddings=embeddings)
    report = await registry.sync(tools)
    assert set(report.failed) == {"tool_00007", "tool_00008"}
    assert len(report.added) == 48
    assert all(text.strip() for call in embeddings.calls for text in call)


class FailingEmbeddings(HashEmbeddings):
    """Refuses any request that holds a given word."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.word = word

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        vectors = super().embed_documents(texts)
        if any(self.word in text for text in texts):
            raise RuntimeError(f"cannot embed {self.word}")
        return vectors


async def test_emb_3_a_failed_batch_undoes_nothing_and_names_the_text_at_fault(
    open_registry: OpenRegistry,
) -> None:
    """EMB-3: batches are halved around the bad text; the others are stored."""
    tools = many_specs(100)
    tools[40] = tools[40].replace(description="Unspeakable.")
    registry = await open_registry(embeddings=FailingEmbeddings("Unspeakable"))
    report = await registry.sync(tools)
    assert list(report.failed) == ["tool_00040"]
    assert "cannot embed Unspeakable" in report.failed["tool_00040"]
    assert len(report.added) == 99
    with pytest.raises(ToolNotFoundError):
        await registry.get("tool_00040")


async def test_emb_3_bad_neighbours_are_not_taken_for_a_model_that_is_down(
    open_registry: OpenRegistry,
) -> None:
    """EMB-3: ten bad texts in a row fail alone; the model is asked a harmless one in between."""
    tools = many_specs(300)
    for number in range(100, 110):
        tools[number] = tools[number].replace(description="Unspeakable.")
    registry = await open_registry(embeddings=FailingEmbeddings("Unspeakable"))
    report = await registry.sync(tools)
    assert list(report.failed) == [f"tool_{number:05d}" for number in range(100, 110)]
    assert len(report.added) == 290


async def test_every_refused_tool_is_in_the_report(open_registry: OpenRegistry) -> None:
    registry = await open_registry()

    def nameless() -> Any:
        return lambda: None

    def bad() -> None: ...

    def good() -> str:
        """Do good."""
        return ""

    also_bad = type("Tool", (), {"__name__": "good", "__call__": lambda self: None})()
    report = await registry.sync([nameless(), nameless(), bad, good, also_bad])
    assert len(report.failed) == 4
    assert list(report.added) == ["good"]
    with pytest.raises(ConfigurationError, match="give a list of tools"):
        await registry.sync(good)


@pytest.mark.parametrize("query", ["\ud800", "half \udfff a pair"])
async def test_a_question_that_is_no_unicode_is_refused(
    open_registry: OpenRegistry, query: str
) -> None:
    registry = await open_registry()
    with pytest.raises(InvalidQueryError, match="half a surrogate"):
        await registry.search(query)
    with pytest.raises(ToolNotFoundError):
        await registry.get(query)


async def test_a_dead_embedding_model_is_not_asked_for_ever(open_registry: OpenRegistry) -> None:
    embeddings = FailingEmbeddings("")
    registry = await open_registry(embeddings=embeddings)
    report = await registry.sync(many_specs(1_000))
    assert len(report.failed) == 1_000
    assert "refuses everything" in report.failed["tool_00999"]
    assert len(embeddings.calls) < 20
    assert await registry.list_tools() == []


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda: HashEmbeddings(16, model="hash"), id="other size"),
        pytest.param(lambda: HashEmbeddings(8, model="other"), id="same size, other model"),
        pytest.param(
            lambda: Embedder(HashEmbeddings(8), name="HashEmbeddings:hash", revision="2"),
            id="other revision",
        ),
    ],
)
async def test_emb_4_another_embedding_model_is_found_at_start(
    open_registry: OpenRegistry, other: Any
) -> None:
    """EMB-4: name, revision and size are stored; a mismatch names the command that mends it."""
    first = await open_registry(embeddings=HashEmbeddings(8))
    await first.sync([spec("add", "Add two numbers.")])
    embeddings = other()
    if isinstance(embeddings, HashEmbeddings):
        embeddings = Embedder(embeddings, dimensions=embeddings.dimensions)
    with pytest.raises(EmbeddingModelMismatchError, match="toolrag embeddings migrate --to"):
        await open_registry(embeddings=embeddings)
    assert [h.tool_name for h in await first.search("add")] == ["add"]


async def test_emb_4_two_processes_that_start_with_two_models_do_not_mix(
    open_registry: OpenRegistry, database_url: str
) -> None:
    """EMB-4: the first to write decides; the other is refused before it stores a vector."""
    one = await open_registry(embeddings=HashEmbeddings(8, model="one"))
    two = await open_registry(embeddings=HashEmbeddings(8, model="two"))
    await one.sync([spec("a", "First.")])
    with pytest.raises(EmbeddingModelMismatchError):
        await two.sync([spec("b", "Second.")])
    assert rows(database_url, "SELECT tool_name FROM tool_registry") == [("a",)]


async def test_the_question_is_embedded_once_and_results_are_never_cached(
    open_registry: OpenRegistry,
) -> None:
    embeddings = HashEmbeddings()
    registry = await open_registry(embeddings=embeddings)
    await registry.sync([spec("add", "Add two numbers.")])
    embeddings.calls.clear()
    await registry.search("add numbers")
    nearer = spec("nearer", "Add numbers.", display_name="add numbers")
    await registry.sync([spec("add", "Add two numbers."), nearer])
    assert (await registry.search("add numbers"))[0].tool_name == "nearer"
    assert [call for call in embeddings.calls if call == ["add numbers"]] == [["add numbers"]]


async def test_dbc_4_fruitless_searches_leave_no_transaction_open(
    open_registry: OpenRegistry, database_url: str
) -> None:
    """DBC-4: 20 searches without a hit, and some that raise, on a pool of 5."""
    settings = RegistrySettings(pool_size=5, max_overflow=0, pool_timeout_s=2)
    registry = await open_registry(settings=settings)
    await registry.sync([spec("add", "Add two numbers.")])
    for number in range(20):
        assert await registry.search(f"zebra{number}", threshold=1) == []
        with pytest.raises(ToolNotFoundError):
            await registry.get("nothing")
    assert rows(
        database_url,
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND state LIKE 'idle in transaction%%'",
    ) == [(0,)]
    assert [h.tool_name for h in await registry.search("add numbers")] == ["add"]


async def test_dbc_3_one_pool_however_many_use_it_and_none_after_close(
    open_registry: OpenRegistry, database_url: str
) -> None:
    """DBC-3: connections stay within the pool; closing leaves none."""
    settings = RegistrySettings(pool_size=2, max_overflow=1)
    registry = await open_registry(settings=settings)
    await registry.sync([spec("add", "Add two numbers.")])
    if isinstance(registry.wrapped, ToolRegistry):
        threads = [
            threading.Thread(target=registry.wrapped.search, args=(f"add {n}",)) for n in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        await asyncio.gather(*(registry.search(f"add {n}") for n in range(20)))
    count = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = 'toolrag'"
    )
    assert rows(database_url, count)[0][0] <= 3
    await registry.close()
    for _ in range(200):  # the server ends a backend a moment after its client left
        if rows(database_url, count) == [(0,)]:
            break
        await asyncio.sleep(0.02)
    assert rows(database_url, count) == [(0,)]
    with pytest.raises(RegistryError, match="was closed"):
        await registry.search("add")


async def test_an_unmigrated_database_is_refused_with_the_command(
    open_registry: OpenRegistry, empty_database_url: str
) -> None:
    with pytest.raises(SchemaVersionError, match="Run `toolrag db upgrade`"):
        await open_registry(url=empty_database_url)


async def test_a_newer_schema_is_refused(open_registry: OpenRegistry, database_url: str) -> None:
    rows(
        database_url, "UPDATE toolrag_schema_version SET version_num = '9999' RETURNING version_num"
    )
    with pytest.raises(SchemaVersionError, match="newer than"):
        await open_registry()


async def test_a_server_that_does_not_answer_is_one_clear_error(
    open_registry: OpenRegistry,
) -> None:
    with pytest.raises(RegistryUnavailableError, match="does not answer") as caught:
        await open_registry(url="postgresql://user:secret@127.0.0.1:9/none")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_statement_that_takes_too_long_is_stopped(
    open_registry: OpenRegistry, database_url: str
) -> None:
    registry = await open_registry(settings=RegistrySettings(statement_timeout_s=0.2))
    await registry.sync([spec("add", "Add two numbers.")])
    with psycopg.connect(psycopg_url(database_url)) as blocker:
        blocker.execute("LOCK TABLE tool_registry IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(RegistryUnavailableError, match="statement_timeout_s"):
            await registry.search("add")
    assert await registry.search("add")


@pytest.mark.parametrize("name", ["", "no colon", "openai:", ":model", "nonsense:model"])
def test_an_unknown_embedding_model_is_a_clear_error(database_url: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match="mbedding model"):
        ToolRegistry(database_url, embeddings=name)


async def test_vec_10_odd_names_and_texts_are_plain_text(open_registry: OpenRegistry) -> None:
    """VEC-10: nothing of a tool or a question is pasted into SQL."""
    attack = "tag' = 'x' OR '1'='1' --"
    registry = await open_registry()
    await registry.sync(
        [
            spec(
                "quoted", attack, category=attack, origin=attack, binding=attack, examples=(attack,)
            ),
            spec("other", "Unrelated words.", examples=("entirely",)),
        ]
    )
    hits = await registry.search(attack, threshold=0.5)
    assert [(h.tool_name, h.category) for h in hits] == [("quoted", attack)]
    assert await registry.active_states([attack]) == {}
    with pytest.raises(ToolNotFoundError):
        await registry.get(attack)


class CountingEmbeddings(HashEmbeddings):
    """Fails after a number of requests, as a process that is killed would stop."""

    def __init__(self, dimensions: int, *, model: str, requests: int = 1_000_000) -> None:
        super().__init__(dimensions, model=model)
        self.requests = requests

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        if len(self.calls) >= self.requests:
            raise KeyboardInterrupt
        return super().embed_documents(texts)
