"""Embeddings that write down, in a file that several processes share, what they embedded."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.support.embeddings import HashEmbeddings


@dataclass(frozen=True)
class EmbeddedRequest:
    """One request: by which process, and its texts."""

    pid: int
    texts: tuple[str, ...]


class LoggedEmbeddings(HashEmbeddings):
    """`HashEmbeddings` that append each request to a file before they answer it.

    Args:
        log: The file; a line is one request and is written whole.
        delay_s: Length of a request, so that a process can be killed within it.
    """

    def __init__(
        self, log: Path, *, dimensions: int = 32, model: str = "hash", delay_s: float = 0.0
    ) -> None:
        super().__init__(dimensions, model=model)
        self._log = log
        self._delay_s = delay_s

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        line = json.dumps({"pid": os.getpid(), "texts": texts}) + "\n"
        # O_APPEND: one write is one line, whoever else writes.
        file = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)
        if self._delay_s:
            time.sleep(self._delay_s)
        return super().embed_documents(texts)


def logged_requests(log: Path) -> list[EmbeddedRequest]:
    """Return what was embedded, in order."""
    if not log.exists():
        return []
    entries = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    return [EmbeddedRequest(entry["pid"], tuple(entry["texts"])) for entry in entries]


def times_embedded(log: Path) -> Counter[str]:
    """Return how often each text was embedded."""
    return Counter(text for request in logged_requests(log) for text in request.texts)
