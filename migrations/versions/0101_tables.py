"""Creates the tables of the first release."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0101"
down_revision = None
branch_labels = None
depends_on = None

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
REAL = sa.Float(precision=53)
MOMENT = sa.DateTime(timezone=True)
DOCUMENT = sa.JSON(none_as_null=True)


def upgrade() -> None:
    op.create_table(
        "allotments",
        sa.Column("installation", sa.Text(), nullable=False),
        sa.Column("uid", WHOLE, nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("number", WHOLE, nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("document", DOCUMENT, nullable=False),
        sa.CheckConstraint("number > 0", name=op.f("ck_allotments_number")),
        sa.PrimaryKeyConstraint("installation", "uid", "pool", "number", name=op.f("pk_allotments")),
    )
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
    op.create_table(
        "audit",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("object", sa.Text(), nullable=False),
        sa.Column("status", WHOLE, nullable=False),
        sa.Column("client", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_user"), "audit", ["user"], unique=False)
    op.create_table(
        "budgets",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("usd", REAL, nullable=False),
        sa.CheckConstraint("usd >= 0", name=op.f("ck_budgets_usd")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_budgets")),
    )
    op.create_table(
        "claims",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("usd", REAL, nullable=False),
        sa.Column("before_usd", REAL, nullable=False),
        sa.Column("owner_pid", WHOLE, nullable=False),
        sa.Column("owner_host", sa.Text(), nullable=False),
        sa.Column("owner_started_at_s", REAL, nullable=False),
        sa.Column("owner_birth", sa.Text(), nullable=True),
        sa.Column("at", MOMENT, nullable=False),
        sa.CheckConstraint("before_usd >= 0", name=op.f("ck_claims_before_usd")),
        sa.CheckConstraint("owner_pid > 0", name=op.f("ck_claims_owner_pid")),
        sa.CheckConstraint("usd >= 0", name=op.f("ck_claims_usd")),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_claims")),
    )
    op.create_index(op.f("ix_claims_name"), "claims", ["name"], unique=False)
    op.create_table(
        "fingerprints",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("architecture", sa.Text(), nullable=False),
        sa.Column("parameters", WHOLE, nullable=False),
        sa.Column("optimizer", sa.Text(), nullable=False),
        sa.Column("dataset_size", WHOLE, nullable=False),
        sa.Column("sample_bytes", WHOLE, nullable=False),
        sa.Column("goal", sa.Text(), nullable=False),
        sa.Column("vm", sa.Text(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.CheckConstraint("dataset_size > 0", name=op.f("ck_fingerprints_dataset_size")),
        sa.CheckConstraint("parameters >= 0", name=op.f("ck_fingerprints_parameters")),
        sa.CheckConstraint("sample_bytes >= 0", name=op.f("ck_fingerprints_sample_bytes")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_fingerprints")),
    )
    op.create_index(
        op.f("ix_fingerprints_architecture_dataset_size"),
        "fingerprints",
        ["architecture", "dataset_size"],
        unique=False,
    )
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
        sa.CheckConstraint("beats >= 0", name=op.f("ck_leases_beats")),
        sa.CheckConstraint("token > 0", name=op.f("ck_leases_token")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.create_table(
        "ledger",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("item", sa.Text(), nullable=False),
        sa.Column("month", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("quantity", REAL, nullable=False),
        sa.Column("usd", REAL, nullable=False),
        sa.Column("basis", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "item IN ('workers', 'vms', 'disks', 'addresses', 'traffic', 'share', 'leader', 'earlier', 'pool')",
            name=op.f("ck_ledger_item"),
        ),
        sa.PrimaryKeyConstraint("job_id", "item", "month", name=op.f("pk_ledger")),
    )
    op.create_index(op.f("ix_ledger_month"), "ledger", ["month"], unique=False)
    op.create_index(op.f("ix_ledger_name"), "ledger", ["name"], unique=False)
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
        sa.CheckConstraint(
            "kind IN ('ping', 'job.done', 'job.failed', 'job.stopped', 'job.paused', 'job.budget', 'user.budget', 'service.budget', 'vms.leftover')",
            name=op.f("ck_notifications_kind"),
        ),
        sa.CheckConstraint(
            "state IN ('waiting', 'delivered', 'refused')", name=op.f("ck_notifications_state")
        ),
        sa.CheckConstraint("attempts >= 0", name=op.f("ck_notifications_attempts")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_notifications")),
        sa.UniqueConstraint("webhook", "id", name=op.f("uq_notifications_webhook_id")),
    )
    op.create_index(
        op.f("ix_notifications_state_webhook_due_at"),
        "notifications",
        ["state", "webhook", "due_at"],
        unique=False,
    )
    op.create_table(
        "quarantine",
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("region", sa.Text(), nullable=False),
        sa.Column("instance_id", sa.Text(), nullable=False),
        sa.Column("vm", sa.Text(), nullable=False),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("launched_at", MOMENT, nullable=True),
        sa.Column("kept_by", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("provider", "region", "instance_id", name=op.f("pk_quarantine")),
    )
    op.create_table(
        "restores",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("backup_at", MOMENT, nullable=False),
        sa.Column("token_floor", WHOLE, nullable=False),
        sa.Column("looked_at", MOMENT, nullable=True),
        sa.CheckConstraint("token_floor > 0", name=op.f("ck_restores_token_floor")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_restores")),
    )
    op.create_table(
        "servers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", WHOLE, nullable=False),
        sa.Column("started_at_s", REAL, nullable=False),
        sa.Column("birth", sa.Text(), nullable=True),
        sa.Column("installation", sa.Text(), nullable=True),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("uid", WHOLE, nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("background", sa.Boolean(), nullable=False),
        sa.Column("started_at", MOMENT, nullable=False),
        sa.Column("heartbeat_at", MOMENT, nullable=False),
        sa.Column("pools", DOCUMENT, nullable=True),
        sa.CheckConstraint("pid > 0", name=op.f("ck_servers_pid")),
        sa.CheckConstraint("uid >= 0", name=op.f("ck_servers_uid")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_servers")),
    )
    op.create_table(
        "submissions",
        sa.Column("number", WHOLE, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", DOCUMENT, nullable=False),
        sa.Column("job_file", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("installation", sa.Text(), nullable=True),
        sa.Column("uid", WHOLE, nullable=False),
        sa.Column("rents", sa.Boolean(), nullable=False),
        sa.Column("reserved_usd", REAL, nullable=True),
        sa.Column("audit", sa.Boolean(), nullable=False),
        sa.Column("priority", WHOLE, nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("run", sa.Boolean(), nullable=True),
        sa.Column("study_workers", WHOLE, nullable=True),
        sa.Column("environment", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("cancelling", sa.Boolean(), nullable=False),
        sa.Column("starts", WHOLE, nullable=False),
        sa.Column("fruitless", WHOLE, nullable=False),
        sa.Column("faults", WHOLE, nullable=True),
        sa.Column("step", WHOLE, nullable=True),
        sa.Column("submitted_at", MOMENT, nullable=False),
        sa.Column("started_at", MOMENT, nullable=True),
        sa.Column("ended_at", MOMENT, nullable=True),
        sa.Column("standing", DOCUMENT, nullable=True),
        sa.CheckConstraint(
            "(ended_at IS NULL) = (state IN ('queued', 'running'))", name=op.f("ck_submissions_ended")
        ),
        sa.CheckConstraint(
            "state != 'running' OR started_at IS NOT NULL", name=op.f("ck_submissions_started")
        ),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'ended', 'cancelled')", name=op.f("ck_submissions_state")
        ),
        sa.CheckConstraint("fruitless >= 0", name=op.f("ck_submissions_fruitless")),
        sa.CheckConstraint("reserved_usd >= 0", name=op.f("ck_submissions_reserved_usd")),
        sa.CheckConstraint("starts >= 0", name=op.f("ck_submissions_starts")),
        sa.CheckConstraint("step >= 0", name=op.f("ck_submissions_step")),
        sa.CheckConstraint("study_workers >= 0", name=op.f("ck_submissions_study_workers")),
        sa.CheckConstraint("uid >= 0", name=op.f("ck_submissions_uid")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_submissions")),
        sa.UniqueConstraint("id", name=op.f("uq_submissions_id")),
        sa.UniqueConstraint("user", "idempotency_key", name=op.f("uq_submissions_user_idempotency_key")),
    )
    op.create_index(
        op.f("ix_submissions_state_host_uid"), "submissions", ["state", "host", "uid"], unique=False
    )
    op.create_table(
        "users",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.CheckConstraint("role IN ('admin', 'user', 'viewer')", name=op.f("ck_users_role")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_users")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("spec", DOCUMENT, nullable=False),
        sa.Column("job_file", sa.Text(), nullable=False),
        sa.Column("owner_pid", WHOLE, nullable=False),
        sa.Column("owner_host", sa.Text(), nullable=False),
        sa.Column("owner_started_at_s", REAL, nullable=False),
        sa.Column("owner_user", sa.Text(), nullable=True),
        sa.Column("owner_uid", WHOLE, nullable=True),
        sa.Column("owner_birth", sa.Text(), nullable=True),
        sa.Column("owner_installation", sa.Text(), nullable=True),
        sa.Column("heartbeat_at", MOMENT, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("started_at", MOMENT, nullable=True),
        sa.Column("ended_at", MOMENT, nullable=True),
        sa.Column("step", WHOLE, nullable=True),
        sa.Column("cost_usd", REAL, nullable=True),
        sa.Column("fingerprint_id", sa.Text(), nullable=True),
        sa.Column("chosen_vm", sa.Text(), nullable=True),
        sa.Column("chosen_workers", WHOLE, nullable=True),
        sa.Column("chosen_global_batch_size", WHOLE, nullable=True),
        sa.Column("predicted", DOCUMENT, nullable=True),
        sa.Column("actual", DOCUMENT, nullable=True),
        sa.Column("report", DOCUMENT, nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("exit_code", WHOLE, nullable=True),
        sa.Column("model_path", sa.Text(), nullable=True),
        sa.Column("measurements_path", sa.Text(), nullable=True),
        sa.Column("checkpoint", sa.Text(), nullable=True),
        sa.Column("attempts", WHOLE, server_default="1", nullable=False),
        sa.CheckConstraint(
            "(ended_at IS NULL) = (state IN ('starting', 'profiling', 'running', 'paused'))",
            name=op.f("ck_jobs_ended"),
        ),
        sa.CheckConstraint(
            "state IN ('starting', 'profiling', 'planned', 'running', 'paused', 'succeeded', 'target_missed', 'failed', 'stopped', 'interrupted')",
            name=op.f("ck_jobs_state"),
        ),
        sa.CheckConstraint(
            "(chosen_vm IS NULL) = (chosen_workers IS NULL) AND (chosen_vm IS NULL) = (chosen_global_batch_size IS NULL)",
            name=op.f("ck_jobs_chosen"),
        ),
        sa.CheckConstraint("attempts > 0", name=op.f("ck_jobs_attempts")),
        sa.CheckConstraint(
            "chosen_workers > 0 AND chosen_global_batch_size >= chosen_workers",
            name=op.f("ck_jobs_chosen_size"),
        ),
        sa.CheckConstraint("cost_usd >= 0", name=op.f("ck_jobs_cost_usd")),
        sa.CheckConstraint("owner_pid > 0", name=op.f("ck_jobs_owner_pid")),
        sa.CheckConstraint("step >= 0", name=op.f("ck_jobs_step")),
        sa.ForeignKeyConstraint(["fingerprint_id"], ["fingerprints.id"], name=op.f("fk_jobs_fingerprint_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_created_at"), "jobs", ["created_at"], unique=False)
    op.create_index(op.f("ix_jobs_ended_at"), "jobs", ["ended_at"], unique=False)
    op.create_index(op.f("ix_jobs_fingerprint_id"), "jobs", ["fingerprint_id"], unique=False)
    op.create_index(op.f("ix_jobs_name_created_at"), "jobs", ["name", "created_at"], unique=False)
    op.create_index(op.f("ix_jobs_state"), "jobs", ["state"], unique=False)
    op.create_table(
        "tokens",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("expires_at", MOMENT, nullable=True),
        sa.Column("parent", WHOLE, nullable=True),
        sa.Column("is_session", sa.Boolean(), nullable=True),
        sa.ForeignKeyConstraint(["user"], ["users.name"], name=op.f("fk_tokens_user"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_tokens_digest")),
    )
    op.create_index(op.f("ix_tokens_parent"), "tokens", ["parent"], unique=False)
    op.create_index(op.f("ix_tokens_user"), "tokens", ["user"], unique=False)
    op.create_table(
        "convergence",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("fingerprint_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("global_batch_size", WHOLE, nullable=False),
        sa.Column("epochs", REAL, nullable=False),
        sa.Column("log_sd", REAL, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.CheckConstraint("epochs > 0", name=op.f("ck_convergence_epochs")),
        sa.CheckConstraint("global_batch_size > 0", name=op.f("ck_convergence_global_batch_size")),
        sa.CheckConstraint("log_sd >= 0", name=op.f("ck_convergence_log_sd")),
        sa.ForeignKeyConstraint(
            ["fingerprint_id"], ["fingerprints.id"], name=op.f("fk_convergence_fingerprint_id")
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_convergence_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_convergence")),
        sa.UniqueConstraint("job_id", name=op.f("uq_convergence_job_id")),
    )
    op.create_index(op.f("ix_convergence_fingerprint_id"), "convergence", ["fingerprint_id"], unique=False)
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
        "events",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("level", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("data", DOCUMENT, nullable=True),
        sa.CheckConstraint("level IN ('info', 'warning', 'error')", name=op.f("ck_events_level")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_events_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_job_id_id"), "events", ["job_id", "id"], unique=False)
    op.create_table(
        "indicators",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("first_step", WHOLE, nullable=False),
        sa.Column("last_step", WHOLE, nullable=False),
        sa.Column("count", WHOLE, nullable=False),
        sa.Column("total", WHOLE, nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("count > 0", name=op.f("ck_indicators_count")),
        sa.CheckConstraint("first_step >= 0", name=op.f("ck_indicators_first_step")),
        sa.CheckConstraint("total > 0", name=op.f("ck_indicators_total")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_indicators_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_indicators")),
    )
    op.create_index(op.f("ix_indicators_job_id_id"), "indicators", ["job_id", "id"], unique=False)
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
        sa.Column("disk_usd_per_hour", REAL, nullable=True),
        sa.Column("address_usd_per_hour", REAL, nullable=False),
        sa.Column("reserved_usd", REAL, nullable=False),
        sa.Column("attempt", WHOLE, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("asked", sa.Boolean(), nullable=False),
        sa.Column("instance_id", sa.Text(), nullable=False),
        sa.Column("acks", WHOLE, nullable=False),
        sa.Column("billed_s", REAL, nullable=False),
        sa.Column("spent_usd", REAL, nullable=False),
        sa.Column("disk_after_s", REAL, nullable=False),
        sa.Column("charged_at", MOMENT, nullable=True),
        sa.Column("launched_at", MOMENT, nullable=True),
        sa.Column("ended_at", MOMENT, nullable=True),
        sa.Column("ending", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("last_ack_at", MOMENT, nullable=True),
        sa.Column("joined_at", MOMENT, nullable=True),
        sa.Column("taken_at", MOMENT, nullable=True),
        sa.CheckConstraint("(ending = '') = (state IN ('PLAN', 'UP'))", name=op.f("ck_intents_ended")),
        sa.CheckConstraint("asked OR instance_id = ''", name=op.f("ck_intents_asked")),
        sa.CheckConstraint(
            "ending IN ('', 'unwanted', 'budget', 'never_joined', 'silent', 'died', 'preempted', 'unanswered', 'stock_out', 'quota', 'refused')",
            name=op.f("ck_intents_ending"),
        ),
        sa.CheckConstraint("state != 'UP' OR instance_id != ''", name=op.f("ck_intents_up")),
        sa.CheckConstraint("state IN ('PLAN', 'UP', 'DELETING', 'GONE')", name=op.f("ck_intents_state")),
        sa.CheckConstraint("acks >= 0", name=op.f("ck_intents_acks")),
        sa.CheckConstraint("address_usd_per_hour >= 0", name=op.f("ck_intents_address_usd_per_hour")),
        sa.CheckConstraint("attempt > 0", name=op.f("ck_intents_attempt")),
        sa.CheckConstraint("billed_s >= 0", name=op.f("ck_intents_billed_s")),
        sa.CheckConstraint("disk_after_s >= 0", name=op.f("ck_intents_disk_after_s")),
        sa.CheckConstraint("disk_usd_per_hour >= 0", name=op.f("ck_intents_disk_usd_per_hour")),
        sa.CheckConstraint("generation >= 0", name=op.f("ck_intents_generation")),
        sa.CheckConstraint("price_usd_per_hour >= 0", name=op.f("ck_intents_price_usd_per_hour")),
        sa.CheckConstraint("reserved_usd >= 0", name=op.f("ck_intents_reserved_usd")),
        sa.CheckConstraint("slot >= 0", name=op.f("ck_intents_slot")),
        sa.CheckConstraint("spent_usd >= 0", name=op.f("ck_intents_spent_usd")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_intents_job_id")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_intents")),
        sa.UniqueConstraint("id", name=op.f("uq_intents_id")),
        sa.UniqueConstraint("job_id", "slot", "generation", name=op.f("uq_intents_job_id_slot_generation")),
    )
    op.create_index(
        op.f("ix_intents_state_provider_region"), "intents", ["state", "provider", "region"], unique=False
    )
    op.create_table(
        "measurements",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("vm", sa.Text(), nullable=False),
        sa.Column("workers", WHOLE, nullable=False),
        sa.Column("global_batch_size", WHOLE, nullable=False),
        sa.Column("steps", WHOLE, nullable=False),
        sa.Column("step_time_s", REAL, nullable=False),
        sa.Column("step_time_spread_s", REAL, nullable=False),
        sa.Column("compute_s", REAL, nullable=False),
        sa.Column("sync_s", REAL, nullable=False),
        sa.Column("gradient_noise", REAL, nullable=True),
        sa.Column("noise_scale", REAL, nullable=True),
        sa.Column("memory_bytes", WHOLE, nullable=False),
        sa.CheckConstraint("compute_s >= 0", name=op.f("ck_measurements_compute_s")),
        sa.CheckConstraint("memory_bytes >= 0", name=op.f("ck_measurements_memory_bytes")),
        sa.CheckConstraint("step_time_s > 0", name=op.f("ck_measurements_step_time_s")),
        sa.CheckConstraint("step_time_spread_s >= 0", name=op.f("ck_measurements_step_time_spread_s")),
        sa.CheckConstraint("steps > 0", name=op.f("ck_measurements_steps")),
        sa.CheckConstraint("sync_s >= 0", name=op.f("ck_measurements_sync_s")),
        sa.CheckConstraint(
            "workers > 0 AND global_batch_size >= workers", name=op.f("ck_measurements_configuration")
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_measurements_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_measurements")),
        sa.UniqueConstraint(
            "job_id",
            "vm",
            "workers",
            "global_batch_size",
            name=op.f("uq_measurements_job_id_vm_workers_global_batch_size"),
        ),
    )
    op.create_table(
        "models",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("fingerprint_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("schema_version", WHOLE, nullable=False),
        sa.Column("measurements", WHOLE, nullable=False),
        sa.Column("runs", WHOLE, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.CheckConstraint("origin IN ('local', 'imported')", name=op.f("ck_models_origin")),
        sa.CheckConstraint("measurements >= 0", name=op.f("ck_models_measurements")),
        sa.CheckConstraint("runs >= 0", name=op.f("ck_models_runs")),
        sa.CheckConstraint("schema_version > 0", name=op.f("ck_models_schema_version")),
        sa.ForeignKeyConstraint(
            ["fingerprint_id"], ["fingerprints.id"], name=op.f("fk_models_fingerprint_id")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_models_job_id"), ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models")),
    )
    op.create_index(op.f("ix_models_created_at"), "models", ["created_at"], unique=False)
    op.create_index(op.f("ix_models_fingerprint_id"), "models", ["fingerprint_id"], unique=False)
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
    op.create_index(
        "uq_operations_open",
        "operations",
        ["job_id"],
        unique=True,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_table(
        "processes",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("process", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("pid", WHOLE, nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("step", WHOLE, nullable=True),
        sa.Column("view_number", WHOLE, nullable=True),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.Column("host", sa.Text(), nullable=True),
        sa.CheckConstraint("role IN ('coordinator', 'worker', 'aggregator')", name=op.f("ck_processes_role")),
        sa.CheckConstraint(
            "state IN ('starting', 'ready', 'training', 'leaving', 'lost', 'failed', 'gone')",
            name=op.f("ck_processes_state"),
        ),
        sa.CheckConstraint("pid > 0", name=op.f("ck_processes_pid")),
        sa.CheckConstraint("step >= 0", name=op.f("ck_processes_step")),
        sa.CheckConstraint("view_number >= 0", name=op.f("ck_processes_view_number")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_processes_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "process", name=op.f("pk_processes")),
    )
