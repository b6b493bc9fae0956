"""The supervisor of one job: starts its processes, routes their messages, and reports events to its owner.

`poll` drives it; it owns no thread. It is the hub through which the coordinator exchanges messages with the other
processes, and it restarts a coordinator or an aggregator that has died. It does not decide on views, which the
coordinator does, nor on configurations, which `scavenger.control` does by `launch`, `resize` and `release`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

from scavenger.elastic.migration import BucketMap
from scavenger.train.engines.base import Engine, PreemptionNotice
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.names import aggregator_name
from scavenger.train.supervisor.bucket_moves import Migrations
from scavenger.train.supervisor.callbacks import CallbackRequests
from scavenger.train.supervisor.ending import Ending
from scavenger.train.supervisor.events import Event, RolledBack, Warned
from scavenger.train.supervisor.incoming import Handlers, Incoming
from scavenger.train.supervisor.known_workers import KnownWorkers
from scavenger.train.supervisor.process_registry import ProcessRegistry
from scavenger.train.supervisor.processes import Processes
from scavenger.train.supervisor.recoveries import Checkpoints, Recoveries
from scavenger.train.supervisor.routing import Routing
from scavenger.train.supervisor.watching import Watch
from scavenger.train.supervisor.worker_requests import WorkerRequests
from scavenger.train.supervisor.worker_slots import WorkerSlots
from scavenger.train.transport import messages as m
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.sockets import Malformed

_GRACE_S = 5.0

log = logging.getLogger(__name__)


class Supervisor(KnownWorkers):
    """Supervises the processes of one job on one engine; `open` makes one.

    Args:
        processes: The engine and the hub.
        events: Queue of events for `poll` to return; it may hold some already.
        aggregators: Names of the aggregators that share the model, the sequencer first.
        timeouts: Limits on starting and on steps.
        restore: The checkpoint to begin with; None for a new model.
        checkpoint: Where and when to write checkpoints; None for none.
        clock: Monotonic seconds.
        apart: See `open`.

    Attributes:
        on_wait: Called while `finish` waits, which may take long; it fetches the events by `poll(0.0)`.
        recorded: Whether all events that `poll` has returned are stored, so that a checkpoint may be committed.

    Every method may raise a `ScavengerError` that ends the job; `close` must be called in any case.
    """

    model_file = "model.keras"

    def __init__(
        self,
        processes: Processes,
        events: list[Event],
        *,
        aggregators: tuple[str, ...],
        timeouts: Timeouts,
        restore: m.RestorePoint | None,
        checkpoint: m.CheckpointPlan | None,
        clock: Callable[[], float],
        apart: bool = False,
    ) -> None:
        self._processes, self._events, self._timeouts, self._clock = processes, events, timeouts, clock
        self._aggregators = aggregators
        self._checkpoints = Checkpoints(checkpoint, restore)
        self._known = ProcessRegistry(processes.engine, clock)
        self._slots = WorkerSlots()
        self._routing = Routing(
            processes,
            self._registry,
            from_process=lambda peer, message: self._incoming.from_process(peer, message),
            from_coordinator=lambda message: self._incoming.from_coordinator(message),
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
        self._workers = WorkerRequests(processes, self._registry, self._slots, self._routing)
        self._watches = Watch(processes.engine, self._registry, self._routing.send)
        self._migrations = Migrations(
            lambda message: processes.send(aggregators[0], message), len(aggregators), apart=apart
        )
        self._incoming = Incoming(
            processes,
            Handlers(
                registry=self._registry,
                slots=self._slots,
                checkpoints=self._checkpoints,
                recoveries=self._recoveries,
                migrations=self._migrations,
                callbacks=self._callbacks,
                ending=self._ending,
                watch=self._watches,
            ),
            aggregators=aggregators,
            event=events.append,
            announce=self._workers.announce,
            greet=lambda: self._routing.welcome(self._brief()),
            clock=clock,
        )
        self._apart = int(apart)
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
        apart: bool = False,
        restore: m.RestorePoint | None = None,
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
            apart: Whether one more only sequences the steps: each of the others can then leave its host while the
                job trains.
            restore: The checkpoint to begin with; None for a new model.
            checkpoint: Where and when to write checkpoints; None for none.
            engine: Makes the engine from the folder for logs and the block's descriptor; None to run on this machine.
            clock: Monotonic seconds.

        Raises:
            ConfigurationError: If the engine's port cannot be bound.
        """
        names = tuple(aggregator_name(index) for index in range(aggregators + apart))
        events = list[Event]()
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
            apart=apart,
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
        return self._workers.launch(workers, vm, token=self._recoveries.token, threads=threads)

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
        self._workers.resize(workers, global_batch_size, reason, without, lr_scale)

    def release(self, keep: int) -> None:
        """Release workers that no view needs, newest first, until `keep` are alive; `Leaving` events name them."""
        self._workers.release(keep)

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
        self._migrations.use([index + self._apart for index in aggregators], self._clock())

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
        self._ending.quit(self._routing.send, grace_s=grace_s)

    # ---- the state of the job ------------------------------------------------------------------------------

    @property
    def manifest(self) -> m.Manifest | None:
        """Description of the model; None before a worker has built it."""
        return self._incoming.manifest

    @property
    def _registry(self) -> ProcessRegistry:
        return self._known

    @property
    def quarantined(self) -> tuple[int, ...]:
        """Samples that are left out, by their indices in the data."""
        return self._incoming.quarantined

    @property
    def map(self) -> BucketMap | None:
        """Which aggregator holds each bucket of the model; None before a worker has built it."""
        return self._migrations.map

    @property
    def bucket_bytes(self) -> tuple[int, ...]:
        """Size of each bucket of the model, bytes; empty before a worker has built it."""
        return self._migrations.sizes

    @property
    def aggregators(self) -> int:
        """Number of aggregators that share the model."""
        return len(self._aggregators) - self._apart

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
        return self._workers.settled

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        """The peak memory of each process so far."""
        return self._watches.memory_bytes

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
            elif isinstance(event, m.CheckpointWritten) and self._checkpoints.awaited:
                # what it sequenced cannot move, but going back to this checkpoint repeats next to nothing
                self._checkpoints.awaited = False
                self.engine.vacated(self._aggregators[0])
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
        self._workers.announce_placed()
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
                if name == notice.name
                or (not notice.alone and self.engine.host(name) == self.engine.host(notice.name))
            ],
            self._clock(),
        )
        moves = "; what it holds moves to the others" if leaving else ""
        if notice.alone and notice.in_s is not None and notice.name == self._aggregators[0]:
            self._checkpoints.awaited, moves = True, "; it leaves after the next checkpoint"
        if notice.alone and notice.in_s is not None:  # it is told again until it has left
            log.info("%s: %s%s", notice.name, notice.reason, moves)
        elif notice.alone:
            self._warn(f"{notice.name}: {notice.reason}")
        else:
            self._warn(f"{notice.name}: {notice.reason}{moves}; it will be replaced when it has ended")

    def _turn(self) -> None:
        """One turn of the loop while training ends."""
        if self.on_wait is None:
            self._events[:0] = self.poll(0.05)
        else:
            self._update(0.05)
            self.on_wait()

    # ---- the coordinator -----------------------------------------------------------------------------------

    def _brief(self) -> m.Brief:
        return m.Brief(
            token=self._recoveries.token,
            workers=tuple(name for name in self.alive if self._registry[name].announced),
            aggregators=self._aggregators,
            start_s=self._timeouts.start_s,
            step_s=self._timeouts.step_s,
            restore=self._checkpoints.restore,
            checkpoint=self._checkpoints.plan,
            resize=self._workers.configuration,
            command=self._workers.command,
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

    def _watch(self) -> None:
        """Look at what is watched at intervals, and replace a silent coordinator."""
        now = self._clock()
        self._callbacks.watch(now)
        self._migrations.watch(now)
        for index in self._migrations.vacant:
            self.engine.vacated(self._aggregators[index])
        working = self._watches.look(now)
        if working is not None:
            self._recoveries.watch(now, working)
