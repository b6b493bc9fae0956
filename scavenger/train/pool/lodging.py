"""Hosts of a job's aggregators that are tenants of nodes on other machines, which other jobs use too.

A tenant is an agent that the pool starts for this job (`scavenger.train.pool.tenant`), and that joins it as that of a
rented VM does, for one aggregator. If the pool asks the job to leave a tenant, that is a notice for its aggregator
alone: the supervisor has others hold what it held, the process ends, and the one that follows gets another tenant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scavenger.train.engines.base import Exit, PreemptionNotice
from scavenger.train.engines.vm.agent_server import LOST_S
from scavenger.train.engines.vm.engine import HostEngine, HostSource
from scavenger.train.engines.vm.values import AgentStatus
from scavenger.train.names import aggregator_name
from scavenger.train.pool import protocol
from scavenger.train.pool.connection import LodgingConnection
from scavenger.train.transport.messages.values import ProcessConfiguration

_ROLE = "aggregator"
_SEQUENCER = aggregator_name(0)
_THREADS = 4
"""Threads of an aggregator, as far as its machine has so many processors."""
_LEAVES_S = 3600.0
"""Time that a job has to leave a tenant: the pool waits."""
_AGAIN_S = 5.0
"""How often the pool is asked again for a tenant that it had no room for, seconds."""
_ANSWER_S = 20.0
"""How long the answer of the pool is waited for, seconds."""


@dataclass(slots=True)
class _Lodging:
    """The tenant of one aggregator.

    Attributes:
        intent: The name by which its agent joins.
        asked_at: When the pool was asked for it, monotonic seconds.
        node: The name of its node; empty until the pool has answered.
        error: Why the pool has none.
        vacating: Whether the pool has asked the job to leave it.
    """

    intent: str
    asked_at: float
    node: str = ""
    error: str = ""
    vacating: bool = False


class Lodgings(HostSource):
    """Has the pool start an agent for each of a job's aggregators; its workers are on this machine or on VMs.

    Args:
        folder: The folder of the pool.
        join: How the job introduces itself.
        workers_here: Whether the workers, and the aggregator that sequences, run on this machine; else workers run on
            VMs, and that aggregator as a tenant, too.
        checkpoints: Whether the job writes some, so that the aggregator that sequences can leave its node after one.

    Attributes:
        join: See the arguments.
    """

    rents_aggregators = False

    def __init__(
        self, folder: Path, join: protocol.PoolJoin, *, workers_here: bool = False, checkpoints: bool = False
    ) -> None:
        self._folder, self.join = folder, join
        self._workers_here, self._checkpoints = workers_here, checkpoints
        self._lodgings: dict[str, _Lodging] = {}  # by aggregator
        self._told: set[str] = set()  # those of which was told that they wait
        self._count = 0
        self._used = self._used_before = protocol.Bill(0.0, 0.0)

    def attach(self, engine: HostEngine) -> None:
        super().attach(engine)
        self._agents, self._clock = engine.agents, engine.clock
        self._pool = LodgingConnection(self._folder, self.join, self._clock)
        self.hosts = (self._agents.address,) if self._workers_here else ()

    # ---- what the job asks ---------------------------------------------------------------------------------

    def report(self, view: int, steps_s: Sequence[float], step_bytes: int) -> None:
        """Tell the pool of the job's steps, by which it places its aggregators; see `Tenants.report`."""
        if steps_s:
            self._pool.report(view, steps_s, step_bytes)

    def used(self) -> tuple[float, float]:
        """What the job's tenants have used, as far as the pool has told: processor seconds, and US dollars."""
        return self._used_before.cpu_s + self._used.cpu_s, self._used_before.usd + self._used.usd

    # ---- what the engine asks ------------------------------------------------------------------------------

    def wait_for(self, config: ProcessConfiguration) -> None:
        if config.role == _ROLE and config.name not in self._lodgings:
            self._lodge(config.name)

    def poll(self) -> None:
        for notice in self._pool.receive():
            self._take(notice)
        for candidate in self._agents.candidates():
            if any(lodging.intent == candidate.intent for lodging in self._lodgings.values()):
                self._agents.accept(candidate)  # it is on no VM of its own whose identity could be verified
        self._ask_again()

    def note_ends(self, exits: list[Exit]) -> list[Exit]:
        leaving = {name for name, lodging in self._lodgings.items() if lodging.vacating}
        exits = [
            replace(ended, reason=f"has left {self._lodgings[ended.name].node}")
            if ended.name in leaving
            else ended
            for ended in exits
        ]
        for ended in exits:
            self._ended(ended.name)
        return exits

    def vacated(self, name: str) -> None:
        """See `Engine.vacated`: the process ends, and the next one is elsewhere."""
        if (lodging := self._lodgings.get(name)) is not None and lodging.vacating:
            self.engine.kill(name)

    def missed(self, name: str, within_s: float) -> str:
        lodging = self._lodgings.get(name)
        if lodging is None:
            return super().missed(name, within_s)
        why = (
            lodging.error or "has not answered"
            if not lodging.node
            else f"started it on {lodging.node} in vain"
        )
        return f"had no place in the pool of aggregators, which {why}"

    def runs_here(self, config: ProcessConfiguration) -> bool:
        return super().runs_here(config) or (
            self._workers_here and (config.role != _ROLE or config.name == _SEQUENCER)
        )

    def suits(self, config: ProcessConfiguration, type_: str, vm: AgentStatus) -> bool:
        if config.role == _ROLE:
            return vm.spec.role == _ROLE and vm.spec.type == config.name
        return super().suits(config, type_, vm)

    def close(self) -> None:
        """See `HostSource.close`; the tenants end, too."""
        self._pool.close()
        if self._workers_here:
            self._agents.close()  # nobody else uses them

    # ---- tenants -------------------------------------------------------------------------------------------

    def _lodge(self, name: str) -> None:
        """Ask the pool for a tenant."""
        self._count += 1
        intent = f"{self.join.job_id[:8]}-{name}-{self._count}"
        secret = self._agents.expect(intent, role="aggregator", vm=name, threads=_THREADS)
        lodging = self._lodgings[name] = _Lodging(intent, self._clock())
        request = protocol.Lodge(
            name,
            self._agents.endpoint,
            self._agents.server_key,
            intent,
            secret,
            pinned=name == _SEQUENCER,
            movable=self._checkpoints,
        )
        if not self._pool.send(request):
            lodging.error = "does not answer"

    def _leave(self, name: str, reason: str) -> None:
        """Give up the tenant of an aggregator: what runs there is lost."""
        lodging = self._lodgings.pop(name)
        self._pool.send(protocol.ReleaseTenant(lodging.intent))
        self._agents.gone(lodging.intent, reason)

    def _ask_again(self) -> None:
        now = self._clock()
        for name, lodging in [*self._lodgings.items()]:
            waits_s = _AGAIN_S if lodging.error else _ANSWER_S
            if not lodging.node and now - lodging.asked_at > waits_s:
                self._leave(name, lodging.error or "the pool has not answered")
                self._lodge(name)

    def _take(self, notice: protocol.Notice) -> None:
        match notice:
            case protocol.Bill():
                if notice.cpu_s < self._used.cpu_s:  # another manager, which has not seen what was before
                    self._used_before = protocol.Bill(*self.used())
                self._used = notice
                return
            case _:
                name = next((n for n, one in self._lodgings.items() if one.intent == notice.intent), None)
        if name is None:
            return
        lodging = self._lodgings[name]
        match notice:
            case protocol.Lodged():
                lodging.node, lodging.error = notice.node, notice.error
                if notice.error and name not in self._told:
                    self._told.add(name)
                    reason = f"waits for a place in the pool of aggregators, which {notice.error}"
                    self.engine.notify(PreemptionNotice(name, None, reason, alone=True))
                elif notice.node:
                    self._told.discard(name)
            case protocol.Vacate():
                lodging.vacating = True
                self.engine.notify(PreemptionNotice(name, _LEAVES_S, notice.reason, alone=True))
            case protocol.Evicted():
                self._leave(name, notice.reason)
                if self.engine.waits(name):
                    self._lodge(name)

    def _ended(self, name: str) -> None:
        """Give up the tenant of an aggregator that was to leave it, or that was lost with it."""
        if (lodging := self._lodgings.get(name)) is None:
            return
        status = next((vm for vm in self._agents.vms() if vm.spec.intent == lodging.intent), None)
        silent = status is None or status.heard_s_ago > LOST_S
        if lodging.vacating or silent:
            self._leave(name, "its aggregator has left it")
