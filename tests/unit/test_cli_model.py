from __future__ import annotations

from collections.abc import Mapping

import pytest

from agent.cli.exit_codes import MODEL, CliError
from agent.cli.model import chosen_model, model_errors, model_name
from registry.errors import ToolNotFoundError


@pytest.mark.parametrize(
    ("given", "environ", "name"),
    [
        (None, {}, "offline"),
        (None, {"OPENAI_API_KEY": ""}, "offline"),
        (None, {"OPENAI_API_KEY": "k"}, "openai:gpt-4o-mini"),
        (None, {"OPENAI_BASE_URL": "http://h/v1"}, "openai:gpt-4o-mini"),
        (None, {"OPENAI_API_KEY": "k", "TOOLRAG_MODEL": "openai:other"}, "openai:other"),
        (None, {"TOOLRAG_MODEL": " "}, "offline"),
        ("offline", {"OPENAI_API_KEY": "k", "TOOLRAG_MODEL": "openai:other"}, "offline"),
        ("anthropic:x", {"TOOLRAG_MODEL": "openai:other"}, "anthropic:x"),
    ],
)
def test_which_model_is_chosen(given: str | None, environ: Mapping[str, str], name: str) -> None:
    assert model_name(given, environ) == name


def test_the_stand_in_is_never_called_a_language_model() -> None:
    chosen = chosen_model(None, {})
    assert not chosen.is_language_model
    assert chosen.label.startswith("NO LANGUAGE MODEL")


def test_a_server_of_ones_own_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    chosen = chosen_model(None, {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"})
    assert chosen.is_language_model
    assert chosen.label == "Chat model: openai:gpt-4o-mini"


@pytest.mark.parametrize("name", ["nosuch:model", "not-a-known-name", "openai:gpt-4o-mini"])
def test_a_model_that_cannot_be_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(CliError, match=r"cannot be used: .+ Use <provider>:<model>") as caught:
        chosen_model(name, {})
    assert caught.value.exit_code == MODEL
    assert "\n" not in str(caught.value)


def test_errors_of_a_provider_are_told_from_bugs() -> None:
    import openai

    refused = openai.OpenAIError("no\nsuch model")
    with pytest.raises(CliError, match=r"failed \(OpenAIError\): no such model\.") as caught:
        with model_errors("openai:x"):
            raise refused
    assert caught.value.exit_code == MODEL
    for error in (KeyError("bug"), ToolNotFoundError("t", namespace="n")):
        with pytest.raises(type(error)), model_errors("openai:x"):
            raise error
