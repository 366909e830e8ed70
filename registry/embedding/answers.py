"""What an embedding model answered: checked, of length 1, in pgvector's text form."""

from __future__ import annotations

from collections.abc import Generator, Sequence, Sized
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from registry.errors import (
    ConfigurationError,
    EmbeddingError,
    EmbeddingUnavailableError,
    ToolRAGError,
)

__all__ = [
    "Vectors",
    "check_dimensions",
    "checked_vectors",
    "client_errors",
    "merged",
    "question_errors",
    "vector_literal",
]

MAX_DIMENSIONS = 16_000  # pgvector's limit for halfvec

Vectors = NDArray[np.float32]

_PASSING = (408, 409, 425, 429)  # client errors of HTTP that another try may not meet


class _UnusableAnswerError(EmbeddingError):
    """The model answered, with something else than vectors that can be compared."""


def checked_vectors(raw: Any, expected: int, *, name: str, dimensions: int | None) -> Vectors:
    """Return an answer's vectors, one a row, of length 1.

    Args:
        raw: What the client returned.
        expected: Number of texts that were sent.
        name: Of the model.
        dimensions: That a vector must have; None where they are not known yet.

    Raises:
        EmbeddingError: Too few, wrong-sized, zero or non-finite vectors, or none at all.
    """
    # Sized and not truth: an answer may be a numpy array.
    if not isinstance(raw, Sized):
        raise _UnusableAnswerError(
            f"{name} answered with a {type(raw).__name__}, not with a list of vectors."
        )
    if len(raw) != expected:
        raise _UnusableAnswerError(
            f"{name} answered with {len(raw)} vectors for {expected} texts. Check the "
            "embedding server, or lower embedding_batch_size (an Embedder's batch_size)."
        )
    try:
        # A number beyond float32 becomes infinite, and is refused below as not finite.
        with np.errstate(over="ignore"):
            vectors = np.asarray(raw, dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        raise _UnusableAnswerError(
            f"{name} answered with vectors of different sizes or with something that is "
            "not a number."
        ) from None
    if vectors.ndim != 2:
        raise _UnusableAnswerError(
            f"{name} answered with something else than one list of numbers for each text."
        )
    if not vectors.shape[1]:
        raise _UnusableAnswerError(f"{name} answered with an empty list instead of a vector.")
    if dimensions not in (None, vectors.shape[1]):
        raise _UnusableAnswerError(
            f"{name} answered with vectors of {vectors.shape[1]} dimensions, "
            f"{dimensions} expected. A changed model needs `toolrag embeddings migrate`."
        )
    check_dimensions(vectors.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.isfinite(norms).all() or (norms == 0).any():
        raise _UnusableAnswerError(
            f"{name} answered with a vector that is all zeros or not finite, which has "
            "no direction to compare."
        )
    return vectors / norms


def merged(vectors: Vectors, parts: Sequence[str], owners: Sequence[int], count: int) -> Vectors:
    """Return one vector a text: the mean of its parts' vectors, weighted by length.

    Args:
        vectors: One a part.
        parts: Of all texts.
        owners: Index of each part's text.
        count: Number of texts.

    Raises:
        EmbeddingError: The parts of a text point away from each other and leave no direction.
    """
    if len(parts) == count:
        return vectors
    sums = np.zeros((count, vectors.shape[1]), dtype=np.float32)
    for vector, part, owner in zip(vectors, parts, owners, strict=True):
        sums[owner] += vector * len(part)
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    if (norms == 0).any():
        raise _UnusableAnswerError("The parts of a long text have vectors that cancel out.")
    return sums / norms


def vector_literal(vector: NDArray[np.float32]) -> str:
    """Return a vector in pgvector's text form, `[0.1,0.2,…]`."""
    return "[" + ",".join(f"{value:.6g}" for value in vector.tolist()) + "]"


def check_dimensions(dimensions: int) -> None:
    """Refuse what pgvector cannot store.

    Raises:
        ConfigurationError: Fewer than 1 dimension, or too many.
    """
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise ConfigurationError(
            f"The embedding model has {dimensions} dimensions; pgvector stores 1 to "
            f"{MAX_DIMENSIONS}."
        )


@contextmanager
def client_errors(name: str) -> Generator[None]:
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


@contextmanager
def question_errors() -> Generator[None]:
    """Take an answer to a question that cannot be used for none: words find tools all the same.

    Raises:
        EmbeddingUnavailableError: Also for what is an EmbeddingError where a tool is embedded.
    """
    try:
        yield
    except _UnusableAnswerError as error:
        raise EmbeddingUnavailableError(str(error)) from error


def _kind_of(error: Exception) -> type[EmbeddingError]:
    """Tell a refused key or model, which no other try mends, from one that did not answer."""
    status = getattr(error, "status_code", None)  # as HTTP clients call it
    refused = isinstance(status, int) and 400 <= status < 500 and status not in _PASSING
    return EmbeddingError if refused else EmbeddingUnavailableError
