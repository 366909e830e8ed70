"""Calibration: done by a sync or by hand, stored by namespace and embedding model."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import psycopg
import pytest

from registry import RegistrySettings
from registry.embedding import Embedder
from registry.errors import RegistryError
from registry.relevance import ZERO, Calibration, relevance
from tests.integration.conftest import EitherRegistry, OpenRegistry
from tests.support.catalogue import many_specs, spec
from tests.support.command_line import Run
from tests.support.databases import psycopg_url
from tests.support.embeddings import HashEmbeddings
from tests.support.usage_records import Called, record

STORED = "SELECT namespace, embedding_model_id, tools, version FROM tool_calibration ORDER BY 1, 2"


def stored(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(psycopg_url(url)) as connection:
        return connection.execute(STORED).fetchall()


def versions(registry: EitherRegistry) -> dict[str, int]:
    return {row[0]: row[3] for row in stored(registry.database_url)}


async def test_a_sync_calibrates_from_twenty_tools_on(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    await registry.sync(many_specs(19))
    assert stored(registry.database_url) == []
    # A small sync counts again only when it changed enough, so it comes as a larger one.
    await registry.sync(many_specs(22))
    assert versions(registry) == {"default": 1}
    await registry.search("alpha", threshold=0)
    assert registry.threshold == 0.6


async def test_it_is_done_again_when_a_fifth_came_or_went(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    await registry.sync(many_specs(30))
    await registry.sync(many_specs(30))
    await registry.sync(many_specs(35))
    assert versions(registry) == {"default": 1}, "less than a fifth"
    await registry.sync(many_specs(37))
    assert versions(registry) == {"default": 2}
    await registry.sync(many_specs(20), missing="deactivate")
    assert versions(registry) == {"default": 3}
    assert stored(registry.database_url)[0][2] == 20


async def test_it_is_done_again_when_learning_moved_vectors_or_undid_it(
    open_registry: OpenRegistry,
) -> None:
    embeddings = HashEmbeddings()
    registry = await open_registry(embeddings=embeddings)
    tools = many_specs(30)
    await registry.sync(tools)
    calls = [Called(question="sum it up", tool=tools[3].tool_name, session=s) for s in "abc"]
    record(registry.database_url, calls, embeddings)
    await registry.sync(tools)
    assert versions(registry) == {"default": 1}, "records alone move nothing"
    assert (await registry.learn(force=True)).promoted
    await registry.sync(tools)
    await registry.sync(tools)
    assert versions(registry) == {"default": 2}
    await registry.unlearn()
    await registry.sync(tools)
    assert versions(registry) == {"default": 3}


async def test_it_can_be_left_to_the_operator(open_registry: OpenRegistry) -> None:
    embeddings = HashEmbeddings()
    registry = await open_registry(
        settings=RegistrySettings(auto_calibrate=False), embeddings=embeddings
    )
    await registry.sync(many_specs(40))
    assert stored(registry.database_url) == []
    assert len(embeddings.calls) == 1, "nothing but the tools was embedded"
    before = await registry.search("handle alpha case 3", threshold=0)
    assert before[0].relevance == pytest.approx(1 - before[0].distance)
    report = await registry.calibrate()
    assert (report.version, report.tools, report.calls, report.zero) == (1, 40, 0, ZERO)
    assert (await registry.calibrate()).version == 2


async def test_relevance_goes_by_the_calibration_and_the_order_does_not(
    open_registry: OpenRegistry,
) -> None:
    registry = await open_registry(settings=RegistrySettings(auto_calibrate=False))
    await registry.sync(many_specs(40))
    before = await registry.search("handle alpha case 3", k=20, threshold=0)
    own = registry.threshold
    report = await registry.calibrate()
    assert registry.threshold == 0.6
    assert own != 0.6
    after = await registry.search("handle alpha case 3", k=20, threshold=0)
    assert [hit.tool_name for hit in after] == [hit.tool_name for hit in before]
    relevances = [hit.relevance for hit in after]
    assert relevances == sorted(relevances, reverse=True)
    assert relevances != [hit.relevance for hit in before]
    # The default threshold lies where the scale says: `zero` above the null of this catalogue.
    by = Calibration(spread=report.spread, null=report.null, zero=report.zero)
    assert relevance(np.array([report.null + report.zero]), by)[0] == pytest.approx(0.6)
    # Another process takes it over with its first search.
    other = await open_registry()
    hits = await other.search("handle alpha case 3", k=20, threshold=0)
    assert [hit.relevance for hit in hits] == relevances
    assert other.threshold == 0.6


async def test_a_question_that_fits_passes_and_one_that_does_not_is_refused(
    open_registry: OpenRegistry,
) -> None:
    # The spread of so many dimensions is near that of a real model.
    registry = await open_registry(embeddings=HashEmbeddings(1_024))
    await registry.sync([*many_specs(30), spec("get_weather", "Weather forecast of a city.")])
    hits = await registry.search("weather forecast of a city")
    assert hits[0].tool_name == "get_weather"
    assert hits[0].relevance > 0.9
    assert await registry.search("zebra giraffe") == []


async def test_another_embedding_model_has_its_own(open_registry: OpenRegistry) -> None:
    old = await open_registry()
    await old.sync(many_specs(30))
    first = stored(old.database_url)
    other = Embedder(HashEmbeddings(512, model="other"), name="other")
    new = await open_registry(embeddings=other, opened=False)
    await new.build_embeddings()
    await new.switch_embeddings()
    reopened = await open_registry(
        embeddings=Embedder(HashEmbeddings(512, model="other"), name="other")
    )
    report = await reopened.calibrate()
    assert report.version == 1
    both = stored(old.database_url)
    assert first[0] in both, "the old model's stays for a way back"
    assert [row[3] for row in both] == [1, 1]
    assert len({row[1] for row in both}) == 2
    with psycopg.connect(psycopg_url(old.database_url)) as connection:
        spreads = connection.execute("SELECT spread FROM tool_calibration").fetchall()
    assert len(set(spreads)) == 2


async def test_another_namespace_has_its_own(open_registry: OpenRegistry) -> None:
    ours = await open_registry()
    theirs = await open_registry(settings=RegistrySettings(namespace="theirs"))
    await ours.sync(many_specs(30))
    await theirs.sync(many_specs(10))
    assert versions(ours) == {"default": 1}
    before = await ours.search("handle alpha case 3", threshold=0)
    await theirs.calibrate()
    assert versions(ours) == {"default": 1, "theirs": 1}
    await theirs.calibrate()
    assert versions(ours) == {"default": 1, "theirs": 2}
    assert await ours.search("handle alpha case 3", threshold=0) == before


async def test_nothing_to_calibrate(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    with pytest.raises(RegistryError, match="sync tools before calibrating"):
        await registry.calibrate()
    assert stored(registry.database_url) == []


# ---------------------------------------------------------------- the command


def test_the_command_prints_the_report(toolrag: Run, database_url: str) -> None:
    assert toolrag("sync", "shop_tools:TOOLS").code == 0
    assert stored(database_url) == []
    ended = toolrag("calibrate")
    assert ended.code == 0, ended.err
    first, *facts = ended.out.splitlines()
    assert first.startswith("Calibrated for 3 tools with builtin:")
    assert first.endswith(" (version 1); the default threshold is 0.60.")
    assert [line.split()[0] for line in facts] == ["spread", "null", "zero"]
    document = json.loads(toolrag("calibrate", "--json").out)
    assert (document["tools"], document["calls"], document["version"]) == (3, 0, 2)
    assert 0 < document["spread"] < 1
    assert document["zero"] == ZERO
    assert json.loads(toolrag("search", "rain", "--json").out)["threshold"] == 0.6


def test_the_command_on_an_empty_registry(toolrag: Run, database_url: str) -> None:
    for arguments in ([], ["--json"]):
        ended = toolrag("calibrate", *arguments)
        assert (ended.code, ended.out) == (1, "")
        assert ended.error.startswith("No active tools in namespace 'default', so there is nothing")
    assert stored(database_url) == []
    assert toolrag("sync", "shop_tools:TOOLS").code == 0
    other = toolrag("--namespace", "theirs", "calibrate")
    assert (other.code, "namespace 'theirs'" in other.error) == (1, True)
