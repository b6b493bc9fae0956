"""ZeroMQ sockets with a key pair per process, so that only processes with the job's keys can exchange messages."""

from __future__ import annotations

import ipaddress
import logging
import secrets
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zmq

from scavenger.errors import ConfigurationError, MessageError
from scavenger.train.names import HEARTBEAT_SUFFIX
from scavenger.train.transport.authenticator import Authenticator
from scavenger.train.transport.connections import PendingConnections, raise_descriptor_limit
from scavenger.train.transport.messages import Message, decode, encode
from scavenger.train.transport.routes import Routes, new_route, parse_route

Keys = tuple[bytes, bytes]
"""Public and secret CURVE key, Z85."""
EVERYBODY = "*"

_SOCKET_NAME_BYTES = 8
SOCKET_FOLDER_BYTES_MAX = 103 - 1 - 2 * _SOCKET_NAME_BYTES
"""Longest path of a folder for Unix sockets. Systems allow 103 bytes (macOS) or 107 (Linux) for the whole path."""
_BACKLOG = 1024

_LINGER_MS = 500

log = logging.getLogger(__name__)
_MESSAGE_BYTES_MAX = 64 << 20
_TURN_MAX = 10_000
"""Largest number of messages that are taken before the caller does something else."""


def new_keys() -> Keys:
    """Create a key pair. A server accepts clients that know its *public* key: only the job's processes."""
    public, secret = zmq.curve_keypair()
    return public, secret


def address_towards(endpoint: str) -> str:
    """Return where this process has to listen, so that the peers of an endpoint reach it too.

    Args:
        endpoint: `tcp://HOST:PORT` of another process, or `ipc://PATH` of one on this machine.

    Returns:
        This host's address on the network through which it reaches the other host, or the folder of the Unix socket.

    Raises:
        OSError: If there is no route to the other host.
    """
    if endpoint.startswith("ipc://"):
        return str(Path(endpoint.removeprefix("ipc://")).parent)
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        route.connect((host, int(port)))  # connecting a datagram socket sends nothing
        return str(route.getsockname()[0])


def is_own(host: str) -> bool:
    """Whether `host` is an address of this machine itself, and not, for instance, of a gateway in front of it."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.bind((host, 0))
    except (ValueError, OSError):
        return False
    return True


def listen(listener: Any, host: str, port: int) -> int:
    """Bind a socket to an address of this machine, or to all of them if `host` is another's that forwards to it.

    Args:
        listener: The socket.
        host: An address or a host name.
        port: The port; 0 for any.

    Returns:
        The port.

    Raises:
        ConfigurationError: If the port cannot be bound.
    """
    try:
        listener.bind(f"tcp://{host if is_own(host) else '*'}:{port or '*'}")
    except zmq.ZMQError as error:
        raise ConfigurationError(f"cannot listen at {host}:{port}: {error}") from error
    return int(listener.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])


def _listen_in(listener: Any, folder: str) -> str:
    """Bind a socket to a new Unix socket in a private folder; returns its endpoint.

    Raises:
        ConfigurationError: If it cannot be created.
    """
    endpoint = f"ipc://{folder}/{secrets.token_hex(_SOCKET_NAME_BYTES)}"
    try:
        listener.bind(endpoint)
    except zmq.ZMQError as error:
        raise ConfigurationError(f"cannot listen in {folder}: {error}") from error
    return endpoint


class Malformed:
    """Counts invalid messages, and warns of the first one and whenever their number has doubled.

    Args:
        warn: Called with each warning; by default, the process's log.
    """

    def __init__(self, warn: Callable[[str], None] = log.warning) -> None:
        self.count, self._warn = 0, warn

    def __call__(self, sender: str) -> None:
        self.count += 1
        if self.count.bit_count() == 1:
            self._warn(f"dropped an invalid message ({self.count} so far, the last from {sender!r})")


class Router:
    """A server socket that receives from named peers and sends to them, by the routes that their key holders opened.

    Args:
        context: The ZeroMQ context.
        keys: The server's key pair.
        host: The address or host name that peers connect to, see `listen`; or the absolute path of a private folder,
            for a Unix socket that only this user's processes on this machine can connect to.
        port: The port to listen at; 0 for any.
        authenticator: Decides which keys may connect, and under which names; None to accept every client that knows
            the public key, under any name.
        malformed: Called for each invalid message; None to log them.
        queue_max: Messages of a peer that are queued here, before its connection is read no further; 0 for any number.

    Attributes:
        authenticator: As given; it is closed by who made it.
        malformed: Counts the invalid messages that were dropped.
        address: The address for peers, as `tcp://host:port` or `ipc://path`.

    Raises:
        ConfigurationError: If the port or the Unix socket cannot be bound.
    """

    def __init__(
        self,
        context: Any,
        keys: Keys,
        host: str = "127.0.0.1",
        *,
        port: int = 0,
        authenticator: Authenticator | None = None,
        malformed: Malformed | None = None,
        queue_max: int = 0,
    ) -> None:
        self.authenticator, self.malformed = authenticator, malformed or Malformed()
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, _LINGER_MS)
        self.socket.setsockopt(zmq.BACKLOG, _BACKLOG)
        self.socket.setsockopt(zmq.MAXMSGSIZE, _MESSAGE_BYTES_MAX)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.RCVHWM, queue_max)
        # a process that connects again after a broken connection keeps its route, which nobody else knows
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.socket.curve_server = True
        self.socket.curve_publickey, self.socket.curve_secretkey = keys
        self._connections: PendingConnections | None = None
        self._routes = Routes()
        raise_descriptor_limit()
        try:
            if host.startswith("/"):
                self.address = _listen_in(self.socket, host)
            else:
                self.address = f"tcp://{host}:{listen(self.socket, host, port)}"
                self._connections = PendingConnections(context, self.socket)
        except ConfigurationError:
            self.socket.close()
            raise

    def send(self, peer: str, message: Message, payload: Any = None) -> None:
        """Queue a message; it is dropped if the peer is gone, which its missing heartbeats will show."""
        self.pass_on(peer, encode(message), *(() if payload is None else (payload,)))

    def pass_on(self, peer: str, *frames: Any) -> None:
        """Queue frames without encoding them."""
        found = self._routes.to(peer)
        if found is not None and self._is_of(peer, found[1]):
            self.socket.send_multipart([found[0], *frames], copy=len(frames) == 1)

    def wait(self, timeout_s: float) -> None:
        """Wait until something has arrived, a connection waits for authentication, or the timeout has passed."""
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        if self.authenticator is not None:
            poller.register(self.authenticator.socket, zmq.POLLIN)
        poller.poll(int(max(0.0, timeout_s) * 1000))

    def take(self) -> Iterator[tuple[str, list[bytes]]]:
        """Yield the frames of what has arrived, with the sender's name; a limited number, so that a flood ends."""
        if self.authenticator is not None:
            self.authenticator.answer()
        for _ in range(_TURN_MAX):
            try:
                route, *frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                name, opened = parse_route(route.bytes)
            except ValueError:
                self.malformed(repr(route.bytes))
                continue
            key = "" if self.authenticator is None else frames[0].get("User-Id")
            if not self._is_of(name, key):
                self.malformed(name)
                continue
            if self._connections is not None:
                self._connections.heard(frames[0])
            is_newest = self._routes.heard(name, key, opened, route.bytes)
            if is_newest and (len(frames) > 1 or len(frames[0])):  # else it says only that it is there
                yield name, [frame.bytes for frame in frames]

    def _is_of(self, name: str, key: str) -> bool:
        """Whether a connection's key was admitted for that name, and still is."""
        return self.authenticator is None or self.authenticator.name_of(key) == name.removesuffix(
            HEARTBEAT_SUFFIX
        )

    def receive(self) -> Iterator[tuple[str, Message, bytes | None]]:
        """Yield all valid messages that have arrived, with sender and payload; others are counted and dropped."""
        for peer, frames in self.take():
            try:
                message = decode(frames[0])
            except (MessageError, IndexError):
                self.malformed(peer)
                continue
            yield peer, message, frames[1] if len(frames) > 1 else None

    def close(self) -> None:
        """Close the socket."""
        if self._connections is not None:
            self._connections.close()
        self.socket.close()


