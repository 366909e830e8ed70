from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.cli.exit_codes import USAGE, CliError, exit_code_of
from agent.cli.loading import load_tools, load_toolset
from registry.errors import DuplicateToolError, InvalidToolError, ToolRAGError
from registry.toolset import Toolset

WriteModule = Callable[[str, str], None]

HEAD = """
from langchain_core.tools import tool
from registry.toolset import Toolset
from registry.types import ToolSpec

@tool
def add(a: int, b: int) -> int:
    "Add two whole numbers."
    return a + b

def double(a: int) -> int:
    "Double a whole number."
    return 2 * a
"""


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WriteModule]:
    folder = tmp_path / "a folder with spaces"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != ""])
    before = set(sys.modules)

    def write(name: str, body: str) -> None:
        path = folder.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HEAD + textwrap.dedent(body), encoding="utf-8")

    yield write
    for name in set(sys.modules) - before:
        if name.startswith("user_"):
            del sys.modules[name]


def names(tools: object) -> list[str]:
    if isinstance(tools, Toolset):
        return [spec.tool_name for spec in tools.specs]
    assert isinstance(tools, list)
    return [getattr(t, "name", None) or getattr(t, "tool_name", None) or t.__name__ for t in tools]


@pytest.mark.parametrize(
    ("reference", "body", "expected"),
    [
        ("user_a:TOOLS", "TOOLS = [add, double]", ["add", "double"]),
        ("user_b:TOOLS", "TOOLS = (t for t in [add])", ["add"]),
        ("user_c:SET", "SET = Toolset([double])", ["double"]),
        ("user_d:make", "def make():\n    return Toolset([add])", ["add"]),
        ("user_e:make", "def make(extra=True, *rest, **more):\n    return [double]", ["double"]),
        ("user_f", "", ["add"]),
        ("user_n:add", "", ["add"]),
        ("user_g", "SET = Toolset([double])\nalso = SET", None),
        ("user_pkg.inner:Holder.tools", "class Holder:\n    tools = [add]", ["add"]),
        ("user_h:SPECS", "SPECS = [ToolSpec(tool_name='x', description='y')]", ["x"]),
    ],
)
def test_what_a_reference_may_name(
    write_module: WriteModule, reference: str, body: str, expected: list[str] | None
) -> None:
    write_module(reference.partition(":")[0], body)
    if expected is None:
        with pytest.raises(CliError, match="holds 2 toolsets"):
            load_tools(reference)
    else:
        assert names(load_tools(reference)) == expected


@pytest.mark.parametrize(
    ("reference", "body", "message"),
    [
        ("user_missing_module:X", None, "No module 'user_missing_module' in "),
        ("user_pack.missing:X", None, "No module 'user_pack' in "),
        ("user_i:X", "import a_package_not_here", "needs 'a_package_not_here', which is not"),
        (
            "user_j:X",
            "raise RuntimeError('no\\nluck')",
            "imported: RuntimeError: no luck",
        ),
        ("user_k:X", "import sys; sys.exit(3)", "cannot be imported: SystemExit: 3"),
        ("user_l:X", "def broken(:", "cannot be imported: SyntaxError"),
        ("user_m:MY_TOOL", "MY_TOOLS = [add]", "has no 'MY_TOOL'. Nearest: MY_TOOLS"),
        ("user_o:X", "X = 42", "user_o:X is of type int; it must be"),
        ("user_p:X", "X = 'add'", "user_p:X is of type str; it must be"),
        ("user_q:X", "X = {'add': add}", "user_q:X is of type dict; it must be"),
        ("user_r:double", "", "user_r:double is a function that needs a; it must be"),
        ("user_s:X", "X = []", "user_s:X holds no tools."),
        ("user_t:X", "def X():\n    raise ValueError('off')", "user_t:X() failed: ValueError: off"),
        ("user_u:X", "async def X():\n    return [add]", "user_u:X is an async function"),
        ("user_v", "del add", "Module 'user_v' holds no tools. Mark functions with"),
        ("user_w:", "", "'user_w:' is not MODULE:ATTR"),
        (":X", "", "':X' is not MODULE:ATTR"),
        (
            "./tools/mine.py:X",
            None,
            "is a file name. Give the module's name, for example tools",
        ),
        ("user_x:X", "X = lambda: None", "user_x:X is of type NoneType; it must be"),
        (
            "user_ga:X",
            "def tools():\n    yield add\n    raise RuntimeError('half\\nway')\nX = tools()",
            "user_ga:X failed when its tools were listed: RuntimeError: half way",
        ),
        (
            "user_gb:X",
            "def X():\n    yield add\n    raise SystemExit(3)",
            "user_gb:X failed when its tools were listed: SystemExit: 3",
        ),
        (
            "user_gc:X",
            "class Tools:\n    def __iter__(self):\n        return 1 / 0\nX = Tools()",
            "user_gc:X failed when its tools were listed: ZeroDivisionError: division by zero",
        ),
        (
            "user_gd:X.tools",
            "class Lazy:\n    @property\n    def tools(self):\n        return 1 / 0\nX = Lazy()",
            "user_gd:X.tools failed: ZeroDivisionError",
        ),
        (
            "user_ge:X.tools",
            "class Lazy:\n    @property\n    def tools(self):\n        return self.t\nX = Lazy()",
            "user_ge:X.tools failed: AttributeError: 'Lazy' object has no attribute 't'",
        ),
        (
            "user_gf:X",
            "def __getattr__(name):\n    raise ImportError('no extra')",
            "user_gf:X failed: ImportError: no extra",
        ),
        (
            "user_gg:X",
            "class Mute(Exception):\n    def __str__(self):\n        raise self\n"
            "def X():\n    raise Mute",
            "user_gg:X() failed: Mute",
        ),
    ],
)
def test_a_bad_reference_is_one_clear_line(
    write_module: WriteModule, reference: str, body: str | None, message: str
) -> None:
    if body is not None and reference[0] != ":":
        write_module(reference.partition(":")[0], body)
    with pytest.raises(CliError, match=re.escape(message)) as caught:
        load_tools(reference)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == USAGE


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("X = [add, 5]", InvalidToolError, "item 2 of user_y:X is of type int"),
        (
            "class Odd:\n    def __repr__(self):\n        return 1 / 0\nX = [add, Odd()]",
            InvalidToolError,
            "item 2 of user_y:X is of type Odd",
        ),
        ("def bare(a: int) -> int:\n    return a\nX = [bare]", InvalidToolError, "no description"),
        ("X = [add, add]", DuplicateToolError, "Two tools are named 'add'"),
        ("X = [ToolSpec(tool_name='x', description='y')]", CliError, "cannot run"),
    ],
)
def test_tools_that_cannot_form_a_toolset(
    write_module: WriteModule, body: str, error: type[ToolRAGError], message: str
) -> None:
    write_module("user_y", body)
    with pytest.raises(error, match=re.escape(message)) as caught:
        load_toolset("user_y:X")
    assert exit_code_of(caught.value) == USAGE


def test_toolset_runs_the_users_tools(write_module: WriteModule) -> None:
    write_module("user_z", "X = [add, double]")
    assert load_toolset("user_z:X")["double"].invoke({"a": 21}) == 42


def test_prints_of_a_module_stay_off_stdout(
    write_module: WriteModule, capsys: pytest.CaptureFixture[str]
) -> None:
    write_module("user_loud", "print('import')\ndef make():\n    print('make')\n    return [add]")
    load_tools("user_loud:make")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "import\nmake\n"
