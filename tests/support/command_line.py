"""The command line in this process, in a folder of its own; fixtures of the tests of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.cli.main import main

__all__ = ["TOOLS", "Ended", "Run", "clean_environment", "cli", "started", "toolrag"]

TOOLS = '''
from langchain_core.tools import tool

@tool
def get_weather(city: str) -> str:
    """Get the weather in a city: temperature and sky."""
    print("noise from a tool")
    return f"{city}: 18 degrees Celsius"

@tool
def get_stock_price(symbol: str) -> str:
    """Get the current price of a share on the stock exchange."""
    return "100"

def add_numbers(a: float, b: float) -> float:
    """Add two numbers and return the sum."""
    return a + b

def undescribed(a: int) -> int:
    return a

TOOLS = [get_weather, get_stock_price, add_numbers]
TWICE = [get_weather, get_weather]
BARE = [get_weather, undescribed]
NOTHING = []
'''


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line of an error."""
        lines = [line for line in self.err.splitlines() if line.startswith("toolrag: ")]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0].removeprefix("toolrag: ")


Run = Callable[..., Ended]


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process that heeds SIGINT even where the tests run without it, and is gone afterwards."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        # An ignored signal stays ignored in a child; one that is handled is reset there.
        process = subprocess.Popen(command, **options)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("TOOLRAG_", "OPENAI_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    folder = tmp_path / "a folder with spaces"
    folder.mkdir()
    (folder / "shop_tools.py").write_text(TOOLS, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "shop_tools", raising=False)


@pytest.fixture
def cli(clean_environment: None, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process."""

    def run(*arguments: str) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, captured.out, captured.err)

    return run


@pytest.fixture
def toolrag(cli: Run, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command on a fresh, migrated database."""
    monkeypatch.setenv("TOOLRAG_DATABASE_URL", database_url)
    return cli
