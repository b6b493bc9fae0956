"""A cloud's VMs as a place: offers, quotas and the leader's VM of a job, and the fleet that is rented for it."""

from __future__ import annotations

import ipaddress
import math
import os
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, Self

from scavenger.cloud.base import Provider
from scavenger.cloud.boot.package import extras_of, own_wheel
from scavenger.cloud.kubernetes.prices import PodCatalog
from scavenger.cloud.quotas import after_vms
from scavenger.control.job_file.load import override_job
from scavenger.control.places.aggregator_vms import choose_aggregator_vms
from scavenger.control.places.launching import (
    ADDRESS_VARIABLE,
    GPU_VMS,
    RUN_MAX_S,
    UNPROVEN_VARIABLE,
    Questions,
    address_of,
    launch_template,
    package_of,
    zones_of,
)
from scavenger.control.places.needs import Kind
from scavenger.control.places.offers import CatalogCloud
from scavenger.control.places.place import JobContext, Place
from scavenger.control.places.pool import lodged_on_vms
from scavenger.control.places.room import Permitted
from scavenger.control.places.vm_allocation import RentalCosts, VmAllocation
from scavenger.control.provisioning.bill import counted_usd
from scavenger.control.provisioning.fleet import Fleet, new_boot_key
from scavenger.control.provisioning.fleet_keeping import Keeper
from scavenger.control.provisioning.leader_meter import leader_of, leader_zone
from scavenger.control.provisioning.providers import open_provider, open_verifier
from scavenger.control.settings import settings_of, settings_path
from scavenger.domain.configuration import Offer, SearchSpace
from scavenger.domain.fingerprint import AGGREGATORS_MAX, BESIDE_WORKERS
from scavenger.domain.intent import FleetSpec, PlacementOption
from scavenger.domain.job import JobSpec, ResourcesSpec
from scavenger.domain.vm import LaunchTemplate, VmPackage
from scavenger.errors import ConfigurationError, NotSupportedError, QuotaError
from scavenger.models.aggregation import ROUNDED
from scavenger.policy.leaders import LeaderChoice, LeaderPlan, choose_leader
from scavenger.policy.provisioning.fleet_plan import FleetInputs
from scavenger.policy.provisioning.slots import AGGREGATORS, evenly
from scavenger.policy.provisioning.zones import common_first
from scavenger.store import Store
from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.engines.vm.beside import AggregatorsBesideWorkers
from scavenger.train.engines.vm.engine import HostEngine, HostSource

HOSTS_WAIT_S = 30.0
"""Longest wait for a host that a pool has counted as free: it was lost, or something else has taken it."""
RUN_MARGIN_S = 3_600.0
DAY_S = 86_400.0
ACCEPTED_DAYS = 30
"""For so long a job whose old prices were accepted can be resumed without another question."""
_NOTES = {
    Kind.LOOP: "no VM is rented for aggregators: a loop's workers exchange their gradients with the process that leads "
    "the job, by its machine's network",
    Kind.COMMAND: "no VM is rented for aggregators: the processes of a command exchange gradients among themselves, "
    "and what that traffic costs between zones is not counted",
}


