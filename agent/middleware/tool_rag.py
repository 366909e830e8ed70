"""Tool RAG as one list item: a question's tools are found, bound, and run under one rule."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, cast

from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
    ToolCallRequest,
)
from langchain.agents.middleware.types import OmitFromSchema
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.runtime import Runtime
from langgraph.types import Command

from agent._registry_access import RegistryAccess, SelectOptions
from agent.approving.answers import unapproved
from agent.approving.records import was_anybody_asked
from agent.guarding import answers
from agent.guarding.secrets import environment_secrets, masked_error, secrets_of
from agent.middleware._binding import LiveTools, bind, gathered_offers, names_of, offers_of
from agent.middleware._guarded_call import is_control_signal
from agent.middleware._messages import (
    called_names,
    legal_message,
    newest_human_text,
    original_name,
)
from agent.middleware._read_more import bound_tools
from agent.middleware._selecting import (
    check_options,
    log_selection,
    pinned_offers,
    selection_record,
)
from agent.middleware._usage import UsageRecorder, WatchedCall
from agent.selection import Offer, OnNoMatch, fit, late_offer, select
from registry.base import MAX_K
from registry.errors import RegistryError
from registry.strategy import Strategy
from registry.toolset import Toolset
from registry.types import ToolHit, ToolRecord, ToolSelection
from registry.usage_log import UsageLog

if TYPE_CHECKING:
    from registry.store import ToolRegistry
    from registry.store_async import AsyncToolRegistry

__all__ = ["ToolRAGMiddleware", "ToolRAGState"]

_PRIVATE = OmitFromSchema(input=True, output=True)
_VISIBLE = OmitFromSchema(input=True, output=False)  # callers may read it, never set it

_logger = logging.getLogger(__name__)

_NOTHING = ToolSelection(hits=(), exempt=frozenset(), strategy="none", categories=(), threshold=0.0)


class ToolRAGState(AgentState[Any]):
    """Adds to a thread's state what it is offered, and how the newest selection came about."""

    offered_tools: NotRequired[Annotated[list[Offer], _VISIBLE]]
    last_selection: NotRequired[Annotated[dict[str, Any], _VISIBLE]]
    late_offers: NotRequired[Annotated[list[Offer], _PRIVATE, gathered_offers]]


