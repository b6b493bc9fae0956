"""The supervisor's half of a recovery: the reaction to the end of a process, and to a roll-back of the model.

Events in, actions out. Table of phases (rows) and events (columns); `-` that nothing follows::

    phase          CoordinatorEnded  AggregatorEnded   PartHeld                    RollBack       Leads       Closing
    RUNNING        the newest one:   StartAggregator,  Recovered, if it was        -> ROLLING_    Recovered,  -> CLOSED
                   StartCoordinator  or TooManyDeaths  restarted                   BACK:          if another
                   with a higher                                                   EndAggregator  led before
                   token, or                                                       each, ConfirmRollBack
                   TooManyDeaths
    ROLLING_BACK   as RUNNING        as RUNNING; the   Recovered; the last part:   as RUNNING     as RUNNING  -> CLOSED
                                     end of one that   RolledBack, -> RUNNING, or
                                     was ended for it  PartsDiffer
                                     counts as no
                                     death
    CLOSED         -                 -                 -                           -              -           -

The reaction to the end of a worker depends on its status alone (`worker_ended`)::

    refused   Refused: it never ran
    LEAVING   nothing: it was released
    FAILED    Lost; it has reported an error, which ends the job
    EXPELLED  Lost
    others    Lost, and CodeEnded where its code ended the process: no machine and no signal did

A process that dies again and again within a minute ends the job: another one would not do better.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum

DEATHS_MAX = 5
"""Most deaths of one process, or of coordinators, that are repaired within `DEATHS_WITHIN_S`."""
DEATHS_WITHIN_S = 60.0


class Role(Enum):
    """Role of a process of a job."""

    COORDINATOR = "coordinator"
    AGGREGATOR = "aggregator"
    WORKER = "worker"


class Status(Enum):
    """State of a process, or how it ended.

    STARTING: it was launched. READY: it works. LEAVING: it was released, and has not ended. EXPELLED: it counts as
    lost, and is being ended. FAILED: it has reported an error. GONE: it has ended as intended. LOST: it has ended
    otherwise.
    """

    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"
    EXPELLED = "expelled"
    FAILED = "failed"
    GONE = "gone"
    LOST = "lost"


class RecoveryPhase(Enum):
    RUNNING = "running"
    ROLLING_BACK = "rolling back"
    CLOSED = "closed"


# ---- events ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CoordinatorEnded:
    """A coordinator, known by its token, has ended or counts as lost."""

    token: int
    cause: str
    at_s: float


@dataclass(frozen=True, slots=True)
class AggregatorEnded:
    name: str
    cause: str
    at_s: float


@dataclass(frozen=True, slots=True)
class PartHeld:
    """An aggregator holds its part as it is after `step`."""

    name: str
    step: int
    at_s: float


@dataclass(frozen=True, slots=True)
class RollBack:
    """A part of the model is lost: all aggregators are to begin again. `running`: those that have not ended."""

    cause: str
    running: Collection[str]
    at_s: float


@dataclass(frozen=True, slots=True)
class Leads:
    """The newest coordinator, by its name, leads the job."""

    name: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Closing:
    """The job ends: no process is started any more."""


Event = CoordinatorEnded | AggregatorEnded | PartHeld | RollBack | Leads | Closing


# ---- actions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartCoordinator:
    """Start a coordinator; its token is higher than that of every one before."""

    token: int


@dataclass(frozen=True, slots=True)
class StartAggregator:
    """Tell the coordinator that an aggregator has ended, and start another one under its name."""

    name: str


@dataclass(frozen=True, slots=True)
class EndAggregator:
    """End an aggregator, so that another one begins again in its place."""

    name: str
    cause: str


@dataclass(frozen=True, slots=True)
class ConfirmRollBack:
    """Tell the coordinator that the aggregators are ended, and what those that follow begin with."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker died without an error of its code; the others go on.

    Attributes:
        crashed: The process died by its own fault, such as a segmentation fault.
        ready: The worker had been able to train, so it may have been computing samples.
        by_code: The training code is known to be the cause: it is a command, which ended so.
    """

    worker: str
    cause: str
    crashed: bool = False
    ready: bool = True
    by_code: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """There is no capacity for a worker that was launched; it never ran."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class Recovered:
    """An aggregator or the coordinator died, and another one has taken its place."""

    process: str
    cause: str
    took_s: float


