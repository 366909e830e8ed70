"""Going on with a run that ended before it was done, in this process or in another."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateSnapshot

from agent.durable.store import checked_thread_id
from agent.result import RunResult, read_run
from registry.errors import ConfigurationError, ThreadNotFoundError

__all__ = ["acontinue_run", "continue_run"]

_Agent = CompiledStateGraph[Any, Any, Any, Any]


def continue_run(
    agent: _Agent, *, thread_id: str, config: RunnableConfig | None = None
) -> RunResult:
    """Go on with a thread's last run where it stopped, and return what it did in all.

    Finished calls are not run again. Of a durable agent, a call that may have happened is run
    again only if its tool is read-only or idempotent; else the model is told that its outcome is
    unknown. A run that is over gives its result once more; one that waits for approval stays so.

    Args:
        agent: With `durable=True`, or a checkpointer.
        thread_id: Conversation to go on with.
        config: More LangGraph settings of this run.

    Raises:
        ThreadBusyError: A run of the thread is under way, or was killed a moment ago.
        ThreadNotFoundError: Nothing was ever asked in this thread.
        ConfigurationError: The agent keeps no threads, or it is no usable thread id.
    """
    run_config = _of(agent, thread_id, config)
    _check_there(agent.get_state(run_config), thread_id)
    return read_run(agent.invoke(None, run_config))


async def acontinue_run(
    agent: _Agent, *, thread_id: str, config: RunnableConfig | None = None
) -> RunResult:
    """Go on with a thread's last run where it stopped; like `continue_run`, for async code."""
    run_config = _of(agent, thread_id, config)
    _check_there(await agent.aget_state(run_config), thread_id)
    return read_run(await agent.ainvoke(None, run_config))


def _of(agent: _Agent, thread_id: str, config: RunnableConfig | None) -> RunnableConfig:
    if not agent.checkpointer:
        raise ConfigurationError(
            "This agent keeps no threads, so there is nothing to go on with; make it durable"
        )
    configurable = {**((config or {}).get("configurable") or {})}
    if "checkpoint_id" in configurable:
        raise ConfigurationError("A run goes on where its thread stands; leave out checkpoint_id")
    return {
        **(config or {}),
        "configurable": {**configurable, "thread_id": checked_thread_id(thread_id)},
    }


def _check_there(state: StateSnapshot, thread_id: str) -> None:
    if state.created_at is None:
        raise ThreadNotFoundError(thread_id)
