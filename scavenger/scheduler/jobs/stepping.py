"""One step of a pool: from its jobs as they stand to the next allotment, what is done for it, and why others wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from scavenger.domain.pool import ANOTHERS, Pool, PoolAllotment
from scavenger.presentation.formatting import plural
from scavenger.scheduler.jobs.explaining import explain, further
from scavenger.scheduler.jobs.moving import Move, Wanted, moves, next_allotment
from scavenger.scheduler.jobs.renting import Renting
from scavenger.scheduler.jobs.seeing import (
    Means,
    PoolDecision,
    PoolJob,
    decided,
    in_slots,
    limits_of,
    rules_of,
    sizes_in,
    users_of,
)

_EXPLAINED_MAX = 20
"""So many of the changes of one decision are told with their reasons."""


@dataclass(frozen=True, slots=True)
class PoolStep:
    """What was decided on a pool.

    Attributes:
        allotment: The next one to be recorded; the last one itself if nothing has changed.
        moves: What is done now.
        slots: Of the pool that jobs may have; of VMs that are rented, as many as can be paid.
        short: Why these are not all, in words; empty if they are.
        again_s: Seconds until the policy may say something else.
        renting: What is decided of VMs that are rented; else None.
        per_slot: Workers on a slot of each job, by its id; 1 for one that it does not name.
    """

    allotment: PoolAllotment
    moves: tuple[Move, ...]
    slots: int
    again_s: float
    renting: Renting | None = None
    short: str = ""
    per_slot: Mapping[str, int] = field(default_factory=dict)


def step_of(
    pool: Pool,
    jobs: Sequence[PoolJob],
    last: PoolAllotment | None,
    names: Mapping[str, str],
    now: datetime,
    means: Means,
    *,
    there: Collection[str] = (),
) -> PoolStep:
    """Share a pool out.

    Args:
        jobs: All that wait or run, also those that are being paused.
        last: The last allotment on record; None before the first.
        names: Of jobs, by their ids.
        there: Ids of jobs that are not forgotten though they lack more than slots, as between two runners.
    """
    number = 1 if last is None else last.number + 1
    decision = decided(pool, jobs, number - 1, means=means)
    slots = decision.seen.slots
    cut = {job.id for job in decision.jobs if job.cut}
    jobs = [replace(job, cut=True) if job.id in cut else job for job in jobs]
    shares, done = moves(pool, jobs, _wanted(decision), number, now, room=decision.room)
    shares |= {
        job_id: replace(last.shares[job_id], slots=0, told=0, counts=0)
        for job_id in there
        if last is not None and job_id in last.shares and job_id not in shares
    }
    for move in done[:_EXPLAINED_MAX]:
        shares[move.job] = replace(shares[move.job], reason=_reason(pool, decision, move.job, names))
    following = next_allotment(
        last, pool, shares, done, names, now, nodes=means.nodes or (), drained=means.drained
    )
    if following is None:
        assert last is not None
        following = last
    return PoolStep(
        following,
        done,
        slots,
        decision.allotment.again_s,
        decision.renting,
        _short(pool, means, slots),
        {job.id: job.per_slot for job in decision.jobs},
    )


def _short(pool: Pool, means: Means, slots: int) -> str:
    """Why a pool has fewer slots than it could have; empty if it has all."""
    if slots == pool.slots:
        return ""
    if pool.vms is None:
        return "this machine is drained"
    if means.nodes is None or len([one for one in means.nodes if one.state == "open"]) > slots:
        return f"what is left of its budget of this month pays for {plural(slots, 'VM')}"
    if not means.nodes:
        return "its hosts have not been seen yet"
    states = Counter(one.state for one in means.nodes if one.state != "open")
    words = [f"{count} {_STATES[state]}" for state, count in sorted(states.items())]
    unseen = pool.slots - len(means.nodes)
    return f"of its hosts {', '.join([*words, *([f'{unseen} never seen'] if unseen > 0 else [])])}"


_STATES = {"draining": "drained", "lost": "lost", "taken": "in use by something else"}


def _wanted(decision: PoolDecision) -> dict[str, Wanted]:
    """What each job shall have."""
    allotment, slots, vms = decision.allotment, decision.slots, decision.vms
    wanted = {}
    for row, job in enumerate(decision.jobs):
        attained = 0.0 if job.standing is None else job.standing.attained_slot_s
        before = 0.0 if job.share is None else job.share.promoted_slot_s
        wanted[job.id] = Wanted(
            slots[job.id],
            int(allotment.level[row]),
            attained if allotment.promoted[row] else before,
            decision.promised(row),
            vms[job.id],
        )
    return wanted


def _reason(pool: Pool, decision: PoolDecision, job_id: str, names: Mapping[str, str]) -> str:
    """Why a job has so many slots, for its user."""
    row = next((row for row, job in enumerate(decision.jobs) if job.id == job_id), None)
    if row is None or pool.whole:
        return ""
    user = decision.jobs[row].user
    titles = [names[job.id] if job.user == user else ANOTHERS for job in decision.jobs]
    found = explain(decision.seen, rules_of(pool, users_of(decision.jobs)), row)
    return further(found, titles, known=decision.known(row), most=decision.why_most(pool, row))


def _searches(job: PoolJob) -> bool:
    return job.standing is not None and job.standing.state == "searching"


def why_waiting(
    pool: Pool, jobs: Sequence[PoolJob], step: PoolStep, names: Mapping[str, str]
) -> dict[str, str]:
    """Why jobs of a pool wait after a step, by their ids."""
    begin = {move.job for move in step.moves if move.kind == "begin"}
    poor = f"; {step.short}" if step.short else ""
    shares, limits = step.allotment.shares, limits_of(pool, jobs)
    owners = [
        f"{names.get(job.id, job.id[:8])} has {share.counts}{' (searching)' if _searches(job) else ''}"
        for job in jobs
        if (share := shares.get(job.id)) is not None and share.counts
    ]
    found = {}
    for job in jobs:
        if not job.queued or job.id in begin:
            continue
        per_slot, share = step.per_slot.get(job.id, 1), shares.get(job.id)
        least = sizes_in(pool, job.sizes, per_slot).least
        if not least:
            need = in_slots(job.sizes, per_slot).least
            found[job.id] = f"it needs {plural(need, 'slot')}, and pool {pool.name} has {pool.slots}"
        elif pool.whole:
            found[job.id] = f"1 job at once may run on this machine itself{poor}"
        elif limit := next(
            (one for one in limits if job.id in one.ids and one.free(shares) < least + job.sizes.apart), None
        ):
            found[job.id] = f"{limit.words}, and others have them"
        else:
            need = share.slots if share is not None and share.slots else least
            coming = ", which are coming" if share is not None and share.slots else ""
            found[job.id] = (
                f"it waits for {plural(need, 'slot')} of pool {pool.name}{coming}: of {pool.slots}, "
                f"{', '.join(owners) or 'nobody has any'}{poor}"
            )
    return found
