"""Reads the store and the journals of jobs for the dashboard's pages."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from scavenger.api.bills import billed, cost_of
from scavenger.api.jobs import listed, progress_of
from scavenger.api.logs import log_folder
from scavenger.control.training.run_course import CourseReader
from scavenger.domain.epochs import EPOCHS
from scavenger.domain.job import EPOCHS_MAX
from scavenger.domain.progress import PROGRESS
from scavenger.errors import ScavengerError
from scavenger.server.dashboard.job_list import JobListLine, job_line
from scavenger.server.dashboard.job_page import JobSight
from scavenger.store import Store
from scavenger.store.progress import EVENTS_MAX
from scavenger.store.records import JobRecord

READERS_MAX = 64
"""Journals that are kept in memory, about half a megabyte each at most; the one not asked for longest goes first."""
OPERATIONS_SHOWN = 10


class JournalReaders:
    """The journals of jobs that pages have asked for, each read once and then followed. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: OrderedDict[Path, CourseReader] = OrderedDict()

    def of(self, job: JobRecord) -> CourseReader:
        """The reader of a job's journal, which need not be there."""
        path = log_folder(job).parent / "measurements.jsonl"
        with self._lock:
            reader = self._readers.setdefault(path, CourseReader(path))
            self._readers.move_to_end(path)
            while len(self._readers) > READERS_MAX:
                self._readers.popitem(last=False)
            return reader


def sight_of(store: Store, job: JobRecord, journals: JournalReaders, now: datetime) -> JobSight:
    """Everything that the page of a job shows; the job comes with its report."""
    return JobSight(
        job=billed(store, job),
        progress=progress_of(store, job),
        processes=store.processes(job.id),
        operations=store.operations(job.id, limit=OPERATIONS_SHOWN),
        events=store.events(job.id, limit=EVENTS_MAX, without=(PROGRESS, EPOCHS)),
        intents=store.intents(job.id),
        cost=cost_of(store, job, now),
        course=journals.of(job).read(),
        reachable=job.owner.is_same_machine(store.me()),
        at=now,
        resumable=_is_resumable(store, job),
    )


def _is_resumable(store: Store, job: JobRecord) -> bool:
    submission = store.submission(job.id)
    try:
        store.check_resumable(job, spec={"goal": {"max_epochs": EPOCHS_MAX}})  # more can be given
    except ScavengerError:
        return False
    return submission is None or not submission.is_open


def lines_of(store: Store, jobs: Sequence[JobRecord], now: datetime) -> list[JobListLine]:
    """The jobs of a list, with their progress and bills."""
    return [job_line(one, one.progress, alive=one.alive, now=now) for one in listed(store, jobs)]
