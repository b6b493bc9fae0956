"""The manager of a pool: one process, one thread, which starts, watches and ends the aggregators of many jobs.

A tenant is an aggregator of one job: an ordinary process of a training job, held to its share of a node (`shares`). Its
job is asked for everything else: it gives it its keys and kills it, and starts another when it has ended. The manager
ends a tenant when the connection of its job ends.

Nodes are processors of this machine (`local_site`), or other machines that have joined (`remote_site`). Which tenant is
on which node, `planning` decides, by what the jobs report of their steps, for each place apart: a job stays at its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import selectors
import signal
import socket
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from scavenger.errors import ConfigurationError, TransientError
from scavenger.train.engines.fork_server import Forked, Reap
from scavenger.train.pool import protocol
from scavenger.train.pool.local_site import LocalSite, keep_at_memory_fd
from scavenger.train.pool.machines import ExpectedNode, Machines
from scavenger.train.pool.placement import Node
from scavenger.train.pool.remote_site import RemoteSite
from scavenger.train.pool.rental import PREFIX, RentedNodes
from scavenger.train.pool.shares import Shares
from scavenger.train.pool.site import JobConnection

_SAMPLE_S = 1.0
"""How often the use of tenants is measured, seconds."""
_TICK_S = 0.05
"""How often other machines are looked after, where they may join, seconds."""
_CHANGES_MAX = 10
_LOCK = "manager.lock"
_BACKLOG = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_OTHER_VERSION = "found the pool served by another version of Scavenger, which must end first"
_NOT_LISTENING = (
    "this pool listens for no other machines; serve it by `scavenger aggregators serve --listen ADDRESS`, with an "
    "address of this machine that they reach"
)

log = logging.getLogger(__name__)


class Manager:
    """Serves the jobs of this user; `open` makes one, `run` serves, `close` ends all tenants.

    Args:
        listener: The socket that jobs connect to.
        lock: Descriptor that locks the pool's folder; `close` closes it.
        nodes: The nodes of this machine.
        shares: How tenants share a node of this machine.
        machines: Where other machines join, which `close` closes; None if none can.
        rental: Rents nodes, and has begun to; `close` ends them. None if none are rented.
        idle_s: Seconds without a job after which `run` returns; None: never.
    """

    def __init__(
        self,
        listener: socket.socket,
        lock: int,
        nodes: Sequence[Node],
        shares: Shares,
        machines: Machines | None,
        rental: RentedNodes | None,
        idle_s: float | None,
    ) -> None:
        self._listener, self._lock = listener, lock
        self._machines, self._rental, self._idle_s = machines, rental, idle_s
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._local = LocalSite(nodes, shares, self._selector)
        self._remote: dict[str, RemoteSite] = {}  # by place
        self._jobs: dict[JobConnection, LocalSite | RemoteSite | None] = {}  # None before it has joined
        self._since, self._busy_at = datetime.now(UTC).timestamp(), time.monotonic()
        self._sampled_at = self._busy_at
        self._joined = 0
        self._running = True

    @classmethod
    def open(
        cls,
        folder: Path,
        nodes: Sequence[Node],
        shares: Shares,
        *,
        machines: Machines | None = None,
        rental: RentedNodes | None = None,
        idle_s: float | None = None,
    ) -> Manager:
        """Begin to listen.

        Args:
            folder: See `protocol.pool_folder`.
            nodes: The nodes of this machine.
            shares: How tenants share a node.
            machines: Where other machines join; None if none can.
            rental: Rents nodes; None: none are rented.
            idle_s: Seconds without a job after which the manager ends; None: never.

        Raises:
            ConfigurationError: If the folder cannot be used.
            TransientError: If another manager serves there.
            ScavengerError: If no nodes can be rented.
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
        if rental is not None:
            try:
                rental.open()
            except BaseException:
                listener.close()
                os.close(lock)
                raise
        listener.listen(_BACKLOG)
        shares.sweep()
        return cls(listener, lock, nodes, shares, machines, rental, idle_s)

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
        keep_at_memory_fd(None)
        log.info("serves %d nodes, shares by %s", len(self._local.plan.nodes), self._local.shares.way)
        while self._running and not self._is_idle():
            for key, _ in self._selector.select(_SAMPLE_S if self._machines is None else _TICK_S):
                key.data()
            self._sample()
            if self._machines is not None:
                self._look_after(self._machines)
            for site in self._sites:
                site.pack()

    def close(self) -> None:
        """End all tenants and stop listening."""
        with contextlib.suppress(OSError):
            os.unlink(self._listener.getsockname())
        self._listener.close()
        for job in [*self._jobs]:
            self._leave(job)
        if self._machines is not None:
            self._machines.close()  # agents that receive this end their machines
        if self._rental is not None:
            self._rental.close()
        self._selector.close()
        os.close(self._lock)

    def _end(self) -> None:
        self._running = False

    def _is_idle(self) -> bool:
        if self._idle_s is None or self._jobs:
            self._busy_at = time.monotonic()
        return self._idle_s is not None and time.monotonic() - self._busy_at > self._idle_s

    @property
    def _sites(self) -> tuple[LocalSite | RemoteSite, ...]:
        return (self._local, *self._remote.values())

    def _sample(self) -> None:
        now = time.monotonic()
        if now - self._sampled_at >= _SAMPLE_S:
            self._sampled_at = now
            self._local.sample(now)

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
        job = JobConnection(connection, f"#{self._joined}")
        self._jobs[job] = None
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._receive(job))

    def _receive(self, job: JobConnection) -> None:
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

    def _take(self, job: JobConnection, request: protocol.Request, fds: list[int]) -> None:
        match request, self._jobs[job]:
            case protocol.LoadRequest(), _:
                protocol.send_packet(job.connection, self.load())
            case protocol.DrainRequest(), _:
                protocol.send_packet(job.connection, self._drain(request))
            case protocol.AddNode(), _:
                protocol.send_packet(job.connection, self._add_node(request))
            case protocol.PoolJoin(), None:
                self._join(job, request)
            case protocol.LaunchTenant(), LocalSite() as site if len(fds) >= 2:
                protocol.send_packet(job.connection, site.launch(job, request, fds))
            case protocol.Lodge(), RemoteSite() as site:
                protocol.send_packet(job.connection, site.lodge(job, request))
            case protocol.ReleaseTenant(), RemoteSite() as site:
                site.left(job, request.intent)
            case protocol.StepsReport(), LocalSite() as site:
                site.progress(job, request)
            case protocol.StepsReport(), RemoteSite() as site:
                site.progress(job, request)
                protocol.send_packet(job.connection, site.bill(job))
            case protocol.LaunchTenant(), None:
                protocol.send_packet(job.connection, Forked(request.number, 0, job.refused))
            case Reap(), None:
                pass
            case Reap(), LocalSite() as site:
                site.release(job, request.pid)
            case _:
                raise ValueError(f"not expected: {type(request).__name__}")

    def _join(self, job: JobConnection, request: protocol.PoolJoin) -> None:
        job.id, job.name, job.key = request.job_id, request.job, f"{request.job_id[:8]}{job.key}"
        job.refused = "" if request.protocol == protocol.PROTOCOL else _OTHER_VERSION
        site = self._site_at(request.place)
        self._jobs[job] = site
        site.jobs.append(job)

    def _site_at(self, place: str) -> LocalSite | RemoteSite:
        """The nodes of a place.

        Raises:
            ValueError: If it is elsewhere, and no other machines can join.
        """
        if not place:
            return self._local
        if self._machines is None:
            raise ValueError(_NOT_LISTENING)
        if place not in self._remote:
            self._remote[place] = RemoteSite(self._machines)
        return self._remote[place]

    def _leave(self, job: JobConnection) -> None:
        """End a connection with everything that belongs to it, unless that has been done."""
        if job not in self._jobs:
            return
        site = self._jobs.pop(job)
        self._selector.unregister(job.connection)
        job.connection.close()
        if site is not None:
            site.leave(job)

    # ---- nodes ---------------------------------------------------------------------------------------------

    def _drain(self, request: protocol.DrainRequest) -> protocol.Drained:
        for site in self._sites:
            if request.node in site.plan.nodes:
                return site.drain(request)
        names = ", ".join(name for site in self._sites for name in site.plan.nodes)
        return protocol.Drained(0, f"the pool has no node {request.node}: {names}")

    def _add_node(self, request: protocol.AddNode) -> protocol.NodeAdded:
        if self._machines is None:
            return protocol.NodeAdded(error=_NOT_LISTENING)
        taken = request.node in self._local.plan.nodes or request.node.startswith(PREFIX)
        if not _NAME.fullmatch(request.node) or taken:
            return protocol.NodeAdded(
                error=f"{request.node!r} cannot name a node: use up to 40 letters, digits, - and _, and a new name"
            )
        try:
            self._site_at(request.place)
            wanted = ExpectedNode(request.node, request.place, request.usd_per_hour, request.tenants_max)
            return protocol.NodeAdded(self._machines.ticket(wanted))
        except ValueError as error:
            return protocol.NodeAdded(error=str(error))

    def _look_after(self, machines: Machines) -> None:
        """Handle what has happened on other machines."""
        machines.admit()
        for node in machines.joined():
            site = self._site_at(node.place)
            assert isinstance(site, RemoteSite)
            site.add(node)
        sites = [*self._remote.values()]
        for launch, event in machines.events():
            any(site.take(launch, event) for site in sites)
        for notices, act in ((machines.leaving(), RemoteSite.must_leave), (machines.lost(), RemoteSite.lose)):
            for node_name, reason in [*notices]:
                for site in sites:
                    if node_name in site.plan.nodes:
                        act(site, node_name, reason)
        for site in sites:
            site.ask_again(time.monotonic())
        if (rental := self._rental) is not None:
            rental.look(self._rented_site(rental), time.monotonic(), datetime.now(UTC).timestamp())

    def _rented_site(self, rental: RentedNodes) -> RemoteSite:
        site = self._site_at(rental.place)
        assert isinstance(site, RemoteSite)
        return site

    # ---- who uses what -------------------------------------------------------------------------------------

    def load(self) -> protocol.PoolLoad:
        """The nodes, the tenants, the jobs, and what they use."""
        sites = self._sites
        nodes = [node for site in sites for node in site.node_loads()]
        changes = sorted((one for site in sites for one in site.changes), key=lambda one: one.at)
        return protocol.PoolLoad(
            pid=os.getpid(),
            since=self._since,
            shares=self._local.shares.way,
            tenant_memory_bytes=min((one.node.tenant_bytes for one in nodes), default=0),
            free=self._local.plan.free,
            nodes=tuple(nodes),
            tenants=tuple(tenant for site in sites for tenant in site.tenant_loads()),
            jobs=tuple(job for site in sites for job in site.job_uses()),
            changes=tuple(changes[-_CHANGES_MAX:]),
            address="" if self._machines is None else self._machines.address,
            expected=() if self._machines is None else self._machines.expected,
            rental=None if (rental := self._rental) is None else rental.load(self._rented_site(rental)),
        )
