"""A stand-in for the runner of a submitted job: its job makes steps on record, and trains nothing.

Run as the real one is: `python -m tests.control.soak_runner JOB_ID TOKEN`. Lease, fence, signals and the end are of
the real runner; only the job is another. Each step is one transaction under the fence. The job's folder shows what
the store cannot: a lock that two processes of one job would contend for.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from scavenger.control.jobs.job_run import JobRun
from scavenger.control.service import runner
from scavenger.domain.report import JobState
from scavenger.errors import StoreBusyError, StoreUnavailableError
from scavenger.store import Store

STEP_S = 0.05
STEP = "step"
OVERLAP = "overlap"
"""Name of a file in the job's folder that tells that two processes ran it at once."""


class _Report:
    """What the runner reads of a report."""

    def __init__(self, job: Any) -> None:
        self.job, self.error, self.exit_code = job, "", 0


class _Job:
    """A job of so many steps, which goes on after the last one on record."""

    paused = False

    def __init__(self, store: Store, submission: Any, token: int) -> None:
        self._store, self._submission, self._token = store, submission, token
        self._steps = int(submission.job.spec["goal"]["max_epochs"])
        self._stop = threading.Event()

    def request_stop(self, reason: str) -> None:
        self._stop.set()

    def kill_now(self) -> None:
        """It has no processes."""

    def run(self) -> _Report:
        job_id, folder = self._submission.id, Path(self._submission.job.job_file).parent
        with open(folder / "running", "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                (folder / OVERLAP).write_text(f"{os.getpid()} with token {self._token}\n")
            self._again(self._begin)
            while (done := self._again(lambda: self._store.job(job_id).step or 0)) < self._steps:
                if self._stop.is_set():
                    return self._end("interrupted")
                self._again(lambda done=done: self._step(done))
                time.sleep(STEP_S)
            return self._end("succeeded")

    def _again(self, call: Any) -> Any:
        """Make a call until the store is in service."""
        while True:
            try:
                return call()
            except (StoreBusyError, StoreUnavailableError):
                time.sleep(0.2)

    def _begin(self) -> None:
        job = self._submission
        if self._store.has_job(job.id):
            if self._store.job(job.id).owner.pid != os.getpid():
                self._store.resume_job(job.id, again=True)
            return
        self._store.create_job(job.job.name, spec=job.job.spec, job_file=job.job.job_file, job_id=job.id)

    def _step(self, done: int) -> None:
        """The step after `done`, once: an attempt whose answer was lost may have been committed."""
        job_id = self._submission.id
        with self._store.together():
            if (self._store.job(job_id).step or 0) == done:
                self._store.update_job(job_id, state="running", step=done + 1)
                self._store.add_event(
                    job_id, STEP, f"step {done + 1}", data={"step": done + 1, "token": self._token}
                )

    def _end(self, state: JobState) -> _Report:
        job_id = self._submission.id

        def end() -> Any:
            job = self._store.job(job_id)
            return job if job.ended else self._store.finish_job(job_id, state=state, report=None, exit_code=0)

        return _Report(replace(self._again(end), error=""))


class SoakRunner(runner.Runner):
    """The real runner, of another job."""

    def _prepared(self) -> JobRun:
        return cast(JobRun, _Job(self._store, self._submission, self._fence.token))


def main() -> int:
    """Run as the real runner does; see its `main`."""
    return runner.main(SoakRunner)


if __name__ == "__main__":
    sys.exit(main())
