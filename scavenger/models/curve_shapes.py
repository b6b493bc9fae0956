"""Shapes of learning curves: how far above its target a metric is on the way to it.

==========  =============================================  =================================================
v           steps over those at which the target is
            reached: 1 is there
ending      (v^-p - 1) / p + g (1 - v^q) / q               a power, Hestness et al., arXiv:1712.00409, and a
                                                           fall that gains speed towards the end of the run
==========  =============================================  =================================================

Nearly every run lowers its learning rate towards its end, and most do not tell how: so the end that a shape speeds up
to is that of the run in question itself. With a known schedule, the multi-power law of Luo et al., arXiv:2503.12811,
eq. 2-3, is joined to it: the power acts on the area under the schedule, and each drop of the rate lowers the loss
further.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from scipy.special import logsumexp

from scavenger.domain.curve import FloatArray


@dataclass(frozen=True, slots=True)
class Family:
    """Curves in question, each known but for its slope.

    Attributes:
        share: How probable the family is, relative to others.
        log_prior: ln of each curve's prior weight within it, up to a constant, shape `(n,)`.
        above: How far above the target each curve is, by places `(m,)` and by where the target is reached `(k,)`:
            shape `(n, k, m)`.
        staying: How far above its asymptote each curve is, shape `(n, m)`; None where it has none.
    """

    share: float
    log_prior: FloatArray
    above: Callable[[FloatArray, FloatArray], FloatArray]
    staying: Callable[[FloatArray], FloatArray] | None = None

    @classmethod
    def of_courses(
        cls,
        share: float,
        log_prior: FloatArray,
        values: Callable[[FloatArray], FloatArray],
        *,
        bounded: bool = False,
    ) -> Family:
        """Curves whose course does not depend on where the target is.

        Args:
            values: Each curve at places `(m,)`, shape `(n, m)`; less is better, and 0 the asymptote if `bounded`.
        """

        def above(at: FloatArray, totals: FloatArray) -> FloatArray:
            return np.asarray(values(at)[:, None, :] - values(totals)[:, :, None])

        return cls(share, log_prior, above, values if bounded else None)


def log_priors(families: Sequence[Family]) -> list[FloatArray]:
    """ln of the prior weight of each curve of each family, adding up to 1 over all of them."""
    whole = math.fsum(family.share for family in families)
    return [
        np.asarray(math.log(family.share / whole) + family.log_prior - logsumexp(family.log_prior))
        for family in families
    ]


POWERS_OF_ENDS = 1.4 * np.exp(0.7 * np.array((-1.3, 0.0, 1.3)))
GAINS = 0.85 * np.exp(1.8 * np.array((-1.5, -0.5, 0.5, 1.5)))
BENDS = 0.8 * np.exp(0.7 * np.array((-1.0, 0.0, 1.0)))
"""p, g and q of the shapes that end, even in their logarithms around what fits public runs best."""
ENDS_LOG_PRIOR = tuple(
    -0.5 * np.array(z) ** 2 for z in ((-1.3, 0.0, 1.3), (-1.5, -0.5, 0.5, 1.5), (-1.0, 0.0, 1.0))
)

STAYING = np.array((0.25, 0.5, 1.0, 2.0))
"""Powers by which a run comes to rest that never reaches its target."""


def ending() -> Family:
    """The shapes of runs of which only the metric is known."""
    power, gain, bend = np.array(list(product(POWERS_OF_ENDS, GAINS, BENDS))).T[:, :, None, None]
    log_prior = np.array([math.fsum(one) for one in product(*ENDS_LOG_PRIOR)])

    def above(at: FloatArray, totals: FloatArray) -> FloatArray:
        log_share = np.log(at) - np.log(totals)[:, None]
        return np.asarray(np.expm1(-power * log_share) / power - gain * np.expm1(bend * log_share) / bend)

    def staying(at: FloatArray) -> FloatArray:
        return np.asarray((at / at[-1]) ** -STAYING[:, None])

    return Family(1.0, log_prior, above, staying)


WAITING_SHARE = 0.05
"""How probable a run is that has not begun to fall, relative to the shapes that end: as one that never reaches its
target, which looks the same (`learning_curve.NEVER`)."""


def waiting(now: float) -> Family:
    """The run that stands on a plateau until now: where it will reach its target, its course so far does not tell."""

    def above(at: FloatArray, totals: FloatArray) -> FloatArray:
        ends = totals[:, None]
        left = np.clip((ends - at) / np.maximum(ends - now, 1e-12), 0.0, 1.0)
        return np.where(ends > now, left, 0.0)[None]

    return Family(WAITING_SHARE, np.zeros(1), above)


LAW_STEPS = 24_000.0
"""Steps of a run that the law of schedules was fitted to; a schedule counts as long, until its last change."""

RATE_MIN = 1e-3
"""Least rate that counts, relative to the highest."""

STEADY_MIN, STEADY_SHARE = 3, 0.6
"""A rate falls steadily if it has fallen in so many, and in such a share, of the steps since it was highest."""


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """The learning rates of a whole run as planned before it, or those so far.

    Attributes:
        steps: Increasing, positive, shape `(n,)`; the rate holds from the step before. Up to the first, the rate
            rises evenly from 0.
        rates: Positive, shape `(n,)`.
        unit: Steps of the runs that the law was fitted to for which one of `steps` counts.
    """

    steps: FloatArray
    rates: FloatArray
    unit: float = 1.0

    @classmethod
    def of(cls, steps: FloatArray, rates: FloatArray) -> RateSchedule:
        """The schedule with the unit of its length, which is until its last change; some rate must be positive."""
        rates = np.maximum(rates, RATE_MIN * rates.max())
        changes = np.flatnonzero(np.diff(rates))
        return cls(steps, rates, LAW_STEPS / float(steps[changes[-1] if len(changes) else -1]))

    @property
    def is_constant(self) -> bool:
        """Whether the rate is the same everywhere."""
        return bool(np.all(self.rates == self.rates[0]))

    def continued(self, end: float) -> RateSchedule:
        """The whole schedule, of which these are the rates so far: a rate that falls steadily goes on to do so.

        That is along a cosine or a line to 0, or as a power of time, whichever it has followed so far; a rate that was
        lowered now and then, or has not fallen, stays as it is.

        Args:
            end: Where it is laid out to.
        """
        top = int(np.flatnonzero(self.rates == self.rates.max())[-1])
        begin, now, last = (
            float(self.steps[top]),
            float(self.steps[-1]),
            float(self.rates[-1] / self.rates[top]),
        )
        fallen = np.diff(self.rates[top:]) < 0.0
        if len(fallen) < STEADY_MIN or fallen.mean() < STEADY_SHARE or end <= now:
            return self
        ahead = np.append(self.steps, np.geomspace(now, end, 449)[1:])
        past = np.maximum(ahead - begin, 0.0) / (now - begin)
        arc = math.acos(2.0 * last - 1.0)
        candidates = (
            (0.5 * (1.0 + np.cos(np.minimum(arc * past, math.pi))), math.pi / arc),
            (np.maximum(1.0 - (1.0 - last) * past, 0.0), 1.0 / (1.0 - last)),
            (last**past, 1.0 + 1.0 / -math.log(last)),
        )
        seen, so_far = len(self.steps), self.rates / self.rates[top]
        course, length = min(
            candidates, key=lambda one: float(np.sum((one[0][top:seen] - so_far[top:]) ** 2))
        )
        rates = np.append(so_far, np.maximum(course[seen:], RATE_MIN))
        return RateSchedule(ahead, rates, LAW_STEPS / (begin + length * (now - begin)))

    def area(self, steps: FloatArray) -> FloatArray:
        """Steps at the highest rate that do as much as those up to each of `steps`; the last rate goes on for ever."""
        relative, areas = self._areas()
        beyond = np.maximum(steps - self.steps[-1], 0.0) * relative[-1]
        return np.asarray(np.interp(steps, self.steps, areas) + beyond)

    def annealed(self, steps: FloatArray) -> FloatArray:
        """Σ over the rate's drops of drop x (1 - (1 + C S / rate^γ)^-β), S being the area since; shape of `steps`."""
        relative, areas = self._areas()
        drops = -np.diff(relative, prepend=relative[0])
        dropped = np.flatnonzero(drops != 0.0)
        begins = areas[dropped - 1]
        since = self.unit * np.maximum(self.area(steps)[:, None] - begins, 0.0)
        fallen = 1.0 - (1.0 + ANNEAL_RATE * since * relative[dropped] ** -ANNEAL_GAMMA) ** -ANNEAL_BETA
        return np.asarray(fallen @ drops[dropped])

    def _areas(self) -> tuple[FloatArray, FloatArray]:
        relative = self.rates / self.rates.max()
        widths = np.diff(self.steps, prepend=self.steps[0] / 2.0)
        return relative, np.cumsum(widths * relative)


