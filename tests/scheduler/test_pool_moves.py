"""Moves of a pool: no slot has two owners whatever jobs answer and whenever they die, and all comes to rest."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from scavenger.domain.pool import (
    POLICY_NAMES,
    JobStanding,
    Pool,
    PoolAllotment,
    PoolNode,
    PoolShare,
    PoolVms,
    RatePoint,
    UserPart,
    WorkLeft,
    slots_for,
    workers_of,
)
from scavenger.scheduler.jobs.allotting import Rules
from scavenger.scheduler.jobs.deadlines import promise
from scavenger.scheduler.jobs.moving import Wanted, moves, next_allotment
from scavenger.scheduler.jobs.policies import Even
from scavenger.scheduler.jobs.policy_table import POLICIES
from scavenger.scheduler.jobs.seeing import (
    Group,
    Means,
    PoolJob,
    Sizes,
    decided,
    exponent_of,
    in_slots,
    points_in_slots,
    rates_of,
    sizes_in,
)

RENTED = tuple(PoolVms("gcp/us-central1", "n1-standard-8", False, 1.0, None, usd) for usd in (None, 100.0))
HOSTS = tuple(PoolVms("ssh/lab", "", False, usd) for usd in (0.0, 1.0))
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Job:
    """A job with processes, which obeys what it is told at any later moment, or does not."""

    id: str
    user: str
    priority: int
    number: int
    sizes: Sizes
    workers: int = 0
    queued: bool = True
    standing: JobStanding | None = None
    group: Group | None = None
    due_s: float = inf
    asked: tuple[int, int] | None = None
    """The number of an allotment, and the slots that it says."""
    curves: dict[str, tuple[RatePoint, ...]] = field(default_factory=dict)
    """On the types of nodes that it has had, as its runners keep them."""


@dataclass
class World:
    """A pool's server and its jobs, one event at a time."""

    pool: Pool
    chance: random.Random
    last: PoolAllotment | None = None
    jobs: list[Job] = field(default_factory=list)
    arrived: int = 0
    means: Means = field(default_factory=Means)
    gpus: tuple[int, int] = (1, 1)
    """Workers on each slot of both types of hosts."""

    def set_means(self) -> None:
        """What the pool has is something else from now on: its budget, or the state of a host."""
        if (vms := self.pool.vms) is None:
            return
        if not vms.owned:
            self.means = Means(self.chance.choice((0.0, 1.0, inf)), self.chance.choice((0.0, 60.0)))
            return
        nodes = list(
            self.means.nodes
            or (
                PoolNode(
                    str(at),
                    "ab"[at % 2],
                    1,
                    1 + at % 2,
                    vms.usd_per_hour * (at % 2),
                    "open",
                    NOW,
                    per_slot=self.gpus[at % 2],
                )
                for at in range(self.pool.slots)
            )
        )
        at, state = (
            self.chance.randrange(len(nodes)),
            self.chance.choice(("open", "open", "lost", "draining")),
        )
        nodes[at] = replace(nodes[at], state=state)
        self.means = Means(nodes=tuple(nodes))

    def arrive(self) -> None:
        least = self.chance.randint(1, 3)
        most = least + self.chance.choice((0, 0, 1, 2, 6))
        self.arrived += 1
        self.jobs.append(
            Job(
                f"job-{self.arrived}",
                self.chance.choice(("ann", "bob")),
                self.chance.choice((0, 0, 0, 5)),
                self.arrived,
                Sizes(
                    least,
                    self.chance.randint(least, most),
                    most,
                    0 if self.pool.vms is None else self.chance.randint(0, 1),
                ),
                group=self.chance.choice((None, Group("rates", 4))),
                due_s=self.chance.choice((inf, inf, 100.0, 1000.0)),
            )
        )

    def seen(self) -> list[PoolJob]:
        shares = {} if self.last is None else self.last.shares
        return [
            PoolJob(
                one.id,
                one.user,
                one.priority,
                one.number,
                one.sizes,
                1.0,
                one.standing,
                shares.get(one.id),
                one.queued,
                group=one.group,
                due_s=one.due_s,
            )
            for one in self.jobs
        ]

    def decide(self) -> int:
        """One decision, recorded and acted on; returns the number of moves."""
        jobs = self.seen()
        number = 1 if self.last is None else self.last.number + 1
        decision = decided(self.pool, jobs, number - 1, means=self.means)
        wanted = {
            job.id: Wanted(decision.slots[job.id], promised=decision.promised(row), vm=decision.vms[job.id])
            for row, job in enumerate(decision.jobs)
        }
        payable = decision.seen.slots
        shares, done = moves(self.pool, jobs, wanted, number, NOW, room=decision.room)
        if any(move.kind in ("begin", "grow") for move in done):
            apart = {job.id: job.sizes.apart for job in jobs}
            has = [(share, share.counts + apart[id]) for id, share in shares.items() if share.counts]
            began = {shares[move.job].vm for move in done if move.kind in ("begin", "grow")}
            for vm in began:
                assert sum(count for share, count in has if share.vm == vm) <= decision.room[vm]
            assert sum(count for share, count in has if share.vm in began) <= payable
        following = next_allotment(self.last, self.pool, shares, done, {}, NOW)
        if following is not None:
            for job in jobs:
                assert following.shares[job.id].promised or not job.promised, "a promise stays one"
            self.last = following
        by_id = {one.id: one for one in self.jobs}
        for move in done:
            job = by_id[move.job]
            if self.pool.whole:
                assert move.slots in (0, self.pool.slots)
            elif move.slots and job.sizes.least <= move.slots * self.per_slot(job):
                has = workers_of(move.slots, self.per_slot(job), job.sizes.most)
                assert slots_for(has, self.per_slot(job)) == move.slots, "no machine is idle"
            else:
                assert move.kind == "pause", "no job has fewer workers than its least"
            if move.kind == "begin":
                job.queued, job.workers, job.standing = False, move.slots, None
            else:
                job.asked = (number, move.slots)
        return len(done)

    def per_slot(self, job: Job) -> int:
        """Workers on each slot that a job has."""
        if self.means.nodes is None or self.last is None:
            return 1 if self.pool.vms is None else self.pool.vms.per_slot
        return self.gpus["ab".index(self.last.shares[job.id].vm or "a")]

    # ---- what jobs do --------------------------------------------------------------------------------------

    def stand(self, job: Job, *, obeyed: int) -> None:
        curve = tuple(RatePoint(k, k**0.7, k == job.workers) for k in range(1, job.sizes.most + 1))
        job.standing = JobStanding(
            1, "training", job.workers, obeyed, curve=curve, left=WorkLeft(100.0 * job.number), change_s=0.1
        )
        if self.last is not None:
            vm = self.last.shares[job.id].vm
            job.curves[vm] = curve
            others = {other: known for other, known in job.curves.items() if other != vm}
            job.standing = replace(job.standing, vm=vm, others=others)

    def grow_early(self, job: Job) -> None:
        """Start what it was told to start, without having said so."""
        if job.asked is not None and job.asked[1] > job.workers:
            job.workers = job.asked[1]

    def search(self, job: Job) -> None:
        """It has begun, and searches with all that it has."""
        if self.last is not None and job.standing is None:
            job.standing = JobStanding(1, "searching", job.workers, self.last.shares[job.id].since)

    def replace_worker(self, job: Job) -> None:
        """A worker is lost, and another one starts while its process ends."""
        if job.standing is not None and job.workers:
            job.standing = replace(job.standing, held=job.workers + 1, size=job.workers)

    def answer(self, job: Job, *, obeys: bool) -> None:
        if job.asked is None:
            self.stand(job, obeyed=0 if job.standing is None else job.standing.obeyed)
            if self.last is not None and job.standing is not None:
                since = self.last.shares[job.id].since
                job.standing = replace(job.standing, obeyed=max(since, job.standing.obeyed))
            return
        number, slots = job.asked
        job.asked = None
        if obeys:
            job.workers = slots
        if job.workers:
            self.stand(job, obeyed=number)
        else:
            job.queued = True

    def die(self, job: Job) -> None:
        """Its runner dies, and another one begins with what the job was told, or queues it."""
        assert self.last is not None
        told = self.last.shares[job.id].told
        job.asked, job.standing, job.workers, job.queued = None, None, told, told == 0

    def event(self) -> None:
        running = [one for one in self.jobs if not one.queued]
        kind = self.chance.choice(
            ("arrive", "answer", "answer", "answer", "refuse", "grow", "die", "lose", "end", "search")
        )
        if kind == "arrive" or not running:
            if len(self.jobs) < 8:
                self.arrive()
            return
        job = self.chance.choice(running)
        if kind == "end":
            self.jobs.remove(job)
        elif kind == "die":
            self.die(job)
        elif kind == "grow":
            self.grow_early(job)
        elif kind == "lose":
            self.replace_worker(job)
        elif kind == "search":
            self.search(job)
        else:
            self.answer(job, obeys=kind == "answer")

    def check(self) -> None:
        running = [one for one in self.jobs if not one.queued]

        def used(jobs: list[Job]) -> int:
            return sum(one.workers + one.sizes.apart for one in jobs if one.workers)

        assert used(running) <= self.pool.slots
        for user in ("ann", "bob"):
            mine = [one for one in running if one.user == user]
            assert used(mine) <= (self.pool.users.get(user, UserPart()).most or 99)
            assert used([one for one in mine if one.group is not None]) <= 4
        assert (
            self.last is None or sum(share.counts for share in self.last.shares.values()) <= self.pool.slots
        )


