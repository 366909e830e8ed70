"""A person decides before a dangerous call runs, on that call, once (APR-1 to APR-10)."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, hook_config
from langchain.agents.middleware.human_in_the_loop import HITLRequest, HITLResponse
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from pydantic import TypeAdapter

from agent import (
    ApprovalMiddleware,
    RunLimits,
    RunResult,
    StopReason,
    ThreadLimits,
    approve,
    aresume,
    create_tool_rag_agent,
    edit,
    reject,
    resume,
)
from agent.result import read_run
from registry.errors import ApprovalError, ConfigurationError
from registry.toolset import Toolset
from tests.scenarios.conftest import Driver
from tests.support.fake_registry import FakeRegistry
from tests.support.scripted_model import ScriptedModel, asks, call, says

ALL = {"threshold": 0, "k": 20}
THREAD = {"configurable": {"thread_id": "t"}}


class Effects:
    """What tools really did."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []

    def tools(self) -> list[BaseTool]:
        done = self.done

        @tool
        def delete_row(row: int) -> str:
            """Delete a row of the table."""
            done.append(("delete_row", row))
            return f"row {row} deleted"

        @tool
        def send_note(text: str, to: str = "all") -> str:
            """Send a note to somebody."""
            done.append(("send_note", text, to))
            return f"sent to {to}"

        @tool
        def append_log(line: str) -> str:
            """Append a line to the log."""
            done.append(("append_log", line))
            return "logged"

        @tool
        def read_log() -> str:
            """Read the log."""
            done.append(("read_log",))
            return "the log"

        delete_row.metadata = {"requires_approval": True}
        send_note.metadata = {"requires_approval": True}
        return [delete_row, send_note, append_log, read_log]


@pytest.fixture
def effects() -> Effects:
    return Effects()


class Asked:
    """An agent in a thread, asked and resumed the way of the driver."""

    def __init__(self, driver: Driver, agent: Any, model: ScriptedModel) -> None:
        self.driver, self.agent, self.model = driver, agent, model

    async def ask(self, question: str = "Delete rows, send notes, log lines") -> RunResult:
        return await self.driver.ask(self.agent, question, thread_id="t")

    async def resume(self, *decisions: Any) -> RunResult:
        if self.driver.is_async:
            return await aresume(self.agent, decisions, thread_id="t")
        return resume(self.agent, decisions, thread_id="t")

    async def send(self, given: Any, config: Any = THREAD) -> dict[str, Any]:
        if self.driver.is_async:
            return await self.agent.ainvoke(given, config)
        return self.agent.invoke(given, config)

    async def answer(self, value: Any) -> dict[str, Any]:
        return await self.send(Command(resume=value))

    async def messages(self) -> list[Any]:
        if self.driver.is_async:
            return (await self.agent.aget_state(THREAD)).values["messages"]
        return self.agent.get_state(THREAD).values["messages"]


@pytest.fixture
def agent_with(driver, make_registry, effects) -> Callable[..., Asked]:
    """Make an agent that needs approval for `delete_row` and `send_note`."""

    def make(*script: Any, tools: Sequence[BaseTool] | None = None, **options: Any) -> Asked:
        toolset = Toolset(effects.tools() if tools is None else tools)
        model = ScriptedModel(script=list(script))
        options.setdefault("checkpointer", InMemorySaver())
        options.setdefault("registry", make_registry(toolset))
        agent = create_tool_rag_agent(model, toolset=toolset, **ALL, **options)
        return Asked(driver, agent, model)

    return make


def ids(result: RunResult) -> list[str]:
    return [pending.call_id for pending in result.pending]


def observations(result: RunResult) -> dict[str, str]:
    return {one.call_id: one.observation for step in result.steps for one in step.tool_calls}


def assert_paired(messages: Sequence[Any]) -> None:
    """Each call has exactly one answer, right behind its reply."""
    open_ids: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            open_ids.remove(message.tool_call_id)
        else:
            assert open_ids == []
            if isinstance(message, AIMessage):
                open_ids = [made["id"] for made in message.tool_calls]
    assert open_ids == []


THREE = asks(
    call("delete_row", "d", row=1),
    call("send_note", "s", text="hello"),
    call("read_log", "r"),
)


# --- the shape of the request, and the plain decisions


async def test_the_request_has_langchains_shape_and_says_which_call(agent_with, effects):
    """What a front end for LangChain's own middleware reads is there; nothing ran before it."""
    asked = agent_with(THREE, says("Done."))
    output = await asked.send({"messages": [HumanMessage("Delete a row, send a note")]})

    [question] = output["__interrupt__"]
    TypeAdapter(HITLRequest).validate_python(question.value)
    actions = question.value["action_requests"]
    assert [(a["name"], a["args"], a["call_id"], a["tool"]) for a in actions] == [
        ("delete_row", {"row": 1}, "d", "delete_row"),
        ("send_note", {"text": "hello"}, "s", "send_note"),
    ]
    assert all(action["reason"] in action["description"] for action in actions)
    assert question.value["review_configs"] == [
        {"action_name": name, "allowed_decisions": ["approve", "edit", "reject"]}
        for name in ("delete_row", "send_note")
    ]
    assert effects.done == []
    result = read_run(output)
    assert (result.stop_reason, ids(result)) == (StopReason.INTERRUPTED, ["d", "s"])
    assert result.to_dict()["pending"][0]["arguments"] == {"row": 1}


async def test_approve_edit_reject(agent_with, effects):
    asked = agent_with(
        asks(
            call("delete_row", "d1", row=1),
            call("delete_row", "d2", row=2),
            call("send_note", "s", text="hello"),
        ),
        says("Done."),
        says("Still here."),
    )
    first = await asked.ask()
    assert ids(first) == ["d1", "d2", "s"]
    result = await asked.resume(
        reject("d2", "Row 2 is the last one."),
        edit("s", {"text": "hi", "to": "Ann"}),
        approve("d1"),
    )

    assert (result.answer, result.pending) == ("Done.", ())
    assert sorted(effects.done) == [("delete_row", 1), ("send_note", "hi", "Ann")]
    seen = observations(result)
    assert seen["d1"] == "row 1 deleted"
    assert "decided against" in seen["d2"]
    assert "Row 2 is the last one." in seen["d2"]
    assert "changed this call" in seen["s"]
    assert '{"text": "hi", "to": "Ann"}' in seen["s"]
    assert seen["s"].endswith("sent to Ann")
    assert (await asked.ask("And now?")).answer == "Still here."
    assert_paired(await asked.messages())


