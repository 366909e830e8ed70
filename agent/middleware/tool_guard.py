"""A guard around every tool call: checked before, bounded in time and size, answered always."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Annotated, Any, NotRequired, cast

from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
    ToolCallRequest,
)
from langchain.agents.middleware.types import OmitFromSchema
from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.types import Command
from pydantic import ValidationError
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    wait_random_exponential,
)

from agent.guarding import answers, repeats
from agent.guarding.arguments import (
    ArgumentChecker,
    Checkers,
    UnusableSchemaError,
    validation_errors_caught,
)
from agent.guarding.breaker import CircuitBreaker
from agent.guarding.policy import ToolPolicy, check_policies
from agent.guarding.replies import MAX_REQUESTS_AGAIN, readable, request_again
from agent.guarding.results import keep_results
from agent.middleware._binding import names_of, offers_of
from agent.middleware._deadline import acall_with_timeout, call_with_timeout
from agent.middleware._guarded_call import GuardedCall, read_only
from agent.middleware._messages import METADATA_KEY, legal_message
from agent.middleware._read_more import (
    READ_MORE,
    bound_tools,
    is_read_more,
    read_more_tool,
)
from agent.middleware._streamed import StreamedArguments, streamed_arguments

__all__ = ["NO_PROGRESS", "ToolGuardMiddleware", "ToolGuardState"]

NO_PROGRESS = "no_progress"

_MAX_BACKOFF_S = 30

_PRIVATE = OmitFromSchema(input=True, output=True)
_VISIBLE = OmitFromSchema(input=True, output=False)  # callers may read it, never set it

_logger = logging.getLogger(__name__)


class ToolGuardState(AgentState[Any]):
    """Adds to a thread's state the results that were cut, and why a run was stopped."""

    cut_results: NotRequired[Annotated[dict[str, str], _PRIVATE, keep_results]]
    stop_reason: NotRequired[Annotated[str | None, _VISIBLE]]


