"""What fails, and through whose fault (ERR-1 to ERR-7), with the guard around it."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel, SecretStr

from agent import ToolPolicy, create_tool_rag_agent
from registry.errors import ConfigurationError
from registry.toolset import Toolset
from tests.support.scripted_model import ScriptedModel, asks, call, says

QUICK = ToolPolicy(backoff_s=0)


def tool_messages(output: dict[str, Any]) -> list[ToolMessage]:
    return [message for message in output["messages"] if isinstance(message, ToolMessage)]


def acting(run: Any, *, name: str = "act", **metadata: Any) -> BaseTool:
    def act(n: int = 0) -> Any:
        return run(n)

    return StructuredTool.from_function(
        act,
        name=name,
        description="Act on a thing.",
        args_schema={"type": "object", "properties": {"n": {"type": "integer"}}},
        metadata=metadata or None,
    )


class Failing:
    """A tool's function that raises what it is given, in turn, and then answers."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.runs = 0

    def __call__(self, n: int = 0) -> str:
        self.runs += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def http_error(status: int) -> Exception:
    class HTTPStatusError(Exception):
        status_code = status

    return HTTPStatusError(f"HTTP {status} from https://api.internal.example/v1")


async def run_once(agent_of, driver, a_tool, caplog=None, **options: Any) -> ToolMessage:
    model = ScriptedModel(script=[asks(call(a_tool.name, "id7")), says("ok")])
    agent = agent_of(model, [a_tool], **{"default_policy": QUICK, **options})
    output = await driver.run(agent, "Act on a thing")
    [answer] = tool_messages(output)
    assert (answer.tool_call_id, answer.name) == ("id7", a_tool.name)
    assert output["messages"][-1].text == "ok"
    return answer


class OwnError(Exception):
    pass


@pytest.mark.parametrize("error", [ValueError("wrong x"), OwnError("wrong x"), AssertionError()])
async def test_err_1_an_exception_is_told_and_logged_with_its_trace(
    error, agent_of, driver, caplog
):
    """ERR-1, ERR-5: any class, with its own text or a sentence; with the trace in the log."""
    with caplog.at_level(logging.WARNING, logger="agent"):
        answer = await run_once(agent_of, driver, acting(Failing(error)))
    assert answer.status == "error"
    assert type(error).__name__ in answer.content
    assert (str(error) or "failed without detail") in answer.content
    [record] = [record for record in caplog.records if record.msg == "tool_call_failed"]
    assert record.exc_info[0].__name__ == type(error).__name__
    assert record.exc_info[2] is not None


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("no such city", "no such city"),
        ("", "failed without detail"),
        ([{"type": "image", "base64": "AAAA", "mime_type": "image/png"}], "[image: image/png"),
        ([{"type": "text", "text": "no such city"}], "no such city"),
    ],
)
async def test_err_2_an_error_result_is_text_the_model_can_use(result, expected, agent_of, driver):
    """ERR-2: a result marked as an error, with text, without content, with an image only."""

    def run(n: int = 0) -> ToolMessage:
        return ToolMessage(result, tool_call_id="whatever", status="error")

    answer = await run_once(agent_of, driver, acting(run))
    assert answer.status == "error"
    assert expected in answer.content


async def test_err_2_an_error_exception_of_a_server_is_taken_at_its_word(agent_of, driver):
    """ERR-2: the other channel: LangChain's own exception for what a tool says to the model."""
    answer = await run_once(agent_of, driver, acting(Failing(ToolException("no such city"))))
    assert answer.status == "error"
    assert "no such city" in answer.content


async def test_err_2_a_lost_connection_is_an_outage(agent_of, driver, caplog):
    """ERR-2: inside a task group's exception group, as MCP sessions raise it."""

    class ClosedResourceError(Exception):
        pass

    def run(n: int = 0) -> str:
        raise ExceptionGroup("unhandled errors in a TaskGroup", [ClosedResourceError()])

    with caplog.at_level(logging.WARNING, logger="agent"):
        answer = await run_once(agent_of, driver, acting(run, read_only=True))
    assert "did not answer (ClosedResourceError)" in answer.content
    [record] = [record for record in caplog.records if record.msg == "tool_call_failed"]
    assert record.fault == "passing"


