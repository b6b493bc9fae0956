"""Adds the queue of submitted jobs and the servers that run them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
REAL = sa.Float(precision=53)
MOMENT = sa.DateTime(timezone=True)
DOCUMENT = sa.JSON(none_as_null=True)

CHECKS = {
    "state": "state IN ('queued', 'running', 'ended', 'cancelled')",
    "ended": "(ended_at IS NULL) = (state IN ('queued', 'running'))",
    "started": "state != 'running' OR started_at IS NOT NULL",
    **{name: f"{name} >= 0" for name in ("uid", "reserved_usd", "starts", "fruitless", "step")},
}


def upgrade() -> None:
    op.create_table(
        "submissions",
        sa.Column("number", WHOLE, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", DOCUMENT, nullable=False),
        sa.Column("job_file", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("uid", WHOLE, nullable=False),
        sa.Column("rents", sa.Boolean(), nullable=False),
        sa.Column("reserved_usd", REAL, nullable=True),
        sa.Column("audit", sa.Boolean(), nullable=False),
        sa.Column("priority", WHOLE, nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("cancelling", sa.Boolean(), nullable=False),
        sa.Column("starts", WHOLE, nullable=False),
        sa.Column("fruitless", WHOLE, nullable=False),
        sa.Column("step", WHOLE, nullable=True),
        sa.Column("submitted_at", MOMENT, nullable=False),
        sa.Column("started_at", MOMENT, nullable=True),
        sa.Column("ended_at", MOMENT, nullable=True),
        *(sa.CheckConstraint(rule, name=op.f(f"ck_submissions_{name}")) for name, rule in CHECKS.items()),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_submissions")),
        sa.UniqueConstraint("id", name=op.f("uq_submissions_id")),
        sa.UniqueConstraint("user", "idempotency_key", name=op.f("uq_submissions_user_idempotency_key")),
    )
    op.create_index(
        op.f("ix_submissions_state_host_uid"), "submissions", ["state", "host", "uid"], unique=False
    )
    op.create_table(
        "servers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", WHOLE, nullable=False),
        sa.Column("started_at_s", REAL, nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("uid", WHOLE, nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("background", sa.Boolean(), nullable=False),
        sa.Column("started_at", MOMENT, nullable=False),
        sa.Column("heartbeat_at", MOMENT, nullable=False),
        sa.CheckConstraint("pid > 0", name=op.f("ck_servers_pid")),
        sa.CheckConstraint("uid >= 0", name=op.f("ck_servers_uid")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_servers")),
    )
