"""Statements in the driver's own form: compiled once, sent without SQLAlchemy's machinery.

Compiling, caching and wrapping rows cost a search more than the search itself takes in a small
registry; what is sent is the same SQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from registry.statements._rows import Rows

__all__ = ["DriverStatement"]

_DIALECT = PGDialect_psycopg()


@dataclass(frozen=True, slots=True)
class DriverStatement:
    """SQL with `%(name)s` binds, and the values that are always the same.

    Attributes:
        sql: What is sent.
        fixed: Values that the statement was built with.
    """

    sql: str
    fixed: Mapping[str, Any]

    @classmethod
    def of(cls, statement: Rows) -> DriverStatement:
        """Compile a statement; binds without a value are given with each call."""
        compiled = statement.compile(dialect=_DIALECT)
        values: Mapping[str, Any] = compiled.construct_params(_check=False)
        return cls(compiled.string, {name: v for name, v in values.items() if v is not None})
