"""How a custom training loop gets on: the times of its steps, and the workers that it has lost."""

from __future__ import annotations

from collections import deque

_LOSSES_MAX, _LOSSES_WITHIN_S = 5, 60.0  # more losses than this have a systematic cause
_STEP_TIME_WEIGHT = 0.2  # of the newest step in the moving average, which only scales the silence limit


class StepTimer:
    """Times the steps of a loop.

    Args:
        now: Monotonic seconds.

    Attributes:
        step_time_s: Moving average of the time of a step; 0 before the first.
    """

    def __init__(self, now: float) -> None:
        self.step_time_s = 0.0
        self._since = self._awaited_since = now

    def restart(self, now: float) -> None:
        """Begin to wait for the step in progress again."""
        self._since = self._awaited_since = now

    def excuse(self, now: float) -> None:
        """Hold the time until now against no worker, since it is the network's; the step has taken it all the same."""
        self._awaited_since = now

    def waited_s(self, now: float) -> float:
        """How long the step in progress has been waited for."""
        return now - self._awaited_since

    def stepped(self, now: float) -> float:
        """Record that a step was done, and begin with the next; returns how long it took."""
        took = now - self._since
        self.restart(now)
        self.step_time_s += (took - self.step_time_s) * (_STEP_TIME_WEIGHT if self.step_time_s else 1.0)
        return took


class LostWorkers:
    """The workers that died, and how many of them lately."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._counted_at: deque[float] = deque()

    @property
    def names(self) -> tuple[str, ...]:
        """All that died, in order."""
        return tuple(self._names)

    def add(self, worker: str) -> None:
        """Record the death of a worker."""
        self._names.append(worker)

    def count(self, now: float) -> None:
        """Count a death at this time that no sample is blamed for."""
        self._counted_at.append(now)
        while now - self._counted_at[0] > _LOSSES_WITHIN_S:
            self._counted_at.popleft()

    @property
    def too_many(self) -> str:
        """Describes the deaths, if more were counted within a short time than chance explains; else empty."""
        if len(self._counted_at) <= _LOSSES_MAX:
            return ""
        return f"{len(self._counted_at)} workers were lost within {_LOSSES_WITHIN_S:.0f} s"
