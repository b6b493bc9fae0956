"""The gradients that the workers of a loop have pushed, and their mean, in the shared memory or in messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from scavenger.elastic.leases import LeasedSamples
from scavenger.errors import TrainingCodeError, TrainingError
from scavenger.models.noise import SuccessiveGradients
from scavenger.sdk.gradients import GradientSamples
from scavenger.sdk.loop import STATISTICS
from scavenger.train.custom_loop import messages as lm
from scavenger.train.custom_loop.gradient_memory import KEPT, MEAN, GradientMemory
from scavenger.train.custom_loop.mean import Means, not_finite, weighted_mean
from scavenger.train.custom_loop.workers import LoopWorkers


@dataclass(frozen=True, slots=True)
class _Pushed:
    """What a worker has pushed for a step; `shared` if it is in the shared memory, `held` if its gradients are not."""

    tensors: dict[str, lm.Array]
    headers: tuple[lm.TensorHeader, ...]
    shared: bool
    compute_s: float
    held: bool = False


@dataclass(frozen=True, slots=True)
class StepMean:
    """The mean of a step, ready to be sent, and what was learned on the way.

    Attributes:
        headers, frames: Describe and hold the mean; there are no frames if it is in the shared memory.
        arrays: The mean; in the shared memory, only until the next one, or until its worker has it, if that has
            pushed alone.
        compute_s: How long each worker has read and computed.
        worker_sqnorm, sqnorm, noise_parts: As in `scavenger.domain.measurement.StepRecord`.
        reduced: Whether the workers have the mean of the gradients, which is not among the arrays then.
        own: Whether it is still where the only worker that had samples has pushed it.
    """

    headers: tuple[lm.TensorHeader, ...]
    frames: Sequence[Any]
    shared: bool
    arrays: Mapping[str, lm.Array]
    compute_s: dict[str, float]
    worker_sqnorm: float
    sqnorm: float
    noise_parts: int
    reduced: bool = False
    own: bool = False


class Exchange:
    """Takes what workers push, and forms the mean of a step.

    Args:
        workers: Knows the shared memory, and each worker's place in it.
        measures_alone: Whether the gradient noise is measured at one worker, too, which takes a copy of the gradient.
    """

    def __init__(self, workers: LoopWorkers, *, measures_alone: bool) -> None:
        self._workers = workers
        self._pushed: dict[tuple[str, int], _Pushed] = {}
        self._alone = SuccessiveSteps() if measures_alone else None

    def clear(self) -> None:
        """Forget everything that was pushed."""
        self._pushed = {}

    def take(self, worker: str, push: lm.Push, frames: Sequence[bytes]) -> None:
        """Take what a worker pushes; in the shared memory, it stays as it is until the worker has the mean.

        Raises:
            TrainingCodeError: If it cannot be read.
        """
        before = self._pushed.get((worker, push.step))
        if before is not None and not before.held:
            return
        memory = self._workers.memory if push.shared else None
        try:
            if memory is None:
                tensors = unpack(worker, push.tensors, frames)
            else:
                tensors = memory.arrays(self._workers.place(worker), push.tensors)
        except (OSError, TypeError, ValueError) as error:
            raise TrainingCodeError(f"{worker} pushed arrays that cannot be read: {error}") from error
        pushed = _Pushed(tensors, push.tensors, memory is not None, push.compute_s, push.held)
        self._pushed[worker, push.step] = pushed

    def average(
        self,
        step: int,
        parts: Sequence[tuple[str, LeasedSamples]],
        formed: Mapping[str, lm.Reduced] = MappingProxyType({}),
    ) -> StepMean:
        """Form the mean of a step over the samples of these workers, who have pushed; forgets the step.

        Args:
            formed: What each of them tells of the mean of their gradients, if they hold these.

        Raises:
            TrainingCodeError, NonFiniteError: See `weighted_mean`.
        """
        pushed = {worker: self._pushed[worker, step] for worker, _ in parts}
        first, memory = pushed[parts[0][0]], self._workers.memory
        shared = first.shared and memory is not None
        own = len(parts) == 1 and not formed
        into = None
        if shared and memory is not None and not own:
            into = memory.arrays(MEAN, first.headers)
        samples = [part.stop - part.start for _, part in parts]
        contributions = [
            (worker, count, pushed[worker].tensors) for (worker, _), count in zip(parts, samples, strict=True)
        ]
        if formed:
            if formed.keys() != pushed.keys():
                raise TrainingError(
                    f"step {step} is of {', '.join(pushed)}, and its mean of {', '.join(formed)}"
                )
            contributions = [
                (worker, count, _statistics(tensors)) for worker, count, tensors in contributions
            ]
            into = None if into is None else _statistics(into)
        means = weighted_mean(contributions, step=step, into=into)
        headers, frames = (first.headers, list[Any]()) if shared else lm.pack(means.arrays)
        self._pushed = {key: value for key, value in self._pushed.items() if key[1] > step}
        noise = (means.worker_sqnorm, means.sqnorm, len(parts))
        if len(parts) == 1 and self._alone is not None:
            noise = self._alone.noise(means)
        if formed:
            noise = _noise({worker: (count, formed[worker]) for worker, count, _ in contributions}, step)
        compute_s = {worker: entry.compute_s for worker, entry in pushed.items()}
        return StepMean(
            headers, frames, shared, means.arrays, compute_s, *noise, reduced=bool(formed), own=own
        )

    def for_all(self, mean: StepMean) -> StepMean:
        """What the only worker that had samples has pushed, for others, too."""
        arrays, memory = mean.arrays, self._workers.memory
        if mean.shared and memory is not None:
            arrays = memory.arrays(MEAN, mean.headers)
            for name, array in mean.arrays.items():
                np.copyto(arrays[name], array)
        return replace(mean, arrays=arrays, own=False)


def _statistics(arrays: Mapping[str, lm.Array]) -> dict[str, lm.Array]:
    return {name: array for name, array in arrays.items() if name.startswith(STATISTICS)}


def _noise(told: Mapping[str, tuple[int, lm.Reduced]], step: int) -> tuple[float, float, int]:
    """The norms of the workers' gradients and of their mean, by what the workers tell; see `StepMean`.

    Args:
        told: By worker, its samples and what it tells.

    Raises:
        NonFiniteError: If a mean is NaN or infinite.
    """
    for _, one in told.values():
        if name := one.bad or one.own_bad:
            raise not_finite([worker for worker, (_, other) in told.items() if other.own_bad], name, step)
    total = sum(samples for samples, _ in told.values())
    worker_sqnorm = sum(samples / total * one.own_sqnorm for samples, one in told.values())
    return worker_sqnorm, next(one.sqnorm for _, one in told.values()), len(told)


class KeptMeans:
    """Means that workers that follow the others have still to apply, each at a place of its own in the shared memory.

    Args:
        memory: The shared memory; None if there is none.
    """

    def __init__(self, memory: GradientMemory | None) -> None:
        self._memory = memory
        self._steps: dict[int, int] = {}
        """By place, the step of its mean."""
        self._bytes: dict[int, int] = {}
        """By place, the most that a mean took there; layers may be frozen and unfrozen meanwhile."""

    def keep(self, mean: StepMean, step: int, applied: int) -> tuple[int, Sequence[Any]]:
        """Copy the mean of a step from where the next one is formed.

        Args:
            applied: The newest step that all who follow have applied.

        Returns:
            The place, or `MEAN` and the frames to send, where there is no shared memory or no room in it.
        """
        if self._memory is None or not mean.shared:
            return MEAN, mean.frames
        free = (place for place, kept in self._steps.items() if kept <= applied)
        place = next(free, KEPT + len(self._steps))
        try:
            arrays = self._memory.arrays(place, mean.headers)
        except OSError:  # there is no room
            return MEAN, lm.pack({name: array.copy() for name, array in mean.arrays.items()})[1]
        for name, array in mean.arrays.items():
            np.copyto(arrays[name], array)
        self._steps[place] = step
        self._bytes[place] = max(self._bytes.get(place, 0), sum(header.bytes for header in mean.headers))
        return place, []

    def forget(self, step: int) -> None:
        """Give the memory back once nobody reads it: nobody follows in this step, nor did in the one before.

        Who has become a member has applied all that it followed when it takes part in a step.
        """
        if self._memory is not None and self._steps and max(self._steps.values()) < step - 1:
            for place, size in self._bytes.items():
                self._memory.give_back(place, size)
            self._steps.clear()
            self._bytes.clear()


class SuccessiveSteps:
    """The gradient noise of a single worker, from the gradients of successive steps; see `SuccessiveGradients`."""

    def __init__(self) -> None:
        self._samples, self._gradients = GradientSamples(), SuccessiveGradients()

    def noise(self, means: Means) -> tuple[float, float, int]:
        """Add a step; returns the norms of the halves and the whole, and the number of parts."""
        gradients = (array for name, array in means.arrays.items() if not name.startswith(STATISTICS))
        return self._gradients.norms(self._samples.add(array.reshape(-1) for array in gradients))


def unpack(worker: str, headers: Sequence[lm.TensorHeader], frames: Sequence[bytes]) -> dict[str, lm.Array]:
    """Read the arrays that a worker has sent.

    Raises:
        TrainingCodeError: If they cannot be read.
    """
    try:
        return lm.unpack(headers, frames)
    except (ValueError, TypeError) as error:
        raise TrainingCodeError(f"{worker} sent arrays that cannot be read: {error}") from error
