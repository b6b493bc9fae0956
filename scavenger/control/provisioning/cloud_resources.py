"""Prepares a job's cloud resources: its offers and quotas, the address for its VMs, and the fleet."""

from __future__ import annotations

import ipaddress
import math
import os
import random
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from scavenger.cloud.base import Provider
from scavenger.cloud.boot.boot import PACKAGE_VARIABLE
from scavenger.cloud.boot.package import extras_of, own_package, own_wheel
from scavenger.cloud.catalog.traffic import traffic_price
from scavenger.cloud.kubernetes.prices import PodCatalog
from scavenger.cloud.quotas import after_vms
from scavenger.control.provisioning.admission import admitted
from scavenger.control.provisioning.bill import counted_usd
from scavenger.control.provisioning.fleet import Fleet, new_boot_key
from scavenger.control.provisioning.kept_vms import KeptVms
from scavenger.control.provisioning.leader_meter import leader_of, leader_zone
from scavenger.control.provisioning.model_size import largest_share
from scavenger.control.provisioning.offers import CatalogCloud, ChangeCosts
from scavenger.control.provisioning.providers import open_provider, open_verifier
from scavenger.control.provisioning.quota_room import Permitted
from scavenger.control.provisioning.ray_pods import group_of, on_group, sized_as
from scavenger.control.settings import settings_of, settings_path
from scavenger.control.training.trainer import Trainer
from scavenger.domain.capabilities import capabilities_of
from scavenger.domain.configuration import Offer, SearchSpace
from scavenger.domain.cost import CostTerms
from scavenger.domain.intent import FleetSpec, PlacementOption
from scavenger.domain.job import JobSpec
from scavenger.domain.vm import LaunchTemplate, VmPackage
from scavenger.domain.vm_settings import KubernetesSettings
from scavenger.errors import CloudUnavailableError, ConfigurationError, QuotaError, ThrottledError
from scavenger.models.aggregation import AggregatorVms, optimizer_copies
from scavenger.policy.leaders import LeaderPlan, choose_leader
from scavenger.policy.provisioning.config import Backoff
from scavenger.policy.provisioning.fleet_plan import FleetInputs
from scavenger.policy.provisioning.slots import evenly
from scavenger.policy.provisioning.zones import common_first
from scavenger.store import Store
from scavenger.store.records import JobRecord
from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.engines.vm.engine import HostEngine
from scavenger.train.transport.layout import Layout
from scavenger.train.transport.messages.values import Manifest
from scavenger.train.transport.sockets import is_own

if TYPE_CHECKING:
    from scavenger.cloud.kubernetes.provider import KubernetesProvider
    from scavenger.cloud.kubernetes.ray_groups import RayGroupProvider

ADDRESS_VARIABLE = "SCAVENGER_ADDRESS"
"""Environment variable with the address at which VMs reach this machine: `HOST` or `HOST:PORT`."""
IMAGE_VARIABLE = "SCAVENGER_IMAGE"
"""Environment variable with the cloud's name of the VM image, instead of its newest Ubuntu; it needs cloud-init."""
DISK_GIB = 20
"""Size of each VM's boot disk; an Ubuntu with TensorFlow takes 6 GiB."""
GPU_DISK_GIB = 100
"""The same for a job with GPUs: images with a driver are larger, and CUDA's libraries take 6 GiB."""
UNPROVEN_VARIABLE, GPU_VMS = "SCAVENGER_UNPROVEN", "gpu-vms"
"""Environment variable, and its value, by which a user agrees to rent VMs with GPUs before that was proven to work."""
RUN_MAX_S = 14 * 86_400.0
"""Limit of a VM's lifetime, enforced by the cloud as the last safeguard, if the job has no deadline."""
RUN_MARGIN_S = 3_600.0
_LEADER_IDENTITIES = {
    "aws": "an instance profile as aws.leader_profile in {path}, whose role may do what the policy aws.json allows",
    "gcp": "a service account as gcp.leader_service_account in {path}, which has the role of gcp.yaml",
    "kubernetes": "a service account as kubernetes.leader_service_account in {path}, such as scavenger-leader of "
    "deploy/kubernetes",
}
_METADATA = ("169.254.169.254", 80)
THROTTLED_S, UNANSWERED_S = 300.0, 60.0
"""How long a question to the cloud is repeated before the first VM is launched, if it is throttled or not answered."""
_ASK_AGAIN = Backoff(1.0, 20.0)

