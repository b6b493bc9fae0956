"""What a supervisor keeps of its recoveries: who has taken whose place, how often, and how far a roll-back is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from scavenger.errors import ScavengerError, WorkersLostError
from scavenger.train.supervisor.events import Recovered, RolledBack

__all__ = ["Recoveries"]

_RESTARTS_MAX = 5
_RESTARTS_WITHIN_S = 60.0


class Recoveries:
    """Those of one job's aggregators and coordinators.

    Args:
        aggregators: Their names.
        clock: Monotonic seconds.

    Attributes:
        begun: The aggregators hold the model, or did.
    """

    def __init__(self, aggregators: Sequence[str], clock: Callable[[], float]) -> None:
        self._aggregators, self._clock = tuple(aggregators), clock
        self.begun = False
        self._under_way: dict[str, tuple[str, float]] = {}
        self._restarts: dict[str, deque[float]] = {}
        self._commanded: set[str] = set()
        self._rewinding: dict[str, int | None] = {}
        self._rewound_by: tuple[str, float] = ("", 0.0)

    @property
    def rewinding(self) -> tuple[int, ...]:
        """Places of the aggregators that are to begin anew, whatever their memory says."""
        return tuple(i for i, name in enumerate(self._aggregators) if name in self._rewinding)

    def count(self, name: str, role: str, cause: str, log: Path) -> None:
        """A process has died, and is to be replaced; not where it was ended for a roll-back.

        Raises:
            WorkersLostError: If that has happened too often.
        """
        if name in self._commanded:
            self._commanded.discard(name)
            return
        now, restarts = self._clock(), self._restarts.setdefault(role, deque())
        while restarts and now - restarts[0] > _RESTARTS_WITHIN_S:
            restarts.popleft()
        if len(restarts) >= _RESTARTS_MAX:
            raise WorkersLostError(
                f"the {role} {cause}, for the {len(restarts) + 1}th time within {_RESTARTS_WITHIN_S:.0f} s "
                f"(log: {log})"
            )
        restarts.append(now)

    def begin(self, name: str, cause: str, since: float) -> None:
        """The process of this name is to take up what one that died has left."""
        self._under_way[name] = (cause, since)

    def end(self, name: str) -> Recovered | None:
        """A process does its part; None where it took nobody's place, or is known to do so."""
        if name not in self._under_way:
            return None
        cause, since = self._under_way.pop(name)
        return Recovered(name, cause, self._clock() - since)

    def rewind(self, running: Sequence[str], cause: str) -> tuple[str, ...]:
        """All aggregators are to begin anew; returns those that must be ended for it."""
        self._rewinding = dict.fromkeys(self._aggregators)
        self._rewound_by = cause, self._clock()
        for name in self._aggregators:
            self._under_way.pop(name, None)  # what it may still say of its part counts no more
        ended = tuple(name for name in self._aggregators if name in running)
        self._commanded.update(ended)
        return ended

    def initialised(self, name: str, step: int) -> list[Recovered | RolledBack]:
        """An aggregator holds its part as it is after `step`; once all do that had to begin anew, the job does.

        Raises:
            ScavengerError: If they are not all after the same step.
        """
        self.begun = True
        events: list[Recovered | RolledBack] = []
        if (recovered := self.end(name)) is not None:
            events.append(recovered)
            if name in self._rewinding:
                self._rewinding[name] = step
        steps = self._rewinding.values()
        if not steps or None in steps:
            return events
        found = {step for step in steps if step is not None}
        if len(found) > 1:
            raise ScavengerError(f"aggregators began anew after different steps: {sorted(found)}")
        self._rewinding = {}
        cause, since = self._rewound_by
        return [*events, RolledBack(found.pop(), cause, self._clock() - since)]
