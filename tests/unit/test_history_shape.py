"""What of a long history is sent: pairs, the newest question, the budget, and a stable prefix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    convert_to_openai_messages,
)
from langchain_core.messages.utils import count_tokens_approximately as count

from agent import HistoryBudget
from agent.history_shape import shape
from agent.history_text import Summary, cut, cut_text, new_summary, summary_prompt
from registry.errors import HistoryBudgetError
from tests.support.openai_rules import check_chat
from tests.support.scripted_model import ScriptedModel, asks, call, says

NOTE = "(Not from the user:"


def numbered(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    return [message.model_copy(update={"id": f"m{n}"}) for n, message in enumerate(messages)]


def step(number: int, *lengths: int) -> list[AnyMessage]:
    ids = [f"c{number}-{place}" for place in range(len(lengths))]
    return [
        asks(*(call("look", call_id) for call_id in ids)),
        *(
            ToolMessage("r" * length, tool_call_id=call_id, name="look")
            for call_id, length in zip(ids, lengths, strict=True)
        ),
    ]


def check_pairs(messages: Sequence[AnyMessage]) -> None:
    """Pass what the strict rules of the OpenAI API take."""
    check_chat({"model": "m", "messages": convert_to_openai_messages(list(messages))})


@dataclass(frozen=True)
class Plan:
    """A history in numbers: lengths of texts. An answer of 0 is that of a run that failed."""

    greeting: bool
    system: int
    turns: list[tuple[int, list[list[int]], int]]

    def messages(self) -> list[AnyMessage]:
        made: list[AnyMessage] = [says("Hello, I am the assistant.")] if self.greeting else []
        if self.system:
            made.append(SystemMessage("s" * self.system))
        for place, (question, steps, answer) in enumerate(self.turns):
            made.append(HumanMessage("q" * question))
            for lengths in steps:
                made += step(len(made), *lengths)
            if answer and place < len(self.turns) - 1:
                made.append(says("a" * answer))
        return numbered(made)


lengths = st.one_of(st.integers(1, 200), st.integers(500, 5_000), st.just(60_000))
turns = st.tuples(
    st.one_of(st.integers(1, 300), st.just(9_000)),
    st.lists(st.lists(lengths, min_size=1, max_size=4), max_size=4),
    st.integers(0, 400),
)
plans = st.builds(
    Plan,
    greeting=st.booleans(),
    system=st.integers(0, 300),
    turns=st.lists(turns, min_size=1, max_size=6),
)
budgets = st.builds(
    HistoryBudget,
    max_tokens=st.integers(100, 12_000),
    keep_share=st.sampled_from([0.1, 0.6, 0.9]),
    keep_last_steps=st.integers(1, 3),
)


@settings(max_examples=600, deadline=None)
@given(plans, budgets)
def test_his_1_any_history_at_any_budget(plan, budget):
    """HIS-1, HIS-3, HIS-6: valid, complete in what must stay, within the budget, and repeatable."""
    messages = plan.messages()
    newest = [item for item in messages if isinstance(item, HumanMessage)][-1]
    system = [item for item in messages if isinstance(item, SystemMessage)]
    if count([*system, newest]) > budget.max_tokens or count(system) >= budget.max_tokens:
        with pytest.raises(HistoryBudgetError, match=f"{budget.max_tokens:,}"):
            shape(messages, budget)
        return
    shaped = shape(messages, budget)
    sent = shaped.messages()

    check_pairs(sent)
    assert newest in sent
    assert all(item in sent for item in system)
    assert len(shaped.kept) + len(shaped.dropped) == len(messages)
    places = [messages.index(next(m for m in messages if m.id == item.id)) for item in shaped.kept]
    assert places == sorted(places)
    if shaped.problem is None:
        assert count(sent) <= budget.max_tokens
        assert shape(sent, budget).messages() == sent
    else:
        assert f"{budget.max_tokens:,}" in shaped.problem
    assert shape(messages, budget) == shaped
    assert (count(messages) <= budget.max_tokens) == (not shaped.is_cut and not shaped.problem)
    dropped = [item for item in sent if item.text.startswith(NOTE)]
    assert len(dropped) == (1 if shaped.dropped else 0)
    cut_ones = [item for item in shaped.kept if "the middle is left out" in item.text]
    assert len(cut_ones) == shaped.trimmed_count


@settings(max_examples=300, deadline=None)
@given(plans, budgets)
def test_his_1_a_request_begins_as_the_one_before_until_a_cut(plan, budget):
    """At each model call: the request before and what came since, unless that is too much."""
    messages = plan.messages()
    before: list[AnyMessage] | None = None
    seen = 0
    for end in range(1, len(messages) + 1):
        if end < len(messages) and not isinstance(messages[end], AIMessage):
            continue
        try:
            sent = shape(messages[:end], budget).messages()
        except HistoryBudgetError:
            before = None
            continue
        if before is not None:
            grown = [*before, *messages[seen:end]]
            assert sent == grown or count(grown) > budget.max_tokens
        before, seen = sent, end


def test_his_1_three_parallel_calls_at_every_length():
    """HIS-1: calls and results stay or go together, at each budget from 1 token on."""
    history = numbered(
        [
            HumanMessage("first"),
            *step(1, 400, 400, 400),
            says("ok"),
            HumanMessage("second"),
            *step(2, 400, 400, 400),
        ]
    )
    question, system = history[6], SystemMessage("Be brief.")
    whole, least = count([system, *history]), count([system, question])
    for limit in range(1, whole + 2):
        budget = HistoryBudget(max_tokens=limit)
        if limit < least:
            with pytest.raises(HistoryBudgetError, match=f"{limit:,}"):
                shape(history, budget, system_message=system)
            continue
        shaped = shape(history, budget, system_message=system)
        check_pairs([system, *shaped.messages()])
        assert question in shaped.kept
        assert [item.id for item in shaped.kept[-4:]] == [item.id for item in history[-4:]]
        assert shaped.is_cut == (limit < whole)


def test_his_3_a_huge_result_costs_only_itself():
    """HIS-3: 2 MB of text in one result; the turns before and the question stay whole."""
    earlier = [HumanMessage("first"), *step(1, 50), says("ok")]
    messages = numbered([*earlier, HumanMessage("second"), *step(2, 2_000_000)])
    shaped = shape(messages, HistoryBudget(max_tokens=8_000))

    assert shaped.dropped == ()
    assert list(shaped.kept[:-1]) == messages[:-1]
    assert "2,000,000 characters; the middle is left out" in shaped.kept[-1].text
    assert 1_000 < count([shaped.kept[-1]]) < 8_000
    assert shaped.problem is None


def test_his_3_a_batch_of_large_results_shares_the_room():
    """HIS-3: five large results are cut to one length, a short one beside them is not."""
    messages = numbered([HumanMessage("q"), *step(1, 9, *[90_000] * 5)])
    shaped = shape(messages, HistoryBudget(max_tokens=8_000))

    texts = [item.text for item in shaped.kept if isinstance(item, ToolMessage)]
    assert texts[0] == "r" * 9
    assert len({len(text) for text in texts[1:]}) == 1
    assert len(texts[1]) > 1_000
    assert shaped.trimmed_count == 5


def test_his_3_a_long_message_of_an_older_turn_does_not_cost_the_turns_after_it():
    """HIS-3: it is cut where it stands, with a mark."""
    older = [HumanMessage("hello"), says("hi"), HumanMessage("d" * 60_000), says("read")]
    messages = numbered([*older, HumanMessage("and now?")])
    shaped = shape(messages, HistoryBudget(max_tokens=8_000))

    assert [item.id for item in shaped.kept] == [item.id for item in messages]
    assert shaped.trimmed_count == 1
    assert "60,000 characters; the middle is left out" in shaped.kept[2].text


def test_his_3_a_question_over_the_budget_is_refused():
    """HIS-3: by its size, the budget and what to do; one token less is taken."""
    budget = HistoryBudget(max_tokens=1_000)
    over, at = HumanMessage("q" * 4_000), HumanMessage("q" * 3_984)
    with pytest.raises(HistoryBudgetError, match=r"takes about 1,004 tokens.*1,000.*max_tokens"):
        shape([over], budget)
    assert count([at]) == 1_000
    assert shape([at], budget).kept == (at,)


def test_his_3_results_in_blocks_are_cut_and_their_images_told():
    """HIS-3: old results may be blocks; what is no text is told in words."""
    blocks: Any = [{"type": "text", "text": "t" * 9_000}, {"type": "image", "url": "https://x/y"}]
    old = ToolMessage(blocks, tool_call_id="a", name="look")
    messages = numbered(
        [HumanMessage("q"), asks(call("look", "a")), old, *step(1, 50), *step(2, 50)]
    )
    shaped = shape(messages, HistoryBudget(max_tokens=1_000))

    assert shaped.problem is None
    assert isinstance(shaped.kept[2].content, str)
    assert len(shaped.kept[2].content) < 1_200  # half of the room, when it was new
    assert "[image: https://x/y; not shown]" in shaped.kept[2].content


@pytest.mark.parametrize(
    ("messages", "system", "expected"),
    [
        ([], None, []),
        ([], SystemMessage("s"), []),
        ([SystemMessage("s")], None, [SystemMessage("s")]),
        ([HumanMessage("q")], SystemMessage("s"), [HumanMessage("q")]),
        ([says("a")], None, [says("a")]),
    ],
)
def test_his_6_the_edges(messages, system, expected):
    """HIS-6: nothing, a system message alone, one message."""
    assert shape(messages, HistoryBudget(), system_message=system).messages() == expected


def test_his_6_a_budget_smaller_than_the_system_message():
    """HIS-6: refused by name, whether it comes apart or among the messages."""
    budget, long = HistoryBudget(max_tokens=50), SystemMessage("s" * 800)
    message = r"budget is 50 tokens \(HistoryBudget.max_tokens\).*system message alone takes 205"
    with pytest.raises(HistoryBudgetError, match=message):
        shape([HumanMessage("q")], budget, system_message=long)
    with pytest.raises(HistoryBudgetError, match=message):
        shape([long, HumanMessage("q")], budget)


def test_his_6_a_step_that_cannot_be_cut_is_sent_and_reported():
    """HIS-6: arguments are never touched, so the request may be too large; it says so."""
    asked = asks(call("write", "a", text="w" * 9_000))
    messages = numbered([HumanMessage("q"), asked, ToolMessage("ok", tool_call_id="a")])
    shaped = shape(messages, HistoryBudget(max_tokens=500))

    assert list(shaped.kept) == messages
    assert shaped.problem is not None
    assert "the budget is 500" in shaped.problem


def test_his_1_system_messages_among_the_others_stay():
    """HIS-1: also those of a turn that is dropped; the note stands behind the first of them."""
    first, later = SystemMessage("Be brief."), SystemMessage("Be polite.")
    old = [first, HumanMessage("one"), says("1" * 4_000), later, HumanMessage("two")]
    shaped = shape(
        numbered([*old, says("2" * 4_000), HumanMessage("3")]), HistoryBudget(max_tokens=600)
    )

    sent = [message.text for message in shaped.messages()]
    assert sent[:2] == ["Be brief.", "Be polite."]
    assert sent[2].startswith(f"{NOTE} 4 earlier messages")
    assert sent[3:] == ["3"]


@pytest.mark.parametrize("budget", [600, 2_000])
def test_his_6_without_a_human_message(budget):
    """HIS-6: a history that no person began is cut by steps."""
    messages = numbered([item for n in range(20) for item in step(n, 400)])
    shaped = shape(messages, HistoryBudget(max_tokens=budget))

    check_pairs(shaped.messages())
    assert shaped.messages()[0].text.startswith(NOTE)
    assert shaped.kept[-2:] == tuple(messages[-2:])
    assert count(shaped.messages()) <= budget


def test_steps_of_a_long_turn_go_only_when_all_else_is_short():
    """The question and the newest steps stay; what goes is told."""
    steps = [item for n in range(60) for item in step(n, 300)]
    messages = numbered([HumanMessage("old"), says("answer"), HumanMessage("q"), *steps])
    shaped = shape(messages, HistoryBudget(max_tokens=3_000))

    assert shaped.messages()[0].text.startswith(f"{NOTE} {len(shaped.dropped)} earlier messages")
    assert shaped.kept[0].text == "q"
    assert {item.text for item in shaped.dropped if isinstance(item, HumanMessage)} == {"old"}
    assert shaped.kept[-1] == messages[-1]
    assert 1_500 < count(shaped.messages()) <= 3_000


def test_older_observations_are_shortened_before_anything_is_dropped():
    """The newest steps of the turn stay whole, and nothing is dropped while this is enough."""
    turn = [item for n in range(10) for item in step(n, 4_000)]
    messages = numbered([HumanMessage("first"), says("a"), HumanMessage("second"), *turn])
    shaped = shape(messages, HistoryBudget(max_tokens=9_000))

    assert shaped.dropped == ()
    assert list(shaped.kept[-4:]) == messages[-4:]
    assert 1 <= shaped.trimmed_count <= 8
    assert all(len(item.text) in (1, 5, 6, 0, 800, 4_000) for item in shaped.kept)


@pytest.mark.parametrize(
    "option",
    [
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"max_tokens": 1.5},
        {"max_tokens": True},
        {"max_tokens": None},
        {"keep_share": 0},
        {"keep_share": 1},
        {"keep_share": math.nan},
        {"keep_last_steps": 0},
        {"summary_model": "gpt"},
        {"summary_max_tokens": 0},
        {"summary_timeout_s": 0},
        {"token_counter": 4},
        {"max_tokens": 100, "summary_model": ScriptedModel(script=[]), "summary_max_tokens": 51},
    ],
)
def test_his_6_a_budget_out_of_range_is_refused(option):
    """HIS-6: a budget of zero and the like, by name."""
    with pytest.raises(HistoryBudgetError, match=next(reversed(option))):
        HistoryBudget(**option)


def test_a_counter_of_the_callers_own_is_used():
    """One that counts a token for each character cuts four times as early."""
    messages = numbered([HumanMessage("q"), *step(1, 4_000), *step(2, 10), *step(3, 10)])

    def characters(given: Any) -> int:
        return sum(len(message.text) for message in given)

    assert not shape(messages, HistoryBudget(max_tokens=3_000)).is_cut
    shaped = shape(messages, HistoryBudget(max_tokens=3_000, token_counter=characters))
    assert shaped.trimmed_count == 1


def test_a_summary_stands_only_for_exactly_what_it_covers():
    """A summary of other messages is never shown in place of these."""
    old = [HumanMessage("one"), says("1" * 4_000), HumanMessage("two"), says("2" * 4_000)]
    messages = numbered([*old, HumanMessage("three")])
    shaped = shape(messages, HistoryBudget(max_tokens=1_500))
    assert [item.id for item in shaped.dropped] == ["m0", "m1", "m2", "m3"][: len(shaped.dropped)]
    last, number = shaped.dropped[-1].id, len(shaped.dropped)

    fits = Summary(text="THE SUMMARY", last_message_id=last, message_count=number)
    assert "THE SUMMARY" in shaped.messages(fits)[0].text
    for other in (
        Summary(text="THE SUMMARY", last_message_id="m0", message_count=number),
        Summary(text="THE SUMMARY", last_message_id=last, message_count=number - 1),
    ):
        assert "THE SUMMARY" not in shaped.messages(other)[0].text


def test_a_summary_goes_on_from_the_former_one():
    """The prompt holds the former summary and what came since, not what it covers; bounded."""
    dropped = numbered([HumanMessage("one"), says("1"), HumanMessage("two {x}"), *step(1, 90_000)])
    budget = HistoryBudget(max_tokens=3_000)
    former = Summary(text="FORMER", last_message_id="m1", message_count=2)

    prompt = summary_prompt(dropped, former, budget)
    assert "FORMER" in prompt
    assert "two {x}" in prompt
    assert '"human">one<' not in prompt
    assert "90,000 characters; the middle is left out" in prompt
    assert len(prompt) < 3_000 * 4 + 6_000

    of_another = Summary(text="FORMER", last_message_id="gone", message_count=2)
    assert '"human">one<' in summary_prompt(dropped, of_another, budget)
    assert "FORMER" not in summary_prompt(dropped, of_another, budget)


def test_a_summary_longer_than_asked_is_cut():
    """What a model returns is held to the tokens it was given."""
    budget = HistoryBudget(summary_max_tokens=100)
    made = new_summary("w" * 40_000, numbered([HumanMessage("q")]), budget)
    assert count([HumanMessage(made.text)]) <= 100
    assert "the middle is left out" in made.text
    with pytest.raises(ValueError, match="empty summary"):
        new_summary(" \n", numbered([HumanMessage("q")]), budget)


@given(st.text(max_size=500), st.integers(60, 400))
def test_a_cut_text_tells_its_length(text, max_chars):
    """It holds beginning and end, and is never longer than asked."""
    done = cut_text(text, max_chars)
    assert len(done) <= max(max_chars, 60)
    assert done == text if len(text) <= max_chars else f"{len(text):,} characters" in done


def test_replies_are_never_cut():
    """Arguments and signatures of a reply must come back as the model gave them."""
    reply = says("a" * 9_000)
    assert cut(reply, 100) is reply
