"""`allot`: the shares of all jobs that shall be, from what is seen of a pool."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import numpy as np

from scavenger.scheduler.jobs.placing import Placement, place
from scavenger.scheduler.jobs.policies import Patience, Policy
from scavenger.scheduler.jobs.values import Allotment, PoolSeen, Shares


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
    """Share out a pool. Asked again about what it said, it says the same."""
    if seen.jobs == 0:
        return Allotment(Shares.none(), seen.standing.level, seen.standing.fixed, inf, seen.number)
    plan = rules.policy.plan(seen, rules.patience)
    shares = place(seen, plan, rules.placement)
    return Allotment(
        shares=shares,
        level=plan.level,
        promoted=plan.promoted,
        again_s=plan.again_s,
        number=seen.number + (not same(shares, seen.shares)),
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
