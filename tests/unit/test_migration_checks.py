"""What can be said of the migrations without a database."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.dialects import postgresql

from registry import migrate
from registry.errors import RegistryError, SchemaVersionError
from registry.migrate import (
    HNSW_INDEX_PREFIX,
    check_revision,
    ensure_vector_extension,
    include_object,
    script_location,
)
from registry.statements import index_name
from registry.tables import SCHEMA_REVISION, metadata
from tests.support.migration_scripts import ROOT, add_revision, copy_scripts

_VERSIONS = script_location() / "versions"


def revisions(scripts: Path) -> ScriptDirectory:
    return ScriptDirectory(str(scripts))


def forked(scripts: Path) -> list[str]:
    """Return one line a parent that has more than one child, naming all of them."""
    children: dict[object, list[str]] = {}
    for script in revisions(scripts).walk_revisions():
        children.setdefault(script.down_revision, []).append(Path(script.path).name)
    return [
        f"{' and '.join(sorted(files))} have the same parent {parent}"
        for parent, files in children.items()
        if len(files) > 1
    ]


class TestOneLine:
    def test_mig_3_no_two_revisions_have_one_parent(self) -> None:
        assert forked(script_location()) == []
        assert revisions(script_location()).get_heads() == [SCHEMA_REVISION]

    def test_mig_3_both_offenders_are_named(self, tmp_path: Path) -> None:
        scripts = copy_scripts(tmp_path)
        for revision in ("9001", "9002"):
            add_revision(scripts, revision, parent=SCHEMA_REVISION, upgrade="pass")
        assert forked(scripts) == [
            "9001_added_by_a_test.py and 9002_added_by_a_test.py have the same parent "
            f"{SCHEMA_REVISION}"
        ]

    def test_revisions_are_numbered_so_that_they_compare_as_text(self) -> None:
        found = sorted(script.revision for script in revisions(script_location()).walk_revisions())
        assert found == [f"{number:04}" for number in range(1, len(found) + 1)]
        assert sorted(file.name.partition("_")[0] for file in _VERSIONS.glob("*.py")) == found

    def test_the_scripts_are_in_the_wheel_or_beside_the_packages(self) -> None:
        assert script_location() == ROOT / "migrations"
        assert (script_location() / "env.py").is_file()


def concurrent_outside_autocommit(source: str) -> Iterator[int]:
    """Yield lines that make or drop an index concurrently inside the migration's transaction."""

    def visit(node: ast.AST, is_inside: bool) -> Iterator[int]:
        if isinstance(node, ast.With):
            is_inside |= any("autocommit_block" in ast.unparse(item) for item in node.items)
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        mentions = is_text and "CONCURRENTLY" in cast(ast.Constant, node).value.upper()
        option = isinstance(node, ast.keyword) and node.arg == "postgresql_concurrently"
        if (mentions or option) and not is_inside:
            yield cast(Any, node).lineno
        for child in ast.iter_child_nodes(node):
            yield from visit(child, is_inside)

    yield from visit(ast.parse(source), False)


class TestConcurrentIndexes:
    @pytest.mark.parametrize("file", sorted(_VERSIONS.glob("*.py")), ids=lambda file: file.name)
    def test_mig_2_none_is_made_inside_a_transaction(self, file: Path) -> None:
        assert list(concurrent_outside_autocommit(file.read_text(encoding="utf-8"))) == []

    @pytest.mark.parametrize(
        ("source", "lines"),
        [
            ("op.execute('create index concurrently x on t (c)')", [1]),
            ("op.execute(f'DROP INDEX CONCURRENTLY {name}')", [1]),
            ("op.create_index('x', 't', ['c'], postgresql_concurrently=True)", [1]),
            ("with op.get_context().autocommit_block():\n    op.execute('… CONCURRENTLY')", []),
            ("with other():\n    op.execute('… CONCURRENTLY')", [2]),
        ],
    )
    def test_the_check_sees_them(self, source: str, lines: list[int]) -> None:
        assert list(concurrent_outside_autocommit(source)) == lines


