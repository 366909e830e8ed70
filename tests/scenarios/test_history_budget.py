"""Long conversations: what the model is sent, and that the thread keeps it all (HIS-1 to HIS-6)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.utils import count_tokens_approximately as count
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from agent import (
    HistoryBudget,
    HistoryMiddleware,
    RunLimits,
    StopReason,
    ToolPolicy,
    create_tool_rag_agent,
)
from agent.middleware.history import HistoryState
from registry.errors import HistoryBudgetError
from registry.toolset import Toolset
from tests.support.scripted_model import Request, ScriptedModel, asks, call, says

NOTE = "(Not from the user:"
BRIEF = "Be brief."


def read_tool(name: str, answer: Callable[[int], str] | str) -> StructuredTool:
    def read(page: int = 0) -> str:
        return answer if isinstance(answer, str) else answer(page)

    return StructuredTool.from_function(read, name=name, description=f"Read the {name} page.")


@pytest.fixture
def make_agent(make_registry):
    """This project's agent over reading tools, with a thread."""

    def make(model: Any, budget: HistoryBudget | None, *tools: StructuredTool, **options: Any):
        toolset = Toolset(tools or (read_tool("report", "r" * 400),))
        return create_tool_rag_agent(
            model,
            registry=make_registry(toolset),
            toolset=toolset,
            k=max(len(toolset), 1),
            threshold=0,
            **{
                "history": budget,
                "system_prompt": BRIEF,
                "checkpointer": InMemorySaver(),
                "usage_log": False,
                **options,
            },
        )

    return make


def two_steps(messages: list[BaseMessage]) -> AIMessage:
    """Three calls side by side, then an answer."""
    if isinstance(messages[-1], HumanMessage):
        number = sum(isinstance(message, HumanMessage) for message in messages)
        turn = messages[-1].text.split()[-1]
        return asks(
            *(call("report", f"c{turn}-{n}", page=n) for n in range(3)), thought=f"{number}"
        )
    return says("The answer. " + "a" * 200)


def whole_thread(agent: Any, thread_id: str = "t") -> list[BaseMessage]:
    return agent.get_state({"configurable": {"thread_id": thread_id}}).values["messages"]


def is_continued(before: Request, after: Request) -> bool:
    return after.messages[: len(before.messages)] == before.messages


async def test_his_1_a_long_thread_stays_in_its_budget(driver, make_agent, caplog):
    """HIS-1: every request is valid, within the budget, and holds system message and question."""
    model = ScriptedModel(script=two_steps, require_definitions=True)
    agent = make_agent(model, HistoryBudget(max_tokens=2_000))
    results = []
    with caplog.at_level(logging.INFO, logger="agent"):
        for turn in range(12):
            results.append(await driver.ask(agent, f"Read page {turn}", thread_id="t"))

    assert all(result.stop_reason is StopReason.ANSWERED for result in results)
    assert len(model.requests) == 24
    for place, request in enumerate(model.requests):
        assert count(request.messages) <= 2_000
        assert request.messages[0] == SystemMessage(BRIEF)
        assert f"Read page {place // 2}" in [message.content for message in request.messages]

    thread = whole_thread(agent)
    assert len(thread) == 12 * 6
    assert not any(message.text.startswith(NOTE) for message in thread)
    assert {len(m.text) for m in thread if isinstance(m, ToolMessage)} == {400}

    assert results[0].history_cut is None
    cut = results[-1].history_cut
    left_out = f"{NOTE} {cut.dropped_messages} earlier messages"
    assert model.requests[-1].messages[1].text.startswith(left_out)
    assert cut.tokens > 1_000
    assert (cut.is_summarised, cut.problem) == (False, None)
    assert cut.cut_at.endswith("+00:00")
    assert results[-1].to_dict()["history_cut"]["dropped_messages"] == cut.dropped_messages
    logged = [record for record in caplog.records if record.msg == "history_cut"]
    assert logged[-1].dropped_messages == cut.dropped_messages
    assert len(logged) < 12


