"""An agent's connection to its leader: joins with the key that is good once, then goes on under keys of its own.

A connection that breaks is made again for as long as it takes, and what was not heard is sent again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import zmq

from scavenger import __version__
from scavenger.errors import MessageError
from scavenger.train.engines.vm import messages as m
from scavenger.train.engines.vm.channel import Channel
from scavenger.train.transport.sockets import new_keys

__all__ = ["LeaderConnection"]

_JOIN_S, _JOIN_MAX_S = 1.0, 15.0
"""Between two times of asking to be let in, at first and at most."""
_CONNECT_S = 10.0
"""Silence after which a connection is made again: it may have broken without a word."""


class LeaderConnection:
    """One agent's; for one thread.

    Args:
        endpoint: Of the leader, `tcp://host:port`.
        server_key: The leader's public key, Z85.
        secret: The secret one-time key, Z85.
        show: Shows a line to a person.
        now: Monotonic seconds.

    Attributes:
        channel: What is to be sent, in order.
        joined: The leader has let the agent in.
        heard_at: When the leader was last heard; before that, when this began.
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
        self.heard_at = self._connected_at = self._ask_at = now
        self._pause_s = _JOIN_S

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
        """Until something has arrived, here or at other sockets, or time is up."""
        zmq.select([self._socket, *others], [], [], timeout_s)

    def enter(self, now: float) -> None:
        """The leader has let the agent in: go on under its own keys."""
        self.joined, self.heard_at = True, now
        self._connect(now)

    def receive(self) -> m.SocketMessage | None:
        """The next message that has arrived; what is no message is passed over."""
        while True:
            try:
                return m.decode(self._socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                return None
            except MessageError as error:
                self._show(f"dropped what is no message: {error}")

    def take(self, packet: m.Packet, now: float) -> m.AgentMessage | None:
        """The word of a packet that has arrived, if it is the next one."""
        self.heard_at = now
        return self.channel.take(packet, now)

    def send_due(self, now: float) -> None:
        """Send what is due, and connect again where nothing was heard for long."""
        quiet_since = max(self.heard_at, self._connected_at) if self.joined else self._connected_at
        if now - quiet_since > _CONNECT_S:
            self._connect(now)
        if self.joined:
            for packet in self.channel.due(now):
                self._send(packet)
        elif now >= self._ask_at:
            self._send(m.Join(m.PROTOCOL, __version__, self._own[0].decode()))
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
        with contextlib.suppress(zmq.Again):  # there is no connection: it is sent again
            self._socket.send(m.encode(message), zmq.NOBLOCK)
