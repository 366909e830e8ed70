"""Prompt tokens of 10-turn conversations with 100 tools: offered by need, all bound, and replaced.

    python -m benchmarks conversation

100 tools and questions of one set: of `bfcl`, each question about something else, and of
`metatool`, three questions about each tool; built-in embedding model. The model is scripted: it
calls the right tools where it is bound to them, looks for them with `search_tools` where it has
that, and answers. Three agents answer the same conversations: this project's, `create_agent` with
all tools, and one whose tools are replaced at each question by what a search finds. A request's
text is what a provider caches, in its order: tools, system message, messages. A token is counted
as four characters. Prints one JSON document.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    ToolMessage,
    convert_to_openai_messages,
)
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import PrivateAttr

from agent import create_tool_rag_agent
from agent.factory import DEFAULT_SYSTEM_PROMPT
from benchmarks.data import rows, specs
from benchmarks.retrieval import spread
from registry import LocalPostgres, RegistrySettings, ToolRegistry, Toolset, migrate
from registry.text import legal_name
from registry.types import ToolSpec

TOOLS = 100
TURNS = 10
CONVERSATIONS = 8
LONG_TURNS = 40
A_TOPIC = 3
K = 5
CHARS_A_TOKEN = 4
CACHED_PRICE = 0.1  # of a token read from a cache, as a share of the full price


@dataclass(frozen=True, slots=True)
class Sent:
    """One request: the texts of its tools, and of its messages."""

    turn: int
    tools: tuple[str, ...]
    messages: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join((*self.tools, *self.messages))

    @property
    def tool_chars(self) -> int:
        return sum(map(len, self.tools))


class RightCaller(BaseChatModel):
    """Calls a question's right tools once each, where it can, then answers; records requests."""

    right: dict[str, list[str]]
    _sent: list[Sent] = PrivateAttr(default_factory=list)

    @property
    def sent(self) -> list[Sent]:
        return self._sent

    @property
    def _llm_type(self) -> str:
        return "right-caller"

    def bind_tools(self, tools: Sequence[Any], *, tool_choice: Any = None, **kwargs: Any) -> Any:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        *,
        tools: Sequence[dict[str, Any]] = (),
        **kwargs: Any,
    ) -> ChatResult:
        turn = sum(isinstance(message, HumanMessage) for message in messages)
        self._sent.append(
            Sent(
                turn,
                tuple(json.dumps(tool, ensure_ascii=False) for tool in tools),
                tuple(
                    json.dumps(message, ensure_ascii=False)
                    for message in convert_to_openai_messages(messages)
                ),
            )
        )
        bound = {tool["function"]["name"] for tool in tools}
        reply = self._reply(messages, bound)
        return ChatResult(generations=[ChatGeneration(message=reply)])

    def _reply(self, messages: list[BaseMessage], bound: set[str]) -> AIMessage:
        place = max(n for n, message in enumerate(messages) if isinstance(message, HumanMessage))
        question = str(messages[place].text)
        called = {m.name for m in messages[place:] if isinstance(m, ToolMessage)}
        missing = [name for name in self.right[question] if name not in called]
        calls = [(name, {}) for name in missing if name in bound]
        if not calls and missing and "search_tools" in bound - called:
            calls = [("search_tools", {"query": question[:500]})]
        number = len(self._sent)
        return AIMessage(
            content="" if calls else "This is what came of it, in a sentence or two.",
            tool_calls=[
                {"name": name, "args": args, "id": f"call_{number}_{n}", "type": "tool_call"}
                for n, (name, args) in enumerate(calls)
            ],
        )


class Replaced(AgentMiddleware[Any, Any, Any]):
    """Binds what a search with the newest question finds, and nothing of before."""

    def __init__(self, registry: ToolRegistry, tools: dict[str, BaseTool]) -> None:
        super().__init__()
        self._registry = registry
        self._tools = tools

    def wrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    ) -> ModelResponse[Any]:
        question = next(m for m in reversed(request.messages) if isinstance(m, HumanMessage))
        hits = self._registry.search(str(question.text), k=K)
        return handler(request.override(tools=[self._tools[hit.tool_name] for hit in hits]))


def live(spec: ToolSpec) -> BaseTool:
    """Return a tool that answers at once; its arguments are all optional, so that calls run."""

    def run(**_: Any) -> str:
        return f"The result of {spec.display_name}: 42."

    schema = {**spec.args_schema, "type": "object", "required": []}
    return StructuredTool.from_function(
        run, name=spec.tool_name, description=spec.description, args_schema=schema
    )


def material() -> tuple[list[ToolSpec], dict[str, list[str]]]:
    """Return 100 tools, and questions with their right tools among these."""
    by_name = {spec.tool_name: spec for spec in specs("bfcl")}
    chosen: dict[str, ToolSpec] = {}
    right: dict[str, list[str]] = {}
    for row in spread(list(rows("bfcl/queries")), 10_000):
        names = [legal_name(name) for name in row["relevant"]]
        new = {name: by_name[name] for name in names}
        if not names or len(chosen | new) > TOOLS:
            continue
        chosen |= new
        right[row["query"]] = names
    assert len(chosen) == TOOLS, len(chosen)
    return list(chosen.values()), right


