"""Documents of the REST API as the values that they were made of; the inverse of `scavenger.api`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec

from scavenger.api.jobs import JobStatus, ListedJob
from scavenger.api.logs import LogChunk, LogPosition
from scavenger.api.preview import Preview
from scavenger.api.submissions import SubmittedJob
from scavenger.domain.operation import operation_from_document
from scavenger.domain.progress import Progress
from scavenger.domain.submission import ServerRecord
from scavenger.errors import NotSupportedError
from scavenger.store.records import (
    EventRecord,
    JobRecord,
    OperationRecord,
    OperationState,
    ProcessRecord,
)

if TYPE_CHECKING:
    from scavenger.control.provisioning.bill import JobCost

Args = ParamSpec("Args")
Value = TypeVar("Value")


def _of_this_version(read: Callable[Args, Value]) -> Callable[Args, Value]:
    """Have a document that another version has made told as such."""

    @wraps(read)
    def reading(*args: Args.args, **kwargs: Args.kwargs) -> Value:
        try:
            return read(*args, **kwargs)
        except (msgspec.ValidationError, ValueError, KeyError, TypeError) as error:
            raise NotSupportedError(
                f"the server's answer cannot be read ({type(error).__name__}: {error}); use the version of the server, "
                "which `scavenger --version` on its machine prints"
            ) from error

    return reading


@_of_this_version
def job(row: Mapping[str, Any]) -> JobRecord:
    """A job with its report, if the document has it."""
    return msgspec.convert(row, JobRecord)


@_of_this_version
def listed_jobs(document: Mapping[str, Any]) -> tuple[ListedJob, ...]:
    """The jobs of a list."""
    return tuple(
        ListedJob(job(row), row["alive"], row["has_runner"], _progress(row["progress"]))
        for row in document["jobs"]
    )


@_of_this_version
def status(document: Mapping[str, Any]) -> JobStatus:
    """One job with what happened last."""
    row = document["job"]
    return JobStatus(
        job(row),
        row["alive"],
        row["has_runner"],
        _progress(document["progress"]),
        msgspec.convert(document["processes"], tuple[ProcessRecord, ...]),
        tuple(map(operation, document["operations"])),
        tuple(map(event, document["events"])),
    )


def _progress(row: Mapping[str, Any] | None) -> Progress | None:
    return None if row is None else Progress.read(dict(row))


@_of_this_version
def event(row: Mapping[str, Any]) -> EventRecord:
    """An event."""
    return msgspec.convert(row, EventRecord)


@_of_this_version
def operation(row: Mapping[str, Any]) -> OperationRecord:
    """An operation; its kinds are told apart by `operation_from_document`."""
    times = {
        name: None if row[name] is None else datetime.fromisoformat(row[name])
        for name in ("requested_at", "started_at", "ended_at")
    }
    state = msgspec.convert(row["state"], OperationState)
    plain = {one.name: row[one.name] for one in fields(OperationRecord)}
    return OperationRecord(
        **{**plain, **times, "state": state, "operation": operation_from_document(row["operation"])}
    )


@_of_this_version
def submission(row: Mapping[str, Any]) -> SubmittedJob:
    """A submission."""
    return msgspec.convert(row, SubmittedJob)


@_of_this_version
def servers(rows: Iterable[Mapping[str, Any]]) -> tuple[ServerRecord, ...]:
    """The servers of a store."""
    return msgspec.convert(rows, tuple[ServerRecord, ...])


@_of_this_version
def cost(row: Mapping[str, Any]) -> JobCost:
    """What a job costs."""
    from scavenger.control.provisioning.bill import JobCost

    return msgspec.convert(row, JobCost)


@_of_this_version
def log_chunk(document: Mapping[str, Any]) -> LogChunk:
    """What was read of logs; its place is the server's, told by a cursor."""
    job = document["job"]
    return LogChunk(
        job["id"],
        job["name"],
        job["state"],
        document["folder"],
        document["elsewhere"],
        tuple(map(event, document["events"])),
        document["logs"],
        document["over"],
        LogPosition(),
    )


@_of_this_version
def preview(document: Mapping[str, Any]) -> Preview:
    """What a job would do."""
    rest = {key: value for key, value in document.items() if key not in ("name", "job_file", "rows")}
    rows = msgspec.convert(document["rows"], tuple[tuple[str, str], ...])
    return Preview(document["name"], document["job_file"], rows, rest)
