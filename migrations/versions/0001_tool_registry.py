"""Tools, embedding models, vectors, and the catalogue view.

Revision: 0001
Revises: nothing
"""

from __future__ import annotations

import pgvector.sqlalchemy
import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from registry.migrate import ensure_vector_extension

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_NOW = sa.text("now()")


def upgrade() -> None:
    if op.get_context().as_sql:
        op.execute("CREATE EXTENSION IF NOT EXISTS vector")
    else:
        ensure_vector_extension(op.get_bind())
    op.create_table(
        "tool_registry",
        sa.Column("id", sa.Uuid(), server_default=sa.text("gen_random_uuid()"), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("tool_name", sa.Text(), nullable=False),
        sa.Column("display_name", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("category", sa.Text(), nullable=False),
        sa.Column("examples", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("binding", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("args_schema", postgresql.JSONB(), nullable=False),
        sa.Column("is_active", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("requires_approval", sa.Boolean(), nullable=False),
        sa.Column("read_only", sa.Boolean(), nullable=False),
        sa.Column("version", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("content_hash", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=_NOW, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=_NOW, nullable=False),
        sa.CheckConstraint(
            r"tool_name ~ '^[a-zA-Z0-9_-]{1,64}$'", name=op.f("ck_tool_registry_tool_name_legal")
        ),
        sa.CheckConstraint("version >= 1", name=op.f("ck_tool_registry_version_positive")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tool_registry")),
        sa.UniqueConstraint(
            "namespace", "tool_name", name=op.f("uq_tool_registry_namespace_tool_name")
        ),
    )
    op.create_table(
        "embedding_model",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("revision", sa.Text(), nullable=False),
        sa.Column("dimensions", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("threshold", sa.Double(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=_NOW, nullable=False),
        sa.CheckConstraint(
            "state IN ('building', 'active', 'retired')",
            name=op.f("ck_embedding_model_state_known"),
        ),
        sa.CheckConstraint(
            "dimensions BETWEEN 1 AND 16000", name=op.f("ck_embedding_model_dimensions_in_range")
        ),
        sa.CheckConstraint(
            "threshold BETWEEN 0 AND 1", name=op.f("ck_embedding_model_threshold_in_range")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_embedding_model")),
        sa.UniqueConstraint(
            "name",
            "revision",
            "dimensions",
            name=op.f("uq_embedding_model_name_revision_dimensions"),
        ),
    )
    op.create_index(
        "uq_embedding_model_active",
        "embedding_model",
        ["state"],
        unique=True,
        postgresql_where=sa.text("state = 'active'"),
    )
    op.create_table(
        "tool_embedding",
        sa.Column("tool_id", sa.Uuid(), nullable=False),
        sa.Column("embedding_model_id", sa.Integer(), nullable=False),
        sa.Column("vector", pgvector.sqlalchemy.HALFVEC(), nullable=False),
        sa.Column("source_hash", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=_NOW, nullable=False),
        sa.ForeignKeyConstraint(
            ["tool_id"],
            ["tool_registry.id"],
            name=op.f("fk_tool_embedding_tool_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["embedding_model_id"],
            ["embedding_model.id"],
            name=op.f("fk_tool_embedding_embedding_model_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tool_id", "embedding_model_id", name=op.f("pk_tool_embedding")),
    )
    # What other LangChain code reads through PGVectorStore. The namespace comes from the
    # connection; where it is not set, the comparison is NULL and the view is empty.
    op.execute(
        """
        CREATE VIEW tool_catalogue WITH (security_barrier) AS
        SELECT t.id, t.description AS content, e.vector::vector AS embedding, t.tool_name,
               t.category, t.binding, t.origin, t.version, t.requires_approval, t.read_only
        FROM tool_registry AS t
        JOIN tool_embedding AS e ON e.tool_id = t.id
        JOIN embedding_model AS m ON m.id = e.embedding_model_id AND m.state = 'active'
        WHERE t.is_active AND t.namespace = current_setting('toolrag.namespace', true)
        """
    )


def downgrade() -> None:
    op.execute("DROP VIEW tool_catalogue")
    op.drop_table("tool_embedding")
    op.drop_table("embedding_model")
    op.drop_table("tool_registry")
    # The extension stays: it may serve other tables, and dropping it would drop their columns.
