"""What is bound and what may be called (RET-1, RET-3, RET-5, RET-7)."""

from __future__ import annotations

import json
import logging

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, Tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel, PrivateAttr

from agent import create_tool_rag_agent
from agent.selection import late_offer
from registry.toolset import Toolset
from tests.scenarios.scenario_tools import numbered_toolset
from tests.support.scripted_model import ScriptedModel, asks, call, says


def names(output) -> list[str]:
    return [entry["name"] for entry in output["offered_tools"]]


async def test_only_what_was_found_is_bound(driver, make_registry, world):
    toolset = world.toolset()
    model = ScriptedModel(script=[says("30 days")])
    agent = create_tool_rag_agent(model, registry=make_registry(toolset), toolset=toolset, k=2)

    result = await driver.ask(agent, "What is the refund policy of the shop?")

    assert model.requests[0].tool_names == ["refund_policy"]
    assert [(tool.name, tool.pinned) for tool in result.offered_tools] == [("refund_policy", False)]
    assert result.offered_tools[0].relevance >= 0.2


async def test_the_model_sees_the_registrys_name_and_description_and_the_tool_runs(
    driver, make_registry, world
):
    """The bound tool is a copy under the registry's name; the live tool stays as it is."""
    toolset = Toolset(world.tools(), origin="mcp:shop")
    live = toolset["shop__refund_policy"]
    registry = make_registry(toolset)
    specs = getattr(registry, "sync_twin", registry).specs
    specs["shop__refund_policy"] = specs["shop__refund_policy"].replace(
        description="Shop refund policy, as edited in the registry. " + "More words. " * 200
    )
    model = ScriptedModel(script=[asks(call("shop__refund_policy")), says("30 days")])
    agent = create_tool_rag_agent(model, registry=registry, toolset=toolset, threshold=0, k=1)

    result = await driver.ask(agent, "Shop refund policy edited registry more words")

    assert model.requests[0].tool_names == ["shop__refund_policy"]
    described = model.requests[0].description("shop__refund_policy")
    assert described.startswith("Shop refund policy, as edited in the registry.")
    assert len(described) <= 1_024
    assert result.steps[0].tool_calls[0].observation == "Refunds within 30 days after delivery"
    assert (live.name, live.description) == ("refund_policy", "The refund policy of the shop.")


class Counter(BaseTool):
    """A tool class with private state of its own."""

    name: str = "count up"
    description: str = "Count up by one."
    _count: list[int] = PrivateAttr(default_factory=list)

    def _run(self) -> str:
        self._count.append(1)
        return f"counted {len(self._count)}"


class PageArguments(BaseModel):
    """Which page."""

    page: int


async def fetch(page: int) -> str:
    return f"page {page}"


@pytest.mark.parametrize(
    ("live", "arguments", "observed"),
    [
        (
            StructuredTool.from_function(
                func=lambda page: f"page {page}",
                name="read/page",
                description="Read.",
                args_schema={
                    "type": "object",
                    "properties": {"page": {"type": "integer"}},
                    "required": ["page"],
                },
            ),
            {"page": 2},
            "page 2",
        ),
        (
            StructuredTool.from_function(
                func=lambda page: f"page {page}",
                coroutine=fetch,
                name="read page",
                description="Read.",
                args_schema=PageArguments,
            ),
            {"page": 2},
            "page 2",
        ),
        (Tool(name="shout.it", func=str.upper, description="Shout."), {"__arg1": "hi"}, "HI"),
        (Counter(), {}, "counted 1"),
    ],
    ids=["dict schema", "pydantic schema", "single input", "own class"],
)
async def test_copies_of_every_kind_of_tool_run(live, arguments, observed, driver, make_registry):
    """Names no provider takes are replaced in a copy; the copy does what the live tool does."""
    toolset = Toolset([live])
    [spec] = toolset.specs
    model = ScriptedModel(script=[asks(call(spec.tool_name, **arguments)), says("ok")])
    agent = create_tool_rag_agent(
        model, registry=make_registry(toolset), toolset=toolset, threshold=0
    )
    original = (live.name, live.description)

    [step] = (await driver.ask(agent, "Do it")).steps

    assert step.tool_calls[0].status == "success"
    # A class with state keeps counting over the runs of this test.
    assert step.tool_calls[0].observation.rstrip("0123456789") == observed.rstrip("0123456789")
    assert model.requests[0].tool_names == [spec.tool_name]
    assert spec.tool_name != live.name
    assert (live.name, live.description) == original


