from __future__ import annotations

import traceback
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg
from sqlalchemy import exc as sa_exc
from sqlalchemy.engine import URL

from registry.database import (
    create_registry_engine,
    create_registry_engine_async,
    display_url,
    normalise_url,
    translated_errors,
)
from registry.errors import ConfigurationError, RegistryError, RegistryUnavailableError
from registry.settings import RegistrySettings

_URL = normalise_url("postgresql://ann:hush@db.example/tools")


class TestNormaliseUrl:
    @pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
    def test_every_usual_scheme_is_taken(self, scheme: str) -> None:
        url = normalise_url(f"{scheme}://ann:hush@db.example:6000/tools?sslmode=require")
        assert url.render_as_string(hide_password=False) == (
            "postgresql+psycopg://ann:hush@db.example:6000/tools?sslmode=require"
        )

    def test_a_url_object_is_taken(self) -> None:
        assert normalise_url(_URL) == _URL

    def test_space_around_it_is_dropped(self) -> None:
        assert normalise_url(f" {_URL.render_as_string(hide_password=False)}\n") == _URL

    def test_a_socket_folder_is_taken(self) -> None:
        url = normalise_url("postgresql://ann@/tools?host=/run/a folder")
        assert url.query["host"] == "/run/a folder"

    def test_the_name_may_stand_in_the_query(self) -> None:
        assert normalise_url("postgresql://db/?dbname=tools").query["dbname"] == "tools"

    @pytest.mark.parametrize("password", ["p@ss", "50%", "a/b:c", "ü ?#", "%40"])
    def test_an_encoded_password_comes_through(self, password: str) -> None:
        url = URL.create("postgresql", "ann", password, "db.example", 5432, "tools")
        assert normalise_url(url.render_as_string(hide_password=False)).password == password

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "   ",
            "hush",
            "db.example/tools",
            "postgresql://ann:hush@db.example:port/tools",
            "postgresql://ann:pa@hush@db.example/tools",
            "postgresql://ann:hush@db..example/tools",
            f"postgresql://ann:hush@{'d' * 64}/tools",
        ],
    )
    def test_what_cannot_be_read_is_refused_without_repeating_it(self, url: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            normalise_url(url)
        assert str(caught.value).startswith("The database URL cannot be read. Expected postgresql:")
        assert "hush" not in everything_shown(caught.value)

    @pytest.mark.parametrize(
        "scheme", ["mysql", "sqlite", "postgresql+asyncpg", "postgresql+psycopg2", "cockroachdb"]
    )
    def test_another_kind_of_database_is_refused_by_its_name(self, scheme: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            normalise_url(f"{scheme}://ann:hush@db.example/tools")
        assert f"begins with {scheme}://" in str(caught.value)
        assert "hush" not in everything_shown(caught.value)

    @pytest.mark.parametrize("url", ["postgresql://ann:hush@db.example", "postgresql://ann:hush@/"])
    def test_a_url_without_database_is_refused(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match="names no database") as caught:
            normalise_url(url)
        assert "hush" not in everything_shown(caught.value)


class TestDisplayUrl:
    @pytest.mark.parametrize(
        "url",
        [
            "postgresql://ann:hush@db/tools",
            "postgresql://ann@db/tools?password=hush&sslmode=require",
            "postgresql://ann@db/tools?sslpassword=hush",
            "postgresql://ann@db/tools?PASSWORD=hush",
        ],
    )
    def test_a_password_is_hidden_wherever_it_is(self, url: str) -> None:
        shown = display_url(url)
        assert "hush" not in shown
        assert "***" in shown or "=hidden" in shown
        assert "ann" in shown

    def test_what_is_no_secret_is_shown(self) -> None:
        url = "postgresql://ann@db:6000/tools?sslmode=require"
        assert display_url(url) == url


class TestEngines:
    @pytest.mark.parametrize("create", [create_registry_engine, create_registry_engine_async])
    def test_the_pool_is_as_set_and_nothing_is_connected(self, create: Any) -> None:
        settings = RegistrySettings(pool_size=3, max_overflow=4)
        engine = create(_URL, settings)
        pool = getattr(engine, "sync_engine", engine).pool
        assert (pool.size(), pool.checkedout(), pool.checkedin()) == (3, 0, 0)
        assert pool._max_overflow == 4

    @pytest.mark.parametrize("create", [create_registry_engine, create_registry_engine_async])
    def test_an_engine_shows_no_password(self, create: Any) -> None:
        assert "hush" not in repr(create(_URL, RegistrySettings()))


class TestTranslatedErrors:
    @pytest.mark.parametrize(
        ("kind", "cause", "expected", "said"),
        [
            (
                sa_exc.OperationalError,
                psycopg.OperationalError("connection failed: refused\nIs the server running?"),
                RegistryUnavailableError,
                "does not answer: connection failed: refused. Check the URL and that the server",
            ),
            (
                sa_exc.OperationalError,
                pg.AdminShutdown("terminating connection due to administrator command"),
                RegistryUnavailableError,
                "does not answer: terminating connection",
            ),
            (
                sa_exc.InterfaceError,
                psycopg.InterfaceError("the connection is closed"),
                RegistryUnavailableError,
                "does not answer: the connection is closed.",
            ),
            (
                sa_exc.OperationalError,
                pg.QueryCanceled("canceling statement due to statement timeout"),
                RegistryUnavailableError,
                "stopped a statement: .* longer than statement_timeout_s",
            ),
            (
                sa_exc.OperationalError,
                pg.DeadlockDetected("deadlock detected"),
                RegistryUnavailableError,
                "stopped a statement: deadlock detected.",
            ),
            (
                sa_exc.OperationalError,
                pg.DiskFull("could not extend file: No space left on device"),
                RegistryUnavailableError,
                "stopped a statement: could not extend file",
            ),
            (
                sa_exc.OperationalError,
                pg.ProgramLimitExceeded("column cannot have more than 4000 dimensions"),
                RegistryError,
                "refused a statement: column cannot have more than 4000 dimensions.",
            ),
            (
                sa_exc.ProgrammingError,
                pg.InsufficientPrivilege("permission denied for table tool_registry"),
                RegistryError,
                r"refused a statement: .* \(the database user lacks a privilege\)",
            ),
            (
                sa_exc.ProgrammingError,
                pg.UndefinedTable('relation "tool_registry" does not exist'),
                RegistryError,
                "run `toolrag db upgrade`",
            ),
            (
                sa_exc.InternalError,
                pg.ReadOnlySqlTransaction("cannot execute INSERT in a read-only transaction"),
                RegistryError,
                "the database or this connection is read-only",
            ),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
    )
    def test_each_kind_is_told_in_one_line(
        self, kind: Any, cause: Exception, expected: type[Exception], said: str
    ) -> None:
        error = kind("SELECT 'question of a user'", {"vector": "[1,2]"}, cause)
        with pytest.raises(RegistryError, match=said) as caught, translated_errors(_URL):
            raise error
        assert type(caught.value) is expected
        assert caught.value.__cause__ is error
        message = str(caught.value)
        assert "postgresql+psycopg://ann:***@db.example/tools" in message
        assert "\n" not in message
        assert "question of a user" not in message
        assert "hush" not in message

    def test_an_exhausted_pool_is_an_error_of_its_own(self) -> None:
        with (
            pytest.raises(RegistryUnavailableError, match="Raise pool_size or max_overflow"),
            translated_errors(_URL),
        ):
            raise sa_exc.TimeoutError("QueuePool limit of size 5 overflow 5 reached")

    @pytest.mark.parametrize("error", [ValueError("bug"), RegistryError("ours"), KeyError("x")])
    def test_everything_else_passes_untouched(self, error: Exception) -> None:
        with pytest.raises(type(error)) as caught, translated_errors(_URL):
            raise error
        assert caught.value is error

    def test_a_server_that_is_not_there_is_told_without_the_password(self) -> None:
        url = normalise_url("postgresql://ann:hush@127.0.0.1:1/tools?sslpassword=hush")
        engine = create_registry_engine(url, RegistrySettings(connect_timeout_s=2))
        with (
            pytest.raises(RegistryUnavailableError, match="does not answer") as caught,
            translated_errors(url),
        ):
            engine.connect()
        assert "\n" not in str(caught.value)
        assert "hush" not in everything_shown(caught.value)

    @pytest.mark.parametrize("parameter", ["sslmode", "channel_binding", "target_session_attrs"])
    def test_a_parameter_with_a_wrong_value_is_no_fault_of_the_server(self, parameter: str) -> None:
        url = normalise_url(f"postgresql://ann:hush@127.0.0.1:1/tools?{parameter}=bogus")
        engine = create_registry_engine(url, RegistrySettings(connect_timeout_s=2))
        with (
            pytest.raises(
                ConfigurationError, match=f'invalid {parameter} value: "bogus"'
            ) as caught,
            translated_errors(url),
        ):
            engine.connect()
        assert "does not answer" not in str(caught.value)
        assert "hush" not in everything_shown(caught.value)

    async def test_the_async_engine_tells_the_same(self) -> None:
        url = normalise_url("postgresql://ann:hush@127.0.0.1:1/tools")
        engine = create_registry_engine_async(url, RegistrySettings(connect_timeout_s=2))
        with pytest.raises(RegistryUnavailableError, match="does not answer") as caught:
            with translated_errors(url):
                await engine.connect()
        await engine.dispose()
        assert "hush" not in everything_shown(caught.value)


def everything_shown(error: BaseException) -> str:
    """Return what a log would show, the chain of causes included, but not the source lines."""
    return "".join(
        line for line in traceback.format_exception(error) if not line.lstrip().startswith("File ")
    )