SECRET_TEXTS = [
    ("connect to postgresql://app:hunter2secret@db.internal/shop failed", "hunter2secret"),
    ("postgres://u:pa/ss@word99@db.internal/shop", "word99"),
    ("GET https://api.example.com/v1?api_key=k3y-v4lue-123&city=Oslo", "k3y-v4lue-123"),
    ("headers: {'Authorization': 'Bearer abc.def-123'}", "abc.def-123"),
    ("Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
    ('{"password": "two words"}', "two words"),
    ("accessToken=AbCdEf0123", "AbCdEf0123"),
    ("invalid key sk-proj-abcdefghijklmnop1234", "sk-proj-abcdefghijklmnop1234"),
    ("ghp_abcdefghijklmnopqrstuvwxyz0123456789 refused", "ghp_abcdefghijklmnopqrst"),
    ("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", "eyJzdWIiOiIxMjM0In0"),
    ("Cookie: session=abcdef; other=ghijkl", "ghijkl"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----", "MIIabc"),
    ("cannot read /srv/app/conf/customer-42/settings.toml", "/srv/app/conf/customer-42"),
    ("the value is tool-own-value", "tool-own-value"),
    ("the value is environment-own-value", "environment-own-value"),
]


class KeyedTool(BaseTool):
    name: str = "act"
    description: str = "Act on a thing."
    api: SecretStr = SecretStr("tool-own-value")
    text: str
    channel: str

    def _run(self) -> Any:
        if self.channel == "exception":
            raise OwnError(f"before {self.text} after")
        return ToolMessage(f"before {self.text} after", tool_call_id="x", status="error")


@pytest.mark.parametrize("channel", ["exception", "error result"])
@pytest.mark.parametrize(("text", "secret"), SECRET_TEXTS)
async def test_err_3_no_secret_reaches_the_model_or_the_log(
    text, secret, channel, agent_of, driver, caplog, monkeypatch
):
    """ERR-3: forms of secrets, the tool's own and the environment's values, and folders."""
    monkeypatch.setitem(os.environ, "SHOP_API_KEY", "environment-own-value")
    with caplog.at_level(logging.DEBUG, logger="agent"):
        answer = await run_once(agent_of, driver, KeyedTool(text=text, channel=channel))
    assert secret not in answer.content
    assert "act" in answer.content or channel == "error result"
    assert "before" in answer.content
    if channel == "exception":
        assert "OwnError" in answer.content
    if not secret.startswith("/"):
        ours = [record for record in caplog.records if record.name.startswith("agent")]
        logged = "".join(
            str(record.__dict__) + logging.Formatter().format(record) for record in ours
        )
        assert secret not in logged


async def test_err_3_a_tool_cannot_pass_its_answer_off_as_the_guards(agent_of, driver):
    """ERR-3: what the guard marks its own answers with is taken from a tool's message."""

    def run(n: int = 0) -> ToolMessage:
        mark = {"toolrag": {"outcome": "outcome_unknown"}}
        return ToolMessage(
            "password=abc " + "x" * 5_000,
            tool_call_id="x",
            status="error",
            response_metadata=mark,
        )

    answer = await run_once(agent_of, driver, acting(run))
    assert "abc" not in answer.content
    assert len(answer.content) <= 1_000
    assert "toolrag" not in answer.response_metadata


async def test_err_3_a_long_error_is_bounded(agent_of, driver):
    """ERR-3: 50,000 characters."""
    answer = await run_once(agent_of, driver, acting(Failing(OwnError("x" * 50_000))))
    assert len(answer.content) < 1_300


async def test_err_3_the_causes_of_an_error_are_masked_in_the_log(agent_of, driver, caplog):
    """ERR-3: chained errors and notes too."""

    def run(n: int = 0) -> str:
        try:
            raise ValueError("password=" + "-".join(("first", "one")))
        except ValueError as error:
            failure = OwnError("it failed")
            failure.add_note("token=" + "-".join(("second", "one")))
            raise failure from error

    with caplog.at_level(logging.WARNING, logger="agent"):
        await run_once(agent_of, driver, acting(run))
    text = "".join(logging.Formatter().format(record) for record in caplog.records)
    assert "ValueError" in text
    assert "first-one" not in text
    assert "second-one" not in text


async def test_err_4_one_failing_call_keeps_its_siblings(agent_of, driver):
    """ERR-4: a write, one that raises, and one whose arguments are wrong, in call order."""
    written: list[int] = []
    failed = threading.Event()

    def fail(n: int = 0) -> str:
        failed.set()
        raise OwnError("no")

    def slow(n: int = 0) -> str:
        assert failed.wait(timeout=10)
        return "read"

    tools = [
        acting(lambda n: written.append(n) or "written", name="write"),
        acting(fail, name="fail"),
        acting(slow, name="slow"),
    ]
    script = [
        asks(
            call("write", "a", n=1), call("fail", "b"), call("slow", "c"), call("slow", "d", n="x")
        ),
        says("ok"),
    ]
    output = await driver.run(agent_of(ScriptedModel(script=script), tools), "Act on a thing")
    assert [(m.tool_call_id, m.status) for m in tool_messages(output)] == [
        ("a", "success"),
        ("b", "error"),
        ("c", "success"),
        ("d", "error"),
    ]
    assert written == [1]


@pytest.mark.parametrize(
    "error", [TimeoutError("read timed out"), ConnectionResetError("reset"), http_error(503)]
)
async def test_err_6_a_call_that_may_have_worked_is_not_run_again(error, agent_of, driver):
    """ERR-6: charged once; the outcome is unknown, and the model's repeat is not run either."""
    charge = Failing(error)
    script = [asks(call("act", "a")), asks(call("act", "b")), says("Not known.")]
    agent = agent_of(ScriptedModel(script=script), [acting(charge)], default_policy=QUICK)
    first, second = tool_messages(await driver.run(agent, "Act on a thing"))
    assert charge.runs == 1
    assert "outcome is unknown" in first.content
    assert "Do not repeat" in first.content
    assert "It may have worked, so it was not run again" in second.content


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError("read timed out"),
        ConnectionResetError("reset"),
        ConnectionRefusedError("refused"),
        http_error(429),
        http_error(503),
    ],
)
@pytest.mark.parametrize(
    ("metadata", "policy"),
    [
        ({"read_only": True}, QUICK),
        ({}, ToolPolicy(backoff_s=0, idempotent=True)),
    ],
    ids=["read-only", "idempotent"],
)
async def test_err_6_a_harmless_call_is_tried_again(
    error, metadata, policy, agent_of, driver, caplog
):
    """ERR-6: search fails twice, then answers; each further try is logged."""
    search = Failing(error, error)
    with caplog.at_level(logging.WARNING, logger="agent"):
        answer = await run_once(agent_of, driver, acting(search, **metadata), default_policy=policy)
    assert (search.runs, answer.content) == (3, "done")
    assert [record.msg for record in caplog.records] == ["tool_call_tried_again"] * 2


