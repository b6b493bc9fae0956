"""Manages the agents on rented VMs: admits them, records their heartbeats and renews their leases."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from scavenger.cloud.identity import IdentityVerifier
from scavenger.domain.intent import Intent
from scavenger.errors import CloudUnavailableError
from scavenger.policy.provisioning.fleet_plan import AgentSeen, FleetInputs
from scavenger.policy.provisioning.slots import AGGREGATORS
from scavenger.store import Store
from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.engines.vm.values import AgentStatus

ACKNOWLEDGE_S = 10.0
"""Interval of a VM's heartbeats in the store; a fraction of the silence after which the VM is given up."""


class VmAgents:
    """The agents on VMs, whatever they are for.

    Args:
        store: Receives the heartbeats of the VMs.
        server: The server that agents connect to.
        verifier: Verifies the identity of VMs that join; None if their cloud gives them no proof of it.
    """

    def __init__(self, store: Store, server: AgentServer, verifier: IdentityVerifier | None = None) -> None:
        self._store, self._agent_server, self._verifier = store, server, verifier
        self._acknowledged_at: dict[str, float] = {}
        self._renewed_at: dict[str, float] = {}

    def verify(self, intents: Iterable[Intent]) -> None:
        """Admit the agents that have proven to be on the VM of their intent, once that VM is known by its id.

        One that cannot be verified now is left for the next call: it repeats its request.
        """
        vms = {intent.id: intent.instance_id for intent in intents if intent.state == "UP"}
        for candidate in self._agent_server.candidates():
            instance_id = vms.get(self._intent_of(candidate.intent))
            if self._verifier is None or not instance_id:
                continue
            try:
                refusal = self._verifier.refusal(
                    candidate.identity, instance_id=instance_id, public_key=candidate.public_key
                )
            except CloudUnavailableError:
                continue
            if refusal:
                self._agent_server.refuse(candidate, refusal if candidate.identity else "is missing")
            else:
                self._agent_server.accept(candidate)

    def acknowledge(self, now: float) -> None:
        """Record the VMs' heartbeats in the store."""
        for intent in map(self._intent_of, self._agent_server.heard()):
            if intent and now - self._acknowledged_at.get(intent, -ACKNOWLEDGE_S) >= ACKNOWLEDGE_S:
                self._store.acknowledge_vm(intent)
                self._acknowledged_at[intent] = now

    def renew(self, intents: Iterable[Intent], life_s: float, now: float) -> None:
        """Renew the leases of VMs before they expire."""
        known = {vm.spec.intent for vm in self._agent_server.vms()}
        for intent in intents:
            due = now - self._renewed_at.get(intent.id, -life_s) >= life_s / 3
            lives = due and intent.state == "UP" and self._name_of(intent.id) in known
            if lives and self._agent_server.renew(self._name_of(intent.id), life_s):
                self._renewed_at[intent.id] = now

    def renewed(self, intent: Intent, life_s: float) -> bool:
        """Renew the lease of a VM now; returns whether it has confirmed."""
        return self._agent_server.renew(self._name_of(intent.id), life_s)

    def forget(self, intent_id: str) -> None:
        """Forget a VM, which comes as a new one."""
        self._acknowledged_at.pop(intent_id, None)
        self._renewed_at.pop(intent_id, None)

    def _intent_of(self, name: str) -> str:
        """The id of the intent of a VM that the server knows by a name: the name itself; empty if it is not known."""
        return name

    def _name_of(self, intent_id: str) -> str:
        """The inverse of `_intent_of`."""
        return intent_id


class FleetAgents(VmAgents):
    """The agents on one job's VMs.

    Args:
        store: Receives the heartbeats of the VMs.
        hosts: The server that agents connect to.
        verifier: See `VmAgents`.
    """

    def __init__(
        self, store: Store, hosts: AgentServer, inputs: FleetInputs, verifier: IdentityVerifier | None = None
    ) -> None:
        super().__init__(store, hosts, verifier)
        self._inputs = inputs
        self._vms: dict[str, AgentStatus] = {}
        self._placed: Mapping[str, int] = {}
        self._ended: set[str] = set()
        self._idle_since: dict[str, float] = {}

    def look(self, now: float, placed: Mapping[str, int]) -> None:
        """Read the status of the agents.

        Args:
            placed: See `HostEngine.placed`. The server hears first that a process has ended; counted by that, its VM
                would be free while the process still needed one, and another VM would be rented for it.
        """
        self._vms, self._placed = {vm.spec.intent: vm for vm in self._agent_server.vms()}, placed
        for vm in self._vms.values():
            if self._busy(vm):
                self._idle_since.pop(vm.spec.intent, None)
            elif vm.joined:
                self._idle_since.setdefault(vm.spec.intent, now)

    def seen(
        self, now: float, *, avoided: Collection[str] = (), released: Collection[str] = ()
    ) -> dict[str, AgentSeen]:
        """State of every expected or joined agent as of the last look, by the intent of its VM.

        Args:
            avoided: Names of machines that receive no more workers; see `AgentStatus.node`.
            released: See `HostEngine.released`; these VMs have been idle for ever.
        """
        return {
            vm.spec.intent: AgentSeen(
                joined=vm.joined,
                processes=self._busy(vm),
                silent_s=vm.heard_s_ago,
                idle_s=self._idle_s(vm, now, released),
                is_ending=vm.preemption is not None,
                ends_in_s=None if vm.preemption is None else vm.preemption.in_s,
                is_avoided=vm.node in avoided,
            )
            for vm in self._vms.values()
        }

    def _idle_s(self, vm: AgentStatus, now: float, released: Collection[str]) -> float:
        if vm.spec.intent in released and not self._busy(vm):
            return math.inf
        return now - self._idle_since.get(vm.spec.intent, now)

    def processes(self) -> dict[str, int]:
        """Number of processes on each VM as of the last look, by the intent of the VM."""
        return {vm.spec.intent: self._busy(vm) for vm in self._vms.values()}

    def _busy(self, vm: AgentStatus) -> int:
        return self._placed.get(vm.spec.intent, 0)

    def admit(self, intents: Iterable[Intent], types: Mapping[int, str]) -> None:
        """Admit the VMs that this attempt has requested, and report VMs that are gone.

        A VM that the cloud is ending without a request is treated as gone, unless a preemption notice announced its
        end: then its worker is leaving already.

        Args:
            types: VM type of each slot.
        """
        for intent in intents:
            if intent.slot not in types or intent.attempt != self._inputs.spec.attempt:
                continue
            if intent.state in ("PLAN", "UP"):
                self._expect(intent, types[intent.slot])
                continue
            vm = self._vms.get(intent.id)
            taken = intent.ending in ("preempted", "died") and (vm is None or vm.preemption is None)
            if (intent.state == "GONE" or taken) and intent.id not in self._ended:
                self._ended.add(intent.id)
                self._agent_server.gone(intent.id, intent.reason or "its VM has ended")

    def _expect(self, intent: Intent, vm: str) -> None:
        self._agent_server.expect(
            intent.id,
            role="aggregator" if vm == AGGREGATORS else "worker",
            vm=vm,
            threads=self._inputs.threads[intent.request.vm],
            slots=self._inputs.processes_in(intent.slot, vm),
        )
