"""Payloads that cross a link in chunks: no chunk that arrived is sent again, and what is lost is sent once more.

A link delivers in order, but may break, and then loses consecutive messages silently. So a sender that does not
know what became of a payload asks (`Delivery.ask`), behind all that it has sent; the receiver answers with what has
not arrived by then (`Arrival.missing`), and that is sent, unless something was sent after the question: what the
receiver lacked then may be on its way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class Arrival:
    """The receiver's half: tracks which chunks of one payload are still missing.

    Args:
        chunks: Offset and size of each chunk of the payload, in order.
    """

    def __init__(self, chunks: Iterable[tuple[int, int]]) -> None:
        self._missing = dict(chunks)

    @property
    def complete(self) -> bool:
        return not self._missing

    @property
    def missing(self) -> tuple[int, ...]:
        """Offsets of the chunks that have not arrived, in order."""
        return tuple(self._missing)

    def expects(self, offset: int, size: int) -> bool:
        """Whether this is one of the payload's chunks, and has not arrived yet."""
        return self._missing.get(offset) == size

    def took(self, offset: int) -> None:
        """Record that the chunk at `offset` has arrived."""
        del self._missing[offset]


@dataclass(slots=True)
class Delivery:
    """The sender's half: tracks which answers of the receiver are still current."""

    _asked: int = 0
    _outdated: int = 0
    """Number of the newest question that was asked before the last chunk was sent."""

    def ask(self) -> int:
        """The number of a new question to the receiver."""
        self._asked += 1
        return self._asked

    def answered(self, question: int) -> bool:
        """Whether the chunks missing at a question are to be sent now; if so, older answers are ignored."""
        if not self._outdated < question <= self._asked:
            return False
        self._outdated = self._asked
        return True
