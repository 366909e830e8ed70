"""A LangChain document compressor in the search of both registries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from pydantic import PrivateAttr

from registry import RegistrySettings, ToolRetriever
from registry.errors import ConfigurationError
from registry.types import ToolHit
from tests.integration.conftest import EitherRegistry, OpenRegistry
from tests.support.catalogue import many_specs, spec

SETTINGS = RegistrySettings(auto_calibrate=False)
QUESTION = "Handle alpha case 3"
Change = Callable[[list[Document]], Any]


class Reranker(BaseDocumentCompressor):
    """Changes the list of documents as it is told, and keeps what it was asked."""

    change: Change
    _asked: list[tuple[str, list[Document], str]] = PrivateAttr(default_factory=list)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        self._asked.append((query, list(documents), "sync"))
        return self.change(list(documents))

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        self._asked.append((query, list(documents), "async"))
        return self.change(list(documents))


def names(hits: Sequence[ToolHit]) -> list[str]:
    return [hit.tool_name for hit in hits]


async def pair(
    open_registry: OpenRegistry, change: Change, *, tools: int = 40, **settings: Any
) -> tuple[EitherRegistry, EitherRegistry, Reranker]:
    """Return a registry without a reranker, one with, and the reranker."""
    reranker = Reranker(change=change)
    plain = await open_registry(settings=SETTINGS)
    await plain.sync(many_specs(tools))
    made = RegistrySettings(auto_calibrate=False, **settings)
    return plain, await open_registry(settings=made, reranker=reranker), reranker


async def test_the_first_hits_come_back_in_its_order(open_registry: OpenRegistry) -> None:
    plain, registry, reranker = await pair(open_registry, lambda given: given[::-1])
    ours = await plain.search(QUESTION, k=25, threshold=0)
    hits = await registry.search(QUESTION, k=5, threshold=0)
    assert names(hits) == names(ours[:20][::-1][:5]), "from far behind k"
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    before = {hit.tool_name: hit for hit in ours}
    for hit in hits:
        was = before[hit.tool_name]
        assert (hit.relevance, hit.score, hit.parts) == (was.relevance, was.score, was.parts)
    [(query, documents, kind)] = reranker._asked
    assert query == QUESTION
    assert kind == ("async" if "Async" in type(registry.wrapped).__name__ else "sync")
    assert [document.id for document in documents] == names(ours[:20])
    retriever = ToolRetriever(registry=plain.wrapped, k=20, threshold=0)
    assert documents == await retriever.ainvoke(QUESTION)


async def test_hits_beyond_those_it_is_given_follow(open_registry: OpenRegistry) -> None:
    plain, registry, reranker = await pair(
        open_registry, lambda given: given[::-1], rerank_candidates=3
    )
    ours = names(await plain.search(QUESTION, k=6, threshold=0))
    hits = await registry.search(QUESTION, k=6, threshold=0)
    assert names(hits) == [*ours[:3][::-1], *ours[3:]]
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5, 6]
    assert len(reranker._asked[0][1]) == 3


async def test_what_it_drops_is_dropped(open_registry: OpenRegistry) -> None:
    plain, registry, _ = await pair(open_registry, lambda given: given[1::2])
    ours = names(await plain.search(QUESTION, k=20, threshold=0))
    assert names(await registry.search(QUESTION, k=5, threshold=0)) == ours[1::2][:5]
    assert len(await registry.search(QUESTION, k=20, threshold=0)) == 10
    _, strict, _ = await pair(open_registry, lambda given: [])
    assert await strict.search(QUESTION, threshold=0) == []
    told = await strict.explain(QUESTION, ours[0], threshold=0)
    assert not told.is_offered
    assert "before the reranker, which dropped it" in told.reasons[0]


async def test_the_threshold_goes_by_our_relevance(open_registry: OpenRegistry) -> None:
    plain, registry, _ = await pair(open_registry, lambda given: given[::-1])
    ours = await plain.search(QUESTION, k=20, threshold=0)
    least = ours[2].relevance
    expected = [h.tool_name for h in ours[::-1] if h.relevance >= least]
    hits = await registry.search(QUESTION, k=20, threshold=least)
    assert names(hits) == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda given: 1 / 0,
        lambda given: None,
        lambda given: [3],
        lambda given: [Document(page_content="mine", id="mine")],
    ],
    ids=["raises", "none", "no documents", "none of ours"],
)
async def test_a_search_does_not_fail_because_of_it(
    open_registry: OpenRegistry, change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    plain, registry, reranker = await pair(open_registry, change)
    hits = await registry.search(QUESTION, threshold=0)
    assert hits == await plain.search(QUESTION, threshold=0)
    assert len(reranker._asked) == 1
    [record] = [r for r in caplog.records if r.getMessage() == "reranker_failed"]
    assert record.levelname == "WARNING"
    assert record.exc_info is not None
    assert QUESTION not in record.getMessage()


async def test_strangers_and_repetitions_are_passed_over(open_registry: OpenRegistry) -> None:
    def change(given: list[Document]) -> list[Document]:
        stranger = Document(page_content="mine", metadata={"tool_name": "drop_database"})
        odd = Document(page_content="odd", metadata={"tool_name": ["unhashable"]})
        # As rerankers of a service do: copies without an id, with a score.
        copies = [
            Document(page_content=d.page_content, metadata={**d.metadata, "relevance_score": 1.0})
            for d in given
        ]
        by_id = Document(page_content="", id=given[4].id)
        return [stranger, copies[2], odd, copies[2], by_id, given[0], copies[0]]

    plain, registry, _ = await pair(open_registry, change)
    ours = names(await plain.search(QUESTION, threshold=0))
    hits = await registry.search(QUESTION, threshold=0)
    assert names(hits) == [ours[2], ours[4], ours[0]]


def without_a_tool(document: Document) -> Document:
    return Document(page_content=document.page_content, metadata={"answer": {}})


@pytest.mark.parametrize(
    "change",
    [
        lambda given: 1 / 0,
        lambda given: {"tools": given}["selected"],
        lambda given: {},
        lambda given: {"tools": given},
        lambda given: {document.id: document for document in given},
        lambda given: "",
        lambda given: given[0].id,
        lambda given: ", ".join(str(document.id) for document in given),
        lambda given: b"\x00",
        lambda given: None,
        lambda given: 3,
        lambda given: given[0],
        lambda given: (document for document in given),
        lambda given: [document.id for document in given],
        lambda given: [{"tool_name": document.id} for document in given],
        lambda given: [document.model_dump() for document in given],
        lambda given: [None, 3, "", {}, []],
        lambda given: [[document] for document in given],
        lambda given: [Document(page_content="none of yours", id="drop_database")],
        lambda given: [without_a_tool(document) for document in given],
        lambda given: [
            document.model_copy(update={"metadata": {}, "id": None}) for document in given
        ],
    ],
    ids=[
        *("raises", "leaves a field out", "{}", "a field", "by name", "empty string", "a name"),
        *("a string for the list", "bytes", "None", "a number", "one document", "generator"),
        *("names", "dicts with names", "dicts", "nothings", "lists", "an unknown tool"),
        *("documents of nothing", "documents without a name"),
    ],
)
async def test_ret_2_an_answer_that_is_none_leaves_our_ranking(
    open_registry: OpenRegistry, change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    """RET-2: neither an error, nor no tool, nor every tool: what is found without it; logged."""
    plain, registry, reranker = await pair(open_registry, change)
    ours = await plain.search(QUESTION, k=4, threshold=0)
    least = ours[2].relevance
    caplog.clear()
    assert await registry.search(QUESTION, k=4, threshold=0) == ours
    kept = await plain.search(QUESTION, k=4, threshold=least)
    assert await registry.search(QUESTION, k=4, threshold=least) == kept
    assert len(reranker._asked) == 2
    failed = [r for r in caplog.records if r.getMessage() == "reranker_failed"]
    assert [(record.levelname, record.exc_info is not None) for record in failed] == [
        ("WARNING", True)
    ] * 2


async def test_ret_2_what_is_usable_of_an_answer_is_used(
    open_registry: OpenRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """RET-2: unknown names ignored, repeats counted once, more than allowed cut; logged."""

    def change(given: list[Document]) -> list[Any]:
        unknown = [Document(page_content="mine", id=f"drop_{n}") for n in range(500)]
        nonsense = [None, "", given[0].id, {}, {"tool_name": given[0].id}, [given[0]]]
        return [*unknown, *given[:1:-1], *nonsense, *given[:1:-1], *given]

    plain, registry, _ = await pair(open_registry, change)
    ours = names(await plain.search(QUESTION, k=20, threshold=0))
    expected = [*ours[:1:-1], *ours[:2]]
    caplog.clear()
    hits = await registry.search(QUESTION, k=4, threshold=0)
    assert names(hits) == expected[:4]
    assert [hit.rank for hit in hits] == [1, 2, 3, 4]
    assert names(await registry.search(QUESTION, k=20, threshold=0)) == expected
    mended = [r for r in caplog.records if r.getMessage() == "reranker_answer_mended"]
    assert [(r.levelname, vars(r)["passed_over"]) for r in mended] == [("WARNING", 542)] * 2


async def test_ret_2_an_answer_without_fault_is_not_remarked(
    open_registry: OpenRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """RET-2: a log that warns of every answer is read by nobody; dropping all is worth a line."""
    plain, registry, _ = await pair(open_registry, lambda given: tuple(given[:3]))
    ours = names(await plain.search(QUESTION, k=20, threshold=0))
    caplog.clear()
    assert names(await registry.search(QUESTION, threshold=0)) == ours[:3]
    assert not [r for r in caplog.records if r.getMessage().startswith("reranker_")]
    _, strict, _ = await pair(open_registry, lambda given: [])
    assert await strict.search(QUESTION, threshold=0) == []
    [record] = [r for r in caplog.records if r.getMessage().startswith("reranker_")]
    assert (record.getMessage(), record.levelname) == ("reranker_dropped_all", "WARNING")


async def test_ret_8_a_reranker_cannot_put_a_fallback_tool_first(
    open_registry: OpenRegistry,
) -> None:
    """RET-8: the mark holds whoever orders the others."""

    def fallbacks_first(given: list[Document]) -> list[Document]:
        return sorted(given[::-1], key=lambda document: not document.metadata["fallback"])

    plain, registry, reranker = await pair(open_registry, fallbacks_first, tools=15)
    await plain.sync([spec("any_task", f"{QUESTION}.", fallback=True)])
    hits = names(await registry.search(QUESTION, k=20, threshold=0))
    [given] = [documents for _, documents, _ in reranker._asked]
    assert "any_task" in [document.id for document in given]
    assert hits[-1] == "any_task"
    assert len(hits) == 16
    assert "any_task" not in names(await registry.search(QUESTION, k=15, threshold=0))


async def test_it_cannot_change_a_tool(open_registry: OpenRegistry) -> None:
    def change(given: list[Document]) -> list[Document]:
        for document in given:
            document.metadata.update(requires_approval=False, relevance=1.0, binding="other")
            document.page_content = "rewritten"
        return given

    plain, registry, _ = await pair(open_registry, change)
    assert await registry.search(QUESTION, threshold=0) == await plain.search(QUESTION, threshold=0)


async def test_a_small_registry_needs_none(open_registry: OpenRegistry) -> None:
    _, registry, reranker = await pair(open_registry, lambda given: [], tools=8)
    for strategy in ("auto", "all"):
        found = await registry.select(QUESTION, k=2, strategy=strategy)
        assert (found.strategy, len(found.hits)) == ("all", 8)
    assert reranker._asked == []


async def test_nothing_to_rerank(open_registry: OpenRegistry) -> None:
    _, registry, reranker = await pair(open_registry, lambda given: given, tools=0)
    assert await registry.search(QUESTION) == []
    assert reranker._asked == []


async def test_explain_knows_of_it(open_registry: OpenRegistry) -> None:
    plain, registry, _ = await pair(open_registry, lambda given: given[::-1])
    ours = names(await plain.search(QUESTION, k=20, threshold=0))
    raised = await registry.explain(QUESTION, ours[19], threshold=0)
    assert raised.is_offered
    assert raised.reasons[0].startswith("rank 20 of ")
    assert raised.reasons[0].endswith("and 5 are taken; the reranker moved it to 1")
    for place in (0, 9):
        lowered = await registry.explain(QUESTION, ours[place], threshold=0)
        assert not lowered.is_offered
        [reason] = lowered.reasons
        assert reason.startswith(f"rank {place + 1} of ")
        assert reason.endswith("which dropped it or did not put it among the first 5")


def test_what_is_no_reranker_is_refused(database_url: str) -> None:
    from registry import AsyncToolRegistry, ToolRegistry

    wrong: Any = lambda documents, query: documents  # noqa: E731
    for kind in (ToolRegistry, AsyncToolRegistry):
        with pytest.raises(ConfigurationError, match="give a LangChain BaseDocumentCompressor"):
            kind(database_url, reranker=wrong)
