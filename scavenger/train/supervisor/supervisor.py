"""The supervisor of one job: starts its processes, routes their messages, and reports events to its owner.

`poll` drives it; it owns no thread. It is the hub through which the coordinator exchanges messages with the other
processes, and it restarts a coordinator or an aggregator that has died. It does not decide on views, which the
coordinator does, nor on configurations, which `scavenger.control` does by `launch`, `resize` and `release`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq

from scavenger.elastic.membership import worker_slot
from scavenger.elastic.migration import BucketMap
from scavenger.elastic.recovery import Role, Status
from scavenger.train.engines.base import Engine, PreemptionNotice
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.failure import error_of
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.names import HEARTBEAT_SUFFIX, aggregator_name
from scavenger.train.supervisor.bucket_moves import Migrations
from scavenger.train.supervisor.callbacks import CallbackRequests
from scavenger.train.supervisor.ending import Ending
from scavenger.train.supervisor.events import Event, Leaving, ProcessState, RolledBack, Started, Warned
from scavenger.train.supervisor.process_registry import ProcessRegistry
from scavenger.train.supervisor.processes import Processes
from scavenger.train.supervisor.recoveries import Checkpoints, Recoveries
from scavenger.train.supervisor.routing import Routing
from scavenger.train.supervisor.watching import MemoryWatch, NetworkWatch, WorkWatch
from scavenger.train.supervisor.worker_slots import WorkerSlots
from scavenger.train.transport import messages as m
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.layout import Layout
from scavenger.train.transport.shared_memory import Block
from scavenger.train.transport.sockets import Malformed

__all__ = ["Supervisor"]

_GRACE_S = 5.0
_QUIT_S = 10.0  # how long a released worker may take to end; its time is paid for

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Requested:
    """The owner's last request for a configuration, and the number of its last command."""

    command: int = 0
    resize: m.Resize | None = None


