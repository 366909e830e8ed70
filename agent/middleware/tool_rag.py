"""Tool RAG as one list item: a question's tools are found, bound, and run under one rule."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

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
from langgraph.runtime import Runtime
from langgraph.types import Command

from agent._registry_access import RegistryAccess
from agent.middleware._binding import (
    LiveTools,
    bind,
    gathered_offers,
    names_of,
    offers_of,
    room_beside,
)
from agent.middleware._called import CallRule, checked, failed, registry_away
from agent.middleware._messages import (
    called_names,
    legal_message,
    newest_human_text,
    turns_after_calls,
)
from agent.middleware._read_more import bound_tools
from agent.middleware._search_tools import SearchToolsSetting, ToolFinder
from agent.middleware._searching import Found, Searcher
from agent.middleware._selecting import (
    check_options,
    log_dropped,
    log_selection,
    pinned_offers,
    selection_record,
)
from agent.middleware._usage import UsageRecorder
from agent.selection import Offer, OnNoMatch, select, with_late
from registry.errors import RegistryError
from registry.strategy import Strategy
from registry.toolset import Toolset
from registry.usage_log import UsageLog

if TYPE_CHECKING:
    from registry.store import ToolRegistry
    from registry.store_async import AsyncToolRegistry

__all__ = ["ToolRAGMiddleware", "ToolRAGState"]

_PRIVATE = OmitFromSchema(input=True, output=True)
_VISIBLE = OmitFromSchema(input=True, output=False)  # callers may read it, never set it

_logger = logging.getLogger(__name__)


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
        search_tools: Whether the model has a tool of that name to look for more tools in words;
            `auto` from 51 active tools on. A thread that had it keeps it. A tool of the toolset
            or of the agent with that name goes before it.
        usage_log: Where selections and calls are recorded, off the run's path: True for the log
            that all agents over this registry share (`UsageLog.of(registry)`), False for none.
            The registry closes its log with itself; the end of the process does it too.

    Raises:
        ConfigurationError: An option is out of range, a pinned name is not in the toolset, or
            `search_tools` is True while a tool has that name.
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
        search_tools: SearchToolsSetting = "auto",
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
        self._on_no_match: OnNoMatch = on_no_match
        self._max_offered = max_offered
        self._pinned = pinned_offers(pinned, toolset, max_offered=max_offered)
        self._live = LiveTools(toolset)
        self._usage = UsageRecorder(self._registry, usage_log)
        self._searcher = Searcher(
            self._registry, toolset, k=k, threshold=threshold, strategy=strategy
        )
        self._finder = ToolFinder(
            search_tools,
            self._searcher,
            toolset,
            self._usage,
            on_no_match=on_no_match,
            max_offered=max_offered,
        )
        self._rule = CallRule(toolset, self._live, self._finder)

    # --- once a run: search and select

    def before_agent(self, state: ToolRAGState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Select the tools of this run.

        Raises:
            ConfigurationError: The registry is an async one.
            RegistryError: The search failed.
        """
        found = self._searcher.search(newest_human_text(state["messages"]))
        states = self._registry.active_states(self._names_to_check(state))
        return self._selected(state, found, states, runtime)

    async def abefore_agent(self, state: ToolRAGState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Select the tools of this run.

        Raises:
            RegistryError: The search failed.
        """
        found = await self._searcher.asearch(newest_human_text(state["messages"]))
        states = await self._registry.aactive_states(self._names_to_check(state))
        return self._selected(state, found, states, runtime)

    def _names_to_check(self, state: ToolRAGState) -> list[str]:
        names = [offer["name"] for offer in (*offers_of(state), *self._pinned)]
        return list(dict.fromkeys(names))

    def _selected(
        self,
        state: ToolRAGState,
        found: Found,
        states: Mapping[str, bool],
        runtime: Runtime[Any],
    ) -> dict[str, Any]:
        turn = int(state.get("last_selection", {}).get("turn", 0)) + 1
        selection = select(
            found.selection.hits,
            exempt=found.selection.exempt,
            called=turns_after_calls(state["messages"], turn=turn),
            offered=offers_of(state),
            pinned=self._pinned,
            states=states,
            bindings=self._toolset,
            threshold=found.selection.threshold,
            on_no_match=self._on_no_match,
            max_offered=self._max_offered,
            turn=turn,
        )
        record = selection_record(
            selection,
            found.selection,
            turn=turn,
            search_tools=self._finder.is_on(state, found.selection),
        )
        log_selection(selection, record)
        selected = {"offered_tools": list(selection.offers), "last_selection": record}
        self._usage.record_selection(found, selected, runtime)
        return selected

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
            turn = int(request.state.get("last_selection", {}).get("turn", 0))
            called = turns_after_calls(request.state["messages"], turn=turn)
            offers, dropped = with_late(offers, late, max_offered=self._max_offered, called=called)
            log_dropped(dropped, wanted={offer["name"] for offer in late})
        own = request.override(tools=bound_tools(request.tools, request.state))
        room = room_beside(own) - len(self._pinned)
        own = own.override(tools=self._finder.bound(own.tools, request.state, room=room))
        return bind(own, offers, self._live, called_names(request.messages))

    def _answered(
        self, request: ModelRequest[Any], response: ModelResponse[Any], offers: list[Offer]
    ) -> ExtendedModelResponse[Any]:
        taken = _Taken(
            lambda: {
                *(spec.tool_name for spec in self._toolset.specs),
                *(offer["name"] for offer in offers),
                *names_of(request.tools),
            }
        )
        messages: list[BaseMessage] = [
            legal_message(message, taken=taken, history=request.state["messages"])
            if isinstance(message, AIMessage)
            else message
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
            ticket = self._rule.ticket(request, watched)
            try:
                states = self._registry.active_states(ticket.names_to_check)
                record = self._registry.record(ticket.name_to_read)
            except RegistryError as error:
                return registry_away(request, error)
            permitted = self._rule.permitted(request, ticket, states, record)
            if not isinstance(permitted, ToolCallRequest):
                return permitted
            watched.begin()
            try:
                return watched.ended(checked(request, handler(permitted)))
            except Exception as error:
                return watched.failed(failed(permitted, error), error)

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Run a tool call if the rules allow it; always return its one answer."""
        with self._usage.watch(request) as watched:
            ticket = self._rule.ticket(request, watched)
            try:
                states = await self._registry.aactive_states(ticket.names_to_check)
                record = await self._registry.arecord(ticket.name_to_read)
            except RegistryError as error:
                return registry_away(request, error)
            permitted = self._rule.permitted(request, ticket, states, record)
            if not isinstance(permitted, ToolCallRequest):
                return permitted
            watched.begin()
            try:
                return watched.ended(checked(request, await handler(permitted)))
            except Exception as error:
                return watched.failed(failed(permitted, error), error)


class _Taken:
    """Names of real tools, put together when one is asked for: nearly all replies are legal."""

    def __init__(self, names: Callable[[], set[str]]) -> None:
        self._names = names

    def __contains__(self, name: object) -> bool:
        return name in self._names()
