"""The coordinator's half of a job's initialization: the source of the first weights, and when each part loads them.

Events in, actions out. The *source* of the first weights is a checkpoint, or the initial weights of one worker, which
is prepared alone. Aggregators take up their parts from the source, and then all other workers are prepared. The same
is done again where a part of the model is lost together with its memory: all parts go back to one source.

Table of phases (rows) and events (columns); an entry gives the transition, `-` that the event changes no phase. After
each event, every action that has become possible is returned::

    phase         TakeOver     Greeted       Weights-    PartReady         WorkerLeft             Rewound
                                             Seeded
    ABSENT        PRESENT, if  first: ASKED  -> PRESENT  -                 -                      -
                  weights
                  exist
    ASKED         -            waits         -> PRESENT  -                 the one asked:         -
                                                                           -> ABSENT
    PRESENT       -            is prepared   -           held part lost    source, while a part   -
                                                         with its memory:  needs it: ROLLING_BACK,
                                                         ROLLING_BACK      or ABSENT if no part
                                                                           was asked to read it
    ROLLING_BACK  -            waits         -           ignored           -                      PRESENT with a
                                                                                                  checkpoint,
                                                                                                  else ABSENT

`WorkerPresent` is the answer of a worker to a coordinator that takes over: in ABSENT, one that was the source leads to
PRESENT. `PartLoaded`, `Informed` and `Spared` change no phase. A coordinator that takes over asks no worker for weights
before each worker that it knows has answered or is gone: one of them may be the source. If it finds none, although some
part has been taken up, it rolls back, since a part of one source and a part of another are no model.

A part is *spare* when all that it held has moved to others (`scavenger.elastic.migration`): its loss takes nothing
back, and another process takes it up empty.

**Complete.** An aggregator is asked to take up its part only when all aggregators can be reached and the weights are
present; a worker is prepared only when all aggregators can be reached. The sequencer takes no view before all
aggregators hold their parts, since workers read those in their own memory as they are. **One source.** All parts of a
model come from the same source, or from memory that holds what has become of it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum


class WeightsPhase(Enum):
    """State of the weights that the job begins with."""

    ABSENT = "absent"
    ASKED = "asked"
    PRESENT = "present"
    ROLLING_BACK = "rolling back"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How to reach an aggregator process: address and public key of its data channel.

    `memory` identifies the shared memory that it works on; a process with the same one shares it.
    """

    address: str
    key: str
    memory: str


# ---- events ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakeOver:
    """The coordinator starts to lead the job.

    Attributes:
        parts: Names of the aggregators that share the model, the sequencer first.
        restoring: Whether the job begins with a checkpoint.
        held: Indices of the parts that have been taken up.
        rewinding: Indices of the parts that must begin again, whatever their memory holds.
        workers: Workers that an earlier coordinator led; each answers (`WorkerPresent`, `Greeted`) or is lost.
        informed: Whether the job's progress is known; otherwise `Informed` follows.
        spare: Indices of the parts that consist of nothing.
    """

    parts: tuple[str, ...]
    restoring: bool = False
    held: Collection[int] = ()
    rewinding: Collection[int] = ()
    workers: Collection[str] = ()
    informed: bool = True
    spare: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class Informed:
    """The job's progress is known."""


@dataclass(frozen=True, slots=True)
class PartReady:
    """An aggregator can be reached.

    Attributes:
        holds: Whether it has loaded its part.
        own_memory: Whether its part exists only in this process, and is lost with it.
    """

    index: int
    endpoint: Endpoint
    holds: bool = False
    own_memory: bool = False


@dataclass(frozen=True, slots=True)
class PartLoaded:
    """An aggregator has loaded its part."""

    index: int


@dataclass(frozen=True, slots=True)
class Greeted:
    """A worker has built the model, and waits to be prepared."""

    worker: str


@dataclass(frozen=True, slots=True)
class WorkerPresent:
    """A worker answers a coordinator that takes over.

    Attributes:
        prepared: Whether it was prepared; otherwise it waits to be.
        seeded: Whether it has put its initial weights into `memory`.
    """

    worker: str
    prepared: bool
    seeded: bool = False
    memory: str = ""


