"""Detects processes that have been silent for too long: heartbeats in, suspects out."""

from __future__ import annotations

import math
from dataclasses import dataclass

HEARTBEAT_S = 0.25
"""Interval of the heartbeats of every process."""
SILENT_S = 5.0
"""Silence after which a process counts as lost, whether it is awaited or not."""
LATE_S = 1.5 * HEARTBEAT_S
"""Silence after which it is looked at whether a process works."""
SLOW_S = 60.0
"""Silence after which a process counts as lost, even if it works."""
_AWAITED_SILENT_S = 1.5
_AWAITED_STEPS = 4.0
EVALUATION_MARGIN = 10.0
"""Factor by which a batch of an evaluation may take longer than a training step of as many samples: it computes less,
but may read its data for the first time, and other workers may have been lost."""


def evaluation_limit_s(
    validation_size: int, *, workers: int, global_batch_size: int, step_s: float, step_time_s: float
) -> float:
    """How long an evaluation may take before it counts as hung, if the user has set no limit.

    Each worker evaluates its share in batches as large as those that it trains on. That is the time of as many
    training steps, with a margin, and in any case the limit of a step.

    Args:
        validation_size: Number of samples that are evaluated.
        workers: Number of workers among which they are divided.
        global_batch_size: Samples of a step over all workers.
        step_s: How long a step may take before it counts as hung, seconds.
        step_time_s: How long a step takes, seconds; 0 where none has been seen. Then each batch may take as long as a
            step may.
    """
    share = -(-validation_size // max(1, workers))
    batches = max(1, -(-share // max(1, global_batch_size // max(1, workers))))
    if step_time_s <= 0.0:
        return batches * step_s
    return step_s + EVALUATION_MARGIN * batches * step_time_s


@dataclass(frozen=True, slots=True)
class ProcessorUse:
    """How a process uses the processors of its machine.

    Attributes:
        cpu_s: Processor time of all its threads since its start, seconds.
        stopped: Whether it is stopped (SIGSTOP, a debugger) or has ended, so that it cannot go on.
        runnable: Whether any of its threads computes, or waits for a processor.
    """

    cpu_s: float
    stopped: bool
    runnable: bool


def is_working(before: ProcessorUse, now: ProcessorUse) -> bool:
    """Whether a process is slow, rather than stopped or stuck, by two looks at it."""
    return not now.stopped and (now.runnable or now.cpu_s > before.cpu_s)


class Liveness:
    """Watches the processes of one job.

    A process is a suspect after `SILENT_S` of silence, and sooner where others wait for it: after a second and a half,
    once the wait is also longer than a few steps usually take. One that works is only slow, as on a machine with more
    processes than it has processors, and is waited for:

    =======================  =======================  =======
    last heard               last seen to work        counts
    =======================  =======================  =======
    within the limit         at any time              alive
    longer ago               within the limit         as slow
    longer ago               longer ago, or never     as lost
    `SLOW_S` ago             at any time              as lost
    =======================  =======================  =======
    """

    def __init__(self) -> None:
        self._heard: dict[str, float] = {}
        self._worked: dict[str, float] = {}
        self._looked_at: float | None = None

    def heard(self, name: str, now: float) -> None:
        """Record a message of a process."""
        self._heard[name] = now

    def worked(self, name: str, at: float) -> None:
        """Record that a process was seen to work.

        Args:
            name: The process; nothing is recorded unless it has been heard.
            at: When it was, monotonic seconds.
        """
        if name in self._heard:
            self._worked[name] = at

    def forget(self, name: str) -> None:
        """Stop watching a process."""
        self._heard.pop(name, None)
        self._worked.pop(name, None)

    def suspects(
        self,
        now: float,
        *,
        awaited: tuple[str, ...] = (),
        awaited_for_s: float = 0.0,
        step_time_s: float = 0.0,
    ) -> tuple[str, ...]:
        """Processes that are to be counted as lost.

        Args:
            now: Monotonic seconds.
            awaited: Processes whose part of a step is missing.
            awaited_for_s: How long they have been awaited.
            step_time_s: Usual time of a step.
        """
        # a caller that was suspended has received nothing meanwhile: that time does not count as silence
        away = 0.0 if self._looked_at is None else max(0.0, now - self._looked_at - 2 * HEARTBEAT_S)
        self._looked_at = now
        if away:
            self._heard, self._worked = (
                # what lies ahead is an allowance, which stays as it is
                {name: at if at >= now else min(now, at + away) for name, at in times.items()}
                for times in (self._heard, self._worked)
            )
        overdue = awaited_for_s > max(_AWAITED_SILENT_S, _AWAITED_STEPS * step_time_s)
        hurried = set(awaited) if overdue else set()
        limits = {name: _AWAITED_SILENT_S if name in hurried else SILENT_S for name in self._heard}
        return tuple(
            name
            for name, at in self._heard.items()
            if now - max(at, self._worked.get(name, -math.inf)) > limits[name] or now - at > SLOW_S
        )
