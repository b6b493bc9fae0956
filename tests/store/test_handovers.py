"""VMs that go over from one job to another: each is one job's at any time, and what it costs is counted once."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from made_intents import made_intent
from nested import built
from properties import examples

from scavenger.domain.intent import Fence, FleetSpec, Handover, Intent, PlacementOption, VmSlot
from scavenger.domain.vm import VmSeen
from scavenger.store import Store

AT = datetime(2026, 1, 1, tzinfo=UTC)
OPTION = PlacementOption("small", "a", False, 0.36)


class Bench:
    """A store with some jobs in a region, and a clock."""

    def __init__(self, store: Store, jobs: int = 3) -> None:
        self.store, self.now = store, AT
        store._clock = lambda: self.now  # type: ignore[method-assign]
        self.jobs = [
            store.create_job(f"job-{n}", spec={}, job_file=Path("/x/job.yaml")).id for n in range(jobs)
        ]
        lease = store.take_lease("sim/region-1", "me", None)
        assert lease is not None
        self.fence: Fence = lease.fence
        for job in self.jobs:
            store.want_vms(self.spec(job))

    def spec(self, job: str, slots: tuple[int, ...] = (1, 2), **more: Any) -> FleetSpec:
        given: dict[str, Any] = {"vms_max": 3, "budget_usd": 10.0, "run_max_s": 3600.0, **more}
        return built(
            FleetSpec,
            job_id=job,
            provider="sim",
            region="region-1",
            slots=tuple(map(VmSlot, slots)),
            options=(OPTION,),
            **given,
        )

    def launched(self, job: str, slot: int = 1) -> Intent:
        token = str(uuid4())
        intent = made_intent({"token": token, "job_id": job, "slot": slot}, region="region-1")
        assert self.store.write_intent(self.fence, intent)
        self.store.mark_up(self.fence, token, self.vm(token, self.now))
        self.store.acknowledge_vm(token)
        return self.one(token)

    def vm(self, token: str, launched: datetime, ended: datetime | None = None) -> VmSeen:
        return VmSeen(f"i-{token[:4]}", "small", "a", False, "running", launched_at=launched, ended_at=ended)

    def one(self, token: str) -> Intent:
        (found,) = (one for one in self.store.intents() if one.id == token)
        return found

    def hand_over(self, token: str, of: str, to: str, slot: int = 1, **more: Any) -> bool:
        handover = Handover(token, of, to, slot, 1, more.pop("reserved_usd", 0.1), **more)
        return token in self.store.exchange_vms([], [handover])


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        yield Bench(store)


@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stays=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 400)), min_size=1, max_size=6),
    last_s=st.integers(0, 200),
    looks=st.booleans(),
)
def test_the_parts_of_a_vm_add_up_to_its_life(
    tmp_path_factory: pytest.TempPathFactory, stays: list[tuple[int, int]], last_s: int, looks: bool
) -> None:
    folder = tmp_path_factory.mktemp("store")
    with Store.open(f"sqlite:///{folder}/store.db") as store:
        bench = Bench(store)
        token = bench.launched(bench.jobs[0]).id
        at = bench.jobs[0]
        for number, stay_s in stays:
            bench.now += timedelta(seconds=stay_s)
            if looks:
                store.charge(bench.fence, {token: (stay_s + 3.0, 0.36 * (stay_s + 3.0) / 3600.0)}, bench.now)
            if bench.hand_over(token, at, bench.jobs[number]):
                at = bench.jobs[number]
                store.acknowledge_vm(token)
        ended = bench.now + timedelta(seconds=last_s)
        life_s = (ended - AT).total_seconds()
        store.mark_gone(bench.fence, token, "unwanted", "", bench.vm(token, AT, ended), never=False)

        rows = store.intents()
        assert sum(row.charges.billed_s for row in rows) == pytest.approx(max(60.0, life_s))
        assert sum(row.charges.spent_usd for row in rows) == pytest.approx(
            0.36 / 3600.0 * max(60.0, life_s), rel=1e-6
        )
        assert all(store.is_clean(job) for job in bench.jobs)
        parts = sorted((row.times.launched_at, row.times.ended_at) for row in rows if row.times.ended_at)
        assert parts[0][0] == AT
        assert all(before[1] == after[0] for before, after in itertools.pairwise(parts))
        assert parts[-1][1] == ended


def test_a_vm_that_goes_over_is_known_by_the_same_token_and_is_the_others_alone(bench: Bench) -> None:
    first, second, _ = bench.jobs
    before = bench.launched(first)
    bench.now += timedelta(seconds=90)

    assert bench.hand_over(before.id, first, second, slot=2)

    after = bench.one(before.id)
    assert (after.job_id, after.slot, after.generation, after.state) == (second, 2, 0, "UP")
    assert (after.instance_id, after.acks, after.times.joined_at) == (before.instance_id, 0, None)
    assert (after.times.taken_at, after.charges.spent_usd) == (bench.now, 0.0)
    (part,) = bench.store.intents(first)
    assert (part.state, part.instance_id, part.charges.billed_s) == ("GONE", before.instance_id, 90.0)
    assert part.id != before.id
    assert bench.store.is_clean(first)
    situation = bench.store.situation("sim", "region-1", [before.id])
    assert [one.id for one in situation.intents] == [before.id]
    assert situation.ended == frozenset()
    assert situation.past[first].spent_usd == pytest.approx(0.009)


def test_it_goes_over_only_as_it_is_and_where_it_has_a_place(bench: Bench) -> None:
    first, second, third = bench.jobs
    vm = bench.launched(first)
    there = bench.launched(second, slot=1)

    assert not bench.hand_over(vm.id, third, second, slot=2)  # it is not that job's
    assert not bench.hand_over(vm.id, first, second, slot=1)  # there is one already
    assert not bench.hand_over(vm.id, first, second, slot=2, reserved_usd=20.0)  # no money for its end
    bench.store.mark_deleting(bench.fence, there.id, "unwanted", "")
    assert bench.hand_over(vm.id, first, second, slot=1)
    assert bench.one(vm.id).generation == 1
    assert not bench.hand_over(vm.id, second, third)  # it has not joined there
    bench.store.acknowledge_vm(vm.id)
    bench.store.finish_job(third, state="stopped", report=None, exit_code=5)
    assert not bench.hand_over(vm.id, second, third)  # that job has ended
    bench.store.mark_deleting(bench.fence, vm.id, "unwanted", "")
    assert not bench.hand_over(vm.id, second, first)  # it ends


def test_what_jobs_want_and_what_goes_over_is_one_step(bench: Bench) -> None:
    first, second, _ = bench.jobs
    vm = bench.launched(first)

    went = bench.store.exchange_vms(
        [bench.spec(first, ()), bench.spec(second, (1,), launches=False)],
        [Handover(vm.id, first, second, 1, 1, 0.1), Handover("unknown", first, second, 2, 1, 0.1)],
    )

    assert went == {vm.id}
    specs = {spec.job_id: spec for spec in bench.store.situation("sim", "region-1").fleets}
    assert specs[first].slots == ()
    assert not specs[second].launches
    missing = bench.launched  # nothing is launched for it
    with pytest.raises(AssertionError):
        missing(second, slot=2)
