"""Opens what a job needs to run on a cloud's VMs: where they join, where they may be, and the fleet."""

from __future__ import annotations

import ipaddress
import math
import os
import socket
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from scavenger.cloud.base import Provider
from scavenger.cloud.boot.boot import package_of
from scavenger.cloud.quotas import vms_left
from scavenger.control.provisioning.fleet import Fleet, new_boot_key
from scavenger.control.provisioning.offers import CatalogCloud, ChangeCosts
from scavenger.control.provisioning.providers import open_provider
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Offer, SearchSpace
from scavenger.domain.cost import CostTerms
from scavenger.domain.intent import Desired, Place
from scavenger.domain.job import JobSpec
from scavenger.domain.vm import Quota
from scavenger.errors import ConfigurationError, QuotaError
from scavenger.policy.provisioning.fleet_plan import FleetSpec
from scavenger.store import Store
from scavenger.store.records import JobRecord
from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.transport.sockets import is_own

__all__ = ["ADDRESS_VARIABLE", "IMAGE_VARIABLE", "CloudResources", "address_of"]

ADDRESS_VARIABLE = "SCAVENGER_ADDRESS"
"""Where VMs reach this machine: `HOST` or `HOST:PORT`."""
IMAGE_VARIABLE = "SCAVENGER_IMAGE"
"""What VMs start from, in the cloud's own words, in place of its newest Ubuntu; needs cloud-init."""
DISK_GIB = 20
"""Of each VM's boot disk: an Ubuntu with TensorFlow takes 6."""
RUN_MAX_S = 14 * 86_400.0
"""The cloud's own limit on the life of a VM, the last net, where the job has no deadline."""
RUN_MARGIN_S = 3_600.0
_METADATA = ("169.254.169.254", 80)


def address_of(environment: Mapping[str, str]) -> tuple[str, int]:
    """The address at which VMs join, and the first of its two ports; 0: any free ones.

    Raises:
        ConfigurationError: If none is named, this machine cannot listen there, or it is another's (a router's that
            passes ports on to this machine) and no port is named.
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
    """By which address this machine would speak to others; nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect(_METADATA)
            return f" (perhaps {way.getsockname()[0]})"
    except OSError:
        return ""