@examples(60)
@given(
    st.integers(0, 2**32),
    st.integers(1, 9),
    st.sampled_from(POLICY_NAMES),
    st.sampled_from(({}, {"ann": UserPart(2.0, 3)})),
    st.sampled_from((None, *RENTED, *HOSTS)),
    st.sampled_from(((1, 1), (4, 4), (1, 4), (2, 3))),
)
def test_no_slot_has_two_owners_and_all_comes_to_rest(
    seed: int,
    slots: int,
    policy: str,
    users: dict[str, UserPart],
    vms: PoolVms | None,
    gpus: tuple[int, int],
) -> None:
    vms = None if vms is None else replace(vms, per_slot=1 if vms.owned else gpus[0])
    world = World(Pool("gpu", slots, policy, users, vms=vms), random.Random(seed), gpus=gpus)
    for _ in range(60):
        world.set_means()
        world.event()
        world.check()
        world.decide()
        world.check()
    for _ in range(60):
        for job in [one for one in world.jobs if not one.queued]:
            world.answer(job, obeys=True)
            world.check()
        done = world.decide()
        world.check()
        if not done and all(one.asked is None for one in world.jobs):
            break
    else:
        raise AssertionError("moves without an end")
    assert world.last is not None
    for job in world.jobs:
        share = world.last.shares[job.id]
        assert share.slots == share.told == share.counts == (0 if job.queued else job.workers)
    if world.means.nodes is not None:
        for name in "ab":
            room = sum(one.state == "open" for one in world.means.nodes if one.type == name)
            here = [one for one in world.jobs if one.workers and world.last.shares[one.id].vm == name]
            assert sum(one.workers + one.sizes.apart for one in here) <= room


