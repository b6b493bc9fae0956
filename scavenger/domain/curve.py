"""The tradeoff curve: the predictions for every configuration, and the choice made from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from scavenger.domain.configuration import Configuration

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

Objective = str
"""`time`, `cost`, `knee` or `utility`."""


EPOCHS_FROM = "epochs from "
"""Prefix of the note that names the source of the predicted epochs."""


def rest(whole: FloatArray, once: FloatArray | None, remaining: float) -> FloatArray:
    """Remaining times or costs when a share r = `remaining` of the training is left, `(whole - once) r + once`.

    Args:
        whole: Times or costs of the whole run, shape `(n,)`; may be infinite.
        once: The part that is due whatever share is left, shape `(n,)`; None if there is no such part.
    """
    return whole * remaining if once is None else np.asarray((whole - once) * remaining + once)


def paid_share(cost_usd: FloatArray, time_s: FloatArray, of_s: FloatArray) -> FloatArray:
    """Cost of a part of the time at the average rate, shape `(n,)`; 0 where the total time is infinite."""
    ends = np.isfinite(time_s) & (time_s > 0.0)
    return np.where(ends, of_s / np.where(ends, time_s, 1.0) * np.where(ends, cost_usd, 0.0), 0.0)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One configuration with its predictions; intervals are 90 % prediction intervals, as `(low, high)`."""

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
    """Why a constraint excludes the point; empty if none does."""
    setup_s: float = 0.0
    """Part of `time_s`: the start of VMs that are still to be launched; due whatever share of the training is left."""
    progress_share: float | None = None
    """See `TradeoffCurve.progress_share`."""

    def rest_s(self, remaining: float) -> float:
        """Remaining time when a share `remaining` of the training is left."""
        return (self.time_s - self.setup_s) * remaining + self.setup_s


@dataclass(frozen=True, slots=True)
class CurveConfigurations:
    """The configurations of a curve's points.

    Attributes:
        vms: VM type names, indexed by `vm_index`.
        vm_index: Index into `vms`, shape `(n,)`.
        workers: K, shape `(n,)`.
        global_batch_size: B, shape `(n,)`.
    """

    vms: tuple[str, ...]
    vm_index: IntArray
    workers: IntArray
    global_batch_size: IntArray

    def __getitem__(self, index: int) -> Configuration:
        return Configuration(
            self.vms[self.vm_index[index]], int(self.workers[index]), int(self.global_batch_size[index])
        )

    def index(self, configuration: Configuration) -> int | None:
        """Index of a configuration; None if it is not among them."""
        if configuration.vm not in self.vms:
            return None
        hits = np.flatnonzero(
            (self.vm_index == self.vms.index(configuration.vm))
            & (self.workers == configuration.workers)
            & (self.global_batch_size == configuration.global_batch_size)
        )
        return int(hits[0]) if len(hits) else None


@dataclass(frozen=True, slots=True)
class Interval:
    """The 90 % prediction intervals of a curve's points: their ends, shape `(n,)` each."""

    low: FloatArray
    high: FloatArray

    def __getitem__(self, index: int) -> tuple[float, float]:
        return float(self.low[index]), float(self.high[index])


@dataclass(frozen=True, slots=True)
class PointMarks:
    """What holds of each point of a curve, shape `(n,)` each.

    Attributes:
        on_front: Whether the point is on the Pareto front of the *allowed* points.
        measured: Whether the configuration was profiled, so that its step time is a measurement.
        extrapolated: Whether it lies outside the profiled range of K or B.
        excluded: Index into `reasons`; 0 if no constraint excludes the point.
        reasons: `reasons[0]` is empty.
    """

    on_front: BoolArray
    measured: BoolArray
    extrapolated: BoolArray
    excluded: IntArray
    reasons: tuple[str, ...] = ("",)


