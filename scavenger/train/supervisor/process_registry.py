"""The process registry: the state of every process of a job, as its supervisor knows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec

from scavenger.elastic.recovery import Role, Status
from scavenger.train.engines.base import Engine
from scavenger.train.supervisor.events import ProcessState
from scavenger.train.transport import messages as m


@dataclass(slots=True)
class Entry:
    """The registry's entry of one process.

    Attributes:
        launched_s: When it was launched, monotonic seconds.
        vm: The type of VM that a worker was launched on.
        was_ready: Whether the worker has been ready to train.
        asked_to_leave: Whether a requested change of view removes the worker.
        leaving_s: When the coordinator released it, monotonic seconds.
        ended_s: When it ended, monotonic seconds; None while it runs.
        cause: Why it is being ended, or has ended, if that was not expected.
        beat: Its newest heartbeat, while it lives.
    """

    name: str
    role: Role
    launched_s: float
    vm: str = ""
    status: Status = Status.STARTING
    was_ready: bool = False
    asked_to_leave: bool = False
    leaving_s: float = 0.0
    ended_s: float | None = None
    cause: str = ""
    beat: m.Beat | None = None

    @property
    def stays(self) -> bool:
        """Whether it runs and nothing has requested that it end."""
        return self.status in (Status.STARTING, Status.READY) and not self.asked_to_leave


class ProcessRegistry:
    """The processes of one job, in order of their first launch.

    Args:
        clock: Monotonic seconds.

    Attributes:
        engine: The engine that runs the processes.
        coordinator: The name of the newest coordinator; empty before the first.
        roster: The states of the workers that the coordinator last sent.
        announced: Names of the workers that it was notified of, which is done once they have a host.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self.engine, self._clock = engine, clock
        self._entries: dict[str, Entry] = {}
        self.coordinator = ""
        self.roster = m.Roster(0, {}, False, 0, ())
        self.announced: set[str] = set()

    # ---- changes -------------------------------------------------------------------------------------------

    def launched(self, name: str, role: Role, *, vm: str = "") -> None:
        """Record that a process was launched, for the first time or again."""
        self._entries[name] = Entry(name, role, self._clock(), vm=vm)
        self.announced.discard(name)
        if role is Role.COORDINATOR:
            self.coordinator = name

    def ask_to_leave(self, names: Collection[str]) -> None:
        """Record that a requested change of view removes these workers."""
        for name in names:
            if name in self._entries:
                self._entries[name].asked_to_leave = True

    def leaving(self, name: str) -> bool:
        """Record that the coordinator released a worker; returns False if that was known, or it has ended."""
        entry = self._entries.get(name)
        if entry is None or entry.ended_s is not None or entry.status is Status.LEAVING:
            return False
        entry.status, entry.leaving_s = Status.LEAVING, self._clock()
        return True

    def expel(self, name: str, cause: str) -> None:
        """Record that a process counts as lost and is being ended."""
        entry = self._entries[name]
        entry.cause = cause
        if entry.status is not Status.LEAVING:
            entry.status = Status.EXPELLED

    def ended(self, name: str, cause: str, *, expected: bool = False) -> None:
        """Record that a process has ended.

        Args:
            name: The process's name.
            cause: Why it ended, in words; used if no cause was recorded before.
            expected: Whether the whole job ends, so that the end of a process is no failure.
        """
        entry = self._entries[name]
        entry.ended_s, entry.beat = self._clock(), None
        if entry.status is Status.LEAVING or (expected and entry.status is not Status.FAILED):
            entry.status, entry.cause = Status.GONE, ""
            return
        entry.cause = entry.cause or cause
        if entry.status is not Status.FAILED:
            entry.status = Status.LOST

    def beat(self, name: str, beat: m.Beat) -> None:
        """Record a process's heartbeat. View numbers only grow: a restarted aggregator does not know its view yet."""
        if (entry := self._entries.get(name)) is not None:
            view = max((entry.beat or m.Beat()).view, beat.view)
            entry.beat = msgspec.structs.replace(beat, view=view)

    # ---- queries -------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def worker(self, name: str) -> Entry | None:
        """Return the entry of a worker; None if no process, or one of another role, has this name."""
        entry = self._entries.get(name)
        return entry if entry is not None and entry.role is Role.WORKER else None

    @property
    def workers(self) -> tuple[Entry, ...]:
        """All workers that the job has had, in order of their launch."""
        return tuple(entry for entry in self._entries.values() if entry.role is Role.WORKER)

    @property
    def alive(self) -> tuple[str, ...]:
        """Running workers, including starting ones, that nothing has requested to end."""
        return tuple(entry.name for entry in self.workers if entry.stays)

    @property
    def departing(self) -> tuple[str, ...]:
        """Workers that a requested change of view removes and that the coordinator has not released yet."""
        going = (Status.STARTING, Status.READY)
        return tuple(e.name for e in self.workers if e.asked_to_leave and e.status in going)

    @property
    def let_go(self) -> tuple[Entry, ...]:
        """Workers that the coordinator released and that have not ended yet."""
        return tuple(entry for entry in self.workers if entry.status is Status.LEAVING)

    @property
    def beating(self) -> tuple[str, ...]:
        """Living processes, except the coordinator, that have sent a heartbeat."""
        living = (e for e in self._entries.values() if e.beat is not None and e.role is not Role.COORDINATOR)
        return tuple(entry.name for entry in living)

    @property
    def unannounced(self) -> tuple[str, ...]:
        """Living workers that the coordinator was not notified of, in the order of their launch."""
        return tuple(e.name for e in self.workers if e.name not in self.announced and e.ended_s is None)

    def in_states(self, *states: str) -> tuple[str, ...]:
        """Return the names of living workers in any of the states `starting`, `ready` and `training`."""
        return tuple(entry.name for entry in self.workers if entry.stays and self._state(entry) in states)

    @property
    def existing(self) -> dict[str, int]:
        """Number of workers that have not ended, by the type of their VM."""
        return dict(Counter(entry.vm for entry in self.workers if entry.ended_s is None))

    def worker_seconds(self) -> dict[str, float]:
        """Return the seconds that workers have existed, summed over the workers of each type of VM."""
        now, seconds = self._clock(), dict.fromkeys((entry.vm for entry in self.workers), 0.0)
        for entry in self.workers:
            seconds[entry.vm] += (now if entry.ended_s is None else entry.ended_s) - entry.launched_s
        return seconds

    def processes(self) -> tuple[ProcessState, ...]:
        """Return the state of every process that the job has had.

        The newest coordinator comes first, then earlier coordinators, aggregators and workers.
        """
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
            # one view holds for all processes, and only the sequencer reports its number
            step = sequencer.step if entry.role is Role.COORDINATOR else beat.step
            beat = m.Beat(step, max(beat.view, sequencer.view))
        state = self._state(entry) if worker else "training"
        return ProcessState(
            name=entry.name,
            role=entry.role.value,
            pid=self.engine.pid(entry.name),
            host=self.engine.host(entry.name),
            state=state if running else entry.status.value,
            view=beat.view,
            step=beat.step,
            detail=entry.cause,
        )

    def _state(self, worker: Entry) -> str:
        if worker.status is Status.LEAVING:
            return Status.LEAVING.value
        return self.roster.states.get(worker.name, Status.STARTING.value)
