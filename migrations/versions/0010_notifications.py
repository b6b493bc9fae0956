"""Adds the queue of notifications, and finds jobs by the time of their end."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0008"
branch_labels = None
depends_on = None

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MOMENT = sa.DateTime(timezone=True)
DOCUMENT = sa.JSON(none_as_null=True)

CHECKS = {
    "kind": "kind IN ('ping', 'job.done', 'job.failed', 'job.stopped', 'job.budget', 'vms.leftover')",
    "state": "state IN ('waiting', 'delivered', 'refused')",
    "attempts": "attempts >= 0",
}


def upgrade() -> None:
    op.create_table(
        "notifications",
        sa.Column("number", WHOLE, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("webhook", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("data", DOCUMENT, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempts", WHOLE, nullable=False),
        sa.Column("due_at", MOMENT, nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        *(sa.CheckConstraint(rule, name=op.f(f"ck_notifications_{name}")) for name, rule in CHECKS.items()),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_notifications")),
        sa.UniqueConstraint("webhook", "id", name=op.f("uq_notifications_webhook_id")),
    )
    op.create_index(
        op.f("ix_notifications_state_webhook_due_at"),
        "notifications",
        ["state", "webhook", "due_at"],
        unique=False,
    )
    op.create_index(op.f("ix_jobs_ended_at"), "jobs", ["ended_at"], unique=False)