class ToolRAGMiddleware(AgentMiddleware[ToolRAGState, Any, Any]):
    """Offers an agent the tools its question needs, and runs only what it offered.

    Works alone in any `create_agent(…, middleware=[ToolRAGMiddleware(registry, toolset)])`; tools
    given to `create_agent` stay bound in every call. Once a run, the registry is searched with the
    newest human message. Hits above the threshold are added to what the thread was offered before
    (`agent.selection` says in what order, and what is dropped when there is no room), and the
    model is bound to those alone.

    A call runs only if its name was offered in this thread, the tool is active in the registry at
    that moment, this process has it, and it needs no approval or has it (`ApprovalMiddleware`).
    Everything else, and every exception of a tool, becomes an error `ToolMessage` that the model
    can act on. Tool names and
    call ids of the model's replies are made legal before they enter the history.

    Args:
        registry: Where tools are searched. An async registry serves async runs only.
        toolset: The live tools; a hit whose binding is not in it is not offered.
        k: Hits asked for in a search, 1 to 1,000.
        threshold: Relevance a hit needs, 0 (all) to 1; None for the embedding model's own.
        pinned: Model-facing names from the toolset that are always bound; they need not be
            registered, but a pinned tool that is deactivated in the registry is not run.
        on_no_match: When no hit reaches the threshold, add nothing (`answer`) or the best hit.
        max_offered: Tools offered in a thread at a time, 1 to 128, pinned ones included. A model
            request never holds more than 128 tools, whatever else is bound.
        strategy: How tools are chosen; `auto` goes by their number: up to 10 are all offered, more
            are searched, with the question's categories counting (`registry.strategy`).
        usage_log: Where selections and calls are recorded, off the run's path: True for the log
            that all agents over this registry share (`UsageLog.of(registry)`), False for none.
            The registry closes its log with itself; the end of the process does it too.

    Raises:
        ConfigurationError: An option is out of range, or a pinned name is not in the toolset.
    """

    state_schema = ToolRAGState

    def __init__(
        self,
        registry: ToolRegistry | AsyncToolRegistry,
        toolset: Toolset,
        *,
        k: int = 5,
        threshold: float | None = None,
        pinned: Sequence[str] = (),
        on_no_match: OnNoMatch = "answer",
        max_offered: int = 32,
        strategy: Strategy = "auto",
        usage_log: UsageLog | bool = True,
    ) -> None:
        super().__init__()
        check_options(
            k=k,
            threshold=threshold,
            on_no_match=on_no_match,
            max_offered=max_offered,
            strategy=strategy,
        )
        self._registry = RegistryAccess(registry)
        self._toolset = toolset
        self._k = k
        self._threshold = threshold
        self._strategy: Strategy = strategy
        self._on_no_match: OnNoMatch = on_no_match
        self._max_offered = max_offered
        self._pinned = pinned_offers(pinned, toolset, max_offered=max_offered)
        self._live = LiveTools(toolset)
        self._usage = UsageRecorder(self._registry, usage_log)

    # --- once a run: search and select

    def before_agent(self, state: ToolRAGState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Select the tools of this run.

        Raises:
            ConfigurationError: The registry is an async one.
            RegistryError: The search failed.
        """
        query, names = newest_human_text(state["messages"]), self._names_to_check(state)
        found = _NOTHING
        started_at = time.perf_counter()
        for k in self._search_sizes(query):
            found = self._registry.select(query, **self._options(k))
            if self._has_enough(found.hits, k):
                break
        latency_ms = 1_000 * (time.perf_counter() - started_at)
        found = self._usable_first(found)
        selected = self._selected(state, found, self._registry.active_states(names))
        self._usage.record_selection(query, found, selected, runtime, latency_ms=latency_ms)
        return selected

    async def abefore_agent(self, state: ToolRAGState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Select the tools of this run.

        Raises:
            RegistryError: The search failed.
        """
        query, names = newest_human_text(state["messages"]), self._names_to_check(state)
        found = _NOTHING
        started_at = time.perf_counter()
        for k in self._search_sizes(query):
            found = await self._registry.aselect(query, **self._options(k))
            if self._has_enough(found.hits, k):
                break
        latency_ms = 1_000 * (time.perf_counter() - started_at)
        found = self._usable_first(found)
        selected = self._selected(state, found, await self._registry.aactive_states(names))
        self._usage.record_selection(query, found, selected, runtime, latency_ms=latency_ms)
        return selected

    def _options(self, k: int) -> SelectOptions:
        return SelectOptions(k=k, threshold=self._threshold, strategy=self._strategy)

    def _search_sizes(self, query: str) -> Iterator[int]:
        """Yield how many hits to ask for: more, while too few of them have a live tool here.

        Rows of tools that code no longer has, or of another application, must not use up k.
        """
        k = self._k
        while query:
            yield k
            if k == MAX_K:
                return
            k = min(MAX_K, 4 * k)

    def _has_enough(self, hits: Sequence[ToolHit], k: int) -> bool:
        live = sum(hit.binding in self._toolset for hit in hits)
        return len(hits) < k or live >= self._k

    def _usable_first(self, found: ToolSelection) -> ToolSelection:
        """Keep the first k hits with a live tool, what stands before them, and the exempt."""
        kept: list[ToolHit] = []
        live = 0
        for hit in found.hits:
            if live < self._k or hit.tool_name in found.exempt:
                live += hit.binding in self._toolset
                kept.append(hit)
        return replace(found, hits=tuple(kept))

    def _names_to_check(self, state: ToolRAGState) -> list[str]:
        names = [offer["name"] for offer in (*offers_of(state), *self._pinned)]
        return list(dict.fromkeys(names))

    def _selected(
        self, state: ToolRAGState, found: ToolSelection, states: Mapping[str, bool]
    ) -> dict[str, Any]:
        turn = int(state.get("last_selection", {}).get("turn", 0)) + 1
        selection = select(
            found.hits,
            exempt=found.exempt,
            offered=offers_of(state),
            pinned=self._pinned,
            states=states,
            bindings=self._toolset,
            threshold=found.threshold,
            on_no_match=self._on_no_match,
            max_offered=self._max_offered,
            turn=turn,
        )
        record = selection_record(selection, found, turn=turn)
        log_selection(selection, record)
        return {"offered_tools": list(selection.offers), "last_selection": record}

    # --- every model call: bind what is offered, keep what comes back legal

    def wrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    ) -> ExtendedModelResponse[Any]:
        """Call the model with the offered tools bound."""
        bound, offers = self._bound(request)
        return self._answered(request, handler(bound), offers)

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ExtendedModelResponse[Any]:
        """Call the model with the offered tools bound."""
        bound, offers = self._bound(request)
        return self._answered(request, await handler(bound), offers)

    def _bound(self, request: ModelRequest[Any]) -> tuple[ModelRequest[Any], list[Offer]]:
        offers = offers_of(request.state)
        if late := request.state.get("late_offers"):
            # What the model asks for by name goes before what a search found.
            offers, _ = fit(offers, room=self._max_offered - len(late))
            offers, _ = fit([*offers, *late], room=self._max_offered)
        own = request.override(tools=bound_tools(request.tools, request.state))
        return bind(own, offers, self._live, called_names(request.messages))

    def _answered(
        self, request: ModelRequest[Any], response: ModelResponse[Any], offers: list[Offer]
    ) -> ExtendedModelResponse[Any]:
        taken = {
            *(spec.tool_name for spec in self._toolset.specs),
            *(offer["name"] for offer in offers),
            *names_of(request.tools),
        }
        messages: list[BaseMessage] = [
            legal_message(message, taken=taken) if isinstance(message, AIMessage) else message
            for message in response.result
        ]
        legal = ModelResponse(messages, structured_response=response.structured_response)
        # What could not be bound was not offered, and must not be callable.
        update: dict[str, Any] = {}
        if offers != offers_of(request.state):
            update["offered_tools"] = offers
        if request.state.get("late_offers"):
            update["late_offers"] = None
        command: Command[Any] | None = Command(update=update) if update else None
        return ExtendedModelResponse(legal, command)

    # --- every tool call: permit, run, and answer it whatever happens

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """Run a tool call if the rules allow it; always return its one answer."""
        with self._usage.watch(request) as watched:
            ticket = self._ticket(request, watched)
            try:
                states = self._registry.active_states(ticket.names_to_check)
                record = self._registry.record(ticket.name_to_read)
            except RegistryError as error:
                return _registry_away(request, error)
            permitted = self._permitted(request, ticket, states, record)
            if not isinstance(permitted, ToolCallRequest):
                return permitted
            watched.begin()
            try:
                return watched.ended(_checked(request, handler(permitted)))
            except Exception as error:
                return watched.failed(_failed(permitted, error), error)

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Run a tool call if the rules allow it; always return its one answer."""
        with self._usage.watch(request) as watched:
            ticket = self._ticket(request, watched)
            try:
                states = await self._registry.aactive_states(ticket.names_to_check)
                record = await self._registry.arecord(ticket.name_to_read)
            except RegistryError as error:
                return _registry_away(request, error)
            permitted = self._permitted(request, ticket, states, record)
            if not isinstance(permitted, ToolCallRequest):
                return permitted
            watched.begin()
            try:
                return watched.ended(_checked(request, await handler(permitted)))
            except Exception as error:
                return watched.failed(_failed(permitted, error), error)

    def _ticket(self, request: ToolCallRequest, watched: WatchedCall) -> _Ticket:
        """Find what the call names: an offered tool, a tool of the agent's own, or neither."""
        call = request.tool_call
        written = original_name(request.state["messages"], call["id"] or "")
        if written is None:
            offer = next((o for o in offers_of(request.state) if o["name"] == call["name"]), None)
            if offer is not None:
                watched.names_tool(was_offered=True)
                # While a person was asked, hours may have passed over what the offer says.
                is_stale = was_anybody_asked(request.state)
                return _Ticket(offer=offer, name_to_read=call["name"] if is_stale else None)
            if request.tool is not None:
                return _Ticket(is_own=True)
            watched.names_tool(was_offered=False)
        return _Ticket(illegal_name=written, name_to_read=None if written else call["name"])

    def _permitted(
        self,
        request: ToolCallRequest,
        ticket: _Ticket,
        states: Mapping[str, bool],
        record: ToolRecord | None,
    ) -> ToolCallRequest | ToolMessage | Command[Any]:
        if ticket.is_own:
            return request
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
        self, request: ToolCallRequest, ticket: _Ticket, record: ToolRecord | None
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
        _logger.warning("unknown_tool_called", extra={"call_id": call["id"]})
        written = call["name"] if ticket.illegal_name is None else ticket.illegal_name
        return answers.unknown_tool(call, written=written, offered=names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ticket:
    """What a call names, before the registry was asked.

    Attributes:
        offer: The offered tool of that name.
        is_own: It is a tool of the agent's own, which the registry has no say in.
        illegal_name: What the model wrote, if that is no legal name.
        name_to_read: A legal name to read in the registry: it was not offered but may be
            registered, or it was, before a person was asked.
    """

    offer: Offer | None = None
    is_own: bool = False
    illegal_name: str | None = None
    name_to_read: str | None = None

    @property
    def names_to_check(self) -> list[str]:
        return [] if self.offer is None else [self.offer["name"]]


def _registry_away(request: ToolCallRequest, error: RegistryError) -> ToolMessage:
    call = request.tool_call
    extra = {"tool_name": call["name"], "call_id": call["id"]}
    _logger.error("tool_check_failed", exc_info=error, extra=extra)
    return answers.unavailable_now(call)


def _checked(
    request: ToolCallRequest, result: ToolMessage | Command[Any]
) -> ToolMessage | Command[Any]:
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


def _failed(request: ToolCallRequest, error: Exception) -> ToolMessage:
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
