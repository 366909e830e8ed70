"""One call under the limits of its run: what stands before it, and what it leaves in the state.

Nothing here waits or calls: `RunLimitsMiddleware` does, sync and async, between these steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, cast

from langchain.agents.middleware import ModelRequest, ModelResponse, ToolCallRequest
from langchain.agents.middleware.types import ExtendedModelResponse
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command

from agent.limits import RunLimits, check_priced, price_of
from agent.middleware._deadline import CallTimeoutError
from agent.middleware._messages import METADATA_KEY
from agent.middleware._model_watch import ModelWatch
from agent.middleware._summary import summary_request
from agent.spending import (
    Ledger,
    LimitMet,
    Spent,
    TokenCount,
    call_limit,
    cost_of,
    limit_met,
    reported_tokens,
    room_for_calls,
    time_left_s,
    time_limit,
)

__all__ = ["ModelCall", "SummaryCall", "ToolGate", "model_name", "run_began"]

_logger = logging.getLogger(__name__)

ToolResult = ToolMessage | Command[Any]


def run_began() -> dict[str, Any]:
    """Return the state of a run that begins; the thread's sums stay as they are."""
    return {
        "run_spent": Spent().to_state(),
        "stop_reason": None,
        "limit_met": None,
        "calls_room": None,
        "counted_until": time.monotonic(),
    }


def model_name(model: object) -> str | None:
    """Return the name a chat model is configured with, or None where it has none."""
    for attribute in ("model_name", "model", "model_id"):
        name = getattr(model, attribute, None)
        if isinstance(name, str) and name.strip():
            return name
    return None


class ModelCall:
    """A model call, from the look at the limits to the sums after it.

    Args:
        limits: Of the run.
        request: Of the call.

    Attributes:
        met: The limit that forbids the call, or at which it was given up.
        timeout_s: Seconds the call may take; None for any time.
        watch: On what goes on inside.

    Raises:
        RunLimitError: The prices lack the model.
    """

    def __init__(self, limits: RunLimits, request: ModelRequest[Any]) -> None:
        check_priced(limits.prices, model_name(request.model))
        self.limits = limits
        self.request = request
        self.watch = ModelWatch()
        self._counted_until = time.monotonic()
        self._ledger = _ledger_of(request.state, now=self._counted_until)
        self._had_steps = self._ledger.run.steps > 0
        self.met = limit_met(limits, self._ledger, before="model")
        self.timeout_s = time_left_s(limits, self._ledger)

    @property
    def wants_summary(self) -> bool:
        """Whether the run, now at a limit, has done something that is to be summed up."""
        return self.limits.on_limit == "summarise" and self._had_steps

    def answered(self, response: ModelResponse[Any]) -> ExtendedModelResponse[Any]:
        """Return the response with the sums after it, and the room for the calls it asks for."""
        self._add(_spent_on(self.limits, self.request, self.watch, response), steps=1)
        room = room_for_calls(self.limits, self._ledger)
        if limit_met(self.limits, self._ledger, before="tool") is None:
            asked = len(_pending_ids(response.result))
            may_run = asked if room is None else min(asked, room)
            self._add(Spent(tool_calls=may_run, refused_calls=asked - may_run))
        return ExtendedModelResponse(response, Command(update={**self._sums(), "calls_room": room}))

    def timed_out(self, error: CallTimeoutError) -> None:
        """Note that the call was given up at the deadline; what it was sent is paid for."""
        self.watch.give_up(error.timeout_s)
        tokens = self.watch.estimated(())
        self._add(_priced(self.limits, self.request, tokens, reply=None), steps=1)
        self.met = time_limit(self.limits, self._ledger)

    def stopped(self, summary: SummaryCall | None) -> ExtendedModelResponse[Any]:
        """Return what ends the run: the summary, or a sentence that says so.

        Args:
            summary: None where the model was not asked for one.
        """
        met = cast("LimitMet", self.met)
        reply = None
        if summary is not None:
            self._add(summary.spent)
            reply = summary.reply
        _logger.warning(
            f"{met.reason.value}_reached",
            extra={
                "limit": met.name,
                "allowed": met.allowed,
                "scope": met.scope,
                "is_summarised": reply is not None,
                "spent": asdict(self._ledger.run),
            },
        )
        update = {
            **self._sums(),
            "stop_reason": met.reason.value,
            "limit_met": {
                "name": met.name,
                "allowed": met.allowed,
                "scope": met.scope,
                "is_summarised": reply is not None,
            },
        }
        message = _last_message(met, reply)
        return ExtendedModelResponse(ModelResponse(result=[message]), Command(update=update))

    def _add(self, spent: Spent, *, steps: int = 0) -> None:
        now = time.monotonic()
        active_s, self._counted_until = now - self._counted_until, now
        self._ledger = self._ledger.plus(spent).plus(Spent(steps=steps, active_s=active_s))

    def _sums(self) -> dict[str, Any]:
        return {
            "run_spent": self._ledger.run.to_state(),
            "thread_spent": self._ledger.thread.to_state(),
            "counted_until": self._counted_until,
        }


