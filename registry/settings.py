"""Frozen settings. Only the command line and `migrations/env.py` read the environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Self

from registry.errors import ConfigurationError

__all__ = ["RegistrySettings"]

_NAMESPACE = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_FROM_TEXT: dict[str, tuple[Callable[[str], str | int | float | bool], str]] = {
    "str": (str, "a text"),
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "bool": (lambda raw: _TRUTH[raw.lower()], "true or false"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySettings:
    """How a registry connects, embeds and searches.

    Attributes:
        namespace: Tenant whose tools are seen, `[A-Za-z0-9_.:-]{1,100}`.
        pool_size: Connections kept open; one pool a registry.
        max_overflow: Connections opened beyond `pool_size` under load, then closed again.
        pool_timeout_s: Longest wait for a free connection, seconds.
        connect_timeout_s: Longest wait for a new connection, seconds.
        statement_timeout_s: Longest run of one statement, seconds.
        prepared_statements: False behind a pooler in transaction mode, where a prepared statement
            may be on another server connection than the next call.
        embedding_batch_size: Texts in one embedding request; an `Embedder` has its own.
        query_cache_size: Question vectors kept in memory, per registry.
        embed_timeout_s: Longest wait for the vectors of a question, seconds, its client's retries
            included; then the model counts as one that does not answer. Tools have no such limit.
        lease_s: How long a process may be silent before another takes its work over, seconds;
            more than one embedding request takes, its retries included.
        lease_wait_s: Longest wait for another process's sync, seconds.
        index_min_tools: Vectors of one model from which a sync makes an HNSW index; below it an
            exact scan is as fast.
        ef_search: Candidate list of an index scan, twice that from 30,000 vectors on; raised where
            `k` needs more.
        word_weight: What words count for beside vectors, 0 (vectors alone) to 10.
        auto_calibrate: Whether a sync measures what relevance means here where that was never
            done, or a fifth of the tools came or went; it embeds 60 short texts and 60 questions.
        clauses: Whether a compound question is also searched in parts, at most four.
        rerank_candidates: Hits that a reranker is given, where the registry has one.
        search_by_words_alone: Whether words find tools when the embedding model does not answer;
            else such a search fails.

    Raises:
        ConfigurationError: A value is out of range.
    """

    namespace: str = "default"
    pool_size: int = 5
    max_overflow: int = 5
    pool_timeout_s: float = 10.0
    connect_timeout_s: float = 10.0
    statement_timeout_s: float = 30.0
    prepared_statements: bool = True
    embedding_batch_size: int = 128
    query_cache_size: int = 1_024
    embed_timeout_s: float = 10.0
    lease_s: float = 60.0
    lease_wait_s: float = 900.0
    index_min_tools: int = 2_000
    ef_search: int = 100
    word_weight: float = 0.4
    clauses: bool = True
    auto_calibrate: bool = True
    rerank_candidates: int = 20
    search_by_words_alone: bool = True

    def __post_init__(self) -> None:
        # None is what a tenant's name is where it was not found: that must not reach a search.
        if not isinstance(self.namespace, str) or not _NAMESPACE.fullmatch(self.namespace):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"namespace is {self.namespace!r}; use 1 to 100 characters of A-Z a-z 0-9 _ . : -"
            )
        for name in ("prepared_statements", "clauses", "auto_calibrate", "search_by_words_alone"):
            if not isinstance(value := getattr(self, name), bool):
                raise ConfigurationError(f"{name} is {value!r}; it must be True or False")
        for name, low, high in (
            ("pool_size", 1, 1_000),
            ("max_overflow", 0, 1_000),
            ("pool_timeout_s", 0.001, 3_600),
            ("connect_timeout_s", 1, 3_600),
            ("statement_timeout_s", 0.001, 86_400),
            ("embedding_batch_size", 1, 2_048),
            ("query_cache_size", 0, 1_000_000),
            ("embed_timeout_s", 0.001, 3_600),
            ("lease_s", 1, 3_600),
            ("lease_wait_s", 0, 86_400),
            ("index_min_tools", 1, 1_000_000_000),
            ("ef_search", 1, 1_000),
            ("word_weight", 0, 10),
            ("rerank_candidates", 1, 1_000),
        ):
            value = getattr(self, name)
            whole = not name.endswith(("_s", "_weight"))
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                kind = "a whole number" if whole else "a number"
                raise ConfigurationError(f"{name} is {value!r}; it must be {kind}")
            if not low <= value <= high:
                raise ConfigurationError(f"{name} is {value}; it must be from {low} to {high}")

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Read `TOOLRAG_<FIELD>` variables, for example `TOOLRAG_POOL_SIZE=10`.

        Raises:
            ConfigurationError: A variable is not a number where one is needed, or out of range.
        """
        values: dict[str, str | int | float | bool] = {}
        for f in fields(cls):
            variable = f"TOOLRAG_{f.name.upper()}"
            raw = environ.get(variable, "").strip()
            if not raw:
                continue
            convert, kind = _FROM_TEXT[str(f.type)]
            try:
                values[f.name] = convert(raw)
            except (KeyError, ValueError):
                raise ConfigurationError(f"{variable} is {raw!r}, which is not {kind}") from None
        return cls(**values)  # type: ignore[arg-type]
