"""Upgrades that meet: other upgrades, writers, other programs, users without rights."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from registry import ToolRegistry, ToolSpec, migrate
from registry.database import normalise_url
from registry.errors import RegistryError
from registry.migrate import MIGRATION_LOCK_KEY
from registry.tables import SCHEMA_REVISION
from tests.support.databases import psycopg_url
from tests.support.embeddings import HashEmbeddings
from tests.support.migration_scripts import add_revision, copy_scripts, start_upgrade

_DEADLINE_S = 90
_NEXT = f"{int(SCHEMA_REVISION) + 1:04d}"
_CONCURRENT_INDEX = """
    with op.get_context().autocommit_block():
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS ix_by_a_test")
        op.execute(
            "CREATE UNIQUE INDEX CONCURRENTLY ix_by_a_test "
            "ON tool_registry (namespace, display_name)"
        )
"""
_ADVISORY_LOCKS = """
    SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_INSERT = """
    INSERT INTO tool_registry (namespace, tool_name, display_name, description, category, examples,
        binding, origin, args_schema, requires_approval, read_only, content_hash, text_hash)
    VALUES ('n', %s, %s, 'd', 'c', '{}', 'b', 'code', '{}', false, false, 'h', 't')
"""


@contextmanager
def connected(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(psycopg_url(url), autocommit=True) as connection:
        yield connection


def scalar(connection: psycopg.Connection[Any], query: sql.SQL | str) -> Any:
    row = connection.execute(query).fetchone()  # type: ignore[arg-type]
    return None if row is None else row[0]


def wait_for(what: str, is_so: Callable[[], bool], *, still_going: Callable[[], bool]) -> None:
    """Poll until something is so; fails as soon as it cannot become so any more."""
    end = time.monotonic() + _DEADLINE_S
    while not is_so():
        assert still_going(), f"over before {what}"
        assert time.monotonic() < end, f"never {what}"
        time.sleep(0.02)


def run_at_once(
    url: str, count: int, *, scripts: Path | None = None
) -> list[tuple[int | None, str]]:
    """Start upgrades, hold them at the lock until all are there, let go; (exit code, output)."""
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    with connected(url) as holder:
        holder.execute("SELECT pg_advisory_lock(%s)", [MIGRATION_LOCK_KEY])
        processes = [start_upgrade(url, scripts=scripts) for _ in range(count)]
        try:
            wait_for(
                "all upgrades were connected",
                lambda: scalar(holder, others) == 1 + count,
                still_going=lambda: all(process.poll() is None for process in processes),
            )
            holder.execute("SELECT pg_advisory_unlock(%s)", [MIGRATION_LOCK_KEY])
            return [_ended(process) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.communicate()


def _ended(process: subprocess.Popen[str]) -> tuple[int | None, str]:
    output, _ = process.communicate(timeout=_DEADLINE_S)
    return process.returncode, output


class TestAtOnce:
    @pytest.mark.parametrize("count", [4, 8])
    def test_mig_4_dbc_6_processes_upgrade_an_empty_database_at_once(
        self, empty_database_url: str, count: int
    ) -> None:
        assert run_at_once(empty_database_url, count) == [(0, "")] * count
        assert migrate.current_revision(empty_database_url) == SCHEMA_REVISION

    def test_mig_4_processes_upgrade_a_database_that_is_behind_at_once(
        self, database_url: str, tmp_path: Path
    ) -> None:
        # The concurrent index is what a process that waits inside a statement would deadlock with.
        scripts = copy_scripts(tmp_path)
        add_revision(scripts, _NEXT, parent=SCHEMA_REVISION, upgrade=_CONCURRENT_INDEX)
        assert run_at_once(database_url, 4, scripts=scripts) == [(0, "")] * 4
        assert migrate.current_revision(database_url) == _NEXT

    def test_mig_4_threads_upgrade_at_once(self, empty_database_url: str) -> None:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(migrate.upgrade, [empty_database_url] * 4))
        assert migrate.current_revision(empty_database_url) == SCHEMA_REVISION

    def test_dbc_6_another_program_creates_the_extension_in_the_same_moment(
        self, empty_database_url: str
    ) -> None:
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND query LIKE 'CREATE EXTENSION%' AND wait_event_type = 'Lock'"
        )
        with (
            connected(empty_database_url) as watcher,
            psycopg.connect(psycopg_url(empty_database_url)) as other,
            ThreadPoolExecutor(1) as threads,
        ):
            other.execute("CREATE EXTENSION vector")
            upgrade = threads.submit(migrate.upgrade, empty_database_url)
            wait_for(
                "the upgrade met the other program",
                lambda: scalar(watcher, waiting) == 1,
                still_going=lambda: not upgrade.done(),
            )
            other.commit()
            upgrade.result(_DEADLINE_S)
        assert migrate.current_revision(empty_database_url) == SCHEMA_REVISION


