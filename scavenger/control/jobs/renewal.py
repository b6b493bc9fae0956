"""What a job that has ended is resumed with in place of its own: limits, and the folder of its output."""

from __future__ import annotations

from pathlib import Path

from scavenger.control.job_file.load import job_of, override_job
from scavenger.control.jobs.prepared import check_writable
from scavenger.domain.job import JobSpec
from scavenger.domain.overrides import UNCHANGED, Renewal
from scavenger.errors import ConfigurationError
from scavenger.store.records import JobRecord


def renewed(job: JobRecord, new: Renewal) -> JobSpec | None:
    """The specification of a job with new limits, those of all its attempts together, or another output.

    Returns:
        None if nothing is given.

    Raises:
        ConfigurationError: If a limit is invalid, or below the job's own, or the output cannot be written to;
            nothing is changed then.
    """
    if new == UNCHANGED:
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
    if new.output is not None:
        if "\0" in new.output or not new.output.strip():
            raise ConfigurationError("the output must be the path of a folder", key="output")
        spec = job_of({**spec.written(), "output": new.output})
        check_writable((Path(job.job_file).parent / spec.output).absolute(), "output")
    return spec
