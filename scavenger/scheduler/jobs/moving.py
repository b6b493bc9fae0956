"""From what is to what shall be: which jobs shrink, pause, grow and begin now.

A slot is given on only when it is free: `PoolShare.counts` of all jobs are at most the slots of the pool, and those of
jobs with a limit together at most that, whatever jobs answer, and whenever they die. So jobs shrink and pause first;
others grow and begin when those have answered and their processes are gone. All that holds for each type of nodes. A
job that shall have another type is paused, and begins there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from scavenger.domain.pool import Pool, PoolAllotment, PoolNode, PoolShare
from scavenger.presentation.formatting import plural
from scavenger.scheduler.jobs.seeing import PoolJob, counted, limits_of, taken

MoveKind = Literal["begin", "shrink", "grow", "pause"]


@dataclass(frozen=True, slots=True)
class Move:
    """One step.

    Attributes:
        slots: What the job is to have then; 0 for a pause.
    """

    job: str
    kind: MoveKind
    slots: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was decided of a job.

    Attributes:
        slots: What it shall have.
        level, promoted_slot_s, promised, vm: As of `PoolShare`.
    """

    slots: int
    level: int = 0
    promoted_slot_s: float = 0.0
    promised: bool = False
    vm: str = ""


def moves(
    pool: Pool,
    jobs: Sequence[PoolJob],
    wanted: Mapping[str, Wanted],
    number: int,
    now: datetime,
    *,
    room: Mapping[str, int] | None = None,
) -> tuple[dict[str, PoolShare], tuple[Move, ...]]:
    """What is done now, and the shares that are on record then.

    Args:
        room: Slots of each type of nodes; None for all that the pool has, of one type.
        jobs: All that wait or run, also those that are being paused.
        wanted: By the ids of jobs; those that it does not name keep what they have.
        number: Of the allotment that is being decided.
        now: When it is.
    """
    shares = {job.id: share for job in jobs if (share := counted(pool, job)) is not None}
    done: list[Move] = []

    def tell(job: PoolJob, kind: MoveKind, slots: int, counts: int) -> None:
        before = shares.get(job.id)
        began = before is None or (before.told == 0) != (slots == 0)
        at = now if began or before is None else before.at
        base = before or PoolShare(0, 0, 0, number)
        vm = wanted[job.id].vm if kind == "begin" else base.vm
        changed = now if kind in ("shrink", "grow") else None
        waited_s = job.waited_s if kind == "begin" else base.waited_s
        shares[job.id] = replace(
            base, told=slots, counts=counts, since=number, at=at, changed=changed, waited_s=waited_s, vm=vm
        )
        done.append(Move(job.id, kind, slots))

    for job in jobs:
        aim = wanted.get(job.id)
        if aim is None:
            continue
        before = shares.get(job.id, PoolShare(0, 0, 0, number))
        shares[job.id] = replace(
            before,
            slots=aim.slots,
            level=aim.level,
            promoted_slot_s=aim.promoted_slot_s,
            promised=aim.promised,
        )
        told = shares[job.id].told
        slots = 0 if aim.vm != before.vm else aim.slots
        if not job.queued and slots < told and not job.fixed:
            tell(job, "shrink" if slots else "pause", slots, shares[job.id].counts)
    apart, limits = {job.id: job.sizes.apart for job in jobs}, limits_of(pool, jobs)
    free = Counter({"": pool.slots} if room is None else room)
    for job_id, share in shares.items():
        free[share.vm] -= taken(share, apart.get(job_id, 0))
    for job in sorted(jobs, key=lambda one: (not one.queued, -one.priority, one.number)):
        aim = wanted.get(job.id)
        share = shares.get(job.id)
        if aim is None or share is None or aim.slots <= share.told or share.counts > share.told:
            continue
        if job.fixed or job.cut or not (job.queued or aim.vm == share.vm):
            continue
        more = aim.slots - share.counts + (0 if share.counts else job.sizes.apart)
        if more <= min([free[aim.vm], *(limit.free(shares) for limit in limits if job.id in limit.ids)]):
            free[aim.vm] -= more
            tell(job, "begin" if job.queued else "grow", aim.slots, aim.slots)
    return shares, tuple(done)


def next_allotment(
    last: PoolAllotment | None,
    pool: Pool,
    shares: Mapping[str, PoolShare],
    done: Sequence[Move],
    names: Mapping[str, str],
    now: datetime,
    *,
    nodes: tuple[PoolNode, ...] = (),
    drained: tuple[str, ...] = (),
) -> PoolAllotment | None:
    """The allotment to be recorded; None if nothing has changed since the last.

    Args:
        names: Of jobs, by their ids.
        nodes, drained: See `PoolAllotment`.
    """
    if last is not None and (last.pool, last.shares, last.nodes, last.drained) == (
        pool,
        shares,
        nodes,
        drained,
    ):
        return None
    told = tuple(
        _told(move, names.get(move.job, move.job[:8]))
        + (f": {why}" if (why := shares[move.job].reason) else "")
        for move in done
    )
    number = 1 if last is None else last.number + 1
    return PoolAllotment(pool, number, dict(shares), told, now, nodes, drained)


def _told(move: Move, name: str) -> str:
    match move.kind:
        case "begin":
            return f"{name} begins with {plural(move.slots, 'slot')}"
        case "pause":
            return f"{name} is paused"
        case "shrink":
            return f"{name} shrinks to {plural(move.slots, 'slot')}"
        case "grow":
            return f"{name} grows to {plural(move.slots, 'slot')}"
