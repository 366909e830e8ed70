"""Text without its secrets: what may be shown to a model, or written to a log, of an error.

Every pattern has bounded repeats and no two that can match the same text in turn, so the time
grows with the length of the text alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, SecretBytes, SecretStr

__all__ = ["MASK", "environment_secrets", "mask", "masked_error", "secrets_of", "short_paths"]

MASK = "***"
MAX_CHARS = 100_000
_CUT_MARK = " […] "
_MIN_SECRET_CHARS = 6
_MAX_CHAIN = 8

_SECRET_NAME = (
    r"passwords?|passwd|passphrase|pwd|secrets?|tokens?|api[_-]?keys?|apikey|access[_-]?keys?"
    r"|private[_-]?keys?|account[_-]?keys?|client[_-]?secrets?|credentials?|signature|sig"
    r"|session[_-]?ids?|sessionid|auth"
)
_QUOTED_OR_WORD = r"""(?:"(?:[^"\\]|\\.){0,4096}"|'(?:[^'\\]|\\.){0,4096}'|[^\s"'&]{3,4096})"""

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]{0,20000}"
            r"(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"
        ),
        MASK,
    ),
    # scheme://user:password@host; the last @ of a word counts, since a password may hold one.
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]{1,30}://)[^\s\"'<>/?#]{1,1024}@"), rf"\1{MASK}@"),
    (
        re.compile(r"(?i)\b([a-z][a-z0-9+.-]{1,30}://[^\s\"'<>/:@]{0,256}:)[^\s\"'<>]{1,1024}@"),
        rf"\1{MASK}@",
    ),
    (
        re.compile(r"(?i)\b((?:set-)?cookie[\"']?\s{0,3}[:=]\s{0,3}[\"']?)[^\r\n\"']{1,4096}"),
        rf"\1{MASK}",
    ),
    (
        re.compile(
            r"(?i)\b((?:proxy-)?authorization[\"']?\s{0,3}[:=]\s{0,3}[\"']?)"
            r"(?:[a-z-]{1,20}\s{1,3})?[^\s\"']{1,4096}"
        ),
        rf"\1{MASK}",
    ),
    (re.compile(r"(?i)\b(bearer\s{1,3})(?=[^\s\"']{0,200}\d)[\w.~+/=-]{8,4096}"), rf"\1{MASK}"),
    (
        re.compile(
            rf"(?i)(?<![a-z0-9_-])([a-z0-9_-]{{0,60}}?(?:{_SECRET_NAME})"
            rf"[\"']?\s{{0,3}}(?:[:=]|=>)\s{{0,3}})({_QUOTED_OR_WORD})"
        ),
        rf"\1{MASK}",
    ),
    # Forms that providers give their tokens.
    (
        re.compile(
            r"\b(?:(?:sk|pk|rk)[-_](?:[\w-]{0,20}[-_])?[A-Za-z0-9_-]{16,400}|gh[pousr]_\w{20,300}"
            r"|github_pat_\w{20,300}|glpat-[\w-]{16,100}|xox[abeprs]-[\w-]{10,300}"
            r"|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{35}|ya29\.[\w-]{20,400}|hf_\w{20,100}"
            r"|npm_\w{20,100}|dop_v1_\w{20,100}|lsv2_\w{20,200}|SG\.[\w-]{10,100}\.[\w-]{10,100}"
            r"|eyJ[\w-]{8,4096}\.[\w-]{8,8192}(?:\.[\w-]{0,4096})?)"
        ),
        MASK,
    ),
)
_ENVIRONMENT_NAME = re.compile(
    r"(?i)(?:password|passwd|secret|token|apikey|credentials?)(?:$|_)"
    r"|(?:^|_)(?:key|pwd|passphrase|dsn|pat)(?:$|_)|DATABASE_URL|CONNECTION_STRING"
)
_PATH = re.compile(
    r"(?<![\w:/.\\])(?:[A-Za-z]:(?=\\)|~)?(?:(?:/[\w.@+~-]{1,255}){2,40}|(?:\\[\w.@+~-]{1,255}){2,40})"
)


def mask(text: str, secrets: Collection[str] = ()) -> str:
    """Return text with secrets as `***`: known values, and what looks like one.

    Passwords in URLs, authorization headers and cookies, `password=…` and its like, private keys
    and tokens in the forms of well-known providers. The middle of more than 100,000 characters is
    left out.

    Args:
        text: For example an error's.
        secrets: Values that must not appear, whatever they look like.
    """
    if len(text) > MAX_CHARS:
        half = MAX_CHARS // 2
        text = text[:half] + _CUT_MARK + text[-half:]
    for value in sorted({form for secret in secrets for form in _forms(secret)}, key=len)[::-1]:
        text = text.replace(value, MASK)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def short_paths(text: str, *, known: str = "") -> str:
    """Return text in which the folders of absolute paths are left out; the file's name stays.

    Args:
        text: For example an error's, where folders tell how a machine is laid out.
        known: A text whose paths may be said in full, such as the arguments of the call.
    """

    def shorten(found: re.Match[str]) -> str:
        path = found.group()
        return path if path in known else "…/" + re.split(r"[/\\]", path)[-1]

    return _PATH.sub(shorten, text)


def environment_secrets(environment: Mapping[str, str] | None = None) -> set[str]:
    """Return the values of environment variables whose names say that they are secret."""
    variables = os.environ if environment is None else environment
    return {
        value
        for name, value in variables.items()
        if len(value) >= _MIN_SECRET_CHARS and _ENVIRONMENT_NAME.search(name)
    }


def secrets_of(value: Any, *, depth: int = 3) -> set[str]:
    """Return what `SecretStr` and `SecretBytes` hold in a pydantic object, such as a tool."""
    return {text for text in _secret_texts(value, depth) if len(text) >= _MIN_SECRET_CHARS}


def masked_error(error: BaseException, secrets: Collection[str] = ()) -> BaseException:
    """Return a stand-in for the log: same class name, trace and causes, texts without secrets."""
    return _masked_error(error, secrets, _MAX_CHAIN)


def _masked_error(error: BaseException, secrets: Collection[str], depth: int) -> BaseException:
    kind = type(error)
    stand_in = type(kind.__name__, (Exception,), {"__module__": kind.__module__})
    masked: BaseException = stand_in(mask(error_text(error), secrets))
    masked.__traceback__ = error.__traceback__
    masked.__suppress_context__ = error.__suppress_context__
    for note in getattr(error, "__notes__", ()):
        masked.add_note(mask(str(note), secrets))
    if depth > 0:
        if error.__cause__ is not None:
            masked.__cause__ = _masked_error(error.__cause__, secrets, depth - 1)
        elif error.__context__ is not None and not error.__suppress_context__:
            masked.__context__ = _masked_error(error.__context__, secrets, depth - 1)
    return masked


def error_text(error: BaseException) -> str:
    """Return an error's text; empty when it has none or cannot be made into one."""
    try:
        return str(error)
    except Exception:  # an error whose __str__ fails still has to be reported
        return ""


def _forms(secret: str) -> Iterator[str]:
    if len(secret) >= _MIN_SECRET_CHARS:
        yield secret
        yield quote(secret, safe="")
        yield secret.encode("unicode_escape").decode()


def _secret_texts(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, SecretBytes):
        yield value.get_secret_value().decode("utf-8", "replace")
    elif depth > 0 and isinstance(value, BaseModel):
        for inner in vars(value).values():
            yield from _secret_texts(inner, depth - 1)
