"""Adds which process it is that runs a job, or serves: its boot, its process namespace and its start in them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("owner_birth", sa.Text(), nullable=True))
    op.add_column("servers", sa.Column("birth", sa.Text(), nullable=True))
