from __future__ import annotations

import getpass
import io
import sys

import pytest

from agent.cli.consent import agreed, check_can_ask
from agent.cli.exit_codes import USAGE, CliError
from agent.cli.options import changed_by


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("answer", "consent"),
    [("y\n", True), ("YES \n", True), ("n\n", False), ("\n", False), ("", False), ("yo\n", False)],
)
def test_only_yes_is_consent(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    consent: bool,
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    check_can_ask("tools purge", yes=False)
    assert agreed("Remove \x1b[31mx?", yes=False) is consent
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.rstrip("\n") == "Remove \\x1b[31mx? [y/N] "


def test_an_answer_that_is_no_text_is_no_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"y\xff\n"), "utf-8"))
    assert agreed("Remove x?", yes=False) is False


@pytest.mark.parametrize("stdin", [None, io.StringIO("y\n")])
def test_without_a_terminal_consent_comes_with_the_command(
    monkeypatch: pytest.MonkeyPatch, stdin: io.StringIO | None
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    with pytest.raises(CliError, match=r"`toolrag tools purge` asks .* Add --yes") as told:
        check_can_ask("tools purge", yes=False)
    assert told.value.exit_code == USAGE
    check_can_ask("tools purge", yes=True)
    assert agreed("Remove x?", yes=True)


@pytest.mark.parametrize("error", [KeyError("uid not found: 1234"), OSError("no user")])
def test_who_changes(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def nobody() -> str:
        raise error

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert changed_by("") == ""
    assert changed_by(" release 7 ") == "release 7"
    monkeypatch.setattr(getpass, "getuser", lambda: "ann\udcff")
    assert changed_by(" ") == "ann?"
