"""A thread that is worked on by processes which are killed: its agent, its tools, its worker.

The tools write down what they do in a file, a line each, in the middle of their work.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, tool

from agent import (
    DurableThreads,
    RunResult,
    ToolPolicy,
    aask,
    acontinue_run,
    ask,
    continue_run,
    create_tool_rag_agent,
)
from registry import AsyncToolRegistry, ToolRegistry, Toolset
from registry.errors import ThreadBusyError
from tests.support.embeddings import HashEmbeddings
from tests.support.scripted_model import ScriptedModel, asks, call, says

_STARTER = multiprocessing.get_context("forkserver")
_STARTER.set_forkserver_preload([__name__])

QUESTION = "Charge the orders"
STEPS = (("charge", "look", "charge"), ("charge", "refresh"), ("charge",))


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a worker works on.

    Attributes:
        url: Of the registry's database.
        log: Where the tools write what they do.
        is_async: An async registry and async runs.
        delay_s: How long a tool works before and after its effect, and a model thinks.
        lease_s: See `DurableThreads`.
    """

    url: str
    log: Path
    is_async: bool = False
    delay_s: float = 0.0
    lease_s: int = 2

    @property
    def toolset(self) -> Toolset:
        return Toolset(self._tools())

    def _tools(self) -> list[BaseTool]:
        def work(what: str) -> str:
            time.sleep(self.delay_s)
            file = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(file, f"{what}\n".encode())
            os.close(file)
            time.sleep(self.delay_s)
            return f"did {what}"

        @tool
        def charge(thread: str, order: int) -> str:
            """Charge an order to the customer's card."""
            return work(f"charge {thread} {order}")

        @tool
        def look(thread: str, order: int) -> str:
            """Look an order up."""
            return work(f"look {thread} {order}")

        @tool
        def refresh(thread: str, order: int) -> str:
            """Refresh an order's cached copy."""
            return work(f"refresh {thread} {order}")

        look.metadata = {"read_only": True}
        return [charge, look, refresh]

    def register(self) -> Work:
        """Register the tools."""
        with replace(self, is_async=False).registry() as registry:  # type: ignore[union-attr]
            registry.sync(self.toolset)
        return self

    def registry(self) -> ToolRegistry | AsyncToolRegistry:
        kind = AsyncToolRegistry if self.is_async else ToolRegistry
        return kind(self.url, embeddings=HashEmbeddings())

    def agent(self, registry: Any, script: Any = None, **options: Any) -> Any:
        options.setdefault("policies", {"refresh": ToolPolicy(idempotent=True)})
        return create_tool_rag_agent(
            ScriptedModel(script=self._reply if script is None else script),
            registry=registry,
            toolset=self.toolset,
            threshold=0,
            durable=DurableThreads(lease_s=self.lease_s),
            usage_log=False,
            **options,
        )

    def _reply(self, messages: list[BaseMessage]) -> AIMessage:
        time.sleep(self.delay_s)
        newest = max(at for at, m in enumerate(messages) if isinstance(m, HumanMessage))
        thread = str(messages[newest].content).rpartition(" ")[2]
        step = sum(isinstance(message, AIMessage) for message in messages[newest:])
        if not str(messages[newest].content).startswith(QUESTION) or step >= len(STEPS):
            return says(f"Thread {thread} is done.")
        first = sum(len(names) for names in STEPS[:step])
        # The ids are the same in every thread and at every question, as with some providers.
        return asks(
            *(
                call(name, f"call_{at}", thread=thread, order=at)
                for at, name in enumerate(STEPS[step], start=first)
            )
        )

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Open the registry, and make the agent."""
        if not self.is_async:
            with self.registry() as registry:  # type: ignore[union-attr]
                yield Session(self.agent(registry))
            return
        with asyncio.Runner() as runner:
            registry = self.registry()
            runner.run(registry.open())  # type: ignore[arg-type]
            try:
                yield Session(self.agent(registry), runner)
            finally:
                runner.run(registry.close())  # type: ignore[arg-type]


@dataclass(frozen=True)
class Session:
    """An agent, asked the sync or the async way."""

    agent: Any
    runner: asyncio.Runner | None = None

    def begin(self, thread_id: str) -> RunResult:
        """Ask the first question."""
        return self._ask(f"{QUESTION} {thread_id}", thread_id)

    def finish(self, thread_id: str) -> RunResult:
        """Go on with a thread as soon as nobody else does."""
        while True:
            with suppress(ThreadBusyError):
                if self.runner is None:
                    return continue_run(self.agent, thread_id=thread_id)
                return self.runner.run(acontinue_run(self.agent, thread_id=thread_id))
            time.sleep(0.05)

    def again(self, thread_id: str) -> RunResult:
        """Ask something that needs no tool."""
        return self._ask(f"Thanks {thread_id}", thread_id)

    def messages(self, thread_id: str) -> list[BaseMessage]:
        """Return what is stored of a thread."""
        config: Any = {"configurable": {"thread_id": thread_id}}
        if self.runner is None:
            return self.agent.get_state(config).values["messages"]
        return self.runner.run(self.agent.aget_state(config)).values["messages"]

    def _ask(self, question: str, thread_id: str) -> RunResult:
        if self.runner is None:
            return ask(self.agent, question, thread_id=thread_id)
        return self.runner.run(aask(self.agent, question, thread_id=thread_id))


def in_process(work: Work, what: str, *thread_ids: str) -> tuple[BaseProcess, Connection]:
    """Start a process that does something with threads, one after the other.

    It sends "ready" when the registry is open, and for each thread what its run answered.
    """
    ours, theirs = _STARTER.Pipe(duplex=False)
    process = _STARTER.Process(target=_do, args=(work, what, thread_ids, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _do(work: Work, what: str, thread_ids: tuple[str, ...], reports: Connection) -> None:
    with work.session() as session:
        reports.send("ready")
        for thread_id in thread_ids:
            reports.send(getattr(session, what)(thread_id).answer)


def answers_of(messages: list[BaseMessage]) -> list[ToolMessage]:
    """Return the answers to tool calls."""
    return [message for message in messages if isinstance(message, ToolMessage)]
