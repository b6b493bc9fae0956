"""Hosts of workers that are nodes of a Ray cluster, which come and go with them, such as pods of KubeRay.

Ray tells which nodes have joined, and runs one process on each, which takes all of the node's CPUs. That process is an
agent, which joins the job as a VM's does (`scavenger.train.engines.vm.agent`): so code, files, keys, heartbeats and the
processes themselves are handled as on VMs. The coordinator and the aggregators run where the job is led, on a node that
stays.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from scavenger.train.engines.base import Exit
from scavenger.train.engines.ray.engine import RayEngine
from scavenger.train.engines.ray.node import NODE_ROLE
from scavenger.train.engines.vm.engine import HostEngine, HostSource
from scavenger.train.engines.vm.values import AgentStatus, one_time_keys
from scavenger.train.transport.messages.values import ProcessConfiguration

log = logging.getLogger(__name__)

_LOOK_S = 0.5
_TRIES = 3
_LAST_BYTES = 2000
_LOGS = "nodes"
"""Folder, in that of the job's logs, of what the agents write."""


class NodeAddresses(Protocol):
    """Tells the addresses of nodes, as another thread has found them."""

    def find(self, intents: frozenset[str]) -> Mapping[str, str]:
        """Addresses by the intents of nodes that have not joined the job yet; never waits."""

    def close(self) -> None:
        """Stop looking."""


@dataclass(slots=True)
class _Node:
    """An agent that Ray is to run.

    Attributes:
        tries: How often it was started.
        failed: Why it has ended the last time.
    """

    tries: int = 0
    failed: str = ""


class RayNodes(HostSource):
    """Runs agents on nodes of the Ray cluster that this machine belongs to; aggregators stay here.

    Args:
        addresses: Of the nodes; closed with these hosts.
        address: See `RayEngine`.
        agent: Command of the agents; None: the processes' own.
    """

    rents_aggregators = False
    aggregators_here = True

    def __init__(
        self, addresses: NodeAddresses, *, address: str = "auto", agent: Sequence[str] | None = None
    ) -> None:
        self._addresses, self._address, self._agent = addresses, address, agent
        self._nodes: dict[str, _Node] = {}
        self._looked_at = -math.inf

    def attach(self, engine: HostEngine) -> None:
        super().attach(engine)
        self._agents, self._clock = engine.agents, engine.clock
        self._ray = RayEngine(
            engine.log_dir / _LOGS, address=self._address, command=self._agent, clock=self._clock
        )

    def poll(self) -> None:
        for ended in self._ray.poll():
            self._note_end(ended)
        if self._clock() - self._looked_at >= _LOOK_S:
            self._looked_at = self._clock()
            self._start_agents()

    def close(self) -> None:
        """See `HostSource.close`; the agents end, too."""
        self._addresses.close()
        self._ray.close()

    # ---- agents ----------------------------------------------------------------------------------------------

    def _start_agents(self) -> None:
        """Have Ray run an agent on each node that has joined it, and that the job expects."""
        running = self._ray.running
        missing = {
            vm.spec.intent: vm
            for vm in self._agents.vms()
            if not vm.joined and vm.spec.intent not in running and self._may_start(vm.spec.intent)
        }
        found = self._addresses.find(frozenset(missing))
        cpus = self._ray.cpus() if found else {}
        for intent, address in found.items():
            if intent in missing and cpus.get(address, 0) >= 1:
                self._start_agent(missing[intent], address, cpus[address])

    def _may_start(self, intent: str) -> bool:
        node = self._nodes.get(intent)
        return node is None or (bool(node.failed) and node.tries < _TRIES)

    def _start_agent(self, vm: AgentStatus, address: str, cpus: int) -> None:
        intent = vm.spec.intent
        public, secret = one_time_keys(self._agents.boot_key, intent)
        node = self._nodes.setdefault(intent, _Node())
        node.tries, node.failed = node.tries + 1, ""
        config = ProcessConfiguration(
            role=NODE_ROLE,
            name=intent,
            coordinator=self._agents.endpoint,
            server_key=self._agents.server_key,
            public_key=public,
            secret_key=secret,
            memory_fd=-1,
            threads=min(cpus, vm.spec.threads),
        )
        self._ray.launch(config, host=address)

    def _note_end(self, ended: Exit) -> None:
        """Have an agent that has not joined started again; one that has joined is lost with its node."""
        node = self._nodes.get(ended.name)
        vm = next((one for one in self._agents.vms() if one.spec.intent == ended.name), None)
        if node is None or vm is None or vm.joined:
            return
        node.failed = ended.cause
        log.warning("the agent of node %s %s: %s", ended.name, ended.cause, self._last_line(ended.name))
        if node.tries >= _TRIES:
            why = (
                f"Ray could not run the agent of its node ({ended.cause}): {self._last_line(ended.name)}; Scavenger "
                "must be installed in the image of the Ray cluster, in the version of this command"
            )
            self.engine.refuse_waiting(vm.spec.type, self.engine.waiting(vm.spec.type), why)

    def _last_line(self, name: str) -> str:
        text = self._ray.log(name).read_bytes()[-_LAST_BYTES:].decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else "it has written nothing"
