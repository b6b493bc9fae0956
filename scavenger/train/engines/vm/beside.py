"""A fleet's VMs, on which aggregators run beside the workers; the first one has a VM of its own."""

from __future__ import annotations

from dataclasses import replace

from scavenger.elastic.beside import Beside, HostSeen, beside_workers
from scavenger.train.engines.base import Exit, PreemptionNotice
from scavenger.train.engines.vm.engine import HostEngine, HostSource
from scavenger.train.engines.vm.values import AgentStatus
from scavenger.train.names import aggregator_name, aggregator_number
from scavenger.train.transport.messages.values import ProcessConfiguration

_ALONE_S = 5.0
"""How long an aggregator stays without a worker beside it: one that has crashed is usually replaced within seconds."""
_LATE_S = 60.0
"""How long the aggregators of a job that begins wait while its workers wait for their VMs; then they begin with the
first one."""
_LEAVES_S = 3600.0
"""Time that the job has to move what an aggregator holds: nothing takes it away."""
_AGAIN_S = 1.0


class AggregatorsBesideWorkers(HostSource):
    """Places one aggregator on each VM with workers, as `scavenger.elastic.beside` decides.

    What one holds moves to others before it leaves a VM, and the process that follows begins where one is lacking.
    """

    def attach(self, engine: HostEngine) -> None:
        super().attach(engine)
        self._agents, self._clock = engine.agents, engine.clock
        self._worked_at: dict[str, float] = {}  # by intent
        self._waits_since: dict[int, float] = {}  # by index
        self._again: set[int] = set()  # those that have been somewhere: the job waits for them
        self._told_at: dict[int, float] = {}
        self._wanted = Beside(frozenset({0}), frozenset())

    @property
    def sharing(self) -> frozenset[str]:
        """See `HostSource.sharing`."""
        return frozenset(map(aggregator_name, self._wanted.sharing))

    def wait_for(self, config: ProcessConfiguration) -> None:
        if index := aggregator_number(config.name):
            self._waits_since[index] = self._clock()

    def suits(self, config: ProcessConfiguration, type_: str, vm: AgentStatus) -> bool:
        index = aggregator_number(config.name)
        if not index:
            return super().suits(config, type_, vm)
        hosts = self._hosts()
        if vm.spec.role == "worker":
            return hosts[vm.spec.intent].lacks_one
        if any(host.lacks_one for host in hosts.values()):
            return False
        late = self._clock() - self._waits_since.get(index, self._clock()) > _LATE_S
        return late or index in self._again or self.engine.has_all_workers

    def poll(self) -> None:
        self._waits_since = {
            index: since
            for index, since in self._waits_since.items()
            if self.engine.waits(aggregator_name(index))
        }
        waiting = frozenset(self._waits_since)
        home = [i for vm in self._agents.vms() if vm.spec.role == "aggregator" for i in vm.aggregators]
        self._again.update(i for vm in self._agents.vms() for i in vm.aggregators)
        again = self._wanted.sharing & waiting
        hosts = [*self._hosts().values()]
        self._wanted = beside_workers(hosts, home, on_their_way=len(waiting), again=again)
        now = self._clock()
        for index in sorted(self._wanted.leaving):
            if now - self._told_at.get(index, -_AGAIN_S) >= _AGAIN_S:
                self._told_at[index] = now
                notice = PreemptionNotice(
                    aggregator_name(index), _LEAVES_S, "follows the workers", alone=True
                )
                self.engine.notify(notice)

    def note_ends(self, exits: list[Exit]) -> list[Exit]:
        leaving = self._wanted.leaving
        return [
            replace(ended, reason="goes where the workers are")
            if aggregator_number(ended.name) in leaving
            else ended
            for ended in exits
        ]

    def vacated(self, name: str) -> None:
        """See `Engine.vacated`: the process ends, and the next one is where one is lacking."""
        self.engine.kill(name)

    def _hosts(self) -> dict[str, HostSeen]:
        """The VMs for workers, by intent."""
        now, seen = self._clock(), dict[str, HostSeen]()
        able = {vm.spec.intent for vm in self._agents.free("aggregator")}
        for vm in self._agents.vms():
            if vm.spec.role != "worker" or not vm.joined:
                continue
            intent = vm.spec.intent
            if len(vm.processes) > len(vm.aggregators):
                self._worked_at[intent] = now
            seen[intent] = HostSeen(
                intent,
                has_workers=now - self._worked_at.get(intent, -_ALONE_S) < _ALONE_S,
                stays=vm.preemption is None
                and intent not in self.engine.retired
                and (bool(vm.aggregators) or intent in able),
                aggregators=vm.aggregators,
            )
        return seen
