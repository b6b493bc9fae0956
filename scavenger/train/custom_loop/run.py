"""Runs a custom training loop without a job: on a number of workers that its caller changes, until it returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path

from scavenger.domain.elastic import GradientExchange
from scavenger.elastic import round_events as r
from scavenger.elastic.leases import EpochCommitted, Found
from scavenger.elastic.quarantine import Cause, Innocent
from scavenger.errors import ConfigurationError, ScavengerError, WorkersLostError
from scavenger.train.crash import crash_error
from scavenger.train.custom_loop.job_supervisor import LoopJobSupervisor
from scavenger.train.custom_loop.progress import LostWorkers
from scavenger.train.custom_loop.reports import LoopReport
from scavenger.train.custom_loop.snapshot import LoopCheckpointer, LoopSnapshots
from scavenger.train.custom_loop.workers import LoopWorkers
from scavenger.train.engines.base import Engine
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.supervisor.events import Event
from scavenger.train.transport import messages as m

_POLL_S = 0.1
_LIMIT_S = 600.0  # default: long enough for any step, and for building any model


class LoopRun(LoopJobSupervisor):
    """A running loop, which replaces its own workers; `with` starts them and ends them, and `poll` drives it.

    Args:
        source: The training function.
        workers: K to begin with.
        work_dir: Folder for logs.
        timeouts: Limits on starting; and on a step, which includes what the function does between two epochs.
        checkpoints: Where to write checkpoints, as a path or URL; None for none.
        checkpoint_every_s: Shortest time between two checkpoints, seconds.
        resume: Whether to resume from the newest checkpoint, if there is one.
        replace: Whether to start another worker for each that dies.
        engine: Makes the engine that runs the processes; by default, they run on this machine.
        clock: Monotonic seconds.
        now: The date and time of checkpoints.

    Raises:
        ConfigurationError: If `workers` is below 1, or the checkpoint belongs to another job.
    """

    def __init__(
        self,
        source: JobSource,
        *,
        workers: int,
        work_dir: Path,
        timeouts: Timeouts,
        checkpoints: str | None = None,
        checkpoint_every_s: float = 60.0,
        resume: bool = False,
        replace: bool = True,
        engine: Callable[[Path, int], Engine] = ProcessEngine,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        if workers < 1:
            raise ConfigurationError(f"a loop needs at least one worker, not {workers}")
        snapshots = None if checkpoints is None else LoopSnapshots(checkpoints, source.train)
        held = snapshots.latest() if resume and snapshots is not None else None
        first = 0 if held is None else held.launched
        super().__init__(
            source,
            LoopWorkers.open(source, log_dir=work_dir / "logs", first=first, engine=engine, clock=clock),
            LoopCheckpointer(snapshots, held=held, every_s=checkpoint_every_s, clock=clock, now=now),
            timeouts=timeouts,
            clock=clock,
            waits=False,
        )
        self._replaces, self._target, self._begun = replace, workers, False
        self._lost = LostWorkers()
        self._over: EpochCommitted | None = None

    def __enter__(self) -> LoopRun:
        try:
            self.launch(self._target)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- requests and results ------------------------------------------------------------------------------

    def scale_out(self, workers: int) -> tuple[str, ...]:
        """Start more workers; they build their replicas while the others train. Returns their names."""
        names = self.launch(workers)
        self._target += workers
        self._to_target("scale out")
        return names

    def scale_in(self, workers: Collection[str]) -> None:
        """Remove members at the next step boundary.

        Raises:
            ConfigurationError: If one of them is no member, or no member would stay.
        """
        leavers = dict.fromkeys(workers)
        if leavers.keys() - set(self.members) or len(leavers) >= len(self.members):
            raise ConfigurationError(f"of the members {self.members}, {tuple(leavers)} cannot leave")
        self._target = max(1, self._target - len(leavers))
        self._to_target("scale in", tuple(leavers))

    @property
    def report(self) -> LoopReport:
        """The results of the finished run.

        Raises:
            RuntimeError: If the run is not done.
        """
        rounds, replicas = self._rounds, self._replicas
        if not self.done or rounds is None or replicas.first is None:
            raise RuntimeError("the loop is not done")
        return LoopReport(
            steps=rounds.step,
            epochs=rounds.epoch,
            losses=self._losses.means,
            state=replicas.first,
            replicas_equal=replicas.equal,
            lost=self._lost.names,
            quarantined=rounds.ledger.quarantined,
        )

    # ---- what the control plane decides in a job -----------------------------------------------------------

    def _update(self, timeout_s: float) -> None:
        super()._update(timeout_s)
        if not self._begun and self._workers.arrived and not self._workers.starting:
            self._begun = True
            self._to_target("start")

    def _to_target(self, reason: str, without: tuple[str, ...] = ()) -> None:
        if self._begun:
            self._resize(r.Resized(self._target, reason, without))

    def _epoch_over(self, ended: EpochCommitted) -> None:
        self._over = ended

    def _end_epoch(self) -> None:
        over = self._over
        if over is not None and (self._step is None or self._step.epoch > over.epoch):
            self._over = None
            self._events.append(m.EpochReport(over.epoch, over.step, self._losses.metrics(over.epoch), 0.0))

    def _not_written(self, error: ScavengerError) -> None:
        raise error

    def _lose(self, worker: str, reason: str, cause: Cause, *, refused: bool = False) -> None:
        super()._lose(worker, reason, cause, refused=refused)
        if not self.done and not self.alive:
            raise self._lost_for_good(
                f"no worker is left: {worker} {reason}", worker, crashed=cause is Cause.CRASHED
            )

    def _replace(self, worker: str, reason: str, actions: Sequence[r.Order], *, crashed: bool) -> None:
        self._lost.add(worker)
        # deaths that are blamed on samples do not count: they end when those samples are quarantined
        if not any(
            isinstance(action, Found) and not isinstance(action.finding, Innocent) for action in actions
        ):
            self._lost.count(self._clock())
            if self._replaces and (times := self._lost.too_many):
                raise self._lost_for_good(f"{times}, the last since it {reason}", worker, crashed=crashed)
        if self._replaces and not (self._rounds is not None and self._rounds.finishing):
            self.launch(1)

    def _lost_for_good(self, message: str, worker: str, *, crashed: bool) -> ScavengerError:
        log = self.engine.log(worker)
        return crash_error(message, log) if crashed else WorkersLostError(f"{message} (log: {log})")


def run_loop(
    train: str,
    *,
    workers: int,
    work_dir: Path,
    job_dir: Path,
    seed: int = 0,
    threads: int = 1,
    exchange: GradientExchange = "auto",
    timeouts: Timeouts | None = None,
    checkpoints: str | None = None,
    resume: bool = False,
    engine: Callable[[Path, int], Engine] = ProcessEngine,
    on_event: Callable[[LoopRun, Event], None] | None = None,
) -> LoopReport:
    """Run a training function on several workers of this machine until it ends.

    Args:
        train: The training function, as `module:function`; see `scavenger.sdk.loop`.
        workers: K to begin with.
        work_dir: Folder for logs.
        job_dir: Folder that the module is imported from.
        seed: Random seed for the order of the shards.
        threads: Threads that each worker may use.
        exchange: Who averages the gradients of a PyTorch loop, as `elastic.exchange` of a job file says.
        timeouts: See `LoopRun`; None for ten minutes each to start and for a step.
        checkpoints: Where to write checkpoints, once a minute; None for none.
        resume: Whether to resume from the newest checkpoint.
        engine: See `LoopRun`.
        on_event: Called with each event; it may call `scale_out` and `scale_in` of the run.

    Returns:
        The results of the loop.

    Raises:
        ScavengerError: See `LoopRun` and `LoopRun.poll`.
    """
    with LoopRun(
        JobSource(train, job_dir, seed, threads, exchange=exchange),
        workers=workers,
        work_dir=work_dir,
        timeouts=timeouts or Timeouts(start_s=_LIMIT_S, step_s=_LIMIT_S),
        checkpoints=checkpoints,
        resume=resume,
        engine=engine,
    ) as run:
        while not run.done:
            for event in run.poll(_POLL_S):
                if on_event is not None:
                    on_event(run, event)
        return run.report