async def test_err_6_tries_end(agent_of, driver):
    """ERR-6: after the last try the model is told that there is no answer."""
    search = Failing(*[TimeoutError()] * 9)
    answer = await run_once(agent_of, driver, acting(search, read_only=True))
    assert search.runs == 3
    assert "did not answer in time (TimeoutError)" in answer.content


@pytest.mark.parametrize("error", [ValueError("no"), http_error(404), ToolException("no")])
async def test_err_6_what_no_try_can_mend_is_not_tried_again(error, agent_of, driver):
    search = Failing(error)
    answer = await run_once(agent_of, driver, acting(search, read_only=True))
    assert (search.runs, answer.status) == (1, "error")


async def test_err_6_the_registry_has_the_last_word_on_read_only(driver, make_registry):
    """ERR-6: the flag was taken away in the registry; what code says of it counts no more."""
    search = Failing(TimeoutError())
    toolset = Toolset([acting(search, read_only=True)])
    registry = make_registry(toolset)
    twin = getattr(registry, "sync_twin", registry)
    spec = twin.specs["act"]
    twin.specs["act"] = type(spec)(
        **{
            name: getattr(spec, name)
            for name in spec.__dataclass_fields__
            if spec.__dataclass_fields__[name].init
        }
        | {"read_only": False}
    )
    agent = create_tool_rag_agent(
        ScriptedModel(script=[asks(call("act")), says("ok")]),
        registry=registry,
        toolset=toolset,
        threshold=0,
        default_policy=QUICK,
    )
    [answer] = tool_messages(await driver.run(agent, "Act on a thing"))
    assert search.runs == 1
    assert "outcome is unknown" in answer.content


