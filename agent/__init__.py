"""The agent that sees only the tools a question needs, and its middleware.

Names are imported on first use, so that `import agent` costs nothing until then.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.approval import PendingApproval, approve, edit, reject
    from agent.factory import create_tool_rag_agent
    from agent.guarding.policy import ToolPolicy
    from agent.history import HistoryBudget, HistoryCut
    from agent.limits import ModelPrice, RunLimits, StopReason, ThreadLimits
    from agent.middleware.approval import ApprovalMiddleware
    from agent.middleware.history import HistoryMiddleware
    from agent.middleware.run_limits import RunLimitsMiddleware
    from agent.middleware.tool_guard import ToolGuardMiddleware
    from agent.middleware.tool_rag import ToolRAGMiddleware
    from agent.result import (
        OfferedTool,
        RunResult,
        Step,
        TokenUsage,
        ToolCallResult,
        aask,
        aresume,
        ask,
        resume,
    )
    from agent.spending import LimitMet

__all__ = [
    "ApprovalMiddleware",
    "HistoryBudget",
    "HistoryCut",
    "HistoryMiddleware",
    "LimitMet",
    "ModelPrice",
    "OfferedTool",
    "PendingApproval",
    "RunLimits",
    "RunLimitsMiddleware",
    "RunResult",
    "Step",
    "StopReason",
    "ThreadLimits",
    "TokenUsage",
    "ToolCallResult",
    "ToolGuardMiddleware",
    "ToolPolicy",
    "ToolRAGMiddleware",
    "aask",
    "approve",
    "aresume",
    "ask",
    "create_tool_rag_agent",
    "edit",
    "reject",
    "resume",
]

_MODULE_OF = {
    "ApprovalMiddleware": "middleware.approval",
    "HistoryBudget": "history",
    "HistoryCut": "history",
    "HistoryMiddleware": "middleware.history",
    "LimitMet": "spending",
    "ModelPrice": "limits",
    "OfferedTool": "result",
    "PendingApproval": "approval",
    "RunLimits": "limits",
    "RunLimitsMiddleware": "middleware.run_limits",
    "RunResult": "result",
    "Step": "result",
    "StopReason": "limits",
    "ThreadLimits": "limits",
    "TokenUsage": "result",
    "ToolCallResult": "result",
    "ToolGuardMiddleware": "middleware.tool_guard",
    "ToolPolicy": "guarding.policy",
    "ToolRAGMiddleware": "middleware.tool_rag",
    "aask": "result",
    "approve": "approval",
    "aresume": "result",
    "ask": "result",
    "create_tool_rag_agent": "factory",
    "edit": "approval",
    "reject": "approval",
    "resume": "result",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
