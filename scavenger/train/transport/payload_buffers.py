"""Buffers that are used again and again, so that memory is neither taken nor cleared for every payload."""

from __future__ import annotations

_KEPT = 8
_SMALLEST = 1 << 16


class Buffers:
    """Lends buffers; one is lent again as soon as nobody has a view of it any more.

    Not for several threads at once. The views may be dropped in any thread.
    """

    def __init__(self) -> None:
        self._all: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """Return a view of `size` bytes of any content, which nobody else has."""
        for index, buffer in enumerate(self._all):
            if len(buffer) >= size and _is_free(buffer):
                self._all.append(self._all.pop(index))
                return memoryview(buffer)[:size]
        buffer = bytearray(max(_SMALLEST, 1 << (size - 1).bit_length()))
        self._all.append(buffer)
        if len(self._all) > _KEPT:
            del self._all[0]  # whoever has it keeps it
        return memoryview(buffer)[:size]


def _is_free(buffer: bytearray) -> bool:
    """Whether no view of a buffer exists: only then can its size be changed."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True
