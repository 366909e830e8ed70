"""The agent as an HTTP service: runs as server-sent events, approvals, users with roles."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal, Self

from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool
from pydantic import BaseModel, Field, model_validator

from agent import (
    RunEnded,
    RunEvent,
    approve,
    astream,
    astream_resume,
    create_tool_rag_agent,
    edit,
    event_to_dict,
    reject,
)
from agent.approval import pending_approvals
from examples.api.problems import problem_of, problem_response
from examples.api.shop import TOOLS
from examples.api.users import CurrentUser, Operator, User, read_users
from registry import AsyncToolRegistry, Toolset
from registry.errors import ThreadNotFoundError, ToolRAGError

__all__ = ["Service", "create_app"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What the service is made of."""

    database_url: str
    model: str | BaseChatModel
    users: Mapping[str, User]
    tools: Sequence[BaseTool] = field(default_factory=lambda: list(TOOLS))
    embeddings: str | Embeddings = "builtin"

    @classmethod
    def from_env(cls) -> Service:
        """Read TOOLRAG_DATABASE_URL, TOOLRAG_MODEL and API_USERS_FILE."""
        return cls(
            database_url=os.environ["TOOLRAG_DATABASE_URL"],
            model=os.environ["TOOLRAG_MODEL"],
            users=read_users(FilePath(os.environ["API_USERS_FILE"])),
        )


class Message(BaseModel):
    """What a user writes."""

    text: str = Field(min_length=1, max_length=20_000)


class Decision(BaseModel):
    """What an operator decides on one call; `arguments` are for `edit`, `message` for `reject`."""

    type: Literal["approve", "edit", "reject"]
    call_id: str
    arguments: dict[str, Any] | None = None
    message: str | None = Field(default=None, max_length=2_000)

    @model_validator(mode="after")
    def _is_clear(self) -> Self:
        if (self.type == "edit") != (self.arguments is not None):
            raise ValueError("arguments belong to edit, and edit needs all of them")
        return self

    def for_agent(self) -> dict[str, Any]:
        """Return the decision as the agent takes it."""
        if self.arguments is not None:
            return edit(self.call_id, self.arguments)
        return (
            reject(self.call_id, self.message) if self.type == "reject" else approve(self.call_id)
        )


class Decisions(BaseModel):
    """Decisions on calls of one thread."""

    decisions: list[Decision] = Field(min_length=1, max_length=100)


def create_app(service: Service | None = None) -> FastAPI:
    """Return the application; without a service, the one that the environment describes."""
    made = service or Service.from_env()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        async with AsyncToolRegistry(made.database_url, embeddings=made.embeddings) as registry:
            app.state.registry = registry
            app.state.agent = create_tool_rag_agent(
                made.model, registry=registry, toolset=Toolset(made.tools), durable=True
            )
            yield

    app = FastAPI(title="toolrag example", lifespan=lifespan)
    app.state.users = made.users
    app.add_exception_handler(ToolRAGError, problem_response)
    app.get("/healthz")(healthz)
    app.get("/threads/{thread_id}/pending")(pending)
    for path, endpoint in (("messages", post_message), ("decisions", post_decisions)):
        app.post(f"/threads/{{thread_id}}/{path}", response_class=EventSourceResponse)(endpoint)
    return app


def thread_key(
    user: CurrentUser,
    thread_id: Annotated[str, Path(pattern=r"^[A-Za-z0-9-]{1,64}$")],
    owner: Annotated[str | None, Query(pattern=r"^[a-z0-9-]{1,40}$")] = None,
) -> str:
    """Return how the agent knows a thread: with its owner, so that nobody reads another's.

    Raises:
        HTTPException: 403, it is another user's, and this one is no operator.
    """
    if owner not in (None, user.name) and user.role != "operator":
        raise HTTPException(403, "Only an operator sees the threads of others")
    return f"{owner or user.name}/{thread_id}"


def own_thread_key(
    user: CurrentUser, thread_id: Annotated[str, Path(pattern=r"^[A-Za-z0-9-]{1,64}$")]
) -> str:
    """Return the key of a thread of the user's own: nobody writes in the name of another."""
    return f"{user.name}/{thread_id}"


async def question_events(
    request: Request, thread: Annotated[str, Depends(own_thread_key)], message: Message
) -> AsyncIterator[AsyncIterator[RunEvent]]:
    """Begin a run with a question; it ends with the response, however that ends."""
    async with aclosing(astream(request.app.state.agent, message.text, thread_id=thread)) as events:
        yield await begun(events)


async def resumed_events(
    request: Request,
    _operator: Operator,
    thread: Annotated[str, Depends(thread_key)],
    body: Decisions,
) -> AsyncIterator[AsyncIterator[RunEvent]]:
    """Go on with a run that waits for approval; what stays undecided is asked again."""
    agent = request.app.state.agent
    await _waiting(agent, thread)
    decisions = [decision.for_agent() for decision in body.decisions]
    async with aclosing(astream_resume(agent, decisions, thread_id=thread)) as events:
        yield await begun(events)


async def begun(events: AsyncGenerator[RunEvent]) -> AsyncIterator[RunEvent]:
    """Return the events of a run that has begun: what it raises before still sets the status."""
    first = await anext(events)

    async def all_events() -> AsyncIterator[RunEvent]:
        yield first
        async for event in events:
            yield event

    return all_events()


async def post_message(
    events: Annotated[Any, Depends(question_events)],
) -> AsyncIterator[ServerSentEvent]:
    """Ask; the events of the run are streamed. A client that goes away ends the run."""
    async for event in _sent(events):
        yield event


async def post_decisions(
    events: Annotated[Any, Depends(resumed_events)],
) -> AsyncIterator[ServerSentEvent]:
    """Decide on calls that wait; the rest of the run is streamed."""
    async for event in _sent(events):
        yield event


async def pending(request: Request, thread: Annotated[str, Depends(thread_key)]) -> Any:
    """Return the calls of a thread that wait for an operator."""
    waiting = await _waiting(request.app.state.agent, thread)
    return {"pending": [call for calls in waiting.values() for call in calls]}


async def healthz(request: Request) -> dict[str, str]:
    """Say that the database answers."""
    await request.app.state.registry.active_states([])
    return {"status": "ok"}


async def _waiting(agent: Any, thread: str) -> Mapping[str, Any]:
    state = await agent.aget_state({"configurable": {"thread_id": thread}})
    if state.created_at is None:
        raise ThreadNotFoundError(thread.partition("/")[2])
    return pending_approvals(state.interrupts)


async def _sent(events: AsyncIterator[RunEvent]) -> AsyncIterator[ServerSentEvent]:
    try:
        async for event in events:
            values = event_to_dict(event)
            if isinstance(event, RunEnded):
                del values["result"]["messages"]  # its steps say the same
            yield ServerSentEvent(event=event.type, data=values)
    except Exception as error:  # the status is sent already
        yield ServerSentEvent(event="error", data=problem_of(error))