@dataclass(frozen=True, slots=True)
class RolledBack:
    """A part of the model was lost with its memory: the job goes on after `step`, and later ones are done again.

    Reports of steps and epochs after it, and what was concluded from them, count no more.
    """

    step: int
    cause: str
    took_s: float


@dataclass(frozen=True, slots=True)
class CodeEnded:
    """The training code ended a worker's process, which ends the job."""

    worker: str
    cause: str


@dataclass(frozen=True, slots=True)
class TooManyDeaths:
    """`process` has died again: `deaths` times within `DEATHS_WITHIN_S`, which ends the job."""

    process: str
    cause: str
    deaths: int


@dataclass(frozen=True, slots=True)
class PartsDiffer:
    """After a roll-back, the parts of the model are of different steps, which ends the job."""

    steps: tuple[int, ...]


Action = (
    StartCoordinator
    | StartAggregator
    | EndAggregator
    | ConfirmRollBack
    | Lost
    | Refused
    | Recovered
    | RolledBack
    | CodeEnded
    | TooManyDeaths
    | PartsDiffer
)


# ---- the machine -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Outage:
    """An interruption: its cause and its start."""

    cause: str
    since_s: float


@dataclass(slots=True)
class _Aggregator:
    """State of one aggregator.

    Attributes:
        held: Whether it, or its memory, holds its part.
        outage: Set while its process has ended and another has not yet loaded the part.
        commanded: Whether it is being ended for a roll-back, so that its end does not count as a death.
        rewinding: Whether it has not begun again since the roll-back.
        step: The step after which it began again.
        deaths_s: Times at which its processes died.
    """

    held: bool = False
    outage: _Outage | None = None
    commanded: bool = False
    rewinding: bool = False
    step: int | None = None
    deaths_s: deque[float] = field(default_factory=deque)


