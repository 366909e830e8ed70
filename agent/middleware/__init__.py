from agent.middleware.run_limits import RunLimitsMiddleware
from agent.middleware.tool_rag import ToolRAGMiddleware

__all__ = ["RunLimitsMiddleware", "ToolRAGMiddleware"]
