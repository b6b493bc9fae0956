"""`scale`, `migrate` and `stop`: send a request to the process that runs a job, and wait for its answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.text import Text

from scavenger.control.documents.logs import LogReader, Wanted
from scavenger.control.documents.operations import outcome_document
from scavenger.domain.operation import Operation, StopJob, describe
from scavenger.errors import ConfigurationError, TransientError
from scavenger.presentation.formatting import clean, duration
from scavenger.store.records import LIVE_STATES
from scavenger_cli.ui import console

if TYPE_CHECKING:
    from scavenger.control.sources import Source
    from scavenger.store.records import EventRecord, JobRecord, OperationRecord

__all__ = ["operate"]

POLL_S = 0.5
"""Between two polls of the store: the job polls about once a second, and a poll costs a millisecond."""


def operate(
    key: str, operation: Operation, *, wait: bool, timeout: str, store_url: str | None, as_json: bool
) -> int:
    """Request an operation, and wait for its result.

    Returns:
        0 if it was done, or if `wait` is false; 2 if it was refused, 3 if it failed.

    Raises:
        ConfigurationError: There is no such job, or it is not running.
        TransientError: The job is busy with another operation, did not answer in time, or has gone silent.
    """
    from scavenger.control.job_file.yaml_loader import read_scalar
    from scavenger.control.sources import open_source
    from scavenger.domain.forms import parse_duration

    try:
        timeout_s = parse_duration(read_scalar(timeout))
    except ValueError as error:
        raise ConfigurationError(f"--timeout {error}") from None
    with open_source(store_url) as source:
        job = source.job(key)
        seen = source.logs(job.id, Wanted(events=True, written=False, process=None))
        seen.begin(0, whole=False)
        record = source.request(job.id, operation)
        if wait:
            record = _Watch(source, job, seen).until_ended(record, timeout_s)
            job = source.job(job.id)
    _show(job, record, as_json=as_json)
    return {"refused": ConfigurationError.exit_code, "failed": TransientError.exit_code}.get(record.state, 0)


class _Watch:
    """Follows one operation of a job and prints the job's events meanwhile."""

    def __init__(self, source: Source, job: JobRecord, seen: LogReader) -> None:
        self._source, self._job, self._seen = source, job, seen

    def until_ended(self, record: OperationRecord, timeout_s: float) -> OperationRecord:
        """Wait for the result and print the job's events; the result of a stop is known when the job has ended."""
        name = f"{self._job.name} ({self._job.id[:8]})"
        try:
            console.note(
                f"asked {name} to {describe(record.operation)}; waiting at most {duration(timeout_s)}, "
                "Ctrl-C stops the waiting"
            )
            return self._wait(record, time.monotonic() + timeout_s, duration(timeout_s))
        except KeyboardInterrupt:
            record = self._source.withdraw(self._job.id, record.id)
            console.note(f"stopped waiting; {self._outcome(record)}")
            raise

    def _wait(self, record: OperationRecord, until_s: float, patience: str) -> OperationRecord:
        taken = False
        while True:
            record = self._source.operation(self._job.id, record.id)
            if record.started_at is not None and not taken:
                taken = True
                console.note("the job has started it")
            chunk = self._seen.more()
            for event in chunk.events:
                console.note(_event_words(event))
            ended = chunk.state not in LIVE_STATES
            if _answered(record, ended=ended):
                return record
            if chunk.over and not ended:
                self._end_dead()
            elif time.monotonic() > until_s:
                record = self._source.withdraw(self._job.id, record.id)
                if not _withdrawn(record) and _answered(record, ended=self._has_ended()):
                    return record  # at the last moment
                raise TransientError(f"no answer within {patience}; {self._outcome(record)}")
            else:
                time.sleep(POLL_S)

    def _has_ended(self) -> bool:
        return self._source.job(self._job.id).ended

    def _end_dead(self) -> None:
        self._source.end_dead()
        job = self._source.job(self._job.id)
        if not job.ended:
            raise TransientError(
                f"job {job.name} ({job.id[:8]}) is run from {job.owner.host}, which has gone silent; "
                "check on that machine whether it is still running"
            )

    def _outcome(self, record: OperationRecord) -> str:
        if _withdrawn(record):
            return "the request was withdrawn, and nothing was changed"
        if _answered(record, ended=self._has_ended()):
            return f"it is {record.state}"
        key = self._job.id[:8]
        return f"the job is still working on it: see `scavenger status {key}` and `scavenger logs {key} -f`"


def _withdrawn(record: OperationRecord) -> bool:
    return record.state == "refused" and record.message.startswith("withdrawn")


def _answered(record: OperationRecord, *, ended: bool) -> bool:
    """Whether the result is known. That of a stop is when the job has ended: until then it saves, and costs money."""
    stopping = isinstance(record.operation, StopJob) and record.state == "done"
    return ended if stopping else record.ended


def _event_words(event: EventRecord) -> str:
    level = "" if event.level == "info" else f"{event.level}: "
    return f"{event.kind}: {level}{event.message}"


def _show(job: JobRecord, record: OperationRecord, *, as_json: bool) -> None:
    request = describe(record.operation)
    if as_json:
        console.emit_json(outcome_document(job, record))
    if record.state in ("refused", "failed"):
        console.error(f"{job.name} ({job.id[:8]}), asked to {request}: {record.state}: {record.message}")
    elif not as_json:
        answer = f": {record.message}" if record.message else ""
        state = "requested" if record.state == "pending" else record.state
        line = f"{clean(job.name)} ({job.id[:8]}), asked to {clean(request)}: {state}{clean(answer)}"
        console.emit(Text(line, no_wrap=True, overflow="ignore"))
