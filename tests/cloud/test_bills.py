"""What a job is billed is what its cloud's servers saw of its VMs, to the cent, whatever failed meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("google.cloud.compute_v1")
pytest.importorskip("googleapiclient")

from aws_world import AwsWorld, aws, server, session, started
from gcp_server import ComputeServer
from gcp_state import EPOCH, Clock
from gcp_world import GcpWorld, world_on
from nested import built

from scavenger.control.provisioning.bill import job_cost
from scavenger.control.provisioning.ports import provisioning_of
from scavenger.control.provisioning.reconciler import Reconciler
from scavenger.domain.cost import VmExtras
from scavenger.domain.intent import FleetSpec, PlacementOption, VmSlot
from scavenger.store import Store

__all__ = ["aws", "server", "session", "started"]  # fixtures

USD_PER_HOUR, EXTRAS = 3.0, VmExtras(0.36, 0.24)
SECOND_USD = (USD_PER_HOUR + EXTRAS.usd_per_hour) / 3600.0
"""A tenth of a cent."""
STEP_S = 5.0
LEAST_S = 60.0


def zone_of(world: Any) -> str:
    """The first zone of the world's VM type."""
    return str(world.provider.zones(world.vm)[0])


@dataclass
class Account:
    """A job whose VMs a reconciler rents, and what the cloud itself sees of them.

    Attributes:
        lived_s: For how long each VM ran, by its id.
        denied: Whether VMs cannot be reached: the job hears of none.
    """

    world: Any
    store: Store
    now: Callable[[], datetime]
    lived_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    denied: bool = False

    def __post_init__(self) -> None:
        provider = self.world.provider
        self.job_id = self.store.create_job("digits", spec={"infra": provider.name}, job_file="/job.yaml").id
        self.service = Reconciler(
            self.store,
            provider,
            owner=self.store.installation(),
            holder="here",
            renew=lambda intent, seconds: True,
            alarm=lambda alarm: None,
            config=provisioning_of(provider),
            clock=lambda: self.now().timestamp(),
            wall=self.now,
            rng=Random(1),
        )

    def want(self, vms: int) -> None:
        provider, zone = self.world.provider, zone_of(self.world)
        self.store.want_vms(
            built(
                FleetSpec,
                job_id=self.job_id,
                provider=provider.name,
                region=provider.region,
                slots=tuple(map(VmSlot, range(vms))),
                options=(PlacementOption(self.world.vm, zone, False, USD_PER_HOUR, EXTRAS),),
                vms_max=4,
                budget_usd=float("inf"),
                run_max_s=36_000.0,
            )
        )

    def run(self, seconds: float) -> None:
        """Look, hear and be billed for so long."""
        until = self.now() + timedelta(seconds=seconds)
        while self.now() < until:
            before = self.now()
            self.store.heartbeat(self.job_id)
            self.service.look()
            for one in self.store.intents(living=True):
                if one.state == "UP" and not self.denied:
                    self.store.acknowledge_vm(one.id)
            running = self.running()
            self.world.advance(STEP_S)
            for key in running:
                self.lived_s[key] += (self.now() - before).total_seconds()

    def running(self) -> list[str]:
        """The VMs that are paid for: what EC2 shuts down, and what Compute Engine could not start, is not."""
        found = [fact.instance_id for fact in self.world.truth() if fact.alive]
        if isinstance(self.world, GcpWorld):
            machines = self.world.server.project.machines
            return [
                key
                for key in found
                if machines[int(key)].off_at is None and machines[int(key)].ends_at > machines[int(key)].up_at
            ]
        instances = self.world.server.instances()
        return [key for key in found if instances[key].state in ("pending", "running")]

    def power_off(self) -> None:
        """Each VM shuts itself down, as nobody renews it."""
        for key in self.running():
            if isinstance(self.world, GcpWorld):
                project = self.world.server.project
                project.power_off(project.machines[int(key)])
            else:
                self.world.delete_by_hand(key)

    @property
    def billed_usd(self) -> float:
        entries = self.store.entries(self.job_id)
        bill = job_cost(
            self.store.job(self.job_id), self.store.intents(self.job_id), at=self.now(), entries=entries
        )
        if bill.vms and all(vm.ended for vm in bill.vms):
            assert bill.actual_usd == pytest.approx(self.store.spent_usd(self.job_id)), (
                "bill and budgets agree"
            )
        return bill.actual_usd or 0.0

    @property
    def paid_usd(self) -> float:
        """By what the cloud has seen itself."""
        return sum(max(LEAST_S, lived_s) for lived_s in self.lived_s.values()) * SECOND_USD


