"""The store's database tables.

A job is one run of `optimize` or `plan`: running the same job file again makes another job, so a table of
runs would hold one row per job and is left out. A change here needs a new file in `migrations/versions` and
`REVISION` set to its number; migrating an empty database must give exactly these tables.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, get_args

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    Index,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column, relationship

from scavenger.domain.cost import Item
from scavenger.domain.intent import Ending, IntentState
from scavenger.domain.report import JobState
from scavenger.domain.submission import OPEN_SUBMISSIONS, SubmissionState
from scavenger.store import service_schema  # noqa: F401 - all tables are of one base
from scavenger.store.columns import (
    OPEN,
    Base,
    among,
    not_negative,
    one_of,
    positive,
)
from scavenger.store.records import (
    LIVE_STATES,
    OPEN_STATES,
    EventLevel,
    OperationState,
    Origin,
    ProcessRole,
    ProcessState,
)

REVISION = "0101"
"""The newest migration."""


VERSION_TABLE = "scavenger_version"
"""Alembic's default name could collide with another program's in a shared PostgreSQL database."""


class FingerprintRow(Base):
    """See `scavenger.domain.fingerprint.Fingerprint`; `id` is its digest."""

    __tablename__ = "fingerprints"
    __table_args__ = (
        *positive("dataset_size"),
        *not_negative("parameters", "sample_bytes"),
        Index(None, "architecture", "dataset_size"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    architecture: Mapped[str]
    parameters: Mapped[int]
    optimizer: Mapped[str]
    dataset_size: Mapped[int]
    sample_bytes: Mapped[int]
    goal: Mapped[str]
    vm: Mapped[str]
    hardware: Mapped[str]


class JobRow(Base):
    """See `scavenger.store.records.JobRecord`."""

    __tablename__ = "jobs"
    __table_args__ = (
        one_of("state", get_args(JobState)),
        CheckConstraint(f"(ended_at IS NULL) = (state IN {among(LIVE_STATES)})", name="ended"),
        CheckConstraint(
            "(chosen_vm IS NULL) = (chosen_workers IS NULL)"
            " AND (chosen_vm IS NULL) = (chosen_global_batch_size IS NULL)",
            name="chosen",
        ),
        CheckConstraint(
            "chosen_workers > 0 AND chosen_global_batch_size >= chosen_workers", name="chosen_size"
        ),
        *positive("owner_pid", "attempts"),
        *not_negative("step", "cost_usd"),
        Index(None, "created_at"),
        Index(None, "name", "created_at"),
        Index(None, "state"),
        Index(None, "ended_at"),
        Index(None, "fingerprint_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    state: Mapped[str]
    phase: Mapped[str]
    detail: Mapped[str]
    spec: Mapped[dict[str, Any]]
    job_file: Mapped[str]
    owner_pid: Mapped[int]
    owner_host: Mapped[str]
    owner_started_at_s: Mapped[float]
    owner_user: Mapped[str | None]
    owner_uid: Mapped[int | None]
    owner_birth: Mapped[str | None]
    owner_installation: Mapped[str | None]
    heartbeat_at: Mapped[datetime]
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    step: Mapped[int | None]
    cost_usd: Mapped[float | None]
    fingerprint_id: Mapped[str | None] = mapped_column(ForeignKey("fingerprints.id"))
    chosen_vm: Mapped[str | None]
    chosen_workers: Mapped[int | None]
    chosen_global_batch_size: Mapped[int | None]
    predicted: Mapped[dict[str, Any] | None]
    actual: Mapped[dict[str, Any] | None]
    report: Mapped[dict[str, Any] | None] = mapped_column(deferred=True)
    error: Mapped[str]
    exit_code: Mapped[int | None]
    model_path: Mapped[str | None]
    measurements_path: Mapped[str | None]
    checkpoint: Mapped[str | None]
    attempts: Mapped[int] = mapped_column(server_default="1")

    fingerprint: Mapped[FingerprintRow | None] = relationship(lazy="joined")


class ProcessRow(Base):
    """See `scavenger.store.records.ProcessRecord`."""

    __tablename__ = "processes"
    __table_args__ = (
        one_of("role", get_args(ProcessRole)),
        one_of("state", get_args(ProcessState)),
        *positive("pid"),
        *not_negative("step", "view_number"),
    )

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    process: Mapped[str] = mapped_column(primary_key=True)
    role: Mapped[str]
    pid: Mapped[int | None]
    state: Mapped[str]
    detail: Mapped[str]
    step: Mapped[int | None]
    view_number: Mapped[int | None]
    updated_at: Mapped[datetime]
    host: Mapped[str | None]


class EventRow(Base):
    """See `scavenger.store.records.EventRecord`."""

    __tablename__ = "events"
    __table_args__ = (one_of("level", get_args(EventLevel)), Index(None, "job_id", "id"))

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    at: Mapped[datetime]
    level: Mapped[str]
    kind: Mapped[str]
    message: Mapped[str]
    data: Mapped[dict[str, Any] | None]


class OperationRow(Base):
    """See `scavenger.store.records.OperationRecord`; a job has at most one that has not ended."""

    __tablename__ = "operations"
    __table_args__ = (
        one_of("state", get_args(OperationState)),
        CheckConstraint(f"(ended_at IS NULL) = (state IN {among(OPEN_STATES)})", name="ended"),
        CheckConstraint("state != 'pending' OR started_at IS NULL", name="started"),
        Index(None, "job_id", "id"),
        Index("uq_operations_open", "job_id", unique=True, sqlite_where=OPEN, postgresql_where=OPEN),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    operation: Mapped[dict[str, Any]]
    requested_by: Mapped[str]
    state: Mapped[str]
    message: Mapped[str]
    requested_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]


class InstallationRow(Base):
    """The installation: one row with the tag that marks this store's VMs."""

    __tablename__ = "installation"

    id: Mapped[str] = mapped_column(primary_key=True)


