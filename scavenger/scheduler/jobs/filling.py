"""Filling a number of slots: gangs in an order, even levels, and one slot after the other where it brings most."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scavenger.domain.curve import BoolArray, FloatArray, IntArray

_HALVINGS = 12
"""Of the interval in which the gain of the last slot lies, before the slots left are sorted."""

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
    weights = np.ones(len(least)) if weight is None else weight
    low, high = 0.0, float((most / weights).max()) + 1.0

    def at(level: float) -> IntArray:
        return np.clip(np.floor(weights * level + 1e-9).astype(np.int64), least, most)

    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        if at(middle).sum() <= slots:
            low = middle
        else:
            high = middle
    given = at(low)
    idle = slots - int(given.sum())
    if idle > 0:
        behind = np.where(given < most, (given + 1) / weights, np.inf)
        for row in np.argsort(behind, kind="stable")[:idle]:
            given[row] += int(given[row] < most[row])
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
    if idle <= 0:
        return least.copy()
    log_weight = np.log(weight)

    gained = gains.reach(curve, log_weight)
    stays = None if held is None or log_bonus is None else gains.reach(curve, log_weight + log_bonus)

    def at(log_line: float) -> IntArray:
        reached = gained(log_line)
        if stays is not None and held is not None:
            reached = np.maximum(reached, np.minimum(stays(log_line), held))
        return np.asarray(np.minimum(np.maximum(reached, least), top))

    more = top > least
    last = np.maximum(top - 1, 0)
    low = float((log_weight + gains.log_gain(curve, last))[more].min()) - 1e-9  # all of them lie above
    first = np.minimum(least, gains.table.shape[1] - 1)
    high = float((log_weight + gains.log_gain(curve, first))[more].max()) + 1e-9  # none does
    if log_bonus is not None:
        high += float(log_bonus[more].max())
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if int(at(middle).sum()) - begin <= idle:
            high = middle
        else:
            low = middle
    given = at(high)
    between = at(low) - given
    idle -= int(given.sum()) - begin
    if idle <= 0:
        return given
    # what lies between both lines, slot by slot: the greatest gains first
    owner = np.repeat(np.arange(len(given)), between)
    step = np.arange(len(owner)) - np.repeat(np.cumsum(between) - between, between) + given[owner]
    value = log_weight[owner] + gains.log_gain(curve[owner], step)
    if held is not None and log_bonus is not None:
        value += np.where(step < held[owner], log_bonus[owner], 0.0)
    taken = np.argsort(-value, kind="stable")[:idle]
    more_still: IntArray = np.bincount(owner[taken], minlength=len(given))
    return given + more_still
