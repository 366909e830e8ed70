"""Recorded calls for tests, written the way the agent's log writes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

import numpy as np
from langchain_core.embeddings import Embeddings

from registry.database import normalise_url
from registry.settings import RegistrySettings
from registry.usage import CallRecord, CallStatus, SelectionRecord, UsageHit, UsageSettings
from registry.usage_writer import UsageWriter


class RandomEmbeddings(Embeddings):
    """A random direction for each text, always the same one, not of length 1."""

    model = "random"

    def __init__(self, dimensions: int = 16) -> None:
        self.dimensions = dimensions

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        seed = int.from_bytes(text.encode()) % 2**32
        return np.random.default_rng(seed).normal(size=self.dimensions).tolist()


@dataclass(frozen=True, kw_only=True)
class Called:
    """One call of a tool for a question."""

    question: str
    tool: str
    session: str | None = None
    thread: str | None = None
    run: str | None = None
    status: CallStatus | None = "success"
    asked_at: datetime | None = None


def record(
    url: str,
    calls: Iterable[Called],
    embeddings: Embeddings,
    *,
    model_id: int = 1,
    namespace: str = "default",
) -> None:
    """Write calls with their selections; a status of None is an offered tool not called."""
    selections: list[SelectionRecord] = []
    ended: list[CallRecord] = []
    for call in calls:
        vector = ",".join(map(str, embeddings.embed_query(call.question)))
        selection = SelectionRecord(
            id=uuid4(),
            namespace=namespace,
            strategy="retrieval",
            threshold=0.0,
            latency_ms=1.0,
            hits=(UsageHit(tool_name=call.tool, rank=1, relevance=0.5, was_offered=True),),
            session_id=call.session,
            thread_id=call.thread,
            run_id=call.run,
            query_text=call.question,
            query_vector=f"[{vector}]",
            embedding_model_id=model_id,
            created_at=call.asked_at or datetime.now(UTC),
        )
        selections.append(selection)
        if call.status is not None:
            ended.append(
                CallRecord(selection_id=selection.id, tool_name=call.tool, status=call.status)
            )
    writer = UsageWriter(normalise_url(url), UsageSettings(), RegistrySettings())
    try:
        assert not writer.write([*selections, *ended])
    finally:
        writer.close()
