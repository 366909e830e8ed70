"""How one tool is treated, and which policy is whose."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from registry.errors import ConfigurationError
from registry.text import nearest_names

__all__ = ["MIN_RESULT_CHARS", "ToolPolicy", "check_policies"]

MIN_RESULT_CHARS = 500  # room for the note that says what was cut


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicy:
    """How the calls of one tool are treated.

    Attributes:
        timeout_s: Seconds for one try, above 0; None for no timeout.
        max_result_chars: Characters of a result that the model is shown, at least 500; the rest is
            kept for `read_more`.
        retries: Further tries after a fault that may pass (a timeout, a lost connection, status
            429 or 5xx), 0 or more. Made for idempotent tools only.
        backoff_s: Longest wait before the first further try; it doubles with each.
        idempotent: A second run does no harm, so the call may be tried again. None: as the
            registry's `read_only` says, or the tool's `metadata["read_only"]`.
        repeat_limit: Equal results of one call in a run after which it is not run again, 2 or
            more; one failure fewer is enough. None for a tool that is polled for long.
        breaker_failures: Failures in a row that the model cannot mend, 1 or more, after which the
            tool is not run for `breaker_reset_s`.
        breaker_reset_s: Seconds until one call is let through again.
        media: What is no text (images, audio, files) is described in words, which every provider
            takes, or kept as it is while it fits.

    Raises:
        ConfigurationError: A value is out of range.
    """

    timeout_s: float | None = 60
    max_result_chars: int = 20_000
    retries: int = 2
    backoff_s: float = 0.5
    idempotent: bool | None = None
    repeat_limit: int | None = 3
    breaker_failures: int = 5
    breaker_reset_s: float = 30
    media: Literal["describe", "keep"] = "describe"

    def __post_init__(self) -> None:
        self._check("timeout_s", self.timeout_s is None or self.timeout_s > 0, "above 0, or None")
        self._check(
            "max_result_chars",
            self.max_result_chars >= MIN_RESULT_CHARS,
            f"at least {MIN_RESULT_CHARS}",
        )
        self._check("retries", self.retries >= 0, "0 or more")
        self._check("backoff_s", self.backoff_s >= 0, "0 or more")
        self._check(
            "repeat_limit",
            self.repeat_limit is None or self.repeat_limit >= 2,
            "2 or more, or None",
        )
        self._check("breaker_failures", self.breaker_failures >= 1, "1 or more")
        self._check("breaker_reset_s", self.breaker_reset_s >= 0, "0 or more")
        self._check("media", self.media in ("describe", "keep"), "'describe' or 'keep'")

    def _check(self, name: str, is_right: bool, expected: str) -> None:
        if not is_right:
            raise ConfigurationError(
                f"ToolPolicy: {name} is {getattr(self, name)!r}; it must be {expected}"
            )


def check_policies(
    policies: Mapping[str, ToolPolicy], *, known_names: Collection[str] | None
) -> None:
    """Pass a mapping of policies by tool name.

    Args:
        policies: As given.
        known_names: Names of all tools; None when they are not known yet.

    Raises:
        ConfigurationError: A name is not a tool's, or a value is no policy.
    """
    for name, policy in policies.items():
        if not isinstance(policy, ToolPolicy):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"The policy of tool {name!r} is {policy!r}; give a ToolPolicy"
            )
        if known_names is not None and name not in known_names:
            near = nearest_names(name, known_names)
            hint = f" Nearest: {', '.join(near)}." if near else ""
            raise ConfigurationError(f"A policy is given for {name!r}, which is no tool.{hint}")
