"""The code of docs/streaming.md runs as it stands there."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from agent import create_tool_rag_agent
from agent import events as event_types
from registry.toolset import Toolset
from tests.support.fake_registry import FakeRegistry
from tests.support.scripted_model import ScriptedModel, asks, call, says

TEXT = (Path(__file__).parents[2] / "docs" / "streaming.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@tool
def order_status(order_id: int) -> str:
    """Tell where an order is."""
    return "on its way"


@tool
def refund(order_id: int) -> str:
    """Refund an order."""
    return "refunded"


def test_the_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    model = ScriptedModel(
        script=[
            asks(call("order_status", "a", order_id=7)),
            says("On its way."),
            says("Asynchronously."),
            asks(call("refund", "b", order_id=7)),
            says("Refunded."),
            says("As events."),
        ]
    )
    toolset = Toolset([order_status, refund])
    agent = create_tool_rag_agent(
        model,
        registry=FakeRegistry(toolset),
        toolset=toolset,
        threshold=0,
        checkpointer=InMemorySaver(),
        approval={"refund": True},
    )
    scope: dict[str, Any] = {"agent": agent, "__name__": "docs"}
    sync, with_async, approvals, server = BLOCKS

    exec(sync, scope)
    assert capsys.readouterr().out == "[order_status: success]\nOn its way."
    assert scope["result"].answer == "On its way."

    exec(with_async, scope)
    assert asyncio.run(scope["answer"]("And now?")) == "Asynchronously."

    exec(approvals, scope)
    assert scope["pending"] == ()
    assert model.requests[-1].messages[-1].text == "refunded"

    exec(server, scope)
    response = asyncio.run(post(scope["app"]))
    assert response.headers["content-type"].startswith("text/event-stream")
    told = re.findall(r"^event: (\w+)", response.text, re.MULTILINE)
    assert told == ["tools_offered", "text", "ended"]


async def post(app: Any) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://docs") as client:
        return await client.post("/threads/t2/messages", params={"text": "Hello"})


def test_every_event_and_its_type_is_in_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", TEXT, re.MULTILINE)
    kinds = [
        (name, kind.type)
        for name in event_types.__all__
        if hasattr(kind := getattr(event_types, name), "type")
    ]
    assert sorted(rows) == sorted(kinds)
