"""How threads are kept."""

from __future__ import annotations

from dataclasses import dataclass

from registry.errors import ConfigurationError

__all__ = ["DurableThreads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableThreads:
    """How an agent's threads are kept in the registry's database.

    Attributes:
        lease_s: Whole seconds that a killed process keeps others from its thread, 2 to 3,600. A
            running one prolongs its hold from a thread of its own; one that stands still for
            longer (a suspended machine, code that holds the interpreter) loses the thread.

    Raises:
        ConfigurationError: A value is out of range.
    """

    lease_s: int = 15

    def __post_init__(self) -> None:
        value = self.lease_s
        if isinstance(value, bool) or not isinstance(value, int) or not 2 <= value <= 3_600:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"DurableThreads: lease_s is {value!r}; it must be a whole number from 2 to 3600"
            )
