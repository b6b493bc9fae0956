"""Adds users with their tokens, the audit log, and what jobs report at each step."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "users",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.CheckConstraint("role IN ('admin', 'user', 'viewer')", name=op.f("ck_users_role")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_users")),
    )
    op.create_table(
        "tokens",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("expires_at", MOMENT, nullable=True),
        sa.ForeignKeyConstraint(["user"], ["users.name"], name=op.f("fk_tokens_user"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_tokens_digest")),
    )
    op.create_index(op.f("ix_tokens_user"), "tokens", ["user"], unique=False)
    op.create_table(
        "audit",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("object", sa.Text(), nullable=False),
        sa.Column("status", WHOLE, nullable=False),
        sa.Column("client", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_table(
        "indicators",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("first_step", WHOLE, nullable=False),
        sa.Column("last_step", WHOLE, nullable=False),
        sa.Column("count", WHOLE, nullable=False),
        sa.Column("total", WHOLE, nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("count > 0", name=op.f("ck_indicators_count")),
        sa.CheckConstraint("total > 0", name=op.f("ck_indicators_total")),
        sa.CheckConstraint("first_step >= 0", name=op.f("ck_indicators_first_step")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_indicators_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_indicators")),
    )
    op.create_index(op.f("ix_indicators_job_id_id"), "indicators", ["job_id", "id"], unique=False)
