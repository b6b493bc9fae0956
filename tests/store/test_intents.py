"""Laws of leases, fleet specs and intents, on the real store and on the one that simulations use."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from made_intents import made_intent
from nested import built, changed
from properties import examples
from provisioning_store import MemoryStore
from provisioning_world import World
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from scavenger.domain.intent import HEARD_LATE_S, Fence, FleetSpec, Intent, PlacementOption, VmSlot
from scavenger.domain.vm import VmSeen
from scavenger.errors import ConfigurationError, StoreError
from scavenger.store import Store
from scavenger.store.intent_rows import fleet_spec_document, fleet_spec_of, intent_of, row_of
from scavenger.store.schema import FleetSpecRow

AT = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = "sim/region-1"


class DatabaseStore(Store):
    """The real store, with what a simulated world sets and asks beside."""

    fenced = True

    def end_job(self, job_id: str) -> None:
        self.finish_job(job_id, state="stopped", report=None, exit_code=5)


class Bench:
    """A store of either kind with one job, whose lease is taken."""

    def __init__(self, store: Any, job_id: str) -> None:
        self.store, self.job_id = store, job_id
        lease = store.take_lease(LEASE, "first", None)
        self.fence = Fence(LEASE, lease.token)
        self.want()

    def want(self, **more: Any) -> FleetSpec:
        given: dict[str, Any] = {
            "slots": (VmSlot(0), VmSlot(1)),
            "options": (PlacementOption("small", "a", True, 0.36),),
            "vms_max": 2,
            "budget_usd": float("inf"),
            "run_max_s": 3600.0,
        }
        desired = built(FleetSpec, job_id=self.job_id, provider="sim", region="region-1", **given | more)
        self.store.want_vms(desired)
        return desired

    def intent(self, slot: int = 0, generation: int = 0, reserved_usd: float = 0.1, **more: Any) -> Intent:
        token = str(uuid4())
        return made_intent(
            {
                "token": token,
                "job_id": self.job_id,
                "slot": slot,
                "generation": generation,
                "spot": True,
                "labels": (("a", "b"),),
            },
            region="region-1",
            reserved_usd=reserved_usd,
            **more,
        )

    def written(self, slot: int = 0, generation: int = 0, **more: Any) -> str:
        intent = self.intent(slot, generation, **more)
        assert self.store.write_intent(self.fence, intent)
        return intent.id

    def one(self, intent_id: str) -> Intent:
        found: Intent = next(one for one in self.store.intents() if one.id == intent_id)
        return found

    def overtake(self) -> Fence:
        return Fence(LEASE, self.store.take_lease(LEASE, "second", self.store.lease(LEASE)).token)

    def gone(
        self, intent_id: str, ending: str = "died", vm: VmSeen | None = None, never: bool = False
    ) -> Any:
        return self.store.mark_gone(self.fence, intent_id, ending, "so it is", vm, never=never)


def vm(instance_id: str = "i-1", **more: Any) -> VmSeen:
    return built(VmSeen, instance_id=instance_id, vm="small", zone="a", spot=True, state="running", **more)


@pytest.fixture(params=["database", "memory"])
def bench(request: pytest.FixtureRequest, url: str) -> Iterator[Bench]:
    if request.param == "memory":
        yield Bench(MemoryStore(lambda: AT), "job")
        return
    with DatabaseStore.open(url, clock=lambda: AT) as store:
        yield Bench(store, store.create_job("digits", spec={}, job_file="job.yaml").id)


class TestLeases:
    def test_a_lease_is_taken_only_as_it_was_seen(self, bench: Bench) -> None:
        seen = bench.store.lease(LEASE)
        assert bench.store.take_lease(LEASE, "late", None) is None
        assert bench.store.charge(bench.fence, {}, AT)
        assert bench.store.take_lease(LEASE, "late", seen) is None

        taken = bench.store.take_lease(LEASE, "next", bench.store.lease(LEASE))
        assert (taken.holder, taken.token, taken.beats) == ("next", seen.token + 1, 0)

    def test_a_lease_that_was_given_back_has_no_holder_and_its_fence_no_force(self, bench: Bench) -> None:
        bench.store.release_lease(bench.fence)

        assert bench.store.lease(LEASE).holder == ""
        assert not bench.store.write_intent(bench.fence, bench.intent())

    WRITES: dict[str, Callable[[Bench, str], object]] = {  # noqa: RUF012 - read only
        "write": lambda b, i: b.store.write_intent(b.fence, b.intent(1)),
        "ask": lambda b, i: b.store.ask_again(b.fence, i),
        "never asked": lambda b, i: b.store.never_asked(b.fence, i),
        "up": lambda b, i: b.store.mark_up(b.fence, i, vm()),
        "deleting": lambda b, i: b.store.mark_deleting(b.fence, i, "unwanted", "enough"),
        "gone": lambda b, i: b.gone(i),
        "charge": lambda b, i: b.store.charge(b.fence, {i: (1.0, 1.0)}, AT),
        "release": lambda b, i: b.store.release_lease(b.fence),
    }

    @pytest.mark.parametrize("write", WRITES)
    def test_a_write_with_an_old_fence_changes_nothing_and_says_so(self, bench: Bench, write: str) -> None:
        intent_id = bench.written()
        newer = bench.overtake()
        before = bench.store.intents(), bench.store.lease(LEASE)

        assert not self.WRITES[write](bench, intent_id)
        assert (bench.store.intents(), bench.store.lease(LEASE)) == before
        bench.fence = newer
        if write != "release":
            assert self.WRITES[write](bench, intent_id)


class TestWriting:
    def test_a_slot_has_each_generation_once(self, bench: Bench) -> None:
        bench.gone(bench.written(0, 0))

        assert not bench.store.write_intent(bench.fence, bench.intent(0, 0))
        assert bench.store.write_intent(bench.fence, bench.intent(0, 1))

    def test_there_are_never_more_than_the_cap_also_of_those_that_are_to_end(self, bench: Bench) -> None:
        first = bench.written(0)
        bench.written(1)
        bench.store.mark_deleting(bench.fence, first, "unwanted", "enough")
        assert not bench.store.write_intent(bench.fence, bench.intent(0, 1))

        bench.gone(first)
        assert bench.store.write_intent(bench.fence, bench.intent(0, 1))

    def test_what_is_reserved_and_spent_stays_within_the_budget(self, bench: Bench) -> None:
        bench.want(budget_usd=0.25)
        first = bench.written(0)
        bench.written(1)
        bench.store.charge(bench.fence, {first: (600.0, 0.06)}, AT)
        bench.gone(first)

        assert not bench.store.write_intent(bench.fence, bench.intent(0, 1))
        assert bench.store.write_intent(bench.fence, bench.intent(0, 1, reserved_usd=0.09))

    def test_the_budget_counts_disks_and_addresses(self, bench: Bench) -> None:
        bench.want(budget_usd=0.25)
        first = bench.written(0, disk_usd_per_hour=0.03, address_usd_per_hour=0.03)
        bench.store.charge(bench.fence, {first: (600.0, 0.06)}, AT)  # and a cent for disk and address
        bench.gone(first)

        assert not bench.store.write_intent(bench.fence, bench.intent(1, reserved_usd=0.185))
        assert bench.store.write_intent(bench.fence, bench.intent(1, reserved_usd=0.175))
        assert bench.store.situation("sim", "region-1").past[bench.job_id].spent_usd == pytest.approx(0.07)

    def test_a_job_that_has_ended_or_wants_nothing_gets_nothing(self, bench: Bench) -> None:
        bench.want(slots=(), vms_max=0)
        assert not bench.store.write_intent(bench.fence, bench.intent())

        bench.want()
        bench.store.end_job(bench.job_id)
        assert not bench.store.write_intent(bench.fence, bench.intent())
        assert bench.store.situation("sim", "region-1").fleets == ()


class TestStates:
    def test_no_state_is_left_backwards(self, bench: Bench) -> None:
        key, fence, store = bench.written(), bench.fence, bench.store
        assert store.mark_up(fence, key, vm()).state == "UP"
        assert store.ask_again(fence, key) is None
        assert store.never_asked(fence, key) is None
        assert store.mark_deleting(fence, key, "silent", "unheard").state == "DELETING"
        assert store.mark_deleting(fence, key, "unwanted", "enough") is None
        assert store.mark_up(fence, key, vm()).state == "DELETING"
        assert bench.gone(key).ending == "silent"
        for again in (store.mark_up(fence, key, vm()), bench.gone(key), store.acknowledge_vm(key) or None):
            assert again is None
        assert bench.one(key).state == "GONE"

    def test_an_instance_id_is_never_replaced_and_never_wiped(self, bench: Bench) -> None:
        key = bench.written()
        bench.store.mark_up(bench.fence, key, vm("i-1"))
        with pytest.raises(StoreError, match="has VM i-1, not i-2"):
            bench.store.mark_up(bench.fence, key, vm("i-2"))
        bench.gone(key, vm=vm("i-2"))

        assert bench.one(key).instance_id == "i-1"

    def test_a_job_is_clean_only_when_all_that_it_ever_asked_for_is_gone(self, bench: Bench) -> None:
        keys = [bench.written(0), bench.written(1)]
        bench.store.mark_deleting(bench.fence, keys[0], "unwanted", "enough")
        bench.gone(keys[1])
        assert not bench.store.is_clean(bench.job_id)

        bench.gone(keys[0])
        assert bench.store.is_clean(bench.job_id)

    def test_an_intent_is_read_as_it_was_written(self, bench: Bench) -> None:
        intent = bench.intent(disk_usd_per_hour=0.03, address_usd_per_hour=0.005)
        bench.store.write_intent(bench.fence, intent)

        assert bench.one(intent.id) == changed(intent, created_at=AT, charged_at=AT)


def test_when_a_vm_joined_is_when_it_was_first_heard(url: str) -> None:
    now = [AT]
    for kind in ("memory", "database"):
        now[0] = AT
        if kind == "memory":
            bench = Bench(MemoryStore(lambda: now[0]), "job")
        else:
            store = DatabaseStore.open(url, clock=lambda: now[0])
            bench = Bench(store, store.create_job("digits", spec={}, job_file="job.yaml").id)
        key = bench.written()
        assert bench.one(key).times.joined_at is None
        for seconds in (40, 50):
            now[0] = AT + timedelta(seconds=seconds)
            bench.store.acknowledge_vm(key)

        assert bench.one(key).times.joined_at == AT + timedelta(seconds=40)
        assert bench.one(key).times.last_ack_at == AT + timedelta(seconds=50)
    store.close()


class TestMoney:
    def test_the_clouds_own_times_replace_what_was_counted_at_the_mean_price(self, bench: Bench) -> None:
        key = bench.written()
        bench.store.charge(bench.fence, {key: (100.0, 0.01)}, AT)
        bench.store.charge(bench.fence, {key: (100.0, 0.03)}, AT)
        launched = AT + timedelta(days=3)
        bench.gone(key, vm=vm(launched_at=launched, ended_at=launched + timedelta(seconds=150)))

        one = bench.one(key)
        assert (one.charges.billed_s, one.charges.spent_usd) == (150.0, pytest.approx(0.03))

    def test_a_vm_is_paid_for_a_minute_at_least_and_one_that_never_was_not_at_all(self, bench: Bench) -> None:
        short, never = bench.written(0), bench.written(1)
        bench.store.charge(bench.fence, {short: (10.0, 0.001), never: (10.0, 0.001)}, AT)
        bench.gone(short, vm=vm(launched_at=AT, ended_at=AT + timedelta(seconds=5)))
        bench.gone(never, "stock_out", never=True)

        assert bench.one(short).charges.spent_usd == pytest.approx(0.006)
        assert bench.one(never).charges.spent_usd == 0.0

    def test_the_past_of_a_job_sums_what_its_ended_vms_cost(self, bench: Bench) -> None:
        first, second = bench.written(0), bench.written(1)
        bench.store.charge(bench.fence, {first: (10.0, 0.5), second: (10.0, 0.25)}, AT)
        bench.gone(first, "budget")
        past = bench.store.situation("sim", "region-1").past[bench.job_id]

        assert (past.spent_usd, past.generations, past.drained) == (0.5, {0: 0, 1: 0}, True)


def test_the_past_tells_the_newest_first_who_joined_and_leaves_out_who_still_may(bench: Bench) -> None:
    joined, failed, taken = bench.written(0), bench.written(1), ""
    bench.store.acknowledge_vm(joined)
    bench.gone(failed, "never_joined")
    taken = bench.written(1, 1)
    bench.gone(taken, "preempted")
    bench.written(1, 2)
    past = bench.store.situation("sim", "region-1").past[bench.job_id]

    assert past.health == (False, True)
    assert past.generations == {0: 0, 1: 2}


def test_a_situation_tells_of_vms_that_were_seen_which_have_ended(bench: Bench) -> None:
    living, ended = bench.written(0), bench.written(1)
    bench.gone(ended)
    situation = bench.store.situation("sim", "region-1", [living, ended, "unknown"])

    assert situation.ended == {ended}
    assert [one.id for one in situation.intents] == [living]


class TestDatabase:
    """What only a database can break."""

    @pytest.fixture
    def job_id(self, store: Store) -> str:
        return store.create_job("digits", spec={}, job_file="job.yaml").id

    def test_an_installation_keeps_its_name_which_every_cloud_takes_as_a_label(self, store: Store) -> None:
        name = store.installation()

        assert store.installation() == name
        assert len(name) <= 63
        assert name.replace("-", "").isalnum()
        assert name == name.lower()

    def test_of_many_who_take_a_lease_at_once_one_gets_it(self, store: Store) -> None:
        with ThreadPoolExecutor(4) as pool:
            taken = list(pool.map(lambda n: store.take_lease("aws/x", f"service-{n}", None), range(8)))

        assert len([one for one in taken if one is not None]) == 1

    def test_a_job_that_has_intents_cannot_be_deleted(self, store: Store, job_id: str) -> None:
        bench = Bench(store, job_id)
        bench.written()
        with pytest.raises(IntegrityError), store._database.engine.begin() as connection:
            connection.execute(text("DELETE FROM jobs"))

        assert len(store.intents(job_id)) == 1

    def test_what_an_attempt_wanted_is_not_wanted_in_the_next(self, store: Store, job_id: str) -> None:
        """Its leader was killed: what it said stands, and must not get VMs that nobody waits for."""
        bench = Bench(store, job_id)
        bench.want()
        decided = bench.intent()
        store.update_job(job_id, checkpoint="/ckpt")
        store.finish_job(job_id, state="failed", report=None, exit_code=1)
        store.resume_job(job_id)

        assert store.situation("sim", "region-1").fleets == ()
        assert not store.write_intent(bench.fence, decided)
        wanted = bench.want(attempt=2)
        assert store.situation("sim", "region-1").fleets == (wanted,)
        assert store.write_intent(bench.fence, replace(decided, attempt=2))

    def test_a_fleet_spec_for_a_job_that_is_none_is_refused(self, store: Store, job_id: str) -> None:
        bench = Bench(store, job_id)
        with pytest.raises(ConfigurationError, match="no job nobody"):
            store.want_vms(replace(bench.want(), job_id="nobody"))

    def test_regions_are_told_once_each(self, store: Store, job_id: str) -> None:
        bench = Bench(store, job_id)
        bench.written()
        store.want_vms(replace(bench.want(), provider="gcp", region="us-central1"))

        assert store.vm_regions() == (("gcp", "us-central1"), ("sim", "region-1"))

    def test_money_is_one_over_all_regions_of_a_job(self, store: Store, job_id: str) -> None:
        bench = Bench(store, job_id)
        bench.written()
        store.want_vms(replace(bench.want(budget_usd=0.15), provider="gcp", region="us-central1"))
        elsewhere = replace(bench.intent(1), provider="gcp", region="us-central1")

        assert not store.write_intent(bench.fence, elsewhere)
        assert store.situation("gcp", "us-central1").past[job_id].spent_usd == pytest.approx(0.1)

    @examples(10, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        slots=st.sets(st.integers(0, 4095), max_size=5),
        budget=st.floats(0, 1e9) | st.just(float("inf")),
        price=st.floats(1e-6, 1e4),
        labels=st.lists(st.tuples(st.text("ab"), st.text("ab")), max_size=2).map(tuple),
        subnets=st.lists(st.text("ab"), max_size=2).map(tuple),
        public_address=st.none() | st.booleans(),
    )
    def test_a_fleet_spec_is_read_as_it_was_written(
        self,
        store: Store,
        slots: set[int],
        budget: float,
        price: float,
        labels: Any,
        subnets: Any,
        public_address: bool | None,
    ) -> None:
        job_id = store.create_job("digits", spec={}, job_file="job.yaml").id
        slots = tuple(VmSlot(slot, slot % 3) for slot in sorted(slots))
        place = PlacementOption("small", "a", False, price)
        spec = built(
            FleetSpec,
            job_id=job_id,
            provider="p",
            region="r",
            slots=slots,
            options=(place,),
            vms_max=5,
            budget_usd=budget,
            run_max_s=60.0,
            labels=labels,
            subnets=subnets,
            public_address=public_address,
            user_data="#!",
        )
        store.want_vms(spec)

        assert spec in store.situation("p", "r").fleets

    def test_documents_of_earlier_versions_are_read_and_their_form_stays(self) -> None:
        option = {"vm": "small", "zone": "a", "spot": True, "price_usd_per_hour": 0.36}
        launch = {"run_max_s": 60.0, "user_data": "#!", "image": "i", "disk_gib": 9, "labels": [["a", "b"]]}
        wanted = {
            "wishes": [{"slot": 3, "generation": 1, "places": [option]}],
            "places": [option],
            "vms_max": 5,
            "budget_usd": None,
            "drain_s": 30.0,
            "boot_key": "00",
            "attempt": 2,
            **launch,
        }
        tags = {"token": "t", "owner": "me", "job_id": "j", "slot": 3, "generation": 1}
        request = {**tags, "vm": "small", "zone": "a", "spot": True, "life_s": 900.0, **launch}

        spec = fleet_spec_of(FleetSpecRow(job_id="j", provider="p", region="r", document=wanted))
        assert (spec.slots[0].number, spec.slots[0].options, spec.template.labels) == (
            3,
            (PlacementOption("small", "a", True, 0.36),),
            (("a", "b"),),
        )
        assert json.loads(json.dumps(fleet_spec_document(spec))) == {**wanted, "register_s": 600.0}

        intent = built(Intent, provider="p", region="r", price_usd_per_hour=0.36, reserved_usd=0.1, **request)
        row = row_of(changed(intent, labels=(("a", "b"),)), AT)
        assert json.loads(json.dumps(row.request)) == {**request, "usd_per_hour_max": None}
        assert intent_of(row).request.template == spec.template

    def test_the_simulated_world_finds_no_fault_with_the_real_store(self, url: str) -> None:
        opened: list[DatabaseStore] = []

        def real(now: Callable[[], datetime]) -> DatabaseStore:
            store = DatabaseStore.open(url, clock=now)
            opened.append(store)
            job = store.create_job("digits", spec={}, job_file="job.yaml")
            with store._database.writing() as session:
                session.execute(text("UPDATE jobs SET id = 'job' WHERE id = :id"), {"id": job.id})
            return store

        world = World(3, store=real)  # a mild one: every call is a transaction on a disk
        world.run()
        opened[0].close()

        assert world.counts["made"] > 2


def test_a_vm_whose_end_nobody_saw_is_charged_until_it_has_ended_itself_when_it_is_found_gone(
    url: str,
) -> None:
    """A command was killed, and `scavenger gc` comes after the cloud has forgotten the VM."""
    now = [AT]
    with DatabaseStore.open(url, clock=lambda: now[0]) as store:
        bench = Bench(store, store.create_job("digits", spec={}, job_file="job.yaml").id)
        keys = [bench.written(slot) for slot in range(2)]
        for slot, key in enumerate(keys):
            store.mark_up(bench.fence, key, vm(f"i-{slot}", launched_at=AT))
        store.charge(bench.fence, dict.fromkeys(keys, (30.0, 0.003)), AT + timedelta(seconds=30))

        for key, later_s in zip(keys, (100, 90_000), strict=True):
            now[0] = AT + timedelta(seconds=later_s)
            store.mark_gone(None, key, "unwanted", "", vm("", launched_at=AT), never=False)

        first, other = map(bench.one, keys)
        assert first.charges.billed_s == pytest.approx(100.0)
        assert other.charges.billed_s == pytest.approx(other.request.life_s + HEARD_LATE_S)
        assert other.charges.spent_usd == pytest.approx(other.charges.billed_s / 3600.0 * 0.36)


def test_the_price_of_a_live_job_is_what_its_vms_are_billed_with_their_disks_and_addresses(url: str) -> None:
    with DatabaseStore.open(url, clock=lambda: AT) as store:
        bench = Bench(store, store.create_job("digits", spec={}, job_file="job.yaml").id)
        first = bench.written(0, disk_usd_per_hour=0.03, address_usd_per_hour=0.005)
        second = bench.written(1, address_usd_per_hour=0.005)  # the price of its disk is not known
        for number, intent_id in enumerate((first, second)):
            assert store.mark_up(bench.fence, intent_id, vm(f"i-{number}", launched_at=AT))
        (live,) = store.census().live

    assert live.price_usd_per_hour == pytest.approx(2 * 0.36 + 0.03 + 2 * 0.005)