class TestCheckRevision:
    def test_the_expected_revision_is_accepted(self) -> None:
        check_revision(SCHEMA_REVISION)

    @pytest.mark.parametrize(
        ("found", "said"),
        [
            (None, "The database has no toolrag schema. Run `toolrag db upgrade`."),
            (
                "0003",
                "The database schema is at revision 0003, older than 0005, which this release "
                "needs. Run `toolrag db upgrade`.",
            ),
            (
                "0012",
                "The database schema is at revision 0012, newer than 0005, which this release "
                "knows. Upgrade the toolrag package (or, to go back, run the newer release's "
                "`toolrag db downgrade 0005`).",
            ),
        ],
    )
    def test_every_other_one_is_refused_with_what_to_do(
        self, found: str | None, said: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(migrate, "SCHEMA_REVISION", "0005")
        check_revision("0005")
        with pytest.raises(SchemaVersionError) as caught:
            check_revision(found)
        assert str(caught.value) == said
        assert (caught.value.found, caught.value.expected) == (found, "0005")


class FakeServer:
    """Answers what a server would say of pgvector, and notes what it was told to do."""

    def __init__(self, *, installed: str | None, offered: str | None) -> None:
        self._answers = {"pg_extension": installed, "available": offered, "halfvec": "halfvec"}
        self.told: list[str] = []

    def scalar(self, statement: object) -> str | None:
        asked = str(statement)
        [answer] = [
            value
            for key, value in self._answers.items()
            if key in asked.replace("pg_available_extensions", "available")
        ]
        return answer

    def begin_nested(self) -> FakeServer:
        return self

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def execute(self, statement: object) -> None:
        self.told.append(str(statement))


def ensure(*, installed: str | None, offered: str | None) -> list[str]:
    server = FakeServer(installed=installed, offered=offered)
    ensure_vector_extension(cast(Connection, server))
    return server.told


class TestVectorExtension:
    """States of a server that the tests' own server cannot be in; the rest runs for real."""

    @pytest.mark.parametrize("version", ["0.8", "0.8.0", "0.8.6", "0.10.1", "1.0.0", "0.9.0-dev"])
    def test_new_enough_versions_are_taken(self, version: str) -> None:
        assert ensure(installed=version, offered=version) == []
        assert ensure(installed=None, offered=version) == ["CREATE EXTENSION vector"]

    def test_a_server_without_pgvector_is_told_what_to_install(self) -> None:
        with pytest.raises(RegistryError, match=r"has no pgvector. Install .*pgvector/pgvector"):
            ensure(installed=None, offered=None)

    @pytest.mark.parametrize("version", ["0.7.4", "0.5.1", "0.1"])
    def test_dbc_6_old_versions_are_refused_before_anything_is_made(self, version: str) -> None:
        server = FakeServer(installed=None, offered=version)
        with pytest.raises(RegistryError, match=rf"The server has pgvector {version}, .*0\.8 or"):
            ensure_vector_extension(cast(Connection, server))
        assert server.told == []
        with pytest.raises(RegistryError, match=r"run in this database: ALTER EXTENSION vector"):
            ensure(installed=version, offered="0.8.6")


class TestIncludeObject:
    @pytest.mark.parametrize("name", sorted(metadata.tables))
    def test_our_tables_are_compared(self, name: str) -> None:
        for is_reflected in (True, False):
            assert include_object(object(), name, "table", is_reflected, None)

    @pytest.mark.parametrize("name", ["checkpoints", "alembic_version", "tool_registry_old", None])
    def test_mig_5_other_tables_are_not(self, name: str | None) -> None:
        assert not include_object(object(), name, "table", True, None)

    def test_mig_5_the_index_that_a_sync_makes_is_not(self) -> None:
        assert index_name(7).startswith(HNSW_INDEX_PREFIX)
        assert not include_object(object(), index_name(7), "index", True, None)

    def test_other_indexes_and_columns_are_compared(self) -> None:
        assert include_object(object(), "uq_embedding_model_active", "index", True, None)
        assert include_object(object(), "category", "column", True, None)


def test_vec_11_no_bind_is_followed_by_a_cast_with_colons() -> None:
    # SQLAlchemy does not read `:q::vector` as a bind; the statements say CAST(:q AS …).
    broken = text("SELECT :q::vector").compile(dialect=postgresql.dialect())
    assert "q" not in broken.params
    for file in (ROOT / "registry").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not re.search(r"(?<!:):[a-z_]+::", node.value), f"{file.name}:{node.lineno}"
