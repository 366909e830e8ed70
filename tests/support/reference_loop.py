"""The oracle: think, act, observe, written by hand in as few lines as it takes."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool


def reference_loop(
    model: BaseChatModel, tools: Sequence[BaseTool], question: str, *, max_steps: int
) -> list[BaseMessage]:
    known = {tool.name: tool for tool in tools}
    messages: list[BaseMessage] = [HumanMessage(question)]
    for _ in range(max_steps):
        reply = model.bind_tools(list(tools)).invoke(messages)
        messages.append(reply)
        if not reply.tool_calls:
            return messages
        for call in reply.tool_calls:
            status = "success"
            try:
                content = str(known[call["name"]].invoke(call["args"]))
            except Exception as error:
                status, content = "error", f"{type(error).__name__}: {error}"
            messages.append(
                ToolMessage(content, name=call["name"], tool_call_id=call["id"], status=status)
            )
    return messages
