"""Statements about a model's vector index."""

from __future__ import annotations

from sqlalchemy import Integer, Text, TextClause, cast, func, select, text

from registry.migrate import HNSW_INDEX_PREFIX
from registry.statements._rows import Rows
from registry.tables import tool_embedding

__all__ = [
    "MAX_INDEXED_DIMENSIONS",
    "analyze",
    "count_vectors",
    "create_index",
    "current_schema",
    "drop_index",
    "index_name",
    "index_state",
    "set_index_memory",
    "set_no_index_workers",
    "set_statement_timeout",
    "try_index_lock",
    "wait_in_transaction",
]

MAX_INDEXED_DIMENSIONS = 4_000  # pgvector's limit for an HNSW index on halfvec
# Among 10,000 real tools the defaults (m 16, ef_construction 64, ef_search 40) give the exact top 5
# for 80 of 100 questions; these with ef_search 200 for over 99.
_HNSW_OPTIONS = {"m": 24, "ef_construction": 400}
# A vector of 512 dimensions took 2.05 kB in the build: 1 kB of numbers, the rest are links.
_LINKS_BYTES = 1_100
_MAX_INDEX_MEMORY_BYTES = 1_000_000_000
_HNSW_OPERATOR_CLASS = "halfvec_cosine_ops"


def index_name(model_id: int) -> str:
    """Return the name of a model's HNSW index."""
    return f"{HNSW_INDEX_PREFIX}{model_id:d}"


def count_vectors(model_id: int) -> Rows:
    """Count the vectors of a model, of all namespaces."""
    return (
        select(func.count())
        .select_from(tool_embedding)
        .where(tool_embedding.c.embedding_model_id == model_id)
    )


def index_state(model_id: int) -> TextClause:
    """(is_valid, as_expected) of a model's index; no row where there is none.

    Alembic does not compare operator classes, so method, class and options are compared here.
    """
    return text(
        """
        SELECT i.indisvalid AND i.indisready AS is_valid,
               am.amname = 'hnsw' AND oc.opcname = :operator_class
               AND c.reloptions @> CAST(:options AS text[]) AS as_expected
        FROM pg_class AS c
        JOIN pg_index AS i ON i.indexrelid = c.oid
        JOIN pg_am AS am ON am.oid = c.relam
        JOIN pg_opclass AS oc ON oc.oid = i.indclass[0]
        WHERE c.relname = :index_name AND i.indrelid = to_regclass('tool_embedding')
        """
    ).bindparams(
        operator_class=_HNSW_OPERATOR_CLASS,
        options=[f"{name}={value}" for name, value in _HNSW_OPTIONS.items()],
        index_name=index_name(model_id),
    )


def create_index(model_id: int, dimensions: int) -> TextClause:
    """Make a model's index without blocking writers; needs an autocommit connection."""
    options = ", ".join(f"{name} = {value:d}" for name, value in _HNSW_OPTIONS.items())
    return text(
        f"CREATE INDEX CONCURRENTLY {index_name(model_id)} ON tool_embedding "
        f"USING hnsw ((vector::halfvec({dimensions:d})) {_HNSW_OPERATOR_CLASS}) "
        f"WITH ({options}) WHERE embedding_model_id = {model_id:d}"
    )


def drop_index(model_id: int) -> TextClause:
    """Remove a model's index, a left-over invalid one included."""
    return text(f"DROP INDEX CONCURRENTLY IF EXISTS {index_name(model_id)}")


def try_index_lock(model_id: int) -> Rows:
    """Lock the making of a model's index until this transaction ends; false where it is locked.

    A transaction's lock holds behind a pooler as well, where a session's may be left behind.
    """
    return select(func.pg_try_advisory_xact_lock(func.hashtext("toolrag_index"), model_id))


def wait_in_transaction() -> TextClause:
    """Let this transaction be idle as long as it takes, and hold no snapshot meanwhile.

    The portal of a SELECT keeps its snapshot until the next statement, and an index that is made
    concurrently waits for every snapshot older than itself: this one needs none.
    """
    return text("SET LOCAL idle_in_transaction_session_timeout = 0")


def set_index_memory(vectors: int, dimensions: int) -> Rows:
    """Let this session build an index of so many vectors in memory, up to 1 GB.

    A build that outgrows its memory is 4 to 5 times slower; less than the server's own setting is
    never asked for.
    """
    needed = vectors * (2 * dimensions + _LINKS_BYTES)
    kilobytes = cast(min(needed, _MAX_INDEX_MEMORY_BYTES) // 1_024 + 1, Integer)
    present = cast(
        func.pg_size_bytes(func.current_setting("maintenance_work_mem")) / 1_024, Integer
    )
    wanted = cast(func.greatest(kilobytes, present), Text)
    return select(func.set_config("maintenance_work_mem", wanted, False))


def set_no_index_workers() -> Rows:
    """Let this session build an index alone: its workers share memory, and that may be short."""
    return select(func.set_config("max_parallel_maintenance_workers", "0", False))


def analyze() -> tuple[TextClause, ...]:
    """Refresh the planner's statistics after a large sync."""
    return (
        text("ANALYZE tool_registry"),
        text("ANALYZE tool_embedding"),
        text("ANALYZE tool_term"),
        text("ANALYZE tool_term_count"),
    )


def set_statement_timeout(timeout_s: float) -> Rows:
    """Limit the statements of this transaction."""
    return select(func.set_config("statement_timeout", str(round(timeout_s * 1_000)), True))


def current_schema() -> Rows:
    """Name of the schema that this connection works in."""
    return select(func.current_schema())