async def test_list_content_question_is_searched_by_its_text(driver, make_registry, world):
    toolset = world.toolset()
    registry = make_registry(toolset)
    agent = create_tool_rag_agent(
        ScriptedModel(script=[says("ok")]), registry=registry, toolset=toolset
    )
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

    await driver.run(agent, [{"type": "text", "text": "refund policy"}, picture])

    assert getattr(registry, "sync_twin", registry).searched == ["refund policy"]


async def test_question_without_text_is_not_searched(driver, make_registry, world):
    toolset = world.toolset()
    registry = make_registry(toolset)
    model = ScriptedModel(script=[says("A picture.")])
    agent = create_tool_rag_agent(model, registry=registry, toolset=toolset)
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

    output = await driver.run(agent, [picture])

    assert getattr(registry, "sync_twin", registry).searched == []
    assert output["offered_tools"] == []
    assert model.requests[0].tools == ()


async def test_hit_without_a_live_tool_is_not_offered(driver, make_registry, world, caplog):
    here = Toolset(world.tools()[1:])
    model = ScriptedModel(script=[says("ok")])
    agent = create_tool_rag_agent(
        model, registry=make_registry(world.toolset()), toolset=here, threshold=0, k=8
    )
    with caplog.at_level(logging.WARNING, logger="agent"):
        output = await driver.run(agent, "Look up an order")

    assert "lookup_order" not in model.requests[0].tool_names
    assert output["last_selection"]["unbound"] == ["lookup_order"]
    assert "hits_without_live_tool" in [record.msg for record in caplog.records]


# --- RET-1


async def test_ret_1_200_hits_are_capped_and_the_drop_is_reported(driver, make_registry, caplog):
    """RET-1: the strict model refuses more than 128; pinned tools are kept; the drop is logged."""
    toolset = numbered_toolset(200)
    model = ScriptedModel(script=[says("ok")])
    agent = create_tool_rag_agent(
        model,
        registry=make_registry(toolset),
        toolset=toolset,
        k=200,
        max_offered=128,
        pinned=["gauge_199"],
    )
    with caplog.at_level(logging.WARNING, logger="agent"):
        output = await driver.run(agent, "Read the pressure gauge")

    bound = model.requests[0].tool_names
    assert len(bound) == 128
    assert bound[0] == "gauge_199"
    assert len(output["last_selection"]["dropped"]) == 72
    [record] = [record for record in caplog.records if record.msg == "offered_tools_dropped"]
    assert len(record.tool_names) == 72


async def test_ret_1_the_agents_own_tools_count(driver, make_registry):
    """RET-1: 100 tools of the agent's own leave room for 28, and the rest cannot be called."""
    own = numbered_toolset(100)
    found = Toolset(
        tool.model_copy(update={"name": f"found_{n}"}) for n, tool in enumerate(own.values())
    )
    model = ScriptedModel(script=[asks(call("found_99", "c1")), says("ok")])
    agent = create_tool_rag_agent(
        model,
        registry=make_registry(found),
        toolset=found,
        k=100,
        max_offered=100,
        tools=list(own.values()),
    )
    output = await driver.run(agent, "Read the pressure gauge found")

    assert len(model.requests[0].tool_names) == 128
    assert len(names(output)) == 28
    assert "found_99" not in names(output)
    [answer] = [m for m in output["messages"] if isinstance(m, ToolMessage)]
    assert answer.status == "error"


async def test_ret_1_a_long_thread_is_offered_new_tools_all_the_same(driver, make_registry):
    """RET-1, RET-7: the least recently found go; a stand-in defines what the history calls."""
    toolset = Toolset(
        tool.model_copy(update={"name": f"topic{n}_read", "description": f"Read topic{n}."})
        for n, tool in enumerate(numbered_toolset(12).values())
    )

    def script(messages) -> AIMessage:
        if messages[-1].text == "topic0" and isinstance(messages[-1], HumanMessage):
            return asks(call("topic0_read", "first"))
        return says("ok")

    model = ScriptedModel(script=script, require_definitions=True)
    agent = create_tool_rag_agent(
        model,
        registry=make_registry(toolset),
        toolset=toolset,
        k=1,
        threshold=0.3,
        max_offered=4,
        pinned=["topic11_read"],
        checkpointer=InMemorySaver(),
    )
    for turn in range(10):
        output = await driver.run(agent, f"topic{turn}", thread_id="t")

    assert names(output) == ["topic11_read", "topic7_read", "topic8_read", "topic9_read"]
    assert output["last_selection"]["dropped"] == ["topic6_read"]
    assert "topic0_read" in model.requests[-1].tool_names


