"""Shared memory through which the workers of a custom training loop and their supervisor exchange gradients and states.

Place 0 holds the mean, each other place what one worker pushes. A place begins where its number says, whatever the
arrays are: they may change from step to step, and some workers are a step ahead of others. The memory between places is
never touched, so there is none. Nobody writes to a place that another reads: a worker writes once it has the mean of
the step before, and the mean is written once every member has pushed. Each state that a member donates has a place of
its own, whose memory is given back when those that join have loaded it; so has each mean that they have still to apply.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from scavenger.train.custom_loop.messages import Array, TensorHeader

MEAN = 0
"""The place of the mean."""
KEPT, STATES = 1 << 11, 1 << 12
"""The first of the places of means that some have still to apply, and of states."""
_ALIGNED = 64
_PLACE_BYTES = 1 << 36
"""From the begin of a place to that of the next, more than any arrays take."""


class GradientMemory:
    """The shared memory of one job; see the module.

    Args:
        fd: Descriptor of the memory, which every process of the job inherits; it is not closed here.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._headers: tuple[TensorHeader, ...] = ()
        self._mapped: dict[int, dict[str, Array]] = {}

    def of_states(self) -> GradientMemory:
        """The same memory, for arrays that are described otherwise."""
        return GradientMemory(self._fd)

    def give_back(self, place: int, size: int) -> None:
        """Give back the memory of a place that nobody reads any more."""
        self._mapped.pop(place, None)
        if size > 0 and hasattr(mmap, "MADV_REMOVE"):
            with mmap.mmap(self._fd, size, offset=place * _PLACE_BYTES) as block:
                block.madvise(mmap.MADV_REMOVE)

    def arrays(self, place: int, headers: Sequence[TensorHeader]) -> dict[str, Array]:
        """The arrays at a place, which may be written to; the same ones at every call with the same headers.

        Raises:
            OSError: If there is no room for them.
        """
        described = tuple(headers)
        if described != self._headers:
            self._headers, self._mapped = described, {}
        if place not in self._mapped:
            self._mapped[place] = self._map(place, described)
        return self._mapped[place]

    def zeros(self, place: int, headers: Sequence[TensorHeader]) -> dict[str, Array]:
        """The same as `arrays`, set to zero."""
        found = self.arrays(place, headers)
        for array in found.values():
            array[...] = 0
        return found

    def put(self, place: int, headers: Sequence[TensorHeader], arrays: Mapping[str, Array]) -> int:
        """Write arrays to a place that nobody has used: memory that is mapped would be cleared before.

        Returns:
            Bytes that they take, for `give_back`.

        Raises:
            OSError: If there is no room for them; nothing is left there then.
        """
        offsets, size = _laid_out(headers)
        os.pwrite(
            self._fd, b"\0", place * _PLACE_BYTES + size - 1
        )  # what is to be given back has to lie in the file
        try:
            for header, offset in zip(headers, offsets, strict=True):
                left = np.ascontiguousarray(arrays[header.name]).reshape(-1).view(np.uint8).data
                at = place * _PLACE_BYTES + offset
                while left:
                    written = os.pwrite(self._fd, left, at)
                    left, at = left[written:], at + written
        except OSError:
            self.give_back(place, size)
            raise
        return size

    def _map(self, place: int, headers: tuple[TensorHeader, ...]) -> dict[str, Array]:
        offsets, size = _laid_out(headers)
        begin = place * _PLACE_BYTES
        if size > _PLACE_BYTES:
            raise OSError(f"gradients of {size} bytes are more than a worker may have in shared memory")
        os.posix_fallocate(self._fd, begin, size)  # a write beyond what there is would end the process
        block = mmap.mmap(self._fd, size, offset=begin)
        return {
            header.name: np.frombuffer(
                block, header.dtype, count=math.prod(header.shape), offset=offset
            ).reshape(header.shape)
            for header, offset in zip(headers, offsets, strict=True)
        }


def lend(arrays: dict[str, Array], load: Callable[[dict[str, Array]], None]) -> None:
    """Have a state that lies in the memory loaded: a copy, unless `load` keeps none (`scavenger.sdk.loop.borrows`)."""
    keeps = not getattr(load, "borrows", False)
    load({name: array.copy() for name, array in arrays.items()} if keeps else arrays)


def _laid_out(headers: Sequence[TensorHeader]) -> tuple[list[int], int]:
    """Where each array of a place begins, and how many bytes all take, at least one."""
    offsets, at = [], 0
    for header in headers:
        offsets.append(at)
        at += -(-header.bytes // _ALIGNED) * _ALIGNED
    return offsets, max(1, at)
