"""One call under the guard: what stands before its run, and what becomes of its end.

Nothing here waits or runs a tool: `ToolGuardMiddleware` does, sync and async, between these steps.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from langchain.agents.middleware import ToolCallRequest
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langgraph import errors as langgraph_errors
from langgraph.errors import GraphBubbleUp
from langgraph.prebuilt.tool_node import (
    INVALID_TOOL_NAME_ERROR_TEMPLATE,
    TOOL_INVOCATION_ERROR_TEMPLATE,
)
from langgraph.types import Command
from pydantic import ValidationError

from agent.guarding import answers, results
from agent.guarding.arguments import ArgumentChecker
from agent.guarding.breaker import CircuitBreaker
from agent.guarding.faults import Fault, diagnose, leaf_of
from agent.guarding.policy import ToolPolicy
from agent.guarding.secrets import environment_secrets, masked_error, secrets_of
from agent.middleware._read_more import CUT_RESULTS

__all__ = ["GuardedCall", "is_control_signal", "read_only"]

_logger = logging.getLogger(__name__)


_UNKNOWN_NAME = INVALID_TOOL_NAME_ERROR_TEMPLATE.partition("{available_tools}")[0]
_INVOCATION_HEAD = TOOL_INVOCATION_ERROR_TEMPLATE.partition("{tool_name}")[0]
_INVOCATION_MIDDLE, _INVOCATION_TAIL = TOOL_INVOCATION_ERROR_TEMPLATE.partition("{tool_kwargs}")[
    2
].split("{error}")


def is_control_signal(error: BaseException) -> bool:
    """Return whether LangGraph raised this for itself: an interrupt, or a wrong answer to one."""
    # Releases of langgraph without it never mark an error so.
    check = getattr(langgraph_errors, "is_invalid_resume", None)
    leaf = leaf_of(error)
    return isinstance(leaf, GraphBubbleUp) or (check is not None and check(leaf))


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedCall:
    """A call that may run.

    Attributes:
        request: As the tool is to get it.
        policy: Of the tool.
        breaker: Of the tool.
        checker: Of its arguments; None for a tool that others have to find.
        is_idempotent: A second run does no harm.
        own_names: Names of the agent's tools, to suggest.
        is_capped: Its results are cut at the policy's cap.
        can_read_on: What is cut can be read on.
    """

    request: ToolCallRequest
    policy: ToolPolicy
    breaker: CircuitBreaker
    checker: ArgumentChecker | None
    is_idempotent: bool
    own_names: tuple[str, ...]
    is_capped: bool
    can_read_on: bool

    @property
    def tries(self) -> int:
        """How often the call may be run in all."""
        return 1 + self.policy.retries if self.is_idempotent else 1

    def may_try_again(self, error: BaseException) -> bool:
        """Return whether another try may help."""
        return (
            isinstance(error, Exception)
            and not is_control_signal(error)
            and diagnose(error).may_pass
        )

    def ended(self, result: Any, errors: list[ValidationError]) -> Any:
        """Return the answer for what the tool returned.

        Args:
            result: A message, a command, or a list of both.
            errors: Validation errors that the tool was kept from turning into a message.
        """
        if errors:
            return self._not_valid(errors[-1])
        self.breaker.succeeded()
        if isinstance(result, list):
            return [self._part(part) for part in cast("list[Any]", result)]
        return self._part(result)

    def failed(self, error: Exception) -> ToolMessage:
        """Return the answer for what the tool raised; LangGraph's own signals go on their way."""
        if is_control_signal(error):
            raise error
        leaf = leaf_of(error)
        diagnosis = diagnose(error)
        secrets = self._secrets()
        self._log_failure(error, diagnosis.fault, secrets)
        call = self.request.tool_call
        if diagnosis.fault is Fault.TOOL:
            self.breaker.succeeded()  # it is there, and said no
            return answers.failure(call, leaf, secrets=secrets)
        if self.breaker.failed():
            _logger.error("tool_breaker_opened", extra=self._extra())
        if diagnosis.may_have_worked and not self.is_idempotent:
            return answers.outcome_unknown(call, leaf)
        if diagnosis.fault is Fault.SET_UP:
            return answers.set_up_fault(call, leaf)
        return answers.without_answer(call, leaf)

    def _not_valid(self, error: ValidationError) -> ToolMessage:
        call, checker = self.request.tool_call, self.checker
        if checker is None or not checker.is_about_arguments(error):
            return self.failed(error)
        problems = checker.model_problems(error)
        if not problems:  # what the program sets is missing or wrong
            self._log_failure(error, Fault.SET_UP, self._secrets())
            return answers.set_up_fault(call, error)
        return answers.invalid_arguments(call, problems, schema=None)

    def _part(self, part: Any) -> Any:
        if isinstance(part, ToolMessage):
            message, kept = self._message(part)
            if not kept:
                return message
            return Command(update={"messages": [message], CUT_RESULTS: kept})
        update = part.update if isinstance(part, Command) else None
        if not isinstance(update, dict):
            return part
        given = cast("dict[str, Any]", update)
        messages: list[Any] = []
        all_kept: dict[str, str] = {}
        for message in cast("list[Any]", given.get("messages") or ()):
            kept: dict[str, str] = {}
            if (
                isinstance(message, ToolMessage)
                and message.tool_call_id == self.request.tool_call["id"]
            ):
                message, kept = self._message(message)
            messages.append(message)
            all_kept |= kept
        changed = {**given, "messages": messages} if "messages" in given else given
        if all_kept:
            changed = {**changed, CUT_RESULTS: all_kept}
        return replace(cast("Command[Any]", part), update=changed)

    def _message(self, message: ToolMessage) -> tuple[ToolMessage, dict[str, str]]:
        """Return an answer as the model is shown it, and the full text of what was cut."""
        call = self.request.tool_call
        if message.status == "error":
            return self._error(message), {}
        message = answers.checked_result(call, message)
        shown = results.shown(
            message.content,
            tool_name=call["name"],
            max_chars=self.policy.max_result_chars if self.is_capped else results.MAX_KEPT_CHARS,
            media=self.policy.media,
            can_read_on=self.can_read_on,
        )
        if shown.full_text is not None:
            extra = {**self._extra(), "result_chars": len(shown.full_text)}
            _logger.info("tool_result_cut", extra=extra)
        if shown.content == message.content:
            return message, {}
        kept = {} if shown.handle is None else {shown.handle: shown.full_text or ""}
        return message.model_copy(update={"content": shown.content}), kept

    def _error(self, message: ToolMessage) -> ToolMessage:
        call = self.request.tool_call
        content = message.content
        if isinstance(content, str):
            name = call["name"]
            if self.checker is None and content.startswith(
                _UNKNOWN_NAME.format(requested_tool=name)
            ):
                return answers.unknown_tool(call, written=name, offered=self.own_names)
            if content.startswith(_INVOCATION_HEAD) and self.checker is not None:
                # The arguments were right: the tool's own work met a value that was not.
                reason = content.partition(_INVOCATION_MIDDLE)[2].removesuffix(_INVOCATION_TAIL)
                error = ValidationError.from_exception_data(name, [])
                return answers.failure(call, error, reason=reason, secrets=self._secrets())
        _logger.info("tool_call_returned_error", extra=self._extra())
        return answers.checked_result(call, message, secrets=self._secrets())

    def _secrets(self) -> set[str]:
        return environment_secrets() | secrets_of(self.request.tool)

    def _log_failure(self, error: Exception, fault: Fault, secrets: set[str]) -> None:
        is_set_up = fault is Fault.SET_UP
        masked = masked_error(error, secrets)
        _logger.log(
            logging.CRITICAL if is_set_up else logging.WARNING,
            "tool_set_up_fault" if is_set_up else "tool_call_failed",
            exc_info=(type(masked), masked, masked.__traceback__),
            extra={**self._extra(), "error_class": type(leaf_of(error)).__name__, "fault": fault},
        )

    def _extra(self) -> dict[str, Any]:
        call = self.request.tool_call
        return {"tool_name": call["name"], "call_id": call["id"]}


def read_only(tool: BaseTool | None, offer: Mapping[str, Any] | None) -> bool:
    """Return whether a tool changes nothing: as its offer says, or else as its code does."""
    if offer is not None:
        return offer.get("read_only") is True
    metadata = (tool.metadata if tool is not None else None) or {}
    return metadata.get("read_only") is True