async def test_langchains_own_answer_is_taken_in_order(agent_with, effects):
    """Without call ids: as many as were asked for, in that order, and no other number."""
    asked = agent_with(THREE, says("Done."))
    await asked.ask()
    answer: HITLResponse = {
        "decisions": [
            {"type": "reject", "message": "No."},
            {"type": "edit", "edited_action": {"name": "send_note", "args": {"text": "x"}}},
        ]
    }
    result = read_run(await asked.answer(answer))
    assert result.answer == "Done."
    assert sorted(effects.done) == [("read_log",), ("send_note", "x", "all")]


# --- APR-1


@pytest.mark.parametrize(
    ("decisions", "problem"),
    [
        ([approve("d")], None),
        ([approve("x"), approve("y")], "'x' does not wait"),
        ([approve("r"), approve("nobody")], "'r' does not wait"),
        ([approve("d"), approve("d"), approve("d")], "several decisions"),
        ([approve("d"), reject("d")], "several decisions"),
        ([{"type": "approve"}], "1 decisions without call_id for 2 calls"),
        ([{"type": "approve"}] * 3, "3 decisions without call_id for 2 calls"),
        ([approve("d"), {"type": "approve"}], "without call_id was left out"),
        ([{"type": "aprove", "call_id": "d"}], "'aprove' is no decision"),
        ([{"type": "respond", "call_id": "d", "message": "m"}], "'respond' is no decision"),
        ([{"call_id": "d"}], "None is no decision"),
        ([{"type": "approve", "call_id": None}], "without call_id"),
        ([{"type": "reject", "call_id": "d", "message": 5}], "is a text"),
        ([{"type": "edit", "call_id": "d"}], "edited_action"),
        ([{"type": "edit", "call_id": "d", "edited_action": {"args": 5}}], "edited_action"),
        (["approve"], "not of the form"),
        ([], "no decision"),
    ],
)
async def test_apr_1_what_is_unclear_does_nothing_and_is_asked_again(
    decisions, problem, agent_with, effects
):
    """APR-1: unknown, repeated, missing or malformed decisions; all can still be answered."""
    asked = agent_with(THREE, says("Done."))
    await asked.ask()
    again = await asked.resume(*decisions)

    assert effects.done == []
    assert again.stop_reason is StopReason.INTERRUPTED
    assert again.pending[-1].call_id == "s"
    told = " ".join(pending.problem or "" for pending in again.pending)
    assert (problem or "") in told
    result = await asked.resume(*(approve(call_id) for call_id in ids(again)))
    assert result.answer == "Done."
    assert sorted(effects.done) == [
        ("delete_row", 1),
        ("read_log",),
        ("send_note", "hello", "all"),
    ]
    assert_paired(result.messages)


@pytest.mark.parametrize("value", [None, "yes", True, 1, [], {}, {"decisions": "approve"}, ["d"]])
async def test_apr_1_an_answer_of_another_form_approves_nothing(value, agent_with, effects):
    """APR-1: a bare yes is no decision on a call."""
    asked = agent_with(THREE, says("Done."))
    await asked.ask()
    if value is None:  # to LangGraph this is no answer at all: the run goes on where it waits
        output = await asked.send(None)
    else:
        output = await asked.answer({"value": value} if value == {} else value)
    assert effects.done == []
    assert ids(read_run(output)) == ["d", "s"]


async def test_apr_1_the_order_of_the_decisions_does_not_matter(agent_with, effects):
    """APR-1: a screen that sorts its cards approves what it shows."""
    asked = agent_with(THREE, says("Done."))
    await asked.ask()
    await asked.resume(reject("s"), approve("d"))
    assert sorted(effects.done) == [("delete_row", 1), ("read_log",)]


async def test_apr_1_decisions_may_come_one_at_a_time(agent_with, effects):
    """APR-1: each binds its own call, also in an answer of its own; the first on a call stands."""
    asked = agent_with(THREE, says("Done."))
    await asked.ask()
    second = await asked.resume(reject("s", "no"))
    assert (ids(second), effects.done) == (["d"], [])
    third = await asked.resume(approve("s"))
    assert (ids(third), effects.done) == (["d"], [])
    assert "settled already" in third.pending[0].problem
    await asked.resume(approve("d"))
    assert sorted(effects.done) == [("delete_row", 1), ("read_log",)]


# --- APR-2


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({"delete_rows": True}, "'delete_rows', which is no tool. Nearest: delete_row"),
        ({"Delete_Row": True}, "'Delete_Row', which is no tool"),
        ({"": True}, "'', which is no tool"),
        ({"delete_*s": True}, "'delete_*s', which is no tool"),
        ({"delete_row": False}, "'delete_row' is False"),
        ({"delete_row": None}, "'delete_row' is None"),
        ({"delete_row": []}, "'delete_row' is []"),
        ({"delete_row": "aprove"}, "'delete_row' is 'aprove'"),
        ({"delete_row": 1}, "'delete_row' is 1"),
        ({"delete_row": bool}, "'delete_row' is <class 'bool'>"),
        (["delete_row"], "give a mapping"),
        ("delete_row", "give a mapping"),
        ({5: True}, "has the key 5"),
    ],
)
def test_apr_2_a_wrong_rule_is_an_error_at_construction(rules, told, effects):
    """APR-2: misspelt names and decisions, empty lists, other letter case."""
    toolset = Toolset(effects.tools())
    with pytest.raises(ConfigurationError) as raised:
        create_tool_rag_agent(
            ScriptedModel(script=[]),
            registry=FakeRegistry(toolset),
            toolset=toolset,
            approval=rules,
        )
    assert told in str(raised.value)


async def test_apr_2_an_async_policy_is_an_error_at_construction(effects):
    """APR-2: its answer would be a coroutine, which is always true or never asked."""

    async def policy(tool: BaseTool, arguments: dict[str, Any]) -> bool:
        return True

    with pytest.raises(ConfigurationError, match="delete_row"):
        ApprovalMiddleware({"delete_row": policy}, toolset=Toolset(effects.tools()))


