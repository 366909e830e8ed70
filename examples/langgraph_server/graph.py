"""The demo's agent for LangGraph's own server, which brings threads, streaming and a queue.

See README.md beside this file.
"""

from __future__ import annotations

import os

from agent import create_tool_rag_agent
from agent.demo import demo_toolset
from agent.offline_model import OfflineChatModel
from registry import AsyncToolRegistry, RegistrySettings

toolset = demo_toolset()
registry = AsyncToolRegistry(
    os.environ["TOOLRAG_DATABASE_URL"], settings=RegistrySettings(namespace="demo")
)
# The server asks for approval through its own threads, so no checkpointer is given here; `{}`
# says that somebody can be asked all the same.
agent = create_tool_rag_agent(
    os.environ.get("TOOLRAG_MODEL") or OfflineChatModel(),
    registry=registry,
    toolset=toolset,
    approval={},
)
