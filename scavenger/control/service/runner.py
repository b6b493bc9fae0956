"""Runs one submitted job: `python -m scavenger.control.service.runner JOB_ID TOKEN`, with the store in the environment.

It is a session of its own, so it outlives the terminal, the command and the server. It runs the code of the command,
and writes under the lease that the server has taken for it: once another runner has taken that, nothing more.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from scavenger import logs
from scavenger.control.jobs.job_run import JobRun
from scavenger.control.jobs.pool_seat import PoolSeat
from scavenger.control.jobs.prepared import prepare_job
from scavenger.control.jobs.resume import resume_job
from scavenger.control.provisioning.lease_holder import holder_name
from scavenger.control.service.life import answering
from scavenger.domain.intent import Fence, Lease
from scavenger.domain.job import JobSpec
from scavenger.domain.pool import pool_of
from scavenger.domain.report import EpochEnded, Event, Observer
from scavenger.domain.submission import Submission, runner_lease
from scavenger.errors import (
    LeaseLostError,
    ScavengerError,
    StoreBusyError,
    StoreUnavailableError,
    TransientError,
)
from scavenger.store import Store

if TYPE_CHECKING:
    from scavenger.control.provisioning.kept_by_pool import KeptByPool

logger = logging.getLogger("scavenger.control.service.runner")

LEASE_LOST = 9
"""Exit code of a runner whose lease another process has taken."""
RENEW_S = 2.0
"""Time between two renewals of a runner's lease, seconds."""
_STORE_S = 600.0
"""How long a runner waits for its store when it begins and when it ends. A server that cannot read the store either
ends no runner."""
_AGAIN_S = 0.5
_LOST_MAX = 3
"""So often at most a job goes on, at its checkpoint if it has one, that has lost all processes with its model at its
end."""


class _Log(Observer):
    """Writes what is not an event of the job on record: the end of each epoch."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, EpochEnded):
            metrics = ", ".join(f"{name} {value:.4g}" for name, value in event.record.metrics.items())
            logger.info("epoch %d, step %d: %s", event.record.epoch + 1, event.record.step, metrics)


class Runner:
    """The run of one submission.

    Args:
        store: The database, with the runner's fence.
    """

    def __init__(self, store: Store, submission: Submission, fence: Fence) -> None:
        self._store, self._submission, self._fence = store, submission, fence
        self._job: JobRun | None = None
        self._seat: PoolSeat | None = None
        self._kept: KeptByPool | None = None
        self._done = threading.Event()
        self._stops = 0
        self._tried_at = time.monotonic()

    def run(self) -> int:
        """Run the job to its end, and end the submission; returns the exit code.

        A job that cannot begin at this moment goes back into the queue, and so does one that its store was too long
        out of service for.
        """
        with answering(lambda: time.monotonic() - self._tried_at, self._idle_s):
            return self._run()

    def _idle_s(self) -> float:
        """Seconds since the job last worked, as far as its pool has to know."""
        return 0.0 if self._seat is None else self._seat.idle_s

    def _run(self) -> int:
        renewing = threading.Thread(target=self._keep_lease, name="lease", daemon=True)
        renewing.start()
        leave: Callable[[Fence, str, str], bool] = self._store.end_submission
        try:
            with self._stopped_by_signals():
                self._seat = self._taken_seat()
                if self._seat is not None and not self._seat.share.told:
                    reason, code, leave = "paused", 0, self._store.pause_submission
                else:
                    self._job = self._prepared()
                    report = self._job.run()
                    reason, code = report.error or report.job.state.replace("_", " "), report.exit_code
                    if self._job.paused and report.job.state == "interrupted":
                        leave = self._store.pause_submission
                    elif self._job.lost and self._submission.starts.faults < _LOST_MAX:
                        leave = self._store.requeue
        except (TransientError, StoreUnavailableError) as error:
            reason, code, leave = str(error), error.exit_code, self._store.requeue
        except ScavengerError as error:
            reason, code = str(error), error.exit_code
        except Exception as error:
            logger.exception("internal fault")
            reason, code = f"internal fault: {type(error).__name__}: {error}", 1
        self._done.set()
        if self._seat is not None:
            self._seat.changed.set()
        renewing.join()
        logger.info("%s", reason)
        try:
            self._leave(leave, " ".join(reason.split()), until_s=time.monotonic() + _STORE_S)
        except LeaseLostError:
            return LEASE_LOST
        return code

    def _leave(self, leave: Callable[[Fence, str, str], bool], reason: str, *, until_s: float) -> None:
        """Record the end of the submission, or that it waits again, as soon as the store is in service."""
        problem = logs.Repeated(logger)
        while True:
            try:
                leave(self._fence, self._submission.id, reason)
                self._store.wake_servers()
                return
            except (StoreBusyError, StoreUnavailableError) as error:
                if time.monotonic() > until_s:
                    raise
                problem.warn(str(error))
                time.sleep(_AGAIN_S)

    def _taken_seat(self) -> PoolSeat | None:
        """The job's seat in its pool; None if it is in none, or has it as a whole.

        The pool of an ElasticJob is its cluster's: its leader has put on record what the job may have.

        Raises:
            TransientError: The pool has no share for it any more.
        """
        one, store = self._submission, self._store
        name = pool_of(one.job.spec, rents=one.job.rents)
        if name:
            allotment = store.allotment(name)
        else:
            allotment = next((found for found in store.pools() if one.id in found.shares), None)
        if allotment is None or allotment.pool.whole:
            return None
        if (share := allotment.shares.get(one.id)) is None:
            raise TransientError(f"pool {allotment.pool.name} has no slots for it")
        before = store.standings([one.id]).get(one.id)
        if allotment.pool.vms is not None:
            from scavenger.control.provisioning.kept_by_pool import KeptByPool

            self._kept = KeptByPool(name, allotment.pool.slots, one.job.user)
        return PoolSeat(
            f"pool {allotment.pool.name}",
            share,
            vms=allotment.pool.vms,
            per_slot=allotment.per_slot(share.vm),
            token=self._fence.token,
            before=before,
        )

    def _prepared(self) -> JobRun:
        """The job, to be begun, resumed from its checkpoint, or begun again if its first runner left none.

        Raises:
            ScavengerError: If it cannot be run.
        """
        one, store, seat = self._submission, self._store, self._seat
        spec = JobSpec.model_validate(one.job.spec)
        spec = spec if seat is None else seat.within(spec)
        if one.job.run and store.has_job(one.id) and store.job(one.id).checkpoint is not None:
            return resume_job(
                one.id,
                store=store,
                observer=_Log(),
                confirm=None,
                audit=one.job.audit,
                spec=spec,
                seat=seat,
                kept=self._kept,
            )
        prepared = prepare_job(spec, Path(one.job.job_file), kept=self._kept)
        return JobRun(
            prepared,
            store=store,
            observer=_Log(),
            run=one.job.run,
            confirm=None,
            audit=one.job.audit,
            job_id=one.id,
            seat=seat,
        )

    @contextmanager
    def _stopped_by_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM stop the job in order, a second one kills it."""

        def stop(number: int, frame: FrameType | None) -> None:
            self._stops += 1
            if self._job is not None and self._stops == 1:
                self._job.request_stop("interrupted")
                return
            if self._job is not None:
                self._job.kill_now()
            os._exit(128 + number)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        yield

    def _keep_lease(self) -> None:
        """Renew the lease, and look whether the job is to be stopped."""
        told = False
        while True:
            news = self._waited()
            if self._done.is_set():
                return
            self._tried_at = time.monotonic()
            try:
                held = self._renewed()
                if news:
                    self._store.wake_servers()
                now = self._store.submission(self._submission.id)
            except LeaseLostError:
                held, now = False, None
            except ScavengerError:  # the store is out of service: the job decides how long it waits for it
                continue
            if not held:
                self._end_at_once()
            if now is not None and now.cancelling and self._job is not None and not told:
                self._job.request_stop(now.reason or "cancelled")
                told = True

    def _waited(self) -> bool:
        """Wait until the lease is to be renewed; returns whether the server is to look at once how the job stands."""
        if self._seat is None:
            self._done.wait(RENEW_S)
            return False
        changed = self._seat.changed.wait(RENEW_S)
        self._seat.changed.clear()
        return changed

    def _renewed(self) -> bool:
        if self._seat is None:
            return self._store.renew_lease(self._fence)
        return self._store.stand(self._fence, self._submission.id, self._seat.standing())

    def _end_at_once(self) -> None:
        """End every process of the job, and this one: another runner has the job."""
        logger.error("another runner has taken over: this one ends")
        if self._job is not None:
            self._job.kill_now()
        os._exit(LEASE_LOST)


