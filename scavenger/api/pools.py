"""Pools of slots that jobs share: who has how many, what comes, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from scavenger.api.calls import Local, call
from scavenger.api.deadlines import Deadline, deadline_in, deadline_of
from scavenger.api.forms import JobKey
from scavenger.api.submitting import JobRequest
from scavenger.api.values import Answer, gathered
from scavenger.domain.pool import ANOTHERS, NodeState
from scavenger.domain.pool_settings import PoolName
from scavenger.errors import ConfigurationError, NotFoundError
from scavenger.presentation.formatting import duration

if TYPE_CHECKING:
    from scavenger.control.pools.standing import PoolStanding
    from scavenger.scheduler.jobs.explaining import Explanation, Other, Step
    from scavenger.scheduler.jobs.forecast import Forecast, NewJob, Range

MOVES_SHOWN = 10
EXPLAINED_MAX = 100
"""So many jobs of a pool are told why they have what they have."""


@dataclass(frozen=True, slots=True)
class Span:
    """A number that may be known with an error.

    Attributes:
        middle: The median; null if it is unknown.
        low, high: Nine of ten are between them; null where there is no bound.
    """

    middle: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingJob:
    """A job of a pool.

    Attributes:
        id, name: Null if it is another user's.
        state: `waiting`, or what its runner says.
        slots: That it may have by what it was told last.
        next: That it shall have.
        per_slot: Workers that a slot has room for: a VM or host has one for each GPU.
        workers, next_workers: With these slots, within what its file says.
        aggregators: In the pool of aggregators of this machine.
        start_s, end_s: From now.
        usd: From now on.
        why: Why it has so many slots, or none.
        late: Why it has not done what it was told within its `limits.change`; empty if it has, or may still.
        promoted_s: From now until it goes before all others, as it has waited for too long; null if it has slots.
        deadline: Null if it has none.
    """

    id: str | None
    name: str | None
    user: str | None
    priority: int
    state: str
    slots: int
    next: int
    per_slot: int
    workers: int
    next_workers: int
    aggregators: int
    start_s: Span
    end_s: Span
    usd: Span
    why: str
    late: str
    promoted_s: float | None
    deadline: Deadline | None


@dataclass(frozen=True, slots=True)
class Gain:
    """What other slots would be to a job.

    Attributes:
        job, name: Null if it is another user's.
        slots: How many it would have.
        more: How many more than now; negative for fewer.
        sooner_s: By how much sooner it would end; negative for later, null if it is unknown, or has no slots then or
            now.
    """

    job: str | None
    name: str | None
    slots: int
    more: int
    sooner_s: float | None


@dataclass(frozen=True, slots=True)
class PoolMove:
    """What was changed, and when it was decided."""

    at: datetime
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedNode:
    """A node of a pool.

    Attributes:
        name: Of a host, or the id of a VM; `local` is this machine.
        type: Its VM type; empty for this machine.
        slots: Of the pool.
        per_slot: Workers that each of them has room for.
        spot: Whether it may be taken back.
        state: `open`; `draining`: jobs leave it, and it gets no shares; `lost`: it is not reached; `taken`: something
            else than the pool's jobs has it.
        since: When it became that; null for this machine.
        job, job_name: Of the job that has it; null for none, several, or another user's.
    """

    name: str
    type: str
    slots: int
    per_slot: int
    usd_per_hour: float
    spot: bool
    state: NodeState
    since: datetime | None
    job: str | None
    job_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedVms:
    """The VMs that a pool rents, or the hosts that it has, each one slot.

    Attributes:
        vm: Their type; empty for hosts, which may be of several.
        spot: Whether workers have spot VMs.
        budget_usd: Of a calendar month, in UTC; null for no limit.
        left_usd: Of it, now; null for no limit.
        idle: VMs that wait for the next job.
        idle_usd: What VMs have cost while they waited, in this month.
    """

    infra: str
    vm: str
    spot: bool
    budget_usd: float | None
    left_usd: float | None
    idle: int
    idle_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPool:
    """A pool.

    Attributes:
        slots: That all jobs may have together: each a worker, or a VM or host.
        free: Slots that nobody has.
        whole: Whether each job has all of it.
        usd_per_slot_hour: Price of a slot: that of a processor of this machine, or of a VM; null if it is not known.
        vms: What is rented for its jobs; null for slots of this machine.
        nodes: Its machines; of rented VMs those that are there.
        number: Of the newest allotment; 0 before the first.
        jobs: In the order of submission.
        further: What one slot more would bring now.
        moves: The latest, newest first.
    """

    name: str
    policy: str
    slots: int
    free: int
    whole: bool
    usd_per_slot_hour: float | None
    vms: SharedVms | None
    nodes: tuple[SharedNode, ...]
    number: int
    jobs: tuple[SharingJob, ...]
    further: tuple[Gain, ...]
    moves: tuple[PoolMove, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsAnswer(Answer):
    """The pools of the machine that was asked."""

    masked: ClassVar[bool] = True

    pools: tuple[SharedPool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrainedAnswer(Answer):
    """What was done to a node of a pool.

    Attributes:
        job, name: Of the job that has it, and leaves it unless `drained` is false; null for none that is known.
    """

    masked: ClassVar[bool] = True

    pool: str
    node: str
    drained: bool
    job: str | None
    name: str | None


@dataclass(frozen=True, slots=True)
class Sized:
    """What another number of slots would be to a job.

    Attributes:
        faster: Its speed then over its speed now, less 1; null if it has none now.
        sooner_s: As of `Gain`, less what the change costs.
        idle: Slots that nobody has, of those that it would get.
        others: Whose slots would change.
    """

    slots: int
    faster: float | None
    sooner_s: float | None
    idle: int
    others: tuple[Gain, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareAnswer(Answer):
    """Why a job has its slots.

    Attributes:
        slots: That it shall have.
        why: In words.
        more: The next number that it could have; null if there is none.
        less: The number below; null if there is none.
        deadline: Null if it has none.
    """

    masked: ClassVar[bool] = True

    pool: str
    policy: str
    job: str
    name: str
    slots: int
    held: int
    why: str
    more: Sized | None
    less: Sized | None
    deadline: Deadline | None


@dataclass(frozen=True, slots=True)
class Delay:
    """By how much later a job would end; negative for sooner."""

    job: str | None
    name: str | None
    later_s: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfAnswer(Answer):
    """What a job would bring if it was submitted now.

    Attributes:
        known_by: Id of the earlier run whose curve is that of the job; null if there is none: then its end is unknown.
        deadline: Whether it would be promised; null if the job has none.
        delays: Of the others.
    """

    masked: ClassVar[bool] = True

    pool: str
    name: str
    known_by: str | None
    start_s: Span
    end_s: Span
    usd: Span
    deadline: Deadline | None
    delays: tuple[Delay, ...]


@call("get", "pools", tag="pools", summary="The pools that jobs share")
def show_pools(at: Local) -> PoolsAnswer:
    """Slots of each pool and who has them, what comes of its jobs under the queue as it is, and why."""
    from scavenger.control.pools.standing import standing_pools

    tenants = _aggregators()
    with at.store.at_one_moment():
        found = standing_pools(at.store)
        moves = {name: _moves(at, name) for name in found}
    return PoolsAnswer(
        pools=tuple(
            shared(at, one, tenants, moves[name], shared_nodes(at, one)) for name, one in found.items()
        )
    )


@call("get", "pools/jobs/{job}", tag="pools", summary="Why a job has its slots")
def explain_share(at: Local, job: JobKey) -> ShareAnswer:
    """What one slot more or less is worth to a job of a pool, whose it would be, or who would get it."""
    from scavenger.control.pools.standing import standing_pools

    one = at.find_submission(job)
    if one is None:
        raise NotFoundError(f"there is no submitted job {job!r}; `scavenger jobs queue` lists them")
    for pool in standing_pools(at.store).values():
        if (row := pool.row(one.id)) is not None:
            return share_of(at, pool, row)
    where = "it has ended" if not one.is_open else "it runs in no pool, or is being paused"
    raise ConfigurationError(f"job {one.job.name} ({one.id[:8]}) has no share: {where}")


def share_of(at: Local, pool: PoolStanding, row: int) -> ShareAnswer:
    """Why a job of a pool has its slots."""
    from scavenger.scheduler.jobs.explaining import explain

    job_id = pool.decision.jobs[row].id
    found = explain(pool.decision.seen, pool.rules, row)
    names, due = list(_names(at, pool).values()), deadline_of(pool, row)
    return ShareAnswer(
        pool=pool.pool.name,
        policy=pool.pool.policy,
        job=job_id,
        name=pool.names[job_id],
        slots=found.slots,
        held=found.held,
        why=_why(pool, found, names) + _and(pool, row, found.slots, due),
        more=_sized(at, pool, found.more, row),
        less=_sized(at, pool, found.less, row),
        deadline=due,
    )


@call(
    "post",
    "pools/drain",
    tag="pools",
    summary="Drain a node",
    role="admin",
    writes="store",
    body="PoolNodeForm",
)
def drain_pool_node(
    at: Local,
    node: Annotated[str, Field(min_length=1, max_length=200, description="As `scavenger pool` names it.")],
    pool: Annotated[PoolName | None, Field(description="The pool that has it, if several do.")] = None,
    undo: Annotated[bool, Field(description="Let jobs have the node again.")] = False,
) -> NodeDrainedAnswer:
    """Have jobs leave a node of a pool, which then gets no shares until `undo`."""
    from scavenger.control.pools.nodes import drain

    name, job_id = drain(at.store, node, pool, undo=undo)
    job = at.store.submission(job_id) if job_id else None
    return NodeDrainedAnswer(
        pool=name,
        node=node,
        drained=not undo,
        job=None if job is None else job.id,
        name=None if job is None else job.job.name,
    )


@call("post", "pools/what-if", tag="pools", summary="What one more job would bring", role="changer", body="*")
def what_if_submitted(at: Local, request: JobRequest) -> WhatIfAnswer:
    """Start, end and dollars of a job if it was submitted now, and whom it would delay; nothing is submitted."""
    from scavenger.control.pools.standing import standing_pools
    from scavenger.control.pools.unsubmitted import as_new_job
    from scavenger.domain.pool import pool_of

    prepared = request.prepared()
    name = pool_of(prepared.job.written(), rents=prepared.place.rents)
    pools = standing_pools(at.store)
    if name not in pools:
        place = f"pool {name}, which is" if name else "machines of its own, and"
        raise ConfigurationError(
            f"{request.job_file}: the job would run in {place} none of {', '.join(pools)}: `[pool.NAME]` in the "
            "settings file, or `scavenger serve --pool FILE`, makes a pool"
        )
    pool = pools[name]
    new, known_by = as_new_job(at.store, prepared, pool, user=at.user, priority=request.priority)
    return brought(at, pool, new, name=prepared.job.name, known_by=known_by)


def brought(at: Local, pool: PoolStanding, new: NewJob, *, name: str, known_by: str | None) -> WhatIfAnswer:
    """What one more job would bring to a pool."""
    from scavenger.scheduler.jobs.forecast import what_if, with_job

    row = pool.decision.seen.jobs
    at_ease = replace(new, deadline_s=math.inf)
    due = deadline_in(pool, with_job(pool.decision.seen, at_ease), row, new.deadline_s)
    if due is None or not due.promised:
        new = at_ease
    found = what_if(pool.decision.seen, pool.rules, new, usd_per_slot_s=pool.usd_per_slot_s)
    start, end, usd = _spans(found.forecast, row)
    delays = [
        Delay(*_shown(at, pool, other), later)
        for other in range(row)
        if (later := _span(found.later_s, other)) != Span(0.0, 0.0, 0.0)
    ]
    return WhatIfAnswer(
        pool=pool.pool.name,
        name=name,
        known_by=known_by,
        start_s=start,
        end_s=end,
        usd=usd,
        deadline=due,
        delays=tuple(delays),
    )


def _aggregators() -> Mapping[str, int]:
    """Aggregators of each job in the pool of aggregators of this machine."""
    from collections import Counter

    from scavenger.train.pool import protocol
    from scavenger.train.pool.connection import load_of

    load = load_of(protocol.pool_folder())
    return {} if load is None else Counter(tenant.job_id for tenant in load.tenants)


def _moves(at: Local, name: str) -> tuple[PoolMove, ...]:
    """The latest moves; only of those who see all jobs, since they name them."""
    if not at.sees_all:
        return ()
    found = at.store.allotments(name, MOVES_SHOWN)
    return tuple(PoolMove(one.at, what) for one in found for what in one.moves)[:MOVES_SHOWN]


def _names(at: Local, pool: PoolStanding) -> dict[str, str]:
    """Names of the jobs of a decision, by their ids, in its order."""
    return {
        job.id: pool.names[job.id] if at.only_of in (None, job.user) else ANOTHERS
        for job in pool.decision.jobs
    }


def shared(
    at: Local,
    pool: PoolStanding,
    tenants: Mapping[str, int],
    moves: tuple[PoolMove, ...],
    nodes: tuple[SharedNode, ...],
) -> SharedPool:
    """A pool as it is, and what comes of its jobs."""
    from scavenger.scheduler.jobs.explaining import explain, further_slot
    from scavenger.scheduler.jobs.forecast import forecast

    seen, rules, names = pool.decision.seen, pool.rules, _names(at, pool)
    slots, titles = pool.decision.slots, list(names.values())
    coming = forecast(seen, rules, usd_per_slot_s=pool.usd_per_slot_s)
    jobs = []
    for row, job in enumerate(pool.decision.jobs):
        mine = at.only_of in (None, job.user)
        start, end, usd = _spans(coming, row)
        state = "waiting" if job.queued else "starting" if job.standing is None else job.standing.state
        told = row < EXPLAINED_MAX and mine and not pool.pool.whole
        why = _why(pool, explain(seen, rules, row), titles) if told else ""
        due = deadline_of(pool, row) if told else None
        jobs.append(
            SharingJob(
                id=job.id if mine else None,
                name=titles[row] if mine else None,
                user=job.user if mine else None,
                priority=job.priority,
                state=state,
                slots=job.told,
                next=slots[job.id],
                per_slot=job.per_slot,
                workers=job.workers(job.told),
                next_workers=job.workers(slots[job.id]),
                aggregators=tenants.get(job.id, 0) if mine else 0,
                start_s=start,
                end_s=end,
                usd=usd,
                why=why + (_and(pool, row, slots[job.id], due) if told else ""),
                late=job.share.late if mine and job.share is not None else "",
                promoted_s=_promoted_s(pool, row, slots[job.id]) if mine else None,
                deadline=due,
            )
        )
    types = range(0 if pool.pool.whole or not seen.jobs else len(seen.nodes.slots))
    further = [one for node in types for one in further_slot(seen, rules, node)]
    return SharedPool(
        name=pool.pool.name,
        policy=pool.pool.policy,
        slots=pool.pool.slots,
        free=max(0, seen.slots - int(seen.held.sum())),
        whole=pool.pool.whole,
        usd_per_slot_hour=_finite(pool.usd_per_slot_hour),
        vms=_vms(at, pool),
        nodes=nodes,
        number=0 if pool.allotment is None else pool.allotment.number,
        jobs=tuple(jobs),
        further=tuple(_gain(at, pool, one) for one in further),
        moves=moves,
    )


def _vms(at: Local, pool: PoolStanding) -> SharedVms | None:
    from scavenger.control.pools.rented import idle_vms

    vms = pool.pool.vms
    if vms is None:
        return None
    idle, idle_usd = idle_vms(at.store, pool.pool, datetime.now(UTC))
    return SharedVms(
        infra=vms.infra,
        vm=vms.vm,
        spot=vms.spot,
        budget_usd=vms.budget_usd,
        left_usd=_finite(pool.means.left_usd),
        idle=idle,
        idle_usd=idle_usd,
    )


def shared_nodes(at: Local, pool: PoolStanding) -> tuple[SharedNode, ...]:
    """The machines of a pool that are on record."""
    from scavenger.control.pools.nodes import nodes_of
    from scavenger.domain.pool import PoolAllotment

    last = pool.allotment or PoolAllotment(pool.pool, 0, {}, (), datetime.now(UTC))
    mine = {job.id for job in pool.jobs if at.only_of in (None, job.user)}
    found = []
    for node, job_id in nodes_of(at.store, last):
        one = job_id if job_id in mine else None
        found.append(
            gathered(
                SharedNode,
                node,
                usd_per_hour=node.usd_per_hour if pool.pool.vms else node.slots * pool.usd_per_slot_hour,
                job=one,
                job_name=None if one is None else pool.names[one],
            )
        )
    return tuple(found)


def _promoted_s(pool: PoolStanding, row: int, slots: int) -> float | None:
    """From now until a job that waits goes before all others; None if it never does."""
    starved_s = pool.rules.patience.starved_s
    if slots or math.isinf(starved_s):
        return None
    return max(0.0, starved_s - float(pool.decision.seen.standing.waited_s[row]))


def goes_first(promoted_s: float) -> str:
    """When that is, in words."""
    return "goes before all others" + (f" in {duration(promoted_s)}" if promoted_s else "")


def _why(pool: PoolStanding, found: Explanation, names: Sequence[str]) -> str:
    """The reason for a share in a sentence."""
    from scavenger.scheduler.jobs.explaining import in_words

    known, most = pool.decision.known(found.job), pool.decision.why_most(pool.pool, found.job)
    return in_words(found, names, known=known, most=most)


def _and(pool: PoolStanding, row: int, slots: int, due: Deadline | None) -> str:
    """What is said of a share besides its reason."""
    promoted_s, job = _promoted_s(pool, row, slots), pool.decision.jobs[row]
    has = pool.decision.slots[job.id]
    idle = has * job.per_slot - job.workers(has)
    words = (
        f"it may have no more than {job.sizes.most} workers: {idle} of its GPUs are idle" if idle > 0 else "",
        "" if promoted_s is None else goes_first(promoted_s),
        "" if due is None else due.words,
    )
    return "".join(f"; {one}" for one in words if one)


def _spans(coming: Forecast, row: int) -> tuple[Span, Span, Span]:
    return _span(coming.start_s, row), _span(coming.end_s, row), _span(coming.usd, row)


def _span(found: Range, row: int) -> Span:
    return Span(*(_finite(float(column[row])) for column in (found.middle, found.low, found.high)))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _shown(at: Local, pool: PoolStanding, row: int) -> tuple[str | None, str | None]:
    """Id and name of a job, if the caller may see it."""
    job = pool.decision.jobs[row]
    if at.only_of not in (None, job.user):
        return None, None
    return job.id, pool.names[job.id]


def _gain(at: Local, pool: PoolStanding, one: Other) -> Gain:
    return Gain(*_shown(at, pool, one.job), one.slots, one.more, _finite(one.sooner_s))


def _sized(at: Local, pool: PoolStanding, step: Step | None, row: int) -> Sized | None:
    if step is None:
        return None
    others = tuple(_gain(at, pool, one) for one in step.others)
    faster = _finite(step.faster) if pool.decision.known(row) else None
    return Sized(step.slots, faster, _finite(step.sooner_s), step.idle, others)
