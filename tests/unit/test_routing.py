"""Routing by keywords: what is found, what is not, and which keywords a catalogue suggests."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import ConfigurationError
from registry.lexical import lexical_terms
from registry.routing import Router, checked_category, suggested_keywords
from tests.support.catalogue import spec

ROUTER = Router(
    {
        "travel": ["flight", "car", "hotel room"],
        "money": ["stock price", "Rechnung", "facture"],
        "code": ["GitHub", "C.I. pipeline", "sha256", "C++", ".NET"],
        "sky": ["Weather", "天気", "날씨", "อากาศ", "雨"],
        "food": ["crème brûlée", "car"],
    }
)
_WORDS = st.text(st.characters(categories=["Ll", "Lu", "Nd", "Zs", "Po"]), max_size=40)


@pytest.mark.parametrize(
    ("question", "routed"),
    [
        ("Book me a flight", ("travel",)),
        ("FLIGHTS, please!", ("travel",)),
        ("What are the Stock-Prices today?", ("money",)),
        ("the price of a stock", ()),
        ("stock of the price", ("money",)),  # words that say nothing are passed over
        ("Ist die Rechnung bezahlt?", ("money",)),
        ("issues on github", ("code",)),
        ("my GitHub's issues", ("code",)),
        ("git hub", ()),
        ("compile C++を", ("code",)),
        ("vitamin C", ()),
        ("build my .net app", ("code",)),
        ("the SHA256 of a file", ("code",)),
        ("A CREME BRULEE recipe", ("food",)),
        ("明日の天気は？", ("sky",)),
        ("오늘 날씨가 어때요?", ("sky",)),
        ("พรุ่งนี้อากาศเป็นอย่างไร", ("sky",)),
        ("明日は雨?", ("sky",)),
        ("\uff57eather", ("sky",)),  # a full-width w
        ("weather on my flight", ("sky", "travel")),
        ("careful with that scar", ()),
        ("a carpet for the cart", ()),
        ("hotel with a room", ("travel",)),
        ("", ()),
        ("?!", ()),
    ],
)
def test_routes_by_whole_words_in_any_case_and_script(
    question: str, routed: tuple[str, ...]
) -> None:
    assert ROUTER.route(question) == routed


def test_several_categories_come_by_number_of_keywords_then_by_name() -> None:
    assert ROUTER.route("a car") == ("food", "travel")
    assert ROUTER.route("a car and a car and a flight") == ("travel", "food")
    assert ROUTER.keywords_in("cars and flights") == {
        "travel": ("car", "flight"),
        "food": ("car",),
    }


def test_a_text_in_place_of_keywords_is_refused() -> None:
    """Its letters would be the keywords."""
    with pytest.raises(ConfigurationError, match="keywords is the text 'rain'; give a list"):
        Router({"sky": "rain"})


def test_without_categories_nothing_is_routed() -> None:
    assert Router({}).route("Book me a flight") == ()
    assert Router({"empty": [], "nothing said": ["the", "42", "?!"]}).route("the 42 ?!") == ()


@pytest.mark.parametrize("keyword", [".*", "(trip", "a|b|c", "[a-z]+", r"\w", "x{1,99999}"])
def test_a_keyword_is_no_pattern(keyword: str) -> None:
    router = Router({"any": [keyword]})
    assert router.route("Book me a flight to Rome") == ()
    found = bool(lexical_terms(keyword))
    assert router.route(f"what is {keyword} for?") == (("any",) if found else ())


@given(st.lists(st.text(max_size=12), max_size=6), st.text(max_size=60))
def test_any_keyword_and_question_route_alike_twice(keywords: list[str], question: str) -> None:
    first = Router({"b": keywords, "a": keywords})
    assert first.route(question) == Router({"a": keywords, "b": keywords}).route(question)
    assert first.route(question) in ((), ("a", "b"))


@given(
    st.lists(st.sampled_from("red blue green black white".split()), min_size=1, max_size=12),
    st.lists(st.sampled_from("red blue green black white".split()), min_size=1, max_size=3),
)
def test_a_phrase_is_found_exactly_where_its_words_stand_together(
    question: list[str], phrase: list[str]
) -> None:
    # Padded, so that no word is found in part of another.
    together = f" {' '.join(phrase)} " in f" {' '.join(question)} "
    assert bool(Router({"c": [" ".join(phrase)]}).route(" ".join(question))) is together


@given(_WORDS, _WORDS)
def test_a_keyword_between_words_is_found_whatever_stands_around(left: str, right: str) -> None:
    assert Router({"c": ["Weather report"]}).route(f"{left} WEATHER REPORTS {right}") == ("c",)


class TestCheckedCategory:
    def test_takes_blanks_off_and_keeps_the_order(self) -> None:
        assert checked_category(" sky ", [" rain ", "天気", "snow storm"]) == (
            "sky",
            ("rain", "天気", "snow storm"),
        )

    @pytest.mark.parametrize(
        ("name", "keywords", "message"),
        [
            ("  ", ["rain"], "The name of a category is empty."),
            ("sky", [], "Category 'sky' needs at least one keyword."),
            ("sky", [" "], "A keyword of category 'sky' is empty."),
            ("sky", ["the"], "Keyword 'the' of category 'sky' can never be found"),
            ("sky", ["42"], "Keyword '42' of category 'sky' can never be found"),
            ("sky", ["?!"], "Keyword '?!' of category 'sky' can never be found"),
            ("sky", ["storm", "Storms"], "Keywords 'storm' and 'Storms' of category 'sky'"),
            ("sky", ["天気", "天気"], "Keywords '天気' and '天気' of category 'sky'"),
            ("sky", ["x" * 101], "A keyword of category 'sky' has 101 characters"),
            ("s" * 101, ["rain"], "The name of a category has 101 characters"),
            ("sky", ["ra\nin"], "one line of printable text"),
            ("sky", ["ra\x00in"], "one line of printable text"),
            ("sky", ["half \ud800"], "one line of printable text"),
            ("sky", [f"k{i}x" for i in range(501)], "has 501 keywords; at most 500"),
            ("sky", "rain", "keywords is the text 'rain'; give a list of texts"),
            ("sky", [3], "A keyword of category 'sky' is 3; it must be a text."),
        ],
    )
    def test_says_what_is_wrong(self, name: str, keywords: list[str], message: str) -> None:
        with pytest.raises(ConfigurationError, match=re.escape(message)):
            checked_category(name, keywords)

    @given(st.lists(st.text(max_size=20), max_size=4))
    def test_what_it_accepts_is_found_in_its_own_text(self, keywords: list[str]) -> None:
        try:
            name, accepted = checked_category("c", keywords)
        except ConfigurationError:
            return
        for keyword in accepted:
            assert Router({name: [keyword]}).keywords_in(keyword) == {name: (keyword,)}


class TestSuggestedKeywords:
    SPECS = (
        spec("get_forecast", "Get the weather forecast of a city.", category="weather"),
        spec("get_rain", "Get the rain series expected in a city.", category="weather"),
        spec("get_storms", "List storms and rain near a city.", category="weather"),
        spec("getInvoices", "List the invoices of a customer.", category="billing_desk"),
        spec("pay", "Pay one of the invoices.", category="billing_desk"),
        spec("tenki", "都市の天気を調べる。", category="天気"),
        spec("anything", "Do anything in a city for a customer."),
    )

    def test_the_name_first_then_what_tells_the_category_from_the_others(self) -> None:
        suggested = suggested_keywords(self.SPECS)
        assert list(suggested) == ["billing_desk", "weather", "天気"]
        assert suggested["billing_desk"][:3] == ("billing", "desk", "invoices")
        assert suggested["weather"][:2] == ("weather", "rain")
        assert "series" in suggested["weather"]  # not the term "sery"
        assert "天気" in suggested["天気"]
        words = " ".join(word for found in suggested.values() for word in found)
        assert "anything" not in words

    def test_no_more_than_asked_for(self) -> None:
        suggested = suggested_keywords(self.SPECS, per_category=1)
        assert suggested["weather"] == ("weather",)
        assert suggested_keywords([spec("lone", "No category.")]) == {}

    def test_what_it_proposes_can_be_stored_and_leads_back(self) -> None:
        signed = spec("compile", "Compile C++ and F# sources.", category="C++")
        suggested = suggested_keywords([*self.SPECS, signed], per_category=50)
        assert {"c++", "f#"} <= {*suggested["C++"]}
        for name, keywords in suggested.items():
            assert checked_category(name, keywords) == (name, keywords)
            for keyword in keywords:
                assert Router({name: [keyword]}).route(keyword) == (name,)