async def test_apr_2_a_marked_tool_without_a_rule_asks(agent_with, effects):
    """APR-2: rules for other tools do not lift the registry's mark."""
    asked = agent_with(THREE, says("Done."), approval={"append_log": True})
    assert ids(await asked.ask()) == ["d", "s"]
    assert effects.done == []


# --- APR-3


async def test_apr_3_a_rejected_call_is_not_asked_again(agent_with, effects):
    """APR-3: the identical call is refused by itself within the run; another one is asked once."""
    asked = agent_with(
        asks(call("delete_row", "a", row=1)),
        asks(call("delete_row", "b", row=1), call("read_log", "r")),
        asks(call("delete_row", "c", row=2)),
        says("Enough."),
        asks(call("delete_row", "e", row=1)),
        says("Deleted."),
    )
    assert ids(await asked.ask()) == ["a"]
    second = await asked.resume(reject("a"))
    assert ids(second) == ["c"]
    assert "not asked again" in observations(second)["b"]
    result = await asked.resume(reject("c"))
    assert (result.answer, effects.done) == ("Enough.", [("read_log",)])
    # What a person did not want in one turn they may want in the next.
    assert ids(await asked.ask("Delete the row all the same")) == ["e"]
    await asked.resume(approve("e"))
    assert ("delete_row", 1) in effects.done


async def test_apr_3_prompts_are_capped(agent_with, effects):
    """APR-3: a model that varies the arguments cannot go on asking."""
    asked = agent_with(
        *(asks(call("delete_row", f"c{row}", row=row)) for row in range(5)), says("Enough.")
    )
    result = await asked.ask()
    prompts = 0
    while result.pending:
        prompts += 1
        result = await asked.resume(*(reject(call_id) for call_id in ids(result)))
    assert (prompts, result.answer, effects.done) == (3, "Enough.", [])
    assert "3 times in this turn" in observations(result)["c4"]


# --- APR-4


class SendsToTools(AgentMiddleware):
    """Another component that sends the flow to the tools, whatever was decided."""

    def __init__(self, hook: str, times: int = 1) -> None:
        super().__init__()
        self.hook, self.left = hook, times

    @hook_config(can_jump_to=["tools"])
    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        return self._jump(state, "before_model")

    @hook_config(can_jump_to=["tools"])
    def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        return self._jump(state, "after_model")

    def _jump(self, state: Any, hook: str) -> dict[str, Any] | None:
        replies = [m for m in state["messages"] if isinstance(m, AIMessage) and m.tool_calls]
        if hook != self.hook or not self.left or not replies:
            return None
        self.left -= 1
        return {"jump_to": "tools"}


@pytest.mark.parametrize("hook", ["before_model", "after_model"])
@pytest.mark.parametrize("is_outside", [True, False], ids=["outside", "inside"])
async def test_apr_4_a_rejected_call_runs_by_no_other_route(
    hook, is_outside, driver, make_registry, effects
):
    """APR-4: the tool step looks for the approval itself, whatever sent the flow there."""
    toolset = Toolset(effects.tools())
    model = ScriptedModel(script=[asks(call("delete_row", "d", row=1)), says("Not done.")])
    jumper = SendsToTools(hook)
    from agent import ToolGuardMiddleware, ToolRAGMiddleware

    own = [
        ToolRAGMiddleware(make_registry(toolset), toolset, **ALL),
        ApprovalMiddleware(toolset=toolset),
        ToolGuardMiddleware(),
    ]
    agent = create_agent(
        model,
        [],
        middleware=[jumper, *own] if is_outside else [*own, jumper],
        checkpointer=InMemorySaver(),
    )
    asked = Asked(driver, agent, model)
    first = await asked.ask()
    if first.pending:
        await asked.resume(reject("d"))
    assert effects.done == []
    assert jumper.left == 0
    [answer] = [m for m in await asked.messages() if isinstance(m, ToolMessage)]
    assert answer.status == "error"


async def test_apr_4_an_approved_call_runs_once_though_sent_to_the_tools_again(
    driver, make_registry, effects
):
    """APR-4, APR-8: the second time its answer is there already, and stands."""
    toolset = Toolset(effects.tools())
    model = ScriptedModel(script=[asks(call("delete_row", "d", row=1)), says("Done.")])
    agent = create_tool_rag_agent(
        model,
        registry=make_registry(toolset),
        toolset=toolset,
        middleware=[SendsToTools("before_model", times=2)],
        checkpointer=InMemorySaver(),
        **ALL,
    )
    asked = Asked(driver, agent, model)
    await asked.ask()
    await asked.resume(approve("d"))
    assert effects.done == [("delete_row", 1)]
    assert_paired(await asked.messages())


async def test_apr_4_going_on_without_an_answer_asks_again(agent_with, effects):
    """APR-4: an empty resumption, and a replay from any state before, are no approval."""

    def script(messages: list[Any]) -> AIMessage:
        return THREE if isinstance(messages[-1], HumanMessage) else says("Not done.")

    asked = agent_with()
    asked.model.script = script
    await asked.ask()
    assert ids(read_run(await asked.send(None))) == ["d", "s"]
    await asked.resume(reject("d"), reject("s"))
    states = [state async for state in asked.agent.aget_state_history(THREAD) if state.next]
    assert len(states) > 3
    for state in states:
        output = await asked.send(None, state.config)
        assert output.get("__interrupt__") or output["messages"][-1].text == "Not done."
    assert {effect[0] for effect in effects.done} == {"read_log"}


async def test_apr_4_the_caller_cannot_bring_an_approval(agent_with, effects):
    """APR-4: records are no input, and a mark in a message is none."""
    from agent.approving.records import new_record

    reply = asks(call("delete_row", "d", row=1))
    reply.id = "reply"
    record = new_record(reply, reply.tool_calls[0], arguments={"row": 1}, verdict="approved")
    asked = agent_with(reply, says("Done."))
    given = {"messages": [HumanMessage("Delete the row")], "approvals": {"d": record}}
    output = await asked.send(given)
    assert ids(read_run(output)) == ["d"]
    assert effects.done == []


# --- APR-5