class CloudResources:
    """What a job rents of a cloud.

    Args:
        environment: Where addresses, prices and images are looked up.

    Attributes:
        cloud: Its catalogue.
        offered: What the search is over, and what the user should know of it.

    Raises:
        ConfigurationError: If a VM type does not exist, or a price is not known.
    """

    def __init__(self, job: JobSpec, environment: Mapping[str, str] = os.environ) -> None:
        self._job, self._environment = job, environment
        self.cloud = CatalogCloud(
            job.infra.provider, job.infra.region, spot=job.spot, environment=environment
        )
        workers = job.worker_counts
        self.offered = self.cloud.offers_for(
            job.resources, workers=(workers[0], workers[-1]), deadline_s=job.constraints.deadline
        )

    @property
    def aggregators(self) -> Offer:
        """What the VM of the aggregators is."""
        return self.cloud.on_demand_offer(self.offered.offers[0].vm)

    @property
    def space(self) -> SearchSpace:
        """The configurations of the job before its data is known."""
        return SearchSpace(self.offered.offers, self._job.worker_counts, self._job.batch_sizes)

    @cached_property
    def provider(self) -> Provider:
        """The cloud.

        Raises:
            ConfigurationError, CloudError: If it cannot be opened.
        """
        return open_provider(self._job.infra.provider, self._job.infra.region, self._environment)

    def within_quotas(self) -> tuple[SearchSpace, tuple[str, ...]]:
        """The space without what the account's quotas do not allow by now, and a note where something is left out.

        Raises:
            QuotaError: If nothing is left.
            CloudError: If the cloud does not say.
        """
        space, quotas = self.space, self.provider.quotas()
        rooms = {offer: self._room(offer, quotas) for offer in space.offers}
        known = [room for room in rooms.values() if room is not None]
        # the space is a product: a type that would make all clusters smaller is left out instead
        most = min(space.workers[-1], max((workers for workers, _ in known), default=space.workers[-1]))
        most = space.workers[-1] if len(known) < len(rooms) else most
        notes = []
        for offer, room in rooms.items():
            if room is not None and room[0] < space.workers[-1]:
                workers, quota = room
                what = "larger clusters are left out" if workers >= most else f"{offer.vm} is left out"
                notes.append(
                    f"quota {quota.name} in {quota.region} ({quota.used:g} of {quota.limit:g} used) leaves room for "
                    f"{workers} workers on {offer.vm}: {what}"
                )
        if most < space.workers[0]:
            _, quota = known[0]
            raise QuotaError(notes[0], quota=quota.name, region=quota.region)
        offers = tuple(offer for offer, room in rooms.items() if room is None or room[0] >= most)
        sizes = tuple(k for k in space.workers if k <= most)
        return replace(space, offers=offers, workers=sizes), tuple(notes)

    def _room(self, offer: Offer, quotas: tuple[Quota, ...]) -> tuple[int, Quota] | None:
        """Workers on a type of VM that quotas leave room for, and the quota that says so; None where none does."""
        name, beside = self.provider.name, self.aggregators

        def left(*, spot: bool) -> tuple[int, Quota] | None:
            found = vms_left(name, quotas, offer.vm, offer.cpus, spot=spot)
            if found is None:
                return None
            count, quota = found
            # the aggregators' VM comes first, and on demand
            same = vms_left(name, (quota,), beside.vm, beside.cpus, spot=False) is not None
            room = max(0, count - (-(-beside.cpus // offer.cpus) if same else 0))
            return room * offer.workers_per_vm, quota

        room = left(spot=offer.spot)
        if room is None or not (offer.spot and self._job.spot == "auto"):
            return room
        # where no spot VM can be had, those on demand come after them
        others = left(spot=False)
        return None if others is None else (room[0] + others[0], room[1])

    def terms(self, trainer: Trainer) -> CostTerms:
        """What the job pays beside its workers, as far as that is known by now."""
        setup_s = statistics.median(trainer.setup_s) if trainer.setup_s else ChangeCosts().replace_s
        ready = {
            offer.vm: -(-trainer.ready_on(offer.vm) // offer.workers_per_vm) for offer in self.offered.offers
        }
        return self.cloud.terms(self.offered, disk_gib=DISK_GIB, setup_s=setup_s, ready=ready)

    def fleet(
        self,
        store: Store,
        record: JobRecord,
        *,
        folder: Path,
        outputs: Path,
        before_usd: float,
        note: Callable[[str], None],
        clock: Callable[[], float],
    ) -> Fleet:
        """The job's VMs, of which there are none yet.

        Args:
            folder: With the training module; VMs get a copy.
            outputs: Where jobs write to, which no VM needs.
            before_usd: What earlier attempts are known to have spent.

        Raises:
            ConfigurationError: If a VM type is not to be had there, or no address for VMs is named.
            CloudError: If the cloud does not answer, or there are no credentials.
        """
        job, offers = self._job, self.offered.offers
        provider = self.provider
        beside = self.aggregators
        zones = {vm: _zones(job, provider, vm) for vm in {beside.vm, *(offer.vm for offer in offers)}}
        deadline_s = job.constraints.deadline
        spec = FleetSpec(
            desired=Desired(
                job_id=record.id,
                provider=provider.name,
                region=provider.region,
                wishes=(),
                places=(),
                # all are replaced at once at worst, or are waited for on another type of VM
                vms_max=2 * max(job.worker_counts[-1], job.elastic_range[1]) + 2,
                budget_usd=math.inf if job.constraints.budget is None else job.constraints.budget,
                run_max_s=RUN_MAX_S if deadline_s is None else deadline_s + RUN_MARGIN_S,
                image=self._environment.get(IMAGE_VARIABLE, ""),
                disk_gib=DISK_GIB,
                attempt=record.attempts,
            ),
            package=package_of(self._environment),
            places={offer.vm: self._places(offer, zones[offer.vm]) for offer in offers},
            aggregators=tuple(
                Place(beside.vm, zone, False, beside.price_usd_per_hour) for zone in zones[beside.vm]
            ),
            offers=offers,
            threads={offer.vm: offer.cpus for offer in (beside, *offers)},
            before_usd=before_usd,
            disk_usd_per_hour=self.cloud.terms(
                self.offered, disk_gib=DISK_GIB, setup_s=0.0
            ).disk_usd_per_hour,
        )
        host, port = address_of(self._environment)
        hosts = AgentServer(
            host, folder, port=port, boot_key=new_boot_key(), leave_out=(outputs,), clock=clock
        )
        hosts.start()
        return Fleet(store, provider, hosts, spec, note=note, clock=clock)

    def _places(self, offer: Offer, zones: tuple[str, ...]) -> tuple[Place, ...]:
        """In the order to try: where spot VMs are wanted but not insisted on, those on demand come after them."""
        places = [Place(offer.vm, zone, offer.spot, offer.price_usd_per_hour) for zone in zones]
        if offer.spot and self._job.spot == "auto":
            price = self.cloud.price_usd_per_hour(offer.vm, spot=False)
            places += [Place(offer.vm, zone, False, price) for zone in zones]
        return tuple(places)


def _zones(job: JobSpec, provider: Provider, vm: str) -> tuple[str, ...]:
    zones = provider.zones(vm)
    if not job.infra.zone:
        return zones
    if job.infra.zone not in zones:
        raise ConfigurationError(
            f"infra: {vm} is not to be had in {job.infra.zone}; it is in {', '.join(zones)}"
        )
    return (job.infra.zone,)
