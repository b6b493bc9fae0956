"""Bounds the idle TCP connections: anybody who reaches a server's port can connect, with a key or without."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

_DESCRIPTORS_MAX = 1 << 16
"""Limit to which the soft limit is raised. Programs that close all descriptors one by one take long with more."""
_PENDING_MAX = 1024
_PENDING_SHARE = 4
"""At most one descriptor in this many belongs to a connection from which no message has arrived."""


def raise_descriptor_limit() -> int:
    """Raise this process's soft limit on open files towards the hard limit; returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_MAX)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


class PendingConnections:
    """Bounds the connections to a server socket from which no message has arrived: without a key none ever does.

    ZeroMQ accepts every connection and keeps it for 30 s without a handshake, so clients without a key could use up
    all descriptors of the process. A thread closes the oldest of those that are too many, at once, whatever the process
    is busy with. An honest process connects again by itself, and its handshake takes milliseconds.

    Args:
        context: The ZeroMQ context.
        listener: The server socket, bound to a TCP port; used from one thread.
        most: How many connections to keep; None for a share of the process's descriptors.
    """

    def __init__(self, context: Any, listener: Any, most: int | None = None) -> None:
        limit = raise_descriptor_limit()
        self._most = min(_PENDING_MAX, limit // _PENDING_SHARE) if most is None else most
        self._listener = listener
        self._port = int(listener.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        self._known: set[int] = set()
        address = f"inproc://connections.{id(self)}"
        listener.monitor(address, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_MONITOR_STOPPED)
        # not in the context's own list of sockets: only the thread may close it
        events: Any = zmq.Context.shadow(context).socket(zmq.PAIR)
        events.setsockopt(zmq.LINGER, 0)
        events.setsockopt(zmq.RCVHWM, 0)  # ZeroMQ's own thread would wait for us if the queue was full
        events.connect(address)
        threading.Thread(target=self._watch, args=(events,), name="connections", daemon=True).start()

    def heard(self, frame: Any) -> None:
        """Take note of a message: its connection knows the key."""
        with contextlib.suppress(zmq.ZMQError):  # a message whose connection is gone may not name it
            self._known.add(frame.get(zmq.SRCFD))

    def close(self) -> None:
        """Stop watching; to be called before the server socket is closed."""
        self._listener.disable_monitor()

    def _watch(self, events: Any) -> None:
        """Close what is too much, until the server socket is closed."""
        connected: dict[int, None] = {}
        with events, contextlib.suppress(zmq.ZMQError):
            while (event := parse_monitor_message(events.recv_multipart()))[
                "event"
            ] != zmq.EVENT_MONITOR_STOPPED:
                descriptor = event["value"]
                connected.pop(descriptor, None)
                if event["event"] == zmq.EVENT_ACCEPTED:
                    connected[descriptor] = None
                    self._shut_surplus(connected)
                else:
                    self._known.discard(descriptor)

    def _shut_surplus(self, connected: dict[int, None]) -> None:
        """Shut down the oldest connections that are too many."""
        if len(connected) <= self._most:
            return
        pending = [descriptor for descriptor in connected if descriptor not in self._known]
        for descriptor in pending[: max(0, len(pending) - self._most)]:
            del connected[descriptor]
            _shut(descriptor, self._port)


def _shut(descriptor: int, port: int) -> None:
    """Shut down a connection to a port of ours, so that ZeroMQ sees its end and closes it."""
    with contextlib.suppress(OSError):
        connection = socket.socket(fileno=descriptor)
        try:
            # the number may have been used again meanwhile, for a file or another connection
            if connection.getsockname()[1] == port:
                connection.shutdown(socket.SHUT_RDWR)
        finally:
            connection.detach()
