"""The embedder: a model with its identity, its checks and its cache of question vectors."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.embeddings import Embeddings

from registry.embedding.answers import (
    Vectors,
    check_dimensions,
    checked_vectors,
    client_errors,
    merged,
    question_errors,
    vector_literal,
)
from registry.embedding.deadline import TimedCalls
from registry.embedding.models import (
    BUILTIN_MODEL,
    BUILTIN_NAME,
    BUILTIN_THRESHOLD,
    LocalEmbeddings,
    derived_name,
    embeddings_by_name,
    request_timeout,
)
from registry.embedding.texts import checked_question, in_parts, shortened, split_text
from registry.errors import ConfigurationError, EmbeddingError
from registry.types import EmbeddingModel

__all__ = ["DEFAULT_THRESHOLD", "Embedder"]

DEFAULT_THRESHOLD = 0.2
# Others may put a prefix before a question, or use another model for it.
_SYMMETRIC = {"LocalEmbeddings", "OpenAIEmbeddings", "AzureOpenAIEmbeddings"}


class Embedder:
    """An embedding model with its identity; what a registry embeds with.

    Args:
        embeddings: Any LangChain `Embeddings`.
        name: Identity of the model; derived from the class and its model name when not given.
        revision: Release of weights or preprocessing; change it when vectors change.
        dimensions: Vector length; found by one embedding call when not given.
        threshold: Relevance below which a hit is not relevant, 0 to 1.
        batch_size: Texts in one request, at most 2,048.
        cache_size: Question vectors kept in memory.

    Raises:
        ConfigurationError: dimensions or threshold out of range.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        *,
        name: str = "",
        revision: str = "",
        dimensions: int | None = None,
        threshold: float = DEFAULT_THRESHOLD,
        batch_size: int = 128,
        cache_size: int = 1_024,
    ) -> None:
        if not 0 <= threshold <= 1:
            raise ConfigurationError(f"The embedding model's threshold is {threshold}, not 0 to 1.")
        if dimensions is not None:
            check_dimensions(dimensions)
        self.embeddings = embeddings
        self.name = name or derived_name(embeddings)
        self.revision = revision
        self.dimensions = dimensions
        self.threshold = threshold
        self.batch_size = batch_size
        self._cache_size = cache_size
        self._cache: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()
        self._is_away = False
        self._calls = TimedCalls(self.name)

    @classmethod
    def resolve(
        cls, given: str | Embeddings | Embedder, *, batch_size: int = 128, cache_size: int = 1_024
    ) -> Embedder:
        """Return the embedder a setting names.

        Args:
            given: `builtin`; `<provider>:<model>` such as `openai:text-embedding-3-small`; any
                LangChain `Embeddings`; or an `Embedder`, which comes back as it is.
            batch_size: Texts in one request.
            cache_size: Question vectors kept in memory.

        Raises:
            ConfigurationError: The name is unknown, or its package or key is missing.
        """
        if isinstance(given, Embedder):
            return given
        if isinstance(given, Embeddings):
            return cls(given, batch_size=batch_size, cache_size=cache_size)
        if not isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"embeddings is a {type(given).__name__}; give a name such as 'builtin', or a "
                "LangChain Embeddings object."
            )
        if given in (BUILTIN_MODEL, BUILTIN_NAME):
            local = LocalEmbeddings()
            return cls(
                local,
                name=BUILTIN_NAME,
                revision=local.revision,
                dimensions=512,
                threshold=BUILTIN_THRESHOLD,
                batch_size=batch_size,
                cache_size=cache_size,
            )
        return cls(
            embeddings_by_name(given), name=given, batch_size=batch_size, cache_size=cache_size
        )

    @property
    def identity(self) -> EmbeddingModel:
        """Identity of the model.

        Raises:
            EmbeddingError: The dimensions are not known yet; embed something first.
        """
        if self.dimensions is None:
            raise EmbeddingError(f"The dimensions of {self.name} are not known yet.")
        return EmbeddingModel(
            name=self.name,
            revision=self.revision,
            dimensions=self.dimensions,
            threshold=self.threshold,
        )

    def embed_query(self, text: str, *, timeout_s: float | None = None) -> str:
        """Return a question's vector, length 1, in pgvector's text form; cached.

        Args:
            text: The question; of a very long one head and tail count (`checked_question`).
            timeout_s: As for `embed_queries`, and the errors of it.
        """
        return self.embed_queries([text], timeout_s=timeout_s)[0]

    async def aembed_query(self, text: str, *, timeout_s: float | None = None) -> str:
        """Async twin of `embed_query`."""
        return (await self.aembed_queries([text], timeout_s=timeout_s))[0]

    def embed_queries(self, texts: Sequence[str], *, timeout_s: float | None = None) -> list[str]:
        """Return the vectors of a question and its clauses, in order; each is cached.

        One request where the model is known to embed questions as it embeds other texts.

        Args:
            texts: Questions, as for `embed_query`.
            timeout_s: Longest wait for all of them, seconds. What does not end then is abandoned,
                and stays at work until its client lets go. None for no limit; the built-in model,
                which waits for nobody, has none.

        Raises:
            InvalidQueryError: One is blank.
            EmbeddingUnavailableError: The model did not answer in time, or with nothing that can
                be used.
            EmbeddingError: The model refused the call.
        """
        questions = [checked_question(text) for text in texts]
        found = self._kept(questions)
        if missing := _missing(questions, found):
            work = partial(self._embedded, missing)
            limit = self._limit(timeout_s)
            with question_errors(), client_errors(self.name), request_timeout(limit):
                vectors = self._calls.call(work, limit)
            found |= self._remembered(missing, vectors)
        return [found[question] for question in questions]

    async def aembed_queries(
        self, texts: Sequence[str], *, timeout_s: float | None = None
    ) -> list[str]:
        """Async twin of `embed_queries`."""
        questions = [checked_question(text) for text in texts]
        found = self._kept(questions)
        if missing := _missing(questions, found):
            limit = self._limit(timeout_s)
            with question_errors(), client_errors(self.name), request_timeout(limit):
                if limit is not None and not self._has_async:
                    # LangChain would take one of the event loop's own few threads for it.
                    work = partial(self._embedded, missing)
                    vectors = await self._calls.acall_in_thread(work, limit)
                else:
                    vectors = await self._calls.acall(partial(self._aembedded, missing), limit)
            found |= self._remembered(missing, vectors)
        return [found[question] for question in questions]

    def cached_query(self, text: str) -> str | None:
        """Return the vector of a question embedded a moment ago, None when it is not kept."""
        question = shortened(text.strip())
        return self._kept([question]).get(question)

    def begins_outage(self) -> bool:
        """Note that a question got no vector; return whether the one before it got one."""
        with self._lock:
            was_away, self._is_away = self._is_away, True
        return not was_away

    def _limit(self, timeout_s: float | None) -> float | None:
        return None if isinstance(self.embeddings, LocalEmbeddings) else timeout_s

    @property
    def _has_async(self) -> bool:
        return type(self.embeddings).aembed_query is not Embeddings.aembed_query

    @property
    def _is_symmetric(self) -> bool:
        kinds = {kind.__name__ for kind in type(self.embeddings).__mro__}
        return not kinds.isdisjoint(_SYMMETRIC)

    def _embedded(self, questions: Sequence[str]) -> list[str]:
        if len(questions) > 1 and self._is_symmetric:
            return self.embed_documents(questions)
        return [
            self._question_vector(self.embeddings.embed_query(question))
            if len(split_text(question)) == 1
            else self.embed_documents([question])[0]
            for question in questions
        ]

    async def _aembedded(self, questions: Sequence[str]) -> list[str]:
        if len(questions) > 1 and self._is_symmetric:
            return await self.aembed_documents(questions)
        return [
            self._question_vector(await self.embeddings.aembed_query(question))
            if len(split_text(question)) == 1
            else (await self.aembed_documents([question]))[0]
            for question in questions
        ]

    def _question_vector(self, raw: Any) -> str:
        return vector_literal(self._checked([raw], 1)[0])

    def embed_documents(self, texts: Sequence[str]) -> list[str]:
        """Return vectors of length 1, in pgvector's text form, in the order of the texts.

        A text longer than the model takes is embedded in parts, and the mean of their vectors,
        weighted by length, stands for it: the end of a long description counts as its beginning
        does, though each part counts less the longer the whole.

        Args:
            texts: One request's worth of texts, none blank; see `plan_batches`.

        Raises:
            EmbeddingError: The call failed, or gave too few, wrong-sized, zero or non-finite
                vectors.
        """
        parts, owners = in_parts(texts)
        with client_errors(self.name):
            raw = self.embeddings.embed_documents(parts)
        vectors = merged(self._checked(raw, len(parts)), parts, owners, len(texts))
        return [vector_literal(vector) for vector in vectors]

    async def aembed_documents(self, texts: Sequence[str]) -> list[str]:
        """Async twin of `embed_documents`."""
        parts, owners = in_parts(texts)
        with client_errors(self.name):
            raw = await self.embeddings.aembed_documents(parts)
        vectors = merged(self._checked(raw, len(parts)), parts, owners, len(texts))
        return [vector_literal(vector) for vector in vectors]

    def _checked(self, raw: Any, expected: int) -> Vectors:
        vectors = checked_vectors(raw, expected, name=self.name, dimensions=self.dimensions)
        self.dimensions = int(vectors.shape[1])
        return vectors

    def _kept(self, questions: Sequence[str]) -> dict[str, str]:
        with self._lock:
            kept = {text: self._cache[text] for text in questions if text in self._cache}
            for text in kept:
                self._cache.move_to_end(text)
        return kept

    def _remembered(self, questions: Sequence[str], vectors: Sequence[str]) -> dict[str, str]:
        new = dict(zip(questions, vectors, strict=True))
        with self._lock:
            self._is_away = False
            self._cache.update(new)
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        return new


def _missing(questions: Sequence[str], found: Mapping[str, str]) -> list[str]:
    return [text for text in dict.fromkeys(questions) if text not in found]
