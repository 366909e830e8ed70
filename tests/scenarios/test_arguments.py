"""Wrong arguments are told before the tool runs, and small slips are mended (ARG-1 to ARG-6)."""

from __future__ import annotations

import logging
from typing import Annotated, Any, Literal

import pytest
from langchain.tools import InjectedState, ToolRuntime
from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolArg, InjectedToolCallId, StructuredTool, tool
from pydantic import BaseModel, Field, field_validator, model_validator

from tests.support.scripted_model import ScriptedModel, asks, call, says


class Recorder:
    """A tool of any schema that notes what reached it."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []

    def tool(self, schema: Any, name: str = "act") -> StructuredTool:
        def run(**arguments: Any) -> str:
            self.got.append(arguments)
            return "done"

        return StructuredTool.from_function(
            run, name=name, description="Act on a thing.", args_schema=schema
        )


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


async def answers_to(agent_of, driver, a_tool, *argument_sets: dict[str, Any]) -> list[ToolMessage]:
    """Return the answers to one parallel call a set of arguments."""
    calls = [
        call(a_tool.name, f"id{number}", **arguments)
        for number, arguments in enumerate(argument_sets)
    ]
    model = ScriptedModel(script=[asks(*calls), says("ok")])
    output = await driver.run(agent_of(model, [a_tool]), "Act on a thing")
    answers = [message for message in output["messages"] if isinstance(message, ToolMessage)]
    assert [answer.tool_call_id for answer in answers] == [made["id"] for made in calls]
    assert output["messages"][-1].text == "ok"
    return answers


def object_schema(required=(), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


MCP_SCHEMA = {
    **object_schema(
        ["level"],
        level={"type": "integer", "minimum": 1, "maximum": 5},
        unit={"type": "string", "enum": ["celsius", "kelvin"]},
    ),
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"level": "three"}, ["level", "must be integer", '"three"']),
        ({"level": "3"}, ["level", "must be integer"]),
        ({"level": True}, ["level", "must be integer"]),
        ({"level": 9}, ["level", "at most 5", "9"]),
        ({"level": 0}, ["level", "at least 1"]),
        ({"level": 3, "unit": "rankine"}, ["unit", '"celsius"', '"kelvin"', '"rankine"']),
        ({}, ["level: Field required", '"maximum": 5']),
        ({"level": 3, "colour": "red"}, ["unknown argument 'colour'", "level, unit"]),
    ],
)
async def test_arg_1_a_json_schema_is_held(arguments, told, agent_of, driver, recorder):
    """ARG-1: type, range, enum, required and extra fields, with field, reason and what is right."""
    [answer] = await answers_to(agent_of, driver, recorder.tool(MCP_SCHEMA), arguments)
    assert recorder.got == []
    assert answer.status == "error"
    assert len(answer.content) <= 1_000
    for part in told:
        assert part in answer.content


async def test_arg_1_right_calls_pass(agent_of, driver, recorder):
    """ARG-1: the right call arrives as it was sent."""
    right = {"level": 3, "unit": "kelvin"}
    [answer] = await answers_to(agent_of, driver, recorder.tool(MCP_SCHEMA), right)
    assert (answer.status, recorder.got) == ("success", [right])


async def test_arg_1_a_schema_that_cannot_be_used_is_a_fault_of_the_program(
    agent_of, driver, recorder, caplog
):
    """ARG-1, ERR-7: nothing runs unchecked, and the operators are told."""
    unusable = object_schema(thing={"type": "integer", "minimum": "three"})
    with caplog.at_level(logging.CRITICAL, logger="agent"):
        [answer] = await answers_to(agent_of, driver, recorder.tool(unusable), {"thing": 1})
    assert recorder.got == []
    assert "temporarily unavailable" in answer.content
    assert [record.msg for record in caplog.records] == ["tool_schema_unusable"]


class Filter(BaseModel):
    colour: str = "red"


@pytest.mark.parametrize("kind", ["pydantic", "json schema"])
@pytest.mark.parametrize(
    ("arguments", "unknown", "near"),
    [
        ({"path": "x", "dryrun": True}, "dryrun", "dry_run"),
        ({"path": "x", "Dry_Run": True}, "Dry_Run", "dry_run"),
        ({"path": "x", "only": {"color": "blue"}}, "only.color", "colour"),
        ({"path": "x", "zzz": 1}, "zzz", None),
    ],
)
async def test_arg_2_an_unknown_argument_is_never_dropped(
    arguments, unknown, near, kind, agent_of, driver, recorder
):
    """ARG-2: refused with the unknown name and the nearest known one, in nested objects too."""

    class DeleteFiles(BaseModel):
        path: str
        dry_run: bool = False
        only: Filter = Filter()

    schema = DeleteFiles if kind == "pydantic" else DeleteFiles.model_json_schema()
    [answer] = await answers_to(agent_of, driver, recorder.tool(schema), arguments)
    assert recorder.got == []
    assert f"unknown argument {unknown!r}" in answer.content
    if near:
        assert f"did you mean {near!r}?" in answer.content
    else:
        assert "path, dry_run, only" in answer.content


async def test_arg_2_an_open_schema_takes_more(agent_of, driver, recorder):
    """ARG-2: what a schema allows on purpose is passed on."""
    schema = {**object_schema(path={"type": "string"}), "additionalProperties": True}
    given = {"path": "x", "anything": 1}
    [answer] = await answers_to(agent_of, driver, recorder.tool(schema), given)
    assert (answer.status, recorder.got) == ("success", [given])


class Range(BaseModel):
    low: int
    high: int

    @model_validator(mode="after")
    def check(self) -> Range:
        if self.low > self.high:
            raise ValueError("low must not exceed high")
        return self


class Ranges(BaseModel):
    ranges: list[Range]


class Bare(BaseModel):
    value: int

    @field_validator("value")
    @classmethod
    def check(cls, value: int) -> int:
        assert value > 0
        return value


class OfTenant(Range):
    tenant_id: Annotated[str, InjectedState("tenant_id")] = "own"


@pytest.mark.parametrize(
    ("schema", "arguments", "reason"),
    [
        (Range, {"low": 5, "high": 1}, "low must not exceed high"),
        (Ranges, {"ranges": [{"low": 5, "high": 1}]}, "ranges.0: low must not exceed high"),
        (Bare, {"value": -1}, "value: "),
    ],
)
async def test_arg_3_the_rules_own_text_reaches_the_model(
    schema, arguments, reason, agent_of, driver, recorder
):
    """ARG-3: a rule over several fields, one on a nested item, and one without any text."""
    [answer] = await answers_to(agent_of, driver, recorder.tool(schema), arguments)
    assert recorder.got == []
    listed = answer.content.partition("wrong:\n")[2].partition("\nCorrect")[0]
    assert reason in listed
    assert len(listed.removeprefix("- ").replace(reason, "") + reason) > len("- value: ")


async def test_arg_3_a_rule_that_needs_hidden_values_tells_its_reason(agent_of, driver):
    """ARG-3, ARG-4: the rule can only run in the tool; its text is not lost on the way back."""
    runs: list[int] = []

    class Owned(BaseModel):
        low: int
        high: int
        call_id: Annotated[str, InjectedToolCallId]

        @model_validator(mode="after")
        def check(self) -> Owned:
            if self.low > self.high:
                raise ValueError("low must not exceed high")
            return self

    owned = StructuredTool.from_function(
        lambda low, high, call_id: runs.append(low) or f"done under {call_id}",
        name="act",
        description="Act on a thing.",
        args_schema=Owned,
    )
    wrong, right = await answers_to(
        agent_of, driver, owned, {"low": 5, "high": 1}, {"low": 1, "high": 5}
    )
    assert "low must not exceed high" in wrong.content
    assert "call_id" not in wrong.content
    assert (right.content, runs) == ("done under id1", [1])


async def test_arg_4_hidden_arguments_cannot_be_supplied_and_do_not_leak(agent_of, driver, caplog):
    """ARG-4: the program's value wins, the attempt is logged, and nothing shows names or values."""
    got: list[Any] = []

    @tool
    def act(
        amount: int,
        tenant_id: Annotated[list[Any], InjectedState("messages")],
        secret_mark: Annotated[str, InjectedToolArg] = "own-mark",
        runtime: ToolRuntime = None,  # type: ignore[assignment]
    ) -> str:
        """Act on a thing."""
        got.append((amount, type(tenant_id), secret_mark, runtime.tool_call_id))
        return "done"

    with caplog.at_level(logging.DEBUG, logger="agent"):
        forged, wrong = await answers_to(
            agent_of,
            driver,
            act,
            {"amount": 1, "tenant_id": "OTHER", "secret_mark": "OTHER", "runtime": "OTHER"},
            {"amount": "many", "tenant_id": "OTHER"},
        )
    assert got == [(1, list, "own-mark", "id0")]
    assert forged.status == "success"
    assert "amount" in wrong.content
    attempts = [record for record in caplog.records if record.msg == "hidden_argument_supplied"]
    assert sorted(record.argument_count for record in attempts) == [1, 3]
    ours = [record for record in caplog.records if record.name.startswith("agent")]
    seen = wrong.content + forged.content + "".join(str(record.__dict__) for record in ours)
    for hidden in ("tenant_id", "secret_mark", "OTHER", "own-mark"):
        assert hidden not in seen


