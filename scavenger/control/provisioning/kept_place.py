"""Where VMs wait that a study keeps: their record, the server that their agents join, and a reconciler."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from scavenger.cloud.base import Provider
from scavenger.cloud.identity import IdentityVerifier
from scavenger.control.provisioning.bill import counted_usd
from scavenger.control.provisioning.booting import BootingProvider
from scavenger.control.provisioning.fleet_agents import VmAgents
from scavenger.control.provisioning.lease_holder import holder_name, is_known_dead
from scavenger.control.provisioning.reconciler import Reconciler
from scavenger.control.provisioning.reconciler_thread import ReconcilerThread
from scavenger.control.provisioning.record_end import end_vms_of_record
from scavenger.domain.intent import FleetSpec, Intent, VmSlot
from scavenger.domain.vm import LaunchTemplate
from scavenger.errors import ScavengerError
from scavenger.policy.provisioning.config import ProvisioningConfig
from scavenger.store import Store
from scavenger.store.operations import KEPT
from scavenger.train.engines.vm.agent_server import AgentServer

KEEPER_NAME = "study-vms"
"""What the record of VMs that wait is called."""
LOOK_S = 1.0
_VMS_MAX = 1_000
DRAIN_S = 0.0
"""A VM that waits has nothing to save."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Region:
    """Where a trial has its VMs, and by what.

    Attributes:
        address, port: Where its agents join; a port of 0 is any.
        disk_usd_per_hour: Price of a VM's boot disk.
    """

    store: Store
    provider: Provider
    verifier: IdentityVerifier | None
    config: ProvisioningConfig
    address: str
    port: int
    disk_usd_per_hour: float


class Agents(VmAgents):
    """Agents of VMs that wait: their names are those of intents with the number of the visit."""

    def __init__(self, store: Store, server: AgentServer, verifier: IdentityVerifier | None) -> None:
        super().__init__(store, server, verifier)
        self.names: dict[str, str] = {}

    def arrives(self, intent_id: str, name: str) -> None:
        """Expect a VM under a name; its first heartbeat is recorded at once."""
        self.names[intent_id] = name
        self.forget(intent_id)

    def _intent_of(self, name: str) -> str:
        return name.rpartition("-")[0]

    def _name_of(self, intent_id: str) -> str:
        return self.names.get(intent_id, "")


class Place:
    """The region of the kept VMs, once there are any: their record, the server that they join, and a reconciler."""

    def __init__(self, study: str, region: Region) -> None:
        self.region, self.store = region, region.store
        with TemporaryDirectory(prefix="scavenger-kept-") as empty:  # nothing runs on VMs that wait
            self.server = AgentServer(
                region.address,
                Path(empty),
                port=region.port + 2 if region.port else 0,
                verified=region.verifier is not None,
            )
        try:
            self.server.start()
            self.agents = Agents(region.store, self.server, region.verifier)
            owner = region.store.installation()
            with region.store.together():
                record = region.store.create_job(
                    KEEPER_NAME, spec={KEPT: study}, job_file=Path(empty) / "study"
                )
                region.store.update_job(
                    record.id,
                    state="running",
                    phase="waiting",
                    detail=f"VMs between trials of study {study}",
                )
        except ScavengerError:
            self.server.close()
            raise
        self.job_id = record.id
        provider = region.provider
        self.reconciler = ReconcilerThread(
            Reconciler(
                region.store,
                BootingProvider(provider, region.store),
                owner=owner,
                holder=holder_name(),
                renew=self._renew,
                alarm=lambda alarm: log.warning("%s", alarm.message),
                config=region.config,
                is_dead=is_known_dead,
            ),
            lambda error: log.warning("managing the VMs failed and is retried: %s", error),
        )
        self.reconciler.start()
        self.intents: tuple[Intent, ...] = ()

    def _renew(self, intent: Intent, life_s: float) -> bool:
        if intent.job_id != self.job_id:
            return True
        name = self.agents.names.get(intent.id)
        return name is not None and self.server.renew(name, life_s)

    def spec(self, slots: Sequence[int]) -> FleetSpec:
        """What the record wants: the VMs that it has, and no new ones."""
        provider = self.region.provider
        return FleetSpec(
            job_id=self.job_id,
            provider=provider.name,
            region=provider.region,
            slots=tuple(VmSlot(slot) for slot in sorted(slots)),
            options=(),
            template=LaunchTemplate(run_max_s=86_400.0),
            vms_max=_VMS_MAX,
            budget_usd=math.inf,
            drain_s=DRAIN_S,
            launches=False,
            disk_usd_per_hour=self.region.disk_usd_per_hour,
        )

    @property
    def spent_usd(self) -> float:
        """What the VMs have cost while they waited."""
        return counted_usd(self.intents, self.region.disk_usd_per_hour)

    def close(self) -> None:
        """Close the server, at which agents hear that they are not needed any more."""
        self.server.close()

    def end_all(self, clock: Callable[[], float]) -> str:
        """Wait until all VMs are gone; returns what may be left, empty for nothing."""
        return end_vms_of_record(
            self.store,
            self.region.provider,
            self.spec(()),
            config=self.region.config,
            seen=self._seen,
            wake=self.reconciler.wake,
            what="kept VMs",
            clock=clock,
        )

    def _seen(self, intents: tuple[Intent, ...]) -> None:
        self.intents = intents


def place_of(provider: Provider) -> tuple[str, str]:
    """Provider and region, as intents name them."""
    return provider.name, provider.region
