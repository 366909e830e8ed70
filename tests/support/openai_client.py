"""What tests of the OpenAI protocol share: raw requests, and a process that sees only localhost."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.support.openai_server import OpenAIServer

__all__ = ["post", "see_only_localhost"]

# A proxy of the environment must not get what is meant for 127.0.0.1.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def post(
    server: OpenAIServer, path: str, body: Any, *, authorization: str | None = "right"
) -> tuple[int, dict[str, Any]]:
    """Return (status, document) of a request; `body` as bytes goes out as it is."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(server.base_url + path, data=payload, method="POST")
    request.add_header("Content-Type", "application/json")
    if authorization is not None:
        key = f"Bearer {server.api_key}" if authorization == "right" else authorization
        request.add_header("Authorization", key)
    try:
        with _opener.open(request, timeout=30) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def see_only_localhost(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make every other host unknown; the list returned collects the hosts that were asked for."""
    asked: list[str] = []
    resolve = socket.getaddrinfo

    def resolve_local(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host not in ("127.0.0.1", "localhost", "::1"):
            asked.append(str(host))
            raise socket.gaierror(socket.EAI_NONAME, f"{host} is unknown: tests are offline")
        return resolve(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_local)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_ORG_ID"):
        monkeypatch.delenv(variable, raising=False)
    # An empty cache folder: a tokenizer of an earlier run must not hide a download.
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    return asked
