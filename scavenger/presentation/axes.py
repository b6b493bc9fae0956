"""The axes of a picture: unit, ends, ticks, and whether an axis is logarithmic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from scavenger.domain.curve import BoolArray, FloatArray

LOG_RATIO = 10.0
"""An axis on which the largest value is more than this many times the smallest is logarithmic."""
UNITS_MIN = 5.0
"""Times are drawn in minutes, hours or days if the shortest is at least this many of them."""
UNITS_MAX = 10_000.0
"""Largest number on a time axis: above it, the next longer unit is used."""
_TIME_UNITS = (
    (86400.0, "days"),
    (3600.0, "hours"),
    (60.0, "minutes"),
    (1.0, "seconds"),
    (1e-3, "milliseconds"),
)
_BEFORE, _BEHIND = 0.16, 0.06
"""Room before the least and behind the greatest value of an axis, as shares of what it spans. Nothing beats the front,
so labels find most room before it."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a picture.

    Attributes:
        title: Such as `time to target (minutes)`.
        unit: Seconds or US dollars in one of the units in which the axis, its ends and its ticks are.
        ticks: Values with their text, increasing.
    """

    title: str
    unit: float
    low: float
    high: float
    logarithmic: bool
    ticks: tuple[tuple[float, str], ...]

    def share(self, values: FloatArray) -> FloatArray:
        """Where values, in the axis's unit, lie: 0 at its start, 1 at its end, outside of both if beyond."""
        if self.logarithmic:
            return np.log(np.maximum(values, 1e-300) / self.low) / math.log(self.high / self.low)
        return (values - self.low) / (self.high - self.low)


def time_unit(times_s: FloatArray) -> tuple[float, str]:
    """The unit of the time axis, as (seconds, name): the longest of which every time is at least `UNITS_MIN`.

    Args:
        times_s: Times of the points drawn, shape `(n,)`, at least one.
    """
    shortest, longest = float(times_s.min()), float(times_s.max())
    position = next(
        (
            i
            for i, (unit, _) in enumerate(_TIME_UNITS)
            if shortest >= unit * (UNITS_MIN if unit > 1.0 else 1.0)
        ),
        len(_TIME_UNITS) - 1,
    )
    while position > 0 and longest / _TIME_UNITS[position][0] > UNITS_MAX:
        position -= 1
    return _TIME_UNITS[position]


class AxisSpan:
    """The values of an axis: those of allowed points, and others that are shown as far as the rest stays readable."""

    def __init__(self, values: FloatArray, allowed: BoolArray, shown: BoolArray) -> None:
        self.core = values[allowed] if allowed.any() else values[shown]
        self.wide = values[shown]

    def with_ends(self, ends: Sequence[FloatArray], drawn: Sequence[int]) -> AxisSpan:
        self.wide = np.concatenate([self.wide, *(end[list(drawn)] for end in ends)])
        return self


def axis_of(title: str, span: AxisSpan, musts: Iterable[float], unit: float, *, sign: str = "") -> Axis:
    """An axis over all values of a span and what must be in the picture, too."""
    inside = [*span.core.tolist(), *musts]
    low, high = min(inside), max(inside)
    logarithmic = low > 0 and high / low > LOG_RATIO
    least, most = float(span.wide.min()), float(span.wide.max())
    if logarithmic:
        reach = (high / low) ** 0.35
        low, high = min(low, max(least, low / reach)), max(high, min(most, high * reach))
        low, high = low / (high / low) ** _BEFORE, high * (high / low) ** _BEHIND
    else:
        reach = (high - low) or abs(high)
        low, high = min(low, max(least, low - reach)), max(high, min(most, high + reach))
        width = (high - low) or abs(high) or 1.0
        # a point at 0 is whole in the picture, and nothing is far below it
        low = max(low - _BEFORE * width, -0.02 * width) if low >= 0 else low - _BEFORE * width
        high += _BEHIND * width
    low, high = low / unit, high / unit
    if not span.wide.any():  # free: nothing to read off but that
        ticks: list[float] = [0.0]
    else:
        ticks = _log_ticks(low, high) if logarithmic else _ticks(low, high)
    places = next((d for d in range(9) if np.allclose(np.round(ticks, d), ticks, rtol=1e-9, atol=1e-12)), 9)
    form = ",.6g" if logarithmic else f",.{places}f"
    return Axis(title, unit, low, high, logarithmic, tuple((at, f"{sign}{at:{form}}") for at in ticks))


def _ticks(low: float, high: float) -> list[float]:
    """Four to eight round values."""
    rough = (high - low) / 7
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= rough)
    first = max(math.ceil(low / step), 0)
    return [at * step for at in range(first, math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Round values of each decade, fewer of many decades."""
    decades = math.log10(high / low)
    factors = (1.0, 2.0, 5.0) if decades < 2.2 else (1.0, 3.0) if decades < 3.5 else (1.0,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1, 1 + int(decades / 8))
    return [at for power in powers for factor in factors if low <= (at := factor * 10.0**power) <= high]
