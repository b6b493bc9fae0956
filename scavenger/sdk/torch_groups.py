"""Process groups of PyTorch in which workers of one machine average their gradients: over NCCL on GPUs, else gloo."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from scavenger.sdk.process_groups import Reduction

__all__ = ["ProcessGroups"]

_NCCL = {
    "NCCL_SOCKET_IFNAME": "=lo",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}
"""What NCCL is told: to meet on this machine alone, and not to end the process where another one is lost."""
_ROW, _TINY = 4096, 1e-30
"""Elements whose squares are added in single precision; a sum below which some may have been too small for that."""


class ProcessGroups:
    """See `scavenger.sdk.process_groups.Groups`.

    A group is none of `torch.distributed`'s own, so that a script may have one, too. Sums are formed beside the
    gradients, which stay as they are until the step is applied: if a worker is lost, the others average them anew.

    Args:
        gradients: The flat gradients by name, alike at every worker, complete where their device computes.
        give: See `Groups.give`.
    """

    def __init__(self, gradients: Callable[[], Mapping[str, Any]], give: Callable[[], None]) -> None:
        self._gradients, self.give = gradients, give
        self.made, self.failure, self.exchange_s = 0, "", 0.0
        self._newest = 0
        self._group: _Group | None = None
        self._changing = threading.Lock()
        self._devices: dict[Any, str] = {}

    @property
    def device(self) -> str:
        found = {flat.device for flat in self._gradients().values()}
        if len(found) != 1:
            return ""
        [device] = found
        if device not in self._devices:
            self._devices[device] = _described(device)
        return self._devices[device]

    @property
    def sums(self) -> Mapping[str, Any]:
        """What was formed last, by name; it holds until the next step."""
        assert self._group is not None
        return self._group.sums

    def make(self, number: int, rank: int, size: int, file: str, limit_s: float) -> None:
        self.drop()
        self._newest, self.failure = number, ""
        [device] = {flat.device for flat in self._gradients().values()}

        def making() -> None:
            group, failure = None, ""
            try:
                group = _Group(device, rank, size, file, timedelta(seconds=limit_s))
            except Exception as error:  # noqa: BLE001 - whatever the library raises, the leader averages
                failure = _words(error)
            with self._changing:
                if self._newest == number:
                    self._group, self.failure, self.made = group, failure, number
                    return
            if group is not None:
                group.abort()

        threading.Thread(target=making, daemon=True).start()

    def reduce(self, share: float) -> int:
        assert self._group is not None
        return self._group.reduce(self._gradients(), share)

    def reduced(self) -> Reduction:
        assert self._group is not None
        return self._group.reduced()

    def drop(self) -> None:
        with self._changing:
            group, self._group, self.made, self._newest = self._group, None, 0, 0
        if group is not None:
            group.abort()


class _Group:
    """A group that is made and has been tried.

    Raises:
        RuntimeError: If it cannot be made.
    """

    def __init__(self, device: Any, rank: int, size: int, file: str, limit: timedelta) -> None:
        self.sums: dict[str, Any] = {}
        self._device, self._result = device, Reduction()
        self._enter()
        store = distributed.FileStore(file, size)
        store.set_timeout(limit)
        self._backend = (
            _nccl(store, rank, size, limit) if device.type == "cuda" else _gloo(store, rank, size, limit)
        )
        one = torch.ones(1, device=device)
        self._sum([one])
        if one.item() != size:
            raise RuntimeError(f"a sum of {size} ones is {one.item():g}")
        self._done = os.eventfd(0)
        self._forming = self._aborted = False
        self._ending = threading.Lock()

    def _enter(self) -> None:
        """Have the present thread use the device."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def _sum(self, tensors: list[Any]) -> None:
        """Add up tensors of all members, in place, and wait for them."""
        for work in [self._backend.allreduce([tensor]) for tensor in tensors]:
            work.wait()
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def reduce(self, gradients: Mapping[str, Any], share: float) -> int:
        if {name: (one.shape, one.dtype) for name, one in self.sums.items()} != {
            name: (one.shape, one.dtype) for name, one in gradients.items()
        }:
            self.sums = {name: torch.empty_like(flat) for name, flat in gradients.items()}
        gradients, self._forming = dict(gradients), True

        def forming() -> None:
            try:
                self._result = self._formed(gradients, share)
            except Exception as error:  # noqa: BLE001 - as above
                self._result = Reduction(failure=_words(error))
            with self._ending:
                self._forming = False
                os.close(self._done) if self._aborted else os.eventfd_write(self._done, 1)

        threading.Thread(target=forming, daemon=True).start()
        return self._done

    def _formed(self, gradients: Mapping[str, Any], share: float) -> Reduction:
        self._enter()
        for name, flat in gradients.items():
            torch.mul(flat, share, out=self.sums[name])
        self._sum(list(self.sums.values()))
        own_sqnorm, own_bad = _sqnorm(gradients)
        sqnorm, bad = _sqnorm(self.sums)
        return Reduction(own_sqnorm, sqnorm, own_bad, bad)

    def reduced(self) -> Reduction:
        os.eventfd_read(self._done)
        return self._result

    def abort(self) -> None:
        """End what is under way, which may take its thread a while; it does not touch the gradients."""
        self._backend.abort()
        with self._ending:
            self._aborted = True
            if not self._forming:
                os.close(self._done)


def _described(device: Any) -> str:
    """See `Groups.device`."""
    if not distributed.is_available() or not hasattr(os, "eventfd"):
        return ""
    if device.type == "cpu":
        return "cpu" if distributed.is_gloo_available() else ""
    if device.type != "cuda" or not distributed.is_nccl_available():
        return ""
    which = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return "" if which is None else f"cuda {which}"


def _gloo(store: Any, rank: int, size: int, limit: timedelta) -> Any:
    """Between addresses that no other machine reaches, as nothing is encrypted."""
    options = distributed.ProcessGroupGloo._Options()
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = limit
    return distributed.ProcessGroupGloo(store, rank, size, options)


def _nccl(store: Any, rank: int, size: int, limit: timedelta) -> Any:
    os.environ |= _NCCL
    options = distributed.ProcessGroupNCCL.Options()
    options._timeout = limit
    return distributed.ProcessGroupNCCL(store, rank, size, options)


def _sqnorm(arrays: Mapping[str, Any]) -> tuple[float, str]:
    """The squared norm of all of them, and the name of one that is not finite, if there is one."""
    found, bad = 0.0, ""
    for name, one in arrays.items():
        square = _sum_of_squares(one)
        if not math.isfinite(square) and not torch.isfinite(one).all():
            bad = bad or name
        found += square
    return found, bad


def _sum_of_squares(flat: Any) -> float:
    """By rows in the precision of the array, and of these in double precision, which for all takes 20 times as long."""
    whole = flat.numel() - flat.numel() % _ROW
    norms = torch.linalg.vector_norm(flat[:whole].view(-1, _ROW), dim=1).double()
    square = float(norms.dot(norms) + torch.linalg.vector_norm(flat[whole:]).double().square())
    if _TINY < square < math.inf:
        return square
    # squares may be out of the range of single precision
    return float(torch.linalg.vector_norm(flat, dtype=torch.float64).square())


def _words(error: Exception) -> str:
    """The first line of what a library says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
