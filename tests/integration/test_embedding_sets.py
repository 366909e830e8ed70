"""Sets of vectors: built beside the serving one, compared, switched to, reverted, pruned."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from registry import RegistrySettings, ToolRegistry
from registry.errors import (
    ConfigurationError,
    EmbeddingError,
    EmbeddingModelMismatchError,
    RegistryBusyError,
    RegistryError,
)
from registry.types import Question
from tests.integration.conftest import EitherRegistry, OpenRegistry
from tests.integration.test_store import FailingEmbeddings, rows
from tests.support.catalogue import many_specs, spec
from tests.support.embeddings import HashEmbeddings


def old_model() -> HashEmbeddings:
    return HashEmbeddings(64, model="old")


def new_model() -> HashEmbeddings:
    return HashEmbeddings(128, model="new")


class InterruptedEmbeddings(HashEmbeddings):
    """Stops the process, as it were, after a number of requests."""

    def __init__(self, *, requests: int) -> None:
        super().__init__(128, model="new")
        self.requests = requests

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        if len(self.calls) >= self.requests:
            raise KeyboardInterrupt
        return super().embed_documents(texts)


async def serving(open_registry: OpenRegistry, count: int = 30) -> EitherRegistry:
    registry = await open_registry(embeddings=old_model())
    await registry.sync(many_specs(count))
    return registry


async def first(registry: EitherRegistry, question: str = "handle alpha case 0") -> str:
    return (await registry.search(question, threshold=0))[0].tool_name


async def test_emb_4_a_new_model_is_built_beside_and_switched_to_for_every_namespace(
    open_registry: OpenRegistry,
) -> None:
    """EMB-4: the mismatch names this way out; vectors of two models are never compared."""
    old = await serving(open_registry)
    other = RegistrySettings(namespace="other")
    old_other = await open_registry(embeddings=old_model(), settings=other)
    await old_other.sync([spec("add", "Add two numbers.")])
    await old.deactivate("tool_00003")

    new = await open_registry(embeddings=new_model(), opened=False)
    report = await new.build_embeddings()
    assert (report.embedded, dict(report.failed)) == (31, {})
    with pytest.raises(EmbeddingModelMismatchError, match="toolrag embeddings migrate --to"):
        await new.search("handle alpha")
    assert await first(old) == "tool_00000"

    switched = await new.switch_embeddings()
    assert (switched.state, switched.vectors) == ("active", 31)
    assert await first(new) == "tool_00000"
    new_other = await open_registry(embeddings=new_model(), settings=other)
    assert await first(new_other, "add numbers") == "add"
    # A process that started on the old model goes on answering from its own vectors.
    assert await first(old) == "tool_00000"
    with pytest.raises(EmbeddingModelMismatchError):
        await open_registry(embeddings=old_model())
    await new.activate("tool_00003")
    assert len(await new.search("handle", threshold=0, k=100)) == 30


async def test_emb_5_a_failure_half_way_leaves_the_catalogue_as_it_was(
    open_registry: OpenRegistry,
) -> None:
    """EMB-5: old rows serve until the new set is complete; going on embeds nothing twice."""
    old = await serving(open_registry, 50)
    settings = RegistrySettings(embedding_batch_size=10)
    broken = InterruptedEmbeddings(requests=4)
    one = await open_registry(embeddings=broken, settings=settings, opened=False)
    with pytest.raises(KeyboardInterrupt):
        await one.build_embeddings()
    with pytest.raises(
        RegistryError, match=r"\d+ tools have no vector of InterruptedEmbeddings:new"
    ):
        await one.switch_embeddings()
    assert await first(old) == "tool_00000"
    assert [m.state for m in await old.embedding_models()] == ["building", "active"]

    again = InterruptedEmbeddings(requests=1_000)
    two = await open_registry(embeddings=again, settings=settings, opened=False)
    await two.build_embeddings()
    await two.switch_embeddings()
    texts = [text for call in (*broken.calls, *again.calls) for text in call if "Handle" in text]
    assert len(texts) == len(set(texts)) == 50


async def test_a_failed_tool_is_reported_retried_and_keeps_the_switch_from_happening(
    open_registry: OpenRegistry,
) -> None:
    old = await serving(open_registry, 20)
    failing = FailingEmbeddings("case 7.")
    failing.model = "new"
    new = await open_registry(embeddings=failing, opened=False)
    report = await new.build_embeddings()
    assert list(report.failed) == ["default/tool_00007"]
    with pytest.raises(RegistryError, match="default/tool_00007"):
        await new.switch_embeddings()
    assert len(await old.search("handle", threshold=0, k=50)) == 20
    failing.word = "nothing any more"
    retried = await new.build_embeddings()
    assert (retried.embedded, dict(retried.failed)) == (1, {})
    await new.switch_embeddings()
    assert len(await new.search("handle", threshold=0, k=50)) == 20


async def test_writes_during_the_build_reach_both_sets(open_registry: OpenRegistry) -> None:
    old = await serving(open_registry, 20)
    new = await open_registry(embeddings=new_model(), opened=False)
    writer = ToolRegistry(new.database_url, embeddings=old_model())
    changed: list[int] = []

    def change_once(progress: Any) -> None:
        if not changed:
            writer.sync([spec("late", "Added late."), *many_specs(20)])
            writer.update_tool("tool_00001", description="Rewritten meanwhile.")
        changed.append(progress.done)

    report = await new.build_embeddings(on_progress=change_once)
    writer.close()
    await new.switch_embeddings()
    assert report.embedded == 22
    assert await first(new, "added late") == "late"
    assert await first(new, "rewritten meanwhile") == "tool_00001"
    assert await first(old, "added late") == "late"


async def test_a_writer_on_the_old_model_is_stopped_once_the_new_one_serves(
    open_registry: OpenRegistry,
) -> None:
    """A tool whose vector only the old set has would be invisible: refused, nothing changed."""
    old = await serving(open_registry)
    new = await open_registry(embeddings=new_model(), opened=False)
    await new.build_embeddings()
    await new.switch_embeddings()
    with pytest.raises(EmbeddingModelMismatchError):
        await old.sync([spec("too_late", "Comes too late.")])
    with pytest.raises(EmbeddingModelMismatchError):
        await old.update_tool("tool_00000", description="Other text.")
    assert "too_late" not in [r.spec.tool_name for r in await new.list_tools()]
    assert (await new.get("tool_00000")).version == 1
    await old.deactivate("tool_00000")  # needs no vector, so it reaches both
    assert "tool_00000" not in [h.tool_name for h in await new.search("handle", k=50, threshold=0)]


async def test_revert_is_at_once_and_after_changes_it_says_what_is_lacking(
    open_registry: OpenRegistry,
) -> None:
    old = await serving(open_registry)
    new = await open_registry(embeddings=new_model(), opened=False)
    await new.build_embeddings()
    await new.switch_embeddings()
    reverted = await new.revert_embeddings()
    assert reverted.model.name == "HashEmbeddings:old"
    back = await open_registry(embeddings=old_model())
    assert await first(back) == "tool_00000"

    await new.switch_embeddings()
    await new.update_tool("tool_00001", description="Rewritten since.")
    with pytest.raises(RegistryError, match=r"1 tool has .*default/tool_00001.*migrate --to"):
        await new.revert_embeddings()
    embeddings = old_model()
    again = await open_registry(embeddings=embeddings, opened=False)
    assert (await again.build_embeddings()).embedded == 1
    assert (await again.switch_embeddings()).model.name == "HashEmbeddings:old"
    assert await first(again, "rewritten since") == "tool_00001"
    assert await first(old) == "tool_00000"


async def test_a_rebuild_of_the_model_in_use_makes_a_second_generation(
    open_registry: OpenRegistry,
) -> None:
    embeddings = old_model()
    registry = await open_registry(embeddings=embeddings)
    await registry.sync(many_specs(20))
    embeddings.calls.clear()
    report = await registry.build_embeddings(rebuild=True)
    assert report.embedded == 20
    assert await first(registry) == "tool_00000"
    switched = await registry.switch_embeddings()
    assert (switched.generation, switched.state) == (2, "active")
    assert await first(registry) == "tool_00000"
    await registry.sync([*many_specs(20), spec("later", "After the rebuild.")])
    assert await first(registry, "after the rebuild") == "later"


async def test_prune_removes_what_does_not_serve_and_nothing_else(
    open_registry: OpenRegistry, database_url: str
) -> None:
    settings = RegistrySettings(index_min_tools=20)
    old = await open_registry(embeddings=old_model(), settings=settings)
    await old.sync(many_specs(30))
    new = await open_registry(embeddings=new_model(), opened=False, settings=settings)
    await new.build_embeddings()
    assert await new.prune_embeddings() == []  # a set that is being built is not retired
    await new.switch_embeddings()
    active, retired = await new.embedding_models()
    with pytest.raises(ConfigurationError, match="serves searches and cannot be removed"):
        await new.prune_embeddings(active.id)
    with pytest.raises(ConfigurationError, match="There is no set of vectors 99"):
        await new.prune_embeddings(99)
    assert [r.id for r in await new.prune_embeddings()] == [retired.id]
    assert rows(database_url, "SELECT DISTINCT embedding_model_id FROM tool_embedding") == [
        (active.id,)
    ]
    with pytest.raises(ConfigurationError, match="no earlier set"):
        await new.revert_embeddings()
    # The process that still searches the pruned set is told, and gets no empty answer.
    with pytest.raises(EmbeddingModelMismatchError, match="restart this process"):
        await old.search("handle alpha")
    assert await first(new) == "tool_00000"


async def test_two_sets_are_compared_on_labelled_and_unlabelled_questions(
    open_registry: OpenRegistry,
) -> None:
    await serving(open_registry)
    new = await open_registry(embeddings=new_model(), opened=False)
    questions = [
        Question(text="handle alpha case 0", relevant=("tool_00000",)),
        Question(text="handle beta case 1", relevant=("tool_00001", "unknown")),
        Question(text="something without a label"),
    ]
    from registry import Embedder

    old = Embedder(old_model())
    with pytest.raises(ConfigurationError, match="Build it first"):
        await new.compare_embeddings(questions, serving=old)
    await new.build_embeddings()
    result = await new.compare_embeddings(questions, serving=old, k=5)
    assert (result.questions, result.k) == (3, 5)
    assert result.recall_before == result.recall_after == 0.75
    assert 0 < result.overlap <= 1
    unlabelled = await new.compare_embeddings(questions[2:], serving=old)
    assert unlabelled.recall_before is None
    with pytest.raises(ConfigurationError, match="does not serve"):
        await new.compare_embeddings(questions, serving=Embedder(new_model()))


async def test_two_builds_at_once_are_one_build_and_one_clear_error(
    open_registry: OpenRegistry,
) -> None:
    await serving(open_registry)
    new = await open_registry(embeddings=new_model(), opened=False)
    other = ToolRegistry(new.database_url, embeddings=new_model())
    refused: list[str] = []

    def try_another(progress: Any) -> None:
        with pytest.raises(RegistryBusyError, match="Another process holds 'embeddings'") as caught:
            other.build_embeddings()
        refused.append(str(caught.value))

    await new.build_embeddings(on_progress=try_another)
    other.close()
    assert refused
    await new.switch_embeddings()


async def test_the_model_in_use_is_not_built_again_by_mistake(open_registry: OpenRegistry) -> None:
    registry = await serving(open_registry)
    with pytest.raises(ConfigurationError, match="nothing to build"):
        await registry.build_embeddings()
    with pytest.raises(ConfigurationError, match="no set of vectors of HashEmbeddings:old"):
        await registry.switch_embeddings()


@pytest.mark.parametrize("answer", ["other size", "zeros", "nan", "too few"])
async def test_a_model_that_answers_nonsense_changes_nothing(
    open_registry: OpenRegistry, answer: str
) -> None:
    class Nonsense(HashEmbeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            good = super().embed_documents(texts)
            if len(texts) == 1 and "dimensions" in texts[0]:
                return good
            return {
                "other size": [vector[:-1] for vector in good],
                "zeros": [[0.0] * self.dimensions for _ in good],
                "nan": [[float("nan")] * self.dimensions for _ in good],
                "too few": good[1:],
            }[answer]

    old = await serving(open_registry, 10)
    new = await open_registry(embeddings=Nonsense(32, model="bad"), opened=False)
    report = await new.build_embeddings()
    assert len(report.failed) == 10
    assert report.embedded == 0
    with pytest.raises(RegistryError):
        await new.switch_embeddings()
    assert len(await old.search("handle", threshold=0, k=50)) == 10


async def test_a_model_that_is_down_is_an_error_before_anything_is_made(
    open_registry: OpenRegistry,
) -> None:
    old = await serving(open_registry, 5)
    new = await open_registry(embeddings=FailingEmbeddings(""), opened=False)
    with pytest.raises(EmbeddingError, match="cannot embed"):
        await new.build_embeddings()
    assert len(await old.embedding_models()) == 1


async def test_no_search_fails_or_mixes_models_while_four_search_and_one_writes(
    open_registry: OpenRegistry,
) -> None:
    """A switch under load: every answer comes whole from one set."""
    old = await serving(open_registry, 60)
    new = await open_registry(
        embeddings=new_model(), opened=False, settings=RegistrySettings(embedding_batch_size=5)
    )
    searcher = ToolRegistry(new.database_url, embeddings=old_model())
    writer = ToolRegistry(new.database_url, embeddings=old_model())
    stop = threading.Event()
    counts: list[int] = []
    failures: list[BaseException] = []

    def search() -> None:
        try:
            while not stop.is_set():
                counts.append(len(searcher.search("handle", threshold=0, k=100)))
        except BaseException as error:
            failures.append(error)

    def write() -> None:
        number = 0
        try:
            while not stop.wait(0.02):
                number += 1
                writer.update_tool("tool_00001", description=f"Handle change {number}.")
        except EmbeddingModelMismatchError:
            pass  # the switch happened: a writer on the old model has to restart
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=search) for _ in range(4)]
    threads.append(threading.Thread(target=write))
    for thread in threads:
        thread.start()
    try:
        await new.build_embeddings()
        await new.switch_embeddings()
        seen = len(counts)
        while len(counts) < seen + 20 and not failures:
            await asyncio.sleep(0.01)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        searcher.close()
        writer.close()
    assert failures == []
    assert set(counts) == {60}
    assert len(await new.search("handle", threshold=0, k=100)) == 60
    assert len(await old.search("handle", threshold=0, k=100)) == 60
