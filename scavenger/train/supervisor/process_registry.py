"""The process registry: what a supervisor knows of each process of its job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec

from scavenger.elastic.recovery import Role, Status
from scavenger.train.engines.base import Engine
from scavenger.train.supervisor.events import ProcessState
from scavenger.train.transport import messages as m

__all__ = ["Entry", "ProcessRegistry"]


@dataclass(slots=True)
class Entry:
    """One process.

    Attributes:
        launched_s: When it was launched, monotonic.
        vm: The type of VM that a worker was launched on.
        token: A coordinator's.
        announced: The coordinator has heard of it: it has been placed.
        was_ready: A worker has been able to train.
        asked_to_leave: A change of view leaves it behind for good.
        leaving_s: When it was let go.
        ended_s: When it had ended.
        cause: Why it is ended, or has ended, if that was not meant to happen.
        beat: Its newest heartbeat, while it lives.
    """

    name: str
    role: Role
    launched_s: float
    vm: str = ""
    token: int = 0
    status: Status = Status.STARTING
    announced: bool = False
    was_ready: bool = False
    asked_to_leave: bool = False
    leaving_s: float = 0.0
    ended_s: float | None = None
    cause: str = ""
    beat: m.Beat | None = None

    @property
    def stays(self) -> bool:
        """It runs, and nobody wants it to end."""
        return self.status in (Status.STARTING, Status.READY) and not self.asked_to_leave


class ProcessRegistry:
    """The processes of one job, in order of their launch; one that was restarted stands where it did.

    Args:
        engine: Where they run.
        clock: Monotonic seconds.

    Attributes:
        coordinator: The name of the newest one; empty before the first.
        roster: What the coordinator last said of the workers.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self._engine, self._clock = engine, clock
        self._entries: dict[str, Entry] = {}
        self.coordinator = ""
        self.roster = m.Roster(0, {}, False, 0, ())

    # ---- what happens --------------------------------------------------------------------------------------

    def launched(self, name: str, role: Role, *, vm: str = "", token: int = 0) -> None:
        """A process was launched, for the first time or again."""
        self._entries[name] = Entry(name, role, self._clock(), vm=vm, token=token)
        if role is Role.COORDINATOR:
            self.coordinator = name

    def ask_to_leave(self, names: Collection[str]) -> None:
        """Workers are left behind for good by a change of view."""
        for name in names:
            if name in self._entries:
                self._entries[name].asked_to_leave = True

    def leaving(self, name: str) -> bool:
        """A worker was let go; returns False where that was known, or it has ended."""
        entry = self._entries.get(name)
        if entry is None or entry.ended_s is not None or entry.status is Status.LEAVING:
            return False
        entry.status, entry.leaving_s = Status.LEAVING, self._clock()
        return True

    def expel(self, name: str, cause: str) -> None:
        """A process counts as lost, and is being ended."""
        entry = self._entries[name]
        entry.cause = cause
        if entry.status is not Status.LEAVING:
            entry.status = Status.EXPELLED

    def ended(self, name: str, cause: str, *, meant: bool = False) -> None:
        """A process has ended.

        Args:
            cause: In words, if nothing else is known of why it was ended.
            meant: The whole job ends.
        """
        entry = self._entries[name]
        entry.ended_s, entry.beat = self._clock(), None
        if entry.status is Status.LEAVING or (meant and entry.status is not Status.FAILED):
            entry.status, entry.cause = Status.GONE, ""
            return
        entry.cause = entry.cause or cause
        if entry.status is not Status.FAILED:
            entry.status = Status.LOST

    def beat(self, name: str, beat: m.Beat) -> None:
        """A process lives. Views only grow: a restarted aggregator does not know yet which it is in."""
        if (entry := self._entries.get(name)) is not None:
            view = max((entry.beat or m.Beat()).view, beat.view)
            entry.beat = msgspec.structs.replace(beat, view=view)

    # ---- what is known -------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def worker(self, name: str) -> Entry | None:
        """The entry of a worker; None where nobody, or another process, is called so."""
        entry = self._entries.get(name)
        return entry if entry is not None and entry.role is Role.WORKER else None

    @property
    def workers(self) -> tuple[Entry, ...]:
        """Every worker that the job has had, in order of their launch."""
        return tuple(entry for entry in self._entries.values() if entry.role is Role.WORKER)

    @property
    def alive(self) -> tuple[str, ...]:
        """Workers that are there to stay, also those that still start."""
        return tuple(entry.name for entry in self.workers if entry.stays)

    @property
    def departing(self) -> tuple[str, ...]:
        """Workers that were asked to leave and have not been told to end yet."""
        going = (Status.STARTING, Status.READY)
        return tuple(e.name for e in self.workers if e.asked_to_leave and e.status in going)

    @property
    def let_go(self) -> tuple[Entry, ...]:
        """Workers that were let go and have not ended yet."""
        return tuple(entry for entry in self.workers if entry.status is Status.LEAVING)

    @property
    def heard(self) -> tuple[str, ...]:
        """Living processes but the coordinator that have said that they live."""
        living = (e for e in self._entries.values() if e.beat is not None and e.role is not Role.COORDINATOR)
        return tuple(entry.name for entry in living)

    @property
    def unannounced(self) -> tuple[str, ...]:
        """Workers that live and that the coordinator has not heard of, in the order of their launch."""
        return tuple(e.name for e in self.workers if not e.announced and e.ended_s is None)

    def in_states(self, *states: str) -> tuple[str, ...]:
        """Names of living workers in any of the states `starting`, `ready` and `training`."""
        return tuple(entry.name for entry in self.workers if entry.stays and self._state(entry) in states)

    @property
    def existing(self) -> dict[str, int]:
        """Workers that have not ended, by the type of their VM."""
        return dict(Counter(entry.vm for entry in self.workers if entry.ended_s is None))

    def worker_seconds(self) -> dict[str, float]:
        """Time that workers have existed, summed over those of each type of VM."""
        now, seconds = self._clock(), dict.fromkeys((entry.vm for entry in self.workers), 0.0)
        for entry in self.workers:
            seconds[entry.vm] += (now if entry.ended_s is None else entry.ended_s) - entry.launched_s
        return seconds

    def processes(self) -> tuple[ProcessState, ...]:
        """Every process that the job has had: the newest coordinator first, then others, aggregators and workers."""
        order = list(Role)
        entries = sorted(
            self._entries.values(), key=lambda e: (order.index(e.role), e.name != self.coordinator)
        )
        sequencer = next((e.beat for e in entries if e.role is Role.AGGREGATOR), None) or m.Beat()
        return tuple(self._process(entry, sequencer) for entry in entries)

    def _process(self, entry: Entry, sequencer: m.Beat) -> ProcessState:
        worker, running = entry.role is Role.WORKER, entry.ended_s is None
        beat = entry.beat or m.Beat()
        if not worker and running:
            # a view is of all of them, and only the sequencer tells which it is
            step = sequencer.step if entry.role is Role.COORDINATOR else beat.step
            beat = m.Beat(step, max(beat.view, sequencer.view))
        state = self._state(entry) if worker else "training"
        return ProcessState(
            name=entry.name,
            role=entry.role.value,
            pid=self._engine.pid(entry.name),
            host=self._engine.host(entry.name),
            state=state if running else entry.status.value,
            view=beat.view,
            step=beat.step,
            detail=entry.cause,
        )

    def _state(self, worker: Entry) -> str:
        if worker.status is Status.LEAVING:
            return Status.LEAVING.value
        return self.roster.states.get(worker.name, Status.STARTING.value)