class Recovery:
    """The recoveries of one job's aggregators and coordinators. Feed it one event at a time.

    Args:
        aggregators: Names of the aggregators, in the order of their parts.

    Attributes:
        phase: Whether the model is being rolled back.
        token: Token of the newest coordinator.
    """

    def __init__(self, aggregators: Sequence[str]) -> None:
        self.phase = RecoveryPhase.RUNNING
        self.token = 1
        self._aggregators = {name: _Aggregator() for name in aggregators}
        self._coordinator_outage: _Outage | None = None
        self._coordinator_deaths_s: deque[float] = deque()
        self._roll_back = _Outage("", 0.0)

    @property
    def held(self) -> tuple[int, ...]:
        """Indices of the parts that an aggregator, or its memory, holds."""
        return tuple(i for i, entry in enumerate(self._aggregators.values()) if entry.held)

    @property
    def rewinding(self) -> tuple[int, ...]:
        """Indices of the aggregators that have yet to begin again, whatever their memory holds."""
        return tuple(i for i, entry in enumerate(self._aggregators.values()) if entry.rewinding)

    def handle(self, event: Event) -> list[Action]:
        """Process one event; returns the resulting actions, in order."""
        if self.phase is RecoveryPhase.CLOSED:
            return []
        match event:
            case CoordinatorEnded():
                return self._coordinator_ended(event)
            case AggregatorEnded():
                return self._aggregator_ended(event)
            case PartHeld():
                return self._part_held(event)
            case RollBack():
                return self._rolled_back(event)
            case Leads():
                outage, self._coordinator_outage = self._coordinator_outage, None
                return [] if outage is None else [_recovered(event.name, outage, event.at_s)]
            case Closing():
                self.phase = RecoveryPhase.CLOSED
                return []

    # ---- one method per event ------------------------------------------------------------------------------

    def _coordinator_ended(self, event: CoordinatorEnded) -> list[Action]:
        if event.token != self.token:
            return []  # it was replaced before it ended
        deaths = _died(self._coordinator_deaths_s, event.at_s)
        if deaths > DEATHS_MAX:
            return [TooManyDeaths(Role.COORDINATOR.value, event.cause, deaths)]
        self.token += 1
        self._coordinator_outage = _Outage(event.cause, event.at_s)
        return [StartCoordinator(self.token)]

    def _aggregator_ended(self, event: AggregatorEnded) -> list[Action]:
        entry = self._aggregators[event.name]
        if entry.commanded:
            entry.commanded = False
        elif (deaths := _died(entry.deaths_s, event.at_s)) > DEATHS_MAX:
            return [TooManyDeaths(event.name, event.cause, deaths)]
        entry.outage = _Outage(event.cause, event.at_s)
        return [StartAggregator(event.name)]

    def _part_held(self, event: PartHeld) -> list[Action]:
        entry = self._aggregators[event.name]
        if entry.rewinding and entry.outage is None:
            return []  # a message of the process that was ended for the roll-back
        entry.held = True
        if entry.outage is None:
            return []
        actions: list[Action] = [_recovered(event.name, entry.outage, event.at_s)]
        entry.outage = None
        if entry.rewinding:
            entry.rewinding, entry.step = False, event.step
        if self.phase is RecoveryPhase.ROLLING_BACK and not self.rewinding:
            actions.append(self._end_roll_back(event.at_s))
        return actions

    def _rolled_back(self, event: RollBack) -> list[Action]:
        self.phase, self._roll_back = RecoveryPhase.ROLLING_BACK, _Outage(event.cause, event.at_s)
        actions: list[Action] = []
        for name, entry in self._aggregators.items():
            entry.held, entry.outage, entry.rewinding, entry.step = False, None, True, None
            if name in event.running:
                entry.commanded = True
                actions.append(EndAggregator(name, event.cause))
        return [*actions, ConfirmRollBack()]

    def _end_roll_back(self, at_s: float) -> Action:
        self.phase = RecoveryPhase.RUNNING
        steps = {entry.step for entry in self._aggregators.values() if entry.step is not None}
        if len(steps) > 1:
            return PartsDiffer(tuple(sorted(steps)))
        return RolledBack(steps.pop(), self._roll_back.cause, at_s - self._roll_back.since_s)


def worker_ended(
    name: str, status: Status, cause: str, *, by_itself: bool, crashed: bool, ready: bool, refused: str = ""
) -> list[Action]:
    """The reaction to the end of a worker; see the table of the module.

    Args:
        status: The worker's status before its end.
        cause: Description that follows the worker's name in messages.
        by_itself: Whether its process exited with a status instead of being killed by a signal.
        crashed: Whether it was killed by a signal that its own code may have caused.
        ready: Whether it had been able to train.
        refused: Why it never ran; empty if it did.
    """
    if refused:
        return [Refused(name, refused)]
    if status is Status.LEAVING:
        return []
    lost = Lost(name, cause, crashed=crashed, ready=ready)
    if status in (Status.FAILED, Status.EXPELLED) or not by_itself:
        return [lost]
    return [lost, CodeEnded(name, cause)]


def _died(deaths_s: deque[float], at_s: float) -> int:
    """Count a death; returns how many there were within `DEATHS_WITHIN_S`."""
    while deaths_s and at_s - deaths_s[0] > DEATHS_WITHIN_S:
        deaths_s.popleft()
    deaths_s.append(at_s)
    return len(deaths_s)


def _recovered(name: str, outage: _Outage, at_s: float) -> Recovered:
    return Recovered(name, outage.cause, at_s - outage.since_s)
