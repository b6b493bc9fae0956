"""Adds operations, resumption, the host of each process, and the data of events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MOMENT = sa.DateTime(timezone=True)
DOCUMENT = sa.JSON(none_as_null=True)

ENDED = "(ended_at IS NULL) = (state IN ('starting', 'profiling', 'running', 'paused'))"
STATE = (
    "state IN ('starting', 'profiling', 'planned', 'running', 'paused', 'succeeded', "
    "'target_missed', 'failed', 'stopped', 'interrupted')"
)
ATTEMPTS = "attempts > 0"
KEPT = {
    "chosen": "(chosen_vm IS NULL) = (chosen_workers IS NULL)"
    " AND (chosen_vm IS NULL) = (chosen_global_batch_size IS NULL)",
    "chosen_size": "chosen_workers > 0 AND chosen_global_batch_size >= chosen_workers",
    "cost_usd": "cost_usd >= 0",
    "owner_pid": "owner_pid > 0",
    "step": "step >= 0",
}


def upgrade() -> None:
    op.add_column("processes", sa.Column("host", sa.Text(), nullable=True))
    op.add_column("events", sa.Column("data", DOCUMENT, nullable=True))
    _change_jobs()
    op.create_table(
        "operations",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("operation", DOCUMENT, nullable=False),
        sa.Column("requested_by", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("requested_at", MOMENT, nullable=False),
        sa.Column("started_at", MOMENT, nullable=True),
        sa.Column("ended_at", MOMENT, nullable=True),
        sa.CheckConstraint(
            "(ended_at IS NULL) = (state IN ('pending', 'running'))", name=op.f("ck_operations_ended")
        ),
        sa.CheckConstraint("state != 'pending' OR started_at IS NULL", name=op.f("ck_operations_started")),
        sa.CheckConstraint(
            "state IN ('pending', 'running', 'done', 'refused', 'failed')", name=op.f("ck_operations_state")
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_operations_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_operations")),
    )
    op.create_index(op.f("ix_operations_job_id_id"), "operations", ["job_id", "id"], unique=False)
    is_open = sa.text("ended_at IS NULL")
    op.create_index(
        "uq_operations_open",
        "operations",
        ["job_id"],
        unique=True,
        sqlite_where=is_open,
        postgresql_where=is_open,
    )


def _change_jobs() -> None:
    """SQLite changes a constraint by copying the table; every check is named anew, since not every SQLAlchemy
    finds those that there are."""
    columns = (
        sa.Column("checkpoint", sa.Text(), nullable=True),
        sa.Column("attempts", WHOLE, server_default="1", nullable=False),
    )
    changed = {"ended": ENDED, "state": STATE}
    if op.get_bind().dialect.name == "sqlite":
        checks = [
            sa.CheckConstraint(rule, name=op.f(f"ck_jobs_{name}"))
            for name, rule in {**KEPT, **changed, "attempts": ATTEMPTS}.items()
        ]
        found = sa.Table("jobs", sa.MetaData(), autoload_with=op.get_bind())
        found.constraints = {one for one in found.constraints if not isinstance(one, sa.CheckConstraint)}
        with op.batch_alter_table("jobs", recreate="always", copy_from=found, table_args=checks) as table:
            for column in columns:
                table.add_column(column)
        return
    for name, rule in changed.items():
        op.drop_constraint(op.f(f"ck_jobs_{name}"), "jobs", type_="check")
        op.create_check_constraint(op.f(f"ck_jobs_{name}"), "jobs", rule)
    for column in columns:
        op.add_column("jobs", column)
    op.create_check_constraint(op.f("ck_jobs_attempts"), "jobs", ATTEMPTS)
