"""What a leader's VM costs is booked once, whoever counted which part of it, until it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from scavenger.client import Client
from scavenger.control.leading.following import LeaderSession
from scavenger.control.leading.record import LeaderRecord, Leaders
from scavenger.control.leading.seats import seat_of
from scavenger.control.leading.spent import book_leader, leader_usd
from scavenger.control.provisioning.bill import VmCost, job_cost, with_vms
from scavenger.domain.cost import Item, VmExtras
from scavenger.domain.intent import Fence, FleetSpec, Intent, PlacementOption, VmCharges, VmSlot, VmTimes
from scavenger.domain.vm import LaunchTemplate, VmRequest, VmSeen, VmState, VmTags
from scavenger.errors import ConfigurationError
from scavenger.policy.provisioning.slots import LEADER_SLOT
from scavenger.store import Store

AT = datetime(2026, 1, 1, tzinfo=UTC)
PRICE = 3.6
"""US dollars per hour: a tenth of a cent a second."""
EXTRAS = VmExtras(0.36, 0.036)
VM_THERE = VmCost(
    "i-1", "c5.large", "us-east-1a", False, "worker", 1800.0, 0.04, None, 0.0, "cloud", True, "unwanted"
)
SECOND_USD = (PRICE + EXTRAS.usd_per_hour) / 3600.0
RECORD = LeaderRecord(
    "0a1b2c3d",
    "digits",
    "/jobs/digits.yaml",
    "aws",
    "us-east-1",
    "ssh-ed25519 AAAA",
    "/jobs/.scavenger",
    job_id="ffff-1",
)


def launched(at: datetime = AT, *, ended: datetime | None = None, slot: int = LEADER_SLOT) -> Intent:
    tags = VmTags("me", "t0", "job", slot, 0)
    request = VmRequest(tags, "c6a.large", "us-east-1a", False, LaunchTemplate(3600.0))
    seconds = 0.0 if ended is None else (ended - at).total_seconds()
    return Intent(
        request,
        "aws",
        "us-east-1",
        VmCharges(PRICE, 0.0, seconds, seconds * PRICE / 3600.0, extras=EXTRAS),
        state="UP" if ended is None else "GONE",
        instance_id="i-1",
        times=VmTimes(launched_at=at, ended_at=ended),
    )


def wanted(job_id: str, slot: int = LEADER_SLOT) -> FleetSpec:
    return FleetSpec(
        job_id=job_id,
        provider="aws",
        region="us-east-1",
        slots=(VmSlot(slot),),
        options=(PlacementOption("c6a.large", "us-east-1a", False, PRICE, EXTRAS),),
        template=launched().request.template,
        vms_max=1,
        budget_usd=float("inf"),
    )


seconds = st.floats(60.0, 1e6)


@given(seconds, seconds)
def test_a_vm_costs_more_the_longer_it_is_there_and_what_the_cloud_bills_once_that_is_known(
    a_s: float, b_s: float
) -> None:
    def usd(one: Intent, at_s: float, *, there: bool, seen_usd: float = 0.0) -> float:
        return leader_usd([one], AT + timedelta(seconds=at_s), there=there, seen_usd=seen_usd)

    first_s, last_s = min(a_s, b_s), max(a_s, b_s)
    seen_usd = usd(launched(), first_s, there=True)
    assert seen_usd == pytest.approx(first_s * SECOND_USD)
    assert usd(launched(), last_s, there=True, seen_usd=seen_usd) == pytest.approx(last_s * SECOND_USD)
    assert usd(launched(), last_s, there=False, seen_usd=seen_usd) == seen_usd, "nobody saw when it ended"
    ended = launched(ended=AT + timedelta(seconds=first_s))
    for there in (True, False):
        assert usd(ended, last_s, there=there, seen_usd=1e9) == pytest.approx(first_s * SECOND_USD)
    assert usd(launched(slot=1), last_s, there=True) == 0.0


class Rented:
    """A leader's VM, launched at `AT`, in the store of its record beside that of this machine."""

    def __init__(self, store: Store) -> None:
        self.store, self.leaders, self.record = store, Leaders.beside(store), RECORD
        self.leaders.put(RECORD)
        with self.leaders.open_store(RECORD) as own:
            own.create_job("digits", spec={}, job_file=RECORD.job_file, job_id=RECORD.id)
            tags = VmTags(own.installation(), "t0", RECORD.id, LEADER_SLOT, 0)
            own.want_vms(wanted(RECORD.id))
            one = replace(launched(), state="PLAN", instance_id="", times=VmTimes())
            own.write_intent(self._fence(own), replace(one, request=replace(one.request, tags=tags)))
            own.mark_up(self._fence(own), "t0", self._seen("running"))

    def _fence(self, own: Store) -> Fence:
        lease = own.lease("aws/us-east-1") or own.take_lease("aws/us-east-1", "here", None)
        assert lease is not None
        return lease.fence

    def _seen(self, state: VmState, ended_at: datetime | None = None) -> VmSeen:
        return VmSeen("i-1", "c6a.large", "us-east-1a", False, state, launched_at=AT, ended_at=ended_at)

    def ends(self, after_s: float) -> None:
        with self.leaders.open_store(self.record) as own:
            gone = self._seen("gone", AT + timedelta(seconds=after_s))
            own.mark_gone(self._fence(own), "t0", "unwanted", "its leader is ended", gone, never=False)

    def changed(self, **fields: Any) -> None:
        self.record = self.leaders.change(self.record, **fields)

    def booked(self, at_s: float, *, there: bool = True) -> float:
        """What the ledger has of the job's leaders, once they were booked after so many seconds, twice."""
        for _ in range(2):
            at = AT + timedelta(seconds=at_s)
            self.record = book_leader(self.store, self.leaders, self.record, at, there=there)
        return self.store.entry("ffff-1", "leader").usd