async def test_err_6_a_tool_that_hangs_is_given_up(agent_of, driver):
    """ERR-6: the time of a try is limited, and the outcome of what was given up is unknown."""
    release, began = threading.Event(), threading.Event()

    def hang(n: int = 0) -> str:
        began.set()
        release.wait(timeout=20)
        return "late"

    policies = {"act": ToolPolicy(timeout_s=0.05)}
    try:
        answer = await run_once(agent_of, driver, acting(hang), policies=policies)
    finally:
        release.set()
    assert began.is_set()
    assert "outcome is unknown" in answer.content


def no_such_module(n: int = 0) -> str:
    import no_such_module_anywhere  # noqa: F401

    return "done"


def no_such_variable(n: int = 0) -> str:
    return os.environ["NO_SUCH_VARIABLE_ANYWHERE"]


def unset_key(n: int = 0) -> str:
    class Client(BaseModel):
        pass

    raise ValueError("The api_key client option must be set either by passing api_key or by env")


class OperationalError(Exception):
    """As psycopg's and SQLAlchemy's are called."""


@pytest.mark.parametrize(
    "run",
    [
        no_such_module,
        no_such_variable,
        unset_key,
        ConnectionRefusedError(111, "Connection refused"),
        http_error(401),
        OperationalError('connection to server at "db.internal" failed'),
        RuntimeError("Event loop is closed"),
        NotImplementedError("StructuredTool does not support sync invocation."),
    ],
    ids=lambda run: getattr(run, "__name__", type(run).__name__),
)
async def test_err_7_a_fault_of_the_program_is_told_apart(run, agent_of, driver, caplog):
    """ERR-7: "temporarily unavailable", no detail, repeats cut short, an alert in the log."""
    if isinstance(run, Exception):
        run = Failing(*[run] * 9)
    script = [asks(call("act", f"c{number}")) for number in range(4)]
    model = ScriptedModel(script=[*script, says("ok")])
    agent = agent_of(model, [acting(run)], default_policy=QUICK)
    with caplog.at_level(logging.CRITICAL, logger="agent"):
        output = await driver.run(agent, "Act on a thing")
    first, second, third, *_ = tool_messages(output)
    for answer in (first, second):
        assert "temporarily unavailable" in answer.content
        assert "not a mistake in the call" in answer.content
        assert "db.internal" not in answer.content
    assert "This is a repeat" in third.content
    assert [record.msg for record in caplog.records] == ["tool_set_up_fault"] * 2
    assert output["stop_reason"] == "no_progress"


async def test_err_7_a_statement_the_model_got_wrong_is_its_own_mistake(agent_of, driver, caplog):
    """ERR-7: the same class of a database driver, but the reason is in the arguments."""

    def query(n: int = 0) -> str:
        return str(sqlite3.connect(":memory:").execute("SELECT * FROM no_such_table"))

    with caplog.at_level(logging.CRITICAL, logger="agent"):
        answer = await run_once(agent_of, driver, acting(query))
    assert "no such table: no_such_table" in answer.content
    assert not caplog.records


async def test_err_7_a_value_the_tool_itself_cannot_read_is_no_wrong_argument(agent_of, driver):
    """ERR-7: the tool validates an answer of its service; LangGraph blames the arguments."""

    class Weather(BaseModel):
        degrees: int

    @tool
    def act(n: int = 0) -> str:
        """Act on a thing."""
        return str(Weather.model_validate({"degrees": "cold"}))

    answer = await run_once(agent_of, driver, act)
    assert "act' failed: ValidationError" in answer.content
    assert "degrees" in answer.content
    assert "kwargs" not in answer.content


