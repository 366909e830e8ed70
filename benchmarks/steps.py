"""What a step of an agent costs beside its model and its tool: time, memory, size of the state.

    python -m benchmarks steps

The same scripted model and the same 10 tools in a bare `create_agent`, and in this project's agent
with limits, history, guard and approval on and all tools offered: over a registry in memory (no
database), and over one in a local PostgreSQL, which is asked at each call whether the tool is
still active; async runs have the async registry. A run has 10 or 30 steps of one call; the time of
a step is the difference divided by 20, so that what is done once a run (selection, set-up) is not
in it. The sides take turns. Processor time is given as well: it is that of this process, and other
work on the machine hardly changes it. Prints one JSON document.
"""

from __future__ import annotations

import asyncio
import gc
import json
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import median
from typing import Any, cast

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from agent import RunLimits, create_tool_rag_agent
from agent.factory import DEFAULT_SYSTEM_PROMPT
from registry import AsyncToolRegistry, LocalPostgres, ToolRegistry, Toolset, migrate
from registry.types import ToolHit, ToolSelection

TOOLS = 10
SHORT, LONG = 10, 30
ROUNDS = 15
THREAD_STEPS = 100

Agent = Any
Times = tuple[float, float]


class Stepper(BaseChatModel):
    """Asks for one call a step, each time with other arguments, until it has taken its steps."""

    steps: int

    @property
    def _llm_type(self) -> str:
        return "stepper"

    def bind_tools(self, tools: Sequence[Any], *, tool_choice: Any = None, **kwargs: Any) -> Any:
        return self.bind(tools=list(tools), **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> ChatResult:
        number = sum(isinstance(message, ToolMessage) for message in messages)
        calls: list[Any] = []
        if number < self.steps:
            name = f"lookup_{number % TOOLS}"
            calls = [{"name": name, "args": {"number": number}, "id": f"c{number}"}]
        reply = AIMessage(
            content="" if calls else "Done.",
            tool_calls=calls,
            usage_metadata={"input_tokens": 900, "output_tokens": 20, "total_tokens": 920},
        )
        return ChatResult(generations=[ChatGeneration(message=reply)])

    async def _agenerate(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> ChatResult:
        return self._generate(messages)  # without a thread, which would hide what is measured


class InMemory:
    """A registry that asks nobody."""

    threshold = 0.0

    def __init__(self, toolset: Toolset) -> None:
        self._hits = tuple(
            ToolHit(
                tool_name=spec.tool_name,
                display_name=spec.display_name,
                description=spec.description,
                category=spec.category,
                binding=spec.binding,
                origin=spec.origin,
                requires_approval=False,
                read_only=True,
                version=1,
                rank=rank,
                distance=0.0,
                relevance=1.0,
            )
            for rank, spec in enumerate(toolset.specs, start=1)
        )

    def search(self, query: str, **_: Any) -> list[ToolHit]:
        return list(self._hits)

    def select(self, query: str, **_: Any) -> ToolSelection:
        return ToolSelection(
            hits=self._hits,
            exempt=frozenset(hit.tool_name for hit in self._hits),
            strategy="all",
            categories=(),
            threshold=0.0,
        )

    def active_states(self, names: Iterable[str]) -> dict[str, bool]:
        return dict.fromkeys(names, True)


class AsyncInMemory:
    """The same, awaitable."""

    threshold = 0.0

    def __init__(self, toolset: Toolset) -> None:
        self._twin = InMemory(toolset)

    async def search(self, query: str, **options: Any) -> list[ToolHit]:
        return self._twin.search(query, **options)

    async def select(self, query: str, **options: Any) -> ToolSelection:
        return self._twin.select(query, **options)

    async def active_states(self, names: Iterable[str]) -> dict[str, bool]:
        return self._twin.active_states(names)


def tools() -> list[BaseTool]:
    def lookup(number: int) -> str:
        return f"The entry number {number} of the list."

    async def alookup(number: int) -> str:
        return lookup(number)

    return [
        StructuredTool.from_function(
            lookup,
            alookup,
            name=f"lookup_{place}",
            description=f"Look up an entry of list {place}.",
        )
        for place in range(TOOLS)
    ]


def bare(model: BaseChatModel, live: Sequence[BaseTool], **options: Any) -> Agent:
    agent = create_agent(model, list(live), system_prompt=DEFAULT_SYSTEM_PROMPT, **options)
    return agent.with_config(recursion_limit=10_000)


def ours(
    model: BaseChatModel,
    live: Sequence[BaseTool],
    registry: ToolRegistry | AsyncToolRegistry | type[InMemory] | type[AsyncInMemory] = InMemory,
    **options: Any,
) -> Agent:
    toolset = Toolset(live)
    return create_tool_rag_agent(
        model,
        registry=cast(
            "ToolRegistry", registry(toolset) if isinstance(registry, type) else registry
        ),
        toolset=toolset,
        strategy="all",
        threshold=0,
        limits=RunLimits(max_steps=1_000, max_tool_calls=1_000, max_total_tokens=None),
        approval={},
        **options,
    )


def run_ms(agent: Agent, runner: asyncio.Runner | None) -> Times:
    """Return what a run took: on the clock, and of the processor."""
    given = {"messages": [HumanMessage("Look up all the entries, please.")]}
    began, cpu_began = time.perf_counter(), time.process_time()
    if runner is None:
        agent.invoke(given)
    else:
        runner.run(agent.ainvoke(given))
    return 1_000 * (time.perf_counter() - began), 1_000 * (time.process_time() - cpu_began)


def step_ms(short: Agent, long: Agent, runner: asyncio.Runner | None) -> Times:
    """Return what a step takes: on the clock, and of the processor."""
    brief, whole = run_ms(short, runner), run_ms(long, runner)
    clock, cpu = ((w - b) / (LONG - SHORT) for w, b in zip(whole, brief, strict=True))
    return clock, cpu


def time_figures(registry: ToolRegistry, live: Sequence[BaseTool]) -> dict[str, Any]:
    """Return p50 of a step on each side, sync and async, and of a run's selection."""
    found: dict[str, Any] = {"selection_p50_ms": selection_ms(registry)}
    with asyncio.Runner() as loop:
        async_registry = AsyncToolRegistry(registry.url)
        for name, runner, in_memory, stored in (
            ("sync", None, InMemory, registry),
            ("async", loop, AsyncInMemory, async_registry),
        ):
            make: dict[str, Callable[[BaseChatModel], Agent]] = {
                "bare": partial(bare, live=live),
                "toolrag, registry in memory": partial(
                    ours, live=live, registry=in_memory, usage_log=False
                ),
                "toolrag, PostgreSQL and usage log": partial(ours, live=live, registry=stored),
            }
            sides = {
                side: (build(Stepper(steps=SHORT)), build(Stepper(steps=LONG)))
                for side, build in make.items()
            }
            taken: dict[str, list[Times]] = {side: [] for side in sides}
            for is_counted in (False, *([True] * ROUNDS)):
                for side, (short, long) in sides.items():
                    measured = step_ms(short, long, runner)
                    if is_counted:
                        taken[side].append(measured)
            middle = {
                side: (median(clock for clock, _ in pairs), median(cpu for _, cpu in pairs))
                for side, pairs in taken.items()
            }
            base = middle["bare"]
            found[name] = {
                side: {
                    "step_p50_ms": round(clock, 2),
                    "added_p50_ms": round(clock - base[0], 2),
                    "ratio": round(clock / base[0], 2),
                    "cpu_p50_ms": round(cpu, 2),
                    "added_cpu_p50_ms": round(cpu - base[1], 2),
                }
                for side, (clock, cpu) in middle.items()
            }
        loop.run(async_registry.close())
    return found


def selection_ms(registry: ToolRegistry) -> float:
    """Return the p50 of a selection with a question that was never asked, embedding included."""
    taken: list[float] = []
    for number in range(ROUNDS):
        began = time.perf_counter()
        registry.select(f"Look up entry {number} of one of the lists", k=5)
        taken.append(1_000 * (time.perf_counter() - began))
    return round(median(taken), 2)


def memory_figures(live: Sequence[BaseTool]) -> dict[str, Any]:
    """Return what a thread of 100 steps keeps and needs, and how large its state is."""
    found: dict[str, Any] = {}
    make: dict[str, Callable[..., Agent]] = {
        "bare": bare,
        "toolrag, registry in memory": lambda *given, **more: ours(*given, usage_log=False, **more),
    }
    for name, build in make.items():
        agent = build(Stepper(steps=THREAD_STEPS), live, checkpointer=InMemorySaver())
        plain = build(Stepper(steps=THREAD_STEPS), live)
        given = {"messages": [HumanMessage("Look up all the entries, please.")]}
        plain.invoke(given)  # what is made once is not counted
        gc.collect()
        tracemalloc.start()
        output = plain.invoke(given)
        gc.collect()
        kept, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        config = {"configurable": {"thread_id": "t"}}
        agent.invoke(given, config)
        _, state = JsonPlusSerializer().dumps_typed(agent.get_state(config).values)
        messages = output["messages"]
        found[name] = {
            "steps": sum(isinstance(message, ToolMessage) for message in messages),
            "kept_kb_a_step": round(kept / 1_024 / THREAD_STEPS, 2),
            "peak_kb": round(peak / 1_024),
            "state_kb": round(len(state) / 1_024, 1),
        }
        del output, messages
    return found


def main() -> None:
    live = tools()
    with tempfile.TemporaryDirectory() as folder, LocalPostgres(f"{folder}/data") as server:
        migrate.upgrade(server.url)
        with ToolRegistry(server.url) as registry:
            registry.sync(Toolset(live))
            found = {"time": time_figures(registry, live), "memory": memory_figures(live)}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