Answer = TypeVar("Answer")


def address_of(environment: Mapping[str, str]) -> tuple[str, int]:
    """The address at which VMs join, and the first of its two ports; 0 means any free ports.

    Raises:
        ConfigurationError: If no address is set, this machine cannot listen there, or the address belongs to another
            machine (a router that forwards ports to this one) and no port is given.
    """
    text = environment.get(ADDRESS_VARIABLE, "")
    if not text:
        raise ConfigurationError(
            f"VMs must reach this machine: set {ADDRESS_VARIABLE} to its address in their network{_guess()}, with "
            "`:PORT` where only some ports are open (that one and the next are listened at)"
        )
    host, _, port = text.rpartition(":") if ":" in text else (text, "", "0")
    try:
        address, first = str(ipaddress.IPv4Address(socket.gethostbyname(host))), int(port)
        own = is_own(address)
        if not (own or first):
            raise ValueError("it is not this machine's own: name the port that leads here, as HOST:PORT")
        for number in (first, first + 1) if first else (0,):
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind((address if own else "", number))
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigurationError(f"{ADDRESS_VARIABLE}={text}: VMs cannot join there: {error}") from None
    return address, first


def _guess() -> str:
    """Guess this machine's address from its route to other networks; nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect(_METADATA)
            return f" (perhaps {way.getsockname()[0]})"
    except OSError:
        return ""


class CloudResources:
    """The cloud resources of a job.

    Args:
        environment: Environment variables, which may set the address, prices and the image.
        aggregators: Whether the job rents VMs for aggregators. A loop and a command have none: their
            workers hold the weights.
        meets_at_leader: Whether workers exchange gradients with the process that leads the job, as those of a loop do.

    Attributes:
        settings: Settings of the job's VMs.
        cloud: The cloud's catalogue.
        offered: The offers of the search, with messages for the user.
        pause: Waits for a number of seconds before a question to the cloud is repeated.
        warn: Receives a warning when that happens.
        reached_at: Address at which VMs reach this machine, as `HOST` or `HOST:PORT`; empty if it is not set.

    Raises:
        ConfigurationError: If a VM type does not exist or a price is unknown, or the settings file is invalid.
    """

    def __init__(
        self,
        job: JobSpec,
        environment: Mapping[str, str] = os.environ,
        *,
        aggregators: bool = True,
        meets_at_leader: bool = False,
    ) -> None:
        self._job, self._environment = job, environment
        own = aggregators and job.aggregation != "shared"
        self._aggregator_vms = job.elastic.known_aggregator_vms if own else 0
        self._meets_at_leader = meets_at_leader
        self.pause: Callable[[float], None] = time.sleep
        self.warn: Callable[[str], None] = lambda message: None
        self.settings = settings_of(job.infra, environment)
        self.reached_at = environment.get(ADDRESS_VARIABLE, "")
        self._ray_group: RayGroupProvider | None = None
        if on_group(job):
            assert isinstance(self.settings, KubernetesSettings)
            self._ray_group = group_of(job, self.settings, environment)
            self._job = job = sized_as(job, self._ray_group)
            self._aggregator_vms = 0  # they are where the job is led
        self.cloud = CatalogCloud(
            job.infra.provider,
            job.infra.region,
            spot=job.spot,
            environment=environment,
            aggregator_vms=self._aggregator_vms,
            catalog=self._sizes_of_pods(),
        )
        workers = job.worker_counts
        self.offered = self.cloud.offers_for(
            job.resources, workers=(workers[0], workers[-1]), deadline_s=job.constraints.deadline
        )
        with_gpus = [offer for offer in self.offered.offers if self.cloud.has_gpus(offer.vm)]
        if with_gpus and environment.get(UNPROVEN_VARIABLE) != GPU_VMS:
            dear = max(with_gpus, key=lambda offer: offer.price_usd_per_hour)
            raise ConfigurationError(
                f"resources: {dear.vm} (${dear.price_usd_per_hour:.2f} an hour) has GPUs, and training on rented GPUs "
                f"was never tried for real; set {UNPROVEN_VARIABLE}={GPU_VMS} to be the first, or take a type without",
                key="resources",
            )
        asked_gib = None if job.resources is None else job.resources.disk
        self._disk_gib = asked_gib or (GPU_DISK_GIB if with_gpus else DISK_GIB)

    def _sizes_of_pods(self) -> PodCatalog | None:
        """What stands for the catalogue of VM types where VMs are pods; None elsewhere."""
        settings = self.settings
        if not isinstance(settings, KubernetesSettings):
            return None
        if self._job.spot != "never" and not settings.spot_labels:
            raise ConfigurationError(
                f"spot: {self._job.spot} needs the labels of the nodes that the cloud may take back: set spot_labels "
                f"under [kubernetes] in {settings_path(self._environment)}, or write never",
                key="spot",
            )
        return PodCatalog(
            settings,
            self._job.infra.region,
            today=datetime.now(UTC).date(),
            nodes=lambda spot: cast("KubernetesProvider | RayGroupProvider", self.provider).nodes(spot=spot),
        )

    @property
    def rents_aggregators(self) -> bool:
        """Whether the job rents VMs for aggregators."""
        return self._aggregator_vms > 0

    @property
    def aggregators(self) -> Offer:
        """The offer for an aggregator VM."""
        return self.cloud.on_demand_offer(self.offered.offers[0].vm)

    @cached_property
    def leader(self) -> LeaderPlan | None:
        """The VM that will lead the job; None if it is led where the command runs.

        Raises:
            ConfigurationError: If no price is known.
        """
        if self._ray_group is not None:
            return None
        choice = choose_leader(
            self._job.leader,
            self._job.infra.provider,
            address=self._environment.get(ADDRESS_VARIABLE, ""),
            address_variable=ADDRESS_VARIABLE,
        )
        if choice.at == "here":
            return None
        return LeaderPlan(choice.reason, self.cloud.small_offer(), self.disk_usd_per_hour)

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
                f"{_LEADER_IDENTITIES[self._job.infra.provider].format(path=settings_path(self._environment))}; or set "
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
        offer, identity = self.leader.offer, self.leader_identity
        settings = replace(self.settings.launch_settings(), identity=identity)
        zones = _zones(self._job, self._answer(partial(self.provider.zones, offer.vm, settings)), offer.vm)
        limits, deadline_s = self._job.limits, self._job.constraints.deadline
        template = LaunchTemplate(
            run_max_s=RUN_MAX_S if deadline_s is None else deadline_s + RUN_MARGIN_S + limits.leader,
            image=self._environment.get(IMAGE_VARIABLE, ""),
            disk_gib=self._disk_gib,
            labels=self.settings.vm_tags(),
            settings=settings,
        )
        price = offer.price_usd_per_hour
        return tuple(PlacementOption(offer.vm, zone, False, price) for zone in zones), template

    def aggregator_vms(self, manifest: Manifest) -> AggregatorVms:
        """The aggregator VMs with a model; the one with most of it is taken to have the largest shares."""
        elastic, offer = self._job.elastic, self.aggregators
        layout, vms = Layout.of(manifest, elastic.aggregators), self._aggregator_vms
        return AggregatorVms(
            vms=vms,
            vm=offer.vm,
            vm_bytes=offer.memory_bytes,
            weights_bytes=layout.weights_bytes,
            copies=optimizer_copies(manifest.optimizer),
            largest_share=largest_share(layout, vms),
            vm_bytes_per_s=self.cloud.network_bytes_per_s(offer.vm),
            usd_per_hour=offer.price_usd_per_hour + self.disk_usd_per_hour,
        )

    @property
    def space(self) -> SearchSpace:
        """The search space of the job, before the size of its data is known."""
        return SearchSpace(self.offered.offers, self._job.worker_counts, self._job.batch_sizes)

    @property
    def _leader_usd_per_hour(self) -> float:
        """Price of the VM on which this process leads the job; 0 if it does so elsewhere."""
        leader = leader_of(self._environment)
        return 0.0 if leader is None else leader.usd_per_hour

    @property
    def disk_usd_per_hour(self) -> float:
        """Price of a VM's boot disk; 0 if unknown."""
        return self.cloud.disk_usd_per_hour(self._disk_gib)

    @cached_property
    def provider(self) -> Provider:
        """The cloud provider; opened on first use.

        Raises:
            ConfigurationError, CloudError: If the provider cannot be opened.
        """
        if self._ray_group is not None:
            return self._ray_group
        infra = self._job.infra
        return open_provider(infra.provider, infra.region, self._environment, self.settings)

    def _answer(self, ask: Callable[[], Answer], *, patient: bool = True) -> Answer:
        """Ask the cloud, and again, if patient, while it throttles the call or does not answer.

        Raises:
            CloudError: Any other, or one of these for too long.
        """
        waited_s, times, rng = 0.0, 0, random.Random()  # noqa: S311 - jitter
        while True:
            try:
                return ask()
            except (ThrottledError, CloudUnavailableError) as error:
                limit_s = THROTTLED_S if isinstance(error, ThrottledError) else UNANSWERED_S
                if waited_s >= limit_s or not patient:
                    raise
                if not times:
                    self.warn(f"{error}; tried again for up to {limit_s / 60:g} min")
                times += 1
                pause_s = min(_ASK_AGAIN.wait_s(times, rng), limit_s - waited_s)
                self.pause(pause_s)
                waited_s += pause_s

    def within_quotas(self) -> tuple[SearchSpace, tuple[str, ...]]:
        """Remove configurations that exceed the account's quotas; returns the new space and a note per limiting quota.

        Raises:
            QuotaError: If no configuration is left.
            CloudError: If the cloud does not report its quotas.
        """
        permitted, refused = self.permitted()
        room = permitted.room(self._aggregator_vms)
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
        quotas = self._answer(self.provider.quotas, patient=not ahead)
        if ahead and self.leader is not None:
            offer = self.leader.offer
            quotas = after_vms(self.provider.name, quotas, offer.vm, offer.cpus, vms=1)
        return Permitted(self.provider.name, space, quotas, self.aggregators, self._job.spot), refused

    def _admitted(self, *, patient: bool) -> tuple[SearchSpace, tuple[str, ...]]:
        """Remove sizes of pods that the cluster takes under no circumstances; returns a note for each.

        Raises:
            ConfigurationError: If none is left, or it does not take the aggregators'.
            CloudError: If the cloud does not answer.
        """
        space = self.space
        machines = capabilities_of(self.provider.name)
        if machines.in_image or not machines.pods:
            return space, ()
        cluster = cast("KubernetesProvider", self.provider)
        offers, notes = admitted(
            space.offers,
            self.aggregators.vm if self._aggregator_vms else "",
            lambda vm, spot: self._answer(lambda: cluster.refusal(vm, spot=spot), patient=patient),
            spot=self._job.spot,
        )
        return replace(space, offers=offers), notes

    def planned_terms(self, aggregator_vms: int) -> CostTerms:
        """Costs besides the workers with so many aggregator VMs, before anything is rented."""
        terms = self.cloud.terms(self.offered, disk_gib=self._disk_gib, setup_s=ChangeCosts().replace_s)
        shared = replace(
            terms.shared, aggregators=aggregator_vms, usd_per_leader_hour=self._leader_usd_per_hour
        )
        return replace(terms, shared=shared)

    def terms(self, trainer: Trainer) -> CostTerms:
        """Costs besides the workers, as far as known."""
        setup_s = trainer.setup_s or ChangeCosts().replace_s
        ready = {
            offer.vm: -(-trainer.ready_on(offer.vm) // offer.workers_per_vm) for offer in self.offered.offers
        }
        terms = self.cloud.terms(self.offered, disk_gib=self._disk_gib, setup_s=setup_s, ready=ready)
        return replace(terms, shared=replace(terms.shared, usd_per_leader_hour=self._leader_usd_per_hour))

    def fleet(
        self,
        store: Store,
        record: JobRecord,
        *,
        folder: Path,
        outputs: Path,
        note: Callable[[str], None],
        inform: Callable[[str], None],
        clock: Callable[[], float],
        make_engine: Callable[..., HostEngine] = HostEngine,
        kept: KeptVms | None = None,
    ) -> Fleet:
        """Create the fleet of the job's VMs; no VM is launched yet.

        Args:
            folder: Folder of the training module, which is copied to the VMs.
            outputs: Folder of the jobs' outputs, which is not copied.
            note, inform: Show warnings and progress to the user.
            make_engine, kept: See `Fleet`.

        Raises:
            ConfigurationError: If a VM type is not available in the zone, or no address for VMs is set.
            CloudError: If the cloud does not answer or there are no credentials.
        """
        job, offers = self._job, self.offered.offers
        provider = self.provider
        aggregator_offer = self.aggregators
        settings = self.settings.launch_settings()
        zones = common_first(
            {
                vm: _zones(job, self._answer(partial(provider.zones, vm, settings)), vm)
                for vm in {aggregator_offer.vm, *(offer.vm for offer in offers)}
            }
        )
        deadline_s = job.constraints.deadline
        inputs = FleetInputs(
            spec=FleetSpec(
                job_id=record.id,
                provider=provider.name,
                region=provider.region,
                slots=(),
                options=(),
                # in the worst case, all VMs are replaced at once or moved to another VM type
                vms_max=2 * (max(job.worker_counts[-1], job.elastic_range[1]) + self._aggregator_vms),
                budget_usd=math.inf if job.constraints.budget is None else job.constraints.budget,
                template=LaunchTemplate(
                    run_max_s=RUN_MAX_S if deadline_s is None else deadline_s + RUN_MARGIN_S,
                    image=self._environment.get(IMAGE_VARIABLE, ""),
                    disk_gib=self._disk_gib,
                    labels=self.settings.vm_tags(),
                    settings=self.settings.launch_settings(),
                ),
                attempt=record.attempts,
                disk_usd_per_hour=self.disk_usd_per_hour,
            ),
            package=self.package(folder),
            options={offer.vm: self._options(offer, zones[offer.vm]) for offer in offers},
            aggregators=tuple(
                PlacementOption(aggregator_offer.vm, zone, False, aggregator_offer.price_usd_per_hour)
                for zone in zones[aggregator_offer.vm]
            ),
            offers=offers,
            threads={offer.vm: offer.cpus for offer in (aggregator_offer, *offers)},
            aggregators_on=evenly(job.elastic.aggregators, self._aggregator_vms)
            if self._aggregator_vms
            else (),
            wait_max_s=job.limits.vms,
            before_usd=counted_usd(store.intents(record.id), self.disk_usd_per_hour),
            traffic_price=traffic_price(provider.name),
            leader_usd_per_hour=self._leader_usd_per_hour,
            met_in=leader_zone(self._environment) if self._meets_at_leader else "",
        )
        host, port = address_of({**self._environment, ADDRESS_VARIABLE: self.reached_at})
        verifier = open_verifier(job.infra, self.settings, self._environment)
        hosts = AgentServer(
            host,
            folder,
            port=port,
            boot_key=new_boot_key(),
            leave_out=(outputs,),
            package=own_wheel().data if inputs.package.wheel else b"",
            verified=verifier is not None,
            clock=clock,
        )
        hosts.start()
        return Fleet(
            store,
            provider,
            hosts,
            inputs,
            note=note,
            inform=inform,
            verifier=verifier,
            make_engine=make_engine,
            kept=kept,
            clock=clock,
        )

    def package(self, folder: Path) -> VmPackage:
        """What VMs install: what the user has named, or else this process's own code with what the job needs there."""
        if self._ray_group is not None:
            return VmPackage(requirement="what the image of the Ray cluster has")
        if requirement := self._environment.get(PACKAGE_VARIABLE):
            return VmPackage(requirement=requirement)
        checkpoint = self._job.checkpoint
        return own_package(extras_of(folder, checkpoint.path if checkpoint else ""))

    def _options(self, offer: Offer, zones: tuple[str, ...]) -> tuple[PlacementOption, ...]:
        """Placement options in the order to try: with `spot: auto`, on-demand options follow the spot options."""
        options = [PlacementOption(offer.vm, zone, offer.spot, offer.price_usd_per_hour) for zone in zones]
        if offer.spot and self._job.spot == "auto":
            price = self.cloud.price_usd_per_hour(offer.vm, spot=False)
            options += [PlacementOption(offer.vm, zone, False, price) for zone in zones]
        return tuple(options)


def _zones(job: JobSpec, zones: tuple[str, ...], vm: str) -> tuple[str, ...]:
    if not job.infra.zone:
        return zones
    if job.infra.zone not in zones:
        raise ConfigurationError(
            f"infra: {vm} is not available in {job.infra.zone}; it is available in {', '.join(zones)}"
        )
    return (job.infra.zone,)
