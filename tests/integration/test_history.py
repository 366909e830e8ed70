"""History of tools: what is written, diffs, roll-back, edits against code, purge, concurrency."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql

from registry import ToolRegistry
from registry.errors import (
    ConfigurationError,
    InvalidToolError,
    RegistryError,
    ToolNotFoundError,
    VersionConflictError,
    VersionNotFoundError,
)
from registry.text import text_hash
from registry.types import ToolVersion
from tests.integration.conftest import EitherRegistry, OpenRegistry
from tests.integration.test_store import FailingEmbeddings, rows
from tests.support.catalogue import many_specs, spec
from tests.support.databases import psycopg_url
from tests.support.embeddings import HashEmbeddings
from tests.support.interleaving import before_statement, call

_ADD = spec("add", "Add two numbers.")
_SNAPSHOT_FIELDS = {
    "display_name",
    "description",
    "category",
    "examples",
    "binding",
    "origin",
    "args_schema",
    "requires_approval",
    "read_only",
    "fallback",
    "is_active",
}


def history_rows(url: str, tool_name: str = "add") -> list[tuple[Any, ...]]:
    """Return (version, change, changed_by, snapshot) as stored, oldest first."""
    return rows(
        url,
        "SELECT version, change, changed_by, snapshot FROM tool_history WHERE tool_name = %s "
        "ORDER BY version",
        tool_name,
    )


def refuse(url: str, table: str) -> None:
    """Make the server refuse whatever is written to a table."""
    with psycopg.connect(psycopg_url(url), autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'refused by the test'; END $$"
        )
        connection.execute(
            sql.SQL(
                "CREATE TRIGGER refuse BEFORE INSERT OR UPDATE OR DELETE ON {} "
                "FOR EACH ROW EXECUTE FUNCTION refuse()"
            ).format(sql.Identifier(table))
        )


def places_of(url: str, needle: str) -> list[str]:
    """Return the tables of the database in which any column of any row holds a text."""
    with psycopg.connect(psycopg_url(url)) as connection:
        tables = connection.execute(
            "SELECT oid::regclass::text, relname FROM pg_class "
            "WHERE relkind IN ('r', 'm', 'p') AND relnamespace = 'public'::regnamespace"
        ).fetchall()
        assert len(tables) > 5
        return [
            name
            for _, name in tables
            if connection.execute(
                sql.SQL("SELECT 1 FROM {} AS t WHERE strpos(t::text, %s) > 0 LIMIT 1").format(
                    sql.Identifier(name)
                ),
                [needle],
            ).fetchone()
        ]


async def texts_found(registry: EitherRegistry, question: str) -> list[str]:
    return [hit.description for hit in await registry.search(question, threshold=0)]


class TestWhatIsWritten:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("description", "Add two integers."),
            ("display_name", "Adder"),
            ("category", "maths"),
            ("examples", ("What is 2 + 2?",)),
            ("requires_approval", True),
            ("read_only", True),
            ("fallback", True),
        ],
    )
    async def test_an_edit_writes_one_version_with_the_whole_tool(
        self, open_registry: OpenRegistry, field: str, value: Any
    ) -> None:
        registry = await open_registry()
        await registry.sync([_ADD, spec("other", "Untouched.")], changed_by="deploy 1")
        record = await registry.update_tool("add", changed_by="ann", **{field: value})
        assert getattr(record.spec, field) == value
        assert (record.version, record.is_edited) == (2, True)

        before, after = history_rows(registry.database_url)
        assert before[:3] == (1, "added", "deploy 1")
        assert after[:3] == (2, "updated", "ann")
        assert set(after[3]) == _SNAPSHOT_FIELDS
        stored = list(value) if isinstance(value, tuple) else value
        assert {k: v for k, v in after[3].items() if before[3][k] != v} == {field: stored}
        newest, oldest = await registry.history("add")
        assert (newest.spec, oldest.spec) == (record.spec, _ADD)
        assert (newest.version, newest.change, newest.changed_by) == (2, "updated", "ann")
        assert len(history_rows(registry.database_url, "other")) == 1

    async def test_a_sync_writes_a_version_for_what_code_changed_and_no_other(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await open_registry()
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
        await registry.sync([_ADD, spec("other", "Untouched.")])
        await registry.sync(
            [_ADD.replace(args_schema=schema), spec("other", "Untouched.")], changed_by="deploy 2"
        )
        assert [row[:3] for row in history_rows(registry.database_url)][1] == (
            2,
            "synced",
            "deploy 2",
        )
        assert history_rows(registry.database_url)[1][3]["args_schema"] == schema
        assert len(history_rows(registry.database_url, "other")) == 1

    async def test_activity_is_a_version_and_only_where_it_changes(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await open_registry()
        await registry.sync([_ADD])
        await registry.activate("add")
        await registry.deactivate("add", changed_by="ann")
        await registry.deactivate("add", changed_by="bob")
        await registry.activate("add", changed_by="bob")
        told = [(v.version, v.change, v.changed_by, v.is_active) for v in await history(registry)]
        assert told[:2] == [(3, "activated", "bob", True), (2, "deactivated", "ann", False)]
        assert len(told) == 3

    async def test_a_tool_that_code_no_longer_has_is_switched_off_with_a_version(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await open_registry()
        await registry.sync([_ADD, spec("other", "Stays.")])
        report = await registry.sync(
            [spec("other", "Stays.")], missing="deactivate", changed_by="ci"
        )
        assert (list(report.missing), list(report.deactivated)) == (["add"], ["add"])
        newest = (await history(registry))[0]
        assert (newest.change, newest.changed_by) == ("deactivated: not in code", "ci")
        assert not newest.is_active

    async def test_without_a_name_it_was_the_database_user(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await open_registry()
        await registry.sync([_ADD])
        await registry.update_tool("add", description="Add integers.")
        await registry.deactivate("add")
        (user,) = rows(registry.database_url, "SELECT session_user::text")[0]
        assert {v.changed_by for v in await history(registry)} == {user}

    async def test_values_that_are_what_they_were_write_nothing(
        self, open_registry: OpenRegistry
    ) -> None:
        embeddings = HashEmbeddings()
        registry = await open_registry(embeddings=embeddings)
        await registry.sync([_ADD])
        embeddings.calls.clear()
        record = await registry.update_tool("add", description="Add two numbers.", examples=())
        assert (record.version, embeddings.calls) == (1, [])
        assert len(await history(registry)) == 1

    @pytest.mark.parametrize("table", ["tool_history", "tool_embedding"])
    async def test_a_transaction_that_fails_leaves_neither_change_nor_version(
        self, open_registry: OpenRegistry, table: str
    ) -> None:
        registry = await open_registry()
        await registry.sync([_ADD])
        before = await registry.get("add")
        refuse(registry.database_url, table)
        attempts: list[Callable[[], Awaitable[Any]]] = [
            lambda: registry.update_tool("add", description="Subtract."),
            lambda: registry.sync([_ADD.replace(description="Multiply."), spec("new", "New.")]),
            lambda: registry.purge("add"),
        ]
        if table == "tool_history":
            attempts.append(lambda: registry.deactivate("add"))
        for attempt in attempts:
            with pytest.raises(RegistryError, match="refused by the test"):
                await attempt()
        assert await registry.get("add") == before
        assert [r.spec.tool_name for r in await registry.list_tools()] == ["add"]
        assert len(await history(registry)) == 1
        assert await texts_found(registry, "add two numbers") == ["Add two numbers."]

    async def test_a_text_that_cannot_be_embedded_changes_nothing(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await open_registry(embeddings=FailingEmbeddings("Unspeakable"))
        await registry.sync([_ADD])
        with pytest.raises(RegistryError, match="cannot embed"):
            await registry.update_tool("add", description="Unspeakable.")
        assert (await registry.get("add")).version == 1
        assert len(await history(registry)) == 1


async def history(registry: EitherRegistry, tool_name: str = "add") -> list[ToolVersion]:
    return await registry.history(tool_name)


class TestDiff:
    async def test_it_names_each_field_with_both_values_either_way_round(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await open_registry()
        await registry.sync([_ADD])
        await registry.update_tool("add", description="Add integers.", category="maths")
        await registry.update_tool("add", read_only=True)
        await registry.deactivate("add")

        def told(changes: Any) -> list[tuple[Any, ...]]:
            return [(c.field, c.before, c.after) for c in changes]

        first = [
            ("description", "Add two numbers.", "Add integers."),
            ("category", "general", "maths"),
        ]
        assert told(await registry.diff("add", 1, 2)) == first
        assert told(await registry.diff("add", 1)) == [
            *first,
            ("read_only", False, True),
            ("is_active", True, False),
        ]
        assert told(await registry.diff("add", 3, 2)) == [("read_only", True, False)]
        assert await registry.diff("add", 2, 2) == []

    @pytest.mark.parametrize("version", [0, -1, 4, 1_000_000])
    async def test_an_unknown_version_is_told_with_those_there_are(
        self, open_registry: OpenRegistry, version: int
    ) -> None:
        registry = await open_registry()
        await registry.sync([_ADD])
        await registry.update_tool("add", description="Add integers.")
        await registry.update_tool("add", description="Add numerals.")
        for attempt in (
            registry.diff("add", version),
            registry.diff("add", 1, version),
            registry.rollback("add", version),
        ):
            with pytest.raises(
                VersionNotFoundError, match=f"no version {version}; it has 1 to 3"
            ) as caught:
                await attempt
            assert list(caught.value.known) == [1, 2, 3]
        assert (await registry.get("add")).version == 3

    async def test_an_unknown_tool_is_named_with_its_nearest(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await open_registry()
        await registry.sync([spec("search_notes", "Search.")])
        for attempt in (
            registry.history("serch_notes"),
            registry.diff("serch_notes", 1),
            registry.rollback("serch_notes", 1),
            registry.update_tool("serch_notes", description="x"),
            registry.purge("serch_notes"),
        ):
            with pytest.raises(ToolNotFoundError, match="Nearest: search_notes"):
                await attempt


class TestRollback:
    async def test_it_is_a_new_version_with_the_old_content_and_no_embedding_call(
        self, open_registry: OpenRegistry
    ) -> None:
        embeddings = HashEmbeddings()
        registry = await open_registry(embeddings=embeddings)
        await registry.sync([_ADD, spec("other", "Subtract mileage of cars.")])
        for description in ("Feed the cat.", "Water the plants.", "Paint the fence."):
            await registry.update_tool("add", description=description)
        embeddings.calls.clear()
        record = await registry.rollback("add", 1, changed_by="ann")
        assert record.spec == _ADD
        assert (record.version, record.is_edited) == (5, False)
        newest = (await history(registry))[0]
        assert (newest.version, newest.change, newest.changed_by, newest.spec) == (
            5,
            "rolled back to 1",
            "ann",
            _ADD,
        )
        assert [v.version for v in await history(registry)] == [5, 4, 3, 2, 1]
        # Each earlier text has its vector still, however far back.
        for version in (3, 2, 4, 1, 3):
            await registry.rollback("add", version)
        assert embeddings.calls == []
        hit = (await registry.search("water the plants", threshold=0))[0]
        assert (hit.tool_name, hit.description, hit.version) == ("add", "Water the plants.", 10)
        assert hit.relevance > 0.8

    async def test_activity_and_flags(self, open_registry: OpenRegistry) -> None:
        """Flags are content and go back; activity is not, and stays as it is."""
        registry = await open_registry()
        await registry.sync([_ADD])
        await registry.update_tool("add", requires_approval=True)
        await registry.deactivate("add")
        record = await registry.rollback("add", 1)
        assert (record.is_active, record.spec.requires_approval) == (False, False)
        assert await registry.search("add two numbers", threshold=0) == []
        await registry.activate("add")
        await registry.rollback("add", 3)  # a version at which it was off
        assert (await registry.get("add")).is_active

    async def test_to_what_it_is_already_changes_nothing(self, open_registry: OpenRegistry) -> None:
        registry = await open_registry()
        await registry.sync([_ADD])
        assert (await registry.rollback("add", 1)).version == 1
        assert len(await history(registry)) == 1

    async def test_a_version_that_is_not_the_expected_one_is_refused(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await open_registry()
        await registry.sync([_ADD])
        await registry.update_tool("add", description="Add integers.")
        with pytest.raises(VersionConflictError, match="is at version 2, not at version 1"):
            await registry.rollback("add", 1, expected_version=1)
        assert (await registry.get("add")).spec.description == "Add integers."

    async def test_an_old_version_of_another_embedding_model_is_embedded_again(
        self, open_registry: OpenRegistry
    ) -> None:
        old = await open_registry(embeddings=HashEmbeddings(64, model="old"))
        await old.sync([_ADD])
        await old.update_tool("add", description="Feed the cat.")
        embeddings = HashEmbeddings(128, model="new")
        new = await open_registry(embeddings=embeddings, opened=False)
        await new.build_embeddings()
        await new.switch_embeddings()
        embeddings.calls.clear()
        await new.rollback("add", 1)
        assert embeddings.calls == [["add\nAdd two numbers."]]
        assert await texts_found(new, "add two numbers") == ["Add two numbers."]


class TestEditsAndCode:
    async def test_an_edit_survives_a_sync_of_unchanged_code_and_yields_to_changed_code(
        self, open_registry: OpenRegistry
    ) -> None:
        embeddings = HashEmbeddings()
        registry = await open_registry(embeddings=embeddings)
        await registry.sync([_ADD])
        await registry.update_tool("add", description="Sum up figures.")
        embeddings.calls.clear()
        for _ in range(2):
            report = await registry.sync([_ADD])
            assert (list(report.edited), list(report.updated)) == (["add"], [])
        assert embeddings.calls == []
        assert await texts_found(registry, "sum up figures") == ["Sum up figures."]

        report = await registry.sync([_ADD.replace(description="Add any two numbers.")])
        assert (list(report.edited), list(report.updated)) == ([], ["add"])
        record = await registry.get("add")
        assert (record.spec.description, record.is_edited) == ("Add any two numbers.", False)
        assert [v.spec.description for v in await history(registry)] == [
            "Add any two numbers.",
            "Sum up figures.",
            "Add two numbers.",
        ]
        assert await texts_found(registry, "numbers") == ["Add any two numbers."]

    async def test_code_wins_where_that_is_asked_for(self, open_registry: OpenRegistry) -> None:
        embeddings = HashEmbeddings()
        registry = await open_registry(embeddings=embeddings)
        await registry.sync([_ADD])
        await registry.update_tool("add", description="Sum up figures.")
        embeddings.calls.clear()
        report = await registry.sync([_ADD], overwrite_edits=True)
        assert (list(report.updated), report.reused, report.embedded) == (["add"], 1, 0)
        assert embeddings.calls == []
        record = await registry.get("add")
        assert (record.spec, record.version, record.is_edited) == (_ADD, 3, False)

    async def test_code_that_catches_up_with_an_edit_owns_it_from_then_on(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await open_registry()
        await registry.sync([_ADD])
        await registry.update_tool("add", description="Sum up figures.")
        report = await registry.sync([_ADD.replace(description="Sum up figures.")])
        assert list(report.unchanged) == ["add"]
        record = await registry.get("add")
        assert (record.version, record.is_edited) == (2, False)
        # Code goes back to its first text: that is a change of code, and no edit is in its way.
        assert list((await registry.sync([_ADD])).updated) == ["add"]

    async def test_a_new_name_for_the_same_text_costs_no_embedding_call(
        self, open_registry: OpenRegistry
    ) -> None:
        embeddings = HashEmbeddings()
        registry = await open_registry(embeddings=embeddings)
        tools = many_specs(20)
        await registry.sync(tools)
        embeddings.calls.clear()
        renamed = [
            tool.replace(tool_name=f"new_{tool.tool_name}", binding=f"new_{tool.tool_name}")
            for tool in tools
        ]
        report = await registry.sync(renamed, missing="deactivate")
        assert (len(report.added), report.reused, report.embedded) == (20, 20, 0)
        assert (embeddings.calls, len(report.deactivated)) == ([], 20)
        hit = (await registry.search("handle alpha case 0", threshold=0))[0]
        assert hit.tool_name == "new_tool_00000"


class TestBadChanges:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"description": "   "}, "no description"),
            ({"description": 5}, "must be texts"),
            ({"category": ""}, "category is empty"),
            ({"examples": ("fine", 5)}, "must be texts"),
            ({"examples": "What is 2 + 2?"}, "list of questions"),
            ({"description": "half \ud800"}, "surrogate"),
            ({"requires_approval": "no"}, "True or False"),
            ({"read_only": None}, "True or False"),
            ({"fallback": 1}, "True or False"),
        ],
    )
    async def test_a_change_that_makes_an_invalid_tool_is_refused(
        self, open_registry: OpenRegistry, changes: dict[str, Any], said: str
    ) -> None:
        embeddings = HashEmbeddings()
        registry = await open_registry(embeddings=embeddings)
        await registry.sync([_ADD])
        embeddings.calls.clear()
        with pytest.raises(InvalidToolError, match=said) as caught:
            await registry.update_tool("add", **changes)
        assert "\n" not in str(caught.value)
        assert embeddings.calls == []
        assert (await registry.get("add")).version == 1

    @pytest.mark.parametrize("field", ["binding", "origin", "args_schema", "nonsense"])
    async def test_what_belongs_to_code_cannot_be_edited(
        self, open_registry: OpenRegistry, field: str
    ) -> None:
        registry = await open_registry()
        await registry.sync([_ADD])
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{field}'"):
            await registry.update_tool("add", **{field: "other"})
        assert (await registry.get("add")).version == 1


class TestAtOnce:
    async def test_eight_that_edit_one_tool_lose_nothing(self, open_registry: OpenRegistry) -> None:
        registry = await open_registry()
        await registry.sync([_ADD])

        async def edit(worker: int) -> None:
            field = "description" if worker % 2 else "category"
            for number in range(5):
                await call(registry, "update_tool", "add", **{field: f"{worker} {number}"})

        await asyncio.gather(*map(edit, range(8)))
        versions = (await history(registry))[::-1]
        assert [v.version for v in versions] == list(range(1, 42))
        changes: list[str] = []
        for version in range(1, 41):
            (change,) = await registry.diff("add", version, version + 1)
            changes.append(change.after)
        assert sorted(changes) == sorted(f"{w} {n}" for w in range(8) for n in range(5))
        record = await registry.get("add")
        assert (record.version, record.spec) == (41, versions[-1].spec)
        (vector_of,) = rows(registry.database_url, "SELECT source_hash FROM tool_embedding")
        assert vector_of == (text_hash(record.spec),)

    async def test_eight_that_count_up_with_an_expected_version_lose_nothing(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await open_registry()
        await registry.sync([spec("count", "0")])
        conflicts: list[VersionConflictError] = []

        async def count(_: int) -> None:
            done = 0
            while done < 3:
                seen = await call(registry, "get", "count")
                try:
                    await call(
                        registry,
                        "update_tool",
                        "count",
                        expected_version=seen.version,
                        description=str(int(seen.spec.description) + 1),
                    )
                except VersionConflictError as conflict:
                    conflicts.append(conflict)
                else:
                    done += 1

        await asyncio.gather(*map(count, range(8)))
        record = await registry.get("count")
        assert (record.spec.description, record.version) == ("24", 25)
        assert [v.version for v in await history(registry, "count")] == list(range(25, 0, -1))
        assert conflicts, "eight at once and never one in another's way"

    async def test_a_switch_that_waited_for_an_edit_is_the_newer_version(
        self, open_registry: OpenRegistry
    ) -> None:
        """Its transaction began first, so its time is the earlier one; versions decide."""
        registry = await open_registry()
        await registry.sync([_ADD])
        with ToolRegistry(registry.database_url, embeddings=HashEmbeddings()) as other:
            with before_statement(
                "UPDATE tool_registry", lambda: other.update_tool("add", description="Sum up.")
            ):
                await registry.deactivate("add")
        versions = await history(registry)
        assert [(v.version, v.change) for v in versions] == [
            (3, "deactivated"),
            (2, "updated"),
            (1, "added"),
        ]
        assert versions[0].changed_at < versions[1].changed_at
        assert [c.field for c in await registry.diff("add", 2)] == ["is_active"]
        assert (await registry.rollback("add", 1)).version == 4

    async def test_a_sync_does_not_bring_back_what_is_purged_meanwhile(
        self, open_registry: OpenRegistry
    ) -> None:
        """Without this, a tool without a vector and with a history that begins at 2."""
        registry = await open_registry()
        changed = [_ADD.replace(description="Add integers."), spec("other", "Something else.")]
        await registry.sync([_ADD, spec("other", "Something.")])
        with ToolRegistry(registry.database_url, embeddings=HashEmbeddings()) as other:
            with before_statement("INSERT INTO tool_registry", lambda: other.purge("add")):
                report = await registry.sync(changed)
        assert list(report.updated) == ["other"]
        assert "sync again" in report.failed["add"]
        assert [r.spec.tool_name for r in await registry.list_tools()] == ["other"]
        assert places_of(registry.database_url, "Add integers") == []
        assert list((await registry.sync(changed)).added) == ["add"]
        assert [v.version for v in await history(registry)] == [1]
        assert (await texts_found(registry, "add integers"))[0] == "Add integers."

    async def test_an_edit_during_a_sync_is_not_overwritten_by_it(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await open_registry()
        await registry.sync([_ADD])
        with ToolRegistry(registry.database_url, embeddings=HashEmbeddings()) as other:
            with before_statement(
                "INSERT INTO tool_registry",
                lambda: other.update_tool("add", description="Edited meanwhile."),
            ):
                report = await registry.sync([_ADD.replace(description="Changed in code.")])
        assert "somebody else changed it" in report.failed["add"]
        assert (await registry.get("add")).spec.description == "Edited meanwhile."
        assert await texts_found(registry, "edited meanwhile") == ["Edited meanwhile."]


_UNKNOWN = ("a\0b", "a\ud800", "not legal", "", "x" * 10_000)


class TestBadInput:
    @pytest.mark.parametrize("name", _UNKNOWN)
    async def test_a_name_that_no_tool_can_have_is_not_found(
        self, open_registry: OpenRegistry, name: str
    ) -> None:
        registry = await open_registry()
        await registry.sync([_ADD])
        for attempt in (
            registry.history(name),
            registry.diff(name, 1),
            registry.rollback(name, 1),
            registry.get(name),
            registry.update_tool(name, description="x"),
            registry.activate(name),
            registry.deactivate(name),
            registry.purge(name),
        ):
            with pytest.raises(ToolNotFoundError, match="in namespace 'default'"):
                await attempt
        assert await registry.active_states(["add", name]) == {"add": True}

    @pytest.mark.parametrize("author", ["a\0b", "a\ud800", None, 7])
    async def test_an_author_that_cannot_be_stored_changes_nothing(
        self, open_registry: OpenRegistry, author: Any
    ) -> None:
        registry = await open_registry()
        await registry.sync([_ADD])
        await registry.update_tool("add", description="Second.")
        for attempt in (
            registry.update_tool("add", description="x", changed_by=author),
            registry.rollback("add", 1, changed_by=author),
            registry.activate("add", changed_by=author),
            registry.deactivate("add", changed_by=author),
            registry.purge("add", changed_by=author),
            registry.sync([spec("other", "Something else.")], changed_by=author),
        ):
            with pytest.raises(ConfigurationError, match="changed_by"):
                await attempt
        assert len(history_rows(registry.database_url)) == 2

    @pytest.mark.parametrize("version", ["1", True, 1.0, None])
    async def test_a_version_is_a_whole_number(
        self, open_registry: OpenRegistry, version: Any
    ) -> None:
        registry = await open_registry()
        await registry.sync([_ADD])
        attempts = [registry.rollback("add", version), registry.diff("add", version)]
        if version is not None:
            attempts.append(registry.update_tool("add", description="x", expected_version=version))
        for attempt in attempts:
            with pytest.raises(ConfigurationError, match="versions are whole numbers"):
                await attempt
        assert (await registry.get("add")).version == 1


class TestPurge:
    async def test_nothing_of_it_is_left_but_one_row_that_says_so(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await open_registry()
        url = registry.database_url
        secret = spec(
            "leak",
            "Call xyzzysecret.",
            category="xyzzysecret",
            examples=("Who is xyzzysecret?",),
            args_schema={"title": "xyzzysecret"},
        )
        await registry.sync([secret, _ADD])
        await registry.update_tool("leak", description="Call xyzzysecret again.")
        await registry.update_tool("leak", description="Harmless.", examples=(), category="fine")
        hashes = {text_hash(v.spec) for v in await history(registry, "leak")}
        vectors = {
            vector
            for table in ("tool_embedding", "tool_vector_archive")
            for source, vector in rows(url, f"SELECT source_hash, vector::text FROM {table}")  # noqa: S608
            if source in hashes
        }
        assert (len(hashes), len(vectors)) == (3, 3)
        assert places_of(url, "xyzzysecret") != []

        await registry.purge("leak", changed_by="ann")
        for trace in ("xyzzysecret", *hashes, *vectors):
            assert places_of(url, trace) == []
        assert history_rows(url, "leak") == [(4, "purged", "ann", None)]
        assert [r.spec.tool_name for r in await registry.list_tools(include_inactive=True)] == [
            "add"
        ]
        assert await texts_found(registry, "call xyzzysecret") == ["Add two numbers."]
        assert len(await history(registry)) == 1

    async def test_a_purged_name_is_a_clear_error_and_can_be_used_anew(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await open_registry()
        await registry.sync([_ADD])
        await registry.update_tool("add", description="Add integers.")
        await registry.purge("add", changed_by="ann")
        for attempt in (
            registry.history("add"),
            registry.diff("add", 1),
            registry.rollback("add", 1),
            registry.get("add"),
            registry.update_tool("add", description="x"),
            registry.activate("add"),
            registry.deactivate("add"),
            registry.purge("add"),
        ):
            with pytest.raises(ToolNotFoundError, match=r"It was purged on \d{4}-.* by ann"):
                await attempt
        assert len(history_rows(registry.database_url)) == 1

        assert list((await registry.sync([_ADD])).added) == ["add"]
        await registry.update_tool("add", description="Second life.")
        assert [v.version for v in await history(registry)] == [2, 1]
        assert (await registry.rollback("add", 1)).spec == _ADD
        with pytest.raises(VersionNotFoundError, match="it has 1 to 3"):
            await registry.rollback("add", 4)
        await registry.purge("add", changed_by="bob")
        with pytest.raises(ToolNotFoundError, match="by bob"):
            await registry.history("add")

    async def test_another_tool_with_the_same_text_keeps_its_vector(
        self, open_registry: OpenRegistry
    ) -> None:
        registry = await open_registry()
        twin = _ADD.replace(tool_name="twin", binding="twin")
        await registry.sync([_ADD, twin])
        await registry.purge("add")
        assert [h.tool_name for h in await registry.search("add two numbers")] == ["twin"]

    async def test_it_stays_within_its_namespace(self, open_registry: OpenRegistry) -> None:
        from registry import RegistrySettings

        here = await open_registry()
        there = await open_registry(settings=RegistrySettings(namespace="there"))
        await here.sync([_ADD])
        await there.sync([_ADD])
        await here.purge("add")
        assert len(await history(there)) == 1
        assert [h.tool_name for h in await there.search("add two numbers")] == ["add"]
