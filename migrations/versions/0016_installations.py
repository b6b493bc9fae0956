"""Adds the installation of jobs, submissions and servers, and how often a submission could not begin for a fault that
passes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("owner_installation", sa.Text(), nullable=True))
    op.add_column("servers", sa.Column("installation", sa.Text(), nullable=True))
    op.add_column("submissions", sa.Column("installation", sa.Text(), nullable=True))
    op.add_column(
        "submissions",
        sa.Column("faults", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
    )
