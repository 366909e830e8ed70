"""Small deterministic embeddings for tests."""

from __future__ import annotations

import hashlib
import re

from langchain_core.embeddings import Embeddings

_WORD = re.compile(r"\w+")


class HashEmbeddings(Embeddings):
    """Bag of words, each word hashed to one signed dimension; shared words mean nearness.

    Attributes:
        calls: The texts of each request, in order, questions included.
    """

    def __init__(self, dimensions: int = 64, *, model: str = "hash") -> None:
        self.dimensions = dimensions
        self.model = model
        self.calls: list[list[str]] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.calls.append(list(texts))
        return [self._vector(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.embed_documents(texts)

    async def aembed_query(self, text: str) -> list[float]:
        return self.embed_query(text)

    def _vector(self, text: str) -> list[float]:
        vector = [0.0] * self.dimensions
        for word in _WORD.findall(text.casefold().replace("_", " ")):
            digest = hashlib.sha256(word.encode()).digest()
            place = int.from_bytes(digest[:4]) % self.dimensions
            vector[place] += 1.0 if digest[4] % 2 else -1.0
        # A text whose words cancel out still has a direction.
        return vector if any(vector) else [1.0, *vector[1:]]
