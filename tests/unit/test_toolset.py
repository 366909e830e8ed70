from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from langchain_core.tools import BaseTool, InjectedToolArg, StructuredTool
from langchain_core.tools import tool as langchain_tool

from registry.errors import DuplicateToolError, InvalidToolError
from registry.text import content_hash, is_legal_name
from registry.toolset import Toolset, tool_spec
from registry.types import ToolSpec


def look_up_order(order_id: str, verbose: bool = False) -> str:
    """Find an order by its number."""
    return f"{order_id} {verbose}"


async def fetch_weather(city: str) -> str:
    """Say what the weather is."""
    return f"sunny in {city}"


def named(name: str, description: str = "Does something.", **options: Any) -> BaseTool:
    """Return a tool of that name; MCP tools have schemas that are plain dicts."""
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return StructuredTool(
        name=name,
        description=description,
        args_schema=options.pop("args_schema", schema),
        func=lambda **given: f"{name}: {given}",
        **options,
    )


class TestSpecs:
    def test_a_plain_function_becomes_a_tool(self) -> None:
        toolset = Toolset([look_up_order])
        [spec] = toolset.specs
        assert spec.tool_name == spec.display_name == spec.binding == "look_up_order"
        assert spec.description == "Find an order by its number."
        assert spec.args_schema["required"] == ["order_id"]
        assert spec.args_schema["properties"]["verbose"] == {"type": "boolean", "default": False}
        assert toolset["look_up_order"].invoke({"order_id": "A100"}) == "A100 False"

    async def test_an_async_function_becomes_a_tool(self) -> None:
        toolset = Toolset([fetch_weather])
        assert await toolset["fetch_weather"].ainvoke({"city": "Tokyo"}) == "sunny in Tokyo"

    def test_a_tool_with_a_dict_schema_keeps_its_schema(self) -> None:
        schema = {
            "type": "object",
            "properties": {"n": {"anyOf": [{"type": "integer"}, {"enum": ["all"]}]}},
            "required": ["n"],
            "additionalProperties": False,
        }
        spec = tool_spec(named("count", args_schema=schema))
        assert spec.args_schema == schema

    def test_arguments_that_the_model_may_not_give_are_not_in_the_schema(self) -> None:
        @langchain_tool
        def pay(amount: int, user: Annotated[str, InjectedToolArg]) -> str:
            """Pay."""
            return f"{amount} {user}"

        assert set(tool_spec(pay).args_schema["properties"]) == {"amount"}

    def test_metadata_is_carried(self) -> None:
        metadata = {
            "category": "shop",
            "examples": ["Where is A100?", "What did I order?"],
            "requires_approval": True,
            "read_only": True,
            "fallback": True,
            "someone_elses": object(),
        }
        spec = tool_spec(named("look_up", metadata=metadata))
        assert spec.category == "shop"
        assert spec.examples == ("Where is A100?", "What did I order?")
        assert spec.requires_approval is True
        assert spec.read_only is True
        assert spec.fallback is True

    @pytest.mark.parametrize("metadata", [None, {}, {"category": None, "examples": None}])
    def test_without_metadata_the_defaults_hold(self, metadata: dict[str, Any] | None) -> None:
        spec = tool_spec(named("look_up", metadata=metadata))
        assert (spec.category, spec.examples) == ("general", ())
        assert (spec.requires_approval, spec.read_only, spec.fallback) == (False,) * 3

    def test_doubtful_flags_fall_on_the_safe_side(self) -> None:
        doubtful = {"requires_approval": "no", "read_only": "false", "fallback": "false"}
        spec = tool_spec(named("t", metadata=doubtful))
        assert spec.requires_approval is True
        assert spec.read_only is False
        assert spec.fallback is False

    def test_nam_6_a_long_description_is_stored_in_full(self) -> None:
        description = "word " * 1_000 + "peridot"
        assert tool_spec(named("t", description)).description == description

    def test_a_spec_comes_back_unchanged(self) -> None:
        spec = ToolSpec(tool_name="t", description="d", origin="mcp:north")
        assert tool_spec(spec, origin="code") is spec

    def test_the_same_tool_always_gives_the_same_spec(self) -> None:
        assert content_hash(tool_spec(look_up_order)) == content_hash(tool_spec(look_up_order))


