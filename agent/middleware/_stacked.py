"""The wrap hooks of several middleware as those of one.

`create_agent` puts a tracing shell around each wrap hook of each middleware. In async runs a shell
hands work to a thread twice, traced or not: with five middleware that is about 2 ms a step. One
shell around all of them costs a fifth.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, cast

from langchain.agents.middleware import (
    AgentMiddleware,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
    ToolCallRequest,
)
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.types import Command

__all__ = ["WrapStack", "stacked"]

_WRAP_HOOKS = ("wrap_model_call", "awrap_model_call", "wrap_tool_call", "awrap_tool_call")

_Middleware = AgentMiddleware[Any, Any, Any]
_ToolAnswer = ToolMessage | Command[Any]


def stacked(middleware: Sequence[_Middleware]) -> list[_Middleware]:
    """Return middleware for `create_agent` that does the same with one shell a hook.

    The stack comes first and has all wrap hooks; the others follow with their other hooks, state
    and tools.

    Args:
        middleware: Outermost first, made for this agent alone: they lose their wrap hooks to
            the stack. Who has a hook in one of its two forms has it in both.
    """
    stack = WrapStack(middleware)
    for item in middleware:
        own = type(item)
        bare = {name: getattr(AgentMiddleware, name) for name in _WRAP_HOOKS}
        item.__class__ = type(own.__name__, (own,), {**bare, "__module__": own.__module__})
    return [stack, *middleware]


class WrapStack(AgentMiddleware[Any, Any, Any]):
    """Calls the wrap hooks of several middleware inside each other, outermost first.

    Args:
        middleware: Whose hooks.
    """

    def __init__(self, middleware: Sequence[_Middleware]) -> None:
        super().__init__()
        self._model, self._amodel, self._tool, self._atool = (
            _hooks(middleware, name) for name in _WRAP_HOOKS
        )

    @property
    def name(self) -> str:
        """Name in traces, which show one span for all of these hooks."""
        return "toolrag"

    def wrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    ) -> ExtendedModelResponse[Any]:
        """Call the model through all hooks."""
        return _extended(*self._called(0, request, handler))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ExtendedModelResponse[Any]:
        """Call the model through all hooks."""
        return _extended(*await self._acalled(0, request, handler))

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], _ToolAnswer]
    ) -> _ToolAnswer:
        """Run a tool through all hooks."""
        for hook in reversed(self._tool):
            handler = partial(_through, hook, handler)
        return handler(request)

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[_ToolAnswer]],
    ) -> _ToolAnswer:
        """Run a tool through all hooks."""
        for hook in reversed(self._atool):
            handler = partial(_through, hook, handler)
        return await handler(request)

    def _called(
        self,
        place: int,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    ) -> tuple[ModelResponse[Any], list[Command[Any]]]:
        if place == len(self._model):
            return _parts(handler(request))
        below: list[Command[Any]] = []

        def inner(request: ModelRequest[Any]) -> ModelResponse[Any]:
            below.clear()  # a hook may call again: what it was told before does not count
            response, below[:] = self._called(place + 1, request, handler)
            return response

        response, own = _parts(self._model[place](request, inner))
        return response, [*below, *own]

    async def _acalled(
        self,
        place: int,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> tuple[ModelResponse[Any], list[Command[Any]]]:
        if place == len(self._amodel):
            return _parts(await handler(request))
        below: list[Command[Any]] = []

        async def inner(request: ModelRequest[Any]) -> ModelResponse[Any]:
            below.clear()
            response, below[:] = await self._acalled(place + 1, request, handler)
            return response

        response, own = _parts(await self._amodel[place](request, inner))
        return response, [*below, *own]


def _hooks(middleware: Sequence[_Middleware], name: str) -> list[Callable[..., Any]]:
    missing = getattr(AgentMiddleware, name)
    return [
        partial(getattr(type(item), name), item)
        for item in middleware
        if getattr(type(item), name) is not missing
    ]


def _through(hook: Callable[..., Any], handler: Callable[..., Any], request: Any) -> Any:
    return hook(request, handler)


def _parts(result: Any) -> tuple[ModelResponse[Any], list[Command[Any]]]:
    if isinstance(result, ExtendedModelResponse):
        extended = cast("ExtendedModelResponse[Any]", result)
        return extended.model_response, [] if extended.command is None else [extended.command]
    if isinstance(result, AIMessage):
        return ModelResponse([result]), []
    return cast("ModelResponse[Any]", result), []


def _extended(
    response: ModelResponse[Any], commands: Sequence[Command[Any]]
) -> ExtendedModelResponse[Any]:
    """Return a response with what all hooks write into the state; none writes another's key."""
    update: dict[str, Any] = {}
    for command in commands:
        update |= cast("dict[str, Any]", command.update or {})
    return ExtendedModelResponse(response, Command(update=update) if update else None)
