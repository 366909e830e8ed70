"""Commands that share the embedded server: it serves whoever uses it and ends with the last."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from registry.local_postgres import LocalPostgres, default_data_dir, stop_server
from tests.support.command_line import Ended, Run, started
from tests.support.openai_client import see_only_localhost
from tests.support.openai_server import EmbeddingFault, OpenAIServer

ROOT = Path(__file__).parents[2]
MODEL = "openai:text-embedding-3-small"


@pytest.fixture
def home(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Path]:
    """The data folder of an empty home."""
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    folder = tmp_path / "home"
    folder.mkdir()
    yield default_data_dir(environ={}, home=folder)
    stop_server(default_data_dir(environ={}, home=folder))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    """The embedding model of the commands, which can be made to wait."""
    see_only_localhost(monkeypatch)
    with OpenAIServer(chat=[]) as server:
        monkeypatch.setenv("OPENAI_API_KEY", server.api_key)
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("TOOLRAG_EMBEDDING_MODEL", MODEL)
        yield server


def toolrag(*arguments: str) -> AbstractContextManager[subprocess.Popen[Any]]:
    """A command in a process of its own, in the home of the test."""
    return started(
        [sys.executable, "-m", "agent.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def server_pid(data_dir: Path) -> int | None:
    return LocalPostgres(data_dir).status().pid


def wait_until_ended(data_dir: Path) -> None:
    deadline = time.monotonic() + 30
    while server_pid(data_dir) is not None:
        assert time.monotonic() < deadline, "waited 30 s for the server to end"
        time.sleep(0.02)


def test_five_demos_at_once_in_an_empty_home(home: Path) -> None:
    with ExitStack() as stack:
        demo = ("demo", "--model", "offline", "-q", "What is the weather in Tokyo?")
        running = [stack.enter_context(toolrag(*demo)) for _ in range(5)]
        results = [process.communicate(timeout=200) for process in running]
        codes = [process.returncode for process in running]
    assert codes == [0] * 5, results
    assert all("1 of 1 questions answered with tools" in out for out, _ in results)
    assert server_pid(home) is None


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_search_outlives_the_sync_that_started_the_server(
    home: Path, server: OpenAIServer, cli: Run, end: signal.Signals
) -> None:
    assert cli("sync", "shop_tools:get_weather").code == 0
    assert server_pid(home) is None
    hold = threading.Event()
    wait = EmbeddingFault(kind="hold", hold=hold)
    server.fail_embeddings(wait, wait)
    with toolrag("sync", "shop_tools:TOOLS") as sync:
        assert server.holding.acquire(timeout=60)
        with toolrag("search", "weather in a city", "--threshold", "0") as search:
            assert server.holding.acquire(timeout=60)
            pid = server_pid(home)
            sync.send_signal(end)
            # The sync has let go when it has ended, by itself or by the kernel.
            sync.communicate(timeout=60)
            assert sync.returncode != 0
            assert cli("tools", "list").code == 0, "others come and go"
            assert server_pid(home) == pid
            hold.set()
            out, err = search.communicate(timeout=60)
    assert (search.returncode, err) == (0, "")
    assert "get_weather" in out
    assert server_pid(home) is None


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the next command ends it")
def test_a_killed_command_that_was_alone_leaves_no_server(home: Path, server: OpenAIServer) -> None:
    hold = threading.Event()
    server.fail_embeddings(EmbeddingFault(kind="hold", hold=hold))
    with toolrag("sync", "shop_tools:TOOLS") as sync:
        assert server.holding.acquire(timeout=60)
        assert server_pid(home) is not None
        sync.kill()
        sync.communicate(timeout=60)
    hold.set()
    wait_until_ended(home)


def test_a_server_that_was_started_to_stay_outlives_every_command(
    home: Path, server: OpenAIServer, cli: Run
) -> None:
    hold = threading.Event()
    server.fail_embeddings(EmbeddingFault(kind="hold", hold=hold))
    with toolrag("sync", "shop_tools:TOOLS") as sync:
        assert server.holding.acquire(timeout=60)
        assert "the last command that uses it" in cli("db", "status").out
        start = cli("db", "start")
        assert (start.code, f"(process {server_pid(home)})" in start.out) == (0, True)
        hold.set()
        sync.communicate(timeout=60)
    assert sync.returncode == 0
    pid = server_pid(home)
    assert pid is not None
    assert "ends with" not in cli("db", "status").out
    assert cli("db", "stop") == Ended(0, f"Stopped the embedded server (process {pid}).\n", "")
    assert server_pid(home) is None


def test_an_empty_data_folder_is_none(home: Path, cli: Run) -> None:
    listed = cli("--data-dir", "", "tools", "list", "--json")
    assert (listed.code, listed.out) == (0, "[]\n"), listed.err
    assert (home / "cluster" / "PG_VERSION").is_file()
    assert {path.name for path in Path.cwd().iterdir()} <= {"shop_tools.py", "__pycache__"}