def test_of_rented_vms_as_many_are_allotted_as_can_be_paid() -> None:
    pool = Pool("gpu", 16, "even", vms=RENTED[1])
    jobs = [
        PoolJob(f"{at}", "ann", 0, at, Sizes(1, 4, 4, 1), 1.0, None, None, queued=True) for at in range(4)
    ]
    start_s, ahead_usd = 300.0, 900.0 / 3600.0

    assert decided(pool, jobs, means=Means(100.0, start_s)).slots == {f"{at}": 1 for at in range(4)}
    # each has a VM for its aggregators besides
    assert sum(decided(pool, jobs, means=Means(5.0 * ahead_usd, start_s)).slots.values()) == 2
    assert sum(decided(pool, jobs, means=Means(1.9 * ahead_usd, start_s)).slots.values()) == 0
    assert sum(decided(pool, jobs, means=Means(-1.0, start_s)).slots.values()) == 0


def test_a_job_has_more_vms_only_if_it_goes_on_for_longer_than_they_take_to_start() -> None:
    curve = tuple(RatePoint(slots, slots**0.7, True) for slots in range(1, 9))

    def slots(left: float) -> int:
        standing = JobStanding(1, "training", 1, 1, left=WorkLeft(left), curve=curve, change_s=5.0)
        job = PoolJob("0", "ann", 0, 1, Sizes(1, 8, 8), 0.0, standing, PoolShare(1, 1, 1, 1), queued=False)
        return decided(Pool("gpu", 16, "worth", vms=RENTED[1]), [job], means=Means(start_s=300.0)).slots["0"]

    assert slots(200.0) == 1
    assert slots(36_000.0) == 8


