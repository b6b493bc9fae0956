"""A server's REST API as a source of what commands show."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from scavenger.api import reading
from scavenger.api.calls import Remote
from scavenger.api.jobs import JobStatus, ListedJob
from scavenger.api.logs import LogChunk, LogReader, Wanted
from scavenger.api.submissions import SubmittedJob
from scavenger.client import Client
from scavenger.domain.operation import Operation
from scavenger.domain.overrides import UNCHANGED, Renewal
from scavenger.domain.submission import ServerRecord, not_begun
from scavenger.errors import ConfigurationError, NotFoundError
from scavenger.store.records import EventRecord, JobRecord, OperationRecord

if TYPE_CHECKING:
    from scavenger.control.provisioning.bill import JobCost

LIMIT_S = 300.0
"""Longest wait until VMs are gone, seconds; an orderly shutdown takes a minute or two."""
PAGE_MAX = 200
"""Most entries that a server gives at once."""


class ServerSource(Remote):
    """A `Source`: a server."""

    def jobs(
        self, limit: int, *, states: Collection[str] = (), name: str | None = None
    ) -> tuple[ListedJob, ...]:
        found: list[ListedJob] = []
        cursor: str | None = None
        while len(found) < limit:
            most = min(limit - len(found), PAGE_MAX)
            page = self.client.jobs(most, states=tuple(states), name=name, progress=True, cursor=cursor)
            found += reading.listed_jobs(page)
            cursor = page["next"]
            if cursor is None:
                break
        return tuple(found)

    def job(self, key: str) -> JobRecord:
        return reading.job(self._begun(key)["job"])

    def why(self, key: str, workers: int, global_batch_size: int) -> dict[str, Any]:
        query = {"workers": workers, "global_batch_size": global_batch_size}
        return self.client.of_job(key, "curve/why", query)

    def status(self, key: str) -> JobStatus:
        return reading.status(self._begun(key))

    def _begun(self, key: str) -> dict[str, Any]:
        """The document of a job that is on record."""
        document = self.client.job(key)
        if document.get("job") is None:
            one = reading.submission(document["submission"])
            raise NotFoundError(not_begun(one.id, one.name, one.state, one.reason))
        return document

    def cost(self, key: str, at: datetime) -> JobCost:
        return reading.cost(self.client.of_job(key, "cost")["job"])

    def costs(self, limit: int, at: datetime) -> tuple[JobCost, ...]:
        return tuple(map(reading.cost, self.client.get("costs", {"limit": limit})["jobs"]))

    def logs(self, key: str, wanted: Wanted) -> LogReader:
        return _ServerLogs(self.client, key, wanted)

    def events(self, job_id: str, after: int) -> Iterator[EventRecord]:
        return map(reading.event, self.client.follow_events(job_id, after))

    def submissions(
        self, limit: int, *, states: Collection[str] = (), user: str | None = None
    ) -> tuple[SubmittedJob, ...]:
        found: list[SubmittedJob] = []
        cursor: str | None = None
        while len(found) < limit:
            page = self.client.submissions(min(limit, PAGE_MAX), states=tuple(states), cursor=cursor)
            rows = map(reading.submission, page["submissions"])
            found += [one for one in rows if user in (None, one.user)]
            cursor = page["next"]
            if cursor is None:
                break
        return tuple(found[:limit])

    def submission(self, key: str) -> SubmittedJob | None:
        try:
            row = self.client.job(key)["submission"]
        except NotFoundError:
            return None
        return None if row is None else reading.submission(row)

    def servers(self) -> tuple[ServerRecord, ...]:
        return reading.servers(self.client.submissions(1)["servers"])

    def cancel(self, job_id: str) -> SubmittedJob:
        return reading.submission(self.client.cancel(job_id)["submission"])

    def resume(
        self,
        job: JobRecord,
        *,
        audit: bool,
        renewal: Renewal = UNCHANGED,
        study_budget: float | None = None,
    ) -> SubmittedJob:
        mine = {name: os.environ[name] for name in job.spec.get("secrets") or () if name in os.environ}
        answer = self.client.resume(
            job.id, audit=audit, renewal=renewal, study_budget=study_budget, environment=mine
        )
        return reading.submission(answer["submission"])

    def request(self, job_id: str, operation: Operation) -> OperationRecord:
        answer = self.client.operate(job_id, operation)
        if "operation" not in answer:  # it waited in the queue again
            raise ConfigurationError(f"job {job_id[:8]} had not begun: it was withdrawn from the queue")
        return reading.operation(answer["operation"])

    def operation(self, job_id: str, number: int) -> OperationRecord:
        return reading.operation(self.client.operation(job_id, number)["operation"])

    def withdraw(self, job_id: str, number: int) -> OperationRecord:
        return reading.operation(self.client.withdraw(job_id, number)["operation"])

    def end_dead(self) -> None:
        """The server sees its processes itself."""


class _ServerLogs:
    """A `LogReader` of a server's job; its first answer fixes the job, whose name another may take."""

    def __init__(self, client: Client, key: str, wanted: Wanted) -> None:
        self._client, self._key, self._wanted = client, key, wanted
        self._cursor: str | None = None

    def begin(self, lines: int, *, whole: bool) -> LogChunk:
        return self._read(lambda: self._ask(lines=lines, follow=not whole))

    def more(self) -> LogChunk:
        return self._read(lambda: self._ask(follow=True, cursor=self._cursor))

    def _ask(self, **options: Any) -> dict[str, Any]:
        wanted = self._wanted
        return self._client.logs(
            self._key, process=wanted.process, events=wanted.events, written=wanted.written, **options
        )

    def _read(self, ask: Callable[[], dict[str, Any]]) -> LogChunk:
        document = ask()
        self._key, self._cursor = document["job"]["id"], document["next"]
        return reading.log_chunk(document)
