"""Results of back-tests: predictions compared with measurements that were not used in the fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scavenger.domain.curve import BoolArray, FloatArray

STEP_TIME_RANGE_S = (1e-9, 1e9)
"""Plausible step times, from one processor operation to thirty years."""

EPOCHS_RANGE = (1e-15, 1e21)
"""Plausible epochs or samples, in any unit."""

BATCH_MAX = float(2**53)
"""Largest batch, samples; above it, floating-point numbers in a file are not exact."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """One training run to its target, as in a file of convergence data; figures may be anything, NaN included.

    Attributes:
        epochs: To the target; or samples, only ratios matter.
    """

    source: str
    workload: str
    global_batch_size: float
    epochs: float

    def usable(self) -> bool:
        """Whether the row is plausible: a whole, positive batch size, and epochs within `EPOCHS_RANGE`."""
        low, high = EPOCHS_RANGE
        batch = float(self.global_batch_size)
        return 1.0 <= batch <= BATCH_MAX and batch.is_integer() and low <= self.epochs <= high


@dataclass(frozen=True, slots=True)
class PlacementRow:
    """The mean step time of one placement, as in a file of step times; figures may be anything, NaN included.

    Attributes:
        workers: K, over all nodes.
        local_batch_size: b, samples.
        sync_time_s: Part of the step seen as synchronisation; NaN where unknown.
        marked: One of the points that the file proposes to fit to.
    """

    workload: str
    cluster: str
    workers_per_node: int
    workers: int
    local_batch_size: float
    global_batch_size: float
    step_time_s: float
    sync_time_s: float
    marked: bool


@dataclass(frozen=True, slots=True)
class HeldOutPrediction:
    """One measurement that was not used in the fit, with its prediction.

    Attributes:
        at: What it was measured at, as in `batch 512` or `K 4, b 32`.
        truth, predicted, low, high: In the unit of the file; low to high is the 90 % interval.
    """

    at: str
    truth: float
    predicted: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class GroupResult:
    """Result of one group: fitted to some of its points, evaluated at the others.

    Attributes:
        origin: Source of convergence data, cluster of step times.
        workers_per_node: None for convergence data.
        law: Name of the law with the largest weight.
        profiled: Points of the fit, as in `HeldOutPrediction.at`.
        dropped: Number of invalid rows: not finite, not positive, missing.
    """

    origin: str
    workers_per_node: int | None
    workload: str
    law: str
    profiled: tuple[str, ...]
    predictions: tuple[HeldOutPrediction, ...]
    dropped: int = 0

    def errors(self) -> FloatArray:
        """Absolute errors |predicted / truth - 1| in percent, shape `(n,)`."""
        return np.array([100.0 * abs(p.predicted / p.truth - 1.0) for p in self.predictions])

    def covered(self) -> BoolArray:
        """Which true values lie in their 90 % intervals, shape `(n,)`."""
        return np.array([p.low <= p.truth <= p.high for p in self.predictions], dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class SkippedGroup:
    """A group that was skipped for too few points, and the reason."""

    origin: str
    workers_per_node: int | None
    workload: str
    reason: str
    dropped: int = 0


class ErrorSummary(NamedTuple):
    """What a table says of several groups, each counting once in mean and worst.

    Attributes:
        mean_ape, worst_ape: Of the groups' mean absolute errors, percent.
        coverage90: Share of all predictions whose interval contains the true value.
        half_width90: Median over all predictions of how far their interval reaches up, as a share.
    """

    mean_ape: float
    worst_ape: float
    coverage90: float
    half_width90: float


def summary(results: Sequence[GroupResult]) -> ErrorSummary | None:
    """Of at least one group with predictions; None without any."""
    coverage, width = coverage90(results), half_width90(results)
    if coverage is None or width is None:
        return None
    means = [float(np.mean(result.errors())) for result in results]
    return ErrorSummary(float(np.mean(means)), max(means), coverage, width)


def median_ape(results: Sequence[GroupResult]) -> float | None:
    """The median over groups of each one's median absolute error, percent; None without a group."""
    return float(np.median([np.median(result.errors()) for result in results])) if results else None


def half_width90(results: Sequence[GroupResult]) -> float | None:
    """The median over all predictions of how far their interval reaches up, as a share; None without a prediction."""
    reach = [p.high / p.predicted - 1.0 for result in results for p in result.predictions]
    return float(np.median(reach)) if reach else None


def coverage90(results: Sequence[GroupResult]) -> float | None:
    """The share of all predictions whose interval contains the true value; None without a prediction."""
    covered = [held for result in results for held in result.covered()]
    return float(np.mean(covered)) if covered else None