class ToolGuardMiddleware(AgentMiddleware[ToolGuardState, Any, Any]):
    """Checks every tool call, bounds it in time and size, and answers it whatever happens.

    Works alone in any `create_agent(…, middleware=[ToolGuardMiddleware()])`; beside
    `ToolRAGMiddleware` it stands behind that one, which decides what may be called at all.

    - Arguments are held against the tool's schema, a JSON Schema included. Null for an optional
      value that cannot be null is left out, JSON in a text becomes the object it is, and what only
      the program may set is dropped.
    - A try ends at `timeout_s`. Faults that may pass are tried again for idempotent tools only.
    - A tool that keeps failing through no fault of the model is left alone for a while.
    - A long result is cut, and `read_more` is bound to read on; errors show no secrets.
    - The same call again and again is not run, and then ends the run with the stop reason
      `no_progress`.
    - A call whose arguments cannot be read is answered, and kept with empty ones.

    Every call gets one answer under its id. Interrupts and cancellations pass; a call that was
    cancelled is answered when the thread goes on.

    Args:
        default: Policy of tools without one of their own.
        policies: Policies by model-facing name.
        known_names: Names of all tools, to check `policies` with; None for no check.

    Raises:
        ConfigurationError: A policy is given for a name that is no tool's.
    """

    state_schema = ToolGuardState

    def __init__(
        self,
        *,
        default: ToolPolicy = ToolPolicy(),  # noqa: B008 (frozen)
        policies: Mapping[str, ToolPolicy] | None = None,
        known_names: Collection[str] | None = None,
    ) -> None:
        super().__init__()
        policies = dict(policies or {})
        known = None if known_names is None else {*known_names, READ_MORE}
        check_policies({"default": default}, known_names=None)
        check_policies(policies, known_names=known)
        self._default = default
        self._policies = policies
        self._repeat_limits = {name: policy.repeat_limit for name, policy in policies.items()}
        self._checkers = Checkers()
        self._breakers: dict[str, CircuitBreaker] = {}
        self.tools = [read_more_tool(page_chars=self._policy(READ_MORE).max_result_chars)]

    # --- every model call: stop what leads nowhere, keep what comes back legal

    def wrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    ) -> ExtendedModelResponse[Any]:
        """Call the model, and answer the calls of its reply that cannot be read."""
        if (stopped := self._stopped(request)) is not None:
            return stopped
        bound = self._bound(request)
        asked = bound
        for left in range(MAX_REQUESTS_AGAIN, -1, -1):
            with streamed_arguments() as streamed:
                try:
                    return _answered(bound, handler(asked), streamed)
                except ValidationError as error:
                    asked = _asked_again(bound, error, left)
        raise AssertionError("the last request was answered, or raised")

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ExtendedModelResponse[Any]:
        """Call the model, and answer the calls of its reply that cannot be read."""
        if (stopped := self._stopped(request)) is not None:
            return stopped
        bound = self._bound(request)
        asked = bound
        for left in range(MAX_REQUESTS_AGAIN, -1, -1):
            with streamed_arguments() as streamed:
                try:
                    return _answered(bound, await handler(asked), streamed)
                except ValidationError as error:
                    asked = _asked_again(bound, error, left)
        raise AssertionError("the last request was answered, or raised")

    def _stopped(self, request: ModelRequest[Any]) -> ExtendedModelResponse[Any] | None:
        """Return the message that ends a run which repeats itself, notices or not."""
        tool_name = repeats.is_stuck(
            request.state["messages"], self._repeat_limits, self._default.repeat_limit
        )
        if tool_name is None:
            return None
        _logger.warning("no_progress", extra={"tool_name": tool_name})
        message = AIMessage(
            content=f"I stopped because the same call of {tool_name!r} was made again and again "
            "without anything new. The results so far are kept; ask again to go on from them.",
            response_metadata={METADATA_KEY: {"stop_reason": NO_PROGRESS, "tool_name": tool_name}},
        )
        return ExtendedModelResponse(
            ModelResponse(result=[message]), Command(update={"stop_reason": NO_PROGRESS})
        )

    def _bound(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        """Return the request with `read_more` last, or without it while nothing was cut.

        Calls of a run that was cancelled get their answers here, on the way to the model.
        """
        tools = bound_tools(request.tools, request.state)
        if tools != request.tools:
            request = request.override(tools=tools)
        messages = answers.all_answered(request.messages)
        if messages is not request.messages:
            request = request.override(messages=list(messages))
        return request

    # --- every tool call: check, run, and answer it whatever happens

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """Run a tool call if it is in order; always return its one answer."""
        call = self._begin(request)
        if isinstance(call, ToolMessage):
            return call

        def run() -> ToolMessage | Command[Any]:
            return call_with_timeout(lambda: handler(call.request), call.policy.timeout_s)

        with validation_errors_caught() as errors:
            try:
                result = run() if call.tries == 1 else Retrying(**_retrying(call))(run)
            except Exception as error:
                return call.failed(error)
            return call.ended(result, errors)

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Run a tool call if it is in order; always return its one answer."""
        call = self._begin(request)
        if isinstance(call, ToolMessage):
            return call

        async def run() -> ToolMessage | Command[Any]:
            return await acall_with_timeout(lambda: handler(call.request), call.policy.timeout_s)

        with validation_errors_caught() as errors:
            try:
                result = await (run() if call.tries == 1 else AsyncRetrying(**_retrying(call))(run))
            except Exception as error:
                return call.failed(error)
            return call.ended(result, errors)

    def _begin(self, request: ToolCallRequest) -> GuardedCall | ToolMessage:
        """Return the call that may run, or the answer to one that may not."""
        call, tool = request.tool_call, request.tool
        name = call["name"]
        policy = self._policy(name)
        is_idempotent = policy.idempotent
        if is_idempotent is None:
            is_idempotent = read_only(tool, _offer_of(request.state, name))
        if (repeat := _repeat(request, policy, is_idempotent=is_idempotent)) is not None:
            return repeat
        checker: ArgumentChecker | None = None
        if tool is not None:
            checker = self._checkers.of(tool)
            checked = _checked_request(request, checker)
            if isinstance(checked, ToolMessage):
                return checked
            request = checked
        breaker = self._breaker(name, policy)
        if not breaker.admits():
            _logger.warning("tool_breaker_is_open", extra=_extra(call))
            return answers.unavailable_now(call)
        own_tools = cast("list[BaseTool]", getattr(request.runtime, "tools", None) or [])
        return GuardedCall(
            request=request,
            policy=policy,
            breaker=breaker,
            checker=checker,
            is_idempotent=is_idempotent,
            own_names=tuple(own.name for own in bound_tools(own_tools, request.state)),
            is_capped=not is_read_more(tool),
            can_read_on=any(is_read_more(own) for own in own_tools),
        )

    def _policy(self, name: str) -> ToolPolicy:
        return self._policies.get(name, self._default)

    def _breaker(self, name: str, policy: ToolPolicy) -> CircuitBreaker:
        breaker = self._breakers.get(name)
        if breaker is None:
            new = CircuitBreaker(
                max_failures=policy.breaker_failures, reset_s=policy.breaker_reset_s
            )
            breaker = self._breakers.setdefault(name, new)  # one wins where two threads make it
        return breaker


def _asked_again(
    request: ModelRequest[Any], error: ValidationError, left: int
) -> ModelRequest[Any]:
    """Return the request with word of what was wrong with the reply to it.

    Raises:
        ValidationError: It was asked again often enough, or something else is wrong.
    """
    note = request_again(error)
    if note is None or left == 0:
        raise error
    _logger.warning("unreadable_reply", extra={"tries_left": left})
    return request.override(messages=[*request.messages, note])


def _answered(
    request: ModelRequest[Any], response: ModelResponse[Any], streamed: StreamedArguments
) -> ExtendedModelResponse[Any]:
    """Return the response with unreadable calls answered, right behind the reply."""
    messages: list[BaseMessage] = []
    for message in response.result:
        messages += (
            _reply(message, request, streamed) if isinstance(message, AIMessage) else [message]
        )
    # A stop of an earlier run of the thread is over once the model is called again.
    is_over = request.state.get("stop_reason") == NO_PROGRESS
    command: Command[Any] | None = Command(update={"stop_reason": None}) if is_over else None
    return ExtendedModelResponse(
        ModelResponse(messages, structured_response=response.structured_response), command
    )


def _reply(
    message: AIMessage, request: ModelRequest[Any], streamed: StreamedArguments
) -> list[BaseMessage]:
    mended, broken = readable(message, streamed=streamed.text)
    if mended is message:
        return [message]
    legal = legal_message(mended, taken=names_of(request.tools), history=request.state["messages"])
    replies: list[BaseMessage] = [legal]
    for found in broken:
        call = legal.tool_calls[found.place]
        extra = {**_extra(call), "argument_chars": len(found.text)}
        _logger.warning("unreadable_tool_call", extra=extra)
        replies.append(answers.unreadable(call, reason=found.reason, excerpt=found.text))
    return replies


def _repeat(
    request: ToolCallRequest, policy: ToolPolicy, *, is_idempotent: bool
) -> ToolMessage | None:
    call = request.tool_call
    standing = repeats.standing(request.state["messages"], call)
    if standing.may_have_worked and not is_idempotent:
        _logger.warning("call_of_unknown_outcome_repeated", extra=_extra(call))
        return answers.outcome_unknown(call)
    if standing.is_repeat(policy.repeat_limit):
        _logger.warning("tool_call_repeated", extra=_extra(call))
        return answers.repeated(call, times=standing.times, failures=standing.failures)
    return None


def _checked_request(
    request: ToolCallRequest, checker: ArgumentChecker
) -> ToolCallRequest | ToolMessage:
    call = request.tool_call
    try:
        checked = checker.check(call["args"])
    except UnusableSchemaError as error:
        _logger.critical("tool_schema_unusable", extra={**_extra(call), "reason": str(error)})
        return answers.set_up_fault(call, error)
    if checked.hidden_count:
        # Neither which nor what: a log is read by more people than may know a tenant's name.
        extra = {**_extra(call), "argument_count": checked.hidden_count}
        _logger.warning("hidden_argument_supplied", extra=extra)
    if checked.problems:
        _logger.info("tool_arguments_refused", extra=_extra(call))
        return answers.invalid_arguments(call, checked.problems, schema=checked.concerned)
    if checked.values != call["args"]:
        call = cast("ToolCall", {**call, "args": checked.values})
    if call is request.tool_call and checker.tool is request.tool:
        return request
    return request.override(tool_call=call, tool=checker.tool)


def _retrying(call: GuardedCall) -> dict[str, Any]:
    def log(state: RetryCallState) -> None:
        outcome = state.outcome
        error = None if outcome is None else outcome.exception()
        extra = {**_extra(call.request.tool_call), "error_class": type(error).__name__}
        _logger.warning("tool_call_tried_again", extra=extra)

    return {
        "stop": stop_after_attempt(call.tries),
        "wait": wait_random_exponential(multiplier=call.policy.backoff_s, max=_MAX_BACKOFF_S),
        "retry": retry_if_exception(call.may_try_again),
        "before_sleep": log,
        "reraise": True,
    }


def _offer_of(state: Any, name: str) -> Mapping[str, Any] | None:
    return next((offer for offer in offers_of(state) if offer["name"] == name), None)


def _extra(call: ToolCall) -> dict[str, Any]:
    return {"tool_name": call["name"], "call_id": call["id"]}
