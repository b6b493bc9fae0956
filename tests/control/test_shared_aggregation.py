"""A job whose file says `aggregation: shared` gets its aggregators in the pool of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs
from pools import end_pool

from scavenger.control.places import pool
from scavenger.control.places.place import Allocation
from scavenger.control.places.pool import PooledAllocation, check_room
from scavenger.control.places.this_machine import ThisMachine
from scavenger.control.places.vms import RentedVms
from scavenger.domain.cost import LedgerEntry
from scavenger.domain.job import JobSpec
from scavenger.errors import NotSupportedError, TransientError
from scavenger.store import Store
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.pool.connection import wait_for_load
from scavenger.train.pool.lodging import Lodgings
from scavenger.train.pool.placement import Node
from scavenger.train.pool.protocol import MEMORY_FD, NodeUsage, PoolLoad, RentalLoad
from scavenger.train.pool.tenants import Tenants

RECORD: Any = SimpleNamespace(id="0123", name="tiny")


def job(**sections: Any) -> JobSpec:
    return JobSpec.model_validate(
        {"version": 1, "name": "tiny", "train": "train:job", "goal": {"max_epochs": 2}, **sections}
    )


def allocated(wanted: JobSpec, store: Store, record: Any) -> Allocation:
    context: Any = SimpleNamespace(store=store, record=record, warn=print)
    return ThisMachine(wanted).allocate(context)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SCAVENGER_POOL", str(tmp_path / "pool"))
    yield tmp_path / "pool"
    end_pool(tmp_path / "pool")


@pytest.mark.slow
def test_it_starts_a_pool_if_none_is_served_and_uses_it(folder: Path, store: Store, tmp_path: Path) -> None:
    record = store.create_job("tiny", spec={}, job_file=tmp_path / "job.yaml")
    resources = allocated(job(aggregation="shared"), store, record)
    engine = resources.engine(tmp_path, -1)

    assert isinstance(engine, ProcessEngine)
    assert isinstance(engine.tenants, Tenants)
    assert engine.tenants.memory_fd == MEMORY_FD
    engine.close()
    first = wait_for_load(folder)
    allocated(job(aggregation="shared"), store, record)
    assert wait_for_load(folder).pid == first.pid


def test_a_job_of_its_own_starts_none(folder: Path) -> None:
    made: Any = allocated(job(), cast(Any, None), RECORD).engine

    assert "tenants" not in made.keywords
    assert not folder.exists()


class Pool:
    """What is reported to the pool, and what the job's aggregators have used."""

    def __init__(self) -> None:
        self.reported: list[tuple[int, list[float]]] = []
        self.used_s = 0.0

    def report(self, view: int, steps_s: list[float], step_bytes: int) -> None:
        self.reported.append((view, steps_s))

    def used(self) -> tuple[float, None]:
        return self.used_s, None


def steps(*made: tuple[int, int, float]) -> list[Any]:
    return [SimpleNamespace(step=step, view=view, step_time_s=took, workers=1) for step, view, took in made]


def test_a_job_reports_its_steps_and_pays_for_what_its_aggregators_use(store: Store, tmp_path: Path) -> None:
    record = store.create_job("tiny", spec={}, job_file=tmp_path / "job.yaml")
    space, tenants = ThisMachine(job()).space, Pool()
    resources = PooledAllocation(space, ProcessEngine, cast(Tenants, tenants), store, record.id, 0.36)
    meter = resources.meter(cast(Any, SimpleNamespace(worker_seconds=lambda: {"local-1": 10.0}, existing={})))
    worker_usd = meter.spent_usd()
    trainer: Any = SimpleNamespace(step=3)

    tenants.used_s = 2.0  # for its start
    resources.tick(steps=steps((1, 1, 0.1), (2, 1, 0.2), (3, 2, 0.3)))
    assert resources.terms(trainer) is None
    tenants.used_s, trainer.step = 3.0, 13
    resources.tick(steps=steps((13, 2, 0.1)))

    assert tenants.reported == [(1, [0.1, 0.2]), (2, [0.3]), (2, [0.1])]
    assert meter.spent_usd() == pytest.approx(worker_usd + 3.0 * 0.0001)
    assert meter.usd_per_hour() == pytest.approx(meter.shared_usd_per_hour())
    terms = resources.terms(trainer)
    assert terms is not None
    assert terms.aggregation_usd_per_step == pytest.approx(0.00001)

    resources.close()
    assert store.entry(record.id, "share").quantity == 3.0
    again = PooledAllocation(space, ProcessEngine, cast(Tenants, tenants), store, record.id, 0.36)
    again.tick()
    again.close()
    assert store.entry(record.id, "share") == LedgerEntry(6.0, pytest.approx(0.0006))


