"""Embedding models: identity, batches, checks, cache."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.embeddings import Embeddings

from registry.embedding import (
    Embedder,
    LocalEmbeddings,
    estimated_tokens,
    plan_batches,
    split_text,
    vector_literal,
)
from registry.errors import ConfigurationError, EmbeddingError, InvalidQueryError
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
    ],
)
def test_answers_that_cannot_be_used_are_refused(answer: Any, said: str) -> None:
    embedder = Embedder(AnsweringEmbeddings(answer), name="stub", dimensions=2)
    with pytest.raises(EmbeddingError, match=said):
        embedder.embed_documents(["one", "two"])


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
    monkeypatch.setattr("registry.embedding._BUILTIN_DISTRIBUTION", "not-installed-here")
    with pytest.raises(ConfigurationError, match=r"pip install 'toolrag\[local\]'"):
        LocalEmbeddings()
