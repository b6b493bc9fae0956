"""Documents of the REST API as the values that they were made of; the inverse of `scavenger.api`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec

from scavenger.api.calls import unreadable
from scavenger.api.logs import LogChunk, LogPosition
from scavenger.api.preview import Preview
from scavenger.store.records import (
    EventRecord,
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
            raise unreadable(error) from error

    return reading


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
        msgspec.convert(document["events"], tuple[EventRecord, ...]),
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