@dataclass(frozen=True, slots=True)
class TradeoffCurve:
    """Every predicted (time, cost) point, as arrays of one length n, so that 100,000 points stay cheap.

    Attributes:
        time_s, time_interval_s: Predicted time to the target and its interval, seconds.
        cost_usd, cost_interval_usd: Predicted cost and its interval, US dollars.
        step_time_s: Predicted time of a step with a full batch.
        epochs: Predicted epochs to the target.
        relative_only: Only the user's bound on the epochs to the target is known: ratios between points are
            meaningful, absolute values are not.
        notes: What is not counted, assumed or extrapolated; the most important for a choice come first.
        knee: Index of the knee among the points; None where the front has none.
        setup_s: Part of `time_s`, shape `(n,)`: the start of VMs that are still to be launched. It is due whatever
            share of the training is left, and paid for at the same rate as the rest. None if it is not counted.
        progress_share: Progress of a run without a target, whose epochs are fixed, as a share of what as many epochs
            would achieve at very small batches, shape `(n,)`. None with a target, or if it is unknown.
    """

    configurations: CurveConfigurations
    time_s: FloatArray
    time_interval_s: Interval
    cost_usd: FloatArray
    cost_interval_usd: Interval
    step_time_s: FloatArray
    epochs: FloatArray
    marks: PointMarks
    relative_only: bool = False
    notes: tuple[str, ...] = field(default=())
    knee: int | None = None
    setup_s: FloatArray | None = None
    progress_share: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def workers_measured(self) -> BoolArray:
        """Whether any batch size was measured at a point's VM type and number of workers, shape `(n,)`."""
        at = self.configurations
        sizes = np.stack((at.vm_index, at.workers), axis=1)
        known = np.unique(sizes[self.marks.measured], axis=0)
        return np.asarray((sizes[:, None, :] == known[None, :, :]).all(axis=2).any(axis=1))

    def __getitem__(self, index: int) -> CurvePoint:
        i, marks = int(index), self.marks
        return CurvePoint(
            configuration=self.configurations[i],
            time_s=float(self.time_s[i]),
            time_interval_s=self.time_interval_s[i],
            cost_usd=float(self.cost_usd[i]),
            cost_interval_usd=self.cost_interval_usd[i],
            step_time_s=float(self.step_time_s[i]),
            epochs=float(self.epochs[i]),
            on_front=bool(marks.on_front[i]),
            measured=bool(marks.measured[i]),
            extrapolated=bool(marks.extrapolated[i]),
            excluded=marks.reasons[marks.excluded[i]],
            setup_s=0.0 if self.setup_s is None else float(self.setup_s[i]),
            progress_share=None if self.progress_share is None else float(self.progress_share[i]),
        )

    def rest_s(self, remaining: float) -> FloatArray:
        """Remaining time of each point when a share `remaining` of the training is left, shape `(n,)`."""
        return rest(self.time_s, self.setup_s, remaining)

    def rest_usd(self, remaining: float) -> FloatArray:
        """Remaining cost of each point when a share `remaining` of the training is left, shape `(n,)`."""
        if self.setup_s is None:
            return rest(self.cost_usd, None, remaining)
        return rest(self.cost_usd, paid_share(self.cost_usd, self.time_s, self.setup_s), remaining)

    def take(self, points: IntArray) -> TradeoffCurve:
        """The curve of some of its points, by their indices, increasing, shape `(m,)`."""
        at, marks = self.configurations, self.marks
        knee = [] if self.knee is None else np.flatnonzero(points == self.knee).tolist()

        def few(values: FloatArray | None) -> FloatArray | None:
            return None if values is None else values[points]

        return replace(
            self,
            configurations=CurveConfigurations(
                at.vms, at.vm_index[points], at.workers[points], at.global_batch_size[points]
            ),
            time_s=self.time_s[points],
            time_interval_s=Interval(self.time_interval_s.low[points], self.time_interval_s.high[points]),
            cost_usd=self.cost_usd[points],
            cost_interval_usd=Interval(
                self.cost_interval_usd.low[points], self.cost_interval_usd.high[points]
            ),
            step_time_s=self.step_time_s[points],
            epochs=self.epochs[points],
            marks=replace(
                marks,
                on_front=marks.on_front[points],
                measured=marks.measured[points],
                extrapolated=marks.extrapolated[points],
                excluded=marks.excluded[points],
            ),
            knee=knee[0] if knee else None,
            setup_s=few(self.setup_s),
            progress_share=few(self.progress_share),
        )

    def __iter__(self) -> Iterator[CurvePoint]:
        return (self[i] for i in range(len(self)))

    def find(self, configuration: Configuration) -> CurvePoint | None:
        """The point of a configuration; None if the curve has none."""
        index = self.configurations.index(configuration)
        return None if index is None else self[index]


@dataclass(frozen=True, slots=True)
class Choice:
    """The configuration to run, the reason, and the alternatives.

    Attributes:
        objective: The objective that the user chose.
        reason: One sentence for a person.
        alternatives: Other points of the curve by label (`fastest`, `cheapest`, `knee`).
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
        reason: Which constraints exclude every point, in one sentence, with the nearest option and by how much
            it exceeds the limit.
        nearest: The point that exceeds its limit by the smallest factor; None if the space has no point at all.
    """

    reason: str
    nearest: CurvePoint | None


def thinned(
    curve: TradeoffCurve, choice: Choice | Infeasible | None, points_max: int
) -> tuple[TradeoffCurve, tuple[str, ...]]:
    """A curve with about `points_max` points at most, for a picture or a record: a search may have 100,000.

    Front, knee, measured points and those that the choice names are kept; of the others, evenly many.

    Returns:
        The curve, and a note that says what was left out; none if nothing was.
    """
    if len(curve) <= points_max:
        return curve, ()
    keep = curve.marks.on_front | curve.marks.measured
    named: list[CurvePoint] = []
    if isinstance(choice, Choice):
        named = [choice.point, *(point for _, point in choice.alternatives)]
    elif choice is not None and choice.nearest is not None:
        named = [choice.nearest]
    for index in (curve.knee, *(curve.configurations.index(point.configuration) for point in named)):
        if index is not None:
            keep[index] = True
    others = np.flatnonzero(~keep)
    room = max(points_max - int(keep.sum()), 0)
    keep[others[np.linspace(0, len(others) - 1, min(room, len(others))).astype(np.int64)]] = True
    few = curve.take(np.flatnonzero(keep))
    return few, (f"{len(few):,} of {len(curve):,} configurations are kept here, with the whole front",)