class TestConcurrentIndex:
    def test_mig_2_writers_are_not_blocked_and_a_broken_run_can_be_repeated(
        self, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scripts = copy_scripts(tmp_path)
        add_revision(scripts, _NEXT, parent=SCHEMA_REVISION, upgrade=_CONCURRENT_INDEX)
        monkeypatch.setattr(migrate, "script_location", lambda: scripts)
        valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('ix_by_a_test')"
        with connected(database_url) as writer:
            writer.execute("SET lock_timeout = '5s'")
            for name in ("first", "second"):
                writer.execute(_INSERT, [name, "one display name, twice"])

            with pytest.raises(RegistryError, match=r"could not create unique index"):
                _upgrade_beside(writer, database_url, during="during_the_first_run")
            assert migrate.current_revision(database_url) == SCHEMA_REVISION
            assert scalar(writer, valid) is False, "the left-over that a second run must replace"
            assert scalar(writer, _ADVISORY_LOCKS) == 0

            writer.execute("UPDATE tool_registry SET display_name = tool_name")
            _upgrade_beside(writer, database_url, during="during_the_second_run")
            assert migrate.current_revision(database_url) == _NEXT
            assert scalar(writer, valid) is True
            assert scalar(writer, "SELECT count(*) FROM tool_registry") == 6

    def test_mig_2_without_an_autocommit_block_it_is_refused_and_undone(
        self, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scripts = copy_scripts(tmp_path)
        statement = "CREATE INDEX CONCURRENTLY ix_by_a_test ON tool_registry (category)"
        add_revision(
            scripts,
            _NEXT,
            parent=SCHEMA_REVISION,
            upgrade=f'op.execute("CREATE TABLE half_written (id int)")\nop.execute("{statement}")',
        )
        monkeypatch.setattr(migrate, "script_location", lambda: scripts)
        with pytest.raises(RegistryError, match="cannot run inside a transaction block"):
            migrate.upgrade(database_url)
        assert migrate.current_revision(database_url) == SCHEMA_REVISION
        with connected(database_url) as connection:
            assert scalar(connection, "SELECT to_regclass('half_written')") is None


def _upgrade_beside(writer: psycopg.Connection[Any], url: str, *, during: str) -> None:
    """Upgrade, and insert while the index waits for an older transaction to end."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND query LIKE '%INDEX CONCURRENTLY%' AND wait_event_type = 'Lock'"
    )
    with (
        psycopg.connect(psycopg_url(url)) as older,
        connected(url) as watcher,
        ThreadPoolExecutor(1) as threads,
    ):
        older.execute(_INSERT, [f"older_{during}", f"older_{during}"])
        upgrade = threads.submit(migrate.upgrade, url)
        wait_for(
            "the index waited",
            lambda: scalar(watcher, waiting) == 1,
            still_going=lambda: not upgrade.done(),
        )
        writer.execute(_INSERT, [during, during])
        assert not upgrade.done()
        older.commit()
        upgrade.result(_DEADLINE_S)


class TestRights:
    @pytest.fixture
    def plain_user(self, empty_database_url: str) -> Iterator[tuple[str, str]]:
        """Yield (URL, role) of a user who may connect to the empty database, and no more."""
        role = f"role_{make_url(empty_database_url).database}"
        name = sql.Identifier(role)
        with connected(empty_database_url) as admin:
            admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'plain'").format(name))
            try:
                url = normalise_url(empty_database_url).set(username=role, password="plain")
                yield url.render_as_string(hide_password=False), role
            finally:
                admin.execute(sql.SQL("DROP OWNED BY {}").format(name))
                admin.execute(sql.SQL("DROP ROLE {}").format(name))

    def test_dbc_6_a_plain_user_upgrades_where_the_extension_is(
        self, empty_database_url: str, plain_user: tuple[str, str]
    ) -> None:
        url, role = plain_user
        with connected(empty_database_url) as admin:
            admin.execute("CREATE EXTENSION vector")
            admin.execute(
                sql.SQL("GRANT USAGE, CREATE ON SCHEMA public TO {}").format(sql.Identifier(role))
            )
        migrate.upgrade(url)
        assert migrate.current_revision(url) == SCHEMA_REVISION
        with ToolRegistry(url, embeddings=HashEmbeddings()) as registry:
            report = registry.sync([ToolSpec(tool_name="add", description="Adds.")])
            assert report.added == ["add"]
            assert [hit.tool_name for hit in registry.search("adds", threshold=0)] == ["add"]
        migrate.downgrade(url, "base")
        assert migrate.current_revision(url) is None

    def test_dbc_6_without_the_extension_the_message_is_for_the_administrator(
        self, empty_database_url: str, plain_user: tuple[str, str]
    ) -> None:
        url, role = plain_user
        with connected(empty_database_url) as admin:
            admin.execute(
                sql.SQL("GRANT USAGE, CREATE ON SCHEMA public TO {}").format(sql.Identifier(role))
            )
        with pytest.raises(
            RegistryError, match=r"must run .*: CREATE EXTENSION vector;$"
        ) as caught:
            migrate.upgrade(url)
        assert "\n" not in str(caught.value)
        _assert_untouched(empty_database_url)
        with connected(empty_database_url) as admin:
            admin.execute("CREATE EXTENSION vector")
        migrate.upgrade(url)
        assert migrate.current_revision(url) == SCHEMA_REVISION

    def test_without_rights_on_the_schema_the_message_says_so(
        self, empty_database_url: str, plain_user: tuple[str, str]
    ) -> None:
        url, _ = plain_user
        with connected(empty_database_url) as admin:
            admin.execute("CREATE EXTENSION vector")
            admin.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        with pytest.raises(RegistryError, match=r"schema public \(the database user lacks a priv"):
            migrate.upgrade(url)
        _assert_untouched(empty_database_url)

    def test_a_reader_of_the_schema_may_open_a_registry(
        self, empty_database_url: str, plain_user: tuple[str, str]
    ) -> None:
        url, role = plain_user
        migrate.upgrade(empty_database_url)
        with closing(ToolRegistry(url, embeddings=HashEmbeddings())) as registry:
            with pytest.raises(RegistryError, match="the database user lacks a privilege"):
                registry.open()
        with connected(empty_database_url) as admin:
            admin.execute(
                sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA public TO {}").format(
                    sql.Identifier(role)
                )
            )
        with ToolRegistry(url, embeddings=HashEmbeddings()) as registry:
            assert registry.list_tools() == []


class TestExtension:
    @pytest.mark.parametrize("version", ["0.5.1", "0.7.4"])
    def test_an_extension_that_is_too_old_is_refused(
        self, empty_database_url: str, version: str
    ) -> None:
        with connected(empty_database_url) as admin:
            admin.execute("CREATE EXTENSION vector")
            admin.execute(
                "UPDATE pg_extension SET extversion = %s WHERE extname = 'vector'", [version]
            )
        said = rf"pgvector {version} .* 0\.8 or newer.*: ALTER EXTENSION vector UPDATE;$"
        with pytest.raises(RegistryError, match=said) as caught:
            migrate.upgrade(empty_database_url)
        assert "\n" not in str(caught.value)
        _assert_untouched(empty_database_url)

    def test_an_extension_out_of_sight_is_refused_and_works_once_in_sight(
        self, empty_database_url: str
    ) -> None:
        with connected(empty_database_url) as admin:
            admin.execute("CREATE SCHEMA extensions")
            admin.execute("CREATE EXTENSION vector SCHEMA extensions")
        with pytest.raises(RegistryError, match=r"in the schema extensions, .* SET search_path ="):
            migrate.upgrade(empty_database_url)
        _assert_untouched(empty_database_url)
        url = normalise_url(empty_database_url).update_query_dict(
            {"options": "-c search_path=public,extensions"}
        )
        seeing = url.render_as_string(hide_password=False)
        migrate.upgrade(seeing)
        assert migrate.current_revision(seeing) == SCHEMA_REVISION
        with ToolRegistry(seeing, embeddings=HashEmbeddings()) as registry:
            registry.sync([ToolSpec(tool_name="add", description="Adds.")])
            assert [hit.tool_name for hit in registry.search("adds", threshold=0)] == ["add"]


def _assert_untouched(url: str) -> None:
    assert migrate.current_revision(url) is None
    with connected(url) as connection:
        tables = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        assert scalar(connection, f"{tables} AND relkind IN ('r', 'v', 'S')") == 0
