"""What a job's processes and its coordinator say: whom it is believed of, who acts on it, and who gets it too."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from scavenger.elastic.membership import worker_slot
from scavenger.elastic.recovery import Status
from scavenger.errors import MessageError
from scavenger.train.failure import error_of
from scavenger.train.names import HEARTBEAT_SUFFIX
from scavenger.train.supervisor.bucket_moves import Migrations
from scavenger.train.supervisor.callbacks import CallbackRequests
from scavenger.train.supervisor.ending import EndOfTraining
from scavenger.train.supervisor.events import Event, Leaving, Started
from scavenger.train.supervisor.process_registry import ProcessRegistry
from scavenger.train.supervisor.processes import Processes
from scavenger.train.supervisor.recoveries import Checkpoints, Recoveries
from scavenger.train.supervisor.watching import Watch
from scavenger.train.supervisor.worker_slots import WorkerSlots
from scavenger.train.transport import messages as m
from scavenger.train.transport.layout import Layout
from scavenger.train.transport.shared_memory import Block
from scavenger.train.transport.sockets import EVERYBODY

_UNDELIVERED_MAX = 10_000
"""Messages that wait for the first coordinator: a few of each process, unless one sends without end."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Handlers:
    """The parts of a supervisor that act on messages."""

    registry: ProcessRegistry
    slots: WorkerSlots
    checkpoints: Checkpoints
    recoveries: Recoveries
    migrations: Migrations
    callbacks: CallbackRequests
    ending: EndOfTraining
    watch: Watch


