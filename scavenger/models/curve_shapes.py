"""Shapes of learning curves: how a metric falls towards its asymptote, on fixed nodes.

==========  =============================================  =================================================
x           steps over those trained so far: 1 is now
power       (x + o)^-p                                     Hestness et al., arXiv:1712.00409
stretched   exp(-(x / k)^b)
Hill        1 / (1 + (x / k)^p)                            Viering and Loog, arXiv:2103.10948, §4 ("MMF")
straight    -x^q
ending      power, less a term that goes on falling        annealing towards the end of a schedule
==========  =============================================  =================================================

With a known learning-rate schedule, the multi-power law of Luo et al., arXiv:2503.12811, eq. 2-3, is joined to them:
the power acts on the area under the schedule, and each drop of the rate lowers the loss further. So are the courses of
earlier runs of similar jobs, faster or slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.special import logsumexp

from scavenger.domain.curve import BoolArray, FloatArray

__all__ = ["ANNEALED", "SHAPES", "Annealed", "EarlierRun", "Nodes", "Schedule", "Shapes", "join_nodes"]


@dataclass(frozen=True, slots=True)
class Nodes:
    """Curves in question, each known but for a level and a slope.

    Attributes:
        seen: At the evaluations, shape `(n, m)`.
        ahead: Where the target may be reached, shape `(n, k)`.
        log_prior: ln of each one's prior weight, shape `(n,)`.
        bounded: Whether one has an asymptote, which is 0, shape `(n,)`.
    """

    seen: FloatArray
    ahead: FloatArray
    log_prior: FloatArray
    bounded: BoolArray


def join_nodes(families: Sequence[tuple[float, Nodes]]) -> Nodes:
    """All nodes of several families, each with how probable it is, up to a factor; those without nodes are left out."""
    known = [(share, nodes) for share, nodes in families if len(nodes.seen)]
    return Nodes(
        np.concatenate([nodes.seen for _, nodes in known]),
        np.concatenate([nodes.ahead for _, nodes in known]),
        np.concatenate([np.log(share) + n.log_prior - logsumexp(n.log_prior) for share, n in known]),
        np.concatenate([nodes.bounded for _, nodes in known]),
    )


class Shapes:
    """The nodes of all families that know no schedule.

    Attributes:
        log_prior: ln of each node's prior weight, shape `(n,)`: families are equally probable, and so are the nodes
            of a family.
        bounded: Whether a node has an asymptote, which is 0, shape `(n,)`.
    """

    def __init__(self) -> None:
        self._power = _grid((0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5), (0.0, 0.1, 0.4, 1.5))
        self._stretched = _grid((0.5, 0.75, 1.0, 1.5, 2.5), (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4))
        self._hill = _grid((0.7, 1.0, 1.5, 2.5, 4.0), (0.1, 0.25, 0.6, 1.5, 4.0))
        self._straight = _grid((0.5, 1.0, 1.5, 2.0, 3.0))
        self._ending = _grid((0.5, 1.0, 2.0), (0.0, 0.3), (0.25, 0.5, 1.0, 2.0), (1.0, 2.0))
        families = (self._power, self._stretched, self._hill, self._straight, self._ending)
        self.log_prior = np.concatenate([np.full(f.shape[1], -np.log(f.shape[1])) for f in families])
        self.bounded = np.concatenate(
            [np.full(f.shape[1], place < 3, dtype=np.bool_) for place, f in enumerate(families)]
        )

    def nodes(self, seen: FloatArray, ahead: FloatArray) -> Nodes:
        """Every node at the steps over those trained so far that were seen, and at those to come."""
        return Nodes(self.values(seen), self.values(ahead), self.log_prior, self.bounded)

    def values(self, x: FloatArray) -> FloatArray:
        """Every node at every x > 0, shape `(n, len(x))`; each falls with x."""
        p, o = self._power
        power = (x + o) ** -p
        b, k = self._stretched
        stretched = np.exp(-((x / k) ** b))
        p, k = self._hill
        hill = 1.0 / (1.0 + (x / k) ** p)
        (q,) = self._straight
        straight = -(x**q)
        p, o, g, q = self._ending
        # Both terms have the slope -1 and -g now.
        ending = (x + o) ** -p * (1.0 + o) ** (p + 1.0) / p - g * x**q / q
        return np.concatenate((power, stretched, hill, straight, ending))


def _grid(*values: tuple[float, ...]) -> FloatArray:
    """All combinations, shape `(parameters, nodes, 1)`."""
    return np.array(list(product(*values)), dtype=np.float64).T[:, :, None]


SHAPES = Shapes()


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning rates of a whole run, as planned before it.

    Attributes:
        steps: Increasing, positive, shape `(n,)`; the rate holds from the step before. Up to the first, the rate
            rises evenly from 0.
        rates: Positive, shape `(n,)`.
        unit: Steps of the runs that the law was fitted to for which one of `steps` counts.
    """

    steps: FloatArray
    rates: FloatArray
    unit: float = 1.0

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
"""C (per step), β and γ of the multi-power law; with `ANNEAL_SHARE` least squares over the nine schedules of the
25M-parameter language model of its authors' data."""

