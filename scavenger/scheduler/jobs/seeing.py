"""Makes what `allot` sees of a pool from what is on record of its jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log, nan

import numpy as np

from scavenger.domain.curve import BoolArray, FloatArray, IntArray
from scavenger.domain.job import JobSpec
from scavenger.domain.pool import (
    MACHINE,
    JobStanding,
    Pool,
    PoolNode,
    PoolShare,
    RatePoint,
    UserPart,
    slots_for,
    workers_of,
)
from scavenger.presentation.formatting import plural
from scavenger.scheduler.jobs.allotting import Rules, allot
from scavenger.scheduler.jobs.deadlines import CAUTIOUS, kept_shares, promised
from scavenger.scheduler.jobs.filling import level_up
from scavenger.scheduler.jobs.policies import Fair, Patience
from scavenger.scheduler.jobs.policy_table import POLICIES
from scavenger.scheduler.jobs.renting import Rental, Renting, priced_claims, slots_of
from scavenger.scheduler.jobs.values import Allotment, Claims, Curves, Nodes, PoolSeen, Shares, Standing

_EXPONENT = 0.8
"""Of the number of slots, by which the rate of a job grows where no job of its pool tells it."""
CHANGES_MAX = 0.02
"""Most of a job's time that changes of its share may cost: it keeps what it has for so long after each."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of workers that a job may have besides 0; see `Claims`.

    Attributes:
        apart: Slots that it takes besides those of its workers, while it has any: VMs of its aggregators.
    """

    least: int
    asked: int
    most: int
    apart: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs of one user that have at most so many slots together, as the trials of a study.

    Attributes:
        most: That of the newest job counts.
    """

    name: str
    most: int


@dataclass(frozen=True, slots=True)
class PoolJob:
    """What is known of a submitted job of a pool.

    Attributes:
        number: In the order of submission.
        waited_s: Its present wait, or its last one if it has slots.
        standing: None before its present runner has said anything.
        share: By the last allotment; None if there is none for it.
        queued: Whether it has no runner.
        held_back: Whether it is not to be asked to change at this time.
        group: None if it is in none.
        changed_s: Since its share was last changed while it trained; infinite if it never was.
        due_s: From now until its deadline; infinite for none.
        cut: Whether its search is to end, as a job that is more urgent waits for its slots, or they cannot be paid.
        per_slot: Workers on each slot that it has, or would get.
    """

    id: str
    user: str
    priority: int
    number: int
    sizes: Sizes
    waited_s: float
    standing: JobStanding | None
    share: PoolShare | None
    queued: bool
    held_back: bool = False
    group: Group | None = None
    changed_s: float = inf
    due_s: float = inf
    cut: bool = False
    per_slot: int = 1

    @property
    def told(self) -> int:
        """Slots that it may have, by what it was told."""
        return 0 if self.queued or self.share is None else self.share.told

    def workers(self, slots: int) -> int:
        """Workers with so many slots, those that it has apart from these left out."""
        return slots if self.per_slot == 1 else workers_of(slots, self.per_slot, self.sizes.most)

    @property
    def vm(self) -> str:
        """Type of the nodes that it has, or had last; empty if it never had any, or there is one type."""
        return "" if self.share is None else self.share.vm

    @property
    def promised(self) -> bool:
        """Whether its deadline was promised by the last allotment."""
        return self.share is not None and self.share.promised

    @property
    def answered(self) -> bool:
        """Whether it has answered what it was told last, and can change."""
        one = self.standing
        return (
            one is not None
            and self.share is not None
            and one.state == "training"
            and not one.refusing
            and one.obeyed >= self.share.since
        )

    @property
    def rests(self) -> bool:
        """Whether its last change has not paid for itself yet; where it is not known what it cost, it has."""
        cost_s = None if self.standing is None else self.standing.change_s
        return cost_s is not None and cost_s > CHANGES_MAX * self.changed_s

    @property
    def just_begun(self) -> bool:
        """Whether what it took to begin, and would take again, has not paid for itself yet."""
        one = self.standing
        return one is not None and one.start_s is not None and one.start_s > CHANGES_MAX * one.ran_s

    @property
    def awaited(self) -> bool:
        """Whether it has still to answer what it was told last: workers start or end, or it saves."""
        one = self.standing
        return (
            one is not None
            and self.share is not None
            and one.state in ("training", "changing", "pausing")
            and one.obeyed < self.share.since
        )

    @property
    def fixed(self) -> bool:
        """Whether it has slots, and their number cannot change now."""
        return not self.queued and (self.held_back or not (self.answered or self.cut))

    @property
    def searches(self) -> bool:
        """Whether it searches, and was not told yet to end that."""
        one, share = self.standing, self.share
        return (
            one is not None and share is not None and one.state == "searching" and one.obeyed >= share.since
        )


