"""Adds restores from backups, and VMs that the clouds list and a restored store does not know."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "restores",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("backup_at", MOMENT, nullable=False),
        sa.Column("token_floor", WHOLE, nullable=False),
        sa.Column("looked_at", MOMENT, nullable=True),
        sa.CheckConstraint("token_floor > 0", name=op.f("ck_restores_token_floor")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_restores")),
    )
    op.create_table(
        "quarantine",
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("region", sa.Text(), nullable=False),
        sa.Column("instance_id", sa.Text(), nullable=False),
        sa.Column("vm", sa.Text(), nullable=False),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("launched_at", MOMENT, nullable=True),
        sa.PrimaryKeyConstraint("provider", "region", "instance_id", name=op.f("pk_quarantine")),
    )
