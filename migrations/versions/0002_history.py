"""History of tools, archived vectors, generations of an embedding model, leases.

Revision: 0002
Revises: 0001
"""

from __future__ import annotations

import pgvector.sqlalchemy
import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_NOW = sa.text("now()")


def upgrade() -> None:
    op.add_column("tool_registry", sa.Column("synced_hash", sa.Text(), nullable=True))
    op.add_column(
        "tool_registry", sa.Column("text_hash", sa.Text(), server_default="", nullable=False)
    )
    op.execute("UPDATE tool_registry SET synced_hash = content_hash")
    op.execute(
        """
        UPDATE tool_registry AS t SET text_hash = e.source_hash
        FROM tool_embedding AS e JOIN embedding_model AS m ON m.id = e.embedding_model_id
        WHERE e.tool_id = t.id AND m.state = 'active'
        """
    )
    op.alter_column("tool_registry", "text_hash", server_default=None)

    op.add_column(
        "embedding_model",
        sa.Column("generation", sa.Integer(), server_default=sa.text("1"), nullable=False),
    )
    op.add_column(
        "embedding_model", sa.Column("activated_at", sa.DateTime(timezone=True), nullable=True)
    )
    op.execute("UPDATE embedding_model SET activated_at = created_at WHERE state = 'active'")
    op.drop_constraint(
        op.f("uq_embedding_model_name_revision_dimensions"), "embedding_model", type_="unique"
    )
    op.create_unique_constraint(
        op.f("uq_embedding_model_name_revision_dimensions_generation"),
        "embedding_model",
        ["name", "revision", "dimensions", "generation"],
    )

    op.create_index("ix_tool_embedding_source_hash", "tool_embedding", ["source_hash"])
    op.create_table(
        "tool_vector_archive",
        sa.Column("embedding_model_id", sa.Integer(), nullable=False),
        sa.Column("source_hash", sa.Text(), nullable=False),
        sa.Column("vector", pgvector.sqlalchemy.HALFVEC(), nullable=False),
        sa.Column("archived_at", sa.DateTime(timezone=True), server_default=_NOW, nullable=False),
        sa.ForeignKeyConstraint(
            ["embedding_model_id"],
            ["embedding_model.id"],
            name=op.f("fk_tool_vector_archive_embedding_model_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "embedding_model_id", "source_hash", name=op.f("pk_tool_vector_archive")
        ),
    )
    op.create_table(
        "tool_history",
        sa.Column("tool_id", sa.Uuid(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("tool_name", sa.Text(), nullable=False),
        sa.Column("change", sa.Text(), nullable=False),
        sa.Column("snapshot", postgresql.JSONB(), nullable=True),
        sa.Column("changed_at", sa.DateTime(timezone=True), server_default=_NOW, nullable=False),
        sa.Column("changed_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tool_id", "version", name=op.f("pk_tool_history")),
    )
    op.create_index(
        "ix_tool_history_namespace_tool_name", "tool_history", ["namespace", "tool_name"]
    )
    # What stands now is where the history of tools registered before begins.
    op.execute(
        """
        INSERT INTO tool_history
            (tool_id, version, namespace, tool_name, change, snapshot, changed_at, changed_by)
        SELECT id, version, namespace, tool_name, 'first recorded',
               jsonb_build_object(
                   'display_name', display_name, 'description', description,
                   'category', category, 'examples', to_jsonb(examples), 'binding', binding,
                   'origin', origin, 'args_schema', args_schema,
                   'requires_approval', requires_approval, 'read_only', read_only,
                   'is_active', is_active),
               updated_at, 'migration 0002'
        FROM tool_registry
        """
    )
    op.create_table(
        "tool_lease",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_tool_lease")),
    )


def downgrade() -> None:
    op.drop_table("tool_lease")
    op.drop_table("tool_history")
    op.drop_table("tool_vector_archive")
    op.drop_index("ix_tool_embedding_source_hash", "tool_embedding")
    # Older releases know one generation of a model: the newest active, else the newest, stays.
    op.execute(
        """
        DELETE FROM embedding_model AS m USING embedding_model AS better
        WHERE (m.name, m.revision, m.dimensions)
              = (better.name, better.revision, better.dimensions)
          AND (better.state = 'active', better.generation) > (m.state = 'active', m.generation)
        """
    )
    op.drop_constraint(
        op.f("uq_embedding_model_name_revision_dimensions_generation"),
        "embedding_model",
        type_="unique",
    )
    op.create_unique_constraint(
        op.f("uq_embedding_model_name_revision_dimensions"),
        "embedding_model",
        ["name", "revision", "dimensions"],
    )
    op.drop_column("embedding_model", "activated_at")
    op.drop_column("embedding_model", "generation")
    op.drop_column("tool_registry", "text_hash")
    op.drop_column("tool_registry", "synced_hash")
