"""The agent over HTTP, against a local server as strict as the OpenAI API, and that server."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

from tests.support.openai_client import post, see_only_localhost
from tests.support.openai_server import ChatReply, OpenAIServer, ServerFault

CHAT = "/chat/completions"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}


@pytest.fixture(autouse=True)
def foreign_hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    asked = see_only_localhost(monkeypatch)
    yield asked
    assert asked == []


def chat_model(server: OpenAIServer, **options: Any) -> ChatOpenAI:
    # No retries: a refusal or a fault shows at once, not after the client has tried again.
    options = {"max_retries": 0, "timeout": 30} | options
    return ChatOpenAI(model="scripted", base_url=server.base_url, api_key=server.api_key, **options)


def function_tool(name: str = "get_weather", **changes: Any) -> dict[str, Any]:
    function = {"name": name, "description": "Weather of a city.", "parameters": PARAMETERS}
    return {"type": "function", "function": function | changes}


def wire_call(call_id: str = "call_a", **changes: Any) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": '{"city": "Cairo"}'} | changes
    return {"id": call_id, "type": "function", "function": function}


def full_request() -> dict[str, Any]:
    """A request with everything right: two parallel calls answered, a third turn open."""
    return {
        "model": "scripted",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Cairo and Oslo?"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [wire_call("call_a"), wire_call("call_b")],
            },
            {"role": "tool", "tool_call_id": "call_b", "content": "4 °C"},
            {"role": "tool", "tool_call_id": "call_a", "content": "31 °C"},
            {"role": "assistant", "content": "31 and 4.", "name": "weather_agent"},
            {"role": "user", "content": "And Rome?"},
        ],
        "tools": [function_tool(), function_tool("get_time")],
        "tool_choice": {"type": "function", "function": {"name": "get_time"}},
    }


Change = Callable[[dict[str, Any]], Any]


def set_in(*path: Any, to: Any) -> Change:
    def change(body: dict[str, Any]) -> None:
        target: Any = body
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = to

    return change


def drop(*path: Any) -> Change:
    def change(body: dict[str, Any]) -> None:
        target: Any = body
        for key in path[:-1]:
            target = target[key]
        del target[path[-1]]

    return change


def parameters(**changes: Any) -> Change:
    return set_in("tools", 0, "function", "parameters", to=PARAMETERS | changes)


REFUSED: dict[str, tuple[Change, str]] = {
    "no model": (drop("model"), "Missing required parameter: 'model'"),
    "no messages": (set_in("messages", to=[]), "Invalid 'messages'"),
    "unknown field": (set_in("toolz", to=1), "Unrecognized request argument supplied: toolz"),
    "usage without stream": (
        set_in("stream_options", to={"include_usage": True}),
        "only allowed when 'stream' is enabled",
    ),
    "empty tools": (set_in("tools", to=[]), "Invalid 'tools'"),
    "129 tools": (
        set_in("tools", to=[function_tool(f"tool_{n}") for n in range(129)]),
        "array too long",
    ),
    "tool name with a space": (
        set_in("tools", 0, "function", "name", to="get weather"),
        "Invalid 'tools[0].function.name'",
    ),
    "tool name with a final newline": (
        set_in("tools", 0, "function", "name", to="get_weather\n"),
        "Invalid 'tools[0].function.name'",
    ),
    "tool name of 65 characters": (
        set_in("tools", 1, "function", "name", to="x" * 65),
        "Invalid 'tools[1].function.name'",
    ),
    "empty tool name": (set_in("tools", 0, "function", "name", to=""), "Invalid 'tools[0]"),
    "one tool twice": (set_in("tools", 1, to=function_tool()), "Tool names must be unique"),
    "description of 1,025 characters": (
        set_in("tools", 0, "function", "description", to="x" * 1_025),
        "string too long",
    ),
    "description that is no text": (
        set_in("tools", 0, "function", "description", to=["x"]),
        "Invalid type for 'tools[0].function.description'",
    ),
    "parameters no object": (parameters(type="array", items={}), "'type: \"object\"'"),
    "parameters without properties": (
        set_in("tools", 0, "function", "parameters", to={"type": "object"}),
        "object schema missing properties",
    ),
    "parameters as a list": (
        set_in("tools", 0, "function", "parameters", to=[]),
        "is not a JSON Schema",
    ),
    "unknown type deep inside": (
        parameters(properties={"a": {"type": "object", "properties": {"b": {"type": "str"}}}}),
        "In context=('a', 'b'), 'str'",
    ),
    "array without items": (
        parameters(properties={"a": {"anyOf": [{"type": "array"}]}}),
        "array schema missing items",
    ),
    "tool choice of an unknown tool": (
        set_in("tool_choice", "function", "name", to="get_news"),
        "not defined in 'tools'",
    ),
    "tool choice with an illegal name": (
        set_in("tool_choice", "function", "name", to="get/time"),
        "Invalid 'tool_choice.function.name'",
    ),
    "tool choice without tools": (drop("tools"), "only allowed when 'tools' are specified"),
    "unknown role": (set_in("messages", 0, "role", to="human"), "Invalid value: 'human'"),
    "number as content": (set_in("messages", 1, "content", to=3), "got int"),
    "null content without calls": (set_in("messages", 6, "content", to=None), "got NoneType"),
    "content of an assistant without calls missing": (drop("messages", 5, "content"), "got None"),
    "object as tool content": (set_in("messages", 3, "content", to={"celsius": 4}), "got dict"),
    "picture in a tool message": (
        set_in("messages", 3, "content", to=[{"type": "image_url", "image_url": {"url": "x"}}]),
        "'image_url'",
    ),
    "speaker name with a space": (set_in("messages", 5, "name", to="my agent"), "[5].name'"),
    "empty tool_calls": (set_in("messages", 5, "tool_calls", to=[]), "minimum length 1"),
    "history calls an illegal name": (
        set_in("messages", 2, "tool_calls", 0, "function", "name", to="functions/look up"),
        "Invalid 'messages[2].tool_calls[0].function.name'",
    ),
    "history with broken arguments": (
        set_in("messages", 2, "tool_calls", 0, "function", "arguments", to='{"city": '),
        "not a JSON object in a string",
    ),
    "history with list arguments": (
        set_in("messages", 2, "tool_calls", 1, "function", "arguments", to="[1]"),
        "Invalid 'messages[2].tool_calls[1].function.arguments'",
    ),
    "history with arguments as an object": (
        set_in("messages", 2, "tool_calls", 1, "function", "arguments", to={"city": "Rome"}),
        "not a JSON object in a string",
    ),
    "one id for two calls": (
        set_in("messages", 2, "tool_calls", 1, "id", to="call_a"),
        "Duplicate tool call id 'call_a'",
    ),
    "call id of 41 characters": (
        set_in("messages", 2, "tool_calls", 1, "id", to="x" * 41),
        "1 to 40 characters",
    ),
    "unanswered call": (drop("messages", 3), "did not have response messages: call_b"),
    "call answered twice": (
        set_in("messages", 4, "tool_call_id", to="call_b"),
        "('call_b' is not open)",
    ),
    "tool message without its call": (
        set_in("messages", 2, to={"role": "assistant", "content": "hm"}),
        "must be a response to a preceding message",
    ),
    "late tool message": (
        lambda body: body["messages"].insert(4, {"role": "user", "content": "still there?"}),
        "did not have response messages: call_a",
    ),
    "call left open at the end": (
        lambda body: body["messages"].append(
            {"role": "assistant", "content": None, "tool_calls": [wire_call("call_z")]}
        ),
        "did not have response messages: call_z",
    ),
}


class TestServer:
    def test_accepts_what_is_right(self) -> None:
        with OpenAIServer(chat=["Sunny."], require_definitions=True) as server:
            status, document = post(server, CHAT, full_request())
        assert status == 200
        assert document["choices"][0]["message"]["content"] == "Sunny."
        assert document["choices"][0]["finish_reason"] == "stop"
        assert server.chat_requests[0].tool_names == ["get_weather", "get_time"]

    @pytest.mark.parametrize("name", REFUSED)
    def test_refuses_misuse(self, name: str) -> None:
        change, expected = REFUSED[name]
        body = full_request()
        change(body)
        with OpenAIServer(chat=["never sent"]) as server:
            status, document = post(server, CHAT, body)
        assert status == 400
        assert document["error"].keys() == {"message", "type", "param", "code"}
        assert document["error"]["type"] == "invalid_request_error"
        assert expected in document["error"]["message"]
        assert server.refusals == [document["error"]["message"]]
        assert server.unused_replies == 1

    @pytest.mark.parametrize("change", [drop("tools", 0), drop("tools")])
    def test_ret_7_demands_definitions_only_when_told(self, change: Change) -> None:
        body = full_request()
        del body["tool_choice"]
        change(body)
        with OpenAIServer(chat=["ok"]) as lenient:
            assert post(lenient, CHAT, body)[0] == 200
        with OpenAIServer(chat=["ok"], require_definitions=True) as strict:
            status, document = post(strict, CHAT, body)
        assert status == 400
        assert "calls 'get_weather', which is not defined" in document["error"]["message"]

    @pytest.mark.parametrize("authorization", [None, "Bearer wrong", "Basic sk-local-test"])
    def test_wants_the_bearer_token(self, authorization: str | None) -> None:
        with OpenAIServer(chat=["never sent"]) as server:
            status, document = post(server, CHAT, full_request(), authorization=authorization)
        assert status == 401
        assert document["error"]["code"] == "invalid_api_key"

    @pytest.mark.parametrize(
        "payload", [b"", b"{", b"[]", b'{"temperature": NaN}', b'{"model": "\\ud800"}']
    )
    def test_refuses_what_is_not_a_json_object(self, payload: bytes) -> None:
        with OpenAIServer() as server:
            status, document = post(server, CHAT, payload)
        assert status == 400
        assert "could not parse the JSON body" in document["error"]["message"]

    def test_short_script_and_unknown_path_are_errors(self) -> None:
        with OpenAIServer(chat=["one"]) as server:
            assert post(server, CHAT, full_request())[0] == 200
            status, document = post(server, CHAT, full_request())
            assert post(server, "/responses", {})[0] == 404
        assert (status, document["error"]["code"]) == (400, "script_short")

    def test_a_defect_of_the_server_fails_the_test(self) -> None:
        body = copy.deepcopy(full_request())
        body["messages"][0]["role"] = ["unhashable"]
        with pytest.raises(AssertionError, match="test server itself"), OpenAIServer() as server:
            assert post(server, CHAT, body)[0] == 500

    def test_lists_its_model(self) -> None:
        with OpenAIServer(model="scripted-2") as server:
            client = openai.OpenAI(base_url=server.base_url, api_key=server.api_key)
            with client:
                assert [model.id for model in client.models.list()] == ["scripted-2"]


class TestChatOpenAI:
    def test_text_and_usage(self) -> None:
        with OpenAIServer(chat=["Grüße, 東京."]) as server:
            message = chat_model(server).invoke("Hello")
        assert message.text == "Grüße, 東京."
        assert message.usage_metadata is not None
        assert message.usage_metadata["input_tokens"] > 0
        assert message.response_metadata["finish_reason"] == "stop"

    def test_parallel_calls_not_streamed_and_streamed_are_equal(self) -> None:
        reply = AIMessage(
            "Two look-ups, side by side.",
            tool_calls=[
                {"id": "", "name": "get_weather", "args": {"city": "Reykjavík, Iceland"}},
                {"id": "given", "name": "get_weather", "args": {}},
            ],
        )
        with OpenAIServer(chat=[reply, reply]) as server:
            model = chat_model(server).bind_tools([function_tool()])
            whole = model.invoke("Hello")
            chunks = list(model.stream("Hello", stream_usage=True))
        streamed = chunks[0]
        for chunk in chunks[1:]:
            streamed += chunk
        assert isinstance(streamed, AIMessageChunk)
        assert [(call["name"], call["args"]) for call in whole.tool_calls] == [
            ("get_weather", {"city": "Reykjavík, Iceland"}),
            ("get_weather", {}),
        ]
        assert whole.tool_calls[1]["id"] == "given"
        assert [call["args"] for call in streamed.tool_calls] == [
            call["args"] for call in whole.tool_calls
        ]
        assert whole.tool_calls[0]["id"] != streamed.tool_calls[0]["id"]  # unique on a server
        assert streamed.text == whole.text
        assert streamed.usage_metadata is not None
        assert whole.usage_metadata is not None
        assert streamed.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"] > 0
        assert streamed.response_metadata["finish_reason"] == "tool_calls"
        # Names come first and arguments in pieces, as from the real API.
        pieces = [piece for chunk in chunks for piece in chunk.tool_call_chunks]
        assert [piece["name"] for piece in pieces if piece["name"]] == ["get_weather"] * 2
        assert len(pieces) > 4

    def test_stream_without_usage_sends_none(self) -> None:
        with OpenAIServer(chat=["Hello there, all of you."]) as server:
            chunks = list(chat_model(server).stream("Hello", stream_usage=False))
        assert "".join(chunk.text for chunk in chunks) == "Hello there, all of you."
        assert len([chunk for chunk in chunks if chunk.text]) > 1
        assert all(chunk.usage_metadata is None for chunk in chunks)

    @pytest.mark.parametrize("stream", [False, True])
    def test_unreadable_arguments_arrive_as_they_were_sent(self, stream: bool) -> None:
        # Broken beyond mending: arguments that only break off are completed when streamed.
        broken = "{city = Cairo}"
        reply = {"tool_calls": [{"name": "get_weather", "args": broken}]}
        with OpenAIServer(chat=[reply]) as server:
            message = chat_model(server, streaming=stream).invoke("Hello")
        assert message.tool_calls == []
        assert [call["args"] for call in message.invalid_tool_calls] == [broken]

    async def test_async_round_trip_with_history(self) -> None:
        call = {"name": "get_weather", "args": {"city": "Cairo"}}
        with OpenAIServer(chat=[{"tool_calls": [call]}, "31 °C"]) as server:
            model = chat_model(server).bind_tools([function_tool()])
            question = HumanMessage("Cairo?")
            asked = await model.ainvoke([question])
            call_id = asked.tool_calls[0]["id"]
            result = ToolMessage("31 °C", tool_call_id=call_id)
            answer = await model.ainvoke([question, asked, result])
            with pytest.raises(openai.BadRequestError, match="did not have response messages"):
                await model.ainvoke([question, asked])
        assert answer.text == "31 °C"
        assert server.chat_requests[1].messages[-1]["tool_call_id"] == call_id

    def test_server_fault_and_retry(self) -> None:
        with OpenAIServer(chat=[ServerFault(status=503), "late"]) as server:
            with pytest.raises(openai.InternalServerError):
                chat_model(server).invoke("Hello")
            assert chat_model(server, max_retries=1).invoke("Hello").text == "late"
        assert [request.status for request in server.requests] == [503, 200]

    def test_held_reply_is_released_by_the_test_or_by_closing(self) -> None:
        hold = threading.Event()
        with OpenAIServer(
            chat=[ChatReply(text="a", hold=hold), ChatReply(text="b", hold=threading.Event())]
        ) as server:
            answers: list[str] = []
            model = chat_model(server)

            def ask() -> None:
                answers.append(model.invoke("Hello").text)

            first = threading.Thread(target=ask)
            first.start()
            assert server.holding.acquire(timeout=30)
            assert answers == []
            hold.set()
            first.join(timeout=30)
            assert answers == ["a"]
            second = threading.Thread(target=ask)
            second.start()
            assert server.holding.acquire(timeout=30)
        second.join(timeout=30)
        assert answers == ["a", "b"]
