"""The samples that a job leaves out, since workers crashed on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from scavenger.elastic.order import EpochOrder
from scavenger.elastic.view import Piece
from scavenger.train.transport.messages import Manifest


class LeftOut:
    """Samples that a job leaves out.

    Args:
        manifest: Description of the model and its data.
        seed: The job's seed, which determines the sample order of each epoch.
        samples: Indices of samples that are left out already.

    Attributes:
        samples: Indices of all of them, ascending.
    """

    def __init__(self, manifest: Manifest, seed: int, samples: Iterable[int]) -> None:
        self._manifest, self._seed = manifest, seed
        self.samples = tuple(sorted(samples))

    def counts(self, epoch: int, pieces: Sequence[Piece]) -> list[int]:
        """Return the number of samples of each piece of an epoch that are not left out."""
        if not self.samples:
            return [piece.share.samples for piece in pieces]
        order = self._order_of(epoch)
        return [
            int(np.isin(order.indices(piece.share.start, piece.share.stop), self.samples, invert=True).sum())
            for piece in pieces
        ]

    def add(self, epoch: int, start: int, stop: int) -> tuple[int, ...]:
        """Leave out a range of an epoch's order as well; returns the indices of its samples."""
        added = tuple(int(index) for index in self._order_of(epoch).indices(start, stop))
        self.samples = tuple(sorted({*self.samples, *added}))
        return added

    def _order_of(self, epoch: int) -> EpochOrder:
        manifest = self._manifest
        return EpochOrder(self._seed, epoch, manifest.dataset_size, manifest.blocks, manifest.passes)