class LeaseRow(Base):
    """See `scavenger.domain.intent.Lease`."""

    __tablename__ = "leases"
    __table_args__ = (*positive("token"), *not_negative("beats"))

    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    token: Mapped[int]
    beats: Mapped[int]


class FleetSpecRow(Base):
    """See `scavenger.domain.intent.FleetSpec`, whose other fields are in `document`."""

    __tablename__ = "desired"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    provider: Mapped[str] = mapped_column(primary_key=True)
    region: Mapped[str] = mapped_column(primary_key=True)
    document: Mapped[dict[str, Any]]


class IntentRow(Base):
    """See `scavenger.domain.intent.Intent`; a job that has any cannot be deleted."""

    __tablename__ = "intents"
    __table_args__ = (
        UniqueConstraint("id"),
        UniqueConstraint("job_id", "slot", "generation"),
        one_of("state", get_args(IntentState)),
        one_of("ending", get_args(Ending)),
        CheckConstraint("(ending = '') = (state IN ('PLAN', 'UP'))", name="ended"),
        CheckConstraint("state != 'UP' OR instance_id != ''", name="up"),
        CheckConstraint("asked OR instance_id = ''", name="asked"),
        *positive("attempt"),
        *not_negative(
            "price_usd_per_hour", "slot", "generation", "reserved_usd", "acks", "billed_s", "spent_usd"
        ),
        *not_negative("disk_usd_per_hour", "address_usd_per_hour", "disk_after_s"),
        Index(None, "state", "provider", "region"),
    )

    number: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[str]
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    slot: Mapped[int]
    generation: Mapped[int]
    provider: Mapped[str]
    region: Mapped[str]
    request: Mapped[dict[str, Any]]
    price_usd_per_hour: Mapped[float]
    disk_usd_per_hour: Mapped[float | None]
    address_usd_per_hour: Mapped[float]
    reserved_usd: Mapped[float]
    attempt: Mapped[int]
    state: Mapped[str]
    asked: Mapped[bool]
    instance_id: Mapped[str]
    acks: Mapped[int]
    billed_s: Mapped[float]
    spent_usd: Mapped[float]
    disk_after_s: Mapped[float]
    charged_at: Mapped[datetime | None]
    launched_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    ending: Mapped[str]
    reason: Mapped[str]
    created_at: Mapped[datetime]
    last_ack_at: Mapped[datetime | None]
    joined_at: Mapped[datetime | None]
    taken_at: Mapped[datetime | None]


class SubmissionRow(Base):
    """See `scavenger.domain.submission.Submission`; `id` is that of the job, which is on record only later."""

    __tablename__ = "submissions"
    __table_args__ = (
        UniqueConstraint("id"),
        UniqueConstraint("user", "idempotency_key"),
        one_of("state", get_args(SubmissionState)),
        CheckConstraint(f"(ended_at IS NULL) = (state IN {among(OPEN_SUBMISSIONS)})", name="ended"),
        CheckConstraint("state != 'running' OR started_at IS NOT NULL", name="started"),
        *not_negative("uid", "reserved_usd", "study_workers", "starts", "fruitless", "step"),
        Index(None, "state", "host", "uid"),
    )

    number: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[str]
    name: Mapped[str]
    spec: Mapped[dict[str, Any]]
    job_file: Mapped[str]
    user: Mapped[str]
    host: Mapped[str]
    installation: Mapped[str | None]
    uid: Mapped[int]
    rents: Mapped[bool]
    reserved_usd: Mapped[float | None]
    audit: Mapped[bool]
    priority: Mapped[int]
    idempotency_key: Mapped[str | None]
    run: Mapped[bool | None]
    study_workers: Mapped[int | None]
    environment: Mapped[str | None]
    state: Mapped[str]
    reason: Mapped[str]
    cancelling: Mapped[bool]
    starts: Mapped[int]
    fruitless: Mapped[int]
    faults: Mapped[int | None]
    step: Mapped[int | None]
    submitted_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    standing: Mapped[dict[str, Any] | None]


