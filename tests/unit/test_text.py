from __future__ import annotations

import re
import subprocess
import sys
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.text import (
    MAX_DESCRIPTION_CHARS,
    MAX_NAME_CHARS,
    content_hash,
    embedding_text,
    humanise,
    is_legal_name,
    legal_name,
    model_facing_description,
    nearest_names,
    text_hash,
)
from registry.types import ToolSpec

# What the providers' own documents say, written again: the code's expression is on trial here.
_PROVIDER_RULE = re.compile(r"\A[a-zA-Z0-9_-]{1,64}\Z")
_names = st.text(min_size=1, max_size=200).filter(lambda name: name.strip())
_prefixes = st.text(max_size=100)


class TestLegalName:
    @given(_names, _prefixes)
    def test_nam_2_every_name_becomes_one_that_providers_take(self, name: str, prefix: str) -> None:
        assert _PROVIDER_RULE.match(legal_name(name, prefix=prefix))

    @given(_names, _prefixes)
    def test_a_name_is_legal_exactly_when_providers_take_it(self, name: str, prefix: str) -> None:
        for candidate in (name, f"{prefix}{name}"):
            assert is_legal_name(candidate) == bool(_PROVIDER_RULE.match(candidate))

    @given(st.lists(_names, min_size=2, max_size=20, unique=True), _prefixes)
    def test_distinct_names_stay_distinct(self, names: list[str], prefix: str) -> None:
        assert len({legal_name(name, prefix=prefix) for name in names}) == len(names)

    @given(st.from_regex(_PROVIDER_RULE))
    def test_a_legal_name_is_left_alone(self, name: str) -> None:
        assert legal_name(name) == name

    @given(_names, _prefixes)
    def test_a_result_is_its_own_result(self, name: str, prefix: str) -> None:
        once = legal_name(name, prefix=prefix)
        assert legal_name(once) == once

    @pytest.mark.parametrize(
        ("name", "readable"),
        [
            ("report.daily", "report_daily"),
            ("get weather", "get_weather"),
            ("get weather.v2/now", "get_weather_v2_now"),
            ("münze", "m_nze"),
            ("注文を調べる", "tool"),
            ("name\n", "name"),
            ("__a b__", "a_b"),
        ],
    )
    def test_nam_2_an_illegal_name_stays_readable(self, name: str, readable: str) -> None:
        assert re.fullmatch(rf"{readable}_[0-9a-f]{{8}}", legal_name(name))

    def test_thousands_of_names_without_a_latin_letter_stay_apart(self) -> None:
        names = [chr(0x4E00 + number) for number in range(5_000)]
        assert len({legal_name(name) for name in names}) == len(names)

    @pytest.mark.parametrize("length", [1, 63, 64, 65, 500])
    def test_nam_4_the_limit_holds_on_both_sides(self, length: int) -> None:
        result = legal_name("n" * length)
        assert len(result) == min(length, MAX_NAME_CHARS)
        assert (result == "n" * length) == (length <= MAX_NAME_CHARS)

    @pytest.mark.parametrize(("prefix_chars", "name_chars"), [(12, 50), (12, 51), (30, 50)])
    def test_nam_4_the_prefix_counts(self, prefix_chars: int, name_chars: int) -> None:
        result = legal_name("n" * name_chars, prefix="p" * prefix_chars)
        assert len(result) == 64
        assert result.startswith("p" * prefix_chars + "__n")

    def test_nam_4_long_names_that_differ_at_their_end_stay_apart(self) -> None:
        assert legal_name("n" * 90 + "a") != legal_name("n" * 90 + "b")

    def test_nam_4_the_name_is_the_same_after_a_restart(self) -> None:
        code = "from registry.text import legal_name; print(legal_name('münze' * 20, prefix='n/s'))"
        seen = {
            subprocess.run(
                [sys.executable, "-c", code],
                env={"PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
                check=True,
            ).stdout.strip()
            for seed in ("1", "2")
        }
        assert seen == {legal_name("münze" * 20, prefix="n/s")}

    @pytest.mark.parametrize("name", ["", " ", "\t\n"])
    def test_a_blank_name_is_refused_with_and_without_prefix(self, name: str) -> None:
        for prefix in ("", "north"):
            with pytest.raises(ValueError, match="the name is empty"):
                legal_name(name, prefix=prefix)


class TestHumanise:
    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("getUserByID", "get User By ID"),
            ("HTTPServerStatus", "HTTP Server Status"),
            ("look_up-order.v2", "look up order v2"),
            ("notes/search:all", "notes search all"),
            ("__private__", "private"),
            ("plain", "plain"),
            ("___", ""),
            ("md5Sum", "md5 Sum"),
        ],
    )
    def test_words_are_split(self, name: str, words: str) -> None:
        assert humanise(name) == words

    @given(st.text(max_size=100))
    def test_only_separators_are_lost(self, name: str) -> None:
        bare = re.compile(r"[_\-./:\s]")
        assert bare.sub("", humanise(name)) == bare.sub("", name)


