"""The ends of the epochs of a loop: in a job, one member evaluates, then the job says whether to go on."""

from __future__ import annotations

from collections.abc import Collection


class EpochEnds:
    """Holds members back that want to read the next epoch, until the job lets them.

    Args:
        waits: Whether they wait; False where the training function alone decides how many epochs there are.

    Attributes:
        epoch: The newest epoch that may be read.
        evaluates: Whether the loop has metrics of its own, which a member computes.
        evaluator: The member that evaluates its replica, as long as it does; else empty.
        left: Whether the training code of a member has left its loop over epochs.
        reported: Whether the epoch is reported, so that a verdict is awaited.
    """

    def __init__(self, *, waits: bool = True) -> None:
        self._waits = waits
        self.epoch = 0
        self.evaluates = self.reported = self.left = False
        self.evaluator = ""
        self._held: dict[str, tuple[int, int]] = {}

    def begin(self, epoch: int) -> None:
        """Begin, or begin again after a rollback, with this epoch."""
        self.epoch, self.evaluator, self.reported, self.left = epoch, "", False, False
        self._held.clear()

    def holds(self, worker: str, step: int, epoch: int, *, left: bool = False) -> bool:
        """Whether a request for samples of an epoch, after a step, is held back."""
        if not self._waits or epoch <= self.epoch:
            return False
        self.left = self.left or left
        self._held[worker] = (step, epoch)
        return True

    @property
    def held(self) -> tuple[str, ...]:
        """Members that are held back, in the order of their requests."""
        return tuple(self._held)

    @property
    def idle(self) -> Collection[str]:
        """Members that nothing is awaited of."""
        return self._held.keys() - {self.evaluator}

    def gone(self, worker: str) -> None:
        """Forget a worker; if it was the evaluator, another one may be chosen."""
        self._held.pop(worker, None)
        if self.evaluator == worker:
            self.evaluator = ""

    def go_on(self) -> list[tuple[str, int, int]]:
        """Let the next epoch be read; returns the requests that were held back, as worker, step and epoch."""
        self.epoch += 1
        self.evaluator, self.reported = "", False
        released = [(worker, step, epoch) for worker, (step, epoch) in self._held.items()]
        self._held.clear()
        return released