class SummaryCall:
    """The one call after a limit: no tools, bounded in what it is sent, says and takes.

    Args:
        limits: Of the run.
        call: The call that the limit forbade.

    Attributes:
        request: What the model is asked.
        watch: On what goes on inside.
        reply: The summary, once there is one with text.
        spent: What the call took.
    """

    def __init__(self, limits: RunLimits, call: ModelCall) -> None:
        self.watch = ModelWatch()
        self.reply: AIMessage | None = None
        self.spent = Spent()
        self._limits = limits
        request, met = call.request, cast("LimitMet", call.met)
        asked = summary_request(request.messages, met, max_tokens=limits.summary_max_tokens)
        self.request = request.override(
            messages=[asked],
            tools=[],
            tool_choice=None,
            response_format=None,
            model_settings=_bounded(request, max_tokens=limits.summary_max_tokens),
            # What other middleware reads there: nothing is offered, and no call was made.
            state=cast("Any", {**request.state, "messages": [asked], "offered_tools": []}),
        )

    def answered(self, response: ModelResponse[Any]) -> SummaryCall:
        """Take the answer; calls it asks for all the same are left out, since nothing would run."""
        self.spent = _spent_on(self._limits, self.request, self.watch, response)
        replies = [message for message in response.result if isinstance(message, AIMessage)]
        if replies and str(replies[-1].text).strip():
            self.reply = replies[-1]
        else:
            _logger.warning("summary_empty")
        return self

    def failed(self, error: Exception) -> SummaryCall:
        """Take that there is no answer; LangGraph's own signals go on their way."""
        if isinstance(error, GraphBubbleUp):
            raise error
        if isinstance(error, CallTimeoutError):
            self.watch.give_up(error.timeout_s)
        tokens = self.watch.estimated(())
        self.spent = _priced(self._limits, self.request, tokens, reply=None)
        _logger.warning("summary_failed", exc_info=error)
        return self


class ToolGate:
    """A tool call, from the look at the limits to its answer.

    Args:
        limits: Of the run.
        request: Of the call.

    Attributes:
        refusal: The answer to a call that may not run; None for one that may.
        timeout_s: Seconds the call may take; None for any time.
    """

    def __init__(self, limits: RunLimits, request: ToolCallRequest) -> None:
        self._limits = limits
        self._call = request.tool_call
        state = cast("Mapping[str, Any]", request.state)
        began_at = time.monotonic()
        # A run that was resumed has no time yet up to which it is counted: it is from here on.
        self._starts_count_at = None if "counted_until" in state else began_at
        self._ledger = _ledger_of(state, now=began_at)
        self.timeout_s = time_left_s(limits, self._ledger)
        met = limit_met(limits, self._ledger, before="tool")
        room = state.get("calls_room")
        if met is None and room is not None and _place(state, request.tool_call["id"]) >= room:
            met = call_limit(limits, self._ledger)
        self.refusal = None if met is None else self._refused(met)

    def timed_out(self) -> ToolMessage:
        """Return the answer to a call that was given up at the deadline."""
        met = cast("LimitMet", time_limit(self._limits, self._ledger))
        self._log("tool_call_given_up", met)
        return self._error(
            f"Tool {self._call['name']!r} was given up while it ran: {_whose(met)} of "
            f"{met.amount} was reached. Whether it took effect is unknown; find out before you "
            "call it again."
        )

    def answered(self, result: ToolResult) -> ToolResult:
        """Return the call's answer, and in a run that was resumed the time it goes on counting."""
        if self._starts_count_at is None:
            return result
        counted = {"counted_until": self._starts_count_at}
        if isinstance(result, ToolMessage):
            return Command(update={"messages": [result], **counted})
        update = getattr(result, "update", None)
        # A list of answers, or an update in another form, is none of ours to change.
        if isinstance(update, dict) and getattr(result, "graph", None) is None:
            return replace(result, update={**cast("dict[str, Any]", update), **counted})
        return result

    def _refused(self, met: LimitMet) -> ToolMessage:
        self._log("tool_call_refused_at_limit", met)
        later = "in a later turn" if met.scope == "run" else "in another conversation"
        return self._error(
            f"Tool {self._call['name']!r} was not run: {_whose(met)} of {met.amount} was reached. "
            f"Answer with what there is; it may be called again {later}."
        )

    def _log(self, event: str, met: LimitMet) -> None:
        _logger.info(
            event,
            extra={
                "tool_name": self._call["name"],
                "call_id": self._call["id"],
                "limit": met.name,
                "allowed": met.allowed,
                "scope": met.scope,
            },
        )

    def _error(self, content: str) -> ToolMessage:
        return ToolMessage(
            content=content,
            name=self._call["name"],
            tool_call_id=self._call["id"] or "",
            status="error",
        )


