"""Adds when a VM went over from one job to another."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("intents", sa.Column("taken_at", sa.DateTime(timezone=True), nullable=True))
