"""`allot`: the shares of all jobs that shall be, from what is seen of a pool."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from scavenger.domain.curve import IntArray
from scavenger.scheduler.jobs.filling import level_up
from scavenger.scheduler.jobs.placing import Placement, place
from scavenger.scheduler.jobs.policies import Patience, Policy
from scavenger.scheduler.jobs.types_of_nodes import elsewhere, of_type, types_of
from scavenger.scheduler.jobs.values import Allotment, Plan, PoolSeen, Shares

_ROUNDS = 8
"""How often a policy is asked at most, before what it said is taken as it is."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a pool is shared out.

    Attributes:
        policy: Who gets how many slots.
        patience: How long jobs wait before others make way.
        placement: How nodes are chosen.
    """

    policy: Policy
    patience: Patience = field(default_factory=Patience)
    placement: Placement = field(default_factory=Placement)


def allot(seen: PoolSeen, rules: Rules) -> Allotment:
    """Share out a pool. Asked again about what it said, it says the same.

    Nodes may be too few for what a policy planned, so that others take the slots; and a job that loses its slots is one
    that waits. A policy that knows of it may want other numbers: it is asked until it wants no more. Where it goes
    round in a circle, each is as good as the others: the first that comes again is taken, so asked from there it is
    that one again.
    """
    if seen.jobs == 0:
        return Allotment(Shares.none(), seen.standing.level, seen.standing.fixed, inf, seen.number)
    if seen.nodes.types > 1:
        return _allot_types(seen, rules)
    promoted = np.zeros(seen.jobs, dtype=bool)
    now, before = seen, [seen.shares]
    for _ in range(_ROUNDS):
        plan = _with_idle(now, rules.policy.plan(now, rules.patience))
        shares = place(now, plan, rules.placement)
        promoted |= plan.promoted
        if _settled(plan, shares) or any(same(shares, one) for one in before):
            break
        before.append(shares)
        now = with_allotment(now, Allotment(shares, plan.level, plan.promoted, inf, seen.number))
    slots = shares.by_job(seen.jobs)
    number = seen.number + (not same(shares, seen.shares))
    then = with_allotment(now, Allotment(shares, plan.level, plan.promoted, inf, seen.number))
    again_s = rules.policy.again_s(then, rules.patience, plan, slots)
    return Allotment(shares, plan.level, promoted, again_s, number)


def _allot_types(seen: PoolSeen, rules: Rules) -> Allotment:
    """Each job gets a type of nodes, and the jobs of a type share its nodes; until nobody would change his type."""
    promoted = np.zeros(seen.jobs, dtype=bool)
    now, before = seen, [seen.shares]
    for _ in range(_ROUNDS):
        type_ = types_of(now, rules.policy, rules.patience)
        found = _parted(now, rules, type_)
        for _ in range(_ROUNDS):
            if (better := elsewhere(now, found.shares, type_, rules.policy, rules.patience)) is None:
                break
            type_, found = better, _parted(now, rules, better)
        promoted |= found.promoted
        if any(same(found.shares, one) for one in before):
            break
        before.append(found.shares)
        now = with_allotment(now, found)
    return replace(found, promoted=promoted, number=seen.number + (not same(found.shares, seen.shares)))


def _parted(seen: PoolSeen, rules: Rules, type_: IntArray) -> Allotment:
    """The allotments of all types of nodes together."""
    level, promoted = seen.standing.level.copy(), np.zeros(seen.jobs, dtype=bool)
    shares, again_s = list[Shares](), inf
    for number in range(seen.nodes.types):
        rows = np.flatnonzero(type_ == number)
        part, nodes = of_type(seen, number, rows)
        found = allot(part, rules)
        level[rows], promoted[rows] = found.level, found.promoted
        again_s = min(again_s, found.again_s)
        shares.append(Shares(rows[found.shares.job], nodes[found.shares.node], found.shares.slots))
    whole = Shares(
        *(np.concatenate([getattr(one, name) for one in shares]) for name in ("job", "node", "slots"))
    )
    return Allotment(whole, level, promoted, again_s, seen.number)


def _with_idle(seen: PoolSeen, plan: Plan) -> Plan:
    """The plan in which slots that it leaves idle go to jobs that may have more of such, as evenly as can be."""
    idle = seen.slots - int(plan.slots.sum())
    takes = (plan.slots > 0) & ~seen.standing.fixed & (seen.claims.idle_most > seen.claims.most)
    if idle <= 0 or not takes.any():
        return plan
    rows = seen.arrival[takes[seen.arrival]]
    slots = plan.slots.copy()
    most = np.maximum(seen.claims.idle_most[rows], slots[rows])
    slots[rows] = level_up(slots[rows], most, idle + int(slots[rows].sum()))
    return replace(plan, slots=slots, most=np.maximum(plan.most, slots))


def _settled(plan: Plan, shares: Shares) -> bool:
    """Whether the policy would say the same of a pool in which everybody has these shares."""
    if plan.tentative:
        return False
    slots = shares.by_job(len(plan.slots))
    if np.array_equal(slots, plan.slots):
        return True
    return not plan.by_number and np.array_equal(slots > 0, plan.slots > 0)


def with_allotment(seen: PoolSeen, allotment: Allotment) -> PoolSeen:
    """The pool when everybody has what was decided, and no time has passed."""
    held, slots = seen.held, allotment.shares.by_job(seen.jobs)
    standing = seen.standing
    goes_on = (held > 0) & (slots > 0)
    return replace(
        seen,
        standing=replace(
            standing,
            level=allotment.level,
            attained_slot_s=np.where(allotment.promoted, 0.0, standing.attained_slot_s),
            waited_s=np.where((held > 0) & (slots == 0), 0.0, standing.waited_s),
            ran_s=np.where(goes_on, standing.ran_s, 0.0),
        ),
        shares=allotment.shares,
        number=allotment.number,
    )


def same(one: Shares, other: Shares) -> bool:
    """Whether everybody has the same slots on the same nodes."""
    if one is other:
        return True
    if len(one.job) != len(other.job):
        return False
    if len(one.job) == 0:
        return True
    # a number for each job and node
    nodes = 1 + int(max(one.node.max(), other.node.max()))
    first, second = one.job * nodes + one.node, other.job * nodes + other.node
    here, there = np.argsort(first), np.argsort(second)
    return bool(
        np.array_equal(first[here], second[there]) and np.array_equal(one.slots[here], other.slots[there])
    )
