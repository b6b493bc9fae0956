"""The VMs that a pool of aggregators rents as nodes, by the machinery that rents those of jobs.

The pool is on record as a job is, with the process of its manager as its owner: so its VMs are found, charged, renewed
and ended as those of any job. If the manager is killed, they end themselves within minutes, the next manager and every
job in the region end them, and so do `scavenger gc` and the sweeps of a server.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from scavenger.cloud.base import Provider
from scavenger.cloud.boot.package import own_wheel
from scavenger.cloud.identity import IdentityVerifier
from scavenger.control.places.launching import DISK_GIB, launch_template, package_of
from scavenger.control.places.offers import CatalogCloud
from scavenger.control.provisioning.boot_watch import BootWatch
from scavenger.control.provisioning.booting import boot_document
from scavenger.control.provisioning.fleet_agents import VmAgents
from scavenger.control.provisioning.fleet_boots import FleetBoots, failure_line
from scavenger.control.provisioning.ports import provisioning_of
from scavenger.control.provisioning.providers import open_provider, open_verifier
from scavenger.control.provisioning.vm_group import VmGroup, new_record
from scavenger.control.settings import settings_of
from scavenger.domain.infra import Infra
from scavenger.domain.intent import FleetSpec, Intent, PlacementOption, VmSlot
from scavenger.domain.providers import find_kind
from scavenger.domain.vm import LaunchTemplate, VmPackage
from scavenger.errors import ConfigurationError, ScavengerError
from scavenger.policy.provisioning.config import ProvisioningConfig
from scavenger.policy.provisioning.slots import aggregator_index, aggregator_slot
from scavenger.policy.provisioning.zones import common_first
from scavenger.presentation.formatting import money
from scavenger.store import Store
from scavenger.store.operations import POOL
from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.pool.growth import RentalLimits
from scavenger.train.pool.placement import Node
from scavenger.train.pool.rental import PREFIX, RentedMachine

POOL_NAME = "aggregator-pool"
"""What the record of a pool that rents nodes is called."""
CONSOLES = "consoles"
"""Folder, beside the pool's socket, with the consoles of VMs that are late or have failed."""
_UNWANTED = ("unwanted", "budget")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolNodesSpec:
    """What a pool rents.

    Attributes:
        limits: How many, and for how long without tenants.
        options: Where, in the order to try.
        template: Of the launch, without user data.
    """

    node: Node
    limits: RentalLimits
    options: tuple[PlacementOption, ...]
    template: LaunchTemplate
    package: VmPackage
    price_source: str = ""