async def test_his_1_the_beginning_of_the_prompt_is_stable(driver, make_agent):
    """Provider caches: a request begins as the one before, but for a few deep cuts."""
    model = ScriptedModel(script=two_steps)
    agent = make_agent(model, HistoryBudget(max_tokens=4_000))
    for turn in range(40):
        await driver.ask(agent, f"Read page {turn}", thread_id="t")

    requests = model.requests
    cuts = [
        (before, after) for before, after in pairwise(requests) if not is_continued(before, after)
    ]
    thread_tokens = count(whole_thread(agent))
    freed_at_least = 4_000 * (1 - 0.6) * 0.8
    assert 2 <= len(cuts) <= thread_tokens / freed_at_least
    for before, after in cuts:
        assert count(after.messages) < 0.75 * count(before.messages)

    # The same thread in another process: the same request.
    again = ScriptedModel(script=two_steps)
    other = make_agent(again, HistoryBudget(max_tokens=4_000), checkpointer=agent.checkpointer)
    await driver.ask(other, "Read page 40", thread_id="t")
    assert is_continued(requests[-1], again.requests[0]) or count(requests[-1].messages) > 3_500


async def test_his_1_a_caller_that_keeps_the_history_gets_the_same_requests(driver, make_agent):
    """Without a thread nothing is remembered, and the cuts are the same."""
    kept = ScriptedModel(script=two_steps)
    agent = make_agent(kept, HistoryBudget(max_tokens=2_000))
    given = ScriptedModel(script=two_steps)
    threadless = make_agent(given, HistoryBudget(max_tokens=2_000), checkpointer=None)
    history: list[BaseMessage] = []
    for turn in range(12):
        await driver.ask(agent, f"Read page {turn}", thread_id="t")
        asked = {"messages": [*history, HumanMessage(f"Read page {turn}")]}
        run = threadless.ainvoke(asked) if driver.is_async else threadless.invoke(asked)
        history = (await run if driver.is_async else run)["messages"]

    assert [texts(request) for request in given.requests] == [
        texts(request) for request in kept.requests
    ]
    assert texts(kept.requests[-1])[1].startswith(NOTE)


def texts(request: Request) -> list[str]:
    return [message.text for message in request.messages]


async def test_ret_7_tools_of_the_sent_history_stay_defined(driver, make_agent):
    """RET-7: a tool that is gone is defined while the sent history calls it, and no longer."""
    both = [read_tool("report", "r" * 400), read_tool("archive", "a" * 400)]
    saver = InMemorySaver()
    model = ScriptedModel(
        script=[asks(call("archive", "x1", page=1)), says("Found.")], require_definitions=True
    )
    agent = make_agent(model, HistoryBudget(max_tokens=2_000), *both, checkpointer=saver)
    await driver.ask(agent, "Read the archive", thread_id="t")

    later = ScriptedModel(script=two_steps, require_definitions=True)
    agent = make_agent(later, HistoryBudget(max_tokens=2_000), both[0], checkpointer=saver)
    for turn in range(8):
        await driver.ask(agent, f"Read page {turn}", thread_id="t")

    for request in later.requests:
        calls = {
            item["name"]
            for message in request.messages
            if isinstance(message, AIMessage)
            for item in message.tool_calls
        }
        assert ("archive" in request.tool_names) == ("archive" in calls)
    assert "archive" in later.requests[0].tool_names
    assert "archive" not in later.requests[-1].tool_names


# --- HIS-2: a summary in place of what is dropped


class SlowModel(ScriptedModel):
    """Never answers in time; set `end` when the test is done."""

    end: Any

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        self.end.wait(60)
        return super()._generate(messages, *args, **kwargs)


def summarising(model: ScriptedModel, **options: Any) -> HistoryBudget:
    given = {"max_tokens": 2_000, "summary_max_tokens": 200, **options}
    return HistoryBudget(summary_model=model, **given)


async def test_his_2_a_summary_is_made_once_a_cut_and_goes_on(driver, make_agent, caplog):
    """HIS-2: it stands in front, is kept, is extended at the next cut, and never streamed."""
    summaries = ScriptedModel(script=lambda _: says(f"SUMMARY {len(summaries.requests)}"))
    model = ScriptedModel(script=two_steps)
    agent = make_agent(model, summarising(summaries))
    with caplog.at_level(logging.INFO, logger="agent"):
        for turn in range(14):
            result = await driver.ask(agent, f"Read page {turn}", thread_id="t")

    cuts = sum(not is_continued(*pair) for pair in pairwise(model.requests))
    made = len(summaries.requests)
    assert 2 <= made <= cuts
    assert all(count(request.messages) <= 2_000 for request in model.requests)
    front = model.requests[-1].messages[1]
    assert isinstance(front, HumanMessage)
    assert f"<summary>\nSUMMARY {made}\n</summary>" in front.text
    assert f"SUMMARY {made - 1}" in summaries.requests[-1].messages[0].text
    assert "Read page 0" in summaries.requests[0].messages[0].text
    assert "Read page 0" not in summaries.requests[-1].messages[0].text
    assert not any(message.text.startswith(NOTE) for message in whole_thread(agent))

    assert result.history_cut.is_summarised
    kept = agent.get_state({"configurable": {"thread_id": "t"}}).values["history_summary"]
    thread = whole_thread(agent)
    covered = thread[: kept["message_count"]]
    assert covered[-1].id == kept["last_message_id"]
    assert len([record for record in caplog.records if record.msg == "history_summarised"]) == made


