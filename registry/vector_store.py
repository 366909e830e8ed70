"""The catalogue as a LangChain vector store, read-only."""

from __future__ import annotations

from typing import Any

from langchain_postgres import PGEngine
from sqlalchemy import NullPool
from sqlalchemy.engine import URL

from registry.embedding import Embedder

__all__ = ["CATALOGUE_VIEW", "vector_store_arguments"]

CATALOGUE_VIEW = "tool_catalogue"
_METADATA_COLUMNS = [
    "tool_name",
    "category",
    "binding",
    "origin",
    "version",
    "requires_approval",
    "read_only",
]


def vector_store_arguments(
    url: URL, embedder: Embedder, namespace: str, *, schema: str
) -> dict[str, Any]:
    """Return the arguments of `PGVectorStore.create` for the view of active tools.

    Every connection says which namespace it reads and that it only reads, so neither a filter
    nor a write of the store can reach another tenant. No connection stays open between calls:
    the store has no method to close a pool with.
    """
    options = f"-c toolrag.namespace={namespace} -c default_transaction_read_only=on"
    given = url.query.get("options")
    if isinstance(given, str):
        options = f"{given} {options}"
    engine = PGEngine.from_connection_string(
        url.difference_update_query(["options"]),
        poolclass=NullPool,
        # Made for one call each, so a prepared statement would never be used again.
        connect_args={
            "options": options,
            "application_name": "toolrag",
            "prepare_threshold": None,
        },
    )
    return {
        "engine": engine,
        "embedding_service": embedder.embeddings,
        "table_name": CATALOGUE_VIEW,
        "schema_name": schema,
        "id_column": "id",
        "content_column": "content",
        "embedding_column": "embedding",
        "metadata_columns": _METADATA_COLUMNS,
    }
