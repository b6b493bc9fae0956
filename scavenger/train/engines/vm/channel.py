"""Delivers messages exactly once and in order, over a connection that may break and lose messages.

ZeroMQ reconnects by itself, but messages in flight are lost. So messages have numbers, a receiver accepts only the
next one and acknowledges the last one, and a sender resends what was not acknowledged for a while (go-back-N).
"""

from __future__ import annotations

from collections import deque

from scavenger.train.engines.vm.messages import AgentMessage, Packet

HEARTBEAT_S = 0.25
"""How often an end sends an empty packet if it has nothing else to send: as often as processes send heartbeats, so that
a broken link is noticed before one of them counts as silent."""
RESEND_S = 3.0
"""Time without an acknowledgement after which messages are resent; longer than a chunk takes on a slow link."""
WINDOW = 64
"""Largest number of messages in flight."""


class Channel:
    """One end of a channel, without socket and clock: `due` returns packets to send, `take` accepts received ones."""

    def __init__(self) -> None:
        self._unacknowledged: deque[tuple[int, AgentMessage]] = deque()
        self._last_put = self._sent = self._last_taken = 0
        self._moved_at = self._sent_at = float("-inf")
        self._owes_answer = False

    @property
    def backlog(self) -> int:
        """Number of unacknowledged messages."""
        return len(self._unacknowledged)

    def unacknowledged(self, kind: type[AgentMessage]) -> int:
        """Return the number of unacknowledged messages of a type."""
        return sum(isinstance(message, kind) for _, message in self._unacknowledged)

    def put(self, message: AgentMessage) -> None:
        """Queue a message."""
        self._last_put += 1
        self._unacknowledged.append((self._last_put, message))

    def take(self, packet: Packet, now: float) -> AgentMessage | None:
        """Accept a packet; return its message if it is the next one, else None."""
        while (
            packet.heard <= self._last_put
            and self._unacknowledged
            and self._unacknowledged[0][0] <= packet.heard
        ):
            self._unacknowledged.popleft()
            self._moved_at = now
        self._sent = max(self._sent, self._last_put - len(self._unacknowledged))
        if packet.number == 0 or packet.word is None:
            return None
        self._owes_answer = True
        if packet.number != self._last_taken + 1:
            return None
        self._last_taken += 1
        return packet.word

    def due(self, now: float) -> list[Packet]:
        """Return the packets to send now."""
        first = self._last_put - len(self._unacknowledged)
        if self._sent > first and now - self._moved_at >= RESEND_S:
            self._sent = first
        packets = []
        for number, message in self._unacknowledged:
            if number > first + WINDOW:
                break
            if number > self._sent:
                packets.append(Packet(number, self._last_taken, message))
        if packets:
            if self._sent == first:
                self._moved_at = now
            self._sent = packets[-1].number
        elif self._owes_answer or now - self._sent_at >= HEARTBEAT_S:
            packets.append(Packet(0, self._last_taken))
        if packets:
            self._sent_at, self._owes_answer = now, False
        return packets
