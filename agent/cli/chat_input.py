"""What a person types in a chat: lines, commands, and decisions on calls that wait for one."""

from __future__ import annotations

import importlib
import json
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from agent.approval import PendingApproval
    from agent.cli.chat_output import ChatOutput

__all__ = ["NOBODY_TO_ASK", "ChatInput", "command_of", "decide", "edited_arguments", "visible"]

NOBODY_TO_ASK = (
    "Nobody can be asked for approval here, because the input is not a terminal. "
    "Go on without this call."
)
_COMMAND = re.compile(r"/[a-z]*")
# Categories of characters that show nothing, or make others show elsewhere.
_INVISIBLE = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})


class ChatInput:
    """Lines from a terminal, with a prompt, or from a pipe, without. Made before a redirection."""

    def __init__(self) -> None:
        # Python has none where the shell closed it.
        self._stdin = cast("Any", sys.stdin)
        self._stdout = sys.stdout
        self.is_terminal = self._stdin is not None and self._stdin.isatty()
        reconfigure = getattr(self._stdin, "reconfigure", None)
        if reconfigure is not None:
            # What is no text becomes a question that is refused, not the end of the chat.
            reconfigure(errors="surrogateescape")
        self._edits = self.is_terminal and self._stdout.isatty()
        if self._edits:
            with suppress(ImportError):
                importlib.import_module("readline")  # gives `input` its line editing

    def line(self, prompt: str) -> str:
        """Return the next line, without white space around it.

        Args:
            prompt: Shown on a terminal.

        Raises:
            EOFError: There is none.
            KeyboardInterrupt: Ctrl-C.
        """
        if self._edits:
            # `input` edits lines only where it sees the real stdout.
            with redirect_stdout(self._stdout):
                return input(prompt).strip()
        if self._stdin is None:
            raise EOFError
        if self.is_terminal:
            print(prompt, end="", file=sys.stderr, flush=True)
        line = cast("str", self._stdin.readline())
        if not line:
            raise EOFError
        return line.strip()


def command_of(line: str) -> str | None:
    """Return the command that a line is, `/help` for one; None for a question.

    A question may begin with a slash: `/etc/hosts says what?` has another one, or a capital.
    """
    words = line.split()
    return words[0] if len(words) == 1 and _COMMAND.fullmatch(words[0]) else None


def decide(
    pending: Sequence[PendingApproval], lines: ChatInput, output: ChatOutput
) -> list[dict[str, Any]]:
    """Return a decision on each call that waits; where nobody can be asked, each is rejected.

    Raises:
        EOFError: The person went away.
        KeyboardInterrupt: The person does not want to decide.
    """
    from agent.approval import reject

    decisions: list[dict[str, Any]] = []
    for call in pending:
        output.approval(call, shown_arguments(call.arguments))
        if lines.is_terminal:
            decisions.append(_decision(call, lines, output))
        else:
            output.remark(f"rejected {call.tool}: nobody can be asked, the input is no terminal")
            decisions.append(reject(call.call_id, NOBODY_TO_ASK))
    return decisions


def _decision(call: PendingApproval, lines: ChatInput, output: ChatOutput) -> dict[str, Any]:
    from agent.approval import approve, edit, reject

    while True:
        answer = lines.line("approve, edit or reject? [a/e/r] ").casefold()
        if answer in ("a", "approve"):
            return approve(call.call_id)
        if answer in ("r", "reject"):
            message = lines.line("message for the model (may be empty): ")
            return reject(call.call_id, message or None)
        if answer in ("e", "edit"):
            text = lines.line("all arguments as JSON (empty: no change after all): ")
            if not text:
                continue
            try:
                return edit(call.call_id, edited_arguments(text))
            except ValueError as error:
                output.remark(str(error))


def edited_arguments(text: str) -> Mapping[str, Any]:
    """Return the arguments that a person typed.

    Raises:
        ValueError: It is no JSON object; the message says so.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"This is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError('Arguments are a JSON object, such as {"amount": 5}')
    return cast("dict[str, Any]", value)


def shown_arguments(arguments: Mapping[str, Any]) -> str:
    """Return arguments as JSON, whole, in which nothing hides."""
    return visible(json.dumps(arguments, ensure_ascii=False, default=repr, indent=1))


def visible(text: str) -> str:
    """Return a text with each character that shows nothing as its code; newlines stay."""
    return "".join(
        char
        if char == "\n" or unicodedata.category(char) not in _INVISIBLE
        else f"\\u{{{ord(char):x}}}"
        for char in text
    )