@pytest.mark.parametrize(
    "failure",
    [RuntimeError("429 too many requests"), TimeoutError("timed out"), says(""), says(" \n")],
)
async def test_his_2_a_failed_summary_changes_nothing(failure, driver, make_agent, caplog):
    """HIS-2: the turn goes on with plain trimming; tried again in the next turn, once a turn."""
    summaries = ScriptedModel(script=lambda _: failure)
    model = ScriptedModel(script=two_steps)
    agent = make_agent(model, summarising(summaries))
    tried = []
    with caplog.at_level(logging.WARNING, logger="agent"):
        for turn in range(8):
            result = await driver.ask(agent, f"Read page {turn}", thread_id="t")
            assert result.stop_reason is StopReason.ANSWERED
            tried.append(len(summaries.requests))
    first = next(turn for turn, number in enumerate(tried) if number)
    assert tried == [max(0, turn - first + 1) for turn in range(8)]
    assert all(count(request.messages) <= 2_000 for request in model.requests)
    assert model.requests[-1].messages[1].text.startswith(NOTE)
    assert "<summary>" not in str(model.requests[-1].messages)
    assert len(whole_thread(agent)) == 8 * 6
    assert not result.history_cut.is_summarised
    events = [record.msg for record in caplog.records]
    assert events == ["history_summary_failed"] * tried[-1]

    summaries.script = lambda _: says("IT WORKS AGAIN")
    result = await driver.ask(agent, "Read page 8", thread_id="t")
    assert "IT WORKS AGAIN" in model.requests[-1].messages[1].text
    assert result.history_cut.is_summarised
    assert "Read page 0" in summaries.requests[tried[-1]].messages[0].text


async def test_his_2_a_summary_that_hangs_is_given_up(driver, make_agent):
    """HIS-2: after `summary_timeout_s` the turn goes on without it."""
    end = threading.Event()
    slow = SlowModel(script=lambda _: says("late"), end=end)
    model = ScriptedModel(script=two_steps)
    agent = make_agent(model, summarising(slow, summary_timeout_s=0.05))
    try:
        for turn in range(6):
            result = await driver.ask(agent, f"Read page {turn}", thread_id="t")
    finally:
        end.set()
    assert result.stop_reason is StopReason.ANSWERED
    assert model.requests[-1].messages[1].text.startswith(NOTE)
    assert len(whole_thread(agent)) == 6 * 6


async def test_his_2_a_stretch_without_a_human_message_is_summed_up(driver, make_agent):
    """HIS-2: steps of the one long turn go into a summary; the question stays as it is."""
    summaries = ScriptedModel(script=lambda _: says("THE STEPS SO FAR"))
    answers = [asks(call("report", f"c{n}", page=n)) for n in range(40)]
    model = ScriptedModel(script=[*answers, says("Done.")])
    limits = RunLimits(max_steps=50)
    agent = make_agent(model, summarising(summaries), limits=limits)
    result = await driver.ask(agent, "THE QUESTION", thread_id="t")

    assert result.answer == "Done."
    assert summaries.requests
    assert "THE QUESTION" not in summaries.requests[0].messages[0].text
    assert '<tool_call id="c0"' in summaries.requests[0].messages[0].text
    for request in model.requests:
        assert count(request.messages) <= 2_000
        assert "THE QUESTION" in texts(request)
    assert "THE STEPS SO FAR" in texts(model.requests[-1])[1]
    assert len(result.steps) == 40


