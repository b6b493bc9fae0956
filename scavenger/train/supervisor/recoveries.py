"""Carries out what `scavenger.elastic.recovery` decides: ends, losses and restarts of one job's processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scavenger.elastic import recovery as r
from scavenger.elastic.liveness import SILENT_S, Liveness
from scavenger.elastic.quarantine import cause_of_death
from scavenger.elastic.recovery import Role, Status
from scavenger.errors import ScavengerError, TrainingCodeError, TrainingHungError, WorkersLostError
from scavenger.train.engines.base import Exit
from scavenger.train.names import coordinator_name
from scavenger.train.supervisor.events import Event
from scavenger.train.supervisor.process_registry import Entry, ProcessRegistry
from scavenger.train.supervisor.processes import LAST_WORDS_S, Processes
from scavenger.train.supervisor.worker_slots import WorkerSlots
from scavenger.train.transport import messages as m

__all__ = ["Checkpoints", "Recoveries"]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Checkpoints:
    """Where checkpoints go, what the job begins with, and whether one has been written since."""

    plan: m.CheckpointPlan | None
    restore: m.Restore | None
    written: bool = False

    def newest(self) -> m.Restore | None:
        """What aggregators that begin again begin with."""
        if self.plan is not None and self.written:
            self.restore = m.Restore(self.plan.url)
        return self.restore


class Recoveries:
    """The ends and recoveries of one job's processes.

    Args:
        processes: The engine and the hub.
        book: The process registry.
        places: Of workers, which are free when those have ended.
        checkpoints: What aggregators that begin again begin with.
        aggregators: Names of those that share the model.
        start_s: How long a coordinator may take to start.
        events: Takes what there is to tell.
        tell: Sends to the coordinator.
        hear: Takes what has arrived from processes; raises what ends the job.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        processes: Processes,
        book: ProcessRegistry,
        places: WorkerSlots,
        checkpoints: Checkpoints,
        *,
        aggregators: Sequence[str],
        start_s: float,
        events: Callable[[Event], None],
        tell: Callable[[m.Message], None],
        hear: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._processes, self._book, self._places, self._checkpoints = processes, book, places, checkpoints
        self._start_s, self._event, self._tell, self._hear, self._clock = start_s, events, tell, hear, clock
        self._machine = r.Recovery(aggregators)
        self._liveness = Liveness()

    @property
    def token(self) -> int:
        """The newest coordinator's."""
        return self._machine.token

    @property
    def held(self) -> tuple[int, ...]:
        """Indices of the parts that an aggregator, or its memory, holds."""
        return self._machine.held

    @property
    def rewinding(self) -> tuple[int, ...]:
        """Indices of the aggregators that have yet to begin again."""
        return self._machine.rewinding

    # ---- what happens --------------------------------------------------------------------------------------

    def start_coordinator(self) -> None:
        """Start one with the newest token."""
        name = coordinator_name(self.token)
        self._processes.launch("coordinator", name, token=self.token)
        self._book.launched(name, Role.COORDINATOR, token=self.token)
        self._liveness.heard(name, self._clock() + self._start_s)

    def start_aggregator(self, name: str) -> None:
        """Start one, for the first time or again."""
        self._processes.launch("aggregator", name, token=self.token)
        self._book.launched(name, Role.AGGREGATOR)

    def close(self) -> None:
        """The job ends: what ends from now on is meant to, and nothing is started any more."""
        self._machine.handle(r.Closing())

    def part_held(self, aggregator: str, step: int) -> None:
        """An aggregator has taken up its part as it is after a step."""
        self._carry_out(self._machine.handle(r.PartHeld(aggregator, step, self._clock())))

    def roll_back(self, cause: str) -> None:
        """The coordinator wants all aggregators to begin again."""
        running = self._processes.engine.running
        self._carry_out(self._machine.handle(r.RollBack(cause, running, self._clock())))

    def leads(self) -> None:
        """The newest coordinator leads the job."""
        self._carry_out(self._machine.handle(r.Leads(self._book.coordinator, self._clock())))

    def coordinator_spoke(self) -> None:
        """The newest coordinator lives."""
        self._liveness.heard(self._book.coordinator, self._clock())

    def watch(self, now: float) -> None:
        """Replace a coordinator that is silent."""
        for name in self._liveness.suspects(now):
            self._liveness.forget(name)
            if name == self._book.coordinator:
                # another leads before this one is ended; should it wake up meanwhile, nobody hears it
                cause, entry = f"was silent for {SILENT_S:.0f} s", self._book[name]
                self._book.expel(name, cause)
                self._server_ended(entry, Status.EXPELLED, cause, Exit(name, 0))
                self._processes.engine.kill(name)

    def expel(self, message: m.Expel) -> None:
        """The coordinator counts a process as lost: end it, so that it is.

        Raises:
            TrainingHungError: If that ends the job.
        """
        name = message.name
        if name not in self._processes.engine.running:
            return
        self._book.expel(name, message.cause)
        log.info("%s %s: it is ended", name, message.cause)
        if message.hung:
            self._processes.show_stack(name)
        self._processes.engine.kill(name)
        if message.fatal:
            raise TrainingHungError(
                f"{message.fatal}; the stack of {name} is in {self._processes.engine.log(name)}"
            )

    def ended(self, ended: Exit) -> None:
        """A process has ended.

        Raises:
            ScavengerError: If that ends the job.
        """
        entry = self._book[ended.name]
        status, cause = entry.status, entry.cause if entry.status is Status.EXPELLED else ended.cause
        self._book.ended(ended.name, cause, meant=self._machine.phase is r.Phase.CLOSED)
        log.info("%s %s", ended.name, cause)
        if entry.role is Role.WORKER:
            self._worker_ended(entry, status, cause, ended)
        else:
            self._server_ended(entry, status, cause, ended)

    # ---- what follows --------------------------------------------------------------------------------------

    def _worker_ended(self, worker: Entry, status: Status, cause: str, ended: Exit) -> None:
        name = worker.name
        self._places.ended(name)
        told_to_go = status in (Status.LEAVING, Status.EXPELLED)
        kind = cause_of_death(None if ended.reason else ended.status, ended_by_us=told_to_go)
        if worker.announced and not ended.refused:
            hosts = len({self._processes.engine.host(entry.name) for entry in self._book.workers})
            self._tell(m.Ended(name, m.DeathBody(name, self._processes.engine.host(name), kind.value, hosts)))
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
        """An aggregator or a coordinator has ended, or counts as lost."""
        coordinator = entry.role is Role.COORDINATOR
        if status is Status.FAILED or (coordinator and entry.token != self._machine.token):
            return
        now = self._clock()
        self._hear_last_words(ended)
        self._carry_out(
            self._machine.handle(
                r.CoordinatorEnded(entry.token, cause, now)
                if coordinator
                else r.AggregatorEnded(entry.name, cause, now)
            )
        )

    def _carry_out(self, actions: list[r.Action]) -> None:
        """Do what follows from a loss or a recovery."""
        for action in actions:
            match action:
                case r.StartCoordinator():
                    self.start_coordinator()
                case r.StartAggregator():
                    self._tell(m.Ended(action.name))
                    self.start_aggregator(action.name)
                case r.EndAggregator():
                    self._book.expel(action.name, f"was started again: {action.cause}")
                    self._processes.engine.kill(action.name)
                case r.ConfirmRollBack():
                    log.info(
                        "all aggregators begin again from %s", self._checkpoints.newest() or "initial weights"
                    )
                    self._tell(m.Rewind(self._checkpoints.newest()))
                case r.Recovered():
                    log.info("another %s is there after %.1f s", action.process, action.took_s)
                    self._event(action)
                case r.RolledBack():
                    log.info("the job goes on after step %d: %s", action.step, action.cause)
                    self._event(action)
                case r.Lost() | r.Refused():
                    self._event(action)
                case r.CodeEnded() | r.TooManyDeaths() | r.PartsDiffer():
                    self._give_up(action)

    def _give_up(self, action: r.CodeEnded | r.TooManyDeaths | r.PartsDiffer) -> None:
        """End the job.

        Raises:
            ScavengerError: Why, always.
        """
        match action:
            case r.CodeEnded():
                self._hear_last_words(Exit(action.worker, 1))
                raise TrainingCodeError(
                    f"the training code ended {action.worker}, which {action.cause} "
                    f"(log: {self._processes.engine.log(action.worker)})"
                )
            case r.TooManyDeaths():
                coordinator = action.process == Role.COORDINATOR.value
                name = self._book.coordinator if coordinator else action.process
                raise WorkersLostError(
                    f"the {action.process} {action.cause}, for the {action.deaths}th time within "
                    f"{r.DEATHS_WITHIN_S:.0f} s (log: {self._processes.engine.log(name)})"
                )
            case r.PartsDiffer():
                raise ScavengerError(f"aggregators began again after different steps: {list(action.steps)}")

    def _hear_last_words(self, ended: Exit) -> None:
        """A process that ended by itself has said why; one that was killed has not."""
        self._processes.hear_last_words(
            self._hear,
            lambda: False,  # what is waited for, a failure, is raised
            within_s=LAST_WORDS_S if ended.status > 0 else 0.0,
            clock=self._clock,
        )
