"""The order of the samples in an epoch, and the random streams of a model for them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

_UINT64 = (1 << 64) - 1
_HALF_BITS = 24
_HALF_MASK = (1 << _HALF_BITS) - 1
_GENERATOR_BITS = 12
_DRAW_BITS = 12
_WINDOWS_KEPT = 2  # while one is computed, the next is read ahead


def epoch_order(seed: int, epoch: int, dataset_size: int) -> npt.NDArray[np.int64]:
    """The permutation of an epoch: a pure function, so that no process has to assign samples or remember them.

    Drawn from a counter-based generator keyed by `(seed, epoch)`; it does not depend on the number of
    workers, and so neither does the result of training.

    Args:
        seed: Of the job.
        epoch: 0-based.
        dataset_size: D, at least 1.

    Returns:
        Sample indices, shape `(dataset_size,)`, each of `0..D-1` once.

    Raises:
        ValueError: If `dataset_size` or `epoch` is out of range.
    """
    if dataset_size < 1 or epoch < 0:
        raise ValueError(f"no order for epoch {epoch} of {dataset_size} samples")
    return _permutation(dataset_size, seed, epoch)


def _permutation(size: int, seed: int, epoch: int, stream: int = 0) -> npt.NDArray[np.int64]:
    """A permutation of `size` numbers; streams of one epoch are 2^192 draws apart."""
    key = np.array([seed & _UINT64, epoch], dtype=np.uint64)
    counter = np.array([0, 0, 0, stream], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter)).permutation(size)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Neighbouring samples that are read together, and how far an epoch's order mixes them.

    Attributes:
        runs: Sizes of the blocks in the order of the data, as pairs (number of blocks, samples of each).
        mixed: Blocks of a window. An epoch's order mixes all samples of a window, and no others.
        in_sequence: Whether blocks keep their order, for data that can be read only from its beginning to its end;
            otherwise the order shuffles them before it makes windows of them.
    """

    runs: tuple[tuple[int, int], ...]
    mixed: int = 1
    in_sequence: bool = False

    def __post_init__(self) -> None:
        if self.mixed < 1 or any(number < 1 or samples < 1 for number, samples in self.runs):
            raise ValueError(f"blocks need samples, and windows blocks: {self}")

    @classmethod
    def of(cls, sizes: Iterable[int], *, mixed: int = 1) -> Blocks:
        """Blocks of given sizes; empty ones are left out."""
        sizes = (size for size in sizes if size)
        return cls(tuple((len(tuple(run)), size) for size, run in groupby(sizes)), mixed)

    @classmethod
    def alike(cls, samples: int, size: int, *, mixed: int = 1, in_sequence: bool = False) -> Blocks:
        """Blocks of one size, of which the last may be smaller."""
        number, rest = divmod(samples, size)
        runs = ((number, size), (1, rest))
        return cls(tuple(run for run in runs if run[0] and run[1]), mixed, in_sequence)

    @property
    def samples(self) -> int:
        return sum(number * samples for number, samples in self.runs)

    def sizes(self) -> npt.NDArray[np.int64]:
        """Samples of each block, shape `(blocks,)`."""
        numbers, samples = zip(*self.runs, strict=True)
        return np.repeat(np.array(samples, dtype=np.int64), numbers)


@dataclass(frozen=True, slots=True)
class Passes:
    """How epochs go through the data.

    Attributes:
        epochs: Epochs of one pass over the data: each takes its share of the pass's order, after the one before.
        shuffle: Whether each pass has an order of its own; otherwise it is that of the data.
    """

    epochs: int = 1
    shuffle: bool = True


