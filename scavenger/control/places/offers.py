"""The offers of a cloud: the VM types that a job may use, on demand or spot, with their prices."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from scavenger.cloud.catalog.catalog import Catalog
from scavenger.cloud.kubernetes.prices import PodCatalog
from scavenger.cloud.stock import CatalogEntry, Extras, MachineType, VmRequirements
from scavenger.control.places.launching import DISK_GIB, GPU_DISK_GIB
from scavenger.control.provisioning.prices import catalog_of
from scavenger.domain.configuration import Offer
from scavenger.domain.cost import (
    OLD_DAYS,
    SPOT_DAYS_MAX,
    CostTerms,
    Price,
    PricedExtra,
    SharedCosts,
    SpotRisk,
    TrafficPrice,
    VmExtras,
)
from scavenger.domain.fingerprint import BESIDE_WORKERS, hardware_of_vms
from scavenger.domain.job import ResourcesSpec
from scavenger.domain.ranges import Amount
from scavenger.domain.vm_settings import CloudSettings
from scavenger.errors import ConfigurationError
from scavenger.policy.spot import SpotDecision, SpotMode, SpotTerms, decide_spot

TYPES_MAX = 8
"""Maximum number of VM types in one search: each needs three measurements on VMs of that type."""
DEFAULT_CPUS = 4
"""Default number of vCPUs of a VM: as in Scavenger (Tyagi and Sharma), whose VMs are e2-standard-4."""
AGGREGATOR_CPUS_MAX = 8
"""Largest worker VM that is also used for the aggregators: summing is bound by the network."""
AGGREGATOR_CPUS_MIN, AGGREGATOR_GIB_MIN = 2, 4.0
"""One vCPU for the sums and one for the messages; TensorFlow with a copy of the weights."""


@dataclass(frozen=True, slots=True)
class ChangeCosts:
    """Assumed costs of losing a worker, until they are measured.

    Attributes:
        pause_s: Pause of all workers until the others continue: a change of view takes some hundredths of a second
            after an announced loss; an unannounced one takes some seconds to detect.
        replace_s: Time from the loss of a worker to its replacement's first step: a VM boots and starts TensorFlow.
    """

    pause_s: float = 5.0
    replace_s: float = 180.0


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """The list price by which a VM type with GPUs is offered, and its age; as text, with its source and date."""

    vm: str
    price: Price
    age_days: int

    def __str__(self) -> str:
        usd = f"${self.price.usd_per_hour:.4g} an hour"
        return f"the price of {self.vm}, {usd}, is {self.age_days} days old ({self.price})"


@dataclass(frozen=True, slots=True)
class Offered:
    """The offers of a search.

    Attributes:
        offers: Each VM type once, either on demand or spot; cheapest first, or in the order of the job file.
        decisions: Whether each is on demand or spot, and why, in the same order.
        notes: Messages for the user: the decisions, and what was left out.
        disk_gib: Size of each VM's boot disk.
        gpu_prices: Of those with GPUs, prices of the user's own aside.
    """

    offers: tuple[Offer, ...]
    decisions: tuple[SpotDecision, ...]
    notes: tuple[str, ...]
    disk_gib: int
    gpu_prices: tuple[GpuPrice, ...] = ()

    @property
    def risks(self) -> Mapping[str, SpotRisk]:
        """Interruption risks by VM type, for `CostTerms`."""
        return {one.vm: one.risk for one in self.decisions if one.risk is not None}


class CatalogCloud:
    """The VM types of a provider in a region, at the catalogue's prices.

    Args:
        spot: Whether workers may be spot VMs.
        catalog: The price catalogue; by default see `catalog_of`.
        environment: Environment variables, which may name the user's price file.
        settings: Of the job's VMs; None for those of the settings file.
        aggregator_vms: Number of aggregator VMs, which are paid for whatever the workers are.
        beside: Whether there are aggregators beside the workers, too.
        public: Whether VMs have a public address; where their subnet decides, they are taken to have one.
        processes: Of each worker, each of which has a GPU of its own where there are any.
        alike: Whether aggregators have VMs of the workers' type, as in a pool of hosts, whose types are counted.

    Raises:
        ConfigurationError: If the catalogue cannot be opened.
    """

    def __init__(
        self,
        provider: str,
        region: str,
        *,
        spot: SpotMode = "never",
        catalog: Catalog | PodCatalog | None = None,
        environment: Mapping[str, str] = os.environ,
        settings: CloudSettings | None = None,
        changes: ChangeCosts | None = None,
        aggregator_vms: int = 1,
        beside: bool = False,
        public: bool = True,
        processes: int = 1,
        alike: bool = False,
    ) -> None:
        self._provider, self._region, self._spot = provider, region, spot
        self._catalog: Catalog | PodCatalog = catalog or catalog_of(provider, region, environment, settings)
        self._changes = changes or ChangeCosts()
        self._aggregator_vms, self._beside, self._public, self._alike = aggregator_vms, beside, public, alike
        self._processes = processes

    def hardware(self) -> str:
        """What determines the speed of a VM type: its processors may differ by region.

        Several aggregator VMs, or aggregators beside the workers, are hardware of its own.
        """
        return hardware_of_vms(self._place, BESIDE_WORKERS if self._beside else self._aggregator_vms)

    @property
    def _place(self) -> str:
        return f"{self._provider}/{self._region}"

    def offers_for(
        self,
        resources: ResourcesSpec | None,
        *,
        workers: tuple[int, int],
        deadline_s: float | None = None,
        work_s: float | None = None,
        leader_usd_per_hour: float | None = 0.0,
    ) -> Offered:
        """Select the VM types that a job may use.

        Args:
            resources: Requirements of the job file; None selects the cheapest type with 4 vCPUs, or of any size where
                there is none with 4.
            workers: Minimum and maximum number of workers.
            deadline_s, work_s: See `decide_spot`.
            leader_usd_per_hour: Price of the leader's VM with its extras; None if one is to be rented for it.

        Raises:
            ConfigurationError: If a named type does not exist, its price on demand is unknown, or no type is suitable.
        """
        listings = self._matching(resources)
        if unfit := [one.machine for one in listings if one.machine.accelerators % self._processes]:
            raise ConfigurationError(
                f"elastic.processes: each of the {self._processes} processes of a worker has a GPU of its own, and "
                f"{unfit[0].name} has {unfit[0].accelerators}: write a number that divides that, or take other VMs",
                key="elastic.processes",
            )
        left_out = len(listings) - TYPES_MAX
        notes = []
        if resources is None:
            listings = listings[:1]
        elif left_out > 0:
            listings = sorted(listings, key=_on_demand)[:TYPES_MAX]
            names = ", ".join(listing.machine.name for listing in listings)
            notes.append(
                f"resources: {left_out + TYPES_MAX} VM types of {self._place} would do; the {TYPES_MAX} cheapest "
                f"are searched: {names}"
            )
        asked_gib = None if resources is None else resources.disk
        with_gpus = any(listing.machine.accelerators for listing in listings)
        disk_gib = asked_gib or (GPU_DISK_GIB if with_gpus else DISK_GIB)
        fixed = self._fixed_usd_per_hour(listings[0].machine.name, disk_gib, leader_usd_per_hour)
        decisions = [
            self._decide(listing, fixed, workers, disk_gib, deadline_s=deadline_s, work_s=work_s)
            for listing in listings
        ]
        pairs = list(zip(listings, decisions, strict=True))
        offers = [self._offer(listing.machine.name, spot=decision.spot) for listing, decision in pairs]
        if self._spot != "never":
            notes += [decision.reason for decision in decisions]
        searched = [listing.machine.name for listing in listings]
        if isinstance(self._catalog, Catalog) and (
            old := self._catalog.age_note(self._provider, self._region, searched)
        ):
            notes.append(old)
        return Offered(
            tuple(offers), tuple(decisions), tuple(notes), disk_gib, tuple(self._gpu_prices(offers))
        )

    def _gpu_prices(self, offers: Iterable[Offer]) -> Iterator[GpuPrice]:
        """Those of a cloud's list: what the settings or the price file say does not age."""
        if not isinstance(self._catalog, Catalog):
            return
        for offer in offers:
            listing = self._catalog.listing(self._provider, self._region, offer.vm)
            if not listing.machine.accelerators:
                continue
            spot = offer.spot and self._spot_price(offer.vm) is not None
            price = self._catalog.price(self._provider, self._region, offer.vm, spot=spot)
            if (age_days := self._catalog.age_of(price)) is not None:
                yield GpuPrice(offer.vm, price, age_days)

    def _fixed_usd_per_hour(self, vm: str, disk_gib: int, leader_usd_per_hour: float | None) -> float:
        """What is on demand whatever the workers are, with its extras: the aggregators, and the leader."""
        extras_usd = self.extras(disk_gib, spot=False).usd_per_hour
        aggregator_usd = self.on_demand_offer(vm).price_usd_per_hour + extras_usd
        if leader_usd_per_hour is None:
            leader_usd_per_hour = self.small_offer().price_usd_per_hour + extras_usd
        return self._aggregator_vms * aggregator_usd + leader_usd_per_hour

    def on_demand_offer(self, vm: str) -> Offer:
        """The on-demand offer for an aggregator VM when workers run on this VM type.

        It is the same type, unless that has accelerators or more than 8 vCPUs; then it is the cheapest type without
        accelerators that has 2 vCPUs and 4 GiB.

        Raises:
            ConfigurationError: If its price is unknown.
        """
        if self._alike:
            return self._offer(vm, spot=False)
        machine = self._catalog.listing(self._provider, self._region, vm).machine
        enough = machine.cpus >= AGGREGATOR_CPUS_MIN and machine.memory_gib >= AGGREGATOR_GIB_MIN
        if enough and not machine.accelerators and machine.cpus <= AGGREGATOR_CPUS_MAX:
            return self._offer(vm, spot=False)
        return self.small_offer()

    def small_offer(self) -> Offer:
        """The cheapest on-demand offer that has 2 vCPUs and 4 GiB, without accelerators if there is one.

        Raises:
            ConfigurationError: If no price is known.
        """
        wanted = VmRequirements(
            cpus=Amount(AGGREGATOR_CPUS_MIN, or_more=True), memory=Amount(AGGREGATOR_GIB_MIN, or_more=True)
        )
        offers = self._catalog.offers(self._provider, self._region, wanted)
        return next((offer for offer in offers if not self._machine(offer).accelerators), offers[0])

    def terms(self, offered: Offered, *, setup_s: float, ready: Mapping[str, int] | None = None) -> CostTerms:
        """Costs besides the workers: VMs for the aggregators, extras of VMs, setup and interruptions.

        Args:
            setup_s: Time from a VM's launch to its worker's first step.
            ready: Number of VMs of each type that have completed their setup.
        """
        disk = self._extras.disk
        return CostTerms(
            shared=SharedCosts(
                aggregators=self._aggregator_vms,
                usd_per_aggregator_hour=self.on_demand_offer(offered.offers[0].vm).price_usd_per_hour,
                disk_gib=offered.disk_gib,
                usd_per_gib_hour=None if disk is None else disk.usd_per_hour,
                usd_per_address_hour=self._address_usd_per_hour(spot=False),
                usd_per_spot_address_hour=self._address_usd_per_hour(spot=True),
            ),
            setup_s=setup_s,
            risks=offered.risks,
            ready=ready or {},
            sources=(
                *(
                    f"{one.vm} ${one.price_usd_per_hour:.6g} per hour ({one.price_source})"
                    for one in offered.offers
                ),
                *map(str, self.priced_extras(offered.disk_gib)),
            ),
            old_prices="; ".join(str(one) for one in offered.gpu_prices if one.age_days > OLD_DAYS),
        )

    def _matching(self, resources: ResourcesSpec | None) -> list[CatalogEntry]:
        """Suitable VM types with known prices, in the order of the job file if it names types, else cheapest first.

        With `spot: always`, these are types with a known spot price, or if no spot price is known, all types.
        """
        spot = self._spot == "always" and self._knows_spot_prices
        if resources is not None and resources.vms:
            for vm in resources.vms:
                self._catalog.price(self._provider, self._region, vm)
            return [self._catalog.listing(self._provider, self._region, vm) for vm in resources.vms]
        accelerators = None
        wanted = VmRequirements(cpus=Amount(DEFAULT_CPUS))
        if resources is not None:
            accelerators = resources.accelerators
            name = None if accelerators is None else accelerators.name
            wanted = VmRequirements(cpus=resources.cpus, memory=resources.memory, accelerator=name)
        elif not self._catalog_has(wanted):
            wanted = VmRequirements()
        count = 0 if accelerators is None else accelerators.count
        offers = self._catalog.offers(self._provider, self._region, wanted, spot=spot)
        found = [
            self._catalog.listing(self._provider, self._region, offer.vm)
            for offer in offers
            if self._machine(offer).accelerators == count
        ]
        if spot:
            found = [listing for listing in found if listing.on_demand is not None]
        if not found:
            each = f"{count} {accelerators.name}" if accelerators else "no accelerator"
            raise ConfigurationError(
                f"resources: {self._place} offers no VM type with {wanted} and {each} on each",
                key="resources",
            )
        return found

    def _catalog_has(self, wanted: VmRequirements) -> bool:
        """Whether a type of the region will do; a few machines that one has may be of any size."""
        return not isinstance(self._catalog, Catalog) or any(
            listing.on_demand is not None
            for listing in self._catalog.listings(self._provider, self._region, wanted)
        )

    def has_gpus(self, vm: str) -> bool:
        """Whether a VM type has GPUs."""
        return self._catalog.listing(self._provider, self._region, vm).machine.accelerators > 0

    def network_bytes_per_s(self, vm: str) -> float | None:
        """Highest bandwidth of a VM type's network; None if unknown."""
        gbits = self._catalog.listing(self._provider, self._region, vm).machine.network_gbits
        return None if gbits is None else gbits * 1e9 / 8.0

    def extras(self, disk_gib: float, *, spot: bool) -> VmExtras:
        """What a VM has beside its type, with a boot disk of this size."""
        disk = self._extras.disk
        return VmExtras(
            None if disk is None else disk_gib * disk.usd_per_hour, self._address_usd_per_hour(spot=spot)
        )

    def priced_extras(self, disk_gib: int) -> tuple[PricedExtra, ...]:
        """What a VM has beside its type and what it sends, each with its price and source; none of pods.

        What goes to another region or to the internet is not metered; its price is told where it is known.
        """
        if not isinstance(self._catalog, Catalog):
            return ()
        of, disk = self._extras, self.extras(disk_gib, spot=False).disk_usd_per_hour
        found = [PricedExtra(f"boot disk of {disk_gib} GiB", disk, "hour", str(of.disk or ""))]
        if self._public:
            kinds = {"public address": of.address, "public address of a spot VM": of.spot_address}
            if of.address == of.spot_address or self._spot == "never":
                del kinds["public address of a spot VM"]
            found += [
                PricedExtra(name, price.usd if price else None, "hour", str(price or ""))
                for name, price in kinds.items()
            ]
        zones = of.zones
        found.append(
            PricedExtra("traffic to another zone", zones.usd if zones else None, "GiB", str(zones or ""))
        )
        beyond = {"another region": of.regions, "the internet": of.internet}
        found += [
            PricedExtra(f"not counted: traffic to {where}", price.usd, "GiB", str(price))
            for where, price in beyond.items()
            if price is not None
        ]
        return tuple(found)

    def _address_usd_per_hour(self, *, spot: bool) -> float:
        price = self._extras.spot_address if spot else self._extras.address
        return price.usd_per_hour if price is not None and self._public else 0.0

    @property
    def _extras(self) -> Extras:
        return self._catalog.extras(self._provider, self._region)

    @property
    def traffic_price(self) -> TrafficPrice | None:
        """Price of traffic between zones of the region; None if it is not known."""
        return self._extras.zones

    @property
    def _knows_spot_prices(self) -> bool:
        age_days = self._catalog.age_days(self._provider, self._region, spot=True)
        return age_days is not None and age_days <= SPOT_DAYS_MAX

    def _machine(self, offer: Offer) -> MachineType:
        return self._catalog.listing(self._provider, self._region, offer.vm).machine

    def _decide(
        self,
        listing: CatalogEntry,
        fixed_usd_per_hour: float,
        workers: tuple[int, int],
        disk_gib: int,
        *,
        deadline_s: float | None,
        work_s: float | None,
    ) -> SpotDecision:
        vm = listing.machine.name
        return decide_spot(
            SpotTerms(
                vm=vm,
                on_demand_usd_per_hour=self.price_usd_per_hour(vm, spot=False),
                spot_usd_per_hour=self._spot_price(vm),
                interrupted_monthly=listing.interrupted_monthly,
                pause_s=self._changes.pause_s,
                replace_s=self._changes.replace_s,
                fixed_usd_per_hour=fixed_usd_per_hour,
                workers_per_vm=self._workers_on(listing.machine),
                extras=self.extras(disk_gib, spot=False),
                spot_extras=self.extras(disk_gib, spot=True),
            ),
            mode=self._spot,
            workers=workers,
            deadline_s=deadline_s,
            work_s=work_s,
        )

    def price_usd_per_hour(self, vm: str, *, spot: bool) -> float:
        """Price of one VM.

        Raises:
            ConfigurationError: If the price is unknown or too old.
        """
        return self._catalog.price(self._provider, self._region, vm, spot=spot).usd_per_hour

    def _spot_price(self, vm: str) -> float | None:
        """Spot price of a VM type; None if no fresh one is known."""
        if self._spot == "never":
            return None
        try:
            return self.price_usd_per_hour(vm, spot=True)
        except ConfigurationError:
            return None

    def _offer(self, vm: str, *, spot: bool) -> Offer:
        if spot and self._spot_price(vm) is None:
            highest = self._offer(vm, spot=False)
            source = f"price on demand, the most that a spot VM costs: {highest.price_source}"
            return replace(highest, spot=True, price_source=source)
        (offer,) = self._catalog.offers(self._provider, self._region, VmRequirements((vm,)), spot=spot)
        return replace(offer, workers_per_vm=self._workers_on(self._machine(offer)))

    def _workers_on(self, machine: MachineType) -> int:
        """Largest number of workers on one VM."""
        return max(1, machine.accelerators // self._processes)


def _on_demand(listing: CatalogEntry) -> float:
    return float("inf") if listing.on_demand is None else listing.on_demand.usd_per_hour