# --- RET-3


@pytest.mark.parametrize("on_no_match", ["answer", "best_hit"])
async def test_ret_3_nothing_above_the_threshold(on_no_match, driver, make_registry, world, caplog):
    """RET-3: no tool fits a dentist's appointment; scores are logged and shown."""
    toolset = world.toolset()
    model = ScriptedModel(script=[says("No tool of mine books a dentist.")])
    agent = create_tool_rag_agent(
        model,
        registry=make_registry(toolset),
        toolset=toolset,
        threshold=0.9,
        on_no_match=on_no_match,
    )
    with caplog.at_level(logging.INFO, logger="agent"):
        output = await driver.run(agent, "Book a dentist, then write it down")

    best = output["last_selection"]["hits"][0]["name"]
    assert model.requests[0].tool_names == ([] if on_no_match == "answer" else [best])
    assert all(hit["relevance"] < 0.9 for hit in output["last_selection"]["hits"])
    [record] = [record for record in caplog.records if record.msg == "tools_selected"]
    assert record.selection == output["last_selection"]
    assert record.selection["threshold"] == 0.9


async def test_ret_3_threshold_none_is_the_embedding_models_own(driver, make_registry, world):
    """RET-3: the floor is absolute, not relative to the best hit."""
    toolset = world.toolset()
    agent = create_tool_rag_agent(
        ScriptedModel(script=[says("ok")]), registry=make_registry(toolset), toolset=toolset
    )
    output = await driver.run(agent, "Book a dentist")
    assert output["last_selection"]["threshold"] == 0.2
    assert output["offered_tools"] == []


# --- RET-5


async def test_ret_5_a_registered_tool_that_was_never_retrieved_does_not_run(
    driver, make_registry, world
):
    """RET-5 (a): it is unknown to this thread, so nothing runs; RET-6 says what comes of it."""
    toolset = world.toolset()
    model = ScriptedModel(script=[asks(call("write_note", text="x")), says("ok")])
    agent = create_tool_rag_agent(model, registry=make_registry(toolset), toolset=toolset, k=1)

    output = await driver.run(agent, "What is the refund policy?")

    [answer] = [m for m in output["messages"] if isinstance(m, ToolMessage)]
    assert answer.content.startswith("There is no tool 'write_note' among your tools")
    assert world.notes == []


@pytest.mark.parametrize("pinned", [False, True])
async def test_ret_5_a_tool_switched_off_a_moment_ago_does_not_run(
    pinned, driver, make_registry, set_active, world
):
    """RET-5 (b): offered and called, then switched off; the next call is refused."""
    toolset = world.toolset()
    registry = make_registry(toolset)
    model = ScriptedModel(
        script=[
            asks(call("write_note", "a", text="x")),
            says("Written."),
            asks(call("write_note", "b", text="y")),
            says("Not possible any more."),
        ],
        require_definitions=True,
    )
    agent = create_tool_rag_agent(
        model,
        registry=registry,
        toolset=toolset,
        checkpointer=InMemorySaver(),
        pinned=["write_note"] if pinned else [],
    )
    await driver.run(agent, "Write a note to the notebook", thread_id="t")
    await set_active(registry, "write_note", False)
    result = await driver.ask(agent, "Write a note to the notebook", thread_id="t")

    assert "no longer available" in result.steps[0].tool_calls[0].observation
    assert world.notes == ["x"]


async def test_ret_5_switched_off_between_search_and_call(driver, make_registry, world):
    """RET-5 (b): the state is read at the moment of the call, not at the search."""
    toolset = world.toolset()
    registry = make_registry(toolset)
    twin = getattr(registry, "sync_twin", registry)

    def script(messages) -> AIMessage:
        if isinstance(messages[-1], ToolMessage):
            return says("ok")
        twin.deactivate("write_note")
        return asks(call("write_note", text="x"))

    agent = create_tool_rag_agent(ScriptedModel(script=script), registry=registry, toolset=toolset)
    result = await driver.ask(agent, "Write a note to the notebook")

    assert "no longer available" in result.steps[0].tool_calls[0].observation
    assert world.notes == []


