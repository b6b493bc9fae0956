"""Adds the account that each job runs under."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("owner_user", sa.Text(), nullable=True))
    op.add_column("jobs", sa.Column("owner_uid", WHOLE, nullable=True))
