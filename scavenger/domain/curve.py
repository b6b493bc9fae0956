"""What is predicted of every configuration, and what was chosen from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from scavenger.domain.configuration import Configuration

__all__ = [
    "EPOCHS_FROM",
    "Choice",
    "CurvePoint",
    "Infeasible",
    "Objective",
    "TradeoffCurve",
    "paid_share",
    "rest",
]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

Objective = str
"""`time`, `cost`, `knee` or `utility`."""


EPOCHS_FROM = "epochs from "
"""How the note begins that names the source of the predicted epochs."""


def rest(whole: FloatArray, once: FloatArray | None, remaining: float) -> FloatArray:
    """What is to come of times or costs where a share `remaining` of the way is left, `(whole - once) r + once`.

    Args:
        whole: From the beginning, shape `(n,)`; may be infinite.
        once: The part that is due whatever is left, shape `(n,)`; None: none is.
    """
    return whole * remaining if once is None else np.asarray((whole - once) * remaining + once)


def paid_share(cost_usd: FloatArray, time_s: FloatArray, of_s: FloatArray) -> FloatArray:
    """What a part of the time costs at the rate of the whole, shape `(n,)`; 0 where the whole never ends."""
    ends = np.isfinite(time_s) & (time_s > 0.0)
    return np.where(ends, of_s / np.where(ends, time_s, 1.0) * np.where(ends, cost_usd, 0.0), 0.0)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One configuration with what is predicted of it; intervals hold 90 % of what may come, as `(low, high)`."""

    configuration: Configuration
    time_s: float
    time_interval_s: tuple[float, float]
    cost_usd: float
    cost_interval_usd: tuple[float, float]
    step_time_s: float
    epochs: float
    on_front: bool
    measured: bool
    extrapolated: bool
    excluded: str
    """Why a constraint rules it out; empty where none does."""
    setup_s: float = 0.0
    """Of `time_s`: until VMs that are not there yet train; due whatever share of the way is left."""

    def rest_s(self, remaining: float) -> float:
        """Time to come where a share `remaining` of the way is left."""
        return (self.time_s - self.setup_s) * remaining + self.setup_s


@dataclass(frozen=True, slots=True)
class TradeoffCurve:
    """Every predicted (time, cost) point, as arrays of one length n, so that 100,000 points stay cheap.

    Attributes:
        vms: Names that `vm_index` points into.
        vm_index: shape `(n,)`.
        workers: K, shape `(n,)`.
        global_batch_size: B, shape `(n,)`.
        time_s, time_low_s, time_high_s: Predicted time to the target and its 90 % interval, seconds.
        cost_usd, cost_low_usd, cost_high_usd: Predicted cost and its 90 % interval, US dollars.
        step_time_s: Predicted time of a full step.
        epochs: Predicted epochs to the target.
        on_front: No other *allowed* point is at least as fast and as cheap, and better in one.
        measured: Profiled, so that its step time is a measurement.
        extrapolated: Outside the profiled range of K or B.
        excluded: Index into `reasons`; 0 where no constraint rules the point out.
        reasons: `reasons[0]` is empty.
        relative_only: Nothing is known of the epochs to the target but the user's bound: ratios between points
            mean something, absolute figures do not.
        notes: What is not counted, assumed or extrapolated; those that most change a choice come first.
        knee: Index of the knee among the points; None where the front has none.
        setup_s: Of `time_s`, shape `(n,)`: until VMs that are not there yet train. It is due whatever share of the
            way is left, and paid for at the same rate as the rest. None where it is not counted.
    """

    vms: tuple[str, ...]
    vm_index: IntArray
    workers: IntArray
    global_batch_size: IntArray
    time_s: FloatArray
    time_low_s: FloatArray
    time_high_s: FloatArray
    cost_usd: FloatArray
    cost_low_usd: FloatArray
    cost_high_usd: FloatArray
    step_time_s: FloatArray
    epochs: FloatArray
    on_front: BoolArray
    measured: BoolArray
    extrapolated: BoolArray
    excluded: IntArray
    reasons: tuple[str, ...] = ("",)
    relative_only: bool = False
    notes: tuple[str, ...] = field(default=())
    knee: int | None = None
    setup_s: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.time_s)

    def __getitem__(self, index: int) -> CurvePoint:
        i = int(index)
        return CurvePoint(
            configuration=Configuration(
                self.vms[self.vm_index[i]], int(self.workers[i]), int(self.global_batch_size[i])
            ),
            time_s=float(self.time_s[i]),
            time_interval_s=(float(self.time_low_s[i]), float(self.time_high_s[i])),
            cost_usd=float(self.cost_usd[i]),
            cost_interval_usd=(float(self.cost_low_usd[i]), float(self.cost_high_usd[i])),
            step_time_s=float(self.step_time_s[i]),
            epochs=float(self.epochs[i]),
            on_front=bool(self.on_front[i]),
            measured=bool(self.measured[i]),
            extrapolated=bool(self.extrapolated[i]),
            excluded=self.reasons[self.excluded[i]],
            setup_s=0.0 if self.setup_s is None else float(self.setup_s[i]),
        )

    def rest_s(self, remaining: float) -> FloatArray:
        """Time to come at each point where a share `remaining` of the way is left, shape `(n,)`."""
        return rest(self.time_s, self.setup_s, remaining)

    def rest_usd(self, remaining: float) -> FloatArray:
        """Cost to come at each point where a share `remaining` of the way is left, shape `(n,)`."""
        if self.setup_s is None:
            return rest(self.cost_usd, None, remaining)
        return rest(self.cost_usd, paid_share(self.cost_usd, self.time_s, self.setup_s), remaining)

    def __iter__(self) -> Iterator[CurvePoint]:
        return (self[i] for i in range(len(self)))

    def index(self, configuration: Configuration) -> int | None:
        """Where a configuration stands on the curve; None if it has none."""
        if configuration.vm not in self.vms:
            return None
        hits = np.flatnonzero(
            (self.vm_index == self.vms.index(configuration.vm))
            & (self.workers == configuration.workers)
            & (self.global_batch_size == configuration.global_batch_size)
        )
        return int(hits[0]) if len(hits) else None

    def find(self, configuration: Configuration) -> CurvePoint | None:
        """The point of a configuration; None if the curve has none."""
        index = self.index(configuration)
        return None if index is None else self[index]


@dataclass(frozen=True, slots=True)
class Choice:
    """The configuration to run, why, and what the others would cost.

    Attributes:
        objective: What was asked for.
        reason: One sentence for a person.
        alternatives: By label (`fastest`, `cheapest`, `knee`), each another point of the curve.
    """

    point: CurvePoint
    objective: Objective
    reason: str
    alternatives: tuple[tuple[str, CurvePoint], ...] = ()

    @property
    def configuration(self) -> Configuration:
        return self.point.configuration


@dataclass(frozen=True, slots=True)
class Infeasible:
    """No configuration meets the constraints.

    Attributes:
        reason: Which constraints rule everything out, in one sentence, with the nearest option and by how much
            it misses.
        nearest: The point that misses by least, relative to the limit; None if the space has no point at all.
    """

    reason: str
    nearest: CurvePoint | None
