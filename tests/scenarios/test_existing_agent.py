"""`ToolRAGMiddleware` alone, as one list item of an agent that was there before (RET-10)."""

from __future__ import annotations

import logging

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel

from agent import RunLimits, ToolRAGMiddleware, create_tool_rag_agent
from registry.errors import ConfigurationError, RegistryUnavailableError, RunLimitError
from registry.toolset import Toolset
from tests.scenarios.scenario_tools import numbered_toolset
from tests.support.fake_registry import AsyncFakeRegistry, FakeRegistry
from tests.support.scripted_model import ScriptedModel, asks, call, says


@tool
def own_clock(zone: str) -> str:
    """Tell the time."""
    if zone == "nowhere":
        raise LookupError("no such zone")
    return f"12:00 {zone}"


def tool_messages(output):
    return [message for message in output["messages"] if isinstance(message, ToolMessage)]


async def test_ret_10_own_tools_stay_bound_and_found_ones_come_on_top(driver, make_registry, world):
    """RET-10: public hooks only; own tools run as before, and their exceptions are observations."""
    toolset = world.toolset()
    model = ScriptedModel(
        script=[
            asks(call("own_clock", "a", zone="UTC"), call("refund_policy", "b")),
            asks(call("own_clock", "c", zone="nowhere"), call("write_note", "d", text="x")),
            says("ok"),
        ]
    )
    agent = create_agent(
        model, [own_clock], middleware=[ToolRAGMiddleware(make_registry(toolset), toolset)]
    )
    output = await driver.run(agent, "What is the refund policy?")

    assert model.requests[0].tool_names == ["own_clock", "refund_policy"]
    clock, policy, nowhere, note = tool_messages(output)
    assert (clock.content, policy.status) == ("12:00 UTC", "success")
    assert "LookupError: no such zone" in nowhere.content
    assert note.status == "error"
    assert world.notes == []


async def test_own_tool_wins_over_a_found_one_of_the_same_name(
    driver, make_registry, world, caplog
):
    @tool
    def refund_policy() -> str:
        """The agent's own refund policy."""
        return "own"

    toolset = world.toolset()
    model = ScriptedModel(script=[asks(call("refund_policy")), says("ok")])
    agent = create_agent(
        model, [refund_policy], middleware=[ToolRAGMiddleware(make_registry(toolset), toolset)]
    )
    with caplog.at_level(logging.WARNING, logger="agent"):
        output = await driver.run(agent, "What is the refund policy?")

    assert model.requests[0].tool_names == ["refund_policy"]
    assert tool_messages(output)[0].content == "own"
    assert output["offered_tools"] == []
    assert "tool_name_taken_by_agent_tool" in [record.msg for record in caplog.records]


async def test_other_middleware_still_sees_and_changes_calls(driver, make_registry, world):
    class Upper(AgentMiddleware):
        def wrap_tool_call(self, request, handler):
            result = handler(request)
            return result.model_copy(update={"content": result.content.upper()})

        async def awrap_tool_call(self, request, handler):
            result = await handler(request)
            return result.model_copy(update={"content": result.content.upper()})

    toolset = world.toolset()
    for order in (0, 1):
        layers = [ToolRAGMiddleware(make_registry(toolset), toolset)]
        layers.insert(order, Upper())
        model = ScriptedModel(script=[asks(call("refund_policy")), says("ok")])
        output = await driver.run(create_agent(model, middleware=layers), "refund policy")
        assert tool_messages(output)[0].content == "REFUNDS WITHIN 30 DAYS AFTER DELIVERY"


async def test_structured_answers_still_work(driver, make_registry, world):
    class Verdict(BaseModel):
        """The verdict."""

        refunded: bool

    toolset = world.toolset()
    model = ScriptedModel(
        script=[asks(call("refund_policy", "a")), asks(call("Verdict", "b", refunded=True))]
    )
    agent = create_tool_rag_agent(
        model, registry=make_registry(toolset), toolset=toolset, response_format=Verdict
    )
    result = await driver.ask(agent, "What is the refund policy?")
    assert result.structured_response == Verdict(refunded=True)
    assert result.stop_reason == "answered"
    assert result.to_dict()["structured_response"] == {"refunded": True}


async def test_sync_run_with_an_async_registry_says_what_to_do(world):
    toolset = world.toolset()
    agent = create_tool_rag_agent(
        ScriptedModel(script=[]), registry=AsyncFakeRegistry(toolset), toolset=toolset
    )
    with pytest.raises(ConfigurationError, match="ainvoke"):
        agent.invoke({"messages": "refund policy"})


async def test_search_that_fails_is_an_error_of_ours(driver, make_registry, world):
    toolset = world.toolset()
    registry = make_registry(toolset)
    getattr(registry, "sync_twin", registry).is_away = True
    agent = create_tool_rag_agent(ScriptedModel(script=[]), registry=registry, toolset=toolset)
    with pytest.raises(RegistryUnavailableError):
        await driver.ask(agent, "refund policy")


async def test_too_many_own_tools_are_refused_in_one_line(driver, make_registry):
    own = numbered_toolset(129)
    agent = create_agent(
        ScriptedModel(script=[]),
        list(own.values()),
        middleware=[ToolRAGMiddleware(make_registry(Toolset()), Toolset())],
    )
    with pytest.raises(ConfigurationError, match="129"):
        await driver.run(agent, "hello")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"k": 0}, "k is 0"),
        ({"k": 10_000}, "k is 10000"),
        ({"threshold": 1.5}, "threshold is 1.5"),
        ({"threshold": float("nan")}, "threshold is nan"),
        ({"max_offered": 0}, "max_offered is 0"),
        ({"max_offered": 129}, "max_offered is 129"),
        ({"on_no_match": "guess"}, "on_no_match is 'guess'"),
        ({"pinned": ["refund_polic"]}, "Nearest: refund_policy"),
        ({"pinned": ["refund_policy", "write_note"], "max_offered": 1}, "2 tools are pinned"),
    ],
)
def test_bad_options_are_one_clear_line(options, said, world):
    toolset = world.toolset()
    with pytest.raises(ConfigurationError, match=said) as caught:
        ToolRAGMiddleware(FakeRegistry(toolset), toolset, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("nonsense-model", "nonsense-model"),
        ("nowhere:model", "nowhere"),
        ("", "empty"),
        ("openai:gpt-4.1-mini", "openai:gpt-4.1-mini"),
    ],
)
def test_model_names_that_cannot_be_used(model, said, world, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    toolset = world.toolset()
    with pytest.raises(ConfigurationError, match=said) as caught:
        create_tool_rag_agent(model, registry=FakeRegistry(toolset), toolset=toolset)
    assert "\n" not in str(caught.value)


def test_model_that_cannot_call_tools_is_refused(world):
    from langchain_core.language_models import FakeListChatModel

    toolset = world.toolset()
    with pytest.raises(ConfigurationError, match="cannot call tools"):
        create_tool_rag_agent(
            FakeListChatModel(responses=["x"]), registry=FakeRegistry(toolset), toolset=toolset
        )


def test_step_limit_of_the_factory_is_checked(world):
    toolset = world.toolset()
    with pytest.raises(RunLimitError):
        create_tool_rag_agent(
            ScriptedModel(script=[]),
            registry=FakeRegistry(toolset),
            toolset=toolset,
            limits=RunLimits(max_steps=0),
        )