class Supervisor:
    """Supervises the processes of one job on one engine; `open` makes one.

    Args:
        processes: The engine and the hub.
        events: Queue of events for `poll` to return; it may hold some already.
        aggregators: Names of the aggregators that share the model, the sequencer first.
        timeouts: Limits on starting and on steps.
        restore: The checkpoint to begin with; None for a new model.
        checkpoint: Where and when to write checkpoints; None for none.
        clock: Monotonic seconds.

    Attributes:
        manifest: Description of the model; None before a worker has built it.
        quarantined: Samples that are left out, by their indices in the data.
        on_wait: Called while `finish` waits, which may take long; it fetches the events by `poll(0.0)`.
        recorded: Whether all events that `poll` has returned are stored, so that a checkpoint may be committed.

    Every method may raise a `ScavengerError` that ends the job; `close` must be called in any case.
    """

    def __init__(
        self,
        processes: Processes,
        events: list[Event],
        *,
        aggregators: tuple[str, ...],
        timeouts: Timeouts,
        restore: m.Restore | None,
        checkpoint: m.CheckpointPlan | None,
        clock: Callable[[], float],
    ) -> None:
        self._processes, self._events, self._timeouts, self._clock = processes, events, timeouts, clock
        self._aggregators = aggregators
        self._checkpoints = Checkpoints(checkpoint, restore)
        self._registry = ProcessRegistry(processes.engine, clock)
        self._slots = WorkerSlots()
        self._routing = Routing(
            processes,
            self._registry,
            from_process=self._from_process,
            from_coordinator=self._from_coordinator,
            is_first=lambda: self._recoveries.token == 1,
        )
        self._recoveries = Recoveries(
            processes,
            self._registry,
            self._slots,
            self._checkpoints,
            aggregators=aggregators,
            start_s=timeouts.start_s,
            events=events.append,
            send=self._routing.send,
            receive=self._routing.receive,
            clock=clock,
        )
        self._ending = Ending(
            processes, self._registry, aggregators=aggregators, turn=self._turn, clock=clock
        )
        self._callbacks = CallbackRequests(
            processes, self._registry, limit_s=timeouts.callbacks_s, warn=self._warn, clock=clock
        )
        self._requested, self._memory, self._network = _Requested(), MemoryWatch(), NetworkWatch()
        self._work = WorkWatch()
        self._migrations = Migrations(
            lambda message: processes.send(aggregators[0], message), len(aggregators)
        )
        self.manifest: m.Manifest | None = None
        self.quarantined: tuple[int, ...] = ()
        self.on_wait: Callable[[], None] | None = None
        self.recorded: Callable[[], bool] = lambda: True

    @classmethod
    def open(
        cls,
        source: JobSource,
        *,
        work_dir: Path,
        timeouts: Timeouts,
        aggregators: int = 1,
        restore: m.Restore | None = None,
        checkpoint: m.CheckpointPlan | None = None,
        engine: Callable[[Path, int], Engine] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Supervisor:
        """Listen for the processes of a job; `start` starts them.

        Args:
            source: The training code.
            work_dir: Folder for logs.
            timeouts: Limits on starting and on steps.
            aggregators: Number of aggregators that share the model.
            restore: The checkpoint to begin with; None for a new model.
            checkpoint: Where and when to write checkpoints; None for none.
            engine: Makes the engine from the folder for logs and the block's descriptor; None to run on this machine.
            clock: Monotonic seconds.

        Raises:
            ConfigurationError: If the engine's port cannot be bound.
        """
        names, events = tuple(aggregator_name(index) for index in range(aggregators)), list[Event]()
        processes = Processes.open(
            source,
            engine or ProcessEngine,
            log_dir=work_dir / "logs",
            block_fd=create_block(),
            aggregators=names,
            malformed=Malformed(lambda text: events.append(Warned(text))),
        )
        reachable = processes.engine.reachable
        return cls(
            processes,
            events,
            aggregators=names,
            timeouts=timeouts,
            restore=restore and msgspec.structs.replace(restore, url=reachable(restore.url)),
            checkpoint=checkpoint and msgspec.structs.replace(checkpoint, url=reachable(checkpoint.url)),
            clock=clock,
        )

    @property
    def engine(self) -> Engine:
        """The engine that runs the processes."""
        return self._processes.engine

    # ---- the owner's requests ------------------------------------------------------------------------------

    def start(self, workers: int, vm: str = "", *, threads: int | None = None) -> None:
        """Start the coordinator, the aggregators and the first workers; see `launch`."""
        self._recoveries.start_coordinator()
        for name in self._aggregators:
            self._recoveries.start_aggregator(name)
        self.launch(workers, vm, threads=threads)

    def launch(self, workers: int, vm: str = "", *, threads: int | None = None) -> tuple[str, ...]:
        """Start more workers; they warm up while the others train. Returns their names.

        Args:
            workers: How many to start.
            vm: The type of VM to run on, if the engine has several.
            threads: Threads that each computes with; None for the number in the job source.

        Raises:
            WorkersLostError: If the block has no free slots for so many.
        """
        names = []
        for _ in range(workers):
            name = self._slots.next_worker()
            self._processes.launch("worker", name, token=self._recoveries.token, threads=threads, vm=vm)
            self._registry.launched(name, Role.WORKER, vm=vm)
            names.append(name)
        self._announce_placed()
        return tuple(names)

    def _announce_placed(self) -> None:
        """Notify the coordinator of workers that have a host: their time limit for starting begins then."""
        for name in self._registry.unannounced:
            if self.engine.pid(name):
                self._announce(name)

    def _announce(self, worker: str) -> None:
        self._registry[worker].announced = True
        self._routing.send(m.Launched(worker))

    def resize(
        self,
        workers: int,
        global_batch_size: int,
        reason: str,
        *,
        without: Collection[str] = (),
        lr_scale: float = 1.0,
    ) -> None:
        """Train on K of the ready workers with batch B from the next step boundary on.

        Args:
            workers: K.
            global_batch_size: B, samples.
            reason: Why, for logs and records.
            without: Workers to remove and release; with as many ready ones to replace them, this is a migration.
            lr_scale: Factor for the optimizer's learning rate.
        """
        command = self._requested.command + 1
        self._registry.ask_to_leave(without)
        resize = m.Resize(command, workers, global_batch_size, reason, tuple(without), lr_scale)
        self._requested = _Requested(command, resize)
        self._routing.send(resize)

    def release(self, keep: int) -> None:
        """Release workers that no view needs, newest first, until `keep` are alive; `Leaving` events name them."""
        if self.settled and (len(self.alive) > keep or self._registry.departing):
            self._requested.command += 1
            self._routing.send(m.Release(self._requested.command, keep))

    def migrate(self, buckets: Mapping[int, int]) -> None:
        """Have aggregators hold other buckets while training goes on; a `Migrated` event reports the end.

        Args:
            buckets: The index of the aggregator that is to hold each of them. A later request replaces this one.

        Raises:
            ScavengerError: If the model is not known yet, or has no such bucket.
        """
        self._migrations.move(buckets, self._clock())

    def use_aggregators(self, aggregators: Collection[int]) -> None:
        """Have these aggregators, by their indices, hold the model, about as much each, and the others nothing.

        As with `migrate`, training goes on meanwhile. The first sequences the steps, whether it holds anything or not.

        Raises:
            ScavengerError: If the model is not known yet, or all of them are about to be lost with their VMs.
        """
        self._migrations.use(aggregators, self._clock())

    def verdict(
        self, epoch: int, *, stop: bool, keep_best: bool, rate_scale: float = 1.0, step: int | None = None
    ) -> None:
        """Answer an `EpochReport`, or the `BatchReport` of a step; the job waits for the answer."""
        verdict = m.VerdictGiven(epoch, stop, keep_best, rate_scale, step)
        self._processes.send(self._aggregators[0], verdict)

    def run_callbacks(self, request: m.RunCallbacks) -> None:
        """Have a worker run the callbacks; `CallbacksRun` is its answer, and until then the call is to be repeated."""
        self._callbacks.ask(request)

    def finish(
        self,
        path: Path,
        *,
        best: bool,
        checkpoint: bool = False,
        within_s: float | None = None,
        callbacks: m.RunCallbacks | None = None,
    ) -> None:
        """End training with the last applied step, and have a worker write the model; waits until it is written.

        Args:
            path: Path of the `.keras` file.
            best: Write the weights that a verdict last said to keep; the last weights if no verdict did.
            checkpoint: First write a checkpoint, if the job has a checkpoint plan, so that it can be resumed.
            within_s: How long it may take, seconds; None for as long as a worker may take to start.
            callbacks: The callbacks whose `on_train_end` follows, as of their last run; None for none.

        Raises:
            WorkersLostError: If no worker is left to write the model, or an aggregator that holds it is gone.
            ModelNotSavedError: If there is no room for the file, or its disk fails.
            TrainingError: If writing fails in another way, or takes longer than `within_s`.
        """
        deadline = self._clock() + (self._timeouts.start_s if within_s is None else within_s)
        self._ending.finalise(best=best, checkpoint=checkpoint, deadline=deadline)
        self._ending.write(path.resolve(), deadline=deadline, callbacks=callbacks)

    def keep_state(self, *, best: bool, within_s: float | None = None) -> None:
        """End training with the last applied step, and write a checkpoint of it, if the job has a checkpoint plan.

        Raises what `finish` does. An event reports whether the checkpoint was written.
        """
        deadline = self._clock() + (self._timeouts.start_s if within_s is None else within_s)
        self._ending.finalise(best=best, checkpoint=True, deadline=deadline)

    def close(self, *, grace_s: float = _GRACE_S) -> None:
        """End every process and free everything; safe to call twice.

        Args:
            grace_s: How long processes may take to end by themselves, seconds.
        """
        self._recoveries.close()
        with contextlib.suppress(zmq.ZMQError):
            for name in self.engine.running:
                worker = self._registry.worker(name)
                if name == self._registry.coordinator:
                    self._routing.send(m.Quit())
                elif worker is not None and worker.status is Status.STARTING:
                    self.engine.kill(name)  # it would not receive a message for seconds, and holds no state
                else:
                    self._processes.send(name, m.Quit())
        try:
            self.engine.stop(grace_s=grace_s)
        finally:
            for worker in self._registry.workers:
                if worker.ended_s is None:
                    self._registry.ended(worker.name, "", expected=True)
            self._processes.close()

    # ---- the state of the job ------------------------------------------------------------------------------

    @property
    def alive(self) -> tuple[str, ...]:
        """Running workers, including starting ones, that nothing has requested to end."""
        return self._registry.alive

    def workers(self, *states: str) -> tuple[str, ...]:
        """Return the names of living workers in any of the states `starting`, `ready` and `training`."""
        return self._registry.in_states(*states)

    @property
    def starting(self) -> int:
        """Number of workers that are warming up."""
        return len(self.workers("starting"))

    @property
    def ready(self) -> int:
        """Number of workers that train or are ready to."""
        return len(self.workers("ready", "training"))

    @property
    def map(self) -> BucketMap | None:
        """Which aggregator holds each bucket of the model; None before a worker has built it."""
        return self._migrations.map

    @property
    def aggregators(self) -> int:
        """Number of aggregators that share the model."""
        return len(self._aggregators)

    @property
    def migrating(self) -> bool:
        """Whether the end of a migration of buckets has yet to be reported."""
        return self._migrations.active

    @property
    def migrated(self) -> m.Migrated | None:
        """The end of the newest migration of buckets that has ended; None before the first."""
        return self._migrations.ended

    @property
    def settled(self) -> bool:
        """Whether the last request has taken effect."""
        return self._registry.roster.settled and self._registry.roster.command == self._requested.command

    @property
    def ending(self) -> bool:
        """Whether a released worker has not ended yet."""
        return bool(self._registry.let_go)

    @property
    def existing(self) -> Mapping[str, int]:
        """Number of workers that are paid for, by type of VM; includes released ones that have not ended yet."""
        return self._registry.existing

    def vm_of(self, worker: str) -> str:
        """Return the type of VM that a worker was launched on."""
        return self._registry[worker].vm

    def processes(self) -> tuple[ProcessState, ...]:
        """Return the state of every process that the job has had."""
        return self._registry.processes()

    def worker_seconds(self) -> Mapping[str, float]:
        """Return the seconds that workers have existed, summed over the workers of each type of VM."""
        return self._registry.worker_seconds()

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        """The peak memory of each process so far."""
        return self._memory.peaks

    # ---- the loop ------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> list[Event]:
        """Handle what has happened, waiting at most `timeout_s` for something; returns the events in order.

        Raises:
            TrainingError: If the training code failed, hangs, or yields NaN.
            NotSupportedError: If the model or data cannot be trained on exactly.
            WorkersLostError: If an aggregator, or the coordinator, dies again and again.
        """
        self._answer_recorded()  # a caller that calls again has handled the events returned before
        self._update(timeout_s)
        events = list(self._events)
        self._events.clear()  # not a new list: the hub appends its warnings to this one
        for event in events:
            if isinstance(event, m.CheckpointReady):
                self._checkpoints.unrecorded = event.step
            elif isinstance(event, RolledBack):
                self._callbacks.forget()
        return events

    def _answer_recorded(self) -> None:
        """Let the sequencer commit a checkpoint once all steps up to it are stored."""
        step = self._checkpoints.unrecorded
        if step is not None and self.recorded():
            self._processes.send(self._aggregators[0], m.Recorded(step))
            self._checkpoints.unrecorded = None

    def _update(self, timeout_s: float) -> None:
        """Handle messages that have arrived, processes that have ended, and preemption notices."""
        self._processes.wait(timeout_s)
        self._routing.receive()
        for ended in self.engine.poll():
            self._recoveries.ended(ended)
            if ended.name in self._aggregators:
                self._migrations.process_ended(self._aggregators.index(ended.name), self._clock())
        self._announce_placed()
        for notice in self.engine.preemption_notices():
            if self._registry.worker(notice.name) is not None:
                self._events.append(notice)
            else:
                self._aggregator_preempted(notice)
        self._watch()

    def _aggregator_preempted(self, notice: PreemptionNotice) -> None:
        """Have others hold what the aggregators of a VM hold that will be taken at a known time."""
        leaving = notice.in_s is not None and self._migrations.leave(
            [
                index
                for index, name in enumerate(self._aggregators)
                if self.engine.host(name) == self.engine.host(notice.name)
            ],
            self._clock(),
        )
        moves = "; what it holds moves to the others" if leaving else ""
        self._warn(f"{notice.name}: {notice.reason}{moves}; it will be replaced when it has ended")

    def _turn(self) -> None:
        """One turn of the loop while training ends."""
        if self.on_wait is None:
            self._events[:0] = self.poll(0.05)
        else:
            self._update(0.05)
            self.on_wait()

    # ---- messages ------------------------------------------------------------------------------------------

    def _from_process(self, peer: str, message: m.Message) -> bool:
        """Handle a message of another process; returns whether the coordinator gets it too."""
        sequencing = peer == self._aggregators[0]
        worker = self._registry.worker(peer)
        if worker is not None and not worker.announced:
            self._announce(peer)  # its first message may come before its engine reports its host
        match message:
            case m.Beat():
                name = peer.removesuffix(HEARTBEAT_SUFFIX)
                self._registry.beat(name, message)
                self._network.heard(name)
                self._work.heard(name, self._clock())
            case (
                m.StepReport()
                | m.EpochReport()
                | m.BatchReport()
                | m.CheckpointWritten()
                | m.CheckpointFailed()
                | m.CheckpointReady()
            ) if sequencing:
                if isinstance(message, m.CheckpointWritten):
                    self._checkpoints.written = True
                    log.info("wrote a checkpoint of step %d in %.1f s", message.step, message.written_s)
                self._events.append(message)
                return False
            case m.MapChanged() if sequencing:
                self._migrations.take(message)
            case m.Migrated() if sequencing:
                self._migrations.take(message)
                self._events.append(message)
            case m.Quarantined() if sequencing:
                self.quarantined = tuple(sorted({*self.quarantined, *message.samples}))
                self._events.append(message)
            case m.MemoryExceeded():
                self._events.append(message)
                return False
            case m.CallbacksRun():
                if self._callbacks.take(peer, message):
                    self._events.append(message)
                return False
            case m.Done() | m.Saved() | m.SavedPart() | m.Unsaved():
                self._ending.take(peer, message)
                return False
            case m.Failed():
                self._fail(peer, message)
                return False
            case m.Hello() | m.Present() if self.manifest is None:
                try:
                    layout = Layout.of(message.manifest, len(self._aggregators))
                except (ArithmeticError, AttributeError, TypeError, ValueError):  # no model has such tensors
                    self._processes.hub.malformed(peer)
                    return False
                self._slots.set_layout(layout)
                self._migrations.set_layout(layout)
                self.manifest = message.manifest
            case m.Ready() if worker is not None and worker.status is Status.STARTING:
                worker.status, worker.was_ready = Status.READY, True
                self._events.append(Started(peer, self._clock() - worker.launched_s))
            case m.ViewInstalled() if sequencing:
                view = message.view
                log.info("view %d holds from step %d on: %s", view.number, view.first_step, view.reason)
                self._events.append(message)
            case m.AggregatorReady() if peer in self._aggregators:
                self._processes.introduce(peer)
            case m.Initialised() if peer in self._aggregators:
                self._recoveries.part_held(peer, message.step)
                self._migrations.process_serves(self._aggregators.index(peer), self._clock())
            case _:
                pass
        return True

    def _from_coordinator(self, message: m.Message | None) -> None:
        """Handle a message of the coordinator; None for one to another process."""
        self._recoveries.coordinator_alive()
        coordinator = self._registry.coordinator
        self._work.heard(coordinator, self._clock())
        match message:
            case m.Beat() if self._registry[coordinator].beat is None:
                self._registry.beat(coordinator, message)
                self._routing.welcome(self._brief())
            case m.Roster():
                self._take_roster(message)
            case m.Expel():
                self._recoveries.expel(message)
            case m.RollBack():
                self._recoveries.roll_back(message.cause)
            case m.Failed():
                self._fail(coordinator, message)
            case _:
                pass

    def _take_roster(self, roster: m.Roster) -> None:
        self._recoveries.leads()
        self._registry.roster = roster
        for name, state in roster.states.items():
            if state == Status.LEAVING.value and self._registry.leaving(name):
                self._events.append(Leaving(name))
        for name in self._slots.freed(roster):
            if self._slots.layout is not None and self._processes.block_fd >= 0:
                Block(self._processes.block_fd, self._slots.layout).release_slots(worker_slot(name))
            self._processes.forget(name)

    def _brief(self) -> m.Brief:
        return m.Brief(
            token=self._recoveries.token,
            workers=tuple(name for name in self.alive if self._registry[name].announced),
            aggregators=self._aggregators,
            start_s=self._timeouts.start_s,
            step_s=self._timeouts.step_s,
            restore=self._checkpoints.restore,
            checkpoint=self._checkpoints.plan,
            resize=self._requested.resize,
            command=self._requested.command,
            number=self._registry.roster.number,
            held=self._recoveries.held,
            rewinding=self._recoveries.rewinding,
            quarantined=self.quarantined,
            evaluation_s=self._timeouts.evaluation_s,
            map=None if self.map is None else m.map_body(self.map),
            spare=tuple(sorted(self._migrations.spare)),
        )

    def _warn(self, text: str) -> None:
        self._events.append(Warned(text))

    def _fail(self, process: str, message: m.Failed) -> None:
        self._registry[process.removesuffix(HEARTBEAT_SUFFIX)].status = Status.FAILED
        raise error_of(message.kind, message.message, process=process, log=self.engine.log(process))

    def _watch(self) -> None:
        """Replace a silent coordinator, kill released workers that do not end, and sample memory."""
        now = self._clock()
        self._memory.look(self.engine, now)
        self._callbacks.watch(now)
        self._migrations.watch(now)
        for worker in self._registry.let_go:
            if now - worker.leaving_s > _QUIT_S:
                self.engine.kill(worker.name)
        if self._network.is_due(now):
            beating, coordinator = self._registry.beating, self._registry.coordinator
            working = self._work.look(self.engine, {*beating, coordinator}, now)
            # without these heartbeats, the coordinator counts no process as silent
            if self._network.in_doubt(self.engine, beating, now):
                # it may find one silent before it misses them
                working |= {name: 0.0 for name in beating if name != coordinator}
            else:
                self._routing.send(m.Beat())
            if working:
                self._routing.send(m.Working(working))
            self._recoveries.watch(now, working)