def sizes_of(job: JobSpec) -> Sizes:
    """The sizes of a job by its file: those of `elastic`; it asks for the largest that it would search."""
    least, most = job.elastic_range
    return Sizes(least, min(most, max(least, job.worker_counts[-1])), most)


def in_slots(sizes: Sizes, per_slot: int) -> Sizes:
    """Sizes in slots, of those in workers.

    A slot that is a VM with several GPUs goes to one job. With any number of slots the job has from its least to its
    most workers (`workers_of`): GPUs are left idle only where it could not run otherwise, as with 5 to 6 workers on VMs
    with 4.
    """
    least = slots_for(sizes.least, per_slot)
    most = max(least, sizes.most // per_slot)
    return replace(sizes, least=least, asked=min(slots_for(sizes.asked, per_slot), most), most=most)


def sizes_in(pool: Pool, sizes: Sizes, per_slot: int = 1) -> Sizes:
    """The sizes that a pool has, in slots; all 0 if it is too small for the job.

    Args:
        sizes: In workers.
    """
    if pool.whole:
        return Sizes(pool.slots, pool.slots, pool.slots)
    sizes, slots = in_slots(sizes, per_slot), pool.slots - sizes.apart
    if sizes.least > slots:
        return Sizes(0, 0, 0)
    return replace(sizes, asked=min(sizes.asked, slots), most=min(sizes.most, slots))


def taken(share: PoolShare, apart: int) -> int:
    """Slots that nobody else may have; `apart` are those besides its workers'."""
    return share.counts + apart if share.counts else 0


@dataclass(frozen=True, slots=True)
class SlotLimit:
    """Jobs that have at most so many slots together.

    Attributes:
        ids: Of the jobs.
        whose: What they are, for users.
        apart: Of their sizes, by their ids.
    """

    ids: frozenset[str]
    most: int
    whose: str
    apart: Mapping[str, int]

    @property
    def words(self) -> str:
        """For users."""
        return f"{self.whose} have at most {plural(self.most, 'slot')} together"

    def free(self, shares: Mapping[str, PoolShare]) -> int:
        """How many they may have besides what counts as theirs; below 0 where they have more."""
        return self.most - sum(
            taken(share, self.apart.get(job_id, 0)) for job_id, share in shares.items() if job_id in self.ids
        )


def limits_of(pool: Pool, jobs: Sequence[PoolJob]) -> tuple[SlotLimit, ...]:
    """The limits of groups, then those of users; none in a pool that each job has as a whole."""
    if pool.whole:
        return ()
    apart = {job.id: job.sizes.apart for job in jobs}
    groups: dict[tuple[str, str], list[PoolJob]] = {}
    for job in jobs:
        if job.group is not None:
            groups.setdefault((job.user, job.group.name), []).append(job)
    found = []
    for (user, name), members in groups.items():
        newest = max(members, key=lambda job: job.number).group
        assert newest is not None
        ids = frozenset(job.id for job in members)
        found.append(SlotLimit(ids, newest.most, f"jobs {name} of {user}", apart))
    for user, part in pool.users.items():
        if part.most is not None:
            ids = frozenset(job.id for job in jobs if job.user == user)
            found.append(SlotLimit(ids, part.most, f"jobs of {user}", apart))
    return tuple(found)


def users_of(jobs: Iterable[PoolJob]) -> tuple[str, ...]:
    """The users of jobs, in the order of their numbers."""
    return tuple(sorted({job.user for job in jobs}))


def rules_of(pool: Pool, users: Sequence[str]) -> Rules:
    """The rules by which a pool is shared out among these users."""
    policy = POLICIES[pool.policy]
    if isinstance(policy, Fair):
        policy = Fair(tuple(pool.users.get(user, UserPart()).share for user in users))
    return Rules(policy, Patience(inf if pool.starved_s is None else pool.starved_s))


@dataclass(frozen=True, slots=True)
class Means:
    """What a pool has, and can do now.

    Attributes:
        left_usd: Of its budget of this month; infinite without one.
        start_s: From the request of a VM until it has joined its job.
        usd_per_s: Price of all VMs that are there; 0 where there is no budget.
        nodes: The hosts of a pool that has some; else None.
        drained: Names of nodes that get no shares.
    """

    left_usd: float = inf
    start_s: float = 0.0
    usd_per_s: float = 0.0
    nodes: tuple[PoolNode, ...] | None = None
    drained: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeType:
    """Nodes of a pool that can stand for each other.

    Attributes:
        slots: That jobs may have.
        cpus: Of one node; 0 if it is not known.
        usd_per_hour: Of the dearest.
        per_slot: Workers on each slot.
    """

    name: str
    slots: int
    cpus: int = 0
    usd_per_hour: float = 0.0
    per_slot: int = 1


def types_of(pool: Pool, jobs: Iterable[PoolJob], means: Means) -> tuple[NodeType, ...]:
    """The types of the nodes of a pool, those that jobs have among them; one at least.

    Where a budget pays for fewer hosts than there are, there are fewer of the dearest.
    """
    if means.nodes is None:
        rental = rental_of(pool, means)
        slots = 0 if MACHINE in means.drained else pool.slots
        if pool.vms is None or rental is None:
            return (NodeType("", slots, per_slot=pool.per_slot),)
        slots = rental.affordable(means.left_usd)
        return (NodeType("", slots, 0, pool.vms.usd_per_hour, pool.per_slot),)
    names = {one.type for one in means.nodes} | {job.vm for job in jobs if job.told}
    found = []
    for name in sorted(names or {""}):
        nodes = [one for one in means.nodes if one.type == name]
        slots = sum(one.slots for one in nodes if one.state == "open")
        cpus, usd = (
            max((one.cpus for one in nodes), default=0),
            max((one.usd_per_hour for one in nodes), default=0.0),
        )
        found.append(NodeType(name, slots, cpus, usd, min((one.per_slot for one in nodes), default=1)))
    rental = rental_of(pool, means)
    assert rental is not None
    over = sum(one.slots for one in found) - rental.affordable(means.left_usd)
    for row in sorted(range(len(found)), key=lambda row: -found[row].usd_per_hour):
        fewer = max(0, min(over, found[row].slots))
        found[row] = replace(found[row], slots=found[row].slots - fewer)
        over -= fewer
    return tuple(found)


def with_per_slot(jobs: Sequence[PoolJob], types: Sequence[NodeType]) -> tuple[PoolJob, ...]:
    """The jobs with the workers of a slot of theirs.

    Where nodes differ in their GPUs, sizes in slots do too. So a job stays among nodes with as many GPUs as it began
    on, also after a pause, if it fits there at all. Of the others, earlier and more urgent ones choose first: where the
    least of all that are there leaves room, and most workers of it. Who has slots now does not matter: else jobs might
    be paused for each other in turn.
    """
    room, largest = Counter[int](), Counter[int]()
    for one in types:
        room[one.per_slot] += one.slots
        largest[one.per_slot] = max(largest[one.per_slot], one.slots)
    if len(room) == 1:
        return tuple(replace(job, per_slot=types[0].per_slot) for job in jobs)
    of_type, found = {one.name: one.per_slot for one in types}, dict[str, int]()

    def goes(job: PoolJob, gpus: Iterable[int]) -> None:
        needs = {count: in_slots(job.sizes, count).least + job.sizes.apart for count in gpus}
        ranks = {
            count: (need <= room[count], need <= largest[count], room[count] * count)
            for count, need in needs.items()
        }
        chosen = found[job.id] = max(ranks, key=lambda count: ranks[count])
        room[chosen] -= needs[chosen]

    waiting = []
    for job in jobs:
        had = of_type.get(job.vm, 0)
        if job.told or (had and in_slots(job.sizes, had).least + job.sizes.apart <= largest[had]):
            goes(job, (had,))
        else:
            waiting.append(job)
    for job in sorted(waiting, key=lambda one: (-one.priority, one.number)):
        goes(job, largest)
    return tuple(replace(job, per_slot=found[job.id]) for job in jobs)


def rental_of(pool: Pool, means: Means) -> Rental | None:
    """What a pool rents; None for slots of this machine."""
    if (vms := pool.vms) is None:
        return None
    open_ = [one for one in means.nodes or () if one.state == "open"]
    hour = vms.job_usd_per_hour
    return Rental(
        vms.usd_per_hour / 3600.0,
        means.start_s,
        most=pool.slots if means.nodes is None else sum(one.slots for one in open_),
        least=vms.least,
        idle_s=means.start_s if vms.idle_s is None else vms.idle_s,
        job_usd_per_s=None if hour is None else hour / 3600.0,
    )


def seen_of(pool: Pool, jobs: Sequence[PoolJob], number: int = 0, means: Means = Means()) -> PoolSeen:
    """A pool as `allot` sees it; rows are jobs in the given order.

    Of deadlines, those are seen that are promised, some of them now, in seconds from now.

    A job is seen with the slots that it was told: those that it still has to give back count as free, since what is
    decided is where all that goes. When slots are given on is decided by `moves`.

    VMs that could be rented are as slots that are free, as many as can be paid, and no job may have some that are not
    worth their price. Those that a job has apart from its workers are slots of it here. Nodes that can stand for each
    other are one row.

    Args:
        jobs: All that wait or run, but for those that are being paused.
        number: Of the last allotment.
    """
    rental, types = rental_of(pool, means), types_of(pool, jobs, means)
    names = [one.name for one in types]
    sizes = [sizes_in(pool, job.sizes, job.per_slot) for job in jobs]
    apart = _whole(one.apart if one.least else 0 for one in sizes)
    claims = Claims(
        user=_whole(users_of(jobs).index(job.user) for job in jobs),
        priority=_whole(job.priority for job in jobs),
        submitted_s=_real(job.number for job in jobs),
        least=_whole(one.least for one in sizes) + apart,
        asked=_whole(one.asked for one in sizes) + apart,
        most=_whole(one.most for one in sizes) + apart,
        curve=np.arange(len(jobs), dtype=np.int64),
        deadline_s=_real(job.due_s if job.promised else inf for job in jobs),
    )
    told = _whole(job.told for job in jobs)
    rows = np.flatnonzero(told)
    seen = PoolSeen(
        nodes=replace(
            Nodes.of(*(one.slots for one in types)), type=np.arange(len(types)) if len(types) > 1 else None
        ),
        claims=_within_parts(pool, jobs, _within_limits(pool, jobs, claims)),
        standing=_standing(pool, jobs),
        shares=Shares(
            rows,
            _whole(names.index(job.vm) if job.vm in names else 0 for job in jobs if job.told),
            (told + apart)[rows],
        ),
        curves=curves_of(jobs, types, pool.slots),
        number=number,
    )
    policy, due_s = POLICIES[pool.policy], _real(job.due_s for job in jobs)
    if policy.keeps_deadlines and np.isfinite(due_s).any():
        deadline_s = np.where(promised(seen, due_s), due_s, inf)
        seen = replace(seen, claims=replace(seen.claims, deadline_s=deadline_s))
    if rental is None or rental.usd_per_s == 0.0:
        return seen
    priced = [
        priced_claims(
            replace(seen, curves=curves),
            policy,
            replace(rental, usd_per_s=one.usd_per_hour / 3600.0),
            means.start_s,
        )
        for one, curves in zip(types, seen.curves.by_type, strict=True)
    ]
    owed = np.zeros(len(jobs), dtype=np.int64)
    if (due := np.isfinite(seen.claims.deadline_s)).any():  # a promise is with caution, a price is not
        owed = kept_shares(seen, CAUTIOUS, due)[0]
    asked = np.maximum.reduce([one.asked for one in priced])
    most = np.maximum.reduce([owed, *(one.most for one in priced)])
    return replace(seen, claims=replace(seen.claims, asked=asked, most=most, idle_most=most))


def counted(pool: Pool, job: PoolJob) -> PoolShare | None:
    """The share of a job by what it has answered; None if it has none.

    When it has answered, it has what it trains with: fewer than it may, if it has chosen so or could not keep more
    workers alive; more, if it has refused to give them back. What counts never grows by what a job says: one more
    process than workers, while a lost one is replaced, takes nobody else's slot.
    """
    share, one = job.share, job.standing
    if share is None:
        return None
    if job.queued:
        return replace(share, told=0, counts=0)
    if one is None or pool.whole:
        return replace(share, counts=max(share.counts, share.told))
    size = one.held if one.size is None else one.size
    if job.answered and size > 0:
        return replace(share, told=size, counts=max(size, min(one.held, share.counts)))
    return replace(share, counts=max(share.counts, share.told))


@dataclass(frozen=True, slots=True)
class PoolDecision:
    """What was seen of a pool, and what follows.

    Attributes:
        jobs: The rows of the next two: all jobs but those that are being paused, with what they have answered.
        types: Of its nodes, one for each row of those that are seen.
        renting: Of a pool that rents its VMs; else None.
    """

    jobs: tuple[PoolJob, ...]
    seen: PoolSeen
    allotment: Allotment
    types: tuple[NodeType, ...]
    renting: Renting | None = None

    def promised(self, row: int) -> bool:
        """Whether a job's deadline is promised."""
        return bool(self.seen.claims.deadline_s[row] < inf)

    def known(self, row: int) -> bool:
        """Whether anything is known of a job's speed with other numbers of slots."""
        standing = self.jobs[row].standing
        return standing is not None and bool(standing.curve)

    def why_most(self, pool: Pool, row: int) -> str:
        """Why a job may have no more slots, to follow that it may not; empty if its own sizes say so."""
        job, most = self.jobs[row], int(self.seen.claims.most[row])
        size = sizes_in(pool, job.sizes, job.per_slot).most
        if most >= size + job.sizes.apart:
            return ""
        if not self.known(row) and not POLICIES[pool.policy].gives_asked:
            return " until its speed is known"
        for limit in limits_of(pool, self.jobs):
            if job.id in limit.ids and limit.most < size:
                return f": {limit.words}"
        return "" if pool.vms is None else ": another VM is not worth its price to it"

    @property
    def slots(self) -> dict[str, int]:
        """Workers that each job shall have, by its id."""
        slots = self.allotment.shares.by_job(len(self.jobs)).tolist()
        return {job.id: max(0, count - job.sizes.apart) for job, count in zip(self.jobs, slots, strict=True)}

    @property
    def vms(self) -> dict[str, str]:
        """The type of the nodes that each job shall have, or had last, by its id."""
        found = self.allotment.shares.types(len(self.jobs), self.seen.nodes).tolist()
        return {
            job.id: job.vm if row < 0 else self.types[row].name
            for job, row in zip(self.jobs, found, strict=True)
        }

    @property
    def room(self) -> dict[str, int]:
        """Slots of each type of nodes."""
        return {one.name: one.slots for one in self.types}


def decided(
    pool: Pool,
    jobs: Iterable[PoolJob],
    number: int = 0,
    rules: Rules | None = None,
    means: Means = Means(),
) -> PoolDecision:
    """See a pool, and share it out.

    Args:
        jobs: All that wait or run.
        number: Of the last allotment.
        rules: None for those of the pool.
    """
    settled = (replace(job, share=counted(pool, job)) for job in jobs)
    rows = tuple(job for job in settled if job.queued or job.told)
    rental, types = rental_of(pool, means), types_of(pool, rows, means)
    rows = with_per_slot(rows, types)
    slots, told = sum(one.slots for one in types), Counter[str]()
    for job in rows:
        told[job.vm if len(types) > 1 else types[0].name] += job.told + job.sizes.apart if job.told else 0
    fits = all(told[one.name] <= one.slots for one in types)
    if not fits:  # it was made smaller: nothing waits for what a change has cost
        rows = tuple(replace(job, changed_s=inf) for job in rows)
    if not fits and (rental is not None or means.drained):  # nor does it wait for a search
        rows = tuple(replace(job, cut=job.searches) for job in rows)
    seen, rules = seen_of(pool, rows, number, means), rules or rules_of(pool, users_of(rows))
    allotment = allot(seen, rules)
    if (cut := _cut_off(rows, allotment, rules)).any() and not pool.whole:
        fewer = tuple(replace(job, cut=job.cut or bool(ends)) for job, ends in zip(rows, cut, strict=True))
        wider = seen_of(pool, fewer, number, means)
        other = allot(wider, rules)
        if _waits(fewer, other, rules) < _waits(rows, allotment, rules):
            rows, seen, allotment = fewer, wider, other
    while (
        early := _paused_early(rows, allotment, rules)
    ).any() and fits:  # others are paused in their place, each once
        seen = replace(seen, standing=replace(seen.standing, fixed=seen.standing.fixed | early))
        allotment = allot(seen, rules)
    renting = (
        None
        if rental is None
        else Renting(allotment, min(slots, max(rental.least, slots_of(allotment))), slots)
    )
    return PoolDecision(rows, seen, allotment, types, renting)


def _waits(rows: Sequence[PoolJob], allotment: Allotment, rules: Rules) -> set[str]:
    """Jobs without slots that are more urgent than some job that searches, or have waited for too long."""
    slots = allotment.shares.by_job(len(rows))
    least = min((job.priority for job in rows if job.searches), default=0)
    return {
        job.id
        for job, count in zip(rows, slots, strict=True)
        if job.queued and not count and (job.priority > least or job.waited_s >= rules.patience.starved_s)
    }


def _cut_off(rows: Sequence[PoolJob], allotment: Allotment, rules: Rules) -> BoolArray:
    """Whose search would end for those that wait: of lower priority, or all for one that has waited for too long.

    Not of those that have their turn, as they had waited for too long themselves.
    """
    found, starved_s = _waits(rows, allotment, rules), rules.patience.starved_s
    waits = [job for job in rows if job.id in found]
    late = any(job.waited_s >= starved_s for job in waits)
    first = max((job.priority for job in waits), default=0)
    ends = (job.searches and job.waited_s < starved_s and (late or job.priority < first) for job in rows)
    return np.array([bool(waits) and one for one in ends], dtype=bool)


def _paused_early(rows: Sequence[PoolJob], allotment: Allotment, rules: Rules) -> BoolArray:
    """Who would be paused soon after it began, for none that is more urgent or has waited for too long."""
    slots = allotment.shares.by_job(len(rows))
    urgent = [job for job, count in zip(rows, slots, strict=True) if job.queued and count]
    late = any(job.waited_s >= rules.patience.starved_s for job in urgent)
    first = max((job.priority for job in urgent), default=0)
    return np.array(
        [
            bool(job.told) and not count and job.just_begun and not late and first <= job.priority
            for job, count in zip(rows, slots, strict=True)
        ],
        dtype=bool,
    )


def exponent_of(curves: Iterable[Sequence[RatePoint]]) -> float:
    """The power of the number of slots by which rates grow beyond what is known of a job.

    It is the median of what curves say between their last two points; `_EXPONENT` where none has two.
    """
    found = []
    for curve in curves:
        known = [point for point in curve if point.rate > 0.0]
        if len(known) > 1 and known[-2].slots < known[-1].slots:
            one, other = known[-2:]
            found.append(log(other.rate / one.rate) / log(other.slots / one.slots))
    return float(np.clip(np.median(found), 0.0, 1.0)) if found else _EXPONENT


def rates_of(points: Sequence[RatePoint], most: int, exponent: float = _EXPONENT) -> FloatArray:
    """Rates with 0 to `most` slots, from the points of a curve.

    Between two points it is a line. Below the first, each slot does as much; beyond the last, as without any point,
    the rate grows with a power of the slots.
    """
    slots = np.arange(most + 1, dtype=np.float64)
    known = [(point.slots, point.rate) for point in points if point.rate > 0.0]
    rates: FloatArray
    if not known:
        rates = np.r_[0.0, slots[1:] ** exponent]
        return rates
    at, rate = np.array(known, dtype=np.float64).T
    rates = np.interp(slots, np.r_[0.0, at], np.r_[0.0, rate])
    beyond = slots > at[-1]
    rates[beyond] = rate[-1] * (slots[beyond] / at[-1]) ** exponent
    return rates


def points_in_slots(points: Sequence[RatePoint], per_slot: int) -> tuple[RatePoint, ...]:
    """The points of a curve by slots, of those by workers."""
    if per_slot == 1 or not points:
        return tuple(points)
    most = slots_for(points[-1].slots, per_slot)
    rates, measured = rates_of(points, most * per_slot), {one.slots for one in points if one.measured}
    return tuple(
        RatePoint(count, float(rates[count * per_slot]), count * per_slot in measured)
        for count in range(1, most + 1)
    )


def rates_in_slots(
    job: PoolJob, points: Sequence[RatePoint], slots: int, exponent: float = _EXPONENT
) -> FloatArray:
    """Rates of a job with 0 to so many slots, from the points of a curve, which are by workers."""
    rates = rates_of(points, slots * job.per_slot, exponent)
    return rates[[job.workers(count) for count in range(slots + 1)]]


def curves_of(
    jobs: Sequence[PoolJob], types: Sequence[NodeType], slots: int, exponent: float | None = None
) -> Curves:
    """The rates of jobs on each type of nodes, with up to so many slots.

    Args:
        exponent: See `rates_of`; None for that of these jobs.
    """
    if not jobs:
        first, *others = [np.zeros((1, slots + 1)) for _ in types]
        return Curves(first, tuple(others))
    if exponent is None:
        exponent = exponent_of([() if job.standing is None else job.standing.curve for job in jobs])
    first, *others = [
        np.stack([with_apart(_rates_on(job, one, types, slots, exponent), job.sizes.apart) for job in jobs])
        for one in types
    ]
    return Curves(first, tuple(others))


def _rates_on(
    job: PoolJob, type_: NodeType, types: Sequence[NodeType], slots: int, exponent: float
) -> FloatArray:
    """The rates of a job on a type of nodes: as it was there, else those on another type by the processors of both.

    They are 0 where nodes have another number of GPUs than those that it is to have.
    """
    if type_.per_slot != job.per_slot:
        return np.zeros(slots + 1)
    curves: dict[str, tuple[RatePoint, ...]] = {}
    if (one := job.standing) is not None:
        curves = {**({one.vm: one.curve} if one.curve else {}), **one.others}
    if curve := curves.get(type_.name):
        return rates_in_slots(job, curve, slots, exponent)
    known, curve = next(iter(curves.items()), (types[0].name, ()))
    own = next((other for other in types if other.name == known), type_)
    rates = rates_in_slots(job, curve, slots, exponent)
    if not (type_.cpus and own.cpus):
        return rates
    return rates * (type_.cpus / type_.per_slot) / (own.cpus / own.per_slot)


def with_apart(rates: FloatArray, apart: int) -> FloatArray:
    """Rates by all slots of a job, of those by its workers; fewer than one worker needs do some part of it."""
    if not apart:
        return rates
    first = rates[1] * np.arange(apart + 1) / (apart + 1)
    shifted: FloatArray = np.concatenate([first, rates[1 : len(rates) - apart]])
    return shifted


def change_costs(standings: Sequence[JobStanding | None]) -> tuple[FloatArray, FloatArray]:
    """What a change of size costs each job, and how long its workers start, seconds; see `Standing`.

    One that does not know it yet has the median of the others; what nobody knows is no reason to change nothing.
    """

    return (
        _or_median([None if one is None else one.change_s for one in standings]),
        _or_median([None if one is None else one.worker_s for one in standings]),
    )


def _or_median(values: Sequence[float | None]) -> FloatArray:
    known = [one for one in values if one is not None]
    median = float(np.median(known)) if known else 0.0
    return _real(median if one is None else one for one in values)


def _standing(pool: Pool, jobs: Sequence[PoolJob]) -> Standing:
    standings = [job.standing for job in jobs]
    shares = [job.share for job in jobs]
    attained = [
        max(
            0.0,
            (0.0 if one is None else one.attained_slot_s) - (0.0 if share is None else share.promoted_slot_s),
        )
        for one, share in zip(standings, shares, strict=True)
    ]
    lefts = [None if one is None else one.left for one in standings]
    change_s, worker_s = change_costs(standings)
    return Standing(
        level=_whole(0 if share is None else share.level for share in shares),
        attained_slot_s=_real(attained),
        waited_s=_real(job.waited_s for job in jobs),
        ran_s=_real(
            0.0 if job.queued or one is None else one.ran_s for job, one in zip(jobs, standings, strict=True)
        ),
        left=_real(nan if left is None else left.samples for left in lefts),
        left_log_sd=_real(0.0 if left is None else left.log_sd for left in lefts),
        change_s=change_s,
        worker_s=worker_s,
        move_s=change_s + _or_median([None if one is None else one.start_s for one in standings]),
        fixed=np.array(
            [job.fixed or (not job.queued and (pool.whole or job.rests)) for job in jobs], dtype=bool
        ),
    )


def even_parts(pool: Pool, least: IntArray, most: IntArray) -> IntArray:
    """Most slots of each job while nothing is known of it; with policies that give what was asked, as ever."""
    if POLICIES[pool.policy].gives_asked:
        return most
    return level_up(least, most, pool.slots) if least.sum() <= pool.slots else least


def _within_parts(pool: Pool, jobs: Sequence[PoolJob], claims: Claims) -> Claims:
    """Claims of which those of jobs without a curve are at most their even part, whoever has slots now.

    Such a job cannot be shrunk while it searches, and by work that nobody knows it would take all others' slots. What
    nobody else can use of this machine it may have.
    """
    unknown = np.array(
        [job.standing is None or not (job.standing.curve or job.standing.others) for job in jobs], dtype=bool
    )
    most = np.where(unknown, even_parts(pool, claims.least, claims.most), claims.most)
    return replace(claims, asked=np.minimum(claims.asked, most), most=most, idle_most=claims.most)


def _within_limits(pool: Pool, jobs: Sequence[PoolJob], claims: Claims) -> Claims:
    """Claims that keep to all limits: as even as can be, the earlier and more urgent ones first.

    Who has slots now does not matter, but for jobs that cannot give any back: others share what these leave.
    """
    least, most = claims.least.copy(), claims.most.copy()
    for limit in limits_of(pool, jobs):
        rows = [row for row, job in enumerate(jobs) if job.id in limit.ids]
        rows.sort(key=lambda row: (-jobs[row].priority, jobs[row].number))
        free = [row for row in rows if not jobs[row].fixed]
        stays = sum(jobs[row].told + jobs[row].sizes.apart for row in rows if jobs[row].fixed)
        left = room = max(0, limit.most - stays)
        for row in free:
            if least[row] > left:
                least[row] = most[row] = 0
            left -= int(least[row])
        if free:
            most[free] = level_up(least[free], most[free], room)
    asked = np.minimum(claims.asked, most)
    return replace(claims, least=np.minimum(least, asked), asked=asked, most=most)


def _whole(values: Iterable[int]) -> IntArray:
    return np.array(list(values), dtype=np.int64)


def _real(values: Iterable[float]) -> FloatArray:
    return np.array(list(values), dtype=np.float64)
