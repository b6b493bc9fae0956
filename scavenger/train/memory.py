"""The shared block of a job: weights, gradients and metric sums, without a name and so without a leak.

The block is an anonymous file in memory. It has no name in any file system; processes of the job inherit its
descriptor. When the last of them ends, however it ends, the kernel frees it: nothing can be left behind.

Layout, every section aligned to 4096 bytes, every tensor to 64::

    | weights, even steps | odd steps | best weights | sums: training, validation | slot 0 | slot 1 | ...

A slot holds a worker's gradients (in the trainable tensors' places), its updated state and its metric
variables. Pages of slots that nobody has used cost nothing.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scavenger.train.messages import Manifest

__all__ = ["Block", "Layout", "create_block"]

Array = npt.NDArray[np.generic]
_TENSOR_ALIGNMENT = 64
_SECTION_ALIGNMENT = mmap.ALLOCATIONGRANULARITY


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything lies, from the manifest alone, so that every process computes the same.

    Attributes:
        offsets: Of each tensor within a state section, bytes.
        state_bytes: Of a state section.
        metric_offsets: Of each metric variable (float64) within a sums section, bytes.
        metric_bytes: Of a sums section.
    """

    manifest: Manifest
    slots: int
    offsets: tuple[int, ...]
    state_bytes: int
    metric_offsets: tuple[int, ...]
    metric_bytes: int

    @classmethod
    def of(cls, manifest: Manifest, slots: int) -> Layout:
        offsets, at = [], 0
        for tensor in manifest.tensors:
            offsets.append(at)
            size = int(np.prod(tensor.shape, dtype=np.int64)) * np.dtype(tensor.dtype).itemsize
            at += _aligned(size, _TENSOR_ALIGNMENT)
        metric_offsets, metric_at = [], 0
        for shape in manifest.metrics:
            metric_offsets.append(metric_at)
            metric_at += _aligned(int(np.prod(shape, dtype=np.int64)) * 8, _TENSOR_ALIGNMENT)
        return cls(
            manifest=manifest,
            slots=slots,
            offsets=tuple(offsets),
            state_bytes=_aligned(max(at, 1), _SECTION_ALIGNMENT),
            metric_offsets=tuple(metric_offsets),
            metric_bytes=_aligned(max(metric_at, 1), _SECTION_ALIGNMENT),
        )

    @property
    def total_bytes(self) -> int:
        return 3 * self.state_bytes + 2 * self.metric_bytes + self.slots * self._slot_bytes

    @property
    def _slot_bytes(self) -> int:
        return self.state_bytes + self.metric_bytes

    def weights_at(self, step: int) -> int:
        return (step % 2) * self.state_bytes

    @property
    def best_at(self) -> int:
        return 2 * self.state_bytes

    def sums_at(self, validation: bool) -> int:
        return 3 * self.state_bytes + (self.metric_bytes if validation else 0)

    def slot_at(self, slot: int) -> int:
        if not 0 <= slot < self.slots:
            raise IndexError(f"slot {slot} of {self.slots}")
        return 3 * self.state_bytes + 2 * self.metric_bytes + slot * self._slot_bytes

    def slot_metrics_at(self, slot: int) -> int:
        return self.slot_at(slot) + self.state_bytes


def create_block() -> int:
    """A descriptor of a new, empty, anonymous block; the caller closes it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("scavenger", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # unlinked at once, so as nameless as a memfd
        return os.dup(file.fileno())


class Block:
    """A mapped block; arrays are views of it, without copies.

    Args:
        fd: Descriptor of the block; kept open by the caller.
        layout: Where things lie. The block grows to its size if it is smaller.

    Raises:
        OSError: If the memory cannot be had.
    """

    def __init__(self, fd: int, layout: Layout) -> None:
        self.layout = layout
        if os.fstat(fd).st_size < layout.total_bytes:
            os.ftruncate(fd, layout.total_bytes)
        self._map = mmap.mmap(fd, layout.total_bytes)

    def state(self, offset: int) -> list[Array]:
        """Views of every tensor of the state section at `offset`, in the manifest's order."""
        return [
            self._view(offset + at, tensor.shape, np.dtype(tensor.dtype))
            for at, tensor in zip(self.layout.offsets, self.layout.manifest.tensors, strict=True)
        ]

    def metrics(self, offset: int) -> list[npt.NDArray[np.float64]]:
        """Views of every metric variable of the sums section at `offset`."""
        return [
            self._view(offset + at, shape, np.dtype(np.float64))
            for at, shape in zip(self.layout.metric_offsets, self.layout.manifest.metrics, strict=True)
        ]

    def copy(self, source: int, destination: int) -> None:
        """Copy a whole state section."""
        size = self.layout.state_bytes
        self._map[destination : destination + size] = self._map[source : source + size]

    def release_slot(self, slot: int) -> None:
        """Give the pages of a slot back; its owner is gone."""
        if hasattr(mmap, "MADV_REMOVE"):
            start = self.layout.slot_at(slot)
            size = self.layout.state_bytes + self.layout.metric_bytes
            self._map.madvise(mmap.MADV_REMOVE, start, size)

    def _view(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(self._map, dtype=dtype, count=count, offset=offset).reshape(shape)