async def test_arg_4_hidden_parameters_of_a_json_schema_tool(agent_of, driver):
    """ARG-4: a schema that names the hidden parameter by mistake does not open it."""
    got: list[Any] = []

    def run(amount: int, runtime: ToolRuntime) -> str:
        got.append((amount, runtime.tool_call_id))
        return "done"

    act = StructuredTool.from_function(
        run,
        name="act",
        description="Act on a thing.",
        args_schema=object_schema(
            ["amount", "runtime"], amount={"type": "integer"}, runtime={"type": "string"}
        ),
    )
    [answer] = await answers_to(agent_of, driver, act, {"amount": 1, "runtime": "forged"})
    assert (answer.status, got) == ("success", [(1, "id0")])


NULLS = object_schema(
    ["name", "note"],
    name={"type": "string"},
    note={"type": ["string", "null"]},
    limit={"type": "integer", "default": 10},
    label={"anyOf": [{"type": "string"}, {"type": "null"}]},
    where=object_schema(city={"type": "string"}),
)


async def test_arg_5_null_is_absent_where_it_is_not_allowed(agent_of, driver, recorder):
    """ARG-5: an optional integer is left out; required and optional nullable fields keep theirs."""
    given = {"name": "n", "note": None, "limit": None, "label": None, "where": {"city": None}}
    [answer] = await answers_to(agent_of, driver, recorder.tool(NULLS), given)
    assert answer.status == "success"
    assert recorder.got == [{"name": "n", "note": None, "label": None, "where": {}}]


