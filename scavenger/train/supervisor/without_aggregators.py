"""What supervisors of jobs without aggregators have in common: loops of the user's own, and commands."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from scavenger.train.supervisor.events import Event, RolledBack
from scavenger.train.supervisor.face import JobSupervisor
from scavenger.train.supervisor.process_registry import ProcessRegistry
from scavenger.train.supervisor.watching import MemoryWatch
from scavenger.train.transport import messages as m

_TURN_S = 0.05


class WithoutAggregators(JobSupervisor):
    """The part of a supervisor that follows from no aggregators, no coordinator, and no callbacks of Keras."""

    manifest: m.Manifest | None = None
    quarantined: tuple[int, ...] = ()

    def __init__(self, registry: ProcessRegistry) -> None:
        super().__init__(registry)
        self._events: list[Event] = []
        self._returned_step = 0
        self._memory = MemoryWatch()

    @abstractmethod
    def _update(self, timeout_s: float) -> None:
        """Handle what has happened, waiting at most `timeout_s` for something."""

    def _turn(self) -> None:
        self._update(_TURN_S)
        if self.on_wait is not None:
            self.on_wait()

    def poll(self, timeout_s: float) -> list[Event]:
        self._update(timeout_s)
        events, self._events = self._events, []
        for event in events:
            if isinstance(event, m.StepReport | RolledBack):
                self._returned_step = event.step
        return events

    def run_callbacks(self, request: m.RunCallbacks) -> None:
        """See `JobSupervisor.run_callbacks`: there are none."""

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        return self._memory.peaks
