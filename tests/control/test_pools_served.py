"""Pools of a server at a real store; what jobs answer is written as their runners write it."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from scavenger.control.service.pools import DECIDE_S, Pools, PoolsDecided
from scavenger.domain.intent import Fence
from scavenger.domain.operation import TakeShare
from scavenger.domain.pool import JobStanding, Pool, PoolShare, PoolVms, RatePoint, StandingState, WorkLeft
from scavenger.domain.submission import NewSubmission, Submission, runner_lease
from scavenger.store import Store
from scavenger.store.records import OperationRecord

pytestmark = pytest.mark.slow

CHANGE_S = 120.0
"""The default of `limits.change`."""
POOL = Pool("gpu", 4, "even")


@dataclass
class World:
    """A server's pools, and jobs whose runners are this process."""

    store: Store
    pool: Pool = POOL
    at_s: float = 1000.0
    fences: dict[str, Fence] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.serve()

    def serve(self) -> None:
        """Another server, which knows nothing but what is on record."""
        self.pools = Pools(self.store, {self.pool.name: self.pool}, clock=lambda: self.at_s)

    def submit(
        self, name: str, least: int = 1, most: int = 4, *, priority: int = 0, **given: object
    ) -> Submission:
        spec = {
            "version": 1,
            "name": name,
            "train": "train:job",
            "infra": f"pool/{self.pool.name}",
            "goal": {"max_epochs": 1},
            "search": {"workers": list(range(least, most + 1)), "batch_size": [32]},
            "elastic": {"min": least, "max": most},
        }
        new = NewSubmission(
            name, {**spec, **given}, f"/nowhere/{name}.yaml", "ann", socket.gethostname(), os.getuid()
        )
        return self.store.submit(replace(new, priority=priority))

    def decide(self, now: datetime | None = None, *, resting: Collection[str] = ()) -> PoolsDecided:
        """One decision after the time between two, recorded and acted upon; some jobs may not begin now."""
        self.at_s += DECIDE_S
        store = self.store
        with store.together():
            backlog = store.backlog(socket.gethostname(), os.getuid(), None)
            able = {one.id for one in backlog.queued} - set(resting)
            found = self.pools.decide(backlog, able, lambda seen: True, now or datetime.now(UTC))
            for job_id in found.begin:
                lease = store.start_runner(job_id, "here/1/1", store.lease(runner_lease(job_id)))
                assert lease is not None
                self.fences[job_id] = lease.fence
        for job_id in found.begin:
            if not store.has_job(job_id):
                store.create_job("job", spec={}, job_file="/nowhere/job.yaml", job_id=job_id)
            self.stand(job_id, self.share(job_id).told)
        return found

    def share(self, job_id: str) -> PoolShare:
        last = self.store.allotment(self.pool.name)
        assert last is not None
        return last.shares[job_id]

    def stand(
        self,
        job_id: str,
        size: int,
        obeyed: int | None = None,
        *,
        left: float | None = None,
        state: StandingState = "training",
    ) -> None:
        """Train with so many workers; obeyed is the number of the last allotment unless it is given."""
        fence = self.fences[job_id]
        number = self.share(job_id).since if obeyed is None else obeyed
        curve = (RatePoint(1, 10.0, True), RatePoint(4, 25.0, True))
        work = None if left is None else WorkLeft(left)
        standing = JobStanding(fence.token, state, size, number, size=size, curve=curve, left=work)
        assert self.store.stand(fence, job_id, standing)

    def asked(self, job_id: str) -> OperationRecord:
        found = self.store.next_operation(job_id)
        assert found is not None
        return found

    def answer(self, job_id: str, size: int, *, refusal: str = "") -> TakeShare:
        """Answer what was asked for last, with so many workers."""
        record = self.asked(job_id)
        self.store.end_operation(record.id, "refused" if refusal else "done", refusal)
        assert isinstance(record.operation, TakeShare)
        self.stand(job_id, size, record.operation.allotment)
        return record.operation


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with Store.open(f"sqlite:///{tmp_path}/scavenger.db") as store:
        yield World(store)


def both(world: World) -> tuple[Submission, Submission]:
    """The first has all slots and was told to give two back; the second waits for them."""
    first = world.submit("first")
    world.decide()
    second = world.submit("second")
    world.decide()
    return first, second


def test_each_change_is_on_record_with_what_the_next_slot_would_bring_and_who_has_it(world: World) -> None:
    first, _ = both(world)

    shrunk, begun = (one.moves for one in world.store.allotments("gpu", 2))
    why = "one more makes it 33.3% faster, and would come from second (2 to 1)"
    assert begun == ("first begins with 4 slots: it may have no more",)
    assert shrunk == (f"first shrinks to 2 slots: {why}",)
    assert world.share(first.id).reason == why
    assert world.asked(first.id).operation == TakeShare(2, world.share(first.id).since, why)


