"""Embedding models: identity, batches, deadlines, checks on what comes back, cached questions."""

from __future__ import annotations

from registry.embedding.answers import Vectors, vector_literal
from registry.embedding.embedder import DEFAULT_THRESHOLD, Embedder
from registry.embedding.models import BUILTIN_MODEL, LocalEmbeddings
from registry.embedding.texts import (
    MAX_QUESTION_CHARS,
    checked_question,
    estimated_tokens,
    plan_batches,
    split_text,
)

__all__ = [
    "BUILTIN_MODEL",
    "DEFAULT_THRESHOLD",
    "MAX_QUESTION_CHARS",
    "Embedder",
    "LocalEmbeddings",
    "Vectors",
    "checked_question",
    "estimated_tokens",
    "plan_batches",
    "split_text",
    "vector_literal",
]
