"""Database URLs, engines, and the translation of driver errors into ours."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import Engine, NullPool, create_engine
from sqlalchemy import exc as sa_exc
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from registry.errors import (
    ConfigurationError,
    RegistryError,
    RegistryUnavailableError,
    ToolRAGError,
)
from registry.settings import RegistrySettings

__all__ = [
    "create_registry_engine",
    "create_registry_engine_async",
    "display_url",
    "normalise_url",
    "translated_errors",
]

_DRIVER = "postgresql+psycopg"
# The text may hold a password, so it is not repeated.
_UNREADABLE = (
    "The database URL cannot be read. Expected postgresql://user:password@host:5432/name "
    "with special characters of the password percent-encoded."
)
_POOLED = "behind a pooler in transaction mode set prepared_statements=False"
# insufficient_privilege, read_only_sql_transaction, undefined_table, query_canceled,
# invalid_sql_statement_name, duplicate_prepared_statement
_ADVICE = {
    "42501": "the database user lacks a privilege",
    "25006": "the database or this connection is read-only",
    "42P01": "a table is missing; run `toolrag db upgrade`",
    "57014": "the statement took longer than statement_timeout_s",
    "26000": _POOLED,
    "42P05": _POOLED,
}
# What libpq says of a parameter before it connects; the server is not to blame.
_BAD_PARAMETER = re.compile(r'invalid \w+ value: "[^"]*"')
# Rolled back (deadlock), out of resources, object in use, stopped by someone.
_MAY_PASS = ("40", "53", "55", "57")


def normalise_url(url: str | URL) -> URL:
    """Return the URL with this project's driver; `postgres://` and `postgresql://` both work.

    Raises:
        ConfigurationError: The URL cannot be read, or names another kind of database.
    """
    try:
        parsed = make_url(url.strip() if isinstance(url, str) else url)
    except (sa_exc.ArgumentError, ValueError):
        raise ConfigurationError(_UNREADABLE) from None
    backend, _, driver = parsed.drivername.partition("+")
    if backend not in ("postgresql", "postgres") or driver not in ("", "psycopg"):
        raise ConfigurationError(
            f"The database URL begins with {parsed.drivername}://; this project needs "
            "postgresql:// (psycopg 3)."
        )
    if not _is_host(parsed.host or ""):
        raise ConfigurationError(_UNREADABLE)
    if not parsed.database and "dbname" not in parsed.query:
        raise ConfigurationError(f"The database URL {display_url(parsed)} names no database.")
    return parsed.set(drivername=_DRIVER)


def _is_host(host: str) -> bool:
    # What follows an unencoded @ of a password is read as the host, and would be shown as one.
    if "@" in host:
        return False
    try:
        host.encode("idna")  # as asyncio will; there the error would be no driver error
    except UnicodeError:
        return False
    return True


def display_url(url: str | URL) -> str:
    """Return the URL for people, with passwords hidden, those in the query included."""
    parsed = make_url(url)
    hidden = {name: "hidden" for name in parsed.query if "password" in name.lower()}
    return parsed.update_query_dict(hidden).render_as_string(hide_password=True)


def _engine_options(settings: RegistrySettings, *, pooled: bool) -> dict[str, Any]:
    connect_args: dict[str, Any] = {
        "connect_timeout": max(2, round(settings.connect_timeout_s)),
        "application_name": "toolrag",
    }
    if not settings.prepared_statements:
        connect_args["prepare_threshold"] = None
    options: dict[str, Any] = {
        "hide_parameters": True,  # questions and descriptions stay out of tracebacks
        "connect_args": connect_args,
    }
    if not pooled:
        return {"poolclass": NullPool, **options}
    return {
        "pool_size": settings.pool_size,
        "max_overflow": settings.max_overflow,
        "pool_timeout": settings.pool_timeout_s,
        **options,
    }


def create_registry_engine(url: URL, settings: RegistrySettings, *, pooled: bool = True) -> Engine:
    """Return the registry's one engine and pool; nothing is connected yet.

    Args:
        url: As `normalise_url` returns it.
        settings: Pool and time limits.
        pooled: False for connections that are closed after use, and their settings with them.
    """
    return create_engine(url, **_engine_options(settings, pooled=pooled))


def create_registry_engine_async(
    url: URL, settings: RegistrySettings, *, pooled: bool = True
) -> AsyncEngine:
    """Async twin of `create_registry_engine`."""
    return create_async_engine(url, **_engine_options(settings, pooled=pooled))


@contextmanager
def translated_errors(url: URL) -> Generator[None]:
    """Turn driver errors into errors of this project; none escapes bare.

    Raises:
        RegistryUnavailableError: No connection, connection lost, pool exhausted, time-out, or
            the server gave up a statement (deadlock, disk full) that may work when tried again.
        RegistryError: The server refused the statement.
        ConfigurationError: A parameter of the URL has no such value.
    """
    try:
        yield
    except psycopg.Error as error:  # from a statement that went past SQLAlchemy
        raise _translated(url, error) from error
    except sa_exc.TimeoutError as error:
        raise RegistryUnavailableError(
            f"All connections to {display_url(url)} are in use. Raise pool_size or max_overflow, "
            "or call fewer searches at once."
        ) from error
    except sa_exc.SQLAlchemyError as error:
        raise _translated(url, getattr(error, "orig", None) or error) from error


def _translated(url: URL, cause: BaseException) -> ToolRAGError:
    """Return our error for one of the driver, or of SQLAlchemy where there is none beneath."""
    if isinstance(cause, (psycopg.OperationalError, psycopg.InterfaceError)):
        state = cause.sqlstate or ""
        if not state and (bad := _BAD_PARAMETER.search(str(cause))) is not None:
            return ConfigurationError(
                f"The database URL {display_url(url)} cannot be used: {bad.group()}."
            )
        # The driver gives no state where there was no connection; 57P: shut down or starting.
        if not state or state.startswith(("08", "57P")):
            return RegistryUnavailableError(
                f"The database {display_url(url)} does not answer: {_reason(cause)}. "
                "Check the URL and that the server runs."
            )
        if state.startswith(_MAY_PASS):
            return RegistryUnavailableError(
                f"The database {display_url(url)} stopped a statement: {_reason(cause)}."
            )
    return RegistryError(f"The database {display_url(url)} refused a statement: {_reason(cause)}.")


def _reason(cause: BaseException) -> str:
    """First line of what the server said; never the statement or its parameters."""
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    said = lines[0].rstrip(".") if lines else type(cause).__name__
    advice = _ADVICE.get(getattr(cause, "sqlstate", None) or "")
    return f"{said} ({advice})" if advice else said
