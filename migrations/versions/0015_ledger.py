"""Adds the ledger, with what the jobs on record have cost, claims on studies' budgets, and the service's budgets."""

from __future__ import annotations

from datetime import UTC

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0016"
branch_labels = None
depends_on = None

ITEMS = "item IN ('job', 'vms', 'share', 'pool', 'leader')"


def upgrade() -> None:
    ledger = op.create_table(
        "ledger",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("item", sa.Text(), nullable=False),
        sa.Column("month", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("usd", sa.Float(53), nullable=False),
        sa.CheckConstraint(ITEMS, name=op.f("ck_ledger_item")),
        sa.PrimaryKeyConstraint("job_id", "item", "month", name=op.f("pk_ledger")),
    )
    op.create_index(op.f("ix_ledger_month"), "ledger", ["month"], unique=False)
    op.create_index(op.f("ix_ledger_name"), "ledger", ["name"], unique=False)
    op.create_table(
        "claims",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("usd", sa.Float(53), nullable=False),
        sa.Column("before_usd", sa.Float(53), nullable=False),
        sa.Column("owner_pid", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("owner_host", sa.Text(), nullable=False),
        sa.Column("owner_started_at_s", sa.Float(53), nullable=False),
        sa.Column("owner_birth", sa.Text(), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("owner_pid > 0", name=op.f("ck_claims_owner_pid")),
        sa.CheckConstraint("usd >= 0", name=op.f("ck_claims_usd")),
        sa.CheckConstraint("before_usd >= 0", name=op.f("ck_claims_before_usd")),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_claims")),
    )
    op.create_index(op.f("ix_claims_name"), "claims", ["name"], unique=False)
    op.create_table(
        "budgets",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("usd", sa.Float(53), nullable=False),
        sa.CheckConstraint("usd >= 0", name=op.f("ck_budgets_usd")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_budgets")),
    )
    _book_what_there_is(ledger)


def _book_what_there_is(ledger: sa.Table) -> None:
    """Jobs on record count in the month in which they were last heard of."""
    jobs = sa.table(
        "jobs",
        sa.column("id", sa.Text()),
        sa.column("name", sa.Text()),
        sa.column("owner_user", sa.Text()),
        sa.column("heartbeat_at", sa.DateTime(timezone=True)),
        sa.column("cost_usd", sa.Float()),
        sa.column("spec", sa.JSON()),
    )
    submissions = sa.table("submissions", sa.column("id", sa.Text()), sa.column("user", sa.Text()))
    charges = sa.table("intents", sa.column("job_id", sa.Text()), sa.column("spent_usd", sa.Float()))
    connection = op.get_bind()
    spent = sa.select(charges.c.job_id, sa.func.sum(charges.c.spent_usd)).group_by(charges.c.job_id)
    vms_usd = {row[0]: float(row[1]) for row in connection.execute(spent)}
    query = sa.select(jobs, submissions.c.user).outerjoin(submissions, submissions.c.id == jobs.c.id)
    rows = []
    for row in connection.execute(query).all():
        job_id, name, owner, at, cost_usd, spec, user = row
        found = {
            "job_id": job_id,
            "month": f"{at if at.tzinfo is None else at.astimezone(UTC):%Y-%m}",
            "name": str((spec or {}).get("study") or name),
            "user": user or owner or "",
        }
        item = "pool" if "pool" in (spec or {}) else "job"
        costs = ((item, cost_usd), ("vms", vms_usd.get(job_id)))
        rows += [{**found, "item": item, "usd": usd} for item, usd in costs if usd]
    if rows:
        op.bulk_insert(ledger, rows)
