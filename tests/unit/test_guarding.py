"""The pure parts of the tool guard."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool, Tool, ToolException
from pydantic import BaseModel, SecretStr

from agent.guarding import repeats, results
from agent.guarding.answers import invalid_arguments, outcome_of, repeated
from agent.guarding.arguments import ArgumentChecker, Checkers, UnusableSchemaError
from agent.guarding.breaker import CircuitBreaker
from agent.guarding.faults import Fault, diagnose
from agent.guarding.replies import readable
from agent.guarding.schemas import ObjectSchema
from agent.guarding.secrets import environment_secrets, mask, masked_error, secrets_of, short_paths
from tests.support.scripted_model import asks, call


class TestSecrets:
    @pytest.mark.parametrize(
        "text",
        [
            "Unexpected token: } at 5",
            "max_tokens must be below 4096",
            "the author: Jane",
            "basic authentication is not supported",
            "https://example.com/a/b?city=Oslo",
            "5 rows, 3/4 of them in and/or out",
            "keyboard: none",
        ],
    )
    def test_ordinary_text_stays(self, text: str) -> None:
        assert mask(text) == text

    @pytest.mark.parametrize("seed", ["a", "@", "://", "password=", "eyJ", "-----BEGIN ", "/a"])
    def test_the_time_grows_with_the_length_alone(self, seed: str) -> None:
        """ERR-3: no text makes the patterns run away; a tenth of it takes a tenth of the time."""
        mask(seed * 10), short_paths(seed * 10)
        began = time.perf_counter()
        short_paths(mask(seed * 100_000))
        assert time.perf_counter() - began < 10

    def test_known_values_go_in_other_spellings_too(self) -> None:
        secret = "p@ss word/1"
        text = f"{secret} p%40ss%20word%2F1"
        assert mask(text, {secret}) == "*** ***"

    def test_a_value_inside_another_goes_with_it(self) -> None:
        assert mask("abcdef-123456", {"abcdef", "abcdef-123456"}) == "***"

    def test_environment_variables_by_name(self) -> None:
        found = environment_secrets(
            {
                "SHOP_API_KEY": "key-value",
                "PGPASSWORD": "pg-value",
                "DATABASE_URL": "postgres://x",
                "GITHUB_TOKEN": "gh-value",
                "TOKENIZERS_PARALLELISM": "false-value",
                "HOME": "/home/someone",
                "SHORT_KEY": "ab",
            }
        )
        assert found == {"key-value", "pg-value", "postgres://x", "gh-value"}

    def test_what_secret_types_hold_in_a_tool(self) -> None:
        class Wrapper(BaseModel):
            key: SecretStr = SecretStr("inner-value")

        class Keyed(StructuredTool):
            api: Wrapper = Wrapper()
            own: SecretStr = SecretStr("own-value")

        keyed = Keyed.from_function(lambda: 1, name="x", description="d")
        assert secrets_of(keyed) == {"inner-value", "own-value"}

    def test_paths_keep_the_name_of_the_file(self) -> None:
        text = "no /srv/app/data.csv, C:\\Users\\me\\x.txt, but /tmp/given.csv"
        shown = short_paths(text, known='{"path": "/tmp/given.csv"}')
        assert shown == "no …/data.csv, …/x.txt, but /tmp/given.csv"

    def test_a_masked_error_keeps_class_trace_and_cause(self) -> None:
        try:
            try:
                raise KeyError("token=first")
            except KeyError as error:
                raise OSError("token=second") from error
        except OSError as error:
            masked = masked_error(error)
        assert type(masked).__name__ == "OSError"
        assert masked.__traceback__ is not None
        assert str(masked) == "token=***"
        assert "first" not in str(masked.__cause__)


class TestBreaker:
    def breaker(self, **options: Any) -> tuple[CircuitBreaker, list[float]]:
        now = [0.0]
        return CircuitBreaker(max_failures=2, reset_s=10, clock=lambda: now[0], **options), now

    def test_it_opens_after_failures_in_a_row(self) -> None:
        breaker, _ = self.breaker()
        assert not breaker.failed()
        breaker.succeeded()
        assert not breaker.failed()
        assert breaker.admits()
        assert breaker.failed()
        assert not breaker.admits()

    def test_half_open_lets_one_through(self) -> None:
        breaker, now = self.breaker()
        breaker.failed(), breaker.failed()
        now[0] = 10
        assert [breaker.admits(), breaker.admits()] == [True, False]
        assert not breaker.failed()  # it was not closed
        assert not breaker.admits()
        now[0] = 20
        assert breaker.admits()
        breaker.succeeded()
        assert breaker.admits()
        assert breaker.admits()

    def test_a_call_that_never_reports_back_does_not_block_it(self) -> None:
        breaker, now = self.breaker()
        breaker.failed(), breaker.failed()
        now[0] = 10
        assert breaker.admits()
        now[0] = 20
        assert breaker.admits()

    def test_half_open_lets_one_of_many_threads_through(self) -> None:
        breaker, now = self.breaker()
        breaker.failed(), breaker.failed()
        now[0] = 10
        admitted: list[bool] = []
        start = threading.Barrier(8)

        def ask() -> None:
            start.wait()
            admitted.append(breaker.admits())

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(admitted) == 1


class TestFaults:
    @pytest.mark.parametrize(
        ("error", "fault", "may_have_worked"),
        [
            (ValueError("no such city"), Fault.TOOL, False),
            (KeyError("city"), Fault.TOOL, False),
            (FileNotFoundError("x"), Fault.TOOL, False),
            (ToolException("service says connection refused"), Fault.TOOL, False),
            (TimeoutError(), Fault.PASSING, True),
            (BrokenPipeError(), Fault.PASSING, True),
            (ConnectionRefusedError(), Fault.SET_UP, False),
            (OSError("[Errno 111] Connection refused"), Fault.SET_UP, False),
            (ModuleNotFoundError("x"), Fault.SET_UP, False),
            (ValueError("Did not find tavily_api_key"), Fault.SET_UP, False),
            (ValueError("city name is missing"), Fault.TOOL, False),
        ],
    )
    def test_kinds(self, error: Exception, fault: Fault, may_have_worked: bool) -> None:
        found = diagnose(error)
        assert (found.fault, found.may_have_worked) == (fault, may_have_worked)

    def test_a_named_cause_counts(self) -> None:
        error = RuntimeError("the search failed")
        error.__cause__ = ConnectionRefusedError()
        assert diagnose(error).fault is Fault.SET_UP

    def test_an_error_met_on_the_way_does_not(self) -> None:
        error = ValueError("no such city")
        error.__context__ = ConnectionRefusedError()
        assert diagnose(error).fault is Fault.TOOL

    def test_a_missing_environment_variable_is_not_a_missing_key_of_data(self) -> None:
        with pytest.raises(KeyError) as from_environment:
            _ = os.environ["NO_SUCH_VARIABLE_ANYWHERE"]
        assert diagnose(from_environment.value).fault is Fault.SET_UP
        with pytest.raises(KeyError) as from_data:
            _ = {}["city"]
        assert diagnose(from_data.value).fault is Fault.TOOL

    def test_a_chain_that_bites_its_tail_ends(self) -> None:
        error = RuntimeError("a")
        error.__cause__ = RuntimeError("b")
        error.__cause__.__cause__ = error
        assert diagnose(error).fault is Fault.TOOL


def json_tool(schema: dict[str, Any]) -> StructuredTool:
    return StructuredTool.from_function(
        lambda **_: "ok", name="act", description="Act.", args_schema=schema
    )


NODE = {
    "type": "object",
    "properties": {"tree": {"$ref": "#/$defs/Node"}},
    "$defs": {"Node": {"type": "object", "properties": {"a": {"$ref": "#/$defs/Node"}}}},
}


class TestArguments:
    def test_a_remote_reference_is_an_error_and_no_request(self) -> None:
        schema = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x.json"}}}
        with pytest.raises(UnusableSchemaError):
            ArgumentChecker(json_tool(schema)).check({"a": 1})

    @pytest.mark.parametrize("target", ["#/$defs/Absent", "#/properties/a/b/0/c"])
    def test_a_reference_that_leads_nowhere_is_an_error(self, target: str) -> None:
        schema = {"type": "object", "properties": {"a": {"$ref": target}}}
        with pytest.raises(UnusableSchemaError):
            ArgumentChecker(json_tool(schema)).check({"a": 1})

    def test_references_in_a_circle_end(self) -> None:
        schema = {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/A"}},
            "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}},
        }
        checker = ArgumentChecker(json_tool(schema))
        try:
            checked = checker.check({"a": 1})
        except UnusableSchemaError:
            return
        assert checked.problems

    def test_what_is_nested_too_deeply_is_refused(self) -> None:
        deep: Any = {}
        for _ in range(5_000):
            deep = {"a": deep}
        checked = ArgumentChecker(json_tool(NODE)).check({"tree": deep})
        assert checked.problems == ("the arguments are nested too deeply",)

    def test_what_a_model_gave_is_not_changed(self) -> None:
        schema = {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "o": NODE["$defs"]["Node"]},
            "$defs": NODE["$defs"],
        }
        given = {"a": None, "o": {"a": None}}
        checked = ArgumentChecker(json_tool(schema)).check(given)
        assert checked.values == {"o": {}}
        assert given == {"a": None, "o": {"a": None}}

    def test_an_argument_called_title_keeps_its_schema(self) -> None:
        schema = ObjectSchema(
            {"properties": {"o": {"type": "object", "properties": {"title": {"type": "string"}}}}}
        )
        assert schema.properties["o"]["properties"] == {"title": {"type": "string"}}

    @pytest.mark.parametrize("nullable", [{"nullable": True}, {"type": ["integer", "null"]}, {}])
    def test_where_null_may_stand_it_stays(self, nullable: dict[str, Any]) -> None:
        schema = ObjectSchema(
            {"properties": {"a": {"type": "integer"} | nullable if nullable else {}}}
        )
        assert schema.mend({"a": None}).arguments == {"a": None}

    def test_a_tool_of_free_text_is_not_checked(self) -> None:
        old = Tool(name="old", description="Old.", func=lambda text: text)
        assert ArgumentChecker(old).check({"__arg1": "x"}).problems == ()

    def test_checkers_are_made_once(self) -> None:
        checkers, tool = Checkers(), json_tool(NODE)
        assert checkers.of(tool) is checkers.of(tool)
        assert checkers.of(tool) is not checkers.of(json_tool(NODE))

    def test_a_message_is_bounded(self) -> None:
        properties = {
            f"argument_{n}": {"type": "string", "description": "x" * 200} for n in range(99)
        }
        checker = ArgumentChecker(json_tool({"type": "object", "properties": properties}))
        made = call("act", **{f"wrong_{n}" * 20: n for n in range(99)})
        checked = checker.check(made["args"])
        answer = invalid_arguments(made, checked.problems, schema=checked.concerned)
        assert len(answer.content) <= 1_000

    json_values = st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["a", "b", "o", "x"]), inner, max_size=3)
        ),
        max_leaves=8,
    )
    schemas = st.recursive(
        st.sampled_from(
            [
                *({}, True, {"type": "string"}, {"type": "integer"}, {"type": ["object", "null"]}),
                *({"$ref": "#/$defs/D"}, {"enum": ["a", None]}, {"type": "array"}),
            ]
        ),
        lambda inner: (
            st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=3)})
            | st.fixed_dictionaries({"type": st.just("array"), "items": inner})
            | st.fixed_dictionaries(
                {
                    "type": st.just("object"),
                    "properties": st.dictionaries(st.sampled_from("abo"), inner, max_size=3),
                }
            )
        ),
        max_leaves=6,
    )

    @settings(max_examples=300, deadline=None)
    @given(
        properties=st.dictionaries(st.sampled_from("abo"), schemas, max_size=3),
        definition=schemas,
        arguments=st.dictionaries(st.sampled_from("abox"), json_values, max_size=4),
    )
    def test_mending_never_spoils_what_was_right(
        self, properties: dict[str, Any], definition: Any, arguments: dict[str, Any]
    ) -> None:
        """What JSON Schema accepts is still accepted, and is unchanged but for absent nulls."""
        from jsonschema import Draft202012Validator

        schema = {"type": "object", "properties": properties, "$defs": {"D": definition}}
        validator = Draft202012Validator(schema)
        try:
            was_right = validator.is_valid(arguments)
        except RecursionError:  # a definition that is itself
            return
        mended = ObjectSchema(schema).mend(arguments)
        json.dumps(mended.arguments)
        if was_right:
            assert mended.arguments == arguments
            assert validator.is_valid(mended.arguments)


def history(*steps: Any) -> list[Any]:
    """Build a thread of (call, result or error) pairs, one a step."""
    messages: list[Any] = [HumanMessage("go")]
    for number, (made, result) in enumerate(steps):
        call_id = f"c{number}"
        messages.append(asks({**made, "id": call_id}))
        if isinstance(result, ToolMessage):
            messages.append(result.model_copy(update={"tool_call_id": call_id}))
        else:
            messages.append(ToolMessage(result, tool_call_id=call_id))
    return messages


class TestRepeats:
    A, B = call("a", x=1), call("b", x=1)

    def test_a_changed_result_starts_anew(self) -> None:
        found = repeats.standing(history((self.A, "1"), (self.A, "1"), (self.A, "2")), self.A)
        assert (found.times, found.is_repeat(3)) == (1, False)

    def test_equal_results_count(self) -> None:
        found = repeats.standing(history(*[(self.A, "1")] * 3), self.A)
        assert (found.times, found.is_repeat(3), found.is_stuck(3)) == (3, True, False)

    def test_failures_count_sooner(self) -> None:
        failed = ToolMessage("no", tool_call_id="", status="error")
        found = repeats.standing(history((self.A, failed), (self.A, failed)), self.A)
        assert found.is_repeat(3)
        assert not repeats.standing(history((self.A, failed)), self.A).is_repeat(3)

    def test_notices_make_it_stuck(self) -> None:
        notice = repeated(self.A, times=3, failures=0)
        messages = history(*[(self.A, "1")] * 3, (self.A, notice), (self.A, notice))
        assert repeats.is_stuck(messages, {}, 3) == "a"
        assert repeats.is_stuck(messages, {"a": None}, 3) is None

    def test_calls_before_the_last_question_do_not_count(self) -> None:
        messages = [*history(*[(self.A, "1")] * 5), HumanMessage("again")]
        assert repeats.standing(messages, self.A).times == 0

    def test_other_arguments_are_another_call(self) -> None:
        assert repeats.standing(history(*[(self.A, "1")] * 3), call("a", x=2)).times == 0

    def test_calls_of_one_step_do_not_count_against_each_other(self) -> None:
        step = asks({**self.A, "id": "1"}, {**self.A, "id": "2"}, {**self.A, "id": "3"})
        assert repeats.standing([HumanMessage("go"), step], self.A).times == 0

    def test_a_repeated_success_of_another_call_is_no_progress(self) -> None:
        turns = [(self.A, "1"), (self.B, "1")] * 3
        assert repeats.standing(history(*turns), self.A).times == 3

    def test_messages_without_a_question(self) -> None:
        assert repeats.is_stuck([], {}, 3) is None
        assert repeats.standing([AIMessage("hm")], self.A).times == 0


class TestResults:
    def test_pages_join_to_the_whole(self) -> None:
        text = "".join(f"{number}," for number in range(20_000))
        cut = results.shown(text, tool_name="t", max_chars=1_000)
        assert isinstance(cut.content, str)
        assert cut.handle is not None
        kept = results.keep_results(None, {cut.handle: text})
        read = cut.content.partition("\n[… ")[0]
        while len(read) < len(text):
            page = results.page_of(kept, cut.handle, len(read), max_chars=1_000)
            assert not page.is_error
            assert len(page.text) <= 1_000
            read += page.text.partition("\n[… ")[0]
        assert read == text

    def test_equal_results_are_shown_equally(self) -> None:
        one, other = (results.shown("x" * 5_000, tool_name="t", max_chars=900) for _ in "ab")
        assert one == other

    def test_the_oldest_results_go(self) -> None:
        kept: dict[str, str] = {}
        for number in range(12):
            kept = results.keep_results(kept, {f"h{number}": "x"})
        assert list(kept) == [f"h{number}" for number in range(4, 12)]

    def test_the_size_of_what_is_kept_is_bounded(self) -> None:
        big = "x" * (results.MAX_KEPT_CHARS // 2 + 1)
        kept = results.keep_results({"a": big}, {"b": big})
        assert list(kept) == ["b"]
        kept = results.keep_results({}, {"c": "x" * (results.MAX_KEPT_CHARS + 9)})
        assert len(kept["c"]) == results.MAX_KEPT_CHARS

    def test_without_read_more_the_note_does_not_name_it(self) -> None:
        cut = results.shown("x" * 5_000, tool_name="t", max_chars=900, can_read_on=False)
        assert "read_more" not in str(cut.content)
        assert "cannot be read on" in str(cut.content)
        assert cut.full_text is None

    def test_media_are_kept_while_they_fit(self) -> None:
        image = {"type": "image", "base64": "A" * 100, "mime_type": "image/png"}
        text = {"type": "text", "text": "t" * 900}
        fits = results.shown([text, image], tool_name="t", max_chars=2_000, media="keep")
        assert fits.content == [text, image]
        tight = results.shown([text, image], tool_name="t", max_chars=120, media="keep")
        assert all(block["type"] == "text" for block in tight.content)  # type: ignore[index]

    @settings(max_examples=200, deadline=None)
    @given(
        st.text(max_size=3_000)
        | st.lists(
            st.text(max_size=900)
            | st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=900)})
            | st.fixed_dictionaries({"type": st.just("image"), "url": st.text(max_size=50)}),
            max_size=4,
        )
    )
    def test_any_content_is_bounded_legal_and_never_empty(self, content: Any) -> None:
        seen = results.shown(content, tool_name="t", max_chars=600).content
        blocks = [seen] if isinstance(seen, str) else [block["text"] for block in seen]  # type: ignore[index]
        assert blocks
        assert sum(map(len, blocks)) <= 600
        assert all(block.strip() and "\x00" not in block for block in blocks)
        "".join(blocks).encode("utf-8")


class TestReplies:
    def test_a_reply_in_order_is_left_alone(self) -> None:
        message = asks(call("act", "a", city="Oslo"))
        assert readable(message) == (message, [])
        assert readable(message, streamed={"a": '{"city": "Oslo"}'}.get)[0] is message

    def test_what_was_streamed_counts_more_than_what_was_made_of_it(self) -> None:
        message = asks(call("act", "a", city="Par"), call("act", "b"))
        mended, broken = readable(message, streamed={"a": '{"city": "Par', "b": ""}.get)
        assert [found.place for found in broken] == [0]
        assert [made["args"] for made in mended.tool_calls] == [{}, {}]

    def test_a_whole_call_of_a_reply_that_was_cut_off_is_kept(self) -> None:
        message = asks(call("act", "a", city="Oslo"))
        message.response_metadata["finish_reason"] = "length"
        assert readable(message, streamed={"a": '{"city": "Oslo"}'}.get) == (message, [])
        assert len(readable(message)[1]) == 1

    def test_blocks_of_every_kind_are_emptied(self) -> None:
        message = AIMessage(
            [
                {
                    "type": "function_call",
                    "call_id": "a",
                    "id": "fc",
                    "name": "x",
                    "arguments": "{",
                },
                {"type": "tool_use", "id": "b", "name": "x", "input": {}, "partial_json": "{"},
                {"type": "invalid_tool_call", "id": "c", "name": "x", "args": "{", "error": "no"},
                {"type": "text", "text": "hm"},
            ],
            invalid_tool_calls=[
                {"name": "x", "args": "{", "id": i, "error": "no", "type": "invalid_tool_call"}
                for i in "abc"
            ],
        )
        before = message.model_copy(deep=True)
        mended, broken = readable(message)
        assert len(broken) == 3
        first, second, third, text = mended.content
        assert first["arguments"] == "{}"
        assert second == {"type": "tool_use", "id": "b", "name": "x", "input": {}}
        assert third == {"type": "tool_call", "id": "c", "name": "x", "args": {}}
        assert text == {"type": "text", "text": "hm"}
        assert message == before


def test_outcomes_are_marked() -> None:
    assert outcome_of(repeated(call("a"), times=3, failures=0)) == "repeated"
    assert outcome_of(ToolMessage("x", tool_call_id="a")) is None
