"""Gradients in parts, where a device's memory does not hold what all of a worker's samples take.

A step is finished in any case. What is lost is time, which is why the leader is told how many samples were too many.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from scavenger.train.norms import total_sqnorm
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
                    weights, batch, seed=seed, position=position, loss_scale=loss_scale
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
                weights, _cut(batch, part), seed=seed, position=position + part.start, loss_scale=loss_scale
            )
            for part in (slice(0, middle), slice(middle, samples))
        )
        return joined(first, second, share=middle / samples)

    def with_noise(
        self,
        whole: Gradient,
        weights: Sequence[Array],
        batch: tuple[Any, ...],
        *,
        seed: int,
        position: int,
        loss_scale: float = 1.0,
    ) -> Gradient:
        """Add the gradient noise to the gradient of a batch, of which nothing else changes.

        If that is the mean of the gradients g₁ and g₂ of the batch's halves, which have the shares p and 1 - p, it is
        enough to compute g₁: p |g₁|² + (1 - p) |g₂|² = |g|² + p / (1 - p) |g₁ - g|².

        Where it is not their mean, since the model combines samples or draws random numbers, both are computed as on
        two workers. Their noise is a ratio, mean |gₖ|² over |mean gₖ|², which is taken over to g. So it is for sparse
        gradients, too.

        Args:
            whole: What `gradient` returned for the same arguments.
            weights, batch, seed, position, loss_scale: See `Program.gradient`.

        Returns:
            The gradient without noise if the batch has one sample, or memory does not suffice for its halves.
        """
        samples, program = _count(batch), self._program
        if not 2 <= samples <= self._most:
            return whole
        middle = samples // 2
        share = middle / samples

        def of(part: slice) -> Gradient:
            at = position + part.start
            return program.gradient(weights, _cut(batch, part), seed=seed, position=at, loss_scale=loss_scale)

        by_one = not program.mixes_samples and not program.draws and not _has_rows(whole)
        try:
            first = of(slice(0, middle))
            second = first if by_one else of(slice(middle, samples))
        except tf.errors.ResourceExhaustedError:
            return whole
        with np.errstate(all="ignore"):  # a gradient that is not finite is reported by its norm
            own, half = sqnorm_of(whole.gradients), 0.0
            if by_one:
                pairs = zip(first.gradients, whole.gradients, strict=True)
                away = sum(total_sqnorm(np.asarray(a), np.asarray(b)) for a, b in pairs)
                half = own + share / (1 - share) * away
            elif (mean := sqnorm_of(joined(first, second, share=share).gradients)) > 0.0:
                parts = share * sqnorm_of(first.gradients) + (1 - share) * sqnorm_of(second.gradients)
                half = parts * own / mean
        return replace(whole, half_sqnorm=half)

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


def joined(first: Gradient, second: Gradient, *, share: float) -> Gradient:
    """Return the gradient of all samples from those of two parts.

    Args:
        share: Share of the first part's samples.
    """
    return Gradient(
        gradients=[_mean(a, b, share) for a, b in zip(first.gradients, second.gradients, strict=True)],
        states=[
            _dense_mean(a, b, share) if "float" in a.dtype.name else a
            for a, b in zip(first.states, second.states, strict=True)
        ],
        metrics=[a + b for a, b in zip(first.metrics, second.metrics, strict=True)],
        loss=share * first.loss + (1 - share) * second.loss,
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


def _cut(batch: tuple[Any, ...], part: slice) -> Any:
    return keras.tree.map_structure(lambda leaf: leaf[part], batch)


def _has_rows(gradient: Gradient) -> bool:
    return any(isinstance(one, Rows) for one in gradient.gradients)