class TestTextsOfATool:
    def test_name_description_and_examples_are_embedded_in_full(self) -> None:
        spec = ToolSpec(
            tool_name="x",
            display_name="lookUpOrder",
            description=" Find an order. " + "z" * 5_000 + " peridot",
            examples=("Where is A100?",),
        )
        lines = embedding_text(spec).split("\n")
        assert lines[0] == "look Up Order"
        assert lines[1].startswith("Find an order.")
        assert lines[1].endswith("peridot")
        assert lines[2] == "Where is A100?"

    def test_every_stored_field_but_the_name_is_in_the_content_hash(self) -> None:
        spec = ToolSpec(tool_name="t", description="d")
        changed = [
            spec.replace(display_name="T"),
            spec.replace(description="e"),
            spec.replace(category="c"),
            spec.replace(examples=("q",)),
            spec.replace(binding="b"),
            spec.replace(origin="mcp:north"),
            spec.replace(args_schema={"type": "object"}),
            spec.replace(requires_approval=True),
            spec.replace(read_only=True),
            spec.replace(fallback=True),
        ]
        assert len({content_hash(spec), *map(content_hash, changed)}) == 1 + len(changed)

    def test_without_a_fallback_mark_the_content_hash_is_that_of_schema_0002(self) -> None:
        """Else the first sync after an upgrade would write a version of every tool."""
        spec = ToolSpec(tool_name="t", description="d", read_only=True)
        before = '["t","d","general",[],"t","code",{},false,true]'
        assert content_hash(spec) == sha256(before.encode()).hexdigest()

    def test_the_order_of_keys_does_not_change_the_content_hash(self) -> None:
        first = ToolSpec(
            tool_name="t", description="d", args_schema={"a": {"x": 1, "y": 2}, "b": 3}
        )
        second = first.replace(args_schema={"b": 3, "a": {"y": 2, "x": 1}})
        assert content_hash(first) == content_hash(second)

    def test_a_text_hash_is_of_the_text_to_embed_alone(self) -> None:
        spec = ToolSpec(tool_name="t", description="ü")
        assert text_hash(spec) == text_hash(
            spec.replace(category="other", read_only=True, fallback=True)
        )
        assert text_hash(spec) != text_hash(spec.replace(description="u"))


class TestModelFacingDescription:
    @pytest.mark.parametrize("length", [0, 1, 1_023, 1_024])
    def test_nam_6_what_fits_is_left_alone(self, length: int) -> None:
        text = ("word " * 300)[:length]
        assert model_facing_description(text) == text

    @pytest.mark.parametrize("length", [1_025, 5_000])
    def test_nam_6_what_does_not_fit_is_cut_at_a_word_and_says_so(self, length: int) -> None:
        text = ("word " * 1_000)[:length]
        shortened = model_facing_description(text)
        assert len(shortened) <= MAX_DESCRIPTION_CHARS
        assert shortened.endswith("word […]")
        assert len(shortened) > MAX_DESCRIPTION_CHARS - len("word ") - 1

    @pytest.mark.parametrize("text", ["説" * 1_025, "a" * 5_000, "a" * 1_000 + " " + "b" * 1_000])
    def test_a_text_without_spaces_fills_the_room(self, text: str) -> None:
        shortened = model_facing_description(text)
        assert 1_000 <= len(shortened) <= MAX_DESCRIPTION_CHARS
        assert shortened.endswith(" […]")
        assert text.startswith(shortened.removesuffix(" […]"))

    @given(st.text(max_size=200), st.integers(10, 100))
    def test_the_limit_holds_and_the_beginning_stays(self, text: str, max_chars: int) -> None:
        shortened = model_facing_description(text, max_chars=max_chars)
        assert len(shortened) <= max_chars
        assert text.startswith(shortened.removesuffix(" […]"))
        assert (shortened == text) == (len(text) <= max_chars)


class TestNearestNames:
    known = (
        *(f"{verb}_{thing}" for verb in ("add", "move", "list") for thing in ("order", "invoice")),
        *(f"tool_{number}" for number in range(400)),
        "search_notes",
        "functions_search_logs",
    )

    @pytest.mark.parametrize(
        "invented",
        ["serch_notes", "SEARCH_NOTES", "functions.search_notes", "notes/search_notes"],
    )
    def test_err_8_the_meant_name_comes_first(self, invented: str) -> None:
        nearest = nearest_names(invented, self.known)
        assert nearest[0] == "search_notes"
        assert len(nearest) <= 3

    @pytest.mark.parametrize("invented", ["quarterly_zebra_index", "", "."])
    def test_err_8_an_unrelated_name_has_no_neighbour(self, invented: str) -> None:
        assert nearest_names(invented, self.known) == []

    def test_the_order_of_the_known_names_does_not_matter(self) -> None:
        backwards = tuple(reversed(self.known))
        assert nearest_names("tool_4", self.known) == nearest_names("tool_4", backwards)

    @given(st.text(max_size=30), st.lists(st.text(max_size=30), max_size=20), st.integers(1, 5))
    def test_only_known_names_once_each_and_not_too_many(
        self, name: str, known: list[str], limit: int
    ) -> None:
        nearest = nearest_names(name, known, limit=limit)
        assert set(nearest) <= set(known)
        assert len(nearest) == len(set(nearest)) <= limit
