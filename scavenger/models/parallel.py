"""The parallel model: step time by configuration, with its uncertainty.

=========  ==================================================================  ==============================
K, B       workers; global batch size, samples
b          largest local batch, ceil(B / K), samples: it sets the pace
c          contention: how many times more computing the K workers ask for than the machine they share has
τ          time of a step, seconds
x          b c, the work of the slowest worker in samples of an uncontended one
=========  ==================================================================  ==============================

Two laws in one interface. `LinearLaw` is Scavenger's eq. 8-10 [1]_ with intercepts: τ = (a0 + a1 x) + (s0 + s1 K).
`OverlapLaw` lets computing hide synchronisation, as most frameworks do [2]_. Whichever the points favour, a smooth
deviation and scatter are joined to it (`kriging`), and a configuration that was measured is predicted by its own
median, drawn towards the law only as far as the median is itself uncertain.

References:
    .. [1] Tyagi and Sharma, "Scavenger", §III-D.
    .. [2] Qiao et al., "Pollux", OSDI 2021, eq. 8-11.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from pydantic import Field

from scavenger.domain.curve import BoolArray, FloatArray, IntArray
from scavenger.models.kriging import (
    NO_SCATTER,
    SCATTER,
    Kriging,
    Places,
    ProfiledStepTime,
    Scatter,
    places_of,
)
from scavenger.models.overlap_fit import (
    SCATTER_LOG_SD,
    WIDTHS,
    Mixture,
    fit_widths,
    held_out_errors,
    mix_widths,
    prior_of,
    undetermined,
)
from scavenger.models.overlap_law import BELIEFS, Beliefs, OverlapLaw, Prior
from scavenger.models.step_laws import AS_MEASURED, LinearLaw, Load, StepLaw, StepTimes, fit_linear, join
from scavenger.models.types import Count, Finite, Positive

__all__ = [
    "INTERVAL_Z",
    "ParallelModel",
    "ProfiledStepTime",
    "StepLaw",
    "StepTimes",
    "extrapolation_variance",
    "fit_parallel",
    "local_batch_sizes",
]

INTERVAL_Z = 1.6449
"""Standard deviations on each side that hold 90 % of a normal distribution."""

MEASUREMENT_LOG_SD_MIN = 0.02
"""A median over twenty steps does not repeat better than this some minutes later on a shared machine."""

EXTRAPOLATION_LOG_SD = 0.1
"""Error that each factor e beyond the profiled K or x adds to what the law's own coefficients leave open there. With
twice as much, public step times beyond the points of a search strayed by a third to a half of what was stated."""

UNVARIED_LOG_SD = 0.5
"""The same where K was never varied, so that synchronisation by K is not even a guess."""

ADDITIVE_LOG_SD = 0.03
"""Up to this misfit of both its parts, computing and synchronisation, the linear law explains its own corners;
hidden synchronisation, which shrinks as the batch grows, shows as much more than that."""

HELD_OUT_MIN = 5
"""Fewest points from which a leave-out error can distinguish the laws."""

HELD_OUT_GROUPS = 5
"""Points are left out in so many groups at most, so that a fit stays quick where everything was profiled."""

RIDGE = 0.01
"""Prior of the linear law's coefficients against the information of the points: a direction that these cannot see
is wide rather than infinite."""

LOAD_DOUBT = 0.5
"""Error of what another number of aggregator VMs is predicted to change in ln τ, as a share of it: at 90 % the interval
reaches from nearly nothing to nearly twice as much."""

LOAD_LOG_SD = 0.1
"""Error that each factor e in what those VMs carry adds: less than beyond the profiled K, as K' is mostly within it."""

UNVARIED_LOAD_DOUBT = 1.0
"""The same where K was never varied, so that nothing shows what synchronisation owes to the aggregators' VMs."""

LOG_TIME_MAX = 300.0
"""Of a time in seconds, that its exponential stays a number."""


