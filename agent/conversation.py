"""Talking to an agent: ask, stream, and go on with what waits for approval, sync and async."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing, closing
from typing import Any
from uuid import uuid4

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command, StateSnapshot

from agent._own_task import in_own_task
from agent.approval import pending_approvals
from agent.events import EventReader, RunEvent
from agent.result import Agent, RunResult, read_run
from registry.errors import ApprovalError, ConfigurationError, InvalidQueryError
from registry.text import is_unicode

__all__ = [
    "aask",
    "aresume",
    "ask",
    "astream",
    "astream_resume",
    "resume",
    "stream",
    "stream_resume",
]


def ask(
    agent: Agent,
    question: str,
    *,
    thread_id: str | None = None,
    config: RunnableConfig | None = None,
) -> RunResult:
    """Ask an agent one question and return what the run did.

    Args:
        agent: From `create_tool_rag_agent`, or any `create_agent` with `ToolRAGMiddleware`.
        question: In the user's words.
        thread_id: Conversation to go on with; needed when the agent has a checkpointer.
        config: More LangGraph settings of this run.

    Raises:
        InvalidQueryError: The question is blank.
        ConfigurationError: The agent keeps threads and no `thread_id` is given.
        HistoryBudgetError: The question alone is larger than the history's budget.
        RegistryError: The tool search failed.
    """
    message, run_config = _prepared(agent, question, thread_id=thread_id, config=config)
    output = agent.invoke({"messages": [message]}, run_config)
    return read_run(output, question_id=message.id)


async def aask(
    agent: Agent,
    question: str,
    *,
    thread_id: str | None = None,
    config: RunnableConfig | None = None,
) -> RunResult:
    """Ask an agent one question and return what the run did; like `ask`, for async code."""
    message, run_config = _prepared(agent, question, thread_id=thread_id, config=config)
    output = await agent.ainvoke({"messages": [message]}, run_config)
    return read_run(output, question_id=message.id)


def stream(
    agent: Agent,
    question: str,
    *,
    thread_id: str | None = None,
    config: RunnableConfig | None = None,
) -> Generator[RunEvent]:
    """Ask an agent one question; yield what happens as it happens, `RunEnded` last.

    Nothing goes on that is not read: a slow reader slows the run. Closing the generator ends the
    run after the step it is in, and leaves a thread that can go on.

    Args:
        agent: As for `ask`.
        question: As for `ask`.
        thread_id: As for `ask`.
        config: As for `ask`.

    Raises:
        InvalidQueryError: As `ask`, and its other errors, all of them from the first `next`.
    """
    message, run_config = _prepared(agent, question, thread_id=thread_id, config=config)
    yield from _streamed(agent, {"messages": [message]}, run_config, EventReader(message.id))


async def astream(
    agent: Agent,
    question: str,
    *,
    thread_id: str | None = None,
    config: RunnableConfig | None = None,
) -> AsyncGenerator[RunEvent]:
    """Ask an agent one question; yield what happens as it happens; like `stream`, for async code.

    Cancelling the task that reads ends the run at once: tools that run are cancelled. The run has
    a task of its own, so that this holds in any web framework.
    """
    message, run_config = _prepared(agent, question, thread_id=thread_id, config=config)
    given = {"messages": [message]}
    async with aclosing(_astreamed(agent, given, run_config, EventReader(message.id))) as events:
        async for event in events:
            yield event


def resume(
    agent: Agent,
    decisions: Sequence[Mapping[str, Any]],
    *,
    thread_id: str,
    config: RunnableConfig | None = None,
) -> RunResult:
    """Go on with a run that waits for approval, and return what it did in all.

    What the decisions leave undecided is asked again: see `RunResult.pending`.

    Args:
        agent: With a checkpointer; it need not be the object, or the process, that asked.
        decisions: From `approve`, `edit` and `reject`, in any order.
        thread_id: Conversation that waits.
        config: More LangGraph settings of this run.

    Raises:
        ApprovalError: Nothing waits for approval in this thread, or it was decided on meanwhile.
        ConfigurationError: The agent keeps no threads.
    """
    run_config = _resuming(agent, thread_id, config)
    answer = _answer_to(agent.get_state(run_config), decisions, thread_id)
    return read_run(agent.invoke(answer, run_config))


async def aresume(
    agent: Agent,
    decisions: Sequence[Mapping[str, Any]],
    *,
    thread_id: str,
    config: RunnableConfig | None = None,
) -> RunResult:
    """Go on with a run that waits for approval; like `resume`, for async code."""
    run_config = _resuming(agent, thread_id, config)
    answer = _answer_to(await agent.aget_state(run_config), decisions, thread_id)
    return read_run(await agent.ainvoke(answer, run_config))


def stream_resume(
    agent: Agent,
    decisions: Sequence[Mapping[str, Any]],
    *,
    thread_id: str,
    config: RunnableConfig | None = None,
) -> Generator[RunEvent]:
    """Go on with a run that waits for approval, as `resume` does; yield what happens."""
    run_config = _resuming(agent, thread_id, config)
    answer = _answer_to(agent.get_state(run_config), decisions, thread_id)
    yield from _streamed(agent, answer, run_config, EventReader(None))


async def astream_resume(
    agent: Agent,
    decisions: Sequence[Mapping[str, Any]],
    *,
    thread_id: str,
    config: RunnableConfig | None = None,
) -> AsyncGenerator[RunEvent]:
    """Go on with a run that waits for approval; like `stream_resume`, for async code."""
    run_config = _resuming(agent, thread_id, config)
    answer = _answer_to(await agent.aget_state(run_config), decisions, thread_id)
    async with aclosing(_astreamed(agent, answer, run_config, EventReader(None))) as events:
        async for event in events:
            yield event


def _streamed(
    agent: Agent, given: Any, config: RunnableConfig, reader: EventReader
) -> Generator[RunEvent]:
    streamed: Any = agent.stream(given, config, stream_mode=list(reader.MODES))
    with closing(streamed) as items:
        for mode, data in items:
            yield from reader.read(mode, data)
    yield from reader.ended()


async def _astreamed(
    agent: Agent, given: Any, config: RunnableConfig, reader: EventReader
) -> AsyncGenerator[RunEvent]:
    streamed: Any = agent.astream(given, config, stream_mode=list(reader.MODES))
    async with aclosing(in_own_task(streamed)) as items:
        async for mode, data in items:
            for event in reader.read(mode, data):
                yield event
    for event in reader.ended():
        yield event


def _prepared(
    agent: Agent, question: str, *, thread_id: str | None, config: RunnableConfig | None
) -> tuple[HumanMessage, RunnableConfig]:
    if not question.strip():
        raise InvalidQueryError("The question is empty; ask something")
    if not is_unicode(question):
        raise InvalidQueryError("The question is not valid Unicode: it holds half a surrogate")
    run_config: RunnableConfig = {**config} if config else {}
    configurable = dict(run_config.get("configurable", {}))
    if thread_id is not None:
        configurable["thread_id"] = thread_id
    if agent.checkpointer and "thread_id" not in configurable:
        raise ConfigurationError("This agent keeps threads; say which one with thread_id=…")
    if configurable:
        run_config["configurable"] = configurable
    return HumanMessage(question, id=str(uuid4())), run_config


def _resuming(agent: Agent, thread_id: str, config: RunnableConfig | None) -> RunnableConfig:
    if not agent.checkpointer:
        raise ConfigurationError(
            "This agent keeps no threads, so no run of it waits; give it a checkpointer"
        )
    configurable = dict((config or {}).get("configurable", {}))
    if "checkpoint_id" in configurable:
        raise ApprovalError("A decision is on what a thread waits for now; leave out checkpoint_id")
    return {**(config or {}), "configurable": {**configurable, "thread_id": thread_id}}


def _answer_to(
    state: StateSnapshot, decisions: Sequence[Mapping[str, Any]], thread_id: str
) -> Command[Any]:
    waiting = pending_approvals(state.interrupts)
    if not waiting:
        other = (
            " What it waits for is asked by a tool: answer that with Command(resume=…)."
            if state.interrupts
            else ""
        )
        raise ApprovalError(f"Nothing in thread {thread_id!r} waits for approval.{other}")
    answer = {"decisions": list(decisions)}
    return Command(resume=dict.fromkeys(waiting, answer))
