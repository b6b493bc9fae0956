"""Words that arrive once and in order, over a connection that may lose what is on its way when it breaks.

ZeroMQ connects anew by itself, and what was underway is gone. So words have numbers, a receiver takes the next one
alone and says how far it has come, and a sender says again what was not heard of for a while (go-back-N).
"""

from __future__ import annotations

from collections import deque

from scavenger.train.engines.vm.messages import Packet, Word

__all__ = ["AGAIN_S", "BEAT_S", "Channel"]

BEAT_S = 1.0
"""How often an end says that it is there, if it has nothing else to say."""
AGAIN_S = 3.0
"""After so long without a step forward, what is unheard is said again; longer than a chunk takes on a slow link."""
WINDOW = 64
"""Words on their way at a time."""


class Channel:
    """One end. It owns no socket and no clock: `due` tells what to send, `take` what has arrived."""

    def __init__(self) -> None:
        self._unheard: deque[tuple[int, Word]] = deque()
        self._said = self._sent = self._heard = 0
        self._moved_at = self._spoke_at = float("-inf")
        self._owes = False

    @property
    def backlog(self) -> int:
        """Words that the other end is not known to have."""
        return len(self._unheard)

    def unheard(self, kind: type[Word]) -> int:
        """Words of a kind that the other end is not known to have."""
        return sum(isinstance(word, kind) for _, word in self._unheard)

    def put(self, word: Word) -> None:
        """Have a word said."""
        self._said += 1
        self._unheard.append((self._said, word))

    def take(self, packet: Packet, now: float) -> Word | None:
        """The word of a packet that has arrived, if it is the next one."""
        while packet.heard <= self._said and self._unheard and self._unheard[0][0] <= packet.heard:
            self._unheard.popleft()
            self._moved_at = now
        self._sent = max(self._sent, self._said - len(self._unheard))
        if packet.number == 0 or packet.word is None:
            return None
        self._owes = True
        if packet.number != self._heard + 1:
            return None
        self._heard += 1
        return packet.word

    def due(self, now: float) -> list[Packet]:
        """What is to be sent now."""
        first = self._said - len(self._unheard)
        if self._sent > first and now - self._moved_at >= AGAIN_S:
            self._sent = first
        packets = []
        for number, word in self._unheard:
            if number > first + WINDOW:
                break
            if number > self._sent:
                packets.append(Packet(number, self._heard, word))
        if packets:
            if self._sent == first:
                self._moved_at = now
            self._sent = packets[-1].number
        elif self._owes or now - self._spoke_at >= BEAT_S:
            packets.append(Packet(0, self._heard))
        if packets:
            self._spoke_at, self._owes = now, False
        return packets
