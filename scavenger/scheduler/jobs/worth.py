"""Policies that know how fast jobs are, and how much they still have to do.

References:
    .. [1] Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021: a job's
       speed counts relative to its speed with an even part of the pool.
    .. [2] Berg, Vesilo, Harchol-Balter, "heSRPT: Optimal parallel scheduling of jobs with known sizes", 2019: of
       `n` jobs the one with the `i`-th most to do has `(i / n)**c - ((i - 1) / n)**c` of all slots, `c` being
       `1 / (1 - power)`; so has a job whose speed counts `(i**c - (i - 1)**c)**(1 - power)` times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from scavenger.domain.curve import FloatArray, IntArray
from scavenger.scheduler.jobs.deadlines import CAUTIOUS, Caution, kept_shares
from scavenger.scheduler.jobs.filling import admit, waterline
from scavenger.scheduler.jobs.policies import (
    Patience,
    Patient,
    by_gain,
    by_speed,
    elastic,
    faster,
    needed,
    patience_ends,
    positive,
    raised,
    ranked,
    soonest,
)
from scavenger.scheduler.jobs.values import Plan, PoolSeen

_SHORTEST_S = 1.0
"""Work left that takes less with one slot counts as so much."""


@dataclass(frozen=True, slots=True)
class Goodput(Patient):
    """Each slot to the largest gain in speed, relative to the speed with an even part of the pool [1]_."""

    def plan(self, seen: PoolSeen, patience: Patience) -> Plan:
        """See `Policy.plan`."""
        return by_gain(seen, ranked(seen, patience, ~seen.runs), self._unit_worth(seen))

    def types_worth(self, seen: PoolSeen) -> FloatArray | None:
        """See `Policy.types_worth`."""
        return self._unit_worth(seen)

    def _unit_worth(self, seen: PoolSeen) -> FloatArray:
        """What a unit of rate is worth."""
        part = np.clip(seen.slots // max(seen.jobs, 1), np.maximum(seen.claims.least, 1), None)
        return 1.0 / positive(seen.rate(np.minimum(part, seen.useful)))


@dataclass(frozen=True, slots=True)
class Worth(Patient):
    """Each slot to where it shortens what is left most, as all jobs' hours are worth the same.

    A job that ends frees its slots for those that have more to do, so each gain counts by how many these are: the sum
    of the times to the ends of jobs that are all there is least so, if their speeds are like `slots**power` [2]_. Jobs
    differ in how they scale, and their own curves are used in the place of that power.

    A job's first slots compete, too: one with much to do may wait for those that are soon done. A slot that a job
    has counts for more there, by twice what it costs the job to lose it, and by what it is idle elsewhere at first.

    Attributes:
        power: From 0, below 1.
        caution: With which deadlines are kept: the slots that these need come first.
    """

    keeps_deadlines: ClassVar[bool] = True

    power: float = 0.5
    caution: Caution = CAUTIOUS

    def plan(self, seen: PoolSeen, patience: Patience) -> Plan:
        """See `Policy.plan`."""
        claims, standing, held = seen.claims, seen.standing, seen.held
        one = positive(seen.curves.rates[claims.curve, 1])
        left_s = alone_s(seen)
        weight = self._unit_worth(seen)
        runs = np.where(seen.runs, held, 0)
        bonus = np.log1p(self._stays(seen, runs, left_s * one))
        need = needed(seen, claims.least)
        due = np.isfinite(claims.deadline_s)
        if due.any():
            owed = kept_shares(seen, self.caution, due & ~standing.fixed)[0]
            need, due = np.maximum(need, owed), owed > 0
        density = weight * seen.rate(need) / np.maximum(need, 1)
        order = ranked(seen, patience, ~due, -density * np.where(runs > 0, np.exp(bonus), 1.0))
        filling = _Filling(seen, weight, bonus, runs)

        def fill(least: IntArray, most: IntArray) -> IntArray:
            return faster(seen, lambda most: filling.slots(least, most), most, np.maximum(least, need))

        nothing = np.zeros_like(need)
        most = np.where(standing.fixed, need, np.where(need > 0, np.maximum(seen.useful, need), 0))
        filled = fill(nothing, most)
        wanted = filled > 0
        first = claims.priority > claims.priority.min()
        wanted |= first | raised(seen, patience) | standing.fixed | due
        begins = admit(order, np.where(wanted, need, 0), seen.slots)
        tentative = not (np.array_equal(begins, filled > 0) and (filled >= need)[begins].all())
        slots = filled
        if tentative:  # some of it went to those who do not begin
            slots = fill(np.where(begins, need, 0), np.where(begins, most, 0))
        idle = seen.slots - int(slots.sum())
        if idle > 0:
            others = admit(order, np.where(begins, 0, need), idle)
            if others.any():
                begins |= others
                slots = fill(np.where(others, need, slots), np.where(begins, most, 0))
        plan = by_speed(seen, elastic(seen, order, slots))
        return replace(plan, by_number=bool(bonus.any()), tentative=tentative)

    def again_s(self, seen: PoolSeen, patience: Patience, plan: Plan, slots: IntArray) -> float:
        """See `Policy.again_s`: who may wait until the deadline of another begins then."""
        due_s = seen.claims.deadline_s - seen.now_s
        due_s = due_s[np.isfinite(due_s)]
        if not len(due_s):
            return patience_ends(seen, patience, slots)
        spare_s = self.caution.changes * seen.standing.change_s[np.isfinite(seen.claims.deadline_s)]
        return min(patience_ends(seen, patience, slots), soonest(due_s, due_s - spare_s))

    def types_worth(self, seen: PoolSeen) -> FloatArray | None:
        """See `Policy.types_worth`."""
        return self._unit_worth(seen)

    def _unit_worth(self, seen: PoolSeen) -> FloatArray:
        """What a unit of rate is worth: with one slot, 1 for the job with most to do, more the more jobs have more."""
        one = positive(seen.curves.rates[seen.claims.curve, 1])
        rank, bend = np.arange(1.0, seen.jobs + 1.0), 1.0 / (1.0 - self.power)
        worth = np.empty(seen.jobs)
        worth[np.lexsort((-seen.claims.submitted_s, -alone_s(seen)))] = (
            rank**bend - (rank - 1.0) ** bend
        ) ** (1.0 - self.power)
        return worth / one

    @staticmethod
    def _stays(seen: PoolSeen, runs: IntArray, left: FloatArray) -> FloatArray:
        """By how much more a slot is worth to the job that has it, as a part of the slot-seconds that are left there.

        That is twice what a change costs, for which all its slots stand, and the start of another job's worker, for
        which the one slot does.
        """
        change_s, worker_s = seen.standing.change_s, seen.standing.worker_s
        rest_s = left / positive(seen.rate(runs))
        lost = 2.0 * change_s * runs + worker_s
        return np.where(runs > 0, lost / np.maximum(rest_s, np.maximum(change_s + worker_s, 1e-9)), 0.0)


@dataclass(frozen=True, slots=True)
class _Filling:
    seen: PoolSeen
    weight: FloatArray
    bonus: FloatArray
    runs: IntArray

    def slots(self, least: IntArray, most: IntArray) -> IntArray:
        """`waterline` for all jobs."""
        rows = self.seen.arrival
        given = np.zeros_like(least)
        given[rows] = waterline(
            least[rows],
            most[rows],
            self.seen.slots,
            gains=self.seen.curves.gains,
            curve=self.seen.claims.curve[rows],
            weight=self.weight[rows],
            held=self.runs[rows],
            log_bonus=self.bonus[rows],
        )
        return given


def alone_s(seen: PoolSeen) -> FloatArray:
    """Seconds that each job still needs with one slot; where it is unknown, as much as it has had."""
    rate = positive(seen.curves.rates[seen.claims.curve, 1])
    left = np.where(np.isnan(seen.standing.left), seen.standing.attained_slot_s * rate, seen.standing.left)
    return np.maximum(left / rate, _SHORTEST_S)
