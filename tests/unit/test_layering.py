"""How the packages are cut: who may import whom, what is public, and that twins stay twins."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import agent
import registry
from registry import AsyncToolRegistry, ToolRegistry
from scripts import make_sync

ROOT = Path(registry.__file__).parents[1]
_FILES = {
    package: sorted((ROOT / package).rglob("*.py"))
    for package in ("registry", "migrations", "agent")
}
_PACKAGES = [
    ".".join(file.parent.relative_to(ROOT).parts)
    for package in ("registry", "agent")
    for file in _FILES[package]
    if file.name == "__init__.py"
]
_REGISTRY_MODULES = [
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for file in _FILES["registry"]
]


def names(files: list[Path]) -> list[str]:
    return [str(file.relative_to(ROOT)) for file in files]


def imported_modules(source: str) -> Iterator[str]:
    """Yield every module that a source imports, inside functions and under TYPE_CHECKING too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports would pass this check unseen"
            yield node.module or ""
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in ("import_module", "__import__"):
                yield str(node.args[0].value)


def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


class TestImports:
    @pytest.mark.parametrize(
        "source",
        [
            "import agent",
            "import agent.selection as s",
            "from agent.selection import x",
            "def f():\n    from agent import x",
            "import importlib\nimportlib.import_module('agent.cli')",
        ],
    )
    def test_the_check_sees_every_form_of_import(self, source: str) -> None:
        assert "agent" in {module.partition(".")[0] for module in imported_modules(source)}

    @pytest.mark.parametrize("file", names(_FILES["registry"] + _FILES["migrations"]))
    def test_the_registry_never_imports_the_agent(self, file: str) -> None:
        modules = set(imported_modules((ROOT / file).read_text(encoding="utf-8")))
        assert not [m for m in modules if m.partition(".")[0] in ("agent", "tests", "benchmarks")]

    def test_loading_all_of_the_registry_loads_nothing_of_the_agent(self) -> None:
        modules = [name for name in _REGISTRY_MODULES if not name.endswith(".__main__")]
        loaded = run_python(
            f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
            "print([name for name in sys.modules if name.partition('.')[0] == 'agent'])"
        )
        assert loaded == "[]"

    @pytest.mark.parametrize("package", ["registry", "agent"])
    def test_importing_a_package_costs_nothing_until_it_is_used(self, package: str) -> None:
        heavy = {"sqlalchemy", "psycopg", "langchain", "langchain_core", "langgraph", "numpy"}
        loaded = run_python(
            f"import sys, {package}\nprint(sorted({heavy!r} & set(sys.modules)), len(sys.modules))"
        )
        assert loaded.startswith("[] ")

    @pytest.mark.parametrize("file", names(_FILES["registry"] + _FILES["agent"]))
    def test_only_the_command_line_prints_and_reads_the_environment(self, file: str) -> None:
        if file.startswith("agent/cli/") or "_postgres" in file:
            return
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert not called & {"print", "os.getenv", "os.environ.get", "asyncio.run", "eval", "exec"}


class TestPublicNames:
    @pytest.mark.parametrize("package", _PACKAGES)
    def test_a_package_exports_a_sorted_list_of_names_that_exist(self, package: str) -> None:
        module = importlib.import_module(package)
        exported = getattr(module, "__all__", [])
        if not exported:
            tree = ast.parse(inspect.getsource(module))
            assert len(tree.body) == bool(ast.get_docstring(tree)), "code, but nothing public"
        assert exported == sorted(set(exported), key=export_order)
        for name in exported:
            assert getattr(module, name) is not None
            assert not name.startswith("_")

    @pytest.mark.parametrize("module", [registry, agent], ids=lambda module: module.__name__)
    def test_what_is_imported_on_first_use_is_what_is_exported(self, module: Any) -> None:
        assert sorted(module._MODULE_OF) == list(module.__all__)
        with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
            _ = module.nonsense

    @pytest.mark.parametrize("name", _REGISTRY_MODULES)
    def test_a_module_exports_only_what_it_has(self, name: str) -> None:
        module = importlib.import_module(name)
        for exported in getattr(module, "__all__", ()):
            assert hasattr(module, exported), f"{name}.__all__ names {exported}"

    @pytest.mark.parametrize(
        "file", [name for name in names(_FILES["registry"]) if "/_" not in name]
    )
    def test_everything_public_in_the_registry_has_a_docstring(self, file: str) -> None:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), f"{file} does not say what is in it"
        assert not list(without_docstring(tree))


def export_order(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest: the order that ruff keeps (RUF022)."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def without_docstring(tree: ast.Module | ast.ClassDef) -> Iterator[str]:
    for node in tree.body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if node.name.startswith("_"):
            continue
        if not ast.get_docstring(node):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{inner}" for inner in without_docstring(node))


def public_methods(kind: type) -> dict[str, Callable[..., Any]]:
    return {
        name: member
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


class TestParity:
    def test_the_sync_registry_is_what_the_async_one_generates(self) -> None:
        for path, content in make_sync.generated().items():
            assert path.read_text(encoding="utf-8") == content, f"{path.name}: run `make format`"

    def test_both_registries_have_the_same_methods_and_properties(self) -> None:
        public = [
            {name for name in dir(kind) if not name.startswith("_")}
            for kind in (ToolRegistry, AsyncToolRegistry)
        ]
        assert public[0] == public[1]
        assert {"open", "close", "sync", "search", "get", "list_tools"} <= public[0]

    @pytest.mark.parametrize("name", sorted(public_methods(ToolRegistry)))
    def test_a_method_differs_only_in_await(self, name: str) -> None:
        plain = public_methods(ToolRegistry)[name]
        twin = public_methods(AsyncToolRegistry)[name]
        assert not inspect.iscoroutinefunction(plain)
        assert inspect.iscoroutinefunction(twin)
        # Names, kinds, defaults, annotations and the result, all at once.
        assert inspect.signature(plain) == inspect.signature(twin)
        assert inspect.getdoc(plain) == inspect.getdoc(twin)

    def test_both_are_made_and_described_alike(self) -> None:
        assert inspect.signature(ToolRegistry) == inspect.signature(AsyncToolRegistry)
        assert inspect.getdoc(ToolRegistry) == inspect.getdoc(AsyncToolRegistry)

    def test_each_is_a_context_manager_of_its_kind_alone(self) -> None:
        assert hasattr(ToolRegistry, "__enter__")
        assert not hasattr(ToolRegistry, "__aenter__")
        assert hasattr(AsyncToolRegistry, "__aenter__")
        assert not hasattr(AsyncToolRegistry, "__enter__")
