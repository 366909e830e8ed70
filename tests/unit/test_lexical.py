"""Words of tools and questions."""

from __future__ import annotations

import unicodedata
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from registry.lexical import MAX_TERM_CHARS, STOP_WORDS, lexical_terms, tool_terms
from tests.support.catalogue import spec

_ANY_TEXT = st.text(st.characters(codec=None), max_size=60)  # halves of surrogates as well


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("getUserByID", ["user", "id"]),
        ("XMLHttpRequest", ["xmlhttprequest", "xml", "http", "request"]),
        ("get_user_by_id", ["user", "id"]),
        ("HTTP-Server.log/file", ["http", "server", "log", "file"]),
        ("GitHub", ["github", "git", "hub"]),
        ("github", ["github"]),
        ("sha256", ["sha256", "sha"]),
        ("SHA256", ["sha256", "sha"]),
        ("oauth2 ipv6", ["oauth2", "oauth", "ipv6", "ipv"]),
        ("10 20 3.5 2024-01-01", []),
        ("v2", ["v2", "v"]),
        ("aQuiteLongCamelCaseName", ["quite", "long", "camel", "case", "name"]),
        ("ÄnderungenSpeichern", ["anderungenspeichern", "anderungen", "speichern"]),
        ("caféÜbersicht", ["cafeubersicht", "cafe", "ubersicht"]),
    ],
)
def test_names_and_numbers(text: str, terms: list[str]) -> None:
    assert lexical_terms(text) == terms


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("café", "CAFE"),
        ("Größe", "grösse"),
        ("naïve façade", "NAIVE FACADE"),
        ("cafe\u0301", "caf\u00e9"),  # composed or not
        ("ﬁle", "file"),  # a ligature
        ("ＡＰＩ１２", "api12"),  # full width
        ("ﾃﾞｰﾀ", "データ"),  # half width, with its voicing mark
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
        ("İstanbul", "istanbul"),
        ("пользователей", "ПОЛЬЗОВАТЕЛЕЙ"),
    ],
)
def test_ways_to_write_one_word(one: str, other: str) -> None:
    assert lexical_terms(one) == lexical_terms(other) != []


@pytest.mark.parametrize(
    ("many", "one"),
    [
        ("files", "file"),
        ("queries", "query"),
        ("boxes", "box"),
        ("addresses", "address"),
        ("searches", "search"),
        ("pushes", "push"),
        ("movies", "movie"),
        ("cookies", "cookie"),
        ("pies", "pie"),
        ("houses", "house"),
    ],
)
def test_plurals(many: str, one: str) -> None:
    assert lexical_terms(many) == lexical_terms(one)


@pytest.mark.parametrize("word", ["status", "access", "analysis", "bus", "gas", "address"])
def test_what_only_looks_like_a_plural(word: str) -> None:
    assert lexical_terms(word) == [word]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("天気", ["天気"]),
        ("天気予報", ["天気", "気予", "予報"]),
        ("天気を教えてください", ["天気", "気を", "を教", "教え"]),  # not pairs of hiragana
        ("メール", ["メー", "ール"]),
        ("查询天气", ["查询", "询天", "天气"]),
        ("날씨를 알려줘", ["날씨", "씨를", "알려", "려줘"]),
        ("木", ["木"]),
        ("PDFを作成", ["pdf", "を作", "作成"]),
        ("weather天気today", ["weather", "天気", "today"]),
        ("MP3を再生", ["mp3", "mp", "を再", "再生"]),
        ("上传S3文件", ["上传", "s3", "文件"]),
        ("第3章", ["第", "章"]),
        ("3Dモデル", ["3d", "モデ", "デル"]),
        ("GitHubの課題", ["github", "git", "hub", "の課", "課題"]),
    ],
)
def test_scripts_without_spaces(text: str, terms: list[str]) -> None:
    assert lexical_terms(text) == terms


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("C++", ["c++"]),
        ("compile c++, please", ["compile", "c++"]),
        ("C++17", ["c++"]),
        ("a C# and an F# script", ["c#", "f#", "script"]),
        ("Ｃ＋＋ Ｃ＃", ["c++", "c#"]),
        ("lang_c++", ["lang", "c++"]),
        ("日本のC++を", ["日本", "本の", "c++", "を"]),
        ("a .NET build", [".net", "net", "build"]),
        ("ASP.NET", ["asp", "net"]),
        ("example.net", ["example", "net"]),
        ("Notepad++ ticket# #tag", ["notepad", "ticket", "tag"]),
        ("page.html#c#anchor", ["page", "html", "anchor"]),
    ],
)
def test_names_with_signs(text: str, terms: list[str]) -> None:
    assert lexical_terms(text) == terms


@pytest.mark.parametrize("text", ["สภาพอากาศวันนี้", "ພາສາລາວ", "မြန်မာ", "ភាសាខ្មែរ"])
def test_vowel_signs_stay_with_their_letters(text: str) -> None:
    """South-East Asian vowel signs are marks: they separate no words."""
    terms = lexical_terms(text)
    assert len(terms) >= len(text) - 3
    assert all(len(term) == 2 for term in terms)


