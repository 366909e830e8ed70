"""Limits of a run and its thread; meeting one ends the run with its work kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, NotRequired

from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    ModelRequest,
    ModelResponse,
    ToolCallRequest,
)
from langchain.agents.middleware.types import ExtendedModelResponse, OmitFromSchema
from langchain_core.messages import ToolMessage
from langgraph.channels import UntrackedValue
from langgraph.runtime import Runtime
from langgraph.types import Command

from agent.limits import RunLimits
from agent.middleware._deadline import CallTimeoutError, acall_with_timeout, call_with_timeout
from agent.middleware._limited_calls import ModelCall, SummaryCall, ToolGate, run_began
from agent.middleware._model_watch import ModelWatch

__all__ = ["RunLimitsMiddleware", "RunLimitsState"]

_PRIVATE = OmitFromSchema(input=True, output=True)
_VISIBLE = OmitFromSchema(input=True, output=False)  # callers may read it, never set it


class RunLimitsState(AgentState[Any]):
    """Adds to a thread's state what was spent, and why the run was stopped, if it was.

    `counted_until` is when the time at work was last added up, on this process's clock. It is not
    kept: a run that is resumed, here or elsewhere, starts counting where it goes on.
    """

    run_spent: NotRequired[Annotated[dict[str, Any], _VISIBLE]]
    thread_spent: NotRequired[Annotated[dict[str, Any], _VISIBLE]]
    stop_reason: NotRequired[Annotated[str | None, _VISIBLE]]
    limit_met: NotRequired[Annotated[dict[str, Any] | None, _VISIBLE]]
    calls_room: NotRequired[Annotated[int | None, _PRIVATE]]
    counted_until: NotRequired[Annotated[float, UntrackedValue(float, guard=False), _PRIVATE]]


class RunLimitsMiddleware(AgentMiddleware[RunLimitsState, Any, Any]):
    """Stops a run at its limits, and a thread at its own.

    A step is one model call and the tool calls it asks for; a run is one invocation, and resuming
    it after an interrupt goes on counting. At a limit nothing more is called, save one model call
    to sum up where that is wanted. The run ends with a message that is marked in its
    `response_metadata["toolrag"]`, and with `stop_reason`, `limit_met` and `run_spent` in the
    state. Every tool call has its answer, so the thread goes on with the next question.

    The deadline holds inside calls. An async call is cancelled at it. A sync one runs in a thread
    of its own, which Python cannot stop: the run goes on without it, but its tool may still take
    effect later, and the model is told so.

    Put it first in `middleware`, so that it comes before all others. Tokens of model calls that
    other middleware or tools make on their own are not seen here.

    Args:
        limits: What a run, and all runs of a thread, may spend.

    Raises:
        RunLimitError: At the first model call, when `limits.prices` lacks the model.
    """

    state_schema = RunLimitsState

    def __init__(self, limits: RunLimits = RunLimits()) -> None:  # noqa: B008 (frozen)
        super().__init__()
        self.limits = limits

    def before_agent(self, state: RunLimitsState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Start the sums of a new run; those of the thread go on."""
        return run_began()

    async def abefore_agent(self, state: RunLimitsState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Start the sums of a new run; those of the thread go on."""
        return self.before_agent(state, runtime)

    # --- every model call: within the limits, inside the deadline, added up

    def wrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    ) -> ExtendedModelResponse[Any]:
        """Call the model within the limits, or end the run."""
        call = ModelCall(self.limits, request)
        if call.met is None:
            try:
                work = partial(_watched, call.watch, handler, request)
                return call.answered(call_with_timeout(work, call.timeout_s))
            except CallTimeoutError as error:
                call.timed_out(error)
        if not call.wants_summary:
            return call.stopped(None)
        summary = SummaryCall(self.limits, call)
        try:
            work = partial(_watched, summary.watch, handler, summary.request)
            response = call_with_timeout(work, self.limits.summary_timeout_s)
        except Exception as error:
            return call.stopped(summary.failed(error))
        return call.stopped(summary.answered(response))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ExtendedModelResponse[Any]:
        """Call the model within the limits, or end the run."""
        call = ModelCall(self.limits, request)
        if call.met is None:
            try:
                work = partial(_awatched, call.watch, handler, request)
                return call.answered(await acall_with_timeout(work, call.timeout_s))
            except CallTimeoutError as error:
                call.timed_out(error)
        if not call.wants_summary:
            return call.stopped(None)
        summary = SummaryCall(self.limits, call)
        try:
            work = partial(_awatched, summary.watch, handler, summary.request)
            response = await acall_with_timeout(work, self.limits.summary_timeout_s)
        except Exception as error:
            return call.stopped(summary.failed(error))
        return call.stopped(summary.answered(response))

    # --- every tool call: within the limits, inside the deadline, always answered

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """Run a tool call within the limits; answer it in any case."""
        gate = ToolGate(self.limits, request)
        if gate.refusal is not None:
            return gate.answered(gate.refusal)
        try:
            return gate.answered(call_with_timeout(partial(handler, request), gate.timeout_s))
        except CallTimeoutError:
            return gate.answered(gate.timed_out())

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Run a tool call within the limits; answer it in any case."""
        gate = ToolGate(self.limits, request)
        if gate.refusal is not None:
            return gate.answered(gate.refusal)
        try:
            work = partial(handler, request)
            return gate.answered(await acall_with_timeout(work, gate.timeout_s))
        except CallTimeoutError:
            return gate.answered(gate.timed_out())


def _watched(
    watch: ModelWatch,
    handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    request: ModelRequest[Any],
) -> ModelResponse[Any]:
    with watch.watching():
        return handler(request)


async def _awatched(
    watch: ModelWatch,
    handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    request: ModelRequest[Any],
) -> ModelResponse[Any]:
    with watch.watching():
        return await handler(request)
