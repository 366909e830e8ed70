"""The schema: what the migrations build, and that nothing else in the database is touched."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from pgvector.sqlalchemy import BIT, HALFVEC, SPARSEVEC, VECTOR
from psycopg.types.json import Jsonb
from sqlalchemy import ARRAY, Column, Engine, Integer, Table, create_engine, event, make_url

from registry import RegistrySettings, ToolRegistry, ToolSpec, migrate, statements
from registry.database import normalise_url
from registry.errors import RegistryError, RegistryUnavailableError, SchemaVersionError
from registry.tables import SCHEMA_REVISION, VERSION_TABLE, metadata
from registry.text import content_hash, embedding_text, text_hash
from tests.support.databases import Databases, psycopg_url
from tests.support.embeddings import HashEmbeddings
from tests.support.migration_scripts import ROOT, copy_scripts, run_alembic

_COLUMNS = """
SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
       a.attidentity, pg_get_expr(d.adbin, d.adrelid)
FROM pg_attribute AS a
JOIN pg_class AS c ON c.oid = a.attrelid
LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE c.relname = ANY(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, 2
"""
_CONSTRAINTS = """
SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid)
FROM pg_constraint WHERE conrelid::regclass::text = ANY(%s) ORDER BY 1, 2
"""
_INDEXES = """
SELECT i.indrelid::regclass::text, pg_get_indexdef(i.indexrelid),
       (SELECT array_agg(o.opcname ORDER BY k.place) FROM unnest(i.indclass)
        WITH ORDINALITY AS k (class, place) JOIN pg_opclass AS o ON o.oid = k.class)
FROM pg_index AS i WHERE i.indrelid::regclass::text = ANY(%s) ORDER BY 1, 2
"""
_TABLES_AT_0001 = ["tool_registry", "embedding_model", "tool_embedding", "tool_catalogue"]
_SPECS = [
    ToolSpec(tool_name=name, description=f"Does {name}.") for name in ("add", "divide", "subtract")
]


def catalogue(url: str, tables: list[str] | None = None) -> list[tuple[object, ...]]:
    """Return columns, constraints and indexes as the server itself describes them."""
    names = tables or list(metadata.tables)
    with psycopg.connect(psycopg_url(url)) as connection:
        return [
            row
            for query in (_COLUMNS, _CONSTRAINTS, _INDEXES)
            for row in connection.execute(query, [names]).fetchall()
        ]


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(psycopg_url(url), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def set_revision(url: str, revision: str) -> None:
    execute(url, f"UPDATE toolrag_schema_version SET version_num = '{revision}'")  # noqa: S608


def scalar(url: str, query: str) -> object:
    with psycopg.connect(psycopg_url(url)) as connection:
        row = connection.execute(query).fetchone()
    return None if row is None else row[0]


def differences(url: str) -> list[object]:
    """Return what `alembic revision --autogenerate` would write."""
    engine = create_engine(normalise_url(url))
    options = {
        "include_object": migrate.include_object,
        "version_table": VERSION_TABLE,
        "compare_server_default": True,
    }
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        found = compare_metadata(context, metadata)
    engine.dispose()
    return list(found)


def registry_of(url: str, *, index_min_tools: int = 1_000) -> ToolRegistry:
    settings = RegistrySettings(index_min_tools=index_min_tools)
    return ToolRegistry(url, embeddings=HashEmbeddings(), settings=settings)


class TestTheSchema:
    def test_empty_to_head_equals_the_metadata(
        self, database_url: str, empty_database_url: str
    ) -> None:
        execute(empty_database_url, "CREATE EXTENSION vector")
        engine = create_engine(normalise_url(empty_database_url))
        metadata.create_all(engine)
        engine.dispose()
        migrated = catalogue(database_url)
        assert migrated == catalogue(empty_database_url)
        assert {row[0] for row in migrated} == set(metadata.tables)

    def test_head_is_the_revision_this_release_expects(self, database_url: str) -> None:
        assert migrate.current_revision(database_url) == SCHEMA_REVISION

    def test_the_catalogue_view_is_there_and_empty_without_a_namespace(
        self, database_url: str
    ) -> None:
        with registry_of(database_url) as registry:
            registry.sync(_SPECS)
        count = "SELECT count(*) FROM tool_catalogue"
        assert scalar(database_url, count) == 0
        with psycopg.connect(psycopg_url(database_url)) as connection:
            connection.execute("SET toolrag.namespace = 'default'")
            assert connection.execute(count).fetchone() == (3,)

    def test_up_down_up_with_rows_present(self, database_url: str) -> None:
        before = catalogue(database_url, [*metadata.tables, "tool_catalogue"])
        with registry_of(database_url, index_min_tools=1) as registry:
            assert registry.sync(_SPECS).notes == []
        migrate.downgrade(database_url, "base")
        assert migrate.current_revision(database_url) is None
        assert catalogue(database_url, [*metadata.tables, "tool_catalogue"]) == []
        migrate.upgrade(database_url)
        assert catalogue(database_url, [*metadata.tables, "tool_catalogue"]) == before
        with registry_of(database_url) as registry:
            assert registry.list_tools() == []
            assert registry.sync(_SPECS).added == ["add", "divide", "subtract"]

    def test_an_upgrade_to_where_it_is_changes_nothing(self, database_url: str) -> None:
        with registry_of(database_url) as registry:
            registry.sync(_SPECS)
            migrate.upgrade(database_url)
            assert len(registry.list_tools()) == 3

    def test_the_extension_and_other_peoples_vectors_survive_a_downgrade(
        self, database_url: str
    ) -> None:
        execute(
            database_url,
            "CREATE TABLE theirs (v vector(3))",
            "INSERT INTO theirs VALUES ('[1,2,3]')",
        )
        migrate.downgrade(database_url, "base")
        assert scalar(database_url, "SELECT v::text FROM theirs") == "[1,2,3]"


_INSERT_TOOL = """
    INSERT INTO tool_registry (namespace, tool_name, display_name, description, category, examples,
        binding, origin, args_schema, is_active, requires_approval, read_only, version,
        content_hash)
    VALUES ('default', %(tool_name)s, %(display_name)s, %(description)s, %(category)s,
        %(examples)s, %(binding)s, %(origin)s, %(args_schema)s, %(is_active)s,
        %(requires_approval)s, %(read_only)s, %(version)s, %(content_hash)s)
    RETURNING id
