"""The thread that serves a process's payload streams, whatever the process computes meanwhile."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple

from scavenger.errors import MessageError
from scavenger.train.transport.messages import Message, decode
from scavenger.train.transport.payload_buffers import Buffers
from scavenger.train.transport.payload_frames import FRAME_BYTES_MAX, FrameReader, FrameWriter, PayloadFrame

_WAITING_BYTES_MAX = 64 << 20
"""Payloads that have arrived and were not taken; beyond that nothing is read, and senders have to wait."""
_TURN_RECORDS = 16
"""Records that one connection may read or write before another's turn."""
_SLOW_TOGETHER, _INSTEAD = b"bbr", b"cubic"
"""How TCP finds its rate: where many streams share a link, those of the first leave half of it idle, see ADR 149."""
_NAME_BYTES = 16
_NICE = 10
"""With Linux a tenth of another's time; what waits altogether would keep the interpreter's lock from others meanwhile,
and might not move what a VM has to give up before it is taken."""


class Outgoing(NamedTuple):
    """A frame to be sent."""

    header: bytes
    payload: memoryview | None


class _Signal:
    """Wakes whoever waits for a descriptor, from another thread."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)
        self._is_set = False

    def fileno(self) -> int:
        """The descriptor that is readable while the signal is set."""
        return self._near.fileno()

    def set(self) -> None:
        """Set the signal; what it is about must have been stored before."""
        if not self._is_set:
            self._is_set = True
            with contextlib.suppress(OSError):  # full: it is set
                self._far.send(b"!")

    def clear(self) -> None:
        """Clear the signal, before looking at what it is about."""
        with contextlib.suppress(OSError):
            while self._near.recv(64):
                pass
        self._is_set = False

    def close(self) -> None:
        """Release the descriptors."""
        self._near.close()
        self._far.close()


class PayloadLoop:
    """The thread, its connections, and what has arrived by them.

    Args:
        malformed: Called with the peer's name for a frame that holds no message.
        gives_way: Whether the thread takes only the processor time that others leave; see `give_way`.
        stored: Called by the thread with each payload, before it is handed over.
    """

    def __init__(
        self,
        malformed: Callable[[str], None],
        *,
        gives_way: bool = False,
        stored: Callable[[Hashable, Message, memoryview], None] = lambda *_: None,
    ) -> None:
        self.payloads, self.scratch = Buffers(), Buffers()
        self.selector = selectors.DefaultSelector()
        self._malformed, self._gives_way, self._stored = malformed, gives_way, stored
        self._arrived: deque[tuple[Hashable, Message, memoryview | None]] = deque()
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._paused: list[StreamConnection] = []
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._called, self._ready = _Signal(), _Signal()
        self._thread = threading.Thread(target=self._run, name="payloads", daemon=True)
        self._closing = False

    # ---- any thread ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self.selector.register(self._called.fileno(), selectors.EVENT_READ, lambda _: self._called.clear())
        self._thread.start()

    def fileno(self) -> int:
        """The descriptor that is readable when messages have arrived."""
        return self._ready.fileno()

    def call(self, function: Callable[[], None]) -> None:
        """Have the thread call a function."""
        self._calls.append(function)
        self._called.set()

    def receive(self) -> Iterator[tuple[Hashable, Message, memoryview | None]]:
        """Yield what has arrived until now: peer, message and payload.

        The memory of a payload is used again when nobody has a view of it any more.
        """
        self._ready.clear()
        for _ in range(len(self._arrived)):
            peer, message, payload = self._arrived.popleft()
            if payload is not None:
                self._count(-len(payload))
            yield peer, message, payload
        if self._arrived:  # meanwhile
            self._ready.set()

    def close(self) -> None:
        """End the thread and close every connection."""
        self._closing = True
        if self._thread.is_alive():
            self._called.set()
            self._thread.join()
        for key in list((self.selector.get_map() or {}).values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self.selector.close()
        self._called.close()
        self._ready.close()

    def _count(self, size: int) -> None:
        with self._lock:
            self._waiting_bytes += size
        if size < 0 and self._paused and not self._is_full:
            self.call(self._go_on)

    @property
    def _is_full(self) -> bool:
        return self._waiting_bytes >= _WAITING_BYTES_MAX

    # ---- its own thread ------------------------------------------------------------------------------------

    def later(self, delay_s: float, function: Callable[[], None]) -> None:
        """Call a function after so many seconds."""
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._numbers), function))

    def notify(self) -> None:
        """Make the descriptor readable."""
        self._ready.set()

    def arrived(self, peer: Hashable, frame: PayloadFrame) -> None:
        """Hand over a frame."""
        try:
            message = decode(frame.header)
        except MessageError:
            self._malformed(str(peer))
            return
        if frame.payload is not None:
            self._stored(peer, message, frame.payload)
            self._count(len(frame.payload))
        self._arrived.append((peer, message, frame.payload))
        self._ready.set()

    def pauses(self, connection: StreamConnection) -> bool:
        """Whether a connection has to wait before it reads on; it is called when it may."""
        if not self._is_full:
            return False
        self._paused.append(connection)
        if not self._is_full:  # all was taken just now, before there was anybody to call
            self.call(self._go_on)
        return True

    def _go_on(self) -> None:
        paused, self._paused = self._paused, []
        for connection in paused:
            connection.go_on()

    def _run(self) -> None:
        if self._gives_way:
            give_way()
        while not self._closing:
            wait_s = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
            for key, events in self.selector.select(wait_s):
                key.data(events)
            while self._calls:
                self._calls.popleft()()
            while self._timers and self._timers[0][0] <= time.monotonic():
                heapq.heappop(self._timers)[2]()


def give_way() -> None:
    """Have the calling thread take what processor time others leave, and a tenth beside them, if the system lets it."""
    with contextlib.suppress(AttributeError, OSError):  # a process has other threads, which stay as they are
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + _NICE)


def share_fairly(link: socket.socket) -> None:
    """Have TCP find the rate of a connection as most systems do, if this one's own way is slow beside others."""
    with contextlib.suppress(
        AttributeError, OSError
    ):  # there is no choice on this system, or not for this user
        kind = socket.IPPROTO_TCP, socket.TCP_CONGESTION
        if link.getsockopt(*kind, _NAME_BYTES).rstrip(b"\0") == _SLOW_TOGETHER:
            link.setsockopt(*kind, _INSTEAD)


