"""`allot`: the shares of all jobs that shall be, from what is seen of a pool."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from scavenger.scheduler.jobs.placing import Placement, place
from scavenger.scheduler.jobs.policies import Patience, Policy
from scavenger.scheduler.jobs.values import Allotment, PoolSeen, Shares

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
    that waits. A policy that knows of it may want other numbers: it is asked until it wants no more.
    """
    if seen.jobs == 0:
        return Allotment(Shares.none(), seen.standing.level, seen.standing.fixed, inf, seen.number)
    promoted = np.zeros(seen.jobs, dtype=bool)
    now = seen
    for _ in range(_ROUNDS):
        plan = rules.policy.plan(now, rules.patience)
        shares = place(now, plan, rules.placement)
        promoted |= plan.promoted
        slots = shares.by_job(seen.jobs)
        as_planned = np.array_equal(slots, plan.slots) and not np.any((now.held > 0) & (slots == 0))
        if as_planned or same(shares, now.shares):
            break
        now = with_allotment(now, Allotment(shares, plan.level, plan.promoted, plan.again_s, seen.number))
    number = seen.number + (not same(shares, seen.shares))
    return Allotment(shares, plan.level, promoted, plan.again_s, number)


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
    first, second = (np.lexsort((shares.node, shares.job)) for shares in (one, other))
    return all(
        bool(np.array_equal(getattr(one, name)[first], getattr(other, name)[second]))
        for name in ("job", "node", "slots")
    )
