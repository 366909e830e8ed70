from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from agent.cli.main import main
from agent.cli.waiting import WaitNotice

LOG = logging.getLogger("registry.store")


@pytest.fixture
def notice() -> Iterator[WaitNotice]:
    notice = WaitNotice()
    with notice.attached():
        yield notice


def test_each_thing_waited_for_is_one_line(
    notice: WaitNotice, capsys: pytest.CaptureFixture[str]
) -> None:
    for lease in ("sync:team-a", "sync:team-a", "embeddings", "sync:team-a"):
        LOG.info("lease_wait", extra={"lease": lease, "waited_s": 0.1})
    LOG.info("something_else", extra={"lease": "sync:team-b"})
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "Waiting for the sync of namespace 'team-a' by another process ...",
        "Waiting for the work on embeddings by another process ...",
    ]


def test_a_later_command_of_the_process_says_it_once_more(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for _ in range(2):
        with WaitNotice().attached():
            LOG.info("lease_wait", extra={"lease": "sync:default", "waited_s": 0.1})
    assert capsys.readouterr().err.count("Waiting") == 2
    assert not any(isinstance(handler, WaitNotice) for handler in LOG.handlers)
    assert LOG.level == logging.NOTSET


def test_a_command_leaves_no_log_handler_behind() -> None:
    handlers = list(logging.getLogger().handlers)
    with pytest.raises(SystemExit):
        main(["--debug", "search"])
    assert logging.getLogger().handlers == handlers
