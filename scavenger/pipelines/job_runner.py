"""Jobs of a Python program, run in its process or by a server, one by one: what clients and studies are made of."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from scavenger.api.calls import Local, Remote, Source
from scavenger.api.costs import show_cost
from scavenger.api.jobs import end_dead, events_of, job_of, jobs_of
from scavenger.api.operating import request
from scavenger.api.submissions import SubmittedJob, cancel, submission_of
from scavenger.api.submitting import SubmitRequest, resumed, submit
from scavenger.control.jobs.renewal import renewed
from scavenger.control.jobs.variables import asked_variables
from scavenger.domain.document import report_from_document
from scavenger.domain.job import JobSpec
from scavenger.domain.operation import StopJob, TakeShare
from scavenger.domain.overrides import Renewal
from scavenger.domain.report import Observer, PhaseChanged, Predicted
from scavenger.errors import (
    ConfigurationError,
    NotFoundError,
    ScavengerError,
    StoreError,
    TransientError,
)
from scavenger.pipelines.budget import Allowance, Budget, check_own_limit, dollars, own_limit_usd
from scavenger.pipelines.driving import drive, refuse_in_workers
from scavenger.pipelines.handing_over import job_file_of, told
from scavenger.pipelines.job import Job, check_is_job
from scavenger.pipelines.narrowing import limited
from scavenger.pipelines.progress import shown_progress
from scavenger.pipelines.results import Run, Submission
from scavenger.pipelines.running import RunningJob
from scavenger.train.engines.warm import WarmServers

if TYPE_CHECKING:
    from scavenger.control.jobs.job_run import JobRun
    from scavenger.control.jobs.pool_seat import PoolSeat
    from scavenger.control.provisioning.kept_vms import KeptVms
    from scavenger.store import Store
    from scavenger.store.records import JobRecord

log = logging.getLogger(__name__)

_LAST_S = 5.0
"""Longest wait at the end of a job for notifications that are being sent."""
_LOOK_S = 0.5
_RECORDS_MAX = 10_000
"""Most jobs of one name, such as trials of a study, that are looked at."""


@dataclass(slots=True)
class StudyTerms:
    """What a study gives to a job that it runs, beside the job itself.

    Attributes:
        kept: VMs that the job takes, and to which it leaves its own.
        budget_usd, workers: Of the whole study, for jobs of a server; see `SubmitRequest`.
        seat: Of a job of this program that shares workers with others; see `JobRun`.
        begun: Ids of the jobs that have begun under them.
    """

    kept: KeptVms | None = None
    budget_usd: float | None = None
    workers: int | None = None
    seat: PoolSeat | None = None
    begun: list[str] = field(default_factory=list)


class JobRunner:
    """Runs jobs where a client does, within its budget, and reads those on record.

    Args:
        source: Where jobs are on record: a store, or a server, which then runs them.
        budget_usd: What all jobs may cost together; None without a limit.
        progress: Whether progress is shown; None: in notebooks and on terminals.
        trackers: Of jobs that name none of their own.
    """

    def __init__(
        self,
        source: Source,
        *,
        budget_usd: float | None,
        progress: bool | None,
        trackers: Mapping[str, str] | None,
    ) -> None:
        self._source = source
        self._budget = Budget(budget_usd)
        self._progress, self._trackers = progress, trackers
        self._lock = threading.Lock()
        self._warm = WarmServers()
        self._running: dict[int, JobRun] = {}
        self._there_by: dict[int, str] = {}
        self._kept: list[KeptVms] = []
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what is kept for further jobs, and close the store or the connection to the server.

        A closed client answers nothing more.
        """
        self._closed = True
        with ExitStack() as ending:  # whatever fails, the rest is ended
            ending.callback(self._source.__exit__, None, None, None)
            ending.callback(self._warm.close)
            for kept in self._kept:
                ending.callback(kept.close)

    def attempt(
        self,
        job: Job,
        *,
        observer: Observer | None = None,
        job_id: str | None = None,
        approved: Predicted | None = None,
        terms: StudyTerms | None = None,
    ) -> Run:
        """As `optimize`, but a job that fails once it has begun is returned, too: see `Run.state` and `Run.error`.

        Args:
            job: The job.
            observer: Receives what happens.
            job_id: A new UUID, which is to be the job's id; None, and for a server's job, to leave that open.
            approved: What was predicted of it before, which it is held against; None for its own prediction.
            terms: Of its study; None if it is of none.

        Raises:
            ScavengerError: If it cannot begin.
        """
        if isinstance(self._source, Remote):
            return self._there(job, observer, terms=terms).against(approved)
        return self._here(job, run=True, observer=observer, terms=terms, job_id=job_id, approved=approved)

    def resume(
        self,
        job: str,
        *,
        observer: Observer | None = None,
        budget: str | float | None = None,
        deadline_s: float | None = None,
        terms: StudyTerms | None = None,
        new_budget: str | float | None = None,
        new_deadline: str | None = None,
        new_max_epochs: int | None = None,
        new_output: str | os.PathLike[str] | None = None,
    ) -> Run:
        """Have a job that ended before its goal go on from its checkpoint; returned as by `attempt`.

        Args:
            job: As of `result`.
            observer: Receives what happens.
            budget: US dollars that it may cost from now on, if that is less than its own budget leaves.
            deadline_s: The same of its time, seconds. A job of a server has its own deadline alone.
            terms: As of `attempt`.
            new_budget: Budget of the job in place of its own, US dollars: for all its attempts, and not below its own.
            new_deadline: The same of its deadline, as `8h`.
            new_max_epochs: The same of its `goal.max_epochs`, for one that missed its target, say.
            new_output: Folder to which what it has written goes, and where it goes on; on the server's machine if
                a server runs the job. Relative to the current folder.

        Raises:
            ConfigurationError, TransientError: If it cannot be resumed.
            LimitReachedError: If nothing is left of a budget, or a server's job may cost more than what is left.
        """
        usd = dollars(new_budget)
        output = None if new_output is None else os.path.abspath(new_output)
        renewal = Renewal(None if usd is None else f"{usd!r}", new_deadline, new_max_epochs, output)
        record, given = job_of(self._open, job), dollars(budget)
        if (spec := renewed(record, renewal)) is not None:
            record = replace(record, spec=spec.written())
        before_usd = self.cost_of(record.id)
        own_usd = own_limit_usd(record, before_usd)
        most_usd = min((usd for usd in (given, own_usd) if usd is not None), default=None)
        if isinstance(self._source, Local):
            if terms is not None and terms.seat is not None:
                spec = terms.seat.within(JobSpec.model_validate(record.spec))
            return self._resumed_here(record.id, spec, observer, most_usd, before_usd, deadline_s, terms)
        with self._budget.allowance(most_usd, before_usd=before_usd) as allowance:
            check_own_limit(record, before_usd, allowance.usd)
            made = resumed(self._source, record, renewal, **_of_study(terms))
            allowance.job_id = made.id
        return self._awaited(made.id, observer, terms)

    def _check_may_run(self) -> None:
        """Refuse to run a job by a closed client, or in a worker.

        Raises:
            ConfigurationError: If this is either.
        """
        _ = self._open
        refuse_in_workers()

    @property
    def _open(self) -> Source:
        """Where jobs are on record, for what a closed client refuses.

        Raises:
            ConfigurationError: If this one is closed.
        """
        if self._closed:
            raise ConfigurationError("this client was closed; make another one")
        return self._source

    def _handed_over(
        self, job: Job, *, priority: int = 0, run: bool = True, terms: StudyTerms | None = None
    ) -> Submission:
        check_is_job(job)
        self._check_may_run()
        with self._budget.allowance(job.spec.constraints.budget) as allowance:
            limit = self.tracked(limited(job, allowance.usd))
            made = self._submitted_job(limit, priority, run=run, terms=terms)
            allowance.job_id = made.id  # set aside until `wait` has its bill
        return Submission.of(made)

    def _submitted_job(self, job: Job, priority: int, *, run: bool, terms: StudyTerms | None) -> SubmittedJob:
        if isinstance(self._source, Remote):
            with job_file_of(job) as path:
                asked = SubmitRequest(
                    job_file=str(path),
                    priority=priority,
                    run=run,
                    environment=asked_variables(job.spec, os.environ),
                    **_of_study(terms),
                )
                return submit(self._source, asked).submission
        from scavenger.control.jobs.prepared import prepare_job
        from scavenger.control.service.submitting import hand_over, new_submission, own_environment

        prepared, own = prepare_job(job.spec, job.path), own_environment()
        new = new_submission(prepared, priority=priority, environment=own)
        handed = hand_over(self._store(), new)
        one = submission_of(self._source, handed.id)
        assert one is not None
        return one

    def wait(self, job: str | Submission, *, observer: Observer | None = None) -> Run:
        """Wait until a submitted job has ended.

        Args:
            job: A submission, an id or the beginning of one, or a name.
            observer: Receives what happens.

        Raises:
            ConfigurationError: If there is no such job, or it ended before it began.
        """
        key = job.id if isinstance(job, Submission) else job
        while (one := submission_of(self._open, key)) is not None and one.job_state is None:
            if not one.is_open:
                self._budget.settle(one.id, self._cost_if_known)
                raise ConfigurationError(f"job {one.name} ({one.id[:8]}) did not begin: {one.reason}")
            time.sleep(_LOOK_S)
        job_id = job_of(self._source, key).id if one is None else one.id
        with shown_progress(self._progress, observer) as seen:
            for event in events_of(self._source, job_id):
                for seen_event in told(event):
                    seen.on_event(seen_event)
            seen.on_event(PhaseChanged("done", ""))
        self._budget.settle(job_id, self._cost_if_known)
        return self.result(job_id)

    def running(self, job: str | Submission) -> RunningJob:
        """A running job, to be asked for changes: scaled, migrated, stopped.

        Args:
            job: What `submit` returned, or as of `result`.
        """
        return RunningJob.known_to(self._open, job if isinstance(job, str) else job.id)

    def result(self, job: str) -> Run:
        """The report of a job that has ended.

        Args:
            job: An id or the beginning of one, or the name of which the latest job is meant.

        Raises:
            NotFoundError: If there is none.
            TransientError: If it has no report yet.
        """
        record = job_of(self._open, job)
        if record.report is None:
            raise TransientError(f"job {record.name} ({record.id[:8]}) has no report: it is {record.state}")
        try:
            return Run(report_from_document(record.report))
        except ValueError as error:
            raise StoreError(f"the stored report of job {record.id[:8]} cannot be read: {error}") from error

    def records(self, name: str) -> tuple[JobRecord, ...]:
        """The jobs of a name on record, newest first, without their reports; those whose process is gone have ended."""
        end_dead(self._open)
        return jobs_of(self._open, _RECORDS_MAX, name=name)

    def tracked(self, job: Job) -> Job:
        """The job with the client's trackers, if it has none of its own."""
        if self._trackers is None or job.spec.trackers is not None:
            return job
        return job.with_settings({"trackers": dict(self._trackers)})

    def _store(self) -> Store:
        assert isinstance(self._source, Local)
        with self._lock:  # it is opened by the first who needs it
            return self._source.store

    def _here(
        self, job: Job, *, run: bool, observer: Observer | None, terms: StudyTerms | None = None, **more: Any
    ) -> Run:
        from scavenger.control.jobs.job_run import JobRun
        from scavenger.control.jobs.prepared import prepare_job

        check_is_job(job)
        terms = terms or StudyTerms()
        seat, kept = terms.seat, terms.kept
        with self._budget.allowance(job.spec.constraints.budget) as allowance:
            spec = self.tracked(limited(job, allowance.usd)).spec
            spec = spec if seat is None else seat.within(spec)

            def begin(store: Store, seen: Observer) -> JobRun:
                prepared = prepare_job(spec, job.path, warm=self._warm, kept=kept)
                return JobRun(prepared, store=store, observer=seen, run=run, confirm=None, seat=seat, **more)

            return self._driven(begin, allowance, observer, terms)

    def _resumed_here(
        self,
        job_id: str,
        spec: JobSpec | None,
        observer: Observer | None,
        most_usd: float | None,
        before_usd: float,
        left_s: float | None,
        terms: StudyTerms | None,
    ) -> Run:
        from scavenger.control.jobs.resume import resume_job

        terms = terms or StudyTerms()
        seat, kept = terms.seat, terms.kept
        with self._budget.allowance(most_usd, before_usd=before_usd) as allowance:
            budget_usd = None if allowance.usd is None else before_usd + allowance.usd

            def begin(store: Store, seen: Observer) -> JobRun:
                return resume_job(
                    job_id,
                    spec=spec,
                    store=store,
                    observer=seen,
                    confirm=None,
                    warm=self._warm,
                    kept=kept,
                    budget_usd=budget_usd,
                    left_s=left_s,
                    seat=seat,
                )

            return self._driven(begin, allowance, observer, terms)

    def _driven(
        self,
        begin: Callable[[Store, Observer], JobRun],
        allowance: Allowance,
        observer: Observer | None,
        terms: StudyTerms,
    ) -> Run:
        from scavenger.control.notifying.settings import notifying

        self._check_may_run()
        store, job_id = self._store(), ""
        try:
            with (
                notifying(store, only_mine=True, within_s=_LAST_S),
                shown_progress(self._progress, observer, budget_usd=allowance.usd) as seen,
            ):
                one = begin(store, seen)
                with self._stoppable(one):
                    try:
                        return Run(drive(one))
                    finally:
                        job_id = one.job_id
        finally:
            terms.begun += [job_id] if job_id else []
            allowance.cost_usd = self._cost_if_known(job_id, allowance.before_usd)

    def cost_of(self, job_id: str) -> float:
        """What a job has cost by its record, US dollars; 0 if it has none.

        Args:
            job_id: Its id; may be empty.

        Raises:
            ScavengerError: If the record cannot be read.
        """
        if not job_id:
            return 0.0
        try:
            return show_cost(self._source, job_id).job.actual_usd or 0.0
        except NotFoundError:
            return 0.0

    def _cost_if_known(self, job_id: str, before_usd: float) -> float | None:
        try:
            return max(0.0, self.cost_of(job_id) - before_usd)
        except ScavengerError:
            return None

    @property
    def by_server(self) -> bool:
        """Whether a server runs the jobs."""
        return isinstance(self._source, Remote)

    @contextmanager
    def _stoppable(self, run: JobRun) -> Iterator[None]:
        thread = threading.get_ident()
        self._running[thread] = run
        try:
            yield
        finally:
            del self._running[thread]

    def stop_job(self, thread: int, reason: str, *, save: bool = True) -> None:
        """Stop the job that a thread of this program runs or waits for by this client, in order; none if there is none.

        Args:
            thread: As of `threading.get_ident`.
            reason: For the record.
            save: Whether its model is saved.
        """
        if (run := self._running.get(thread)) is not None:
            run.request_stop(reason, save=save)
        elif (job_id := self._there_by.get(thread)) is not None:
            try:
                request(self._source, job_id, StopJob(save, reason))
            except (
                ScavengerError
            ) as error:  # it has ended, or does something else: the next evaluation asks again
                log.info("job %s was not asked to stop: %s", job_id[:8], error)

    def keep(self, kept: KeptVms) -> None:
        """Have `close` end the VMs that a study keeps."""
        with self._lock:
            self._kept.append(kept)

    def wait_for(self, kept: KeptVms, spent_usd: float, more_usd: float, returned_usd: float) -> bool:
        """See `Budget.wait_for`, of the budget of all jobs of this client."""
        return self._budget.wait_for(kept, spent_usd, more_usd, returned_usd=returned_usd)

    @contextmanager
    def claimed(
        self, study: str, job_id: str, budget_usd: float | None, most_usd: float | None
    ) -> Iterator[float | None]:
        """Set aside of a study's budget, in the store, what a job may cost while it runs within the block.

        So of two programs neither gets what the other one has. A server does it when a job is submitted to it.

        Args:
            study: As of `Ledger.claim`.
            job_id: Likewise.
            budget_usd: Likewise.
            most_usd: Likewise.

        Gives what the job may cost; None without a limit.

        Raises:
            LimitReachedError: If nothing is left.
        """
        if budget_usd is None or isinstance(self._source, Remote):
            yield most_usd
            return
        store = self._store()
        granted_usd = store.claim(study, job_id, budget_usd, most_usd)
        try:
            yield granted_usd
        finally:
            store.release(job_id)

    def give(self, thread: int, share: TakeShare, by: str) -> None:
        """Ask the job that a thread of this program runs by this client to take another share; none if there is none.

        Raises:
            ScavengerError: It cannot be asked at this moment.
        """
        run = self._running.get(thread)
        if run is not None and run.job_id:
            self._store().submit_operation(run.job_id, share, by)
            run.knock()

    def _there(
        self, job: Job, observer: Observer | None, *, run: bool = True, terms: StudyTerms | None = None
    ) -> Run:
        return self._awaited(self._handed_over(job, run=run, terms=terms).id, observer, terms)

    def _awaited(self, job_id: str, observer: Observer | None, terms: StudyTerms | None = None) -> Run:
        """Wait for a job of a server, which Ctrl-C and `stop_job` stop."""
        thread = threading.get_ident()
        self._there_by[thread] = job_id
        if terms is not None:
            terms.begun.append(job_id)
        try:
            return self.wait(job_id, observer=observer)
        except KeyboardInterrupt:
            cancel(self._source, job_id)
            raise
        finally:
            del self._there_by[thread]


def _of_study(terms: StudyTerms | None) -> dict[str, Any]:
    """What a server is told of a study."""
    return {} if terms is None else {"study_budget": terms.budget_usd, "study_workers": terms.workers}
