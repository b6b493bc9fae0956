"""Asks a running job for an operation, through a store or a server, and waits for what becomes of it."""

from __future__ import annotations

import time
from collections.abc import Callable

from scavenger.api.calls import Source
from scavenger.api.jobs import end_dead, job_of
from scavenger.api.logs import LogReader
from scavenger.api.operating import request
from scavenger.api.operations import OperationDocument, show_operation, withdraw
from scavenger.domain.operation import Operation, StopJob, describe
from scavenger.errors import TransientError
from scavenger.presentation.formatting import duration
from scavenger.store.records import LIVE_STATES, EventRecord, JobRecord

POLL_S = 0.2
"""Between two looks: the job looks about once a second, and a look costs a millisecond."""


class Asking:
    """Asks one job for one operation.

    Args:
        source: Where the job is on record.
        key: The job.
        tell: Is told what happens meanwhile, in lines.

    Raises:
        ConfigurationError: If there is no such job.
    """

    def __init__(self, source: Source, key: str, tell: Callable[[str], None] = lambda line: None) -> None:
        self._source, self._tell = source, tell
        self._job = job_of(source, key)

    def request(self, operation: Operation) -> OperationDocument:
        """Request it, and do not wait.

        Raises:
            ConfigurationError: If the job is not running.
            TransientError: If it is busy with another one.
        """
        return request(self._source, self._job.id, operation).operation

    def carry_out(self, operation: Operation, timeout_s: float) -> OperationDocument:
        """Request it, and wait for its result; that of a stop is known when the job has ended.

        Raises:
            ConfigurationError, TransientError: As of `request`.
            TransientError: If the job does not answer in time, or has gone silent. What was not started is
                withdrawn.
        """
        seen = LogReader(self._source, self._job.id, written=False)
        seen.begin(0, whole=False)
        record = self.request(operation)
        patience = duration(timeout_s)
        try:
            self._tell(
                f"asked {self.name} to {describe(operation)}; waiting at most {patience}, Ctrl-C stops the waiting"
            )
            return self._wait(seen, record, time.monotonic() + timeout_s, patience)
        except KeyboardInterrupt:
            record = withdraw(self._source, self._job.id, record.id).operation
            self._tell(f"stopped waiting; {self._outcome(record)}")
            raise

    @property
    def name(self) -> str:
        """The job's name and the beginning of its id."""
        return f"{self._job.name} ({self._job.id[:8]})"

    def job(self) -> JobRecord:
        """The job, as it is on record by now."""
        return job_of(self._source, self._job.id)

    def _wait(
        self, seen: LogReader, record: OperationDocument, until_s: float, patience: str
    ) -> OperationDocument:
        taken = False
        while True:
            record = show_operation(self._source, self._job.id, record.id).operation
            if record.started_at is not None and not taken:
                taken = True
                self._tell("the job has started it")
            chunk = seen.more()
            for event in chunk.events:
                self._tell(_event_words(event))
            ended = chunk.job.state not in LIVE_STATES
            if _answered(record, ended=ended):
                return record
            if chunk.over and not ended:
                self._end_dead()
            elif time.monotonic() > until_s:
                record = withdraw(self._source, self._job.id, record.id).operation
                if not _withdrawn(record) and _answered(record, ended=self.job().ended):
                    return record  # at the last moment
                raise TransientError(f"no answer within {patience}; {self._outcome(record)}")
            else:
                time.sleep(POLL_S)

    def _end_dead(self) -> None:
        end_dead(self._source)
        job = self.job()
        if not job.ended:
            raise TransientError(
                f"job {self.name} is run from {job.owner.host}, which has gone silent; "
                "check on that machine whether it is still running"
            )

    def _outcome(self, record: OperationDocument) -> str:
        if _withdrawn(record):
            return "the request was withdrawn, and nothing was changed"
        if _answered(record, ended=self.job().ended):
            return f"it is {record.state}"
        key = self._job.id[:8]
        return f"the job is still working on it: see `scavenger status {key}` and `scavenger logs {key} -f`"


def _withdrawn(record: OperationDocument) -> bool:
    return record.state == "refused" and record.message.startswith("withdrawn")


def _answered(record: OperationDocument, *, ended: bool) -> bool:
    """Whether the result is known. That of a stop is when the job has ended: until then it saves, and costs money."""
    stopping = isinstance(record.asked, StopJob) and record.state == "done"
    return ended if stopping else record.ended


def _event_words(event: EventRecord) -> str:
    level = "" if event.level == "info" else f"{event.level}: "
    return f"{event.kind}: {level}{event.message}"