class StreamConnection:
    """One connection of a stream, used by the loop's thread only.

    Args:
        link: A socket that is connected and does not block; the connection closes it.
        send_key, receive_key: The keys of the two directions.
        received: Called with each frame.
        ended: Called once if the connection ends, unless by `close`.
    """

    def __init__(
        self,
        loop: PayloadLoop,
        link: socket.socket,
        *,
        send_key: bytes,
        receive_key: bytes,
        received: Callable[[PayloadFrame], None],
        ended: Callable[[], None],
    ) -> None:
        self._loop, self._link = loop, link
        self._writer = FrameWriter(send_key)
        self._reader = FrameReader(receive_key, loop.payloads.take)
        self._received, self._ended = received, ended
        self.queue: deque[Outgoing] = deque()
        self._arriving: memoryview | None = None
        self._filled = 0
        self._leaving: memoryview | None = None
        self._interest = selectors.EVENT_READ
        self._reads = self.open = True
        share_fairly(link)
        loop.selector.register(link, self._interest, self.handle)

    def handle(self, events: int) -> None:
        """Read and write what is possible now."""
        if not self.open:
            return
        try:
            if events & selectors.EVENT_READ:
                self._read()
            if self.open:
                self._write()
        except (OSError, MessageError, ValueError):  # the last: a payload's memory is gone
            self.close()
            self._ended()
            return
        if self.open:
            self._watch()

    def go_on(self) -> None:
        """Read again, after a pause."""
        self._reads = True
        self.handle(selectors.EVENT_READ)

    def close(self) -> None:
        """Close the connection; what it has not sent is dropped."""
        if self.open:
            self.open = False
            if self._interest:
                self._loop.selector.unregister(self._link)
            self._link.close()
            self.queue.clear()
            self._arriving = self._leaving = None

    def _read(self) -> None:
        for _ in range(_TURN_RECORDS):
            if self._loop.pauses(self):
                self._reads = False
                return
            if self._arriving is None:
                self._arriving, self._filled = self._loop.scratch.take(FRAME_BYTES_MAX), 0
            needed = self._reader.needed
            try:
                size = self._link.recv_into(self._arriving[self._filled : needed])
            except BlockingIOError:
                if not self._filled:
                    self._arriving = None  # another connection can use it
                return
            if not size:
                raise ConnectionResetError
            self._filled += size
            if self._filled == needed:
                self._filled = 0
                frame = self._reader.feed(self._arriving[:needed])
                if frame is not None:
                    self._received(frame)
                    del frame
                if not self.open:
                    return

    def _write(self) -> None:
        for _ in range(_TURN_RECORDS):
            if self._leaving is None and not self._seal():
                return
            assert self._leaving is not None
            try:
                size = self._link.send(self._leaving)
            except BlockingIOError:
                return
            self._leaving = self._leaving[size:] if size < len(self._leaving) else None

    def _seal(self) -> bool:
        """Seal the next part of what is to be sent; returns False if there is nothing."""
        if not self._writer.more:
            try:
                frame = self.queue.popleft()
            except IndexError:  # another thread may just have dropped what was left
                return False
            self._writer.begin(*frame)
        buffer = self._loop.scratch.take(FRAME_BYTES_MAX)
        self._leaving = buffer[: self._writer.fill(buffer)]
        return True

    def _watch(self) -> None:
        """Wait for what can be done next."""
        writes = self._leaving is not None or self._writer.more or bool(self.queue)
        wanted = (selectors.EVENT_READ if self._reads else 0) | (selectors.EVENT_WRITE if writes else 0)
        if wanted != self._interest:
            if not wanted:
                self._loop.selector.unregister(self._link)
            elif not self._interest:
                self._loop.selector.register(self._link, wanted, self.handle)
            else:
                self._loop.selector.modify(self._link, wanted, self.handle)
            self._interest = wanted