def topics() -> tuple[list[ToolSpec], dict[str, list[str]]]:
    """Return 100 tools, and questions: three in a row about each tool that has as many."""
    by_name = {spec.tool_name: spec for spec in specs("metatool", limit=TOOLS)}
    asked: dict[str, list[str]] = {}
    for row in spread(list(rows("metatool/queries")), 20_000):
        names = [legal_name(name) for name in row["relevant"]]
        if len(names) == 1 and names[0] in by_name:
            asked.setdefault(names[0], []).append(row["query"])
    right = {
        question: [name]
        for name, questions in asked.items()
        if len(questions) >= A_TOPIC
        for question in questions[:A_TOPIC]
    }
    return list(by_name.values()), right


def conversations(questions: Sequence[str], turns: int, count: int) -> Iterator[Sequence[str]]:
    assert len(questions) >= turns
    for number in range(count):
        start = number * turns % (len(questions) - turns + 1)
        yield questions[start : start + turns]


def shared_chars(one: str, other: str) -> int:
    """Return the length of the common beginning of two texts."""
    if other.startswith(one):
        return len(one)
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), len(other))


def figures(threads: Sequence[Sequence[Sent]]) -> dict[str, Any]:
    """Return what the requests of some threads came to."""
    everything = [sent for thread in threads for sent in thread]
    shares: dict[bool, list[float]] = {True: [], False: []}
    total = cached = 0
    for thread in threads:
        before: Sent | None = None
        for sent in thread:
            same = 0 if before is None else shared_chars(before.text, sent.text)
            total, cached = total + len(sent.text), cached + same
            if before is not None:
                shares[sent.turn != before.turn].append(same / len(sent.text))
            before = sent
    return {
        "requests": len(everything),
        "tools_bound_mean": round(fmean(len(sent.tools) for sent in everything), 1),
        "tool_tokens_a_request": round(
            fmean(sent.tool_chars for sent in everything) / CHARS_A_TOKEN
        ),
        "input_tokens_a_thread": round(total / len(threads) / CHARS_A_TOKEN),
        "same_beginning_pct": {
            "first request of a turn": round(100 * fmean(shares[True]), 1),
            "later request of a turn": round(100 * fmean(shares[False]), 1),
            "of all tokens": round(100 * cached / total, 1),
        },
        "tokens_a_thread_at_price": round(
            (total - cached + CACHED_PRICE * cached) / len(threads) / CHARS_A_TOKEN
        ),
    }


def measure(
    registry: ToolRegistry, toolset: Toolset, right: dict[str, list[str]], turns: int, count: int
) -> dict[str, Any]:
    """Return the figures of each agent over the same conversations."""
    tools = {tool.name: tool for tool in toolset.values()}
    everything = list(tools.values())

    def offered_by_need(model: RightCaller) -> Any:
        return create_tool_rag_agent(
            model,
            registry=registry,
            toolset=toolset,
            k=K,
            usage_log=False,
            checkpointer=InMemorySaver(),
        )

    def all_bound(model: RightCaller) -> Any:
        return create_agent(
            model, everything, checkpointer=InMemorySaver(), system_prompt=DEFAULT_SYSTEM_PROMPT
        )

    def replaced(model: RightCaller) -> Any:
        return create_agent(
            model,
            everything,
            middleware=[Replaced(registry, tools)],
            checkpointer=InMemorySaver(),
            system_prompt=DEFAULT_SYSTEM_PROMPT,
        )

    make: dict[str, Callable[[RightCaller], Any]] = {
        "toolrag": offered_by_need,
        "all bound": all_bound,
        "replaced at each question": replaced,
    }
    found: dict[str, Any] = {}
    for name, build in make.items():
        threads: list[list[Sent]] = []
        asked = called = 0
        for number, questions in enumerate(conversations(list(right), turns, count)):
            model = RightCaller(right=right)
            agent = build(model)
            for question in questions:
                messages: list[BaseMessage] = agent.invoke(
                    {"messages": [HumanMessage(question)]},
                    {"configurable": {"thread_id": str(number)}},
                )["messages"]
                place = max(n for n, m in enumerate(messages) if isinstance(m, HumanMessage))
                names = {
                    message.name
                    for message in messages[place:]
                    if isinstance(message, ToolMessage) and message.status == "success"
                }
                asked += 1
                called += names >= {*right[question]}
            threads.append(model.sent)
        found[name] = figures(threads) | {
            "questions_with_every_right_call_pct": round(100 * called / asked, 1)
        }
    of_all = found["all bound"]["tool_tokens_a_request"]
    for name in ("toolrag", "replaced at each question"):
        found[name]["fewer_tool_tokens_pct"] = round(
            100 * (1 - found[name]["tool_tokens_a_request"] / of_all), 1
        )
    return found


def main() -> None:
    found: dict[str, Any] = {}
    sets = {"bfcl": material(), "metatool": topics()}
    with tempfile.TemporaryDirectory() as folder, LocalPostgres(f"{folder}/data") as server:
        migrate.upgrade(server.url)
        for name, (chosen, right) in sets.items():
            toolset = Toolset(live(spec) for spec in chosen)
            settings = RegistrySettings(namespace=name)
            with ToolRegistry(server.url, settings=settings) as registry:
                registry.sync(toolset)
                for turns, count in ((TURNS, CONVERSATIONS), (LONG_TURNS, 2)):
                    found[f"{name}, {count} conversations of {turns} turns"] = measure(
                        registry, toolset, right, turns, count
                    )
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
