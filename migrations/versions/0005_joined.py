"""Adds when each VM joined its job, from which later jobs know how long VMs usually take."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("intents", sa.Column("joined_at", sa.DateTime(timezone=True), nullable=True))