async def test_err_7_a_tool_that_keeps_failing_is_left_alone(agent_of, driver, caplog):
    """ERR-7: after failures in a row it is not run, whatever the arguments; others are."""
    down, up = Failing(*[http_error(401)] * 9), Failing()
    tools = [acting(down), acting(up, name="other")]
    script = [
        *(asks(call("act", f"c{number}", n=number)) for number in range(3)),
        asks(call("other", "o")),
        says("ok"),
    ]
    agent = agent_of(
        ScriptedModel(script=script), tools, default_policy=ToolPolicy(breaker_failures=2)
    )
    with caplog.at_level(logging.WARNING, logger="agent"):
        answers = tool_messages(await driver.run(agent, "Act on a thing"))
    assert (down.runs, up.runs) == (2, 1)
    assert "temporarily unavailable, so nothing was run" in answers[2].content
    assert answers[3].content == "done"
    messages = [record.msg for record in caplog.records]
    assert messages.count("tool_breaker_opened") == 1
    assert messages.count("tool_breaker_is_open") == 1


@pytest.mark.parametrize("written", ["acct", "ACT", "functions.act"])
async def test_err_8_an_unknown_name_without_tool_rag(written, driver):
    """ERR-8: the guard alone names the nearest tools, not all of them, and not its own."""
    from langchain.agents import create_agent

    from agent import ToolGuardMiddleware

    run = Failing()
    others = [acting(run, name=f"unrelated_{number}") for number in range(30)]
    agent = create_agent(
        ScriptedModel(script=[asks(call(written.replace(".", "_"), "u")), says("ok")]),
        [acting(run), *others],
        middleware=[ToolGuardMiddleware()],
    )
    [answer] = tool_messages(await driver.run(agent, "Act"))
    assert (answer.status, answer.tool_call_id, run.runs) == ("error", "u", 0)
    assert "There is no tool" in answer.content
    assert "unrelated_" not in answer.content
    assert "read_more" not in answer.content


async def test_err_4_a_run_stopped_inside_a_tool_leaves_a_thread_that_goes_on(driver, agent_of):
    """ERR-4: cancelled from outside, or by Ctrl-C; the open call is answered on the way on."""
    began = asyncio.Event()

    async def hang(n: int = 0) -> str:
        began.set()
        await asyncio.Event().wait()
        return "never"

    def stop(n: int = 0) -> str:
        raise KeyboardInterrupt

    act = StructuredTool.from_function(stop, hang, name="act", description="Act on a thing.")
    model = ScriptedModel(
        script=[asks(call("act", "a"), call("act", "b", n=1)), says("Hello."), says("Again.")]
    )
    agent = agent_of(model, [act], checkpointer=InMemorySaver())
    if driver.is_async:
        task = asyncio.create_task(driver.run(agent, "Act on a thing", thread_id="t"))
        await asyncio.wait_for(began.wait(), timeout=20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        with pytest.raises(KeyboardInterrupt):
            await driver.run(agent, "Act on a thing", thread_id="t")

    for answer in ("Hello.", "Again."):
        output = await driver.run(agent, "Are you there?", thread_id="t")
        assert output["messages"][-1].text == answer
        told = [m for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
        assert [message.tool_call_id for message in told] == ["a", "b"]
        assert all("took effect is not known" in str(message.content) for message in told)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"timeout_s": 0}, "timeout_s"),
        ({"max_result_chars": 10}, "max_result_chars"),
        ({"retries": -1}, "retries"),
        ({"repeat_limit": 1}, "repeat_limit"),
        ({"breaker_failures": 0}, "breaker_failures"),
        ({"media": "burn"}, "media"),
    ],
)
def test_a_policy_out_of_range_is_refused(values, told):
    with pytest.raises(ConfigurationError, match=told):
        ToolPolicy(**values)


def test_a_policy_for_no_tool_is_refused(world):
    from tests.support.fake_registry import FakeRegistry

    toolset = world.toolset()
    with pytest.raises(
        ConfigurationError, match=r"'refund_polcy', which is no tool.*refund_policy"
    ):
        create_tool_rag_agent(
            ScriptedModel(script=[]),
            registry=FakeRegistry(toolset),
            toolset=toolset,
            policies={"refund_polcy": ToolPolicy()},
        )
