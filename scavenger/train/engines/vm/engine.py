"""Engine that runs a job's processes on hosts whose agents have joined (`scavenger.train.engines.vm.agent_server`).

A source has the agents started: on rented VMs, on nodes of a Ray cluster, or in the pool of aggregators. The
coordinator runs on the leader's machine, which is not preempted. A process waits until a host of its role has capacity
for it, and `needs` returns how many VMs are needed.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from scavenger.errors import CleanupError
from scavenger.train.checkpoints.files import local_path
from scavenger.train.checkpoints.remote_folder import SCHEME
from scavenger.train.engines.base import GRACE_S, Exit, PreemptionNotice
from scavenger.train.engines.gpus import gpus_for, only
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.engines.vm import messages as m
from scavenger.train.engines.vm.agent_server import LOST_S, AgentServer
from scavenger.train.engines.vm.remote import RemoteProcess, RemoteProcesses
from scavenger.train.engines.vm.values import AgentStatus, Gone, ProcessEvent, Role
from scavenger.train.transport.messages.values import ProcessConfiguration
from scavenger.train.transport.sockets import is_own

_PLACE_MAX_S = 900.0
_CLOSING_S = 1.0
_MARGIN_S = LOST_S + 5.0
"""How long `stop` waits beyond the agents' own deadlines: until a silent agent counts as lost."""
_TICK_S = 0.02


@dataclass(frozen=True, slots=True)
class Needs:
    """Numbers of processes that have not ended, whether placed or waiting.

    Attributes:
        workers: Number of workers by VM type.
        aggregators: Number of aggregators.
    """

    workers: Mapping[str, int]
    aggregators: int


@dataclass(slots=True)
class _Process(RemoteProcess):
    env: dict[str, str] = field(default_factory=dict)
    address: str | None = None
    vm: str = ""
    launch: int = 0
    intent: str = ""
    placed_at: str = ""
    node: str = ""
    gpu: str = ""
    is_beside: bool = False  # an aggregator on a VM for workers

    @property
    def waits(self) -> bool:
        """Whether the process has no VM yet."""
        return not (self.ended or self.launch)


def role_of(config: ProcessConfiguration) -> Role:
    """For VMs, every process is a worker but an aggregator."""
    return "aggregator" if config.role == "aggregator" else "worker"


class HostSource:
    """VMs, which a fleet rents as `HostEngine.needs` says. A subclass has agents started on other hosts.

    Attributes:
        engine: The engine that uses these hosts.
        hosts: See `Engine.hosts`.
        rents_aggregators: Whether aggregators are on VMs, too.
        aggregators_here: Whether aggregators run where the leader does, and so use its files.
    """

    engine: HostEngine
    hosts: tuple[str, ...] = ()
    rents_aggregators = True
    aggregators_here = False

    def attach(self, engine: HostEngine) -> None:
        """Note the engine, before it starts anything."""
        self.engine = engine

    def runs_here(self, config: ProcessConfiguration) -> bool:
        """Whether a process runs on the leader's machine."""
        return config.role == "coordinator" or (self.aggregators_here and config.role == "aggregator")

    def suits(self, config: ProcessConfiguration, type_: str, vm: AgentStatus) -> bool:
        """Whether a process that wants a type of VM may run on a host that has room for it."""
        # all aggregators use one VM type
        return vm.spec.role == role_of(config) and (
            vm.spec.role == "aggregator" or type_ in ("", vm.spec.type)
        )

    @property
    def sharing(self) -> frozenset[str] | None:
        """See `Engine.sharing`."""
        return None

    def wait_for(self, config: ProcessConfiguration) -> None:
        """Note a process that waits for a host."""

    def poll(self) -> None:
        """Note what has happened to the hosts; called before what has happened on them is handled."""

    def note_ends(self, exits: list[Exit]) -> list[Exit]:
        """Note processes that have ended; returns them with what is known beyond that."""
        return exits

    def missed(self, name: str, within_s: float) -> str:
        """Why a process that has waited too long has no place, as a cause of its end."""
        return f"no VM could be had for it within {within_s:g} s"

    def vacated(self, name: str) -> None:
        """See `Engine.vacated`."""

    def close(self) -> None:
        """Give the hosts up, once nothing runs on them."""


