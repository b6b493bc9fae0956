"""Who gets how many slots: the policies, by name.

A policy says how many slots each job shall have, and in which order jobs are served. It sees counts of slots only;
`placing` finds the nodes. What all of them share is in `ranked`: a job that has waited for too long comes first, then
priority counts, then what the policy wants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from scavenger.domain.curve import BoolArray, FloatArray, IntArray
from scavenger.scheduler.jobs.filling import admit, level_groups, level_up, waterline
from scavenger.scheduler.jobs.values import Plan, PoolSeen

_REFILLS = 4
"""So often at most slots that make their jobs slower are given to others."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long jobs wait before others make way for them, whatever the policy.

    Attributes:
        starved_s: A wait after which a job goes before all others.
        turn_s: So long it does, once it has slots.
        kept_s: So long slots stay idle for a job that needs more of them, with policies that keep any.
    """

    starved_s: float = inf
    turn_s: float = 3600.0
    kept_s: float = inf


class Policy(Protocol):
    """Shares out the slots of a pool.

    Attributes:
        gives_asked: Whether jobs get what they asked for, or nothing, and more at most.
        keeps_deadlines: Whether those that were promised theirs come first.
    """

    gives_asked: ClassVar[bool]
    keeps_deadlines: ClassVar[bool]

    def plan(self, seen: PoolSeen, patience: Patience) -> Plan:
        """How many slots each job shall have.

        The sum is at most `seen.slots`; each job has 0, or from its least to its most. Jobs whose share is fixed keep
        what they hold. The same comes out whoever holds what the plan says already.
        """

    def again_s(self, seen: PoolSeen, patience: Patience, plan: Plan, slots: IntArray) -> float:
        """Seconds after which it would say something else if nothing happened, and each job had so many slots.

        Args:
            seen: What the plan was made of.
            plan: The last one.
        """

    def types_worth(self, seen: PoolSeen) -> FloatArray | None:
        """What a unit of each job's rate is worth, so that types of nodes are chosen by it; None for whichever fits."""


class Patient:
    """A policy that says something else only if an event happens, or a job has waited for too long."""

    __slots__ = ()

    gives_asked: ClassVar[bool] = False
    keeps_deadlines: ClassVar[bool] = False

    def types_worth(self, seen: PoolSeen) -> FloatArray | None:
        """See `Policy.types_worth`."""
        return None

    def again_s(self, seen: PoolSeen, patience: Patience, plan: Plan, slots: IntArray) -> float:
        """See `Policy.again_s`."""
        return patience_ends(seen, patience, slots)


def raised(seen: PoolSeen, patience: Patience) -> BoolArray:
    """Who has waited for too long, and has not yet had his turn."""
    standing = seen.standing
    has_turn = (standing.ran_s < patience.turn_s) & (seen.runs | (seen.held == 0))
    starved: BoolArray = (standing.waited_s >= patience.starved_s) & has_turn
    return starved


def ranked(seen: PoolSeen, patience: Patience, *keys: NDArray[np.generic]) -> IntArray:
    """Rows of all jobs, first served first.

    Args:
        keys: What the policy wants: the first counts most, and the least of each comes first.
    """
    claims, standing = seen.claims, seen.standing
    columns: list[NDArray[np.generic]] = [claims.submitted_s, *reversed(keys)]
    if (claims.priority != claims.priority[:1]).any():
        columns.append(-claims.priority)
    if patience.starved_s < inf:
        starved = raised(seen, patience)
        # who has his turn keeps it, though another's wait becomes longer than his was
        columns += [np.where(starved, -standing.waited_s, 0.0), ~(starved & seen.runs), ~starved]
    if standing.fixed.any():
        columns.append(~(standing.fixed & seen.runs))
    return np.lexsort(columns)


def patience_ends(seen: PoolSeen, patience: Patience, slots: IntArray) -> float:
    """Seconds until `ranked` says something else, because a wait becomes too long or a turn ends."""
    if patience.starved_s == inf:
        return inf
    standing = seen.standing
    waited_s = np.where(seen.held > 0, 0.0, standing.waited_s)
    waits = np.where(slots > 0, inf, patience.starved_s - waited_s)
    turns = np.where(raised(seen, patience) & (slots > 0), patience.turn_s - standing.ran_s, inf)
    return soonest(waits, turns)


