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

from scavenger.elastic.recovery import Role
from scavenger.train.engines.base import GRACE_S, Engine, PreemptionNotice
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.names import aggregator_name
from scavenger.train.supervisor.bucket_moves import Migrations
from scavenger.train.supervisor.callbacks import CallbackRequests
from scavenger.train.supervisor.ending import EndOfTraining
from scavenger.train.supervisor.events import Event, RolledBack, Warned
from scavenger.train.supervisor.face import JobSupervisor
from scavenger.train.supervisor.incoming import Handlers, Incoming
from scavenger.train.supervisor.process_registry import ProcessRegistry
from scavenger.train.supervisor.processes import Processes
from scavenger.train.supervisor.recoveries import Checkpoints, Recoveries
from scavenger.train.supervisor.watching import Watch
from scavenger.train.supervisor.worker_slots import WorkerSlots
from scavenger.train.transport import messages as m
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.sockets import Malformed

log = logging.getLogger(__name__)


class Supervisor(JobSupervisor):
    """Supervises the processes of one Keras job on one engine; `open` makes one.

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
        migrations: Which of the aggregators hold the model.
    """

    model_file = "model.keras"
    migrations: Migrations

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
        super().__init__(ProcessRegistry(processes.engine, clock))
        self._processes, self._events, self._timeouts, self._clock = processes, events, timeouts, clock
        self._aggregators = aggregators
        self._checkpoints = Checkpoints(checkpoint, restore)
        self._slots = WorkerSlots()
        self._command = 0  # the number of the newest request to the coordinator
        self._configuration: m.ResizeMembers | None = None
        self._recoveries = Recoveries(
            processes,
            self._registry,
            self._slots,
            self._checkpoints,
            aggregators=aggregators,
            start_s=timeouts.start_s,
            events=events.append,
            send=self._send,
            receive=lambda: self._incoming.receive(),
            clock=clock,
        )
        self._ending = EndOfTraining(
            processes,
            self._registry,
            aggregators=aggregators,
            launch=lambda: self.launch(1, self._registry.workers[-1].vm),
            turn=self._turn,
            clock=clock,
        )
        self._callbacks = CallbackRequests(
            processes, self._registry, limit_s=timeouts.callbacks_s, warn=self._warn, clock=clock
        )
        self._watches = Watch(self._registry, self._send)
        self.migrations = Migrations(
            lambda message: processes.send(aggregators[0], message),
            len(aggregators),
            clock=clock,
            apart=apart,
        )
        self._incoming = Incoming(
            processes,
            Handlers(
                registry=self._registry,
                slots=self._slots,
                checkpoints=self._checkpoints,
                recoveries=self._recoveries,
                migrations=self.migrations,
                callbacks=self._callbacks,
                ending=self._ending,
                watch=self._watches,
            ),
            aggregators=aggregators,
            event=events.append,
            announce=self._announce,
            greet=lambda: self._send(self._brief()),
            clock=clock,
        )

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

    # ---- the owner's requests ------------------------------------------------------------------------------

    def start(self, workers: int, vm: str = "", *, threads: int | None = None) -> None:
        """See `JobSupervisor.start`; the coordinator and the aggregators start first."""
        self._recoveries.start_coordinator()
        for name in self._aggregators:
            self._recoveries.start_aggregator(name)
        self.launch(workers, vm, threads=threads)

    def launch(self, workers: int, vm: str = "", *, threads: int | None = None) -> tuple[str, ...]:
        names = []
        for _ in range(workers):
            name = self._slots.next_worker()
            self._processes.launch("worker", name, token=self._recoveries.token, threads=threads, vm=vm)
            self._registry.launched(name, Role.WORKER, vm=vm)
            names.append(name)
        self._announce_placed()
        return tuple(names)

    def resize(
        self,
        workers: int,
        global_batch_size: int,
        reason: str,
        *,
        without: Collection[str] = (),
        lr_scale: float = 1.0,
    ) -> None:
        self._command += 1
        self._registry.ask_to_leave(without)
        self._configuration = m.ResizeMembers(
            self._command, workers, global_batch_size, reason, tuple(without), lr_scale
        )
        self._send(self._configuration)

    def release(self, keep: int) -> None:
        if self.settled and (len(self.alive) > keep or self._registry.departing):
            self._command += 1
            self._send(m.ReleaseSpares(self._command, keep))

    def verdict(
        self, epoch: int, *, stop: bool, keep_best: bool, rate_scale: float = 1.0, step: int | None = None
    ) -> None:
        verdict = m.VerdictGiven(epoch, stop, keep_best, rate_scale, step)
        self._processes.send(self._aggregators[0], verdict)

    def run_callbacks(self, request: m.RunCallbacks) -> None:
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
        """See `JobSupervisor.finish`: a worker writes the model, which needs all aggregators."""
        deadline = self._clock() + (self._timeouts.start_s if within_s is None else within_s)
        self._ending.finalise(best=best, checkpoint=checkpoint, deadline=deadline)
        self._ending.write(path.resolve(), deadline=deadline, callbacks=callbacks)

    def keep_state(self, *, best: bool, within_s: float | None = None) -> None:
        deadline = self._clock() + (self._timeouts.start_s if within_s is None else within_s)
        self._ending.finalise(best=best, checkpoint=True, deadline=deadline)

    def close(self, *, grace_s: float = GRACE_S) -> None:
        self._recoveries.close()
        self._ending.quit(self._send, grace_s=grace_s)

    # ---- the state of the job ------------------------------------------------------------------------------

    @property
    def manifest(self) -> m.Manifest | None:
        return self._incoming.manifest

    @property
    def quarantined(self) -> tuple[int, ...]:
        return self._incoming.quarantined

    @property
    def settled(self) -> bool:
        roster = self._registry.roster
        return roster.settled and roster.command == self._command

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        return self._watches.memory_bytes

    # ---- the loop ------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> list[Event]:
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
        self._incoming.receive()
        for ended in self.engine.poll():
            self._recoveries.ended(ended)
            if ended.name in self._aggregators:
                self.migrations.process_ended(self._aggregators.index(ended.name))
        self._announce_placed()
        for notice in self.engine.preemption_notices():
            if self._registry.worker(notice.name) is not None:
                self._events.append(notice)
            else:
                self._aggregator_preempted(notice)
        self._watch()

    def _aggregator_preempted(self, notice: PreemptionNotice) -> None:
        """Have others hold what the aggregators of a VM hold that will be taken at a known time."""
        leaving = notice.in_s is not None and self.migrations.leave(
            [
                index
                for index, name in enumerate(self._aggregators)
                if name == notice.name
                or (not notice.alone and self.engine.host(name) == self.engine.host(notice.name))
            ]
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

    def _send(self, message: m.Message) -> None:
        """Send the newest coordinator a message of the supervisor."""
        self._processes.pass_on(self._registry.coordinator, b"", m.encode(message))

    def _announce_placed(self) -> None:
        """Notify the coordinator of workers that have a host: their time limit for starting begins then."""
        for name in self._registry.unannounced:
            if self.engine.pid(name):
                self._announce(name)

    def _announce(self, worker: str) -> None:
        self._registry.announced.add(worker)
        self._send(m.Launched(worker))

    def _brief(self) -> m.Brief:
        return m.Brief(
            token=self._recoveries.token,
            workers=tuple(name for name in self.alive if name in self._registry.announced),
            aggregators=self._aggregators,
            start_s=self._timeouts.start_s,
            step_s=self._timeouts.step_s,
            restore=self._checkpoints.restore,
            checkpoint=self._checkpoints.plan,
            resize=self._configuration,
            command=self._command,
            number=self._registry.roster.number,
            held=self._recoveries.held,
            rewinding=self._recoveries.rewinding,
            quarantined=self.quarantined,
            evaluation_s=self._timeouts.evaluation_s,
            map=self.migrations.map,
            spare=tuple(sorted(self.migrations.spare)),
        )

    def _warn(self, text: str) -> None:
        self._events.append(Warned(text))

    def _watch(self) -> None:
        """Look at what is watched at intervals, and replace a silent coordinator."""
        now = self._clock()
        self._callbacks.watch(now)
        self.migrations.watch()
        if (sharing := self.engine.sharing) is not None:
            self.migrations.follow([i for i, name in enumerate(self._aggregators) if name in sharing])
        for index in self.migrations.vacant:
            self.engine.vacated(self._aggregators[index])
        working = self._watches.look(now)
        if working is not None:
            self._recoveries.watch(now, working)
