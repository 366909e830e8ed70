"""Whatever a model writes and tools do: a run ends within its limits and leaves a sound thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver

from agent import (
    RunLimits,
    RunResult,
    StopReason,
    ToolPolicy,
    aask,
    ask,
    create_tool_rag_agent,
)
from registry.toolset import Toolset
from tests.support.fake_registry import AsyncFakeRegistry, FakeRegistry
from tests.support.scripted_model import ScriptedModel, says

EXAMPLES = 500  # of each of four tests
QUESTION = "Handle number things: give, fail, hang, flood, quit or return nothing"
LIMITS = [
    RunLimits(max_steps=steps, max_tool_calls=calls, on_limit=on_limit)
    for steps in (1, 2, 4)
    for calls in (1, 3, None)
    for on_limit in ("stop", "summarise")
]
POLICY = ToolPolicy(timeout_s=0.01, max_result_chars=500, retries=1, backoff_s=0, breaker_reset_s=0)


@dataclass
class Scene:
    """An agent for each of the limits, with tools that note that they ran."""

    is_async: bool
    ran: list[str] = field(default_factory=list)
    threads: Any = field(default_factory=count)

    def __post_init__(self) -> None:
        self.model = ScriptedModel(script=[])
        toolset = Toolset(self._tools())
        if self.is_async:
            registry: Any = AsyncFakeRegistry(toolset)
            asyncio.run(registry.deactivate("switched_off"))
        else:
            registry = FakeRegistry(toolset)
            registry.deactivate("switched_off")
        self.agents = [
            create_tool_rag_agent(
                self.model,
                registry=registry,
                toolset=toolset,
                threshold=0.2,
                k=20,
                limits=limits,
                default_policy=POLICY,
                checkpointer=InMemorySaver(),
            )
            for limits in LIMITS
        ]

    def _tools(self) -> list[BaseTool]:
        def does(name: str, what: Any, description: str) -> BaseTool:
            def work(number: int) -> Any:
                self.ran.append(name)
                return what(number)

            async def awork(number: int) -> Any:
                self.ran.append(name)
                if name == "hang":
                    await asyncio.sleep(60)
                if name == "quit":
                    raise asyncio.CancelledError
                return what(number)

            return StructuredTool.from_function(work, awork, name=name, description=description)

        def fail(number: int) -> None:
            raise RuntimeError(f"fault {number}")

        def cancel(number: int) -> None:
            raise concurrent.futures.CancelledError

        return [
            does("give", lambda number: number, "Give a number things."),
            does("fail", fail, "Fail a number things."),
            does("hang", lambda _: threading.Event().wait(0.05), "Hang a number things."),
            does("flood", lambda _: "flood " * 500, "Flood a number things."),
            does("quit", cancel, "Quit number things."),
            does("nothing", lambda _: None, "Nothing of number things."),
            does("switched_off", lambda number: number, "Handle number things, switched off."),
            does("unrelated", lambda number: number, "Zebra xylophone quokka walrus."),
        ]

    def run(self, agent: Any, question: str, thread_id: str) -> RunResult:
        """Ask; a run that a tool cancels is asked about by reading its thread."""
        if self.is_async:
            return asyncio.run(aask(agent, question, thread_id=thread_id))
        return ask(agent, question, thread_id=thread_id)


NAMES = st.sampled_from(
    [
        *("give", "fail", "hang", "flood", "quit", "nothing", "switched_off", "unrelated"),
        *("no_such", "read_more", "", "Give", "functions.give", "give me; drop", "ü" * 80),
    ]
)
IDS = st.sampled_from(["a", "b", "c", "", None, "call id with spaces " * 5])
ARGUMENTS = st.sampled_from(
    [
        {"number": 1},
        {"number": 2},
        {"number": "3"},
        {},
        {"number": None},
        {"number": []},
        {"number": 1, "extra": "x"},
        {"nubmer": 1},
        {"number": "many"},
        {"number": {"a": "\x00"}},
    ]
)
CALLS = st.builds(
    lambda name, args, call_id: {"name": name, "args": args, "id": call_id, "type": "tool_call"},
    NAMES,
    ARGUMENTS,
    IDS,
)
UNREADABLE = st.builds(
    lambda name, args, call_id, error: {
        "name": name,
        "args": args,
        "id": call_id,
        "error": error,
        "type": "invalid_tool_call",
    },
    st.one_of(NAMES, st.none()),
    st.sampled_from(["{", '{"number": 1', "", None, "[1]", '{"number": 1}}', "\x00"]),
    IDS,
    st.sampled_from([None, "Function arguments are not valid JSON."]),
)
REPLIES = st.builds(
    lambda text, calls, unreadable: AIMessage(
        text, tool_calls=calls, invalid_tool_calls=unreadable
    ),
    st.sampled_from(["", "Let me see.", " \n"]),
    st.lists(CALLS, max_size=4),
    st.lists(UNREADABLE, max_size=2),
)


@pytest.mark.parametrize("part", [1, 2])
@pytest.mark.parametrize("is_async", [False, True], ids=["invoke", "ainvoke"])
def test_every_run_ends_within_its_limits_and_leaves_a_sound_thread(
    is_async: bool, part: int
) -> None:
    scene = Scene(is_async)

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        replies=st.lists(REPLIES, min_size=1, max_size=4),
        which=st.integers(0, len(LIMITS) - 1),
        seed=st.just(part),
    )
    def check(replies: list[AIMessage], which: int, seed: int) -> None:
        agent, limits, thread_id = scene.agents[which], LIMITS[which], str(next(scene.threads))
        scene.model.requests.clear()
        scene.ran.clear()
        scene.model.script = lambda _: (
            replies[place]
            if (place := len(scene.model.requests) - 1) < len(replies)
            else says("Ok")
        )
        result = scene.run(agent, QUESTION, thread_id)

        # Within its limits, and the limits are what ended it.
        summary = limits.on_limit == "summarise"
        assert len(scene.model.requests) <= limits.max_steps + summary
        assert result.stop_reason in set(StopReason)
        first_runs = Counter(
            call["id"]
            for message in result.messages
            if isinstance(message, AIMessage)
            for call in message.tool_calls
        )
        if limits.max_tool_calls is not None:
            tries = 1 + POLICY.retries  # none here is idempotent, so one is enough
            assert len(scene.ran) <= limits.max_tool_calls * tries
        # Only what was bound before could run.
        bound = {name for request in scene.model.requests for name in request.tool_names}
        assert set(scene.ran) <= bound - {"switched_off"}
        # One answer each.
        answers = Counter(m.tool_call_id for m in result.messages if isinstance(m, ToolMessage))
        assert answers == first_runs
        assert set(answers.values()) <= {1}

        # The thread goes on: the model refuses what the OpenAI API would refuse.
        scene.model.script = lambda _: says("Still here.")
        assert scene.run(agent, "Are you there?", thread_id).answer == "Still here."

    check()
