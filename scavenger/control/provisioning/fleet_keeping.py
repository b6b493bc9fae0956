"""What the fleet of a job leaves to its study or pool, and takes over from it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from scavenger.cloud.base import Provider
from scavenger.cloud.identity import IdentityVerifier
from scavenger.control.provisioning.fleet_agents import FleetAgents
from scavenger.control.provisioning.joining import Endpoint, made_of
from scavenger.control.provisioning.kept_place import Region
from scavenger.control.provisioning.kept_vms import VmTransfer
from scavenger.domain.intent import FleetSpec, Intent, VmSlot
from scavenger.policy.provisioning.config import ProvisioningConfig
from scavenger.policy.provisioning.fleet_plan import FleetInputs
from scavenger.policy.provisioning.keeping import SILENT_S, TrialWants
from scavenger.policy.provisioning.slots import is_for_aggregators
from scavenger.store import Store
from scavenger.train.engines.vm.agent_server import AgentServer


class Keeper(Protocol):
    """What keeps VMs between jobs: a study in the same process (`KeptVms`), or a pool's server in another one.

    Attributes:
        pool: Name of the pool of rented VMs, and how many all its jobs may have; nothing and 0 of a study.
    """

    @property
    def pool(self) -> tuple[str, int]: ...

    def drained(self, store: Store) -> tuple[str, ...]:
        """Names of the machines that the job is to leave; see `is_on`."""

    def exchange(
        self,
        region: Region,
        spec: FleetSpec,
        wants: TrialWants,
        *,
        leaving: Sequence[Intent] = (),
        vacant: Sequence[VmSlot] = (),
        returned_usd: float = 0.0,
    ) -> VmTransfer:
        """Store what a job wants, take over the VMs that it leaves, and give it those that it can use.

        Args:
            spec: What the job wants from now on.
            wants: What its VMs may be.
            leaving: Sound VMs of the job in no slot of `spec`, without processes.
            vacant: Slots of `spec` without a VM.
            returned_usd: What the job, if it ends, leaves of its budget.

        Raises:
            ScavengerError: The store cannot be used; nothing has gone over.
        """

    def send(self, region: Region, intents: Sequence[str], leader: Endpoint) -> None:
        """Have the agents of VMs that a job has taken join it; it expects them already."""


class FleetKeeping:
    """One job's side of the VMs that are kept between jobs; see `Fleet`."""

    def __init__(
        self,
        kept: Keeper,
        store: Store,
        provider: Provider,
        verifier: IdentityVerifier | None,
        server: AgentServer,
        inputs: FleetInputs,
        config: ProvisioningConfig,
    ) -> None:
        self._kept, self._server, self._inputs = kept, server, inputs
        self._region = Region(store, provider, verifier, config, server.address, server.port)
        template = inputs.spec.template
        self._made_of = made_of(template, inputs.package)
        self._places = frozenset(option.key for options in inputs.options.values() for option in options)

    def drained(self) -> tuple[str, ...]:
        """See `Keeper.drained`."""
        return self._kept.drained(self._region.store)

    def exchange(
        self,
        spec: FleetSpec,
        intents: Sequence[Intent],
        agents: FleetAgents,
        *,
        avoided: Collection[str],
        spent_usd: float,
    ) -> VmTransfer:
        """Store what the trial wants; leave sound VMs that it wants no more, and take others for vacant slots.

        Args:
            spec: What it wants from now on.
            agents: As of their last look.
            avoided: Addresses of VMs on which too many processes have failed.

        Returns:
            What has gone over: `send` tells the agents of the VMs that were taken, once they are expected.

        Raises:
            ScavengerError: The store cannot be used.
        """
        here = [one for one in intents if one.state in ("PLAN", "UP")]
        wanted = {slot.number: slot for slot in spec.slots}
        filled = {one.slot for one in here}
        done = self._kept.exchange(
            self._region,
            spec,
            self._wants(here),
            leaving=[one for one in _sound(here, agents, avoided) if one.slot not in wanted],
            vacant=[
                slot if slot.options else VmSlot(slot.number, slot.generation, spec.options)
                for number, slot in wanted.items()
                if number not in filled
            ],
            # a trial that wants no VM any more ends
            returned_usd=0.0 if wanted else max(0.0, spec.budget_usd - spent_usd),
        )
        for intent_id, order in done.orders.items():
            self._server.move(intent_id, order)
        return done

    def send(self, taken: Sequence[str]) -> None:
        """Have the agents of VMs that were taken join this trial."""
        server = self._server
        self._kept.send(self._region, taken, Endpoint(server.endpoint, server.server_key, server.boot_key))

    def _wants(self, here: Iterable[Intent]) -> TrialWants:
        spec = self._inputs.spec
        zone = next((one.request.zone for one in here if is_for_aggregators(one.slot)), "")
        return TrialWants(spec.job_id, self._made_of, spec.template.run_max_s, self._places, zone)


def _sound(here: Iterable[Intent], agents: FleetAgents, avoided: Collection[str]) -> list[Intent]:
    """VMs that have joined, do nothing, and are neither silent, avoided nor about to end."""
    seen, found = agents.seen(0.0, avoided=avoided), []
    for intent in here:
        agent = seen.get(intent.id)
        if intent.state != "UP" or not intent.acks or agent is None:
            continue
        busy = agent.processes or agent.is_ending or agent.is_avoided
        if agent.joined and not busy and agent.silent_s < SILENT_S:
            found.append(intent)
    return found