"""
_INSERT_MODEL = """
    INSERT INTO embedding_model (name, revision, dimensions, threshold, state)
    VALUES (%s, '', 64, 0.6, %s) RETURNING id
"""
_INSERT_VECTOR = """
    INSERT INTO tool_embedding (tool_id, embedding_model_id, vector, source_hash)
    VALUES (%s, %s, %s::halfvec, %s)
"""


def fill_at_0001(url: str, specs: list[ToolSpec]) -> None:
    """Write what the release before history wrote: tool n at version n + 1, the last one off and
    without a vector."""
    embeddings = HashEmbeddings()
    with psycopg.connect(psycopg_url(url)) as connection:

        def returned_id(statement: str, values: Any) -> Any:
            row = connection.execute(statement, values).fetchone()  # type: ignore[arg-type]
            assert row is not None
            return row[0]

        models = [
            returned_id(_INSERT_MODEL, (name, state))
            for name, state in (("an older one", "retired"), ("HashEmbeddings:hash", "active"))
        ]
        for place, spec in enumerate(specs):
            is_last = spec is specs[-1]
            values = {
                **{field.name: getattr(spec, field.name) for field in fields(spec)},
                "examples": list(spec.examples),
                "args_schema": Jsonb(dict(spec.args_schema)),
                "is_active": not is_last,
                "version": place + 1,
                "content_hash": content_hash(spec),
            }
            tool_id = returned_id(_INSERT_TOOL, values)
            for model_id in [] if is_last else models:
                vector = str(embeddings.embed_query(embedding_text(spec)))
                connection.execute(_INSERT_VECTOR, (tool_id, model_id, vector, text_hash(spec)))


class TestHistoryRevision:
    """0002 with rows present: history begins with what stands, nothing is embedded again."""

    _SPECS: ClassVar = [
        ToolSpec(
            tool_name="add",
            description="Adds two numbers.",
            display_name="Add it",
            category="maths",
            examples=("What is 1 + 1?",),
            origin="mcp:calculator",
            binding="calculator/add",
            args_schema={"properties": {"a": {"type": "number"}}},
            requires_approval=True,
            read_only=True,
        ),
        ToolSpec(tool_name="divide", description="Divides."),
        ToolSpec(tool_name="off", description="Switched off, and never embedded."),
    ]

    def test_up_begins_the_history_and_embeds_nothing(self, empty_database_url: str) -> None:
        url = empty_database_url
        migrate.upgrade(url, "0001")
        fill_at_0001(url, self._SPECS)
        migrate.upgrade(url)
        embeddings = HashEmbeddings()
        with ToolRegistry(url, embeddings=embeddings) as registry:
            for place, spec in enumerate(self._SPECS):
                (version,) = registry.history(spec.tool_name)
                assert version.spec == registry.get(spec.tool_name).spec == spec
                assert (version.version, version.change, version.changed_by, version.is_active) == (
                    place + 1,
                    "first recorded",
                    "migration 0002",
                    spec is not self._SPECS[-1],
                )
            assert registry.search("adds numbers", threshold=0)[0].tool_name == "add"
            embeddings.calls.clear()
            report = registry.sync(self._SPECS)
            assert (list(report.unchanged), list(report.updated)) == (["add", "divide"], ["off"])
            assert embeddings.calls == [["off\nSwitched off, and never embedded."]]
            embeddings.calls.clear()
            registry.update_tool("add", description="Sums.")
            assert registry.rollback("add", 1).spec == self._SPECS[0]
            assert embeddings.calls == [["Add it\nSums.\nWhat is 1 + 1?"]]
            assert not registry.get("off").is_active

    def test_down_and_up_again_keeps_tools_vectors_and_the_serving_model(
        self, empty_database_url: str
    ) -> None:
        url = empty_database_url
        migrate.upgrade(url, "0001")
        before = catalogue(url, _TABLES_AT_0001)
        fill_at_0001(url, self._SPECS)
        migrate.upgrade(url)
        embeddings = HashEmbeddings()
        with ToolRegistry(url, embeddings=embeddings) as registry:
            registry.sync(self._SPECS)
            registry.update_tool("divide", description="Halves.")
            registry.build_embeddings(rebuild=True)
            registry.switch_embeddings()
            registry.build_embeddings(rebuild=True)
            registry.purge("off")
            stands = [(r.spec, r.version, r.id) for r in registry.list_tools()]
            serving = next(m.id for m in registry.embedding_models() if m.state == "active")

        migrate.downgrade(url, "0001")
        assert catalogue(url, _TABLES_AT_0001) == before
        assert catalogue(url, ["tool_history", "tool_vector_archive", "tool_lease"]) == []
        # One set of a model is all that this revision knows: the one that serves stays.
        assert scalar(url, "SELECT count(*) FROM embedding_model") == 2
        active = "SELECT id FROM embedding_model WHERE state = 'active'"
        assert scalar(url, active) == serving
        count = f"SELECT count(*) FROM tool_embedding WHERE embedding_model_id = ({active})"  # noqa: S608
        assert scalar(url, count) == 2

        migrate.upgrade(url)
        embeddings.calls.clear()
        with ToolRegistry(url, embeddings=embeddings) as registry:
            assert [(r.spec, r.version, r.id) for r in registry.list_tools()] == stands
            assert registry.search("halves", threshold=0)[0].tool_name == "divide"
            assert embeddings.calls == [["halves"]]
            assert [v.version for v in registry.history("divide")] == [stands[1][1]]
        assert differences(url) == []


class TestLearningRevision:
    """0003 taken back: what it knows more of a tool is gone everywhere, and comes again."""

    _SPECS: ClassVar = [
        ToolSpec(tool_name="add", description="Adds two numbers."),
        ToolSpec(tool_name="run_anything", description="Does any task.", fallback=True),
    ]

    def test_a_fallback_mark_does_not_outlive_its_column(self, database_url: str) -> None:
        embeddings = HashEmbeddings()
        with ToolRegistry(database_url, embeddings=embeddings) as registry:
            registry.sync(self._SPECS)
        migrate.downgrade(database_url, "0002")
        marks = "SELECT count(*) FROM tool_history WHERE snapshot ? 'fallback'"
        assert scalar(database_url, marks) == 0
        migrate.upgrade(database_url)
        embeddings.calls.clear()
        with ToolRegistry(database_url, embeddings=embeddings) as registry:
            (version,) = registry.history("run_anything")
            assert not version.spec.fallback
            assert not registry.get("run_anything").is_edited
            report = registry.sync(self._SPECS)
            assert (list(report.updated), list(report.unchanged)) == (["run_anything"], ["add"])
            assert registry.get("run_anything").spec.fallback
            assert embeddings.calls == []


class TestComparison:
    def test_mig_5_an_up_to_date_database_shows_no_difference_twice(
        self, database_url: str
    ) -> None:
        with registry_of(database_url, index_min_tools=1) as registry:
            registry.sync(_SPECS)
        index = "SELECT count(*) FROM pg_indexes WHERE indexname LIKE 'ix_tool_embedding_hnsw_%'"
        assert scalar(database_url, index) == 1
        assert differences(database_url) == []
        assert differences(database_url) == []

    @pytest.mark.parametrize(
        "change",
        [
            "DROP INDEX uq_embedding_model_active",
            "ALTER TABLE tool_registry DROP COLUMN category CASCADE",
            "ALTER TABLE tool_registry ALTER COLUMN version DROP DEFAULT",
            "ALTER TABLE tool_registry ALTER COLUMN version TYPE bigint",
            "CREATE INDEX ix_tool_registry_by_hand ON tool_registry (category)",
        ],
    )
    def test_a_difference_is_seen(self, database_url: str, change: str) -> None:
        execute(database_url, "DROP VIEW tool_catalogue", change)
        assert differences(database_url)

    def test_mig_5_other_tables_are_neither_reported_nor_touched(
        self, empty_database_url: str
    ) -> None:
        url = empty_database_url
        theirs = ["checkpoints", "alembic_version", "orders"]
        execute(
            url,
            "CREATE TABLE checkpoints (thread_id text PRIMARY KEY, checkpoint jsonb)",
            "CREATE INDEX checkpoints_by_hand ON checkpoints USING gin (checkpoint)",
            "CREATE TABLE alembic_version (version_num varchar(32) PRIMARY KEY)",
            "INSERT INTO alembic_version VALUES ('the application''s own')",
            "CREATE TABLE orders (id int PRIMARY KEY, note text UNIQUE)",
            "INSERT INTO checkpoints VALUES ('t', '{}')",
        )
        before = catalogue(url, theirs)
        migrate.upgrade(url)
        assert differences(url) == []
        migrate.downgrade(url, "base")
        migrate.upgrade(url)
        assert catalogue(url, theirs) == before
        assert scalar(url, "SELECT version_num FROM alembic_version") == "the application's own"
        assert scalar(url, "SELECT count(*) FROM checkpoints") == 1

    def test_mig_5_alembic_check_is_content(self, database_url: str) -> None:
        with registry_of(database_url, index_min_tools=1) as registry:
            registry.sync(_SPECS)
        execute(database_url, "CREATE TABLE orders (thread_id text PRIMARY KEY)")
        done = run_alembic("check", url=database_url)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "No new upgrade operations detected" in done.stdout


class TestGeneratedMigrations:
    @pytest.fixture
    def every_vector_type(self) -> Iterator[Table]:
        table = Table(
            "vector_kinds",
            metadata,
            Column("id", Integer, primary_key=True),
            Column("dense", VECTOR(8)),
            Column("half", HALFVEC(3)),
            Column("sparse", SPARSEVEC(5)),
            Column("bits", BIT(4)),
            Column("many", ARRAY(HALFVEC(2))),
            Column("unsized", VECTOR()),
        )
        yield table
        metadata.remove(table)

    @pytest.mark.usefixtures("every_vector_type")
    def test_mig_1_a_generated_migration_runs_untouched_on_an_empty_database(
        self, databases: Databases, tmp_path: Path
    ) -> None:
        scripts = copy_scripts(tmp_path)
        for old in (scripts / "versions").glob("*.py"):
            old.unlink()
        with databases.temporary() as source, databases.temporary() as target:
            for url in (source, target):
                execute(url, "CREATE EXTENSION vector")
            config = migrate.alembic_config(source)
            config.set_main_option("script_location", str(scripts))
            command.revision(config, "everything", autogenerate=True, rev_id="0001")
            [generated] = (scripts / "versions").glob("*.py")
            assert generated.name == "0001_everything.py"
            assert "\nimport pgvector.sqlalchemy\n" in generated.read_text(encoding="utf-8")
            config.attributes["url"] = target
            command.upgrade(config, "head")
            assert differences(target) == []
            kinds = [row[3] for row in catalogue(target, ["vector_kinds"])[1:7]]
            assert kinds == [
                "vector(8)", "halfvec(3)", "sparsevec(5)", "bit(4)", "halfvec(2)[]", "vector",
            ]  # fmt: skip
            command.downgrade(config, "base")
            assert catalogue(target, ["vector_kinds", *metadata.tables]) == []

    def test_mig_1_a_new_revision_is_an_empty_one_on_an_up_to_date_database(
        self, database_url: str, tmp_path: Path
    ) -> None:
        scripts = copy_scripts(tmp_path)
        config = migrate.alembic_config(database_url)
        config.set_main_option("script_location", str(scripts))
        for step in (1, 2):
            revision = f"{int(SCHEMA_REVISION) + step:04d}"
            command.revision(config, "nothing", autogenerate=True, rev_id=revision)
            file = scripts / "versions" / f"{revision}_nothing.py"
            functions = [
                n for n in ast.parse(file.read_text()).body if isinstance(n, ast.FunctionDef)
            ]
            assert [ast.unparse(function.body[-1]) for function in functions] == ["pass", "pass"]
            command.upgrade(config, "head")


class TestPlainAlembic:
    def test_it_builds_the_same_as_the_function(
        self, empty_database_url: str, database_url: str
    ) -> None:
        done = run_alembic("upgrade", "head", url=empty_database_url)
        assert done.returncode == 0, done.stdout + done.stderr
        assert catalogue(empty_database_url) == catalogue(database_url)
        assert migrate.current_revision(empty_database_url) == SCHEMA_REVISION
        done = run_alembic("downgrade", "base", url=empty_database_url)
        assert done.returncode == 0, done.stdout + done.stderr
        assert catalogue(empty_database_url) == []

    def test_a_folder_with_spaces_is_fine(self, empty_database_url: str, tmp_path: Path) -> None:
        folder = tmp_path / "a folder"
        copy_scripts(folder)
        done = run_alembic("upgrade", "head", url=empty_database_url, ini=folder / "alembic.ini")
        assert done.returncode == 0, done.stdout + done.stderr
        assert migrate.current_revision(empty_database_url) == SCHEMA_REVISION

    def test_without_the_variable_it_says_what_to_set_in_one_line(self) -> None:
        done = run_alembic("upgrade", "head", url=None)
        assert done.returncode != 0
        said = done.stdout.strip()
        assert said == (
            "FAILED: Set TOOLRAG_DATABASE_URL to the database to migrate, or use "
            "`toolrag db upgrade`."
        )
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize(
        ("url", "said"),
        [
            ("postgresql://ann:hush@127.0.0.1:1/tools", "does not answer"),
            ("mysql://ann:hush@db/tools", "begins with mysql://"),
            ("postgresql://ann:pa@hush@db/tools", "percent-encoded"),
        ],
    )
    def test_other_errors_are_one_line_without_the_password(self, url: str, said: str) -> None:
        done = run_alembic("upgrade", "head", url=url)
        assert done.returncode != 0
        assert re.fullmatch(rf"FAILED: .*{re.escape(said)}.*", done.stdout.strip())
        assert "hush" not in done.stdout + done.stderr

    @pytest.mark.parametrize("url", [None, "postgres://ann@127.0.0.1:1/tools"])
    def test_offline_mode_needs_no_server_and_gives_the_same_schema(
        self, url: str | None, empty_database_url: str, database_url: str
    ) -> None:
        done = run_alembic("upgrade", "head", "--sql", url=url)
        assert done.returncode == 0, done.stdout + done.stderr
        execute(empty_database_url, done.stdout)
        assert catalogue(empty_database_url) == catalogue(database_url)
        assert migrate.current_revision(empty_database_url) == SCHEMA_REVISION
        done = run_alembic("downgrade", f"{SCHEMA_REVISION}:base", "--sql", url=url)
        assert done.returncode == 0, done.stdout + done.stderr
        execute(empty_database_url, done.stdout)
        assert catalogue(empty_database_url) == []


class TestFromCode:
    def test_a_password_with_special_characters_reaches_the_server(
        self, databases: Databases, empty_database_url: str
    ) -> None:
        password = "p%40@s:/?#%%s ü"
        role = f"role_{make_url(empty_database_url).database}"
        quoted = password.replace("'", "''")
        execute(empty_database_url, f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD '{quoted}'")
        try:
            url = normalise_url(empty_database_url).set(username=role, password=password)
            migrate.upgrade(url.render_as_string(hide_password=False))
            assert migrate.current_revision(empty_database_url) == SCHEMA_REVISION
        finally:
            execute(empty_database_url, f"DROP OWNED BY {role}", f"DROP ROLE {role}")

    def test_a_folder_with_spaces_and_percent_signs_is_fine(
        self, empty_database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scripts = copy_scripts(tmp_path / "a folder, 100 % full: %(here)s")
        monkeypatch.setattr(migrate, "script_location", lambda: scripts)
        migrate.upgrade(empty_database_url)
        assert migrate.current_revision(empty_database_url) == SCHEMA_REVISION

    def test_a_server_that_does_not_answer_is_told_in_one_line(self) -> None:
        url = "postgresql://ann:hush@127.0.0.1:1/tools"
        for call in (
            lambda: migrate.upgrade(url),
            lambda: migrate.downgrade(url, "base"),
            lambda: migrate.current_revision(url),
        ):
            with pytest.raises(RegistryUnavailableError, match="does not answer") as caught:
                call()
            assert "\n" not in str(caught.value)
            assert "hush" not in str(caught.value)

    def test_a_database_that_is_not_there_is_told_in_one_line(self, database_url: str) -> None:
        url = normalise_url(database_url).set(database="no_such_database")
        with pytest.raises(RegistryUnavailableError, match='"no_such_database" does not exist'):
            migrate.upgrade(url.render_as_string(hide_password=False))

    def test_an_unknown_revision_is_refused(self, database_url: str) -> None:
        with pytest.raises(RegistryError, match=r"Cannot upgrade .* to 'nonsense'") as caught:
            migrate.upgrade(database_url, "nonsense")
        assert "\n" not in str(caught.value)
        assert migrate.current_revision(database_url) == SCHEMA_REVISION

    @pytest.mark.parametrize("call", [migrate.upgrade, lambda url: migrate.downgrade(url, "base")])
    def test_a_newer_schema_is_left_alone(
        self, database_url: str, call: Callable[[str], None]
    ) -> None:
        set_revision(database_url, "9999")
        before = catalogue(database_url)
        with pytest.raises(SchemaVersionError, match=r"newer than .* Upgrade the toolrag package"):
            call(database_url)
        assert catalogue(database_url) == before

    def test_the_registry_refuses_a_newer_an_older_and_an_absent_schema(
        self, database_url: str, empty_database_url: str
    ) -> None:
        def refusal(url: str) -> str:
            with closing(registry_of(url)) as registry:
                with pytest.raises(SchemaVersionError) as caught:
                    registry.open()
            return str(caught.value)

        set_revision(database_url, "9999")
        assert "is at revision 9999, newer than" in refusal(database_url)
        set_revision(database_url, "0000")
        assert "is at revision 0000, older than" in refusal(database_url)
        assert "has no toolrag schema" in refusal(empty_database_url)
        execute(database_url, "DELETE FROM toolrag_schema_version")
        assert "has no toolrag schema" in refusal(database_url)

    def test_the_applications_logging_is_not_disturbed(self, empty_database_url: str) -> None:
        names = ["", "host.application", "sqlalchemy.engine", "alembic", "registry"]
        theirs = logging.getLogger("host.application")
        theirs.setLevel(logging.DEBUG)
        handler = logging.NullHandler()
        theirs.addHandler(handler)
        try:
            before = {name: _logging_state(name) for name in names}
            migrate.upgrade(empty_database_url)
            assert {name: _logging_state(name) for name in names} == before
        finally:
            theirs.removeHandler(handler)

    def test_nothing_is_printed(
        self, empty_database_url: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        migrate.upgrade(empty_database_url)
        migrate.downgrade(empty_database_url, "base")
        assert capfd.readouterr() == ("", "")


def _logging_state(name: str) -> tuple[object, ...]:
    logger = logging.getLogger(name)
    return logger.level, logger.disabled, logger.propagate, list(logger.handlers)


class TestRawSQL:
    def test_vec_11_every_raw_statement_of_the_product_runs_on_a_real_server(
        self, databases: Databases
    ) -> None:
        ran: list[str] = []

        def remember(*event_arguments: object) -> None:
            ran.append(str(event_arguments[2]))

        offline = run_alembic("upgrade", "head", "--sql", url=None).stdout
        event.listen(Engine, "before_cursor_execute", remember)
        try:
            with databases.temporary() as url:
                migrate.upgrade(url)
                with registry_of(url, index_min_tools=1) as registry:
                    registry.sync(_SPECS)
                    registry.search("divide", k=3, threshold=0)
                engine = create_engine(normalise_url(url))
                with engine.begin() as connection:
                    connection.execute(statements.lock_for_writing())
                    connection.execute(statements.lock_tools())
                    for statement in statements.analyze():
                        connection.execute(statement)
                engine.dispose()
                migrate.downgrade(url, "base")
                execute(
                    url, "CREATE SCHEMA elsewhere", "ALTER EXTENSION vector SET SCHEMA elsewhere"
                )
                with pytest.raises(RegistryError, match="elsewhere"):
                    migrate.upgrade(url)
            with databases.temporary() as url:
                engine = create_engine(normalise_url(url))
                with engine.begin() as connection:
                    connection.exec_driver_sql(offline.replace("BEGIN;", "").replace("COMMIT;", ""))
                engine.dispose()
        finally:
            event.remove(Engine, "before_cursor_execute", remember)
        raw = list(_raw_statements())
        assert len(raw) > 12, "the walk over the sources finds too little"
        never = [where for where, pattern in raw if not any(map(pattern.search, ran))]
        assert never == []


def _raw_statements() -> Iterator[tuple[str, re.Pattern[str]]]:
    """Yield place and pattern of every SQL text that the product's sources hold."""
    # The embedded server's own statements are run by its tests.
    product = ROOT / "registry"
    files = [
        *product.glob("*.py"),
        *(product / "statements").glob("*.py"),
        *(ROOT / "migrations").rglob("*.py"),
    ]
    for file in sorted(files):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            parts = _constant_parts(node.args[0])
            if called in ("text", "execute", "exec_driver_sql") and parts:
                yield f"{file.relative_to(ROOT)}:{node.lineno}", _pattern(parts)


def _constant_parts(node: ast.expr) -> list[str]:
    """Return the constant pieces of a literal or an f-string, none of anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return [v.value if isinstance(v, ast.Constant) else "\0" for v in node.values]
    return []


def _pattern(parts: list[str]) -> re.Pattern[str]:
    # What stands for a bind parameter or a formatted value is different in what the server got.
    pieces = re.split(r"\0|(?<!:):[a-z_]+\b", "".join(parts).strip())
    words = [r"\s+".join(map(re.escape, piece.split())) for piece in pieces]
    return re.compile(r"\s*.+?\s*".join(words), re.DOTALL)
