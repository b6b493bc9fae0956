"""Carries out what `scavenger.elastic.recovery` decides: ends, losses and restarts of one job's processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scavenger.elastic import recovery as r
from scavenger.elastic.liveness import SILENT_S, Liveness
from scavenger.elastic.quarantine import cause_of_death
from scavenger.elastic.recovery import Role, Status
from scavenger.elastic.steps import Death
from scavenger.errors import ScavengerError, TrainingCodeError, TrainingHungError, WorkersLostError
from scavenger.train.engines.base import Exit
from scavenger.train.names import coordinator_name
from scavenger.train.supervisor.events import Event
from scavenger.train.supervisor.process_registry import Entry, ProcessRegistry
from scavenger.train.supervisor.processes import LAST_MESSAGES_S, Processes
from scavenger.train.supervisor.worker_slots import WorkerSlots
from scavenger.train.transport import messages as m

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Checkpoints:
    """The checkpoints of a job.

    Attributes:
        plan: Where and when to write; None for none.
        restore: The checkpoint that the job began with; None for a new model.
        written: Whether it has written one since.
        unrecorded: The step of a checkpoint that is complete, but is committed only once all steps up to it are
            stored; None for none.
        awaited: Whether the process that sequences leaves its host after the next one.
    """

    plan: m.CheckpointPlan | None
    restore: m.RestorePoint | None
    written: bool = False
    unrecorded: int | None = None
    awaited: bool = False

    def newest(self) -> m.RestorePoint | None:
        """The newest checkpoint, which restarted aggregators begin with; None for initial weights."""
        if self.plan is not None and self.written:
            self.restore = m.RestorePoint(self.plan.url)
        return self.restore


class Recoveries:
    """Handles the ends of one job's processes, and restarts aggregators and coordinators.

    Args:
        processes: The engine and the hub.
        slots: The worker slots; a slot can be free only once its worker has ended.
        checkpoints: The checkpoint that restarted aggregators begin with.
        aggregators: Names of the aggregators that share the model.
        start_s: How long a coordinator may take to start, seconds.
        events: Called with each event for the job's owner.
        send: Sends a message to the coordinator.
        receive: Handles the messages that have arrived from processes; raises the error that ends the job.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        processes: Processes,
        registry: ProcessRegistry,
        slots: WorkerSlots,
        checkpoints: Checkpoints,
        *,
        aggregators: Sequence[str],
        start_s: float,
        events: Callable[[Event], None],
        send: Callable[[m.Message], None],
        receive: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._processes, self._registry, self._slots, self._checkpoints = (
            processes,
            registry,
            slots,
            checkpoints,
        )
        self._start_s, self._event, self._clock = start_s, events, clock
        self._send, self._receive = send, receive
        self._machine = r.Recovery(aggregators)
        self._liveness = Liveness()

    @property
    def token(self) -> int:
        """The newest coordinator's token."""
        return self._machine.token

    @property
    def held(self) -> tuple[int, ...]:
        """Indices of the model shards that an aggregator, or the shared memory, holds."""
        return self._machine.held

    @property
    def rewinding(self) -> tuple[int, ...]:
        """Indices of the aggregators that a rollback has yet to restart."""
        return self._machine.rewinding

    # ---- events --------------------------------------------------------------------------------------------

    def start_coordinator(self) -> None:
        """Start a coordinator with the newest token."""
        name = coordinator_name(self.token)
        self._processes.launch("coordinator", name, token=self.token)
        self._registry.launched(name, Role.COORDINATOR)
        self._liveness.heard(name, self._clock() + self._start_s)

    def start_aggregator(self, name: str) -> None:
        """Start an aggregator, for the first time or again."""
        self._processes.launch("aggregator", name, token=self.token)
        self._registry.launched(name, Role.AGGREGATOR)

    def close(self) -> None:
        """Note that the job ends: from now on the end of a process is expected, and nothing is restarted."""
        self._machine.handle(r.Closing())

    def part_held(self, aggregator: str, step: int) -> None:
        """Note that an aggregator holds its model shard, in the state after `step`."""
        self._carry_out(self._machine.handle(r.PartHeld(aggregator, step, self._clock())))

    def roll_back(self, cause: str) -> None:
        """Restart all aggregators, as the coordinator requested."""
        running = self._processes.engine.running
        self._carry_out(self._machine.handle(r.RollBack(cause, running, self._clock())))

    def leads(self) -> None:
        """Note that the newest coordinator leads the job."""
        self._carry_out(self._machine.handle(r.Leads(self._registry.coordinator, self._clock())))

    def coordinator_alive(self) -> None:
        """Note that the newest coordinator has sent something."""
        self._liveness.heard(self._registry.coordinator, self._clock())

    def watch(self, now: float, working: Mapping[str, float]) -> None:
        """Replace the coordinator if it is silent and does not work.

        Args:
            now: Monotonic seconds.
            working: Silent processes that worked recently, with the seconds since then.
        """
        for name, idle_s in working.items():
            self._liveness.worked(name, now - idle_s)
        for name in self._liveness.suspects(now):
            self._liveness.forget(name)
            if name == self._registry.coordinator:
                # start its successor first: if this one wakes up meanwhile, its messages are ignored
                cause, entry = f"was silent for {SILENT_S:.0f} s", self._registry[name]
                self._registry.expel(name, cause)
                self._server_ended(entry, Status.EXPELLED, cause, Exit(name, 0))
                self._processes.engine.kill(name)

    def expel(self, message: m.Expel) -> None:
        """End a process that the coordinator counts as lost.

        Raises:
            TrainingHungError: If that ends the job.
        """
        name = message.name
        if name not in self._processes.engine.running:
            return
        self._registry.expel(name, message.cause)
        log.info("%s %s: it is ended", name, message.cause)
        if message.hung:
            self._processes.show_stack(name)
        self._processes.engine.kill(name)
        if message.fatal:
            raise TrainingHungError(
                f"{message.fatal}; the stack of {name} is in {self._processes.engine.log(name)}"
            )

    def ended(self, ended: Exit) -> None:
        """Handle the end of a process.

        Raises:
            ScavengerError: If that ends the job.
        """
        entry = self._registry[ended.name]
        status, cause = entry.status, entry.cause if entry.status is Status.EXPELLED else ended.cause
        self._registry.ended(ended.name, cause, expected=self._machine.phase is r.RecoveryPhase.CLOSED)
        log.info("%s %s", ended.name, cause)
        if entry.role is Role.WORKER:
            self._worker_ended(entry, status, cause, ended)
        else:
            self._server_ended(entry, status, cause, ended)

    # ---- consequences --------------------------------------------------------------------------------------

    def _worker_ended(self, worker: Entry, status: Status, cause: str, ended: Exit) -> None:
        name = worker.name
        self._slots.ended(name)
        ended_by_us = status in (Status.LEAVING, Status.EXPELLED)
        kind = cause_of_death(None if ended.reason else ended.status, ended_by_us=ended_by_us)
        if name in self._registry.announced and not ended.refused:
            hosts = len({self._processes.engine.host(entry.name) for entry in self._registry.workers})
            self._send(m.ProcessEnded(name, Death(name, self._processes.engine.host(name), kind, hosts)))
        self._carry_out(
            r.worker_ended(
                name,
                status,
                cause,
                by_itself=ended.status >= 0,
                crashed=kind.blames_data,
                ready=worker.was_ready,
                refused=ended.reason if ended.refused else "",
            )
        )

    def _server_ended(self, entry: Entry, status: Status, cause: str, ended: Exit) -> None:
        """Handle the end of an aggregator or a coordinator, or a coordinator that counts as lost."""
        coordinator = entry.role is Role.COORDINATOR
        if status is Status.FAILED or (coordinator and entry.name != coordinator_name(self.token)):
            return
        now = self._clock()
        self._receive_last_messages(ended)
        self._carry_out(
            self._machine.handle(
                r.CoordinatorEnded(self.token, cause, now)
                if coordinator
                else r.AggregatorEnded(entry.name, cause, now)
            )
        )

    def _carry_out(self, actions: list[r.Action]) -> None:
        """Carry out the actions that follow from a loss or a recovery."""
        for action in actions:
            match action:
                case r.StartCoordinator():
                    self.start_coordinator()
                case r.StartAggregator():
                    self._send(m.ProcessEnded(action.name))
                    self.start_aggregator(action.name)
                case r.EndAggregator():
                    self._registry.expel(action.name, f"was restarted: {action.cause}")
                    self._processes.engine.kill(action.name)
                case r.ConfirmRollBack():
                    log.info(
                        "all aggregators restart from %s", self._checkpoints.newest() or "initial weights"
                    )
                    self._send(m.Rewind(self._checkpoints.newest()))
                case r.Recovered():
                    log.info("replaced the %s within %.1f s", action.process, action.took_s)
                    self._event(action)
                case r.RolledBack():
                    log.info("the job was rolled back to step %d: %s", action.step, action.cause)
                    self._event(action)
                case r.Lost() | r.Refused():
                    self._event(action)
                case r.CodeEnded() | r.TooManyDeaths() | r.PartsDiffer():
                    self._fail_job(action)

    def _fail_job(self, action: r.CodeEnded | r.TooManyDeaths | r.PartsDiffer) -> None:
        """Raise the error that ends the job.

        Raises:
            ScavengerError: Always.
        """
        match action:
            case r.CodeEnded():
                self._receive_last_messages(Exit(action.worker, 1))
                raise TrainingCodeError(
                    f"the training code ended {action.worker}, which {action.cause} "
                    f"(log: {self._processes.engine.log(action.worker)})"
                )
            case r.TooManyDeaths():
                coordinator = action.process == Role.COORDINATOR.value
                name = self._registry.coordinator if coordinator else action.process
                raise WorkersLostError(
                    f"the {action.process} {action.cause}, for the {action.deaths}th time within "
                    f"{r.DEATHS_WITHIN_S:.0f} s (log: {self._processes.engine.log(name)})"
                )
            case r.PartsDiffer():
                raise ScavengerError(f"restarted aggregators hold different steps: {list(action.steps)}")

    def _receive_last_messages(self, ended: Exit) -> None:
        """Receive the last messages of a process: one that exited by itself has reported why, a killed one has not."""
        self._processes.receive_last_messages(
            self._receive,
            lambda: False,  # the awaited message is a failure, which `_receive` raises
            within_s=LAST_MESSAGES_S if ended.status > 0 else 0.0,
            clock=self._clock,
        )