@pytest.fixture
def rented(tmp_path: Path) -> Iterator[Rented]:
    with Store.open(f"sqlite:///{tmp_path / 'scavenger.db'}", clock=lambda: AT) as store:
        yield Rented(store)


def test_a_leaders_vm_is_in_the_sums_from_its_launch_until_it_has_ended_beside_what_its_job_has_counted(
    rented: Rented,
) -> None:
    assert rented.booked(100.0) == pytest.approx(100 * SECOND_USD)
    assert sum(rented.store.spending(AT).spent.values()) == pytest.approx(100 * SECOND_USD)

    # the job has ended after 300 s, its record is fetched after 500 s, and the VM ends 20 s later
    rented.changed(counted_usd=300 * SECOND_USD)
    assert rented.booked(500.0) == pytest.approx(200 * SECOND_USD)
    rented.ends(520.0)
    assert rented.booked(9000.0, there=False) == pytest.approx(220 * SECOND_USD)


def test_one_that_ended_unseen_is_booked_up_to_when_it_was_there_last(rented: Rented) -> None:
    rented.booked(500.0)
    rented.changed(counted_usd=300 * SECOND_USD)

    assert rented.booked(9000.0, there=False) == pytest.approx(200 * SECOND_USD)


def test_a_leader_in_place_of_a_lost_one_adds_to_what_that_has_cost(rented: Rented) -> None:
    rented.ends(1000.0)
    before_usd = rented.booked(2000.0, there=False)
    again = replace(RECORD, id="0e4f5a6b", before_usd=before_usd)
    rented.leaders.remove(rented.record)
    rented.leaders.put(again)
    assert before_usd == pytest.approx(1000 * SECOND_USD)

    book_leader(rented.store, rented.leaders, again, AT, there=True)  # none is rented yet

    assert rented.store.entry("ffff-1", "leader").usd == pytest.approx(before_usd)


def test_one_that_has_no_job_yet_is_booked_when_it_is_to_be_ended(rented: Rented) -> None:
    rented.changed(job_id="")
    assert rented.booked(100.0) == 0.0
    assert rented.store.entry(RECORD.id, "leader").usd == 0.0
    rented.changed(ending=True)
    rented.booked(100.0)

    assert rented.store.entry(RECORD.id, "leader").usd == pytest.approx(100 * SECOND_USD)


