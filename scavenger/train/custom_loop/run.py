"""Runs a custom training loop on a changing number of workers.

`poll` drives a run; it owns no thread, and `scavenger.elastic.rounds` makes its decisions. This process computes the
means of what workers push and holds the shard ledger; when it ends, all workers end too, and the job can only be
resumed from a checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from scavenger.elastic import round_events as r
from scavenger.elastic.leases import EpochCommitted, Found, Grant, LeaseAttempt, LeasedSamples
from scavenger.elastic.ledger import ShardLedger
from scavenger.elastic.quarantine import Cause, Innocent, NotTheData, Suspects, cause_of_death
from scavenger.elastic.rounds import Rounds
from scavenger.errors import (
    ConfigurationError,
    NotSupportedError,
    ScavengerError,
    TrainingCodeError,
    TrainingHungError,
    TransientError,
    WorkersLostError,
)
from scavenger.train.crash import crash_error
from scavenger.train.custom_loop import messages as lm
from scavenger.train.custom_loop.epoch_ends import EpochEnds
from scavenger.train.custom_loop.exchange import Exchange, StepMean, unpack
from scavenger.train.custom_loop.progress import LostWorkers
from scavenger.train.custom_loop.report import (
    EpochDone,
    Evaluated,
    LoopEvent,
    LoopReport,
    LoopResults,
    LoopRolledBack,
    LoopStepDone,
    LoopViewChanged,
    Released,
    Reported,
    SnapshotFailed,
)
from scavenger.train.custom_loop.snapshot import LoopCheckpointer, LoopSnapshot, LoopSnapshots
from scavenger.train.custom_loop.supervisor import LoopSupervisor
from scavenger.train.custom_loop.watching import LoopWatch, Overdue
from scavenger.train.engines.base import Engine, Exit
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.failure import error_of
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.supervisor.events import Lost, Refused, Started
from scavenger.train.transport.messages import Failed


class LoopRun:
    """A running job with a custom training loop; `open` makes one, and `with` starts its workers and ends them.

    Args:
        source: The training function.
        supervisor: Starts, ends and reaches the workers.
        checkpointer: Writes checkpoints and holds the newest one.
        workers: K to begin with.
        timeouts: Limits on starting; and on a step, which includes what the function does between two epochs.
        replace: Whether to start another worker for each that dies.
        clock: Monotonic seconds.
        ends: Holds members back when an epoch ends; None if the training function decides alone. With it, the owner of
            the run starts workers, ends them, and decides how many train.

    Attributes:
        supervisor: Starts, ends and reaches the workers.
        described: The first worker's description of its replica and data; None before.
        on_state: Called with the name, step and state of a worker that has sent its state.
        paused: Whether no further step is made.
    """

    def __init__(
        self,
        source: JobSource,
        supervisor: LoopSupervisor,
        checkpointer: LoopCheckpointer,
        *,
        workers: int,
        timeouts: Timeouts,
        replace: bool,
        clock: Callable[[], float],
        ends: EpochEnds | None = None,
    ) -> None:
        self._source, self.supervisor, self._checkpointer = source, supervisor, checkpointer
        self._replace, self._clock = replace, clock
        self._rounds: Rounds | None = None
        self._ends, self._begun = ends, ends is not None
        self._wanted: r.Resized | None = None
        self._target, self._view = workers, 0
        self._lost = LostWorkers()
        self._exchange = Exchange(supervisor, measures_alone=ends is not None)
        self._donation: dict[str, lm.Array] = {}
        self._watch, self._results = LoopWatch(supervisor, timeouts, ends, clock), LoopResults()
        self._events: list[LoopEvent] = []
        self.described: lm.ReplicaBuilt | None = None
        self.on_state: Callable[[str, int, dict[str, lm.Array]], None] = lambda worker, step, state: None
        self.paused = False

    @classmethod
    def open(
        cls,
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
    ) -> LoopRun:
        """Find the checkpoint to begin with, and listen for workers; `with` starts them.

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
        if workers < 1:
            raise ConfigurationError(f"a loop needs at least one worker, not {workers}")
        snapshots = None if checkpoints is None else LoopSnapshots(checkpoints, source.train)
        held = snapshots.latest() if resume and snapshots is not None else None
        first = 0 if held is None else held.launched
        return cls(
            source,
            LoopSupervisor.open(source, log_dir=work_dir / "logs", first=first, engine=engine, clock=clock),
            LoopCheckpointer(snapshots, held=held, every_s=checkpoint_every_s, clock=clock, now=now),
            workers=workers,
            timeouts=timeouts,
            replace=replace,
            clock=clock,
        )

    def __enter__(self) -> LoopRun:
        try:
            for _ in range(self._target):
                self.launch("", None)
        except BaseException:
            self.supervisor.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.supervisor.close()

    # ---- requests of an owner that decides how many workers train ------------------------------------------

    def launch(self, vm: str, threads: int | None) -> str:
        """Start a worker; see `LoopSupervisor.launch`."""
        name = self.supervisor.launch(vm, threads=threads)
        self._handle(r.WorkerLaunched(name))
        return name

    def resize(self, wanted: r.Resized) -> None:
        """Train with so many workers and so large a batch from the next step boundary on.

        Raises:
            RuntimeError: If no worker has built its replica yet.
        """
        if self._rounds is None:
            raise RuntimeError("a loop cannot be resized before its data is known")
        self._wanted = replace(wanted, without=())
        self._handle(wanted)

    def release(self, worker: str, reason: str) -> None:
        """Have a worker end that no view needs."""
        self.supervisor.leave(worker, reason)
        if self._ends is not None:
            self._ends.gone(worker)
            self._handle(r.WorkerGone(worker, Cause.EVICTED))
        self._events.append(Released(worker))

    def go_on(self) -> None:
        """Let the members read the next epoch."""
        if self._ends is not None:
            self._watch.timer.restart(self._clock())
            for worker, step, epoch in self._ends.go_on():
                self._handle(r.Asked(worker, step, epoch))

    def want_checkpoint(self, step: int) -> None:
        """Have the state of a worker after this step, when it arrives, be written as a checkpoint."""
        if self._rounds is not None:
            ledger = self._rounds.ledger.snapshot()
            launched = self.supervisor.launched
            self._checkpointer.asked(LoopSnapshot(step, self._rounds.view, launched, ledger, {}))

    # ---- requests and state --------------------------------------------------------------------------------

    def scale_out(self, workers: int) -> tuple[str, ...]:
        """Start more workers; they build their replicas while the others train. Returns their names."""
        names = tuple(self.launch("", None) for _ in range(workers))
        self._target += workers
        self._resize("scale out", ())
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
        self._resize("scale in", tuple(leavers))

    @property
    def rounds(self) -> Rounds | None:
        """The rounds, to be read; None before the first worker has built its replica."""
        return self._rounds

    @property
    def members(self) -> tuple[str, ...]:
        """Workers that train, or will from the next step on."""
        return () if self._rounds is None else self._rounds.members

    @property
    def step(self) -> int:
        """The last step that was applied."""
        return 0 if self._rounds is None else self._rounds.step

    @property
    def done(self) -> bool:
        """Whether the training function has returned at every member."""
        return self._rounds is not None and self._rounds.done

    @property
    def report(self) -> LoopReport:
        """The results of the finished run.

        Raises:
            RuntimeError: If the run is not done.
        """
        if not self.done or self._rounds is None:
            raise RuntimeError("the loop is not done")
        rounds = self._rounds
        return self._results.report(
            steps=rounds.step,
            epochs=rounds.epoch,
            lost=self._lost.names,
            quarantined=rounds.ledger.quarantined,
        )

    def poll(self, timeout_s: float) -> list[LoopEvent]:
        """Handle what has happened, waiting at most `timeout_s` for something; returns the events in order.

        Raises:
            TrainingError: If the function raised, hangs, yields NaN, or differs between workers.
            WorkersLostError: If every worker died, or too many died within a short time.
        """
        self._write()
        self.supervisor.wait(timeout_s)
        self._receive()
        for ended in self.supervisor.ended():
            self._ended(ended)
        if not self.done:
            if not self._begun and self.supervisor.arrived and not self.supervisor.starting:
                self._begun = True
                self._resize("start", ())
            self._events += self.supervisor.preemption_notices()
            self._look()
        events, self._events = self._events, []
        return events

    # ---- messages of workers -------------------------------------------------------------------------------

    def _receive(self) -> None:
        for name, message, frames in self.supervisor.take():
            match message:
                case Failed():
                    raise error_of(message.kind, message.message, process=name, log=self.supervisor.log(name))
                case lm.ReplicaBuilt() if name in self.supervisor.starting:
                    self._arrived(name, message)
                case lm.AskMessage():
                    if self._ends is None or not self._ends.holds(name, message.step, message.epoch):
                        self._handle(r.Asked(name, message.step, message.epoch))
                case lm.Push():
                    part = LeasedSamples(
                        message.shard, LeaseAttempt(*message.attempt), message.start, message.stop
                    )
                    self._exchange.take(name, message, frames)
                    self._handle(r.Pushed(name, message.view, message.step, part))
                case lm.DonatedState():
                    self._donated(name, message.step, unpack(name, message.tensors, frames))
                case lm.Stepped():
                    if message.loss is not None:
                        self._results.loss(message.epoch, message.loss, message.samples)
                    self._events.append(
                        Reported(name, message.step, message.loss, message.samples, message.update_s)
                    )
                case lm.EvaluatedMessage():
                    self._events.append(Evaluated(name, message.epoch, message.metrics, message.took_s))
                case lm.FinishedMessage() if name in self.members:
                    self._finished(name, unpack(name, message.tensors, frames))
                case _:
                    pass

    def _arrived(self, name: str, described: lm.ReplicaBuilt) -> None:
        if self._rounds is None:
            self._open(described.sizes)
            self.described = described
        assert self._rounds is not None
        if described.sizes != self._rounds.ledger.sizes:
            raise TrainingCodeError(
                f"the shards of {name} differ from those of the workers before it, or of the checkpoint"
            )
        self.supervisor.arrive(name)
        self._events.append(Started(name, self.supervisor.age_s(name)))
        self._handle(r.WorkerArrived(name, self.supervisor.host(name)))

    def _donated(self, name: str, step: int, state: dict[str, lm.Array]) -> None:
        self._donation = state
        self._handle(r.Donated(name, step))
        self._donation = {}
        self._checkpointer.take(step, state)
        self.on_state(name, step, state)
        if self._ends is None:
            self._write()

    def _write(self) -> None:
        """Write the checkpoint that is ready, if there is one."""
        try:
            written = self._checkpointer.write()
        except (ConfigurationError, NotSupportedError, TransientError) as error:
            if self._ends is None:
                raise
            self._events.append(SnapshotFailed(self.step, str(error)))
            return
        if written is not None:
            self._events.append(written)

    def _finished(self, name: str, state: dict[str, lm.Array]) -> None:
        self._results.finished(state)
        self._handle(r.WorkerFinished(name))
        self.supervisor.leave(name, "training has ended")

    # ---- events and actions of the rounds ------------------------------------------------------------------

    def _open(self, sizes: tuple[int, ...]) -> None:
        """Begin from the newest checkpoint, or from the start if there is none, with the present workers."""
        held, before = self._checkpointer.held, self._rounds
        if held is None:
            incarnation, view, suspects = 0, 0, None
            if before is not None:
                incarnation, view = before.ledger.incarnation + 1, before.view
                suspects = Suspects.restore(before.ledger.snapshot()["suspects"])
            ledger = ShardLedger(sizes, self._source.seed, incarnation=incarnation, suspects=suspects)
            self._rounds = Rounds(ledger, view=view)
        else:
            snapshot, view = held.ledger, held.view
            incarnation = snapshot["incarnation"]
            if before is not None:
                incarnation, view = max(incarnation, before.ledger.incarnation), max(view, before.view)
                # a rollback undoes steps, but keeps the suspicions about samples
                snapshot = {**snapshot, "suspects": before.ledger.snapshot()["suspects"]}
            ledger = ShardLedger.restore(snapshot, incarnation=incarnation + 1)
            self._rounds = Rounds(ledger, held=True, view=view)
        self._exchange.clear()
        if self._ends is not None:
            self._ends.begin(self._rounds.ledger.epoch)
        self._checkpointer.discard_requests()
        for name in self.supervisor.staying:
            self._rounds.handle(r.WorkerLaunched(name))

    def _resize(self, reason: str, without: tuple[str, ...]) -> None:
        if self._begun:
            self._handle(self._wanted or r.Resized(self._target, reason, without))

    def _handle(self, event: r.Happening) -> None:
        if self._rounds is not None:
            self._carry_out(self._rounds.handle(event))

    def _carry_out(self, actions: Sequence[r.Order]) -> None:
        rounds = self._rounds
        assert rounds is not None
        if (view := rounds.in_effect) is not None and view.number != self._view:
            self._view = view.number
            self._events.append(LoopViewChanged(view, rounds.step + 1, rounds.epoch))
        for action in actions:
            match action:
                case r.Average():
                    if not self.paused:
                        self._average(action)
                case Grant():
                    number = (action.attempt.incarnation, action.attempt.number)
                    self.supervisor.send(
                        action.worker, lm.GrantMessage(action.shard, number, action.start, action.stop)
                    )
                case r.Over():
                    self.supervisor.send(action.worker, lm.OverMessage(action.epoch))
                case r.StartWorker():
                    self._start(action, len(rounds.members))
                case r.Donate():
                    launched, ledger = self.supervisor.launched, rounds.ledger.snapshot()
                    self._checkpointer.asked(LoopSnapshot(action.step, rounds.view, launched, ledger, {}))
                    self.supervisor.send(action.worker, lm.DonateMessage(action.step))
                case r.Leave():
                    self.release(action.worker, action.reason)
                case r.Evict():
                    self._lose(action.worker, action.reason, Cause.EVICTED)
                case r.Stranded():
                    self._roll_back()
                    return
                case Found(finding=NotTheData() as finding):
                    raise TrainingCodeError(finding.reason)
                case EpochCommitted():
                    self._events.append(EpochDone(action.epoch, action.step, action.quarantined))
                case _:
                    pass

    def _average(self, action: r.Average) -> None:
        rounds = self._rounds
        assert rounds is not None
        step, epoch, view = action.step, rounds.ledger.epoch, rounds.view
        averaged = self._exchange.average(step, action.contributions)
        step_time_s = self._watch.timer.stepped(self._clock())
        actions = rounds.handle(r.Averaged(step))
        members: tuple[str, ...] = ()
        for published in actions:
            if isinstance(published, r.Publish):  # workers get the mean before any other message
                members = published.workers
                self._publish(published, epoch, averaged)
        self._events.append(
            LoopStepDone(
                step,
                epoch,
                view,
                action.contributions,
                step_time_s=step_time_s,
                compute_s=averaged.compute_s,
                worker_sqnorm=averaged.worker_sqnorm,
                sqnorm=averaged.sqnorm,
                noise_parts=averaged.noise_parts,
                members=members,
            )
        )
        self._carry_out(actions)

    def _publish(self, published: r.Publish, epoch: int, averaged: StepMean) -> None:
        rounds = self._rounds
        assert rounds is not None
        for worker in published.workers:
            mean = lm.MeanMessage(
                published.step,
                epoch,
                published.over,
                published.view,
                published.members,
                averaged.headers,
                rounds.share(worker),
                self._lr_scale,
                averaged.shared,
            )
            self.supervisor.send(worker, mean, averaged.frames)

    @property
    def _lr_scale(self) -> float:
        in_effect = None if self._rounds is None else self._rounds.in_effect
        return 1.0 if in_effect is None else in_effect.lr_scale

    def _start(self, action: r.StartWorker, members: int) -> None:
        state: dict[str, lm.Array] = {}
        if action.load:
            held = self._checkpointer.held  # after a resume, no member can donate its state
            state = self._donation or (held.state if held is not None else {})
        headers, frames = lm.pack(state)
        self._watch.timer.restart(self._clock())
        assert self._rounds is not None
        start = lm.StartMessage(
            action.step,
            action.epoch,
            action.view,
            members,
            action.load,
            headers,
            self._rounds.share(action.worker),
            self._lr_scale,
            self.supervisor.place(action.worker),
        )
        self.supervisor.send(action.worker, start, frames)

    # ---- losses --------------------------------------------------------------------------------------------

    def _ended(self, ended: Exit) -> None:
        name = ended.name
        if ended.status >= 0:
            self.supervisor.receive_last_messages(name, self._receive)
            if name in self.supervisor.staying:
                raise TrainingCodeError(
                    f"the training code ended {name}, which {ended.cause} (log: {self.supervisor.log(name)})"
                )
            return
        cause = cause_of_death(None if ended.reason else ended.status)
        self._lose(name, ended.cause, cause, refused=ended.refused)

    def _lose(self, worker: str, reason: str, cause: Cause, *, refused: bool = False) -> None:
        """Count a worker as lost, or as one for which there was no host."""
        if worker not in self.supervisor.staying:
            return
        arrived = self.supervisor.arrived
        self.supervisor.mark_lost(worker)
        if self._ends is not None:
            self._ends.gone(worker)
        self._lost.add(worker)
        crashed, ready = cause is Cause.CRASHED, worker in arrived
        lost = Refused(worker, reason) if refused else Lost(worker, reason, crashed=crashed, ready=ready)
        self._events.append(lost)
        actions = self._rounds.handle(r.WorkerGone(worker, cause)) if self._rounds is not None else []
        # deaths that are blamed on samples do not count: they end when those samples are quarantined
        if not any(
            isinstance(action, Found) and not isinstance(action.finding, Innocent) for action in actions
        ):
            self._lost.count(self._clock())
            if self._replace and (times := self._lost.too_many):
                raise self._lost_for_good(f"{times}, the last since it {reason}", worker, crashed=crashed)
        if self._replace and not (self._rounds is not None and self._rounds.finishing):
            self.launch("", None)
        if self._rounds is not None:
            self._carry_out(actions)
        if self._ends is None and not self.done and not self.supervisor.staying:
            raise self._lost_for_good(f"no worker is left: {worker} {reason}", worker, crashed=crashed)

    def _lost_for_good(self, message: str, worker: str, *, crashed: bool) -> ScavengerError:
        log = self.supervisor.log(worker)
        return crash_error(message, log) if crashed else WorkersLostError(f"{message} (log: {log})")

    def _roll_back(self) -> None:
        """Roll back to the last checkpoint, or begin again, with workers that have not been members yet."""
        rounds = self._rounds
        assert rounds is not None
        held = self._checkpointer.held
        self._open(rounds.ledger.sizes)
        self._events.append(LoopRolledBack(0 if held is None else held.step))
        self._results.undo_from(0 if held is None else held.ledger["epoch"])
        for name in self.supervisor.arrived:
            self._handle(r.WorkerArrived(name, self.supervisor.host(name)))
        self._resize("after a checkpoint", ())

    # ---- watching ------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Handle workers that are silent, over a time limit, or do not end; request the state for checkpoints."""
        if not self._watch.due():
            return
        self.supervisor.tidy_up()
        for overdue in self._watch.starting():
            self._late(overdue)
        rounds = self._rounds
        if rounds is None or self.paused:
            return
        for overdue in self._watch.training(rounds):
            self._late(overdue)
        if rounds is self._rounds and not rounds.finishing and self._checkpointer.due(rounds.step):
            self._carry_out(rounds.want_state())

    def _late(self, overdue: Overdue) -> None:
        """End a worker that is over its time; if it hangs, and no other kept the limit, the code is the cause."""
        worker, reason = overdue.worker, overdue.reason
        if worker not in self.supervisor.staying:
            return
        if overdue.silent:
            self._lose(worker, reason, Cause.SILENT)
            return
        self.supervisor.show_stack(worker)
        if not overdue.others:
            raise TrainingHungError(f"{worker} {reason}; its stack is in {self.supervisor.log(worker)}")
        self._lose(worker, reason, Cause.HUNG)
