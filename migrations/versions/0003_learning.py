"""Words of tools, fallback tools, categories, feedback vectors, selections and the usage log.

Revision: 0003
Revises: 0002
"""

from __future__ import annotations

import pgvector.sqlalchemy
import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_NOW = sa.text("now()")


def upgrade() -> None:
    op.add_column(
        "tool_registry",
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
    )
    op.create_unique_constraint(op.f("uq_tool_registry_number"), "tool_registry", ["number"])
    op.add_column(
        "tool_registry",
        sa.Column("fallback", sa.Boolean(), server_default=sa.text("false"), nullable=False),
    )
    # The next sync writes the words of tools whose revision is not that of the code.
    op.add_column(
        "tool_registry",
        sa.Column("terms_revision", sa.Integer(), server_default=sa.text("0"), nullable=False),
    )
    op.add_column(
        "tool_embedding",
        sa.Column("description_vector", pgvector.sqlalchemy.HALFVEC(), nullable=True),
    )
    op.add_column(
        "tool_embedding",
        sa.Column("feedback_vector", pgvector.sqlalchemy.HALFVEC(), nullable=True),
    )
    op.add_column(
        "tool_embedding",
        sa.Column("feedback_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
    )
    op.create_table(
        "tool_term",
        sa.Column("namespace", sa.Text(collation="C"), nullable=False),
        sa.Column("term", sa.Text(collation="C"), nullable=False),
        sa.Column("tool_number", sa.BigInteger(), nullable=False),
        sa.Column("frequency", sa.REAL(), nullable=False),
        sa.Column("length", sa.REAL(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tool_number"],
            ["tool_registry.number"],
            name=op.f("fk_tool_term_tool_number"),
            ondelete="CASCADE",
        ),
    )
    op.create_index(
        "uq_tool_term_namespace_term_tool_number",
        "tool_term",
        ["namespace", "term", "tool_number"],
        unique=True,
        postgresql_include=["frequency", "length"],
    )
    op.create_index("ix_tool_term_tool_number", "tool_term", ["tool_number"])
    op.create_table(
        "tool_corpus",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("tools", sa.Integer(), nullable=False),
        sa.Column("mean_length", sa.REAL(), nullable=False),
        sa.Column("counted_at", sa.DateTime(timezone=True), server_default=_NOW, nullable=False),
        sa.PrimaryKeyConstraint("namespace", name=op.f("pk_tool_corpus")),
    )
    op.create_table(
        "tool_term_count",
        sa.Column("namespace", sa.Text(collation="C"), nullable=False),
        sa.Column("term", sa.Text(collation="C"), nullable=False),
        sa.Column("tools", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "term", name=op.f("pk_tool_term_count")),
    )
    op.create_table(
        "tool_calibration",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("embedding_model_id", sa.Integer(), nullable=False),
        sa.Column("center", sa.Double(), nullable=False),
        sa.Column("spread", sa.Double(), nullable=False),
        sa.Column("null_evidence", sa.Double(), nullable=False),
        sa.Column("zero", sa.Double(), nullable=False),
        sa.Column("words_share", sa.Double(), server_default=sa.text("1"), nullable=False),
        sa.Column("tools", sa.Integer(), nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("traffic", pgvector.sqlalchemy.HALFVEC(), nullable=True),
        sa.Column("version", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("calibrated_at", sa.DateTime(timezone=True), server_default=_NOW, nullable=False),
        sa.ForeignKeyConstraint(
            ["embedding_model_id"],
            ["embedding_model.id"],
            name=op.f("fk_tool_calibration_embedding_model_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "namespace", "embedding_model_id", name=op.f("pk_tool_calibration")
        ),
    )
    op.create_table(
        "tool_anchor",
        sa.Column("embedding_model_id", sa.Integer(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("vector", pgvector.sqlalchemy.HALFVEC(), nullable=False),
        sa.ForeignKeyConstraint(
            ["embedding_model_id"],
            ["embedding_model.id"],
            name=op.f("fk_tool_anchor_embedding_model_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("embedding_model_id", "place", name=op.f("pk_tool_anchor")),
    )
    op.create_table(
        "tool_category",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("keywords", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=_NOW, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "name", name=op.f("pk_tool_category")),
    )
    op.create_table(
        "tool_selection",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("thread_id", sa.Text(), nullable=True),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.Column("conversation_id", sa.Text(), nullable=True),
        sa.Column("query_snippet", sa.Text(), nullable=True),
        sa.Column("query_vector", pgvector.sqlalchemy.HALFVEC(), nullable=True),
        sa.Column("embedding_model_id", sa.Integer(), nullable=True),
        sa.Column("strategy", sa.Text(), nullable=False),
        sa.Column("threshold", sa.Double(), nullable=False),
        sa.Column("latency_ms", sa.REAL(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=_NOW, nullable=False),
        sa.CheckConstraint(
            "char_length(query_snippet) <= 500", name=op.f("ck_tool_selection_snippet_short")
        ),
        sa.ForeignKeyConstraint(
            ["embedding_model_id"],
            ["embedding_model.id"],
            name=op.f("fk_tool_selection_embedding_model_id"),
            ondelete="SET NULL",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tool_selection")),
    )
    op.create_index(
        "ix_tool_selection_namespace_created_at", "tool_selection", ["namespace", "created_at"]
    )
    op.create_table(
        "tool_usage_log",
        sa.Column("selection_id", sa.Uuid(), nullable=False),
        sa.Column("tool_name", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("relevance_score", sa.REAL(), nullable=True),
        sa.Column("was_offered", sa.Boolean(), nullable=False),
        sa.Column("was_called", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("call_status", sa.Text(), nullable=True),
        sa.Column("call_ms", sa.REAL(), nullable=True),
        sa.ForeignKeyConstraint(
            ["selection_id"],
            ["tool_selection.id"],
            name=op.f("fk_tool_usage_log_selection_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("selection_id", "tool_name", name=op.f("pk_tool_usage_log")),
    )
    op.create_index("ix_tool_usage_log_tool_name", "tool_usage_log", ["tool_name"])
    op.create_table(
        "tool_learning",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("embedding_model_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=True),
        sa.Column("recorded_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("sessions", sa.Integer(), nullable=False),
        sa.Column("neutral", sa.REAL(), nullable=False),
        sa.Column("gate", postgresql.JSONB(), nullable=False),
        sa.Column("learned_at", sa.DateTime(timezone=True), server_default=_NOW, nullable=False),
        sa.ForeignKeyConstraint(
            ["embedding_model_id"],
            ["embedding_model.id"],
            name=op.f("fk_tool_learning_embedding_model_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("namespace", "embedding_model_id", name=op.f("pk_tool_learning")),
    )
    op.execute(
        """
        CREATE VIEW tool_usage_stats AS
        SELECT s.namespace, u.tool_name,
               count(*) FILTER (WHERE u.was_offered) AS injected_count,
               count(*) FILTER (WHERE u.was_called) AS called_count,
               round(100.0 * count(*) FILTER (WHERE u.was_called)
                     / nullif(count(*) FILTER (WHERE u.was_offered), 0), 1) AS call_rate_pct,
               avg(u.relevance_score) FILTER (WHERE u.was_offered) AS avg_relevance,
               min(u.relevance_score) FILTER (WHERE u.was_offered) AS min_relevance,
               max(s.created_at) FILTER (WHERE u.was_offered) AS last_injected,
               max(s.created_at) FILTER (WHERE u.was_called) AS last_called
        FROM tool_usage_log AS u
        JOIN tool_selection AS s ON s.id = u.selection_id
        WHERE s.created_at >= now() - interval '30 days'
        GROUP BY s.namespace, u.tool_name
        """
    )


def downgrade() -> None:
    op.execute("DROP VIEW tool_usage_stats")
    for table in (
        "tool_learning",
        "tool_usage_log",
        "tool_selection",
        "tool_category",
        "tool_anchor",
        "tool_calibration",
        "tool_term_count",
        "tool_corpus",
        "tool_term",
    ):
        op.drop_table(table)
    # The searched vector may hold feedback: what stands alone is the description's.
    op.execute(
        "UPDATE tool_embedding SET vector = description_vector WHERE description_vector IS NOT NULL"
    )
    for column in ("feedback_count", "feedback_vector", "description_vector"):
        op.drop_column("tool_embedding", column)
    # Older releases refuse a version with a field they do not know.
    op.execute("UPDATE tool_history SET snapshot = snapshot - 'fallback'")
    # Their content is another one without the mark: the next sync writes it again.
    op.execute(
        """
        UPDATE tool_registry
        SET synced_hash = CASE WHEN synced_hash = content_hash THEN '' ELSE synced_hash END,
            content_hash = ''
        WHERE fallback
        """
    )
    op.drop_column("tool_registry", "terms_revision")
    op.drop_column("tool_registry", "fallback")
    op.drop_constraint(op.f("uq_tool_registry_number"), "tool_registry", type_="unique")
    op.drop_column("tool_registry", "number")
