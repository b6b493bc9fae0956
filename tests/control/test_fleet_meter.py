"""What a job on VMs has spent, from the records of its VMs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import cast

import pytest
from made_intents import made_intent
from nested import built

from scavenger.control.provisioning.bill import counted_usd, paid_for
from scavenger.control.provisioning.fleet_meter import VmCostMeter
from scavenger.control.training.item_meter import ItemMeter
from scavenger.domain.configuration import Offer
from scavenger.domain.cost import LedgerEntry, VmExtras
from scavenger.domain.intent import HEARD_LATE_S, FleetSpec, Intent, PlacementOption
from scavenger.policy.provisioning.fleet_plan import FleetInputs
from scavenger.policy.provisioning.slots import aggregator_slot

OFFER = Offer("fake", "fake-1", "small", 0.36, "test", cpus=2, memory_bytes=2**32)
EXTRAS_USD_PER_HOUR = 0.036
START = datetime(2026, 1, 1, tzinfo=UTC)


def intent(spent_usd: float, *, slot: int = 1, attempt: int = 1, state: str = "GONE") -> Intent:
    return made_intent(
        {"token": f"token-{attempt}-{slot}", "slot": slot, "zone": "fake-1a"},
        provider="fake",
        region="fake-1",
        state=state,
        attempt=attempt,
        spent_usd=spent_usd,
        billed_s=spent_usd / 0.36 * 3600.0,
        disk_usd_per_hour=0.03,
        address_usd_per_hour=0.006,
    )


def test_every_aggregator_vm_is_paid_for_its_own_life() -> None:
    second = aggregator_slot(1)
    found = meter()
    found.look(
        (intent(0.0, slot=0, state="UP"), intent(0.0, slot=second, state="UP"), intent(0.0, state="UP"))
    )
    assert found.shared_usd_per_hour() == pytest.approx(2 * (0.36 + EXTRAS_USD_PER_HOUR))

    replaced = (intent(0.02, slot=0), intent(0.03, slot=second), intent(0.01))
    costs = paid_for(replaced, at=datetime.now(UTC)).vms
    assert [(one.role, one.usd) for one in costs] == [
        ("aggregator", pytest.approx(0.02)),
        ("aggregator", pytest.approx(0.03)),
        ("worker", pytest.approx(0.01)),
    ]


def meter(before_usd: float = 0.0, *, workers_per_vm: int = 1) -> VmCostMeter:
    inputs = FleetInputs(
        spec=built(
            FleetSpec,
            job_id="job",
            provider="fake",
            region="fake-1",
            slots=(),
            options=(PlacementOption("small", "fake-1a", False, 0.36),),
            vms_max=4,
            budget_usd=1.0,
            run_max_s=3600.0,
        ),
        package="scavenger-ml",
        options={"small": (PlacementOption("small", "fake-1a", False, 0.36, VmExtras(0.03, 0.006)),)},
        offers=(replace(OFFER, workers_per_vm=workers_per_vm),),
        threads={},
        before_usd=before_usd,
    )
    return VmCostMeter(inputs, clock=lambda: 0.0)


def test_workers_that_join_cost_the_vms_that_they_need_each_with_its_disk_and_address() -> None:
    vm_usd = 0.36 + EXTRAS_USD_PER_HOUR

    assert meter().usd_per_hour({"small": 5}) == pytest.approx(5 * vm_usd)
    assert meter(workers_per_vm=4).usd_per_hour({"small": 5}) == pytest.approx(2 * vm_usd)


def test_a_resumed_job_costs_what_its_vms_did_also_if_earlier_ones_are_settled_at_less() -> None:
    """A command that was killed counted on while its VM ended itself; the next attempt learns when that was."""
    counted = intent(0.09, attempt=1, state="UP")
    before_usd = counted_usd([counted])
    assert before_usd == pytest.approx(0.09 * 1.1)
    settled, own = replace(counted, state="GONE", charges=intent(0.03).charges), intent(0.01, attempt=2)
    found = meter(before_usd)

    found.look((counted,))
    assert found.spent_usd() == 0.0
    found.look((settled, own))
    assert found.spent_usd() == 0.0  # what is shown while it runs never shrinks
    found.look((settled, own), final=True)
    assert before_usd + found.spent_usd() == pytest.approx(0.04 * 1.1)


def test_the_leaders_vm_is_paid_for_while_the_job_lasts_and_before_its_vms_run() -> None:
    now = [0.0]
    found = VmCostMeter(replace(meter()._inputs, leader_usd_per_hour=0.36), clock=lambda: now[0])
    found.look((intent(0.0, state="UP"),))
    assert found.usd_per_hour() == pytest.approx(0.36 + EXTRAS_USD_PER_HOUR + 0.36)
    assert found.shared_usd_per_hour() == pytest.approx(0.36)

    found.items["leader"], now[0] = cast(ItemMeter, SimpleNamespace(attempt=LedgerEntry(100.0, 0.01))), 100.0

    # the leader is counted elsewhere, and not again by the rate since the last charge
    assert found.spent_usd() == pytest.approx(0.01 + (0.36 + EXTRAS_USD_PER_HOUR) * 100.0 / 3600.0)
    found.look((), final=True)
    assert found.spent_usd() == pytest.approx(0.01)


def test_a_vm_whose_charges_have_ended_costs_no_more_than_it_can_have_run_until_it_has_ended_itself() -> None:
    """Credentials are refused: the VM, which nobody hears any more, is charged until it must have ended itself."""
    now = [0.0]
    found = VmCostMeter(meter()._inputs, clock=lambda: now[0])
    life_s = intent(0.0).request.life_s + HEARD_LATE_S

    def charged(seconds: float) -> Intent:
        one = intent(seconds * 0.36 / 3600.0, state="UP")
        charges = replace(one.charges, charged_at=START + timedelta(seconds=seconds))
        return replace(one, charges=charges, times=replace(one.times, created_at=START, last_ack_at=START))

    for now[0] in (0.0, 300.0, life_s):
        found.look((charged(now[0]),))
    assert found.usd_per_hour() == pytest.approx(0.36 + EXTRAS_USD_PER_HOUR)
    most_usd = life_s / 3600.0 * (0.36 + EXTRAS_USD_PER_HOUR)
    for now[0] in (life_s + 30.0, life_s + 3600.0):
        found.look((charged(life_s),))
        assert found.spent_usd() == pytest.approx(most_usd)
    assert (found.usd_per_hour(), found.reserved_usd()) == (0.0, 0.0)


def test_what_a_stuck_reconciler_has_not_charged_yet_counts_while_a_vm_is_heard() -> None:
    now = [0.0]
    found = VmCostMeter(meter()._inputs, clock=lambda: now[0])
    one = intent(0.0, state="UP")
    charges = replace(one.charges, charged_at=START)
    for now[0] in (0.0, 7200.0):
        heard_at = START + timedelta(seconds=now[0])
        found.look((replace(one, charges=charges, times=replace(one.times, last_ack_at=heard_at)),))

    assert found.spent_usd() == pytest.approx(2.0 * (0.36 + EXTRAS_USD_PER_HOUR))
