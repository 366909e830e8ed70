"""The one MetaData: what `migrations/` builds and `statements.py` queries."""

from __future__ import annotations

from pgvector.sqlalchemy import HALFVEC
from sqlalchemy import (
    ARRAY,
    REAL,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

__all__ = [
    "SCHEMA_REVISION",
    "VERSION_TABLE",
    "embedding_model",
    "metadata",
    "tool_anchor",
    "tool_calibration",
    "tool_call_mark",
    "tool_category",
    "tool_corpus",
    "tool_embedding",
    "tool_history",
    "tool_learning",
    "tool_lease",
    "tool_registry",
    "tool_selection",
    "tool_term",
    "tool_term_count",
    "tool_usage_log",
    "tool_vector_archive",
]

# A test holds this equal to the newest file in migrations/versions.
SCHEMA_REVISION = "0004"
# Not alembic's default name: the application's own migrations may live in the same database.
VERSION_TABLE = "toolrag_schema_version"

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

tool_registry = Table(
    "tool_registry",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    Column("namespace", Text, nullable=False),
    Column("tool_name", Text, nullable=False),
    Column("display_name", Text, nullable=False),
    Column("description", Text, nullable=False),
    Column("category", Text, nullable=False),
    Column("examples", ARRAY(Text), nullable=False),
    Column("binding", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("args_schema", JSONB, nullable=False),
    Column("is_active", Boolean, nullable=False, server_default=text("true")),
    Column("requires_approval", Boolean, nullable=False),
    Column("read_only", Boolean, nullable=False),
    Column("version", Integer, nullable=False, server_default=text("1")),
    Column("content_hash", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    # Of the spec that the last sync brought: what code says, whatever was edited since.
    Column("synced_hash", Text, nullable=True),
    # Of the text to embed: a vector stands for its tool while its source_hash is this.
    Column("text_hash", Text, nullable=False),
    # A short key for the many rows of `tool_term`.
    Column("number", BigInteger, Identity(always=True), nullable=False),
    Column("fallback", Boolean, nullable=False, server_default=text("false")),
    # Which version of `registry.lexical` made the tool's words; 0: none yet.
    Column("terms_revision", Integer, nullable=False, server_default=text("0")),
    UniqueConstraint("namespace", "tool_name"),
    UniqueConstraint("number"),
    CheckConstraint(r"tool_name ~ '^[a-zA-Z0-9_-]{1,64}$'", name="tool_name_legal"),
    CheckConstraint("version >= 1", name="version_positive"),
)

embedding_model = Table(
    "embedding_model",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("name", Text, nullable=False),
    Column("revision", Text, nullable=False),
    Column("dimensions", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("threshold", Double, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    # A rebuild makes a new generation of the same model beside the serving one.
    Column("generation", Integer, nullable=False, server_default=text("1")),
    Column("activated_at", DateTime(timezone=True), nullable=True),
    UniqueConstraint("name", "revision", "dimensions", "generation"),
    CheckConstraint("state IN ('building', 'active', 'retired')", name="state_known"),
    CheckConstraint("dimensions BETWEEN 1 AND 16000", name="dimensions_in_range"),
    CheckConstraint("threshold BETWEEN 0 AND 1", name="threshold_in_range"),
)
# At most one embedding model serves searches.
Index(
    "uq_embedding_model_active",
    embedding_model.c.state,
    unique=True,
    postgresql_where=text("state = 'active'"),
)

tool_embedding = Table(
    "tool_embedding",
    metadata,
    Column("tool_id", Uuid, ForeignKey("tool_registry.id", ondelete="CASCADE"), primary_key=True),
    Column(
        "embedding_model_id",
        Integer,
        ForeignKey("embedding_model.id", ondelete="CASCADE"),
        primary_key=True,
    ),
    # No fixed size: vectors of several models live side by side. The search casts to the size.
    Column("vector", HALFVEC(), nullable=False),
    Column("source_hash", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    # What was learnt from use; `vector` is then the normalised sum of both, else the description's.
    Column("description_vector", HALFVEC(), nullable=True),
    Column("feedback_vector", HALFVEC(), nullable=True),
    Column("feedback_count", Integer, nullable=False, server_default=text("0")),
)
Index("ix_tool_embedding_source_hash", tool_embedding.c.source_hash)

# Vectors that were replaced, by the text they stand for: going back costs no embedding call.
tool_vector_archive = Table(
    "tool_vector_archive",
    metadata,
    Column(
        "embedding_model_id",
        Integer,
        ForeignKey("embedding_model.id", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("source_hash", Text, primary_key=True),
    Column("vector", HALFVEC(), nullable=False),
    Column("archived_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
)

# One row a version. No foreign key: what was purged leaves a row that says so, and nothing else.
tool_history = Table(
    "tool_history",
    metadata,
    Column("tool_id", Uuid, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("namespace", Text, nullable=False),
    Column("tool_name", Text, nullable=False),
    Column("change", Text, nullable=False),
    Column("snapshot", JSONB, nullable=True),
    Column("changed_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    Column("changed_by", Text, nullable=False),
)
Index("ix_tool_history_namespace_tool_name", tool_history.c.namespace, tool_history.c.tool_name)

# Who is doing what only one process should do; a lease of a killed process runs out.
tool_lease = Table(
    "tool_lease",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("expires_at", DateTime(timezone=True), nullable=False),
)

# Words of the active tools, for lexical search; kept in the transaction that changes a tool.
tool_term = Table(
    "tool_term",
    metadata,
    Column("namespace", Text(collation="C"), nullable=False),
    Column("term", Text(collation="C"), nullable=False),
    Column(
        "tool_number",
        BigInteger,
        ForeignKey("tool_registry.number", ondelete="CASCADE"),
        nullable=False,
    ),
    Column("frequency", REAL, nullable=False),
    # Of the whole tool, repeated in each row: a search reads the index alone.
    Column("length", REAL, nullable=False),
)
Index(
    "uq_tool_term_namespace_term_tool_number",
    tool_term.c.namespace,
    tool_term.c.term,
    tool_term.c.tool_number,
    unique=True,
    postgresql_include=["frequency", "length"],
)
Index("ix_tool_term_tool_number", tool_term.c.tool_number)

# Of a namespace, as of its last larger sync: its active tools, and their mean length in words.
tool_corpus = Table(
    "tool_corpus",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("tools", Integer, nullable=False),
    Column("mean_length", REAL, nullable=False),
    Column("counted_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
)

# In how many tools of a namespace the words are that many have, counted with `tool_corpus`.
tool_term_count = Table(
    "tool_term_count",
    metadata,
    Column("namespace", Text(collation="C"), primary_key=True),
    Column("term", Text(collation="C"), primary_key=True),
    Column("tools", Integer, nullable=False),
)

# What turns scores into relevance, of each namespace and embedding model (`registry.relevance`).
tool_calibration = Table(
    "tool_calibration",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column(
        "embedding_model_id",
        Integer,
        ForeignKey("embedding_model.id", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("center", Double, nullable=False),
    Column("spread", Double, nullable=False),
    Column("null_evidence", Double, nullable=False),
    Column("zero", Double, nullable=False),
    # How much of `word_weight` the calls leave to words.
    Column("words_share", Double, nullable=False, server_default=text("1")),
    Column("tools", Integer, nullable=False),
    Column("calls", Integer, nullable=False),
    # What the questions answered here have in common; NULL without recorded calls.
    Column("traffic", HALFVEC(), nullable=True),
    Column("version", Integer, nullable=False, server_default=text("1")),
    Column("calibrated_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
)

# The questions that relevance is measured with: measuring it anew needs no embedding model.
tool_anchor = Table(
    "tool_anchor",
    metadata,
    Column(
        "embedding_model_id",
        Integer,
        ForeignKey("embedding_model.id", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("place", Integer, primary_key=True, autoincrement=False),
    Column("question", Text, nullable=False),
    Column("vector", HALFVEC(), nullable=False),
)

tool_category = Table(
    "tool_category",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("keywords", ARRAY(Text), nullable=False),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
)

# One row a search made for a run; text and vector of the question are optional.
tool_selection = Table(
    "tool_selection",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("namespace", Text, nullable=False),
    Column("run_id", Text, nullable=True),
    Column("thread_id", Text, nullable=True),
    Column("session_id", Text, nullable=True),
    Column("conversation_id", Text, nullable=True),
    Column("query_snippet", Text, nullable=True),
    Column("query_vector", HALFVEC(), nullable=True),
    Column(
        "embedding_model_id",
        Integer,
        ForeignKey("embedding_model.id", ondelete="SET NULL"),
        nullable=True,
    ),
    Column("strategy", Text, nullable=False),
    Column("threshold", Double, nullable=False),
    Column("latency_ms", REAL, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    CheckConstraint("char_length(query_snippet) <= 500", name="snippet_short"),
)
Index(
    "ix_tool_selection_namespace_created_at",
    tool_selection.c.namespace,
    tool_selection.c.created_at,
)

# One row a tool that was found, offered or called for a selection.
tool_usage_log = Table(
    "tool_usage_log",
    metadata,
    Column(
        "selection_id",
        Uuid,
        ForeignKey("tool_selection.id", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("tool_name", Text, primary_key=True),
    Column("rank", Integer, nullable=True),
    Column("relevance_score", REAL, nullable=True),
    Column("was_offered", Boolean, nullable=False),
    Column("was_called", Boolean, nullable=False, server_default=text("false")),
    Column("call_status", Text, nullable=True),
    Column("call_ms", REAL, nullable=True),
)
Index("ix_tool_usage_log_tool_name", tool_usage_log.c.tool_name)

# What the vectors of a namespace were learnt from last; a row of a set that never learnt is absent.
tool_learning = Table(
    "tool_learning",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column(
        "embedding_model_id",
        Integer,
        ForeignKey("embedding_model.id", ondelete="CASCADE"),
        primary_key=True,
    ),
    # One more with each promotion and each undoing.
    Column("version", Integer, nullable=False),
    # Of the calls that count; NULL after an undoing, so that the next run learns anew.
    Column("fingerprint", Text, nullable=True),
    # Time of the newest question; NULL when nothing is learnt.
    Column("recorded_until", DateTime(timezone=True), nullable=True),
    Column("calls", Integer, nullable=False),
    Column("sessions", Integer, nullable=False),
    Column("neutral", REAL, nullable=False),
    # What the replay of held-back questions said.
    Column("gate", JSONB, nullable=False),
    Column("learned_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
)

# Calls that have begun, of tools that may not be run twice; gone when their results are stored.
tool_call_mark = Table(
    "tool_call_mark",
    metadata,
    # As the checkpointer has it.
    Column("thread_id", Text, primary_key=True),
    # LangGraph's id of the call's task: the same when the step is resumed.
    Column("task_id", Text, primary_key=True),
    Column("tool_name", Text, nullable=False),
    Column("call_id", Text, nullable=False),
    Column("started_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
)