@pytest.fixture
def aws_account(aws: AwsWorld, tmp_path: Path) -> Iterator[Account]:
    def now() -> datetime:
        return aws.server.began + timedelta(seconds=aws.server.now_s)

    with Store.open(f"sqlite:///{tmp_path}/store.db", clock=now) as store:
        yield Account(aws, store, now)


@pytest.fixture
def gcp_account(tmp_path: Path) -> Iterator[Account]:
    with ComputeServer(Clock()) as compute:
        for world in world_on(compute):

            def now(world: GcpWorld = world) -> datetime:
                return EPOCH + timedelta(seconds=world.clock())

            with Store.open(f"sqlite:///{tmp_path}/store.db", clock=now) as store:
                yield Account(world, store, now)


@pytest.fixture(params=["aws", "gcp"])
def account(request: pytest.FixtureRequest) -> Account:
    found: Account = request.getfixturevalue(f"{request.param}_account")
    return found


def a_cent(account: Account) -> Any:
    """What the cloud has seen: to the cent, by VM."""
    return pytest.approx(account.paid_usd, abs=0.01 * max(1, len(account.lived_s)))


@pytest.mark.parametrize("lives_s", [20.0, 100.0])
def test_vms_of_a_minute_cost_what_the_cloud_saw_also_where_it_is_slow(
    account: Account, lives_s: float
) -> None:
    account.want(2)
    account.run(lives_s)
    account.want(0)
    account.run(200.0)

    assert len(account.lived_s) == 2
    assert account.store.is_clean(account.job_id)
    assert account.billed_usd == a_cent(account)


def test_a_launch_that_was_lost_and_then_refused_has_a_bound_until_the_cloud_shows_that_it_made_no_vm(
    account: Account,
) -> None:
    """The first request may still be on its way. EC2 shows VMs that have ended, Compute Engine does not."""
    config = provisioning_of(account.world.provider)
    account.world.stock_out(zone_of(account.world))
    account.world.lose_answers(1)
    account.want(1)
    account.run(60.0)
    assert account.world.faults_fired
    account.want(0)
    bound_usd = SECOND_USD * (config.settle_s + 120.0)
    assert 0.0 < account.billed_usd <= bound_usd
    account.run(config.settle_s + 60.0)

    assert account.lived_s == {}
    assert account.store.is_clean(account.job_id)
    assert account.billed_usd == 0.0 if config.remembers_s else account.billed_usd <= bound_usd


def test_a_launch_whose_answer_is_lost_costs_what_its_one_vm_does(account: Account) -> None:
    account.world.lose_answers(1)
    account.want(1)
    account.run(300.0)
    account.want(0)
    account.run(200.0)

    assert len(account.lived_s) == 1
    assert account.billed_usd == a_cent(account)


def test_while_credentials_are_refused_the_bill_has_a_bound_and_afterwards_it_is_the_clouds(
    account: Account,
) -> None:
    account.want(1)
    account.run(120.0)
    account.world.deny()
    account.denied = True
    account.run(300.0)
    account.power_off()
    account.run(900.0)
    bound_usd = account.billed_usd
    assert account.paid_usd < bound_usd < account.paid_usd + 1020.0 * SECOND_USD
    account.run(1200.0)
    assert account.billed_usd == pytest.approx(bound_usd, abs=0.05), "it does not grow"

    account.world.deny(on=False)
    account.want(0)
    account.run(200.0)
    after_usd = 0.0
    if isinstance(
        account.world, GcpWorld
    ):  # the disk of a VM that has powered itself off is there until then
        after_usd = 2100.0 * (EXTRAS.disk_usd_per_hour or 0.0) / 3600.0
    assert account.store.is_clean(account.job_id)
    assert account.billed_usd == pytest.approx(account.paid_usd + after_usd, abs=0.02)
