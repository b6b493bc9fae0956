"""The manager of a pool: one process, one thread, which starts, watches and ends the aggregators of many jobs.

A tenant is an aggregator of one job: an ordinary process of a training job, except that the manager is its parent, and
holds it to its share of a node (`shares`). Its job is asked for everything else: it gives it its keys, its memory and
its log, kills it, and starts another when it has ended. The manager ends a tenant when the connection of its job ends.

Which tenant is on which node, `planning` decides, by what the jobs report of their steps. The manager then has tenants
compute on other processors; they notice nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import selectors
import signal
import socket
import subprocess
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from scavenger.errors import ConfigurationError, TransientError
from scavenger.scheduler.cycles import speed_loss
from scavenger.train.engines.fork_server import Ended, Forked, Reap
from scavenger.train.engines.forking import kill_group
from scavenger.train.pool import protocol
from scavenger.train.pool.measuring import JobMeter, Measured, Used, charged_step_time
from scavenger.train.pool.placement import Node
from scavenger.train.pool.planning import Move, PoolPlan, moves, touched
from scavenger.train.pool.shares import Shares, TenantGroup, move_to
from scavenger.train.pool.use import TenantUse

__all__ = ["Manager"]

_SAMPLE_S = 1.0
"""How often the use of tenants is measured, seconds."""
_PERIOD_S = 10.0
"""How often all jobs are packed again, seconds."""
_GONE_S = 30.0
"""How long the place of a tenant that has ended is kept, seconds: its job starts it again, or has given it up."""
_CHANGES_MAX = 10
_LOCK = "manager.lock"
_BACKLOG = 64
_OTHER_VERSION = "found the pool served by another version of Scavenger, which must end first"

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Job:
    """A connection: of a job once it has joined, before that of anyone.

    Attributes:
        key: Its name in the plan.
        refused: Why it gets no tenant.
        latest: What was measured of it last.
        ended_cpu_s: Processor time of its tenants that have ended.
        gone: When tenants were released that have not been started again, by name.
    """

    connection: socket.socket
    key: str
    id: str = ""
    name: str = ""
    refused: str = "did not join the pool"
    meter: JobMeter = field(default_factory=JobMeter)
    latest: Measured | None = None
    ended_cpu_s: float = 0.0
    gone: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Tenant:
    job: _Job
    name: str
    node: Node
    child: subprocess.Popen[bytes]
    group: TenantGroup
    watched: int  # a pidfd, readable at its end
    since: float
    use: TenantUse = field(default_factory=TenantUse)


class Manager:
    """Serves the jobs of this user on this machine; `open` makes one, `run` serves, `close` ends all tenants.

    Args:
        listener: The socket that jobs connect to.
        lock: Descriptor that locks the pool's folder; `close` closes it.
        nodes: The nodes of the pool.
        shares: How tenants share a node.
        idle_s: Seconds without a job after which `run` returns; None: never.
    """

    def __init__(
        self, listener: socket.socket, lock: int, nodes: Sequence[Node], shares: Shares, idle_s: float | None
    ) -> None:
        self._listener, self._lock = listener, lock
        self._plan, self._changes = PoolPlan.of(nodes), deque[protocol.Change](maxlen=_CHANGES_MAX)
        self._shares, self._idle_s = shares, idle_s
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._jobs: list[_Job] = []
        self._tenants: dict[int, _Tenant] = {}  # by process id
        self._since, self._busy_at = time.time(), time.monotonic()
        self._sampled_at = self._packed_at = self._busy_at
        self._count = self._joined = 0
        self._running = True

    @classmethod
    def open(
        cls, folder: Path, nodes: Sequence[Node], shares: Shares, *, idle_s: float | None = None
    ) -> Manager:
        """Begin to listen.

        Args:
            folder: See `protocol.pool_folder`.
            nodes: The nodes of the pool.
            shares: How tenants share a node.
            idle_s: Seconds without a job after which the manager ends; None: never.

        Raises:
            ConfigurationError: If the folder cannot be used.
            TransientError: If another manager serves there.
        """
        protocol.private_folder(folder)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(lock, 20).decode(errors="replace")
            os.close(lock)
            raise TransientError(f"process {holder} serves the pool of this machine already") from None
        os.ftruncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())
        path = folder / protocol.SOCKET
        path.unlink(missing_ok=True)  # left by a manager that was killed
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            listener.bind(str(path))
        except OSError as error:
            os.close(lock)
            raise ConfigurationError(f"{path}: {error}; name a shorter folder for the pool") from None
        listener.listen(_BACKLOG)
        shares.sweep()
        return cls(listener, lock, nodes, shares, idle_s)

    def run(self) -> None:
        """Serve until asked to end by a signal, or until there has been no job for a while."""
        ended, wakeup = socket.socketpair()
        with ended, wakeup:
            wakeup.setblocking(False)
            # the selector waits on through a signal, but not when this becomes readable
            signal.set_wakeup_fd(wakeup.fileno())
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: None)
            self._selector.register(ended, selectors.EVENT_READ, self._end)
            try:
                self._serve()
            finally:
                self._selector.unregister(ended)
                signal.set_wakeup_fd(-1)

    def _serve(self) -> None:
        _keep_at_memory_fd(None)
        log.info("serves %d nodes, shares by %s", len(self._plan.nodes), self._shares.way)
        while self._running and not self._is_idle():
            for key, _ in self._selector.select(_SAMPLE_S):
                key.data()
            self._sample()
            self._pack()

    def close(self) -> None:
        """End all tenants and stop listening."""
        with contextlib.suppress(OSError):
            os.unlink(self._listener.getsockname())
        self._listener.close()
        for job in self._jobs.copy():
            self._leave(job)
        self._selector.close()
        os.close(self._lock)

    def _end(self) -> None:
        self._running = False

    def _is_idle(self) -> bool:
        if self._idle_s is None or self._jobs:
            self._busy_at = time.monotonic()
        return self._idle_s is not None and time.monotonic() - self._busy_at > self._idle_s

    # ---- jobs ----------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if protocol.peer_of(connection)[1] != os.getuid():
            connection.close()
            return
        connection.setblocking(False)
        self._joined += 1
        job = _Job(connection, f"#{self._joined}")
        self._jobs.append(job)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._receive(job))

    def _receive(self, job: _Job) -> None:
        if job not in self._jobs:  # ended by what has just been handled
            return
        fds: list[int] = []
        try:
            packet, fds = protocol.receive_packet(job.connection)
            if not packet:
                self._leave(job)
                return
            self._take(job, protocol.decode_request(packet), fds)
        except BlockingIOError:
            return
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            log.warning("the connection of job %s is ended: %s", job.id or "unknown", error)
            self._leave(job)
        finally:
            for fd in fds:
                os.close(fd)

    def _take(self, job: _Job, request: protocol.Request, fds: list[int]) -> None:
        match request:
            case protocol.Ask():
                protocol.send_packet(job.connection, self.load())
            case protocol.Drain():
                protocol.send_packet(job.connection, self._drain(request))
            case protocol.Join() if not job.id:
                job.id, job.name, job.key = request.job_id, request.job, f"{request.job_id[:8]}{job.key}"
                job.refused = "" if request.protocol == protocol.PROTOCOL else _OTHER_VERSION
            case protocol.Launch() if len(fds) >= 2:
                protocol.send_packet(job.connection, self._launch(job, request, fds))
            case protocol.Progress():
                self._progress(job, request)
            case Reap():
                self._release(job, request.pid)
            case _:
                raise ValueError(f"not expected: {type(request).__name__}")

    def _leave(self, job: _Job) -> None:
        """End a connection with everything that belongs to it, unless that has been done."""
        if job not in self._jobs:
            return
        self._jobs.remove(job)
        self._selector.unregister(job.connection)
        job.connection.close()
        left = [pid for pid, tenant in self._tenants.items() if tenant.job is job]
        for pid in left:
            kill_group(pid)
        for pid in left:
            self._release(job, pid)
        self._adopt(self._plan.without_job(job.key))

    # ---- the plan ------------------------------------------------------------------------------------------

    def _progress(self, job: _Job, request: protocol.Progress) -> None:
        """Add a job's steps; enough of them are a measurement, by which tenants may be moved."""
        now, used = time.monotonic(), {}
        for pid, tenant in self._tenants.items():
            if tenant.job is job and tenant.watched >= 0:
                tenant.use.sample(pid, now)
                used[tenant.name] = Used(tenant.use.cpu_s, tenant.use.waited_s)
        found = job.meter.note(request.view, request.steps_s, used, now)
        if found is None:
            return
        plan, job.meter.alone = self._plan.after_steps(job.key, job.meter.alone, found)
        job.latest = found
        self._adopt(plan)

    def _drain(self, request: protocol.Drain) -> protocol.Drained:
        if request.node not in self._plan.nodes:
            return protocol.Drained(0, f"the pool has no node {request.node}: {', '.join(self._plan.nodes)}")
        try:
            plan = self._plan.opened(request.node) if request.undo else self._plan.draining(request.node)
        except ValueError as error:
            return protocol.Drained(0, str(error))
        return protocol.Drained(self._adopt(plan))

    def _pack(self) -> None:
        """Pack the jobs at the end of a period, without the places of tenants that do not come back."""
        now = time.monotonic()
        if now - self._packed_at < _PERIOD_S:
            return
        self._packed_at = now
        plan = self._plan
        for job in self._jobs:
            for name in [name for name, at in job.gone.items() if now - at > _GONE_S]:
                del job.gone[name]
                plan = plan.without_tenant(job.key, name)
        self._adopt(plan.period() if plan.tenants else plan)

    def _adopt(self, plan: PoolPlan) -> int:
        """Carry out a plan; returns how many tenants it moves."""
        before, self._plan = self._plan, plan
        moved = list(moves(before, plan))
        for move in moved:
            self._move(move)
        changed = touched(before, plan)
        for job in self._jobs:
            if job.key in changed:
                job.meter.restart()
        if moved or before.in_use != plan.in_use:
            self._changes.append(
                protocol.Change(time.time(), _described(before, plan, moved), plan.reason, len(plan.in_use))
            )
            log.info("%s: %s", self._changes[-1].what, plan.reason)
        return len(moved)

    def _move(self, move: Move) -> None:
        for pid, tenant in self._tenants.items():
            if (tenant.job.key, tenant.name) == (move.job, move.tenant):
                tenant.node = move.node
                if tenant.watched >= 0:
                    move_to(pid, move.node.processors)

    # ---- tenants -------------------------------------------------------------------------------------------

    def _launch(self, job: _Job, request: protocol.Launch, fds: list[int]) -> Forked:
        plan = None if job.refused else self._plan.with_tenant(job.key, request.name, self._loads())
        node = None if plan is None else plan.node_of(job.key, request.name)
        if plan is None or node is None:
            reason = job.refused or "found no room: every node of the pool has all its tenants"
            return Forked(request.number, 0, reason)
        job.gone.pop(request.name, None)
        self._adopt(plan)
        standard_input, output, *memory = fds
        self._count += 1
        group = self._shares.group(str(self._count))
        if memory:
            _keep_at_memory_fd(memory[0])
        try:
            child = subprocess.Popen(
                list(request.command),
                stdin=standard_input,
                stdout=output,
                stderr=output,
                pass_fds=(protocol.MEMORY_FD,) if memory else (),
                start_new_session=True,
                env=request.env,
                preexec_fn=lambda: group.enter(node.processors, self._tenant_bytes(node)),
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            group.remove()
            return Forked(request.number, 0, f"could not be started in the pool: {error}")
        finally:
            _keep_at_memory_fd(None)
        pid = child.pid
        watched = os.pidfd_open(pid)
        tenant = _Tenant(job, request.name, node, child, group, watched, time.time())
        tenant.use.sample(pid, time.monotonic())
        self._tenants[pid] = tenant
        self._selector.register(watched, selectors.EVENT_READ, lambda: self._ended(tenant))
        log.info("started %s of job %s on %s, process %d", request.name, job.id, node.name, pid)
        return Forked(request.number, pid)

    def _ended(self, tenant: _Tenant) -> None:
        """Report an end; the job says when the process's id may be released."""
        if tenant.watched < 0:  # released by what has just been handled
            return
        self._unwatch(tenant)
        pid = tenant.child.pid
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        log.info("%s of job %s has ended with status %d", tenant.name, tenant.job.id, status)
        try:
            protocol.send_packet(tenant.job.connection, Ended(pid, status))
        except OSError:
            self._leave(tenant.job)

    def _release(self, job: _Job, pid: int) -> None:
        """Forget a tenant that has ended, or is about to, and release its process id."""
        tenant = self._tenants.get(pid)
        if tenant is None or tenant.job is not job:
            return
        del self._tenants[pid]
        job.ended_cpu_s += tenant.use.cpu_s
        job.gone[tenant.name] = time.monotonic()
        self._unwatch(tenant)
        tenant.child.wait()
        tenant.group.remove()

    def _unwatch(self, tenant: _Tenant) -> None:
        if tenant.watched >= 0:
            self._selector.unregister(tenant.watched)
            os.close(tenant.watched)
            tenant.watched = -1

    # ---- who uses what -------------------------------------------------------------------------------------

    def _sample(self) -> None:
        now = time.monotonic()
        if now - self._sampled_at >= _SAMPLE_S:
            self._sampled_at = now
            for pid, tenant in self._tenants.items():
                tenant.use.sample(pid, now)

    def _on(self, node: str) -> list[_Tenant]:
        return [tenant for tenant in self._tenants.values() if tenant.node.name == node]

    def _loads(self) -> dict[str, float]:
        """Processors that the tenants of each node use."""
        return {name: sum(tenant.use.load_cpus for tenant in self._on(name)) for name in self._plan.nodes}

    @staticmethod
    def _tenant_bytes(node: Node) -> int:
        """Private memory that a tenant may use: all together then stay within the node's."""
        return node.memory_bytes // node.tenants_max

    def load(self) -> protocol.PoolLoad:
        """The nodes, the tenants, the jobs, and what they use."""
        plan, loads = self._plan, self._loads()
        return protocol.PoolLoad(
            pid=os.getpid(),
            since=self._since,
            shares=self._shares.way,
            tenant_memory_bytes=min(self._tenant_bytes(node) for node in plan.nodes.values()),
            free=plan.free,
            nodes=tuple(
                protocol.NodeLoad(
                    node,
                    loads[name],
                    sum(tenant.use.memory_bytes for tenant in self._on(name)),
                    len(self._on(name)),
                    plan.planned(name),
                    name in plan.drained,
                )
                for name, node in plan.nodes.items()
            ),
            tenants=tuple(
                protocol.TenantLoad(
                    job_id=tenant.job.id,
                    job=tenant.job.name,
                    name=tenant.name,
                    node=tenant.node.name,
                    pid=pid,
                    since=tenant.since,
                    cpu_s=tenant.use.cpu_s,
                    load_cpus=tenant.use.load_cpus,
                    memory_bytes=tenant.use.memory_bytes,
                )
                for pid, tenant in self._tenants.items()
            ),
            jobs=tuple(self._use_of(job) for job in self._jobs if job.id),
            changes=tuple(self._changes),
        )

    def _use_of(self, job: _Job) -> protocol.JobUse:
        cpu_s = job.ended_cpu_s + sum(
            tenant.use.cpu_s for tenant in self._tenants.values() if tenant.job is job
        )
        alone, latest = job.meter.alone, job.latest
        if alone is None or latest is None:
            return protocol.JobUse(job.id, job.name, cpu_s)
        loss = speed_loss(charged_step_time(alone, latest), alone.step_time_s)
        return protocol.JobUse(job.id, job.name, cpu_s, alone.step_time_s, latest.step_time_s, loss)


def _described(before: PoolPlan, after: PoolPlan, moved: Sequence[Move]) -> str:
    """What has changed, in words."""
    words = [f"{name} begun" for name in sorted(after.in_use - before.in_use)]
    targets = Counter(move.node.name for move in moved)
    words += [f"{count} moved to {name}" for name, count in sorted(targets.items())]
    words += [f"{name} ended" for name in sorted(before.in_use - after.in_use)]
    return ", ".join(words)


def _keep_at_memory_fd(fd: int | None) -> None:
    """Have a copy of a descriptor, or of none, at the number at which tenants find their block.

    The number is always in use, so that no other descriptor gets it, and keeps no block longer than its job does.
    """
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing if fd is None else fd, protocol.MEMORY_FD, inheritable=False)
    os.close(nothing)
