"""Messages between jobs and the manager of the pool, and where the two meet.

They meet at a Unix socket of whole packets in a private folder of the user. Ends of processes are reported as by the
fork server (`scavenger.train.engines.fork_server`). The connection of a job lives as long as the job: when it ends,
however that comes about, the manager ends the job's tenants.
"""

from __future__ import annotations

import array
import os
import socket
import stat
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from scavenger.errors import ConfigurationError
from scavenger.train.engines.fork_server import Reap
from scavenger.train.pool.placement import Node

PROTOCOL = 3
"""Incremented when an older manager or job would misread a message."""
SOCKET = "manager.socket"
MEMORY_FD = 100
"""Descriptor at which a tenant finds its job's shared-memory block."""
FOLDER_VARIABLE = "SCAVENGER_POOL"
"""Environment variable with the folder of the pool; for several pools of one user."""

_PACKET_BYTES = 1 << 18
_FDS_MAX = 3
_FD_BYTES = array.array("i").itemsize
_PEER = struct.Struct("3i")  # process, user and group: see unix(7)


class PoolJoin(msgspec.Struct, frozen=True, tag=True):
    """First message of a job.

    Attributes:
        place: Where its nodes are, see `Node.place`.
    """

    protocol: int
    job_id: str
    job: str
    place: str = ""


class LaunchTenant(msgspec.Struct, frozen=True, tag=True):
    """Start a tenant; the packet carries its standard input, its log and, if any, the job's block as descriptors.

    Attributes:
        number: Identifies the process until its id is known.
        name: Its name within the job.
        command: What to run.
        env: Its whole environment.
    """

    number: int
    name: str
    command: tuple[str, ...]
    env: dict[str, str]


class StepsReport(msgspec.Struct, frozen=True, tag=True):
    """The steps of a job since its last message, about once a second.

    Attributes:
        view: Number of the view in which they were made.
        steps_s: Their times, seconds.
        step_bytes: What workers and aggregators send each other in a step, in the direction that moves more; 0 if they
            share memory.
    """

    view: int
    steps_s: tuple[float, ...]
    step_bytes: int = 0


class DrainRequest(msgspec.Struct, frozen=True, tag=True):
    """Asks, instead of joining, to move all tenants off a node, which then gets none; or to let it get some again.

    Attributes:
        node: Its name.
        undo: Whether it is to get tenants again.
    """

    node: str
    undo: bool = False


class Drained(msgspec.Struct, frozen=True, tag=True):
    """The answer to `DrainRequest`: how many tenants were moved, or why nothing was done.

    `later`: their jobs have been asked to move what they hold, and they leave when that is done.
    """

    moved: int
    error: str = ""
    later: bool = False


class Lodge(msgspec.Struct, frozen=True, tag=True):
    """Start a tenant on a node of another machine, which joins the job with a one-time key.

    Attributes:
        name: Its name within the job.
        endpoint, server_key: Where it joins, and the public key of who serves there.
        intent: The name by which the job knows it; never used again.
        secret: The one-time key.
        pinned: Whether it is in no plan: it sequences the steps.
        movable: Whether a pinned one may be asked to leave its node: its job writes checkpoints, and goes back to one
            that it has just written.
    """

    name: str
    endpoint: str
    server_key: str
    intent: str
    secret: str
    pinned: bool = False
    movable: bool = False

    def __repr__(self) -> str:
        return f"Lodge({self.intent} at {self.endpoint})"  # never the key