ANNEAL_SHARE, ANNEAL_UNIT = 0.38, 1e4
"""Loss that a drop to nothing takes away in the end, relative to what the power leaves after so many steps."""

ANNEAL_SHARES = (ANNEAL_SHARE, 3.0 * ANNEAL_SHARE)
"""Where the target is in question: in image networks a drop takes away more than in language models."""

POWER_MEAN, POWER_SD = 0.5, 0.15
"""Of the power p, over the runs of the same data."""


@dataclass(frozen=True, slots=True)
class Annealed:
    """The multi-power law on nodes of its power; the other constants are those above."""

    powers: tuple[float, ...] = tuple(np.linspace(0.2, 1.0, 17))

    @property
    def log_prior(self) -> FloatArray:
        """ln of each node's prior weight, shape `(n,)`."""
        return np.asarray(-0.5 * ((np.array(self.powers) - POWER_MEAN) / POWER_SD) ** 2)

    def nodes(self, schedule: Schedule, seen: FloatArray, ahead: FloatArray) -> Nodes:
        """Every power with every share of `ANNEAL_SHARES`, at the steps that were seen and at those to come."""

        def values(steps: FloatArray) -> FloatArray:
            return np.concatenate([self.values(schedule, steps, share=share) for share in ANNEAL_SHARES])

        log_prior = np.tile(self.log_prior, len(ANNEAL_SHARES))
        return Nodes(values(seen), values(ahead), log_prior, np.ones(len(log_prior), dtype=np.bool_))

    def values(self, schedule: Schedule, steps: FloatArray, *, share: float = ANNEAL_SHARE) -> FloatArray:
        """Every power at every step, shape `(n, len(steps))`."""
        power = (schedule.unit * schedule.area(steps) / ANNEAL_UNIT) ** -np.array(self.powers)[:, None]
        return np.asarray(power - share * schedule.annealed(steps))


ANNEALED = Annealed()


PACES, PACES_LOG_SD = np.geomspace(1.0 / 3.0, 3.0, 9), 0.5
"""How much faster than an earlier run this one may be, and the standard deviation of ln of it."""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """The course of a similar job's run, as a family of shapes: one for each pace.

    Attributes:
        at: Epochs or steps of the evaluations, in this run's unit; positive and increasing, shape `(n,)`.
        values: The metric there, finite, shape `(n,)`.
    """

    at: FloatArray
    values: FloatArray

    def nodes(self, seen: FloatArray, ahead: FloatArray) -> Nodes:
        """The paces at which it has fallen between what was seen first and last; it stays at its end for ever.

        Args:
            seen, ahead: In the unit of `at`. The values must be such that smaller ones are better.
        """
        best, log_at = np.minimum.accumulate(self.values), np.log(self.at)

        def values(at: FloatArray) -> FloatArray:
            return np.asarray(np.interp(np.log(PACES[:, None] * at), log_at, best))

        log_prior = -0.5 * (np.log(PACES) / PACES_LOG_SD) ** 2
        found = Nodes(values(seen), values(ahead), log_prior, np.zeros(len(PACES), dtype=np.bool_))
        falls = found.seen[:, 0] > found.seen[:, -1]
        return Nodes(found.seen[falls], found.ahead[falls], log_prior[falls], found.bounded[falls])