def local_batch_sizes(workers: IntArray, global_batch_size: IntArray) -> IntArray:
    """b = ceil(B / K): the largest of the local batches, which differ by at most one sample."""
    return np.asarray(-(-np.asarray(global_batch_size) // np.asarray(workers)), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class ParallelModel:
    """A fitted law, its measurements and its uncertainty; created by `fit_parallel` or `transfer`.

    Attributes:
        residual_log_sd: What is left at a configuration that computing decides and that was not measured: root
            mean square of several widths, weighed by how well each explains the points (`mix_widths`).
        covariance: Of the law's coefficients, in units of the residual variance, shape `(p, p)`.
        workers_min, workers_max, work_min, work_max: Profiled range of K and of x.
        scatter: Other residual deviations, relative to `residual_log_sd`.
        workers_per_node: Default of `predict`: the most workers that any profiled machine held.
        measured_load: The load under which `measured` was measured.
    """

    law: Annotated[LinearLaw | OverlapLaw, Field(discriminator="kind")]
    residual_log_sd: Positive
    covariance: tuple[tuple[Finite, ...], ...]
    workers_min: Count
    workers_max: Count
    work_min: Positive
    work_max: Positive
    measured: tuple[ProfiledStepTime, ...] = ()
    notes: tuple[str, ...] = ()
    scatter: Scatter = NO_SCATTER
    workers_per_node: Count = 1
    measured_load: Load = AS_MEASURED

    def __post_init__(self) -> None:
        size = len(self.law.free)
        if len(self.covariance) != size or any(len(row) != size for row in self.covariance):
            raise ValueError(f"the covariance of {size} coefficients must be {size} by {size}")

    def predict(
        self,
        workers: IntArray,
        global_batch_size: IntArray,
        contention: FloatArray,
        workers_per_node: IntArray | int | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """Step time, seconds, and the standard deviation of its logarithm; all arrays of shape `(n,)`."""
        places = self._places(workers, global_batch_size, contention, workers_per_node)
        log_time, log_sd = self._predict(places)
        for seen in self.measured if self.of_measured_load else ():
            here = self._is(seen, workers, global_batch_size) & (
                places.workers_per_node == seen.workers_per_node
            )
            law, own = log_sd[here] ** -2, seen.log_sd**-2
            log_time[here] = (law * log_time[here] + own * math.log(seen.step_time_s)) / (law + own)
            log_sd[here] = (law + own) ** -0.5
        return np.exp(log_time), log_sd

    def predict_law(
        self,
        workers: IntArray,
        global_batch_size: IntArray,
        contention: FloatArray,
        workers_per_node: IntArray | int | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """`predict`, but as if another run were measured: what law and smooth deviation say."""
        log_time, log_sd = self._predict(
            self._places(workers, global_batch_size, contention, workers_per_node)
        )
        return np.exp(log_time), log_sd

    def ratio_log_sd(
        self,
        workers: IntArray,
        global_batch_size: IntArray,
        contention: FloatArray,
        one: int,
        workers_per_node: IntArray | int | None = None,
    ) -> FloatArray:
        """Standard deviation of ln of each step time over that of one of them, shape `(n,)`; errors in common cancel.

        What a configuration's own measurement leaves of its error is its own.

        Args:
            one: Its index.
        """
        places = self._places(workers, global_batch_size, contention, workers_per_node)
        _, own = self.predict(workers, global_batch_size, contention, workers_per_node)
        kriging = self._kriging()
        covariance = np.array(self.covariance) * self.residual_log_sd**2
        shared = kriging.covariance_between(places, places.part(one, one + 1), covariance)[:, 0]
        measured = self.is_measured(workers, global_batch_size)
        shared[measured] = 0.0
        if measured[one]:
            shared[:] = 0.0
        variance = own**2 + own[one] ** 2 - 2.0 * shared
        variance[one] = 0.0
        return np.asarray(np.sqrt(np.maximum(variance, 0.0)))

    def is_measured(self, workers: IntArray, global_batch_size: IntArray) -> BoolArray:
        """Which configurations were profiled, shape `(n,)`."""
        hit = np.zeros(len(workers), dtype=np.bool_)
        for seen in self.measured if self.of_measured_load else ():
            hit |= self._is(seen, workers, global_batch_size)
        return hit

    def _places(
        self,
        workers: IntArray,
        global_batch_size: IntArray,
        contention: FloatArray,
        workers_per_node: IntArray | int | None,
    ) -> Places:
        count = np.asarray(workers, dtype=np.float64)
        contended = np.asarray(contention, dtype=np.float64)
        per_node = self.workers_per_node if workers_per_node is None else workers_per_node
        return Places(
            count,
            local_batch_sizes(workers, global_batch_size) * contended,
            contended,
            np.broadcast_to(np.asarray(per_node, dtype=np.float64), count.shape),
        )

    @property
    def of_measured_load(self) -> bool:
        """Whether the law is told of the load under which its points were measured."""
        return self.law.load == self.measured_load

    def with_share(self, before: float, now: float) -> ParallelModel:
        """The model of the same job with another share of the model on the fullest aggregator VM.

        Nothing was measured there: what was, tells by how much further workers make synchronisation longer, and so what
        it owes to the VMs that serve them.

        Args:
            before: Share with which its steps were measured, in (0, 1].
            now: The other one.
        """
        return replace(
            self, law=replace(self.law, load=self.law.load.changed(before, now, alone=self.workers_min == 1))
        )

    def _kriging(self) -> Kriging:
        """Of the points, under the load of their own."""
        law = replace(self.law, load=self.measured_load)
        return Kriging(law, self.measured, self.residual_log_sd, self.scatter)

    def _predict(self, places: Places) -> tuple[FloatArray, FloatArray]:
        kriging = self._kriging()
        covariance = np.array(self.covariance) * self.residual_log_sd**2
        log_time, variance = kriging.predict(places, covariance)
        if not self.of_measured_load:
            before, (log_time, variance) = log_time, kriging.predict(places, covariance, self.law)
            carried = np.log(self.law.load.served(places.workers) / self.measured_load.served(places.workers))
            # VMs that carry less make no step longer, whatever the points scatter by
            log_time = np.where(carried <= 0.0, np.minimum(log_time, before), np.maximum(log_time, before))
            doubt = LOAD_DOUBT if self.workers_max > self.workers_min else UNVARIED_LOAD_DOUBT
            variance = variance + (doubt * (log_time - before)) ** 2 + (LOAD_LOG_SD * carried) ** 2
        variance += extrapolation_variance(
            places, (self.workers_min, self.workers_max), (self.work_min, self.work_max)
        )
        return np.clip(log_time, -LOG_TIME_MAX, LOG_TIME_MAX), np.sqrt(variance)

    @staticmethod
    def _is(seen: ProfiledStepTime, workers: IntArray, global_batch_size: IntArray) -> BoolArray:
        return np.asarray((workers == seen.workers) & (global_batch_size == seen.global_batch_size))


Bound = float | FloatArray
"""Of a range; an array gives every place, or every row of a table of them, its own."""


def extrapolation_variance(
    places: Places,
    workers: tuple[Bound, Bound],
    work: tuple[Bound, Bound],
    log_sd: float = EXTRAPOLATION_LOG_SD,
) -> FloatArray:
    """What every factor e beyond the profiled K and x adds to the variance of ln τ; 0 inside.

    Args:
        workers, work: Smallest and largest profiled.
        log_sd: Deviation that a factor of e adds where K was varied.
    """
    by_work = log_sd * _beyond(places.work, *work)
    rate = np.where(np.greater(workers[1], workers[0]), log_sd, UNVARIED_LOG_SD)
    return np.asarray(by_work**2 + (rate * _beyond(places.workers, *workers)) ** 2)


def _beyond(value: FloatArray, low: Bound, high: Bound) -> FloatArray:
    """How many factors of e a value lies outside a range; 0 inside."""
    return np.asarray(np.maximum(np.maximum(np.log(value / high), np.log(low / value)), 0.0))


def fit_parallel(
    times: Sequence[StepTimes], *, law: StepLaw | None = None, beliefs: Beliefs = BELIEFS
) -> ParallelModel:
    """Fit τ(K, B) to measured configurations of one VM type; the result does not depend on their order.

    Args:
        times: One or more; bad ones (not finite, not positive) are dropped and counted in the notes.
        law: `linear` or `overlap`; None takes what the points favour: see `_choose_law`.
        beliefs: Prior of the overlap law.

    Raises:
        ValueError: If no usable measurement is left.
    """
    good = sorted(point for point in times if point.usable())
    notes = [f"bad measurements dropped: {len(times) - len(good)}"] if len(good) < len(times) else []
    if not good:
        raise ValueError("no usable step time was measured")
    measured = joined(good)
    prior = prior_of(measured, beliefs=beliefs)
    overlap, mixture = fit_widths(measured, prior)
    linear, linear_notes = fit_linear(good)
    if law is None:
        law, why = _choose_law(good, measured, linear, overlap, prior)
        notes += why
    if law == "overlap":
        return _model(overlap, mixture, measured, [*notes, *undetermined(overlap)])
    krigings = [Kriging(linear, measured, width, SCATTER) for width in WIDTHS]
    information = np.diag(Kriging(linear, measured, SCATTER_LOG_SD, SCATTER).information())
    # A frozen coefficient has no feature anywhere, so that its own variance is never seen.
    ridge = np.diag(np.where(information > 0.0, RIDGE * information, 1.0))
    still = np.zeros(len(ridge))
    mixture = mix_widths(krigings, ridge, [still] * len(krigings), still)
    return _model(linear, mixture, measured, [*notes, *linear_notes])


def joined(times: Sequence[StepTimes]) -> tuple[ProfiledStepTime, ...]:
    """One entry per configuration, in order; repeats are joined by their precision.

    Where they differ by more than their errors, the error grows with the difference (Birge's ratio).
    """
    own = []
    places: dict[tuple[int, int, int], list[StepTimes]] = {}
    for time in times:
        places.setdefault((time.workers, time.global_batch_size, time.workers_per_node), []).append(time)
    for key, alike in sorted(places.items()):
        precision = np.array([standard_error(t.step_time_s, t.spread_s, t.steps) ** -2 for t in alike])
        logs = np.log([t.step_time_s for t in alike])
        log_time = float(precision @ logs / precision.sum())
        excess = float(precision @ (logs - log_time) ** 2) / max(len(alike) - 1, 1)
        log_sd = math.sqrt(max(excess, 1.0) / float(precision.sum()))
        contention = max(t.contention for t in alike)
        own.append(ProfiledStepTime(key[0], key[1], math.exp(log_time), log_sd, contention, key[2]))
    return tuple(own)


def standard_error(step_time_s: float, spread_s: float, steps: int) -> float:
    """Of the logarithm of the median of n steps: √(π/2) σ/(τ √n) for near-normal steps, with a floor."""
    sampling = math.sqrt(math.pi / 2.0) * spread_s / (step_time_s * math.sqrt(steps))
    return math.hypot(sampling, MEASUREMENT_LOG_SD_MIN)


def _model(
    law: LinearLaw | OverlapLaw,
    mixture: Mixture,
    measured: tuple[ProfiledStepTime, ...],
    notes: Sequence[str],
) -> ParallelModel:
    """The model of a law whose scatter is that of a mixture of widths.

    Points that none of the widths explains widen all of it, as in Birge's ratio.
    """
    misfit = Kriging(law, measured, mixture.scatter_log_sd, SCATTER).misfit()
    scale = math.sqrt(max(misfit / len(measured), 1.0))
    covariance = mixture.covariance / mixture.scatter_log_sd**2
    places = places_of(measured)
    return ParallelModel(
        law=law,
        residual_log_sd=mixture.scatter_log_sd * scale,
        covariance=tuple(tuple(float(value) for value in row) for row in covariance),
        workers_min=int(places.workers.min()),
        workers_max=int(places.workers.max()),
        work_min=float(places.work.min()),
        work_max=float(places.work.max()),
        measured=measured,
        notes=tuple(notes),
        scatter=SCATTER,
        workers_per_node=int(places.workers_per_node.max()),
    )


def _choose_law(
    times: Sequence[StepTimes],
    measured: Sequence[ProfiledStepTime],
    linear: LinearLaw,
    overlap: OverlapLaw,
    prior: Prior,
) -> tuple[StepLaw, tuple[str, ...]]:
    """Linear where computing and synchronisation were seen to add up, and held-out points confirm it; and why.

    The linear law says that each part depends on its own variable only, and in a straight line. Below
    `HELD_OUT_MIN` points no point is left to hold it to: at the four corners of the (K, B) plane the parts of
    a job whose synchronisation grows with ln K add up as well, though the line between the corners is wrong.
    The overlap law's prior doubts more, and is taken there.
    """
    varied = len({t.workers for t in times}) > 1 and len({t.local_batch_size for t in times}) > 1
    if len(measured) < HELD_OUT_MIN or not varied or _misfit_of_parts(times, linear) > ADDITIVE_LOG_SD:
        return "overlap", ()
    kriging = Kriging(overlap, measured, SCATTER_LOG_SD, SCATTER)
    by_overlap = float(np.mean(held_out_errors(kriging, overlap, prior)))
    by_linear = _held_out_error(times)
    chosen: StepLaw = "overlap" if by_overlap < by_linear else "linear"
    note = f"step time law {chosen}: held-out error {100 * by_overlap:.1f} % overlap, {100 * by_linear:.1f} % linear"
    return chosen, (note,)


def _misfit_of_parts(times: Sequence[StepTimes], law: LinearLaw) -> float:
    """Root mean square error of computing and of synchronisation, each relative to its step."""
    workers, work, contention, observed = join(times)
    predicted, features = law.evaluate(workers, work, contention)
    sync = law.sync_elasticity(predicted, features) * predicted
    seen = np.array([t.sync_s for t in times])
    errors = np.concatenate(((sync - seen) / observed, (predicted - sync - (observed - seen)) / observed))
    return math.sqrt(float(np.mean(errors**2)))


def _held_out_error(times: Sequence[StepTimes]) -> float:
    """Mean absolute log error of the linear law at points left out, one at a time up to `HELD_OUT_GROUPS`."""
    groups = min(len(times), HELD_OUT_GROUPS)
    errors: list[float] = []
    for group in range(groups):
        law, _ = fit_linear([t for i, t in enumerate(times) if i % groups != group])
        workers, work, contention, observed = join([t for i, t in enumerate(times) if i % groups == group])
        predicted, _ = law.evaluate(workers, work, contention)
        errors.extend(np.abs(np.log(predicted / observed)).tolist())
    return float(np.mean(errors))