def test_a_promise_is_worth_more_vms_than_their_price_is_without_one() -> None:
    """With one it takes 2.5 hours, and with caution 3.3; with two 1.6 and 2.1, with three 1.2 and 1.6."""
    curve = tuple(RatePoint(slots, slots**0.65, True) for slots in range(1, 9))
    vms = PoolVms("gcp/us-central1", "n1-standard-8", False, 1.0, None, 0.1)
    standing = JobStanding(1, "training", 1, 1, left=WorkLeft(9000.0, 0.3), curve=curve, change_s=5.0)

    def slots(due_s: float) -> int:
        share = PoolShare(1, 1, 1, 1)
        job = PoolJob("0", "ann", 0, 1, Sizes(1, 8, 8), 0.0, standing, share, queued=False, due_s=due_s)
        found = decided(Pool("gpu", 16, "worth", vms=vms), [job], means=Means(start_s=60.0))
        assert promise(found.seen, 0).kept
        return found.slots["0"]

    assert slots(inf) == 1
    assert slots(2 * 3600.0) == 3
    assert slots(4 * 3600.0) == 1


def test_a_search_ends_where_the_budget_pays_for_fewer_vms() -> None:
    share = PoolShare(2, 2, 2, 1)
    standing = JobStanding(1, "searching", 2, 1)
    job = PoolJob("0", "ann", 0, 1, Sizes(1, 4, 4), 0.0, standing, share, queued=False)

    def slots(vms: float, job: PoolJob) -> int:
        means = Means(vms * 600.0 / 3600.0, 0.0)
        decision = decided(Pool("gpu", 4, "even", vms=RENTED[1]), [job], 1, means=means)
        assert decision.jobs[0].cut == (vms < 2.0 and job.searches)
        return decision.slots["0"]

    assert [slots(vms, job) for vms in (2.5, 1.5, 0.5)] == [2, 1, 0]


def test_a_job_that_says_no_keeps_its_slots_and_nobody_is_promised_them() -> None:
    world = World(Pool("gpu", 4, "even"), random.Random(0))
    first = Job("first", "ann", 0, 1, Sizes(1, 4, 4))
    world.jobs = [first]
    world.decide()
    world.answer(first, obeys=True)
    second = Job("second", "bob", 0, 2, Sizes(1, 4, 4))
    world.jobs.append(second)

    world.decide()
    assert world.last is not None
    assert (world.last.shares["first"].told, world.last.shares["first"].counts) == (2, 4)
    assert second.queued
    world.answer(first, obeys=False)
    world.decide()  # it is asked again
    assert second.queued
    assert first.asked == (world.last.number, 2)
    world.answer(first, obeys=True)
    world.decide()
    assert (first.workers, second.workers) == (2, 2)


def test_a_worker_that_is_replaced_takes_no_further_slot() -> None:
    world = World(Pool("gpu", 4, "even"), random.Random(0))
    world.jobs = [Job(name, "ann", 0, at, Sizes(1, 2, 2)) for at, name in enumerate(("first", "second"))]
    world.decide()
    for job in world.jobs:
        world.answer(job, obeys=True)
    world.decide()
    world.replace_worker(world.jobs[0])

    assert world.decide() == 0
    world.check()


def test_the_pool_of_the_machine_is_one_jobs_at_a_time_and_none_is_stopped() -> None:
    world = World(Pool("local", 4, "fifo", whole=True), random.Random(0))
    first, urgent = Job("first", "ann", 0, 1, Sizes(2, 2, 2)), Job("urgent", "bob", 9, 2, Sizes(1, 1, 1))
    world.jobs = [first]
    world.decide()
    world.stand(first, obeyed=99)
    world.jobs.append(urgent)

    assert world.decide() == 0
    assert urgent.queued
    world.jobs.remove(first)
    world.decide()
    assert not urgent.queued