def test_a_pool_without_room_for_all_its_aggregators_is_refused() -> None:
    load = PoolLoad(1, 0.0, "session", 1 << 30, 1, (), ())

    check_room(load, 1)
    with pytest.raises(TransientError, match="room for 1 of 2 aggregators"):
        check_room(load, 2)


def remote(place: str, *, drained: bool = False) -> PoolLoad:
    node = NodeUsage(Node("one", (0,), 1 << 30, 4, place, "192.0.2.1"), 0.0, 0, 2, drained=drained, pinned=1)
    return PoolLoad(1, 0.0, "session", 1 << 30, 0, (node,), (), address="192.0.2.9")


def test_nodes_on_other_machines_are_used_where_this_one_has_no_room(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = store.create_job("tiny", spec={}, job_file=tmp_path / "job.yaml")
    monkeypatch.setattr(pool, "wait_for_load", lambda _: remote("local"))
    shared = job(aggregation="shared", elastic={"aggregators": 3})

    resources = allocated(shared, store, record)

    assert resources.sequencer_apart
    with pytest.raises(TransientError, match="room for 3 of 4 aggregators"):
        allocated(job(aggregation="shared", elastic={"aggregators": 4}), store, record)
    monkeypatch.setattr(pool, "wait_for_load", lambda _: remote("aws/us-east-1"))
    with pytest.raises(TransientError, match="room for 0 of 3 aggregators"):
        allocated(shared, store, record)


def test_a_job_on_vms_needs_nodes_of_its_region(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = job(aggregation="shared", infra="aws/us-east-1a", resources={"vm": "c5.large"})
    for load, words in (
        (None, "serve --infra aws/us-east-1"),
        (PoolLoad(1, 0.0, "session", 1, 8, (), ()), "--listen ADDRESS"),
        (remote("aws/eu-west-1"), "at aws/us-east-1 has room for 0 of 1"),
        (remote("aws/us-east-1", drained=True), "add-node NAME --place aws/us-east-1"),
    ):
        monkeypatch.setattr(pool, "load_of", lambda _, load=load: load)
        with pytest.raises(TransientError, match=words):
            pool.lodged_on_vms(wanted, RECORD)
    full = remote("aws/us-east-1", drained=True)
    rents = RentalLoad("aws/us-east-1", "c5.large", 0.085, 4, 300.0, {}, free=32)
    monkeypatch.setattr(pool, "load_of", lambda _: structs.replace(full, rental=rents))
    assert pool.lodged_on_vms(wanted, RECORD), "its pool can rent a node"
    monkeypatch.setattr(pool, "load_of", lambda _: remote("aws/us-east-1"))

    made = pool.lodged_on_vms(wanted, RECORD)

    assert isinstance(made, Lodgings)
    assert made.join.place == "aws/us-east-1"


def test_a_job_on_vms_that_shares_rents_no_vm_for_its_aggregators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCAVENGER_ADDRESS", "192.0.2.9")
    sections: Any = {"infra": "aws/us-east-1", "resources": {"vm": "c5.large"}}
    own, shared = (RentedVms(made) for made in (job(**sections), job(**sections, aggregation="shared")))

    assert own.aggregators is not None
    assert shared.aggregators is None
    trainer: Any = SimpleNamespace(setup_s=0.0, ready_on=lambda vm: 0)
    assert shared.costs.terms(trainer).shared.usd_per_hour == 0.0
    assert own.costs.terms(trainer).shared.usd_per_hour > 0.0
    monkeypatch.delenv("SCAVENGER_ADDRESS")
    with pytest.raises(NotSupportedError, match="cannot reach the pool"):
        RentedVms(job(**sections, aggregation="shared"))