class EpochOrder:
    """The order of the samples in one epoch, from which any stretch can be had without the rest.

    Without blocks it is `epoch_order`. With blocks it shuffles the blocks, cuts their sequence into windows, and
    shuffles the samples of each window. Either is a pure function of the arguments. With n blocks and windows of w
    samples it takes O(n + w) memory, and O(w) time for a stretch after O(n) for the first.

    A window is a random choice of blocks. So if the samples of a block are alike, as in data that is sorted by class,
    the share of a class in a batch of B samples has the variance p (1 - p) (1/B + 1/mixed), instead of
    p (1 - p) / B in a full permutation.

    Args:
        seed: Of the job.
        epoch: 0-based.
        dataset_size: Samples of an epoch, at least 1.
        blocks: Blocks of the data; None if every sample can be read on its own.
        passes: How the epochs go through the data.

    Raises:
        ValueError: If `dataset_size` or `epoch` is out of range, or the blocks hold another number of samples.
    """

    def __init__(
        self,
        seed: int,
        epoch: int,
        dataset_size: int,
        blocks: Blocks | None = None,
        passes: Passes | None = None,
    ) -> None:
        passes = passes or Passes()
        if dataset_size < 1 or epoch < 0:
            raise ValueError(f"no order for epoch {epoch} of {dataset_size} samples")
        number, part = divmod(epoch, passes.epochs)
        self._begin, samples = part * dataset_size, passes.epochs * dataset_size
        if blocks is not None and blocks.samples != samples:
            raise ValueError(f"no order of {samples} samples in {blocks}")
        self._shuffle, self._seed, self._epoch, self._blocks = passes.shuffle, seed, number, blocks
        self._kept: dict[int, npt.NDArray[np.int64]] = {}
        if not passes.shuffle:
            return
        if blocks is None:
            self._windows = np.array([0, samples])
            self._kept[0] = epoch_order(seed, number, samples)
            return
        sizes = blocks.sizes()
        count = len(sizes)
        order = np.arange(count) if blocks.in_sequence else _permutation(count, seed, number)
        self._starts, self._sizes = (np.cumsum(sizes) - sizes)[order], sizes[order]
        ends = np.cumsum(self._sizes)
        self._windows = np.concatenate([[0], ends[blocks.mixed - 1 : -1 : blocks.mixed], ends[-1:]])

    def indices(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the samples at positions `start` to `stop` (exclusive) of the order, shape `(stop - start,)`."""
        start, stop = start + self._begin, stop + self._begin
        if not self._shuffle:
            return np.arange(start, stop)
        if start == stop:
            return np.empty(0, dtype=np.int64)
        first, last = np.searchsorted(self._windows, [start, stop - 1], side="right") - 1
        parts = []
        for window in range(int(first), int(last) + 1):
            low, high = int(self._windows[window]), int(self._windows[window + 1])
            parts.append(self._window(window)[max(start - low, 0) : min(stop, high) - low])
        while len(self._kept) > max(_WINDOWS_KEPT, last - first + 1):
            self._kept.pop(next(iter(self._kept)))
        return np.concatenate(parts)

    def _window(self, window: int) -> npt.NDArray[np.int64]:
        if window in self._kept:
            self._kept[window] = self._kept.pop(window)  # the one used last is the last to go
        else:
            assert self._blocks is not None
            blocks = slice(window * self._blocks.mixed, (window + 1) * self._blocks.mixed)
            samples = np.concatenate(
                [
                    np.arange(start, start + size)
                    for start, size in zip(self._starts[blocks], self._sizes[blocks], strict=True)
                ]
            )
            self._kept[window] = samples[_permutation(len(samples), self._seed, self._epoch, window + 1)]
        return self._kept[window]


def random_streams(
    seed: int, position: int, generators: int, *, evaluation: int = 0
) -> npt.NDArray[np.int64]:
    """Initial states of a model's random generators for the samples from `position` on.

    A generator of Keras is two numbers below 2^31 - 2; a draw reads both and adds 1 to the second. The streams
    of a job can never meet: `(position, generator)` is written as one number of 48 bits, a permutation keyed by
    the seed scatters these numbers, and 30 bits of the result are the first number of a stream, 18 bits the upper
    part of its second. The lower 12 bits are left to the draws. The permutation is a Feistel network of four
    rounds with a keyed hash [1]_. Positions count modulo 2^36, which no job reaches.

    Streams belong to samples, not processes: any worker that computes a share, also after a failure, draws the same,
    and no two shares of a job draw alike, since their first samples differ.

    Args:
        seed: Of the job.
        position: Number of earlier samples of the job, over all epochs.
        generators: Number of streams: those of generators `0..generators-1`, at most 4096.
        evaluation: 0 for training. An evaluation names its step and draws from streams of its own.

    Returns:
        The generators' states, shape `(generators, 2)`. Each gives 4096 draws of its own.

    Raises:
        ValueError: If there are more than 4096 generators, or `position` is negative.

    References:
        .. [1] Luby and Rackoff, "How to Construct Pseudorandom Permutations from Pseudorandom Functions", 1988.
    """
    if not 0 <= generators <= 1 << _GENERATOR_BITS:
        raise ValueError(f"{generators} random generators are more than {1 << _GENERATOR_BITS}")
    if position < 0:
        raise ValueError(f"no random streams for position {position}")
    position = int(position) % (1 << 2 * _HALF_BITS - _GENERATOR_BITS)
    key = (seed & _UINT64).to_bytes(8, "little") + evaluation.to_bytes(8, "little")
    states = np.empty((generators, 2), dtype=np.int64)
    for generator in range(generators):
        scattered = _permute(position << _GENERATOR_BITS | generator, key)
        high, low = divmod(scattered, 1 << 2 * _HALF_BITS - 30)
        states[generator] = high, low << _DRAW_BITS
    return states


def _permute(number: int, key: bytes) -> int:
    left, right = number >> _HALF_BITS, number & _HALF_MASK
    for turn in range(4):
        digest = hashlib.blake2b(
            right.to_bytes(4, "little"), digest_size=4, key=key, salt=bytes([turn])
        ).digest()
        left, right = right, left ^ int.from_bytes(digest, "little") & _HALF_MASK
    return left << _HALF_BITS | right
