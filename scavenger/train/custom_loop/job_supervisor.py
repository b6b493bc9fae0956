"""Runs a custom training loop as a job: takes the requests of the control plane, and holds the end of each epoch."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path

from scavenger.elastic import round_events as r
from scavenger.errors import ConfigurationError, ModelNotSavedError, TrainingError, WorkersLostError
from scavenger.presentation.formatting import plural
from scavenger.train.checkpoints.format import TensorStream
from scavenger.train.custom_loop import messages as lm
from scavenger.train.custom_loop.snapshot import LoopCheckpointer, LoopSnapshots
from scavenger.train.custom_loop.supervisor import LoopSupervisor
from scavenger.train.custom_loop.workers import LoopWorkers
from scavenger.train.engines.base import GRACE_S, Engine
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.names import partial_model
from scavenger.train.transport import messages as m
from scavenger.train.transport.messages.values import CheckpointPlan, RestorePoint


class LoopJobSupervisor(LoopSupervisor):
    """Supervises the workers of one loop job; `open` makes one. See `LoopSupervisor` for the arguments."""

    def __init__(
        self,
        source: JobSource,
        workers: LoopWorkers,
        checkpointer: LoopCheckpointer,
        *,
        timeouts: Timeouts,
        clock: Callable[[], float],
        waits: bool = True,
    ) -> None:
        super().__init__(source, workers, checkpointer, timeouts=timeouts, clock=clock, waits=waits)
        self._start_s = timeouts.start_s
        self._kept: tuple[int, dict[str, lm.Array]] = (-1, {})
        self._best_wanted = -1

    @classmethod
    def open(
        cls,
        source: JobSource,
        *,
        work_dir: Path,
        timeouts: Timeouts,
        restore: RestorePoint | None = None,
        checkpoint: CheckpointPlan | None = None,
        engine: Callable[[Path, int], Engine] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> LoopJobSupervisor:
        """Listen for the workers of a loop job; `start` starts them. See `Supervisor.open` for the arguments.

        Raises:
            ConfigurationError: If the engine's port cannot be bound, or the checkpoint belongs to another job.
            TransientError: If the checkpoints cannot be read.
        """
        url = checkpoint.url if checkpoint is not None else None if restore is None else restore.url
        snapshots = None if url is None else LoopSnapshots(url, source.train)
        held = None if restore is None or snapshots is None else snapshots.latest(finite=True)
        workers = LoopWorkers.open(
            source,
            log_dir=work_dir / "logs",
            first=0 if held is None else held.launched,
            engine=engine or ProcessEngine,
            clock=clock,
        )
        checkpointer = LoopCheckpointer(
            snapshots if checkpoint is not None else None,
            held=held,
            every_s=math.inf if checkpoint is None else checkpoint.every_s or math.inf,
            every_steps=0 if checkpoint is None else checkpoint.every_steps,
            clock=clock,
            now=lambda: datetime.now(UTC),
        )
        return cls(source, workers, checkpointer, timeouts=timeouts, clock=clock)

    # ---- the owner's requests ------------------------------------------------------------------------------

    def start(self, workers: int, vm: str = "", *, threads: int | None = None) -> None:
        self.launch(workers, vm, threads=threads)

    def launch(self, workers: int, vm: str = "", *, threads: int | None = None) -> tuple[str, ...]:
        return tuple(self._launch(vm, threads) for _ in range(workers))

    def resize(
        self,
        workers: int,
        global_batch_size: int,
        reason: str,
        *,
        without: Collection[str] = (),
        lr_scale: float = 1.0,
    ) -> None:
        """See `JobSupervisor.resize`.

        Raises:
            ConfigurationError: If no shard has as many samples as a worker would read in a step.
        """
        largest = 0 if self._rounds is None else max(self._rounds.ledger.sizes)
        share = -(-global_batch_size // workers)
        if share > largest:
            of = f"a batch of {global_batch_size} samples on {plural(workers, 'worker')} is {share}"
            if self._apart:
                words = f"{of} on each, and the data has {largest}: lower search.batch_size"
            else:
                words = (
                    f"{of} of one shard, and the largest shard has {largest}: give loop.init larger shards, several "
                    "times a worker's batch, or lower search.batch_size"
                )
            raise ConfigurationError(words, key="search.batch_size")
        self._registry.ask_to_leave(without)
        self._resize(r.Resized(workers, reason, tuple(without), global_batch_size, lr_scale))

    def release(self, keep: int) -> None:
        for worker in () if self._rounds is None or not self.settled else self._rounds.spare(keep):
            self._let_go(worker, "it is not needed")

    def verdict(
        self, epoch: int, *, stop: bool, keep_best: bool, rate_scale: float = 1.0, step: int | None = None
    ) -> None:
        """See `JobSupervisor.verdict`; the members wait for the answer."""
        if epoch != self._ends.epoch or not self._ends.reported:
            return  # repeated
        if keep_best and self._ends.held:
            self._best_wanted = self.step
            self._ask_state(self._ends.held[0])
        if not stop:
            self._ends.reported = False
            self._watch.timer.restart(self._clock())
            for worker, at, following in self._ends.go_on():
                self._handle(r.Asked(worker, at, following))

    def finish(
        self,
        path: Path,
        *,
        best: bool,
        checkpoint: bool = False,
        within_s: float | None = None,
        callbacks: m.RunCallbacks | None = None,
    ) -> None:
        """See `JobSupervisor.finish`: the file holds the replica."""
        deadline = self._clock() + (self._start_s if within_s is None else within_s)
        state = self._last_state(deadline, checkpoint=checkpoint)
        if best and self._checkpointer.best:
            state = self._checkpointer.best
        _write(path.resolve(), state)

    def keep_state(self, *, best: bool, within_s: float | None = None) -> None:
        self._last_state(self._clock() + (self._start_s if within_s is None else within_s), checkpoint=True)

    def close(self, *, grace_s: float = GRACE_S) -> None:
        self._workers.close()

    # ---- states of the replica -----------------------------------------------------------------------------

    def _last_state(self, deadline: float, *, checkpoint: bool) -> dict[str, lm.Array]:
        """Make no further step; returns the state after the last one, when a member has sent it."""
        self._paused = True
        asked = ""
        while self._kept[0] != self.step:
            if asked not in self.members:
                if not self.members:
                    raise WorkersLostError("no worker is left that holds the weights")
                asked = self.members[0]
                self._ask_state(asked)
            if self._clock() > deadline:
                raise TrainingError("the last state of the loop did not arrive in time")
            self._turn()
        if checkpoint:
            self._want_checkpoint(self.step)
            self._checkpointer.take(self.step, self._kept[1], at_once=True)
            while self._checkpointer.pending and self._clock() <= deadline:
                self._turn()
        return self._kept[1]

    def _ask_state(self, worker: str) -> None:
        self._workers.send(worker, lm.DonateMessage(self.step))

    def _keep(self, step: int, state: dict[str, lm.Array]) -> None:
        super()._keep(step, state)
        self._kept = (step, state)
        if step == self._best_wanted:
            self._checkpointer.best = state


def _write(path: Path, state: Mapping[str, lm.Array]) -> None:
    """Write a replica as a safetensors file.

    Raises:
        ModelNotSavedError: If there is no room for the file, or its disk fails.
    """
    part = partial_model(path)
    try:
        with part.open("wb") as file:
            for chunk in TensorStream(state):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ModelNotSavedError(f"{path}: {error.strerror or error}") from error
