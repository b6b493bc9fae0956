"""Adds the tables of VMs: the installation, leases, wishes and intents."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
REAL = sa.Float(precision=53)
MOMENT = sa.DateTime(timezone=True)
DOCUMENT = sa.JSON(none_as_null=True)

ENDINGS = (
    "ending IN ('', 'unwanted', 'budget', 'never_joined', 'silent', 'died', 'preempted', "
    "'unanswered', 'stock_out', 'quota', 'refused')"
)
CHECKS = {
    "state": "state IN ('PLAN', 'UP', 'DELETING', 'GONE')",
    "ending": ENDINGS,
    "ended": "(ending = '') = (state IN ('PLAN', 'UP'))",
    "up": "state != 'UP' OR instance_id != ''",
    "asked": "asked OR instance_id = ''",
    **{name: f"{name} > 0" for name in ("price_usd_per_hour", "attempt")},
    **{
        name: f"{name} >= 0"
        for name in ("slot", "generation", "reserved_usd", "acks", "billed_s", "spent_usd")
    },
}


def upgrade() -> None:
    op.create_table(
        "installation",
        sa.Column("id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_installation")),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("token", WHOLE, nullable=False),
        sa.Column("beats", WHOLE, nullable=False),
        sa.CheckConstraint("token > 0", name=op.f("ck_leases_token")),
        sa.CheckConstraint("beats >= 0", name=op.f("ck_leases_beats")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.create_table(
        "desired",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("region", sa.Text(), nullable=False),
        sa.Column("document", DOCUMENT, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_desired_job_id")),
        sa.PrimaryKeyConstraint("job_id", "provider", "region", name=op.f("pk_desired")),
    )
    op.create_table(
        "intents",
        sa.Column("number", WHOLE, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("slot", WHOLE, nullable=False),
        sa.Column("generation", WHOLE, nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("region", sa.Text(), nullable=False),
        sa.Column("request", DOCUMENT, nullable=False),
        sa.Column("price_usd_per_hour", REAL, nullable=False),
        sa.Column("reserved_usd", REAL, nullable=False),
        sa.Column("attempt", WHOLE, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("asked", sa.Boolean(), nullable=False),
        sa.Column("instance_id", sa.Text(), nullable=False),
        sa.Column("acks", WHOLE, nullable=False),
        sa.Column("billed_s", REAL, nullable=False),
        sa.Column("spent_usd", REAL, nullable=False),
        sa.Column("charged_at", MOMENT, nullable=True),
        sa.Column("launched_at", MOMENT, nullable=True),
        sa.Column("ended_at", MOMENT, nullable=True),
        sa.Column("ending", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("last_ack_at", MOMENT, nullable=True),
        *(sa.CheckConstraint(rule, name=op.f(f"ck_intents_{name}")) for name, rule in CHECKS.items()),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_intents_job_id")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_intents")),
        sa.UniqueConstraint("id", name=op.f("uq_intents_id")),
        sa.UniqueConstraint("job_id", "slot", "generation", name=op.f("uq_intents_job_id_slot_generation")),
    )
    op.create_index(
        op.f("ix_intents_state_provider_region"), "intents", ["state", "provider", "region"], unique=False
    )