@dataclass(frozen=True, slots=True)
class WeightsSeeded:
    """The worker that was asked has put its initial weights into its memory."""

    worker: str
    memory: str


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    """A worker is gone, or was released."""

    worker: str


@dataclass(frozen=True, slots=True)
class Rewound:
    """All aggregators have been ended, as `RestartAggregators` asked; those that follow begin again.

    Attributes:
        restoring: Whether they begin from a checkpoint.
    """

    restoring: bool


@dataclass(frozen=True, slots=True)
class Spared:
    """These parts, by their indices, consist of nothing now, and no others do."""

    parts: Collection[int]


Event = (
    TakeOver
    | Informed
    | PartReady
    | PartLoaded
    | Greeted
    | WorkerPresent
    | WeightsSeeded
    | WorkerLeft
    | Rewound
    | Spared
)


# ---- actions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrepareWorker:
    """Have a worker warm up and connect. `initial`: it first puts its initial weights into its memory."""

    worker: str
    endpoints: tuple[Endpoint, ...]
    initial: bool


@dataclass(frozen=True, slots=True)
class ReconnectAll:
    """Have every process connect to the aggregators again: one of them is another process now."""

    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class InitializePart:
    """Have an aggregator load its part.

    Attributes:
        recover: Load it from the aggregator's memory, if that holds it.
        seeder: Worker whose initial weights are used otherwise; if empty, the checkpoint or the memory.
        in_place: Whether it may be updated in place, since each part is lost with its process.
        spare: Whether the part consists of nothing, so that it needs none of them.
    """

    index: int
    endpoints: tuple[Endpoint, ...]
    recover: bool
    seeder: str
    in_place: bool = False
    spare: bool = False


@dataclass(frozen=True, slots=True)
class RenewView:
    """Announce the newest view under a new number, since the sequencer was restarted and has no view."""


@dataclass(frozen=True, slots=True)
class RestartAggregators:
    """Have all aggregators ended and started again; `Rewound` answers."""

    cause: str


Action = PrepareWorker | ReconnectAll | InitializePart | RenewView | RestartAggregators


# ---- the machine -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Part:
    """State of one aggregator.

    Attributes:
        endpoint: Address of the process that can be reached.
        asked: Address of the process that was asked to load the part.
        holds: Whether that process has loaded it.
        held: Whether any process has loaded it, so that its memory holds the part.
        rewinding: Whether its memory is to be ignored.
        own_memory: Whether its memory is lost with the process that can be reached.
    """

    name: str
    endpoint: Endpoint | None = None
    asked: Endpoint | None = None
    holds: bool = False
    held: bool = False
    rewinding: bool = False
    own_memory: bool = False


@dataclass(frozen=True, slots=True)
class _Source:
    """A worker whose initial weights the job begins with (empty: it is gone), and the memory that has them."""

    worker: str = ""
    memory: str = ""


@dataclass(slots=True)
class _Workers:
    """Workers by their state of preparation.

    Attributes:
        unanswered: Workers of an earlier coordinator that have not reported their state.
        greeted: Workers that wait to be prepared, in order.
        prepared: Workers that were prepared, in order, so that they can provide initial weights.
    """

    unanswered: set[str] = field(default_factory=set)
    greeted: list[str] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)

    def remove(self, worker: str) -> None:
        self.unanswered.discard(worker)
        for names in (self.greeted, self.prepared):
            if worker in names:
                names.remove(worker)


