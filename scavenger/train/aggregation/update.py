"""The aggregator's arithmetic: mean gradient, norms and optimizer in one pass over memory, without TensorFlow.

Every tensor is cut into blocks that stay in the processor's cache from the first read of the gradients to the
write of the new weights, and the blocks are distributed over threads: NumPy releases the interpreter lock while it
computes. Optimizers that need a norm of the mean gradient first (clipping by norms) take a second pass.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scavenger.train.aggregation.constraints import Constraint
from scavenger.train.aggregation.kernels import Array, read_rule
from scavenger.train.transport.messages.values import SlotSpec, TensorSpec

if TYPE_CHECKING:
    from scavenger.train.aggregation.keras_update import KerasUpdate

__all__ = ["Contribution", "Norms", "Update"]

Contribution = tuple[int, Sequence[Array]]
"""Number of samples, and one gradient per trainable tensor of the shard."""

_BLOCK_BYTES = 256 * 1024
"""Block size of one array. Smaller blocks suffer from NumPy's cost per call and from contention for the interpreter
lock, larger ones from cache misses: Adam over 25 million parameters, two threads, took 114 ms with 32 KiB, 52 with
128, 41 with 256, 43 with 512."""

_ROW = 4096
"""Elements whose squares are summed in single precision before double precision takes over; also short enough
that the linear-algebra library starts no threads of its own."""

_THREADS_MAX = 4
"""Default limit of threads. About a seventh of a block's time goes into NumPy's and Python's own steps, under the
interpreter's lock (`python -m benchmarks aggregation`: one thread against the row of many small tensors), and
the memory bandwidth is exhausted by a few threads too."""

_TINY = 1e-30
"""Below it the squares of a single-precision sum may have been lost to underflow."""

_FUSED_TYPES = frozenset({"float16", "float32", "float64"})


@dataclass(frozen=True, slots=True)
class Norms:
    """Norms for the gradient noise, over the tensors of one shard, in double precision.

    Attributes:
        mean_worker_sqnorm: Mean over the contributions of |g_k|², weighted by samples.
        mean_sqnorm: |g|² of the mean gradient.
        finite: Whether every gradient was finite. If not, the new weights and slots are invalid.
    """

    mean_worker_sqnorm: float
    mean_sqnorm: float
    finite: bool


class _Piece(NamedTuple):
    tensor: int
    span: slice


class _Mean:
    """Computes a step's mean gradient, piece by piece, and the norms.

    Attributes:
        squares: For each piece (row), |g_k|² of each contribution, then |g|² of the mean. Kept separately, so that
            sums do not depend on the order of the threads.

    Raises:
        ValueError: If no contribution has samples.
    """

    def __init__(self, pieces: Sequence[_Piece], contributions: Sequence[Contribution]) -> None:
        counted = [(samples, gradients) for samples, gradients in contributions if samples > 0]
        total = sum(samples for samples, _ in counted)
        if not total:
            raise ValueError("no contribution has samples")
        self._pieces = pieces
        self._shares = np.array([samples / total for samples, _ in counted])
        self._gradients = [[gradient.reshape(-1) for gradient in gradients] for _, gradients in counted]
        self.squares = np.zeros((len(pieces), len(counted) + 1))

    def form(self, index: int, out: Array, t: Array) -> None:
        """Write the mean over a piece to `out`; `t` is scratch space."""
        tensor, span = self._pieces[index]
        half = (
            out.dtype.itemsize < np.dtype(np.float32).itemsize
        )  # rounds once, as the gradient of one batch is
        total = np.empty(out.shape, np.float32) if half else out
        for k, gradients in enumerate(self._gradients):
            block = gradients[tensor][span]
            share = total.dtype.type(self._shares[k])
            self.squares[index, k] = _sqnorm(block)
            if k == 0:
                np.multiply(block, share, out=total)
            else:
                np.add(total, np.multiply(block, share, out=None if half else t), out=total)
        if half:
            out[...] = total
        self.squares[index, -1] = _sqnorm(out)

    def norms(self) -> Norms:
        """Return the norms; call this after `form` for every piece."""
        *workers, mean = self.squares.sum(axis=0)
        mean_worker = float(self._shares @ np.array(workers))
        return Norms(mean_worker, float(mean), bool(np.isfinite(mean_worker + mean)))


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
        self._pieces = tuple(_pieces(tensors, self._types))
        # a thread is not worth starting for less than one block
        size = sum(
            dtype.itemsize * math.prod(tensor.shape)
            for tensor, dtype in zip(self._tensors, self._types, strict=True)
        )
        self._threads = max(1, min(threads, size // _BLOCK_BYTES))
        self._pool = ThreadPoolExecutor(self._threads - 1, "update") if self._threads > 1 else None
        self._scratch = [np.empty((2, _BLOCK_BYTES), dtype=np.uint8) for _ in range(self._threads)]

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
        old_weights: Sequence[Array],
        old_slots: Sequence[Array],
        new_weights: Sequence[Array],
        new_slots: Sequence[Array],
        *,
        step: int,
        lr_scale: float = 1.0,
    ) -> Norms:
        """Apply one step: compute the mean gradient, weighted by samples, and the optimizer's update.

        Args:
            contributions: At least one with samples; those without samples are skipped.
            old_weights, old_slots: The state after the step before; only read.
            new_weights, new_slots: Where the state after this step goes: contiguous arrays which share no memory
                with any other argument. The new weights are also used as scratch space for the mean gradient.
            step: Counts from 1.
            lr_scale: Factor of this step's learning rate, and so of its weight decay.

        Raises:
            ValueError: If no contribution has samples, the step is below 1, or an array to be written is not
                contiguous.
        """
        if step < 1:
            raise ValueError(f"steps count from 1, and this is step {step}")
        norms = self._apply(contributions, old_weights, old_slots, new_weights, new_slots, step, lr_scale)
        if norms.finite:
            for tensor, constraint in self._constraints.items():
                constraint.apply(new_weights[tensor])
        return norms

    def _apply(
        self,
        contributions: Sequence[Contribution],
        old_weights: Sequence[Array],
        old_slots: Sequence[Array],
        new_weights: Sequence[Array],
        new_slots: Sequence[Array],
        step: int,
        lr_scale: float,
    ) -> Norms:
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
        """Write the final weights to `out`: the averaged weights if the optimizer keeps them, as Keras does."""
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
        """Return the clipping factor of each tensor's mean gradient, from its own norm or the global norm."""
        limit = self._rule.clipnorm or self._rule.global_clipnorm or 0.0
        owners = np.array([piece.tensor for piece in self._pieces], dtype=np.intp)
        by_tensor = np.bincount(owners, weights=squares, minlength=len(self._tensors))
        if self._rule.global_clipnorm:
            by_tensor[:] = by_tensor.sum()
        return limit / np.maximum(np.sqrt(by_tensor), limit)

    def _for_each_piece(self, task: Callable[[int, Array, Array], None]) -> None:
        """Call `task(index, g, t)` for every piece, with scratch space for two blocks of the piece's size and type."""
        left = iter(range(len(self._pieces)))  # the interpreter lock makes taking the next item atomic

        def work(room: Array) -> None:
            with np.errstate(all="ignore"):
                for index in left:
                    tensor, span = self._pieces[index]
                    dtype = self._types[tensor]
                    g, t = room[:, : (span.stop - span.start) * dtype.itemsize].view(dtype)
                    task(index, g, t)

        first, *others = self._scratch
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
    """Return a flat view; refuse arrays that would have to be copied, because writes to a copy are lost."""
    if not array.flags.c_contiguous:
        raise ValueError("an array to be written is not contiguous")
    return array.reshape(-1)


def _sqnorm(block: Array) -> float:
    """Compute |x|² of a flat block, correct even if single precision would overflow or underflow."""
    if block.dtype.itemsize < np.dtype(np.float32).itemsize:
        block = block.astype(np.float32)
    square = _sum_of_squares(block)
    if block.dtype != np.float32 or _TINY < square < math.inf or math.isnan(square):
        return square
    if square == 0.0 and block.max() == 0.0 == block.min():
        return 0.0  # common in embeddings only, where a batch uses few rows and most blocks are zero
    return _sum_of_squares(block.astype(np.float64))


def _sum_of_squares(block: Array) -> float:
    whole = len(block) - len(block) % _ROW
    rows, rest = block[:whole].reshape(-1, _ROW), block[whole:]
    square = float(np.vecdot(rows, rows).sum(dtype=np.float64))
    if len(rest):  # rare; this call costs as much as a third of a block
        square += float(np.vecdot(rest, rest))
    return square
