"""`validate`: what does not fit between registry and code, found, told, and mended by a sync."""

from __future__ import annotations

import re
from typing import Any

import pytest
from langchain_core.tools import BaseTool, StructuredTool

from registry import Embedder, RegistrySettings, Toolset
from registry.errors import ConfigurationError, RegistryError
from registry.validation import ValidationReport
from tests.integration.conftest import EitherRegistry, OpenRegistry
from tests.integration.test_store import rows
from tests.support.catalogue import spec
from tests.support.embeddings import HashEmbeddings


def live(name: str, description: str = "", *, argument: type = str, **metadata: Any) -> BaseTool:
    def run(value: Any) -> str:
        return str(value)

    run.__annotations__["value"] = argument
    return StructuredTool.from_function(
        run, name=name, description=description or f"Does {name}.", metadata=metadata
    )


def found(report: ValidationReport) -> list[tuple[str, str | None]]:
    return [(finding.kind, finding.tool_name) for finding in report.findings]


async def registered(open_registry: OpenRegistry, toolset: Toolset) -> EitherRegistry:
    registry = await open_registry()
    await registry.sync(toolset)
    return registry


async def test_registry_and_code_that_agree(open_registry: OpenRegistry) -> None:
    toolset = Toolset([live("add"), live("divide")])
    registry = await registered(open_registry, toolset)
    report = await registry.validate(toolset)
    assert (report.is_valid, report.checked, list(report.findings)) == (True, 2, [])
    assert str(report) == "2 tools checked: registry and code agree."


async def test_every_kind_at_once_in_a_fixed_order_and_one_line_each(
    open_registry: OpenRegistry,
) -> None:
    registry = await registered(
        open_registry,
        Toolset([live(name) for name in ("gone", "reworded", "retyped", "vectorless", "fine")]),
    )
    rows(
        registry.database_url,
        "DELETE FROM tool_embedding USING tool_registry AS t "
        "WHERE t.id = tool_id AND t.tool_name = 'vectorless' RETURNING tool_id",
    )
    code = Toolset(
        [
            live("fine"),
            live("vectorless"),
            live("retyped", argument=int),
            live("reworded", "Says it in another way."),
            live("new"),
        ]
    )
    report = await registry.validate(code)
    assert found(report) == [
        ("not_in_code", "gone"),
        ("not_registered", "new"),
        ("text_differs", "reworded"),
        ("schema_differs", "retyped"),
        ("without_vector", "vectorless"),
    ]
    assert report.checked == 6
    first, *lines = str(report).splitlines()
    assert first == "6 tools checked, 5 findings:"
    assert [line.split(": ")[0] for line in lines] == [
        f"- {kind} {name}" for kind, name in found(report)
    ]
    assert "args_schema differ from code (version 1)" in str(report)

    mended = await registry.sync(code, missing="deactivate")
    assert (mended.embedded, list(mended.deactivated)) == (3, ["gone"])
    assert (await registry.validate(code)).is_valid
    hits = await registry.search("does", threshold=0, k=10)
    assert sorted(hit.tool_name for hit in hits) == [
        "fine", "new", "retyped", "reworded", "vectorless",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "kind", "field"),
    [
        ({"description": "Edited."}, "text_differs", "description"),
        ({"display_name": "Edited"}, "text_differs", "display_name"),
        ({"category": "edited"}, "text_differs", "category"),
        ({"examples": ("Edited?",)}, "text_differs", "examples"),
        ({"requires_approval": True}, "schema_differs", "requires_approval"),
        ({"read_only": True}, "schema_differs", "read_only"),
        ({"fallback": True}, "schema_differs", "fallback"),
    ],
)
async def test_an_edit_is_told_as_one_and_what_would_undo_it(
    open_registry: OpenRegistry, changes: dict[str, Any], kind: str, field: str
) -> None:
    toolset = Toolset([live("add"), live("divide")])
    registry = await registered(open_registry, toolset)
    await registry.update_tool("add", **changes)
    (finding,) = (await registry.validate(toolset)).findings
    assert (finding.kind, finding.tool_name) == (kind, "add")
    assert f"{field} differ from code (version 2)" in finding.detail
    assert "edited in the registry" in finding.advice
    assert "overwrite-edits" in finding.advice
    await registry.sync(toolset, missing="deactivate")  # an edit is not undone by the way
    assert found(await registry.validate(toolset)) == [(kind, "add")]
    await registry.sync(toolset, overwrite_edits=True)
    assert (await registry.validate(toolset)).is_valid


async def test_text_and_schema_of_one_tool_are_two_findings(open_registry: OpenRegistry) -> None:
    registry = await registered(open_registry, Toolset([live("add")]))
    code = Toolset([live("add", "Adds otherwise.", argument=int, read_only=True)])
    report = await registry.validate(code)
    assert found(report) == [("text_differs", "add"), ("schema_differs", "add")]
    assert "args_schema, read_only differ" in report.findings[1].detail


async def test_a_tool_that_is_off_is_nobodys_problem(open_registry: OpenRegistry) -> None:
    registry = await registered(open_registry, Toolset([live("add"), live("old")]))
    await registry.deactivate("old")
    assert (await registry.validate(Toolset([live("add")]))).is_valid


