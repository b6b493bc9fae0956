"""Gradients in parts, where a device's memory does not hold what all of a worker's samples take.

A step is finished in any case. What is lost is time, which is why the leader is told how many samples were too many.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from scavenger.train.transport.rows import Rows
from scavenger.train.worker.gradients import Gradient, sqnorm_of
from scavenger.train.worker.program import Program

Array = npt.NDArray[Any]

log = logging.getLogger(__name__)


class InParts:
    """A program whose memory may not suffice for all samples at once.

    The gradient of a share is the mean of the gradients of its parts, weighted by their samples. Layers that combine
    the samples of a batch have the statistics of each part, as if it were another worker's share.

    Args:
        program: The worker's model and data.
        tell: Called with a number of samples that turned out to be too many for one gradient, each less than the last.
    """

    def __init__(self, program: Program, tell: Callable[[int], None]) -> None:
        self._program, self._tell = program, tell
        self._most = self._evaluated_most = math.inf
        self._failures = 0

    def gradient(
        self,
        weights: Sequence[Array],
        batch: tuple[Any, ...],
        *,
        seed: int,
        position: int,
        halves: bool,
        loss_scale: float = 1.0,
    ) -> Gradient:
        """See `Program.gradient`.

        Raises:
            tf.errors.ResourceExhaustedError: If memory does not suffice for one sample.
        """
        samples = _count(batch)
        if samples <= self._most:
            try:
                return self._program.gradient(
                    weights, batch, seed=seed, position=position, halves=halves, loss_scale=loss_scale
                )
            except tf.errors.ResourceExhaustedError as error:
                if samples == 1:
                    raise
                log.warning("out of memory with %d samples: %s", samples, str(error).partition("\n")[0])
            # TensorFlow waits ten seconds before it raises, so few tries have to do: 1/2, 1/8, 1/64 ...
            self._failures += 1
            self._most = max(1, samples >> self._failures)
            self._tell(samples)
        middle = samples // 2
        first, second = (
            self.gradient(
                weights,
                keras.tree.map_structure(lambda leaf, part=part: leaf[part], batch),
                seed=seed,
                position=position + part.start,
                halves=False,
                loss_scale=loss_scale,
            )
            for part in (slice(0, middle), slice(middle, samples))
        )
        return joined(first, second, share=middle / samples, halves=halves)

    def with_noise(
        self, whole: Gradient, weights: Sequence[Array], batch: tuple[Any, ...], **more: Any
    ) -> Gradient:
        """See `Program.with_noise`; without noise if memory does not suffice for it."""
        if _count(batch) > self._most:
            return whole
        try:
            return self._program.with_noise(whole, weights, batch, **more)
        except tf.errors.ResourceExhaustedError:
            return whole

    def evaluate(
        self,
        weights: Sequence[Array],
        start: int,
        stop: int,
        batch_size: int,
        *,
        whole_batch_size: int = 0,
        **more: Any,
    ) -> list[Array]:
        """See `Program.evaluate`; with smaller batches if memory does not suffice.

        Raises:
            tf.errors.ResourceExhaustedError: If memory does not suffice for one sample.
        """
        if not self._program.has_whole_metrics:
            whole_batch_size = 0
        while True:
            size, whole = (
                int(min(wanted, self._evaluated_most)) for wanted in (batch_size, whole_batch_size)
            )
            try:
                return self._program.evaluate(weights, start, stop, size, whole_batch_size=whole, **more)
            except tf.errors.ResourceExhaustedError:
                if max(size, whole) == 1:
                    raise
            self._evaluated_most = max(size, whole) // 2
            if whole > self._evaluated_most:
                log.warning(
                    "memory does not suffice to evaluate %d samples at once: metrics that are no sums over samples are "
                    "computed over batches of %d, on which they may depend",
                    whole,
                    self._evaluated_most,
                )


def joined(first: Gradient, second: Gradient, *, share: float, halves: bool) -> Gradient:
    """Return the gradient of all samples from those of two parts.

    Args:
        share: Share of the first part's samples.
        halves: Whether to give the gradient noise; see `Gradient.half_sqnorm`.
    """
    sqnorms = (sqnorm_of(first.gradients), sqnorm_of(second.gradients)) if halves else (0.0, 0.0)
    return Gradient(
        gradients=[_mean(a, b, share) for a, b in zip(first.gradients, second.gradients, strict=True)],
        states=[
            _dense_mean(a, b, share) if "float" in a.dtype.name else a
            for a, b in zip(first.states, second.states, strict=True)
        ],
        metrics=[a + b for a, b in zip(first.metrics, second.metrics, strict=True)],
        loss=share * first.loss + (1 - share) * second.loss,
        half_sqnorm=share * sqnorms[0] + (1 - share) * sqnorms[1],
    )


def _mean(first: Array | Rows, second: Array | Rows, share: float) -> Array | Rows:
    if isinstance(first, Rows) and isinstance(second, Rows):
        return _mean_rows(first, second, share)
    assert not isinstance(first, Rows)
    assert not isinstance(second, Rows)  # a tensor's gradient is sparse in both parts, or in none
    return _dense_mean(first, second, share)


def _dense_mean(first: Array, second: Array, share: float) -> Array:
    of = first.dtype.type
    mean: Array = of(share) * first + of(1 - share) * second
    return mean


def _mean_rows(first: Rows, second: Rows, share: float) -> Rows:
    indices = np.union1d(first.indices, second.indices)
    values = np.zeros((len(indices), *first.values.shape[1:]), first.values.dtype)
    for part, weight in ((first, share), (second, 1 - share)):
        values[np.searchsorted(indices, part.indices)] += part.values.dtype.type(weight) * part.values
    return Rows(indices, values)


def _count(batch: tuple[Any, ...]) -> int:
    return len(keras.tree.flatten(batch)[0])
