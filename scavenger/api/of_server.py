"""A server's REST API as a source of what commands show."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from scavenger.api import reading
from scavenger.api.calls import Remote, read
from scavenger.api.logs import LogChunk, LogReader, Wanted
from scavenger.api.submissions import SubmittedJob
from scavenger.client import Client
from scavenger.domain.overrides import UNCHANGED, Renewal
from scavenger.store.records import EventRecord, JobRecord

if TYPE_CHECKING:
    from scavenger.control.provisioning.bill import JobCost


class ServerSource(Remote):
    """A `Source`: a server."""

    def why(self, key: str, workers: int, global_batch_size: int) -> dict[str, Any]:
        query = {"workers": workers, "global_batch_size": global_batch_size}
        return self.client.of_job(key, "curve/why", query)

    def cost(self, key: str, at: datetime) -> JobCost:
        return reading.cost(self.client.of_job(key, "cost")["job"])

    def costs(self, limit: int, at: datetime) -> tuple[JobCost, ...]:
        return tuple(map(reading.cost, self.client.get("costs", {"limit": limit})["jobs"]))

    def logs(self, key: str, wanted: Wanted) -> LogReader:
        return _ServerLogs(self.client, key, wanted)

    def events(self, job_id: str, after: int) -> Iterator[EventRecord]:
        return (read(row, EventRecord) for row in self.client.follow_events(job_id, after))

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
        return read(answer["submission"], SubmittedJob)

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