async def test_arg_5_null_for_a_required_field_is_told(agent_of, driver, recorder):
    """ARG-5: nothing is guessed where a value is needed."""
    given = {"name": None, "note": "x"}
    [answer] = await answers_to(agent_of, driver, recorder.tool(NULLS), given)
    assert recorder.got == []
    assert "name: must be string, not null" in answer.content


async def test_arg_5_defaults_stay_the_tools(agent_of, driver):
    """ARG-5: pydantic tools as well; the default is the tool's own."""
    got: list[Any] = []

    @tool
    def act(name: str, limit: int = 10, note: str | None = "own") -> str:
        """Act on a thing."""
        got.append((name, limit, note))
        return "done"

    await answers_to(agent_of, driver, act, {"name": "n", "limit": None, "note": None})
    assert got == [("n", 10, None)]


class Place(BaseModel):
    city: str


class Search(BaseModel):
    place: Place | None = None
    tags: list[str] | None = None
    mode: Literal["near", "far"] = "near"


CONVERTED = {
    **object_schema(
        place={"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]},
        tags={"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
        both={"allOf": [{"$ref": "#/$defs/Place"}, object_schema(zip={"type": "string"})]},
        text={"type": "string"},
        either={"anyOf": [{"type": "object"}, {"type": "string"}]},
    ),
    "$defs": {"Place": object_schema(["city"], city={"type": "string"})},
}


@pytest.mark.parametrize(
    "arguments",
    [
        {"place": {"city": "Oslo"}},
        {"place": None, "tags": None},
        {"tags": ["a", "b"]},
        {"both": {"city": "Oslo", "zip": "1"}},
        {"text": '{"city": "Oslo"}'},
        {"either": '{"city": "Oslo"}'},
    ],
)
async def test_arg_6_optional_objects_and_lists_arrive_unchanged(
    arguments, agent_of, driver, recorder
):
    """ARG-6: anyOf with null, a reference, allOf; and a text stays a text where it may."""
    [answer] = await answers_to(agent_of, driver, recorder.tool(CONVERTED), arguments)
    assert (answer.status, recorder.got) == ("success", [arguments])


@pytest.mark.parametrize("schema", [Search, CONVERTED], ids=["pydantic", "json schema"])
@pytest.mark.parametrize(
    ("argument", "text", "value"),
    [
        ("place", '{"city": "Oslo"}', "Oslo"),
        ("tags", ' ["a", "b"]', ["a", "b"]),
    ],
)
async def test_arg_6_json_in_a_text_is_the_object_it_is(
    schema, argument, text, value, agent_of, driver, recorder
):
    """ARG-6: where no text may stand, a text of JSON has one meaning."""
    [answer] = await answers_to(agent_of, driver, recorder.tool(schema), {argument: text})
    assert answer.status == "success"
    got = recorder.got[0][argument]
    city = got["city"] if isinstance(got, dict) else getattr(got, "city", got)
    assert city == value


async def test_arg_6_a_text_that_is_no_such_json_is_told(agent_of, driver, recorder):
    """ARG-6: half an object, or the wrong kind, is refused and said."""
    half, wrong = await answers_to(
        agent_of, driver, recorder.tool(CONVERTED), {"place": '{"city": '}, {"place": "[1]"}
    )
    assert recorder.got == []
    assert "place: must be object or null" in half.content
    assert "place: must be object or null" in wrong.content


async def test_an_alias_is_taken_under_either_name(agent_of, driver, recorder):
    class Aliased(BaseModel):
        first_name: str = Field(alias="firstName")

    by_field, by_alias = await answers_to(
        agent_of, driver, recorder.tool(Aliased), {"first_name": "A"}, {"firstName": "B"}
    )
    assert (by_field.status, by_alias.status) == ("success", "success")
    assert sorted(arguments["first_name"] for arguments in recorder.got) == ["A", "B"]
