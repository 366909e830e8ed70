"""LangChain middleware of this project, one concern a file; imported on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.middleware.approval import ApprovalMiddleware
    from agent.middleware.history import HistoryMiddleware
    from agent.middleware.run_limits import RunLimitsMiddleware
    from agent.middleware.tool_guard import ToolGuardMiddleware
    from agent.middleware.tool_rag import ToolRAGMiddleware

__all__ = [
    "ApprovalMiddleware",
    "HistoryMiddleware",
    "RunLimitsMiddleware",
    "ToolGuardMiddleware",
    "ToolRAGMiddleware",
]

_MODULE_OF = {
    "ApprovalMiddleware": "approval",
    "HistoryMiddleware": "history",
    "RunLimitsMiddleware": "run_limits",
    "ToolGuardMiddleware": "tool_guard",
    "ToolRAGMiddleware": "tool_rag",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
