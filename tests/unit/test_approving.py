"""What an answer settles, and what binds it (APR-1, APR-8)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, ToolMessage

from agent.approval import approve, edit, reject
from agent.approving.answers import closed_history, unapproved
from agent.approving.decisions import read_answer
from agent.approving.records import fingerprint, is_showable, new_record
from agent.middleware._usage import WatchedCall
from tests.support.scripted_model import call

IDS = ("a", "b", "c")
REPLY = AIMessage("", id="reply", tool_calls=[call("act", made, n=1) for made in IDS])
ASKED = [
    new_record(REPLY, made, arguments=made["args"], verdict="asked") for made in REPLY.tool_calls
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
call_ids = st.sampled_from([*IDS, "d", ""])
valid = st.one_of(
    st.builds(approve, call_ids),
    st.builds(reject, call_ids, st.none() | st.text(max_size=5)),
    st.builds(edit, call_ids, st.just({"n": 2})),
)
doubtful = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["approve", "aprove", "APPROVE", "edit", "reject", "respond", ""]),
        "call_id": call_ids | json_values,
        "edited_action": json_values,
        "message": json_values,
        "args": json_values,
    },
)


def checked(record: Any, arguments: Any) -> dict[str, Any] | str:
    return dict(arguments) if arguments == {"n": 2} else "wrong"


@given(st.lists(valid | doubtful, max_size=6) | json_values, st.sets(st.sampled_from(IDS)))
def test_apr_1_only_one_clear_decision_with_its_id_settles_a_call(
    decisions: Any, settled: set[str]
) -> None:
    """APR-1, APR-8: for any answer; all else leaves the call as it was."""
    asked = [record for record in ASKED if record["call_id"] not in settled]
    read = read_answer({"decisions": decisions}, asked, edit=checked, settled=settled)

    assert not read.settled.keys() & (settled | read.problems.keys())
    for call_id, record in read.settled.items():
        clear = [d for d in decisions if d.get("call_id") == call_id]
        if not any("call_id" in decision for decision in decisions):  # LangChain's own form
            assert len(decisions) == len(asked)
            clear = [decisions[[one["call_id"] for one in asked].index(call_id)]]
        [decision] = clear
        kind = {"approve": "approved", "edit": "approved", "reject": "rejected"}[decision["type"]]
        assert record["verdict"] == kind
        assert record["arguments"] == ({"n": 2} if decision["type"] == "edit" else {"n": 1})
    if asked and not read.settled:
        assert read.problems or read.of_all


@given(json_values, json_values)
def test_apr_8_a_fingerprint_tells_arguments_apart(one: Any, other: Any) -> None:
    """APR-8: 1 and true, or 1 and "1", are not the same arguments; the order of keys is nothing."""
    assert (fingerprint({"x": one}) == fingerprint({"x": other})) == (
        repr_json(one) == repr_json(other)
    )
    assert fingerprint({"a": one, "b": other}) == fingerprint({"b": other, "a": one})


def repr_json(value: Any) -> Any:
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return ("dict", frozenset((key, repr_json(inner)) for key, inner in items))
    if isinstance(value, list):
        return ("list", tuple(repr_json(inner) for inner in cast("list[Any]", value)))
    return (type(value).__name__, value)


def test_apr_8_a_record_lets_only_its_own_call_pass() -> None:
    """APR-8: another reply, id, tool or arguments, or a verdict that is no approval."""
    [made, *_] = REPLY.tool_calls
    approved = {**ASKED[0], "verdict": "approved"}

    def answer(record: Any, run: Any = made, reply: AIMessage = REPLY) -> ToolMessage | None:
        return unapproved({"approvals": {"a": record}, "messages": [reply]}, run)

    assert answer(approved) is None
    for verdict in ("free", "asked", "rejected", "refused"):
        assert answer({**approved, "verdict": verdict}) is not None
    for change in ({"args": {"n": 2}}, {"args": {"n": True}}, {"name": "other"}, {"id": "b"}):
        assert answer(approved, run={**made, **change}) is not None
    assert answer(approved, reply=REPLY.model_copy(update={"id": "later"})) is not None
    assert unapproved({"messages": [REPLY]}, made) is not None


def test_apr_9_a_closed_history_keeps_every_other_message_in_its_place() -> None:
    """APR-9: also where the thread went on for a while, and one call had its answer."""
    answered = ToolMessage("done", tool_call_id="b")
    before, after = AIMessage("before", id="x"), AIMessage("after", id="y")
    closed = closed_history([before, REPLY, answered, after], "reply", {"a"})
    assert closed is not None
    assert [closed[0], closed[1], closed[2], closed[-1]] == [before, REPLY, answered, after]
    told = {cast("ToolMessage", m).tool_call_id: m.text for m in closed[3:-1]}
    assert "not approved" in told["a"]
    assert "was not run" in told["c"]
    assert closed_history([before, after], "reply", {"a"}) is None


def test_apr_10_texts_that_cannot_be_shown_are_found_everywhere() -> None:
    """APR-10: in keys, lists and depths."""
    assert is_showable({"a": ["b", {"c": 1.5, "d": None}], "e": "\U0001f600"})
    for bad in ({"a\x00": 1}, {"a": ["\ud800"]}, {"a": {"b": {"c": "x\x00"}}}):
        assert not is_showable(bad)


def test_a_rejection_is_recorded_as_a_refusal() -> None:
    """The usage log must not count it as a failure of the tool."""
    record = {**ASKED[0], "verdict": "rejected", "message": "No."}
    state = {"approvals": {"a": record}, "messages": [REPLY]}
    message = unapproved(state, REPLY.tool_calls[0])
    assert message is not None
    watched = WatchedCall(cast("Any", SimpleNamespace(tool_call=REPLY.tool_calls[0])))
    watched.begin()
    watched.ended(message)
    assert watched.status == "refused"
