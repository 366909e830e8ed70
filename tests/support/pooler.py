"""A connection pooler in transaction mode, as PgBouncer is, small enough to read.

    with TransactionPooler(url, servers=3) as pooler:
        connect(pooler.url)

After each transaction a client is handed another server connection, so whatever belongs to a
session and not to a transaction (prepared statements, session settings, session locks) is lost
or met by somebody else. Clients are let in without a password.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import socket
import struct
import threading
from typing import Self

import psycopg
from sqlalchemy.engine import make_url

from tests.support.databases import psycopg_url

_PROTOCOL_3 = 196_608
_ENCRYPTION_REQUESTS = (80_877_103, 80_877_104)  # TLS, GSSAPI
_PARAMETERS = (
    "server_version",
    "server_encoding",
    "client_encoding",
    "DateStyle",
    "TimeZone",
    "integer_datetimes",
    "standard_conforming_strings",
)
_ASKS_FOR_READY = b"QSF"  # Query, Sync, FunctionCall: each is answered by one ReadyForQuery
_TERMINATE = b"X"
_READY = b"Z"


class TransactionPooler:
    """Listens on 127.0.0.1 and shares a few server connections among all clients.

    Args:
        url: Of the database behind it.
        servers: Number of server connections, handed out in turn; odd, since a search with the
            check before it is two transactions, and would always meet the same one of two.

    Attributes:
        transactions: How many were passed on.
    """

    def __init__(self, url: str, *, servers: int = 3) -> None:
        self._behind = make_url(url)
        self._sessions = [
            psycopg.connect(psycopg_url(url), autocommit=True) for _ in range(servers)
        ]
        self._greeting = _greeting(self._sessions[0])
        self._idle: queue.Queue[socket.socket] = queue.Queue()
        for session in self._sessions:
            # Logged in by libpq; from here on the bytes are ours.
            self._idle.put(socket.socket(fileno=os.dup(session.fileno())))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._clients: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.transactions = 0

    @property
    def url(self) -> str:
        """URL of the database through the pooler."""
        port = self._listener.getsockname()[1]
        return (
            self._behind.set(
                host="127.0.0.1", port=port, username="anyone", password=None, query={}
            )
            .update_query_dict({"sslmode": "disable"})
            .render_as_string(hide_password=False)
        )

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *exc: object) -> None:
        # shutdown() wakes the threads that wait for these; close() alone would not.
        for open_socket in (self._listener, *self._clients):
            with contextlib.suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()
        while not self._idle.empty():
            self._idle.get().close()
        for session in self._sessions:
            session.close()

    def _start(self, run: object, *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(ConnectionError):
            if not _let_in(client):
                return
            client.sendall(self._greeting)
            asked = _Messages()
            while data := client.recv(65_536):
                kinds = asked.read(data)
                if _TERMINATE in kinds:
                    return
                self._pass_on(client, asked, data, kinds)

    def _pass_on(
        self, client: socket.socket, asked: _Messages, data: bytes, kinds: list[bytes]
    ) -> None:
        """Lend the client a server connection until its transaction is over."""
        server = self._idle.get()
        try:
            answered = _Messages()
            server.sendall(data)
            waiting = sum(kind in _ASKS_FOR_READY for kind in kinds)
            while waiting or answered.status != b"I" or asked.is_within_a_message:
                readable, _, _ = select.select([client, server], [], [])
                if client in readable:
                    data = client.recv(65_536)
                    kinds = asked.read(data)
                    if not data or _TERMINATE in kinds:
                        _roll_back(server)
                        raise ConnectionError("the client left in the middle of a transaction")
                    server.sendall(data)
                    waiting += sum(kind in _ASKS_FOR_READY for kind in kinds)
                if server in readable:
                    data = server.recv(65_536)
                    if not data:
                        raise ConnectionError("the server closed the connection")
                    waiting -= answered.read(data).count(_READY)
                    client.sendall(data)
            self.transactions += 1
        finally:
            self._idle.put(server)


class _Messages:
    """Finds the messages in one direction of the protocol: a type, a length, a body.

    Attributes:
        status: Of the last ReadyForQuery: `I` idle, `T` in a transaction, `E` in a failed one.
    """

    def __init__(self) -> None:
        self._rest = b""
        self.status = b""

    @property
    def is_within_a_message(self) -> bool:
        return bool(self._rest)

    def read(self, data: bytes) -> list[bytes]:
        """Return the types of the messages that end in this piece."""
        self._rest += data
        kinds: list[bytes] = []
        while len(self._rest) >= 5:
            end = 1 + struct.unpack("!I", self._rest[1:5])[0]
            if len(self._rest) < end:
                break
            kind = self._rest[:1]
            if kind == _READY:
                self.status = self._rest[5:6]
            kinds.append(kind)
            self._rest = self._rest[end:]
        return kinds


def _let_in(client: socket.socket) -> bool:
    """Read the start-up packet; return whether it asks for a session."""
    while True:
        (length,) = struct.unpack("!I", _exactly(client, 4))
        body = _exactly(client, length - 4)
        (code,) = struct.unpack("!I", body[:4])
        if code not in _ENCRYPTION_REQUESTS:
            return code >= _PROTOCOL_3 and code < _ENCRYPTION_REQUESTS[0] - 1
        client.sendall(b"N")


def _exactly(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = client.recv(count - len(data))
        if not piece:
            raise ConnectionError("the client left")
        data += piece
    return data


def _greeting(session: psycopg.Connection[object]) -> bytes:
    """Return AuthenticationOk, the parameters a client wants to know, ReadyForQuery."""
    parts = [_message(b"R", struct.pack("!I", 0))]
    for name in _PARAMETERS:
        value = session.info.parameter_status(name) or ""
        parts.append(_message(b"S", f"{name}\0{value}\0".encode()))
    return b"".join([*parts, _message(_READY, b"I")])


def _roll_back(server: socket.socket) -> None:
    server.sendall(_message(b"Q", b"ROLLBACK\0"))
    answered = _Messages()
    while answered.status != b"I":
        answered.read(server.recv(65_536))


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", 4 + len(body)) + body
