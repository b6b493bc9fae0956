"""What a supervisor knows of its processes: who is there, in what state, and what became of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from scavenger.train.engines.base import Engine
from scavenger.train.names import coordinator_name
from scavenger.train.supervisor.events import ProcessState
from scavenger.train.transport import messages as m

__all__ = ["ProcessRegistry"]


class ProcessRegistry:
    """The processes of one job.

    Args:
        engine: Where they run.
        aggregators: Their names; the first one sequences.
        clock: Monotonic seconds.

    Attributes:
        token: The newest coordinator's; 0 before the first.
        launched_at: When each worker was launched, in order.
        vms: The type of VM that each worker was launched on.
        announced: Workers that the coordinator has heard of: those that have been placed.
        ended_at: When each that is gone had ended.
        quitting: Workers that were let go and have not ended yet, and since when.
        expelled: Processes that are ended because they count as lost, and why they do.
        causes: What those that nobody let go died of.
        asked_to_leave: Workers that a change of view leaves behind for good, also those that have ended.
        failed: Those that have said why they end.
        ready: Workers that have been able to train.
        beats: The newest heartbeat of each that lives.
        roster: The coordinator's own book.
    """

    def __init__(self, engine: Engine, aggregators: tuple[str, ...], clock: Callable[[], float]) -> None:
        self._engine, self._aggregators, self._clock = engine, aggregators, clock
        self.token = 0
        self.launched_at: dict[str, float] = {}
        self.vms: dict[str, str] = {}
        self.announced: set[str] = set()
        self.ended_at: dict[str, float] = {}
        self.quitting: dict[str, float] = {}
        self.expelled: dict[str, str] = {}
        self.causes: dict[str, str] = {}
        self.asked_to_leave: set[str] = set()
        self.failed: set[str] = set()
        self.ready: set[str] = set()
        self.beats: dict[str, m.Beat] = {}
        self.roster = m.Roster(0, {}, False, 0, ())

    @property
    def coordinator(self) -> str:
        """The name of the newest one."""
        return coordinator_name(self.token)

    @property
    def alive(self) -> tuple[str, ...]:
        """Workers that are there to stay, also those that still start."""
        return tuple(
            name
            for name in self.launched_at
            if name not in self.ended_at
            and name not in self.quitting
            and name not in self.expelled
            and name not in self.asked_to_leave
        )

    @property
    def departing(self) -> tuple[str, ...]:
        """Workers that were asked to leave and have not been told to end yet."""
        return tuple(
            name
            for name in self.asked_to_leave
            if name not in self.ended_at and name not in self.quitting and name not in self.expelled
        )

    @property
    def unannounced(self) -> tuple[str, ...]:
        """Workers that live and that the coordinator has not heard of, in the order of their launch."""
        waiting = self.launched_at.keys() - self.announced - self.ended_at.keys()
        return tuple(sorted(waiting, key=self.launched_at.__getitem__))

    def workers(self, *states: str) -> tuple[str, ...]:
        """Names of living workers in any of the states `starting`, `ready` and `training`."""
        return tuple(name for name in self.alive if self._state(name) in states)

    @property
    def existing(self) -> dict[str, int]:
        """Workers that have not ended, by the type of their VM."""
        return dict(Counter(self.vms[name] for name in self.launched_at.keys() - self.ended_at.keys()))

    def worker_seconds(self) -> dict[str, float]:
        """Time that workers have existed, summed over those of each type of VM."""
        now, seconds = self._clock(), dict.fromkeys(self.vms.values(), 0.0)
        for name, at in self.launched_at.items():
            seconds[self.vms[name]] += self.ended_at.get(name, now) - at
        return seconds

    def beat(self, name: str, beat: m.Beat) -> None:
        """A process lives. Views only grow: a restarted aggregator does not know yet which it is in."""
        view = max(self.beats.get(name, m.Beat()).view, beat.view)
        self.beats[name] = m.Beat(beat.step, view, beat.missing, beat.waiting_s, beat.behind)

    def processes(self) -> tuple[ProcessState, ...]:
        """Every process that the job has had."""
        running = set(self._engine.running)
        roles = [(self.coordinator, "coordinator")] if self.token else []
        roles += [(coordinator_name(token), "coordinator") for token in range(1, self.token)]
        roles += [(name, "aggregator") for name in self._aggregators]
        roles += [(name, "worker") for name in self.launched_at]
        found = []
        sequencer = self.beats.get(self._aggregators[0], m.Beat())
        for name, role in roles:
            state = self._state(name) if role == "worker" else "training"
            beat = self.beats.get(name, m.Beat())
            if role != "worker" and name in running:
                # a view is of all of them, and only the sequencer tells which it is
                step = sequencer.step if role == "coordinator" else beat.step
                beat = m.Beat(step, max(beat.view, sequencer.view))
            found.append(
                ProcessState(
                    name=name,
                    role=role,
                    pid=self._engine.pid(name),
                    host=self._engine.host(name),
                    state=state if name in running else self._fate(name),
                    view=beat.view,
                    step=beat.step,
                    detail=self.causes.get(name, ""),
                )
            )
        return tuple(found)

    def _state(self, worker: str) -> str:
        return "leaving" if worker in self.quitting else self.roster.states.get(worker, "starting")

    def _fate(self, name: str) -> str:
        if name in self.failed:
            return "failed"
        return "lost" if name in self.causes else "gone"
