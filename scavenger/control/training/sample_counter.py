"""What the steps of a job came to, in samples: what is left of them when they themselves are forgotten."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["SampleCounter"]


@dataclass(slots=True)
class _Run:
    """Steps in a row that are alike."""

    first: int
    last: int
    global_batch_size: int
    samples: int

    @property
    def steps(self) -> int:
        return self.last - self.first + 1


class SampleCounter:
    """Samples of each step, any of which can still be undone.

    Steps of an epoch are alike but for its last one, so that they take a few numbers together, not each.

    Args:
        before: Samples by global batch size that were trained before and are never undone.

    Attributes:
        by_batch: Samples, by global batch size, those before included.
        samples: Of the steps that were added and stand.
    """

    def __init__(self, before: Iterable[tuple[int, int]] = ()) -> None:
        self.by_batch: dict[int, int] = dict(before)
        self.samples = 0
        self._runs: list[_Run] = []

    @property
    def step(self) -> int | None:
        """The last one that stands; None where there is none."""
        return self._runs[-1].last if self._runs else None

    def add(self, step: int, global_batch_size: int, samples: int) -> None:
        """A step was applied. One that was there already, and those after it, are undone by that."""
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
        """Take back the steps after one; returns how many those were."""
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