class HostEngine(RemoteProcesses[_Process]):
    """Runs each role of a job in a process of its own, workers and aggregators on hosts of a source.

    Args:
        log_dir: Local folder to which output is copied, one file per process.
        agents: Connections to the hosts, which outlive the engine. Only one engine at a time may use them.
        source: Has the agents started; None: a fleet does, on VMs.
        place_max_s: How long a process may wait for a VM with capacity before it counts as ended.
        command: Command of each process; None: the training process, with the Python of its machine.
        local: Runs the processes of the leader's machine; None for an engine that shares no memory with them.
        clock: Returns monotonic seconds.

    Attributes:
        agents, source: See the arguments.
    """

    def __init__(
        self,
        log_dir: Path,
        agents: AgentServer,
        *,
        source: HostSource | None = None,
        place_max_s: float = _PLACE_MAX_S,
        command: Sequence[str] | None = None,
        local: ProcessEngine | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(log_dir, clock)
        self.agents, self._place_max_s = agents, place_max_s
        self._command = () if command is None else tuple(command)
        self._shares_memory = local is not None
        self._local = ProcessEngine(log_dir, -1, command=command) if local is None else local
        self._locals: set[str] = set()
        self._notices: list[PreemptionNotice] = []
        self._avoided: frozenset[str] = frozenset()
        self._retired: frozenset[str] = frozenset()
        self._released: set[str] = set()
        self.source = HostSource() if source is None else source
        self.source.attach(self)

    def launch(
        self,
        config: ProcessConfiguration,
        *,
        env: dict[str, str] | None = None,
        host: str | None = None,
        vm: str = "",
    ) -> int:
        """See `Engine.launch`; the leader's own address as `host` means no place in particular."""
        self._check_launch(config.name)
        if self.source.runs_here(config):
            if not self._shares_memory:
                config = msgspec.structs.replace(config, memory_fd=-1)
            if config.role == "coordinator" and not is_own(self.agents.address):
                # this machine may be unable to reach itself by its public address
                port = config.coordinator.rpartition(":")[2]
                config = msgspec.structs.replace(config, coordinator=f"tcp://127.0.0.1:{port}")
            pid = self._local.launch(config, env=env)
            self._processes.pop(config.name, None)
            self._locals.add(config.name)
            return pid
        if host is not None and not any(seen.address == host for seen in self.agents.vms()):
            raise ValueError(f"there is no VM at {host!r}")
        self._locals.discard(config.name)
        self._processes[config.name] = _Process(
            config,
            self._new_log(config.name),
            self.clock() + self._place_max_s,
            env=dict(env or {}),
            address=host,
            vm=vm,
        )
        self._place_waiting()
        self.source.wait_for(config)
        return 0

    def needs(self) -> Needs:
        """Return the processes that need VMs: all whose end has not been seen."""
        workers = Counter(
            one.vm for one in self._processes.values() if not one.ended and one.config.role != "aggregator"
        )
        return Needs(dict(workers), len(self._aggregators) if self.source.rents_aggregators else 0)

    @property
    def _aggregators(self) -> list[_Process]:
        """The aggregators on hosts, or that wait for one."""
        return [one for one in self._processes.values() if not one.ended and one.config.role == "aggregator"]

    def refuse_waiting(self, vm: str, count: int, reason: str) -> None:
        """End `count` of the workers that wait for a VM of a type, newest first: no more VMs will be started."""
        waiting = self._waiting(vm)
        for process in waiting[len(waiting) - min(count, len(waiting)) :]:
            self._end(process, -signal.SIGKILL, reason, refused=True)

    def waiting(self, vm: str) -> int:
        """Return the number of workers that wait for a VM of a type."""
        return len(self._waiting(vm))

    def waits(self, name: str) -> bool:
        """Whether a process waits for a host."""
        return name in self._processes and self._processes[name].waits

    @property
    def has_all_workers(self) -> bool:
        """Whether workers were launched, and each has a host."""
        workers = [
            one for one in self._processes.values() if role_of(one.config) == "worker" and not one.ended
        ]
        return bool(workers) and not any(one.waits for one in workers)

    def notify(self, notice: PreemptionNotice) -> None:
        """Give a notice of the source to the job."""
        self._notices.append(notice)

    def _waiting(self, vm: str) -> list[_Process]:
        return [
            process
            for process in self._processes.values()
            if process.waits and process.vm == vm and process.config.role != "aggregator"
        ]

    def poll(self) -> list[Exit]:
        self.source.poll()
        self._receive()
        self._place_waiting()
        for process in self._waited_too_long():
            self._lose(process, self.source.missed(process.config.name, self._place_max_s))
        return self.source.note_ends(self._take_exits() + self._local.poll())

    def vacated(self, name: str) -> None:
        self.source.vacated(name)

    @property
    def hosts(self) -> tuple[str, ...]:
        return self.source.hosts

    @property
    def sharing(self) -> frozenset[str] | None:
        return self.source.sharing

    @property
    def retired(self) -> frozenset[str]:
        """Intents of the VMs on which nothing is placed any more; see `retire`."""
        return self._retired

    def _waits(self, process: _Process, now: float) -> bool:
        return process.waits and now > process.place_by

    def preemption_notices(self) -> tuple[PreemptionNotice, ...]:
        """See `Engine.preemption_notices`; a time that is set later is told again."""
        notices, self._notices = self._notices, []
        return tuple(one for one in notices if not self._processes[one.name].ended)

    def avoid(self, hosts: Collection[str]) -> None:
        """See `Engine.avoid`; an avoided VM without processes is replaced by another one."""
        self._avoided = frozenset(hosts)

    @property
    def avoided(self) -> frozenset[str]:
        """Names of the machines that get no more workers: VMs by their addresses, nodes by their names."""
        return self._avoided

    def retire(self, intents: Collection[str]) -> None:
        """Place no processes any more on the VMs of these intents, and of no others: they are about to end."""
        self._retired = frozenset(intents)

    @property
    def placed(self) -> Mapping[str, int]:
        """Number of processes on each VM by its intent. As in `needs`, one counts until its end has been seen here.

        An aggregator beside workers takes no place of theirs, and keeps its VM until it has left.
        """
        here = [one for one in self._processes.values() if one.launch and not one.ended]
        counts = Counter(one.intent for one in here if not one.is_beside)
        counts.update({one.intent for one in here if one.is_beside and not counts[one.intent]})
        return counts

    @property
    def released(self) -> frozenset[str]:
        """Intents of the VMs whose last process has ended in order, so that nothing takes its place there."""
        return frozenset(self._released)

    def kill(self, name: str) -> None:
        if name in self._locals:
            self._local.kill(name)
            return
        process = self._processes[name]
        if process.ended:
            return
        if process.launch:
            self.agents.send(process.intent, m.Kill(process.launch))
        else:
            self._end(process, -signal.SIGKILL)

    def stop(self, names: Sequence[str] | None = None, *, grace_s: float = GRACE_S) -> None:
        """See `Engine.stop`; a process whose VM counts as lost counts as ended."""
        chosen = names if names is not None else self.running
        local = [name for name in chosen if name in self._locals]
        remote = {name: self._processes[name] for name in chosen if name not in self._locals}
        for process in remote.values():
            if process.launch and not process.ended:
                self.agents.send(process.intent, m.Stop(process.launch, grace_s))
            elif not process.ended:
                self._end(process, -signal.SIGTERM)
        deadline = self.clock() + 2 * grace_s + _MARGIN_S
        try:
            self._local.stop(local, grace_s=grace_s)
        finally:
            while (left := [one for one in remote.values() if not one.ended]) and self.clock() < deadline:
                for process in left:
                    self.agents.give_up(process.intent, process.launch)
                self._receive()
                time.sleep(_TICK_S)
        self._exits = [ended for ended in self._exits if ended.name not in remote]
        if left:
            where = ", ".join(one.where for one in left)
            raise CleanupError(f"the end of these processes cannot be confirmed: {where}; end their VMs")

    def close(self) -> None:
        """See `Engine.close`; the VMs keep running."""
        if self._closed:
            return
        self._closed = True
        with ExitStack() as ending:  # whatever fails
            ending.callback(self.source.close)
            ending.callback(self.agents.unattended)
            ending.callback(self._local.close)
            self.stop(grace_s=_CLOSING_S)

    @property
    def in_doubt(self) -> bool:
        """See `Engine.in_doubt`: all VMs are silent, or were until recently."""
        return self.agents.in_doubt or self.agents.unheard

    @property
    def leader_host(self) -> str:
        return self.agents.address

    @property
    def leader_port(self) -> int:
        """See `Engine.leader_port`: the port after the one by which VMs join, if that was chosen."""
        return self.agents.port + 1 if self.agents.port else 0

    def reachable(self, url: str) -> str:
        """See `Engine.reachable`: a folder of this machine is shared with aggregators through their agents."""
        path = local_path(url)
        if path is None or self.source.aggregators_here:
            return url
        self.agents.share(path)
        return f"{SCHEME}{path}"

    @property
    def running(self) -> tuple[str, ...]:
        return super().running + self._local.running

    def pid(self, name: str) -> int:
        return self._local.pid(name) if name in self._locals else super().pid(name)

    def host(self, name: str) -> str:
        return self.agents.address if name in self._locals else super().host(name)

    def node(self, name: str) -> str:
        return self.host(name) if name in self._locals else self._processes[name].node

    def place(self, name: str) -> str:
        return self.host(name) if name in self._locals else self._processes[name].intent

    def log(self, name: str) -> Path:
        return self._local.log(name) if name in self._locals else super().log(name)

    def suspended(self, name: str) -> bool:
        return self._local.suspended(name) if name in self._locals else super().suspended(name)

    def idle_s(self, name: str) -> float:
        return self._local.idle_s(name) if name in self._locals else super().idle_s(name)

    def sample_memory(self) -> dict[str, int]:
        return super().sample_memory() | self._local.sample_memory()

    def cap_logs(self) -> None:
        self._local.cap_logs()
        super().cap_logs()

    def show_stack(self, name: str) -> None:
        if name in self._locals:
            self._local.show_stack(name)
            return
        process = self._processes[name]
        if process.launch and not process.ended:
            self.agents.send(process.intent, m.ShowStack(process.launch))

    # ---- placement -----------------------------------------------------------------------------------------

    def _place_waiting(self) -> None:
        """Start waiting processes, in their order, on VMs with capacity."""
        for process in [one for one in self._processes.values() if one.waits]:
            role = role_of(process.config)
            able = [
                vm
                for vm in self.agents.free(role)
                if vm.spec.intent not in self._retired
                and not (role == "worker" and process.address is None and vm.node in self._avoided)
                and process.address in (None, vm.address)
                and self.source.suits(process.config, process.vm, vm)
            ]
            if able:
                self._start_on(process, min(able, key=self._is_left_and_load))

    def _is_left_and_load(self, vm: AgentStatus) -> tuple[bool, int]:
        """Whether a VM was left by its last process, so that it is about to be given back; and how many it has."""
        return not vm.processes and vm.spec.intent in self._released, len(vm.processes)

    def _start_on(self, process: _Process, vm: AgentStatus) -> None:
        config = process.config
        sharing = vm.spec.slots
        if vm.spec.role == "aggregator":
            sharing = max(1, min(sharing, len(self._aggregators)))
        threads = max(1, vm.spec.threads // (sharing * config.processes))
        config = msgspec.structs.replace(config, memory_fd=-1, threads=threads)
        needs_code = config.role != "aggregator"
        process.is_beside = not needs_code and vm.spec.role == "worker"
        process.gpu = self._gpus_on(vm, config.processes) if needs_code else ""
        env = {**only(process.gpu), **process.env} if process.gpu else process.env
        process.launch = self.agents.launch(vm.spec.intent, config, env, self._command, folder=needs_code)
        if not process.launch:
            return
        process.intent, process.placed_at, process.node = vm.spec.intent, vm.address, vm.node
        if not process.is_beside:
            self._released.discard(vm.spec.intent)

    def _gpus_on(self, vm: AgentStatus, processes: int) -> str:
        """Choose the GPUs of the next worker on a VM, which has one for each of their processes, or none."""
        held = [
            one.gpu
            for one in self._processes.values()
            if one.intent == vm.spec.intent and one.gpu and not one.ended
        ]
        return gpus_for([str(index) for index in range(vm.spec.slots * processes)], held, processes)

    # ---- events ----------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        processes = {process.launch: process for process in self._processes.values() if process.launch}
        for launch, event in self.agents.take_events():
            process = processes.get(launch)
            if process is not None and not process.ended:
                self._note(process, event)

    def _note(self, process: _Process, event: ProcessEvent) -> None:
        match event:
            case m.Placed():
                process.pid, process.host = event.pid, process.placed_at
            case m.Report():
                self._report(process, event)
            case m.Preemption():
                self._notices.append(PreemptionNotice(process.config.name, event.in_s, event.reason))
            case Gone():
                self._lose(process, event.reason)

    def _end(self, process: _Process, status: int, reason: str = "", *, refused: bool = False) -> None:
        if not process.is_beside:
            (self._released.discard if status else self._released.add)(process.intent)
        super()._end(process, status, reason, refused=refused)