async def test_a_tool_of_an_origin_that_code_no_longer_has_is_told_what_helps(
    open_registry: OpenRegistry,
) -> None:
    """A sync answers for the origins it is given, so it is no way to mend this one."""
    registry = await open_registry()
    await registry.sync([spec("far", "Of a server.", origin="mcp:far", binding="far")])
    toolset = Toolset([live("add")])
    await registry.sync(toolset, missing="deactivate")
    (finding,) = (await registry.validate(toolset)).findings
    assert (finding.kind, finding.tool_name) == ("not_in_code", "far")
    assert "mcp:far" in finding.advice
    assert "Deactivate it" in finding.advice
    assert "missing=" not in finding.advice
    await registry.deactivate("far")
    assert (await registry.validate(toolset)).is_valid


async def test_a_tool_that_a_sync_switched_off_and_code_brings_again_is_told(
    open_registry: OpenRegistry,
) -> None:
    both = Toolset([live("add"), live("old"), live("by_hand")])
    registry = await registered(open_registry, both)
    await registry.deactivate("by_hand", changed_by="ann")
    await registry.sync(Toolset([live("add")]), missing="deactivate", changed_by="ci")
    # Its text changes while it is off: the switching is no longer its newest version.
    again = Toolset([live("add"), live("old", "Works otherwise."), live("by_hand")])
    report = await registry.sync(again)
    assert (list(report.updated), list(report.switched_off)) == (["old"], ["old"])
    assert not (await registry.get("old")).is_active
    (finding,) = (await registry.validate(again)).findings
    assert (finding.kind, finding.tool_name) == ("switched_off", "old")
    assert re.search(r"switched off since \d{4}-\d\d-\d\d by ci", finding.detail)
    assert "toolrag tools activate old" in finding.advice
    await registry.activate("old")
    assert list((await registry.sync(again)).switched_off) == []
    await registry.deactivate("old", changed_by="ann")  # a person's is nobody's problem
    assert list((await registry.sync(again)).switched_off) == []
    assert (await registry.validate(again)).is_valid


async def test_it_takes_what_a_sync_takes(open_registry: OpenRegistry) -> None:
    def undescribed(value: str) -> str:
        return value

    registry = await open_registry()
    specs = [spec("add", "Add two numbers."), spec("far", "Of a server.", origin="mcp:far")]
    await registry.sync(specs)
    assert (await registry.validate(specs)).is_valid
    assert (await registry.validate(iter(specs))).is_valid
    report = await registry.validate([*specs, undescribed, live("new")], origin="code")
    assert found(report) == [
        ("not_registered", "new"),
        ("cannot_be_registered", "undescribed"),
    ]
    with pytest.raises(ConfigurationError, match="give a list of tools"):
        await registry.validate(7)


async def test_only_its_own_namespace_is_looked_at(open_registry: OpenRegistry) -> None:
    there = await open_registry(settings=RegistrySettings(namespace="there"))
    await there.sync([spec("far", "Elsewhere.")])
    rows(there.database_url, "DELETE FROM tool_embedding RETURNING tool_id")
    toolset = Toolset([live("add")])
    registry = await registered(open_registry, toolset)
    assert (await registry.validate(toolset)).is_valid


async def test_an_empty_registry_lacks_every_tool(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    report = await registry.validate(Toolset([live("b"), live("a")]))
    assert found(report) == [("not_registered", "a"), ("not_registered", "b")]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda: HashEmbeddings(model="other"), id="name"),
        pytest.param(
            lambda: Embedder(HashEmbeddings(), name="HashEmbeddings:hash", revision="2"),
            id="revision",
        ),
        pytest.param(lambda: Embedder(HashEmbeddings(32), dimensions=32), id="size"),
    ],
)
async def test_another_embedding_model_is_a_finding_and_no_error(
    open_registry: OpenRegistry, other: Any
) -> None:
    toolset = Toolset([live("add")])
    await registered(open_registry, toolset)
    registry = await open_registry(embeddings=other(), opened=False)
    report = await registry.validate(toolset)
    assert found(report) == [("embedding_model", None)]
    assert "toolrag embeddings migrate" in str(report)
    assert "HashEmbeddings:hash (64 dimensions)" in str(report)
    await registry.build_embeddings()
    await registry.switch_embeddings()
    assert (await registry.validate(toolset)).is_valid


@pytest.mark.parametrize(
    ("revision", "said"),
    [("0001", "older than"), ("9999", "newer than"), (None, "has no toolrag schema")],
)
async def test_a_schema_that_does_not_fit_is_the_one_finding(
    open_registry: OpenRegistry, revision: str | None, said: str
) -> None:
    toolset = Toolset([live("add")])
    registry = await registered(open_registry, toolset)
    if revision is None:
        rows(registry.database_url, "DELETE FROM toolrag_schema_version RETURNING version_num")
    else:
        rows(
            registry.database_url,
            "UPDATE toolrag_schema_version SET version_num = %s RETURNING version_num",
            revision,
        )
    fresh = await open_registry(opened=False)
    report = await fresh.validate(toolset)
    assert found(report) == [("schema_revision", None)]
    assert (said in str(report), report.is_valid) == (True, False)


async def test_a_closed_registry_is_an_error(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    await registry.close()
    with pytest.raises(RegistryError, match="was closed"):
        await registry.validate(Toolset())