class Lodged(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Lodge`: the name of the node, or why there is none."""

    intent: str
    node: str = ""
    error: str = ""


class Vacate(msgspec.Struct, frozen=True, tag=True):
    """Asks a job to move what a tenant holds to others while it trains, and then to leave it and ask for another."""

    intent: str
    reason: str


class ReleaseTenant(msgspec.Struct, frozen=True, tag=True):
    """The job has no use for a tenant any more."""

    intent: str


class Evicted(msgspec.Struct, frozen=True, tag=True):
    """A tenant has ended, for the reason given."""

    intent: str
    reason: str


class Bill(msgspec.Struct, frozen=True, tag=True):
    """What a job's tenants on other machines have used since it joined; the answer to its `StepsReport`.

    Attributes:
        cpu_s: Processor time, seconds.
        usd: What that costs at the prices of their nodes, US dollars.
    """

    cpu_s: float
    usd: float


class AddNode(msgspec.Struct, frozen=True, tag=True):
    """Asks, instead of joining, for what another machine needs to join the pool as a node.

    Attributes:
        node: Its name.
        place, usd_per_hour, tenants_max: See `Node`.
    """

    node: str
    place: str
    usd_per_hour: float
    tenants_max: int


class NodeAdded(msgspec.Struct, frozen=True, tag=True):
    """The answer to `AddNode`: the content of a join file, with a key that is good once; or why there is none."""

    ticket: str = ""
    error: str = ""

    def __repr__(self) -> str:
        return f"NodeAdded({self.error!r})"  # never the key


class LoadRequest(msgspec.Struct, frozen=True, tag=True):
    """Asks for a `PoolLoad`, instead of joining."""


class NodeUsage(msgspec.Struct, frozen=True):
    """A node and what its tenants use.

    Attributes:
        load_cpus: Processors that its tenants have used in the last seconds, on average.
        memory_bytes: Their private resident memory.
        tenants: Their number.
        planned: Share of its processors that they need by their measured steps.
        drained: Whether it gets no tenants.
        pinned: Of the tenants, those that stay until their jobs end.
        idle_usd: What of its price since it joined was used by no tenant, US dollars.
    """

    node: Node
    load_cpus: float
    memory_bytes: int
    tenants: int
    planned: float = 0.0
    drained: bool = False
    pinned: int = 0
    idle_usd: float = 0.0


class TenantLoad(msgspec.Struct, frozen=True):
    """A tenant and what it uses.

    Attributes:
        job_id, job: Id and name of its job.
        name: Its name within the job.
        node: The name of its node.
        pid: Its process id.
        since: When it was started, seconds since the epoch.
        cpu_s: Processor time that it has used, seconds.
        load_cpus: Processors that it has used in the last seconds, on average.
        memory_bytes: Its private resident memory; the job's block is not part of it.
    """

    job_id: str
    job: str
    name: str
    node: str
    pid: int
    since: float
    cpu_s: float
    load_cpus: float
    memory_bytes: int


class JobUse(msgspec.Struct, frozen=True):
    """A job of the pool and what sharing costs it.

    Attributes:
        cpu_s: Processor time of all its tenants, also of those that have ended, seconds.
        alone_s: Its step time in its present configuration without the others, as far as known; None before it was
            measured.
        step_s: Its step time as measured last, seconds; None before.
        loss: Share of its speed that it loses by its neighbours, as measured last; None before.
        usd: Cost of its tenants at the prices of their nodes; None for tenants of the manager's own machine.
    """

    id: str
    name: str
    cpu_s: float
    alone_s: float | None = None
    step_s: float | None = None
    loss: float | None = None
    usd: float | None = None


class Change(msgspec.Struct, frozen=True):
    """A change of who is where.

    Attributes:
        at: When, seconds since the epoch.
        what: What was done, in words.
        reason: Why.
        in_use: Nodes that have been in use since.
    """

    at: float
    what: str
    reason: str
    in_use: int


class RentalLoad(msgspec.Struct, frozen=True):
    """The nodes that the pool rents.

    Attributes:
        place: Where.
        machine: The type of their machines.
        usd_per_hour: Price of each.
        nodes_max: How many there may be at a time.
        idle_s: For how long one without tenants is kept, seconds.
        since: By node that is there or on its way, when its machine was launched, seconds since the epoch.
        free: Tenants for which nodes could be rented, or are on their way.
        spent_usd: What all machines have cost, those that have ended among them.
        idle_usd: What of that no job has used.
        shortage: Why a machine cannot be had; empty if nothing is known.
    """

    place: str
    machine: str
    usd_per_hour: float
    nodes_max: int
    idle_s: float
    since: dict[str, float]
    free: int
    spent_usd: float = 0.0
    idle_usd: float = 0.0
    shortage: str = ""


class PoolLoad(msgspec.Struct, frozen=True, tag=True):
    """The state of a pool.

    Attributes:
        pid: Process id of its manager.
        since: When the manager was started, seconds since the epoch.
        shares: How tenants of one node share its processors: `cgroup`, `session` or `thread`.
        tenant_memory_bytes: Private memory that one tenant may use.
        free: Tenants for which there is room on this machine.
        changes: The latest changes, oldest first.
        address: Address at which other machines join; empty if none can.
        expected: Names of nodes that have not joined yet.
        rental: The nodes that it rents; None if it rents none.
    """

    pid: int
    since: float
    shares: str
    tenant_memory_bytes: int
    free: int
    nodes: tuple[NodeUsage, ...]
    tenants: tuple[TenantLoad, ...]
    jobs: tuple[JobUse, ...] = ()
    changes: tuple[Change, ...] = ()
    address: str = ""
    expected: tuple[str, ...] = ()
    rental: RentalLoad | None = None

    def free_at(self, place: str) -> int:
        """Tenants for which there is room on other machines at a place, or will be once they are rented."""
        rented = self.rental.free if self.rental is not None and self.rental.place == place else 0
        return rented + sum(_room(one) for one in self.nodes if one.node.place == place)


def _room(one: NodeUsage) -> int:
    return 0 if one.drained else one.node.tenants_max - one.tenants + one.pinned


Request = (
    PoolJoin
    | LaunchTenant
    | Reap
    | StepsReport
    | LoadRequest
    | DrainRequest
    | Lodge
    | ReleaseTenant
    | AddNode
)
Notice = Lodged | Vacate | Evicted | Bill

_requests = msgspec.json.Decoder(Request)
_notices = msgspec.json.Decoder(Notice)


def decode_request(packet: bytes) -> Request:
    """Decode a message to the manager.

    Raises:
        msgspec.MsgspecError: If it is none.
    """
    request: Request = _requests.decode(packet)
    return request


def decode_notice(packet: bytes) -> Notice:
    """Decode a message of the manager to a job whose tenants are on other machines.

    Raises:
        msgspec.MsgspecError: If it is none.
    """
    notice: Notice = _notices.decode(packet)
    return notice


def pool_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of this user's pool; the same for every session of the user on this machine."""
    if named := environ.get(FOLDER_VARIABLE):
        return Path(named).absolute()
    runtime = Path(f"/run/user/{os.getuid()}")
    if os.access(runtime, os.W_OK):
        return runtime / "scavenger-pool"
    return Path(f"/tmp/scavenger_pool_{os.getuid()}")  # noqa: S108 - made private, or refused


def private_folder(folder: Path) -> Path:
    """Make the folder unless it exists; returns it.

    Raises:
        ConfigurationError: If it cannot be made, or other users may enter it.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise ConfigurationError(f"the folder of the aggregator pool, {folder}: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigurationError(
            f"{folder} is not a folder of this user alone; name another one for the aggregator pool by "
            f"{FOLDER_VARIABLE}"
        )
    return folder


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return process id and user id of the other end of a Unix socket, as the kernel knows them."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    pid, user, _ = _PEER.unpack(found)
    return pid, user


def send_packet(connection: socket.socket, message: msgspec.Struct, fds: Sequence[int] = ()) -> None:
    """Send a message, with file descriptors.

    Raises:
        OSError: If it cannot be sent, or not without waiting.
    """
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    connection.sendmsg([msgspec.json.encode(message)], rights)


def receive_packet(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Receive a packet, with file descriptors, which the caller closes; an empty one at the end of the connection.

    Raises:
        OSError: If the connection fails, or there is nothing to receive without waiting.
    """
    space = socket.CMSG_SPACE(_FDS_MAX * _FD_BYTES)
    data, ancillary, _, _ = connection.recvmsg(_PACKET_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % _FD_BYTES])
    return data, list(fds)
