"""Deadlines: whether a further one can be promised, and the least slots with which all promises are kept.

Time is parted at the deadlines. Jobs are taken in the order of theirs; each gets the least level of slots with which it
is through in time, where it has so many as those before it leave, interval by interval [1]_. Where nodes are of several
types, all of them are of one: that of those that it has, else the one with most left on which it is through in time.
What is told of the work left is taken with caution, since a promise is about the end of a single job.

References:
    .. [1] Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning", ASPLOS 2023:
       the minimum satisfactory share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scavenger.domain.curve import BoolArray, FloatArray, IntArray
from scavenger.scheduler.jobs.policies import Patience, Patient, elastic, needed, ranked
from scavenger.scheduler.jobs.values import Plan, PoolSeen

_HALVINGS = 20
"""Of the time until the earliest end that can be promised."""


@dataclass(frozen=True, slots=True)
class Caution:
    """How much more work than told a promise allows for.

    Attributes:
        log_sds: Standard deviations of the logarithm of the work left.
        share: Of the work, for what is lost between nodes.
        changes: So many changes of a job's share, at what each costs it.
    """

    log_sds: float = 0.8
    share: float = 0.05
    changes: float = 3.0


CAUTIOUS = Caution()
CERTAIN = Caution(0.0, 0.0, 0.0)
"""Everything is as told."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What can be promised to a job.

    Attributes:
        kept: Whether it and all before it can be through in time.
        earliest_s: From now: the earliest end that can be promised; its deadline if that can.
    """

    kept: bool
    earliest_s: float


def promise(seen: PoolSeen, job: int, how: Caution = CAUTIOUS) -> Promise:
    """Whether a job can be promised its deadline, if all others keep theirs that can; one without any always can."""
    if seen.claims.deadline_s[job] == np.inf:
        return Promise(True, np.inf)
    due_s = _due_s(seen, how)
    kept = kept_shares(seen, how, np.isfinite(due_s) & (np.arange(seen.jobs) != job))[1]

    def able(at_s: float) -> bool:
        return _beside(due_at(seen, job, at_s), job, how, kept)

    asked_s = float(seen.claims.deadline_s[job] - seen.now_s)
    if able(asked_s):
        return Promise(True, asked_s)
    rate = max(_fastest(seen, job, type_) for type_ in _where(seen, job))
    if rate == 0.0:
        return Promise(False, np.inf)
    last_s = float(due_s[kept].max(initial=0.0))
    spare_s = how.changes * float(seen.standing.change_s[job])
    low, high = 0.0, last_s + 2.0 * spare_s + 1.001 * float(_left(seen, how)[job]) / rate
    if not able(high):
        return Promise(False, np.inf)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if able(middle) else (middle, high)
    return Promise(False, high)


def promised(seen: PoolSeen, due_s: FloatArray, how: Caution = CAUTIOUS) -> BoolArray:
    """Whom their deadlines are promised: all that `seen` knows, and each other that is through in time beside them.

    Those that were submitted first are asked first.

    Args:
        due_s: From now, of each job; infinite for none, and not after it has passed.
    """
    has = np.isfinite(seen.claims.deadline_s)
    known = np.isfinite(_left(seen, how)) & (seen.claims.least > 0)
    kept = kept_shares(seen, how, has)[1]
    for job in seen.arrival[(~has & known & (due_s > 0.0) & np.isfinite(due_s))[seen.arrival]].tolist():
        asked = due_at(seen, job, float(due_s[job]))
        if _beside(asked, job, how, kept):
            seen, has[job], kept[job] = asked, True, True
    return has


def due_at(seen: PoolSeen, job: int, due_s: float) -> PoolSeen:
    """The pool with a job that has to be done so many seconds from now."""
    deadline_s = seen.claims.deadline_s.copy()
    deadline_s[job] = seen.now_s + due_s
    return replace(seen, claims=replace(seen.claims, deadline_s=deadline_s))


def _beside(seen: PoolSeen, job: int, how: Caution, kept: BoolArray) -> bool:
    """Whether a job is through in time, and so are all of `kept`, which are without it."""
    found = kept_shares(seen, how, kept | (np.arange(seen.jobs) == job))[1]
    return bool(found[job]) and bool(found[kept].all())


def kept_shares(seen: PoolSeen, caution: Caution, who: BoolArray) -> tuple[IntArray, BoolArray]:
    """The least slots that these jobs have now so that all deadlines are kept, and whose can be.

    Args:
        who: Jobs whose deadlines count.

    Returns:
        Slots of each job, 0 for one that may wait, or has no deadline; whether its deadline is kept. One whose deadline
        is kept only if all is as told has the slots for that.
    """
    slots, kept = np.zeros(seen.jobs, dtype=np.int64), np.zeros(seen.jobs, dtype=bool)
    due_s = np.where(who, _due_s(seen, caution), np.inf)
    rows = np.flatnonzero(np.isfinite(due_s) & (due_s > 0.0))
    if not len(rows):
        return slots, kept
    rows = rows[np.lexsort((seen.claims.submitted_s[rows], due_s[rows]))]
    edges = np.unique(due_s[rows])
    lasts_s = np.diff(edges, prepend=0.0)
    free = np.repeat(_rooms(seen)[:, None], len(edges), axis=1)
    left, told, claims = _left(seen, caution), _left(seen, CERTAIN), seen.claims
    need = needed(seen, claims.least)

    def least_level(job: int, until: int, work: float) -> tuple[int, IntArray] | None:
        """The type on which a job is through in time, and its slots there in each interval."""
        levels = np.arange(int(need[job]), max(int(need[job]), int(seen.useful[job])) + 1)
        types = _where(seen, job)
        for type_ in sorted(types, key=lambda one: -int(free[one, :until].min())):
            rates = seen.curves.by_type[type_].rates[claims.curve[job]]
            has = np.minimum(levels[:, None], free[type_, :until])
            has = np.where(has >= need[job], has, 0)
            enough = np.flatnonzero(rates[np.minimum(has, len(rates) - 1)] @ lasts_s[:until] >= work)
            if len(enough):
                return type_, has[enough[0]]
        return None

    for job in rows.tolist():
        until = int(np.searchsorted(edges, due_s[job])) + 1
        if need[job] == 0:
            continue
        found = least_level(job, until, left[job])
        kept[job] = found is not None
        if found is None:  # it may still be through in time, if it was told right
            found = least_level(job, until, told[job])
        if found is not None:
            type_, has = found
            slots[job] = has[0]
            free[type_, :until] -= has
    return slots, kept


def _rooms(seen: PoolSeen) -> IntArray:
    """Slots that jobs may have, of each type of nodes."""
    nodes = seen.nodes
    types = np.zeros(len(nodes.slots), dtype=np.int64) if nodes.type is None else nodes.type
    return np.bincount(types, nodes.room, nodes.types).astype(np.int64)


def _where(seen: PoolSeen, job: int) -> Sequence[int]:
    """The types of nodes on which a job may be: that of those that it has, else all."""
    has = int(seen.shares.types(seen.jobs, seen.nodes)[job])
    return range(seen.nodes.types) if has < 0 else (has,)


def _fastest(seen: PoolSeen, job: int, type_: int) -> float:
    """The greatest rate of a job with slots of a type that may be of use to it."""
    most = min(int(seen.useful[job]), int(_rooms(seen)[type_]))
    rates = seen.curves.by_type[type_].rates[seen.claims.curve[job]]
    return float(rates[: max(1, most) + 1].max())


def _due_s(seen: PoolSeen, caution: Caution) -> FloatArray:
    """Seconds until each deadline, less what changes may cost."""
    due_s: FloatArray = seen.claims.deadline_s - seen.now_s - caution.changes * seen.standing.change_s
    return due_s


def _left(seen: PoolSeen, caution: Caution) -> FloatArray:
    """Work that is left to do at most; infinite if it is unknown."""
    standing = seen.standing
    left = standing.left * np.exp(caution.log_sds * standing.left_log_sd) * (1.0 + caution.share)
    return np.where(np.isnan(left), np.inf, left)


@dataclass(frozen=True, slots=True)
class Edf(Patient):
    """The earliest deadline first, with all slots that are of use to it."""

    def plan(self, seen: PoolSeen, patience: Patience) -> Plan:
        """See `Policy.plan`."""
        order = ranked(seen, patience, seen.claims.deadline_s)
        need, slots, idle = needed(seen, seen.claims.least), np.zeros(seen.jobs, dtype=np.int64), seen.slots
        fixed = seen.standing.fixed
        for job in order.tolist():
            most = int(need[job] if fixed[job] else max(seen.useful[job], need[job]))
            if 0 < need[job] <= idle:
                slots[job] = min(most, idle)
                idle -= int(slots[job])
        return elastic(seen, order, slots)
