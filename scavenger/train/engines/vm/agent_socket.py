"""Where the agents on VMs connect: one socket that only admitted keys get through, and the key of each message."""

from __future__ import annotations

import contextlib
from typing import Any

import zmq

from scavenger.errors import ConfigurationError
from scavenger.train.engines.vm import messages as m
from scavenger.train.engines.vm.channel import WINDOW
from scavenger.train.transport.authenticator import Authenticator
from scavenger.train.transport.sockets import listen, new_keys

__all__ = ["AgentSocket"]

_QUEUE_MAX = 2 * WINDOW
"""Messages of, and to, one VM that ZeroMQ keeps; what does not fit is sent again."""
_LINGER_MS = 500


class AgentSocket:
    """The leader's. It serves from `open` to `close`; used by one thread at a time.

    Args:
        address: By which VMs reach this machine: a host name or address.
        port: To listen at; 0 for any.

    Attributes:
        address: As given.
        port: As given.
        endpoint: `tcp://host:port`, for VMs; empty before it is open.
        server_key: The public key by which agents know this leader, Z85.
    """

    def __init__(self, address: str, port: int = 0) -> None:
        self.address, self.port, self.endpoint = address, port, ""
        self._public, self._secret = new_keys()
        self.server_key = self._public.decode()
        self._context: Any = None
        self._socket: Any = None
        self._authenticator_or_none: Authenticator | None = None

    def open(self) -> None:
        """Listen.

        Raises:
            ConfigurationError: If the port cannot be had.
        """
        self._context = zmq.Context()
        self._authenticator_or_none = Authenticator(self._context)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, _LINGER_MS)
        self._socket.setsockopt(zmq.MAXMSGSIZE, m.AGENT_BYTES_MAX)
        self._socket.setsockopt(zmq.RCVHWM, _QUEUE_MAX)
        self._socket.setsockopt(zmq.SNDHWM, _QUEUE_MAX)
        self._socket.curve_server = True
        self._socket.curve_publickey, self._socket.curve_secretkey = self._public, self._secret
        try:
            self.endpoint = f"tcp://{self.address}:{listen(self._socket, self.address, self.port)}"
        except ConfigurationError:
            self.close()
            raise

    def close(self) -> None:
        """Listen no more. Idempotent; nothing where it was never open."""
        if self._context is None:
            return
        self._socket.close()
        self._authenticator.close()
        self._context.term()
        self._context = None

    @property
    def _authenticator(self) -> Authenticator:
        if self._authenticator_or_none is None:
            raise RuntimeError("the socket is not open")
        return self._authenticator_or_none

    def register(self, poller: zmq.Poller) -> None:
        """Have a poller wake up when something has arrived, or an agent connects."""
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._authenticator.socket, zmq.POLLIN)

    def admit(self, name: str, key: str) -> None:
        """Let in the holder of a public key (Z85) under a name; the holder of the name before is shut out."""
        self._authenticator.admit(name, key)

    def shut(self, name: str) -> None:
        """Give a name to a key that nobody holds."""
        self._authenticator.admit(name, new_keys()[0].decode())

    def answer_connections(self) -> None:
        """Let in, or turn away, every agent that connects."""
        self._authenticator.answer()

    def receive(self) -> tuple[str, bytes, bytes] | None:
        """The next message that has arrived: the name that its key was admitted under, its route and its body."""
        try:
            frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        name = self._authenticator.name_of(str(frames[-1].get("User-Id"))) or ""
        return name, frames[0].bytes, frames[-1].bytes

    def send(self, route: bytes, message: m.SocketMessage) -> None:
        """Send to where an agent was heard; an agent that is gone is missed elsewhere."""
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send_multipart([route, m.encode(message)], zmq.NOBLOCK)