def test_a_job_that_does_not_answer_keeps_its_slots_and_is_named_after_its_limit(world: World) -> None:
    first, second = both(world)

    for _ in range(int(CHANGE_S / DECIDE_S)):
        assert world.decide().begin == frozenset()
    assert world.pools.late == {}
    assert world.decide().begin == frozenset()

    cause = f"it has not answered allotment {world.share(first.id).since}"
    words = f"for more than 2 min it has not changed to 2 slots: {cause}"
    assert world.pools.late == {first.id: words}
    assert world.share(first.id).late == words
    assert (world.share(first.id).counts, world.share(second.id).counts) == (4, 0)
    number = world.store.allotments("gpu")[0].number
    for _ in range(3):
        world.decide()
    assert world.store.allotments("gpu")[0].number == number, "it is on record once"

    world.answer(first.id, 2)
    assert world.decide().begin == {second.id}
    assert (world.pools.late, world.share(first.id).late) == ({}, "")


def test_a_job_that_says_no_is_asked_again_with_growing_pauses_and_named_with_what_it_says(
    world: World,
) -> None:
    first, second = both(world)

    times = []
    while not world.pools.late:
        if world.store.open_operation(first.id) is not None:
            times.append(world.at_s)
            world.answer(first.id, 4, refusal="so few workers have no memory")
        assert world.decide().begin == frozenset()
        assert len(times) < 20
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses == sorted(pauses)
    assert pauses[-1] > pauses[0]
    words = "for more than 2 min it has not changed to 2 slots: so few workers have no memory"
    assert world.pools.late == {first.id: words}
    assert world.share(second.id).counts == 0


def test_the_next_server_begins_nothing_twice_and_gives_a_job_its_time_anew(world: World) -> None:
    first, second = both(world)

    world.serve()
    assert world.decide() == PoolsDecided(frozenset(), world.pools.waiting, ())
    asked = world.asked(first.id).operation
    assert isinstance(asked, TakeShare)
    assert (asked.slots, asked.allotment) == (2, world.share(first.id).since)
    assert world.pools.late == {}
    for _ in range(int(CHANGE_S / DECIDE_S) + 1):
        world.decide()
    assert list(world.pools.late) == [first.id]
    world.stand(first.id, 2)
    assert world.decide().begin == {second.id}


def test_a_limit_of_the_job_file_counts(world: World) -> None:
    world.submit("first", limits={"change": 15.0})
    world.decide()
    world.submit("second")
    world.decide()
    assert world.decide().told == ()
    assert world.pools.late == {}
    world.decide()
    assert [text[:22] for text in world.pools.late.values()] == ["for more than 15 s it "]


def test_a_quota_below_what_runs_shrinks_jobs_within_one_decision_and_kills_none(world: World) -> None:
    first, second = world.submit("first"), world.submit("second")
    world.decide()
    third = world.submit("third")
    world.pool = replace(POOL, slots=2)
    world.serve()

    found = world.decide()

    assert (found.begin, set(found.told)) == (frozenset(), {first.id, second.id})
    assert {world.answer(one.id, 1).slots for one in (first, second)} == {1}
    found = world.decide()
    assert (found.begin, found.told) == (frozenset(), ())
    assert [world.share(one.id).counts for one in (first, second, third)] == [1, 1, 0]


def test_a_growth_that_comes_to_nothing_gives_its_slots_back_and_the_job_keeps_its_size(world: World) -> None:
    first, second = world.submit("first"), world.submit("second", most=2)
    world.decide()
    world.store.end_submission(world.fences[second.id], second.id, "succeeded")
    world.decide()
    assert world.share(first.id).counts == 4

    assert world.answer(first.id, 2, refusal="so many workers could not be kept alive").slots == 4
    third = world.submit("third", least=2, most=2)
    assert world.decide().begin == {third.id}
    assert (world.share(first.id).told, world.share(first.id).counts) == (2, 2)


def test_jobs_of_a_pool_wait_when_its_budget_of_the_month_is_used_up(tmp_path: Path) -> None:
    vms = PoolVms("gcp/us-central1", "n1-standard-8", False, 1.0, budget_usd=10.0, job_usd_per_hour=50.0)
    with Store.open(f"sqlite:///{tmp_path}/scavenger.db") as store:
        world = World(store, replace(POOL, vms=vms))
        first = world.submit("first")
        assert world.decide().begin == {first.id}
        world.decide()
        store.note(first.id, "vms", 9.9, 9.9)
        world.decide()
        assert world.asked(first.id).operation.slots == 0  # type: ignore[union-attr]

        assert world.pools.stopped == frozenset()  # it has time to save
        store.note(first.id, "vms", 10.0, 10.0)
        world.decide()
        assert world.pools.stopped == {first.id}  # what is left pays for nothing any more

        world.serve()  # another server knows it, too
        second = world.submit("second")
        found = world.decide()
        assert found.begin == frozenset()
        assert "what is left of its budget of this month pays for 0 VMs" in found.waiting[second.id]


def due(hours: float) -> dict[str, object]:
    return {"constraints": {"deadline": 3600.0 * hours}}