class Incoming:
    """Handles the messages of one job's processes, and passes those on that are for the coordinator, or from it.

    Args:
        processes: The engine and the hub.
        handlers: The parts of the supervisor that act on messages.
        aggregators: Names of the aggregators that share the model, the sequencer first.
        event: Called with each event for the job's owner.
        announce: Tells the coordinator of a worker that has a host.
        greet: Sends a coordinator that has started what it must know.
        clock: Monotonic seconds.

    Attributes:
        manifest: Description of the model; None before a worker has built it.
        quarantined: Samples that are left out, by their indices in the data.
    """

    def __init__(
        self,
        processes: Processes,
        handlers: Handlers,
        *,
        aggregators: tuple[str, ...],
        event: Callable[[Event], None],
        announce: Callable[[str], None],
        greet: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._processes, self._to, self._aggregators = processes, handlers, aggregators
        self._event, self._announce, self._greet, self._clock = event, announce, greet, clock
        self._undelivered: list[tuple[str, bytes]] = []
        self.manifest: m.Manifest | None = None
        self.quarantined: tuple[int, ...] = ()

    def receive(self) -> None:
        """Handle everything that has arrived."""
        for peer, frames in self._processes.take():
            by_coordinator = peer.startswith("coordinator")
            try:
                if by_coordinator:
                    target, body = frames
                    name = target.decode()
                else:
                    (body,) = frames
                    name = ""
                message = None if name else m.decode(body)
            except (MessageError, ValueError):
                self._processes.hub.malformed(peer)
                continue
            if by_coordinator and peer == self._to.registry.coordinator:  # else it was replaced
                self.from_coordinator(message)
                self._to_processes(name, body)
            elif not by_coordinator and message is not None and self.from_process(peer, message):
                self._to_coordinator(peer, body)

    def _to_processes(self, name: str, body: bytes) -> None:
        if name == EVERYBODY:
            for process in self._processes.engine.running:
                if not process.startswith("coordinator"):
                    self._processes.pass_on(process, body)
        elif name:
            self._processes.pass_on(name, body)

    def _to_coordinator(self, peer: str, body: bytes) -> None:
        coordinator = self._to.registry.coordinator
        if self._to.recoveries.token == 1 and self._to.registry[coordinator].beat is None:
            # the first coordinator may start after processes that send to it, and it sends no roll call
            if len(self._undelivered) < _UNDELIVERED_MAX:
                self._undelivered.append((peer, body))
        else:
            self._processes.pass_on(coordinator, peer.encode(), body)

    # ---- of processes --------------------------------------------------------------------------------------

    def from_process(self, peer: str, message: m.Message) -> bool:
        """Handle a message of another process than the coordinator; returns whether the coordinator gets it too.

        Raises:
            ScavengerError: If the process reports what ends the job.
        """
        worker = self._to.registry.worker(peer)
        if worker is not None and peer not in self._to.registry.announced:
            self._announce(peer)  # its first message may come before its engine reports its host
        if peer == self._aggregators[0] and self._from_sequencer(message):
            return False
        match message:
            case m.Beat():
                name = peer.removesuffix(HEARTBEAT_SUFFIX)
                self._to.registry.beat(name, message)
                self._to.watch.heard(name, self._clock())
            case m.MemoryExceeded():
                self._event(message)
                return False
            case m.CallbacksRun():
                if self._to.callbacks.take(peer, message):
                    self._event(message)
                return False
            case m.Done() | m.Saved() | m.SavedPart() | m.Unsaved():
                self._to.ending.take(peer, message)
                return False
            case m.Failed():
                self._fail(peer, message)
            case m.Hello() | m.Present() if self.manifest is None:
                return self._take_manifest(peer, message.manifest)
            case m.Ready() if worker is not None and worker.status is Status.STARTING:
                worker.status, worker.was_ready = Status.READY, True
                self._event(Started(peer, self._clock() - worker.launched_s))
            case m.AggregatorReady() if peer in self._aggregators:
                self._processes.introduce(peer)
            case m.Initialised() if peer in self._aggregators:
                self._to.recoveries.part_held(peer, message.step)
                self._to.migrations.process_serves(self._aggregators.index(peer))
            case _:
                pass
        return True

    def _from_sequencer(self, message: m.Message) -> bool:
        """Handle what is believed of the sequencer alone; returns whether it is for the supervisor alone."""
        match message:
            case m.StepReport() | m.EpochReport() | m.BatchReport():
                self._event(message)
                return True
            case m.CheckpointWritten() | m.CheckpointFailed() | m.CheckpointReady():
                if isinstance(message, m.CheckpointWritten):
                    self._to.checkpoints.written = True
                    log.info("wrote a checkpoint of step %d in %.1f s", message.step, message.written_s)
                self._event(message)
                return True
            case m.MapChanged():
                self._to.migrations.take(message)
            case m.Migrated():
                self._to.migrations.take(message)
                self._event(message)
            case m.SamplesQuarantined():
                self.quarantined = tuple(sorted({*self.quarantined, *message.samples}))
                self._event(message)
            case m.ViewInstalled():
                view = message.view
                log.info("view %d holds from step %d on: %s", view.number, view.first_step, view.reason)
                self._event(message)
            case _:
                pass
        return False

    def _take_manifest(self, peer: str, manifest: m.Manifest) -> bool:
        """Take the first description of the model that can be one; returns whether it was."""
        try:
            layout = Layout.of(manifest, len(self._aggregators))
        except (ArithmeticError, AttributeError, TypeError, ValueError):  # no model has such tensors
            self._processes.hub.malformed(peer)
            return False
        self._to.slots.set_layout(layout)
        self._to.migrations.set_layout(layout)
        self.manifest = manifest
        return True

    def _fail(self, process: str, message: m.Failed) -> None:
        """Raise the error that a process has reported."""
        self._to.registry[process.removesuffix(HEARTBEAT_SUFFIX)].status = Status.FAILED
        log_of = self._processes.engine.log(process)
        raise error_of(message.kind, message.message, process=process, log=log_of, frames=message.frames)

    # ---- of the coordinator --------------------------------------------------------------------------------

    def from_coordinator(self, message: m.Message | None) -> None:
        """Handle a message of the coordinator; None for one to another process."""
        self._to.recoveries.coordinator_alive()
        coordinator = self._to.registry.coordinator
        self._to.watch.worked(coordinator, self._clock())
        match message:
            case m.Beat() if self._to.registry[coordinator].beat is None:
                self._to.registry.beat(coordinator, message)
                self._welcome(coordinator)
            case m.Roster():
                self.take_roster(message)
            case m.Expel():
                self._to.recoveries.expel(message)
            case m.ShardLost():
                self._to.recoveries.roll_back(message.cause)
            case m.Failed():
                self._fail(coordinator, message)
            case _:
                pass

    def _welcome(self, coordinator: str) -> None:
        """Send a coordinator that has started what it must know, and what has arrived for the first one before."""
        self._greet()
        for peer, body in self._undelivered if self._to.recoveries.token == 1 else ():
            self._processes.pass_on(coordinator, peer.encode(), body)
        self._undelivered.clear()

    def take_roster(self, roster: m.Roster) -> None:
        """Take the state of all workers as the coordinator knows it."""
        registry, slots = self._to.registry, self._to.slots
        self._to.recoveries.leads()
        registry.roster = roster
        for name, state in roster.states.items():
            if state == Status.LEAVING.value and registry.leaving(name):
                self._event(Leaving(name))
        for name in slots.freed(roster):
            if slots.layout is not None and self._processes.block_fd >= 0:
                Block(self._processes.block_fd, slots.layout).release_slots(worker_slot(name))
            self._processes.forget(name)
