"""Statements in the driver's own form: compiled once, sent without SQLAlchemy's machinery.

Compiling, caching and wrapping rows cost a search more than the search itself takes in a small
registry; what is sent is the same SQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, LiteralString, cast

from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from registry.statements._rows import Rows

__all__ = ["DriverStatement"]

# The server's own placeholders: the driver would look for others in each text that it sends.
_DIALECT = PGDialect_psycopg(paramstyle="numeric_dollar")


@dataclass(frozen=True, slots=True)
class DriverStatement:
    """SQL with `$1`, `$2`, … for a raw cursor, and the values that are always the same.

    Attributes:
        sql: What is sent.
        names: Of the placeholders, in order.
        fixed: Values that the statement was built with, by name.
    """

    sql: LiteralString
    names: tuple[str, ...]
    fixed: Mapping[str, Any]

    @classmethod
    def of(cls, statement: Rows) -> DriverStatement:
        """Compile a statement; binds without a value are given with each call."""
        compiled = statement.compile(dialect=_DIALECT)
        values: Mapping[str, Any] = compiled.construct_params(_check=False)
        return cls(
            cast("LiteralString", compiled.string),
            tuple(compiled.positiontup or ()),
            {name: value for name, value in values.items() if value is not None},
        )

    def values(self, given: Mapping[str, Any]) -> list[Any]:
        """Return the placeholders' values in order.

        Args:
            given: Of the binds without a value of their own.
        """
        every = {**self.fixed, **given}
        return [every[name] for name in self.names]