def _ledger_of(state: Any, *, now: float) -> Ledger:
    """Return the sums of a thread's state, with the time since they were made."""
    values = cast("Mapping[str, Any]", state)
    since = values.get("counted_until", now)
    ledger = Ledger(
        run=Spent.from_state(values.get("run_spent")),
        thread=Spent.from_state(values.get("thread_spent")),
    )
    return ledger.plus(Spent(active_s=max(now - since, 0.0)))


def _spent_on(
    limits: RunLimits, request: ModelRequest[Any], watch: ModelWatch, response: ModelResponse[Any]
) -> Spent:
    """Return what a response cost: as its replies report, else as estimated."""
    replies = [message for message in response.result if isinstance(message, AIMessage)]
    reported = [reported_tokens(reply.usage_metadata) for reply in replies]
    told = [tokens for tokens in reported if tokens is not None]
    if not told and not watch.saw_request:
        return Spent()  # other middleware answered in the model's place
    if len(told) < len(replies):
        return _priced(limits, request, watch.estimated(replies), reply=replies[-1])
    spent = Spent()
    for reply, tokens in zip(replies, told, strict=True):
        spent += _priced(limits, request, tokens, reply=reply)
    return spent


def _priced(
    limits: RunLimits, request: ModelRequest[Any], tokens: TokenCount, *, reply: AIMessage | None
) -> Spent:
    spent = Spent(
        input_tokens=tokens.input_tokens,
        output_tokens=tokens.output_tokens,
        total_tokens=tokens.total_tokens,
        cached_input_tokens=tokens.cached_input_tokens,
        is_estimated=tokens.is_estimated,
    )
    if not limits.prices:
        return spent
    metadata = {} if reply is None else reply.response_metadata
    answered_by = metadata.get("model_name") or metadata.get("model")
    price = price_of(limits.prices, answered_by)
    configured = price_of(limits.prices, model_name(request.model))
    if price is None and configured is not None:
        # Another middleware may have called another model: its price is then only a guess.
        is_guess = answered_by not in (None, model_name(request.model))
        price, spent = configured, replace(spent, is_estimated=spent.is_estimated or is_guess)
    return spent if price is None else replace(spent, cost=cost_of(tokens, price))


def _bounded(request: ModelRequest[Any], *, max_tokens: int) -> dict[str, Any]:
    """Return the model's settings with a limit of tokens, where it has such a setting."""
    if "max_tokens" not in type(request.model).model_fields:
        return dict(request.model_settings)
    limits = [
        request.model_settings.get("max_tokens"),
        getattr(request.model, "max_tokens", None),
        max_tokens,
    ]
    least = min(limit for limit in limits if isinstance(limit, int) and limit > 0)
    return {**request.model_settings, "max_tokens": least}


def _last_message(met: LimitMet, summary: AIMessage | None) -> AIMessage:
    mark: dict[str, Any] = {"stop_reason": met.reason.value, met.name: met.allowed}
    if met.scope == "thread":
        mark["scope"] = "thread"
    if summary is None:
        return AIMessage(content=_sentence(met), response_metadata={METADATA_KEY: mark})
    mark["is_summary"] = True
    return AIMessage(
        content=str(summary.text).strip(),
        id=summary.id,  # the one its streamed tokens had
        usage_metadata=summary.usage_metadata,
        response_metadata={**summary.response_metadata, METADATA_KEY: mark},
    )


def _sentence(met: LimitMet) -> str:
    if met.scope == "run":
        return (
            f"I stopped at the limit of {met.amount} before I had an answer. "
            "The results so far are kept; ask again to go on from them."
        )
    return (
        f"I stopped at the limit of {met.amount} for this conversation before I had an answer. "
        "The results so far are kept; start a new conversation to go on."
    )


def _whose(met: LimitMet) -> str:
    return "this turn's limit" if met.scope == "run" else "this conversation's limit"


def _place(state: Mapping[str, Any], call_id: str | None) -> int:
    """Return the place of a call among those of the last reply that have no answer yet, from 0.

    A call that is not among them has the last place, and so has an id that stands twice.
    """
    ids = _pending_ids(state.get("messages") or ())
    places = [place for place, pending in enumerate(ids) if pending == call_id]
    return places[-1] if places else len(ids)


def _pending_ids(messages: Sequence[BaseMessage | AnyMessage]) -> list[str | None]:
    """Return the ids of the last reply's calls that no message answers yet, in order."""
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if isinstance(message, AIMessage):
            answered = {
                later.tool_call_id
                for later in messages[place + 1 :]
                if isinstance(later, ToolMessage)
            }
            return [call["id"] for call in message.tool_calls if call["id"] not in answered]
    return []
