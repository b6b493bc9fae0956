"""The aggregator's arithmetic: mean gradient, norms and optimizer in one pass over memory, without TensorFlow.

Every tensor is cut into blocks that stay in the processor's cache from the first read of the gradients to the
write of the new weights, and the blocks are shared out to threads: NumPy lets go of the interpreter while it
computes. Optimizers that need a norm of the mean gradient first (clipping by norms) take a second pass.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scavenger.train.aggregation.kernels import Array, read_rule
from scavenger.train.transport.messages.values import SlotSpec, TensorSpec

if TYPE_CHECKING:
    from scavenger.train.aggregation.keras_update import KerasUpdate

__all__ = ["Contribution", "Norms", "Update"]

Contribution = tuple[int, Sequence[Array]]
"""Samples, and one gradient per trainable tensor of the part."""

_BLOCK_BYTES = 256 * 1024
"""Of one array. Smaller blocks lose to NumPy's cost per call and to the threads' waiting for the interpreter,
larger ones to the cache: Adam over 25 million parameters, two threads, took 114 ms with 32 KiB, 52 with 128, 41
with 256, 43 with 512."""

_ROW = 4096
"""Elements whose squares are summed in single precision before double precision takes over; also short enough
that the linear-algebra library starts no threads of its own."""

_THREADS_MAX = 4
"""Unless told otherwise. About a seventh of a block's time goes into NumPy's and Python's own steps, under the
interpreter's lock (`python -m benchmarks aggregation`: one thread against the row of many small tensors), and
memory has no more to give to many threads either."""

_TINY = 1e-30
"""Below it the squares of a single-precision sum may have been lost to underflow."""

_FUSED_TYPES = frozenset({"float16", "float32", "float64"})


@dataclass(frozen=True, slots=True)
class Norms:
    """What the gradient noise is told from, over the tensors of one part, in double precision.

    Attributes:
        mean_worker_sqnorm: Mean over the contributions of |g_k|², weighted by samples.
        mean_sqnorm: |g|² of the mean gradient.
        finite: Whether every gradient was. If not, the new weights and slots are worth nothing.
    """

    mean_worker_sqnorm: float
    mean_sqnorm: float
    finite: bool


class _Piece(NamedTuple):
    tensor: int
    span: slice


class _Mean:
    """A step's mean gradient, formed piece by piece, and the norms.

    Attributes:
        squares: Of each piece (rows), |g_k|² of each contribution and last |g|² of the mean. Kept apart, so that
            sums do not depend on which thread came first.

    Raises:
        ValueError: If nobody contributed a sample.
    """

    def __init__(self, pieces: Sequence[_Piece], contributions: Sequence[Contribution]) -> None:
        counted = [(samples, gradients) for samples, gradients in contributions if samples > 0]
        total = sum(samples for samples, _ in counted)
        if not total:
            raise ValueError("nobody contributed a sample")
        self._pieces = pieces
        self._shares = np.array([samples / total for samples, _ in counted])
        self._gradients = [[gradient.reshape(-1) for gradient in gradients] for _, gradients in counted]
        self.squares = np.zeros((len(pieces), len(counted) + 1))

    def form(self, index: int, out: Array, t: Array) -> None:
        """Write the mean over a piece to `out`; `t` is room."""
        tensor, span = self._pieces[index]
        for k, gradients in enumerate(self._gradients):
            block, share = gradients[tensor][span], out.dtype.type(self._shares[k])
            self.squares[index, k] = _sqnorm(block)
            if k == 0:
                np.multiply(block, share, out=out)
            else:
                np.multiply(block, share, out=t)
                np.add(out, t, out=out)
        self.squares[index, -1] = _sqnorm(out)

    def norms(self) -> Norms:
        """Once every piece has been formed."""
        *workers, mean = self.squares.sum(axis=0)
        mean_worker = float(self._shares @ np.array(workers))
        return Norms(mean_worker, float(mean), bool(np.isfinite(mean_worker + mean)))


class Update:
    """The optimizer of one part of a job's trainable tensors.

    It keeps no state of the job: a step is a function of the old weights and slots, the gradients and the step's
    number, bit for bit, whatever the number of threads; so a step that was lost half way is done again.

    Args:
        tensors: The part's tensors.
        optimizer: Keras's serialised optimizer, JSON: a configuration, never code.
        threads: That share the work; by default one for each processor that this process may use, at most four.

    Attributes:
        slots: The optimizer's state arrays beyond the weights, those of a tensor one after the other; one that
            belongs to no tensor is the same in every part.

    Raises:
        NotSupportedError: If the configuration is not that of one of Keras's own optimizers.
        ValueError: If `threads` is below 1.
    """

    slots: tuple[SlotSpec, ...]

    def __init__(self, tensors: Sequence[TensorSpec], optimizer: str, *, threads: int | None = None) -> None:
        threads = min(_processors(), _THREADS_MAX) if threads is None else threads
        if threads < 1:
            raise ValueError(f"{threads} threads can do nothing")
        self._tensors = tuple(tensors)
        self._types = tuple(np.dtype(tensor.dtype) for tensor in tensors)
        self._pieces = tuple(_pieces(tensors, self._types))
        # a thread for less than a block is not worth waking
        size = sum(
            dtype.itemsize * math.prod(tensor.shape)
            for tensor, dtype in zip(self._tensors, self._types, strict=True)
        )
        self._threads = max(1, min(threads, size // _BLOCK_BYTES))
        self._pool = ThreadPoolExecutor(self._threads - 1, "update") if self._threads > 1 else None
        self._rooms = [np.empty((2, _BLOCK_BYTES), dtype=np.uint8) for _ in range(self._threads)]

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
        """The slots before the first step, given the weights at that time."""
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
        old_weights: Sequence[Array],
        old_slots: Sequence[Array],
        new_weights: Sequence[Array],
        new_slots: Sequence[Array],
        *,
        step: int,
        lr_scale: float = 1.0,
    ) -> Norms:
        """One step: the mean gradient, weighted by samples, and the optimizer's update with it.

        Args:
            contributions: At least one with samples; those without any are passed over.
            old_weights, old_slots: The state after the step before; only read.
            new_weights, new_slots: Where the state after this step goes: contiguous arrays which share no memory
                with any other argument. The new weights also serve as room for the mean gradient.
            step: Counts from 1.
            lr_scale: Multiplies the learning rate of this step, and so what decays of the weights.

        Raises:
            ValueError: If nobody contributed a sample, the step is below 1, or an array to be written is not
                contiguous.
        """
        if step < 1:
            raise ValueError(f"steps count from 1, and this is step {step}")
        mean = _Mean(self._pieces, contributions)
        means = [_writable(array) for array in new_weights]

        def keep_mean(index: int, g: Array, t: Array) -> None:
            tensor, span = self._pieces[index]
            mean.form(index, means[tensor][span], t)

        if self._keras is not None:
            self._for_each_piece(keep_mean)
            found = mean.norms()
            if found.finite:
                state = (new_weights, old_weights, old_slots, new_weights, new_slots)
                self._keras.apply(*state, step=step, lr_scale=lr_scale)
            return found

        update = self._updater(old_weights, old_slots, means, new_slots, step, lr_scale)
        if not self._clips_by_norm:

            def form_and_update(index: int, g: Array, t: Array) -> None:
                mean.form(index, g, t)
                update(index, g, t)

            self._for_each_piece(form_and_update)
            return mean.norms()

        self._for_each_piece(keep_mean)
        found = mean.norms()
        if found.finite:
            factors = self._clip_factors(mean.squares[:, -1])

            def clip_and_update(index: int, g: Array, t: Array) -> None:
                tensor, span = self._pieces[index]
                np.multiply(means[tensor][span], g.dtype.type(factors[tensor]), out=g)
                update(index, g, t)

            self._for_each_piece(clip_and_update)
        return found

    def finalise(self, weights: Sequence[Array], slots: Sequence[Array], out: Sequence[Array]) -> None:
        """What Keras does at the end of training: averaged weights, if there are any, take their place in `out`."""
        if self._keras is not None:
            self._keras.finalise(weights, slots, out)
            return
        count = len(self._rule.slots)
        final = slots[count - 1 :: count] if self._rule.use_ema else weights
        for source, target in zip(final, out, strict=True):
            np.copyto(target, source)

    # ---- blocks --------------------------------------------------------------------------------------------

    def _updater(
        self,
        old_weights: Sequence[Array],
        old_slots: Sequence[Array],
        new_weights: Sequence[Array],
        new_slots: Sequence[Array],
        step: int,
        lr_scale: float,
    ) -> Callable[[int, Array, Array], None]:
        count = len(self._rule.slots)
        weights = [array.reshape(-1) for array in old_weights]
        old = [array.reshape(-1) for array in old_slots]
        new = [_writable(array) for array in new_slots]
        if not len(old) == len(new) == len(self.slots) or not len(weights) == len(self._tensors):
            raise ValueError(f"there are {len(self._tensors)} tensors with {len(self.slots)} slots")
        with np.errstate(all="ignore"):
            rate = np.float32(float(self._learning_rate(step - 1)) * lr_scale)
            kernels = {dtype: self._rule.kernel(dtype, rate, step) for dtype in set(self._types)}

        def update(index: int, g: Array, t: Array) -> None:
            tensor, span = self._pieces[index]
            mine = slice(tensor * count, (tensor + 1) * count)
            kernels[self._types[tensor]](
                g,
                weights[tensor][span],
                [slot[span] for slot in old[mine]],
                new_weights[tensor][span],
                [slot[span] for slot in new[mine]],
                t,
            )

        return update

    @property
    def _clips_by_norm(self) -> bool:
        return (self._rule.clipnorm or self._rule.global_clipnorm or 0.0) > 0.0

    def _clip_factors(self, squares: Array) -> Array:
        """By what each tensor's mean gradient is multiplied: its own norm counts, or that of all."""
        limit = self._rule.clipnorm or self._rule.global_clipnorm or 0.0
        owners = np.array([piece.tensor for piece in self._pieces], dtype=np.intp)
        by_tensor = np.bincount(owners, weights=squares, minlength=len(self._tensors))
        if self._rule.global_clipnorm:
            by_tensor[:] = by_tensor.sum()
        return limit / np.maximum(np.sqrt(by_tensor), limit)

    def _for_each_piece(self, task: Callable[[int, Array, Array], None]) -> None:
        """Call `task(index, g, t)` for every piece, with room for two blocks of the piece's size and type."""
        left = iter(range(len(self._pieces)))  # the interpreter's lock makes taking the next one atomic

        def work(room: Array) -> None:
            with np.errstate(all="ignore"):
                for index in left:
                    tensor, span = self._pieces[index]
                    dtype = self._types[tensor]
                    g, t = room[:, : (span.stop - span.start) * dtype.itemsize].view(dtype)
                    task(index, g, t)

        first, *others = self._rooms
        waiting = [self._pool.submit(work, room) for room in others] if self._pool else []
        try:
            work(first)
        finally:
            for helper in waiting:
                helper.result()


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _pieces(tensors: Sequence[TensorSpec], types: Sequence[np.dtype[np.generic]]) -> list[_Piece]:
    pieces = []
    for index, (tensor, dtype) in enumerate(zip(tensors, types, strict=True)):
        size, block = math.prod(tensor.shape), _BLOCK_BYTES // dtype.itemsize
        pieces += [_Piece(index, slice(at, min(at + block, size))) for at in range(0, size, block)]
    return pieces


def _writable(array: Array) -> Array:
    """A flat view. What is written to a flattened copy would be lost."""
    if not array.flags.c_contiguous:
        raise ValueError("an array to be written is not contiguous")
    return array.reshape(-1)


def _sqnorm(block: Array) -> float:
    """|x|² of a flat block, right where single precision would overflow or underflow too."""
    if block.dtype.itemsize < np.dtype(np.float32).itemsize:
        block = block.astype(np.float32)
    square = _sum_of_squares(block)
    if block.dtype != np.float32 or _TINY < square < math.inf or math.isnan(square):
        return square
    if square == 0.0 and block.max() == 0.0 == block.min():
        return 0.0  # seldom but in embeddings, of which a batch names few rows: there it is most blocks
    return _sum_of_squares(block.astype(np.float64))


def _sum_of_squares(block: Array) -> float:
    whole = len(block) - len(block) % _ROW
    rows, rest = block[:whole].reshape(-1, _ROW), block[whole:]
    square = float(np.vecdot(rows, rows).sum(dtype=np.float64))
    if len(rest):  # seldom: a call costs as much as a third of a block
        square += float(np.vecdot(rest, rest))
    return square
