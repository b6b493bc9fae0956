"""`logs`: the events of a job and the output of its processes, once or as they come."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from scavenger.control.documents.logs import JobLogs, Wanted, harmless
from scavenger.presentation.formatting import when
from scavenger_cli.ui import console

if TYPE_CHECKING:
    from scavenger.store import Store
    from scavenger.store.records import EventRecord, JobRecord

__all__ = ["show_logs"]

FOLLOW_S = 0.5
"""Between two polls: faster would not be noticed, and a poll costs a millisecond."""


def show_logs(
    key: str, wanted: Wanted, *, follow: bool, lines: int, store_url: str | None, as_json: bool
) -> int:
    """Print the last `lines` of each log; with `follow`, also new lines until the job has ended.

    Raises:
        ConfigurationError: There is no such job or process, or its logs are on another machine.
    """
    from scavenger.store import Store

    with Store.open(store_url) as store:
        job = store.job(key)
        if as_json:
            console.emit_json(JobLogs(store, job, wanted).document(lines))
            return 0
        shown = _Shown(store, job, wanted)
        if shown.begin(lines, whole=not follow) and follow:
            shown.follow()
    return 0


class _Shown:
    """The logs of one job, printed as they come."""

    def __init__(self, store: Store, job: JobRecord, wanted: Wanted) -> None:
        self._store, self._job, self._wanted = store, job, wanted
        self._logs = JobLogs(store, job, wanted)

    def begin(self, lines: int, *, whole: bool) -> bool:
        """Print the end of each log; return False if the reader is gone.

        Args:
            lines: How many events, and lines of each log.
            whole: Whether an unfinished last line is printed.
        """
        printed = [_event_line(event) for event in self._logs.events(lines)]
        for name, tail in self._logs.tails.items():
            printed += [self._line(name, line) for line in tail.last(lines, whole=whole)]
        if self._wanted.written and not self._logs.tails:
            console.note(f"{self._logs.elsewhere()}no process has written a log: {self._logs.folder}")
        return _print(printed)

    def follow(self) -> None:
        """Print new lines until the job has ended or the reader is gone."""
        while True:
            # the state is read first, so that the last lines are read after the end
            job = self._store.job(self._job.id)
            over = not self._store.is_alive(job) and not self._store.has_runner(job.id)
            self._logs.find()
            printed = [_event_line(event) for event in self._logs.events(None)]
            for name, tail in self._logs.tails.items():
                printed += [self._line(name, line) for line in tail.more(whole=over)]
            if not _print(printed):
                return
            if over:
                state = job.state.replace("_", " ") if job.ended else "dead: its process is gone"
                console.note(f"job {job.name} ({job.id[:8]}) is {state}")
                return
            time.sleep(FOLLOW_S)

    def _line(self, name: str, line: str) -> str:
        return line if self._wanted.process is not None else f"{harmless(name)} | {line}"


def _event_line(event: EventRecord) -> str:
    return f"{when(event.at)} {event.level:<7} {harmless(event.kind)}: {harmless(event.message)}"


def _print(lines: list[str]) -> bool:
    return not lines or console.write(sys.stdout, "".join(f"{line}\n" for line in lines))
