"""Sample counter: the samples of all steps, kept after the records of the steps are dropped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Run:
    """A run of consecutive steps with the same batch size and number of samples."""

    first: int
    last: int
    global_batch_size: int
    samples: int

    @property
    def steps(self) -> int:
        return self.last - self.first + 1


class SampleCounter:
    """Counts the samples of each step; any step can be undone.

    Steps of an epoch are equal except for the last one, so that runs of equal steps are stored as a few numbers.

    Args:
        before: Samples of earlier attempts, by global batch size, which are never undone.

    Attributes:
        by_batch: Samples by global batch size, including earlier attempts.
        samples: Samples of the added steps that were not undone.
    """

    def __init__(self, before: Iterable[tuple[int, int]] = ()) -> None:
        self.by_batch: dict[int, int] = dict(before)
        self.samples = 0
        self._runs: list[_Run] = []

    @property
    def step(self) -> int | None:
        """The last step that was not undone; None if there is none."""
        return self._runs[-1].last if self._runs else None

    def add(self, step: int, global_batch_size: int, samples: int) -> None:
        """Add an applied step; if its number exists already, that step and all later ones are undone first."""
        if self.step is not None and step <= self.step:
            self.undo(step - 1)
        self._count(global_batch_size, samples)
        newest = self._runs[-1] if self._runs else None
        if newest is not None and (newest.last + 1, newest.global_batch_size, newest.samples) == (
            step,
            global_batch_size,
            samples,
        ):
            newest.last = step
        else:
            self._runs.append(_Run(step, step, global_batch_size, samples))

    def undo(self, after: int) -> int:
        """Undo the steps after a step; returns their number."""
        undone = 0
        while self._runs and self._runs[-1].last > after:
            run = self._runs[-1]
            steps = min(run.steps, run.last - after)
            self._count(run.global_batch_size, -steps * run.samples)
            undone += steps
            run.last -= steps
            if run.last < run.first:
                self._runs.pop()
        return undone

    def _count(self, global_batch_size: int, samples: int) -> None:
        self.by_batch[global_batch_size] = self.by_batch.get(global_batch_size, 0) + samples
        self.samples += samples