@pytest.mark.parametrize("policy", ["worth", "goodput", "throughput", "even", "fair"])
def test_a_job_of_which_nothing_is_known_begins_with_its_even_part(policy: str) -> None:
    curve = tuple(RatePoint(slots, 100.0 * slots**0.9, True) for slots in range(1, 9))

    def known(slots: int) -> PoolJob:
        share = PoolShare(slots, slots, slots, 1)
        standing = JobStanding(1, "training", slots, 1, left=WorkLeft(1e6, 0.1), curve=curve)
        return PoolJob("known", "ann", 0, 1, Sizes(1, 8, 8), 0.0, standing, share, queued=False)

    new = PoolJob("new", "bob", 0, 2, Sizes(1, 8, 8), 0.0, None, None, queued=True)

    crowded = decided(Pool("gpu", 8, policy), [known(8), new]).slots
    roomy = decided(Pool("gpu", 8, policy), [replace(known(2), sizes=Sizes(1, 2, 2)), new]).slots

    assert 1 <= crowded["new"] <= 4
    assert crowded["known"] == 8 - crowded["new"]
    assert roomy == {"known": 2, "new": 6}


def unknown(name: str, number: int, least: int, most: int) -> PoolJob:
    return PoolJob(name, "ann", 0, number, Sizes(least, most, most), 0.0, None, None, queued=True)


@examples(40)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6), st.booleans()), min_size=2, max_size=4),
    st.integers(4, 8),
    st.sampled_from([name for name in POLICY_NAMES if not POLICIES[name].gives_asked]),
)
def test_no_slot_is_idle_while_a_job_of_which_nothing_is_known_may_have_it(
    rows: list[tuple[int, int, bool]], slots: int, policy: str
) -> None:
    """Jobs that are known may have one more than their least; of the others each begins with its even part, or more."""
    curve = tuple(RatePoint(k, k**0.8, True) for k in range(1, 13))
    known = JobStanding(0, "waiting", left=WorkLeft(1e3), curve=curve)
    jobs = [
        replace(unknown(str(at), at, least, least + 1), standing=known)
        if is_known
        else unknown(str(at), at, least, least + more)
        for at, (least, more, is_known) in enumerate(rows)
    ]
    found = decided(Pool("gpu", slots, policy), jobs).slots

    idle = slots - sum(found.values())
    assert idle >= 0
    for job in jobs:
        has = found[job.id]
        assert has == 0 or job.sizes.least <= has <= job.sizes.most
        assert not has or idle == 0 or has == min(job.sizes.most, slots) or job.standing is not None


def test_a_job_that_waits_for_too_many_slots_leaves_none_idle_and_no_known_job_loses_any() -> None:
    pool = Pool("gpu", 8, "worth")
    rates = tuple(RatePoint(slots, min(slots, 2.0) ** 0.5, True) for slots in range(1, 9))
    known = JobStanding(1, "training", 2, 1, left=WorkLeft(1e3), curve=rates)
    runs = PoolJob("known", "ann", 0, 1, Sizes(1, 8, 8), 0.0, known, PoolShare(2, 2, 2, 1), queued=False)

    found = decided(pool, [runs, unknown("new", 2, 1, 8), unknown("wide", 3, 8, 8)]).slots

    assert found == {"known": 2, "new": 6, "wide": 0}


def test_a_job_that_does_not_fit_has_no_size_in_the_pool() -> None:
    assert sizes_in(Pool("gpu", 2), Sizes(3, 4, 8)) == Sizes(0, 0, 0)
    assert sizes_in(Pool("gpu", 6), Sizes(3, 8, 8)) == Sizes(3, 6, 6)


@examples(100)
@given(st.tuples(*[st.integers(1, 40)] * 3).map(sorted), st.integers(1, 9))
def test_with_any_share_of_machines_a_job_has_from_its_least_to_its_most_workers(
    sizes: list[int], gpus: int
) -> None:
    least, asked, most = sizes
    found = in_slots(Sizes(least, asked, most), gpus)

    assert found.least <= found.asked <= found.most
    for slots in range(found.least, found.most + 1):
        workers = workers_of(slots, gpus, most)
        assert least <= workers <= most
        assert slots_for(workers, gpus) == slots
        # GPUs are idle only where it could not run otherwise
        assert workers == slots * gpus or slots == found.least
    assert gpus > 1 or found == Sizes(least, asked, most)


