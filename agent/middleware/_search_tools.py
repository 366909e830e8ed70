"""The tool that lets the model look for more tools, in words."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from langchain.agents.middleware import ToolCallRequest
from langchain.tools import ToolRuntime
from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langgraph.types import Command

from agent.guarding import answers
from agent.middleware._binding import names_of, offers_of
from agent.middleware._messages import clean, turns_after_calls
from agent.middleware._searching import Found, Searcher
from agent.middleware._usage import UsageRecorder
from agent.selection import Offer, OnNoMatch, found_offer, passing, with_late
from registry.errors import ConfigurationError, RegistryError
from registry.toolset import Toolset
from registry.types import ToolHit, ToolSelection

__all__ = ["SEARCH_TOOLS", "SearchToolsSetting", "ToolFinder", "is_search_on"]

SEARCH_TOOLS = "search_tools"

SearchToolsSetting = bool | Literal["auto"]

_ABOVE_TOOLS = 50
_MAX_QUERY_CHARS = 500
_MAX_ECHO_CHARS = 100
_MAX_LINE_CHARS = 160
_MAX_LISTED = 20

_DESCRIPTION = (
    "Look for more tools when none of those you have fits a step of the task, and before you say "
    "that none does. Say in a few words what the tool should do, one purpose a call. "
    "What is found is yours from your next step on."
)

_logger = logging.getLogger(__name__)


class ToolFinder:
    """`search_tools`: when a thread has it, and what a call of it brings.

    Args:
        setting: True, False, or `auto`: on above 50 active tools.
        searcher: Searches with the rule of the selection.
        toolset: The live tools.
        usage: Where searches are recorded.
        on_no_match: As in the selection.
        max_offered: As in the selection.

    Raises:
        ConfigurationError: The setting is none of these, or True while a tool of the toolset has
            the name.
    """

    def __init__(
        self,
        setting: SearchToolsSetting,
        searcher: Searcher,
        toolset: Toolset,
        usage: UsageRecorder,
        *,
        on_no_match: OnNoMatch,
        max_offered: int,
    ) -> None:
        if setting != "auto" and not isinstance(setting, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"search_tools is {setting!r}; it must be True, False or 'auto'"
            )
        self._setting: SearchToolsSetting = setting
        self._searcher = searcher
        self._toolset = toolset
        self._usage = usage
        self._on_no_match: OnNoMatch = on_no_match
        self._max_offered = max_offered
        self._has_told = False
        if setting is not False and any(s.tool_name == SEARCH_TOOLS for s in toolset.specs):
            self._give_way()
            self._setting = False
        self.tool = self._made()

    # --- when a thread has it

    def is_on(self, state: Any, found: ToolSelection) -> bool:
        """Return whether a thread has the tool in this run; once it had it, it keeps it.

        A tool that came and went with the number of others would end a provider's cache each time.

        Args:
            state: Of the thread, before this run's selection is in it.
            found: What the run's question found.
        """
        if isinstance(self._setting, bool):
            return self._setting
        return is_search_on(state) or (found.active_tools or 0) > _ABOVE_TOOLS

    def bound(self, tools: Sequence[Any], state: Any, *, room: int) -> list[Any]:
        """Return the agent's own tools, with this one behind them where the thread has it.

        Args:
            tools: The agent's own, which the offered ones will follow.
            state: Of the thread.
            room: Places that are left beside them and the pinned tools.

        Raises:
            ConfigurationError: It was asked for, while an own tool has its name.
        """
        own = list(tools)
        if self._setting is False or not is_search_on(state):
            return own
        if SEARCH_TOOLS in names_of(own):
            self._give_way()
            return own
        return [*own, self.tool] if room > 0 else own

    def is_called(self, request: ToolCallRequest) -> bool:
        """Return whether a call is one of this tool, in a thread that has it."""
        return (
            request.tool_call["name"] == SEARCH_TOOLS
            and request.tool is None  # the agent has none of its own by that name
            and self._setting is not False
            and is_search_on(request.state)
        )

    def _give_way(self) -> None:
        """Leave the name to the user's tool.

        Raises:
            ConfigurationError: Ours was asked for.
        """
        if self._setting is True:
            raise ConfigurationError(
                f"A tool of yours is called {SEARCH_TOOLS!r}, so search_tools=True cannot be: "
                "rename it, or leave search_tools out"
            )
        if not self._has_told:
            _logger.warning("search_tools_name_taken")
            self._has_told = True

    # --- what a call brings

    def _made(self) -> BaseTool:
        def search_tools(query: str, runtime: ToolRuntime[Any, Any]) -> Any:
            asked = _asked(query)
            try:
                found = self._searcher.search(asked)
            except RegistryError as error:
                return _away(runtime, error)
            return self._answer(found, runtime)

        async def asearch_tools(query: str, runtime: ToolRuntime[Any, Any]) -> Any:
            asked = _asked(query)
            try:
                found = await self._searcher.asearch(asked)
            except RegistryError as error:
                return _away(runtime, error)
            return self._answer(found, runtime)

        return StructuredTool.from_function(
            search_tools,
            asearch_tools,
            name=SEARCH_TOOLS,
            description=_DESCRIPTION,
            handle_tool_error=True,
            metadata={"read_only": True, "toolrag": SEARCH_TOOLS},
        )

    def _answer(self, found: Found, runtime: ToolRuntime[Any, Any]) -> Command[Any]:
        state: Mapping[str, Any] = runtime.state
        own_names = names_of(runtime.tools)
        passed = [
            hit
            for hit in passing(
                found.selection.hits,
                bindings=self._toolset,
                threshold=found.selection.threshold,
                exempt=found.selection.exempt,
                on_no_match=self._on_no_match,
            )
            if hit.tool_name not in own_names
        ]
        turn = int(state.get("last_selection", {}).get("turn", 0))
        before = [*offers_of(state), *(state.get("late_offers") or ())]
        late = _kept_texts([found_offer(hit, turn=turn) for hit in passed], before)
        called = turns_after_calls(state["messages"], turn=turn)
        after, _ = with_late(before, late, max_offered=self._max_offered, called=called)
        offered = {offer["name"] for offer in after}
        had = {offer["name"] for offer in before if offer["active"]}
        late = [offer for offer in late if offer["name"] in offered]
        self._usage.record_search(found, offered={offer["name"] for offer in late}, runtime=runtime)
        extra = {"hit_count": len(passed), "new_count": len({o["name"] for o in late} - had)}
        _logger.info("tools_searched", extra=extra)
        message = ToolMessage(
            content=_text(found.query, passed, had=had, offered=offered),
            name=SEARCH_TOOLS,
            tool_call_id=runtime.tool_call_id or "",
        )
        update: dict[str, Any] = {"messages": [message]}
        if late:
            update["late_offers"] = late
        return Command(update=update)


def is_search_on(state: Any) -> bool:
    """Return whether a thread has the tool, from its state."""
    return bool((state.get("last_selection") or {}).get(SEARCH_TOOLS))


def _asked(query: str) -> str:
    """Return the query, fit to be searched.

    Raises:
        ToolException: It is not; says what to do.
    """
    if len(query) > _MAX_QUERY_CHARS:
        raise ToolException(
            f"The query has {len(query)} characters; say in {_MAX_QUERY_CHARS} at most what the "
            "tool should do."
        )
    asked = " ".join(clean(query, max_chars=_MAX_QUERY_CHARS).split())
    if not any(character.isalnum() for character in asked):
        raise ToolException("The query has no words; say in a few what the tool should do.")
    return asked


def _away(runtime: ToolRuntime[Any, Any], error: RegistryError) -> ToolMessage:
    call = ToolCall(name=SEARCH_TOOLS, args={}, id=runtime.tool_call_id or "", type="tool_call")
    extra = {"tool_name": SEARCH_TOOLS, "call_id": call["id"]}
    _logger.error("tool_search_failed", exc_info=error, extra=extra)
    return answers.unavailable_now(call)


def _kept_texts(late: Sequence[Offer], before: Sequence[Offer]) -> list[Offer]:
    """Return the offers, those the thread has under the description it has.

    The run's requests begin with it; the next question's selection brings a newer one.
    """
    known = {offer["name"]: offer["description"] for offer in before if offer["active"]}
    return [
        {**offer, "description": known.get(offer["name"], offer["description"])} for offer in late
    ]


def _text(
    query: str, hits: Sequence[ToolHit], *, had: Collection[str], offered: Collection[str]
) -> str:
    shown = clean(query, max_chars=_MAX_ECHO_CHARS)
    new = [hit for hit in hits if hit.tool_name in offered and hit.tool_name not in had]
    known = [hit for hit in hits if hit.tool_name in offered and hit.tool_name in had]
    if not new and not known:
        return (
            f"No tool was found for {shown!r}. Search once more in other words, or go on without "
            "one and say what is missing."
        )
    parts: list[str] = []
    if new:
        parts += [f"New tools for {shown!r}, yours from your next step on:", *_lines(new)]
    else:
        parts.append(f"Nothing new was found for {shown!r}.")
    if known:
        parts += ["You have already:", *_lines(known)]
    return "\n".join(parts)


def _lines(hits: Sequence[ToolHit]) -> list[str]:
    lines = [f"- {hit.tool_name}: {_line(hit.description)}" for hit in hits[:_MAX_LISTED]]
    more = len(hits) - _MAX_LISTED
    return [*lines, f"- and {more} more"] if more > 0 else lines


def _line(description: str) -> str:
    text = " ".join(description.split())
    return text if len(text) <= _MAX_LINE_CHARS else f"{text[: _MAX_LINE_CHARS - 1].rstrip()}…"
