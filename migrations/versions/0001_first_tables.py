"""Creates the first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
REAL = sa.Float(precision=53)
MOMENT = sa.DateTime(timezone=True)
DOCUMENT = sa.JSON(none_as_null=True)


def upgrade() -> None:
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
        sa.CheckConstraint(
            "(ended_at IS NULL) = (state IN ('starting', 'profiling', 'running'))", name=op.f("ck_jobs_ended")
        ),
        sa.CheckConstraint(
            "state IN ('starting', 'profiling', 'planned', 'running', 'succeeded', "
            "'target_missed', 'failed', 'stopped', 'interrupted')",
            name=op.f("ck_jobs_state"),
        ),
        sa.CheckConstraint(
            "(chosen_vm IS NULL) = (chosen_workers IS NULL)"
            " AND (chosen_vm IS NULL) = (chosen_global_batch_size IS NULL)",
            name=op.f("ck_jobs_chosen"),
        ),
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
    op.create_index(op.f("ix_jobs_fingerprint_id"), "jobs", ["fingerprint_id"], unique=False)
    op.create_index(op.f("ix_jobs_name_created_at"), "jobs", ["name", "created_at"], unique=False)
    op.create_index(op.f("ix_jobs_state"), "jobs", ["state"], unique=False)
    op.create_table(
        "convergence",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("fingerprint_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("global_batch_size", WHOLE, nullable=False),
        sa.Column("epochs", REAL, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.CheckConstraint("epochs > 0", name=op.f("ck_convergence_epochs")),
        sa.CheckConstraint("global_batch_size > 0", name=op.f("ck_convergence_global_batch_size")),
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
        "events",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("level", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.CheckConstraint("level IN ('info', 'warning', 'error')", name=op.f("ck_events_level")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_events_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_job_id_id"), "events", ["job_id", "id"], unique=False)
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