def test_indic_words_stay_whole() -> None:
    assert lexical_terms("मौसम की जानकारी") == ["मौसम", "की", "जानकारी"]


@pytest.mark.parametrize(
    "text",
    [
        "What is the weather?",
        "Wie ist das Wetter?",
        "Quel temps fait-il ?",
        "¿Cómo está el tiempo?",
        "Com'è il tempo?",
    ],
)
def test_function_words_say_nothing(text: str) -> None:
    terms = lexical_terms(text)
    assert len(terms) <= 2
    assert STOP_WORDS.isdisjoint(terms)


def test_stop_words_are_written_as_terms_are() -> None:
    assert {unicodedata.normalize("NFKC", word.casefold()) for word in STOP_WORDS} == STOP_WORDS
    assert [t for word in STOP_WORDS for t in lexical_terms(word)] == []


@pytest.mark.parametrize("text", ["", " \n\t", "🎉🔥", "!?.,;", "_ __", "\x00\x00", "\ud800"])
def test_texts_without_a_word(text: str) -> None:
    assert lexical_terms(text) == []


def test_a_word_without_end_is_cut_on_both_sides() -> None:
    """An entry of the index has room for about 2,700 bytes; a longer word would sink the sync."""
    (term,) = lexical_terms("ж" * 5_000)
    assert len(term) == MAX_TERM_CHARS
    assert [term] == lexical_terms("ж" * 4_000)
    assert all(len(t.encode()) < 600 for t in lexical_terms("A1" + "Ä" * 5_000 + "ﷺ" * 500))


@given(_ANY_TEXT)
@example("a\x00b\ud800c\udfff")
@example("ǅ ŉ ᾳ ẞ İ ϓ ﷺ")
def test_any_text_gives_terms_that_can_be_stored(text: str) -> None:
    for term in lexical_terms(text):
        assert term
        assert "\x00" not in term
        assert term.encode()  # no half of a surrogate pair
        assert not any(character.isspace() for character in term)
        assert term == term.casefold()
        assert len(term) <= MAX_TERM_CHARS


@given(st.lists(st.sampled_from(["getUser", "files", "天気予報", "café", "the", "sha256", "12"])))
def test_terms_of_words_are_the_terms_of_the_text(words: list[str]) -> None:
    assert lexical_terms(" ".join(words)) == [t for word in words for t in lexical_terms(word)]


@given(_ANY_TEXT, _ANY_TEXT)
def test_what_stands_in_another_case_meets(one: str, other: str) -> None:
    """A question in lower case has the terms of the tool's words, but for split CamelCase."""
    text = f"{one} {other}".casefold()
    assert lexical_terms(text) == lexical_terms(text.casefold())


# ---------------------------------------------------------------- tools


def test_each_field_weighs_what_it_should() -> None:
    made = spec(
        "x_1",
        "described twice: described",
        display_name="Named",
        examples=("Exemplified?",),
        category="categorised",
        binding="bound",
        origin="mcp:original",
        args_schema={
            "type": "object",
            "properties": {"argument": {"type": "string", "description": "Documented"}},
        },
    )
    assert tool_terms(made) == {
        "named": 3.0,
        "described": 2.0,
        "twice": 1.0,
        "exemplified": 1.0,
        "argument": 0.5,
        "documented": 0.3,
    }


def test_a_word_in_several_fields_adds_up() -> None:
    made = spec("x", "Send mail.", display_name="send_mail", examples=("send",))
    assert tool_terms(made) == {"send": 3 + 1 + 1, "mail": 3 + 1}


def test_arguments_of_objects_and_lists_are_read_two_deep() -> None:
    inner = {"type": "object", "properties": {"street": {"properties": {"deeper": {}}}}}
    schema = {"properties": {"address": inner, "orders": {"type": "array", "items": inner}}}
    assert tool_terms(spec("x", "1", display_name="1", args_schema=schema)) == {
        "address": 0.5,
        "order": 0.5,
        "street": 1.0,
    }


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["properties", "items", "description", "type", "a"]), inner, max_size=3
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["properties", "items", "description"]), _JSON))
@example({"properties": []})
@example({"properties": {"a": True, "b": None, "c": {"description": 5, "items": [{}]}}})
def test_any_schema_gives_terms(schema: dict[str, Any]) -> None:
    terms = tool_terms(spec("x", "word", display_name="1", args_schema=schema))
    assert terms["word"] >= 1
    assert all(frequency > 0 for frequency in terms.values())


@given(st.lists(st.text(max_size=20), max_size=3), st.text(max_size=30))
def test_the_length_is_what_was_counted(examples: list[str], description: str) -> None:
    made = spec("x", description, display_name="1", examples=tuple(examples))
    counted = Counter(lexical_terms("\n".join([description, *examples])))
    assert tool_terms(made) == counted
