"""What commands need of jobs, wherever these are on record. Both implementations give the same values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from scavenger.domain.overrides import UNCHANGED, Renewal

if TYPE_CHECKING:
    from datetime import datetime

    from scavenger.control.documents.catalog import Asked, Found
    from scavenger.control.documents.jobs import JobStatus, ListedJob
    from scavenger.control.documents.logs import LogReader, Wanted
    from scavenger.control.documents.pool import SeenPool
    from scavenger.control.documents.submissions import SubmittedJob
    from scavenger.control.provisioning.bill import JobCost
    from scavenger.control.sweep import Sweep
    from scavenger.domain.access import Role
    from scavenger.domain.operation import Operation
    from scavenger.domain.restore import Quarantine, QuarantinedVm
    from scavenger.domain.submission import ServerRecord
    from scavenger.models.job_model import JobModel
    from scavenger.store.records import EventRecord, JobRecord, ModelRecord, OperationRecord


class Source(Protocol):
    """Jobs, models and prices, as commands show them; close it after use.

    Keys of jobs are ids, beginnings of ids, or names. Every method raises `NotFoundError` where there is no such job,
    model or operation, `ConfigurationError` where several begin so, and what the store or the server fails with.
    """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def name(self) -> str:
        """Location of the store, for the user."""

    @property
    def user(self) -> str:
        """Whose jobs are submitted through this."""

    # ---- jobs --------------------------------------------------------------------------------------------------

    def jobs(
        self, limit: int, *, states: Collection[str] = (), name: str | None = None
    ) -> tuple[ListedJob, ...]:
        """The latest jobs, newest first, without their reports; see `Store.jobs`."""

    def job(self, key: str) -> JobRecord:
        """A job with its report."""

    def why(self, key: str, workers: int, global_batch_size: int) -> dict[str, Any]:
        """Where the prediction of a job's configuration comes from; see `why_of`."""

    def status(self, key: str) -> JobStatus:
        """A job with its bill, and what happened last."""

    def cost(self, key: str, at: datetime) -> JobCost:
        """What a job costs, counted up to a time; a server counts up to the time of the request."""

    def costs(self, limit: int, at: datetime) -> tuple[JobCost, ...]:
        """What the latest jobs cost, newest first."""

    def logs(self, key: str, wanted: Wanted) -> LogReader:
        """A reader of a job's logs.

        Raises:
            ConfigurationError: The wanted process has no log, told here or by the reader.
        """

    def events(self, job_id: str, after: int) -> Iterator[EventRecord]:
        """Events with a higher id as they come, until the job is over."""

    def check_deletable(self, ids: Collection[str]) -> None:
        """Refuse jobs whose records are still needed; see `Store.check_deletable`."""

    def delete_jobs(self, ids: Collection[str]) -> None:
        """Delete the records of jobs, all or none; see `Store.delete_jobs`."""

    # ---- submitted jobs ----------------------------------------------------------------------------------------

    def submissions(
        self, limit: int, *, states: Collection[str] = (), user: str | None = None
    ) -> tuple[SubmittedJob, ...]:
        """The latest submissions, newest first; see `Store.submissions`."""

    def submission(self, key: str) -> SubmittedJob | None:
        """The latest submission of that key; None if there is none."""

    def servers(self) -> tuple[ServerRecord, ...]:
        """The processes that run submitted jobs."""

    def cancel(self, job_id: str) -> SubmittedJob:
        """Withdraw a submission that waits, or have its runner stopped; see `Store.cancel`."""

    def resume(
        self,
        job: JobRecord,
        *,
        audit: bool,
        renewal: Renewal = UNCHANGED,
        study_budget: float | None = None,
    ) -> SubmittedJob:
        """Submit a job that has ended again, to go on from its checkpoint, with new limits where they are given.

        With `study_budget`, see `Store.submit_again`.

        Raises:
            ConfigurationError, TransientError: It cannot be resumed, or is in the queue already.
            LimitReachedError: What it may cost is not left of its study's budget.
        """

    # ---- operations --------------------------------------------------------------------------------------------

    def request(self, job_id: str, operation: Operation) -> OperationRecord:
        """Request an operation of a running job; see `Store.submit_operation`."""

    def operation(self, job_id: str, number: int) -> OperationRecord:
        """What became of an operation."""

    def withdraw(self, job_id: str, number: int) -> OperationRecord:
        """Withdraw an operation that was not started; its message then begins with `withdrawn`."""

    def end_dead(self) -> None:
        """Record of jobs whose processes are gone that they have ended, where that can be seen from here."""

    # ---- VMs that no job uses ------------------------------------------------------------------------------------

    def leftovers(self, regions: Collection[str]) -> Sweep:
        """VMs that no job uses; see `find_leftovers`."""

    def end_leftovers(self, regions: Collection[str], keys: Collection[str]) -> tuple[str, ...]:
        """End such VMs; see `end_leftovers`."""

    def quarantine(self) -> Quarantine:
        """VMs that a restored store does not know; nothing for a user who sees only their own jobs."""

    def keep_quarantined(self, key: str) -> QuarantinedVm:
        """Have a VM in quarantine stay; see `Store.keep_quarantined`."""

    # ---- models, prices, the pool ------------------------------------------------------------------------------

    def models(self) -> tuple[tuple[ModelRecord, str | None], ...]:
        """Every fitted model, without its content, with the name of the job that fitted it if it is known."""

    def model(self, key: str) -> ModelRecord:
        """A model with its content."""

    def delete_model(self, key: str) -> ModelRecord:
        """Delete a model, and return it."""

    def export_models(self, keys: Collection[str]) -> dict[str, Any]:
        """Models as one document, which `import_models` reads; no keys: all that are intact."""

    def import_models(self, document: Mapping[str, Any]) -> tuple[str, ...]:
        """Import exported models, all or none; returns their ids.

        Raises:
            ConfigurationError: The first fault of the document.
        """

    def put_fit(self, key: str, model: JobModel) -> str:
        """Store a model that was fitted to past measurements, for jobs like this one; returns its id.

        Raises:
            ConfigurationError: It does not fit that job; see `fitted_for`.
        """

    def machines(self, asked: Asked) -> Found:
        """Machine types with their prices, cheapest first.

        Raises:
            ConfigurationError: If there is no such region, type or amount.
        """

    def pool(self) -> SeenPool:
        """The pool of aggregators."""

    def drain(self, node: str, *, undo: bool) -> dict[str, Any]:
        """Have all aggregators moved off a node of the pool, or let it have some again; see `drained`."""

    # ---- the service -----------------------------------------------------------------------------------------

    def service(self) -> dict[str, Any]:
        """Servers, users and webhooks; see `service_document`."""

    def revoke_token(self, number: int) -> dict[str, Any]:
        """End a token with all that was made with it; the answer has what ended as `tokens`.

        Raises:
            NotFoundError: There is no such token.
        """

    def end_sessions(self, user: str | None) -> dict[str, Any]:
        """End all sessions of a user in browsers, None for the calling user's; as of `revoke_token`.

        Raises:
            NotFoundError: There is no such user.
        """

    def make_token(
        self, user: str | None, role: Role | None, *, label: str, days: int | None
    ) -> dict[str, Any]:
        """Make a token, which the answer has as `text`.

        Args:
            user: Whose; None: the calling user's, who becomes an admin where the store itself is asked.
            role: The user gets this role, and is added if need be; None: the user keeps theirs.
            label: What it is for.
            days: How long it is valid; None: for good.

        Raises:
            NotFoundError: There is no such user, and no role is given.
        """