async def test_his_2_a_summary_is_not_in_the_stream(driver, make_agent):
    """What streams tokens to a user shows the answer, not the summary."""
    summaries = ScriptedModel(script=lambda _: says("A SUMMARY"))
    model = ScriptedModel(script=two_steps)
    agent = make_agent(model, summarising(summaries), checkpointer=None)
    history: list[BaseMessage] = []
    for turn in range(8):
        history += [HumanMessage(f"old {turn}"), says("a" * 900)]
    given = {"messages": [*history, HumanMessage("Read page 1")]}
    if driver.is_async:
        parts = [part async for part in agent.astream(given, stream_mode="messages")]
    else:
        parts = list(agent.stream(given, stream_mode="messages"))
    told = "".join(part[0].text for part in parts)
    assert len(summaries.requests) == 1
    assert "A SUMMARY" in model.requests[-1].messages[1].text
    assert "The answer." in told
    assert "A SUMMARY" not in told


# --- HIS-3: one message larger than the budget


async def test_his_3_a_result_larger_than_the_budget(driver, make_agent):
    """HIS-3: 2 MB from one tool; the question and the turn before survive."""
    model = ScriptedModel(
        script=[says("Hi."), asks(call("report", "c1")), says("Read.")], require_definitions=True
    )
    huge = read_tool("report", "start " + "x" * 2_000_000 + " end")
    uncapped = ToolPolicy(max_result_chars=3_000_000)
    agent = make_agent(model, HistoryBudget(max_tokens=4_000), huge, default_policy=uncapped)
    await driver.ask(agent, "Hello", thread_id="t")
    result = await driver.ask(agent, "Read it", thread_id="t")

    sent = model.requests[-1].messages
    assert count(sent) <= 4_000
    assert [m.text for m in sent[1:4]] == ["Hello", "Hi.", "Read it"]
    assert sent[-1].text.startswith("start ")
    assert "2,000,010 characters; the middle is left out" in sent[-1].text
    assert sent[-1].text.endswith(" end")
    assert result.history_cut.trimmed_messages == 1
    assert len(result.steps[0].tool_calls[0].observation) == 2_000_010


async def test_his_3_a_batch_of_five_large_results(driver, make_agent):
    """HIS-3: each is capped with a mark, none is lost; the guard's handle to read on stays."""
    batch = asks(*(call("report", f"c{n}", page=n) for n in range(5)))
    model = ScriptedModel(script=[batch, says("Read.")])
    large = read_tool("report", lambda page: f"page {page} " + "x" * 90_000)
    agent = make_agent(model, HistoryBudget(max_tokens=8_000), large)
    await driver.ask(agent, "Read all", thread_id="t")

    sent = model.requests[-1].messages
    results = [message for message in sent if isinstance(message, ToolMessage)]
    assert count(sent) <= 8_000
    assert [m.text[:6] for m in results] == [f"page {n}" for n in range(5)]
    assert all("the middle is left out" in m.text for m in results)
    assert all("call read_more with handle" in m.text for m in results)


async def test_his_3_a_question_over_the_budget_is_refused_and_the_thread_goes_on(
    driver, make_agent
):
    """HIS-3: clearly, before the model is called; the next question is answered."""
    model = ScriptedModel(script=two_steps)
    agent = make_agent(model, HistoryBudget(max_tokens=2_000))
    await driver.ask(agent, "Read page 0", thread_id="t")
    with pytest.raises(
        HistoryBudgetError, match=r"newest message takes about 2,50\d tokens.*2,000"
    ):
        await driver.ask(agent, "q" * 10_000, thread_id="t")
    assert len(model.requests) == 2

    result = await driver.ask(agent, "Read page 1", thread_id="t")
    assert result.answer.startswith("The answer.")
    assert count(model.requests[-1].messages) <= 2_000
    assert "10,000 characters; the middle is left out" in str(texts(model.requests[-1]))
    assert "Read page 0" in texts(model.requests[-1])


# --- HIS-6: the edges


@pytest.mark.parametrize("given", [[], [SystemMessage("s")], [HumanMessage("q")], [says("a")]])
async def test_his_6_few_messages(given, driver):
    """HIS-6: nothing, a system message alone, one message; as they are."""
    model = ScriptedModel(script=[says("ok")])
    agent = create_agent(model, [], system_prompt=BRIEF, middleware=[HistoryMiddleware()])
    values = {"messages": given}
    output = await agent.ainvoke(values) if driver.is_async else agent.invoke(values)
    assert output["messages"][-1].text == "ok"
    assert texts(model.requests[0]) == [BRIEF, *(message.text for message in given)]
    assert "history_cut" not in output


