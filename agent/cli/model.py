"""Which chat model a command talks to, and what its failures are called."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.cli.exit_codes import MODEL, CliError
from agent.cli.output import one_line
from registry.errors import ToolRAGError

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

__all__ = ["OFFLINE", "ChosenModel", "chosen_model", "model_errors", "model_name"]

OFFLINE = "offline"
DEFAULT_OPENAI_MODEL = "openai:gpt-4o-mini"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenModel:
    """A chat model and how to call it in print.

    Attributes:
        is_language_model: False for the rule-based stand-in.
    """

    model: BaseChatModel
    name: str
    is_language_model: bool

    @property
    def label(self) -> str:
        """One line that says what answers."""
        if self.is_language_model:
            return f"Chat model: {self.name}"
        return (
            "NO LANGUAGE MODEL: a rule-based stand-in answers (OfflineChatModel). For a real one "
            "set OPENAI_API_KEY, or use --model openai:gpt-4o-mini or another name."
        )


def model_name(given: str | None, environ: Mapping[str, str]) -> str:
    """Return the name of the chat model to use.

    Args:
        given: The option; it comes before the environment.
        environ: `TOOLRAG_MODEL`, else a key or address of an OpenAI server; else none is known.
    """
    name = (given or environ.get("TOOLRAG_MODEL", "")).strip()
    if name:
        return name
    if environ.get("OPENAI_API_KEY") or environ.get("OPENAI_BASE_URL"):
        return DEFAULT_OPENAI_MODEL
    return OFFLINE


def chosen_model(given: str | None, environ: Mapping[str, str]) -> ChosenModel:
    """Return the chat model to use, ready to be called.

    Raises:
        CliError: The name is unknown, or the model's package or key is missing.
    """
    name = model_name(given, environ)
    if name == OFFLINE:
        from agent.offline_model import OfflineChatModel

        return ChosenModel(model=OfflineChatModel(), name=name, is_language_model=False)
    from langchain.chat_models import init_chat_model

    # Servers of one's own that speak OpenAI's protocol mostly want no key; the client does.
    keyless = bool(environ.get("OPENAI_BASE_URL")) and not environ.get("OPENAI_API_KEY")
    options: dict[str, Any] = {"api_key": "none"} if keyless and _is_openai(name) else {}
    try:
        model: BaseChatModel = init_chat_model(name, **options)
    except Exception as error:  # a missing package, key or model, each provider in its own way
        raise CliError(
            f"Chat model {name!r} cannot be used: {_said(error)} Use <provider>:<model>, for "
            "example openai:gpt-4o-mini, with the provider's LangChain package installed and its "
            "key set; or 'offline' for the rule-based stand-in.",
            exit_code=MODEL,
        ) from error
    return ChosenModel(model=model, name=name, is_language_model=True)


@contextmanager
def model_errors(name: str) -> Generator[None]:
    """Turn what a provider's client raises into one readable error; bugs of ours pass.

    Raises:
        CliError: The model could not be reached, or refused the request.
    """
    try:
        yield
    except ToolRAGError:
        raise
    except Exception as error:
        if not isinstance(error, _client_errors()):
            raise
        raise CliError(
            f"The chat model {name} failed ({type(error).__name__}): {_said(error)} Check its "
            "name, key and address (OPENAI_API_KEY and OPENAI_BASE_URL for openai models).",
            exit_code=MODEL,
        ) from error


def _client_errors() -> tuple[type[Exception], ...]:
    """Return the base errors of the clients that are loaded; none is imported for it."""
    names = (
        ("openai", "OpenAIError"),
        ("anthropic", "AnthropicError"),
        ("httpx", "HTTPError"),
        ("google.api_core.exceptions", "GoogleAPIError"),
        ("botocore.exceptions", "BotoCoreError"),
    )
    found = (getattr(sys.modules.get(module), kind, None) for module, kind in names)
    return (ConnectionError, *(kind for kind in found if isinstance(kind, type)))


def _is_openai(name: str) -> bool:
    return name.startswith("openai:") or ":" not in name


def _said(error: Exception) -> str:
    text = one_line(str(error))[:300] or type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."
