"""Adds answers to requests with a key, submitted plans, who keeps a VM in quarantine, and more notifications."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)
DOCUMENT = sa.JSON(none_as_null=True)

KINDS = (
    "kind IN ('ping', 'job.done', 'job.failed', 'job.stopped', 'job.budget', 'user.budget', 'service.budget', "
    "'vms.leftover')"
)
KEPT = {
    "state": "state IN ('waiting', 'delivered', 'refused')",
    "attempts": "attempts >= 0",
}


def upgrade() -> None:
    op.create_table(
        "answers",
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("answer", DOCUMENT, nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("user", "key", name=op.f("pk_answers")),
    )
    op.create_index(op.f("ix_answers_at"), "answers", ["at"], unique=False)
    op.add_column("quarantine", sa.Column("kept_by", sa.Text(), nullable=True))
    op.add_column("submissions", sa.Column("run", sa.Boolean(), nullable=True))
    _change_notifications()


def _change_notifications() -> None:
    """SQLite changes a constraint by copying the table."""
    if op.get_bind().dialect.name != "sqlite":
        op.drop_constraint(op.f("ck_notifications_kind"), "notifications", type_="check")
        op.create_check_constraint(op.f("ck_notifications_kind"), "notifications", KINDS)
        return
    checks = [
        sa.CheckConstraint(rule, name=op.f(f"ck_notifications_{name}"))
        for name, rule in {"kind": KINDS, **KEPT}.items()
    ]
    found = sa.Table("notifications", sa.MetaData(), autoload_with=op.get_bind())
    found.constraints = {one for one in found.constraints if not isinstance(one, sa.CheckConstraint)}
    with op.batch_alter_table("notifications", recreate="always", copy_from=found, table_args=checks):
        pass