def soonest(*times_s: FloatArray) -> float:
    """The least time above 0; infinite if there is none."""
    return min((float(times[times > 0.0].min(initial=inf)) for times in times_s), default=inf)


def needed(seen: PoolSeen, need: IntArray) -> IntArray:
    """What each job needs so as to run, 0 if it cannot: a job that cannot change needs what it holds."""
    fixed = seen.standing.fixed
    return np.where(fixed, seen.held, need) if fixed.any() else need


def rigid(
    seen: PoolSeen,
    order: IntArray,
    *,
    keeps: BoolArray | None = None,
    level: IntArray | None = None,
    promoted: BoolArray | None = None,
) -> Plan:
    """Each job has what it asked for, or nothing; it stays in its queue unless `level` says another."""
    need = needed(seen, seen.claims.asked)
    slots = np.where(admit(order, need, seen.slots, keeps), need, 0)
    nobody = np.zeros(seen.jobs, dtype=bool)
    return Plan(
        slots=slots,
        order=order,
        gang=need,
        most=slots,
        keeps=nobody if keeps is None else keeps,
        level=seen.standing.level if level is None else level,
        promoted=nobody if promoted is None else promoted,
    )


def elastic(seen: PoolSeen, order: IntArray, slots: IntArray, keeps: BoolArray | None = None) -> Plan:
    """A plan in which jobs may have from their least to what is of use to them."""
    fixed = seen.standing.fixed
    return Plan(
        slots=slots,
        order=order,
        gang=needed(seen, seen.claims.least),
        most=np.where(fixed, slots, np.maximum(seen.useful, slots)),
        keeps=np.zeros(seen.jobs, dtype=bool) if keeps is None else keeps,
        level=seen.standing.level,
        promoted=np.zeros(seen.jobs, dtype=bool),
    )


def beginning(seen: PoolSeen, order: IntArray, keeps: BoolArray | None = None) -> tuple[IntArray, IntArray]:
    """What each job has before slots are given one by one, and the most that it can take.

    Args:
        keeps: As of `admit`.

    Returns:
        Its least for whoever fits in this order, and what is of use to it; 0 and 0 for the others.
    """
    need = needed(seen, seen.claims.least)
    admitted = admit(order, need, seen.slots, keeps)
    least = np.where(admitted, need, 0)
    most = np.where(admitted, np.maximum(seen.useful, least), 0)
    return least, np.where(seen.standing.fixed, least, most)


@dataclass(frozen=True, slots=True)
class Fifo(Patient):
    """In the order of arrival; nobody overtakes a job that waits, and none that runs is stopped."""

    gives_asked: ClassVar[bool] = True

    def plan(self, seen: PoolSeen, patience: Patience) -> Plan:
        """See `Policy.plan`."""
        keeps = seen.standing.waited_s < patience.kept_s
        return _until_none_stops(seen, rigid(seen, ranked(seen, patience, ~seen.runs), keeps=keeps))

    def again_s(self, seen: PoolSeen, patience: Patience, plan: Plan, slots: IntArray) -> float:
        """See `Policy.again_s`: slots are kept for nobody for longer than that."""
        kept_s = np.where(slots > 0, inf, patience.kept_s - seen.standing.waited_s)
        return min(patience_ends(seen, patience, slots), soonest(kept_s))


@dataclass(frozen=True, slots=True)
class Srtf(Patient):
    """What a job still needs, in slot-seconds with what it asked for: the least goes first."""

    gives_asked: ClassVar[bool] = True

    def plan(self, seen: PoolSeen, patience: Patience) -> Plan:
        """See `Policy.plan`."""
        return rigid(seen, ranked(seen, patience, slot_seconds_left(seen)))


def slot_seconds_left(seen: PoolSeen) -> FloatArray:
    """What each job still needs with the slots that it asked for; where it is unknown, as much as it has had."""
    asked = seen.claims.asked
    rate = seen.rate(asked)
    left = np.divide(seen.standing.left * asked, rate, out=np.full(seen.jobs, inf), where=rate > 0.0)
    return np.where(np.isnan(left), seen.standing.attained_slot_s, left)


