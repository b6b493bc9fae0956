"""Epochs of a run without a target: as many at every batch size, or those that make the same progress.

To come as far takes 1 + B / B* times the epochs of a vanishing batch (`epoch_laws`, k = 1). A batch that grows from B0
to B then takes (1 + B / B*) / (1 + B0 / B*) times as many: at least as many, and at most B / B0 times, which are as
many steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from scavenger.domain.curve import FloatArray
from scavenger.models.types import LARGEST, SMALLEST, Positive

SHORT = 0.05
"""Part of an epoch that a run may lack of its progress rather than train another epoch for it."""


@dataclass(frozen=True, slots=True)
class FixedEpochs:
    """A run lasts a number of epochs that is known beforehand, since it has no target.

    Attributes:
        epochs_all: Epochs of a run, at `reference_batch_size` where there is one.
        critical_batch_size: B*, samples; None where nothing is known of it.
        reference_batch_size: B0, samples, whose progress runs at all batch sizes make; None where each lasts
            `epochs_all`.
    """

    epochs_all: Positive
    critical_batch_size: Positive | None = None
    reference_batch_size: Positive | None = None
    kind: Literal["fixed"] = "fixed"

    @classmethod
    def through(cls, epochs_all: float, own: float, size: float, growth: float) -> FixedEpochs:
        """The law by which a batch size needs `growth` times the epochs of the own one.

        A growth beyond what any B* gives counts as the nearest that one does: see the module.
        """
        if size == own:
            return cls(epochs_all, None, own)
        # growth = (1 + size / B*) / (1 + own / B*), solved for B*
        larger, rest = (
            (growth - 1.0, size - growth * own) if size > own else (1.0 - growth, growth * own - size)
        )
        critical = LARGEST if larger <= 0.0 else rest / larger
        return cls(epochs_all, min(max(critical, SMALLEST), LARGEST), own)

    def epochs(self, global_batch_size: FloatArray) -> FloatArray:
        """Epochs of a run at each B, whole ones at equal progress.

        Where nothing is known of B*, a larger batch is taken to need as many steps, and a smaller one as many epochs:
        the most that each can need.
        """
        size = np.asarray(global_batch_size, dtype=np.float64)
        if self.reference_batch_size is None:
            return np.full(size.shape, self.epochs_all)
        return np.maximum(1.0, np.ceil(self.epochs_all * self._growth(size) - SHORT))

    def beside_own(self, global_batch_size: int) -> str:
        """The epochs at a batch size beside those at the own one, and why they differ; empty where they do not."""
        own = self.reference_batch_size
        needed = float(self.epochs(np.array([global_batch_size], dtype=np.float64))[0])
        if own is None or needed == self.epochs_all:
            return ""
        larger, less = ("larger", "less") if global_batch_size > own else ("smaller", "more")
        progress = f"the progress of {self.epochs_all:,.0f} at batch {own:g}, as a {larger} batch makes {less} in each"
        return (
            f"{needed:,.0f} epochs at batch {global_batch_size} make {progress}; --epochs-fixed trains "
            f"{self.epochs_all:,.0f}"
        )

    def _growth(self, size: FloatArray) -> FloatArray:
        own, critical = self.reference_batch_size, self.critical_batch_size
        assert own is not None
        if critical is None:
            return np.maximum(1.0, size / own)
        return np.asarray((1.0 + size / critical) / (1.0 + own / critical))

    def progress_share(self, global_batch_size: FloatArray) -> FloatArray | None:
        """Progress of as many epochs at each B, as a share of that at a vanishing batch size: 1 / (1 + B / B*).

        Returns:
            Shares in (0, 1), shape `(n,)`; None where nothing is known of B*, or all come as far.
        """
        if self.critical_batch_size is None or self.reference_batch_size is not None:
            return None
        return np.asarray(1.0 / (1.0 + np.asarray(global_batch_size) / self.critical_batch_size))

    def left(self, done: float, samples_by_batch: Mapping[int, float], global_batch_size: int) -> float:
        """Epochs that are left at a batch size, below 0 after more than were needed.

        Args:
            done: Epochs that are trained.
            samples_by_batch: Their samples by batch size; only ratios count.
            global_batch_size: B from now on.
        """
        at = float(self.epochs(np.array([float(global_batch_size)]))[0])
        sizes = np.array([size for size, samples in samples_by_batch.items() if samples], dtype=np.float64)
        if not len(sizes):
            return at - done
        samples = np.array([samples for samples in samples_by_batch.values() if samples], dtype=np.float64)
        progress_of_an_epoch = float(np.sum(samples / self.epochs(sizes)) / samples.sum())
        return (1.0 - done * progress_of_an_epoch) * at

    def shape_gradient(self, global_batch_size: FloatArray) -> FloatArray:
        return np.zeros(np.shape(global_batch_size))
