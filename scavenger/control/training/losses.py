"""Whether a lost worker of a running job is replaced."""

from __future__ import annotations

from scavenger.control.training.orders import Action, Cause, GiveUp, Launch, Situation, Warn
from scavenger.train.supervisor.events import Lost

GIVE_UP = 5
CRASHES_MAX = 30
"""Consecutive worker crashes without a step between them that are tolerated: finding the one of 16,000 samples that
crashes workers takes 20."""
HEALTHY_STEPS = 20
"""Steps after which a worker counts as healthy: its failure does not predict that its replacement fails too."""


class Losses:
    """Decides whether a lost worker is replaced.

    What follows from the failure of a worker, while fewer are alive than wanted::

        how it died                               what follows
        its node was about to end                 replaced at once; it was expected
        crashed while it could compute samples    replaced at once, up to `CRASHES_MAX` in a row without a step: the
                                                  samples may be the cause, and finding out takes
                                                  several crashes
        in any other way, the n-th in a row       n below `give_up`: owed, see below; else the job
        before it has done `HEALTHY_STEPS`        continues with the others, or ends if there are none

    A worker that is *owed* is launched once no more than `give_up` can have died early even if all starting ones die:
    while workers die as they start, a job of any size starts `give_up` of them, or its initial workers if these are
    more. A process that dies before it is ready has read no sample of the job, whatever its cause of failure.

    Attributes:
        give_up: Maximum number of consecutive early failures.
        died_early: Number of consecutive early failures so far.
    """

    def __init__(self, give_up: int) -> None:
        self.give_up = give_up
        self.died_early = 0
        self._crashes = 0
        self._owed: list[str] = []

    @property
    def too_many(self) -> bool:
        """Whether no replacement may be launched any more."""
        return self.died_early >= self.give_up

    def stepped(self) -> None:
        """Handle an applied step: the samples that crashed workers have been passed."""
        self._crashes = 0

    def gathered(self) -> None:
        """Clear the owed workers: all missing workers have been launched."""
        self._owed.clear()

    def due(self, now: Situation, wanted: int) -> dict[str, int]:
        """Number of owed workers to launch now, by VM type."""
        del self._owed[max(0, wanted - len(now.vms)) :]
        count = min(len(self._owed), max(0, self.give_up - self.died_early - now.starting))
        launched, self._owed = self._owed[:count], self._owed[count:]
        return {vm: launched.count(vm) for vm in dict.fromkeys(launched)}

    def lost(
        self, event: Lost, now: Situation, *, missing: int, steps: int
    ) -> tuple[list[Action], int | None]:
        """Handle the unexpected failure of a worker.

        Args:
            missing: Wanted minus living workers.
            steps: Number of steps to which the worker contributed.

        Returns:
            The actions, and the new number of wanted workers; None if it does not change.
        """
        if steps >= HEALTHY_STEPS:
            self.died_early = 0
        if missing <= 0:
            return [], None
        failure = f"{event.worker} {event.cause}"
        if event.crashed and event.ready and self._crashes < CRASHES_MAX:
            self._crashes += 1
            self._owed.clear()
            return [
                Warn(f"{failure}; its samples are tried again separately, and it is replaced"),
                Launch(missing, now.vm),
            ], None
        self.died_early += 1
        if not event.ready:
            failure += " before it could train"
        if not self.too_many:
            self._owed.append(now.vm)
            others = "its samples were computed by the others, and " if event.ready and now.training else ""
            return [Warn(f"{failure}; {others}it is replaced")], None
        if alive := len(now.vms):
            return [
                Warn(
                    f"{failure}, the last of {self.died_early} workers that died soon after their start, so the job "
                    f"continues with {alive}"
                )
            ], alive
        others = f", as did {self.died_early - 1} before it" if self.died_early > 1 else ""
        cause: Cause = "code" if event.by_code else "crash" if event.crashed else "loss"
        return [GiveUp(event.worker, f"{failure}{others}", cause)], None
