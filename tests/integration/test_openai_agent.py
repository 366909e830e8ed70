"""Whole runs over HTTP: agent, registry and ChatOpenAI against the strict local server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.tools import StructuredTool, tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from agent.conversation import aask, ask
from agent.factory import create_tool_rag_agent
from agent.limits import ModelPrice, RunLimits
from agent.result import StopReason
from registry.settings import RegistrySettings
from registry.store import ToolRegistry
from registry.toolset import Toolset
from tests.support.embeddings import HashEmbeddings
from tests.support.openai_client import see_only_localhost
from tests.support.openai_server import OpenAIServer

QUESTION = "What is the weather in Cairo?"
CALL_WEATHER = {"tool_calls": [{"name": "get_weather", "args": {"city": "Cairo"}}]}


@pytest.fixture(autouse=True)
def foreign_hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    asked = see_only_localhost(monkeypatch)
    yield asked
    assert asked == []


@tool
def get_weather(city: str) -> str:
    """Weather in a city: what is it like there now."""
    return f"31 °C and sunny in {city}"


@tool
def lookup_order(order_id: str) -> str:
    """Look up an order by its number."""
    if not order_id.startswith("A"):
        raise ValueError("order numbers begin with A")
    return f"{order_id}: delivered"


@tool
def stock_price(symbol: str) -> str:
    """Price of a stock share."""
    return f"{symbol}: 190.00"


@tool
def count_words(text: str) -> int:
    """Number of words of a text."""
    return len(text.split())


TOOLS = (get_weather, lookup_order, stock_price, count_words)


@pytest.fixture
def connect(database_url: str) -> Iterator[Callable[[Toolset], ToolRegistry]]:
    """Register a toolset in a fresh database."""
    opened: list[ToolRegistry] = []

    def register(toolset: Toolset) -> ToolRegistry:
        registry = ToolRegistry(
            database_url,
            embeddings=HashEmbeddings(256),
            settings=RegistrySettings(pool_size=2),
        )
        opened.append(registry)
        report = registry.sync(toolset)
        assert report.failed == {}
        return registry

    yield register
    for registry in opened:
        registry.close()


Connect = Callable[[Toolset], ToolRegistry]


def build(
    server: OpenAIServer,
    connect: Connect,
    toolset: Toolset | None = None,
    *,
    streaming: bool = False,
    **options: Any,
) -> Any:
    toolset = toolset if toolset is not None else Toolset(TOOLS)
    model = ChatOpenAI(
        model="scripted",
        base_url=server.base_url,
        api_key=server.api_key,  # type: ignore[arg-type]
        max_retries=0,
        timeout=30,
        stream_usage=True,
        # Told either way, the model would not follow how the agent itself is run.
        **({"streaming": True} if streaming else {}),
    )
    return create_tool_rag_agent(
        model,
        registry=connect(toolset),
        toolset=toolset,
        **({"k": 1, "strategy": "retrieval"} | options),
    )


def tools_named_in_history(server: OpenAIServer) -> list[str]:
    return [
        call["function"]["name"]
        for message in server.chat_requests[-1].messages
        for call in message.get("tool_calls", ())
    ]


class TestBinding:
    def test_only_the_tools_found_are_bound(self, connect: Connect) -> None:
        with OpenAIServer(chat=["I cannot say."]) as server:
            result = ask(build(server, connect), QUESTION)
        (request,) = server.chat_requests
        assert request.tool_names == ["get_weather"] == [t.name for t in result.offered_tools]
        (bound,) = request.body["tools"]
        assert bound["function"]["description"] == get_weather.description
        assert bound["function"]["parameters"]["required"] == ["city"]
        assert result.answer == "I cannot say."

    def test_without_a_relevant_tool_the_request_has_none(self, connect: Connect) -> None:
        with OpenAIServer(chat=["Hello."]) as server:
            assert ask(build(server, connect, threshold=1.0), QUESTION).answer == "Hello."
        assert server.chat_requests[0].body.keys().isdisjoint({"tools", "tool_choice"})

    def test_never_more_than_128_tools(self, connect: Connect) -> None:
        def numbered(number: int) -> StructuredTool:
            return StructuredTool.from_function(
                lambda city: city,
                name=f"weather_{number}",
                description=f"What is the weather in Cairo, station {number}.",
                args_schema={"type": "object", "properties": {"city": {"type": "string"}}},
            )

        toolset = Toolset([numbered(number) for number in range(140)])
        with OpenAIServer(chat=["Hello."]) as server:
            agent = build(
                server, connect, toolset, k=140, threshold=0, max_offered=128, tools=[count_words]
            )
            assert ask(agent, QUESTION).answer == "Hello."
        assert len(server.chat_requests[0].tool_names) == 128
        assert "count_words" in server.chat_requests[0].tool_names

    @pytest.mark.parametrize("schema", [{"type": "object"}, {}])
    def test_a_schema_without_properties_is_accepted(
        self, connect: Connect, schema: dict[str, Any]
    ) -> None:
        # So do MCP servers describe a tool without arguments.
        bare = StructuredTool.from_function(
            lambda: "It is sunny.",
            name="weather_now",
            description="What is the weather in Cairo?",
            args_schema=schema,
        )
        call = {"tool_calls": [{"name": "weather_now", "args": {}}]}
        with OpenAIServer(chat=[call, "Sunny."]) as server:
            result = ask(build(server, connect, Toolset([bare])), QUESTION)
        assert server.refusals == []
        assert result.steps[0].tool_calls[0].observation == "It is sunny."


class TestRoundTrip:
    def check(self, server: OpenAIServer) -> None:
        first, second = server.chat_requests
        assert server.refusals == []
        assert first.tool_names == second.tool_names == ["get_weather"]
        *_, asked, answered = second.messages
        assert asked["tool_calls"][0]["function"]["name"] == "get_weather"
        assert answered == {
            "role": "tool",
            "tool_call_id": asked["tool_calls"][0]["id"],
            "content": "31 °C and sunny in Cairo",
        }

    @pytest.mark.parametrize("streaming", [False, True])
    def test_invoke(self, connect: Connect, streaming: bool) -> None:
        with OpenAIServer(chat=[CALL_WEATHER, "Sunny, 31 °C."]) as server:
            result = ask(build(server, connect, streaming=streaming), QUESTION)
        self.check(server)
        assert [bool(each.body.get("stream")) for each in server.chat_requests] == [streaming] * 2
        assert result.answer == "Sunny, 31 °C."
        assert result.stop_reason is StopReason.ANSWERED
        assert result.usage.input_tokens > result.usage.output_tokens > 0

    @pytest.mark.parametrize("streaming", [False, True])
    async def test_ainvoke(self, connect: Connect, streaming: bool) -> None:
        with OpenAIServer(chat=[CALL_WEATHER, "Sunny, 31 °C."]) as server:
            result = await aask(build(server, connect, streaming=streaming), QUESTION)
        self.check(server)
        assert result.answer == "Sunny, 31 °C."

    def test_stream_of_tokens(self, connect: Connect) -> None:
        with OpenAIServer(chat=[CALL_WEATHER, "Sunny, 31 °C, no clouds."]) as server:
            agent = build(server, connect)
            pieces = [
                message.text
                for message, _ in agent.stream(
                    {"messages": [HumanMessage(QUESTION)]}, stream_mode="messages"
                )
                if isinstance(message, AIMessageChunk) and message.text
            ]
        self.check(server)
        assert len(pieces) > 1
        assert "".join(pieces) == "Sunny, 31 °C, no clouds."

    async def test_astream_of_tokens(self, connect: Connect) -> None:
        with OpenAIServer(chat=[CALL_WEATHER, "Sunny, 31 °C, no clouds."]) as server:
            agent = build(server, connect)
            pieces = [
                message.text
                async for message, _ in agent.astream(
                    {"messages": [HumanMessage(QUESTION)]}, stream_mode="messages"
                )
                if isinstance(message, AIMessageChunk) and message.text
            ]
        self.check(server)
        assert "".join(pieces) == "Sunny, 31 °C, no clouds."

    @pytest.mark.parametrize("streaming", [False, True])
    def test_parallel_calls_of_which_two_fail(self, connect: Connect, streaming: bool) -> None:
        calls = [
            {"name": "get_weather", "args": {"city": "Cairo"}},
            {"name": "get_weather", "args": {"town": "Cairo"}},
            {"name": "lookup_order", "args": {"order_id": "A100"}},
            {"name": "get_weather", "args": {"city": "Oslo"}},
        ]
        with OpenAIServer(chat=[{"text": "Four.", "tool_calls": calls}, "Done."]) as server:
            result = ask(build(server, connect, streaming=streaming), QUESTION)
        assert server.refusals == []
        assert result.answer == "Done."
        assert [call.status for call in result.steps[0].tool_calls] == [
            "success",
            "error",  # wrong argument name
            "error",  # not offered
            "success",
        ]


class TestThreads:
    def test_ret_7_a_later_turn_is_accepted_where_history_needs_definitions(
        self, connect: Connect
    ) -> None:
        call_stock = {"tool_calls": [{"name": "stock_price", "args": {"symbol": "AAPL"}}]}
        replies = [CALL_WEATHER, "Sunny.", call_stock, "190.", "You are welcome."]
        with OpenAIServer(chat=replies, require_definitions=True) as server:
            agent = build(server, connect, checkpointer=InMemorySaver())
            ask(agent, QUESTION, thread_id="t")
            ask(agent, "Price of a stock share of AAPL?", thread_id="t")
            # A question no tool fits still carries the calls of both turns.
            assert ask(agent, "Thanks!", thread_id="t").answer == "You are welcome."
        assert server.refusals == []
        assert tools_named_in_history(server) == ["get_weather", "stock_price"]
        assert server.chat_requests[2].tool_names[0] == "get_weather"

    def test_ret_7_a_deactivated_tool_and_one_of_another_process(self, connect: Connect) -> None:
        replies = [CALL_WEATHER, "Sunny.", CALL_WEATHER, "Gone.", "Still gone."]
        saver = InMemorySaver()
        with OpenAIServer(chat=replies, require_definitions=True) as server:
            toolset = Toolset(TOOLS)
            agent = build(server, connect, toolset, checkpointer=saver)
            ask(agent, QUESTION, thread_id="t")
            with_weather = connect(toolset)
            with_weather.deactivate("get_weather")
            second = ask(agent, QUESTION, thread_id="t")
            assert second.steps[0].tool_calls[0].status == "error"
            assert "no longer available" in second.steps[0].tool_calls[0].observation
            without = build(server, connect, Toolset([lookup_order]), checkpointer=saver)
            assert ask(without, QUESTION, thread_id="t").answer == "Still gone."
        assert server.refusals == []

    @pytest.mark.parametrize("require_definitions", [False, True])
    @pytest.mark.parametrize("streaming", [False, True])
    @pytest.mark.parametrize("name", ["functions/look up", "wetter_für_köln", "x" * 70, "no_such"])
    def test_nam_3_an_invented_name_does_not_poison_the_thread(
        self, connect: Connect, name: str, streaming: bool, require_definitions: bool
    ) -> None:
        invented = {"tool_calls": [{"id": "call_x", "name": name, "args": {}}]}
        replies = [invented, "I have no such tool.", "Fine."]
        with OpenAIServer(chat=replies, require_definitions=require_definitions) as server:
            agent = build(server, connect, checkpointer=InMemorySaver(), streaming=streaming)
            first = ask(agent, QUESTION, thread_id="t")
            second = ask(agent, "And now?", thread_id="t")
        assert server.refusals == []
        answered = server.chat_requests[1].messages[-1]
        assert (answered["role"], answered["tool_call_id"]) == ("tool", "call_x")
        assert "There is no tool" in answered["content"]
        assert first.steps[0].tool_calls[0].status == "error"
        assert second.answer == "Fine."

    @pytest.mark.parametrize("streaming", [False, True])
    @pytest.mark.parametrize("beside_a_good_call", [False, True])
    def test_his_5_unreadable_arguments_do_not_poison_the_thread(
        self, connect: Connect, streaming: bool, beside_a_good_call: bool
    ) -> None:
        calls = [{"name": "get_weather", "args": "{city = Cairo}"}]
        if beside_a_good_call:
            calls += CALL_WEATHER["tool_calls"]
        replies = [{"tool_calls": calls}, "One.", "Two.", "Three."]
        with OpenAIServer(chat=replies) as server:
            agent = build(server, connect, checkpointer=InMemorySaver(), streaming=streaming)
            ask(agent, QUESTION, thread_id="t")
            assert ask(agent, "And now?", thread_id="t").stop_reason is StopReason.ANSWERED
        assert server.refusals == []

    @pytest.mark.parametrize("streaming", [False, True])
    @pytest.mark.parametrize("text", ['{"city": "Par', '"x"', "5", "[1]", "{city = Cairo}"])
    def test_arg_7_what_is_no_object_runs_nothing(
        self, connect: Connect, text: str, streaming: bool
    ) -> None:
        ran: list[str] = []
        optional = StructuredTool.from_function(
            lambda city="Cairo": ran.append(city) or "Sunny.",
            name="get_weather",
            description=get_weather.description,
            args_schema={"type": "object", "properties": {"city": {"type": "string"}}},
        )
        broken = {"tool_calls": [{"name": "get_weather", "args": text}]}
        with OpenAIServer(chat=[broken, CALL_WEATHER, "Sunny."]) as server:
            agent = build(server, connect, Toolset([optional]), streaming=streaming)
            result = ask(agent, QUESTION)
        assert server.refusals == []
        assert (result.answer, ran) == ("Sunny.", ["Cairo"])
        told = str(server.chat_requests[1].messages[-1]["content"])
        assert "JSON object" in told
        assert text[:10] in told

    def test_one_call_id_in_every_turn_is_accepted(self, connect: Connect) -> None:
        # Some servers number the calls of each reply from one again.
        weather = {"tool_calls": [{**CALL_WEATHER["tool_calls"][0], "id": "call_0"}]}
        with OpenAIServer(chat=[weather, weather, "One.", weather, "Two."]) as server:
            agent = build(server, connect, checkpointer=InMemorySaver())
            first = ask(agent, QUESTION, thread_id="t")
            assert ask(agent, QUESTION, thread_id="t").answer == "Two."
        assert [step.tool_calls[0].status for step in first.steps] == ["success"] * 2
        assert server.refusals == []

    def test_the_step_limit_leaves_a_thread_that_goes_on(self, connect: Connect) -> None:
        with OpenAIServer(chat=[CALL_WEATHER, CALL_WEATHER, "Sunny."]) as server:
            agent = build(
                server, connect, checkpointer=InMemorySaver(), limits=RunLimits(max_steps=2)
            )
            assert ask(agent, QUESTION, thread_id="t").stop_reason is StopReason.STEP_LIMIT
            assert len(server.chat_requests) == 2
            assert ask(agent, "Go on.", thread_id="t").answer == "Sunny."
        assert server.refusals == []
        assert tools_named_in_history(server) == ["get_weather", "get_weather"]

    def test_loop_2_a_summary_is_a_request_the_api_takes(self, connect: Connect) -> None:
        """LOOP-2: no tools, no calls in the history, bounded; and a thread that goes on."""
        limits = RunLimits(max_steps=2, on_limit="summarise", summary_max_tokens=300)
        with OpenAIServer(chat=[CALL_WEATHER, CALL_WEATHER, "So far: sunny.", "Bye."]) as server:
            agent = build(server, connect, checkpointer=InMemorySaver(), limits=limits)
            stopped = ask(agent, QUESTION, thread_id="t")
            assert ask(agent, "Thanks.", thread_id="t").answer == "Bye."
        assert (stopped.stop_reason, stopped.is_summary) == (StopReason.STEP_LIMIT, True)
        assert stopped.answer == "So far: sunny."
        assert server.refusals == []
        asked = server.chat_requests[2]
        assert "tools" not in asked.body
        assert asked.body["max_completion_tokens"] == 300
        assert QUESTION in asked.messages[-1]["content"]

    def test_loop_2_a_price_table_and_real_usage_make_a_cost(self, connect: Connect) -> None:
        price = ModelPrice(input_per_million=1_000.0, output_per_million=0.0)
        limits = RunLimits(prices={"scripted": price})
        with OpenAIServer(chat=[CALL_WEATHER, "Sunny."]) as server:
            usage = ask(build(server, connect, limits=limits), QUESTION).usage
        assert usage.cost == pytest.approx(usage.input_tokens / 1_000)
        assert not usage.is_estimated


class TestNames:
    def run_one(self, connect: Connect, toolset: Toolset, *, question: str) -> tuple[str, str]:
        """Return (name on the wire, observation) of the one tool of a toolset, called once."""
        (spec,) = toolset.specs
        call = {"tool_calls": [{"name": spec.tool_name, "args": {"city": "Cairo"}}]}
        with OpenAIServer(chat=[call, "Done."], require_definitions=True) as server:
            result = ask(build(server, connect, toolset, threshold=0), question)
        assert server.refusals == []
        assert result.answer == "Done."
        (name,) = server.chat_requests[0].tool_names
        return name, result.steps[0].tool_calls[0].observation

    @pytest.mark.parametrize("name", ["get weather.v2/now", "wetter_für_köln", "天気"])
    def test_nam_2_an_illegal_name_is_legal_on_the_wire(self, connect: Connect, name: str) -> None:
        odd = StructuredTool.from_function(
            lambda city: f"{name} ran for {city}",
            name=name,
            description="What is the weather in a city?",
            args_schema=get_weather.args_schema,
        )
        wire_name, observation = self.run_one(connect, Toolset([odd]), question=QUESTION)
        assert wire_name != name
        assert observation == f"{name} ran for Cairo"

    @pytest.mark.parametrize(("server_chars", "name_chars"), [(30, 50), (12, 50), (13, 50)])
    def test_nam_4_a_prefixed_name_fits(
        self, connect: Connect, server_chars: int, name_chars: int
    ) -> None:
        long = StructuredTool.from_function(
            lambda city: f"ran for {city}",
            name="w" * name_chars,
            description="What is the weather in a city?",
            args_schema=get_weather.args_schema,
        )
        toolset = Toolset([long], origin=f"mcp:{'s' * server_chars}")
        wire_name, observation = self.run_one(connect, toolset, question=QUESTION)
        assert wire_name.startswith("s" * server_chars)
        assert len(wire_name) <= 64
        assert observation == "ran for Cairo"

    def test_nam_6_a_long_description_is_cut_on_the_wire_and_searched_in_full(
        self, connect: Connect
    ) -> None:
        wordy = StructuredTool.from_function(
            lambda city: f"ran for {city}",
            name="wordy",
            description=f"{'lorem ' * 830}quetzalcoatl",
            args_schema=get_weather.args_schema,
        )
        toolset = Toolset([wordy])
        assert len(toolset.specs[0].description) > 4_900
        _, observation = self.run_one(connect, toolset, question="quetzalcoatl")
        assert observation == "ran for Cairo"