@dataclass(frozen=True, slots=True)
class Even(Patient):
    """Even parts of the pool, within least and most; whoever was there first, where they do not suffice for all.

    Attributes:
        keeps: Whether nobody overtakes a job that waits, even if it needs more than there is.
    """

    keeps: bool = False

    def plan(self, seen: PoolSeen, patience: Patience) -> Plan:
        """See `Policy.plan`."""
        order = ranked(seen, patience, ~seen.runs)
        keeps = np.ones(seen.jobs, dtype=bool) if self.keeps else None
        least, most = beginning(seen, order, keeps)
        rows, slots = seen.arrival, np.zeros_like(least)
        slots[rows] = level_up(least[rows], most[rows], seen.slots)
        return _until_none_stops(seen, elastic(seen, order, slots, keeps))


def _until_none_stops(seen: PoolSeen, plan: Plan) -> Plan:
    """A plan of those that run first, which is another one once a job that runs has stopped for want of slots."""
    return replace(plan, tentative=plan.tentative or bool((seen.runs & (plan.slots == 0)).any()))


@dataclass(frozen=True, slots=True)
class Fair(Patient):
    """The next slot to the user who has least for his share, and there to the job that was there first.

    However many jobs a user has, and however few slots one of them needs to begin: what others' jobs could use of their
    parts is kept for them. Of each user, one job that has waited for too long goes before all others at a time.

    Attributes:
        parts: Of each user by number, above 0; 1 for those beyond its end.
    """

    parts: Sequence[float] = ()

    def plan(self, seen: PoolSeen, patience: Patience) -> Plan:
        """See `Policy.plan`."""
        claims, fixed = seen.claims, seen.standing.fixed
        users = int(claims.user.max(initial=-1)) + 1
        part = np.ones(max(users, len(self.parts)))
        part[: len(self.parts)] = self.parts
        need = needed(seen, claims.least)
        useful = np.where(need > 0, np.where(fixed, need, np.maximum(seen.useful, need)), 0)
        mine = ranked(seen, patience)
        mine = mine[np.argsort(claims.user[mine], kind="stable")]
        seen = _one_of_each_user(seen, patience)
        ahead = fixed & seen.runs | raised(seen, patience)
        begins = admit(ranked(seen, patience), np.where(ahead, need, 0), seen.slots)
        floor, within, reached = np.where(begins, need, 0), ahead.copy(), np.zeros(seen.jobs)
        for level in np.unique(claims.priority[~ahead])[::-1].tolist():
            rows = mine[(~ahead & (claims.priority == level))[mine]]
            _begin_within_parts(
                seen.slots, rows, claims.user, need, useful, part[:users], floor, within, reached
            )
        begins = floor > 0
        order = ranked(seen, patience, ~within, reached)
        least, most = floor, np.where(begins, useful, 0)
        of_user = np.bincount(claims.user, least, users).astype(np.int64)
        most_of_user = np.bincount(claims.user, most, users).astype(np.int64)
        cap = level_up(of_user, most_of_user, seen.slots, part[:users] if self.parts else None)
        rows, slots = seen.arrival, np.zeros_like(least)
        slots[rows] = level_groups(least[rows], most[rows], cap, claims.user[rows])
        return elastic(seen, order, slots)


def _one_of_each_user(seen: PoolSeen, patience: Patience) -> PoolSeen:
    """The pool in which of each user one job at most has waited for too long: who has his turn, or waits longest."""
    standing, rows = seen.standing, np.flatnonzero(raised(seen, patience))
    if not len(rows):
        return seen
    user = seen.claims.user[rows]
    rows = rows[
        np.lexsort((seen.claims.submitted_s[rows], -standing.waited_s[rows], seen.held[rows] == 0, user))
    ]
    user = seen.claims.user[rows]
    others = rows[np.r_[False, user[1:] == user[:-1]]]
    waited_s = standing.waited_s.copy()
    waited_s[others] = 0.0
    return replace(seen, standing=replace(standing, waited_s=waited_s))