class LedgerRow(Base):
    """What an item of a job was in a month, and what it has cost; see `scavenger.store.ledger`.

    It outlives the job's record, so it has no key to that.
    """

    __tablename__ = "ledger"
    __table_args__ = (one_of("item", get_args(Item)), Index(None, "month"), Index(None, "name"))

    job_id: Mapped[str] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(primary_key=True)
    month: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    user: Mapped[str]
    quantity: Mapped[float]
    usd: Mapped[float]
    basis: Mapped[str]


class ClaimRow(Base):
    """What a program has set aside of a study's budget for a trial that it begins; see `scavenger.store.ledger`."""

    __tablename__ = "claims"
    __table_args__ = (*positive("owner_pid"), *not_negative("usd", "before_usd"), Index(None, "name"))

    job_id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    usd: Mapped[float]
    before_usd: Mapped[float]
    owner_pid: Mapped[int]
    owner_host: Mapped[str]
    owner_started_at_s: Mapped[float]
    owner_birth: Mapped[str | None]
    at: Mapped[datetime]


class BudgetRow(Base):
    """A budget of a calendar month that holds for every server of the store; see `StoredBudgets`."""

    __tablename__ = "budgets"
    __table_args__ = (*not_negative("usd"),)

    name: Mapped[str] = mapped_column(primary_key=True)
    usd: Mapped[float]


class IndicatorRow(Base):
    """See `scavenger.domain.indicators.IndicatorBatch`.

    `content` has the steps and columns, packed and compressed; `total` counts the job's values up to this batch.
    """

    __tablename__ = "indicators"
    __table_args__ = (*positive("count", "total"), *not_negative("first_step"), Index(None, "job_id", "id"))

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    at: Mapped[datetime]
    first_step: Mapped[int]
    last_step: Mapped[int]
    count: Mapped[int]
    total: Mapped[int]
    content: Mapped[bytes]


class RestoreRow(Base):
    """See `scavenger.domain.restore.Restore`; tokens of leases that are taken since are above `token_floor`."""

    __tablename__ = "restores"
    __table_args__ = (*positive("token_floor"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    backup_at: Mapped[datetime]
    token_floor: Mapped[int]
    looked_at: Mapped[datetime | None]


class QuarantineRow(Base):
    """See `scavenger.domain.restore.QuarantinedVm`."""

    __tablename__ = "quarantine"

    provider: Mapped[str] = mapped_column(primary_key=True)
    region: Mapped[str] = mapped_column(primary_key=True)
    instance_id: Mapped[str] = mapped_column(primary_key=True)
    vm: Mapped[str]
    zone: Mapped[str]
    job_id: Mapped[str]
    launched_at: Mapped[datetime | None]
    kept_by: Mapped[str | None]


class MeasurementRow(Base):
    """See `scavenger.domain.measurement.Measurement`; one per job and configuration."""

    __tablename__ = "measurements"
    __table_args__ = (
        UniqueConstraint("job_id", "vm", "workers", "global_batch_size"),
        CheckConstraint("workers > 0 AND global_batch_size >= workers", name="configuration"),
        *positive("steps", "step_time_s"),
        *not_negative("step_time_spread_s", "compute_s", "sync_s", "memory_bytes"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    vm: Mapped[str]
    workers: Mapped[int]
    global_batch_size: Mapped[int]
    steps: Mapped[int]
    step_time_s: Mapped[float]
    step_time_spread_s: Mapped[float]
    compute_s: Mapped[float]
    sync_s: Mapped[float]
    gradient_noise: Mapped[float | None]
    noise_scale: Mapped[float | None]
    memory_bytes: Mapped[int]


class ModelRow(Base):
    """See `scavenger.store.records.ModelRecord`; `model` is JSON as text, so that damage can be detected."""

    __tablename__ = "models"
    __table_args__ = (
        one_of("origin", get_args(Origin)),
        *positive("schema_version"),
        *not_negative("measurements", "runs"),
        Index(None, "fingerprint_id"),
        Index(None, "created_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    fingerprint_id: Mapped[str] = mapped_column(ForeignKey("fingerprints.id"))
    model: Mapped[str]
    schema_version: Mapped[int]
    measurements: Mapped[int]
    runs: Mapped[int]
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id", ondelete="SET NULL"))
    origin: Mapped[str]
    created_at: Mapped[datetime]

    fingerprint: Mapped[FingerprintRow] = relationship(lazy="joined")


class ConvergenceRow(Base):
    """See `scavenger.domain.measurement.ConvergenceRecord`; a job reaches its target, or misses it, once."""

    __tablename__ = "convergence"
    __table_args__ = (
        UniqueConstraint("job_id"),
        *positive("global_batch_size", "epochs"),
        *not_negative("log_sd"),
        Index(None, "fingerprint_id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    fingerprint_id: Mapped[str] = mapped_column(ForeignKey("fingerprints.id"))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    global_batch_size: Mapped[int]
    epochs: Mapped[float]
    log_sd: Mapped[float]
    created_at: Mapped[datetime]

    fingerprint: Mapped[FingerprintRow] = relationship(lazy="joined")
