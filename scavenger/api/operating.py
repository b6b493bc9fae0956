"""Requests to running jobs: `scavenger scale`, `migrate` and `stop`."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

from pydantic import Field

from scavenger.api.calls import Local, Remote, Source, call
from scavenger.api.forms import WHOLE, JobKey, WorkerName
from scavenger.api.operations import OperationAnswer, outcome
from scavenger.api.submissions import SubmissionAnswer, submitted
from scavenger.domain import operation as op
from scavenger.domain.fingerprint import AGGREGATORS_MAX
from scavenger.domain.ranges import WORKERS_MAX
from scavenger.errors import ConfigurationError, NotSupportedError

Made = TypeVar("Made", bound=op.Operation)

# the bounds stand inside, where the document shows them
Workers = Annotated[int, Field(strict=True, ge=1, le=WORKERS_MAX), WHOLE]
Aggregators = Annotated[int, Field(strict=True, ge=1, le=AGGREGATORS_MAX), WHOLE]
WorkerNames = Annotated[list[WorkerName], Field(min_length=1, max_length=1000)]


@call(
    "post",
    "jobs/{job}/scale",
    tag="operations",
    summary="Change the size",
    role="changer",
    writes="once",
    status=202,
    body="ScaleRequest",
)
def scale(
    at: Local,
    job: JobKey,
    workers: Annotated[Workers | None, Field(description="Train with so many workers.")] = None,
    add: Annotated[Workers | None, Field(description="Add so many workers.")] = None,
    remove: Annotated[WorkerNames | None, Field(description="Remove these workers.")] = None,
    aggregators: Annotated[
        Aggregators | None, Field(description="Have the first so many aggregators hold the model.")
    ] = None,
) -> OperationAnswer:
    """Ask a running job to change its number of workers, or of the aggregators that hold its model, by one field.

    `operations/{id}` tells what became of it.
    """
    return _asked(at, job, scaling(workers, add, tuple(remove or ()), aggregators))


@call(
    "post",
    "jobs/{job}/migrate",
    tag="operations",
    summary="Replace workers",
    role="changer",
    writes="once",
    status=202,
    body="MigrateRequest",
)
def migrate(
    at: Local,
    job: JobKey,
    workers: Annotated[WorkerNames | None, Field(description="Replace these; null: all.")] = None,
) -> OperationAnswer:
    """Ask a running job to replace workers by new ones."""
    return _asked(at, job, migration(tuple(workers or ())))


@call(
    "post",
    "jobs/{job}/stop",
    tag="operations",
    summary="Stop a job",
    role="changer",
    writes="once",
    status=202,
    body="StopRequest",
)
def stop(
    at: Local,
    job: JobKey,
    save: Annotated[bool, Field(description="Save the model as trained so far.")] = True,
    reason: Annotated[
        str,
        Field(
            max_length=op.REASON_MAX,
            pattern=op.REASON_PATTERN,
            description="Why, in one line for the record; by default who asked.",
        ),
    ] = "",
) -> OperationAnswer | SubmissionAnswer:
    """Ask a running job to stop; one that still waits in the queue is withdrawn from it."""
    waiting = at.find_submission(job)
    if waiting is not None and waiting.state == "queued":
        cancelled = at.store.cancel(waiting.id, f"withdrawn by {at.user}")
        if cancelled is not None and cancelled.state == "cancelled":
            return SubmissionAnswer(submission=submitted(cancelled))
    return _asked(at, job, op.StopJob(save, reason))


def _asked(at: Local, key: str, operation: op.Operation) -> OperationAnswer:
    job = at.find_job(key)
    by = _requester() if at.caller is None else f"{at.user} (server)"
    return outcome(job, at.store.submit_operation(job.id, operation, by))


def request(source: Source, job_id: str, operation: op.Operation) -> OperationAnswer:
    """Request an operation of a running job; see `Store.submit_operation`.

    Raises:
        ConfigurationError: The job is not running.
        TransientError: It is busy with another one.
        NotSupportedError: No server takes this operation.
    """
    given = asdict(operation)
    match operation:
        case op.Migrate():
            return migrate(source, job_id, **given)
        case op.StopJob():
            answer = stop(source, job_id, **given)
            if isinstance(answer, OperationAnswer):
                return answer
            raise ConfigurationError(f"job {job_id[:8]} had not begun: it was withdrawn from the queue")
        case op.ProfileRange() | op.TakeShare():
            if isinstance(source, Remote):
                raise NotSupportedError("the server takes no such operation; ask on its own machine")
            return _asked(source, job_id, operation)
        case _:
            return scale(source, job_id, **given)


def _requester() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


_SCALINGS: dict[str, Callable[[Any], op.Operation]] = {
    "workers": op.ScaleTo,
    "add": op.ScaleOut,
    "remove": op.ScaleIn,
    "aggregators": op.ScaleAggregators,
}


def scaling(
    workers: int | None = None,
    add: int | None = None,
    remove: tuple[str, ...] = (),
    aggregators: int | None = None,
) -> op.Operation:
    """The change of size that the options ask for.

    Raises:
        ConfigurationError: Not exactly one option was given, or its value is not allowed.
    """
    given = {"workers": workers, "add": add, "remove": remove or None, "aggregators": aggregators}
    asked = [(name, value) for name, value in given.items() if value is not None]
    if len(asked) != 1:
        raise ConfigurationError("give one of --workers N, --add N, --remove ID and --aggregators N")
    if (count := workers or add or 0) > WORKERS_MAX:
        raise ConfigurationError(f"a job has at most {WORKERS_MAX:,} workers, not {count:,}")
    [(name, value)] = asked
    return _made(lambda: _SCALINGS[name](value))


def migration(workers: tuple[str, ...]) -> op.Migrate:
    """The migration of these workers, or of all workers if none is given.

    Raises:
        ConfigurationError: A name is not the id of a worker.
    """
    return _made(lambda: op.Migrate(workers or None))


def _made(make: Callable[[], Made]) -> Made:
    try:
        return make()
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
