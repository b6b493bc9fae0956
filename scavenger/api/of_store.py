"""The store, and the machine that it is used from, as a source of what commands show."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scavenger.api.calls import Local
from scavenger.api.costs import cost_of
from scavenger.api.logs import JobLogs, LogReader, Wanted
from scavenger.api.submissions import SubmittedJob, submitted_jobs
from scavenger.domain.overrides import UNCHANGED, Renewal
from scavenger.store.records import EventRecord, JobRecord

if TYPE_CHECKING:
    from scavenger.control.provisioning.bill import JobCost

POLL_S = 0.5
"""Between two looks for events: faster would not be noticed, and a look costs a millisecond."""


class StoreSource(Local):
    """A `Source`: a store."""

    def why(self, key: str, workers: int, global_batch_size: int) -> dict[str, Any]:
        from scavenger.api.why import why_of

        return why_of(self.store, self.store.job(key), workers, global_batch_size)

    def cost(self, key: str, at: datetime) -> JobCost:
        return cost_of(self.store, self.store.job(key), at)

    def costs(self, limit: int, at: datetime) -> tuple[JobCost, ...]:
        # listings come without reports
        return tuple(self.cost(one.id, at) for one in self.store.jobs(limit))

    def logs(self, key: str, wanted: Wanted) -> LogReader:
        return JobLogs(self.store, self.store.job(key), wanted)

    def events(self, job_id: str, after: int) -> Iterator[EventRecord]:
        while True:
            # the state is read first, so that the last events are read after the end
            over = not self.store.is_alive(self.store.job(job_id)) and not self.store.has_runner(job_id)
            for event in self.store.events(job_id, limit=10_000, after=after):
                after = event.id
                yield event
            if over:
                return
            time.sleep(POLL_S)

    def resume(
        self,
        job: JobRecord,
        *,
        audit: bool,
        renewal: Renewal = UNCHANGED,
        study_budget: float | None = None,
    ) -> SubmittedJob:
        from scavenger.control.jobs.platform import prepare_job
        from scavenger.control.jobs.renewal import renewed
        from scavenger.control.service.submitting import hand_over, own_environment, resubmission
        from scavenger.domain.job import JobSpec

        spec = renewed(job, renewal)
        self.store.check_resumable(job, spec=None if spec is None else spec.written())
        whole = JobSpec.model_validate(job.spec) if spec is None else spec
        rents = prepare_job(whole, Path(job.job_file)).platform.rents
        earlier, own = self.store.submission(job.id), own_environment()
        new = resubmission(job, earlier, spec, rents=rents, audit=audit, environment=own)
        return submitted_jobs(
            self.store, [hand_over(self.store, new, again=job.id, study_budget_usd=study_budget)]
        )[0]

    def end_dead(self) -> None:
        self.store.reap_dead_jobs()
