"""What a metric will have come to at the end of a run, from its course so far: the rule of doublings.

==========  ====================================================  ==============================================
s, t, T     epochs (or steps) at an evaluation; at the last one;  T after t
            at the end
b           best value so far; smaller is better
g           what the last doubling gave, b(t / 2) - b(t)
q           what is left of a fall when the epochs double         `LASTING`
d           doublings that are left, log2(T / t)
==========  ====================================================  ==============================================

Each doubling gives q of what the one before gave, so the best value still falls by `g (q + q² + ... + q^d)`. That is a
power law whose asymptote is not fitted, but follows from its last two points: with a few evaluations no more is known,
and with many it is no worse than shapes that are weighed (`python -m benchmarks final_values`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from scavenger.domain.curve import FloatArray

Mode = Literal["min", "max"]

LASTING = 0.6
"""By public learning curves. Half of them keep more, 0.73; the mean error is least from 0.55 to 0.65, and of the small
networks of `benchmarks.search_tables` at 0.45 to 0.6."""

MOST, MOST_SO_FAR = 4.0, 0.1
"""The other end of the interval: so many times the fall that is forecast, where a doubling gives so much more of all
that the metric has fallen so far, as one that stands still may yet fall."""


class ValueForecast(NamedTuple):
    """The best value of a run at its end.

    Attributes:
        value: The forecast.
        low, high: Its 90 % interval; one of them is the best value so far, as that stays.
    """

    value: float
    low: float
    high: float


def forecast_value(
    at: Sequence[float] | FloatArray, values: Sequence[float] | FloatArray, end: float, *, mode: Mode
) -> ValueForecast:
    """The best value that a run will have reached at its end, whatever its target.

    Args:
        at: Epochs or steps of the evaluations, positive and increasing, shape `(n,)`.
        values: The metric there, shape `(n,)`; evaluations that are not finite are left out.
        end: When the run ends, not before the last evaluation.

    Raises:
        ValueError: If no value is finite.
    """
    sign = 1.0 if mode == "min" else -1.0
    where, losses = np.asarray(at, dtype=np.float64), sign * np.asarray(values, dtype=np.float64)
    known = np.isfinite(losses)
    if not known.any():
        raise ValueError("a forecast needs an evaluation with a finite value")
    where, best = where[known], np.minimum.accumulate(losses[known])
    half = float(np.interp(where[-1] / 2.0, where, best))
    now, so_far = float(best[-1]), float(best[0] - best[-1])
    ahead = _doublings_ahead(end / float(where[-1]))
    fall = (half - now) * ahead
    most = MOST * fall + MOST_SO_FAR * so_far * ahead
    low, high = sorted((sign * now, sign * (now - most)))
    return ValueForecast(sign * (now - fall), low, high)


def further_fall(at: Sequence[float], losses: Sequence[float], end: float) -> float:
    """By how much the best value still falls until the end; see `forecast_value`."""
    found = forecast_value(at, losses, end, mode="min")
    return found.high - found.value


def _doublings_ahead(ratio: float) -> float:
    """`q + q² + ... + q^d`, d being log2 of the ratio, which need not be whole."""
    return LASTING * (1.0 - math.pow(LASTING, math.log2(ratio))) / (1.0 - LASTING)
