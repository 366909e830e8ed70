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
from langgraph import errors as langgraph_errors
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import Runtime
from langgraph.types import Command

from agent._registry_access import RegistryAccess, SelectOptions
from agent.middleware import tool_guard
from agent.middleware._binding import LiveTools, bind, names_of, offers_of
from agent.middleware._messages import (
    called_names,
    legal_message,
    newest_human_text,
    original_name,
)
from agent.middleware._usage import UsageRecorder, WatchedCall
from agent.selection import (
    MAX_BOUND_TOOLS,
    Offer,
    OnNoMatch,
    Selection,
    pinned_offer,
    select,
)
from registry.base import MAX_K
from registry.errors import ConfigurationError, RegistryError
from registry.strategy import STRATEGIES, Strategy
from registry.text import nearest_names
from registry.toolset import Toolset
from registry.types import ToolHit, ToolSelection
from registry.usage_log import UsageLog

if TYPE_CHECKING:
    from registry.store import ToolRegistry
    from registry.store_async import AsyncToolRegistry

__all__ = ["ToolRAGMiddleware", "ToolRAGState"]

_VISIBLE = OmitFromSchema(input=True, output=False)  # callers may read it, never set it

_logger = logging.getLogger(__name__)

_NOTHING = ToolSelection(hits=(), exempt=frozenset(), strategy="none", categories=(), threshold=0.0)


class ToolRAGState(AgentState[Any]):
    """Adds to a thread's state what it is offered, and how the newest selection came about."""

    offered_tools: NotRequired[Annotated[list[Offer], _VISIBLE]]
    last_selection: NotRequired[Annotated[dict[str, Any], _VISIBLE]]


class ToolRAGMiddleware(AgentMiddleware[ToolRAGState, Any, Any]):
    """Offers an agent the tools its question needs, and runs only what it offered.

    Works alone in any `create_agent(…, middleware=[ToolRAGMiddleware(registry, toolset)])`; tools
    given to `create_agent` stay bound in every call. Once a run, the registry is searched with the
    newest human message. Hits above the threshold are added to what the thread was offered before
    (`agent.selection` says in what order, and what is dropped when there is no room), and the
    model is bound to those alone.

    A call runs only if its name was offered in this thread, the tool is active in the registry at
    that moment, this process has it, and it needs no approval. Everything else, and every
    exception of a tool, becomes an error `ToolMessage` that the model can act on. Tool names and
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
        _check_options(
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
        self._pinned = _pinned_offers(pinned, toolset, max_offered=max_offered)
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
        record = _selection_record(selection, found, turn=turn)
        _log_selection(selection, record)
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
        called = called_names(request.messages)
        return bind(request, offers_of(request.state), self._live, called)

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
        changed = len(offers) != len(offers_of(request.state))
        command: Command[Any] | None = (
            Command(update={"offered_tools": offers}) if changed else None
        )
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
            if isinstance(ticket, ToolMessage):
                return ticket
            try:
                states = self._registry.active_states(ticket.names_to_check)
            except RegistryError as error:
                return _registry_away(request, error)
            permitted = self._permitted(request, ticket, states)
            if isinstance(permitted, ToolMessage):
                return permitted
            watched.begin()
            try:
                return watched.ended(_checked(request, handler(permitted)))
            except Exception as error:
                return watched.failed(_failed(request, error), error)

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Run a tool call if the rules allow it; always return its one answer."""
        with self._usage.watch(request) as watched:
            ticket = self._ticket(request, watched)
            if isinstance(ticket, ToolMessage):
                return ticket
            try:
                states = await self._registry.aactive_states(ticket.names_to_check)
            except RegistryError as error:
                return _registry_away(request, error)
            permitted = self._permitted(request, ticket, states)
            if isinstance(permitted, ToolMessage):
                return permitted
            watched.begin()
            try:
                return watched.ended(_checked(request, await handler(permitted)))
            except Exception as error:
                return watched.failed(_failed(request, error), error)

    def _ticket(self, request: ToolCallRequest, watched: WatchedCall) -> _Ticket | ToolMessage:
        """Find what the call names: an offered tool, a tool of the agent's own, or neither."""
        call = request.tool_call
        offers = {offer["name"]: offer for offer in offers_of(request.state)}
        written = original_name(request.state["messages"], call["id"] or "")
        if written is None:
            if call["name"] in offers:
                watched.names_tool(was_offered=True)
                return _Ticket(offers[call["name"]])
            if request.tool is not None:
                return _Ticket(None)
            watched.names_tool(was_offered=False)
        own_tools = cast("list[BaseTool]", getattr(request.runtime, "tools", None) or [])
        callable_names = [name for name, offer in offers.items() if offer["active"]]
        _logger.warning("unknown_tool_called", extra={"call_id": call["id"]})
        return tool_guard.unknown_tool(
            call,
            written=call["name"] if written is None else written,
            offered=[*callable_names, *(tool.name for tool in own_tools)],
        )

    def _permitted(
        self, request: ToolCallRequest, ticket: _Ticket, states: Mapping[str, bool]
    ) -> ToolCallRequest | ToolMessage:
        offer = ticket.offer
        if offer is None:
            return request
        refused = tool_guard.refusal(
            request.tool_call,
            offer,
            states=states,
            has_live_tool=offer["binding"] in self._toolset,
        )
        if refused is not None:
            _logger.warning(
                "tool_call_refused",
                extra={
                    "tool_name": offer["name"],
                    "call_id": request.tool_call["id"],
                    "is_active": states.get(offer["name"]),
                    "requires_approval": offer["requires_approval"],
                },
            )
            return refused
        return request.override(tool=self._live.tool(offer))