class Dealer:
    """A client socket that connects to a router under a name.

    Args:
        context: The ZeroMQ context.
        name: The name under which the router knows this process.
        address: The router's address.
        server_key: The router's public key.
        keys: This process's key pair.

    Attributes:
        malformed: Counts the invalid messages that were dropped.
    """

    def __init__(self, context: Any, name: str, address: str, server_key: bytes, keys: Keys) -> None:
        self.malformed = Malformed()
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, _LINGER_MS)
        self.socket.setsockopt(zmq.SNDHWM, 0)  # a coordinator that is busy must not hold up a step
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.IDENTITY, new_route(name))
        self.socket.setsockopt(
            zmq.PROBE_ROUTER, 1
        )  # the router can send to this process before it has spoken
        self.socket.curve_serverkey = server_key
        self.socket.curve_publickey, self.socket.curve_secretkey = keys
        self.socket.connect(address)

    def send(self, message: Message, payload: Any = None) -> None:
        """Queue a message; its payload is not copied, so the sender must not change it until it has been sent."""
        if payload is None:
            self.socket.send(encode(message))
        else:
            self.socket.send_multipart([encode(message), payload], copy=False)

    def receive(self) -> Iterator[tuple[Message, bytes | None]]:
        """Yield all valid messages that have arrived, with their payloads; others are counted and dropped."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = decode(frames[0])
            except MessageError:
                self.malformed("the server")
                continue
            yield message, frames[1] if len(frames) > 1 else None

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


class HubConnection(Dealer):
    """A connection to the hub; the coordinator uses it to exchange messages with all processes."""

    def send_to(self, target: str, message: Message) -> None:
        """Send a message to a process, to `EVERYBODY`, or to the supervisor itself (an empty name)."""
        self.socket.send_multipart([target.encode(), encode(message)])

    def receive_messages(self) -> Iterator[tuple[str, Message]]:
        """Yield all valid messages that have arrived, with the sender's name (empty for the supervisor)."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                sender, body = frames
                peer, message = sender.decode(), decode(body)
            except (MessageError, ValueError):
                self.malformed(repr(frames[0]))
                continue
            yield peer, message
