"""How the calls of one reply stand before anybody is asked, and whether an edit may run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

from langchain_core.messages import AIMessage, AnyMessage, ToolCall, ToolMessage
from langchain_core.tools import BaseTool
from langchain_core.tools import tool as as_langchain_tool

from agent.approving import answers
from agent.approving.records import ApprovalRecord, fingerprint, is_showable, new_record
from agent.approving.rules import ApprovalPolicy, ApprovalRules, judge, names_in
from agent.guarding import answers as guard_answers
from agent.guarding.arguments import Checkers, UnusableSchemaError
from agent.guarding.secrets import environment_secrets, masked_error
from agent.middleware._binding import LiveTools
from agent.selection import Offer
from registry.toolset import Toolset

__all__ = ["CallJudge", "OwnTool", "extra_of"]

OwnTool = BaseTool | Callable[..., Any] | dict[str, Any]

_NOT_SHOWABLE = "a text holds a NUL character or half a surrogate pair, which nobody can be shown"

_logger = logging.getLogger("agent.middleware.approval")


class CallJudge:
    """Knows the rules and the tools.

    Args:
        rules: As `ApprovalMiddleware` takes them.
        toolset: The registry's live tools.
        tools: The agent's others; those in a provider's own form run elsewhere, so that no rule
            could hold for them.
        max_rejections: Rejections in a run after which nobody is asked about a tool again.

    Raises:
        ConfigurationError: A rule's name fits no tool, or its value is neither True nor a function.
    """

    def __init__(
        self,
        rules: Mapping[str, ApprovalPolicy | Literal[True]] | None,
        *,
        toolset: Toolset | None,
        tools: Sequence[OwnTool],
        max_rejections: int,
    ) -> None:
        self._names = names_in(toolset)
        self._own = {_own_name(tool): tool for tool in tools if not isinstance(tool, dict)}
        self._rules = ApprovalRules(rules, [*self._names.values(), *({name} for name in self._own)])
        self._toolset = Toolset() if toolset is None else toolset
        self._live = LiveTools(self._toolset)
        self._checkers = Checkers()
        self._max_rejections = max_rejections

    def has_rule(self, name: str, tool: BaseTool | None, offer: Offer | None) -> bool:
        """Return whether a rule is for a tool, by any of its names.

        Args:
            name: As the model calls it.
            tool: As it is bound.
            offer: Of the registry's tools.
        """
        return bool(self._rules_of(name, tool, offer))

    def judged(
        self,
        reply: AIMessage,
        call: ToolCall,
        tool: BaseTool,
        offer: Offer | None,
        messages: Sequence[AnyMessage],
    ) -> ApprovalRecord | ToolMessage | None:
        """Return how a call stands, or the answer to one that cannot run; None for no concern.

        Args:
            reply: That asks for the call.
            call: With a legal name and id.
            tool: As it is bound.
            offer: Of the registry's tools.
            messages: Of the thread, before the reply.
        """
        rules = self._rules_of(call["name"], tool, offer)
        is_flagged = offer is not None and offer["requires_approval"]
        if not rules and not is_flagged:
            return None
        checked = self._checked(call, tool)
        if isinstance(checked, ToolMessage):
            return checked
        judgement = judge(rules, tool, checked, is_flagged=is_flagged)
        if judgement.verdict == "free":
            return new_record(reply, call, arguments=checked, verdict="free")
        message = None
        if judgement.error is not None:
            _log_failed_rule(call, judgement.error)
            message = answers.FAILED_RULE.format(tool=call["name"])
        else:
            rejected = answers.rejections(messages, call["name"])
            if fingerprint(checked) in rejected:
                message = answers.SETTLED_BEFORE.format(tool=call["name"])
            elif len(rejected) >= self._max_rejections:
                message = answers.TOO_OFTEN.format(tool=call["name"], count=len(rejected))
        return new_record(
            reply,
            call,
            arguments=checked,
            verdict="asked" if message is None else "refused",
            reason=judgement.reason,
            message=message,
        )

    def edited(
        self, record: ApprovalRecord, arguments: Mapping[str, Any], offer: Offer | None
    ) -> dict[str, Any] | str:
        """Return the arguments that a person put in a call's place, or why it cannot run so.

        Args:
            record: Of the call.
            arguments: As the person gave them.
            offer: Of the registry's tools.
        """
        tool = self._tool(record["tool"], offer)
        if tool is None:
            return "This process lacks the tool, so the arguments cannot be checked."
        try:
            checked = self._checkers.of(tool).check(arguments)
            problems = list(checked.problems)
            if not is_showable(arguments):
                problems.append(_NOT_SHOWABLE)
        except (UnusableSchemaError, RecursionError) as error:
            return f"The arguments cannot be checked: {error}."
        if checked.hidden_count:
            problems.append("an argument that only the program sets")
        if problems:
            return f"The edited arguments are wrong: {'; '.join(problems)}."
        rules = self._rules_of(record["tool"], tool, offer)
        judgement = judge(rules, tool, checked.values, is_flagged=True)
        if judgement.error is not None:
            _log_failed_rule(record, judgement.error)
            return "A rule refuses the edited arguments."
        return checked.values

    def _checked(self, call: ToolCall, tool: BaseTool) -> dict[str, Any] | ToolMessage:
        try:
            checked = self._checkers.of(tool).check(call["args"])
            problems, concerned = checked.problems, checked.concerned
            if not problems and not is_showable(checked.values):
                problems, concerned = (_NOT_SHOWABLE,), None
        except RecursionError:
            problem = "the arguments are nested too deeply"
            return guard_answers.invalid_arguments(call, [problem], schema=None)
        except UnusableSchemaError as error:
            extra = {**extra_of(call), "reason": str(error)}
            _logger.critical("tool_schema_unusable", extra=extra)
            return guard_answers.set_up_fault(call, error)
        if problems:
            _logger.info("tool_arguments_refused", extra=extra_of(call))
            return guard_answers.invalid_arguments(call, problems, schema=concerned)
        return checked.values

    def _rules_of(
        self, name: str, tool: BaseTool | None, offer: Offer | None
    ) -> list[ApprovalPolicy | Literal[True]]:
        names = {name} if tool is None else {name, tool.name}
        if offer is not None:
            names |= self._names.get(offer["binding"], set())
            # A tool that was added to the toolset since has no entry there.
            live = self._toolset.get(offer["binding"])
            names |= set() if live is None else {live.name, offer["binding"]}
        return self._rules.of(names)

    def _tool(self, name: str, offer: Offer | None) -> BaseTool | None:
        if offer is not None:
            return self._live.tool(offer) if offer["binding"] in self._live else None
        own = self._own.get(name)
        return own if own is None or isinstance(own, BaseTool) else as_langchain_tool(own)


def extra_of(call: ToolCall | ApprovalRecord) -> dict[str, Any]:
    """Return what a line of the log says of a call: no arguments."""
    if "call_id" in call:
        return {"tool_name": call["tool"], "call_id": call["call_id"]}
    return {"tool_name": call["name"], "call_id": call["id"]}


def _log_failed_rule(call: ToolCall | ApprovalRecord, error: Exception) -> None:
    masked = masked_error(error, environment_secrets())
    exc_info = (type(masked), masked, masked.__traceback__)
    _logger.error("approval_rule_failed", exc_info=exc_info, extra=extra_of(call))


def _own_name(tool: BaseTool | Callable[..., Any]) -> str:
    return tool.name if isinstance(tool, BaseTool) else cast("str", getattr(tool, "__name__", ""))
