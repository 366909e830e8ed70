"""How a chat is printed: answers as they come on stdout, what happens around them on stderr."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from agent.cli.output import counted, one_line, without_controls, without_secrets
from agent.cli.runs import call_text

if TYPE_CHECKING:
    from agent.approval import PendingApproval
    from agent.events import RunEvent, TextDelta, ToolsOffered, ToolStarted
    from agent.result import OfferedTool, RunResult, ToolCallResult

__all__ = ["ChatOutput", "as_document", "ended_line", "offered_line"]

_MAX_LINE_CHARS = 200
_TOP_TOOLS = 5


class ChatOutput:
    """Where a chat prints. Made after the streams are in place, before a redirection.

    Args:
        as_json: Print one JSON object a line instead, nothing else on stdout.
        debug: Show tracebacks.
    """

    def __init__(self, *, as_json: bool = False, debug: bool = False) -> None:
        self._stdout = sys.stdout
        self._remarks = Console(stderr=True, markup=False, highlight=False, emoji=False)
        self._as_json = as_json
        self._debug = debug
        # Of the message whose text is being written, and all of that text.
        self._message_id: str | None = None
        self._text = ""

    def show(self, event: RunEvent) -> None:
        """Print an event of a run."""
        if self._as_json:
            self._document(as_document(event))
            return
        from agent.events import (
            LimitReached,
            RunEnded,
            TextDelta,
            ToolEnded,
            ToolsOffered,
            ToolStarted,
        )

        match event:
            case TextDelta():
                self._write_text(event)
            case ToolsOffered():
                self.remark(offered_line(event.tools, event))
            case ToolStarted():
                self.remark(f"  call {_cut(_call_text(event))}")
            case ToolEnded():
                self.remark(f"  {ended_line(event.call)}")
            case LimitReached():
                self.remark(f"limit reached: {event.limit.amount} a {event.limit.scope}")
            case RunEnded():
                self._end(event.result)
            case _:  # what waits for approval is asked about once the run has ended
                pass

    def tools(self, tools: Sequence[OfferedTool]) -> None:
        """Print the tools that the thread is offered, most relevant first."""
        if self._as_json:
            named = [{"name": tool.name, "relevance": tool.relevance} for tool in tools]
            self._document({"type": "tools", "tools": named})
        elif not tools:
            self.remark("No tool is offered yet; a question finds the ones that fit.")
        else:
            for tool in _by_relevance(tools):
                self.remark(f"  {_relevance(tool)}  {tool.name}")

    def approval(self, call: PendingApproval, arguments: str) -> None:
        """Print a call that a person decides on: all of it."""
        self._close_line()
        if call.problem:
            self.remark(call.problem, style="yellow")
        self.remark(f"Approval needed: {call.tool}, because {call.reason}", style="bold yellow")
        self.remark(arguments, style="")

    def started(self, thread_id: str, *, is_new: bool) -> None:
        """Say which thread this is."""
        if self._as_json:
            self._document({"type": "thread", "thread_id": thread_id})
        elif is_new:
            self.remark(f"Thread {thread_id}; `toolrag chat --thread {thread_id}` goes on with it.")
        else:
            self.remark(f"Going on with thread {thread_id}.")

    def cancelled(self, *, is_left_behind: bool) -> None:
        """Say that Ctrl-C ended a run."""
        if self._as_json:
            self._document({"type": "cancelled", "is_left_behind": is_left_behind})
            return
        self._close_line()
        left = " A tool does not stop and may still take effect." if is_left_behind else ""
        # A terminal has just shown the key, `^C`.
        begin = "\n" if self._remarks.is_terminal else ""
        self.remark(f"{begin}Cancelled; the thread is kept.{left}", style="yellow")

    def failed(self, error: Exception) -> None:
        """Say on one line why a turn failed."""
        self._close_line()
        if self._debug:
            traceback.print_exception(error, file=sys.stderr)
        secrets = [value for name, value in os.environ.items() if name.endswith("_API_KEY")]
        from registry.errors import ToolRAGError

        kind = "" if isinstance(error, ToolRAGError) else f"{type(error).__name__}: "
        line = one_line(without_secrets(f"{kind}{error}", secrets=secrets))
        if self._as_json:
            name = type(error).__name__
            self._document({"type": "error", "error": name, "message": line})
        self.remark(f"toolrag: {line}", style="red")

    def remark(self, text: str, *, style: str = "dim") -> None:
        """Print a line for people, on stderr."""
        self._close_line()
        self._remarks.print(Text(without_controls(text), style=style), soft_wrap=True)

    def _write_text(self, delta: TextDelta) -> None:
        if delta.message_id != self._message_id:
            self._close_line()
            self._message_id, self._text = delta.message_id, ""
        self._text += delta.text
        self._stdout.write(without_controls(delta.text))
        self._stdout.flush()

    def _end(self, result: RunResult) -> None:
        self._close_line()
        streamed, self._text = self._text.strip(), ""
        if result.pending:
            return
        if result.answer.strip() not in ("", streamed):
            # The sentence of a limit is no text of the model, so it was not streamed.
            self._stdout.write(f"{without_controls(result.answer.strip())}\n")
            self._stdout.flush()
        if result.stop_reason.value != "answered":
            self.remark(f"stopped: {result.stop_reason.value.replace('_', ' ')}", style="yellow")

    def _close_line(self) -> None:
        if self._message_id is None:
            return
        self._message_id = None
        if not self._text.endswith("\n"):
            self._stdout.write("\n")
            self._stdout.flush()

    def _document(self, document: dict[str, Any]) -> None:
        # ASCII: whatever the model wrote arrives, on one line.
        self._stdout.write(f"{json.dumps(document, allow_nan=False)}\n")
        self._stdout.flush()


def as_document(event: RunEvent) -> dict[str, Any]:
    """Return an event as one JSON object, without a result's messages: its steps say the same."""
    from agent.events import RunEnded, event_to_dict

    document = event_to_dict(event)
    if isinstance(event, RunEnded):
        del document["result"]["messages"]
    return document


def offered_line(tools: Sequence[OfferedTool], event: ToolsOffered | None = None) -> str:
    """Return how many tools are offered, and the most relevant of them."""
    top = [f"{tool.name} {_relevance(tool)}" for tool in _by_relevance(tools)[:_TOP_TOOLS]]
    more = ", …" if len(tools) > _TOP_TOOLS else ""
    named = f": {', '.join(top)}{more}" if top else ""
    return f"offered {counted(len(tools), 'tool')}{named}"


def _call_text(event: ToolStarted) -> str:
    from agent.result import ToolCallResult

    return call_text(
        ToolCallResult(
            tool=event.tool,
            arguments=event.arguments,
            observation="",
            status="pending",
            call_id=event.call_id,
        )
    )


def ended_line(call: ToolCallResult) -> str:
    """Return what a call brought, on one line."""
    mark = "failed" if call.status == "error" else "done"
    return f"{mark} {_cut(f'{call.tool}: {call.observation}')}"


def _by_relevance(tools: Sequence[OfferedTool]) -> list[OfferedTool]:
    return sorted(tools, key=lambda tool: 1.0 if tool.relevance is None else -tool.relevance)


def _relevance(tool: OfferedTool) -> str:
    return "pinned" if tool.relevance is None else f"{tool.relevance:.2f}"


def _cut(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= _MAX_LINE_CHARS else f"{line[: _MAX_LINE_CHARS - 1]}…"
