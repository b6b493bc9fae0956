"""ZeroMQ sockets with a key pair per process: whoever does not hold the job's keys gets nothing."""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import zmq

from scavenger.errors import ConfigurationError, MessageError
from scavenger.train.names import HEARTBEAT_SUFFIX
from scavenger.train.transport.authenticator import Authenticator
from scavenger.train.transport.messages import Message, decode, encode

__all__ = [
    "EVERYBODY",
    "Dealer",
    "HubConnection",
    "Keys",
    "Malformed",
    "Router",
    "address_towards",
    "is_own",
    "listen",
    "new_keys",
]

Keys = tuple[bytes, bytes]
"""Public and secret CURVE key, Z85."""
EVERYBODY = "*"

_LINGER_MS = 500

log = logging.getLogger(__name__)
_MESSAGE_BYTES_MAX = 64 << 20


def new_keys() -> Keys:
    """A new key pair. A server admits whoever has its *public* key: the job's processes alone."""
    public, secret = zmq.curve_keypair()
    return public, secret


def address_towards(endpoint: str) -> str:
    """The address of this host by which it reaches another: where that one's network reaches this one.

    Args:
        endpoint: `tcp://HOST:PORT`.

    Raises:
        OSError: If there is no way there.
    """
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((host, int(port)))  # of a datagram socket: nothing is sent
        return str(way.getsockname()[0])


def is_own(host: str) -> bool:
    """Whether something is an address of this machine, as one behind which it is reached by way of another is not."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.bind((host, 0))
    except (ValueError, OSError):
        return False
    return True


def listen(listener: Any, host: str, port: int) -> int:
    """Bind a socket to an address, or to all of this machine's where it is another's that leads here.

    Args:
        host: An address or a host name.
        port: 0 for any.

    Returns:
        The port.

    Raises:
        ConfigurationError: If it cannot be had.
    """
    try:
        listener.bind(f"tcp://{host if is_own(host) else '*'}:{port or '*'}")
    except zmq.ZMQError as error:
        raise ConfigurationError(f"cannot listen at {host}:{port}: {error}") from error
    return int(listener.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])


class Malformed:
    """Counts what arrived and is none of our messages, and tells of it: the first time, and whenever it has doubled.

    Args:
        tell: Where to; into the process's log, unless told.
    """

    def __init__(self, tell: Callable[[str], None] = log.warning) -> None:
        self.count, self._tell = 0, tell

    def __call__(self, sender: str) -> None:
        self.count += 1
        if self.count.bit_count() == 1:
            self._tell(
                f"dropped what is no message of this job ({self.count} so far, the last of {sender!r})"
            )


class Router:
    """Listens; receives from and answers to named peers.

    Args:
        host: By which peers reach it; see `listen`.
        port: To listen at; 0 for any.
        authenticator: Who may connect, and under which name; None: whoever has the public key, under any.

    Attributes:
        malformed: What arrived and was dropped.
        address: `tcp://host:port`, for peers.

    Raises:
        ConfigurationError: If the port cannot be had.
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
    ) -> None:
        self._authenticator, self.malformed = authenticator, malformed or Malformed()
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, _LINGER_MS)
        self.socket.setsockopt(zmq.MAXMSGSIZE, _MESSAGE_BYTES_MAX)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        # a process that was restarted takes the place of the one before
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.socket.curve_server = True
        self.socket.curve_publickey, self.socket.curve_secretkey = keys
        try:
            self.address = f"tcp://{host}:{listen(self.socket, host, port)}"
        except ConfigurationError:
            self.socket.close()
            raise

    def send(self, peer: str, message: Message, payload: Any = None) -> None:
        """Queue a message; one for a peer that is gone is dropped, as the peer will be missed elsewhere."""
        self.pass_on(peer, encode(message), *(() if payload is None else (payload,)))

    def pass_on(self, peer: str, *frames: Any) -> None:
        """Queue frames as they are."""
        self.socket.send_multipart([peer.encode(), *frames], copy=len(frames) == 1)

    def wait(self, timeout_s: float) -> None:
        """Until something has arrived, or somebody knocks, or time is up."""
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        if self._authenticator is not None:
            poller.register(self._authenticator.socket, zmq.POLLIN)
        poller.poll(int(max(0.0, timeout_s) * 1000))

    def take(self) -> Iterator[tuple[str, list[bytes]]]:
        """Frames of everything that has arrived, by peer."""
        if self._authenticator is not None:
            self._authenticator.answer()
        while True:
            try:
                peer, *frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                name = peer.bytes.decode()
            except UnicodeDecodeError:
                self.malformed(repr(peer.bytes))
                continue
            if self._authenticator is not None and not (frames and self._is(name, frames[0])):
                self.malformed(name)
                continue
            yield name, [frame.bytes for frame in frames]

    def _is(self, name: str, frame: Any) -> bool:
        """Whether what a frame came by is the key that was given to the one of that name."""
        assert self._authenticator is not None
        return self._authenticator.name_of(frame.get("User-Id")) == name.removesuffix(HEARTBEAT_SUFFIX)

    def receive(self) -> Iterator[tuple[str, Message, bytes | None]]:
        """Everything that has arrived, with its payload; what is not one of our messages is passed over."""
        for peer, frames in self.take():
            try:
                message = decode(frames[0])
            except (MessageError, IndexError):
                self.malformed(peer)
                continue
            yield peer, message, frames[1] if len(frames) > 1 else None

    def close(self) -> None:
        self.socket.close()


class Dealer:
    """Connects to a router under a name.

    Attributes:
        malformed: What arrived and was dropped.
    """

    def __init__(self, context: Any, name: str, address: str, server_key: bytes, keys: Keys) -> None:
        self.malformed = Malformed()
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, _LINGER_MS)
        self.socket.setsockopt(zmq.SNDHWM, 0)  # a coordinator that is busy must not hold up a step
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.IDENTITY, name.encode())
        self.socket.curve_serverkey = server_key
        self.socket.curve_publickey, self.socket.curve_secretkey = keys
        self.socket.connect(address)

    def send(self, message: Message, payload: Any = None) -> None:
        """Queue a message, and what goes with it without copying it: its sender leaves it as it is for long."""
        if payload is None:
            self.socket.send(encode(message))
        else:
            self.socket.send_multipart([encode(message), payload], copy=False)

    def receive(self) -> Iterator[tuple[Message, bytes | None]]:
        """Everything that has arrived, with its payload."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = decode(frames[0])
            except MessageError:
                self.malformed("the other end")
                continue
            yield message, frames[1] if len(frames) > 1 else None

    def close(self) -> None:
        self.socket.close()


class HubConnection(Dealer):
    """The coordinator's place at the hub, through which it hears and reaches everybody."""

    def send_to(self, target: str, message: Message) -> None:
        """To a process, to `EVERYBODY`, or to the supervisor itself (an empty name)."""
        self.socket.send_multipart([target.encode(), encode(message)])

    def receive_messages(self) -> Iterator[tuple[str, Message]]:
        """Everything that has arrived, by who said it (the supervisor has an empty name)."""
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