async def test_apr_5_every_tool_of_the_reply_runs_once_after_the_decision(agent_with, effects):
    """APR-5: nothing runs before the pause, so nothing runs again after it; answers do not mix."""
    asked = agent_with(
        asks(
            call("append_log", "l", line="x"),
            call("delete_row", "d", row=1),
            call("send_note", "s", text="hello"),
        ),
        says("Done."),
    )
    await asked.ask()
    assert effects.done == []
    result = await asked.resume(reject("s"), approve("d"))
    assert sorted(effects.done) == [("append_log", "x"), ("delete_row", 1)]
    seen = observations(result)
    assert (seen["l"], seen["d"]) == ("logged", "row 1 deleted")
    assert "decided against" in seen["s"]


def logging_tools(path: Path) -> list[BaseTool]:
    def run(name: str, **arguments: Any) -> str:
        with path.open("a") as file:
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

    return [append_log, delete_row, send_note]


def restartable(saver: Any, path: Path, script: list[Any]) -> Any:
    toolset = Toolset(logging_tools(path))
    return create_tool_rag_agent(
        ScriptedModel(script=script),
        registry=FakeRegistry(toolset),
        toolset=toolset,
        approval={"delete_row": True, "send_note": True},
        checkpointer=saver,
        **ALL,
    )


def resume_elsewhere(kept: Path, path: Path) -> None:
    """Go on in a process that knows no more than what the checkpointer kept."""
    saver = InMemorySaver()
    for name, value in pickle.loads(kept.read_bytes()).items():
        getattr(saver, name).update(value)
    agent = restartable(saver, path, [says("Done elsewhere.")])
    result = resume(agent, [approve("d"), edit("s", {"text": "changed"})], thread_id="t")
    assert result.answer == "Done elsewhere."


def test_apr_5_the_pause_survives_a_restart(tmp_path):
    """APR-5: another process goes on with what the checkpointer kept, and runs each tool once."""
    log, kept = tmp_path / "log", tmp_path / "kept"
    saver = InMemorySaver()
    batch = asks(
        call("append_log", "l", line="x"),
        call("delete_row", "d", row=1),
        call("send_note", "s", text="hello"),
    )
    from agent import ask

    first = ask(restartable(saver, log, [batch]), "Log, delete, send", thread_id="t")
    assert ids(first) == ["d", "s"]
    assert not log.exists()
    plain = {
        "storage": {t: {ns: dict(s) for ns, s in v.items()} for t, v in saver.storage.items()},
        "writes": {key: dict(value) for key, value in saver.writes.items()},
        "blobs": dict(saver.blobs),
    }
    kept.write_bytes(pickle.dumps(plain))

    process = multiprocessing.get_context("spawn").Process(
        target=resume_elsewhere, args=(kept, log)
    )
    process.start()
    process.join(120)
    assert process.exitcode == 0
    assert sorted(log.read_text().splitlines()) == [
        "append_log {'line': 'x'}",
        "delete_row {'row': 1}",
        "send_note {'text': 'changed'}",
    ]


# --- APR-6


def remote_tool(name: str, done: list[Any], **hints: Any) -> BaseTool:
    return StructuredTool.from_function(
        lambda: done.append(name) or "done",
        name=name,
        description=f"Tool {name} of a server.",
        args_schema={"type": "object", "properties": {}},
        metadata=hints,
    )


@pytest.mark.parametrize(
    "hints",
    [
        {},
        {"readOnlyHint": True},
        {"readOnlyHint": True, "destructiveHint": True},
        {"read_only": True},
        {"requires_approval": False},
    ],
)
async def test_apr_6_a_servers_own_hints_lift_no_gate(hints, driver, make_registry):
    """APR-6: a rule for the server's tools asks with no hint, a read-only hint, and both."""
    done: list[Any] = []
    toolset = Toolset([remote_tool("delete_all", done, **hints)], origin="mcp:north")
    name = toolset.specs[0].tool_name
    model = ScriptedModel(script=[asks(call(name, "d")), says("Done.")])
    agent = create_tool_rag_agent(
        model,
        registry=make_registry(toolset),
        toolset=toolset,
        approval={"mcp:*": True},
        checkpointer=InMemorySaver(),
        **ALL,
    )
    asked = Asked(driver, agent, model)
    assert ids(await asked.ask()) == ["d"]
    assert done == []


async def test_apr_6_a_weaker_hint_after_a_change_lifts_no_gate(driver, make_registry):
    """APR-6: the operator's rule and the registry's mark each suffice, whatever code says now."""
    done: list[Any] = []
    marked = Toolset([remote_tool("delete_all", done, requires_approval=True)])
    weaker = Toolset([remote_tool("delete_all", done, read_only=True)])
    for stored, live, rules in ((marked, weaker, None), (weaker, weaker, {"delete_all": True})):
        model = ScriptedModel(script=[asks(call("delete_all", "d")), says("Done.")])
        agent = create_tool_rag_agent(
            model,
            registry=make_registry(stored),
            toolset=live,
            approval=rules,
            checkpointer=InMemorySaver(),
            **ALL,
        )
        assert ids(await Asked(driver, agent, model).ask()) == ["d"]
    assert done == []


async def test_apr_6_a_policy_may_trust_what_the_operator_trusts(driver, make_registry):
    """APR-6: hints count only where code says so; the policy reads them off the live tool."""
    done: list[Any] = []
    toolset = Toolset(
        [
            remote_tool("look", done, readOnlyHint=True),
            remote_tool("wipe", done),
            remote_tool("both", done, readOnlyHint=True, destructiveHint=True),
        ],
        origin="mcp:north",
    )

    def trusting(tool: BaseTool, arguments: dict[str, Any]) -> bool:
        hints = tool.metadata or {}
        return hints.get("readOnlyHint") is not True or hints.get("destructiveHint") is True

    names = [spec.tool_name for spec in toolset.specs]
    batch = asks(*(call(name, name.removeprefix("north__")) for name in names))
    model = ScriptedModel(script=[batch, says("Done.")])
    agent = create_tool_rag_agent(
        model,
        registry=make_registry(toolset),
        toolset=toolset,
        approval={"mcp:north": trusting},
        checkpointer=InMemorySaver(),
        **ALL,
    )
    asked = Asked(driver, agent, model)
    assert ids(await asked.ask()) == ["wipe", "both"]
    await asked.resume(reject("wipe"), reject("both"))
    assert done == ["look"]


# --- APR-7


