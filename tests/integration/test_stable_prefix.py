"""What a provider's prompt cache sees of a thread: tools, then system message, then messages."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from agent import ask, create_tool_rag_agent
from registry import RegistrySettings, ToolRegistry, Toolset, UsageLog, UsageSettings
from tests.integration.test_usage_log import rows
from tests.support.embeddings import HashEmbeddings
from tests.support.openai_client import see_only_localhost
from tests.support.openai_server import OpenAIServer, RecordedRequest

TOPICS = (
    "weather harbour ledger parcel violin glacier passport orchard satellite pension tunnel museum"
).split()


@pytest.fixture(autouse=True)
def only_localhost(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    asked = see_only_localhost(monkeypatch)
    yield
    assert asked == []


@pytest.fixture
def toolset() -> Toolset:
    return Toolset(
        StructuredTool.from_function(
            lambda name: f"{name}: done",
            name=f"{topic}_{kind}",
            description=f"{kind} {topic}",
            args_schema={"type": "object", "properties": {"name": {"type": "string"}}},
        )
        for topic in TOPICS
        for kind in ("lookup", "booking", "removal", "report", "archive")
    )


def parts(request: RecordedRequest) -> tuple[list[str], str, list[str]]:
    """Return the texts of tools, system message and other messages, as they were sent."""
    system, *others = request.messages
    assert system["role"] == "system"
    return (
        [json.dumps(tool) for tool in request.body.get("tools") or ()],
        json.dumps(system),
        [json.dumps(message) for message in others],
    )


def test_over_ten_turns_every_request_begins_with_the_one_before(
    database_url: str, toolset: Toolset
) -> None:
    """RET-6 among it: tools are called by name, looked for, and used; each turn may add some."""
    script: list[Any] = []
    for turn in range(10):
        topic, later = TOPICS[turn], TOPICS[(turn + 1) % len(TOPICS)]
        right = {"name": f"{topic}_lookup", "args": {"name": "x"}}
        if turn % 3 == 1:
            search = {"name": "search_tools", "args": {"query": f"archive {later}"}}
            script += [{"tool_calls": [search, right]}]
        if turn % 4 == 2:
            script += [{"tool_calls": [{"name": f"{later}_removal", "args": {"name": "y"}}]}]
        script += [{"tool_calls": [right]}, f"Answer {turn}."]

    log = UsageLog(database_url, settings=UsageSettings(flush_interval_s=0.01))
    with (
        ToolRegistry(
            database_url, embeddings=HashEmbeddings(256), settings=RegistrySettings(pool_size=2)
        ) as registry,
        OpenAIServer(chat=script, require_definitions=True) as server,
    ):
        registry.sync(toolset)
        agent = create_tool_rag_agent(
            ChatOpenAI(
                model="scripted",
                base_url=server.base_url,
                api_key=server.api_key,  # type: ignore[arg-type]
                max_retries=0,
            ),
            registry=registry,
            toolset=toolset,
            k=2,
            threshold=0,
            strategy="retrieval",
            pinned=["museum_report"],
            max_offered=64,  # of which half are kept before any make way
            usage_log=log,
            checkpointer=InMemorySaver(),
        )
        for turn in range(10):
            result = ask(agent, f"Please do the {TOPICS[turn]} lookup", thread_id="t")
            assert result.answer == f"Answer {turn}."
        log.close()
        assert server.unused_replies == 0
        requests = [parts(request) for request in server.chat_requests]

    names = [tool.name for tool in result.offered_tools]
    # 60 tools are above 50, so the model can search; it and the pinned tool stand first.
    assert server.chat_requests[-1].tool_names == ["search_tools", *names]
    assert names[0] == "museum_report"
    assert 16 < len(names) <= 32
    for (tools, system, messages), (next_tools, next_system, next_messages) in itertools.pairwise(
        requests
    ):
        assert next_tools[: len(tools)] == tools
        assert next_system == system
        assert next_messages[: len(messages)] == messages

    results = [m for m in result.messages if isinstance(m, ToolMessage)]
    assert [message.status for message in results] == ["success"]
    assert_searches_are_recorded(database_url)


def assert_searches_are_recorded(database_url: str) -> None:
    """A search is a selection of its own, and a call in the selection of the question."""
    searches = rows(
        database_url,
        "SELECT s.query_snippet, s.thread_id, s.run_id, count(u.*) AS hits, "
        "count(u.*) FILTER (WHERE u.was_offered) AS offered "
        "FROM tool_selection AS s LEFT JOIN tool_usage_log AS u ON u.selection_id = s.id "
        "WHERE s.strategy = 'search_tools' GROUP BY s.id ORDER BY s.created_at",
    )
    assert [row["query_snippet"] for row in searches] == [
        f"archive {TOPICS[turn + 1]}" for turn in (1, 4, 7)
    ]
    assert all((row["thread_id"], row["hits"], row["offered"]) == ("t", 2, 2) for row in searches)
    missed = rows(
        database_url,
        "SELECT s.query_snippet, s.run_id, u.was_offered, u.call_status FROM tool_selection AS s "
        "JOIN tool_usage_log AS u ON u.selection_id = s.id "
        "WHERE u.tool_name = 'search_tools' AND u.was_called ORDER BY s.created_at",
    )
    assert [(row["query_snippet"], row["was_offered"], row["call_status"]) for row in missed] == [
        (f"Please do the {TOPICS[turn]} lookup", True, "success") for turn in (1, 4, 7)
    ]
    assert [row["run_id"] for row in missed] == [row["run_id"] for row in searches]
