"""A budget in tokens for the history that a model is sent; the thread itself keeps everything."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, NotRequired, cast

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain.agents.middleware.types import ExtendedModelResponse, OmitFromSchema
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.constants import TAG_NOSTREAM
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command

from agent.history import HistoryBudget, HistoryCut
from agent.history_shape import Shaped, shape
from agent.history_text import Summary, new_summary, summary_prompt
from agent.middleware._deadline import acall_with_timeout, call_with_timeout
from agent.middleware._messages import METADATA_KEY

__all__ = ["HistoryMiddleware", "HistoryState"]

_PRIVATE = OmitFromSchema(input=True, output=True)
_VISIBLE = OmitFromSchema(input=True, output=False)  # callers may read it, never set it

# Kept out of the caller's stream of tokens, and told apart in traces as LangChain's own are.
_SUMMARY_CONFIG: RunnableConfig = {
    "tags": [TAG_NOSTREAM],
    "metadata": {"lc_source": "summarization"},
}

_logger = logging.getLogger(__name__)


class HistoryState(AgentState[Any]):
    """Adds to a thread's state what the model was not sent, and the summary in its place.

    `history_summary_failed` is the id of the question for which no summary could be made: it is
    tried again for the next one.
    """

    history_cut: NotRequired[Annotated[dict[str, Any] | None, _VISIBLE]]
    history_summary: NotRequired[Annotated[dict[str, Any] | None, _VISIBLE]]
    history_summary_failed: NotRequired[Annotated[str | None, _PRIVATE]]


class HistoryMiddleware(AgentMiddleware[HistoryState, Any, Any]):
    """Sends the model no more of a thread than a budget allows, and never changes the thread.

    A history within the budget is sent as it is. A longer one is cut as `agent.history_shape.shape`
    says: calls and results stay together, system messages and the newest human message stay, and
    what is missing is marked where it was. With `summary_model`, a summary takes the place of
    dropped messages: made once for a cut, kept in the state, and extended at the next cut. While
    there is none, because making it failed, a note says that messages are missing.

    What was cut is in the state under `history_cut` and logged. Put it behind
    `RunLimitsMiddleware`, before everything else that reads a request's messages.

    Args:
        budget: In tokens, of one request.

    Raises:
        HistoryBudgetError: At a model call, when the system message or the newest human message
            alone is larger than the budget.
    """

    state_schema = HistoryState

    def __init__(self, budget: HistoryBudget = HistoryBudget()) -> None:  # noqa: B008 (frozen)
        super().__init__()
        self.budget = budget

    def wrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Call the model with as much of the history as the budget allows."""
        call = _Call(self.budget, request)
        if (model := call.summary_model) is not None:
            try:
                work = partial(model.invoke, call.prompt, _SUMMARY_CONFIG, **call.settings(model))
                call.summed_up(call_with_timeout(work, self.budget.summary_timeout_s))
            except Exception as error:
                call.failed(error)
        return call.answered(handler(call.request))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Call the model with as much of the history as the budget allows."""
        call = _Call(self.budget, request)
        if (model := call.summary_model) is not None:
            try:
                work = partial(model.ainvoke, call.prompt, _SUMMARY_CONFIG, **call.settings(model))
                call.summed_up(await acall_with_timeout(work, self.budget.summary_timeout_s))
            except Exception as error:
                call.failed(error)
        return call.answered(await handler(call.request))


class _Call:
    """One model call, from the whole history to what is sent and kept."""

    def __init__(self, budget: HistoryBudget, request: ModelRequest[Any]) -> None:
        self._budget = budget
        self._request = request
        self._state = cast("dict[str, Any]", request.state)
        self._is_bounded = _is_bounded(request.messages)
        self._shaped = (
            Shaped(kept=tuple(request.messages), tokens_before=0, tokens=0)
            if self._is_bounded
            else shape(request.messages, budget, system_message=request.system_message)
        )
        self._summary = Summary.from_state(self._state.get("history_summary"))
        self._update: dict[str, Any] = {}

    @property
    def summary_model(self) -> BaseChatModel | None:
        """The model to ask for a summary; None where none is needed, or was refused already."""
        if not self._shaped.dropped or self._shaped.dropped[-1].id is None:
            return None
        is_covered = self._summary is not None and self._summary.covers_all(self._shaped.dropped)
        has_failed = self._state.get("history_summary_failed") == self._question_id
        return None if is_covered or has_failed else self._budget.summary_model

    @property
    def prompt(self) -> str:
        return summary_prompt(self._shaped.dropped, self._summary, self._budget)

    def settings(self, model: BaseChatModel) -> dict[str, Any]:
        """Return a bound on the tokens of the summary, where the model knows such a setting."""
        knows = "max_tokens" in type(model).model_fields
        return {"max_tokens": self._budget.summary_max_tokens} if knows else {}

    def summed_up(self, reply: AIMessage) -> None:
        """Take the summary.

        Raises:
            ValueError: It is empty.
        """
        self._summary = new_summary(str(reply.text), self._shaped.dropped, self._budget)
        self._update["history_summary"] = self._summary.to_state()
        _logger.info("history_summarised", extra={"dropped_messages": self._summary.message_count})

    def failed(self, error: Exception) -> None:
        """Take that there is no summary; LangGraph's own signals go on their way."""
        if isinstance(error, GraphBubbleUp):
            raise error
        self._update["history_summary_failed"] = self._question_id
        _logger.warning("history_summary_failed", exc_info=error)

    @property
    def request(self) -> ModelRequest[Any]:
        """What the model is sent."""
        if not self._shaped.is_cut:
            return self._request
        return self._request.override(messages=self._shaped.messages(self._summary))

    def answered(
        self, response: ModelResponse[Any]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Return the response, with what the state is to keep of this cut."""
        self._record()
        if not self._update:
            return response
        return ExtendedModelResponse(response, Command(update=self._update))

    def _record(self) -> None:
        shaped = self._shaped
        if self._is_bounded:
            return
        before = HistoryCut.from_state(self._state.get("history_cut"))
        if not shaped.is_cut and shaped.problem is None:
            if before is not None:  # what was too long has left the thread
                self._update["history_cut"] = None
            return
        now = HistoryCut(
            dropped_messages=len(shaped.dropped),
            trimmed_messages=shaped.trimmed_count,
            tokens=shaped.tokens_before - shaped.tokens,
            is_summarised=self._summary is not None and self._summary.covers_all(shaped.dropped),
            problem=shaped.problem,
            cut_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        if before is not None and now.is_same_cut(before):
            return
        self._update["history_cut"] = now.to_state()
        if now.problem is None:
            _logger.info("history_cut", extra=asdict(now))
        else:
            _logger.warning("history_over_budget", extra=asdict(now))

    @property
    def _question_id(self) -> str:
        messages = reversed(self._request.messages)
        newest = next((item for item in messages if isinstance(item, HumanMessage)), None)
        return (newest and newest.id) or ""


def _is_bounded(messages: list[AnyMessage]) -> bool:
    """Return whether this is the request for a summary at a limit, which has a bound of its own."""
    mark = messages[0].response_metadata.get(METADATA_KEY) if len(messages) == 1 else None
    return bool(mark and mark.get("is_bounded"))
