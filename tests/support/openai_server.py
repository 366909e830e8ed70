"""A local HTTP server that speaks the OpenAI protocol, as strict as the real one.

    with OpenAIServer(chat=["Hello."]) as server:
        ChatOpenAI(base_url=server.base_url, api_key=server.api_key, model="scripted")

Chat replies are scripted, vectors are computed from the words, and every request is recorded.
What the API would refuse is refused with its status and error body (`openai_rules`); what is
answered is built in `openai_answers`.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.support.openai_answers import (
    ChatReply,
    EmbeddingFault,
    Scripted,
    ServerFault,
    completion,
    embed_text,
    embeddings_document,
    stream_events,
)
from tests.support.openai_rules import EmbeddingLimits, Refused, check_chat, check_embeddings

__all__ = [
    "ChatReply",
    "EmbeddingFault",
    "EmbeddingLimits",
    "OpenAIServer",
    "RecordedRequest",
    "ServerFault",
    "embed_text",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """A request as it came: also the refused ones, whose `error` is set."""

    path: str
    body: Mapping[str, Any]
    status: int
    error: str | None = None

    @property
    def tool_names(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.body.get("tools") or ()]

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.body["messages"]

    @property
    def texts(self) -> list[str]:
        """What was asked to be embedded."""
        value = self.body["input"]
        return [value] if isinstance(value, str) else value


@dataclass(kw_only=True)
class OpenAIServer:
    """Serves `/v1/chat/completions`, `/v1/embeddings` and `/v1/models` on 127.0.0.1.

    Attributes:
        chat: Replies in order. Asked for more, the server answers 400: the test's script is short.
        require_definitions: Every tool named in the history must be defined in `tools`.
        embedding_faults: One for each embedding request in turn, None for a right answer; after
            the last one all answers are right. `itertools.repeat(...)` makes a fault permanent.
        requests: What came, in order of the answers, with the status of each.
        holding: Released once for each request that begins to wait for its `hold`; a test that
            must act while a request is under way does `server.holding.acquire(timeout=10)`.
    """

    chat: Iterable[Scripted] = ()
    require_definitions: bool = False
    embedding_faults: Iterable[EmbeddingFault | ServerFault | None] = ()
    limits: EmbeddingLimits = field(default_factory=EmbeddingLimits)
    dimensions: int = 64
    api_key: str = "sk-local-test"
    model: str = "scripted"
    requests: list[RecordedRequest] = field(default_factory=list, init=False)
    holding: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0), init=False)

    def __post_init__(self) -> None:
        self._replies = deque(ChatReply.of(reply) for reply in self.chat)
        self._faults = iter(self.embedding_faults)
        self._lock = threading.Lock()
        self._call_count = itertools.count(1)
        self._held: list[threading.Event] = []
        self._closing = False
        self._crashes: list[BaseException] = []

    def __enter__(self) -> Self:
        self._http = _HTTPServer(("127.0.0.1", 0), _Handler)
        self._http.openai = self
        # poll_interval is how long shutdown() may take.
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._lock:
            self._closing = True
            held = list(self._held)
        for event in held:
            event.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
        if self._crashes and kind is None:
            raise AssertionError("the test server itself failed") from self._crashes[0]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    @property
    def chat_requests(self) -> list[RecordedRequest]:
        return [request for request in self.requests if request.path == "/v1/chat/completions"]

    @property
    def embedding_requests(self) -> list[RecordedRequest]:
        return [request for request in self.requests if request.path == "/v1/embeddings"]

    @property
    def refusals(self) -> list[str]:
        """Messages of all answers with an error status."""
        return [request.error for request in self.requests if request.error is not None]

    @property
    def unused_replies(self) -> int:
        return len(self._replies)

    def script(self, *replies: Scripted) -> None:
        """Add chat replies."""
        self._replies.extend(ChatReply.of(reply) for reply in replies)

    def fail_embeddings(self, *faults: EmbeddingFault | ServerFault | None) -> None:
        """Replace the faults still to come, for the next embedding requests."""
        with self._lock:
            self._faults = iter(faults)

    def answer(
        self, path: str, authorization: str | None, body: Any
    ) -> Mapping[str, Any] | list[str]:
        """Return the JSON document, or the events of a stream, that answers a request.

        Raises:
            Refused: The answer is an error.
        """
        self._check_key(authorization)
        if path == "/v1/models":
            entry = {"id": self.model, "object": "model", "created": 0, "owned_by": "tests"}
            return {"object": "list", "data": [entry]}
        if path == "/v1/chat/completions":
            return self._chat(body)
        if path == "/v1/embeddings":
            return self._embeddings(body)
        raise Refused(f"Invalid URL ({path})", status=404)

    def record(self, path: str, body: Any, refused: Refused | None) -> None:
        status, error = (refused.status, str(refused)) if refused else (200, None)
        readable = body if isinstance(body, dict) else {}
        with self._lock:
            self.requests.append(
                RecordedRequest(path=path, body=readable, status=status, error=error)
            )

    def crashed(self, error: BaseException) -> None:
        self._crashes.append(error)

    def _check_key(self, authorization: str | None) -> None:
        if authorization == f"Bearer {self.api_key}":
            return
        message = "Incorrect API key provided." if authorization else "No API key was provided."
        raise Refused(message, code="invalid_api_key", status=401)

    def _chat(self, body: Any) -> Mapping[str, Any] | list[str]:
        check_chat(body, require_definitions=self.require_definitions)
        with self._lock:
            reply = self._replies.popleft() if self._replies else None
            number = next(self._call_count)
        if reply is None:
            raise Refused("The test's script holds no further chat reply.", code="script_short")
        self._wait(reply.hold)
        if isinstance(reply, ServerFault):
            raise Refused(reply.message, status=reply.status, kind="server_error")
        answer_id, reply = f"chatcmpl-{number}", reply.with_ids(f"call_{number}")
        if body.get("stream"):
            return list(stream_events(answer_id, reply, body))
        return completion(answer_id, reply, body)

    def _embeddings(self, body: Any) -> Mapping[str, Any]:
        texts = check_embeddings(body, self.limits)
        with self._lock:
            fault = next(self._faults, None)
        if fault is not None:
            self._wait(fault.hold)
        if isinstance(fault, ServerFault):
            raise Refused(fault.message, status=fault.status, kind="server_error")
        return embeddings_document(texts, body, fault, dimensions=self.dimensions)

    def _wait(self, hold: threading.Event | None) -> None:
        if hold is None:
            return
        with self._lock:
            if self._closing:
                return
            self._held.append(hold)
        self.holding.release()
        hold.wait()


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class _HTTPServer(ThreadingHTTPServer):
    openai: OpenAIServer
    daemon_threads = False  # so that server_close() waits for the last answer
    request_queue_size = 64


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30  # a client that connects and stays silent must not keep the server open
    server: _HTTPServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self._serve(None)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            body = json.loads(raw, parse_constant=_no_constant)
            # A lone surrogate is legal in Python's str, but not in JSON text.
            json.dumps(body, ensure_ascii=False).encode()
        except ValueError as error:
            refused = Refused(f"We could not parse the JSON body of your request: {error}")
            self.server.openai.record(self.path, None, refused)
            self._send_json(refused.status, refused.body)
            return
        self._serve(body)

    def _serve(self, body: Any) -> None:
        server = self.server.openai
        try:
            answer = server.answer(self.path, self.headers.get("Authorization"), body)
        except Refused as refused:
            server.record(self.path, body, refused)
            self._send_json(refused.status, refused.body)
            return
        except Exception as error:  # a defect of this server must fail the test that met it
            server.crashed(error)
            self._send_json(500, Refused(repr(error)).body)
            return
        server.record(self.path, body, None)
        if isinstance(answer, list):
            self._send_events(answer)
        else:
            self._send_json(200, answer)

    def _send_json(self, status: int, document: Mapping[str, Any]) -> None:
        payload = json.dumps(document).encode()
        self._send_head(status, "application/json", {"Content-Length": str(len(payload))})
        self._write(payload)

    def _send_events(self, events: Iterable[str]) -> None:
        self._send_head(200, "text/event-stream", {"Transfer-Encoding": "chunked"})
        for event in events:
            payload = f"data: {event}\n\n".encode()
            self._write(f"{len(payload):x}\r\n".encode() + payload + b"\r\n")
        self._write(b"0\r\n\r\n")

    def _send_head(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        # One request a connection: no client can leave an open socket behind a test.
        for name, value in {"Content-Type": content_type, "Connection": "close", **headers}.items():
            self.send_header(name, value)
        try:
            self.end_headers()
        except ConnectionError:
            self.close_connection = True

    def _write(self, payload: bytes) -> None:
        try:
            self.wfile.write(payload)
        except ConnectionError:  # the client gave up waiting, as some tests want it to
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test output clean; `OpenAIServer.requests` is the log."""
