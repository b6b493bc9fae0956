"""The evaluation at the end of an epoch: metric sums of pieces of the validation data, and the metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scavenger.elastic.view import Piece


class EpochEvaluation:
    """Metric sums that have arrived of one evaluation.

    Args:
        shapes: Shapes of the metric sums.

    Attributes:
        metrics: The metrics that a worker has computed from the sums.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        self._shapes = shapes
        self._sums: dict[int, list[Any]] = {}
        self.metrics: dict[str, float] = {}

    def unpack(self, sums: Sequence[bytes]) -> list[Any]:
        """Return metric sums as arrays.

        Raises:
            ValueError: If they do not have the model's shapes.
        """
        return [np.frombuffer(data).reshape(shape) for data, shape in zip(sums, self._shapes, strict=True)]

    def add(self, piece: int, sums: list[Any]) -> None:
        """Record the sums over a piece of the validation data."""
        self._sums[piece] = sums

    def total(self, pieces: Sequence[Piece]) -> tuple[bytes, ...]:
        """Return the sums over all pieces."""
        totals = [np.zeros(shape) for shape in self._shapes]
        for piece in pieces:
            for total, value in zip(totals, self._sums[piece.number], strict=True):
                total += value
        return tuple(total.tobytes() for total in totals)

    def forget_sums(self) -> None:
        """Drop the sums; the metrics are kept, since they may have to be reported again."""
        self._sums.clear()