def test_a_curve_by_workers_is_read_at_those_of_whole_machines() -> None:
    curve = tuple(RatePoint(workers, 10.0 * workers**0.5, workers != 8) for workers in (1, 2, 4, 6, 8))

    assert points_in_slots(curve, 1) == curve
    assert points_in_slots(curve, 4) == (RatePoint(1, 20.0, True), RatePoint(2, 10.0 * 8**0.5, False))
    assert points_in_slots((), 4) == ()


def test_a_job_stays_among_machines_with_as_many_gpus_and_one_that_waits_goes_where_it_fits() -> None:
    def seen(*nodes: tuple[str, int, str], told: int = 0) -> tuple[int, ...]:
        """Workers on a slot of a job on hosts of type a, if it was told any, and of two that wait."""
        found = tuple(
            PoolNode(name, name[0], 1, 4, 0.0, state, NOW, per_slot=gpus) for name, gpus, state in nodes
        )  # type: ignore[arg-type]
        share = PoolShare(told, told, told, 1, vm="a")
        jobs = [
            PoolJob("0", "ann", 0, 0, Sizes(1, 8, 8), 0.0, None, share, queued=not told),
            *(PoolJob(str(at), "ann", 0, at, Sizes(4, 4, 8), 0.0, None, None, queued=True) for at in (1, 2)),
        ]
        rows = decided(Pool("lab", 8, "even", vms=HOSTS[0]), jobs, means=Means(nodes=found)).jobs
        return tuple(job.per_slot for job in rows)

    one, four, more = ("a1", 1, "open"), ("b1", 4, "open"), ("b2", 4, "open")
    assert seen(one, four, more, told=1) == (1, 4, 4)
    assert seen(one, four, told=1) == (1, 4, 4)
    assert seen(*(("a" + str(at), 1, "open") for at in range(6)), four, told=1) == (1, 1, 4)


@examples(30)
@given(st.lists(st.tuples(st.integers(1, 20), st.floats(0.1, 1e6)), max_size=6, unique_by=lambda one: one[0]))
def test_rates_pass_through_the_points_of_the_curve(points: list[tuple[int, float]]) -> None:
    points.sort()
    rates = rates_of([RatePoint(slots, rate, True) for slots, rate in points], 20)

    assert rates[0] == 0.0
    assert np.all(rates[1:] > 0.0)
    for slots, rate in points:
        assert rates[slots] == pytest.approx(rate)


def test_beyond_what_is_known_rates_grow_as_those_of_other_jobs_do() -> None:
    def curve(*rates: float) -> tuple[RatePoint, ...]:
        return tuple(RatePoint(slots, rate, True) for slots, rate in enumerate(rates, 1))

    curves = [curve(1.0, 2.0**0.5), curve(3.0), (), curve(1.0, 2.0**0.6, 3.0**0.7), curve(2.0, 1.0)]
    assert exponent_of(curves) == pytest.approx(0.5)
    falling = exponent_of([curve(2.0, 1.0)])
    assert rates_of((), 3, falling).tolist() == [0.0, 1.0, 1.0, 1.0]


def test_every_policy_has_a_name_in_settings() -> None:
    assert set(POLICY_NAMES) == set(POLICIES)


@pytest.mark.parametrize(
    ("slots", "sizes", "expected"),
    [
        (4, [(1, 4)], [4]),
        (4, [(1, 4), (1, 4)], [2, 2]),
        (4, [(1, 4), (1, 4), (1, 4)], [2, 1, 1]),
        (4, [(1, 1), (1, 4)], [1, 3]),
        (2, [(1, 2), (1, 2), (1, 2)], [1, 1, 0]),
        (4, [(1, 4), (4, 4), (1, 4)], [4, 0, 0]),  # the last does not overtake the one that waits
        (8, [(1, 2), (1, 2)], [2, 2]),
    ],
)
def test_parts_of_a_study_are_even_and_nobody_overtakes(
    slots: int, sizes: list[tuple[int, int]], expected: list[int]
) -> None:
    known = JobStanding(0, "waiting", curve=(RatePoint(1, 1.0, True),))
    jobs = [
        PoolJob(str(number), "", 0, number, Sizes(least, most, most), 0.0, known, None, queued=True)
        for number, (least, most) in enumerate(sizes)
    ]
    found = decided(Pool("rates", slots, "even"), jobs, 0, Rules(Even(keeps=True)))
    assert list(found.slots.values()) == expected
