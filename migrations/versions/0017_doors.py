"""Adds which token another was made with, and which tokens are sessions of browsers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0015"
branch_labels = None
depends_on = None

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("tokens", sa.Column("parent", WHOLE, nullable=True))
    op.add_column("tokens", sa.Column("is_session", sa.Boolean(), nullable=True))
    # nobody knows what they were begun with, and each is of twelve hours at most: browsers log in again
    op.execute("DELETE FROM tokens WHERE label = 'session of a browser'")
    op.create_index(op.f("ix_tokens_parent"), "tokens", ["parent"], unique=False)
    op.create_index(op.f("ix_audit_user"), "audit", ["user"], unique=False)
