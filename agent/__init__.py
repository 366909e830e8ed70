"""The agent that sees only the tools a question needs, and its middleware.

Names are imported on first use, so that `import agent` costs nothing until then.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.factory import create_tool_rag_agent
    from agent.middleware.run_limits import RunLimitsMiddleware
    from agent.middleware.tool_rag import ToolRAGMiddleware
    from agent.result import (
        OfferedTool,
        RunResult,
        Step,
        StopReason,
        TokenUsage,
        ToolCallResult,
        aask,
        ask,
    )

__all__ = [
    "OfferedTool",
    "RunLimitsMiddleware",
    "RunResult",
    "Step",
    "StopReason",
    "TokenUsage",
    "ToolCallResult",
    "ToolRAGMiddleware",
    "aask",
    "ask",
    "create_tool_rag_agent",
]

_MODULE_OF = {
    "OfferedTool": "result",
    "RunLimitsMiddleware": "middleware.run_limits",
    "RunResult": "result",
    "Step": "result",
    "StopReason": "result",
    "TokenUsage": "result",
    "ToolCallResult": "result",
    "ToolRAGMiddleware": "middleware.tool_rag",
    "aask": "result",
    "ask": "result",
    "create_tool_rag_agent": "factory",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
