"""What a model streamed of its calls, word for word.

A chat model that streams hands over calls whose arguments were read leniently: `{"path": "/a` comes
out as the path `/a`. The text itself is seen by callbacks alone.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tracers.context import register_configure_hook

__all__ = ["StreamedArguments", "streamed_arguments"]


class StreamedArguments(BaseCallbackHandler):
    """Collects the argument texts of the calls that are streamed while it is set."""

    run_inline = True  # nothing here waits

    def __init__(self) -> None:
        self._calls: dict[tuple[UUID, Any], list[str]] = {}  # by run and index: id, then pieces

    def on_llm_new_token(
        self,
        token: str | list[str | dict[str, Any]],
        *,
        chunk: Any = None,
        run_id: UUID,
        **kwargs: Any,
    ) -> None:
        """Note the pieces of calls in a chunk."""
        message = chunk.message if isinstance(chunk, ChatGenerationChunk) else None
        if not isinstance(message, AIMessageChunk):
            return
        for place, piece in enumerate(message.tool_call_chunks):
            index = piece.get("index")
            key = (run_id, (len(self._calls), place) if index is None else index)
            call = self._calls.setdefault(key, [""])
            call[0] = call[0] or piece.get("id") or ""
            call.append(piece.get("args") or "")

    def text(self, call_id: str) -> str | None:
        """Return the arguments of a call as they were written; None if that is not known."""
        found = [pieces for call, *pieces in self._calls.values() if call == call_id]
        return "".join(found[0]) if len(found) == 1 else None


_streamed: ContextVar[StreamedArguments | None] = ContextVar("toolrag_streamed", default=None)
register_configure_hook(_streamed, inheritable=True)


@contextmanager
def streamed_arguments() -> Generator[StreamedArguments]:
    """Collect what models stream within, in this thread or task."""
    collected = StreamedArguments()
    token = _streamed.set(collected)
    try:
        yield collected
    finally:
        _streamed.reset(token)
