"""Limits of one run; meeting one ends the run with its work kept and the thread valid."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NotRequired

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain.agents.middleware.types import ExtendedModelResponse, OmitFromSchema
from langchain_core.messages import AIMessage
from langgraph.runtime import Runtime
from langgraph.types import Command

from agent.middleware._messages import METADATA_KEY
from registry.errors import RunLimitError

__all__ = ["STEP_LIMIT", "RunLimitsMiddleware", "RunLimitsState"]

STEP_LIMIT = "step_limit"

_logger = logging.getLogger(__name__)


class RunLimitsState(AgentState[Any]):
    """Adds to a thread's state how far the run is, and why it was stopped, if it was."""

    run_steps: NotRequired[Annotated[int, OmitFromSchema(input=True, output=True)]]
    stop_reason: NotRequired[Annotated[str | None, OmitFromSchema(input=True, output=False)]]


class RunLimitsMiddleware(AgentMiddleware[RunLimitsState, Any, Any]):
    """Stops a run at a number of steps.

    A step is one model call and the tool calls it asks for; a run is one invocation, and
    resuming it after an interrupt goes on counting. At the limit the model is not called again:
    the run ends with a message that says so, marked in its `response_metadata["toolrag"]`, and
    with `stop_reason` in the state. Put it first in `middleware`, so that it comes before all
    others.

    Args:
        max_steps: Model calls in one run, at least 1.

    Raises:
        RunLimitError: `max_steps` is below 1.
    """

    state_schema = RunLimitsState

    def __init__(self, *, max_steps: int = 10) -> None:
        super().__init__()
        if not isinstance(max_steps, int) or isinstance(max_steps, bool) or max_steps < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RunLimitError(f"max_steps is {max_steps}; a run needs 1 step or more")
        self.max_steps = max_steps

    def before_agent(self, state: RunLimitsState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Start the count of a new run."""
        return {"run_steps": 0, "stop_reason": None}

    async def abefore_agent(self, state: RunLimitsState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Start the count of a new run."""
        return self.before_agent(state, runtime)

    def wrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    ) -> ExtendedModelResponse[Any]:
        """Call the model and count the step, or stop the run."""
        return self._stop(request) or self._counted(request, handler(request))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ExtendedModelResponse[Any]:
        """Call the model and count the step, or stop the run."""
        return self._stop(request) or self._counted(request, await handler(request))

    def _stop(self, request: ModelRequest[Any]) -> ExtendedModelResponse[Any] | None:
        if _steps(request) < self.max_steps:
            return None
        _logger.warning("step_limit_reached", extra={"max_steps": self.max_steps})
        message = AIMessage(
            content=f"I stopped at the limit of {self.max_steps} "
            f"step{'' if self.max_steps == 1 else 's'} before I had an answer. "
            "The results so far are kept; ask again to go on from them.",
            response_metadata={
                METADATA_KEY: {"stop_reason": STEP_LIMIT, "max_steps": self.max_steps}
            },
        )
        return ExtendedModelResponse(
            ModelResponse(result=[message]), Command(update={"stop_reason": STEP_LIMIT})
        )

    def _counted(
        self, request: ModelRequest[Any], response: ModelResponse[Any]
    ) -> ExtendedModelResponse[Any]:
        return ExtendedModelResponse(response, Command(update={"run_steps": _steps(request) + 1}))


def _steps(request: ModelRequest[Any]) -> int:
    steps = request.state.get("run_steps", 0)
    return steps if isinstance(steps, int) else 0