ANNEAL_RATE, ANNEAL_BETA, ANNEAL_GAMMA = 0.0036, 1.58, 0.67
"""C (per step), β and γ of the multi-power law: least squares over the nine schedules of the 25M-parameter language
model of its authors' data."""

ANNEAL_SHARE, ANNEAL_UNIT = 0.76, 1e4
"""Loss that a drop to nothing takes away in the end, relative to what the power leaves after so many steps: twice that
of language models, as it is more in image networks."""

ANNEAL_UNITS = {1.0 / 3.0: 0.25, 1.0: 0.5, 3.0: 0.25}
"""How much longer a schedule may be in steps of the law than `LAW_STEPS`, with the probability of each."""

POWER_MEAN, POWER_SD = 0.5, 0.15
"""Of the power p, over the runs of the same data."""


POWERS = np.linspace(0.2, 1.0, 17)[:, None]

SCHEDULED = 4.0
"""How much more probable the law of a schedule is than the shapes that know none."""


def annealed(schedule: RateSchedule) -> Family:
    """The multi-power law under a schedule, on nodes of its power and of its unit of steps."""

    units = [replace(schedule, unit=factor * schedule.unit) for factor in ANNEAL_UNITS]

    def values(steps: FloatArray) -> FloatArray:
        return np.concatenate(
            [
                (one.unit * one.area(steps) / ANNEAL_UNIT) ** -POWERS - ANNEAL_SHARE * one.annealed(steps)
                for one in units
            ]
        )

    of_power = -0.5 * ((POWERS[:, 0] - POWER_MEAN) / POWER_SD) ** 2
    log_prior = np.concatenate([of_power + math.log(probability) for probability in ANNEAL_UNITS.values()])
    return Family.of_courses(SCHEDULED, log_prior, values, bounded=True)
