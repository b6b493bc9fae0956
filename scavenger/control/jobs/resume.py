"""Resumes a job that ended before it reached its goal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scavenger.control.jobs.job_run import JobRun
from scavenger.control.jobs.pool_seat import PoolSeat
from scavenger.control.jobs.prepared import prepare_job
from scavenger.control.jobs.relocation import relocated
from scavenger.control.jobs.resumption import find_resumption
from scavenger.control.jobs.workflow import Confirm
from scavenger.domain.job import JobSpec
from scavenger.domain.report import Noted, Observer
from scavenger.errors import LimitReachedError
from scavenger.store import Store
from scavenger.train.engines.warm import WarmServers

if TYPE_CHECKING:
    from scavenger.control.provisioning.fleet_keeping import Keeper


def resume_job(
    job_id: str,
    *,
    store: Store,
    observer: Observer,
    confirm: Confirm | None,
    audit: bool = False,
    warm: WarmServers | None = None,
    kept: Keeper | None = None,
    budget_usd: float | None = None,
    left_s: float | None = None,
    spec: JobSpec | None = None,
    seat: PoolSeat | None = None,
) -> JobRun:
    """Prepare a job to continue from its newest checkpoint.

    The job keeps the specification that it was started with; later edits of its file apply to new jobs only. Its
    limits can be raised for good, and lowered for this attempt. Where its output is another one, what it has written
    goes there first.

    Args:
        confirm: Asked before the chosen configuration is paid for, if the search had not chosen yet.
        audit: See `JobRun`; an audit is complete only if every attempt had it.
        warm, kept: See `prepare_job`.
        budget_usd: What all its attempts may cost together; None for its own budget alone.
        left_s: How long it may run from now on; None for its own deadline alone.
        spec: What it goes on with, which is recorded; see `renewal.renewed`. None for what is on record.
        seat: See `JobRun`; it goes on with as many workers as it may have now.

    Raises:
        ConfigurationError: If it cannot be resumed, or has no checkpoint that can be read.
        TransientError: If the job is running.
    """
    record = store.job(job_id)
    own = JobSpec.model_validate(record.spec) if spec is None else spec
    store.check_resumable(record, spec=None if spec is None else spec.written())
    job, job_file = own, Path(record.job_file)
    before, after = (
        (job_file.resolve().parent / spec.output / record.id).resolve()
        for spec in (JobSpec.model_validate(record.spec), own)
    )
    resumed = find_resumption(record, before / "measurements.jsonl")
    if seat is not None and resumed.chosen is not None:
        resumed = replace(resumed, chosen=seat.fitted(resumed.chosen, own))
    deadline_s = None if left_s is None else resumed.before.elapsed_s + left_s
    job = _within(job, {"budget": budget_usd, "deadline": deadline_s})
    prepared = prepare_job(job, job_file, warm=warm, kept=kept)
    earlier = replace(resumed.before, cost_usd=store.spent_usd(record.id))
    budget = job.constraints.budget
    if prepared.place.rents and budget is not None and earlier.cost_usd >= budget:
        raise LimitReachedError(
            f"job {record.name} ({record.id[:8]}) has cost ${earlier.cost_usd:.4f} of its budget of ${budget:g}: "
            f"`scavenger resume {record.id[:8]} --budget USD` raises it",
            limit="budget",
        )
    if before != after:
        observer.on_event(Noted("info", f"what the job has written is copied from {before} to {after}"))
        resumed = relocated(resumed, before, after)
    return JobRun(
        prepared,
        store=store,
        observer=observer,
        run=True,
        confirm=confirm,
        resumed=replace(resumed, before=earlier, spec=None if spec is None else spec.written()),
        audit=audit,
        seat=seat,
    )


def _within(job: JobSpec, limits: Mapping[str, float | None]) -> JobSpec:
    """The job with each of these limits that is lower than its own."""
    own = job.constraints
    lower = {
        name: limit
        for name, limit in limits.items()
        if limit is not None and limit < (math.inf if getattr(own, name) is None else getattr(own, name))
    }
    return job.model_copy(update={"constraints": own.model_copy(update=lower)}) if lower else job