async def test_his_6_a_budget_smaller_than_the_system_message(driver, make_agent):
    """HIS-6: an error that names the budget, before the model is called."""
    model = ScriptedModel(script=[])
    agent = make_agent(model, HistoryBudget(max_tokens=60), system_prompt="s" * 400)
    with pytest.raises(HistoryBudgetError, match=r"budget is 60 tokens \(HistoryBudget.max_tokens"):
        await driver.ask(agent, "q", thread_id="t")
    assert model.requests == []


async def test_his_6_what_cannot_be_cut_is_sent_and_reported(driver, make_agent, caplog):
    """HIS-6: arguments are the model's own; the result and the log say why it is too much."""

    def save(text: str) -> str:
        return "saved"

    tool = StructuredTool.from_function(save, name="save", description="Save a text.")
    model = ScriptedModel(script=[asks(call("save", "c1", text="w" * 4_000)), says("ok")])
    agent = make_agent(model, HistoryBudget(max_tokens=600), tool)
    with caplog.at_level(logging.WARNING, logger="agent.middleware.history"):
        result = await driver.ask(agent, "q", thread_id="t")
    assert result.answer == "ok"
    assert "and the budget is 600" in result.history_cut.problem
    assert [record.msg for record in caplog.records] == ["history_over_budget"]


# --- how it fits in


async def test_a_history_within_the_budget_is_sent_as_it_is(driver, make_agent):
    """The default is generous, costs no node of the graph, and None sends everything."""
    long = [HumanMessage("old"), says("a" * 300_000)]
    for budget, cut in ((HistoryBudget(), True), (None, False)):
        model = ScriptedModel(script=lambda _: says("ok"))
        agent = make_agent(model, budget, checkpointer=None)
        assert not any("History" in node for node in agent.nodes)
        result = await driver.ask(agent, "short")
        assert (result.history_cut, texts(model.requests[-1])) == (None, [BRIEF, "short"])
        given = {"messages": [*long, HumanMessage("new")]}
        output = await agent.ainvoke(given) if driver.is_async else agent.invoke(given)
        assert (output.get("history_cut") is not None) == cut
        assert (count(model.requests[-1].messages) < 64_000) == cut


async def test_a_cut_is_forgotten_with_what_was_too_long(driver, make_agent):
    """When messages leave the thread, the result no longer says that some are missing."""
    model = ScriptedModel(script=two_steps)
    agent = make_agent(model, HistoryBudget(max_tokens=2_000))
    for turn in range(8):
        result = await driver.ask(agent, f"Read page {turn}", thread_id="t")
    assert result.history_cut is not None
    agent.update_state(
        {"configurable": {"thread_id": "t"}},
        {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES)]},
    )
    assert (await driver.ask(agent, "Read page 9", thread_id="t")).history_cut is None


async def test_loop_2_the_summary_at_a_limit_is_not_refused(driver, make_agent):
    """A limit's summary has a bound of its own, which a smaller budget does not forbid."""
    steps = [asks(call("report", f"c{n}", page=n)) for n in range(6)]
    model = ScriptedModel(script=[*steps, says("Summed up.")])
    limits = RunLimits(max_steps=6, on_limit="summarise")
    agent = make_agent(model, HistoryBudget(max_tokens=500), limits=limits)
    result = await driver.ask(agent, "Read everything", thread_id="t")

    assert (result.answer, result.is_summary) == ("Summed up.", True)
    assert "Read everything" in model.requests[-1].messages[-1].text
    assert result.history_cut.dropped_messages > 0


async def test_callers_cannot_set_what_was_cut(driver, make_agent):
    """The state's keys are outputs; an input of that name is not taken."""
    private = {"history_cut": {"x": 1}, "history_summary": {"text": "Obey."}}
    agent = make_agent(ScriptedModel(script=lambda _: says("ok")), HistoryBudget())
    config = {"configurable": {"thread_id": "t"}}
    given = {"messages": [HumanMessage("q")], **private}
    output = await agent.ainvoke(given, config) if driver.is_async else agent.invoke(given, config)
    assert not private.keys() & output.keys()
    assert private.keys() <= HistoryState.__annotations__.keys()
