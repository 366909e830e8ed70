"""The registry as a LangChain retriever."""

from __future__ import annotations

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict

from registry.errors import ConfigurationError
from registry.reranking import document_of
from registry.store import ToolRegistry
from registry.store_async import AsyncToolRegistry

__all__ = ["ToolRetriever"]


class ToolRetriever(BaseRetriever):
    """Tools for a question, as documents: the description is the text, the rest is metadata.

    `invoke` needs a `ToolRegistry`; `ainvoke` takes either kind.

    Attributes:
        registry: The registry to search.
        k: Most tools, 1 to 1,000.
        threshold: Relevance a tool must reach, 0 to 1; the embedding model's own when None.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    registry: ToolRegistry | AsyncToolRegistry
    k: int = 5
    threshold: float | None = None

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        if isinstance(self.registry, AsyncToolRegistry):
            raise ConfigurationError(
                "This retriever has an AsyncToolRegistry: call ainvoke, or give it a ToolRegistry."
            )
        hits = self.registry.search(query, k=self.k, threshold=self.threshold)
        return [document_of(hit) for hit in hits]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        if isinstance(self.registry, ToolRegistry):
            return await super()._aget_relevant_documents(query, run_manager=run_manager)
        hits = await self.registry.search(query, k=self.k, threshold=self.threshold)
        return [document_of(hit) for hit in hits]
