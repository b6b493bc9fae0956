"""An agent's connection to its leader: joins with the one-time key, then continues with the agent's own keys.

The agent reconnects until it succeeds, and resends messages that were not acknowledged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import zmq

from scavenger.errors import MessageError
from scavenger.train.engines.vm import messages as m
from scavenger.train.engines.vm.channel import Channel
from scavenger.train.transport.sockets import new_keys
from scavenger.version import __version__

_JOIN_S, _JOIN_MAX_S = 1.0, 15.0
"""Interval between requests to join, at first and at most, seconds."""
_CONNECT_S = 10.0
"""Silence after which the agent reconnects, because a broken connection may go unnoticed."""


class LeaderConnection:
    """The connection of one agent; used by one thread.

    Args:
        endpoint: Endpoint of the leader, `tcp://host:port`.
        server_key: The leader's public key, Z85.
        secret: The secret one-time key, Z85.
        show: Called with lines for users.
        now: Monotonic seconds.

    Attributes:
        channel: Channel for messages to the leader.
        joined: Whether the leader has admitted the agent.
        identity: The cloud's proof of this VM's identity, for the request to join.
        heard_at: Time of the leader's last message; before the first one, the time of creation.
    """

    def __init__(
        self, endpoint: str, server_key: str, secret: str, *, show: Callable[[str], None], now: float
    ) -> None:
        self._endpoint, self._server_key, self._show = endpoint, server_key.encode(), show
        self._one_time = (zmq.curve_public(secret.encode()), secret.encode())
        self._own = new_keys()
        self._context: Any = None
        self._socket: Any = None
        self.channel = Channel()
        self.joined = False
        self.identity = ""
        self.heard_at = self._connected_at = self._ask_at = now
        self._pause_s = _JOIN_S

    @property
    def public_key(self) -> str:
        """Public key that the agent has generated, Z85."""
        return self._own[0].decode()

    def open(self, now: float) -> None:
        """Connect."""
        self._context = zmq.Context()
        self._connect(now)

    def close(self) -> None:
        """End the connection."""
        if self._context is not None:
            self._socket.close()
            self._context.term()

    def wait(self, *others: Any, timeout_s: float) -> None:
        """Wait until this or another socket is readable, at most `timeout_s`."""
        zmq.select([self._socket, *others], [], [], timeout_s)

    def enter(self, now: float) -> None:
        """Reconnect with the agent's own keys, after the leader has admitted it."""
        self.joined, self.heard_at = True, now
        self._connect(now)

    def receive(self) -> m.SocketMessage | None:
        """Return the next message; invalid ones are dropped. None if there is none."""
        while True:
            try:
                return m.decode(self._socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                return None
            except MessageError as error:
                self._show(f"dropped an invalid message: {error}")

    def take(self, packet: m.Packet, now: float) -> m.AgentMessage | None:
        """Accept a packet; return its message if it is the next one, else None."""
        self.heard_at = now
        return self.channel.take(packet, now)

    def send_due(self, now: float) -> None:
        """Send what is due, and reconnect after a long silence of the leader."""
        quiet_since = max(self.heard_at, self._connected_at) if self.joined else self._connected_at
        if now - quiet_since > _CONNECT_S:
            self._connect(now)
        if self.joined:
            for packet in self.channel.due(now):
                self._send(packet)
        elif now >= self._ask_at:
            self._send(m.Join(m.PROTOCOL, __version__, self.public_key, self.identity))
            self._ask_at = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, _JOIN_MAX_S)

    def _connect(self, now: float) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 500)
        self._socket.setsockopt(zmq.MAXMSGSIZE, m.MESSAGE_BYTES_MAX)
        self._socket.curve_serverkey = self._server_key
        keys = self._own if self.joined else self._one_time
        self._socket.curve_publickey, self._socket.curve_secretkey = keys
        self._socket.connect(self._endpoint)
        self._connected_at = now

    def _send(self, message: m.SocketMessage) -> None:
        with contextlib.suppress(zmq.Again):  # not connected: the message is resent later
            self._socket.send(m.encode(message), zmq.NOBLOCK)
