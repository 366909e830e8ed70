"""Sets of vectors: built beside the serving one, compared, switched to, reverted, pruned."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

from registry import Embedder, RegistrySettings, ToolRegistry
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

_INDEXES = "SELECT indexname FROM pg_indexes WHERE indexdef ~ 'hnsw'"


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
    with pytest.raises(KeyboardInterrupt):  # it would complete what is not done
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
    assert (report.embedded, report.remaining) == (22, 0)
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


async def migrated(open_registry: OpenRegistry, count: int = 10) -> EitherRegistry:
    """Return a registry on the new model, to which the tools of the old one were migrated."""
    await serving(open_registry, count)
    new = await open_registry(embeddings=new_model(), opened=False)
    await new.build_embeddings()
    await new.switch_embeddings()
    return new


async def test_revert_is_at_once_and_says_what_is_stale_or_missing_and_a_sync_mends_that(
    open_registry: OpenRegistry,
) -> None:
    new = await migrated(open_registry)
    there = await open_registry(
        embeddings=new_model(), settings=RegistrySettings(namespace="there")
    )
    added = spec("late", "Added since the switch.")
    await new.sync([*many_specs(10), added])
    await there.sync([added])
    await new.update_tool("tool_00001", description="Rewritten since.")
    await new.update_tool("tool_00002", description="Rewritten, then switched off.")
    await new.deactivate("tool_00002")
    nothing = await open_registry(embeddings=FailingEmbeddings(""), opened=False)
    reverted = await nothing.revert_embeddings()
    assert reverted.serving.model.name == "HashEmbeddings:old"
    assert list(reverted.stale) == ["default/tool_00001"]
    assert list(reverted.missing) == ["default/late", "there/late"]

    embeddings = old_model()
    back = await open_registry(
        embeddings=embeddings, settings=RegistrySettings(auto_calibrate=False)
    )
    assert await first(back, "handle beta case 1") == "tool_00001"  # by its earlier text
    assert "late" not in [h.tool_name for h in await back.search("added since", threshold=0, k=50)]
    toolset = [*many_specs(10), added]
    assert [
        (f.kind, f.tool_name, "earlier text" in f.detail)
        for f in (await back.validate(toolset)).findings
        if f.kind == "without_vector"
    ] == [("without_vector", "late", False), ("without_vector", "tool_00001", True)]
    embeddings.calls.clear()
    report = await back.sync(toolset)
    assert (list(report.mended), report.embedded) == (["tool_00001"], 2)
    (request,) = embeddings.calls
    assert [text.split("\n")[0] for text in request] == ["late", "tool 00001"]
    assert await first(back, "rewritten since") == "tool_00001"
    assert await first(back, "added since the switch") == "late"
    embeddings.calls.clear()
    assert (await back.sync(toolset)).embedded == 0
    # Another namespace has no process of its own: one build mends all, what is off included. The
    # text that both namespaces have is known by now.
    assert (await back.build_embeddings()).embedded == 1
    with pytest.raises(ConfigurationError, match="nothing to build"):
        await back.build_embeddings()


async def test_forward_again_after_a_revert_embeds_only_what_was_written_since(
    open_registry: OpenRegistry,
) -> None:
    new = await migrated(open_registry)
    await new.revert_embeddings()
    old = await open_registry(embeddings=old_model())
    await old.update_tool("tool_00001", description="Rewritten since.")
    with pytest.raises(ConfigurationError, match="no set of vectors of HashEmbeddings:new"):
        await new.switch_embeddings()  # nothing was built since
    report = await new.build_embeddings()
    assert (report.set_id, report.embedded) == (2, 1)
    # While it is brought up to date, it can be gone to at once all the same.
    assert (await new.revert_embeddings()).serving.id == 2
    assert (await new.revert_embeddings()).serving.id == 1
    await new.build_embeddings()
    assert (await new.switch_embeddings()).id == 2
    assert await first(new, "rewritten since") == "tool_00001"


async def test_switching_again_changes_nothing(
    open_registry: OpenRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    new = await migrated(open_registry)
    before = await new.embedding_models()
    caplog.set_level("INFO", logger="registry")
    for _ in range(2):
        assert await new.switch_embeddings() == before[0]
    assert [r.message for r in caplog.records] == ["embeddings_serve_already"] * 2
    rebuilt = await open_registry(embeddings=new_model())
    await rebuilt.build_embeddings(rebuild=True)
    for _ in range(3):
        assert (await rebuilt.switch_embeddings()).id == 3
    assert [(m.id, m.state) for m in await new.embedding_models()] == [
        (3, "active"), (2, "retired"), (1, "retired"),
    ]  # fmt: skip


async def test_the_model_in_use_is_refused_beside_other_sets_of_it(
    open_registry: OpenRegistry,
) -> None:
    registry = await serving(open_registry, 10)
    broken = InterruptedEmbeddings(requests=1)
    broken.model = "old"
    broken.dimensions = 64
    settings = RegistrySettings(embedding_batch_size=5)
    interrupted = await open_registry(
        embeddings=Embedder(broken, name="HashEmbeddings:old", batch_size=5), settings=settings
    )
    with pytest.raises(KeyboardInterrupt):
        await interrupted.build_embeddings(rebuild=True)
    states = [(2, "building", 5), (1, "active", 10)]
    embeddings = old_model()
    other = await open_registry(embeddings=embeddings)
    with pytest.raises(ConfigurationError, match="nothing to build"):
        await other.build_embeddings()
    assert [(m.id, m.state, m.vectors) for m in await registry.embedding_models()] == states
    assert embeddings.calls == []
    report = await other.build_embeddings(rebuild=True)  # the rebuild itself goes on
    assert (report.set_id, report.embedded) == (2, 5)
    await other.switch_embeddings()
    await other.revert_embeddings()
    with pytest.raises(ConfigurationError, match="nothing to build"):
        await other.build_embeddings()
    assert [(m.id, m.state) for m in await registry.embedding_models()] == [
        (2, "retired"), (1, "active"),
    ]  # fmt: skip


async def test_a_model_whose_size_changed_behind_its_name_gets_its_own_set(
    open_registry: OpenRegistry,
) -> None:
    """A server that swapped the model: no endless switching, no set of the wrong size."""
    await serving(open_registry, 10)
    small = await open_registry(embeddings=HashEmbeddings(32, model="srv"), opened=False)
    assert (await small.build_embeddings()).set_id == 2
    embeddings = HashEmbeddings(96, model="srv")
    swapped = await open_registry(embeddings=embeddings, opened=False)
    report = await swapped.build_embeddings()
    assert (report.set_id, report.model.dimensions, report.embedded) == (3, 96, 10)
    fresh = await open_registry(embeddings=HashEmbeddings(96, model="srv"), opened=False)
    assert (await fresh.switch_embeddings()).id == 3
    assert await first(swapped) == "tool_00000"


async def test_an_unfinished_set_tells_its_size_without_a_call(
    open_registry: OpenRegistry,
) -> None:
    await serving(open_registry, 20)
    settings = RegistrySettings(embedding_batch_size=10)
    broken = InterruptedEmbeddings(requests=2)  # the size, and half of the tools
    one = await open_registry(embeddings=broken, settings=settings, opened=False)
    with pytest.raises(KeyboardInterrupt):
        await one.build_embeddings()
    again = InterruptedEmbeddings(requests=1_000)
    two = await open_registry(embeddings=again, settings=settings, opened=False)
    assert (await two.build_embeddings()).embedded == 10
    assert [len(call) for call in again.calls] == [10]
    # One that answers with another size after all gets a set of its own; nothing is mixed.
    other = InterruptedEmbeddings(requests=1_000)
    other.dimensions = 48
    await two.prune_embeddings(2)
    three = await open_registry(
        embeddings=InterruptedEmbeddings(requests=2), settings=settings, opened=False
    )
    with pytest.raises(KeyboardInterrupt):
        await three.build_embeddings()
    four = await open_registry(embeddings=other, settings=settings, opened=False)
    report = await four.build_embeddings()
    assert (report.model.dimensions, report.embedded) == (48, 20)
    assert sorted(m.vectors for m in await four.embedding_models()) == [10, 20, 20]


async def test_a_tool_that_is_off_does_not_keep_the_switch_from_happening(
    open_registry: OpenRegistry,
) -> None:
    old = await serving(open_registry, 10)
    await old.deactivate("tool_00007")
    failing = FailingEmbeddings("case 7.")
    failing.model = "new"
    new = await open_registry(embeddings=failing, opened=False)
    report = await new.build_embeddings()
    assert (list(report.failed), list(report.failed_inactive)) == ([], ["default/tool_00007"])
    assert (await new.switch_embeddings()).vectors == 9
    # It is embedded when it is switched on, or stays off.
    with pytest.raises(EmbeddingError, match="cannot embed"):
        await new.activate("tool_00007")
    assert not (await new.get("tool_00007")).is_active
    with pytest.raises(EmbeddingModelMismatchError):  # a process on the model before cannot
        await old.activate("tool_00007")
    failing.word = "nothing any more"
    await new.activate("tool_00007")
    assert await first(new, "handle case 7") == "tool_00007"
    assert [v.change for v in await new.history("tool_00007")] == [
        "activated", "deactivated", "added",
    ]  # fmt: skip


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
    assert rows(database_url, _INDEXES) == []  # that of the set that is gone
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
    old = Embedder(old_model())
    with pytest.raises(ConfigurationError, match="Build it first"):
        await new.compare_embeddings(questions, serving=old)
    await new.build_embeddings()
    result = await new.compare_embeddings(questions, serving=old, k=5)
    assert (result.questions, result.k) == (3, 5)
    assert result.recall_before == result.recall_after == 0.75
    assert list(result.unknown) == ["unknown"]
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
        held = rf"Another process holds 'embeddings': \S+:{os.getpid()}:\S+ until \d+-\d+-\d+ .*UTC"
        with pytest.raises(RegistryBusyError, match=held) as caught:
            other.build_embeddings()
        with pytest.raises(RegistryBusyError, match=held):
            other.prune_embeddings(2)
        refused.append(str(caught.value))

    await new.build_embeddings(on_progress=try_another)
    other.close()
    assert refused
    await new.switch_embeddings()


async def test_the_model_in_use_is_not_built_again_by_mistake(open_registry: OpenRegistry) -> None:
    registry = await serving(open_registry)
    with pytest.raises(ConfigurationError, match="nothing to build"):
        await registry.build_embeddings()
    assert (await registry.switch_embeddings()).id == 1
    assert [m.state for m in await registry.embedding_models()] == ["active"]


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


async def test_a_text_that_several_tools_have_is_embedded_once(open_registry: OpenRegistry) -> None:
    """Also where one of them, of another namespace, has its vector already."""
    old = await serving(open_registry)
    other = RegistrySettings(namespace="other")
    second = await open_registry(embeddings=old_model(), settings=other)
    await second.sync(many_specs(40))
    model = new_model()
    new = await open_registry(embeddings=model, opened=False)
    report = await new.build_embeddings()
    assert (report.embedded, report.remaining, dict(report.failed)) == (40, 0, {})
    sent = [text for call in model.calls for text in call]
    assert len(sent) == len(set(sent))
    assert (await new.switch_embeddings()).vectors == 70
    assert await old.active_states(["tool_00003"]) == {"tool_00003": True}


async def test_a_catch_up_keeps_what_it_replaces_and_uses_what_was_kept(
    open_registry: OpenRegistry,
) -> None:
    """A text that a set ever held is not embedded again, by a roll-back or by a build."""
    old = await serving(open_registry)
    await old.update_tool("tool_00006", description="Six, changed.")
    model = new_model()
    new = await open_registry(embeddings=model, opened=False)
    await new.build_embeddings()
    await new.switch_embeddings()
    await new.update_tool("tool_00004", description="Four, changed.")
    await new.rollback("tool_00006", 1)
    await new.revert_embeddings()

    again = old_model()
    back = await open_registry(embeddings=again, opened=False)
    report = await back.build_embeddings()
    sent = [text for call in again.calls for text in call]
    assert report.embedded == 1
    assert [text for text in sent if "case" in text] == []
    assert [text for text in sent if "Four, changed." in text]
    again.calls.clear()
    await back.rollback("tool_00004", 1)
    assert again.calls == []