class Initialization:
    """The initialization of one job, under one coordinator. Feed it one event at a time.

    Attributes:
        phase: State of the first weights.
        informed: Whether the job's progress is known; no action is returned before.
    """

    def __init__(self) -> None:
        self.phase = WeightsPhase.ABSENT
        self.informed = True
        self._parts: list[_Part] = []
        self._workers = _Workers()
        self._source = _Source()
        self._spare: frozenset[int] = frozenset()
        self._restoring = False
        self._model_known = False
        self._reconnect = False
        self._rolled_back = self._took_over = False

    @property
    def complete(self) -> bool:
        """Whether all aggregators can be reached."""
        return bool(self._parts) and all(part.endpoint is not None for part in self._parts)

    def handle(self, event: Event) -> list[Action]:
        """Process one event; returns the resulting actions, in order."""
        match event:
            case TakeOver():
                self._take_over(event)
            case Informed():
                self.informed = True
            case PartReady():
                if (cause := self._part_ready(event)) is not None:
                    return self._roll_back(cause)
            case PartLoaded():
                if (cause := self._part_held(self._parts[event.index])) is not None:
                    return self._roll_back(cause)
            case Greeted():
                self._greeted(event.worker)
            case WorkerPresent():
                self._present(event)
            case WeightsSeeded():
                if self.phase in (WeightsPhase.ABSENT, WeightsPhase.ASKED):
                    self._found(_Source(event.worker, event.memory))
            case WorkerLeft():
                if (cause := self._lost(event.worker)) is not None:
                    return self._roll_back(cause)
            case Rewound():
                if self.phase is WeightsPhase.ROLLING_BACK:
                    self._restoring = event.restoring
                    self.phase = WeightsPhase.PRESENT if event.restoring else WeightsPhase.ABSENT
            case Spared():
                if (cause := self._spared(event)) is not None:
                    return self._roll_back(cause)
        return self._due()

    # ---- one method per event ------------------------------------------------------------------------------

    def _take_over(self, event: TakeOver) -> None:
        self.informed, self._spare = event.informed, frozenset(event.spare)
        self._parts = [
            _Part(
                name,
                held=index in event.held and index not in event.rewinding,
                rewinding=index in event.rewinding,
            )
            for index, name in enumerate(event.parts)
        ]
        self._workers.unanswered = set(event.workers)
        self._restoring = event.restoring
        # processes that an earlier coordinator led may have the address of a process that is gone by now
        self._reconnect = self._took_over = not event.informed
        if event.restoring or all(part.held for part in self._parts):
            self.phase = WeightsPhase.PRESENT

    def _part_ready(self, event: PartReady) -> str | None:
        """Returns why all parts must begin again; None where this one alone does, or holds its part."""
        part = self._parts[event.index]
        # messages of a process that was ended for the roll-back may still arrive
        late = event.holds and part.rewinding and self._rolled_back and part.asked is None
        if self.phase is WeightsPhase.ROLLING_BACK or late:
            return None
        self._reconnect = self._reconnect or (not event.holds and part.endpoint not in (None, event.endpoint))
        part.endpoint, part.holds, part.own_memory = event.endpoint, event.holds, event.own_memory
        if event.holds:
            part.held, part.rewinding = True, False
        elif event.own_memory and part.held and event.index not in self._spare:
            return _lost_with_memory(part)
        return None

    def _part_held(self, part: _Part) -> str | None:
        """Returns why all parts must begin again, if they must."""
        if part.rewinding and part.asked is None:
            # after a roll-back, this message is from the process that was ended for it
            return None if self._rolled_back else f"it is unknown which weights {part.name} began with"
        part.holds, part.held, part.rewinding = part.endpoint is not None, True, False
        return None

    def _spared(self, event: Spared) -> str | None:
        """Returns why all parts must begin again, if they must: what moved to a process before this one was lost."""
        gained, self._spare = self._spare.difference(event.parts), frozenset(event.parts)
        for part in (self._parts[index] for index in sorted(gained)):
            loading = part.held and part.endpoint is not None and not (part.holds or part.rewinding)
            if loading and part.own_memory and self.phase is not WeightsPhase.ROLLING_BACK:
                return _lost_with_memory(part)
        return None

    def _greeted(self, worker: str) -> None:
        self._workers.remove(worker)
        self._workers.greeted.append(worker)
        self._model_known = True

    def _present(self, event: WorkerPresent) -> None:
        if not event.prepared:
            self._greeted(event.worker)
            return
        self._workers.remove(event.worker)
        self._workers.prepared.append(event.worker)
        self._model_known = True
        # once a part begins again, what a worker put into its memory is no longer what the job begins with
        if event.seeded and not self._source.worker and not any(part.rewinding for part in self._parts):
            self._found(_Source(event.worker, event.memory))

    def _lost(self, worker: str) -> str | None:
        """Returns why all parts must begin again, if they must."""
        self._workers.remove(worker)
        if worker != self._source.worker:
            return None
        if self.phase is WeightsPhase.ASKED:
            self.phase, self._source = WeightsPhase.ABSENT, _Source()
        elif self.phase is WeightsPhase.PRESENT:
            lacking = any(self._needs_worker(part) for part in self._parts)
            self._source = _Source("", self._source.memory)
            if lacking and any(part.asked is not None or part.held for part in self._parts):
                return "the worker with the initial weights was lost"
            if lacking:
                self.phase, self._source = WeightsPhase.ABSENT, _Source()
        return None

    # ---- what follows --------------------------------------------------------------------------------------

    def _due(self) -> list[Action]:
        """Every action that has become possible."""
        if not self.informed or self.phase is WeightsPhase.ROLLING_BACK:
            return []
        if (
            self.phase is WeightsPhase.ABSENT
            and not self._workers.unanswered
            and (undone := self._choose_source())
        ):
            return undone
        if not self.complete or not self._model_known:
            return []
        return self._initialize() + self._prepare()

    def _choose_source(self) -> list[Action]:
        """Choose the source of the weights if they are absent and no worker was asked for them."""
        if all(part.held for part in self._parts) and self._parts:
            self.phase = WeightsPhase.PRESENT
        elif any(part.held for part in self._parts):
            if self.complete:  # otherwise, all may turn out to be held
                return self._roll_back("it is unknown whose initial weights the job began with")
        elif any(part.rewinding for part in self._parts) and self._workers.prepared:
            self._found(_Source(self._workers.prepared[0]))
        return []

    def _found(self, source: _Source) -> None:
        self.phase, self._source = WeightsPhase.PRESENT, source

    def _roll_back(self, cause: str) -> list[Action]:
        self._parts = [_Part(part.name, rewinding=True) for part in self._parts]
        self.phase, self._source = WeightsPhase.ROLLING_BACK, _Source()
        self._reconnect = self._rolled_back = True
        return [RestartAggregators(cause)]

    def _needs_worker(self, part: _Part) -> bool:
        """Whether only a worker has the part's weights: neither a checkpoint nor its memory has them."""
        if self._restoring or part.holds:
            return False
        return not part.held and (part.endpoint is None or part.endpoint.memory != self._source.memory)

    @property
    def _endpoints(self) -> tuple[Endpoint, ...]:
        return tuple(part.endpoint for part in self._parts if part.endpoint is not None)

    def _initialize(self) -> list[Action]:
        """Have new and restarted aggregators load their parts."""
        due = [i for i, part in enumerate(self._parts) if not part.holds and part.asked != part.endpoint]
        if self.phase is not WeightsPhase.PRESENT or not due:
            return []
        actions: list[Action] = []
        if self._reconnect:
            self._reconnect = False
            actions.append(ReconnectAll(self._endpoints))
        for index in due:
            part = self._parts[index]
            part.asked = part.endpoint
            seeder = self._source.worker if self._needs_worker(part) else ""
            alone = all(other.own_memory for other in self._parts)
            spare = index in self._spare and not part.rewinding
            actions.append(
                InitializePart(
                    index, self._endpoints, not part.rewinding, seeder, in_place=alone, spare=spare
                )
            )
        return [*actions, RenewView()] if 0 in due else actions

    def _prepare(self) -> list[Action]:
        """Prepare the waiting workers; if no weights are present, only the first one."""
        workers = self._workers
        if (
            self.phase is WeightsPhase.ABSENT
            and not workers.unanswered
            and (workers.greeted or workers.prepared)
        ):
            # one that was prepared after a source that is gone is asked again, if there is no other
            first = (workers.greeted or workers.prepared)[0]
            workers.remove(first)
            workers.prepared.append(first)
            self.phase, self._source = WeightsPhase.ASKED, _Source(first)
            for part in self._parts if self._took_over else ():
                part.rewinding = True  # what its memory may hold came from another source
            return [PrepareWorker(first, self._endpoints, initial=True)]
        if self.phase is not WeightsPhase.PRESENT:
            return []
        waiting, workers.greeted = workers.greeted, []
        workers.prepared += waiting
        return [PrepareWorker(name, self._endpoints, initial=False) for name in waiting]


def _lost_with_memory(part: _Part) -> str:
    return f"{part.name} was lost together with its memory"
