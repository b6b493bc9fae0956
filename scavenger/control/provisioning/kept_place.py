"""Where VMs wait that a study or a pool keeps: their record, the server that their agents join, and a reconciler."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from scavenger.cloud.base import Provider
from scavenger.cloud.identity import IdentityVerifier
from scavenger.control.provisioning.booting import boot_document
from scavenger.control.provisioning.fleet_agents import VmAgents
from scavenger.control.provisioning.vm_group import VmGroup, new_record
from scavenger.domain.intent import FleetSpec, VmSlot
from scavenger.domain.vm import LaunchTemplate, VmPackage
from scavenger.errors import ScavengerError
from scavenger.policy.provisioning.config import ProvisioningConfig
from scavenger.store import Store
from scavenger.train.engines.vm.agent_server import AgentServer

KEEPER_NAME = "study-vms"
"""What the record of VMs that wait is called."""
LOOK_S = 1.0
_VMS_MAX = 1_000
DRAIN_S = 0.0
"""A VM that waits has nothing to save."""


@dataclass(frozen=True, slots=True)
class Region:
    """Where a trial has its VMs, and by what.

    Attributes:
        address, port: Where its agents join; a port of 0 is any.
    """

    store: Store
    provider: Provider
    verifier: IdentityVerifier | None
    config: ProvisioningConfig
    address: str
    port: int


class Agents(VmAgents):
    """Agents of VMs that wait: each time that a VM comes it has another name.

    Attributes:
        names: By which VMs join, by their intents.
    """

    def __init__(self, store: Store, server: AgentServer, verifier: IdentityVerifier | None) -> None:
        super().__init__(store, server, verifier)
        self.names: dict[str, str] = {}

    def arrives(self, intent_id: str, name: str) -> None:
        """Expect a VM under a name; its first heartbeat is recorded at once."""
        self.names[intent_id] = name
        self.forget(intent_id)

    def _intent_of(self, name: str) -> str:
        return next((intent for intent, known in self.names.items() if known == name), "")

    def _name_of(self, intent_id: str) -> str:
        return self.names.get(intent_id, "")


class WarmPool(VmGroup):
    """The VMs that a study or a pool keeps, with the server at which they wait.

    Args:
        name: Of the record.
        kept: Its spec, by which it is known to be no job's.
        detail: What they are, for users.
        pool: Name of the pool of rented VMs whose they are; empty for a study.
    """

    def __init__(
        self, name: str, kept: Mapping[str, str], detail: str, region: Region, *, pool: str = ""
    ) -> None:
        self.region, self._pool = region, pool
        with TemporaryDirectory(prefix="scavenger-kept-") as empty:  # nothing runs on VMs that wait
            self.server = AgentServer(
                region.address,
                Path(empty),
                port=region.port + 2 if region.port else 0,
                verified=region.verifier is not None,
            )
        self.agents = Agents(region.store, self.server, region.verifier)
        try:
            self.server.start()
            job_id = new_record(region.store, name, kept, Path(empty) / name, "waiting", detail)
        except ScavengerError:
            self.server.close()
            raise
        super().__init__(
            region.store,
            region.provider,
            job_id,
            agents=self.agents,
            config=region.config,
        )
        self.start()

    def spec(self, slots: Sequence[int]) -> FleetSpec:
        """What the record wants: VMs that it has, or that are to come, and no new ones; and where they join."""
        provider, server = self.region.provider, self.server
        boot = boot_document(server.endpoint, server.server_key, provider.name, VmPackage())
        return FleetSpec(
            job_id=self.job_id,
            provider=provider.name,
            region=provider.region,
            slots=tuple(VmSlot(slot) for slot in sorted(slots)),
            options=(),
            template=LaunchTemplate(run_max_s=86_400.0, user_data=boot),
            vms_max=_VMS_MAX,
            budget_usd=math.inf,
            drain_s=DRAIN_S,
            boot_key=server.boot_key.hex(),
            launches=False,
            pool=self._pool,
        )


def place_of(provider: Provider) -> tuple[str, str]:
    """Provider and region, as intents name them."""
    return provider.name, provider.region
