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
from gcp_state import EPOCH, PROJECT, Clock
from gcp_world import GcpWorld, world_on
from nested import built
from price_servers import PriceServer, address, disk, product, serve, sku, traffic

from scavenger.cloud.catalog.catalog import Catalog
from scavenger.cloud.catalog.refresh_aws import ADVISOR_VARIABLE, fetch_aws
from scavenger.cloud.catalog.refresh_gcp import BILLING_VARIABLE, fetch_gcp
from scavenger.cloud.gcp.names import ENDPOINT_VARIABLE
from scavenger.control.places.offers import CatalogCloud
from scavenger.control.provisioning.bill import JobCost, job_cost
from scavenger.control.provisioning.ports import provisioning_of
from scavenger.control.provisioning.reconciler import Reconciler
from scavenger.domain.cost import VmExtras
from scavenger.domain.intent import FleetSpec, PlacementOption, VmSlot
from scavenger.domain.vm import LaunchTemplate
from scavenger.domain.vm_settings import AwsSettings, GcpSettings
from scavenger.store import Store

pytestmark = pytest.mark.slow

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

    def want(
        self,
        vms: int,
        *,
        spot: bool = False,
        extras: VmExtras = EXTRAS,
        template: LaunchTemplate = LaunchTemplate(36_000.0),  # noqa: B008 - a value
    ) -> None:
        provider, zone = self.world.provider, zone_of(self.world)
        self.store.want_vms(
            built(
                FleetSpec,
                job_id=self.job_id,
                provider=provider.name,
                region=provider.region,
                slots=tuple(map(VmSlot, range(vms))),
                options=(PlacementOption(self.world.vm, zone, spot, USD_PER_HOUR, extras),),
                vms_max=4,
                budget_usd=float("inf"),
                template=template,
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
    def bill(self) -> JobCost:
        entries = self.store.entries(self.job_id)
        return job_cost(
            self.store.job(self.job_id), self.store.intents(self.job_id), at=self.now(), entries=entries
        )

    @property
    def billed_usd(self) -> float:
        bill = self.bill
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


@dataclass(frozen=True)
class Rates:
    """What a cloud charges for besides VMs, in the units of its own price list; addresses on demand and spot."""

    disk_gib_month: float
    address_hour: tuple[float, float]
    sent_gib: float
    both_pay: bool

    def traffic_usd(self, gib: float) -> float:
        """Of what goes from one zone to another: AWS has the sender and the receiver pay."""
        return gib * self.sent_gib * (2 if self.both_pay else 1)


RATES = {
    "aws": Rates(0.08, (0.005, 0.005), 0.01, both_pay=True),
    "gcp": Rates(0.1, (0.005, 0.0025), 0.01, both_pay=False),
}


def price_list(prices: PriceServer, name: str) -> None:
    """The cloud's price list of these rates, beside what a refresh needs besides."""
    rates = RATES[name]
    if name == "aws":
        prices.products = [[product("c5.large", USD_PER_HOUR)]]
        prices.extras = {
            "AmazonEC2": [disk(rates.disk_gib_month)],
            "AmazonVPC": [address(rates.address_hour[0])],
            "AWSDataTransfer": [traffic("IntraRegion", "DataTransfer-Regional-Bytes", rates.sent_gib)],
        }
        return
    on_demand, spot = rates.address_hour
    prices.skus = [
        [
            sku("E2 Instance Core running in Americas", 0.02),
            sku("Balanced PD Capacity", rates.disk_gib_month, unit="GiBy.mo"),
            sku("External IP Charge on a Standard VM", on_demand, regions=("global",)),
            sku("External IP Charge on a Spot Preemptible VM", spot, regions=("global",)),
            sku("Network Inter Zone Data Transfer Out", rates.sent_gib, unit="GiBy"),
        ]
    ]


def refreshed(account: Account, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """The catalogue after a refresh from the cloud's price list."""
    name = account.world.provider.name
    with serve(PriceServer()) as prices:
        price_list(prices, name)
        monkeypatch.setenv(ADVISOR_VARIABLE, prices.url)
        for service in ("PRICING", "EC2"):
            monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", prices.url)
        for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(variable, "test")
        now = account.now()
        if name == "aws":
            fetched = fetch_aws([account.world.provider.region], now=now)
        else:
            places = {
                BILLING_VARIABLE: prices.url,
                ENDPOINT_VARIABLE: account.world.server.endpoint,
            }
            fetched = fetch_gcp([account.world.provider.region], project=PROJECT, now=now, environment=places)
    for service in ("PRICING", "EC2"):
        monkeypatch.delenv(f"AWS_ENDPOINT_URL_{service}")
    return Catalog(fetched.stock, today=now.date())


def invoice(account: Account, rates: Rates) -> dict[str, float]:
    """What the cloud charges for the disks and addresses of its VMs, by what it knows of them itself."""
    charged = dict.fromkeys(("disks", "addresses"), 0.0)
    for key, lived_s in account.lived_s.items():
        if isinstance(account.world, GcpWorld):
            body = account.world.server.project.machines[int(key)].body
            gib = sum(int(one["initializeParams"]["diskSizeGb"]) for one in body["disks"])
            addresses = sum(len(one.get("accessConfigs", ())) for one in body["networkInterfaces"])
            spot = body.get("scheduling", {}).get("provisioningModel") == "SPOT"
        else:
            instance = account.world.server.instances()[key]
            asked = account.world.server.asked[key]
            gib = int(asked["BlockDeviceMapping.1.Ebs.VolumeSize"])
            addresses = int(asked["NetworkInterface.1.AssociatePublicIpAddress"] == "true")
            spot = instance.lifecycle == "spot"
        hours = max(LEAST_S, lived_s) / 3600.0
        charged["disks"] += hours * gib * rates.disk_gib_month / 730.0
        charged["addresses"] += hours * addresses * rates.address_hour[spot]
    return charged


@pytest.mark.parametrize(
    ("spot", "public"), [(False, True), (True, True), (True, False)], ids=["on-demand", "spot", "private"]
)
def test_disks_addresses_and_traffic_cost_what_the_clouds_price_list_says_of_what_it_saw(
    account: Account, monkeypatch: pytest.MonkeyPatch, spot: bool, public: bool
) -> None:
    """From the price list by a refresh, the catalogue and the intent to the bill; a disk of 16 TiB costs cents."""
    provider, size_gib = account.world.provider, 16_000
    rates = RATES[provider.name]
    catalog = refreshed(account, monkeypatch)
    cloud = CatalogCloud(provider.name, provider.region, spot="auto", catalog=catalog, public=public)
    settings = {"aws": AwsSettings, "gcp": GcpSettings}[provider.name](public_address=public)
    template = LaunchTemplate(36_000.0, disk_gib=size_gib, settings=settings.launch_settings())
    extras = cloud.extras(size_gib, spot=spot)

    account.want(2, spot=spot, extras=extras, template=template)
    account.run(300.0)
    account.want(0, spot=spot, extras=extras, template=template)
    account.run(100.0)
    sent_gib = 37.5
    price = cloud.traffic_price
    assert price is not None
    account.store.note(account.job_id, "traffic", sent_gib, sent_gib * price.usd_per_gib, f"{price}")

    charged = invoice(account, rates)
    billed = {item.name: item.usd for item in account.bill.items}
    assert len(account.lived_s) == 2
    assert charged["disks"] > 0.25
    assert billed["disks"] == pytest.approx(charged["disks"], abs=0.01)
    assert (charged["addresses"] > 0.0) is public
    assert billed.get("addresses", 0.0) == pytest.approx(charged["addresses"], rel=0.02)
    assert billed["traffic between zones"] == pytest.approx(rates.traffic_usd(sent_gib), abs=1e-9)
    assert sum(billed.values()) == pytest.approx(account.billed_usd)