class RentedVms(Place):
    """A cloud, where workers run on rented VMs; see `Place`.

    Args:
        environment: Environment variables, which may set the address, prices and the image.
        kind: The kind of the job: only those with aggregators rent VMs for them.
        notes: Messages for the user in addition to those of the offers.
        kept: See `prepare_job`.

    Attributes:
        offered: The offers of the search, with messages for the user.
        costs: What the job pays for besides its workers' time.
        reached_at: Address at which VMs reach this machine, as `HOST` or `HOST:PORT`; empty if it is not set.

    Raises:
        ConfigurationError: If a VM type does not exist or a price is unknown, or the settings file is invalid.
        NotSupportedError: If a leader on a VM of its own could not reach the pool that the job shares.
    """

    rents = True
    rents_aggregators = True

    def __init__(
        self,
        job: JobSpec,
        environment: Mapping[str, str] = os.environ,
        *,
        kind: Kind = Kind.KERAS,
        notes: tuple[str, ...] = (),
        kept: Keeper | None = None,
    ) -> None:
        self.job, self.environment, self.kind, self.kept, self._told = job, environment, kind, kept, notes
        self.questions = Questions()
        self.settings = settings_of(job.infra, environment)
        self._check_capabilities()
        self.reached_at = environment.get(ADDRESS_VARIABLE, "")
        own = self.rents_aggregators and kind.has_aggregators and job.aggregation != "shared"
        vms = job.elastic.known_aggregator_vms if own else 0
        self.cloud = CatalogCloud(
            job.infra.provider,
            job.infra.region,
            spot=job.spot,
            environment=environment,
            aggregator_vms=vms,
            beside=bool(vms) and job.elastic.beside_workers,
            catalog=self._catalog(),
            settings=self.settings,
            public=self.settings.public_address is not False,
            processes=job.elastic.processes,
            alike=self._of_hosts,
        )
        workers, led_by, led_at = job.worker_counts, leader_of(environment), self._leader_choice
        led_usd = 0.0 if led_by is None else led_by.usd_per_hour
        self.offered = self.cloud.offers_for(
            self._resources(),
            workers=(workers[0], workers[-1]),
            deadline_s=job.constraints.deadline,
            leader_usd_per_hour=None if led_at.at == "vm" else led_usd,
        )
        offers = self.offered.offers
        with_gpus = [offer for offer in offers if self.cloud.has_gpus(offer.vm)]
        if with_gpus and environment.get(UNPROVEN_VARIABLE) != GPU_VMS:
            dear = max(with_gpus, key=lambda offer: offer.price_usd_per_hour)
            raise ConfigurationError(
                f"resources: {dear.vm} (${dear.price_usd_per_hour:.2f} an hour) has GPUs, and training on rented GPUs "
                f"was never tried for real; set {UNPROVEN_VARIABLE}={GPU_VMS} to be the first, or take a type without",
                key="resources",
            )
        self.costs = RentalCosts(
            self.cloud,
            self.offered,
            aggregator=self.cloud.on_demand_offer(offers[0].vm),
            aggregators=job.elastic.aggregators,
            aggregator_vms=vms,
            leader_usd_per_hour=led_usd,
            beside=bool(vms) and job.elastic.beside_workers,
            pushed=ROUNDED if job.elastic.gradients == "bfloat16" else 1.0,
        )
        self.extras = self.cloud.priced_extras(self.offered.disk_gib)
        if led_by is None:  # elsewhere it was asked about or refused before the leader was rented
            old = [one for one in self.offered.gpu_prices if one.age_days * DAY_S > job.limits.price_age]
            self.old_prices = "; ".join(map(str, old))
        self.space = SearchSpace(offers, workers, job.batch_sizes)
        self.hardware = self.cloud.hardware()
        self.aggregators = self.costs.aggregator if vms else None
        self.notes = (*notes, *([_NOTES[kind]] if kind in _NOTES else []), *self.offered.notes)
        self.leader = self._leader()
        if job.aggregation == "shared" and self.leader is not None:
            raise NotSupportedError(
                f"aggregation: shared: {self.leader.reason}, and a leader elsewhere cannot reach the pool of "
                f"aggregators, whose manager is on this machine; set {ADDRESS_VARIABLE}, or write own",
                key="aggregation",
            )

    @property
    def _of_hosts(self) -> bool:
        """Whether the job has hosts of a pool, whose server counts those that are free."""
        return self.kept is not None and bool(self.kept.pool[0]) and self.job.infra.capabilities.owned

    def _check_capabilities(self) -> None:
        """Check that the provider has what the job's file asks for.

        Raises:
            NotSupportedError: It has not.
        """
        job, machines = self.job, self.job.infra.capabilities
        if job.leader == "vm" and not machines.leads:
            raise NotSupportedError(
                f"leader: vm: machines of {job.infra} lead no jobs; write here", key="leader"
            )
        if job.spot != "never" and not machines.spot:
            raise NotSupportedError(f"spot: {job.spot}: {job.infra} has no spot VMs; write never", key="spot")
        if machines.owned and job.resources is not None and job.resources.disk is not None:
            raise NotSupportedError(
                f"resources.disk: the disks of hosts of {job.infra} are what they are; leave it out",
                key="resources",
            )

    def _catalog(self) -> PodCatalog | None:
        """What stands for the catalogue of VM types where VMs are pods."""
        return None

    def _resources(self) -> ResourcesSpec | None:
        """What the job asks of a VM."""
        return self.job.resources

    @cached_property
    def provider(self) -> Provider:
        """The cloud provider; opened on first use.

        Raises:
            ConfigurationError, CloudError: If the provider cannot be opened.
        """
        return open_provider(self.job.infra.provider, self.job.infra.region, self.environment, self.settings)

    def settled(self, store: Store) -> Self:
        job, given = self.job, self.job.elastic.aggregator_vms
        if self.aggregators is None or isinstance(given, int):
            return self
        beside = self._aggregators_beside
        if given == "workers":
            if job.elastic.aggregators >= beside:
                return self
            return self._with_aggregators("workers", beside)
        chosen = choose_aggregator_vms(
            job, self.space, self.costs, lambda: self.permitted(ahead=True)[0], store, beside=beside
        )
        again = (
            self._with_aggregators("workers", beside)
            if chosen.vms == BESIDE_WORKERS
            else self._with_aggregators(chosen.vms, chosen.vms)
        )
        again.notes += (chosen.reason,)
        return again

    @property
    def _aggregators_beside(self) -> int:
        """How many aggregators a job has if they are beside the workers: one for each VM, and the first."""
        workers = max(self.job.worker_counts[-1], self.job.elastic_range[1])
        vms = -(-workers // min(offer.workers_per_vm for offer in self.space.offers))
        return min(AGGREGATORS_MAX, vms + 1)

    def _with_aggregators(self, vms: int | Literal["workers"], least: int) -> Self:
        """This place with a number of aggregator VMs, and so many aggregators or more."""
        changes = {
            "elastic.aggregator_vms": vms,
            "elastic.aggregators": max(self.job.elastic.aggregators, least),
        }
        job = override_job(self.job, changes)
        return type(self)(job, self.environment, kind=self.kind, notes=self._told, kept=self.kept)

    # ---- the leader ---------------------------------------------------------------------------------------------

    @property
    def _leader_choice(self) -> LeaderChoice:
        return choose_leader(
            self.job.leader,
            self.job.infra.provider,
            address=self.environment.get(ADDRESS_VARIABLE, ""),
            address_variable=ADDRESS_VARIABLE,
        )

    def _leader(self) -> LeaderPlan | None:
        """The VM that will lead the job.

        Raises:
            ConfigurationError: If no price is known.
        """
        choice = self._leader_choice
        if choice.at == "here":
            return None
        return LeaderPlan(choice.reason, self.cloud.small_offer(), self.costs.extras())

    @property
    def leader_identity(self) -> str:
        """The identity of the leader's VM, by the cloud's own name.

        Raises:
            ConfigurationError: If the settings name none.
        """
        identity = self.settings.leader_identity
        if not identity:
            raise ConfigurationError(
                "leader: vm needs an identity by which it rents the job's VMs: name "
                f"{self.settings.leader_needs.format(path=settings_path(self.environment))}; or set "
                f"{ADDRESS_VARIABLE} to an address at which VMs reach this machine",
                key="leader",
            )
        return identity

    @property
    def leader_placement(self) -> tuple[tuple[PlacementOption, ...], LaunchTemplate]:
        """Where the leader's VM can be, in the order to try, and how it is launched; without user data.

        Raises:
            ConfigurationError: If its type is not available, or the settings give it no identity.
            CloudError: If the cloud does not answer.
        """
        assert self.leader is not None
        offer = self.leader.offer
        template = self._template(self.job.limits.leader)
        template = replace(template, settings=replace(template.settings, identity=self.leader_identity))
        return self._options(offer, self._zones(offer.vm, template)), template

    def _template(self, longer_s: float = 0.0) -> LaunchTemplate:
        """How VMs are launched, without user data; `longer_s` is added to their longest run time."""
        deadline_s = self.job.constraints.deadline
        run_max_s = RUN_MAX_S if deadline_s is None else deadline_s + RUN_MARGIN_S + longer_s
        return launch_template(
            self.settings, self.environment, run_max_s=run_max_s, disk_gib=self.offered.disk_gib
        )

    def _zones(self, vm: str, template: LaunchTemplate) -> tuple[str, ...]:
        found = self.questions.ask(partial(self.provider.zones, vm, template.settings))
        return zones_of(self.job.infra, found, vm)

    def _options(self, offer: Offer, zones: tuple[str, ...]) -> tuple[PlacementOption, ...]:
        """Placement options in the order to try: with `spot: auto`, on-demand options follow the spot options."""
        prices = {offer.spot: offer.price_usd_per_hour}
        if offer.spot and self.job.spot == "auto":
            prices[False] = self.cloud.price_usd_per_hour(offer.vm, spot=False)
        return tuple(
            PlacementOption(offer.vm, zone, spot, price, self.costs.extras(spot=spot))
            for spot, price in prices.items()
            for zone in zones
        )

    # ---- before anything is rented ------------------------------------------------------------------------------

    def check(self) -> None:
        """See `Place.check`: VMs need an address at which they reach this machine."""
        self.check_leader()
        self.check_prices()
        address, _ = address_of(os.environ)
        if self.kind.meets_at_leader and ipaddress.ip_address(address).is_global:
            raise NotSupportedError(
                f"workers of a LoopJob send every gradient to the process that leads the job, and {address} is outside "
                f"the cloud's network, so that each would be paid for as traffic; write leader: vm, or start the "
                f"command on a machine in that network and set {ADDRESS_VARIABLE} to its private address",
                key="leader",
            )

    def vm_usd_per_hour(self, offer: Offer) -> float:
        """See `Place.vm_usd_per_hour`."""
        return offer.price_usd_per_hour + self.costs.extras(spot=offer.spot).usd_per_hour

    def check_prices(self) -> None:
        """See `Place.check_prices`."""
        if self.old_prices:
            provider = self.job.infra.provider
            raise ConfigurationError(
                f"limits.price_age: {self.old_prices}, and may be wrong by much; run `scavenger catalog refresh "
                f"--provider {provider}`, write what you pay into prices.yaml (docs/costs.md), or, to take it as it "
                f"is, limits: {{price_age: {self._price_days}d}} into the job file",
                key="limits.price_age",
            )

    @property
    def _price_days(self) -> int:
        """Age of which today's prices are accepted, so that the job can be resumed for a while."""
        return max((one.age_days for one in self.offered.gpu_prices), default=0) + ACCEPTED_DAYS

    def with_old_prices(self) -> Self:
        """See `Place.with_old_prices`."""
        if not self.old_prices:
            return self
        accepted = copy(self)
        accepted.job = override_job(self.job, {"limits.price_age": f"{self._price_days}d"})
        accepted.old_prices = ""
        return accepted

    def check_leader(self) -> None:
        """Check that the job is led here.

        Raises:
            ConfigurationError: If its file says otherwise.
        """
        if self.job.leader == "vm":
            raise ConfigurationError(
                "leader: vm is for `scavenger optimize`; what runs here needs leader: here", key="leader"
            )

    def within_quotas(self) -> tuple[SearchSpace, tuple[str, ...]]:
        """Remove configurations that exceed the account's quotas; returns the new space and a note per limiting quota.

        Raises:
            QuotaError: If no configuration is left.
            CloudError: If the cloud does not report its quotas.
        """
        if self._of_hosts:  # those that wait for it are in use, by its pool
            return self._admitted(patient=True)
        permitted, refused = self.permitted()
        room = permitted.room(self.costs.aggregator_vms)
        if room.space is None:
            assert room.quota is not None
            raise QuotaError(room.notes[0], quota=room.quota.name, region=room.quota.region)
        return room.space, (*refused, *room.notes)

    def permitted(self, *, ahead: bool = False) -> tuple[Permitted, tuple[str, ...]]:
        """Ask the cloud what the job may rent; returns that, and a note for each size that it refuses altogether.

        Args:
            ahead: Whether this is for a preview: the cloud is asked once, and the leader's VM is not running yet.

        Raises:
            ConfigurationError: It refuses all sizes, or that of the aggregators.
            CloudError: It does not answer.
        """
        space, refused = self._admitted(patient=not ahead)
        quotas = self.questions.ask(self.provider.quotas, patient=not ahead)
        if ahead and self.leader is not None:
            offer = self.leader.offer
            quotas = after_vms(self.provider.name, quotas, offer.vm, offer.cpus, vms=1)
        return Permitted(self.provider.name, space, quotas, self.costs.aggregator, self.job.spot), refused

    def _admitted(self, *, patient: bool) -> tuple[SearchSpace, tuple[str, ...]]:
        """Remove sizes that the cloud takes under no circumstances; returns a note for each.

        Raises:
            ConfigurationError: If none is left, or it does not take the aggregators'.
            CloudError: If the cloud does not answer.
        """
        return self.space, ()

    # ---- what is rented -----------------------------------------------------------------------------------------

    def allocate(self, context: JobContext) -> VmAllocation:
        """See `Place.allocate`.

        Raises:
            ConfigurationError: If a VM type is not available in the zone, or no address for VMs is set.
            CloudError: If the cloud does not answer or there are no credentials.
        """
        self.questions.pause, self.questions.warn = context.pause, context.warn
        lodgings = lodged_on_vms(self.job, context.record) if self.job.aggregation == "shared" else None
        source = lodgings or self._host_source(context)
        space, left_out = self.within_quotas()
        for message in (*self.notes, *left_out):
            context.inform(message)
        fleet = self._fleet(context, source)
        return VmAllocation(self.job, self.kind, space, fleet, self.costs, context, lodgings)

    def _host_source(self, context: JobContext) -> HostSource | None:
        """What has agents started on other hosts than the fleet's VMs, or places processes otherwise; None: neither."""
        return AggregatorsBesideWorkers() if self.costs.beside else None

    def _fleet(self, context: JobContext, source: HostSource | None) -> Fleet:
        """Create the fleet of the job's VMs; no VM is launched yet."""
        inputs = self._fleet_inputs(context)
        host, port = address_of({**self.environment, ADDRESS_VARIABLE: self.reached_at})
        verifier = open_verifier(self.job.infra, self.settings, self.environment)
        hosts = AgentServer(
            host,
            context.folder,
            port=port,
            boot_key=new_boot_key(),
            leave_out=(context.outputs,),
            package=own_wheel().data if inputs.package.wheel else b"",
            verified=verifier is not None,
            clock=context.clock,
        )
        hosts.start()
        return Fleet(
            context.store,
            self.provider,
            hosts,
            inputs,
            note=context.warn,
            inform=context.inform,
            verifier=verifier,
            make_engine=partial(HostEngine, source=source),
            kept=self.kept,
            clock=context.clock,
        )

    def _fleet_inputs(self, context: JobContext) -> FleetInputs:
        job, record, provider, offers = self.job, context.record, self.provider, self.offered.offers
        costs, aggregator, template = self.costs, self.costs.aggregator, self._template()
        zones = common_first(
            {vm: self._zones(vm, template) for vm in {aggregator.vm, *(o.vm for o in offers)}}
        )
        budget_usd = job.constraints.budget
        pool, pool_vms_max = ("", 0) if self.kept is None else self.kept.pool
        return FleetInputs(
            spec=FleetSpec(
                job_id=record.id,
                provider=provider.name,
                region=provider.region,
                slots=(),
                options=(),
                # in the worst case, all VMs are replaced at once or moved to another VM type
                vms_max=2 * (max(job.worker_counts[-1], job.elastic_range[1]) + costs.aggregator_vms),
                budget_usd=math.inf if budget_usd is None else budget_usd,
                template=template,
                attempt=record.attempts,
                pool=pool,
                pool_vms_max=pool_vms_max,
            ),
            package=self.package(context.folder),
            options={
                AGGREGATORS: self._options(aggregator, zones[aggregator.vm]),
                **{offer.vm: self._options(offer, zones[offer.vm]) for offer in offers},
            },
            offers=offers,
            threads={offer.vm: offer.cpus for offer in (aggregator, *offers)},
            aggregators_on=evenly(costs.aggregators, costs.aggregator_vms) if costs.aggregator_vms else (),
            wait_max_s=min(job.limits.vms, HOSTS_WAIT_S) if self._of_hosts else job.limits.vms,
            before_usd=counted_usd(context.store.intents(record.id)),
            traffic_price=self.cloud.traffic_price,
            leader_usd_per_hour=costs.leader_usd_per_hour,
            met_in=leader_zone(self.environment) if self.kind.meets_at_leader else "",
        )

    def package(self, folder: Path) -> VmPackage:
        """What VMs install; `folder` is that of the training module."""
        checkpoint = self.job.checkpoint
        of_keras = self.kind is Kind.KERAS
        extras = extras_of(folder, checkpoint.path if checkpoint else "", of_keras=of_keras)
        return package_of(self.environment, extras)
