"""Which tools one model call is bound to: the agent's own, then the offered ones as copies."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from langchain.agents.middleware import ModelRequest
from langchain_core.tools import BaseTool

from agent.selection import MAX_BOUND_TOOLS, Offer, fit
from registry.errors import ConfigurationError
from registry.toolset import Toolset

__all__ = ["LiveTools", "bind", "gathered_offers", "names_of", "offers_of", "room_beside"]

_logger = logging.getLogger(__name__)


class LiveTools:
    """Live tools under the name and description of their offers; the originals stay as they are.

    Args:
        toolset: Where bindings are looked up.
    """

    def __init__(self, toolset: Toolset) -> None:
        self._toolset = toolset
        # A copy keeps its derived argument schema, which is dear to make; one a binding. With it
        # the live tool that it is of, which may itself be what is bound.
        self._bound: dict[str, tuple[BaseTool, BaseTool]] = {}

    def __contains__(self, binding: str) -> bool:
        return binding in self._toolset

    def tool(self, offer: Offer) -> BaseTool:
        """Return the tool of an offer, under the offer's name and description.

        Raises:
            KeyError: This process has no such tool.
        """
        live = self._toolset[offer["binding"]]
        name, description = offer["name"], offer["description"]
        source, bound = self._bound.get(offer["binding"], (None, live))
        if source is live and bound.name == name and bound.description == description:
            return bound
        wanted = {"name": name, "description": description, **_schema(live)}
        is_so = all(getattr(live, field) == value for field, value in wanted.items())
        bound = live if is_so else live.model_copy(update=wanted)
        self._bound[offer["binding"]] = (live, bound)
        return bound


def bind(
    request: ModelRequest[Any],
    offers: Sequence[Offer],
    live_tools: LiveTools,
    called: Collection[str],
) -> tuple[ModelRequest[Any], list[Offer]]:
    """Return the request with the offered tools bound behind its own, and the offers that stand.

    An offer falls when the agent has a tool of its own by that name, or when there is no room.

    Args:
        request: A model call as it comes.
        offers: What the thread is offered.
        live_tools: The tools of this process.
        called: Names that the kept history calls.

    Raises:
        ConfigurationError: The agent's own and pinned tools alone are too many.
    """
    own_names = names_of(request.tools)
    clashing = [offer["name"] for offer in offers if offer["name"] in own_names]
    if clashing:
        _logger.warning("tool_name_taken_by_agent_tool", extra={"tool_names": clashing})
    free = [offer for offer in offers if offer["name"] not in own_names]
    room = room_beside(request)
    kept, dropped = fit(free, room=room)
    if len(kept) > max(room, 0) or room < 0:
        raise ConfigurationError(
            f"The agent's own and pinned tools are {MAX_BOUND_TOOLS - room + len(kept)}; "
            f"a model takes {MAX_BOUND_TOOLS} at most. Register some of them instead."
        )
    if dropped:
        _logger.warning("offered_tools_dropped", extra={"tool_names": dropped})
    live = [
        live_tools.tool(offer)
        for offer in kept
        if offer["binding"] in live_tools and (offer["active"] or offer["name"] in called)
    ]
    # Some providers refuse a history that calls a tool which the request does not define.
    undefined = sorted(set(called) - own_names - names_of(live))
    stand_ins = [_stand_in(name) for name in undefined[: max(room - len(live), 0)]]
    return request.override(tools=[*request.tools, *live, *stand_ins]), kept


def room_beside(request: ModelRequest[Any]) -> int:
    """Return how many tools a request can take beside those it has; below 0 if it has too many."""
    return MAX_BOUND_TOOLS - len(request.tools) - _structured_tool_count(request)


def offers_of(state: Any) -> list[Offer]:
    """Return what a thread is offered, from its state."""
    return list(cast("Mapping[str, list[Offer]]", state).get("offered_tools") or [])


def gathered_offers(kept: list[Offer], new: list[Offer] | None) -> list[Offer]:
    """Return offers that calls of one step made side by side; none after None (a reducer)."""
    merged = {offer["name"]: offer for offer in [*kept, *(new or ())]}
    return [] if new is None else list(merged.values())


def names_of(tools: Sequence[BaseTool | dict[str, Any]]) -> set[str]:
    """Return the names of tools, whether live or in a provider's own form."""
    names: set[str] = set()
    for tool in tools:
        if isinstance(tool, BaseTool):
            names.add(tool.name)
        else:
            function = cast("dict[str, Any]", tool.get("function") or {})
            names.add(str(function.get("name") or tool.get("name") or ""))
    return names - {""}


def _schema(tool: BaseTool) -> dict[str, Any]:
    """Return a JSON Schema of arguments as providers take it: an object with its properties."""
    schema = tool.args_schema
    if not isinstance(schema, dict):
        return {}
    return {"args_schema": {"properties": {}, **schema, "type": "object"}}


def _structured_tool_count(request: ModelRequest[Any]) -> int:
    if request.response_format is None:
        return 0
    return len(getattr(request.response_format, "schema_specs", ())) or 1


def _stand_in(name: str) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": "No longer available; do not call it.",
            "parameters": {"type": "object", "properties": {}},
        },
    }
