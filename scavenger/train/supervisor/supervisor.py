"""The processes of one job: starts them, passes on what they say to each other, and tells its owner what happens.

It is driven by `poll` and owns no thread. It is the hub through which the coordinator hears and reaches the others,
and the one that starts another coordinator or aggregator where one has died. It decides nothing about views: the
coordinator does; nothing about configurations: `scavenger.control` does, by `launch`, `resize` and `release`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq

from scavenger.elastic.liveness import HEARTBEAT_S
from scavenger.elastic.membership import worker_slot
from scavenger.elastic.outage import Outage
from scavenger.elastic.recovery import Role, Status
from scavenger.errors import (
    MessageError,
    ModelNotSavedError,
    TrainingHungError,
    WorkersLostError,
)
from scavenger.train.engines.base import Engine
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.failure import error_of
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.names import BEATING, aggregator_name, partial_model
from scavenger.train.supervisor.events import Event, Leaving, ProcessState, Started, Warned
from scavenger.train.supervisor.process_registry import ProcessRegistry
from scavenger.train.supervisor.processes import Processes
from scavenger.train.supervisor.recoveries import Checkpoints, Recoveries
from scavenger.train.supervisor.saving import Saving
from scavenger.train.supervisor.worker_slots import WorkerSlots
from scavenger.train.transport import messages as m
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.shared_memory import Block, Layout
from scavenger.train.transport.sockets import EVERYBODY, Malformed

__all__ = ["Supervisor"]

_MEMORY_SAMPLE_S = 0.5
_GRACE_S = 5.0
_ASK_AGAIN_S = 1.0
_QUIT_S = 10.0  # as long as a worker that is let go may take, since its time is paid for

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Wanted:
    """What the owner last asked for, by the number of the command."""

    command: int = 0
    resize: m.Resize | None = None


@dataclass(slots=True)
class _Looked:
    """When memory and liveness were last looked at."""

    memory_s: float = 0.0
    liveness_s: float = 0.0


class Supervisor:
    """Leads the processes of one job on one engine; `open` makes one.

    Args:
        processes: The engine and the hub.
        events: What there is to tell already.
        aggregators: Names of those that share the model, the sequencer first.
        timeouts: Limits on starting and on steps.
        restore: The checkpoint to begin with; None for a new model.
        checkpoint: Where and when to write checkpoints; None for none.
        clock: Monotonic seconds.

    Attributes:
        manifest: What the model is; None before a worker has built it.
        memory_bytes: The largest memory of each process so far.
        quarantined: Samples that are left out, by their indices in the data.
        on_wait: Called while `finish` waits, which may take long; it takes what has happened by `poll(0.0)`.
        recorded: Whether all that `poll` has given out is on record, so that a checkpoint may count.

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
        self._book = ProcessRegistry(processes.engine, clock)
        self._places = WorkerSlots()
        self._recoveries = Recoveries(
            processes,
            self._book,
            self._places,
            self._checkpoints,
            aggregators=aggregators,
            start_s=timeouts.start_s,
            events=events.append,
            tell=self._to_coordinator,
            hear=self._hear,
            clock=clock,
        )
        self._saving = Saving()
        self._wanted, self._looked, self._outage = _Wanted(), _Looked(), Outage()
        self._unheard: list[tuple[str, bytes]] = []
        self.manifest: m.Manifest | None = None
        self.memory_bytes: dict[str, int] = {}
        self.quarantined: tuple[int, ...] = ()
        self.on_wait: Callable[[], None] | None = None
        self.recorded: Callable[[], bool] = lambda: True
        self._unrecorded: int | None = None

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
            work_dir: For logs.
            timeouts: Limits on starting and on steps.
            aggregators: How many share the model.
            restore: The checkpoint to begin with; None for a new model.
            checkpoint: Where and when to write checkpoints; None for none.
            engine: Where processes run, made from the folder for logs and the block; None for this machine.
            clock: Monotonic seconds.

        Raises:
            ConfigurationError: If the engine's port cannot be had.
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
            restore=None if restore is None else m.Restore(reachable(restore.url)),
            checkpoint=checkpoint and msgspec.structs.replace(checkpoint, url=reachable(checkpoint.url)),
            clock=clock,
        )

    @property
    def engine(self) -> Engine:
        """Where the processes run."""
        return self._processes.engine

    # ---- what the caller wants -----------------------------------------------------------------------------

    def start(self, workers: int, vm: str = "", *, threads: int | None = None) -> None:
        """Start the coordinator, the aggregators and the first workers; see `launch`."""
        self._recoveries.start_coordinator()
        for name in self._aggregators:
            self._recoveries.start_aggregator(name)
        self.launch(workers, vm, threads=threads)

    def launch(self, workers: int, vm: str = "", *, threads: int | None = None) -> tuple[str, ...]:
        """Start more workers; they warm up while the others train. Returns their names.

        Args:
            vm: The type of VM to run on, where the engine has several.
            threads: That each computes with; as the source says where None.

        Raises:
            WorkersLostError: If the block has no place for so many.
        """
        names = []
        for _ in range(workers):
            name = self._places.next_worker()
            self._processes.launch("worker", name, token=self._recoveries.token, threads=threads, vm=vm)
            self._book.launched(name, Role.WORKER, vm=vm)
            names.append(name)
        self._announce_placed()
        return tuple(names)

    def _announce_placed(self) -> None:
        """Tell the coordinator of workers once they have a host: its patience with them begins then."""
        for name in self._book.unannounced:
            if self.engine.pid(name):
                self._announce(name)

    def _announce(self, worker: str) -> None:
        self._book[worker].announced = True
        self._to_coordinator(m.Launched(worker))

    def resize(
        self,
        workers: int,
        global_batch_size: int,
        reason: str,
        *,
        without: Collection[str] = (),
        lr_scale: float = 1.0,
    ) -> None:
        """Train on K workers with batch B from the next step boundary on, with the workers that are ready.

        Args:
            without: Workers that leave, and are let go; with as many ready ones, that is a migration.
            lr_scale: By what the optimizer's learning rate is multiplied.
        """
        command = self._wanted.command + 1
        self._book.ask_to_leave(without)
        resize = m.Resize(command, workers, global_batch_size, reason, tuple(without), lr_scale)
        self._wanted = _Wanted(command, resize)
        self._to_coordinator(resize)

    def release(self, keep: int) -> None:
        """Have workers let go that no view needs, newest first, until `keep` are alive; `Leaving` tells which."""
        if self.settled and (len(self.alive) > keep or self._book.departing):
            self._wanted.command += 1
            self._to_coordinator(m.Release(self._wanted.command, keep))

    def verdict(self, epoch: int, *, stop: bool, keep_best: bool) -> None:
        """The answer to an `EpochReport`, for which the job waits."""
        self._processes.send(self._aggregators[0], m.VerdictGiven(epoch, stop, keep_best))

    def finish(
        self, path: Path, *, best: bool, checkpoint: bool = False, within_s: float | None = None
    ) -> None:
        """End training with the last applied step, and have a worker write the model; waits for it.

        Args:
            path: Where the `.keras` file goes.
            best: Write the weights that a verdict last said to keep; the last ones where no verdict did.
            checkpoint: Write one first, where there is a place for it: the job may be gone on with.
            within_s: How long it may take; as long as a worker may take to start where None.

        Raises:
            WorkersLostError: If no worker is left to write it, or no aggregator to write it from.
            ModelNotSavedError: If there is no room for it, or its disk fails.
            TrainingError: If writing fails in another way, or takes longer.
        """
        deadline = self._clock() + (self._timeouts.start_s if within_s is None else within_s)
        saving = self._finalise(best=best, checkpoint=checkpoint, deadline=deadline)
        while not saving.saved:
            able = [name for name in self.alive if self._book[name].status is Status.READY]
            if not able:
                raise WorkersLostError("no worker is left to write the model")
            assert saving.step is not None
            self._save(able[0], path.resolve(), saving.step, deadline)
            if saving.refusal:
                raise ModelNotSavedError(saving.refusal)

    def keep_state(self, *, best: bool, within_s: float | None = None) -> None:
        """End training with the last applied step, and write a checkpoint of it, where there is a place for them.

        Raises what `finish` does. Whether the checkpoint was written is told by an event.
        """
        deadline = self._clock() + (self._timeouts.start_s if within_s is None else within_s)
        self._finalise(best=best, checkpoint=True, deadline=deadline)

    def _finalise(self, *, best: bool, checkpoint: bool, deadline: float) -> Saving:
        saving = self._saving = Saving()
        gone = [name for name in self._aggregators if name not in self.engine.running]
        if gone:
            raise WorkersLostError(f"{gone[0]}, which held the weights, is gone")
        self._wait(
            lambda: saving.step is not None,
            "the aggregator did not finish in time",
            deadline,
            # it may be restarted meanwhile
            asking=lambda: self._processes.send(self._aggregators[0], m.Finish(best, checkpoint)),
        )
        return saving

    def _save(self, writer: str, path: Path, step: int, deadline: float) -> None:
        """Have a worker write the model to `path`, or send it where that is another host's."""
        here, saving = self.engine.host(writer) == self.engine.leader_host, self._saving
        with contextlib.ExitStack() as after:
            after.callback(partial_model(path).unlink, missing_ok=True)
            if not here:
                after.enter_context(saving.received(writer, path))
            self._processes.send(writer, m.Save(str(path) if here else "", step))
            self._wait(
                lambda: saving.saved or bool(saving.refusal) or writer not in self.engine.running,
                "the model was not written in time",
                deadline,
            )

    def close(self, *, grace_s: float = _GRACE_S) -> None:
        """End every process and free everything; safe to call twice.

        Args:
            grace_s: How long processes may take to end by themselves.
        """
        self._recoveries.close()
        with contextlib.suppress(zmq.ZMQError):
            for name in self.engine.running:
                worker = self._book.worker(name)
                if name == self._book.coordinator:
                    self._to_coordinator(m.Quit())
                elif worker is not None and worker.status is Status.STARTING:
                    self.engine.kill(name)  # it would not hear for seconds, and holds nothing
                else:
                    self._processes.send(name, m.Quit())
        try:
            self.engine.stop(grace_s=grace_s)
        finally:
            for worker in self._book.workers:
                if worker.ended_s is None:
                    self._book.ended(worker.name, "", meant=True)
            self._processes.close()

    # ---- what the caller may know --------------------------------------------------------------------------

    @property
    def alive(self) -> tuple[str, ...]:
        """Workers that are there to stay, also those that still start."""
        return self._book.alive

    def workers(self, *states: str) -> tuple[str, ...]:
        """Names of living workers in any of the states `starting`, `ready` and `training`."""
        return self._book.in_states(*states)

    @property
    def starting(self) -> int:
        """Workers that are warming up."""
        return len(self.workers("starting"))

    @property
    def ready(self) -> int:
        """Workers that train or could."""
        return len(self.workers("ready", "training"))

    @property
    def settled(self) -> bool:
        """What was last asked for has taken effect."""
        return self._book.roster.settled and self._book.roster.command == self._wanted.command

    @property
    def ending(self) -> bool:
        """Some worker has been let go but has not ended yet."""
        return bool(self._book.let_go)

    @property
    def existing(self) -> Mapping[str, int]:
        """Workers that are paid for, by the type of their VM: also those let go that have not ended yet."""
        return self._book.existing

    def vm_of(self, worker: str) -> str:
        """The type of VM that a worker was launched on."""
        return self._book[worker].vm

    def processes(self) -> tuple[ProcessState, ...]:
        """Every process that the job has had."""
        return self._book.processes()

    def worker_seconds(self) -> Mapping[str, float]:
        """Time that workers have existed, summed over those of each type of VM."""
        return self._book.worker_seconds()

    # ---- the loop ------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> list[Event]:
        """Take what has arrived, waiting at most `timeout_s` for something; returns it in order.

        Raises:
            TrainingError: The training code failed, hangs, or yields NaN.
            NotSupportedError: The model or data cannot be trained on exactly.
            WorkersLostError: An aggregator, or the coordinator, dies again and again.
        """
        self._answer_recorded()  # whoever calls again has taken in what was given out before
        self._look(timeout_s)
        events = list(self._events)
        self._events.clear()  # the same list goes on: the hub adds to it what it refuses
        ready = [event.step for event in events if isinstance(event, m.CheckpointReady)]
        self._unrecorded = ready[-1] if ready else self._unrecorded
        return events

    def _answer_recorded(self) -> None:
        """Let a checkpoint count, once all steps up to it are on record."""
        if self._unrecorded is not None and self.recorded():
            self._processes.send(self._aggregators[0], m.Recorded(self._unrecorded))
            self._unrecorded = None

    def _look(self, timeout_s: float) -> None:
        """Take in what has arrived and what has ended."""
        self._processes.wait(timeout_s)
        self._hear()
        for ended in self.engine.poll():
            self._recoveries.ended(ended)
        self._announce_placed()
        for doomed in self.engine.preemption_notices():
            if self._book.worker(doomed.name) is not None:
                self._events.append(doomed)
            else:
                self._warn(f"{doomed.name}: {doomed.reason}; another takes its place when it is gone")
        self._watch()

    def _wait(
        self,
        condition: Callable[[], bool],
        complaint: str,
        deadline: float,
        *,
        asking: Callable[[], None] = lambda: None,
    ) -> None:
        """Until a condition holds, asking for it again and again.

        Raises:
            TrainingHungError: With the complaint, at the deadline.
        """
        asked_at = -math.inf
        while not condition():
            if self._clock() - asked_at >= _ASK_AGAIN_S:
                asked_at = self._clock()
                asking()
            if self._clock() > deadline:
                raise TrainingHungError(complaint)
            if self.on_wait is None:
                self._events[:0] = self.poll(0.05)
            else:
                self._look(0.05)
                self.on_wait()

    # ---- messages ------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        for peer, frames in self._processes.take():
            try:
                if peer.startswith("coordinator"):
                    target, body = frames
                    name = target.decode()
                    message = None if name else m.decode(body)
                else:
                    (body,) = frames
                    name, message = "", m.decode(body)
            except (MessageError, ValueError):
                self._processes.hub.malformed(peer)
                continue
            if peer.startswith("coordinator"):
                self._from_coordinator(peer, name, message, body)
            elif message is not None:
                self._from_process(peer, message, body)

    def _from_process(self, peer: str, message: m.Message, body: bytes) -> None:
        sequencing = peer == self._aggregators[0]
        worker = self._book.worker(peer)
        if worker is not None and not worker.announced:
            self._announce(peer)  # it speaks before its engine tells where it is
        match message:
            case m.Beat():
                self._book.beat(peer.removesuffix(BEATING), message)
                self._outage.heard(peer.removesuffix(BEATING))
            case (
                m.StepReport()
                | m.EpochReport()
                | m.CheckpointWritten()
                | m.CheckpointFailed()
                | m.CheckpointReady()
            ) if sequencing:
                if isinstance(message, m.CheckpointWritten):
                    self._checkpoints.written = True
                    log.info("wrote a checkpoint of step %d in %.1f s", message.step, message.written_s)
                self._events.append(message)
                return
            case m.Quarantined() if sequencing:
                self.quarantined = tuple(sorted({*self.quarantined, *message.samples}))
                self._events.append(message)
            case m.Done() | m.Saved() | m.SavedPart() | m.Unsaved():
                self._saving.take(peer, message)
                return
            case m.Failed():
                self._fail(peer, message)
                return
            case m.Hello() | m.Present() if self.manifest is None:
                try:
                    layout = Layout.of(message.manifest, len(self._aggregators))
                except (ArithmeticError, AttributeError, TypeError, ValueError):  # no model has such tensors
                    self._processes.hub.malformed(peer)
                    return
                self._places.know(layout)
                self.manifest = message.manifest
            case m.Ready() if worker is not None and worker.status is Status.STARTING:
                worker.status, worker.was_ready = Status.READY, True
                self._events.append(Started(peer, self._clock() - worker.launched_s))
            case m.ViewInstalled() if sequencing:
                view = message.view
                log.info("view %d holds from step %d on: %s", view.number, view.first_step, view.reason)
                self._events.append(message)
            case m.Initialised() if peer in self._aggregators:
                self._recoveries.part_held(peer, message.step)
            case _:
                pass
        if self._recoveries.token == 1 and self._book[self._book.coordinator].beat is None:
            # the first one asks nobody, and may start after those that speak to it
            self._unheard.append((peer, body))
        else:
            self._processes.pass_on(self._book.coordinator, peer.encode(), body)

    def _from_coordinator(self, peer: str, name: str, message: m.Message | None, body: bytes) -> None:
        """What it says to a process, or, with no name, to the supervisor."""
        if peer != self._book.coordinator:
            return  # it was replaced: whatever it still wants counts no more
        self._recoveries.coordinator_spoke()
        if name == EVERYBODY:
            for process in self.engine.running:
                if not process.startswith("coordinator"):
                    self._processes.pass_on(process, body)
            return
        if name:
            self._processes.pass_on(name, body)
            return
        match message:
            case m.Beat() if self._book[peer].beat is None:
                self._book.beat(peer, message)
                self._to_coordinator(self._brief())
                for process, said in self._unheard if self._recoveries.token == 1 else ():
                    self._processes.pass_on(peer, process.encode(), said)
                self._unheard.clear()
            case m.Roster():
                self._take_roster(message)
            case m.Expel():
                self._recoveries.expel(message)
            case m.RollBack():
                self._recoveries.roll_back(message.cause)
            case m.Failed():
                self._fail(peer, message)
            case _:
                pass

    def _take_roster(self, roster: m.Roster) -> None:
        self._recoveries.leads()
        self._book.roster = roster
        for name, state in roster.states.items():
            if state == Status.LEAVING.value and self._book.leaving(name):
                self._events.append(Leaving(name))
        for name in self._places.freed(roster):
            if self._places.layout is not None and self._processes.block_fd >= 0:
                Block(self._processes.block_fd, self._places.layout).release_slots(worker_slot(name))
            for aggregator in self._aggregators:
                self._processes.send(aggregator, m.Forget(name))

    def _to_coordinator(self, message: m.Message) -> None:
        self._processes.pass_on(self._book.coordinator, b"", m.encode(message))

    def _brief(self) -> m.Brief:
        return m.Brief(
            token=self._recoveries.token,
            workers=tuple(name for name in self.alive if self._book[name].announced),
            aggregators=self._aggregators,
            start_s=self._timeouts.start_s,
            step_s=self._timeouts.step_s,
            restore=self._checkpoints.restore,
            checkpoint=self._checkpoints.plan,
            resize=self._wanted.resize,
            command=self._wanted.command,
            number=self._book.roster.number,
            held=self._recoveries.held,
            rewinding=self._recoveries.rewinding,
            quarantined=self.quarantined,
            evaluation_s=self._timeouts.evaluation_s,
        )

    def _warn(self, text: str) -> None:
        self._events.append(Warned(text))

    def _fail(self, process: str, message: m.Failed) -> None:
        self._book[process.removesuffix(BEATING)].status = Status.FAILED
        raise error_of(message.kind, message.message, process=process, log=self.engine.log(process))

    def _watch(self) -> None:
        """Notice a coordinator that is silent and workers that do not end; sample memory."""
        now = self._clock()
        if now - self._looked.memory_s >= _MEMORY_SAMPLE_S:
            self._looked.memory_s = now
            self.memory_bytes |= self.engine.sample_memory()
            self.engine.cap_logs()
        for worker in self._book.let_go:
            if now - worker.leaving_s > _QUIT_S:
                self.engine.kill(worker.name)
        if now - self._looked.liveness_s >= HEARTBEAT_S:
            self._looked.liveness_s = now
            # without these beats, the coordinator counts nobody's silence
            if not self._outage.look(now, in_doubt=self.engine.in_doubt, processes=self._book.heard):
                self._to_coordinator(m.Beat())
            self._recoveries.watch(now)