def _begin_within_parts(
    slots: int,
    rows: IntArray,
    user: IntArray,
    need: IntArray,
    useful: IntArray,
    part: FloatArray,
    floor: IntArray,
    within: BoolArray,
    reached: FloatArray,
) -> None:
    """Let jobs begin that fit into the parts of their users; others into what those cannot use.

    Where somebody does not fit, since slots are kept for the parts of others, these have them, and not jobs of a lower
    priority.

    Args:
        slots: Of the pool.
        rows: Jobs of one priority, by user, and of each user in his order.
        user, need, useful: Of all jobs.
        part: Of each user.
        floor: What each job has that has begun, at least; those that begin are added.
        within: To which those are added that are in their users' parts.
        reached: Set to what the user has for his part when the job begins.
    """
    users, of = len(part), user[rows]
    has = np.bincount(user, floor, users).astype(np.int64)
    could_use = np.bincount(user, np.where(floor > 0, useful, 0), users)
    cap = level_up(has, (could_use + np.bincount(of, useful[rows], users)).astype(np.int64), slots, part)
    total = np.cumsum(need[rows])
    begin = np.searchsorted(of, of)
    total = total - (total - need[rows])[begin] + has[of]
    reached[rows] = total / part[of]
    fits = (total <= cap[of]) & (need[rows] > 0)
    own, over = rows[fits], rows[~fits]
    floor[own], within[own] = need[own], True
    has = np.bincount(user, floor, users).astype(np.int64)
    could_use = np.bincount(user, np.where(floor > 0, useful, 0), users)
    kept = np.maximum(has, np.minimum(cap, could_use.astype(np.int64)))
    order = over[np.argsort(reached[over], kind="stable")]
    admitted = admit(order, np.where(np.isin(np.arange(len(need)), over), need, 0), slots - int(kept.sum()))
    if (need[over] > 0).sum() > admitted.sum():
        begun = np.flatnonzero(floor)
        floor[begun] = level_groups(floor[begun], np.maximum(useful, floor)[begun], kept, user[begun])
    floor[admitted] = need[admitted]


@dataclass(frozen=True, slots=True)
class Throughput(Patient):
    """Each slot to where it adds most to the sum of speeds; the speed of a job is 1 with its least."""

    def plan(self, seen: PoolSeen, patience: Patience) -> Plan:
        """See `Policy.plan`."""
        order = ranked(seen, patience, ~seen.runs)
        return by_gain(seen, order, 1.0 / positive(seen.rate(np.maximum(seen.claims.least, 1))))


def positive(rates: FloatArray) -> FloatArray:
    """Rates that one may divide by: 1 where a job makes no progress at all."""
    return np.where(rates > 0.0, rates, 1.0)


def by_gain(seen: PoolSeen, order: IntArray, weight: FloatArray) -> Plan:
    """The least of each job in this order, then each slot to the largest gain in rate times weight."""
    least, most = beginning(seen, order)
    rows = seen.arrival

    def filled(most: IntArray) -> IntArray:
        slots = np.zeros_like(least)
        slots[rows] = waterline(
            least[rows],
            most[rows],
            seen.slots,
            gains=seen.curves.gains,
            curve=seen.claims.curve[rows],
            weight=weight[rows],
        )
        return slots

    return by_speed(seen, elastic(seen, order, faster(seen, filled, most, least)))


def by_speed(seen: PoolSeen, plan: Plan) -> Plan:
    """The plan in which no job takes idle slots that would make it slower."""
    return replace(plan, most=np.minimum(plan.most, np.maximum(seen.gainful, plan.slots)), by_speed=True)


def faster(
    seen: PoolSeen, filled: Callable[[IntArray], IntArray], most: IntArray, least: IntArray
) -> IntArray:
    """Slots given by gain, but for those that make a job slower, which go to others.

    Gains are those of the concave curve above a job's own. Between two numbers of slots where both touch, a job may be
    slower than with the smaller one.

    Args:
        filled: The slots of all jobs, by the most that each may have.
        least: What each keeps in any case.
    """
    for _ in range(_REFILLS):
        slots = filled(most)
        fastest = np.maximum(seen.fastest(slots), least)
        slower = (fastest < slots) & ~seen.standing.fixed
        if not slower.any():
            return slots
        most = np.where(slower, fastest, most)
    return np.where(slower, fastest, slots)
