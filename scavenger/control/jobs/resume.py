"""Going on with a job that ended before its goal."""

from __future__ import annotations

from pathlib import Path

from scavenger.control.jobs.job_run import Confirm, JobRun
from scavenger.control.jobs.platform import prepare_job
from scavenger.control.jobs.resumption import find_resumption
from scavenger.domain.job import JobSpec
from scavenger.domain.report import Observer
from scavenger.store import Store

__all__ = ["resume_job"]


def resume_job(
    job_id: str, *, store: Store, observer: Observer, confirm: Confirm | None, audit: bool = False
) -> JobRun:
    """A job that goes on where its newest checkpoint stands, ready to run.

    It is the job as it was begun; what its file says by now counts for a new one.

    Args:
        confirm: Asked where its search has yet to choose.
        audit: As of `JobRun`; has a meaning only if every attempt had it.

    Raises:
        ConfigurationError: If it cannot be resumed, or has no checkpoint that can be read.
        TransientError: If it runs.
    """
    record = store.job(job_id)
    store.check_resumable(record)
    job, job_file = JobSpec.model_validate(record.spec), Path(record.job_file)
    journal = job_file.parent / job.output / record.id / "measurements.jsonl"
    return JobRun(
        prepare_job(job, job_file),
        store=store,
        observer=observer,
        run=True,
        confirm=confirm,
        resumed=find_resumption(record, journal),
        audit=audit,
    )