class TestRefusals:
    @pytest.mark.parametrize("name", ["report.daily", "get weather", "münze"])
    def test_nam_2_an_illegal_name_is_mapped_and_the_original_kept(self, name: str) -> None:
        toolset = Toolset([named(name), *(named(f"good_{number}") for number in range(10))])
        spec = toolset.specs[0]
        assert is_legal_name(spec.tool_name)
        assert spec.display_name == name
        assert toolset[spec.binding].name == name
        assert len(toolset) == 11

    @pytest.mark.parametrize("name", ["", "  "])
    def test_nam_2_a_tool_without_name_is_refused(self, name: str) -> None:
        with pytest.raises(InvalidToolError, match="the name is empty"):
            Toolset([named(name)])

    def test_nam_4_the_server_still_has_its_own_name(self) -> None:
        long = "n" * 50
        toolset = Toolset([named(long)], origin="mcp:" + "s" * 30)
        [spec] = toolset.specs
        assert len(spec.tool_name) == 64
        assert toolset[spec.binding].name == spec.display_name == long

    def test_a_function_without_docstring_is_refused_by_name(self) -> None:
        def silent(x: int) -> int:
            return x

        with pytest.raises(InvalidToolError, match="'silent' cannot be registered: it has no desc"):
            Toolset([silent])

    @pytest.mark.parametrize("description", ["", " \n"])
    def test_a_tool_without_description_is_refused_by_name(self, description: str) -> None:
        with pytest.raises(InvalidToolError, match="'t' cannot be registered: it has no desc"):
            Toolset([named("t", description)])

    @pytest.mark.parametrize(
        ("item", "said"),
        [
            (7, "'7' cannot be registered: a int is neither a tool nor a function"),
            (functools.partial(look_up_order, verbose=True), "'partial' .* has no name; wrap it"),
            (ToolSpec(tool_name="t", description="d"), "is neither a tool nor a function"),
        ],
    )
    def test_what_is_no_tool_is_refused(self, item: Callable[..., Any], said: str) -> None:
        with pytest.raises(InvalidToolError, match=said):
            Toolset([item])

    @pytest.mark.parametrize(
        ("metadata", "said"),
        [
            ({"examples": "Where is A100?"}, "must be a list of questions"),
            ({"examples": 3}, "must be a list of questions"),
            ({"examples": ["a", 3]}, "must be texts"),
            ({"category": 3}, "must be texts"),
            ({"category": " "}, "its category is empty"),
        ],
    )
    def test_metadata_of_the_wrong_kind_is_refused(
        self, metadata: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(InvalidToolError, match=rf"^Tool 't' cannot .*{said}"):
            tool_spec(named("t", metadata=metadata))

    def test_an_empty_origin_is_refused(self) -> None:
        with pytest.raises(InvalidToolError, match="its origin is empty"):
            Toolset([look_up_order], origin="")

    @pytest.mark.parametrize("bad", ["a\x00b", "a\ud800b", "\udfff"], ids=ascii)
    def test_texts_that_postgres_cannot_store_are_refused_wherever_they_are(self, bad: str) -> None:
        good = ToolSpec(tool_name="t", description="d")
        placed = [
            {"display_name": bad},
            {"description": bad},
            {"category": bad},
            {"examples": ("fine", bad)},
            {"binding": bad},
            {"origin": bad},
            {"args_schema": {"properties": {"x": {"enum": ["fine", bad]}}}},
            {"args_schema": {"properties": {bad: {"type": "string"}}}},
            {"args_schema": {"description": bad}},
        ]
        for change in placed:
            with pytest.raises(InvalidToolError, match="PostgreSQL stores no NUL") as caught:
                tool_spec(good.replace(**change))
            # The message itself must be printable anywhere.
            assert str(caught.value).encode().isascii()

    def test_a_backslash_before_u0000_is_no_nul(self) -> None:
        pattern = {"properties": {"x": {"pattern": r"[^\u0000]"}}}
        spec = ToolSpec(tool_name="t", description="d", args_schema=pattern)
        assert tool_spec(spec) is spec

    def test_a_schema_that_is_no_json_is_refused(self) -> None:
        circular: dict[str, Any] = {}
        circular["self"] = circular
        bottomless: dict[str, Any] = {}
        for _ in range(100_000):
            bottomless = {"items": bottomless}
        good = ToolSpec(tool_name="t", description="d")
        for schema in (
            {"default": object()},
            {"default": float("nan")},
            {"default": float("-inf")},
            {"enum": {1, 2}},
            {"enum": b"bytes"},
            {1: "one", "two": 2},
            circular,
            bottomless,
        ):
            with pytest.raises(InvalidToolError, match="args_schema is not JSON"):
                tool_spec(good.replace(args_schema=schema))

    @pytest.mark.parametrize("name", ["a b", "a.b", "n" * 65, "a\n"])
    def test_a_spec_with_an_illegal_name_is_told_a_legal_one(self, name: str) -> None:
        with pytest.raises(InvalidToolError, match=r"legal_name\(\) makes it '[a-zA-Z0-9_-]+'"):
            tool_spec(ToolSpec(tool_name=name, description="d"))


class TestNameCollisions:
    def test_nam_1_two_servers_may_offer_one_name_in_any_order(self) -> None:
        servers = {
            "mcp:north": named("send_note", "Send a note north."),
            "mcp:south": named("send_note", "Send a note south."),
            "code": named("send_note", "Send a note from here."),
        }
        seen: set[tuple[tuple[str, str, str, int], ...]] = set()
        for order in itertools.permutations(servers):
            toolset = Toolset()
            for origin in order:
                toolset.add([servers[origin]], origin=origin)
            seen.add(
                tuple(
                    sorted(
                        (s.tool_name, s.origin, s.description, id(toolset[s.binding]))
                        for s in toolset.specs
                    )
                )
            )
        [rows] = seen
        assert [(row[0], row[1]) for row in rows] == [
            ("north__send_note", "mcp:north"),
            ("send_note", "code"),
            ("south__send_note", "mcp:south"),
        ]
        assert [row[3] for row in rows] == [
            id(servers[origin]) for origin in ("mcp:north", "code", "mcp:south")
        ]

    def test_nam_1_one_name_of_one_origin_twice_is_refused(self) -> None:
        with pytest.raises(DuplicateToolError, match=r"'x__send_note' \(origins: mcp:x, mcp:x\)"):
            Toolset([named("send_note"), named("send_note")], origin="mcp:x")

    @pytest.mark.parametrize("first", [0, 1])
    def test_nam_1_a_name_that_a_prefix_makes_is_refused_with_both_origins(
        self, first: int
    ) -> None:
        both = [(named("north__send"), "code"), (named("send"), "mcp:north")]
        toolset = Toolset()
        toolset.add([both[first][0]], origin=both[first][1])
        with pytest.raises(DuplicateToolError) as caught:
            toolset.add([both[1 - first][0]], origin=both[1 - first][1])
        assert caught.value.origins == ("code", "mcp:north")
        assert caught.value.tool_name == "north__send"

    def test_nam_1_names_that_differ_only_in_illegal_characters_stay_apart(self) -> None:
        toolset = Toolset([named("get weather"), named("get.weather"), named("get_weather")])
        assert len(toolset) == 3
        assert toolset["get_weather"].name == "get_weather"

    @pytest.mark.parametrize("bad", [named("kept"), named("x", ""), 7])
    def test_a_refused_tool_leaves_nothing_behind(self, bad: Any) -> None:
        toolset = Toolset([named("kept")])
        with pytest.raises((DuplicateToolError, InvalidToolError)):
            toolset.add([named("new"), bad])
        assert list(toolset) == ["kept"]
        assert [spec.tool_name for spec in toolset.specs] == ["kept"]
        toolset.add([named("new")])
        assert list(toolset) == ["kept", "new"]


class TestMapping:
    def test_it_reads_like_a_dict_in_the_order_of_adding(self) -> None:
        tools = [named("b"), named("a"), named("c")]
        toolset = Toolset(tools)
        assert dict(toolset) == dict(zip("bac", tools, strict=True))
        assert [spec.binding for spec in toolset.specs] == list(toolset)
        assert "a" in toolset
        assert toolset.get("z") is None

    def test_it_may_be_empty_and_takes_a_generator(self) -> None:
        assert len(Toolset()) == 0
        assert list(Toolset(named(letter) for letter in "ab")) == ["a", "b"]

    def test_the_list_of_specs_is_the_callers_own(self) -> None:
        toolset = Toolset([named("a")])
        toolset.specs.clear()
        assert len(toolset.specs) == 1