async def test_ret_5_a_pinned_tool_needs_no_registry_row(driver, make_registry, world):
    """RET-5: code put it there; everything else has to be registered."""
    toolset = world.toolset()
    model = ScriptedModel(script=[asks(call("write_note", text="x")), says("ok")])
    agent = create_tool_rag_agent(
        model, registry=make_registry(Toolset()), toolset=toolset, pinned=["write_note"]
    )
    result = await driver.ask(agent, "Hello")

    assert result.steps[0].tool_calls[0].status == "success"
    assert [(tool.name, tool.relevance, tool.pinned) for tool in result.offered_tools] == [
        ("write_note", None, True)
    ]


async def test_ret_5_the_caller_cannot_offer_tools_by_input(driver, make_registry, world):
    """RET-5: state that grants something is not read from the input of a run."""
    toolset = world.toolset()
    model = ScriptedModel(script=[asks(call("write_note", text="x")), says("ok")])
    agent = create_tool_rag_agent(model, registry=make_registry(toolset), toolset=toolset, k=1)
    given = {
        "messages": [HumanMessage("What is the refund policy?")],
        "offered_tools": [
            {
                "name": "write_note",
                "binding": "write_note",
                "description": "x",
                "relevance": 1.0,
                "pinned": True,
                "requires_approval": False,
                "active": True,
                "turn": 1,
            }
        ],
    }
    output = await agent.ainvoke(given) if driver.is_async else agent.invoke(given)

    assert model.requests[0].tool_names == ["refund_policy"]
    # Called by name, it is offered as the registry has it (RET-6), not as the input said.
    assert names(output) == ["refund_policy", "write_note"]
    [entry] = [entry for entry in output["offered_tools"] if entry["name"] == "write_note"]
    assert (entry["pinned"], entry["relevance"]) == (False, None)
    assert entry["description"] != "x"
    assert world.notes == []


async def test_ret_5_the_caller_cannot_offer_late_tools_by_input(driver, make_registry, world):
    """RET-5, RET-6: nor by the key that calls of unknown tools write, or by marks of messages."""
    toolset = world.toolset()
    model = ScriptedModel(script=[says("ok")])
    agent = create_tool_rag_agent(model, registry=make_registry(toolset), toolset=toolset, k=1)
    offer = late_offer(next(s for s in toolset.specs if s.tool_name == "write_note"), turn=1)
    marked = ToolMessage(
        "x",
        tool_call_id="c1",
        response_metadata={"toolrag": {"outcome": "refused", "offer": offer}},
    )
    given = {
        "messages": [
            HumanMessage("What is the refund policy?"),
            asks(call("refund_policy")),
            marked,
        ],
        "late_offers": [offer],
        "cut_results": {"r-1": "x"},
    }
    output = await agent.ainvoke(given) if driver.is_async else agent.invoke(given)

    assert model.requests[0].tool_names == ["refund_policy"]
    assert names(output) == ["refund_policy"]


async def test_ret_5_a_tool_of_another_tenant_does_not_run(driver, make_registry, world):
    """RET-5 (c): a thread that was offered it elsewhere does not carry the right over."""
    toolset = world.toolset()
    saver = InMemorySaver()
    ours, theirs = (
        create_tool_rag_agent(
            ScriptedModel(script=script),
            registry=make_registry(registered),
            toolset=toolset,
            checkpointer=saver,
        )
        for script, registered in (
            ([says("ok")], toolset),
            ([asks(call("write_note", text="x")), says("no")], Toolset()),
        )
    )
    await driver.run(ours, "Write a note to the notebook", thread_id="t")
    result = await driver.ask(theirs, "Write a note to the notebook", thread_id="t")

    assert "no longer available" in result.steps[0].tool_calls[0].observation
    assert world.notes == []


# --- RET-7, threads


async def test_ret_7_a_request_without_tools_still_defines_what_the_history_calls(
    driver, make_registry, world
):
    """RET-7: nothing fits, the model invents a tool, and the next request is still accepted."""
    toolset = world.toolset()
    model = ScriptedModel(
        script=[asks(call("dentist", "a")), asks(call("dentist", "b")), says("No tool fits.")],
        require_definitions=True,
    )
    agent = create_tool_rag_agent(
        model, registry=make_registry(toolset), toolset=toolset, threshold=1
    )
    result = await driver.ask(agent, "Book a dentist")

    assert model.requests[0].tools == ()
    assert [step.tool_calls[0].status for step in result.steps] == ["error", "error"]
    assert result.answer == "No tool fits."


