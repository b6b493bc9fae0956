"""The way between the memory of a PyTorch device and the main memory, where workers exchange: few copies, one wait."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy.typing as npt
import torch

__all__ = ["PinnedMemory", "flat_names", "in_main_memory", "put_back", "wait_for"]

Array = npt.NDArray[Any]
_PADDING_BYTES = 64
"""At most, between the arrays of one `Job.allocate`."""


def flat_names(parameters: Iterable[Any]) -> list[str]:
    """Name the array that each parameter's gradient is part of: by its data type, and by a number of its device.

    The number is that in the order of the parameters, so that workers whose devices have other names, or none, exchange
    the same arrays. The first device needs none.
    """
    numbers: dict[Any, str] = {}
    found = []
    for parameter in parameters:
        number = numbers.setdefault(parameter.device, f"/{len(numbers)}" if numbers else "")
        found.append(f"{parameter.dtype}{number}")
    return found


def wait_for(devices: Iterable[Any]) -> None:
    """Wait until all copies from and to devices that were begun in the present stream are made."""
    for device in devices:
        module = torch.get_device_module(device)
        stream = getattr(
            module, "current_stream", None
        )  # that of Apple's devices has one stream, and no name for it
        (module if stream is None else stream(device)).synchronize()


def in_main_memory(tensors: Sequence[Any]) -> list[Any]:
    """Tensors in the main memory: those of a processor as they are, those of one device and data type by one copy."""
    found = list(tensors)
    for places in _alike(tensors):
        parts = _split(_joined(tensors, places).cpu(), tensors, places)
        for place, part in zip(places, parts, strict=True):
            found[place] = part
    return found


def put_back(tensors: Sequence[Any], values: Sequence[Any]) -> None:
    """Set tensors to values in the main memory, of their data types: to each device by one copy of each data type."""
    found = list(values)
    for places in _alike(tensors):
        parts = _split(_joined(values, places).to(tensors[places[0]].device), tensors, places)
        for place, part in zip(places, parts, strict=True):
            found[place] = part
    for tensor, value in zip(tensors, found, strict=True):
        tensor.copy_(value)


def _alike(tensors: Sequence[Any]) -> Collection[list[int]]:
    """The places of tensors of each accelerator and data type."""
    found: dict[Any, list[int]] = {}
    for place, tensor in enumerate(tensors):
        if not tensor.is_cpu:
            found.setdefault((tensor.device, tensor.dtype), []).append(place)
    return found.values()


def _joined(tensors: Sequence[Any], places: Sequence[int]) -> Any:
    return torch.cat([tensors[place].detach().reshape(-1) for place in places])


def _split(flat: Any, like: Sequence[Any], places: Sequence[int]) -> Iterable[Any]:
    parts = flat.split([like[place].numel() for place in places])
    return (part.view(like[place].shape) for part, place in zip(parts, places, strict=True))


class PinnedMemory:
    """Main memory that CUDA copies to at the rate of the bus; to other memory it copies through a buffer of its own.

    Only what stays as long as it is held may be pinned. Places of means are given back while others have them mapped:
    there CUDA would go on with the pages of before.
    """

    def __init__(self) -> None:
        self._begins: list[int] = []

    def pin(self, arrays: Collection[Array], devices: Iterable[Any]) -> None:
        """Pin the arrays that devices are copied to, if these are of CUDA and those are one block of memory.

        Separate ones, which are sent in messages, stay as they are: two that share a page cannot both be pinned.
        """
        cuda = [device for device in devices if device.type == "cuda"]
        begin = min((array.ctypes.data for array in arrays), default=0)
        size = max((array.ctypes.data + array.nbytes for array in arrays), default=0) - begin
        if not cuda or size > sum(array.nbytes + _PADDING_BYTES for array in arrays):
            return
        runtime = torch.cuda.cudart()
        if runtime.cudaHostRegister(begin, size, 0) == runtime.cudaError.success:
            self._begins.append(begin)
            return
        with contextlib.suppress(RuntimeError):  # CUDA keeps its last error for whoever asks next
            torch.zeros(1, device=cuda[0])

    def release(self) -> None:
        """Release all of it, which is to be done before the memory itself is given back."""
        for begin in self._begins:
            torch.cuda.cudart().cudaHostUnregister(begin)
        self._begins.clear()
