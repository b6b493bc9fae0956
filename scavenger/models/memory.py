"""The memory that a worker takes, by its local batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from scavenger.domain.measurement import Measurement
from scavenger.models.types import NotNegative

MEMORY_USABLE = 0.9
"""Share of a VM's memory that a worker may use; the rest is for the system and the error of the law."""

LOCAL_BATCH_MAX = 2**53
"""Largest local batch, samples; if more would fit, memory does not grow with the batch."""

MEMORY_SLOPE_MIN = 1e-3
"""Least growth over the profiled local batches, relative to the base; less may be rounding to pages."""


@dataclass(frozen=True, slots=True)
class MemoryLaw:
    """Resident memory of a worker by its local batch: base + per_sample b."""

    base_bytes: NotNegative
    per_sample_bytes: NotNegative

    def local_batch_max(self, memory_bytes: float) -> int | None:
        """The largest local batch that fits (0: not even one sample); None where memory does not grow."""
        room = MEMORY_USABLE * memory_bytes - self.base_bytes
        if room <= 0.0:
            return 0
        grows = self.per_sample_bytes * LOCAL_BATCH_MAX > room
        return math.floor(room / self.per_sample_bytes) if grows else None


def fit_memory(measurements: Sequence[Measurement]) -> MemoryLaw | None:
    """Fit the memory law through the highest measurements; None if no memory was measured."""
    rows = [(m.configuration.local_batch_size, m.memory_bytes) for m in measurements if m.memory_bytes > 0]
    if not rows:
        return None
    batch, memory = np.array(rows, dtype=np.float64).T
    if len(np.unique(batch)) < 2:
        return MemoryLaw(float(memory.max()), 0.0)
    (base, slope), _ = nnls(np.column_stack((np.ones(len(batch)), batch / batch.max())), memory)
    # A worker that runs out of memory is lost, so the line goes through the highest point, not the middle.
    base += max(float(np.max(memory - base - slope * batch / batch.max())), 0.0)
    if slope < MEMORY_SLOPE_MIN * base:
        return MemoryLaw(float(memory.max()), 0.0)
    return MemoryLaw(float(base), float(slope / batch.max()))