@dataclass(frozen=True, slots=True)
class _Ticket:
    """A call that may run if the registry agrees; no offer means a tool of the agent's own."""

    offer: Offer | None

    @property
    def names_to_check(self) -> list[str]:
        return [] if self.offer is None else [self.offer["name"]]


def is_count(value: object) -> bool:
    """Return whether a value is a whole number of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _check_options(
    *, k: int, threshold: float | None, on_no_match: str, max_offered: int, strategy: str
) -> None:
    if not is_count(k) or k > MAX_K:
        raise ConfigurationError(f"k is {k}; it must be a whole number from 1 to {MAX_K}")
    if threshold is not None and not 0 <= threshold <= 1:
        raise ConfigurationError(f"threshold is {threshold}; it must be from 0 to 1")
    if strategy not in STRATEGIES:
        raise ConfigurationError(f"strategy is {strategy!r}; choose from {', '.join(STRATEGIES)}")
    if on_no_match not in ("answer", "best_hit"):
        raise ConfigurationError(f"on_no_match is {on_no_match!r}; use 'answer' or 'best_hit'")
    if not is_count(max_offered) or max_offered > MAX_BOUND_TOOLS:
        raise ConfigurationError(
            f"max_offered is {max_offered}; it must be from 1 to {MAX_BOUND_TOOLS}"
        )


def _pinned_offers(
    pinned: Sequence[str], toolset: Toolset, *, max_offered: int
) -> tuple[Offer, ...]:
    if isinstance(pinned, str):
        raise ConfigurationError(f"pinned is the text {pinned!r}; give a list of names")
    specs = {spec.tool_name: spec for spec in toolset.specs}
    for name in pinned:
        if name not in specs:
            near = nearest_names(name, specs)
            hint = f" Nearest: {', '.join(near)}." if near else ""
            raise ConfigurationError(f"Pinned tool {name!r} is not in the toolset.{hint}")
    names = list(dict.fromkeys(pinned))
    if len(names) > max_offered:
        raise ConfigurationError(
            f"{len(names)} tools are pinned, but max_offered is {max_offered}; "
            "raise it or pin fewer"
        )
    return tuple(pinned_offer(specs[name]) for name in names)


def _selection_record(selection: Selection, found: ToolSelection, *, turn: int) -> dict[str, Any]:
    offered = {offer["name"] for offer in selection.offers}
    return {
        "turn": turn,
        "strategy": found.strategy,
        "categories": list(found.categories),
        "threshold": found.threshold,
        "hits": [
            {
                "name": hit.tool_name,
                "relevance": float(hit.relevance),
                "passed": hit.tool_name in selection.passed,
                "offered": hit.tool_name in offered,
            }
            for hit in found.hits
        ],
        "dropped": list(selection.dropped),
        "unbound": list(selection.unbound),
    }


def _log_selection(selection: Selection, record: dict[str, Any]) -> None:
    _logger.info("tools_selected", extra={"selection": record})
    if selection.dropped:
        _logger.warning("offered_tools_dropped", extra={"tool_names": list(selection.dropped)})
    if selection.unbound:
        _logger.warning("hits_without_live_tool", extra={"tool_names": list(selection.unbound)})


def _registry_away(request: ToolCallRequest, error: RegistryError) -> ToolMessage:
    call = request.tool_call
    _logger.error(
        "tool_check_failed",
        exc_info=error,
        extra={"tool_name": call["name"], "call_id": call["id"]},
    )
    return tool_guard.unavailable_now(call)


def _checked(
    request: ToolCallRequest, result: ToolMessage | Command[Any]
) -> ToolMessage | Command[Any]:
    if isinstance(result, ToolMessage) and result.status == "error":
        # Wrong arguments, or a tool that reports its own failure: no exception came out.
        call = request.tool_call
        extra = {"tool_name": call["name"], "call_id": call["id"]}
        _logger.info("tool_call_returned_error", extra=extra)
    return tool_guard.checked_result(request.tool_call, result)


def _is_invalid_resume(error: Exception) -> bool:
    # Releases of langgraph without it never mark an error so.
    check = getattr(langgraph_errors, "is_invalid_resume", None)
    return check is not None and check(error)


def _failed(request: ToolCallRequest, error: Exception) -> ToolMessage:
    """Return the answer to a call that raised; LangGraph's own signals go on their way."""
    if isinstance(error, GraphBubbleUp) or _is_invalid_resume(error):
        raise error
    call = request.tool_call
    _logger.warning(
        "tool_call_failed",
        exc_info=error,
        extra={
            "tool_name": call["name"],
            "call_id": call["id"],
            "error_class": type(error).__name__,
        },
    )
    return tool_guard.failure(call, error)