def test_a_deadline_is_promised_once_it_is_known_that_it_can_be_kept_and_its_slots_come_first(
    tmp_path: Path,
) -> None:
    """Of four slots; with one a job does 36,000 samples an hour, with four 90,000."""
    with Store.open(f"sqlite:///{tmp_path}/scavenger.db") as store:
        world = World(store, replace(POOL, policy="worth"))
        first, second = world.submit("first", **due(2.0)), world.submit("second", **due(2.0))
        assert world.decide().begin == {first.id, second.id}
        assert [world.share(one.id).promised for one in (first, second)] == [False, False]

        world.stand(first.id, world.share(first.id).told, left=120_000.0)
        world.stand(second.id, world.share(second.id).told, left=100_000.0)
        world.decide()

        assert [world.share(one.id).promised for one in (first, second)] == [True, False]
        assert world.share(first.id).slots > world.share(second.id).slots

        world.serve()  # another server knows it, too
        world.decide()
        assert [world.share(one.id).promised for one in (first, second)] == [True, False]
        world.stand(first.id, world.share(first.id).told, left=500_000.0)  # it has told wrong
        world.decide()
        assert [world.share(one.id).promised for one in (first, second)] == [True, True]
        world.store.requeue(world.fences[first.id], first.id, "its runner has died")
        world.decide(resting=[first.id])
        assert (world.share(first.id).promised, world.share(first.id).counts) == (True, 0)


def test_a_step_of_the_clock_moves_no_deadline_and_nobody_up(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/scavenger.db") as store:
        world = World(store, replace(POOL, policy="worth", starved_s=3600.0))
        first = world.submit("first", least=4, **due(2.0))
        assert world.decide().begin == {first.id}
        world.stand(first.id, 4, left=50_000.0)
        waits = world.submit("waits", least=4)
        world.decide()
        before = world.store.allotments("gpu")[0]
        assert before.shares[first.id].promised

        for step in (timedelta(hours=-5), timedelta(hours=5), timedelta(days=400)):
            found = world.decide(datetime.now(UTC) + step)
            assert (found.begin, found.told, world.pools.late) == (frozenset(), (), {})
        assert world.store.allotments("gpu")[0] == before
        world.at_s += 3600.0  # an hour that has passed
        assert world.decide().told == (first.id,)
        assert world.share(waits.id).slots == 4


@pytest.mark.parametrize("policy", ["even", "worth", "tiresias", "fair"])
def test_a_search_is_cut_off_for_a_job_that_is_more_urgent_and_the_wait_is_told_with_its_cause(
    tmp_path: Path, policy: str
) -> None:
    with Store.open(f"sqlite:///{tmp_path}/scavenger.db") as store:
        world = World(store, replace(POOL, policy=policy))
        first = world.submit("first", least=1)
        world.decide()
        world.stand(first.id, 4, state="searching")
        equal = world.submit("equal", least=2)
        found = world.decide()
        assert (found.begin, found.told) == (frozenset(), ()), "an equal one waits for the search"
        assert found.waiting[equal.id].endswith("of pool gpu: of 4, first has 4 (searching)")

        urgent = world.submit("urgent", least=2, priority=5)
        found = world.decide()
        assert (found.begin, found.told) == (frozenset(), (first.id,))
        assert "first has 4 (searching)" in found.waiting[urgent.id]
        for _ in range(20):  # the probe takes longer than a change may, and nobody is told again
            assert world.decide().told == ()
        assert world.pools.late == {}
        record = world.asked(first.id)
        assert isinstance(record.operation, TakeShare)
        store.end_operation(record.id, "done", "")
        if (slots := record.operation.slots) > 0:
            world.stand(first.id, slots, record.operation.allotment)
        else:
            store.pause_submission(world.fences[first.id], first.id, "paused")
        assert urgent.id in world.decide().begin


@pytest.mark.parametrize("policy", ["worth", "even", "elastic-tiresias", "fair"])
@pytest.mark.parametrize("state", ["searching", "training"])
def test_a_job_that_was_begun_since_it_had_waited_for_too_long_has_its_turn_though_others_have_waited_as_long(
    tmp_path: Path, policy: str, state: StandingState
) -> None:
    with Store.open(f"sqlite:///{tmp_path}/scavenger.db") as store:
        world = World(store, replace(POOL, policy=policy, starved_s=300.0))
        first, second, third = (world.submit(name, least=4) for name in ("first", "second", "third"))
        assert world.decide().begin == {first.id}
        world.stand(first.id, 4)
        world.at_s += 400.0
        assert world.decide().told == (first.id,)
        store.end_operation(world.asked(first.id).id, "done", "")
        store.pause_submission(world.fences[first.id], first.id, "paused")
        assert world.decide().begin == {second.id}
        world.stand(second.id, 4, state=state)

        world.serve()  # another server knows it, too
        for _ in range(90):  # a quarter of an hour
            found = world.decide()
            assert (found.begin, found.told) == (frozenset(), ())
        assert world.share(third.id).counts == 0
