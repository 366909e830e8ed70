from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from registry.errors import ConfigurationError
from registry.settings import RegistrySettings

_RANGES: dict[str, tuple[float, float]] = {
    "pool_size": (1, 1_000),
    "max_overflow": (0, 1_000),
    "pool_timeout_s": (0.001, 3_600),
    "connect_timeout_s": (1, 3_600),
    "statement_timeout_s": (0.001, 86_400),
    "embedding_batch_size": (1, 2_048),
    "query_cache_size": (0, 1_000_000),
    "embed_timeout_s": (0.001, 3_600),
    "lease_s": (1, 3_600),
    "lease_wait_s": (0, 86_400),
    "index_min_tools": (1, 1_000_000_000),
    "ef_search": (1, 1_000),
    "word_weight": (0, 10),
    "rerank_candidates": (1, 1_000),
}
_SWITCHES = ("prepared_statements", "clauses", "auto_calibrate", "search_by_words_alone")
_FRACTIONS = tuple(name for name in _RANGES if name.endswith(("_s", "_weight")))


def make(**values: Any) -> RegistrySettings:
    return RegistrySettings(**values)


def test_every_setting_has_a_range() -> None:
    assert {field.name for field in dataclasses.fields(RegistrySettings)} == {
        "namespace",
        *_SWITCHES,
        *_RANGES,
    }


@pytest.mark.parametrize("name", _RANGES)
def test_both_ends_of_a_range_are_inside_and_what_is_beyond_is_refused(name: str) -> None:
    low, high = _RANGES[name]
    for inside in (low, high):
        assert getattr(make(**{name: inside}), name) == inside
    step = 0.0001 if name in _FRACTIONS else 1
    for outside in (low - step, high + step):
        with pytest.raises(ConfigurationError, match=rf"^{name} is {outside}; it must be from"):
            make(**{name: outside})


@pytest.mark.parametrize("name", _RANGES)
@pytest.mark.parametrize("value", ["5", None, True, math.nan, math.inf])
def test_what_is_no_number_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{name} is .*; it must be"):
        make(**{name: value})


@pytest.mark.parametrize("name", [name for name in _RANGES if name not in _FRACTIONS])
def test_counts_are_whole(name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{name} is 2.5; it must be a whole number$"):
        make(**{name: 2.5})


@pytest.mark.parametrize("namespace", ["default", "a", "tenant:42", "A.b-c_D", "n" * 100])
def test_namespaces_that_are_taken(namespace: str) -> None:
    assert make(namespace=namespace).namespace == namespace


@pytest.mark.parametrize(
    "namespace",
    ["", " ", "a b", "ü", "a'b", "a\n", "n" * 101, "a\\b", "a=b", None, 5, b"a", ["a"], True],
)
def test_vec_9_namespaces_that_are_refused(namespace: Any) -> None:
    """VEC-9: a missing owner is an error, not everybody's."""
    with pytest.raises(ConfigurationError, match=r"^namespace is"):
        make(namespace=namespace)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().pool_size = 3  # type: ignore[misc]


class TestFromEnv:
    def test_nothing_set_gives_the_defaults(self) -> None:
        assert RegistrySettings.from_env({}) == RegistrySettings()

    def test_blank_means_not_set(self) -> None:
        given = {"TOOLRAG_POOL_SIZE": " ", "TOOLRAG_NAMESPACE": ""}
        assert RegistrySettings.from_env(given) == RegistrySettings()

    @pytest.mark.parametrize("name", _RANGES)
    def test_every_number_is_read(self, name: str) -> None:
        _, high = _RANGES[name]
        read = RegistrySettings.from_env({f"TOOLRAG_{name.upper()}": f" {high:.0f} "})
        assert read == make(**{name: high})

    def test_texts_are_read(self) -> None:
        assert RegistrySettings.from_env({"TOOLRAG_NAMESPACE": "shop"}).namespace == "shop"

    def test_a_fraction_of_a_second_is_read(self) -> None:
        read = RegistrySettings.from_env({"TOOLRAG_POOL_TIMEOUT_S": "0.25"})
        assert read.pool_timeout_s == 0.25

    def test_other_variables_are_not_looked_at(self) -> None:
        others = {"POOL_SIZE": "7", "TOOLRAG_DATABASE_URL": "x", "toolrag_pool_size": "9"}
        assert RegistrySettings.from_env(others) == RegistrySettings()

    @pytest.mark.parametrize("raw", ["many", "5,0", "2.5", "0x10", "1e3"])
    def test_an_unreadable_number_is_refused_by_its_variable(self, raw: str) -> None:
        expected = rf"^TOOLRAG_POOL_SIZE is '{raw}', which is not a whole number$"
        with pytest.raises(ConfigurationError, match=expected):
            RegistrySettings.from_env({"TOOLRAG_POOL_SIZE": raw})

    def test_an_unreadable_time_is_refused_by_its_variable(self) -> None:
        expected = r"^TOOLRAG_POOL_TIMEOUT_S is '5s', which is not a number$"
        with pytest.raises(ConfigurationError, match=expected):
            RegistrySettings.from_env({"TOOLRAG_POOL_TIMEOUT_S": "5s"})

    @pytest.mark.parametrize("raw", ["nan", "inf", "-1"])
    def test_a_number_out_of_range_is_refused(self, raw: str) -> None:
        with pytest.raises(ConfigurationError, match=r"^pool_timeout_s is .* from 0\.001 to 3600$"):
            RegistrySettings.from_env({"TOOLRAG_POOL_TIMEOUT_S": raw})


@pytest.mark.parametrize(
    ("raw", "value"), [("false", False), ("0", False), ("No", False), ("TRUE", True), ("1", True)]
)
def test_a_truth_value_is_read_from_the_environment(raw: str, value: bool) -> None:
    settings = RegistrySettings.from_env({"TOOLRAG_PREPARED_STATEMENTS": raw})
    assert settings.prepared_statements is value


def test_anything_else_is_no_truth_value() -> None:
    with pytest.raises(ConfigurationError, match="TOOLRAG_PREPARED_STATEMENTS is 'maybe'"):
        RegistrySettings.from_env({"TOOLRAG_PREPARED_STATEMENTS": "maybe"})
    with pytest.raises(ConfigurationError, match="must be True or False"):
        make(prepared_statements="false")
