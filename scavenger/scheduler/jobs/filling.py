"""Filling a number of slots: gangs in an order, even levels, and one slot after the other where it brings most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from scavenger.domain.curve import BoolArray, FloatArray, IntArray

_SORTED = 512
"""So few slots are sorted to find those that bring most; of more, the line is guessed first."""

_GUESSES = 24
"""Of the line, before all slots left are sorted."""

_ROUNDING = 1e-7
"""Logarithms that differ by less are on the same side of a line."""

_STRIDE = 4000.0
"""Between the lists of two curves; logarithms of gains and weights stay below a quarter of it."""


def admit(order: IntArray, need: IntArray, slots: int, keeps: BoolArray | None = None) -> BoolArray:
    """Who gets all that he needs: each in turn, and who does not fit is passed over.

    Args:
        order: Rows of those who take part, first served first.
        need: Of each row, at least 0. One that needs 0 is not admitted.
        keeps: Whether nobody behind this row is served if it does not fit; None for nobody.

    Returns:
        Of each row of `need`.
    """
    admitted = np.zeros(len(need), dtype=bool)
    order = order[need[order] > 0]
    while slots > 0 and len(order):
        total = np.cumsum(need[order])
        fitting = int(np.searchsorted(total, slots, side="right"))
        admitted[order[:fitting]] = True
        if fitting:
            slots -= int(total[fitting - 1])
        if fitting == len(order) or (keeps is not None and keeps[order[fitting]]):
            break
        order = order[fitting + 1 :]
        if keeps is None:
            order = order[need[order] <= slots]
    return admitted


def level_up(least: IntArray, most: IntArray, slots: int, weight: FloatArray | None = None) -> IntArray:
    """Even parts: `weight * level` for each, from `least` to `most`, where the level is the highest that `slots` allow.

    What is left by rounding goes to those nearest below their next slot, first rows first.

    Args:
        least: Of each, together no more than `slots`.
        weight: Above 0; None for 1.
    """
    if most.sum() <= slots:
        return most.copy()
    if weight is None:
        return level_groups(least, most, np.array([slots]), np.zeros(len(least), dtype=np.int64))
    low, high = 0.0, float((most / weight).max()) + 1.0

    def at(level: float) -> IntArray:
        return np.clip(np.floor(weight * level + 1e-9).astype(np.int64), least, most)

    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        if at(middle).sum() <= slots:
            low = middle
        else:
            high = middle
    given = at(low)
    idle = slots - int(given.sum())
    if idle > 0:
        behind = np.where(given < most, (given + 1) / weight, np.inf)
        for row in np.argsort(behind, kind="stable")[:idle]:
            given[row] += int(given[row] < most[row])
    return given


def level_groups(least: IntArray, most: IntArray, slots: IntArray, group: IntArray) -> IntArray:
    """Even parts within groups: of each group the level is the highest that its slots allow.

    Args:
        least: Of each row; of a group together no more than its slots.
        slots: Of each group.
        group: Of each row.
    """
    groups = len(slots)
    low, high = np.zeros(groups, dtype=np.int64), np.full(groups, int(most.max(initial=0)) + 1)
    # integers: a level between two of them gives nobody more than the lower one
    while np.any(high - low > 1):
        middle = (low + high) // 2
        fits = np.bincount(group, np.clip(middle[group], least, most), groups) <= slots
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    given: IntArray = np.clip(low[group], least, most)
    idle = slots - np.bincount(group, given, groups).astype(np.int64)
    next_up = np.flatnonzero((given == low[group]) & (given < most))
    next_up = next_up[np.argsort(group[next_up], kind="stable")]
    of = group[next_up]
    given[next_up[np.arange(len(of)) - np.searchsorted(of, of) < idle[of]]] += 1
    return given


class Gains:
    """What each further slot brings, by curve.

    Args:
        table: Shape `(curves, slots)`: column `k` is the gain from slot `k + 1`, from 0 up, falling along each row.
            The first column may be infinite.
    """

    def __init__(self, table: FloatArray) -> None:
        with np.errstate(divide="ignore"):
            self._fall = np.clip(-np.log(table), -_STRIDE / 4, None)
        self.table = table
        self.gaining = np.count_nonzero(table > 0.0, axis=1)
        """Slots from which each curve gains, shape `(curves,)`."""
        starts = np.arange(len(table)) * _STRIDE
        # one sorted list for all curves: that of row c lies between c * stride - stride / 4 and c * stride + stride / 2
        self._keys = (np.minimum(self._fall, _STRIDE / 2) + starts[:, None]).ravel()

    def reach(self, curve: IntArray, log_weight: FloatArray) -> Callable[[float], IntArray]:
        """For a line: how many slots of each row bring at least `exp(log_line)`, weight and all."""
        keys, starts = self._keys, curve * _STRIDE
        above, first = starts + log_weight, curve * self.table.shape[1]
        low, high = starts - _STRIDE / 4, starts + (_STRIDE / 2 - 1.0)

        def reached(log_line: float) -> IntArray:
            slots: IntArray = keys.searchsorted(np.minimum(np.maximum(above - log_line, low), high), "right")
            slots -= first
            return slots

        return reached

    def log_gain(self, curve: IntArray, slot: IntArray) -> FloatArray:
        """Logarithm of the gain from slot `slot + 1`."""
        gain: FloatArray = -self._fall[curve, slot]
        return gain


def waterline(
    least: IntArray,
    most: IntArray,
    slots: int,
    *,
    gains: Gains,
    curve: IntArray,
    weight: FloatArray,
    held: IntArray | None = None,
    log_bonus: FloatArray | None = None,
) -> IntArray:
    """Slots one after the other, each to where it brings most, until `slots` are given or nobody gains.

    Row `i` gains `weight[i] * gains.table[curve[i], k]` from its slot `k + 1`. Since gains fall along a row, the slots
    above a common line are those that the greedy order gives first, so the line is sought instead.

    Args:
        least: What each has to begin with, together no more than `slots`.
        most: No more than so many.
        weight: Above 0, of each row.
        held, log_bonus: The gains of so many slots of a row count for `exp(log_bonus)` times as much, from 0.

    Returns:
        Slots of each row, from `least` to `most`; of equal gains the first rows have more.
    """
    top: IntArray = np.maximum(np.minimum(most, gains.gaining[curve]), least)
    begin = int(least.sum())
    idle = slots - begin
    if int(top.sum()) - begin <= idle:
        return top
    given = least.copy()
    if idle <= 0:
        return given
    rows = np.flatnonzero(top > least)
    steps = _Steps(gains, curve[rows], np.log(weight[rows]))
    if held is not None and log_bonus is not None and log_bonus[rows].any():
        steps = replace(steps, held=held[rows], log_bonus=log_bonus[rows])
    given[rows] = steps.best(least[rows], top[rows], idle)
    return given


@dataclass(frozen=True)
class _Steps:
    """The slots of rows one after the other, and what each brings."""

    gains: Gains
    curve: IntArray
    log_weight: FloatArray
    held: IntArray | None = None
    log_bonus: FloatArray | None = None

    def best(self, given: IntArray, top: IntArray, idle: int) -> IntArray:
        """Of all steps from `given` to `top` the `idle` best; there are more.

        The line lies between the greatest and the least value of all rows at the same part of their ways from `given`
        to `top`. A guess between these leaves few steps on one side.
        """
        between = top - given
        count = int(between.sum())
        at = self._reach(given, top)
        for _ in range(_GUESSES):
            if count <= _SORTED:
                break
            middle = given + (between * (idle / count)).astype(np.int64)
            inside = between > 0
            values = self._value(slice(None), middle)[inside]
            half = len(values) // 2
            reached = at(float(np.partition(values, half)[half]) - _ROUNDING)
            more = int(reached.sum() - given.sum())
            if more in (0, count):
                break
            if more <= idle:
                given, idle = reached, idle - more
            else:
                top = reached
            between = top - given
            count = int(between.sum())
            if idle == 0:
                return given
        owner = np.repeat(np.arange(len(given)), between)
        step = np.arange(len(owner)) - np.repeat(np.cumsum(between) - between, between) + given[owner]
        taken = np.argsort(-self._value(owner, step), kind="stable")[:idle]
        more_still: IntArray = np.bincount(owner[taken], minlength=len(given))
        return given + more_still

    def _value(self, row: IntArray | slice, step: IntArray) -> FloatArray:
        """Logarithm of what a slot brings; of a step at the end of its row, that of the last."""
        gains, curve = self.gains, self.curve[row]
        value = self.log_weight[row] + gains.log_gain(curve, np.minimum(step, gains.table.shape[1] - 1))
        if self.held is not None and self.log_bonus is not None:
            value += np.where(step < self.held[row], self.log_bonus[row], 0.0)
        return value

    def _reach(self, least: IntArray, top: IntArray) -> Callable[[float], IntArray]:
        """For a line: how many slots of each row are above it, from `least` to `top`."""
        gained = self.gains.reach(self.curve, self.log_weight)
        if self.held is None or self.log_bonus is None:
            return lambda line: np.minimum(np.maximum(gained(line), least), top)
        held, stays = self.held, self.gains.reach(self.curve, self.log_weight + self.log_bonus)
        return lambda line: np.minimum(
            np.maximum(np.maximum(gained(line), np.minimum(stays(line), held)), least), top
        )
