"""Settings of pools whose VMs are rented, and what jobs become there."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from made_intents import made_intent
from scavenger_cli.commands.pool import pool_text

from scavenger.api.calls import Local
from scavenger.api.pools import show_pools
from scavenger.control.jobs.pool_seat import PoolSeat
from scavenger.control.pools.rented import KEEPER_NAME, MeansKnown, apart_of
from scavenger.control.service.server import configured_pools
from scavenger.domain.intent import Intent, VmTimes
from scavenger.domain.job import JobSpec, ResourcesSpec
from scavenger.domain.pool import Pool, PoolAllotment, PoolShare, PoolVms
from scavenger.errors import ConfigurationError
from scavenger.policy.provisioning.boots import ESTIMATE_S
from scavenger.scheduler.jobs.seeing import PoolJob, Sizes, decided
from scavenger.store import Store
from scavenger.store.operations import VMS_OF

TABLE = '[pool.gpu]\ninfra = "gcp/us-central1"\nvm = "e2-standard-4"\nmax = 16\n'
VMS = PoolVms("gcp/us-central1", "e2-standard-4", True, 0.1)


@pytest.fixture
def prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "prices.yaml"
    price = {"provider": "gcp", "region": "us-central1", "vm": "e2-standard-4", "on_demand": 0.5, "spot": 0.2}
    path.write_text(json.dumps({"version": 1, "prices": [price]}))
    monkeypatch.setenv("SCAVENGER_PRICES", str(path))


def settings(tmp_path: Path, text: str) -> Pool:
    path = tmp_path / "pools.toml"
    path.write_text(text)
    return configured_pools(path)["gpu"]


@pytest.mark.usefixtures("prices")
def test_a_pool_of_rented_vms_knows_their_price_with_disk_and_address(tmp_path: Path) -> None:
    kept = 'min = 1\nidle_duration = "5m"\n'
    on_demand = settings(tmp_path, TABLE + kept + 'budget = "$200"\nusers.ann = {most = 8}\n')
    spot = settings(tmp_path, TABLE + "spot = true\n")

    assert (on_demand.slots, on_demand.users["ann"].most) == (16, 8)
    assert on_demand.vms is not None
    assert spot.vms is not None
    assert (on_demand.vms.budget_usd, on_demand.vms.spot) == (200.0, False)
    assert (on_demand.vms.least, on_demand.vms.idle_s, spot.vms.idle_s) == (1, 300.0, None)
    assert 0.5 < on_demand.vms.usd_per_hour < 0.52
    assert 0.2 < spot.vms.usd_per_hour < 0.22


def test_a_vm_with_several_gpus_is_one_slot_with_as_many_workers(tmp_path: Path) -> None:
    pool = settings(tmp_path, TABLE.replace("e2-standard-4", "a2-highgpu-2g"))
    assert pool.vms is not None
    assert (pool.slots, pool.vms.per_slot) == (16, 2)
    sizes = {"even": Sizes(2, 5, 5), "odd": Sizes(3, 3, 3)}
    jobs = [
        PoolJob(name, "ann", 0, at, size, 0.0, None, None, queued=True)
        for at, (name, size) in enumerate(sizes.items())
    ]
    found = decided(replace(pool, policy="even"), jobs)

    assert found.slots == {"even": 2, "odd": 2}
    assert [job.workers(found.slots[job.id]) for job in found.jobs] == [4, 3]
    last = PoolAllotment(pool, 1, {}, (), datetime.now(UTC))
    seat = PoolSeat("pool gpu", PoolShare(2, 2, 2, 1), vms=pool.vms, per_slot=last.per_slot(""))
    spec = {"version": 1, "name": "a", "train": "train:job", "infra": "pool/gpu", "goal": {"max_epochs": 1}}
    job = JobSpec.model_validate({**spec, "search": {"workers": [1, 2, 4, 8], "batch_size": [32]}})
    assert seat.within(job).worker_counts == (2, 4)


@pytest.mark.usefixtures("prices")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[pool.gpu]\nmax = 4\n",
            "max is for VMs that are rented, and needs infra, such as gcp/us-central1",
        ),
        (TABLE.replace("max = 16\n", ""), "max must be given, for VMs of gcp/us-central1"),
        (TABLE + "slots = 2\n", "slots is for this machine; of rented VMs, say max"),
        (TABLE + "min = 17\n", "min is above max, 16"),
        ('[pool.gpu]\nidle_duration = "5m"\n', "idle_duration is for VMs that are rented"),
        (
            TABLE.replace("gcp/us-central1", "kubernetes/here"),
            "a pool rents VMs of a cloud, such as gcp/us-central1",
        ),
        (TABLE.replace("gcp/", "gpc/"), "gpc/us-central1"),
        (TABLE.replace("e2-standard-4", "e2-huge-4"), "no VM type 'e2-huge-4'"),
    ],
)
def test_what_cannot_be_rented_is_refused_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        settings(tmp_path, text)

    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "gpu" in str(refused.value)


def test_a_job_runs_on_the_vms_of_its_pool(tmp_path: Path) -> None:
    spec = {"version": 1, "name": "a", "train": "train:job", "infra": "pool/gpu", "goal": {"max_epochs": 1}}
    job = JobSpec.model_validate({**spec, "search": {"workers": [1, 2, 4], "batch_size": [32]}})
    seat = PoolSeat("pool gpu", PoolShare(2, 2, 2, 1), vms=VMS)
    there = seat.within(job)

    assert str(there.infra) == "gcp/us-central1"
    assert (there.resources.vm, there.spot, there.worker_counts) == ("e2-standard-4", "always", (1, 2))  # type: ignore[union-attr]
    assert JobSpec.model_validate(there.written()) == there
    here = PoolSeat("pool gpu", PoolShare(2, 2, 2, 1)).within(job)
    assert str(here.infra) == "pool/gpu"
    large = job.model_copy(update={"resources": ResourcesSpec(cpus=8, disk=500)})
    assert seat.within(large).resources == ResourcesSpec(vm="e2-standard-4", disk=500)


def test_a_job_with_aggregators_of_its_own_has_a_vm_for_them(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from scavenger.sdk import LoopJob\nloop = LoopJob(print)\ndef job(): ...\n"
    )
    spec = {"version": 1, "name": "a", "infra": "pool/gpu", "goal": {"max_epochs": 1}}

    def apart(train: str, pool: Pool) -> int:
        return apart_of(pool, JobSpec.model_validate({**spec, "train": train}), tmp_path / "job.yaml")

    rented = Pool("gpu", 8, vms=VMS)
    assert (apart("train:job", rented), apart("train:loop", rented), apart("train:job", Pool("gpu", 8))) == (
        1,
        0,
        0,
    )


def test_what_is_left_of_a_budget_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCAVENGER_LOCAL_PRICE", "0.5")
    pool = Pool("gpu", 8, vms=replace(VMS, budget_usd=200.0))
    share = PoolShare(1, 1, 1, 1)
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        store.put_allotment(PoolAllotment(pool, 1, {"gone": share}, (), datetime.now(UTC)))
        store.note("gone", "vms", 10.0, 50.0, name="gone", user="ann")
        store.note("another", "vms", 10.0, 70.0, name="another", user="ann")
        keeper = store.create_job(KEEPER_NAME, spec={VMS_OF: "gpu"}, job_file="/nowhere").id
        store.note(keeper, "vms", 10.0, 2.5)
        [found] = [one for one in show_pools(Local(store=store)).pools if one.name == "gpu"]

    assert found.vms is not None
    assert (found.vms.budget_usd, found.vms.left_usd, found.free) == (200.0, 147.5, 8)
    text = " ".join(str(line) for line in pool_text(found))
    assert "up to 8 spot VMs e2-standard-4 of gcp/us-central1" in text
    assert "$147.50 of $200.00 are left of its budget of this month" in text
    assert "0 VMs without a job, which wait for the next; $2.50 were paid for that in this month" in text


def test_how_long_vms_take_is_known_soon_after_the_first_has_joined() -> None:
    history, now, began = list[Intent](), [0.0], datetime(2026, 1, 1, tzinfo=UTC)

    class Records:
        def intents(self) -> list[Intent]:
            return history

    def joins(took_s: float) -> None:
        times = VmTimes(created_at=began, joined_at=began + timedelta(seconds=took_s))
        history.append(made_intent({}, provider="gcp", region="us-central1", times=times))

    records: Any = Records()
    means = MeansKnown(records, Pool("gpu", 2, vms=VMS), lambda: now[0])
    assert means.at(began, None).start_s == ESTIMATE_S
    joins(7.0)
    now[0] = 30.0
    assert means.at(began, None).start_s == 7.0
    joins(9.0)
    now[0] = 60.0
    assert means.at(began, None).start_s == 7.0  # all records are read again after minutes only
    now[0] = 400.0
    assert means.at(began, None).start_s == 8.0
