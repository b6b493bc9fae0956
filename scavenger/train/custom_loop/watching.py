"""Watches the workers of a loop: who is silent, and who takes longer than the limits allow."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from scavenger.elastic.liveness import HEARTBEAT_S
from scavenger.elastic.rounds import Rounds
from scavenger.train.custom_loop.epoch_ends import EpochEnds
from scavenger.train.custom_loop.progress import StepTimer
from scavenger.train.custom_loop.workers import LoopWorkers
from scavenger.train.job_source import Timeouts

_EVALUATION_S = 600.0
"""How much longer than a step an evaluation may take, unless a limit is set."""


@dataclass(frozen=True, slots=True)
class Overdue:
    """A worker that is over its time.

    Attributes:
        reason: Follows the worker's name in messages.
        silent: Whether it is silent; else it hangs.
        others: Whether other workers kept the same limit, so that the training code is not the cause.
    """

    worker: str
    reason: str
    silent: bool = False
    others: bool = True


class LoopWatch:
    """Decides which workers of a loop are over their time.

    Args:
        workers: Knows the workers and their heartbeats.
        timeouts: Limits on starting and on steps.
        ends: Members that wait at the end of an epoch.
        clock: Monotonic seconds.

    Attributes:
        timer: Times the steps.
    """

    def __init__(
        self, workers: LoopWorkers, timeouts: Timeouts, ends: EpochEnds, clock: Callable[[], float]
    ) -> None:
        self._workers, self._timeouts, self._ends, self._clock = workers, timeouts, ends, clock
        self.timer = StepTimer(clock())
        self._looked_at, self._in_doubt = clock(), False

    def due(self) -> bool:
        """Whether it is time to look again."""
        now = self._clock()
        if now - self._looked_at < HEARTBEAT_S:
            return False
        self._looked_at = now
        self._in_doubt = self._workers.look_at_work(now)
        return True

    def starting(self) -> list[Overdue]:
        """Workers that have taken too long to build their replicas."""
        limit_s = self._timeouts.start_s
        reason = f"did not call loop.init within {limit_s:.0f} s"
        return [
            Overdue(worker, reason, others=bool(self._workers.arrived))
            for worker in self._workers.starting
            if self._workers.age_s(worker) > limit_s
        ]

    def training(self, rounds: Rounds, holding: Collection[str]) -> list[Overdue]:
        """Members that are silent, or have not done their part of the step in time.

        Args:
            holding: Members that have computed their gradients, which the rounds do not know yet.
        """
        now = self._clock()
        if self._in_doubt:
            for worker in self._workers.arrived:
                self._workers.liveness.heard(worker, now)
            self.timer.excuse(now)
            return []
        missing, waited_s, limit_s = rounds.missing, self.timer.waited_s(now), self._timeouts.step_s
        missing = tuple(name for name in missing if name not in self._ends.idle)
        if self._ends.evaluator or (rounds.ledger.over and self._ends.evaluates):
            limit_s = self._timeouts.evaluation_s or limit_s + _EVALUATION_S
        silent = self._workers.liveness.suspects(
            now, awaited=missing, awaited_for_s=waited_s, step_time_s=self.timer.step_time_s
        )
        found = [
            Overdue(worker, "was silent, though its process was running", silent=True) for worker in silent
        ]
        if waited_s > limit_s:
            self.timer.restart(now)
            reason = f"did not do its part of step {rounds.step + 1} within {limit_s:.0f} s"
            late = [name for name in missing if name not in holding]
            others = bool(set(rounds.members) - set(late))
            found += [Overdue(worker, reason, others=others) for worker in late]
        return found
