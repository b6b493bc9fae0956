"""New limits of a job that has ended, with which it is resumed."""

from __future__ import annotations

from scavenger.control.job_file.load import job_of, override_job
from scavenger.domain.job import JobSpec
from scavenger.domain.overrides import NewLimits
from scavenger.errors import ConfigurationError
from scavenger.store.records import JobRecord

__all__ = ["renewed"]


def renewed(job: JobRecord, new: NewLimits) -> JobSpec | None:
    """The specification of a job with new limits, those of all its attempts together; None if none is given.

    Raises:
        ConfigurationError: If one is invalid, or below the job's own; nothing is changed then.
    """
    if not new.changes():
        return None
    own = job_of(job.spec)
    spec = override_job(own, new.changes())
    for option, before, now in (
        ("--budget", own.constraints.budget, spec.constraints.budget),
        ("--deadline", own.constraints.deadline, spec.constraints.deadline),
        ("--max-epochs", own.goal.max_epochs, spec.goal.max_epochs),
    ):
        if before is not None and now is not None and now < before:
            raise ConfigurationError(
                f"{option} {now:g} is below the job's own, {before:g}: resuming raises limits, which count all attempts"
            )
    budget = spec.constraints.budget
    if new.budget is not None and budget is not None and budget <= (job.cost_usd or 0.0):
        raise ConfigurationError(
            f"--budget {budget:g}: the job has cost ${job.cost_usd or 0.0:.4f} already, which counts; name more"
        )
    return spec
