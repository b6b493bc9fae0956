"""Handles operations that users request of a running job, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from scavenger.control.training.measure import measure
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Configuration
from scavenger.domain.measurement import Measurement
from scavenger.domain.operation import (
    PAUSED_BY,
    Migrate,
    Operation,
    ProfileRange,
    ScaleAggregators,
    ScaleIn,
    ScaleOut,
    ScaleTo,
    StopJob,
    TakeShare,
    describe,
)
from scavenger.domain.pool import workers_of
from scavenger.errors import ScavengerError
from scavenger.store import Store
from scavenger.store.records import OperationRecord, Verdict

ASKED = "asked"
"""File in the job's folder that is written when an operation was requested, so that the job looks at once."""
NOT_YET = "the search is under way; try again once the job runs at its choice"


def knock(folder: Path) -> None:
    """Have the job of a folder on this machine look for operations at once; without this, it looks once a second."""
    (folder / ASKED).write_bytes(b"")


class OperationHandler:
    """Carries out the operations of one job.

    Args:
        store: Holds the requested operations and their answers.
        keep: Queues a write to the store.
        workers: Minimum and maximum number of workers of the job.
        batch: The global batch size for a number of workers.
        stop: Ends the job, given the reason and whether to save its model.
        measured: Receives each measurement of a profile.
        policy: `elastic.policy`, which may change the size after an operation has.
        folder: Of the job, for `knock`; None if nobody knocks.
        pool: The pool that alone decides on the job's size, as `pool gpu`; empty if the job is in none.
        pause: Ends the job so that it waits in the queue, given the reason.
        obeyed: Number of the allotment by which it was begun.
        per_slot: Workers on each slot of its pool.
        answered: Called when an operation was answered.

    Attributes:
        refusing: Why operations on the job's size are refused now; empty if they are accepted.
        obeyed: Number of the newest allotment of its pool that the job has answered.
    """

    def __init__(
        self,
        store: Store,
        job_id: str,
        *,
        keep: Callable[[Callable[[], object]], None],
        workers: tuple[int, int],
        batch: Callable[[int], int],
        stop: Callable[[str, bool], None],
        measured: Callable[[Measurement], None],
        policy: str = "fixed",
        folder: Path | None = None,
        pool: str = "",
        pause: Callable[[str], None] = lambda reason: None,
        obeyed: int = 0,
        per_slot: int = 1,
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        self._store, self._job_id, self._keep = store, job_id, keep
        self._min, self._max = workers
        self._batch, self._stop, self._measured = batch, stop, measured
        self._policy, self._pool, self._pause, self.obeyed = policy, pool, pause, obeyed
        self._per_slot, self._answered = per_slot, answered
        self._taken: OperationRecord | None = None
        self._looking = False
        self._asked = None if folder is None else folder / ASKED
        self._asked_ns = 0
        self.refusing = NOT_YET

    @property
    def waiting(self) -> bool:
        """Whether an operation is waiting to be carried out."""
        return (
            self._taken is not None and not isinstance(self._taken.operation, StopJob) and not self._pausing
        )

    def heard(self) -> bool:
        """Look for an operation if somebody has knocked; returns whether one is waiting."""
        if self._asked is not None:
            try:
                asked_ns = self._asked.stat().st_mtime_ns
            except OSError:
                asked_ns = 0
            if asked_ns > self._asked_ns:
                self._asked_ns = asked_ns
                self.look()
        return self.waiting

    def look(self) -> None:
        """Take the next requested operation, if there is one; a stop takes effect at once."""
        if self._taken is None and not self._looking:
            self._looking = True
            self._keep(self._take)
        if self._taken is None:
            return
        if isinstance(self._taken.operation, StopJob):
            # answered with the job's end: until then it saves, and is paid for
            asked = self._taken.operation
            self._stop(asked.reason or f"stopped by {self._taken.requested_by}", asked.save)
        elif refusal := self._not_for_this_job(self._taken.operation):
            self._answer(self._taken, "refused", refusal)
        elif self.refusing:
            if not self.cuts:
                self._answer(self._taken, "refused", self.refusing)
        elif self._pausing:
            # answered with the job's end, too
            share = self._taken.operation
            why = f": {share.reason}" if isinstance(share, TakeShare) and share.reason else ""
            self._pause(f"{PAUSED_BY} {self._pool}{why}")

    @property
    def cuts(self) -> bool:
        """Whether the job's pool has another use for its slots, so that the search is to end; it is answered then."""
        asked = None if self._taken is None else self._taken.operation
        return self.refusing == NOT_YET and isinstance(asked, TakeShare)

    @property
    def _pausing(self) -> bool:
        return (
            self._taken is not None
            and isinstance(self._taken.operation, TakeShare)
            and not self._taken.operation.slots
        )

    def _not_for_this_job(self, operation: Operation) -> str:
        """Why an operation is not carried out by whoever asks for it; empty if it is."""
        if isinstance(operation, TakeShare):
            number = operation.allotment
            if number < self.obeyed:
                return (
                    f"allotment {number} of {self._pool} is older than {self.obeyed}, which the job has had"
                )
            return "" if self._pool else "the job is in no pool"
        if self._pool and not isinstance(operation, StopJob | ScaleAggregators):
            return f"{self._pool} alone decides how many workers its jobs have"
        return ""

    def _take(self) -> None:
        self._taken = self._store.next_operation(self._job_id)
        self._looking = False

    def carry_out(self, trainer: Trainer) -> None:
        """Carry out the waiting operation and record its answer.

        Raises:
            ScavengerError: If the operation fails with an error that ends the job.
        """
        if self._taken is None or not self.waiting:
            return
        record = self._taken
        try:
            done, message = self._perform(record.operation, trainer)
        except ScavengerError as error:
            self._answer(record, "failed", str(error))
            raise
        self._answer(record, "done" if done else "refused", message)

    def _answer(self, record: OperationRecord, verdict: Verdict, message: str) -> None:
        self._taken = None
        if isinstance(record.operation, TakeShare):
            self.obeyed = max(self.obeyed, record.operation.allotment)
        self._keep(lambda: self._store.end_operation(record.id, verdict, message))
        self._answered()

    # ---- one method per operation --------------------------------------------------------------------------

    def _perform(self, operation: Operation, trainer: Trainer) -> tuple[bool, str]:
        reason = f"asked to {describe(operation)}"
        if isinstance(operation, TakeShare) and operation.reason:
            reason += f": {operation.reason}"
        match operation:
            case ScaleTo(workers):
                return self._scale(workers, reason, trainer)
            case ScaleOut(add):
                return self._scale(trainer.wanted + add, reason, trainer)
            case ScaleIn(remove):
                return self._remove(remove, reason, trainer)
            case ScaleAggregators(aggregators):
                return _scale_aggregators(aggregators, trainer)
            case Migrate(workers):
                return self._migrate(workers, reason, trainer)
            case ProfileRange():
                return self._profile(operation, trainer)
            case TakeShare(slots):
                return self._scale(workers_of(slots, self._per_slot, self._max), reason, trainer)
            case StopJob():
                raise AssertionError("a stop does not wait")

    def _scale(self, workers: int, reason: str, trainer: Trainer) -> tuple[bool, str]:
        if refusal := self._out_of_range(workers):
            return False, refusal
        there = trainer.move(self._at(workers, trainer), reason)
        if not there and not trainer.finished:
            trainer.move(self._at(trainer.wanted, trainer), "as many as can be kept alive")
        return self._sized(_outcome(trainer, there))

    def _remove(self, workers: tuple[str, ...], reason: str, trainer: Trainer) -> tuple[bool, str]:
        size = trainer.wanted - len(workers)
        if refusal := _unknown_workers(workers, trainer) or self._out_of_range(size):
            return False, refusal
        return self._sized(_outcome(trainer, trainer.remove(workers, reason, batch=self._batch(size))))

    def _migrate(self, workers: tuple[str, ...] | None, reason: str, trainer: Trainer) -> tuple[bool, str]:
        leaving = trainer.supervisor.alive if workers is None else workers
        if refusal := _unknown_workers(leaving, trainer):
            return False, refusal
        return _outcome(trainer, trainer.replace(leaving, reason, kind="eviction"))

    def _profile(self, asked: ProfileRange, trainer: Trainer) -> tuple[bool, str]:
        """Measure from most workers to fewest, since removing workers is cheaper than adding; then move back."""
        if refusal := self._out_of_range(asked.min) or self._out_of_range(asked.max):
            return False, refusal
        before = trainer.configuration
        assert before is not None
        measured = []
        for workers in range(asked.max, asked.min - 1, -1):
            measurement = self._measure(self._at(workers, trainer), asked.steps, trainer)
            if measurement is not None:
                measured.append(f"{workers}: {measurement.step_time_s * 1e3:.4g} ms")
        if not trainer.finished:
            trainer.move(before, "profiled, as asked")
        count = asked.max - asked.min + 1
        missed = (
            f"; {count - len(measured)} of {count} sizes could not be measured"
            if len(measured) < count
            else ""
        )
        return bool(measured), f"step time by workers: {', '.join(measured) or 'none'}{missed}"

    def _measure(self, target: Configuration, steps: int, trainer: Trainer) -> Measurement | None:
        """Measure a configuration; None if training finished or its workers could not be kept alive."""
        if trainer.finished or not trainer.move(target, "profiling, as asked"):
            return None
        begin = trainer.step
        trainer.until(
            lambda: trainer.wanted < target.workers or len(trainer.history.window(target, begin)) >= steps
        )
        window = trainer.history.window(target, begin)
        if len(window) < steps:
            return None
        measurement = measure(target, window, trainer.history.noise, trainer.worker_memory_bytes())
        trainer.journal.add("measurement", measurement)
        self._measured(measurement)
        return measurement

    # ---- helpers -------------------------------------------------------------------------------------------

    def _at(self, workers: int, trainer: Trainer) -> Configuration:
        assert trainer.configuration is not None
        batch = max(workers, self._batch(workers))
        return replace(trainer.configuration, workers=workers, global_batch_size=batch)

    def _sized(self, outcome: tuple[bool, str]) -> tuple[bool, str]:
        """Say who may change a size that was reached: deadline and budget are kept by a policy that is free to."""
        done, message = outcome
        if done and self._policy != "fixed":
            message += (
                f"; elastic.policy: {self._policy} may change that at its next decision, and fixed does not"
            )
        return done, message

    def _out_of_range(self, workers: int) -> str:
        if self._min <= workers <= self._max:
            return ""
        return (
            f"the job has {self._min} to {self._max} workers, by elastic.min and elastic.max, not {workers}"
        )


def _scale_aggregators(aggregators: int, trainer: Trainer) -> tuple[bool, str]:
    migrations = trainer.supervisor.migrations
    there = 0 if migrations is None else migrations.count
    if trainer.supervisor.engine.sharing is not None:
        return (
            False,
            "by elastic.aggregator_vms: workers, the aggregators that hold the model follow the workers",
        )
    if migrations is None or aggregators > there:
        return False, f"the job has {there} aggregators, by elastic.aggregators, not {aggregators}"
    refusal = trainer.use_aggregators(migrations, aggregators)
    return not refusal, refusal or f"{aggregators} of {there} aggregators hold the model"


def _unknown_workers(workers: tuple[str, ...], trainer: Trainer) -> str:
    alive = trainer.supervisor.alive
    unknown = [name for name in workers if name not in alive]
    return f"the job has no worker {', '.join(unknown)}; it has {', '.join(alive)}" if unknown else ""


def _outcome(trainer: Trainer, done: bool) -> tuple[bool, str]:
    if done:
        return True, f"now at {trainer.configuration}"
    if trainer.finished:
        return False, "training was finished before"
    return False, f"so many workers could not be kept alive; now at {trainer.configuration}"
