"""What a job has cost: by the cloud's times where it tells them, by what was counted where it does not."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_intents import made_intent

from scavenger.control.provisioning.bill import job_cost, paid_for
from scavenger.domain.cost import CostItem, LedgerEntry, Rental, SharedCosts
from scavenger.domain.intent import Intent
from scavenger.domain.report import Actual
from scavenger.models.cost import NEVER_COUNTED, estimate
from scavenger.store.records import JobRecord, Owner

START = datetime(2026, 7, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
NOW = START + 10 * HOUR


def intent(slot: int = 1, *, spot: bool = True, **more: Any) -> Intent:
    given_: dict[str, Any] = {
        "state": "GONE",
        "instance_id": f"i-{slot}",
        "launched_at": START,
        "ended_at": START + HOUR,
        "billed_s": 3600.0,
        "spent_usd": 0.035,
        "ending": "preempted",
        "disk_usd_per_hour": 0.002,
    }
    return made_intent(
        {"token": f"token-{slot}", "slot": slot, "vm": "c5.large", "zone": "us-east-1a", "spot": spot},
        provider="aws",
        region="us-east-1",
        price_usd_per_hour=0.035,
        reserved_usd=0.01,
        **given_ | more,
    )


def job(**more: Any) -> JobRecord:
    given_: dict[str, Any] = {
        "id": "0198c0de",
        "name": "digits",
        "state": "succeeded",
        "phase": "",
        "detail": "",
        "spec": {},
        "job_file": "job.yaml",
        "owner": Owner(1, "here", 0.0),
        "heartbeat_at": START,
        "created_at": START,
        "started_at": START,
        "ended_at": NOW,
        "step": 10,
        "cost_usd": 0.5,
        "fingerprint": None,
        "chosen": None,
        "predicted": None,
        "actual": None,
        "report": None,
        "error": "",
        "exit_code": 0,
        "model_path": None,
        "measurements_path": None,
    }
    return JobRecord(**(given_ | more))


def test_a_vm_that_has_ended_costs_what_the_clouds_times_make_of_the_price_that_was_charged() -> None:
    (vm,) = paid_for([intent()], at=NOW).vms

    assert (vm.billed_s, vm.usd, vm.basis, vm.ended, vm.ending) == (3600.0, 0.035, "cloud", True, "preempted")
    assert vm.disk_usd == pytest.approx(20 * 1e-4)


def test_a_public_address_is_paid_for_as_long_as_its_vm_and_a_disk_until_it_is_deleted() -> None:
    paid = paid_for([intent(address_usd_per_hour=0.005, disk_after_s=1800.0)], at=NOW)

    (vm,) = paid.vms
    assert (vm.address_usd, vm.disk_usd) == (0.005, pytest.approx(1.5 * 0.002))
    assert {item.name: item.usd for item in paid.items}["addresses"] == 0.005
    assert paid.total_usd == pytest.approx(vm.cost_usd) == pytest.approx(0.035 + 0.005 + 0.003)


def test_a_vm_that_runs_is_billed_up_to_now_by_the_clouds_launch() -> None:
    heard = {"last_ack_at": START + 2 * HOUR, "acks": 9}
    running = intent(state="UP", ended_at=None, billed_s=10.0, spent_usd=0.0001, ending="", **heard)
    (vm,) = paid_for([running], at=START + 2 * HOUR).vms

    assert (vm.billed_s, vm.usd, vm.basis, vm.ended) == (7200.0, 0.07, "cloud", False)


def test_a_vm_whose_end_the_cloud_does_not_show_is_billed_until_it_has_ended_itself_and_labelled() -> None:
    silent = intent(
        state="DELETING", ended_at=None, billed_s=600.0, spent_usd=0.006, last_ack_at=START + HOUR
    )
    early, late = (paid_for([silent], at=START + hours * HOUR) for hours in (1, 9))

    assert early.vms[0].basis == "cloud"
    assert (late.vms[0].basis, late.vms[0].ended) == ("bound", False)
    assert 3600.0 < late.vms[0].billed_s < 3600.0 + 1000.0
    assert late == paid_for([silent], at=START + 20 * HOUR), "it does not grow for ever"
    (words,) = (words for words in late.not_counted if words.startswith("i-1"))
    assert f"at most ${late.vms[0].usd:.4f}" in words
    listed = replace(silent, charges=replace(silent.charges, billed_s=7200.0, spent_usd=0.07))
    assert paid_for([listed], at=START + 9 * HOUR).vms[0].usd == 0.07, "it was listed all the while"
    leader = intent(1_000_000, state="UP", ended_at=None, spot=False)
    assert paid_for([leader], at=NOW).vms[0].basis == "cloud", "nobody hears of it"


def test_a_launch_that_nobody_answered_is_unknown_with_the_most_that_it_may_have_cost() -> None:
    open_ = intent(3, instance_id="", launched_at=None, ended_at=None, state="GONE", spent_usd=0.001)
    paid = paid_for([open_], at=NOW)

    assert paid.vms[0].basis == "bound"
    assert any("whether it became a VM is not known; at most $0.0010" in words for words in paid.not_counted)


def test_where_the_cloud_tells_no_times_what_was_counted_stands_and_is_named() -> None:
    forgotten = intent(ended_at=None, billed_s=1800.0, spent_usd=0.0175)
    paid = paid_for([forgotten], at=NOW)

    assert (paid.vms[0].usd, paid.vms[0].basis) == (0.0175, "counted")
    assert any(words.startswith("i-1: the cloud did not report") for words in paid.not_counted)


def test_a_launch_that_came_to_nothing_is_no_vm_and_one_that_nobody_answered_is_kept() -> None:
    refused = intent(2, instance_id="", launched_at=None, ended_at=None, billed_s=0.0, spent_usd=0.0)
    open_ = intent(3, instance_id="", launched_at=None, ended_at=None, state="PLAN", spent_usd=0.001)

    assert [vm.usd for vm in paid_for([refused, open_], at=NOW).vms] == [0.001]


def test_aggregators_and_workers_on_demand_and_spot_are_told_apart() -> None:
    paid = paid_for([intent(0, spot=False), intent(1), intent(2), intent(3, spot=False)], at=NOW)

    assert {item.name: round(item.usd, 6) for item in paid.items} == {
        "workers, on demand": 0.035,
        "workers, spot": 0.07,
        "aggregators, on demand": 0.035,
        "disks": round(4 * 20 * 1e-4, 6),
    }


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.booleans(), st.sampled_from(["UP", "DELETING", "GONE"]), st.floats(0, 100)
        ),
        max_size=8,
    )
)
def test_the_total_is_the_sum_over_the_vms_and_never_falls_as_time_goes_on(
    rows: list[tuple[int, bool, str, float]],
) -> None:
    intents = [
        intent(
            slot, spot=spot, state=state, spent_usd=usd, ended_at=START + HOUR if state == "GONE" else None
        )
        for slot, spot, state, usd in rows
    ]
    early, late = (paid_for(intents, at=at) for at in (NOW, NOW + HOUR))

    assert early.total_usd == pytest.approx(sum(vm.cost_usd for vm in early.vms))
    assert late.total_usd >= early.total_usd


def test_a_job_on_vms_costs_what_they_did_whatever_it_counted_itself() -> None:
    unknown = {"disk_usd_per_hour": None}
    cost = job_cost(job(cost_usd=9.9), [intent(**unknown), intent(0, spot=False, **unknown)], at=NOW)

    assert cost.actual_usd == pytest.approx(0.07)
    assert "cloud's own timestamps" in cost.how
    assert "boot disks whose price is not known" in cost.not_counted
    assert set(NEVER_COUNTED) <= set(cost.not_counted)


def test_a_job_on_this_machine_costs_what_it_counted_and_says_at_what_price() -> None:
    place = {"vm": "local-1", "workers": 2, "global_batch_size": 64}
    report = {"choice": place, "curve": [{**place, "time_s": 3600.0, "cost_usd": 0.268}]}
    local = job(actual=Actual(1800.0, 0.134, 0.1, 3.0), report=report)
    cost = job_cost(local, [], at=NOW)

    assert cost.actual_usd == 0.134
    assert [item.how for item in cost.items] == ["1 worker-hours at $0.134 per hour"]
    assert any("aggregators and coordinator" in words for words in cost.not_counted)

    blind = job_cost(replace(local, report=None), [], at=NOW)
    assert blind.actual_usd == 0.134
    assert "$" not in blind.items[0].how
    assert job_cost(job(cost_usd=None), [], at=NOW).actual_usd is None


def test_what_aggregators_used_of_a_pool_is_an_item_beside_the_workers() -> None:
    local = job(actual=Actual(1800.0, 0.134, 0.1, 3.0))
    cost = job_cost(local, [], at=NOW, entries={"share": LedgerEntry(360.0, 0.0134)})

    assert cost.actual_usd == 0.134
    assert [(item.name, round(item.usd, 4)) for item in cost.items] == [
        ("workers", 0.1206),
        ("aggregators in the pool", 0.0134),
    ]
    assert cost.items[1].how == "360 processor-seconds at $0.134 per hour"
    assert cost.not_counted[0] == "coordinator, which runs on this machine too"
    assert job_cost(local, [], at=NOW, entries={"share": LedgerEntry()}) == job_cost(local, [], at=NOW)


def test_traffic_between_zones_is_an_item_of_the_bill_with_the_source_of_its_price() -> None:
    bare = job_cost(job(), [intent()], at=NOW)
    traffic = LedgerEntry(12.5, 0.25, "$0.02 per GiB (a list, 2026-06-25)")
    found = job_cost(job(), [intent()], at=NOW, entries={"traffic": traffic})

    assert bare.actual_usd is not None
    assert found.actual_usd == pytest.approx(bare.actual_usd + 0.25)
    assert found.items[-1] == CostItem(
        "traffic between zones", 0.25, "12.5 GiB at $0.02 per GiB (a list, 2026-06-25)"
    )


def test_the_vm_that_leads_a_job_is_an_item_of_its_bill_and_of_its_estimate() -> None:
    bare = job_cost(job(), [intent()], at=NOW)
    found = job_cost(job(), [intent()], at=NOW, entries={"leader": LedgerEntry(7200.0, 0.16, "c6a.large")})

    assert bare.actual_usd is not None
    assert found.actual_usd == pytest.approx(bare.actual_usd + 0.16)
    assert found.items[-1].name == "leader, on demand"
    assert "the leader's VM after the end of the job" in found.not_counted

    without = Rental(workers=2, train_s=3600.0, usd_per_vm_hour=0.1, setup_s=1800.0)
    led = replace(without, shared=SharedCosts(usd_per_leader_hour=0.08))
    assert estimate(led).total_usd == pytest.approx(estimate(without).total_usd + 0.12)
    assert "leader" in [item.name for item in estimate(led).items]


def test_a_leader_that_never_got_a_vm_is_the_whole_bill() -> None:
    found = job_cost(
        job(cost_usd=0.15), [], at=NOW, entries={"leader": LedgerEntry(7200.0, 0.16, "c6a.large")}
    )
    assert [item.name for item in found.items] == ["leader, on demand"]
    assert found.actual_usd == pytest.approx(0.16)
