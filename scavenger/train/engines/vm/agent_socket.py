"""The leader's socket for agents, which accepts only admitted keys and identifies each message by its key."""

from __future__ import annotations

import contextlib
from typing import Any

import zmq

from scavenger.errors import ConfigurationError
from scavenger.train.engines.vm import messages as m
from scavenger.train.engines.vm.channel import WINDOW
from scavenger.train.transport.authenticator import Authenticator
from scavenger.train.transport.connections import PendingConnections
from scavenger.train.transport.sockets import listen, new_keys

_QUEUE_MAX = 2 * WINDOW
"""Messages from, and to, one VM that ZeroMQ queues; messages that do not fit are resent."""
_LINGER_MS = 500


class AgentSocket:
    """The leader's socket, usable from `open` to `close`, by one thread at a time.

    Args:
        address: Host name or address by which VMs reach this machine.
        port: Port to listen at; 0 for any.

    Attributes:
        address: As given.
        port: As given.
        endpoint: `tcp://host:port`, for VMs; empty before it is open.
        server_key: Public key by which agents authenticate this leader, Z85.
    """

    def __init__(self, address: str, port: int = 0) -> None:
        self.address, self.port, self.endpoint = address, port, ""
        self._public, self._secret = new_keys()
        self.server_key = self._public.decode()
        self._context: Any = None
        self._socket: Any = None
        self._authenticator_or_none: Authenticator | None = None
        self._connections: PendingConnections | None = None

    def open(self) -> None:
        """Listen.

        Raises:
            ConfigurationError: If the port is not available.
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
        self._connections = PendingConnections(self._context, self._socket)

    def close(self) -> None:
        """Stop listening. Idempotent; no effect if the socket was never open."""
        if self._context is None:
            return
        if self._connections is not None:
            self._connections.close()
            self._connections = None
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
        """Make a poller wake up when a message arrives or an agent connects."""
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._authenticator.socket, zmq.POLLIN)

    def admit(self, name: str, key: str) -> None:
        """Admit the holder of a public key (Z85) under a name; the earlier key of that name is revoked."""
        self._authenticator.admit(name, key)

    def shut(self, name: str) -> None:
        """Revoke the key of a name, by replacing it with an unused key."""
        self._authenticator.admit(name, new_keys()[0].decode())

    def answer_connections(self) -> None:
        """Accept or reject every agent that connects."""
        self._authenticator.answer()

    def receive(self) -> tuple[str, bytes, bytes] | None:
        """Return the next message: the name under which its key was admitted, its route and its body."""
        try:
            frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        if self._connections is not None:
            self._connections.heard(frames[-1])
        name = self._authenticator.name_of(str(frames[-1].get("User-Id"))) or ""
        return name, frames[0].bytes, frames[-1].bytes

    def send(self, route: bytes, message: m.SocketMessage) -> None:
        """Send to an agent's route; no error if the agent is gone, which is detected by its silence."""
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send_multipart([route, m.encode(message)], zmq.NOBLOCK)