def test_a_bill_comes_to_the_sum_of_the_ledgers_items_which_is_what_budgets_count(tmp_path: Path) -> None:
    """Whatever items there are, and though the job was killed before it had counted its VM to the end."""
    others = st.dictionaries(st.sampled_from(("traffic", "share", "leader")), st.integers(1, 99))
    with Store.open(f"sqlite:///{tmp_path / 's.db'}", clock=lambda: AT) as store:
        lease = store.take_lease("aws/us-east-1", "here", None)
        assert lease is not None
        fence, numbers, before = lease.fence, count(), [0.0]

        def billed(seconds: float, others: dict[Item, int], killed: bool) -> None:
            name = f"digits-{next(numbers)}"
            job_id = store.create_job(name, spec={"infra": "aws/us-east-1"}, job_file="/job.yaml").id
            store.want_vms(wanted(job_id, slot=1))
            planned = replace(launched(slot=1), state="PLAN", instance_id="", times=VmTimes())
            tags = replace(planned.request.tags, token=name, job_id=job_id)
            store.write_intent(fence, replace(planned, request=replace(planned.request, tags=tags)))
            there = VmSeen(f"i-{name}", "c6a.large", "us-east-1a", False, "running", launched_at=AT)
            store.mark_up(fence, name, there)
            store.charge(fence, {name: (30.0, 30.0 * PRICE / 3600.0)}, AT)
            for item, usd in others.items():
                store.note(job_id, item, 10.0 * usd, usd, "c6a.large")
            if not killed:
                store.update_job(job_id, cost_usd=1e6)  # counted up to now, and not yet settled
            gone = replace(there, state="gone", ended_at=AT + timedelta(seconds=seconds))
            store.mark_gone(fence, name, "unwanted", "", gone, never=False)

            bill = job_cost(
                store.job(job_id),
                store.intents(job_id),
                at=AT + timedelta(days=90),
                entries=store.entries(job_id),
            )
            spent = sum(store.spending(AT).spent.values())

            assert bill.actual_usd == pytest.approx(seconds * SECOND_USD + sum(others.values()))
            assert bill.actual_usd == pytest.approx(store.spent_usd(job_id))
            assert bill.actual_usd == pytest.approx(store.funds_of_study(name).spent_usd)
            assert bill.actual_usd == pytest.approx(spent - before[0])
            before[0] = spent

        examples(10)(given(seconds, others, st.booleans())(billed))()


def test_the_bill_of_a_job_that_a_vm_led_names_its_vms_and_says_nothing_of_this_machine(
    rented: Rented,
) -> None:
    store, job_id = rented.store, rented.record.job_id
    record = store.job(store.create_job("digits", spec={"infra": "aws/us-east-1"}, job_file="/job.yaml").id)
    rented_there = (
        replace(VM_THERE, instance_id="i-1"),
        replace(VM_THERE, instance_id="i-2", role="aggregator"),
    )
    report = with_vms({"state": "succeeded"}, rented_there)
    store.recover_job(
        replace(record, id=job_id, state="succeeded", ended_at=AT, cost_usd=0.75, report=report)
    )
    store.note(job_id, "earlier", 1800.0, 0.75, "1 VM: i-1 (c5.large, us-east-1a)")
    store.note(job_id, "leader", 0.0, 0.25)

    bill = job_cost(store.job(job_id), [], at=AT, entries=store.entries(job_id))

    assert [(item.name, item.usd) for item in bill.items] == [
        ("VMs, disks and traffic, as the leader counted", 0.75),
        ("leader's VM, not counted by the job", 0.25),
    ]
    assert bill.items[0].how == "1 VM: i-1 (c5.large, us-east-1a); 0.5 VM-hours"
    assert bill.actual_usd == store.spent_usd(job_id) == 1.0
    assert "this machine" not in " ".join((bill.how, *bill.not_counted))
    assert bill.vms == rented_there


class Led:
    """The API of a leader whose job has ended, as far as a session asks it."""

    def __init__(self, cost: dict[str, Any]) -> None:
        self._cost = cost

    def get(self, path: str) -> dict[str, Any]:
        _, job_id, *what = path.split("/")
        if what:
            assert what == ["cost"]
            return {"job": self._cost}
        return {"job": {"id": job_id}, "submission": {"state": "ended"}}

    def follow_events(self, job_id: str, after: int, *, patience_s: float) -> list[dict[str, Any]]:
        return [{"id": 7, "kind": "note"}]


def test_what_the_job_has_counted_of_its_leader_and_of_its_vms_is_what_the_leader_tells_last(
    rented: Rented,
) -> None:
    session = LeaderSession(seat_of(rented.leaders, rented.record, inform=lambda line: None))
    vm = asdict(VM_THERE)
    led = {"name": "leader, on demand", "usd": 0.05}
    told = {"items": [{"name": "disks", "usd": 0.1}, led], "vms": [vm]}

    assert session._followed(cast(Client, Led(told)), lambda event: None) is not None
    assert session._bill.leader_usd == pytest.approx(0.05)
    assert (session._bill.vm_s, str(session._bill)) == (1800.0, "1 VM: i-1 (c5.large, us-east-1a)")
    assert session._bill.vms == (VM_THERE,)
    for wrong in (
        {},
        {**told, "items": [{**led, "usd": -1.0}]},
        {**told, "vms": [{**vm, "billed_s": "soon"}]},
    ):
        with pytest.raises(ConfigurationError, match="cannot be read from its leader"):
            session._followed(cast(Client, Led(wrong)), lambda event: None)
