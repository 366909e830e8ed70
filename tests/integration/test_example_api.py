"""The example service over real HTTP: streams, approvals, users, disconnection."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import ValidationError

from examples.api.app import Service, create_app
from examples.api.problems import problem_of
from examples.api.shop import TOOLS
from examples.api.users import User, hash_of, read_users
from registry import ToolRegistry
from registry.errors import (
    ConfigurationError,
    HistoryBudgetError,
    RegistryUnavailableError,
    ThreadNotFoundError,
)
from tests.support.embeddings import HashEmbeddings
from tests.support.openai_server import OpenAIServer, ServerFault

ADA, BOB, OLGA = "token-of-ada", "token-of-bob", "token-of-olga"
USERS = {
    hash_of(ADA): User(name="ada", role="customer"),
    hash_of(BOB): User(name="bob", role="customer"),
    hash_of(OLGA): User(name="olga", role="operator"),
}


class Hanging:
    """A tool that hangs until it is cancelled."""

    def __init__(self) -> None:
        self.began, self.ended = threading.Event(), threading.Event()

        @tool
        async def wait_for_parcel(order_id: str) -> str:
            """Wait until a parcel arrives."""
            self.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.set()
            return order_id

        self.tool = wait_for_parcel


@pytest.fixture
def hanging() -> Hanging:
    return Hanging()


@pytest.fixture
def model_server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
def address(database_url: str, model_server: OpenAIServer, hanging: Hanging) -> Iterator[str]:
    """Where the service listens."""
    tools = [*TOOLS, hanging.tool]
    embeddings = HashEmbeddings()
    with ToolRegistry(database_url, embeddings=embeddings) as registry:
        registry.sync(tools)
    model = ChatOpenAI(
        model="scripted",
        base_url=model_server.base_url,
        api_key=model_server.api_key,  # type: ignore[arg-type]
        max_retries=0,
        stream_usage=True,
    )
    service = Service(
        database_url=database_url, model=model, users=USERS, tools=tools, embeddings=embeddings
    )
    # Bound here: who connects before the service listens waits for it.
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(
            create_app(service), log_level="warning", lifespan="on", timeout_graceful_shutdown=5
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=30)
            assert not thread.is_alive()


ClientOf = Callable[[str], httpx.Client]


@pytest.fixture
def client_of(address: str) -> Iterator[ClientOf]:
    """Maker of the clients of users, by their tokens."""
    made: list[httpx.Client] = []

    def make(token: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        client = httpx.Client(base_url=address, headers=headers, timeout=30)
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@contextmanager
def streaming(
    client: httpx.Client, path: str, body: Any, **options: Any
) -> Iterator[Iterator[tuple[str, Any]]]:
    """The (type, data) of events as they come; a comment is ("", text)."""
    with client.stream("POST", path, json=body, **options) as response:
        if response.status_code != 200:
            response.read()
            raise AssertionError(f"{response.status_code}: {response.text}")
        assert response.headers["content-type"].startswith("text/event-stream")
        yield parsed(response.iter_lines())


def parsed(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    kind = ""
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, json.loads(value)
        elif line.startswith(":"):
            yield "", line


def events(client: httpx.Client, path: str, body: Any, **options: Any) -> list[tuple[str, Any]]:
    with streaming(client, path, body, **options) as read:
        return list(read)


def kinds(told: list[tuple[str, Any]]) -> list[str]:
    return [kind for kind, _ in told if kind != "text"]


def calls(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "args": arguments}]}


def test_a_run_is_streamed_and_bad_requests_have_their_status(
    client_of: ClientOf, model_server: OpenAIServer
) -> None:
    ada, messages = client_of(ADA), "/threads/t1/messages"
    assert ada.get("/healthz").json() == {"status": "ok"}
    model_server.script(
        calls("order_status", order_id="A101"),
        "It is on its way.",
        ServerFault(status=400, message="secret of the provider"),
        "Back again.",
    )
    told = events(ada, messages, {"text": "Where is order A101?"})
    assert kinds(told) == ["tools_offered", "tool_started", "tool_ended", "ended"]
    assert "".join(data["text"] for kind, data in told if kind == "text") == "It is on its way."
    data = dict(told)
    assert data["tool_started"]["arguments"] == {"order_id": "A101"}
    assert data["tool_ended"]["call"]["observation"] == "order A101 is on its way"
    assert data["ended"]["result"]["stop_reason"] == "answered"
    assert "messages" not in data["ended"]["result"]

    for token, path, body, status in (
        ("", messages, {"text": "Hello"}, 401),
        ("wrong", messages, {"text": "Hello"}, 401),
        (ADA, messages, {}, 422),
        (ADA, messages, {"text": " \n "}, 422),
        (ADA, messages, {"text": "x" * 20_001}, 422),
        (ADA, "/threads/a%2Fb/messages", {"text": "Hello"}, 404),
        (ADA, "/threads/a.b/messages", {"text": "Hello"}, 422),
        (ADA, "/threads/t1/decisions", {"decisions": [{"type": "approve", "call_id": "x"}]}, 403),
    ):
        response = client_of(token).post(path, json=body)
        assert (response.status_code, path, body) == (status, path, body)
    blank = ada.post(messages, json={"text": " "})
    assert blank.headers["content-type"] == "application/problem+json"
    assert blank.json()["detail"] == "The question is empty; ask something"

    # What fails once the stream goes is an event of it, and the thread goes on.
    failed = events(ada, messages, {"text": "Hello?"})
    assert kinds(failed) == ["tools_offered", "error"]
    assert failed[-1][1] == {
        "title": "InternalError",
        "status": 500,
        "detail": "Something failed here",
    }
    again = events(ada, messages, {"text": "Hello??"})
    assert dict(again)["ended"]["result"]["answer"] == "Back again."
    assert len(model_server.chat_requests) == 4


@pytest.mark.parametrize(
    ("error", "status", "is_told"),
    [
        (RegistryUnavailableError("host db7 does not answer"), 503, False),
        (ConfigurationError("the key of db7 is wrong"), 500, False),
        (ZeroDivisionError("of db7"), 500, False),
        (HistoryBudgetError("db7 is too long a word"), 422, True),
        (ThreadNotFoundError("db7"), 404, True),
    ],
)
def test_clients_are_told_only_what_they_can_act_on(
    error: Exception, status: int, is_told: bool
) -> None:
    problem = problem_of(error)
    assert (problem["status"], "db7" in problem["detail"]) == (status, is_told)


def test_users_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "users.json"
    file.write_text(
        json.dumps({hash_of(ADA): {"name": "ada", "role": "customer"}}), encoding="utf-8"
    )
    assert read_users(file) == {hash_of(ADA): USERS[hash_of(ADA)]}
    for entry in ({"name": "a/b", "role": "customer"}, {"name": "ada", "role": "root"}):
        file.write_text(json.dumps({"x": entry}), encoding="utf-8")
        with pytest.raises(ValidationError):
            read_users(file)


def test_only_an_operator_decides_and_only_once(
    client_of: ClientOf, model_server: OpenAIServer
) -> None:
    ada, bob, olga = client_of(ADA), client_of(BOB), client_of(OLGA)
    model_server.script(calls("refund_order", order_id="A100", amount=500), "Five were refunded.")
    told = events(ada, "/threads/t1/messages", {"text": "Refund order A100"})
    assert kinds(told)[-2:] == ["approval_needed", "ended"]
    [call] = dict(told)["approval_needed"]["pending"]
    assert ada.get("/threads/t1/pending").json() == {"pending": [call]}

    path, ada_s = "/threads/t1/decisions", {"owner": "ada"}
    edited = {
        "type": "edit",
        "call_id": call["call_id"],
        "arguments": {"order_id": "A100", "amount": 5},
    }
    body = {"decisions": [edited]}
    assert bob.get("/threads/t1/pending").status_code == 404
    assert bob.get("/threads/t1/pending", params=ada_s).status_code == 403
    assert bob.post(path, json=body, params=ada_s).status_code == 403
    assert ada.post(path, json=body).status_code == 403
    assert olga.post(path, json=body).status_code == 404  # her own t1
    assert olga.get("/threads/t1/pending", params=ada_s).json() == {"pending": [call]}
    unclear = {"decisions": [{**edited, "arguments": None}]}
    assert olga.post(path, json=unclear, params=ada_s).status_code == 422
    other = {"decisions": [{"type": "approve", "call_id": "another"}]}
    asked_again = events(olga, path, other, params=ada_s)
    assert "problem" in dict(asked_again)["approval_needed"]["pending"][0]
    assert len(model_server.chat_requests) == 1

    done = events(olga, path, body, params=ada_s)
    observation = dict(done)["tool_ended"]["call"]["observation"]
    assert observation.endswith("\nrefunded 5.00 for order A100")
    assert dict(done)["ended"]["result"]["answer"] == "Five were refunded."
    late = olga.post(path, json=body, params=ada_s)
    assert (late.status_code, late.json()["title"]) == (409, "ApprovalError")
    assert ada.get("/threads/t1/pending").json() == {"pending": []}


def test_a_client_that_goes_away_ends_its_run_and_the_thread_goes_on(
    client_of: ClientOf,
    model_server: OpenAIServer,
    hanging: Hanging,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ERR-4: also while another message of the thread is refused, and during a long tool call."""
    monkeypatch.setattr("fastapi.routing._PING_INTERVAL", 0.1)
    ada, messages = client_of(ADA), "/threads/t1/messages"
    model_server.script(calls("wait_for_parcel", order_id="A1"), "I am here.")
    with streaming(ada, messages, {"text": "Wait for the parcel"}) as read:
        for kind, _ in read:
            if kind == "tool_started":
                break
        assert hanging.began.wait(timeout=20)
        assert next(read) == ("", ": ping")
        busy = client_of(ADA).post(messages, json={"text": "Are you there?"})
        assert (busy.status_code, busy.json()["title"]) == (409, "ThreadBusyError")
        assert busy.json()["detail"] == "A run of this thread is under way; wait for its end"
    assert hanging.ended.wait(timeout=20)
    for _ in range(200):  # the thread is given back a moment after the tool has ended
        response = ada.post(messages, json={"text": "Are you there?"})
        if response.status_code != 409:
            break
    told = dict(parsed(iter(response.text.splitlines())))
    assert told["ended"]["result"]["answer"] == "I am here."
    assert model_server.refusals == []
    roles = [message["role"] for message in model_server.chat_requests[-1].messages]
    assert roles.count("tool") == 1
