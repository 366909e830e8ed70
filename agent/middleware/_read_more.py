"""The tool that reads on in a result that was cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from langchain.tools import ToolRuntime
from langchain_core.tools import BaseTool, StructuredTool, ToolException

from agent.guarding.results import page_of

__all__ = ["CUT_RESULTS", "READ_MORE", "bound_tools", "is_read_more", "read_more_tool"]

CUT_RESULTS = "cut_results"
READ_MORE = "read_more"

_Tool = TypeVar("_Tool")


def read_more_tool(*, page_chars: int) -> BaseTool:
    """Return the tool; it reads the thread's state.

    Args:
        page_chars: Characters of one answer.
    """

    def read_more(handle: str, offset: int, runtime: ToolRuntime[Any, Any]) -> str:
        """Read on in a tool result that was cut; handle and offset stand in the note of the cut."""
        kept: dict[str, str] = runtime.state.get(CUT_RESULTS) or {}
        page = page_of(kept, handle, offset, max_chars=page_chars)
        if page.is_error:
            raise ToolException(page.text)
        return page.text

    return StructuredTool.from_function(
        read_more,
        name=READ_MORE,
        handle_tool_error=True,
        metadata={"read_only": True, "toolrag": READ_MORE},
    )


def is_read_more(tool: object) -> bool:
    """Return whether this is our tool, and not a namesake."""
    return isinstance(tool, BaseTool) and (tool.metadata or {}).get("toolrag") == READ_MORE


def bound_tools(tools: Sequence[_Tool], state: Any) -> list[_Tool]:
    """Return the tools with ours last, or without it while nothing was cut.

    Last, so that the others keep their places in a provider's prompt cache.
    """
    others = [tool for tool in tools if not is_read_more(tool)]
    ours = [tool for tool in tools if is_read_more(tool)]
    return [*others, *ours] if state.get(CUT_RESULTS) else others
