"""The aggregator's arithmetic: mean gradient, norms and optimizer in one pass over memory, without TensorFlow.

Every tensor is cut into spans (`scavenger.train.aggregation.mean_gradient`) that are distributed over threads: NumPy
releases the interpreter lock while it computes. Optimizers that need a norm of the mean gradient first (clipping by
norms) take a second pass. Where all gradients of a tensor are sparse and the optimizer leaves the other rows as they
are, only those rows are visited that this step changes or the step before has changed: the arrays to be written are two
steps behind.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from scavenger.train.aggregation.constraints import Constraint
from scavenger.train.aggregation.kernels import Array, read_rule
from scavenger.train.aggregation.mean_gradient import (
    SPAN_BYTES,
    Contribution,
    ElementSpan,
    Mean,
    Norms,
    has_short_rows,
    spans,
    spans_of_rows,
    touched,
    united,
)
from scavenger.train.aggregation.shard_state import ShardState
from scavenger.train.transport.messages.values import SlotSpec, TensorSpec
from scavenger.train.transport.rows import Rows

if TYPE_CHECKING:
    from scavenger.train.aggregation.keras_update import KerasUpdate

__all__ = ["Contribution", "Differing", "Norms", "Update"]

Differing = list[Array | None]
"""For each tensor, rows such that two states of the tensor and its slots are equal in all others; None if unknown."""

_THREADS_MAX = 4
"""Default limit of threads. About a seventh of a span's time goes into NumPy's and Python's own steps, under the
interpreter's lock (`python -m benchmarks aggregation`: one thread against the row of many small tensors), and
the memory bandwidth is exhausted by a few threads too."""

_GATHERING = 3
"""If more than one row in so many has to be visited, all are: rows of 256 bytes, visited alone, took as long as all of
them where they were 37 % with SGD, 43 % with Adagrad."""

_FUSED_TYPES = frozenset({"float16", "float32", "float64"})


class Update:
    """The optimizer for one shard of a job's trainable tensors.

    An update keeps no state of the job: the result of a step depends, bit for bit, only on the old weights and slots,
    the gradients and the step number, not on the number of threads. A step that was interrupted can be repeated.

    Args:
        tensors: The shard's tensors.
        optimizer: Keras's serialised optimizer, JSON: a configuration, never code.
        constraints: Constraints by the index of the tensor, which hold after every step.
        threads: Number of threads; by default one per processor that this process may use, at most four.

    Attributes:
        slots: The optimizer's state arrays besides the weights, grouped by tensor; one that belongs to no tensor
            is the same in every shard.

    Raises:
        NotSupportedError: If the configuration is not that of one of Keras's own optimizers.
        ValueError: If `threads` is below 1.
    """

    slots: tuple[SlotSpec, ...]

    def __init__(
        self,
        tensors: Sequence[TensorSpec],
        optimizer: str,
        constraints: Mapping[int, Constraint] | None = None,
        *,
        threads: int | None = None,
    ) -> None:
        threads = min(_processors(), _THREADS_MAX) if threads is None else threads
        if threads < 1:
            raise ValueError(f"the number of threads must be at least 1, not {threads}")
        self._tensors, self._constraints = tuple(tensors), dict(constraints or {})
        self._types = tuple(np.dtype(tensor.dtype) for tensor in tensors)
        self._spans = [tuple(spans(number, tensor)) for number, tensor in enumerate(tensors)]
        # a thread is not worth starting for less than one span
        size = sum(
            dtype.itemsize * math.prod(tensor.shape)
            for tensor, dtype in zip(self._tensors, self._types, strict=True)
        )
        self._threads = max(1, min(threads, size // SPAN_BYTES))
        self._pool = ThreadPoolExecutor(self._threads - 1, "update") if self._threads > 1 else None
        self._scratch = [np.empty((2, SPAN_BYTES), dtype=np.uint8) for _ in range(self._threads)]

        found = read_rule(optimizer) if _FUSED_TYPES.issuperset(t.dtype for t in tensors) else None
        self._keras: KerasUpdate | None = None
        if found is None:
            from scavenger.train.aggregation.keras_update import KerasUpdate

            self._keras = KerasUpdate(tensors, optimizer)
            self.slots = self._keras.slots
            return
        self._rule, self._learning_rate = found
        self.slots = tuple(
            SlotSpec(f"{tensor.path}/{name}", tensor.shape, tensor.dtype, "slot", place, number)
            for place, tensor in enumerate(tensors)
            for number, name in enumerate(self._rule.slots)
        )

    def initial_slots(self, weights: Sequence[Array]) -> list[Array]:
        """Return the slots before the first step, given the initial weights."""
        if self._keras is not None:
            return self._keras.initial_slots(weights)
        return [
            np.full(tensor.shape, value, dtype=tensor.dtype)
            for tensor in self._tensors
            for value in self._rule.slots.values()
        ]

    def apply(
        self,
        contributions: Sequence[Contribution],
        before: ShardState,
        after: ShardState,
        *,
        step: int,
        lr_scale: float = 1.0,
        schedule_step: int | None = None,
        differing: Differing | None = None,
    ) -> Norms:
        """Apply one step: compute the mean gradient, weighted by samples, and the optimizer's update.

        Args:
            contributions: At least one with samples; those without samples are skipped.
            before: The state after the step before; only read, unless the slots are those of `after`. Then a step that
                is not finite, or is interrupted, leaves them invalid.
            after: Where the state after this step goes: contiguous arrays which share no memory with any other
                argument, except that each slot may be that of the state before, and that the gradients of a single
                contribution may be where its weights go. These are also used as scratch space for the mean gradient.
            step: Counts from 1.
            lr_scale: Factor of this step's learning rate, and so of its weight decay.
            schedule_step: Steps that a schedule of the learning rate has behind it; None: those before this one.
            differing: How the new arrays differ from the old ones before the step; changed to how they do after it.
                Without it, every row is written.

        Raises:
            ValueError: If no contribution has samples, the step is below 1, or an array to be written is not
                contiguous.
        """
        if step < 1:
            raise ValueError(f"steps count from 1, and this is step {step}")
        norms = self._apply(
            contributions,
            before,
            after,
            step,
            step - 1 if schedule_step is None else schedule_step,
            lr_scale,
            differing,
        )
        if norms.finite:
            for tensor, constraint in self._constraints.items():
                constraint.apply(after.weights[tensor])
        return norms

    def _apply(
        self,
        contributions: Sequence[Contribution],
        before: ShardState,
        after: ShardState,
        step: int,
        schedule_step: int,
        lr_scale: float,
        differing: Differing | None,
    ) -> Norms:
        counted = self._counted(contributions)
        unknown: Differing = [None] * len(self._tensors)
        parts, changed = self._plan(counted, unknown if differing is None else differing)
        if differing is not None:
            differing[:] = unknown  # until the step is complete
        mean, means = Mean(parts, counted), [_writable(array) for array in after.weights]

        def keep_mean(index: int, g: Array, t: Array) -> None:
            span = parts[index]
            if span.rows is None:
                mean.form(index, span.read(means[span.tensor]), t)
            else:
                mean.form(index, g, t)
                span.write(means[span.tensor], g)

        if self._keras is not None:
            self._for_each(parts, keep_mean)
            found = mean.norms()
            if found.finite:
                self._keras.apply(
                    after.weights, before, after, step=step, lr_scale=lr_scale, schedule_step=schedule_step
                )
            return found

        update = self._updater(before, means, after.slots, step, schedule_step, lr_scale)

        def form_and_update(index: int, g: Array, t: Array) -> None:
            mean.form(index, g, t)
            update(parts[index], g, t)

        self._for_each(parts, keep_mean if self._clips_by_norm else form_and_update)
        found = mean.norms()
        if found.finite and self._clips_by_norm:
            factors = self._clip_factors(parts, mean.squares)

            def clip_and_update(index: int, g: Array, t: Array) -> None:
                span = parts[index]
                np.multiply(span.read(means[span.tensor]), g.dtype.type(factors[span.tensor]), out=g)
                update(span, g, t)

            self._for_each(parts, clip_and_update)
        if found.finite and differing is not None:
            differing[:] = changed
        return found

    def trace(self) -> None:
        """Do now what the first step would have to wait for: Keras compiles its optimizers."""
        if self._keras is not None:
            self._keras.trace()

    def finalise(self, weights: Sequence[Array], slots: Sequence[Array], out: Sequence[Array]) -> None:
        """Write the final weights to `out`: the averaged weights if the optimizer keeps them, as Keras does."""
        if self._keras is not None:
            self._keras.finalise(weights, slots, out)
            return
        count = len(self._rule.slots)
        final = slots[count - 1 :: count] if self._rule.use_ema else weights
        for source, target in zip(final, out, strict=True):
            np.copyto(target, source)

    # ---- spans ---------------------------------------------------------------------------------------------

    def _counted(self, contributions: Sequence[Contribution]) -> list[Contribution]:
        """Return the contributions with samples; gradients whose rows are too long for spans become dense."""
        return [
            (
                samples,
                [
                    gradient.dense(tensor.shape)
                    if isinstance(gradient, Rows) and not has_short_rows(tensor)
                    else gradient
                    for tensor, gradient in zip(self._tensors, gradients, strict=True)
                ],
            )
            for samples, gradients in contributions
            if samples > 0
        ]

    def _plan(
        self, contributions: list[Contribution], differing: Differing
    ) -> tuple[list[ElementSpan], Differing]:
        """Return the spans to visit, and how the old and the new state will differ."""
        parts: list[ElementSpan] = []
        changed: Differing = []
        for number, (tensor, dtype) in enumerate(zip(self._tensors, self._types, strict=True)):
            gradients = [gradients[number] for _, gradients in contributions]
            if not any(isinstance(gradient, Rows) for gradient in gradients):
                parts += self._spans[number]
                changed.append(None)
                continue
            constrained = number in self._constraints  # which may change any row
            spares = self._keras is None and not constrained and self._rule.spares_zeros(dtype)
            rows, before = touched(gradients) if spares else None, differing[number]
            visited = None if rows is None or before is None else united(rows, before)
            if visited is not None and len(visited) * _GATHERING > tensor.shape[0]:
                visited = None
            parts += spans_of_rows(number, tensor, visited)
            changed.append(rows)
        return parts, changed

    def _updater(
        self,
        before: ShardState,
        means: Sequence[Array],
        new_slots: Sequence[Array],
        step: int,
        schedule_step: int,
        lr_scale: float,
    ) -> Callable[[ElementSpan, Array, Array], None]:
        count = len(self._rule.slots)
        weights = [array.reshape(-1) for array in before.weights]
        old = [array.reshape(-1) for array in before.slots]
        new = [_writable(array) for array in new_slots]
        if not len(old) == len(new) == len(self.slots) or not len(weights) == len(self._tensors):
            raise ValueError(f"there are {len(self._tensors)} tensors with {len(self.slots)} slots")
        with np.errstate(all="ignore"):
            rate = np.float32(float(self._learning_rate(schedule_step)) * lr_scale)
            kernels = {dtype: self._rule.kernel(dtype, rate, step) for dtype in set(self._types)}

        def update(span: ElementSpan, g: Array, t: Array) -> None:
            weight, target = weights[span.tensor], means[span.tensor]
            mine = slice(span.tensor * count, (span.tensor + 1) * count)
            kernel, at = kernels[self._types[span.tensor]], span.elements
            if span.rows is None:
                new_state = [slot[at] for slot in new[mine]]
                kernel(g, weight[at], [slot[at] for slot in old[mine]], target[at], new_state, t)
                return
            copies = [span.read(whole) for whole in (weight, *old[mine])]
            kernel(g, copies[0], copies[1:], copies[0], copies[1:], t)
            for whole, values in zip((target, *new[mine]), copies, strict=True):
                span.write(whole, values)

        return update

    @property
    def _clips_by_norm(self) -> bool:
        return (self._rule.clipnorm or self._rule.global_clipnorm or 0.0) > 0.0

    def _clip_factors(self, parts: Sequence[ElementSpan], squares: Array) -> Array:
        """Return the clipping factor of each tensor's mean gradient, from its own norm or the global norm."""
        limit = self._rule.clipnorm or self._rule.global_clipnorm or 0.0
        owners = np.array([span.tensor for span in parts], dtype=np.intp)
        by_tensor = np.bincount(owners, weights=squares, minlength=len(self._tensors))
        if self._rule.global_clipnorm:
            by_tensor[:] = by_tensor.sum()
        return limit / np.maximum(np.sqrt(by_tensor), limit)

    def _for_each(self, parts: Sequence[ElementSpan], task: Callable[[int, Array, Array], None]) -> None:
        """Call `task(index, g, t)` for every span, with scratch space for two arrays of the span's size and type."""
        left = iter(range(len(parts)))  # the interpreter lock makes taking the next item atomic

        def work(room: Array) -> None:
            with np.errstate(all="ignore"):
                for index in left:
                    dtype = self._types[parts[index].tensor]
                    g, t = room[:, : parts[index].size * dtype.itemsize].view(dtype)
                    task(index, g, t)

        first, *others = self._scratch
        helpers = others[: max(0, len(parts) - 1)]
        waiting = [self._pool.submit(work, room) for room in helpers] if self._pool else []
        try:
            work(first)
        finally:
            for helper in waiting:
                helper.result()


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _writable(array: Array) -> Array:
    """Return a flat view; refuse arrays that would have to be copied, because writes to a copy are lost."""
    if not array.flags.c_contiguous:
        raise ValueError("an array to be written is not contiguous")
    return array.reshape(-1)
