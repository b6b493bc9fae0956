"""The manager of a pool: one process, one thread, which starts, watches and ends the aggregators of many jobs.

A tenant is an aggregator of one job: an ordinary process of a training job, except that the manager is its parent, and
holds it to its share of a node (`shares`). Its job is asked for everything else: it gives it its keys, its memory and
its log, kills it, and starts another when it has ended. The manager ends a tenant when the connection of its job ends.
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
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from scavenger.errors import ConfigurationError, TransientError
from scavenger.train.engines.fork_server import Ended, Forked, Reap
from scavenger.train.engines.forking import kill_group
from scavenger.train.pool import protocol
from scavenger.train.pool.placement import Node, NodeUse, choose_node
from scavenger.train.pool.shares import Shares, TenantGroup
from scavenger.train.pool.use import TenantUse

__all__ = ["Manager"]

_SAMPLE_S = 1.0
"""How often the use of tenants is measured, seconds."""
_LOCK = "manager.lock"
_BACKLOG = 64
_OTHER_VERSION = "found the pool served by another version of Scavenger, which must end first"

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Job:
    """A connection: of a job once it has joined, before that of anyone. `refused`: why it gets no tenant."""

    connection: socket.socket
    id: str = ""
    name: str = ""
    refused: str = "did not join the pool"


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
        self._listener, self._lock, self._nodes = listener, lock, tuple(nodes)
        self._shares, self._idle_s = shares, idle_s
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._jobs: list[_Job] = []
        self._tenants: dict[int, _Tenant] = {}  # by process id
        self._since, self._busy_at, self._sampled_at = time.time(), time.monotonic(), time.monotonic()
        self._count = 0
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
        log.info("serves %d nodes, shares by %s", len(self._nodes), self._shares.way)
        while self._running and not self._is_idle():
            for key, _ in self._selector.select(_SAMPLE_S):
                key.data()
            self._sample()

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
        job = _Job(connection)
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
            case protocol.Join():
                job.id, job.name = request.job_id, request.job
                job.refused = "" if request.protocol == protocol.PROTOCOL else _OTHER_VERSION
            case protocol.Launch() if len(fds) >= 2:
                protocol.send_packet(job.connection, self._launch(job, request, fds))
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

    # ---- tenants -------------------------------------------------------------------------------------------

    def _launch(self, job: _Job, request: protocol.Launch, fds: list[int]) -> Forked:
        node = choose_node(self._uses())
        if node is None or job.refused:
            reason = job.refused or "found no room: every node of the pool has all its tenants"
            return Forked(request.number, 0, reason)
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

    def _on(self, node: Node) -> list[_Tenant]:
        return [tenant for tenant in self._tenants.values() if tenant.node is node]

    def _uses(self) -> list[NodeUse]:
        return [
            NodeUse(node, sum(tenant.use.load_cpus for tenant in self._on(node)), len(self._on(node)))
            for node in self._nodes
        ]

    @staticmethod
    def _tenant_bytes(node: Node) -> int:
        """Private memory that a tenant may use: all together then stay within the node's."""
        return node.memory_bytes // node.tenants_max

    def load(self) -> protocol.PoolLoad:
        """The nodes, the tenants, and what they use."""
        uses = self._uses()
        return protocol.PoolLoad(
            pid=os.getpid(),
            since=self._since,
            shares=self._shares.way,
            tenant_memory_bytes=min(self._tenant_bytes(node) for node in self._nodes),
            free=sum(use.node.tenants_max - use.tenants for use in uses),
            nodes=tuple(
                protocol.NodeLoad(
                    use.node,
                    use.load_cpus,
                    sum(tenant.use.memory_bytes for tenant in self._on(use.node)),
                    use.tenants,
                )
                for use in uses
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
        )


def _keep_at_memory_fd(fd: int | None) -> None:
    """Have a copy of a descriptor, or of none, at the number at which tenants find their block.

    The number is always in use, so that no other descriptor gets it, and keeps no block longer than its job does.
    """
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing if fd is None else fd, protocol.MEMORY_FD, inheritable=False)
    os.close(nothing)