def take_over(store: Store, fence: Fence, holder: str) -> Lease | None:
    """Take the lease over from the server; None if another has it.

    A transaction whose answer was lost may have been done, so a lease that is the caller's already counts, too.
    """
    lease = store.hand_over_lease(fence, holder)
    if lease is None:
        found = store.lease(fence.name)
        lease = found if found is not None and found.holder == holder else None
    return lease


def _begun(job_id: str, token: int, until_s: float) -> tuple[Store, Submission | None, Lease | None]:
    """Open the store and take the lease over, waiting for a store that is out of service.

    A runner that ended instead would count as one that came to nothing, and a job has few of these.
    """
    problem = logs.Repeated(logger)
    while True:
        store = None
        try:
            store = Store.open()
            lease = take_over(store, Fence(runner_lease(job_id), token), holder_name())
            return store, store.submission(job_id), lease
        except (StoreBusyError, StoreUnavailableError) as error:
            if store is not None:
                store.close()
            if time.monotonic() > until_s:
                raise
            problem.warn(str(error))
            time.sleep(_AGAIN_S)


def main(kind: type[Runner] = Runner) -> int:
    """Take over the lease and run the job; returns the exit code."""
    job_id, token = sys.argv[1], int(sys.argv[2])
    logs.set_up("runner", logs.read_settings(), job_id=job_id)
    try:
        store, submission, lease = _begun(job_id, token, time.monotonic() + _STORE_S)
    except ScavengerError as error:  # as if a newer version has migrated the store meanwhile
        logger.error("%s", error)
        return error.exit_code
    with store:
        if lease is None or submission is None:
            logger.warning("another runner was started meanwhile, or the job is not wanted any more")
            return LEASE_LOST
        store.fence(lease.fence)
        return kind(store, submission, lease.fence).run()


if __name__ == "__main__":
    sys.exit(main())