async def test_ret_7_a_thread_only_gains_tools_in_a_stable_order(driver, make_registry, world):
    """RET-7: tools of turn 1 stay bound in turn 2; a strict provider takes every request."""
    toolset = world.toolset()
    model = ScriptedModel(
        script=[
            asks(call("refund_policy", "a")),
            says("30 days"),
            asks(call("lookup_order", "b", order_id="A1")),
            says("delivered"),
            says("you are welcome"),
        ],
        require_definitions=True,
    )
    agent = create_tool_rag_agent(
        model, registry=make_registry(toolset), toolset=toolset, checkpointer=InMemorySaver(), k=2
    )
    first = await driver.run(agent, "What is the refund policy of the shop?", thread_id="t")
    second = await driver.run(agent, "Look up the order: delivery date?", thread_id="t")
    third = await driver.run(agent, "Thanks!", thread_id="t")

    assert names(first) == ["refund_policy"]
    assert names(second)[:2] == ["refund_policy", "lookup_order"]
    assert names(third) == names(second)
    assert model.requests[-1].tool_names == names(third)
    # An unchanged tool list is sent byte for byte, so a provider's prompt cache holds.
    assert json.dumps(model.requests[-1].tools) == json.dumps(model.requests[-2].tools)
    assert [entry["turn"] for entry in third["offered_tools"][:2]] == [1, 2]


async def test_ret_7_state_is_json(driver, make_registry, world):
    toolset = world.toolset()
    agent = create_tool_rag_agent(
        ScriptedModel(script=[says("ok")]), registry=make_registry(toolset), toolset=toolset
    )
    output = await driver.run(agent, "refund policy")
    for key in ("offered_tools", "last_selection"):
        assert json.loads(json.dumps(output[key])) == output[key]


async def test_ret_7_a_tool_this_process_no_longer_has_gets_an_inert_stand_in(
    driver, make_registry, world
):
    """RET-7: the history calls it, so it stays defined; a call to it is refused."""
    toolset = world.toolset()
    saver = InMemorySaver()
    before = create_tool_rag_agent(
        ScriptedModel(script=[asks(call("refund_policy", "a")), says("30 days")]),
        registry=make_registry(toolset),
        toolset=toolset,
        checkpointer=saver,
    )
    await driver.run(before, "refund policy of the shop", thread_id="t")

    fewer = Toolset(tool for tool in world.tools() if tool.name != "refund_policy")
    model = ScriptedModel(
        script=[asks(call("refund_policy", "b")), says("It is gone.")], require_definitions=True
    )
    after = create_tool_rag_agent(
        model, registry=make_registry(toolset), toolset=fewer, checkpointer=saver
    )
    result = await driver.ask(after, "refund policy of the shop", thread_id="t")

    assert "no longer available" in model.requests[0].description("refund_policy").lower()
    assert "no longer available" in result.steps[0].tool_calls[0].observation


async def test_switched_off_tools_are_not_bound_any_more_unless_the_history_calls_them(
    driver, make_registry, set_active, world
):
    toolset = world.toolset()
    registry = make_registry(toolset)
    model = ScriptedModel(script=[says("a"), says("b"), says("c")])
    agent = create_tool_rag_agent(
        model, registry=registry, toolset=toolset, checkpointer=InMemorySaver()
    )
    await driver.run(agent, "refund policy", thread_id="t")
    await set_active(registry, "refund_policy", False)
    await driver.run(agent, "Thanks", thread_id="t")
    await set_active(registry, "refund_policy", True)
    await driver.run(agent, "Thanks again", thread_id="t")

    assert [request.tool_names for request in model.requests] == [
        ["refund_policy"],
        [],
        ["refund_policy"],
    ]


async def test_rows_without_a_live_tool_do_not_use_up_k(driver, make_registry):
    """Left-overs of an older release, or another application's tools, are nearer than the one."""
    left_over = Toolset(
        tool.model_copy(update={"name": f"report_v{n}", "description": "Make the weekly report."})
        for n, tool in enumerate(numbered_toolset(12).values())
    )
    [live] = numbered_toolset(1).values()
    live = live.model_copy(update={"name": "report", "description": "Make the weekly report now."})
    registry = make_registry(Toolset([*left_over.values(), live]))
    model = ScriptedModel(script=[says("ok")])
    agent = create_tool_rag_agent(
        model, registry=registry, toolset=Toolset([live]), k=2, threshold=0
    )

    output = await driver.run(agent, "Make the weekly report.")

    assert names(output) == ["report"]