@pytest.mark.parametrize(
    "key", ["north__send_note", "send_note", "north__*", "*note", "mcp:north", "mcp:*"]
)
async def test_apr_7_a_rule_meets_its_tool_by_every_name(key, driver, make_registry):
    """APR-7: original name, prefixed name, server, and patterns of them."""
    done: list[Any] = []
    toolset = Toolset([remote_tool("send_note", done)], origin="mcp:north")
    model = ScriptedModel(script=[asks(call("north__send_note", "s")), says("Done.")])
    agent = create_tool_rag_agent(
        model,
        registry=make_registry(toolset),
        toolset=toolset,
        approval={key: True},
        checkpointer=InMemorySaver(),
        **ALL,
    )
    assert ids(await Asked(driver, agent, model).ask()) == ["s"]
    assert done == []


async def test_apr_7_one_name_of_two_servers_means_both(driver, make_registry):
    """APR-7: caution where a name says less than it seems."""
    done: list[Any] = []
    toolset = Toolset([remote_tool("send_note", done)], origin="mcp:north")
    toolset.add([remote_tool("send_note", done)], origin="mcp:south")
    toolset.add([remote_tool("send_note", done)])
    names = ["north__send_note", "south__send_note", "send_note"]
    model = ScriptedModel(script=[asks(*(call(name, name) for name in names)), says("Done.")])
    agent = create_tool_rag_agent(
        model,
        registry=make_registry(toolset),
        toolset=toolset,
        approval={"send_note": True},
        checkpointer=InMemorySaver(),
        **ALL,
    )
    assert ids(await Asked(driver, agent, model).ask()) == names


@pytest.mark.parametrize("kind", ["tool", "function", "of middleware"])
async def test_apr_7_tools_outside_the_registry_have_rules_too(
    kind, driver, make_registry, effects
):
    """APR-7: the agent's own tools, by the name the model calls."""

    def wipe(disk: str) -> str:
        """Wipe a disk."""
        effects.done.append(("wipe", disk))
        return "wiped"

    class Brings(AgentMiddleware):
        tools = [tool(wipe)]  # noqa: RUF012

    given = {"tool": [tool(wipe)], "function": [wipe], "of middleware": []}[kind]
    toolset = Toolset(effects.tools())
    model = ScriptedModel(
        script=[asks(call("wipe", "w", disk="a"), call("wipe", "v", disk="b")), says("Done.")]
    )
    agent = create_tool_rag_agent(
        model,
        registry=make_registry(toolset),
        toolset=toolset,
        tools=given,
        middleware=[Brings()] if kind == "of middleware" else [],
        approval={"wipe": True},
        checkpointer=InMemorySaver(),
        **ALL,
    )
    asked = Asked(driver, agent, model)
    assert ids(await asked.ask()) == ["w", "v"]
    await asked.resume(edit("w", {"disk": "c"}), reject("v"))
    assert effects.done == [("wipe", "c")]


# --- APR-8


async def test_apr_8_the_first_answer_stands(agent_with, effects):
    """APR-8: approve, then anything else on the same request: told that nothing waits."""
    asked = agent_with(THREE, says("Done."))
    await asked.ask()
    await asked.resume(approve("d"), reject("s"))
    done = list(effects.done)
    for late in (approve("d"), reject("d"), approve("s"), edit("d", {"row": 2})):
        with pytest.raises(ApprovalError, match="Nothing in thread 't' waits"):
            await asked.resume(late)
    assert effects.done == done


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (approve("d"), approve("d")),
        (approve("d"), reject("d")),
        (approve("d"), edit("d", {"row": 2})),
        (reject("d"), approve("d")),
        (reject("d"), edit("d", {"row": 2})),
    ],
    ids=lambda decision: decision["type"],
)
async def test_apr_8_an_answer_to_the_saved_point_is_told_that_it_is_settled(
    first, then, agent_with, effects
):
    """APR-8: LangGraph lets a saved point be resumed again; the tool runs once at most."""
    asked = agent_with(asks(call("delete_row", "d", row=1)), says("Done."), says("Again."))
    await asked.ask()
    state = await asked.agent.aget_state(THREAD)
    await asked.resume(first)
    done = list(effects.done)
    with pytest.raises(ApprovalError, match="settled already"):
        await asked.send(Command(resume={"decisions": [then]}), state.config)
    assert effects.done == done
    assert len(done) == (first["type"] == "approve")


async def test_apr_8_a_replay_of_the_tool_step_does_not_run_it_again(agent_with, effects):
    """APR-8: the saved point behind the decision holds an approval that was used."""
    asked = agent_with(asks(call("delete_row", "d", row=1)), says("Done."), says("Again."))
    await asked.ask()
    await asked.resume(approve("d"))
    [before_tools] = [
        state async for state in asked.agent.aget_state_history(THREAD) if state.next == ("tools",)
    ]
    output = await asked.send(None, before_tools.config)
    assert effects.done == [("delete_row", 1)]
    assert "used already" in output["messages"][-2].content


async def test_apr_8_two_answers_at_once_run_the_tool_once(agent_with, effects):
    """APR-8: whoever comes second is told, by an error or by the call's answer."""
    asked = agent_with(asks(call("delete_row", "d", row=1)), *(says("Done.") for _ in range(4)))
    await asked.ask()
    given = Command(resume={"decisions": [approve("d")]})
    if asked.driver.is_async:
        ended = await asyncio.gather(
            *(asked.agent.ainvoke(given, THREAD) for _ in range(4)), return_exceptions=True
        )
    else:
        with ThreadPoolExecutor(4) as pool:
            runs = [pool.submit(asked.agent.invoke, given, THREAD) for _ in range(4)]
            ended = [run.exception() or run.result() for run in runs]
    assert effects.done == [("delete_row", 1)]
    assert all(isinstance(end, (dict, ApprovalError)) for end in ended), ended


@pytest.mark.parametrize(
    "decision",
    [
        {"type": "approve", "call_id": "d", "args": {"row": 2}},
        {"type": "approve", "call_id": "d", "args": {"row": True}},
        {"type": "approve", "call_id": "d", "args": None},
        {"type": "approve", "call_id": "d", "arguments": {"row": 2}},
        {"type": "approve", "call_id": "d", "edited_action": {"args": {"row": 2}}},
    ],
)
async def test_apr_8_an_approval_is_of_the_arguments_shown(decision, agent_with, effects):
    """APR-8: approved with other arguments is not approved; with these it is."""
    asked = agent_with(asks(call("delete_row", "d", row=1)), says("Done."))
    await asked.ask()
    again = await asked.resume(decision)
    assert (ids(again), effects.done) == (["d"], [])
    assert "edit" in again.pending[0].problem
    await asked.resume({"type": "approve", "call_id": "d", "args": {"row": 1}})
    assert effects.done == [("delete_row", 1)]


