"""Whose fault a tool's exception is, and whether another try may help."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from langchain_core.tools import ToolException

from agent.guarding.secrets import error_text

__all__ = ["Diagnosis", "Fault", "diagnose", "leaf_of"]

_MAX_CHAIN = 8


class Fault(StrEnum):
    """What kind of failure it is.

    `TOOL`: the tool ran and said no; the model may mend it. `PASSING`: no answer came, or the
    service is busy; the call may have worked. `SET_UP`: a part is missing, or a service refuses
    this program; no call can work, and none did.
    """

    TOOL = "tool"
    PASSING = "passing"
    SET_UP = "set_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What to make of an exception.

    Attributes:
        fault: The kind.
        may_pass: Another try of the same call may succeed.
        may_have_worked: The call may have had its effect.
    """

    fault: Fault
    may_pass: bool = False
    may_have_worked: bool = False


_TOOL = Diagnosis(fault=Fault.TOOL)
_SET_UP = Diagnosis(fault=Fault.SET_UP)
_NOT_REACHED = Diagnosis(fault=Fault.SET_UP, may_pass=True)
_BUSY = Diagnosis(fault=Fault.PASSING, may_pass=True)
_NO_ANSWER = Diagnosis(fault=Fault.PASSING, may_pass=True, may_have_worked=True)

# Classes of libraries that need not be installed, by the name of the class or a base of it.
_BY_CLASS_NAME: dict[str, Diagnosis] = {
    **dict.fromkeys(
        ("ConnectError", "ConnectTimeout", "NewConnectionError", "ClientConnectorError"),
        _NOT_REACHED,
    ),
    **dict.fromkeys(("EndpointConnectionError", "ProxyError", "UnsupportedProtocol"), _NOT_REACHED),
    **dict.fromkeys(
        (
            "AuthenticationError",
            "Unauthenticated",
            "NoCredentialsError",
            "CredentialRetrievalError",
        ),
        _SET_UP,
    ),
    **dict.fromkeys(("DefaultCredentialsError", "NoSuchModuleError"), _SET_UP),
    **dict.fromkeys(("RateLimitError", "TooManyRequests", "ThrottlingException"), _BUSY),
    **dict.fromkeys(
        ("TransportError", "ReadTimeout", "APITimeoutError", "APIConnectionError", "Timeout"),
        _NO_ANSWER,
    ),
    **dict.fromkeys(
        ("ClientConnectionError", "ServerDisconnectedError", "RemoteProtocolError"), _NO_ANSWER
    ),
    **dict.fromkeys(
        ("ClosedResourceError", "BrokenResourceError", "EndOfStream", "ServiceUnavailable"),
        _NO_ANSWER,
    ),
}
_REFUSED = re.compile(
    r"(?i)connection refused|actively refused|name or service not known|could not translate host"
    r"|getaddrinfo failed|no route to host|nodename nor servname"
)
_DATABASE_DOWN = re.compile(
    r"(?i)connect|server closed|refused|authentication failed|unable to open database"
    r"|timeout expired|does not exist"
)
_KEY_MISSING = re.compile(
    r"(?i)(?:api[ _-]?key|access[ _-]?key|auth token|access token|client secret|credentials?)"
    r".{0,200}?(?:missing|not set|must be set|not provided|not configured|not found|invalid"
    r"|incorrect|expired|could not be|unable to)"
    r"|(?:missing|did not find|no|invalid|incorrect|could not (?:find|load)|unable to locate)"
    r" .{0,60}?(?:api[ _-]?key|access[ _-]?key|credentials?)"
)
_WRONG_ENGINE = re.compile(
    r"(?i)event loop is closed|attached to a different loop|no running event loop"
    r"|cannot be called from a running event loop|does not support sync"
)


def diagnose(error: BaseException) -> Diagnosis:
    """Return what to make of a tool's exception, its causes included.

    What a tool raises for the model to read (`ToolException`) is taken at its word.
    """
    for link in _chain(error):
        if isinstance(link, ToolException):
            return _TOOL
        found = _of_one(link)
        if found is not None:
            return found
    return _TOOL


def leaf_of(error: BaseException) -> BaseException:
    """Return the first exception that is no group; task groups wrap even a single one."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseException", error.exceptions[0])
    return error


def _chain(error: BaseException) -> Iterator[BaseException]:
    # Only causes that were named: an error raised while another was handled may be a new finding.
    link: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if link is None:
            return
        link = leaf_of(link)
        yield link
        link = link.__cause__


def _of_one(error: BaseException) -> Diagnosis | None:
    if isinstance(error, (ConnectionRefusedError, socket.gaierror)):
        return _NOT_REACHED
    if isinstance(error, (ImportError, NotImplementedError)) or _is_missing_variable(error):
        return _SET_UP
    if (status := _status_of(error)) is not None and (found := _of_status(status)) is not None:
        return found
    names = [kind.__name__ for kind in type(error).__mro__]
    text = error_text(error)[:2_000]
    if isinstance(error, OSError) and _REFUSED.search(text):
        return _NOT_REACHED
    for name in names:
        if name in _BY_CLASS_NAME:
            return _BY_CLASS_NAME[name]
    if "OperationalError" in names or "InterfaceError" in names:
        # The same class stands for a database that is away and for a statement it cannot run.
        return _NOT_REACHED if _DATABASE_DOWN.search(text) else None
    if isinstance(error, (TimeoutError, ConnectionError)):
        return _NO_ANSWER
    if isinstance(error, (ValueError, RuntimeError)) and (
        _KEY_MISSING.search(text) or _WRONG_ENGINE.search(text)
    ):
        return _SET_UP
    return None


def _of_status(status: int) -> Diagnosis | None:
    if status in (401, 407):
        return _SET_UP
    if status == 429:
        return _BUSY
    return _NO_ANSWER if status == 408 or 500 <= status <= 599 else None


def _status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an error of a client library carries."""
    for holder in (error, getattr(error, "response", None)):
        for name in ("status_code", "status"):
            value: Any = getattr(holder, name, None)
            if isinstance(value, int) and 100 <= value <= 599:
                return value
    return None


def _is_missing_variable(error: BaseException) -> bool:
    """Return whether `os.environ` raised this."""
    if not isinstance(error, KeyError) or error.__traceback__ is None:
        return False
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename == os.__file__ or (
        trace.tb_frame.f_globals.get("__name__") == "os"
    )
