"""Deadlines of jobs of pools: when a job has to be done, and whether that is promised."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scavenger.domain.pool import MACHINE, pool_of
from scavenger.presentation.formatting import duration

if TYPE_CHECKING:
    from scavenger.control.pools.standing import PoolStanding
    from scavenger.domain.submission import Submission
    from scavenger.scheduler.jobs.values import PoolSeen
    from scavenger.store import Store


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a job has to be done: `constraints.deadline` after its submission.

    Attributes:
        due_s: From now; negative if it has passed.
        promised: Whether slots are kept for it so that it is in time; null while nobody knows how long it takes.
        earliest_s: From now: the earliest end that could be promised, where its own is not sure; else null.
        words: All of it.
    """

    due_s: float
    promised: bool | None
    earliest_s: float | None
    words: str


def deadline_told(store: Store, one: Submission) -> Deadline | None:
    """What is promised to a submission; None if it has no deadline, or is in no pool."""
    from scavenger.control.pools.standing import deadline_s, standing_pools

    name = pool_of(one.job.spec, rents=one.job.rents)
    if name in ("", MACHINE) or math.isinf(deadline_s(one.job)):
        return None
    pool = standing_pools(store).get(name)
    row = None if pool is None else pool.row(one.id)
    return None if pool is None or row is None else deadline_of(pool, row)


def deadline_of(pool: PoolStanding, row: int) -> Deadline | None:
    """What is promised to a job of a pool; None if it has no deadline."""
    return deadline_in(pool, pool.decision.seen, row, pool.decision.jobs[row].due_s)


def deadline_in(pool: PoolStanding, seen: PoolSeen, row: int, due_s: float) -> Deadline | None:
    """The same for a row of a pool that may have one job more."""
    from scavenger.scheduler.jobs.deadlines import due_at, promise

    if math.isinf(due_s) or pool.pool.whole:
        return None
    when = (
        f"its deadline is in {duration(due_s)}" if due_s > 0.0 else f"its deadline was {duration(-due_s)} ago"
    )
    if not pool.rules.policy.keeps_deadlines:
        return Deadline(due_s, False, None, f"{when}, and {pool.pool.policy} promises none")
    has = bool(seen.claims.deadline_s[row] < math.inf)
    if not has and math.isnan(seen.standing.left[row]):
        return Deadline(due_s, None, None, f"{when}, and is not promised: how long it takes is not known yet")
    found = promise(due_at(seen, row, due_s), row)
    earliest_s = found.earliest_s if not found.kept and math.isfinite(found.earliest_s) else None
    if found.kept:
        words = "is promised"
    elif has:
        words = "was promised, and is not sure any more"
    else:
        words = "cannot be promised"
    words += "" if earliest_s is None else f": an end in {duration(earliest_s)} can be"
    return Deadline(due_s, has or found.kept, earliest_s, f"{when}, and {words}")
