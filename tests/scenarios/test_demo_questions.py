"""The main job end to end: real Postgres, the built-in embedding model, the demo's own tools."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent import RunResult, StopReason, ask, create_tool_rag_agent
from agent.demo import DEMO_QUESTIONS, RETRIEVAL_QUESTIONS, demo_toolset
from agent.offline_model import OfflineChatModel
from registry import ToolRegistry, Toolset, migrate
from tests.support.databases import Databases

K = 5
# Measured 1.00, 0.94 and 0.90 (24 questions a language); three points of slack for new releases.
RECALL_FLOORS = {"en": 0.97, "de": 0.90, "ja": 0.86}
# Of the right tools that a search finds, what its threshold leaves.
KEPT_FLOORS = {"en": 0.95, "de": 0.85, "ja": 0.91}


@pytest.fixture(scope="module")
def toolset() -> Toolset:
    return demo_toolset()


@pytest.fixture(scope="module")
def registry(databases: Databases, toolset: Toolset) -> Iterator[ToolRegistry]:
    with databases.temporary() as url:
        migrate.upgrade(url)
        with ToolRegistry(url) as registry:
            report = registry.sync(toolset)
            assert not report.failed
            yield registry


def run(registry: ToolRegistry, toolset: Toolset, question: str) -> RunResult:
    agent = create_tool_rag_agent(
        OfflineChatModel(), registry=registry, toolset=toolset, k=K, strategy="hybrid"
    )
    return ask(agent, question)


def calls(result: RunResult) -> list[tuple[str, str]]:
    return [(call.tool, call.status) for step in result.steps for call in step.tool_calls]


def test_the_demo_has_enough_tools_of_enough_kinds(registry: ToolRegistry) -> None:
    tools = registry.list_tools()
    assert len(tools) >= 60
    assert len({record.spec.category for record in tools}) >= 8


def test_a_refund_is_judged_from_the_order_and_the_policy(
    registry: ToolRegistry, toolset: Toolset
) -> None:
    result = run(registry, toolset, DEMO_QUESTIONS[0].text)
    assert calls(result) == [("lookup_order", "success"), ("refund_policy", "success")]
    assert "can be refunded" in result.answer
    assert "2026-10-31" in result.answer
    assert result.stop_reason is StopReason.ANSWERED


def test_the_weather_in_tokyo(registry: ToolRegistry, toolset: Toolset) -> None:
    result = run(registry, toolset, DEMO_QUESTIONS[1].text)
    assert calls(result) == [("get_weather", "success")]
    assert "18" in result.answer


def test_two_dependent_calls_make_ninety_three(registry: ToolRegistry, toolset: Toolset) -> None:
    result = run(registry, toolset, DEMO_QUESTIONS[2].text)
    assert [status for _, status in calls(result)] == ["success", "success"]
    assert calls(result)[0][0] == "get_weather"
    assert result.steps[1].tool_calls[0].observation.startswith("93")
    assert "93" in result.answer


def test_a_division_by_zero_is_mended_by_the_error_message(
    registry: ToolRegistry, toolset: Toolset
) -> None:
    result = run(registry, toolset, DEMO_QUESTIONS[3].text)
    first, second = (step.tool_calls[0] for step in result.steps)
    assert first.status == "error"
    assert "division by zero" in first.observation
    assert second.status == "success"
    assert "2.5" in result.answer


def test_the_stock_price_needs_at_most_k_tools(registry: ToolRegistry, toolset: Toolset) -> None:
    result = run(registry, toolset, DEMO_QUESTIONS[4].text)
    assert calls(result) == [("get_stock_price", "success")]
    assert 1 <= len(result.offered_tools) <= K


@pytest.mark.parametrize("language", sorted(RECALL_FLOORS))
def test_the_right_tools_are_found_in_three_languages(
    registry: ToolRegistry, language: str
) -> None:
    questions = [q for q in RETRIEVAL_QUESTIONS if q.lang == language]
    assert len(questions) >= 12
    recall, right, kept = 0.0, 0, 0
    for question in questions:
        hits = registry.search(question.text, k=K, threshold=0)
        found = [hit for hit in hits if hit.tool_name in question.relevant]
        recall += len(found) / len(question.relevant)
        right += len(found)
        kept += sum(hit.relevance >= registry.threshold for hit in found)
    assert recall / len(questions) >= RECALL_FLOORS[language]
    assert kept / right >= KEPT_FLOORS[language]


def test_ret_3_a_question_that_no_tool_fits_is_offered_none(databases: Databases) -> None:
    """RET-3: a catalogue of file tools, and a dentist: nothing is offered, nothing is called."""

    def copy_file(source: str, target: str) -> str:
        """Copy a file to another folder on the disk."""
        return f"{source} {target}"

    def delete_file(path: str) -> str:
        """Delete a file from the disk."""
        return path

    def list_folder(path: str) -> str:
        """List the files of a folder with their sizes."""
        return path

    toolset = Toolset([copy_file, delete_file, list_folder])
    with databases.temporary() as url:
        migrate.upgrade(url)
        with ToolRegistry(url) as registry:
            registry.sync(toolset)
            question = "Please book me an appointment with a dentist for my toothache"
            scores = registry.search(question, threshold=0)
            assert len(scores) == 3, "the scores are there to be seen"
            assert registry.search(question) == []
            result = run(registry, toolset, question)
    assert result.offered_tools == ()
    assert result.steps == ()
    assert result.answer
