"""`scavenger cost`: what was predicted and what was paid, item by item."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from cli_fake import Run
from cli_samples import make_report
from made_intents import made_intent
from nested import built
from sqlalchemy import create_engine, update

from scavenger.api.bills import billed
from scavenger.api.jobs import listed
from scavenger.domain.cost import CostEstimate, CostItem
from scavenger.domain.document import report_document, report_from_document
from scavenger.domain.intent import Fence, FleetSpec, PlacementOption, VmSlot
from scavenger.domain.report import JobState
from scavenger.domain.vm import VmSeen
from scavenger.store import Store
from scavenger.store.schema import IntentRow, JobRow

ESTIMATE = CostEstimate(
    5400.0,
    (
        CostItem("training", 0.201, "2 VMs x 3600 s at $0.1005 per hour"),
        CostItem("interruptions", 0.004, "0.21 expected, 2 VMs x 72 s at $0.1005 per hour"),
    ),
    ("network traffic",),
)


@pytest.fixture
def store(store_url: str) -> Store:
    return Store.open(store_url)


def finished(store: Store, *, vms: int = 0, state: JobState = "succeeded") -> str:
    """A job that has ended, on this machine or on so many VMs, the first of them with the aggregators."""
    report = replace(make_report(), estimate=ESTIMATE)
    job_id = store.create_job(report.job.name, spec={}, job_file="job.yaml").id
    if vms:
        lease = store.take_lease("aws/us-east-1", "me", store.lease("aws/us-east-1"))
        assert lease is not None
        fence = Fence("aws/us-east-1", lease.token)
        place = PlacementOption("c5.xlarge", "us-east-1a", True, 0.0748)
        slots = tuple(VmSlot(slot) for slot in range(vms))
        store.want_vms(
            built(
                FleetSpec,
                job_id=job_id,
                provider="aws",
                region="us-east-1",
                slots=slots,
                options=(place,),
                vms_max=vms,
                budget_usd=float("inf"),
                run_max_s=3600.0,
            )
        )
        began = datetime(2026, 7, 1, tzinfo=UTC)
        for slot in range(vms):
            token, spot = str(uuid4()), slot > 0
            price = 0.0748 if spot else 0.17
            intent = made_intent(
                {
                    "token": token,
                    "job_id": job_id,
                    "slot": slot,
                    "vm": "c5.xlarge",
                    "zone": "us-east-1a",
                    "spot": spot,
                },
                provider="aws",
                region="us-east-1",
                price_usd_per_hour=price,
                reserved_usd=0.01,
            )
            assert store.write_intent(fence, intent)
            end = began + timedelta(hours=1)
            name = f"i-{slot:017x}"
            vm = VmSeen(name, "c5.xlarge", "us-east-1a", spot, "gone", launched_at=began, ended_at=end)
            store.mark_up(fence, token, vm)
            store.mark_gone(fence, token, "unwanted", "done", vm, never=False)
    assert report.result.actual is not None
    assert report.predicted is not None
    store.finish_job(
        job_id,
        state=state,
        report=report_document(report),
        exit_code=0,
        predicted=report.predicted,
        actual=report.result.actual,
        cost_usd=report.result.actual.cost_usd,
    )
    return job_id


def test_one_job_on_vms_is_shown_by_vm_within_eighty_columns(store: Store, scavenger: Run) -> None:
    job_id = finished(store, vms=3)
    code, out, _ = scavenger("cost", job_id)

    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for words in (
        "workers, spot",
        "aggregators, on demand",
        "$0.170 ",
        "$0.075 ",
        "interruptions",
        "unwanted",
    ):
        assert words in out
    assert "off by" in out
    assert out.count("i-0000") == 3


@pytest.mark.parametrize("state", ["planned", "stopped", "interrupted"])
def test_what_was_not_run_to_its_end_is_not_held_against_the_prediction_of_it(
    state: JobState, store: Store, scavenger: Run
) -> None:
    job_id = finished(store, state=state)
    code, out, _ = scavenger("cost", job_id)

    assert code == 0
    assert "actual" in out
    assert "off by" not in out


def test_one_job_as_a_document_has_every_item_and_says_how_it_is_known(store: Store, scavenger: Run) -> None:
    job_id = finished(store, vms=3)
    code, out, _ = scavenger("cost", job_id, "-o", "json")
    document = json.loads(out)

    assert (code, document["schema_version"]) == (0, 1)
    job = document["job"]
    disks = sum(vm["disk_usd"] or 0.0 for vm in job["vms"])
    assert job["actual_usd"] == pytest.approx(0.17 + 2 * 0.0748 + disks)
    assert job["estimate"]["total_usd"] == pytest.approx(0.205)
    assert [vm["role"] for vm in job["vms"]] == ["aggregator", "worker", "worker"]
    assert {vm["basis"] for vm in job["vms"]} == {"cloud"}
    assert job["not_counted"]


def test_without_a_job_the_latest_are_listed_and_the_last_is_itemised(store: Store, scavenger: Run) -> None:
    assert "No jobs yet" in scavenger("cost")[1]
    first, last = finished(store, vms=2), finished(store)
    code, out, _ = scavenger("cost")

    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert first[:8] in out
    assert last in out
    assert "worker-hours at $0.134 per hour" in " ".join(out.split())
    assert len(json.loads(scavenger("cost", "-o", "json")[1])["jobs"]) == 2


def test_an_unknown_job_is_refused(store: Store, scavenger: Run) -> None:
    finished(store)
    code, _, err = scavenger("cost", "nothing-of-the-kind")

    assert code == 2
    assert "there is no job" in err


def test_a_report_keeps_its_estimate_through_its_document() -> None:
    report = replace(make_report(), estimate=ESTIMATE)
    document = report_document(report)

    assert report_from_document(document).estimate == ESTIMATE
    document["estimate"]["items"] = [{"name": "training"}]
    with pytest.raises(ValueError, match="not an estimate"):
        report_from_document(document)


def test_status_shows_the_bill_of_the_vms_and_not_the_last_count_of_an_ended_process(
    store: Store, scavenger: Run
) -> None:
    job_id = finished(store, vms=3)
    cost = json.loads(scavenger("cost", job_id, "-o", "json")[1])["job"]["actual_usd"]
    counted = store.job(job_id).cost_usd
    assert counted != pytest.approx(cost, rel=0.1)

    job = json.loads(scavenger("status", job_id, "-o", "json")[1])["job"]
    assert (job["cost_usd"], job["actual"]["cost_usd"]) == (pytest.approx(cost), pytest.approx(cost))
    (listed,) = json.loads(scavenger("status", "-o", "json")[1])["jobs"]
    assert listed["cost_usd"] == pytest.approx(cost)


def test_a_list_keeps_a_bill_only_as_long_as_nothing_that_it_depends_on_changes(store: Store) -> None:
    job_id = finished(store, vms=2)
    assert not finished(store).startswith(job_id[:8])

    def shown() -> list[float | None]:
        return [one.cost_usd for one in listed(store, store.jobs(5))]

    def paid() -> list[float | None]:
        return [billed(store, job).cost_usd for job in store.jobs(5)]

    before = shown()
    assert before == shown() == paid()
    engine = create_engine(store.url)
    with engine.begin() as connection:  # the cloud corrects its times
        connection.execute(update(IntentRow).values(spent_usd=IntentRow.spent_usd + 1.0))
    engine.dispose()
    assert shown() == paid() != before


def test_a_job_whose_process_is_gone_is_called_dead_as_by_status(store: Store, scavenger: Run) -> None:
    job = store.create_job("tiny", spec={}, job_file="job.yaml")
    store.update_job(job.id, state="running")
    with create_engine(store.url).begin() as connection:
        connection.execute(update(JobRow).values(owner_pid=2**31 - 1))

    said = "dead (running when last seen)"
    for command in ("status", "cost"):
        assert said in " ".join(scavenger(command, job.id)[1].split())
        assert said in " ".join(scavenger(command)[1].split())
    document = json.loads(scavenger("cost", job.id, "-o", "json")[1])["job"]
    assert (document["state"], document["alive"], document["has_runner"]) == ("running", False, False)
