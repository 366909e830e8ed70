"""The agent that sees only the tools a question needs, and its middleware.

Names are imported on first use, so that `import agent` costs nothing until then.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.approval import PendingApproval, approve, edit, reject
    from agent.conversation import (
        aask,
        aresume,
        ask,
        astream,
        astream_resume,
        resume,
        stream,
        stream_resume,
    )
    from agent.durable.continuing import acontinue_run, continue_run
    from agent.durable.settings import DurableThreads
    from agent.events import (
        ApprovalNeeded,
        LimitReached,
        RunEnded,
        RunEvent,
        TextDelta,
        ToolEnded,
        ToolsOffered,
        ToolStarted,
        event_to_dict,
    )
    from agent.factory import create_tool_rag_agent
    from agent.guarding.policy import ToolPolicy
    from agent.history import HistoryBudget, HistoryCut
    from agent.limits import ModelPrice, RunLimits, StopReason, ThreadLimits
    from agent.middleware.approval import ApprovalMiddleware
    from agent.middleware.history import HistoryMiddleware
    from agent.middleware.run_limits import RunLimitsMiddleware
    from agent.middleware.tool_guard import ToolGuardMiddleware
    from agent.middleware.tool_rag import ToolRAGMiddleware
    from agent.result import OfferedTool, RunResult, Step, TokenUsage, ToolCallResult
    from agent.spending import LimitMet

__all__ = [
    "ApprovalMiddleware",
    "ApprovalNeeded",
    "DurableThreads",
    "HistoryBudget",
    "HistoryCut",
    "HistoryMiddleware",
    "LimitMet",
    "LimitReached",
    "ModelPrice",
    "OfferedTool",
    "PendingApproval",
    "RunEnded",
    "RunEvent",
    "RunLimits",
    "RunLimitsMiddleware",
    "RunResult",
    "Step",
    "StopReason",
    "TextDelta",
    "ThreadLimits",
    "TokenUsage",
    "ToolCallResult",
    "ToolEnded",
    "ToolGuardMiddleware",
    "ToolPolicy",
    "ToolRAGMiddleware",
    "ToolStarted",
    "ToolsOffered",
    "aask",
    "acontinue_run",
    "approve",
    "aresume",
    "ask",
    "astream",
    "astream_resume",
    "continue_run",
    "create_tool_rag_agent",
    "edit",
    "event_to_dict",
    "reject",
    "resume",
    "stream",
    "stream_resume",
]

_MODULE_OF = {
    "ApprovalMiddleware": "middleware.approval",
    "ApprovalNeeded": "events",
    "DurableThreads": "durable.settings",
    "HistoryBudget": "history",
    "HistoryCut": "history",
    "HistoryMiddleware": "middleware.history",
    "LimitMet": "spending",
    "LimitReached": "events",
    "ModelPrice": "limits",
    "OfferedTool": "result",
    "PendingApproval": "approval",
    "RunEnded": "events",
    "RunEvent": "events",
    "RunLimits": "limits",
    "RunLimitsMiddleware": "middleware.run_limits",
    "RunResult": "result",
    "Step": "result",
    "StopReason": "limits",
    "TextDelta": "events",
    "ThreadLimits": "limits",
    "TokenUsage": "result",
    "ToolCallResult": "result",
    "ToolEnded": "events",
    "ToolGuardMiddleware": "middleware.tool_guard",
    "ToolPolicy": "guarding.policy",
    "ToolRAGMiddleware": "middleware.tool_rag",
    "ToolStarted": "events",
    "ToolsOffered": "events",
    "aask": "conversation",
    "acontinue_run": "durable.continuing",
    "approve": "approval",
    "aresume": "conversation",
    "ask": "conversation",
    "astream": "conversation",
    "astream_resume": "conversation",
    "continue_run": "durable.continuing",
    "create_tool_rag_agent": "factory",
    "edit": "approval",
    "event_to_dict": "events",
    "reject": "approval",
    "resume": "conversation",
    "stream": "conversation",
    "stream_resume": "conversation",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