class PoolNodes:
    """Rents the nodes of one pool; see `scavenger.train.pool.rental.NodeSource`, which this is.

    Args:
        provider: The cloud, in the region.
        record: A path that names the pool on record.
        verifier: Verifies the identity of VMs; None if their cloud gives them no proof of it.
        config: Time limits and intervals; None for the defaults.
        clock, wall, sleep: Monotonic seconds, seconds since the epoch, and how to wait.
    """

    def __init__(
        self,
        store: Store,
        provider: Provider,
        spec: PoolNodesSpec,
        *,
        record: Path,
        verifier: IdentityVerifier | None = None,
        config: ProvisioningConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = lambda: datetime.now(UTC).timestamp(),
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store, self._provider, self._spec, self._verifier = store, provider, spec, verifier
        self._record, self._config = record, config or provisioning_of(provider)
        self._clock, self._wall, self._sleep = clock, wall, sleep
        self.offered, self.limits = spec.node, spec.limits
        self.package = own_wheel().data if spec.package.wheel else b""
        self.verified = verifier is not None
        self._fleet: FleetSpec | None = None
        self._group: VmGroup | None = None
        self._before: tuple[str, ...] = ()  # pools of managers that have died, whose VMs are still there
        self._is_wanted = False
        self._told = ""
        self._boots: FleetBoots | None = None

    # ---- of `NodeSource` -----------------------------------------------------------------------------------

    def open(self, server: AgentServer) -> None:
        """See `NodeSource.open`.

        Raises:
            StoreError: The store cannot be used.
        """
        self._store.reap_dead_jobs()
        place, provider = self._spec.node.place, self._provider
        here = [
            one for one in self._store.intents(living=True) if (one.provider, one.region) == _place(provider)
        ]
        for dead in map(self._store.job, {one.job_id for one in here}):
            if dead.name == POOL_NAME and dead.ended:
                self._before += (dead.id,)
                log.warning("an earlier manager, process %d, has left nodes: they are ended", dead.owner.pid)
        job_id = new_record(
            self._store, POOL_NAME, {POOL: place}, self._record, "serving", f"aggregators for jobs at {place}"
        )
        boot = boot_document(server.endpoint, server.server_key, provider.name, self._spec.package)
        self._fleet = FleetSpec(
            job_id=job_id,
            provider=provider.name,
            region=provider.region,
            slots=(),
            options=self._spec.options,
            template=replace(self._spec.template, user_data=boot),
            vms_max=2 * self._spec.limits.nodes_max,  # those that end count, too
            budget_usd=math.inf,
            boot_key=server.boot_key.hex(),
        )
        self._store.want_vms(self._fleet)
        self._boots = FleetBoots(
            self._fleet,
            self._spec.package,
            BootWatch(provider, interval_s=self._config.look.interval_s),
            self._store.intents(),
            endpoint=server.endpoint,
            note=lambda message: log.warning("%s", message),
            inform=lambda message: log.info("%s", message),
            folder=self._record / CONSOLES,
            title=lambda vm: f"node {PREFIX}{_number(vm.intent)}",
        )
        self._boots.start()
        self._group = VmGroup(
            self._store,
            provider,
            job_id,
            agents=VmAgents(self._store, server, self._verifier),
            config=self._config,
        )
        self._group.start()

    def look(self) -> tuple[RentedMachine, ...]:
        with contextlib.suppress(ScavengerError), self._store.hurried():
            self._look(self._clock())
        return () if self._group is None else tuple(map(self._machine, self._group.intents))

    def want(self, numbers: Collection[int]) -> None:
        """See `NodeSource.want`; repeated by `look` if the store is not to be had."""
        assert self._fleet is not None
        slots = tuple(VmSlot(aggregator_slot(number)) for number in sorted(numbers))
        self._fleet = replace(self._fleet, slots=slots)
        self._is_wanted = False
        with contextlib.suppress(ScavengerError), self._store.hurried():
            self._want()

    @property
    def spent_usd(self) -> float:
        return 0.0 if self._group is None else self._group.spent_usd

    @property
    def shortage(self) -> str:
        failure = None if self._boots is None else self._boots.failure
        return self._told if failure is None else failure_line(failure)

    def close(self) -> None:
        if self._boots is not None:
            self._boots.stop()
        if self._group is not None and self._fleet is not None:
            self._group.end_record(self._fleet, before=self._before, clock=self._clock, sleep=self._sleep)

    # ---- about once a second -------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        group, boots, wanted = self._group, self._boots, self._fleet
        assert group is not None and boots is not None and wanted is not None  # noqa: PT018 - set by `open`
        if not self._is_wanted:
            self._want()
        boots.look(group.read(), {}, len(wanted.slots), now)
        group.attend(now)
        if group.keep_record(now):
            self._tell(self._store.shortages(group.job_id, wanted.provider, wanted.region))

    def _want(self) -> None:
        assert self._fleet is not None and self._group is not None  # noqa: PT018 - set by `open`
        self._group.want(self._fleet)
        self._is_wanted = True

    def _tell(self, shortages: Mapping[str, str]) -> None:
        told = "; ".join(shortages.values())
        if told and told != self._told:
            log.warning("a node cannot be had: %s", told)
        self._told = told

    def _machine(self, intent: Intent) -> RentedMachine:
        times, ending = intent.times, ""
        if intent.state in ("DELETING", "GONE"):
            ending = intent.reason or "its VM has ended"
        at = times.launched_at or times.created_at
        return RentedMachine(
            _number(intent),
            intent.id,
            self._wall() if at is None else at.timestamp(),
            ending,
            wanted=intent.ending not in _UNWANTED,
        )


def _number(intent: Intent) -> int:
    """Number of the node whose VM this is."""
    return aggregator_index(intent.slot) or 0


def _place(provider: Provider) -> tuple[str, str]:
    return provider.name, provider.region


def open_pool_nodes(
    store: Store,
    infra: Infra,
    *,
    record: Path,
    vm: str,
    tenants_max: int,
    nodes_max: int,
    idle_s: float,
    usd_per_hour_max: float,
    environment: Mapping[str, str] = os.environ,
) -> tuple[PoolNodes, PoolNodesSpec]:
    """Find out what nodes of a place are, at the catalogue's prices, and prepare to rent them.

    Args:
        infra: Cloud and region, and a zone if only that one is to be used.
        record: A path that names the pool on record.
        vm: VM type; empty: the cheapest one with 2 vCPUs and 4 GiB.
        idle_s: How long a node without tenants is kept.
        usd_per_hour_max: What all nodes together may cost in an hour.

    Raises:
        ConfigurationError: The VM type or its price is not known, it is not offered there, or one costs too much.
        CloudError: The cloud does not answer, or there are no credentials.
    """
    settings = settings_of(infra, environment)
    provider = open_provider(infra.provider, infra.region, environment, settings)
    public = settings.public_address is not False
    cloud = CatalogCloud(
        infra.provider, infra.region, environment=environment, settings=settings, public=public
    )
    offer = cloud.on_demand_offer(vm) if vm else cloud.small_offer()
    if vm and offer.vm != vm:
        raise ConfigurationError(f"--vm {vm}: nodes have no GPUs, and 2 to 8 vCPUs with 4 GiB at least")
    template = launch_template(settings, environment)
    zones = common_first({offer.vm: provider.zones(offer.vm, template.settings)})[offer.vm]
    if infra.zone and infra.zone not in zones:
        raise ConfigurationError(
            f"--infra: {offer.vm} is available in {', '.join(zones)}, not in {infra.zone}"
        )
    zones = (infra.zone,) if infra.zone else zones
    extras = cloud.extras(DISK_GIB, spot=False)
    kind = find_kind(infra.provider)
    extra = "" if kind is None else kind.extra
    usd_per_hour = offer.price_usd_per_hour + extras.usd_per_hour
    bound = math.isfinite(usd_per_hour_max) and usd_per_hour > 0.0
    affordable = min(nodes_max, int(usd_per_hour_max / usd_per_hour)) if bound else nodes_max
    if affordable < 1:
        raise ConfigurationError(
            f"--budget-per-hour {usd_per_hour_max:g}: a node ({f'{offer.vm} {extras}'.rstrip()}) costs "
            f"{money(usd_per_hour)} an hour"
        )
    spec = PoolNodesSpec(
        node=Node(
            "",
            tuple(range(offer.cpus)),
            offer.memory_bytes,
            tenants_max,
            f"{infra.provider}/{infra.region}",
            offer.vm,
            usd_per_hour,
            int(cloud.network_bytes_per_s(offer.vm) or 0),
        ),
        limits=RentalLimits(affordable, idle_s),
        options=tuple(
            PlacementOption(offer.vm, zone, False, offer.price_usd_per_hour, extras) for zone in zones
        ),
        template=template,
        # aggregators write checkpoints, which may be in the storage of the cloud
        package=package_of(environment, (extra,) if extra else ()),
        price_source=offer.price_source,
    )
    verifier = open_verifier(infra, settings, environment)
    return PoolNodes(store, provider, spec, record=record, verifier=verifier), spec
