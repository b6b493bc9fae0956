"""`Client`: plans, runs and submits jobs from Python, in this process or by a server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from scavenger.api.calls import Local, Remote, Source
from scavenger.api.curves import report_with_curve
from scavenger.api.jobs import job_of
from scavenger.api.models import list_models, show_model
from scavenger.client import Client as ServerClient
from scavenger.client import server_address
from scavenger.client.address import known_address
from scavenger.domain.report import Observer
from scavenger.errors import ConfigurationError
from scavenger.pipelines.arguments import named
from scavenger.pipelines.budget import dollars
from scavenger.pipelines.job import Job
from scavenger.pipelines.job_runner import JobRunner
from scavenger.pipelines.narrowing import Choices, fixed
from scavenger.pipelines.results import Models, Plan, Run, Submission

if TYPE_CHECKING:
    from scavenger.pipelines.study import Study
    from scavenger.store.records import ModelRecord

KEEP_S = 180.0
"""How long a VM that a trial leaves waits for another, seconds; a search takes seconds to begin the next one."""


class Client(JobRunner):
    """Plans, runs and submits jobs. Without arguments, it does so where the `scavenger` command does.

    Nothing is opened before it is needed; `close`, or a `with` block, closes it. A client may be used from several
    threads.

    Args:
        store: The database of jobs, measurements and models: a URL, as `--store` of commands takes it, or the path of
            a SQLite file.
        server: URL of a server that runs the jobs instead, with what `scavenger api login` has kept for it.
        token: The server's token; else the kept one, or that of `SCAVENGER_TOKEN`.
        budget: US dollars that all jobs of this client may cost together; each job has what the others leave.
        progress: Whether progress is shown; None: in notebooks and on terminals.
        trackers: Of jobs that name none of their own, as the key `trackers` of a job file: `{"mlflow": URI}`.

    Raises:
        ConfigurationError: If both a store and a server are given, or no token is known for the server.
    """

    @named
    def __init__(
        self,
        *,
        store: str | None = None,
        server: str | None = None,
        token: str | None = None,
        budget: str | float | None = None,
        progress: bool | None = None,
        trackers: Mapping[str, str] | None = None,
    ) -> None:
        if store is not None and server is not None:
            raise ConfigurationError("a client has a store or a server, not both; leave one out")
        address = (
            known_address(server, token)
            if server is not None
            else server_address()
            if store is None
            else None
        )
        source: Source = Local(_url(store)) if address is None else Remote(ServerClient(address))
        super().__init__(source, budget_usd=dollars(budget), progress=progress, trackers=trackers)

    @property
    def spent_usd(self) -> float:
        """What the jobs that this client ran have cost, US dollars."""
        return self._budget.spent_usd

    @property
    def left_usd(self) -> float:
        """What is left of the budget; infinite without one."""
        return self._budget.left_usd

    def plan(self, job: Job, *, observer: Observer | None = None) -> Plan:
        """Profile a job, predict time and cost of every configuration, and choose one; the job ends with that.

        Args:
            job: The job.
            observer: Receives what happens, on the thread that runs the job.

        Raises:
            NoFeasiblePlanError: If no configuration meets the constraints.
            ScavengerError: If another error ends it.
        """
        if isinstance(self._source, Remote):
            return Plan(self._there(job, observer, run=False).check().report)
        return Plan(self._here(job, run=False, observer=observer).check().report)

    def optimize(self, job: Job, *, observer: Observer | None = None) -> Run:
        """Plan a job, and train it to its goal at the chosen configuration.

        Args:
            job: The job.
            observer: Receives what happens, on the thread that runs the job.

        Raises:
            NoFeasiblePlanError: If no configuration meets the constraints.
            LimitReachedError: If its budget or deadline ended it; its model is saved, and `result` has its report.
            ScavengerError: If another error ends it.
        """
        return self.attempt(job, observer=observer).check()

    def run(
        self,
        job: Job,
        choice: Choices | None = None,
        *,
        workers: int | None = None,
        batch_size: int | None = None,
        observer: Observer | None = None,
    ) -> Run:
        """Train a job at one configuration, without a search.

        Args:
            job: The job.
            choice: The configuration: a plan, whose choice it is, or any point of its curve. The run of a plan is held
                against what the plan has predicted.
            workers: The number of workers, if there is no `choice`.
            batch_size: The global batch size, samples, if there is no `choice`.
            observer: Receives what happens, on the thread that runs the job.

        Raises:
            ConfigurationError: If no configuration is named, or it is not one of the job's.
            ScavengerError: As of `optimize`.
        """
        approved = choice.predicted if isinstance(choice, Plan) else None
        narrowed = fixed(job, choice, workers, batch_size)
        return self.attempt(narrowed, observer=observer, approved=approved).check()

    @named
    def study(
        self,
        name: str,
        *,
        budget: str | float | None = None,
        deadline: str | float | None = None,
        at_once: int = 1,
        workers: int | None = None,
        keep_vms: str | float = KEEP_S,
    ) -> Study:
        """A study: trials that share what is learned, what is warm, and a budget; see `Study`.

        Args:
            name: Its name, which is that of its jobs; a study of this name on record goes on.
            budget: US dollars for all its trials, those on record included.
            deadline: Its longest time, as `8h` or seconds, those of earlier attempts included.
            at_once: How many trials share what is left of the budget, if they run at once.
            workers: The most that trials which run at once have together; see `Study`.
            keep_vms: How long a VM that a trial leaves waits for another, as `3m` or seconds; 0: not at all.
        """
        from scavenger.pipelines.study import Study

        return Study(
            self,
            name,
            budget=budget,
            deadline=deadline,
            at_once=at_once,
            workers=workers,
            keep_vms=keep_vms,
        )

    def submit(self, job: Job, *, priority: int = 0) -> Submission:
        """Submit a job, to be run by a server on this machine, or by the client's server; does not wait.

        Args:
            job: The job.
            priority: Higher ones begin first.

        Raises:
            ScavengerError: If it is refused.
        """
        return self._handed_over(job, priority=priority)

    def curve(self, job: str) -> Plan:
        """The predicted time and cost of every configuration of a job on record, and its choice.

        Args:
            job: As of `result`.

        Raises:
            NotFoundError: If there is none.
            ConfigurationError: If it has no curve.
        """
        return Plan(report_with_curve(job_of(self._open, job)))

    def model(self, model: str) -> ModelRecord:
        """A stored model with its content.

        Args:
            model: Its id, or the beginning of it.

        Raises:
            NotFoundError: If there is none.
        """
        return show_model(self._open, model).model

    def models(self) -> Models:
        """The stored models, which jobs of the same kind use instead of profiling."""
        return Models(list_models(self._open).models)


def _url(store: str | None) -> str | None:
    return store if store is None or "://" in store else f"sqlite:///{Path(store).absolute()}"
