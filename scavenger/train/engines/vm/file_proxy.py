"""Proxy on a VM through which processes use the leader's files: a Unix socket of the agent that forwards requests.

The proxy does not interpret requests. It stops reading while the limit of unanswered requests is reached, so that a
process that writes faster than the network waits in the kernel, and logs and heartbeats are not delayed.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from scavenger.train.checkpoints.remote_folder import AHEAD, FRAME_BYTES_MAX, HEAD, short_socket_path
from scavenger.train.engines.vm import messages as m

_CONNECTIONS_MAX = 32
"""Largest number of connections; further ones wait until one has ended."""
_NAME = "files"


@dataclass(slots=True)
class _Connection:
    sock: socket.socket
    incoming: bytearray = field(default_factory=bytearray)
    outgoing: bytearray = field(default_factory=bytearray)
    unanswered: int = 0
    wanted: int = 0


class FileProxy:
    """The proxy. Used by the agent's one thread; no method waits.

    Args:
        folder: A private folder, for the socket.
        send: Sends a message to the leader.

    Attributes:
        path: Path of the socket.
    """

    def __init__(self, folder: Path, send: Callable[[m.AgentMessage], None]) -> None:
        self.path, self._send = folder / _NAME, send
        self._connections: dict[int, _Connection] = {}
        self._number = 0
        self._poll = select.epoll()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)

    def open(self) -> None:
        """Start to listen."""
        with short_socket_path(self.path) as path:
            self._listener.bind(path)
        self._listener.listen(_CONNECTIONS_MAX)
        self._poll.register(self._listener, select.EPOLLIN)

    def fileno(self) -> int:
        """Return a file descriptor that is readable when `step` has something to do."""
        return self._poll.fileno()

    @property
    def _full(self) -> bool:
        """Whether the limit of unanswered requests is reached."""
        return sum(one.unanswered for one in self._connections.values()) >= AHEAD

    def step(self) -> None:
        """Forward requests up to the limit, and write pending answers."""
        left = {place for place, event in self._poll.poll(0) if event & (select.EPOLLHUP | select.EPOLLERR)}
        for number, connection in list(self._connections.items()):
            gone = connection.sock.fileno() in left  # its pending requests are obsolete
            if gone or not self._flush(connection) or not self._take(number, connection):
                self._end(number)
        with contextlib.suppress(BlockingIOError):
            while len(self._connections) < _CONNECTIONS_MAX:
                self._add(self._listener.accept()[0])
        self._wait_for_what_can_be_done()

    def answer(self, message: m.FileAnswer) -> None:
        """Pass an answer of the leader to its connection; dropped if the connection has ended."""
        connection = self._connections.get(message.number)
        if connection is not None and connection.unanswered:
            connection.unanswered -= 1
            connection.outgoing += HEAD.pack(len(message.body)) + message.body
            if not self._flush(connection):
                self._end(message.number)

    def close(self) -> None:
        """End every connection."""
        for connection in self._connections.values():
            connection.sock.close()
        self._listener.close()
        self._poll.close()

    def _wait_for_what_can_be_done(self) -> None:
        room = len(self._connections) < _CONNECTIONS_MAX
        self._poll.modify(self._listener, select.EPOLLIN if room else 0)
        for connection in self._connections.values():
            wanted = (0 if self._full else select.EPOLLIN) | (select.EPOLLOUT if connection.outgoing else 0)
            if wanted != connection.wanted:
                connection.wanted = wanted
                self._poll.modify(connection.sock, wanted)

    def _add(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._number += 1
        self._connections[self._number] = _Connection(sock)
        self._poll.register(sock, 0)

    def _take(self, number: int, connection: _Connection) -> bool:
        """Forward complete requests until none is left or the limit is reached; False if the connection has ended."""
        while not self._full:
            body, wanted = _take_first(connection.incoming)
            if body is not None:
                connection.unanswered += 1
                self._send(m.FileAsk(number, body))
                continue
            if wanted > FRAME_BYTES_MAX:
                return False
            try:
                data = connection.sock.recv(wanted)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            connection.incoming += data
        return True

    @staticmethod
    def _flush(connection: _Connection) -> bool:
        """Write as much as the socket accepts; False if the connection has ended."""
        try:
            while connection.outgoing:
                del connection.outgoing[: connection.sock.send(connection.outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            return False
        return True

    def _end(self, number: int) -> None:
        self._connections.pop(number).sock.close()
        self._send(m.FileEnd(number))


def _take_first(incoming: bytearray) -> tuple[bytes | None, int]:
    """Remove and return the first complete message; else None, and the number of bytes to wait for."""
    if len(incoming) < HEAD.size:
        return None, HEAD.size - len(incoming)
    (length,) = HEAD.unpack_from(incoming)
    end = HEAD.size + length
    if len(incoming) < end:
        return None, end - len(incoming)
    body = bytes(memoryview(incoming)[HEAD.size : end])
    del incoming[:end]
    return body, 0
