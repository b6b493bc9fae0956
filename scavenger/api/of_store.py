"""The store, and the machine that it is used from, as a source of what commands show."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Collection, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scavenger.api.calls import Local
from scavenger.api.costs import billed, cost_of
from scavenger.api.jobs import JobStatus, ListedJob, listed, status_of
from scavenger.api.logs import JobLogs, LogReader, Wanted
from scavenger.api.submissions import SubmittedJob, submitted_jobs
from scavenger.domain.operation import Operation
from scavenger.domain.overrides import UNCHANGED, Renewal
from scavenger.domain.submission import ServerRecord, Submission
from scavenger.errors import NotFoundError
from scavenger.store.records import EventRecord, JobRecord, OperationRecord

if TYPE_CHECKING:
    from scavenger.control.provisioning.bill import JobCost

WITHDRAWN = "withdrawn before the job started it"
POLL_S = 0.5
"""Between two looks for events: faster would not be noticed, and a look costs a millisecond."""


class StoreSource(Local):
    """A `Source`: a store."""

    def jobs(
        self, limit: int, *, states: Collection[str] = (), name: str | None = None
    ) -> tuple[ListedJob, ...]:
        return listed(self.store, self.store.jobs(limit, states=states, name=name))

    def job(self, key: str) -> JobRecord:
        return self.store.job(key)

    def why(self, key: str, workers: int, global_batch_size: int) -> dict[str, Any]:
        from scavenger.api.why import why_of

        return why_of(self.store, self.store.job(key), workers, global_batch_size)

    def status(self, key: str) -> JobStatus:
        return status_of(self.store, billed(self.store, self.store.job(key)))

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

    def submissions(
        self, limit: int, *, states: Collection[str] = (), user: str | None = None
    ) -> tuple[SubmittedJob, ...]:
        return submitted_jobs(self.store, self.store.submissions(limit, states=states, user=user))

    def submission(self, key: str) -> SubmittedJob | None:
        found = self.store.submission(key)
        return None if found is None else self._submitted(found)

    def _submitted(self, submission: Submission) -> SubmittedJob:
        return submitted_jobs(self.store, [submission])[0]

    def servers(self) -> tuple[ServerRecord, ...]:
        return self.store.servers()

    def cancel(self, job_id: str) -> SubmittedJob:
        found = self.store.cancel(job_id, f"cancelled by {self.user}")
        if found is None:
            raise NotFoundError(f"no job {job_id} was submitted")
        return self._submitted(found)

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
        return self._submitted(hand_over(self.store, new, again=job.id, study_budget_usd=study_budget))

    def request(self, job_id: str, operation: Operation) -> OperationRecord:
        return self.store.submit_operation(job_id, operation, _requester())

    def operation(self, job_id: str, number: int) -> OperationRecord:
        return self.store.operation(number)

    def withdraw(self, job_id: str, number: int) -> OperationRecord:
        return self.store.withdraw_operation(number, WITHDRAWN)

    def end_dead(self) -> None:
        self.store.reap_dead_jobs()


def _requester() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
