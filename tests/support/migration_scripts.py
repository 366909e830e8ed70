"""Copies of the migration scripts that tests may add to, and alembic as a process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]


def copy_scripts(folder: Path) -> Path:
    """Copy `alembic.ini` and the scripts into a folder; return the scripts' folder."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "alembic.ini", folder)
    return shutil.copytree(
        ROOT / "migrations", folder / "migrations", ignore=shutil.ignore_patterns("__pycache__")
    )


def add_revision(
    scripts: Path, revision: str, *, parent: str, upgrade: str, downgrade: str = "pass"
) -> Path:
    """Write a migration into a copy of the scripts."""
    file = scripts / "versions" / f"{revision}_added_by_a_test.py"
    file.write_text(
        f'"""Added by a test."""\n\nimport sqlalchemy as sa\nfrom alembic import op\n\n'
        f"revision = {revision!r}\ndown_revision = {parent!r}\n"
        f"branch_labels = None\ndepends_on = None\n\n\n"
        f"def upgrade() -> None:\n{_indented(upgrade)}\n\n\n"
        f"def downgrade() -> None:\n{_indented(downgrade)}\n",
        encoding="utf-8",
    )
    return file


def run_alembic(
    *arguments: str, url: str | None, ini: Path = ROOT / "alembic.ini"
) -> subprocess.CompletedProcess[str]:
    """Run alembic's own command line, as an operator would."""
    return subprocess.run(
        [sys.executable, "-m", "alembic", "-c", str(ini), *arguments],
        cwd=ROOT,
        env=_environment(url),
        capture_output=True,
        text=True,
        timeout=120,
    )


def start_upgrade(url: str, *, scripts: Path | None = None) -> subprocess.Popen[str]:
    """Start `registry.migrate.upgrade` in a process, from a copy of the scripts if given."""
    code = "from pathlib import Path\nfrom registry import migrate\n"
    if scripts is not None:
        code += f"migrate.script_location = lambda: Path({str(scripts)!r})\n"
    return subprocess.Popen(
        [sys.executable, "-c", f"{code}migrate.upgrade({url!r})"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _environment(url: str | None) -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if k != "TOOLRAG_DATABASE_URL"}
    return environment if url is None else {**environment, "TOOLRAG_DATABASE_URL": url}


def _indented(body: str) -> str:
    return textwrap.indent(textwrap.dedent(body).strip(), "    ")
