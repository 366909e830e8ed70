"""The tool registry: embedded tool descriptions in Postgres and pgvector.

Names are imported on first use, so that `import registry` costs nothing until then.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from registry.embedding import Embedder, LocalEmbeddings
    from registry.evaluation import Evaluation, EvaluationQuestion, aevaluate, evaluate
    from registry.local_postgres import LocalPostgres
    from registry.retriever import ToolRetriever
    from registry.settings import RegistrySettings
    from registry.store import ToolRegistry
    from registry.store_async import AsyncToolRegistry
    from registry.toolset import Toolset
    from registry.types import (
        EmbeddingModel,
        SyncProgress,
        SyncReport,
        ToolHit,
        ToolRecord,
        ToolSpec,
    )
    from registry.usage import UsageSettings
    from registry.usage_log import UsageLog

__all__ = [
    "AsyncToolRegistry",
    "Embedder",
    "EmbeddingModel",
    "Evaluation",
    "EvaluationQuestion",
    "LocalEmbeddings",
    "LocalPostgres",
    "RegistrySettings",
    "SyncProgress",
    "SyncReport",
    "ToolHit",
    "ToolRecord",
    "ToolRegistry",
    "ToolRetriever",
    "ToolSpec",
    "Toolset",
    "UsageLog",
    "UsageSettings",
    "aevaluate",
    "evaluate",
]

_MODULE_OF = {
    "AsyncToolRegistry": "store_async",
    "Embedder": "embedding",
    "EmbeddingModel": "types",
    "Evaluation": "evaluation",
    "EvaluationQuestion": "evaluation",
    "LocalEmbeddings": "embedding",
    "LocalPostgres": "local_postgres",
    "RegistrySettings": "settings",
    "SyncProgress": "types",
    "SyncReport": "types",
    "ToolHit": "types",
    "ToolRecord": "types",
    "ToolRegistry": "store",
    "ToolRetriever": "retriever",
    "ToolSpec": "types",
    "Toolset": "toolset",
    "UsageLog": "usage_log",
    "UsageSettings": "usage",
    "aevaluate": "evaluation",
    "evaluate": "evaluation",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
