"""The samples that a worker computes: in each epoch's order, without quarantined ones, read ahead."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from scavenger.elastic.order import EpochOrder, Passes
from scavenger.elastic.quarantine import without
from scavenger.elastic.view import Share, WorkerView, share_of, step_range
from scavenger.train.worker.data import SampleSource
from scavenger.train.worker.prefetch import Prefetcher

_STEPS_AHEAD = 2  # a batch that takes longer to read than others delays no step if the next is there already


class _AllPasses:
    """The samples of all passes in one sequence: sample i of pass p over D samples is p D + i."""

    def __init__(self, source: SampleSource, seed: int) -> None:
        self._source, self._seed = source, seed

    def batch(self, numbers: npt.NDArray[np.int64]) -> tuple[Any, ...]:
        """Return samples of one pass."""
        passes, indices = np.divmod(numbers, len(self._source))
        key = f"{self._seed} {passes[0]}".encode()
        seed = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
        return self._source.batch(indices, seed)


class Samples:
    """Training samples of one worker.

    Args:
        source: The training data.
        seed: The job's seed, which determines the order of each epoch.
        passes: How epochs go through the data.
    """

    def __init__(self, source: SampleSource, seed: int, passes: Passes | None = None) -> None:
        self._passes = passes or Passes()
        self._total, self._seed, self._blocks = len(source), seed, source.blocks
        self._size = self._total // self._passes.epochs
        self._batches = Prefetcher(_AllPasses(source, seed), depth=_STEPS_AHEAD)
        self._orders: dict[int, EpochOrder] = {}
        self._quarantined: tuple[int, ...] = ()

    @property
    def waited_s(self) -> float:
        """Total seconds that `read` has waited for data."""
        return self._batches.waited_s

    def leave_out(self, quarantined: tuple[int, ...]) -> None:
        """Leave out these samples, by their indices in the data, from now on."""
        self._quarantined = quarantined

    def indices(self, epoch: int, share: Share) -> npt.NDArray[np.int64]:
        """Return the indices of a share of an epoch's order, without quarantined samples."""
        if epoch not in self._orders:
            # at the end of an epoch, the next one is read ahead; the order of each takes memory
            kept = {number: order for number, order in self._orders.items() if abs(number - epoch) == 1}
            order = EpochOrder(self._seed, epoch, self._size, self._blocks, self._passes)
            self._orders = kept | {epoch: order}
        return without(self._orders[epoch].indices(share.start, share.stop), self._quarantined)

    def read(self, epoch: int, share: Share) -> tuple[Any, ...]:
        """Return the batch of a share; waits for it if it was not read ahead.

        Raises:
            Exception: The exception that the user's data raised.
        """
        return self._batches.take((epoch, share.start, share.stop), self._numbers(epoch, share))

    def _numbers(self, epoch: int, share: Share) -> npt.NDArray[np.int64]:
        return epoch // self._passes.epochs * self._total + self.indices(epoch, share)

    def read_ahead(self, view: WorkerView, step: int) -> None:
        """Begin to read the shares that a member has in a step and those after it, according to a view."""
        if view.rank is None:
            return
        for number in range(step, step + _STEPS_AHEAD):
            place = step_range(view, number, self._size)
            share = share_of(place.samples, view.workers, view.rank)
            numbers = self._numbers(place.epoch, share)
            if len(numbers):
                self._batches.want((place.epoch, share.start, share.stop), numbers)

    def forget(self) -> None:
        """Drop what was read ahead."""
        self._batches.forget()

    def close(self) -> None:
        """End the reading thread."""
        self._batches.close()
