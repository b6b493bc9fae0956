"""Tiresias, and Elastic-Tiresias: jobs go down a ladder of queues by the slot-seconds that they have had.

References:
    .. [1] Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019: discretised 2D-LAS.
    .. [2] Wu et al., "Elastic Deep Learning in Multi-Tenant GPU Clusters", 2022, section 5.1, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar

import numpy as np

from scavenger.domain.curve import FloatArray, IntArray
from scavenger.scheduler.jobs.filling import admit, waterline
from scavenger.scheduler.jobs.policies import Patience, patience_ends, positive, ranked, rigid, soonest
from scavenger.scheduler.jobs.values import Plan, PoolSeen

_ROUNDING = 1e-9
"""Of a quantum: so much less is enough to have used it up."""


@dataclass(frozen=True, slots=True)
class Tiresias:
    """Discretised 2D-LAS [1]_: the first queue goes first, within a queue whoever has slots, then who waits longest.

    A job that uses up a quantum goes to the end of the next queue: those who wait there go before it.

    Attributes:
        quanta_slot_s: Slot-seconds that a job has in the first queue, and in all until it leaves the others.
        promote: A job that waits for so many times its service goes back to the first queue. Its service is the time
            that its slot-seconds would take with the slots that it asked for.
    """

    gives_asked: ClassVar[bool] = True
    keeps_deadlines: ClassVar[bool] = False

    quanta_slot_s: tuple[float, ...] = (3250.0, 7200.0)
    promote: float = inf

    def plan(self, seen: PoolSeen, patience: Patience) -> Plan:
        """See `Policy.plan`."""
        level, promoted = self.levels(seen)
        held, standing = seen.held, seen.standing
        stays = seen.runs & (level <= standing.level)
        since = np.where(held > 0, 0.0, -standing.waited_s)
        order = ranked(seen, patience, level * 2 + ~stays, since)
        return rigid(seen, order, level=level, promoted=promoted)

    def again_s(self, seen: PoolSeen, patience: Patience, plan: Plan, slots: IntArray) -> float:
        """See `Policy.again_s`."""
        return min(patience_ends(seen, patience, slots), self.leaves_s(seen, plan, slots))

    def types_worth(self, seen: PoolSeen) -> FloatArray | None:
        """See `Policy.types_worth`."""
        return None

    def levels(self, seen: PoolSeen) -> tuple[IntArray, np.ndarray]:
        """The queue of each job, and who goes back to the first one."""
        standing = seen.standing
        quanta = np.asarray(self.quanta_slot_s)
        level = np.searchsorted(quanta * (1.0 - _ROUNDING), standing.attained_slot_s, side="right")
        if self.promote == inf:
            return level, np.zeros(seen.jobs, dtype=bool)
        promoted = (level > 0) & (seen.held == 0) & (self._promoted_in_s(seen) <= 0.0)
        return np.where(promoted, 0, level), promoted

    def _promoted_in_s(self, seen: PoolSeen) -> FloatArray:
        """Seconds until each job has waited for long enough, if it waits from now on."""
        standing = seen.standing
        served_s = standing.attained_slot_s / np.maximum(seen.claims.asked, 1)
        return self.promote * served_s * (1.0 - _ROUNDING) - np.where(seen.held > 0, 0.0, standing.waited_s)

    def leaves_s(self, seen: PoolSeen, plan: Plan, slots: IntArray) -> float:
        """Seconds until a job leaves its queue, if each has so many slots from now on."""
        has = np.flatnonzero(slots)
        attained = np.where(plan.promoted, 0.0, seen.standing.attained_slot_s)[has]
        # one that stops being progress of a queue at once has been counted: a look too early changes nothing
        leaves = (np.append(self.quanta_slot_s, inf)[plan.level[has]] - attained) / slots[has]
        if self.promote == inf:
            return soonest(leaves)
        goes_back = np.where((plan.level > 0) & (slots == 0), self._promoted_in_s(seen), inf)
        return soonest(leaves, goes_back)


@dataclass(frozen=True, slots=True)
class ElasticTiresias:
    """Tiresias with compaction and expansion [2]_.

    Many wait: those who fit into what jobs of later queues can do without begin, and the slots that are short are taken
    where one is worth least. Nobody waits: idle slots go to where the gain is largest for what a job does already.

    Attributes:
        ladder: The queues.
        waiting_max: N: compaction begins when more jobs wait.
        kept_share: r: so much of what it asked for a job keeps.
    """

    gives_asked: ClassVar[bool] = True
    keeps_deadlines: ClassVar[bool] = False

    ladder: Tiresias = Tiresias((500.0, 10_000.0))
    waiting_max: int = 10
    kept_share: float = 0.5

    def plan(self, seen: PoolSeen, patience: Patience) -> Plan:
        """See `Policy.plan`."""
        plan = self.ladder.plan(seen, patience)
        claims, slots = seen.claims, plan.slots
        waiting = (slots == 0) & (plan.gang > 0)
        wait = int(np.count_nonzero(waiting))
        if wait > self.waiting_max:
            slots = self._compacted(seen, plan)
        elif wait == 0 and int(slots.sum()) < seen.slots:
            slots = self._expanded(seen, plan)
        if slots is plan.slots:
            return plan
        most = np.maximum(slots, np.where(claims.most > claims.asked, plan.most, 0))
        return replace(plan, slots=slots, most=most)

    def again_s(self, seen: PoolSeen, patience: Patience, plan: Plan, slots: IntArray) -> float:
        """See `Policy.again_s`."""
        return self.ladder.again_s(seen, patience, plan, slots)

    def types_worth(self, seen: PoolSeen) -> FloatArray | None:
        """See `Policy.types_worth`."""
        return None

    def _compacted(self, seen: PoolSeen, plan: Plan) -> IntArray:
        claims, order = seen.claims, plan.order
        elastic = (plan.level > 0) & ~seen.standing.fixed
        kept = np.maximum(claims.least, np.ceil(self.kept_share * claims.asked).astype(np.int64))
        runs = plan.slots > 0
        least = np.where(runs & elastic, np.minimum(kept, plan.slots), plan.slots)
        begins = admit(order, np.where(runs, 0, plan.gang), seen.slots - int(least.sum()))
        if not begins.any():
            return plan.slots
        least = np.where(begins, plan.gang, least)
        most = np.where(begins, plan.gang, plan.slots)
        return self._filled(seen, least, most, relative=False)

    def _expanded(self, seen: PoolSeen, plan: Plan) -> IntArray:
        most = np.where(
            seen.standing.fixed | (plan.slots == 0), plan.slots, np.maximum(seen.useful, plan.slots)
        )
        return self._filled(seen, plan.slots, most, relative=True)

    @staticmethod
    def _filled(seen: PoolSeen, least: IntArray, most: IntArray, *, relative: bool) -> IntArray:
        rows = seen.arrival[(most > least)[seen.arrival]]
        curve = seen.claims.curve[rows]
        curves = seen.curves
        slots = least.copy()
        idle = seen.slots - int(least.sum())
        if relative:
            gains, weight = curves.relative_gains, np.ones(len(rows))
        else:
            gains, weight = curves.gains, 1.0 / positive(curves.rates[curve, 1])
        to_give = int(least[rows].sum()) + idle
        slots[rows] = waterline(least[rows], most[rows], to_give, gains=gains, curve=curve, weight=weight)
        return slots
