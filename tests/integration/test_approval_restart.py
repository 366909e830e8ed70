"""A call waits for approval in Postgres, and another process goes on with it (APR-5)."""

from __future__ import annotations

import asyncio
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.postgres import PostgresSaver

from agent import approve, aresume, ask, create_tool_rag_agent, edit, reject, resume
from registry.errors import ApprovalError
from registry.toolset import Toolset
from tests.support.databases import psycopg_url
from tests.support.fake_registry import FakeRegistry
from tests.support.scripted_model import ScriptedModel, asks, call, says

BATCH = asks(
    call("append_log", "l", line="x"),
    call("delete_row", "d", row=1),
    call("send_note", "s", text="hello"),
)


def agent_over(saver: Any, log: Path, *script: Any) -> Any:
    def run(name: str, **arguments: Any) -> str:
        with log.open("a") as file:
            file.write(f"{name} {arguments}\n")
        return f"{name} ran"

    @tool
    def append_log(line: str) -> str:
        """Append a line to the log."""
        return run("append_log", line=line)

    @tool
    def delete_row(row: int) -> str:
        """Delete a row of the table."""
        return run("delete_row", row=row)

    @tool
    def send_note(text: str) -> str:
        """Send a note to somebody."""
        return run("send_note", text=text)

    toolset = Toolset([append_log, delete_row, send_note])
    return create_tool_rag_agent(
        ScriptedModel(script=list(script)),
        registry=FakeRegistry(toolset),
        toolset=toolset,
        approval={"delete_row": True, "send_note": True},
        checkpointer=saver,
        threshold=0,
        k=5,
    )


def go_on(url: str, log: Path, decisions: list[Any]) -> None:
    with PostgresSaver.from_conn_string(url) as saver:
        result = resume(agent_over(saver, log, says("Done.")), decisions, thread_id="t")
    assert (result.answer, result.pending) == ("Done.", ())


async def ago_on(url: str, log: Path, decisions: list[Any]) -> None:
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

    async with AsyncPostgresSaver.from_conn_string(url) as saver:
        agent = agent_over(saver, log, says("Done."))
        result = await aresume(agent, decisions, thread_id="t")
    assert (result.answer, result.pending) == ("Done.", ())


def ago_on_in_process(url: str, log: Path, decisions: list[Any]) -> None:
    asyncio.run(ago_on(url, log, decisions))


def in_another_process(work: Any, *arguments: Any) -> int | None:
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join(120)
    return process.exitcode


@pytest.mark.parametrize("work", [go_on, ago_on_in_process], ids=["sync", "async"])
def test_apr_5_another_process_goes_on(work: Any, database_url: str, tmp_path: Path) -> None:
    """APR-5, APR-8: each tool runs once; an answer to the saved point is told that it is late."""
    url, log = psycopg_url(database_url), tmp_path / "log"
    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        agent = agent_over(saver, log, BATCH, says("Never said."))
        first = ask(agent, "Log, delete, send", thread_id="t")
        assert [pending.call_id for pending in first.pending] == ["d", "s"]
        saved = agent.get_state({"configurable": {"thread_id": "t"}})
        assert not log.exists()

        decisions = [edit("s", {"text": "changed"}), approve("d")]
        assert in_another_process(work, url, log, decisions) == 0
        ran = sorted(log.read_text().splitlines())
        assert ran == [
            "append_log {'line': 'x'}",
            "delete_row {'row': 1}",
            "send_note {'text': 'changed'}",
        ]
        # This process has seen nothing of it, and the saved point looks as if it waited still.
        from langgraph.types import Command

        late = Command(resume={"decisions": [approve("d"), reject("s")]})
        with pytest.raises(ApprovalError, match="settled already"):
            agent.invoke(late, saved.config)
        with pytest.raises(ApprovalError, match="Nothing in thread 't' waits"):
            resume(agent, decisions, thread_id="t")
        [at_tools] = [
            state
            for state in agent.get_state_history({"configurable": {"thread_id": "t"}})
            if state.next and set(state.next) == {"tools"}
        ]
        output = agent.invoke(None, at_tools.config)
        refused = [m for m in output["messages"] if getattr(m, "status", "") == "error"]
        assert {message.tool_call_id for message in refused} == {"d", "s"}
        again = sorted(log.read_text().splitlines())
        assert [line for line in again if not line.startswith("append_log")] == ran[1:]
