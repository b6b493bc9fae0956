"""Runs a custom training loop as a job: the face of `scavenger.train.supervisor.face` over `LoopRun`.

`LoopRun` makes the steps. This class starts and ends workers as it is told, holds the members back when an epoch
ends until there is a verdict, and reports what happens in the events that the control plane knows. There is neither a
coordinator nor an aggregator: all decisions about steps are made in this process.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path

from scavenger.elastic import recovery
from scavenger.elastic import round_events as r
from scavenger.errors import (
    ConfigurationError,
    ModelNotSavedError,
    TrainingError,
    WorkersLostError,
)
from scavenger.train.checkpoints.format import TensorStream
from scavenger.train.custom_loop import messages as lm
from scavenger.train.custom_loop.epoch_ends import EpochEnds
from scavenger.train.custom_loop.job_reports import (
    EpochLosses,
    StepInReport,
    manifest_of,
    quarantined_samples,
    view_installed,
)
from scavenger.train.custom_loop.report import (
    EpochDone,
    Evaluated,
    LoopEvent,
    LoopRolledBack,
    LoopStepDone,
    LoopViewChanged,
    Released,
    Reported,
    SnapshotFailed,
    Snapshotted,
)
from scavenger.train.custom_loop.run import LoopRun
from scavenger.train.custom_loop.snapshot import LoopCheckpointer, LoopSnapshots
from scavenger.train.custom_loop.supervisor import LoopSupervisor
from scavenger.train.engines.base import Engine
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.names import partial_model
from scavenger.train.supervisor.events import (
    Event,
    Leaving,
    Lost,
    PreemptionNotice,
    Refused,
    Started,
)
from scavenger.train.supervisor.process_registry import ProcessRegistry
from scavenger.train.supervisor.without_aggregators import WithoutAggregators
from scavenger.train.transport import messages as m
from scavenger.train.transport.messages.values import CheckpointPlan, RestorePoint

_GRACE_S = 5.0


class LoopJobSupervisor(WithoutAggregators):
    """Supervises the workers of one loop job; `open` makes one.

    Args:
        run: The run, whose members the ends of epochs hold back.
        ends: The same ends of epochs.
        checkpointer: Writes the run's checkpoints.
        start_s: How long workers may take to start, and the state may take to be saved.
        clock: Monotonic seconds.

    Attributes:
        manifest: Description of the loop; None before a worker has built its replica.
        quarantined: Samples that are left out, by their positions in all shards.

    Methods raise what those of `Supervisor` do.
    """

    no_aggregators = "a loop of one's own has no aggregators: its workers hold the weights"
    model_file = "model.safetensors"

    def __init__(
        self,
        run: LoopRun,
        ends: EpochEnds,
        checkpointer: LoopCheckpointer,
        *,
        start_s: float,
        clock: Callable[[], float],
    ) -> None:
        super().__init__()
        self._run, self._ends, self._checkpointer = run, ends, checkpointer
        self._start_s, self._clock = start_s, clock
        self._returned_step = 0
        self._step: StepInReport | None = None
        self._batch = 0
        self._losses = EpochLosses()
        self._evaluated: Evaluated | None = None
        self._kept: tuple[int, dict[str, lm.Array]] = (-1, {})
        self._best_wanted = -1
        run.on_state = self._keep
        checkpointer.recorded = lambda step: step <= self._returned_step and self.recorded()

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
        ends = EpochEnds()
        supervisor = LoopSupervisor.open(
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
        run = LoopRun(
            source,
            supervisor,
            checkpointer,
            workers=1,
            timeouts=timeouts,
            replace=False,
            clock=clock,
            ends=ends,
        )
        return cls(run, ends, checkpointer, start_s=timeouts.start_s, clock=clock)

    @property
    def engine(self) -> Engine:
        """The engine that runs the processes."""
        return self._run.supervisor.engine

    # ---- the owner's requests ------------------------------------------------------------------------------

    def start(self, workers: int, vm: str = "", *, threads: int | None = None) -> None:
        """Start the first workers; see `launch`."""
        self.launch(workers, vm, threads=threads)

    def launch(self, workers: int, vm: str = "", *, threads: int | None = None) -> tuple[str, ...]:
        """Start more workers; they build their replicas while the others train. Returns their names."""
        return tuple(self._run.launch(vm, threads) for _ in range(workers))

    def resize(
        self,
        workers: int,
        global_batch_size: int,
        reason: str,
        *,
        without: Collection[str] = (),
        lr_scale: float = 1.0,
    ) -> None:
        """Train on K of the ready workers with batch B from the next step boundary on; see `Supervisor.resize`.

        Raises:
            ConfigurationError: If no shard has as many samples as a worker would read in a step.
        """
        rounds = self._run.rounds
        largest = 0 if rounds is None else max(rounds.ledger.sizes)
        share = -(-global_batch_size // workers)
        if share > largest:
            raise ConfigurationError(
                f"a batch of {global_batch_size} samples on {workers} worker{'' if workers == 1 else 's'} is {share} "
                f"of one shard, and the largest shard has {largest}: give loop.init larger shards, several times a "
                "worker's batch, or lower search.batch_size",
                key="search.batch_size",
            )
        self._run.supervisor.registry.ask_to_leave(without)
        self._run.resize(r.Resized(workers, reason, tuple(without), global_batch_size, lr_scale))

    def release(self, keep: int) -> None:
        """Release workers that no view needs, newest first, until `keep` are alive; `Leaving` events name them."""
        rounds = self._run.rounds
        for worker in () if rounds is None or not self.settled else rounds.spare(keep):
            self._run.release(worker, "it is not needed")

    def verdict(
        self, epoch: int, *, stop: bool, keep_best: bool, rate_scale: float = 1.0, step: int | None = None
    ) -> None:
        """Answer an `EpochReport`; the members wait for the answer."""
        if epoch != self._ends.epoch or self._evaluated is None:
            return  # repeated
        if keep_best and self._ends.held:
            self._best_wanted = self._run.step
            self._ask_state(self._ends.held[0])
        self._evaluated = None
        if not stop:
            self._run.go_on()

    def finish(
        self,
        path: Path,
        *,
        best: bool,
        checkpoint: bool = False,
        within_s: float | None = None,
        callbacks: m.RunCallbacks | None = None,
    ) -> None:
        """End training with the last applied step, and write the replica; see `Supervisor.finish`."""
        deadline = self._clock() + (self._start_s if within_s is None else within_s)
        state = self._last_state(deadline, checkpoint=checkpoint)
        if best and self._checkpointer.best:
            state = self._checkpointer.best
        _write(path.resolve(), state)

    def keep_state(self, *, best: bool, within_s: float | None = None) -> None:
        """End training with the last applied step, and write a checkpoint of it; see `Supervisor.keep_state`."""
        self._last_state(self._clock() + (self._start_s if within_s is None else within_s), checkpoint=True)

    def _last_state(self, deadline: float, *, checkpoint: bool) -> dict[str, lm.Array]:
        """Make no further step; returns the state after the last one, when a member has sent it."""
        run = self._run
        run.paused = True
        asked = ""
        while self._kept[0] != run.step:
            if asked not in run.members:
                if not run.members:
                    raise WorkersLostError("no worker is left that holds the weights")
                asked = run.members[0]
                self._ask_state(asked)
            if self._clock() > deadline:
                raise TrainingError("the last state of the loop did not arrive in time")
            self._turn()
        if checkpoint:
            run.want_checkpoint(run.step)
            self._checkpointer.take(run.step, self._kept[1], at_once=True)
            while self._checkpointer.pending and self._clock() <= deadline:
                self._turn()
        return self._kept[1]

    def close(self, *, grace_s: float = _GRACE_S) -> None:
        """End every process and free everything; safe to call twice."""
        self._run.supervisor.close()

    # ---- the state of the job ------------------------------------------------------------------------------

    @property
    def _registry(self) -> ProcessRegistry:
        return self._run.supervisor.registry

    @property
    def settled(self) -> bool:
        """Whether the last request has taken effect."""
        rounds = self._run.rounds
        return rounds is not None and rounds.settled

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        """The peak memory of each process so far."""
        return self._memory.peaks

    # ---- the loop ------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> list[Event]:
        """Handle what has happened, waiting at most `timeout_s` for something; returns the events in order."""
        self._update(timeout_s)
        events, self._events = self._events, []
        for event in events:
            if isinstance(event, m.StepReport):
                self._returned_step = event.step
            elif isinstance(event, recovery.RolledBack):
                self._returned_step = min(self._returned_step, event.step)
        return events

    def _update(self, timeout_s: float) -> None:
        for event in self._run.poll(timeout_s):
            self._take(event)
        if self.manifest is None and self._run.described is not None:
            self.manifest = manifest_of(self._run.described)
            self._returned_step = self._run.step  # of the checkpoint that it begins with
        self._memory.look(self.engine, self._clock())
        self._look_at_step()
        self._look_at_epoch()
        self._look_at_quarantine()
        self._set_roster()

    def _take(self, event: LoopEvent) -> None:
        match event:
            case LoopStepDone():
                self._look_at_step(complete=True)
                self._step = StepInReport(event, self._batch, set(event.members))
            case Reported():
                if self._step is not None and self._step.done.step == event.step:
                    self._step.add(event)
                    self._look_at_step()
            case LoopViewChanged():
                self._look_at_step(complete=True)
                self._batch = event.view.global_batch_size
                self._events.append(view_installed(event))
            case Evaluated() if event.worker == self._ends.evaluator and event.epoch == self._ends.epoch:
                self._ends.evaluator = ""
                self._report_epoch(event)
            case Released():
                self._events.append(Leaving(event.worker))
            case Snapshotted():
                self._events.append(
                    m.CheckpointWritten(event.step, event.epoch, event.written_s, event.bytes)
                )
            case SnapshotFailed():
                self._events.append(m.CheckpointFailed(event.step, event.message))
            case LoopRolledBack():
                self._step = self._evaluated = None
                cause = "every worker that held the weights was lost"
                self._events.append(recovery.RolledBack(event.step, cause, 0.0))
            case Started() | Lost() | Refused() | PreemptionNotice():
                self._events.append(event)
            case EpochDone():
                pass

    def _look_at_step(self, *, complete: bool = False) -> None:
        """Report the newest step if every member that is left has applied it, or has to have by now."""
        step, rounds = self._step, self._run.rounds
        if step is None or rounds is None:
            return
        if complete or not step.awaited & set(self.alive):
            self._step = None
            report = step.report(rounds.ledger)
            self._losses.add(report.epoch, step.loss, report.samples)
            self._events.append(report)

    def _look_at_epoch(self) -> None:
        """Have a member evaluate when an epoch has ended and its last step is reported."""
        ends, run = self._ends, self._run
        if not ends.held or ends.evaluator or self._evaluated is not None or self._step is not None:
            return
        if run.described is not None and run.described.metrics:
            ends.evaluator = ends.held[0]
            run.supervisor.send(ends.evaluator, lm.Evaluate(ends.epoch))
        else:
            self._report_epoch(Evaluated(ends.held[0], ends.epoch, {}, 0.0))

    def _report_epoch(self, evaluated: Evaluated) -> None:
        self._evaluated = evaluated
        metrics = {**self._losses.metrics(evaluated.epoch), **evaluated.metrics}
        report = m.EpochReport(evaluated.epoch, self._run.step, metrics, evaluated.took_s)
        self._events.append(report)

    def _look_at_quarantine(self) -> None:
        rounds = self._run.rounds
        found = {} if rounds is None else quarantined_samples(rounds.ledger)
        if new := [at for at in found if at not in self.quarantined]:
            self.quarantined = tuple(sorted({*self.quarantined, *new}))
            self._events.append(m.SamplesQuarantined(tuple(new), found[new[0]]))

    def _set_roster(self) -> None:
        """Tell the registry which of the workers that have built their replicas train."""
        supervisor, members = self._run.supervisor, set(self._run.members)
        states = {
            name: "training" if name in members else "ready"
            for name in supervisor.arrived
            if supervisor.registry[name].stays
        }
        supervisor.registry.roster = m.Roster(0, states, self.settled, 0, ())

    # ---- states of the replica -----------------------------------------------------------------------------

    def _ask_state(self, worker: str) -> None:
        self._run.supervisor.send(worker, lm.DonateMessage(self._run.step))

    def _keep(self, worker: str, step: int, state: dict[str, lm.Array]) -> None:
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
