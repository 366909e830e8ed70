"""Which tool calls run: the rule at the call, and the answers where it says no."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from langchain.agents.middleware import ToolCallRequest
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langgraph.types import Command

from agent.approving.answers import unapproved
from agent.approving.records import was_anybody_asked
from agent.guarding import answers
from agent.guarding.secrets import environment_secrets, masked_error, secrets_of
from agent.middleware._binding import LiveTools, offers_of
from agent.middleware._guarded_call import is_control_signal
from agent.middleware._messages import original_name
from agent.middleware._read_more import bound_tools
from agent.middleware._search_tools import SEARCH_TOOLS, ToolFinder, is_search_on
from agent.middleware._usage import WatchedCall
from agent.selection import Offer, late_offer
from registry.errors import RegistryError
from registry.toolset import Toolset
from registry.types import ToolRecord

__all__ = ["CallRule", "Ticket", "checked", "failed", "registry_away"]

_logger = logging.getLogger("agent.middleware.tool_rag")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """What a call names, before the registry was asked.

    Attributes:
        offer: The offered tool of that name.
        is_own: It is a tool of the agent's own, which the registry has no say in.
        is_search: It is `search_tools`.
        illegal_name: What the model wrote, if that is no legal name.
        name_to_read: A legal name to read in the registry: it was not offered but may be
            registered, or it was, before a person was asked.
    """

    offer: Offer | None = None
    is_own: bool = False
    is_search: bool = False
    illegal_name: str | None = None
    name_to_read: str | None = None

    @property
    def names_to_check(self) -> list[str]:
        return [] if self.offer is None else [self.offer["name"]]


class CallRule:
    """A call runs if its tool was offered, is active now, is here, and is approved where needed.

    Args:
        toolset: The live tools.
        live: The same, as they are bound.
        finder: `search_tools`.
    """

    def __init__(self, toolset: Toolset, live: LiveTools, finder: ToolFinder) -> None:
        self._toolset = toolset
        self._live = live
        self._finder = finder

    def ticket(self, request: ToolCallRequest, watched: WatchedCall) -> Ticket:
        """Find what the call names: an offered tool, one of the agent's own, or neither."""
        call = request.tool_call
        written = original_name(request.state["messages"], call["id"] or "")
        if written is None:
            if self._finder.is_called(request):
                watched.names_tool(was_offered=True)
                return Ticket(is_search=True)
            offer = next((o for o in offers_of(request.state) if o["name"] == call["name"]), None)
            if offer is not None:
                watched.names_tool(was_offered=True)
                # While a person was asked, hours may have passed over what the offer says.
                is_stale = was_anybody_asked(request.state)
                return Ticket(offer=offer, name_to_read=call["name"] if is_stale else None)
            if request.tool is not None:
                return Ticket(is_own=True)
            watched.names_tool(was_offered=False)
        return Ticket(illegal_name=written, name_to_read=None if written else call["name"])

    def permitted(
        self,
        request: ToolCallRequest,
        ticket: Ticket,
        states: Mapping[str, bool],
        record: ToolRecord | None,
    ) -> ToolCallRequest | ToolMessage | Command[Any]:
        """Return the call as it may run, or the answer to one that may not.

        Args:
            request: The call.
            ticket: Of it.
            states: Name to whether the registry has it active now, for `ticket.names_to_check`.
            record: Of `ticket.name_to_read`, where that is registered.
        """
        if ticket.is_own:
            return request
        if ticket.is_search:
            return request.override(tool=self._finder.tool)
        if (offer := ticket.offer) is None:
            return self._missed(request, ticket, record)
        refused = answers.refusal(
            request.tool_call,
            offer,
            states=states,
            has_live_tool=offer["binding"] in self._toolset,
        )
        needs_approval = offer["requires_approval"] or (
            record is not None and record.spec.requires_approval
        )
        if refused is None and needs_approval:
            refused = unapproved(request.state, request.tool_call)
        if refused is not None:
            _logger.warning(
                "tool_call_refused",
                extra={
                    "tool_name": offer["name"],
                    "call_id": request.tool_call["id"],
                    "is_active": states.get(offer["name"]),
                    "requires_approval": needs_approval,
                },
            )
            return refused
        return request.override(tool=self._live.tool(offer))

    def _missed(
        self, request: ToolCallRequest, ticket: Ticket, record: ToolRecord | None
    ) -> ToolMessage | Command[Any]:
        """Return the answer to a name that was not offered; a tool that could be, is from now on.

        Nothing is run: the model does not know what the tool takes.
        """
        call = request.tool_call
        if record is not None and record.is_active and record.spec.binding in self._toolset:
            turn = int(request.state.get("last_selection", {}).get("turn", 0))
            offer = late_offer(record.spec, turn=turn)
            _logger.info("tool_offered_late", extra={"tool_name": offer["name"]})
            answer = answers.not_offered_yet(call, schema=record.spec.args_schema)
            return Command(update={"messages": [answer], "late_offers": [offer]})
        own_tools = cast("list[BaseTool]", getattr(request.runtime, "tools", None) or [])
        names = [offer["name"] for offer in offers_of(request.state) if offer["active"]]
        names += [tool.name for tool in bound_tools(own_tools, request.state)]
        if is_search_on(request.state):
            names.append(SEARCH_TOOLS)
        _logger.warning("unknown_tool_called", extra={"call_id": call["id"]})
        written = call["name"] if ticket.illegal_name is None else ticket.illegal_name
        return answers.unknown_tool(call, written=written, offered=names)


def registry_away(request: ToolCallRequest, error: RegistryError) -> ToolMessage:
    """Return the answer to a call that cannot be checked now."""
    call = request.tool_call
    extra = {"tool_name": call["name"], "call_id": call["id"]}
    _logger.error("tool_check_failed", exc_info=error, extra=extra)
    return answers.unavailable_now(call)


def checked(
    request: ToolCallRequest, result: ToolMessage | Command[Any]
) -> ToolMessage | Command[Any]:
    """Return what a tool returned as the answer to its call; errors of its own are made safe."""
    if isinstance(result, ToolMessage) and result.status == "error":
        if answers.outcome_of(result) is not None:  # of the guard, which has logged it
            return result
        # Wrong arguments, or a tool that reports its own failure: no exception came out.
        call = request.tool_call
        extra = {"tool_name": call["name"], "call_id": call["id"]}
        _logger.info("tool_call_returned_error", extra=extra)
        secrets = environment_secrets() | secrets_of(request.tool)
        return answers.checked_result(call, result, secrets=secrets)
    return answers.checked_result(request.tool_call, result)


def failed(request: ToolCallRequest, error: Exception) -> ToolMessage:
    """Return the answer to a call that raised; LangGraph's own signals go on their way."""
    if is_control_signal(error):
        raise error
    call = request.tool_call
    secrets = environment_secrets() | secrets_of(request.tool)
    masked = masked_error(error, secrets)
    _logger.warning(
        "tool_call_failed",
        exc_info=(type(masked), masked, masked.__traceback__),
        extra={
            "tool_name": call["name"],
            "call_id": call["id"],
            "error_class": type(error).__name__,
        },
    )
    return answers.failure(call, error, secrets=secrets)