class ChangesCalls(AgentMiddleware):
    """Other middleware that changes a call, before or behind the look at the approval."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self.changes = changes

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(tool_call={**request.tool_call, **self.changes}))

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        return await handler(request.override(tool_call={**request.tool_call, **self.changes}))


@pytest.mark.parametrize(
    "changes", [{"args": {"row": 2}}, {"name": "send_note", "args": {"text": "x"}}]
)
async def test_apr_8_a_call_that_was_changed_since_is_not_the_approved_one(
    changes, driver, make_registry, effects
):
    """APR-8: bound to id and arguments where it runs."""
    from agent import ToolRAGMiddleware

    toolset = Toolset(effects.tools())
    model = ScriptedModel(script=[asks(call("delete_row", "d", row=1)), says("Done.")])
    agent = create_agent(
        model,
        [],
        middleware=[
            ChangesCalls(**changes),
            ToolRAGMiddleware(make_registry(toolset), toolset, **ALL),
            ApprovalMiddleware(toolset=toolset),
        ],
        checkpointer=InMemorySaver(),
    )
    asked = Asked(driver, agent, model)
    await asked.ask()
    await asked.resume(approve("d"))
    assert effects.done == []


async def test_apr_8_an_id_used_again_needs_another_approval(agent_with, effects):
    """APR-8: some models count their calls anew in each reply; no id stands for two calls."""
    same = call("delete_row", "c1", row=1)
    asked = agent_with(asks(same), asks(same), says("Done."))
    await asked.ask()
    second = await asked.resume(approve("c1"))
    [again] = ids(second)
    assert again != "c1"
    assert effects.done == [("delete_row", 1)]
    still = await asked.resume(approve("c1"))
    assert (ids(still), effects.done) == ([again], [("delete_row", 1)])
    await asked.resume(reject(again))
    assert effects.done == [("delete_row", 1)]


# --- APR-9


async def test_apr_9_a_new_message_closes_what_waits(agent_with, effects):
    """APR-9: closed as not approved, the question is answered, the late approval is refused."""
    asked = agent_with(
        asks(call("append_log", "l", line="x"), call("delete_row", "d", row=1)),
        says("It is noon."),
        asks(call("send_note", "s", text="hello")),
        says("Sent."),
        says("Bye."),
    )
    await asked.ask()
    result = await asked.ask("Never mind, what's the time?")

    assert (result.answer, result.pending, effects.done) == ("It is noon.", (), [])
    messages = await asked.messages()
    assert_paired(messages)
    closed = {m.tool_call_id: m.content for m in messages if isinstance(m, ToolMessage)}
    assert "not approved" in closed["d"]
    assert "was not run" in closed["l"]
    with pytest.raises(ApprovalError, match="Nothing in thread"):
        await asked.resume(approve("d"))
    # LangGraph itself takes an answer that nobody waits for; it must not meet the next request.
    late = {"decisions": [{"type": "approve"}]}
    await asked.answer(late)
    third = await asked.ask("Send a note")
    assert (ids(third), effects.done) == (["s"], [])
    fourth = await asked.resume(approve("d"))
    assert (ids(fourth), effects.done) == (["s"], [])
    assert "'d' does not wait" in fourth.pending[0].problem
    await asked.resume(approve("s"))
    assert effects.done == [("send_note", "hello", "all")]
    assert (await asked.ask("Thanks")).answer == "Bye."
    assert_paired(await asked.messages())


async def test_apr_9_after_a_partial_answer_too(agent_with, effects):
    """APR-9: what was approved before the subject changed does not run either."""
    asked = agent_with(THREE, says("It is noon."), says("Bye."))
    await asked.ask()
    assert ids(await asked.resume(approve("d"))) == ["s"]
    assert (await asked.ask("What's the time?")).answer == "It is noon."
    assert (await asked.ask("Thanks")).answer == "Bye."
    assert effects.done == []
    assert_paired(await asked.messages())


async def test_apr_9_old_messages_are_not_streamed_again(agent_with):
    """APR-9: closing rewrites the thread; who listens must not hear it all anew."""
    asked = agent_with(says("Hello."), THREE, says("It is noon."))
    await asked.ask("Hello?")
    await asked.ask()
    given = {"messages": [HumanMessage("What's the time?")]}
    parts = (
        [chunk async for chunk, _ in asked.agent.astream(given, THREAD, stream_mode="messages")]
        if asked.driver.is_async
        else [chunk for chunk, _ in asked.agent.stream(given, THREAD, stream_mode="messages")]
    )
    assert [part.text for part in parts if isinstance(part, AIMessage)] == ["It is noon."]


# --- APR-10


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (call("delete_row", "d", row="first"), "row"),
        (call("delete_row", "d"), "row"),
        (call("delete_row", "d", row=1, dry_run=True), "unknown argument 'dry_run'"),
        (call("send_note", "d", text="a\x00b"), "NUL"),
        (call("send_note", "d", text="a\ud800b"), "surrogate"),
        (call("drop_table", "d"), "no tool 'drop_table'"),
    ],
    ids=["type", "missing", "unknown", "nul", "surrogate", "no such tool"],
)
async def test_apr_10_a_person_is_not_asked_about_a_call_that_cannot_run(
    bad, told, agent_with, effects
):
    """APR-10: the model is told and corrects it; only the right call is shown."""
    asked = agent_with(asks(bad), asks(call("delete_row", "ok", row=1)), says("Done."))
    first = await asked.ask()
    assert ids(first) == ["ok"]
    assert told in observations(first)["d"]
    assert effects.done == []
    await asked.resume(approve("ok"))
    assert effects.done == [("delete_row", 1)]
    assert_paired(await asked.messages())


async def test_apr_10_unreadable_arguments_are_not_shown(agent_with, effects):
    """APR-10: beside a right call of the same reply, which is asked."""
    broken = AIMessage(
        "",
        tool_calls=[call("send_note", "s", text="x")],
        invalid_tool_calls=[
            {
                "name": "delete_row",
                "args": '{"row": 1',
                "id": "b",
                "error": "cut",
                "type": "invalid_tool_call",
            }
        ],
    )
    asked = agent_with(broken, says("Done."))
    first = await asked.ask()
    assert ids(first) == ["s"]
    await asked.resume(approve("s"))
    assert effects.done == [("send_note", "x", "all")]
    assert_paired(await asked.messages())


async def test_apr_10_what_is_shown_is_what_runs(agent_with, effects):
    """APR-10: slips that the guard mends are mended before a person looks."""
    asked = agent_with(asks(call("send_note", "s", text="x", to=None)), says("Done."))
    [pending] = (await asked.ask()).pending
    assert pending.arguments == {"text": "x"}
    await asked.resume(approve("s"))
    assert effects.done == [("send_note", "x", "all")]


async def test_apr_10_text_that_hides_is_shown_by_its_code(agent_with):
    """APR-10: characters that turn a name around, or that nobody sees."""
    asked = agent_with(asks(call("send_note", "s", text="pay \u202ennA\u200b now")), says("x"))
    output = await asked.send({"messages": [HumanMessage("Send a note")]})
    [action] = output["__interrupt__"][0].value["action_requests"]
    assert "pay \\u{202e}nnA\\u{200b} now" in action["description"]
    assert action["args"]["text"] == "pay \u202ennA\u200b now"


@pytest.mark.parametrize(
    ("decision", "told"),
    [
        (edit("d", {"row": "first"}), "row"),
        (edit("d", {}), "row"),
        (edit("d", {"row": 1, "dry_run": True}), "dry_run"),
        (
            {"type": "edit", "call_id": "d", "edited_action": {"name": "send_note", "args": {}}},
            "cannot put tool 'send_note'",
        ),
        (
            {"type": "edit", "call_id": "d", "edited_action": {"name": "read_log", "args": {}}},
            "cannot put tool 'read_log'",
        ),
    ],
)
async def test_apr_10_an_edit_is_held_to_the_same_rules(decision, told, agent_with, effects):
    """APR-10: checked again, of the same tool; else it does nothing."""
    asked = agent_with(asks(call("delete_row", "d", row=1)), says("Done."))
    await asked.ask()
    again = await asked.resume(decision)
    assert (ids(again), effects.done) == (["d"], [])
    assert told in again.pending[0].problem
    await asked.resume(edit("d", {"row": 7}))
    assert effects.done == [("delete_row", 7)]


# --- policies


async def test_a_policy_decides_on_the_arguments(agent_with, effects):
    def over_10(tool: BaseTool, arguments: dict[str, Any]) -> bool | str:
        row = arguments["row"]
        arguments["row"] = 99  # its own copy
        return f"row {row} of {tool.name} is one of the {10}s" if row >= 10 else False

    asked = agent_with(
        asks(call("delete_row", "a", row=1), call("delete_row", "b", row=10)),
        says("Done."),
        tools=[t for t in unmarked(effects)],
        approval={"delete_row": over_10},
    )
    [pending] = (await asked.ask()).pending
    assert (pending.call_id, pending.reason) == ("b", "row 10 of delete_row is one of the 10s")
    await asked.resume(approve("b"))
    assert sorted(effects.done) == [("delete_row", 1), ("delete_row", 10)]


def unmarked(effects: Effects) -> list[BaseTool]:
    tools = effects.tools()
    for one in tools:
        one.metadata = {}
    return tools


def raises(tool: BaseTool, arguments: dict[str, Any]) -> bool:
    raise RuntimeError(f"limit service is away: {arguments}")


@pytest.mark.parametrize(
    "policy",
    [raises, lambda tool, arguments: None, lambda tool: True, lambda tool, arguments: 1],
    ids=["raises", "None", "wrong signature", "1"],
)
async def test_a_policy_that_fails_refuses(policy, agent_with, effects, caplog):
    """Whatever it is that it did not say, it did not say yes; and nobody is asked."""
    asked = agent_with(
        asks(call("delete_row", "a", row=1), call("read_log", "r")),
        says("Not done."),
        tools=unmarked(effects),
        approval={"delete_row": policy},
    )
    with caplog.at_level(logging.ERROR, logger="agent"):
        result = await asked.ask()
    assert (result.answer, result.pending, effects.done) == ("Not done.", (), [("read_log",)])
    assert "could not be applied" in observations(result)["a"]
    assert "limit service" not in observations(result)["a"]
    assert [record.msg for record in caplog.records] == ["approval_rule_failed"]


async def test_a_policy_that_fails_on_an_edit_refuses_the_edit(agent_with, effects):
    def policy(tool: BaseTool, arguments: dict[str, Any]) -> bool:
        if arguments["row"] > 100:
            raise ValueError("no such row")
        return True

    asked = agent_with(
        asks(call("delete_row", "a", row=1)), says("Done."), approval={"delete_row": policy}
    )
    await asked.ask()
    again = await asked.resume(edit("a", {"row": 500}))
    assert (ids(again), effects.done) == (["a"], [])
    assert "rule refuses" in again.pending[0].problem


async def test_a_policy_is_asked_once_and_its_word_stands(agent_with, effects):
    """Resuming must not ask it anew: its answer might be another by then."""
    said = [True]

    def policy(tool: BaseTool, arguments: dict[str, Any]) -> bool:
        return said.pop()

    asked = agent_with(
        asks(call("delete_row", "a", row=1)),
        says("Done."),
        tools=unmarked(effects),
        approval={"delete_row": policy},
    )
    await asked.ask()
    await asked.resume(approve("a"))
    assert effects.done == [("delete_row", 1)]


# --- what changes while a person thinks


async def test_a_tool_deactivated_meanwhile_is_refused(
    agent_with, effects, set_active, make_registry
):
    toolset = Toolset(effects.tools())
    registry = make_registry(toolset)
    asked = agent_with(THREE, says("Not done."), registry=registry)
    await asked.ask()
    await set_active(registry, "delete_row", False)
    result = await asked.resume(approve("d"), approve("s"))
    assert sorted(effects.done) == [("read_log",), ("send_note", "hello", "all")]
    assert "no longer available" in observations(result)["d"]


async def test_a_tool_gated_meanwhile_is_refused(agent_with, effects, make_registry):
    """`read_log` needed no approval when a person was asked about its neighbours."""
    toolset = Toolset(effects.tools())
    registry = make_registry(toolset)
    asked = agent_with(THREE, says("Not done."), registry=registry)
    await asked.ask()
    specs = getattr(registry, "sync_twin", registry).specs
    specs["read_log"] = specs["read_log"].replace(requires_approval=True)
    result = await asked.resume(approve("d"), reject("s"))
    assert effects.done == [("delete_row", 1)]
    assert "needs a person's approval" in observations(result)["r"]


async def test_a_rule_added_meanwhile_refuses(driver, make_registry, effects):
    """Code of a newer release goes on with the thread."""
    toolset, saver = Toolset(effects.tools()), InMemorySaver()
    registry = make_registry(toolset)

    def agent_of(script: list[Any], rules: Any) -> Asked:
        model = ScriptedModel(script=script)
        agent = create_tool_rag_agent(
            model, registry=registry, toolset=toolset, approval=rules, checkpointer=saver, **ALL
        )
        return Asked(driver, agent, model)

    await agent_of([THREE], None).ask()
    result = await agent_of([says("Done.")], {"read_log": True}).resume(approve("d"), reject("s"))
    assert effects.done == [("delete_row", 1)]
    assert "needs a person's approval" in observations(result)["r"]


# --- without a checkpointer


@pytest.mark.parametrize("rules", [{}, {"delete_row": True}])
async def test_without_a_checkpointer_it_is_refused_never_skipped(
    rules, agent_with, effects, caplog
):
    asked = agent_with(THREE, says("It needs approval."), checkpointer=None, approval=rules)
    with caplog.at_level(logging.ERROR, logger="agent"):
        output = await asked.send({"messages": [HumanMessage("Delete and send")]})
    result = read_run(output)
    assert (result.stop_reason, result.pending) == (StopReason.ANSWERED, ())
    assert effects.done == [("read_log",)]
    for call_id in ("d", "s"):
        assert "keeps no threads" in observations(result)[call_id]
    assert "approval_needs_checkpointer" in [record.msg for record in caplog.records]
    with pytest.raises(ConfigurationError, match="keeps no threads"):
        await asked.resume(approve("d"))


@pytest.mark.parametrize("checkpointer", [None, False])
async def test_where_nobody_can_be_asked_the_step_costs_no_node(checkpointer, agent_with, effects):
    asked = agent_with(THREE, says("It needs approval."), checkpointer=checkpointer)
    assert not [node for node in asked.agent.nodes if "Approval" in node]
    output = await asked.send({"messages": [HumanMessage("Delete and send")]})
    assert effects.done == [("read_log",)]
    assert "needs a person's approval" in observations(read_run(output))["d"]


async def test_resuming_without_a_pending_interrupt_is_an_error(agent_with, effects):
    asked = agent_with(says("Hello."))
    with pytest.raises(ApprovalError, match="Nothing in thread 't' waits for approval"):
        await asked.resume(approve("d"))
    await asked.ask("Hello?")
    with pytest.raises(ApprovalError, match="Nothing in thread 't' waits for approval"):
        await asked.resume(approve("d"))


async def test_an_interrupt_of_a_tool_is_none_of_ours(agent_with, effects):
    """A tool that asks something itself keeps its approval, and its answer comes as before."""

    @tool
    def ask_back(what: str) -> str:
        """Ask the person back."""
        said = interrupt({"question": what})
        effects.done.append(("ask_back", said))
        return f"they said {said}"

    asked = agent_with(
        asks(call("ask_back", "q", what="Which?")),
        says("Done."),
        tools=[ask_back],
        approval={"ask_back": True},
    )
    await asked.ask()
    second = await asked.resume(approve("q"))
    assert (second.stop_reason, second.pending) == (StopReason.INTERRUPTED, ())
    with pytest.raises(ApprovalError, match="asked by a tool"):
        await asked.resume(approve("q"))
    result = read_run(await asked.answer("the red one"))
    assert (result.answer, effects.done) == ("Done.", [("ask_back", "the red one")])


async def test_a_tool_offered_late_is_asked_about_as_well(driver, make_registry, effects):
    """RET-6: the model called it by name before it had it."""
    toolset = Toolset(effects.tools())
    script = [
        asks(call("delete_row", "early", row=1)),
        asks(call("delete_row", "d", row=1)),
        says("Done."),
    ]
    model = ScriptedModel(script=script)
    agent = create_tool_rag_agent(
        model,
        registry=make_registry(toolset),
        toolset=toolset,
        k=1,
        checkpointer=InMemorySaver(),
    )
    asked = Asked(driver, agent, model)
    assert ids(await asked.ask("Read the log")) == ["d"]
    assert model.requests[0].tool_names == ["read_log"]
    await asked.resume(edit("d", {"row": 2}))
    assert effects.done == [("delete_row", 2)]


# --- limits


async def test_limits_hold_after_the_resumption(agent_with, effects):
    """A call for which there is no room is not even asked."""
    asked = agent_with(
        asks(call("delete_row", "a", row=1)),
        asks(call("delete_row", "b", row=2), call("delete_row", "c", row=3)),
        says("never"),
        limits=RunLimits(max_steps=2, max_tool_calls=2, thread=ThreadLimits(timeout_s=600)),
    )
    await asked.ask()
    second = await asked.resume(approve("a"))
    assert ids(second) == ["b"]
    result = await asked.resume(approve("b"))
    assert effects.done == [("delete_row", 1), ("delete_row", 2)]
    assert "limit of 2 tool calls" in observations(result)["c"]
    assert result.stop_reason is StopReason.STEP_LIMIT
    assert_paired(await asked.messages())


# --- streamed


@pytest.mark.parametrize("mode", ["updates", "values"])
async def test_streamed(mode, agent_with, effects):
    asked = agent_with(THREE, says("Done."))

    async def stream(given: Any) -> list[Any]:
        if asked.driver.is_async:
            return [part async for part in asked.agent.astream(given, THREAD, stream_mode=mode)]
        return list(asked.agent.stream(given, THREAD, stream_mode=mode))

    parts = await stream({"messages": [HumanMessage("Delete, send, read")]})
    [question] = [part["__interrupt__"] for part in parts if "__interrupt__" in part]
    assert [a["call_id"] for a in question[0].value["action_requests"]] == ["d", "s"]
    assert effects.done == []
    await stream(Command(resume={"decisions": [approve("s"), approve("d")]}))
    assert len(effects.done) == 3
    assert_paired(await asked.messages())
