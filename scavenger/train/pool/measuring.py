"""What a job's steps cost on its nodes: its step time, and what its tenants compute and wait for in a step."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

STEPS_MAX = 100
"""Steps after which a measurement is complete, as in AutoPS."""
_STEPS_MIN, _WINDOW_S = 10, 10.0
"""With slower steps, a measurement is complete after this time, but not with fewer steps."""

_CHANGE_MIN = 0.25
"""Change of a job's needs, relative to the known ones, from which the pool is planned again."""


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """What a tenant has used since its begin.

    Attributes:
        cpu_s: Processor time, seconds.
        waited_s: Time that its threads were ready but waited for a processor of its node, seconds, all together.
    """

    cpu_s: float
    waited_s: float


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """The mean of a job's steps within a window.

    Attributes:
        step_time_s: Median of its steps.
        executions_s: Processor seconds of each tenant in a step.
        waited_s: Time in a step for which the tenant that waited longest was kept from its processors.
    """

    step_time_s: float
    executions_s: Mapping[str, float]
    waited_s: float

    def needs_more_or_less(self, step_time_s: float, executions_s: Mapping[str, float]) -> bool:
        """Whether a job needs clearly more or less processors than by another step time and other executions."""
        before, now = (
            sum(executions_s.values()) / step_time_s,
            sum(self.executions_s.values()) / self.step_time_s,
        )
        return abs(now - before) > _CHANGE_MIN * max(before, 1e-3)


def charged_step_time(alone: MeasuredSteps, shared: MeasuredSteps) -> float:
    """The step time that counts against the neighbours of a job, seconds.

    A step also takes longer because the job's workers have less of the machine. Its tenants' neighbours can cost it no
    more than the time that its tenants wait for a processor, beyond what they waited for alone.
    """
    longer_s = shared.step_time_s - alone.step_time_s
    waited_s = shared.waited_s - alone.waited_s
    return alone.step_time_s + min(longer_s, max(0.0, waited_s))


@dataclass(slots=True)
class JobMeter:
    """Adds up the steps of a job until they are enough for a measurement.

    Attributes:
        alone: The measurement in the present configuration with which later ones are compared; None before it.
    """

    alone: MeasuredSteps | None = None
    _view: int = -1
    _begin: Mapping[str, TenantUsage] = field(default_factory=dict)
    _begun_at: float = 0.0
    _steps_s: list[float] = field(default_factory=list)

    def restart(self) -> None:
        """Forget the steps of the present window: what they measured no longer holds."""
        self._begin = {}

    def note(
        self, view: int, steps_s: Sequence[float], used: Mapping[str, TenantUsage], now: float
    ) -> MeasuredSteps | None:
        """Add steps; returns a measurement when there are enough.

        Args:
            view: Number of the job's view; in another one it may have other workers, and is measured again.
            steps_s: Times of the steps since the last call.
            used: By tenant, now.
            now: Monotonic seconds.
        """
        if view != self._view:
            self._view, self.alone = view, None
            self.restart()
        begin = self._begin
        if (
            not used
            or begin.keys() != used.keys()
            or any(used[name].cpu_s < begin[name].cpu_s for name in used)
        ):
            self._begin, self._begun_at, self._steps_s = used, now, []
            return None
        self._steps_s += steps_s
        count = len(self._steps_s)
        if count < STEPS_MAX and (count < _STEPS_MIN or now - self._begun_at < _WINDOW_S):
            return None
        found = MeasuredSteps(
            statistics.median(self._steps_s),
            {name: (used[name].cpu_s - begin[name].cpu_s) / count for name in used},
            max((used[name].waited_s - begin[name].waited_s) / count for name in used),
        )
        self._begin, self._begun_at, self._steps_s = used, now, []
        return found
