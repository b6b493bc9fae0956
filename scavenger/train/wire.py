"""ZeroMQ sockets with a key pair per process: whoever does not hold the job's keys gets nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import zmq

from scavenger.train.messages import Message, decode, encode

__all__ = ["Dealer", "Keys", "Router", "new_keys"]

Keys = tuple[bytes, bytes]
"""Public and secret CURVE key, Z85."""

_LINGER_MS = 500
_MESSAGE_BYTES_MAX = 4 << 20


def new_keys() -> Keys:
    """A new key pair. A server admits whoever has its *public* key: the job's processes alone."""
    public, secret = zmq.curve_keypair()
    return public, secret


class Router:
    """Binds on loopback; receives from and answers to named peers."""

    def __init__(self, context: Any, keys: Keys) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, _LINGER_MS)
        self.socket.setsockopt(zmq.MAXMSGSIZE, _MESSAGE_BYTES_MAX)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.curve_server = True
        self.socket.curve_publickey, self.socket.curve_secretkey = keys
        self.address = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"

    def send(self, peer: str, message: Message) -> None:
        """Queue a message; one for a peer that is gone is dropped, as the peer will be missed elsewhere."""
        self.socket.send_multipart([peer.encode(), encode(message)])

    def receive(self) -> Iterator[tuple[str, Message]]:
        """Everything that has arrived; what is not one of our messages is passed over."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, ValueError):
                peer, body = frames
                yield peer.decode(), decode(body)

    def close(self) -> None:
        self.socket.close()


class Dealer:
    """Connects to a router under a name."""

    def __init__(self, context: Any, name: str, address: str, server_key: bytes, keys: Keys) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, _LINGER_MS)
        self.socket.setsockopt(zmq.SNDHWM, 0)  # a coordinator that is busy must not hold up a step
        self.socket.setsockopt(zmq.IDENTITY, name.encode())
        self.socket.curve_serverkey = server_key
        self.socket.curve_publickey, self.socket.curve_secretkey = keys
        self.socket.connect(address)

    def send(self, message: Message) -> None:
        self.socket.send(encode(message))

    def receive(self) -> Iterator[Message]:
        """Everything that has arrived."""
        while True:
            try:
                yield decode(self.socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                return

    def close(self) -> None:
        self.socket.close()
